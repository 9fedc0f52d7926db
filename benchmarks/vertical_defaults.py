"""Which optimizer and learning rate the vertical algorithms should have when you set none.

Three parties, the data's columns cut into blocks, 80 % of the edges each, all see the labels; 100 rounds with every
other setting at its default. Validation nodes alone are read. `german`, `credit` and `income` are tables of people,
their columns standardized; `credit` and `income` are cut to their first 6,000 people for time.

    python -m benchmarks.vertical_defaults --out FILE.csv [--sets cora,german] [--sides glasu/gcn] [--seeds 0-2]
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import replace
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
MOST = 6000
SETTINGS: tuple[dict[str, Any], ...] = (
    {"optimizer": "sgd", "lr": 0.1},
    {"optimizer": "sgd", "lr": 0.5},
    {"optimizer": "adam", "lr": 0.003},
    {"optimizer": "adam", "lr": 0.01},
    {"optimizer": "adam", "lr": 0.03},
)
SIDES = (("glasu", "gcn"), ("vfgnn", "gcn"), ("vfgnn", "gcnii"), ("glasu", "gcnii"))
ROUNDS = 100


def loaded(name: str) -> Dataset:
    """The data; tables of people standardized, and cut."""
    data = fedweave.datasets.load(name)
    if name not in TABLES:
        return data
    data = restrict(data, np.arange(min(data.nodes, MOST)))
    return replace(data, x=normalize(data.x, "standard", name))


def measured(data: Dataset, algorithm: str, model: str, setting: dict[str, Any], seed: int) -> dict[str, float]:
    """Validation scores of the last round, averaged over the parties, and the share of the largest class."""
    cut = fedweave.partition.Vertical(clients=3).cut(data, seed=seed)
    net = MODELS[model]().build(fedweave.width(data, cut), data.classes)
    made = ALGORITHMS[algorithm](net, **setting)
    fed = fedweave.federation(data, cut, made, seed=seed)
    *_, last = fedweave.train(made, fed, ROUNDS, eval_every=ROUNDS)
    return {
        name: mean(last.of_clients(name, "val").values())
        for name in ("accuracy", "auc", "macro_f1", "loss", "majority")
    }


def rows(sets: list[str], sides: list[tuple[str, ...]], seeds: range) -> Iterator[dict[str, Any]]:
    """One for each run."""
    for name in sets:
        data = loaded(name)
        for algorithm, model in sides:
            for setting in SETTINGS:
                for seed in seeds:
                    about = {"data": name, "algorithm": algorithm, "model": model, **setting, "seed": seed}
                    found = measured(data, algorithm, model, setting, seed)
                    yield about | {key: f"{value:.4f}" for key, value in found.items()}


def main() -> None:
    """Write a row for each run as it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/vertical-defaults.csv"))
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--sides", default=",".join(map("/".join, SIDES)))
    parser.add_argument("--seeds", default="0-2")
    args = parser.parse_args()
    first, last = map(int, args.seeds.split("-"))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as file:
        writer = None
        sides = [tuple(side.split("/")) for side in args.sides.split(",")]
        for row in rows(args.sets.split(","), sides, range(first, last + 1)):
            writer = writer or csv.DictWriter(file, list(row))
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
