"""How features are scaled, measured: `normalize` as "auto", "none" and "standard" on real data, communities and skewed
cuts.

Every cell is a data set and a cut; FedAvg with the model named there, default settings, one model judged on the test
examples of all clients after the last round: accuracy, or AUC where a class is rare or small graphs are screened.
Differences are paired over seeds, with 95 % intervals by Student's t. Needs the sets in $FEDWEAVE_DATA.

    python -m benchmarks.normalize [--seeds 5] [--rounds 30] [--sets credit …] [--rows rows.csv] [--wide]
    python -m benchmarks.normalize --first [--seeds 3] [--rounds 30] [--rows first.csv]

--wide adds GraphSAGE where the cell has gcn. --first is the first run of somebody who looks for a rare class, with and
without scaling, by gcn and GraphSAGE, beside the logistic regression that knows no graph: five communities as clients,
AUC of the joint model and of the regression on all clients' training examples. Rows that the file has already are not
measured again.
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
from fedweave.datasets import Dataset
from fedweave.datasets.features import measurements
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.run import run
from fedweave.metrics.selection import WITHOUT_GRAPH, Judging
from fedweave.partition import Dirichlet, Louvain, Partition, Random
from fedweave.reports.paired import interval

HOWS = ("auto", "none", "standard")
SPLIT = {"train": 0.4, "val": 0.2, "test": 0.4}
COMMUNITIES, SKEWED = "communities", "skewed"


class Set(NamedTuple):
    """A data set: how it is read, its model, and what judges it."""

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
AUC = "auc"
COLUMNS = ("set", "cut", "model", "how", "seed", "metric", "value")
Key = tuple[str, str, str]  # set, cut, model


def read(name: str, how: str) -> Dataset:
    """A set of $FEDWEAVE_DATA with features scaled so; sparse ones as "scale" where "standard" would fill them."""
    own = SETS[name]
    folder = Path(os.environ["FEDWEAVE_DATA"]) / name
    path = folder / f"{name}.npz" if own.kind == "npz" else folder
    try:
        return fedweave.datasets.load(own.kind, str(path), normalize=how, **dict(own.options))
    except fedweave.errors.ConfigError as error:  # "standard" of sparse features
        if how != "standard":
            raise
        print(f"  {name}: {error}; scale in its place")
        return fedweave.datasets.load(own.kind, str(path), normalize="scale", **dict(own.options))


def cut_of(key: Key, data: Dataset, seed: int) -> Partition:
    """The data cut in the cell's way; small graphs have no communities and are cut at random."""
    graphs = SETS[key[0]].kind == "tu"
    few = 5 if graphs else 10
    if key[1] == SKEWED:
        return Dirichlet(clients=few, alpha=0.3, **SPLIT).cut(data, seed=seed)
    return (Random if graphs else Louvain)(clients=few, **SPLIT).cut(data, seed=seed)


def untouched(key: Key, seed: int) -> bool:
    """Whether "auto" scales no column of any client, so that it is "none"."""
    data = read(key[0], "none")
    return not any(len(measurements(data.x[part.nodes])) for part in cut_of(key, data, seed).parts)


def of_cell(key: Key, how: str, seed: int, rounds: int) -> float:
    """The metric of one run."""
    name, _, model = key
    data, graphs = read(name, how), SETS[name].kind == "tu"
    parts = cut_of(key, data, seed)
    made = {"gcn": fedweave.models.GCN, "sage": fedweave.models.SAGE, "gin": fedweave.models.GIN}[model]
    net = made(hidden=32, **({"pool": "mean"} if graphs else {})).build(data.features, data.classes)
    algorithm = fedweave.algorithms.FedAvg(net, local_steps=3)
    fed = fedweave.federation(data, parts, algorithm, seed=seed)
    *_, last = fedweave.train(algorithm, fed, rounds=rounds, eval_every=0, judging=Judging())
    return last.summary[f"global/{SETS[name].metric}"]


class Quiet:
    """Watches a run and says nothing."""

    def begin(self, config: object, built: object, directory: Path, done: int) -> None:
        """Nothing."""

    def step(self, reached: object) -> None:
        """Nothing."""

    def stopping(self, number: int) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


