"""Scaling of features: `normalize` as "auto", "none" and "standard" on real data, partitioned by communities and by
labels.

Every row is a data set, a partition ("cut") and a model, with FedAvg and default settings. The global model is
evaluated on the test examples of all clients after the last round ("judged by" accuracy, or AUC where a class is rare
or small graphs are screened). The last columns are differences that are paired over seeds, with 95 % intervals by
Student's t. Needs the sets in $FEDWEAVE_DATA.

    python -m benchmarks.normalize [--seeds 5] [--rounds 30] [--sets credit …] [--rows rows.csv] [--wide]
    python -m benchmarks.normalize --first [--seeds 3] [--rounds 30] [--rows first.csv]

--wide adds GraphSAGE where the row has gcn. --first is the first run of a user who looks for a rare class, with and
without scaling, by gcn and GraphSAGE, and the shelf of all clients ("shelf"): five communities
as clients, AUC of the global model and of the regression on all clients' training examples, mean, smallest and largest
over seeds. Rows that the file has already are not measured again.
"""

import argparse
import csv
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import fedweave
from benchmarks.common import mean_interval
from fedweave.datasets import Dataset
from fedweave.datasets.features import measurements
from fedweave.metrics.selection import SHELF, Judging
from fedweave.partition import Dirichlet, Louvain, Partition, Random

HOWS = ("auto", "none", "standard")
SPLIT = {"train": 0.4, "val": 0.2, "test": 0.4}
COMMUNITIES, SKEWED = "communities", "skewed"


class Set(NamedTuple):
    """A data set: its format, model and metric, and options of the format."""

    kind: str
    model: str
    metric: str
    options: tuple[tuple[str, object], ...] = ()


SETS = {
    "cora": Set("npz", "gcn", "accuracy"),
    "pubmed": Set("npz", "gcn", "accuracy"),
    "amazon-photo": Set("npz", "gcn", "accuracy"),
    "credit": Set("npz", "gcn", "auc", (("sens_feature", True),)),
    "german": Set("npz", "gcn", "auc", (("sens_feature", True),)),
    "income": Set("npz", "gcn", "auc", (("sens_feature", True),)),
    "bail": Set("npz", "gcn", "auc", (("sens_feature", True),)),
    "reddit-anomaly": Set("npz", "gcn", "auc"),
    "facebook-anomaly": Set("npz", "gcn", "auc"),
    "yelpchi-reviews": Set("folder", "gcn", "auc", (("ignore", ["edges.label", "edges.prior"]),)),
    "bzr": Set("tu", "gin", "auc", (("attributes", True),)),
    "aids": Set("tu", "gin", "auc", (("attributes", True),)),
    "proteins": Set("tu", "gin", "auc", (("attributes", True),)),
}
FIRST = ("credit", "reddit-anomaly", "yelpchi-reviews")
WAYS = (("gcn", "none"), ("gcn", "auto"), ("sage", "auto"))
COLUMNS = ("set", "cut", "model", "how", "seed", "metric", "value")
Key = tuple[str, str, str]  # set, cut, model


def read(name: str, how: str) -> Dataset:
    """A set of $FEDWEAVE_DATA with scaled features; sparse ones by "scale" where "standard" would make them dense."""
    kind, options = SETS[name].kind, dict(SETS[name].options)
    try:
        return fedweave.datasets.load(kind, path_of(name), normalize=how, **options)
    except fedweave.errors.ConfigError as error:  # "standard" of sparse features
        if how != "standard":
            raise
        print(f"  {name}: {error}; scale is used instead")
        return fedweave.datasets.load(kind, path_of(name), normalize="scale", **options)


def path_of(name: str) -> str:
    """Where a set is stored."""
    folder = Path(os.environ["FEDWEAVE_DATA"]) / name
    return str(folder / f"{name}.npz" if SETS[name].kind == "npz" else folder)


def partition(key: Key, data: Dataset, seed: int) -> Partition:
    """The partition of a row; small graphs have no communities and are dealt at random."""
    is_small_graphs = SETS[key[0]].kind == "tu"
    clients = 5 if is_small_graphs else 10
    if key[1] == SKEWED:
        return Dirichlet(clients=clients, alpha=0.3, **SPLIT).cut(data, seed=seed)
    return (Random if is_small_graphs else Louvain)(clients=clients, **SPLIT).cut(data, seed=seed)


def auto_is_none(key: Key, seed: int) -> bool:
    """Whether "auto" scales no column of any client, so that it is the same as "none"."""
    data = read(key[0], "none")
    return not any(len(measurements(data.x[part.nodes])) for part in partition(key, data, seed).parts)


def measure(key: Key, how: str, seed: int, rounds: int) -> float:
    """The metric of one run."""
    name, _, model = key
    data = read(name, how)
    kind = {"gcn": fedweave.models.GCN, "sage": fedweave.models.SAGE, "gin": fedweave.models.GIN}[model]
    options = {"pool": "mean"} if SETS[name].kind == "tu" else {}
    net = kind(hidden=32, **options).build(data.features, data.classes)
    algorithm = fedweave.algorithms.FedAvg(net, local_steps=3)
    fed = fedweave.federation(data, partition(key, data, seed), algorithm, seed=seed)
    *_, last = fedweave.train(algorithm, fed, rounds=rounds, eval_every=0, judging=Judging())
    return last.summary[f"global/{SETS[name].metric}"]


