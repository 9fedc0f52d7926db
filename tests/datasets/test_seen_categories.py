"""Categories taken from rows of training: the columns of a declared list, and what is said of other values later."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from fedweave import datasets
from fedweave.datasets import from_frames, from_graph_frames, load
from fedweave.errors import ConfigError
from fedweave.sites.flare.sitefile import SiteData
from tests.refusals import refusal
from tests.test_cli import fedweave

IDS = [f"n{at}" for at in range(24)]
JOBS = ["nurse", "clerk", "pilot"]
NODES = pd.DataFrame(
    {
        "id": IDS,
        "label": [at % 2 for at in range(24)],
        "job": [JOBS[at % 3] for at in range(24)],
        "f": np.arange(24) / 24,
    }
)
EDGES = pd.DataFrame({"source": IDS[:-1], "target": IDS[1:], "kind": [["cash", "wire"][at % 2] for at in range(23)]})
AUTO = {"job": "auto", "edges.kind": "auto"}
LISTED = {"job": ("clerk", "nurse", "pilot"), "edges.kind": ("cash", "wire")}
OPTIONS: dict[str, Any] = {"edge_features": ("kind",)}


def same(one: datasets.Dataset, other: datasets.Dataset) -> None:
    assert one.columns == other.columns
    np.testing.assert_array_equal(*(sp.csr_matrix(own.x).toarray() for own in (one, other)))
    assert one.edge_attrs is not None
    assert other.edge_attrs is not None
    assert one.edge_attrs.columns == other.edge_attrs.columns
    np.testing.assert_array_equal(one.edge_attrs.features, other.edge_attrs.features)


def test_they_are_those_of_a_list(tmp_path: Path) -> None:
    listed = from_frames(NODES, EDGES, categories=LISTED, **OPTIONS)
    assert listed.columns == ("job = clerk", "job = nurse", "job = pilot", "f")
    same(from_frames(NODES, EDGES, categories=AUTO, **OPTIONS), listed)
    for member, rows in (("north", slice(0, 12)), ("south", slice(12, 24))):
        (tmp_path / member).mkdir()
        NODES[rows].to_csv(tmp_path / member / "nodes.csv", index=False)
        EDGES[EDGES.source.isin(IDS[rows]) & EDGES.target.isin(IDS[rows])].to_csv(
            tmp_path / member / "edges.csv", index=False
        )
    members = [load("members", str(tmp_path), categories=own, **OPTIONS) for own in (AUTO, LISTED)]
    same(*members)


def test_rows_of_training_are_those_of_which_a_split_says_so(caplog: pytest.LogCaptureFixture) -> None:
    split = ["train" if job != "pilot" else "test" for job in NODES.job]
    nodes = NODES.assign(split=split).replace({"job": {"clerk": "NA"}})
    data = from_frames(nodes, EDGES, categories=AUTO, **OPTIONS)
    assert data.columns == ("job = nurse", "f")
    np.testing.assert_array_equal(sp.csr_matrix(data.x).toarray()[:, 0], NODES.job == "nurse")
    [said] = [record.getMessage() for record in caplog.records if "job" in record.getMessage()]
    assert re.search("'pilot' in 8 rows", said)
    edges = EDGES.assign(label=[0, 1] * 11 + [0], split=["train" if kind == "cash" else "val" for kind in EDGES.kind])
    of_edges = from_frames(nodes, edges, categories=AUTO, task="edges", **OPTIONS)
    assert of_edges.columns == ("job = nurse", "job = pilot", "f")  # nodes are in no split
    assert of_edges.edge_attrs is not None
    assert of_edges.edge_attrs.columns == ("kind = cash",)


def test_nodes_of_small_graphs_of_training() -> None:
    graphs = pd.DataFrame({"id": [0, 1, 2], "label": [0, 1, 0], "split": ["train", "test", "train"]})
    nodes = NODES[["id", "job", "f"]].assign(graph=[at % 3 for at in range(24)])  # as the jobs are
    edges = pd.DataFrame({"source": ["n0", "n1"], "target": ["n3", "n4"]})
    data = from_graph_frames(graphs, nodes, edges, categories={"job": "auto"})
    assert data.columns == ("job = nurse", "job = pilot", "f")


def test_a_run_predicts_with_the_categories_that_it_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    config = (
        'rounds = 1\n[data]\nname = "folder"\npath = "own"\ndirected = true\nedge_features = ["kind"]\n{}'
        '[partition]\nclients = 2\n[model]\nname = "gine"\nhidden = 4\n[algorithm]\nlocal_steps = 1\n'
    )
    for name, nodes in (("own", NODES), ("new", NODES[:5].assign(job=["nurse", "baker", "miner", "baker", None]))):
        Path(name).mkdir()
        nodes.to_csv(f"{name}/nodes.csv", index=False)
        EDGES[: len(nodes) - 1].assign(kind="cheque").to_csv(f"{name}/edges.csv", index=False)
    EDGES.to_csv("own/edges.csv", index=False)
    Path("e.toml").write_text(config.format('categories = {job = "auto", "edges.kind" = "auto"}\n'))
    assert fedweave("run", "e.toml", "--out", "r")[0] == 0
    assert fedweave("predict", "r", "--data", "new", "--out", "p.csv")[0] == 0
    assert all(re.search(fact, caplog.text) for fact in ("'baker' and 1 more value in 3 rows", "'cheque' in 4 rows"))
    assert len(pd.read_csv("p.csv")) == 5
    Path("e.toml").write_text(
        config.format('categories = {job = ["clerk", "nurse", "pilot"], "edges.kind" = ["cash", "wire"]}\n')
    )
    assert fedweave("run", "e.toml", "--out", "listed")[0] == 0
    summaries = [pd.read_parquet(f"{run}/metrics.parquet") for run in ("r", "listed")]
    pd.testing.assert_frame_equal(*summaries)
    code, _, said = fedweave("predict", "listed", "--data", "new", "--out", "q.csv")
    assert (code, "baker" in said) == (2, True)  # a value that somebody declared is spelt otherwise


def test_what_has_no_values_is_refused(tmp_path: Path) -> None:
    with refusal("data", "'jobs'"):
        from_frames(NODES, EDGES, categories={"jobs": "auto"}, **OPTIONS)
    with refusal("data", "'job'"):
        from_frames(NODES.assign(job=None), EDGES, categories={"job": "auto"}, ignore=("edges.kind",))
    with refusal("config.value", "categories.job", "clerk"):
        from_frames(NODES, EDGES, categories={"job": "clerk"})


def test_sites_list_their_categories() -> None:
    with refusal("config.categories-listed", "data.categories.job", "site.toml"):
        SiteData(path=".", categories={"job": "auto"})
    with pytest.raises(ConfigError):
        SiteData(path=".", categories={"job": "clerk"})


def test_parties_take_their_own(tmp_path: Path) -> None:
    for party, columns in (("bank", ["id", "label", "job"]), ("shop", ["id", "f"])):
        (tmp_path / party).mkdir()
        NODES[columns].to_csv(tmp_path / party / "nodes.csv", index=False)
        EDGES[["source", "target"]].to_csv(tmp_path / party / "edges.csv", index=False)
    own, listed = (load("parties", str(tmp_path), categories={"job": how}) for how in ("auto", LISTED["job"]))
    assert own.columns == ("bank/job = clerk", "bank/job = nurse", "bank/job = pilot", "shop/f")
    np.testing.assert_array_equal(*(np.asarray(sp.csr_matrix(data.x).toarray()) for data in (own, listed)))


@pytest.mark.parametrize("holder", ["bank", "shop"])
def test_parties_take_training_rows_whoever_has_the_split(tmp_path: Path, holder: str) -> None:
    """Written as 7.0 there, too; the value that only a validation row has is in no category."""
    nodes = NODES.assign(id=range(24), split=["train", "train", "val"] * 8)
    for party, columns in (("bank", ["id", "label", "job"]), ("shop", ["id", "f"])):
        (tmp_path / party).mkdir()
        table = nodes[[*columns, *(["split"] if party == holder else [])]]
        table = table.assign(id=[f"{at}.0" for at in table["id"]] if party == "shop" else table["id"])
        table.to_csv(tmp_path / party / "nodes.csv", index=False)
        pd.DataFrame({"source": [0], "target": [1]}).to_csv(tmp_path / party / "edges.csv", index=False)
    data = load("parties", str(tmp_path), categories={"job": "auto"})
    assert data.columns == ("bank/job = clerk", "bank/job = nurse", "shop/f")
    jobs = sp.csr_matrix(data.x).toarray()[:, :2]
    places = [int(name) for name in data.ids]
    np.testing.assert_array_equal(jobs.sum(1), [float(nodes["job"][at] != "pilot") for at in places])


def test_columns_of_many_categories_stay_sparse() -> None:
    jobs = [f"job{at}" for at in range(24)]
    data = from_frames(NODES.assign(job=jobs), EDGES, categories={"job": "auto"}, ignore=("edges.kind",))
    assert isinstance(data.x, sp.csr_matrix)
    assert data.x.nnz == 24 + 23  # a 1 in each row, and the numbers, of which one is 0
    np.testing.assert_array_equal(data.x.toarray()[:, -1], np.arange(24, dtype=np.float32) / 24)