def first(name: str, model: str, how: str, seed: int, rounds: int) -> tuple[float, float]:
    """The AUC of a first run on test examples, and that of the regression beside it."""
    own = SETS[name]
    folder = Path(os.environ["FEDWEAVE_DATA"]) / name
    path = str(folder / f"{name}.npz" if own.kind == "npz" else folder)
    document = {
        "seed": seed,
        "rounds": rounds,
        "eval_every": 0,
        "data": {"name": own.kind, "path": path, "normalize": how, **dict(own.options)},
        "partition": {"name": "louvain", "clients": 5, **SPLIT},
        "model": {"name": model, "hidden": 64},
        "algorithm": {"name": "fedavg", "local_steps": 3},
        "engine": {"threads": 1},
    }
    with tempfile.TemporaryDirectory() as out:
        found = run(resolve(document), Path(out) / "run", Quiet())["metrics"]
    return found[f"global/{AUC}"], found[f"{WITHOUT_GRAPH}/global/{AUC}"]


def firsts(seeds: int, rounds: int, path: Path) -> Iterator[str]:
    """Measures the first runs, writes their rows, and gives a Markdown table of means with the least and the most."""
    done = {}
    if path.exists():
        for row in csv.DictReader(path.open()):
            key = row["set"], row["model"], row["how"], int(row["seed"])
            done[key] = float(row["value"]), float(row["features"])
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if not file.tell():
            writer.writerow(("set", "model", "how", "seed", "value", "features"))
        for seed, name, way in product(range(seeds), FIRST, WAYS):
            if (name, *way, seed) not in done:
                found = done[name, *way, seed] = first(name, *way, seed, rounds)
                writer.writerow((name, *way, seed, *map(repr, found)))
                file.flush()
    yield "| set | features alone | " + " | ".join(f"`{model}`, {how}" for model, how in WAYS) + " |"
    yield "| --- |" + " ---: |" * (1 + len(WAYS))
    for name in FIRST:
        plain = [done[name, *WAYS[0], seed][1] for seed in range(seeds)]
        each = [[done[name, *way, seed][0] for seed in range(seeds)] for way in WAYS]
        cells = (f"{np.mean(own):.3f} ({min(own):.3f} to {max(own):.3f})" for own in (plain, *each))
        yield f"| `{name}` | {' | '.join(cells)} |"


def keys(names: list[str], wide: bool) -> Iterator[Key]:
    """All cells of these sets."""
    for name in names:
        for cut in (COMMUNITIES, SKEWED):
            models = (SETS[name].model, *(["sage"] if wide and SETS[name].model == "gcn" else []))
            yield from ((name, cut, model) for model in models)


def told(rows: dict[tuple[Key, str], dict[int, float]], cells: list[Key]) -> Iterator[str]:
    """A Markdown table of the cells that have been measured: means over the seeds that all three ways have, and what
    "auto" gains over the others, with an interval from three seeds on."""
    yield "| set | cut | model | judged by | seeds | auto | none | standard | auto less none | auto less standard |"
    yield "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for key in cells:
        seeds = sorted(set.intersection(*(set(rows[key, how]) for how in HOWS)))
        if not seeds:
            continue
        each = {how: np.array([rows[key, how][seed] for seed in seeds]) for how in HOWS}
        means = [f"{own.mean():.3f}" for own in each.values()]
        gains = []
        for how in HOWS[1:]:
            found = each["auto"] - each[how]
            low, high = interval(found.tolist()) if len(seeds) > 2 else (None, None)
            gains.append(f"{found.mean():+.3f}" + ("" if low is None else f" ({low:+.3f} to {high:+.3f})"))
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
        print("\n".join(firsts(args.seeds, args.rounds, args.rows)))
        return
    rows: dict[tuple[Key, str], dict[int, float]] = defaultdict(dict)
    if args.rows.exists():
        for row in csv.DictReader(args.rows.open()):
            rows[(row["set"], row["cut"], row["model"]), row["how"]][int(row["seed"])] = float(row["value"])
    cells = [*keys(args.sets, args.wide)]
    with args.rows.open("a", newline="") as file:
        writer = csv.writer(file)
        if not file.tell():
            writer.writerow(COLUMNS)
        for seed in range(args.seeds):
            for key in cells:
                for how in HOWS:
                    if seed not in rows[key, how]:
                        alike = how == "none" and seed in rows[key, "auto"] and untouched(key, seed)
                        value = rows[key, "auto"][seed] if alike else of_cell(key, how, seed, args.rounds)
                        rows[key, how][seed] = value
                        writer.writerow((*key, how, seed, SETS[key[0]].metric, repr(value)))
                        file.flush()
                        print(f"  {', '.join(key)}, {how}, seed {seed}: {value:.4f}", flush=True)
    print("\n".join(told(rows, cells)))


if __name__ == "__main__":
    main()
