"""A run knows what its columns and classes are, whatever its data came as: the same nodes or graphs get the same
predictions in every form, under the classes' own names."""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from fedweave import datasets
from fedweave.apply.run_predictions import predictions
from fedweave.datasets import contents, npz
from fedweave.datasets.contents import check_same, digests
from fedweave.errors import DataError
from fedweave.experiment.config import read
from fedweave.experiment.runs.data_form import read_form
from fedweave.experiment.runs.run import run
from fedweave.python.training import Silent
from tests import commands
from tests.refusals import check_facts, refusal
from tests.runs.test_predictions import COLUMNS, bank, columns, made

CASES = Path(__file__).parents[1] / "cases"
MOLECULES = CASES / "tu-labels-in-predict/data"
POOLED = {"model": {"name": "gin", "pool": "mean", "hidden": 8}, "partition": {"name": "graphs_iid", "clients": 1}}
LEARNT: dict[str, Any] = {"name": "fedavg", "lr": 0.02, "local_steps": 5}


def probabilities(out: Path, new: Path | None = None) -> np.ndarray:
    """[e, c], in the order of the examples' places."""
    table = predictions(out, new)
    place = table["graph" if "graph" in table.column_names else "node"].to_numpy()
    return np.stack([table[name] for name in table.column_names if name.startswith("p_")], 1)[np.argsort(place)]


@pytest.mark.slow
def test_graphs_in_a_tu_folder_are_predicted_alike_as_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of nodes count from 1 in the files, classes are -1 and 1; label 3 is in six nodes."""
    monkeypatch.chdir(shutil.copytree(MOLECULES.parent, tmp_path / "case"))
    run(read(Path("e.toml"), [])[0], tmp_path / "run", Silent())
    own = columns(predictions(tmp_path / "run"))
    truth = np.loadtxt(MOLECULES / "PTC_graph_labels.txt", str)
    assert (own["predicted"] == truth[own["graph"]]).all()
    for folder in ("new", "new3"):
        new = columns(predictions(tmp_path / "run", Path(folder)))
        assert (new["predicted"] == truth[[int(name[1:]) - 1 for name in new["id"]]]).all()
        assert [name for name in new if name.startswith("p_")] == ["p_-1", "p_1"]


def unlabeled(root: Path) -> Path:
    """The same collection without labels of nodes, so that degrees are its features."""
    shutil.copytree(MOLECULES, root, ignore=shutil.ignore_patterns("*node_labels*"))
    return root


def as_tables(data: datasets.Dataset, root: Path, names: tuple[str, ...]) -> Path:
    root.mkdir()
    kinds = None if data.node_labels is None else np.array(data.node_kinds)[data.node_labels]
    of_nodes = [f"v{i},g{g}" + ("" if kinds is None else f",{kinds[i]}") for i, g in enumerate(data.graph_of)]
    (root / "graphs.csv").write_text("\n".join(["id,label", *(f"g{i},{names[y]}" for i, y in enumerate(data.y))]))
    (root / "nodes.csv").write_text("\n".join(["id,graph" + ("" if kinds is None else ",label"), *of_nodes]))
    (root / "edges.csv").write_text("\n".join(["source,target", *(f"v{a},v{b}" for a, b in data.edges.T if a < b)]))
    return root


@pytest.mark.often("label")
@pytest.mark.parametrize("kind", ["label", "degree"])
def test_small_graphs_are_predicted_alike_in_every_form(tmp_path: Path, kind: str) -> None:
    source = MOLECULES if kind == "label" else unlabeled(tmp_path / "tu")
    data = datasets.load("tu", str(source))
    npz.write(data, tmp_path / "named.npz")
    forms = {"tu": source, "npz": tmp_path / "named.npz", "graphs": as_tables(data, tmp_path / "tables", ("-1", "1"))}
    for name, path in forms.items():
        given = {"labels": ["-1", "1"], "node_labels": ["1", "2", "3"]} if name == "graphs" else {}
        given.pop("node_labels") if given and kind == "degree" else None
        out = tmp_path / f"run-{name}"
        made(out, LEARNT, {"name": name, "path": str(path)} | given, 5, **POOLED)
        expected = probabilities(out)
        assert np.ptp(expected[:, 0]) > 1e-5
        for new in forms.values():
            np.testing.assert_allclose(probabilities(out, new), expected, atol=1e-7)
    bare = tmp_path / "bare.npz"
    npz.write(replace(data, columns=(), labels=()), bare)
    np.testing.assert_allclose(probabilities(tmp_path / "run-tu", bare), probabilities(tmp_path / "run-tu"), atol=1e-6)


def test_graphs_with_few_kinds_and_classes_and_without_labels(tmp_path: Path) -> None:
    """New graphs need not have every label, degree or class of the run, nor any class at all; others are refused."""
    made(tmp_path / "run", LEARNT, {"name": "tu", "path": str(MOLECULES)}, 5, **POOLED)
    lines = {"A": "1, 2\n2, 1\n", "graph_indicator": "1\n1\n2\n", "node_labels": "2\n3\n2\n", "graph_labels": "1\n1\n"}
    new = tmp_path / "new"

    def found(**changed: str) -> dict[str, np.ndarray]:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        for stem, text in (lines | changed).items():
            if text:
                (new / f"NEW_{stem}.txt").write_text(text)
        return columns(predictions(tmp_path / "run", new))

    table = found()
    assert table["true"].tolist() == ["1", "1"]
    silent = found(graph_labels="")
    assert "true" not in silent
    assert silent["p_1"].tolist() == table["p_1"].tolist()
    with refusal("data", "'label = 4'"):
        found(node_labels="2\n4\n2\n")
    with pytest.raises(DataError, match=r"label '7' is none of -1, 1"):
        found(graph_labels="1\n7\n")
    with refusal("data.unlike", "it holds nodes, and"):
        predictions(tmp_path / "run", bank(tmp_path / "bank"))


def test_whole_numbers_beside_gaps_are_the_classes_of_that_name(tmp_path: Path) -> None:
    made(tmp_path / "run", LEARNT, {"name": "tu", "path": str(MOLECULES)}, 2, **POOLED)
    data = datasets.load("tu", str(MOLECULES))
    tables = as_tables(data, tmp_path / "new", ("-1.0", "1.0"))
    assert {*predictions(tmp_path / "run", tables)["true"].to_pylist()} == {"-1", "1"}


def in_members(source: Path, root: Path) -> Path:
    """The tables as two members' of the first and the last half, without the edges between them."""
    head, *rows = (source / "nodes.csv").read_text().splitlines()
    half = len(rows) // 2
    top, *edges = (source / "edges.csv").read_text().splitlines()
    for name, held in (("north", rows[:half]), ("south", rows[half:])):
        ids = {row.split(",")[0] for row in held}
        (root / name).mkdir(parents=True)
        (root / name / "nodes.csv").write_text("\n".join([head, *held]))
        among = [edge for edge in edges if {*edge.split(",")} <= ids]
        (root / name / "edges.csv").write_text("\n".join([top, *among]))
    return root


