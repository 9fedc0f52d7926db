"""FedAvg with moments kept from round to round and with fresh ones, and local training, on the shared data sets.

10 clients by Louvain, 2-layer GCN of width 64, 100 rounds of 3 steps, Adam (lr .01, weight decay 5e-4): the settings of
experiments/fedavg-cora.toml. Every run is kept in a file of its own, so that an interrupted call goes on where it was.
With `--reference` the same cuts are given to a FedAvg that a PyG user wrote, $FEDWEAVE_REFERENCE/fedavg_pyg.py.

    python -m benchmarks.optimizer_state [--out runs/optimizer-state] [--data cora …] [--seeds 0 1 2] [--reference]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.experiment.build import Built, build
from fedweave.experiment.config import load, resolve
from fedweave.experiment.rounds import train

ROOT = Path(__file__).parents[1]
DATA = ("cora", "citeseer", "pubmed", "amazon-computers", "coauthor-cs", "dblp", "flickr-attributed")
SIDES = {
    "FedAvg, kept": {"name": "fedavg", "optimizer_state": "kept"},
    "FedAvg, fresh": {"name": "fedavg", "optimizer_state": "fresh"},
    "local, kept": {"name": "local", "optimizer_state": "kept"},
}
KINDS = ("global", "local", "trained")
LAST = 10  # rounds over which swings are measured


def built(data: str, side: str, seed: int, rounds: int) -> Built:
    """The experiment of one cell."""
    document = load(ROOT / "experiments" / "fedavg-cora.toml")
    return build(
        resolve(
            document
            | {"seed": seed, "rounds": rounds, "data": {"name": data}}
            | {"algorithm": document["algorithm"] | SIDES[side]}
        )
    )


def cell(folder: Path, data: str, side: str, seed: int, rounds: int) -> dict[str, Any]:
    """{"global", "local", "trained": test accuracy after every round, "best": summary of the best validated round}."""
    path = folder / f"{data}-{side.replace(', ', '-')}-{seed}-{rounds}.json"
    if not path.exists():
        began, made = time.perf_counter(), built(data, side, seed, rounds)
        steps = list(train(made.algorithm, made.fed, rounds))
        found: dict[str, Any] = {kind: [step.summary[f"{kind}/accuracy"] for step in steps] for kind in KINDS}
        found["best"] = {name: value for name, value in steps[-1].summary.items() if name.startswith("best_val/")}
        found["seconds"] = time.perf_counter() - began
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
        print(f"{path.stem}: {found['seconds']:.0f} s", file=sys.stderr, flush=True)
    return dict(json.loads(path.read_text()))


def spread(values: Iterable[float]) -> str:
    """ "0.887 ± 0.004"; of one value, it alone."""
    found = list(values)
    return f"{fmean(found):.3f}" + (f" ± {stdev(found):.3f}" if len(found) > 1 else "")


def table(folder: Path, names: Sequence[str], seeds: Sequence[int], rounds: int) -> str:
    """The cells that have been run, as Markdown: test accuracy after the last round, mean ± deviation over seeds."""
    lines = [
        "| data | side | seeds | global | local | trained | swings of global | local at best val |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for data in names:
        for side in SIDES:
            done = [folder / f"{data}-{side.replace(', ', '-')}-{seed}-{rounds}.json" for seed in seeds]
            runs = [json.loads(path.read_text()) for path in done if path.exists()]
            if runs:
                last = " | ".join(spread(run[kind][-1] for run in runs) for kind in KINDS)
                swings = fmean(stdev(run["global"][-LAST:]) for run in runs)
                best = spread(run["best"].get("best_val/local/accuracy", float("nan")) for run in runs)
                lines.append(f"| {data} | {side} | {len(runs)} | {last} | {swings:.3f} | {best} |")
    return "\n".join(lines)


def export(made: Built, folder: Path) -> tuple[Path, Path]:
    """A cut as two NumPy archives: the whole graph, and every client's nodes n0, n1, … and masks m0, m1, …"""
    x = sp.csr_matrix(made.data.x)
    whole, parts = folder / "data.npz", folder / "parts.npz"
    features = {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": x.shape}
    np.savez(whole, **features, edge_index=made.data.edges, y=made.data.y)
    clients = enumerate(made.partition.parts)
    np.savez(parts, **{f"{k}{i}": v for i, part in clients for k, v in (("n", part.nodes), ("m", part.masks))})
    return whole, parts


def reference(folder: Path, data: str, state: str, seed: int, rounds: int) -> tuple[float, float]:
    """What the PyG user's loop gives on the same cut: mean over clients of the test accuracy of the global model, and
    of the clients' trained ones."""
    path = folder / f"reference-{data}-{state}-{seed}-{rounds}.txt"
    if not path.exists():
        program = Path(os.environ.get("FEDWEAVE_REFERENCE", ROOT / "../shared/reference")) / "fedavg_pyg.py"
        archives = export(built(data, f"FedAvg, {state}", seed, rounds), folder)
        command = [sys.executable, str(program), *map(str, archives), state, str(seed), str(rounds)]
        path.write_text(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = re.findall(r"(?:global model|local training) ([\d.]+)", path.read_text())
    return float(found[0]), float(found[1])


def compare(folder: Path, names: Sequence[str], seeds: Sequence[int], rounds: int) -> str:
    """FedAvg with kept moments and the reference, side by side, as Markdown."""
    lines = ["| data | local, fedweave | local, reference | trained, fedweave | trained, reference |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for data in names:
        ours = [cell(folder, data, "FedAvg, kept", seed, rounds) for seed in seeds]
        theirs = [reference(folder, data, "kept", seed, rounds) for seed in seeds]
        sides = (
            spread(value)
            for i, kind in enumerate(("local", "trained"))
            for value in ([run[kind][-1] for run in ours], [run[i] for run in theirs])
        )
        lines.append(f"| {data} | {' | '.join(sides)} |")
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
