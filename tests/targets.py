"""Small data sets of numbers and of several labels, with gaps, and cuts of them."""

from dataclasses import replace
from typing import Literal

import numpy as np

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.target import scale_of
from fedweave.datasets.base import Dataset
from fedweave.partition.base import Part, Partition

Example = Literal["node", "graph", "edge"]


def numbers(example: Example = "node", count: int = 90, targets: int = 1, seed: int = 0) -> Dataset:
    """Examples with numbers that follow from their features, a tenth of them missing where there are several."""
    rng = np.random.default_rng(seed)
    nodes = {"node": count, "graph": 6 * count, "edge": 40}[example]
    x = rng.normal(size=(nodes, 5)).astype(np.float32)
    graph_of = np.repeat(np.arange(count), 6) if example == "graph" else None
    if graph_of is None:
        pairs = rng.integers(0, nodes, (2, 3 * nodes))
    else:
        first = np.arange(nodes)
        pairs = np.stack([first, graph_of * 6 + rng.integers(0, 6, nodes)])
    pairs = pairs[:, pairs[0] != pairs[1]]
    edges = np.unique(np.concatenate([pairs, pairs[::-1]], 1), axis=1)
    edge_attrs = None
    if example == "edge":
        ends = rng.integers(0, nodes, (2, count))
        ends[1] = np.where(ends[0] == ends[1], (ends[1] + 1) % nodes, ends[1])
        edge_attrs = EdgeAttributes(ends, True, features=rng.normal(size=(count, 5)).astype(np.float32), examples=True)
        edges = np.unique(np.concatenate([ends, ends[::-1]], 1), axis=1)
    mean = x if edge_attrs is None else edge_attrs.features
    if example == "graph":
        mean = 2 * x.reshape(count, 6, 5).mean(1)
    weights = rng.normal(size=(5, targets))
    y = 10 + 3 * (mean @ weights) + 0.3 * rng.normal(size=(count, targets))
    if targets > 1:
        y[rng.random(y.shape) < 0.1] = np.nan
    fate = rng.random(count)
    split = np.stack([fate < 0.5, (fate >= 0.5) & (fate < 0.75), fate >= 0.75]) & ~np.isnan(y).all(1)
    names = tuple(f"y{at}" for at in range(targets))
    return Dataset(
        "numbers",
        x,
        edges,
        y,
        0,
        public=split,
        graph_of=graph_of,
        edge_attrs=edge_attrs,
        targets=names,
        target_scale=scale_of(y[split[0]]),
        target_scaling="all",
        sensitive=(rng.random(count) < 0.4).astype(np.int64),
    )


def several_labels(example: Example = "graph", count: int = 90, targets: int = 3, seed: int = 0) -> Dataset:
    """The same with labels that say whether numbers are above 10."""
    data = numbers(example, count, targets, seed)
    y = np.where(np.isnan(data.y), -1, data.y > 10).astype(np.int64)
    return replace(data, name="labels", y=y, target_scale=None, target_scaling="own")


def split(data: Dataset, members: int = 3, seed: int = 0) -> Partition:
    """Members hold examples at random, in the data's own split."""
    owner = np.random.default_rng(seed).integers(0, members, data.examples)
    held = [np.flatnonzero(owner == member) for member in range(members)]
    return Partition(tuple(Part.of(data, examples, data.public[:, examples]) for examples in held))
