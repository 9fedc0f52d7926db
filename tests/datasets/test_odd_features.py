"""Columns that are the answer, or drown the others, are named before a run."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from fedweave.datasets import from_frames, from_pyg, load
from fedweave.datasets.notes import MAX_RATIO, feature_notes

DATA = load("synthetic", nodes=60, features=4, classes=2)


def of(x: np.ndarray, **more: object) -> list[str]:
    return list(feature_notes(replace(DATA, x=x.astype(np.float32), **more)))  # type: ignore[arg-type]


def test_nothing_is_odd_about_ordinary_columns() -> None:
    assert not list(feature_notes(DATA))
    assert not of(np.zeros((DATA.nodes, 3)))


@pytest.mark.parametrize("values", [(0, 1), (1, 0), (5.5, -2)])
def test_a_column_with_one_value_for_each_class_is_named(values: tuple[float, float]) -> None:
    x = np.random.default_rng(0).normal(size=(DATA.nodes, 3))
    x[:, 1] = np.where(DATA.y == 1, values[1], values[0])
    [said] = of(x, columns=("age", "status", "income"))
    assert said.startswith("the feature status has one value for each class")
    x[np.flatnonzero(DATA.y == 1)[0], 1] = values[0]  # one node of another value: no longer the label
    assert not of(x)


def test_a_column_with_a_range_for_each_class_is_named() -> None:
    x = np.random.default_rng(0).normal(size=(DATA.nodes, 3))
    rating = np.random.default_rng(1).integers(1, 11, DATA.nodes)
    x[:, 1] = np.where(DATA.y == 1, rating, -rating)
    [said] = of(x, columns=("age", "rating", "income"))
    assert said.startswith("the feature rating has numbers in a separate range for each class")
    assert list(feature_notes(replace(DATA, x=sp.csr_matrix(x, dtype=np.float32)))) == [
        said.replace("rating has", "1 has")
    ]
    few = np.flatnonzero(DATA.y == 1)[4:]
    assert not of(x, y=np.where(np.isin(np.arange(DATA.nodes), few), -1, DATA.y))  # four of a class may be chance
    x[np.flatnonzero(DATA.y == 1)[0], 1] = x[DATA.y == 0, 1].max()  # one that meets the other class
    assert not of(x)


def test_a_rating_whose_sign_is_the_label_of_the_same_edge_is_named() -> None:
    """As of Bitcoin OTC, held as edges; only as a feature of the edge itself."""
    rng = np.random.default_rng(0)
    edges = pd.DataFrame(rng.integers(0, 20, (60, 2)), columns=["source", "target"])
    edges = edges[edges.source != edges.target]
    edges["rating"] = rng.choice([-3.0, -1, 1, 2, 10], len(edges))
    edges = edges.assign(label=np.where(edges.rating > 0, "trust", "distrust"), fee=rng.normal(size=len(edges)))
    nodes = pd.DataFrame({"id": range(20), "f": rng.normal(size=20)})
    taken = from_frames(nodes, edges, task="edges", edge_features=("fee", "rating"))
    [said] = feature_notes(taken)
    assert said.startswith("the edge feature rating has numbers in a separate range for each class")
    ends, y = torch.from_numpy(taken.edge_attrs.ends), torch.from_numpy(taken.y)  # type: ignore[union-attr]
    attributes = torch.from_numpy(taken.edge_attrs.features)  # type: ignore[union-attr]
    pyg = from_pyg(Data(x=torch.eye(20), edge_index=ends, edge_label=y, edge_attr=attributes), task="edges")
    assert [one.startswith("the edge feature 1 has numbers") for one in feature_notes(pyg)] == [True]
    assert not list(feature_notes(from_frames(nodes, edges.drop(columns="rating"), task="edges", edge_features="fee")))
    [same] = feature_notes(
        from_frames(
            nodes, edges.assign(rating=edges.rating > 0), task="edges", edge_features="rating", ignore=("edges.fee",)
        )
    )
    assert same.startswith("the edge feature rating has one value for each class")


def test_past_edges_carry_what_the_examples_do_not() -> None:
    """They have no label, and examples no rating."""
    rng = np.random.default_rng(0)
    edges = pd.DataFrame({"source": range(60), "target": [*range(1, 60), 0], "rating": rng.choice([-3.0, 1, 2], 60)})
    edges["label"] = np.where(edges.rating > 0, "trust", "distrust")
    edges.loc[:19, "label"], edges.loc[20:, "rating"] = None, None
    nodes = pd.DataFrame({"id": range(60), "f": rng.normal(size=60)})
    data = from_frames(nodes, edges, task="edges", edge_features="rating", missing=("edges.rating",))
    assert data.edge_attrs is not None
    assert data.edge_attrs.features is not None
    assert data.edge_attrs.columns == ("rating", "rating is missing")
    assert data.edge_attrs.features[20:].tolist() == [[0, 1]] * 40
    assert set(data.edge_attrs.features[:20, 0]) == {-3, 1, 2}
    assert data.y[:20].tolist() == [-1] * 20
    assert not list(feature_notes(data))


def test_a_column_far_larger_than_the_others_is_named() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (DATA.nodes, 5))
    x[0] = 1  # of every column the largest
    x[:, 3] *= MAX_RATIO
    assert not of(x)
    x[:, 3] *= 2
    [said] = of(x)
    assert said.startswith("the feature 3 has numbers up to 2,000 times the median column")
    assert list(feature_notes(replace(DATA, x=sp.csr_matrix(x, dtype=np.float32)))) == [said]
