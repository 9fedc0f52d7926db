"""FedAvg, FedProx, local training and newer methods by fedweave and by OpenFGL 1.1.0 on the same cuts.

10 clients by Louvain, 2-layer GCN of width 64, dropout .5, 100 rounds of 3 full-batch steps, Adam (lr .01, weight decay
5e-4) with persistent optimizer state, FedProx with μ = .001, the other settings of each method: OpenFGL's defaults.
Where its code departs from the paper (openfgl.md says where) the two need not agree. fedweave partitions the graph,
both train on it, one after the other, with one thread each, and evaluate after every round. Two Markdown tables are
printed, in which seeds are paired: accuracies after the last round with seconds, and accuracies after early rounds.
OpenFGL needs an environment of its own:

    python -m venv peer; peer/bin/pip install openfgl-lib==1.1.0 torch torch-geometric scikit-learn munkres
    python -m benchmarks.against_openfgl --peer peer/bin/python [--data cora …] [--seeds 0 1 2] [--out runs/openfgl]

Every run is saved in a file, so that an interrupted benchmark continues where it stopped. openfgl.md has the results.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch

from benchmarks.common import EXPERIMENTS, mean_deviation, mean_half_width
from benchmarks.optimizer_state import export
from fedweave.experiment.build import Built, build
from fedweave.experiment.config import load, resolve
from fedweave.experiment.rounds import RoundResult, train
from fedweave.metrics.measured import GLOBAL

Cells = dict[tuple[str, str], list[dict[str, Any]]]  # of a data set and an algorithm, the results of each seed
SIDES = ("fedweave", "OpenFGL")
PEER = Path(__file__).with_name("run_openfgl.py")
DATA = ("cora", "citeseer", "amazon-computers", "coauthor-cs")
EARLY_ROUNDS = (1, 5, 10, 25, 50)  # of the second table
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
DEFAULTS = ("fedavg", "fedprox", "local")


def build_experiment(data: str, algorithm: str, seed: int, rounds: int) -> Built:
    """The experiment of one cell."""
    document = load(EXPERIMENTS / "fedavg-cora.toml")
    common = {key: value for key, value in document["algorithm"].items() if key != "name"}
    settings = {"seed": seed, "rounds": rounds, "data": {"name": data}}
    return build(resolve(document | settings | {"algorithm": common | ALGORITHMS[algorithm]}))


def weighted_mean(step: RoundResult, metric: str, sizes: dict[str, int]) -> float:
    """Mean of a metric on the clients' test nodes, weighted by their numbers of nodes, as in OpenFGL."""
    is_test = (pc.field("metric") == metric) & (pc.field("split") == "test") & (pc.field("client") != GLOBAL)
    rows = step.metrics.filter(is_test)
    weights = [sizes[client] for client in rows["client"].to_pylist()]
    return float(np.average(rows["value"].to_pylist(), weights=weights))


def run_fedweave(experiment: Built, rounds: int) -> dict[str, Any]:
    """What `run_openfgl` prints, of fedweave."""
    parts = zip(experiment.fed.clients, experiment.partition.parts, strict=True)
    sizes = {name: len(part.nodes) for name, part in parts}
    after_training, seconds, began = [], [], time.process_time()
    for step in train(experiment.algorithm, experiment.fed, rounds):
        seconds.append(time.process_time() - began)
        after_training.append(weighted_mean(step, "trained/accuracy", sizes))
        began = time.process_time()
    return {"trained": after_training, "local": weighted_mean(step, "accuracy", sizes), "seconds": seconds}


def cell(folder: Path, peer: Path, data: str, algorithm: str, seed: int, rounds: int) -> dict[str, Any]:
    """Both systems on one partition: {"fedweave": …, "OpenFGL": …}."""
    path = folder / f"{data}-{algorithm}-{seed}-{rounds}.json"
    if not path.exists():
        experiment = build_experiment(data, algorithm, seed, rounds)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["OMP_NUM_THREADS"] = "1"
        with tempfile.TemporaryDirectory() as scratch:
            archives = export(experiment, Path(scratch))
            command = [peer, PEER, *archives, algorithm, seed, rounds, Path(scratch) / "peer"]
            words = list(map(str, command))
            process = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        results = {"OpenFGL": json.loads(process.stdout), "fedweave": run_fedweave(experiment, rounds)}
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results))
        print(path.stem, *(f"{side} {one['trained'][-1]:.3f}" for side, one in results.items()), file=sys.stderr)
    return dict(json.loads(path.read_text()))


def curves(cells: Cells) -> str:
    """Accuracies of the clients' models right after local training in early rounds, fedweave's and OpenFGL's, mean over
    seeds, and the paired difference of their means over all rounds, as Markdown."""
    rounds = min(len(runs[0]["OpenFGL"]["trained"]) for runs in cells.values())
    numbers = [number for number in EARLY_ROUNDS if number <= rounds]
    heads = ["data", "algorithm", *(f"round {number}" for number in numbers), "difference, mean of all rounds"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for (data, algorithm), runs in cells.items():
        row = [data, algorithm]
        for number in numbers:
            ours, theirs = (fmean(run[side]["trained"][number - 1] for run in runs) for side in SIDES)
            row.append(f"{ours:.3f}, {theirs:.3f}")
        differences = [fmean(run["fedweave"]["trained"]) - fmean(run["OpenFGL"]["trained"]) for run in runs]
        lines.append(f"| {' | '.join(row)} | {mean_half_width(differences)} |")
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
            # "trained" has a value for every round, "local" that of the last
            ours, theirs = ([np.atleast_1d(run[side][kind])[-1] for run in runs] for side in SIDES)
            differences = [a - b for a, b in zip(ours, theirs, strict=True)]
            scores = f"{mean_deviation(ours)} | {mean_deviation(theirs)} | {mean_half_width(differences)}"
            lines.append(
                f"| {data} | {algorithm} | {len(runs)} | {kind} | {scores} | {times[0]:.4f} | {times[1]:.4f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="Python of OpenFGL's environment")
    parser.add_argument("--out", type=Path, default=Path("runs/openfgl"))
    parser.add_argument("--data", nargs="+", default=list(DATA))
    parser.add_argument("--algorithms", nargs="+", default=list(DEFAULTS), choices=ALGORITHMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cells: Cells = {}
    for data, name in product(args.data, args.algorithms):
        cells[data, name] = [cell(args.out, args.peer, data, name, seed, args.rounds) for seed in args.seeds]
    print(table(cells), curves(cells), sep="\n\n")


if __name__ == "__main__":
    main()