def archived(data: datasets.Dataset, path: Path) -> Path:
    npz.write(data, path)
    return path


@pytest.mark.often("standard")
@pytest.mark.parametrize("how", ["none", "standard", "minmax", "scale"])
def test_nodes_are_predicted_alike_in_every_form(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    members = in_members(bank(tmp_path / "bank"), tmp_path / "members")
    data = datasets.load("members", str(members))
    forms: dict[str, Path] = {
        "members": members,
        "npz": archived(data, tmp_path / "named.npz"),
        "bare": archived(replace(data, columns=(), labels=()), tmp_path / "bare.npz"),
    }
    for name, path in forms.items():
        out, given = tmp_path / f"run-{name}", {"name": name.replace("bare", "npz"), "path": str(path)}
        made(out, LEARNT, given | {"normalize": how}, 3, partition={"name": "random", "clients": 1})
        expected = probabilities(out)
        for other, new in forms.items() if name != "bare" else [("bare", forms["bare"])]:
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                np.testing.assert_allclose(probabilities(out, new), expected, atol=1e-5)
            assert ("no names and are taken in the run's order" in caplog.text) == (other == "bare" != name)
    made(tmp_path / "two", LEARNT, given | {"path": str(archived(_narrow(data), tmp_path / "two.npz"))}, 1)
    with pytest.raises(DataError, match="3 feature columns, and the run was trained on 2"):
        predictions(tmp_path / "two", forms["npz"])


def _narrow(data: datasets.Dataset) -> datasets.Dataset:
    return replace(data, x=data.x[:, :2], columns=(), labels=())


def test_text_is_known_where_the_run_had_an_archive(tmp_path: Path) -> None:
    """Columns that stand for a text's values are that text's in tables."""
    jobs = ("clerk", "smith")
    rows = [f"n{i},{i % 2},{jobs[i // 3 % 2]},{i % 5}" for i in range(30)]
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/nodes.csv").write_text("\n".join(["id,label,job,age", *rows]))
    (tmp_path / "tables/edges.csv").write_text("source,target\nn0,n1\n")
    data = datasets.load("folder", str(tmp_path / "tables"), categories={"job": jobs})
    made(tmp_path / "run", LEARNT, {"name": "npz", "path": str(archived(data, tmp_path / "d.npz"))}, 2)
    assert read_form(tmp_path / "run") is not None
    table = pq.read_table(tmp_path / "run/columns.parquet").to_pylist()
    assert [(row["column"], row["kind"], row["value"]) for row in table] == [
        ("job = clerk", "category", "clerk"),
        ("job = smith", "category", "smith"),
        ("age", "number", None),
    ]
    new = columns(predictions(tmp_path / "run", tmp_path / "tables"))
    assert new["id"].tolist() == [f"n{i}" for i in range(30)]


def test_an_export_says_what_columns_and_classes_are(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric", reason="the exported module needs PyTorch Geometric")
    made(tmp_path / "run", LEARNT, {"name": "tu", "path": str(MOLECULES)}, 2, **POOLED)
    commands.run("export", tmp_path / "run")
    about = json.loads((tmp_path / "run/export/model.json").read_text())
    assert about["columns"] == ["label = 1", "label = 2", "label = 3"]
    assert about["labels"] == ["-1", "1"]
    card = (tmp_path / "run/export/README.md").read_text()
    check_facts(card, "label = 1, label = 2, label = 3")
    check_facts(card, "-1, 1")


def test_the_record_is_that_of_the_data_and_read_as_it_was_written(tmp_path: Path) -> None:
    data = {"name": "folder", "path": str(bank(tmp_path / "data")), "normalize": "standard"}
    out = tmp_path / "run"
    made(out, LEARNT, data, 1)
    form = read_form(out)
    assert (tuple(form.columns), tuple(form.labels), form.example) == (COLUMNS, ("high", "low"), "node")
    raw = datasets.load("folder", data["path"]).x.astype(float)
    np.testing.assert_allclose(form.scaling["shift"], raw.mean(0))
    np.testing.assert_allclose(form.scaling["divisor"], raw.std(0))
    before = columns(predictions(out, tmp_path / "data"))
    (out / "columns.parquet").unlink()  # as of an earlier version
    assert read_form(out) is None
    assert columns(predictions(out, tmp_path / "data"))["p_low"].tolist() == before["p_low"].tolist()
    pq.write_table(pq.read_table(out / "partition.parquet"), out / "columns.parquet")
    with refusal("file.damaged", "columns.parquet"):
        read_form(out)


def test_runs_that_noted_no_names_are_not_held_to_them() -> None:
    data = datasets.load("tu", str(MOLECULES))
    now = digests(data)
    older = {("names" if "names" in what else what): value for what, value in digests(replace(data, labels=())).items()}
    check_same(older, now, Path("run"), "Bring it back.")
    with refusal("user.changed", "edges"):
        check_same(older | {"edges": ""}, now, Path("run"), "Bring it back.")


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda data: data, ("label = 0", "label = 1", "label = 2")),
        (lambda data: replace(data, x=data.x[:, ::-1]), ("column 0", "column 1", "column 2")),
        (lambda data: replace(data, node_labels=None), ("column 0", "column 1", "column 2")),
        (lambda data: replace(data, columns=("a", "b", "c")), ("a", "b", "c")),
    ],
)
def test_columns_that_nobody_named_are_found_by_their_values(
    change: Callable[[datasets.Dataset], datasets.Dataset], names: tuple[str, ...]
) -> None:
    plain = replace(datasets.load("tu", str(MOLECULES)), columns=(), node_kinds=())
    assert contents.names(change(plain)) == names


def test_ids_and_classes_join_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids such as +49 170 0041 and @user, classes + and -."""
    monkeypatch.chdir(CASES / "csv-export-ids")
    run(read(Path("e.toml"), [])[0], tmp_path / "run", Silent())
    nodes = pyarrow.csv.read_csv("data/nodes.csv")
    known = dict(zip(nodes["id"].to_pylist(), nodes["label"].to_pylist(), strict=True))
    text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(("id", "true", "predicted"), "string"))
    for options, joined in (([], 120), (["--spreadsheet"], 0)):
        path = tmp_path / f"p{joined}.csv"
        commands.run("predict", tmp_path / "run", "--out", path, *options)
        table = pyarrow.csv.read_csv(path, convert_options=text)
        found = dict(zip(table["id"].to_pylist(), table["true"].to_pylist(), strict=True))
        assert len(found.items() & known.items()) == joined
    commands.run("predict", tmp_path / "run", "--spreadsheet", code=2)
