"""Frauds that models detect: three banks that train alone and together, with and without class weights, and real data.

Banks: `fedweave init --from fraud` (generated transfers, planted rings), average precision and recall at 1 % of alerts
on test accounts within each bank, of the round that is best on validation. "features" is gradient boosting
(scikit-learn) on the accounts' features, all banks' together; "structure" a model that sees who pays whom, but no
attributes of transfers. "chosen of best" is recall at 1 % of alerts in the chosen round, divided by that in the round
that is best on test.

Real: one model of all data, in fedweave and as a plain loop in PyTorch Geometric (GraphSAGE of one width, the same
split, class weights, best round by validation), against boosting on the features only.

A line for each seed and figure; then means over seeds, and paired differences with their 95 % intervals.

    python -m benchmarks.fraud banks [--seeds 5] [--rounds 30]
    python -m benchmarks.fraud real [--seeds 5] [--rounds 60] [--sets minesweeper …] [--hidden 32]
"""

import argparse
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import average_precision_score, roc_auc_score

import fedweave
from benchmarks.common import mean_interval
from fedweave.core.graph import TEST, TRAIN, VAL
from fedweave.datasets import Dataset
from fedweave.datasets.base import to_undirected
from fedweave.experiment.config import override, resolve
from fedweave.experiment.config.toml import load
from fedweave.metrics.selection import Judging
from fedweave.partition import Random, cut

EXPERIMENT = Path(fedweave.__file__).parent / "experiments" / "fraud.toml"
WAYS = {
    "alone": ["algorithm.name=local"],
    "structure": ["model={name = 'gcn', hidden = 32, directed = 'both'}"],
    "plain": ["algorithm.class_weight=none"],
    "weighted": [],
}
FIGURES = ("average_precision", "recall_at_1")
SETS = ("bitcoin-alpha", "amlsim-20k", "minesweeper", "reddit-anomaly", "facebook-anomaly", "yelpchi-reviews")
PAIRS = {
    "banks": [("weighted", other) for other in ("plain", "alone", "structure", "features")],
    "real": [("fedweave", "PyG loop"), ("PyG loop", "boosting")],
}
Results = dict[str, dict[str, dict[int, float]]]  # way, figure, seed


def recall_at(y: np.ndarray, score: np.ndarray, share: float = 0.01) -> float:
    """The share of the positives that is among this share of all examples with the highest scores."""
    return float(y[np.argsort(-score, kind="stable")[: round(share * len(y))]].sum() / y.sum())


def boosting_scores(x: Any, y: np.ndarray, train: np.ndarray, seed: int) -> np.ndarray:
    """Scores [n] of gradient boosting with class weights on features [n, d] only."""
    x = x.toarray() if hasattr(x, "toarray") else x
    options = {"class_weight": "balanced", "early_stopping": False, "max_iter": 100, "random_state": seed}
    scores: np.ndarray = HistGradientBoostingClassifier(**options).fit(x[train], y[train]).predict_proba(x)[:, 1]
    return scores


def measure_banks(seed: int, rounds: int) -> Iterator[tuple[str, str, float]]:
    """(way, figure, value) of one seed."""
    for way, settings in WAYS.items():
        document = load(EXPERIMENT)
        for text in [*settings, f"seed={seed}", f"rounds={rounds}"]:
            override(document, text)
        with tempfile.TemporaryDirectory() as folder:
            run = fedweave.run(document, Path(folder) / "run")
        metrics = run.summary["metrics"]
        for figure in FIGURES:
            yield way, figure, metrics[f"best_val/global/{figure}"]
        rows = [row for row in run.metrics.to_pylist() if (row["client"], row["split"]) == ("global", "test")]
        best = max(row["value"] for row in rows if row["metric"] == "recall_at_1")
        yield way, "chosen of best", metrics["best_val/global/recall_at_1"] / best if best else 0.0
    config = resolve(load(EXPERIMENT))
    data = fedweave.datasets.load("transfers", seed=seed, **config.data.values)
    parts = cut(config.partition.make(), data, seed).parts
    train = np.concatenate([part.nodes[part.masks[TRAIN]] for part in parts])
    score = boosting_scores(data.x, data.y, train, seed)
    tests = [part.nodes[part.masks[TEST]] for part in parts]
    positives = [data.y[test].sum() for test in tests]
    for figure, function in (("average_precision", average_precision_score), ("recall_at_1", recall_at)):
        of_banks = [function(data.y[test], score[test]) for test in tests]
        yield "features", figure, float(np.average(of_banks, weights=positives))