def first_run(name: str, model: str, how: str, seed: int, rounds: int) -> tuple[float, float]:
    """The AUC of a first run on test examples, and that of the shelf on all clients' examples."""
    document = {
        "seed": seed,
        "rounds": rounds,
        "eval_every": 0,
        "data": {"name": SETS[name].kind, "path": path_of(name), "normalize": how, **dict(SETS[name].options)},
        "partition": {"name": "louvain", "clients": 5, **SPLIT},
        "model": {"name": model, "hidden": 64},
        "algorithm": {"name": "fedavg", "local_steps": 3},
        "engine": {"threads": 1},
        "evaluation": {"shelf": True},
    }
    with tempfile.TemporaryDirectory() as out:
        metrics = fedweave.run(document, Path(out) / "run", progress=False).summary["metrics"]
    return metrics["global/auc"], metrics[f"{SHELF}/pooled/auc"]


def first_runs(seeds: int, rounds: int, path: Path) -> Iterator[str]:
    """Measures the first runs, writes their rows, and gives a Markdown table of means, minima and maxima."""
    done = {}
    if path.exists():
        for row in csv.DictReader(path.open()):
            key = row["set"], row["model"], row["how"], int(row["seed"])
            done[key] = float(row["value"]), float(row["shelf"])
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if not file.tell():
            writer.writerow(("set", "model", "how", "seed", "value", "shelf"))
        for seed, name, way in product(range(seeds), FIRST, WAYS):
            if (name, *way, seed) not in done:
                auc, shelf = done[name, *way, seed] = first_run(name, *way, seed, rounds)
                writer.writerow((name, *way, seed, repr(auc), repr(shelf)))
                file.flush()
    yield "| set | shelf | " + " | ".join(f"`{model}`, {how}" for model, how in WAYS) + " |"
    yield "| --- |" + " ---: |" * (1 + len(WAYS))
    for name in FIRST:
        columns = [[done[name, *WAYS[0], seed][1] for seed in range(seeds)]]
        for way in WAYS:
            columns.append([done[name, *way, seed][0] for seed in range(seeds)])
        cells = [f"{np.mean(column):.3f} ({min(column):.3f} to {max(column):.3f})" for column in columns]
        yield f"| `{name}` | {' | '.join(cells)} |"


def keys(names: list[str], wide: bool) -> Iterator[Key]:
    """All cells of these sets."""
    for name in names:
        for cut in (COMMUNITIES, SKEWED):
            yield name, cut, SETS[name].model
            if wide and SETS[name].model == "gcn":
                yield name, cut, "sage"


def table(rows: dict[tuple[Key, str], dict[int, float]], cells: list[Key]) -> Iterator[str]:
    """A Markdown table of the cells that have been measured: means over the seeds that all three ways have, and what
    "auto" gains over the other ways, with an interval from three seeds on."""
    yield "| set | cut | model | judged by | seeds | auto | none | standard | auto less none | auto less standard |"
    yield "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for key in cells:
        seeds = sorted(set.intersection(*(set(rows[key, how]) for how in HOWS)))
        if not seeds:
            continue
        values = {how: np.array([rows[key, how][seed] for seed in seeds]) for how in HOWS}
        means = [f"{of_way.mean():.3f}" for of_way in values.values()]
        gains = []
        for how in HOWS[1:]:
            differences = (values["auto"] - values[how]).tolist()
            gains.append(mean_interval(differences) if len(seeds) > 2 else f"{np.mean(differences):+.3f}")
        yield f"| {' | '.join((*key, SETS[key[0]].metric, str(len(seeds)), *means, *gains))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--sets", nargs="+", default=[*SETS])
    parser.add_argument("--rows", type=Path, default=Path("normalize.csv"))
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--first", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.first:
        print("\n".join(first_runs(args.seeds, args.rounds, args.rows)))
        return
    rows: dict[tuple[Key, str], dict[int, float]] = defaultdict(dict)
    if args.rows.exists():
        for row in csv.DictReader(args.rows.open()):
            rows[(row["set"], row["cut"], row["model"]), row["how"]][int(row["seed"])] = float(row["value"])
    cells = list(keys(args.sets, args.wide))
    with args.rows.open("a", newline="") as file:
        writer = csv.writer(file)
        if not file.tell():
            writer.writerow(COLUMNS)
        for seed, key, how in product(range(args.seeds), cells, HOWS):
            if seed in rows[key, how]:
                continue
            if how == "none" and seed in rows[key, "auto"] and auto_is_none(key, seed):
                value = rows[key, "auto"][seed]
            else:
                value = measure(key, how, seed, args.rounds)
            rows[key, how][seed] = value
            writer.writerow((*key, how, seed, SETS[key[0]].metric, repr(value)))
            file.flush()
            print(f"  {', '.join(key)}, {how}, seed {seed}: {value:.4f}", flush=True)
    print("\n".join(table(rows, cells)))


if __name__ == "__main__":
    main()
