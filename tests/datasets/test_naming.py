"""Columns keep the names that their owners gave them, and no column counts that is left out."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.datasets import from_frames, load
from fedweave.errors import ConfigError, DataError
from fedweave.sites.flare.site_data import read_graph
from fedweave.sites.flare.sitefile import SiteData
from tests.refusals import refusal

OWN = "patient,diagnosis,sex,age,name\np1,ill,f,0.5,Ann\np2,well,m,0.25,Ben\np3,,f,1.5,Cem\n"
PLAIN = "id,label,sens,age\np1,ill,f,0.5\np2,well,m,0.25\np3,,f,1.5\n"
CONTACTS = "from,to,weight\np1,p2,3\np3,p2,1\n"
NAMES: dict[str, Any] = {
    "columns": {"id": "patient", "label": "diagnosis", "sens": "sex", "source": "from", "target": "to"},
    "ignore": ("name", "weight"),
}


def folder(path: Path, nodes: str, edges: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "nodes.csv").write_text(nodes)
    (path / "edges.csv").write_text(edges)
    return path


def same(one: Any, other: Any) -> None:
    for name in ("x", "edges", "y", "sensitive"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert (one.ids, one.labels, one.groups, one.columns) == (other.ids, other.labels, other.groups, other.columns)


def test_own_names_give_what_the_known_ones_do(tmp_path: Path) -> None:
    plain = folder(tmp_path / "plain", PLAIN, "source,target\np1,p2\np3,p2\n")
    own = folder(tmp_path / "own", OWN, CONTACTS)
    expected = load("folder", str(plain))
    assert expected.columns == ("age",)
    same(load("folder", str(own), **NAMES), expected)
    frames = [pd.read_csv(own / f"{name}.csv") for name in ("nodes", "edges")]
    same(from_frames(*frames, **NAMES), expected)
    folder(tmp_path / "banks/a", OWN, CONTACTS)
    assert load("members", str(tmp_path / "banks"), **NAMES).ids == ("a/p1", "a/p2", "a/p3")
    same(
        read_graph(own, SiteData(path=str(own), normalize="none", labels=("ill", "well"), groups=("f", "m"), **NAMES)),
        expected,
    )


def test_parties_need_not_all_have_the_named_columns(tmp_path: Path) -> None:
    folder(tmp_path / "bank", OWN.replace(",sex", ",sexe"), CONTACTS.replace(",weight", ",sum"))
    folder(tmp_path / "shop", "patient,spent,name\np1,2,x\np3,4,y\np2,1,z\n", "from,to\np1,p3\n")
    names = {"columns": {**NAMES["columns"], "sens": "sexe"}, "ignore": ("name", "sum")}
    data = load("parties", str(tmp_path), **names)
    assert [party.names for party in data.parties] == [("age",), ("spent",)]
    assert data.groups == ("f", "m")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"columns": {"label": "diagnose"}}, r"no table has the column 'diagnose', which data.columns names"),
        ({"ignore": ("weigth",)}, r"no table has the column 'weigth', which data.ignore names"),
        ({"columns": {"age": "alter"}}, r"'age' is not a meaning of a column; name columns for id, label"),
        ({"columns": {"label": "sex", "sens": "sex"}}, r"'sex' is named for label and sens"),
        ({"columns": {"source": "from", "target": "from"}}, r"'from' is named for source and target"),
        ({"columns": {"sens": "diagnosis"}, "ignore": ("diagnosis",)}, r"leaves out 'diagnosis', .* for sens"),
        ({"ignore": ("name", "name")}, r"'name' occurs twice"),
    ],
)
def test_wrong_names_are_refused(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, DataError), match=said):
        load("folder", str(folder(tmp_path, OWN, CONTACTS)), **changed)


def test_a_column_of_nodes_and_an_end_of_edges_may_have_one_name(tmp_path: Path) -> None:
    columns = {**NAMES["columns"], "source": "patient"}
    own = folder(tmp_path / "own", OWN, CONTACTS.replace("from,", "patient,"))
    expected = load("folder", str(folder(tmp_path / "plain", PLAIN, "source,target\np1,p2\np3,p2\n")))
    same(load("folder", str(own), columns=columns, ignore=NAMES["ignore"]), expected)
    frames = [pd.read_csv(own / f"{name}.csv") for name in ("nodes", "edges")]
    same(from_frames(*frames, columns=columns, ignore=NAMES["ignore"]), expected)


def test_where_edges_are_the_examples_an_end_is_not_their_id(tmp_path: Path) -> None:
    edges = "account,to,label\na,b,x\nb,a,y\na,b,x\n"
    own = folder(tmp_path / "own", "account,age\na,1\nb,2\n", edges)
    columns = {"id": "account", "source": "account", "target": "to"}
    data = load("folder", str(own), columns=columns, task="edges")
    assert data.example == "edge"
    assert data.examples == 3


def test_a_meaning_is_not_given_to_two_columns(tmp_path: Path) -> None:
    nodes = OWN.replace(",name", ",label")
    with refusal("data.column-taken", "'diagnosis'", "'label'"):
        load("folder", str(folder(tmp_path, nodes, CONTACTS)), columns=NAMES["columns"], ignore=("weight",))
    assert load(
        "folder", str(tmp_path), columns=NAMES["columns"], ignore=("label", "weight")
    ).labels == ("ill", "well")  # fmt: skip


def test_new_rows_are_read_alike_and_need_no_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"p{i},{'ill' if i % 2 else 'well'},{i % 2 + rng.normal():.3f},n{i}" for i in range(60)]
    ends = "".join(f"p{i},p{i + 1}\n" for i in range(59))
    folder(tmp_path / "old", "patient,diagnosis,age,name\n" + "\n".join(rows), f"from,to\n{ends}")
    folder(tmp_path / "new", "patient,age,name\nq1,0.1,Zoe\nq2,1.7,Yan\n", "from,to\nq1,q2\n")
    (tmp_path / "own.toml").write_text(
        f"""rounds = 2
[data]
name = "folder"
path = "{tmp_path / "old"}"
columns = {{id = "patient", label = "diagnosis", source = "from", target = "to"}}
ignore = ["name"]
[partition]
clients = 2
"""
    )
    for words in (
        ["run", str(tmp_path / "own.toml"), "--out", str(tmp_path / "run"), "-q"],
        ["predict", str(tmp_path / "run"), "--data", str(tmp_path / "new")],
    ):
        told = CliRunner().invoke(app, words)
        assert told.exit_code == 0, told.output
    found = pq.read_table(tmp_path / "run/new-predictions.parquet").to_pydict()
    assert found["id"] == ["q1", "q2"]
    assert set(found["predicted"]) <= {"ill", "well"}
