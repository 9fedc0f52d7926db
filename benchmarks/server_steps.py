"""FedAvgM and FedAdam beside FedAvg, local training and the most frequent class, on skewed labels.

10 clients whose labels are Dirichlet(.5), 2-layer GCN of width 64, 100 rounds of 3 steps, Adam (lr .01, weight decay
5e-4); the accuracy of the last round's model on all test nodes. Every run is kept in a file of its own, so that an
interrupted call goes on where it was.

    python -m benchmarks.server_steps [--out runs/server-steps] [--data cora …] [--seeds 0 1 2]
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.family import interval
from fedweave.experiment.build import build
from fedweave.experiment.config import load, resolve
from fedweave.experiment.rounds import train

ROOT = Path(__file__).parents[1]
DATA = ("cora", "citeseer", "coauthor-cs", "amazon-computers")
SIDES: dict[str, dict[str, Any]] = {
    "`fedavg`": {"name": "fedavg"},
    "`local`": {"name": "local"},
    "`fedavgm`, server_lr 0.5, momentum 0.5": {"name": "fedavgm", "server_lr": 0.5, "momentum": 0.5},
    "`fedavgm`, server_lr 1, momentum 0.9": {"name": "fedavgm", "server_lr": 1.0, "momentum": 0.9},
    "`fedadam`, server_lr 0.003": {"name": "fedadam", "server_lr": 0.003},
    "`fedadam`, server_lr 0.01": {"name": "fedadam", "server_lr": 0.01},
    "`fedadam`, server_lr 0.1": {"name": "fedadam", "server_lr": 0.1},
}


def measured(folder: Path, data: str, side: str, seed: int, rounds: int) -> dict[str, float]:
    """{"accuracy", "majority": share of the most frequent class} of one run, which is kept."""
    words = [str(value) for value in SIDES[side].values()]
    path = folder / f"{data}-{'-'.join(words)}-{seed}-{rounds}.json"
    if not path.exists():
        document = load(ROOT / "experiments" / "fedavg-cora.toml")
        document |= {"seed": seed, "rounds": rounds, "eval_every": 0, "data": {"name": data}}
        document["algorithm"] |= SIDES[side]
        document["partition"] = {"name": "dirichlet", "alpha": 0.5, "clients": 10}
        made = build(resolve(document))
        *_, last = train(made.algorithm, made.fed, rounds, eval_every=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({key: last.summary[f"global/{key}"] for key in ("accuracy", "majority")}))
    return dict(json.loads(path.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/server-steps"))
    parser.add_argument("--data", nargs="+", default=DATA)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    print("| data | algorithm | accuracy | to FedAvg (paired, 95 %) |\n| --- | --- | --- | --- |")
    for data in args.data:
        ends = {side: [measured(args.out, data, side, seed, args.rounds) for seed in args.seeds] for side in SIDES}
        rows = {side: np.array([end["accuracy"] for end in found]) for side, found in ends.items()}
        rows["the most frequent class"] = np.array([end["majority"] for end in ends["`fedavg`"]])
        for side, found in rows.items():
            compared = "" if side == "`fedavg`" else interval(found - rows["`fedavg`"])
            print(f"| {data} | {side} | {found.mean():.3f} ± {found.std(ddof=1):.3f} | {compared} |", flush=True)


if __name__ == "__main__":
    main()
