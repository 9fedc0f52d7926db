"""FedAvg, FedProx, local training and newer methods by fedweave and by OpenFGL 1.1.0 on the same cuts.

10 clients by Louvain, 2-layer GCN of width 64, dropout .5, 100 rounds of 3 full-batch steps, Adam (lr .01, weight decay
5e-4) whose moments are kept, FedProx with μ = .001, each other method's own settings: OpenFGL's defaults. Where its
code departs from the paper (openfgl.md says where) the two need not agree. fedweave cuts the graph, both train on it,
one after the other, with one thread each, and evaluate after every round. OpenFGL wants an environment of its own:

    python -m venv peer; peer/bin/pip install openfgl-lib==1.1.0 torch torch-geometric scikit-learn munkres
    python -m benchmarks.against_openfgl --peer peer/bin/python [--data cora …] [--seeds 0 1 2] [--out runs/openfgl]

Every cell is kept in a file, so that an interrupted call goes on where it was. See openfgl.md for what was found.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pyarrow.compute as pc
import torch

from benchmarks.optimizer_state import export, spread
from fedweave.experiment.build import Built, build
from fedweave.experiment.config import load, resolve
from fedweave.experiment.rounds import RoundResult, train
from fedweave.metrics.measured import GLOBAL
from fedweave.reports.paired import interval

Cells = dict[tuple[str, str], list[dict[str, Any]]]  # of a data set and an algorithm, what each seed's cell found
SIDES = ("fedweave", "OpenFGL")
ROOT = Path(__file__).parents[1]
PEER = Path(__file__).with_name("run_openfgl.py")
DATA = ("cora", "citeseer", "amazon-computers", "coauthor-cs")
SHOWN = (1, 5, 10, 25, 50)  # rounds of the second table
ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedprox": {"name": "fedprox", "mu": 0.001},
    "local": {"name": "local"},
    "moon": {"name": "moon", "mu": 1.0, "tau": 0.5},
    "fedproto": {"name": "fedproto", "lam": 1.0},
    "fedtgp": {"name": "fedtgp", "lam": 1.0},
    "fedpub": {"name": "fedpub"},
    "fedgta": {"name": "fedgta"},
    "fedtad": {"name": "fedtad"},
}
USUAL = ("fedavg", "fedprox", "local")


def built(data: str, algorithm: str, seed: int, rounds: int) -> Built:
    """The experiment of one cell."""
    document = load(ROOT / "experiments" / "fedavg-cora.toml")
    common = {key: value for key, value in document["algorithm"].items() if key != "name"}
    settings = {"seed": seed, "rounds": rounds, "data": {"name": data}}
    return build(resolve(document | settings | {"algorithm": common | ALGORITHMS[algorithm]}))


def weighted(step: RoundResult, metric: str, sizes: dict[str, int]) -> float:
    """Mean of a metric on clients' own test nodes, weighted by their numbers of nodes, as OpenFGL has it."""
    table = step.metrics
    own = table.filter((pc.field("metric") == metric) & (pc.field("split") == "test") & (pc.field("client") != GLOBAL))
    values = dict(zip(own["client"].to_pylist(), own["value"].to_pylist(), strict=True))
    return sum(sizes[client] * value for client, value in values.items()) / sum(sizes[client] for client in values)


def ours(made: Built, rounds: int) -> dict[str, Any]:
    """What `run_openfgl` prints, of fedweave."""
    sizes = {name: len(part.nodes) for name, part in zip(made.fed.clients, made.partition.parts, strict=True)}
    trained, seconds, began = [], [], time.process_time()
    for step in train(made.algorithm, made.fed, rounds):
        seconds.append(time.process_time() - began)
        trained.append(weighted(step, "trained/accuracy", sizes))
        began = time.process_time()
    return {"trained": trained, "local": weighted(step, "accuracy", sizes), "seconds": seconds}