def plain_loop(data: Dataset, masks: np.ndarray, hidden: int, rounds: int, seed: int) -> np.ndarray:
    """Scores [n] of GraphSAGE as a user of PyTorch Geometric trains it, of the epoch that is best on validation."""
    from torch_geometric.nn import SAGEConv

    torch.manual_seed(seed)
    x = torch.from_numpy(np.asarray(data.x.toarray() if hasattr(data.x, "toarray") else data.x))
    edges, y = torch.from_numpy(data.edges), torch.from_numpy(data.y)
    layers = torch.nn.ModuleList([SAGEConv(data.features, hidden), SAGEConv(hidden, data.classes)])
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.01, weight_decay=5e-4)
    train, val = torch.from_numpy(masks[TRAIN]), masks[VAL]
    counts = torch.bincount(y[train], minlength=data.classes)
    weight = train.sum() / (data.classes * counts)
    best, best_score = -1.0, np.zeros(data.nodes)
    for epoch in range(3 * rounds):
        layers.train()
        h = torch.dropout(layers[0](x, edges).relu(), 0.5, True)
        loss = torch.nn.functional.cross_entropy(layers[1](h, edges)[train], y[train], weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 6 == 5:
            with torch.no_grad():
                score = torch.softmax(layers[1](layers[0](x, edges).relu(), edges), 1)[:, 1].numpy()
            average_precision = average_precision_score(data.y[val], score[val])
            if average_precision > best:
                best, best_score = average_precision, score
    return best_score


def run_fedweave(data: Dataset, seed: int, hidden: int, rounds: int) -> dict[str, float]:
    """The same model in fedweave, of the round that is best on validation."""
    net = fedweave.models.SAGE(hidden=hidden).build(data.features, data.classes)
    algorithm = fedweave.algorithms.FedAvg(net, class_weight="balanced")
    split = Random(clients=1, train=0.5, val=0.25, test=0.25).cut(data, seed)
    fed = fedweave.federation(data, split, algorithm, seed=seed)
    judging = Judging("average_precision", 1)
    *_, last = fedweave.train(algorithm, fed, rounds, eval_every=2, judging=judging)
    return {figure: last.summary[f"best_val/pooled/{figure}"] for figure in ("auc", "average_precision")}


def measure_set(name: str, seed: int, hidden: int, rounds: int) -> Iterator[tuple[str, str, float]]:
    """(way, figure, value) of one seed on a real data set."""
    folder = Path(os.environ["FEDWEAVE_DATA"]) / name
    data = read(folder)
    [part] = Random(clients=1, train=0.5, val=0.25, test=0.25).cut(data, seed).parts
    for figure, value in run_fedweave(data, seed, hidden, rounds).items():
        yield "fedweave", figure, value
    train, test = part.masks[TRAIN], part.masks[TEST]
    scores = {"PyG loop": plain_loop(data, part.masks, hidden, rounds, seed)}
    scores["boosting"] = boosting_scores(data.x, data.y, train, seed)
    for way, score in scores.items():
        yield way, "auc", float(roc_auc_score(data.y[test], score[test]))
        yield way, "average_precision", float(average_precision_score(data.y[test], score[test]))


def read(folder: Path) -> Dataset:
    """A data set of $FEDWEAVE_DATA: as it is there, or with features of what an account sent and received."""
    name, path = folder.name, str(folder)
    if name == "bitcoin-alpha":
        return _ratings(pq.read_table(folder / "edges.parquet"))
    if name == "amlsim-20k":
        data = fedweave.datasets.load("folder", path, loops="drop", ignore=["edges.value", "edges.time"])
        table = pq.read_table(folder / "edges.parquet")
        ids = pq.read_table(folder / "nodes.parquet", columns=["id"])["id"].to_numpy()
        order = np.argsort(ids)  # of the table's rows
        x = [np.asarray(data.x)]
        for end in ("source", "target"):
            rows = order[np.searchsorted(ids[order], table[end].to_numpy())]
            x.append(_edge_features(rows, table["value"].to_numpy(), data.nodes))
        return replace(data, x=standard(np.concatenate(x, 1)), columns=())
    if name == "yelpchi-reviews":
        ignored = ["edges.label", "edges.prior"]
        return fedweave.datasets.load("folder", path, normalize="standard", ignore=ignored)
    if name == "minesweeper":
        return fedweave.datasets.load(name)
    data = fedweave.datasets.load("npz", str(folder / f"{name}.npz"))
    return replace(data, x=standard(np.asarray(data.x))) if name == "reddit-anomaly" else data


def _ratings(table: Any) -> Dataset:
    """Members of a platform by what they gave: 1 where those who rate a member distrust it on average."""
    ids, ends = np.unique(np.concatenate([table["source"], table["target"]]), return_inverse=True)
    source, target = ends.reshape(2, -1)
    nodes, rating = len(ids), table["rating"].to_numpy().astype(float)
    count = np.bincount(target, minlength=nodes)
    trust = np.bincount(target, rating, nodes)
    y = np.where(count > 0, trust < 0, -1).astype(np.int64)
    x = np.concatenate([_edge_features(source, rating, nodes), np.log1p(count)[:, None]], 1)
    return Dataset("bitcoin-alpha", standard(x), to_undirected(np.stack([source, target]), nodes), y, 2)


def _edge_features(end: np.ndarray, value: np.ndarray, nodes: int) -> np.ndarray:
    """float64 [n, 4]: logarithms of how many edges end at each node, and of the mean, the minimum and the maximum of
    their values."""
    count, total = np.bincount(end, minlength=nodes), np.bincount(end, value, nodes)
    low, high = np.full(nodes, np.inf), np.full(nodes, -np.inf)
    np.minimum.at(low, end, value)
    np.maximum.at(high, end, value)
    columns = [np.log1p(count)]
    for column in (total / count.clip(1), low, high):
        column = np.where(count > 0, column, 0.0)
        columns.append(np.sign(column) * np.log1p(np.abs(column)))
    return np.stack(columns, 1)


def standard(x: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and deviation 1, float32."""
    scaled: np.ndarray = ((x - x.mean(0)) / x.std(0).clip(1e-9)).astype(np.float32)
    return scaled


def print_means(results: Results, pairs: Sequence[tuple[str, str]]) -> None:
    """Means, and paired differences with their intervals."""
    for way, figures in results.items():
        for figure, by_seed in figures.items():
            values = ", ".join(f"{value:.3f}" for value in by_seed.values())
            print(f"{way:11} {figure:18} mean {np.mean([*by_seed.values()]):.3f} ({values})")
    for one, other in pairs:
        for figure in results[one].keys() & results[other].keys() - {"chosen of best"}:
            differences = [results[one][figure][seed] - value for seed, value in results[other][figure].items()]
            if len(differences) > 1:
                print(f"{one} - {other}: {figure} {mean_interval(differences)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("banks", "real"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--hidden", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in ["transfers"] if args.what == "banks" else args.sets:
        results: Results = defaultdict(lambda: defaultdict(dict))
        for seed in range(args.seeds):
            if args.what == "banks":
                rows = measure_banks(seed, args.rounds or 30)
            else:
                rows = measure_set(name, seed, args.hidden, args.rounds or 60)
            for way, figure, value in rows:
                results[way][figure][seed] = value
                print(f"  {name}, seed {seed}: {way}, {figure} {value:.4f}", flush=True)
        print(name)
        print_means(results, PAIRS[args.what])


if __name__ == "__main__":
    main()
