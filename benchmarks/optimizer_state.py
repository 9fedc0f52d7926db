"""FedAvg with persistent and with fresh optimizer state, and local training, on several data sets.

10 clients by Louvain, 2-layer GCN of width 64, 100 rounds of 3 steps, Adam (lr .01, weight decay 5e-4): the settings of
experiments/fedavg-cora.toml. Columns, test accuracy after the last round, mean ± deviation over seeds: of the global
model on all test nodes ("global"), mean over clients of the global model ("local") and of their models right after
local training ("trained"); then the deviation of "global" over the last rounds, and "local" in the best validated
round. Every run is saved in its own file, so that an interrupted benchmark continues where it stopped. With
`--reference` the same partitions are given to a FedAvg that a PyG user wrote, $FEDWEAVE_REFERENCE/fedavg_pyg.py.

    python -m benchmarks.optimizer_state [--out runs/optimizer-state] [--data cora …] [--seeds 0 1 2] [--reference]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks.common import EXPERIMENTS, ROOT, mean_deviation
from fedweave.experiment.build import Built, build
from fedweave.experiment.config import load, resolve
from fedweave.experiment.rounds import train

DATA = ("cora", "citeseer", "pubmed", "amazon-computers", "coauthor-cs", "dblp", "flickr-attributed")
SIDES = {
    "FedAvg, kept": {"name": "fedavg", "optimizer_state": "kept"},
    "FedAvg, fresh": {"name": "fedavg", "optimizer_state": "fresh"},
    "local, kept": {"name": "local", "optimizer_state": "kept"},
}
KINDS = ("global", "local", "trained")
SWING_ROUNDS = 10  # the last rounds, over which swings are measured


def build_experiment(data: str, side: str, seed: int, rounds: int) -> Built:
    """The experiment of one cell."""
    document = load(EXPERIMENTS / "fedavg-cora.toml")
    document |= {"seed": seed, "rounds": rounds, "data": {"name": data}}
    document["algorithm"] |= SIDES[side]
    return build(resolve(document))


def path_of(folder: Path, data: str, side: str, seed: int, rounds: int) -> Path:
    """The file of a run."""
    return folder / f"{data}-{side.replace(', ', '-')}-{seed}-{rounds}.json"


def cell(folder: Path, data: str, side: str, seed: int, rounds: int) -> dict[str, Any]:
    """{"global", "local", "trained": test accuracy after every round, "best": summary of the best validated round}."""
    path = path_of(folder, data, side, seed, rounds)
    if not path.exists():
        began, experiment = time.perf_counter(), build_experiment(data, side, seed, rounds)
        steps = list(train(experiment.algorithm, experiment.fed, rounds))
        result: dict[str, Any] = {kind: [step.summary[f"{kind}/accuracy"] for step in steps] for kind in KINDS}
        result["best"] = {name: value for name, value in steps[-1].summary.items() if name.startswith("best_val/")}
        result["seconds"] = time.perf_counter() - began
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result))
        print(f"{path.stem}: {result['seconds']:.0f} s", file=sys.stderr, flush=True)
    return dict(json.loads(path.read_text()))


def table(folder: Path, names: Sequence[str], seeds: Sequence[int], rounds: int) -> str:
    """The cells that have been run, as Markdown: test accuracy after the last round, mean ± deviation over seeds."""
    lines = [
        "| data | side | seeds | global | local | trained | swings of global | local at best val |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for data in names:
        for side in SIDES:
            paths = [path_of(folder, data, side, seed, rounds) for seed in seeds]
            runs = [json.loads(path.read_text()) for path in paths if path.exists()]
            if runs:
                last = " | ".join(mean_deviation(run[kind][-1] for run in runs) for kind in KINDS)
                swings = fmean(stdev(run["global"][-SWING_ROUNDS:]) for run in runs)
                best = mean_deviation(run["best"].get("best_val/local/accuracy", float("nan")) for run in runs)
                lines.append(f"| {data} | {side} | {len(runs)} | {last} | {swings:.3f} | {best} |")
    return "\n".join(lines)


def export(experiment: Built, folder: Path) -> tuple[Path, Path]:
    """A partition as two NumPy archives: the whole graph, and every client's nodes n0, n1, … and masks m0, m1, …"""
    x = sp.csr_matrix(experiment.data.x)
    whole, parts = folder / "data.npz", folder / "parts.npz"
    features = {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": x.shape}
    np.savez(whole, **features, edge_index=experiment.data.edges, y=experiment.data.y)
    arrays = {}
    for i, part in enumerate(experiment.partition.parts):
        arrays[f"n{i}"], arrays[f"m{i}"] = part.nodes, part.masks
    np.savez(parts, **arrays)
    return whole, parts


def reference(folder: Path, data: str, state: str, seed: int, rounds: int) -> tuple[float, float]:
    """What the PyG user's loop gives on the same cut: mean over clients of the test accuracy of the global model, and
    of the clients' trained ones."""
    path = folder / f"reference-{data}-{state}-{seed}-{rounds}.txt"
    if not path.exists():
        program = Path(os.environ.get("FEDWEAVE_REFERENCE", ROOT / "../shared/reference")) / "fedavg_pyg.py"
        archives = export(build_experiment(data, f"FedAvg, {state}", seed, rounds), folder)
        command = [sys.executable, str(program), *map(str, archives), state, str(seed), str(rounds)]
        path.write_text(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    accuracies = re.findall(r"(?:global model|local training) ([\d.]+)", path.read_text())
    return float(accuracies[0]), float(accuracies[1])


def compare(folder: Path, names: Sequence[str], seeds: Sequence[int], rounds: int) -> str:
    """FedAvg with persistent optimizer state and the reference, side by side, as Markdown."""
    lines = ["| data | local, fedweave | local, reference | trained, fedweave | trained, reference |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for data in names:
        ours = [cell(folder, data, "FedAvg, kept", seed, rounds) for seed in seeds]
        theirs = [reference(folder, data, "kept", seed, rounds) for seed in seeds]
        cells = [data]
        for i, kind in enumerate(("local", "trained")):
            cells.append(mean_deviation(run[kind][-1] for run in ours))
            cells.append(mean_deviation(run[i] for run in theirs))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/optimizer-state"))
    parser.add_argument("--data", nargs="+", default=list(DATA))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--reference", action="store_true", help="compare with the PyG user's FedAvg instead")
    parser.add_argument("--table", action="store_true", help="only print what has been run")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.reference:
        print(compare(args.out, args.data, args.seeds, args.rounds))
        return
    for seed in args.seeds if not args.table else ():
        for data in args.data:
            for side in SIDES:
                cell(args.out, data, side, seed, args.rounds)
    print(table(args.out, args.data, args.seeds, args.rounds))


if __name__ == "__main__":
    main()
