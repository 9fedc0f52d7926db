"""Whole runs on edges that carry something."""

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedweave import datasets
from fedweave.algorithms import FedAvg
from fedweave.apply.run_predictions import predictions
from fedweave.errors import ConfigError
from fedweave.experiment.build import build, federation
from fedweave.experiment.config import resolve
from fedweave.export.source import source
from fedweave.models import GINE
from fedweave.models.edge_settings import fit_to_edges, unused_attribute_warnings
from fedweave.partition import Random
from fedweave.python.training import train
from tests.contract.federations import distance, state_after
from tests.refusals import refusal
from tests.runs.test_predictions import columns, made

TABLES = {
    "directed": True,
    "edge_features": ["amount", "kind"],
    "edge_weight": "amount",
    "edge_normalize": "standard",
    "categories": {"edges.kind": ["cash", "wire"]},
    "loops": "keep",
}
LOCAL = {"name": "fedavg", "optimizer": "adam", "lr": 0.02, "local_steps": 10}


def bank(root: Path, labelled: bool = True, reverse: bool = False, accounts: int = 120) -> Path:
    """Accounts, of which those are fraud that got a large transfer: neither their features nor who is joined to whom
    says so, and a direction too many hides it."""
    draw = np.random.default_rng(1)
    ends, kind = draw.integers(0, accounts, (2, 4 * accounts)), draw.choice(["cash", "wire"], 4 * accounts)
    amount = draw.uniform(1, 2, 4 * accounts)
    fraud = np.arange(accounts) % 3 == 0
    large = np.unique(ends[1], return_index=True)[1]
    amount[large[fraud[ends[1][large]]]] = 20
    fraud = np.isin(np.arange(accounts), ends[1][large]) & fraud
    nodes = {"id": [f"a{at}" for at in range(accounts)], "age": draw.normal(size=accounts)}
    nodes |= {"label": fraud.astype(int)} if labelled else {}
    names = [np.array(nodes["id"])[end] for end in ends]
    edges = {"source": names[0], "target": names[1], "kind": kind, "amount": amount}
    root.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(nodes).to_csv(root / "nodes.csv", index=False)
    table = pd.DataFrame(edges)
    (table[::-1] if reverse else table).to_csv(root / "edges.csv", index=False)
    return root


def document(path: Path, algorithm: dict[str, object] | None = None, **model: object) -> dict[str, object]:
    partition = {"name": "random", "clients": 2, "train": 0.6, "val": 0.2, "test": 0.2}
    own = {"name": "folder", "path": str(path), **TABLES}
    sections = {"data": own, "partition": partition, "model": {"hidden": 16, "dropout": 0.0, **model}}
    return {"rounds": 8, **sections, "algorithm": algorithm or LOCAL, "engine": {"threads": 1}}


def test_a_model_of_edges_sees_what_others_cannot(tmp_path: Path) -> None:
    data = {"name": "folder", "path": str(bank(tmp_path / "data")), **TABLES}
    cut = {"name": "random", "clients": 1, "train": 0.6, "val": 0.2, "test": 0.2}
    f1 = {}
    for name, model in (("gcn", {"name": "gcn"}), ("gine", {"name": "gine", "dropout": 0.0, "directed": "both"})):
        found = made(tmp_path / name, LOCAL, data, rounds=15, partition=dict(cut), model=model)
        f1[name] = found["local/f1"] if "local/f1" in found else found["local/macro_f1"]
    assert f1["gine"] > 0.9 > f1["gcn"]


@pytest.mark.slow
@pytest.mark.parametrize("model", [{"name": "gine", "directed": "both"}, {"name": "gat", "hidden": 4, "heads": 2}])
def test_one_after_the_other_and_all_at_once_give_the_same(tmp_path: Path, model: dict[str, object]) -> None:
    """Also where steps are recorded and played again."""
    path, results = bank(tmp_path / "data"), []
    for engine in ({"mode": "loop"}, {"mode": "vmap", "record": "always"}, {"mode": "vmap", "record": "never"}):
        plain = document(path, **model)
        built = build(resolve({**plain, "engine": {"threads": 1, **engine}}))
        results.append(state_after(built.algorithm, built.fed, 3))
    assert distance(results[1], results[2]) == 0
    assert distance(results[0], results[1]) <= 1e-5


