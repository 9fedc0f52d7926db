"""How a model joins the nodes of a small graph: sum or mean, measured on validation examples alone.

FedAvg with four members of a random cut, 60 % of the graphs for training and 20 % for validation, mini-batches of 32
graphs, ten a round; validation AUC of the global model after the last round. Needs the sets in $FEDWEAVE_DATA.

    python -m benchmarks.pooling [--seeds 3] [--rounds 40] [--sets mutag …] [--rows pooling.csv]

Rows that the file has already are not measured again.
"""

import argparse
import csv
import os
import statistics
import tempfile
from collections import defaultdict
from itertools import product
from pathlib import Path

import fedweave
from fedweave.reports.paired import interval

SETS = {"mutag": "tu", "proteins": "tu", "bace": "graphs"}
MODELS, POOLS = ("gin", "gcn", "sage"), ("sum", "mean")
COLUMNS = ("set", "model", "pool", "seed", "auc")


def measured(name: str, model: str, pool: str, seed: int, rounds: int) -> float:
    """Validation AUC after the last round."""
    folder = Path(os.environ["FEDWEAVE_DATA"]) / name
    document = {
        "seed": seed,
        "rounds": rounds,
        "eval_every": rounds,
        "data": {"name": "graphs", "path": str(folder)} if SETS[name] == "graphs" else {"name": name},
        "partition": {"name": "random", "clients": 4, "train": 0.6, "val": 0.2, "test": 0.2},
        "model": {"name": model, "pool": pool},
        "algorithm": {"name": "fedavg", "local_steps": 10, "parts": [{"name": "graph_cross_entropy", "batch": 32}]},
        "engine": {"threads": 1},
    }
    with tempfile.TemporaryDirectory() as out:
        rows = fedweave.run(document, out=str(Path(out) / "run")).metrics.to_pylist()
    [found] = [row["value"] for row in rows if (row["client"], row["split"], row["metric"]) == ("global", "val", "auc")]
    return float(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[*SETS])
    parser.add_argument("--rows", type=Path, default=Path("pooling.csv"))
    args = parser.parse_args()
    rows: dict[tuple[str, ...], float] = {}
    if args.rows.exists():
        with args.rows.open() as file:
            rows = {tuple(row[name] for name in COLUMNS[:4]): float(row["auc"]) for row in csv.DictReader(file)}
    for seed, name, model, pool in product(range(args.seeds), args.sets, MODELS, POOLS):
        key = (name, model, pool, str(seed))
        if key not in rows:
            rows[key] = measured(name, model, pool, seed, args.rounds)
            with args.rows.open("w", newline="") as file:
                csv.writer(file).writerows([COLUMNS, *((*one, auc) for one, auc in rows.items())])
    values = defaultdict[tuple[str, str, str], dict[str, float]](dict)
    for (name, model, pool, number), auc in rows.items():
        values[name, model, pool][number] = auc
    print("| set | model | sum | mean | sum less mean |\n| --- | --- | ---: | ---: | ---: |")
    for name, model in product(args.sets, MODELS):
        both = [values[name, model, pool] for pool in POOLS]
        seeds = sorted(set(both[0]) & set(both[1]))
        less = [both[0][at] - both[1][at] for at in seeds]
        means = " | ".join(f"{statistics.mean(one.values()):.3f}" for one in both)
        print(f"| {name} | {model} | {means} | {shown(less)} |")


def shown(values: list[float]) -> str:
    """The mean with its 95 % interval."""
    mean, low, high = statistics.mean(values), *interval(values)
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"


if __name__ == "__main__":
    main()
