"""Columns of whole small graphs: where they stand, how they are scaled, and what models make of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from fedweave import datasets
from fedweave.apply.run_predictions import predictions
from fedweave.apply.scorer import scorer_at
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN, Graph, make_graph
from fedweave.core.tree import map_leaves
from fedweave.datasets.features import by_holder, graph_values
from fedweave.datasets.structure import filled, with_places
from fedweave.errors import ConfigError
from fedweave.experiment.config import resolve
from fedweave.learn import cross_entropy
from fedweave.models import MODELS
from fedweave.partition import Random
from fedweave.partition.client_data import shares
from fedweave.partition.scaling import of_typical
from fedweave.sampling.graphs import GraphBatches, ways_of
from tests import commands
from tests.refusals import refusal
from tests.runs.test_predictions import made

GRAPHS = pd.DataFrame({"id": ["a", "b", "c"], "label": [0, 1, 0], "dose": [10.5, 30.5, 50.5], "fresh": [1, 0, 1]})
NODES = pd.DataFrame({"id": range(6), "graph": [*"aabbbc"], "size": [1.0, 2, 1, 2, 3, 1]})
EDGES = pd.DataFrame({"source": [0, 2, 3], "target": [1, 3, 4]})
OPTIONS: dict[str, Any] = {"graph_features": ("dose", "fresh")}


def small(**options: Any) -> datasets.Dataset:
    return datasets.from_graph_frames(GRAPHS, NODES, EDGES, **OPTIONS | options)


def test_they_stand_at_first_nodes_and_are_scaled_over_graphs() -> None:
    """By hand: doses have mean 30.5 and deviation 16.33; over all nodes, five of six would count as 0 or repeat."""
    data = small()
    assert data.columns == ("size", "graph dose", "graph fresh")
    assert data.graph_columns == (1, 2)
    raw = sp.csr_matrix(data.x).toarray()
    assert raw[:, 1].tolist() == [10.5, 0, 30.5, 0, 0, 50.5]
    scaled = sp.csr_matrix(by_holder(data).x).toarray()
    np.testing.assert_allclose(scaled[[0, 2, 5], 1], np.array([-20, 0, 20]) / np.std([10.5, 30.5, 50.5]), rtol=1e-6)
    assert (scaled[[1, 3, 4], 1:] == 0).all()
    assert scaled[:, 2].tolist() == raw[:, 2].tolist()
    np.testing.assert_array_equal(sp.csr_matrix(graph_values(data)).toarray(), [[10.5, 1], [30.5, 0], [50.5, 1]])
    standard = sp.csr_matrix(small(normalize="standard").x).toarray()
    np.testing.assert_allclose(standard[[0, 2, 5], 1], scaled[[0, 2, 5], 1], rtol=1e-6)


def test_each_client_scales_those_of_its_own_graphs() -> None:
    data = small()
    cut = Random(clients=3, train=1.0, val=0.0, test=0.0).cut(data, 0)
    for share in shares(data, cut.parts):
        assert share.graph_columns == data.graph_columns
        assert (graph_values(share)[:, [0]] == 0).sum() == 1  # one graph is constant
    shift, _, _ = of_typical(data, cut)
    weights = np.array([len(part.nodes) for part in cut.parts])
    doses = [GRAPHS["dose"][part.examples[0]] for part in cut.parts]
    assert shift[1] == pytest.approx(np.average(doses, weights=weights))


def test_structure_comes_before_them() -> None:
    data = with_places(small(), ("degree",))
    assert data.columns == ("size", "structure: degree", "graph dose", "graph fresh")
    assert data.graph_columns == (2, 2)
    whole = sp.csr_matrix(filled(data).x).toarray()
    np.testing.assert_allclose(whole[:, 1], np.log1p([1, 1, 1, 2, 1, 0]), rtol=1e-6)
    assert whole[:, 2].tolist() == [10.5, 0, 30.5, 0, 0, 50.5]


def test_an_archive_keeps_them(tmp_path: Path) -> None:
    data = small(structure=("degree",))
    again = datasets.load("npz", str(data.save(tmp_path / "g.npz")), structure=["degree"])
    assert again.graph_columns == data.graph_columns
    np.testing.assert_array_equal(sp.csr_matrix(again.x).toarray(), sp.csr_matrix(data.x).toarray())


def graph(x: Any, dtype: torch.dtype = torch.float64) -> Graph:
    owner = np.array([0, 0, 1, 1, 1, 2])
    ends = np.array([[0, 1, 2, 3, 3, 4], [1, 0, 3, 2, 4, 3]])
    masks = np.zeros((3, 3), bool)
    masks[TRAIN] = True
    return make_graph(x, ends, np.array([0, 1, 0]), masks, dtype=dtype, graph_of=owner)


def features(second: float = 3.0) -> np.ndarray:
    x = np.zeros((6, 5))
    x[:, :3] = np.arange(18).reshape(6, 3) / 10
    x[[0, 2, 5], 3:] = [[1, -1], [second, 0.5], [0.25, 2]]
    return x


@pytest.mark.parametrize("name", ["gin", "gine"])
@pytest.mark.parametrize("pool", ["sum", "mean"])
def test_they_change_their_own_graph_alone_and_count_once(name: str, pool: str) -> None:
    """Also where the mean is over three nodes; sparse or dense."""
    kind = MODELS[name](hidden=4, dropout=0.0, pool=pool, graph_features=2)
    model = kind.build(5, 2)
    w = models.init(model, random.key(0), torch.float64)
    out = models.apply(model, w, graph(features()))[:3]
    other = models.apply(model, w, graph(features(7.0)))[:3]
    assert (out - other).abs().sum(1).gt(1e-9).tolist() == [False, True, False]
    sparse = models.apply(model, w, graph(sp.csr_matrix(features())))[:3]
    torch.testing.assert_close(sparse, out)
    # Without the columns' weights it is the model of the nodes' columns, but for the linear layer that joins.
    place = next(at for at, layer in enumerate(model) if layer.operator == "pool_sum" and str(at) in w)
    joined = w[str(place)]
    joined["weight_joined"][4:] = 0
    joined["weight_joined"][:4], joined["bias_joined"][:] = torch.eye(4, dtype=torch.float64), 0
    inner = replace(kind, graph_features=0).build(3, 2)
    weights = {str(int(at) - (1 if int(at) < place else 2)): leaf for at, leaf in w.items() if int(at) != place}
    nodes = models.apply(inner, weights, graph(features()[:, :3]))[:3]
    torch.testing.assert_close(models.apply(model, w, graph(features()))[:3], nodes)


@pytest.mark.parametrize("name", ["gin", "gine"])
def test_a_batch_has_them(name: str) -> None:
    whole = graph(sp.csr_matrix(features()))
    model = MODELS[name](hidden=4, dropout=0.0, pool="mean", graph_features=2).build(5, 2)
    w, sampler = models.init(model, random.key(0), torch.float64), GraphBatches(4)
    assert GraphBatches.suits(model)
    drawn = map_leaves(lambda leaf: leaf[0], sampler.batches(whole, random.key(1), 1, ways_of(model)))
    full = cross_entropy(models.apply(model, w, whole), whole.y.clamp(min=0), whole.masks[TRAIN].double())
    torch.testing.assert_close(sampler.loss(w, model, whole, None, drawn), full)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not pool"):
        MODELS["gin"](graph_features=2).build(5, 2)
    with pytest.raises(ConfigError, match="nodes need one"):
        MODELS["gin"](graph_features=5, pool="sum").build(5, 2)
    document = {"data": {"name": "graphs", "path": "x", **OPTIONS}, "partition": {"name": "random", "clients": 2}}
    document |= {"algorithm": {"name": "fedavg"}}
    with refusal("config.graph-columns"):
        resolve({**document, "model": {"name": "pna"}})
    assert resolve({**document, "model": {"name": "gine"}}).model.values["graph_features"] == 2
    with refusal("data.column-missing"):
        small(fingerprint="morgan")


SMILES = ("CCO", "c1ccccc1", "CC(=O)O", "CCN", "CCCl", "c1ccccc1O", "CCCC", "OCC(O)CO")


def molecules(root: Path) -> Path:
    root.mkdir()
    pd.DataFrame({"id": range(8), "label": [0, 1] * 4, "smiles": SMILES}).to_csv(root / "graphs.csv", index=False)
    return root


def test_fingerprints_by_hand(tmp_path: Path) -> None:
    """Ethanol has three atoms, hence three counts of radius 0; benzene's six carbons are one bit, six times."""
    pytest.importorskip("rdkit")
    data = datasets.load("graphs", str(molecules(tmp_path / "m")), fingerprint="both", normalize="none")
    values = sp.csr_matrix(graph_values(data)).toarray()
    names = list(data.columns[data.graph_columns.first :])
    counts = np.expm1(values[:, :2048])
    np.testing.assert_allclose(counts, np.rint(counts), atol=1e-5)
    assert round(counts[1].max()) == 6
    assert values[0, names.index("descriptor MolWt")] == pytest.approx(46.069, abs=0.01)
    assert values[7, names.index("descriptor NumHDonors")] == 3


@pytest.mark.parametrize("how", ["morgan", "both"])
def test_new_molecules_get_the_columns_of_training(tmp_path: Path, how: str) -> None:
    pytest.importorskip("rdkit")
    where, out = molecules(tmp_path / "m"), tmp_path / "run"
    data = {"name": "graphs", "path": str(where), "fingerprint": how, "edge_features": "all"}
    cut = {"name": "random", "clients": 1, "train": 0.5, "val": 0.0, "test": 0.5}
    algorithm = {"name": "fedavg", "local_steps": 5, "lr": 0.01, "batch_size": 2}
    made(out, algorithm, data, 2, model={"name": "gine", "dropout": 0.0}, partition=cut)
    old = {row["id"]: row["p_1"] for row in predictions(out).to_pylist()}
    new = {row["id"]: row["p_1"] for row in predictions(out, where).to_pylist()}
    assert new == pytest.approx(old, abs=1e-5)
    assert np.std([*old.values()]) > 1e-3
    commands.run("export", out, "--out", tmp_path / "export")
    alone = {row["id"]: row["p_1"] for row in scorer_at(tmp_path / "export").score(where).to_pylist()}
    assert alone == pytest.approx(old, abs=1e-5)
