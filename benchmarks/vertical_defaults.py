"""Which optimizer and learning rate the vertical algorithms should have when you set none.

Three parties, the data's columns in blocks, 80 % of the edges each, all have the labels; 100 rounds with every other
setting at its default. Only validation nodes are used. `german`, `credit` and `income` are tables of people with
standardized columns; of `credit` and `income` only the first 6,000 people are used, to save time.

    python -m benchmarks.vertical_defaults --out FILE.csv [--sets cora,german] [--sides glasu/gcn] [--seeds 0-2]

A line of the file is a run: data, algorithm, model, optimizer, lr, seed, and validation scores of the last round,
averaged over the parties, with the share of the largest class ("majority").
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import fedweave
from fedweave.algorithms import ALGORITHMS
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import normalize
from fedweave.datasets.parties import restrict
from fedweave.models import MODELS

SETS = ("cora", "german", "citeseer", "credit", "pubmed")
TABLES = ("german", "credit", "income")
MAX_PEOPLE = 6000
METRICS = ("accuracy", "auc", "macro_f1", "loss", "majority")
SETTINGS: tuple[dict[str, Any], ...] = (
    {"optimizer": "sgd", "lr": 0.1},
    {"optimizer": "sgd", "lr": 0.5},
    {"optimizer": "adam", "lr": 0.003},
    {"optimizer": "adam", "lr": 0.01},
    {"optimizer": "adam", "lr": 0.03},
)
SIDES = (("glasu", "gcn"), ("vfgnn", "gcn"), ("vfgnn", "gcnii"), ("glasu", "gcnii"))
ROUNDS = 100


def load_data(name: str) -> Dataset:
    """The data; tables of people are standardized, and only their first rows are used."""
    data = fedweave.datasets.load(name)
    if name not in TABLES:
        return data
    data = restrict(data, np.arange(min(data.nodes, MAX_PEOPLE)))
    return replace(data, x=normalize(data.x, "standard", name))


def run(data: Dataset, algorithm_name: str, model: str, setting: dict[str, Any], seed: int) -> dict[str, str]:
    """Validation scores of the last round, averaged over the parties, and the share of the largest class."""
    cut = fedweave.partition.Vertical(clients=3).cut(data, seed=seed)
    net = MODELS[model]().build(fedweave.width(data, cut), data.classes)
    algorithm = ALGORITHMS[algorithm_name](net, **setting)
    fed = fedweave.federation(data, cut, algorithm, seed=seed)
    *_, last = fedweave.train(algorithm, fed, ROUNDS, eval_every=ROUNDS)
    return {name: f"{mean(last.of_clients(name, 'val').values()):.4f}" for name in METRICS}


def rows(sets: list[str], sides: list[tuple[str, ...]], seeds: range) -> Iterator[dict[str, Any]]:
    """One for each run."""
    for name in sets:
        data = load_data(name)
        for (algorithm, model), setting, seed in product(sides, SETTINGS, seeds):
            about = {"data": name, "algorithm": algorithm, "model": model, **setting, "seed": seed}
            yield about | run(data, algorithm, model, setting, seed)


def main() -> None:
    """Write a row for each run as it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/vertical-defaults.csv"))
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--sides", default=",".join(map("/".join, SIDES)))
    parser.add_argument("--seeds", default="0-2")
    args = parser.parse_args()
    first, last = map(int, args.seeds.split("-"))
    sides = [tuple(side.split("/")) for side in args.sides.split(",")]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("data", "algorithm", "model", "optimizer", "lr", "seed", *METRICS))
        writer.writeheader()
        for row in rows(args.sets.split(","), sides, range(first, last + 1)):
            writer.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
