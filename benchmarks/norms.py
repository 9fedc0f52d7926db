"""Batch norm with its statistics shared (fedavg) or at home (fedbn), and layer norm, against no norm, on clients whose
features differ; paired over seeds.

Each seed draws one split and one start for all; nothing is tuned. With --csv each run is a line of that file, and runs
whose line is there are not made again.

    python -m benchmarks.norms [--seeds 3] [--rounds 20] [--sets …] [--ways …] [--csv norms.csv]
"""

import argparse
import csv
import statistics
from pathlib import Path
from typing import Any

import torch

from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.reports.paired import interval

SETS: dict[str, dict[str, Any]] = {
    "twitch by language": {"data": {"name": "twitch"}, "partition": {"name": "column"}, "model": {"name": "gcn"}},
    "bzr by mean degree": {
        "data": {"name": "bzr"},
        "partition": {"name": "graph_skew", "by": "degree", "clients": 4, "train": 0.6, "val": 0.1, "test": 0.3},
        "model": {"name": "gin", "hidden": 32},
    },
}
WAYS = {
    "fedavg, no norm": ("fedavg", "none"),
    "fedavg, batch norm": ("fedavg", "batch"),
    "fedbn, batch norm": ("fedbn", "batch"),
    "fedavg, layer norm": ("fedavg", "layer"),
    "local, batch norm": ("local", "batch"),
}


def measured(name: str, way: str, seed: int, rounds: int) -> float:
    """The mean over clients of the accuracy of the model that each uses, on its own test examples."""
    algorithm, norm = WAYS[way]
    document: dict[str, Any] = {
        "seed": seed,
        "rounds": rounds,
        "algorithm": {"name": algorithm},
        "engine": {"threads": 1},
        **SETS[name],
    }
    document["model"] = {**document["model"], "norm": norm}
    built = build(resolve(document))
    *_, last = train(built.algorithm, built.fed, rounds, eval_every=0)
    return last.summary["local/accuracy"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[*SETS])
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = dict[tuple[str, ...], float]()
    if args.csv is not None and args.csv.exists():
        known = {tuple(row[:4]): float(row[4]) for row in csv.reader(args.csv.read_text().splitlines())}
    for name in args.sets:
        print(f"\n{name}, {args.seeds} seeds, {args.rounds} rounds\n")
        print("| clients train by | accuracy | difference to no norm, 95 % interval |\n| --- | --- | --- |")
        plain: list[float] = []
        for way in args.ways:
            found = list[float]()
            for seed in range(args.seeds):
                at = (name, way, str(seed), str(args.rounds))
                if at not in known:
                    known[at] = measured(name, way, seed, args.rounds)
                    if args.csv is not None:
                        with args.csv.open("a", newline="") as file:
                            csv.writer(file).writerow([*at, known[at]])
                found.append(known[at])
            plain = plain or found
            low, high = interval([one - other for one, other in zip(found, plain, strict=True)])
            mean, spread = statistics.fmean(found), statistics.stdev(found)
            gap = f"{mean - statistics.fmean(plain):+.3f}, {low:+.3f} to {high:+.3f}"
            print(f"| {way} | {mean:.3f} ± {spread:.3f} | {gap} |", flush=True)


if __name__ == "__main__":
    main()