def test_the_same_nodes_as_new_ones_are_predicted_alike(tmp_path: Path) -> None:
    """In another order of rows, unlabeled, with edges scaled by what those of training were."""
    data = {"name": "folder", "path": str(bank(tmp_path / "data")), **TABLES}
    cut = {"name": "random", "clients": 1}
    made(tmp_path / "run", LOCAL, data, partition=cut, model={"name": "pna", "hidden": 8, "directed": "forward"})
    own = columns(predictions(tmp_path / "run"))
    new = columns(predictions(tmp_path / "run", bank(tmp_path / "new", labelled=False, reverse=True)))
    place = {name: at for at, name in enumerate(own["id"].tolist())}
    assert new["p_1"] == pytest.approx(own["p_1"][[place[name] for name in new["id"].tolist()]], abs=1e-5)
    few = bank(tmp_path / "few", labelled=False)
    pd.read_csv(few / "edges.csv").assign(amount=lambda t: t.amount * 2).to_csv(few / "edges.csv", index=False)
    changed = columns(predictions(tmp_path / "run", few))
    assert np.abs(changed["p_1"] - new["p_1"][np.argsort(np.argsort(new["node"]))]).max() > 1e-4
    pd.read_csv(few / "edges.csv").drop(columns="amount").to_csv(few / "edges.csv", index=False)
    with refusal("data.unlike", "amount"):
        predictions(tmp_path / "run", few)


@pytest.mark.parametrize("model", [{"name": "gcn"}, {"name": "gine", "directed": "both", "ports": True}])
def test_models_of_edges_are_not_exported_without_them(tmp_path: Path, model: dict[str, object]) -> None:
    """A GCN with weights has the arrays of one without, and an export numbers no ports."""
    data = {"name": "folder", "path": str(bank(tmp_path / "data")), **TABLES}
    made(tmp_path / "run", LOCAL, data, rounds=1, partition={"name": "random", "clients": 1}, model=model)
    with refusal("user.no-export"):
        source(tmp_path / "run", None, None)


def test_what_a_model_does_not_use_is_said(tmp_path: Path) -> None:
    config = resolve(document(bank(tmp_path / "data"), name="sage"))
    edge_attrs = build(config).data.edge_attrs
    assert [note.split(";")[0].split()[-1] for note in unused_attribute_warnings(config.model.make(), edge_attrs)] == [
        "directions",
        "weights",
        "features",
    ]
    gcn = resolve(document(tmp_path / "data", name="gcn", directed="both")).model.make()
    assert len(unused_attribute_warnings(fit_to_edges(gcn, edge_attrs), edge_attrs)) == 1
    assert not unused_attribute_warnings(gcn, None)


def test_algorithms_that_add_edges_and_samples_refuse_models_of_edges(tmp_path: Path) -> None:
    path = bank(tmp_path / "data")
    for name, model in (("fedsage_plus", "gine"), ("fedgcn", "pna")):
        with pytest.raises(ConfigError, match="gcn"):
            build(resolve(document(path, {"name": name}, name=model)))
    shared = {"partition": {"name": "vertical", "clients": 1}}
    build(resolve(document(path, {"name": "glasu"}, name="gcn") | shared))
    with refusal("config", "edge_features = 5"):
        build(resolve(document(path, name="gine", edge_features=5)))


def test_from_python_a_model_is_as_it_was_built(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model without edge features stays so when the run is read again."""
    data = datasets.load("folder", str(bank(tmp_path / "data")), **TABLES)
    cut = Random(clients=2).cut(data, 0)
    for width in (None, data.edge_features):
        model = GINE(hidden=8, edge_features=width).build(data.features, data.classes)
        algorithm = FedAvg(model)
        with caplog.at_level(logging.WARNING):
            list(train(algorithm, federation(data, cut, algorithm), 1, out=tmp_path / f"run{width}"))
        assert len(columns(predictions(tmp_path / f"run{width}"))["id"]) == data.nodes