def cell(folder: Path, peer: Path, data: str, algorithm: str, seed: int, rounds: int) -> dict[str, Any]:
    """Both systems on one cut: {"fedweave": …, "OpenFGL": …}."""
    path = folder / f"{data}-{algorithm}-{seed}-{rounds}.json"
    if not path.exists():
        made = built(data, algorithm, seed, rounds)
        with tempfile.TemporaryDirectory() as scratch:
            archives = export(made, Path(scratch))
            command = [peer, PEER, *archives, algorithm, seed, rounds, Path(scratch) / "peer"]
            done = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True, env=_alone())
        found = {"OpenFGL": json.loads(done.stdout), "fedweave": ours(made, rounds)}
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
        print(path.stem, *(f"{side} {one['trained'][-1]:.3f}" for side, one in found.items()), file=sys.stderr)
    return dict(json.loads(path.read_text()))


def _alone() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}


def curves(cells: Cells) -> str:
    """Accuracies of the clients' trained models after early rounds, fedweave's and OpenFGL's, mean over seeds, and the
    paired difference of their means over all rounds, as Markdown."""
    shown = [
        number
        for number in SHOWN
        if all(number <= len(run[side]["trained"]) for runs in cells.values() for run in runs for side in SIDES)
    ]
    lines = [
        f"| data | algorithm | {' | '.join(f'round {number}' for number in shown)} | difference, mean of all rounds |",
        "| --- " * (3 + len(shown)) + "|",
    ]
    for (data, algorithm), runs in cells.items():
        early = (
            ", ".join(f"{fmean(run[side]['trained'][number - 1] for run in runs):.3f}" for side in SIDES)
            for number in shown
        )
        whole = [fmean(run["fedweave"]["trained"]) - fmean(run["OpenFGL"]["trained"]) for run in runs]
        lines.append(f"| {data} | {algorithm} | {' | '.join(early)} | {apart(whole)} |")
    return "\n".join(lines)


def table(cells: Cells) -> str:
    """Accuracies after the last round, paired differences with 95 % intervals, and seconds of a round, as Markdown."""
    lines = [
        "| data | algorithm | seeds | judged model | fedweave | OpenFGL | difference | s a round, fedweave | OpenFGL |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (data, algorithm), runs in cells.items():
        times = [median(value for run in runs for value in run[side]["seconds"]) for side in SIDES]
        for kind in ("trained", "local"):
            if runs[0]["OpenFGL"][kind] is None:
                continue
            mine, theirs = ([_last(run[side][kind]) for run in runs] for side in SIDES)
            said = f"{spread(mine)} | {spread(theirs)} | {apart([a - b for a, b in zip(mine, theirs, strict=True)])}"
            lines.append(f"| {data} | {algorithm} | {len(runs)} | {kind} | {said} | {times[0]:.4f} | {times[1]:.4f} |")
    return "\n".join(lines)


def apart(differences: Sequence[float]) -> str:
    """Their mean and half of its 95 % interval, which one value alone has not."""
    low, high = interval(differences)
    about = "" if low is None or high is None else f" ± {(high - low) / 2:.3f}"
    return f"{fmean(differences):+.3f}{about}"


def _last(value: float | Sequence[float]) -> float:
    return float(value[-1]) if isinstance(value, list) else float(value)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="Python of OpenFGL's environment")
    parser.add_argument("--out", type=Path, default=Path("runs/openfgl"))
    parser.add_argument("--data", nargs="+", default=list(DATA))
    parser.add_argument("--algorithms", nargs="+", default=list(USUAL), choices=ALGORITHMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args()
    torch.set_num_threads(1)
    wanted = [(data, algorithm) for data in given.data for algorithm in given.algorithms]
    cells = {
        (data, algorithm): [cell(given.out, given.peer, data, algorithm, seed, given.rounds) for seed in given.seeds]
        for data, algorithm in wanted
    }
    print(table(cells), curves(cells), sep="\n\n")


if __name__ == "__main__":
    main()
