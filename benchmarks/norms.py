"""Batch norm with shared (fedavg) or local (fedbn) statistics, and layer norm, against no norm, on clients whose
features differ; paired over seeds.

Each seed draws one split and one start for all; nothing is tuned. Columns: the mean over clients of test accuracy (mean
± deviation over seeds), and its difference to no norm with the 95 % interval. With --csv each run is a line of that
file, and runs that are in it are not repeated.

    python -m benchmarks.norms [--seeds 3] [--rounds 20] [--sets …] [--ways …] [--csv norms.csv]
"""

import argparse
import csv
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import last_round, mean_deviation, mean_interval

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


def run(name: str, way: str, seed: int, rounds: int) -> float:
    """The mean over clients of the accuracy of the model that each uses, on the client's test examples."""
    algorithm, norm = WAYS[way]
    document: dict[str, Any] = {
        "seed": seed,
        "rounds": rounds,
        "algorithm": {"name": algorithm},
        "engine": {"threads": 1},
        **SETS[name],
    }
    document["model"] = {**document["model"], "norm": norm}
    return last_round(document, rounds)[1].summary["local/accuracy"]


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
    results = dict[tuple[str, ...], float]()
    if args.csv is not None and args.csv.exists():
        results = {tuple(row[:4]): float(row[4]) for row in csv.reader(args.csv.read_text().splitlines())}
    for name in args.sets:
        print(f"\n{name}, {args.seeds} seeds, {args.rounds} rounds\n")
        print("| clients train by | accuracy | difference to no norm, 95 % interval |\n| --- | --- | --- |")
        reference: list[float] = []
        for way in args.ways:
            accuracies = []
            for seed in range(args.seeds):
                key = (name, way, str(seed), str(args.rounds))
                if key not in results:
                    results[key] = run(name, way, seed, args.rounds)
                    if args.csv is not None:
                        with args.csv.open("a", newline="") as file:
                            csv.writer(file).writerow([*key, results[key]])
                accuracies.append(results[key])
            reference = reference or accuracies
            differences = [one - other for one, other in zip(accuracies, reference, strict=True)]
            print(f"| {way} | {mean_deviation(accuracies)} | {mean_interval(differences)} |", flush=True)


if __name__ == "__main__":
    main()
