"""FedAvgM and FedAdam beside FedAvg, local training and the most frequent class, on skewed labels.

10 clients whose labels are Dirichlet(.5), 2-layer GCN of width 64, 100 rounds of 3 steps, Adam (lr .01, weight decay
5e-4). Columns: accuracy of the last round's model on all test nodes, mean ± deviation over seeds, and its paired
difference to FedAvg with half of its 95 % interval. Every run is saved in its own file, so that an interrupted
benchmark continues where it stopped.

    python -m benchmarks.server_steps [--out runs/server-steps] [--data cora …] [--seeds 0 1 2]
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import EXPERIMENTS, last_round, mean_deviation, mean_half_width
from fedweave.experiment.config import load

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


def measure(folder: Path, data: str, side: str, seed: int, rounds: int) -> dict[str, float]:
    """{"accuracy", "majority": share of the most frequent class} of one run, which is saved."""
    words = [str(value) for value in SIDES[side].values()]
    path = folder / f"{data}-{'-'.join(words)}-{seed}-{rounds}.json"
    if not path.exists():
        document = load(EXPERIMENTS / "fedavg-cora.toml")
        document |= {"seed": seed, "rounds": rounds, "eval_every": 0, "data": {"name": data}}
        document["algorithm"] |= SIDES[side]
        document["partition"] = {"name": "dirichlet", "alpha": 0.5, "clients": 10}
        _, last = last_round(document, rounds)
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
        rows: dict[str, np.ndarray] = {}
        for side in SIDES:
            runs = [measure(args.out, data, side, seed, args.rounds) for seed in args.seeds]
            rows[side] = np.array([run["accuracy"] for run in runs])
        rows["the most frequent class"] = np.array([run["majority"] for run in runs])
        for side, values in rows.items():
            difference = "" if side == "`fedavg`" else mean_half_width(list(values - rows["`fedavg`"]))
            print(f"| {data} | {side} | {mean_deviation(values)} | {difference} |", flush=True)


if __name__ == "__main__":
    main()
