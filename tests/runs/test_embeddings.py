"""Embeddings of a finished run: what `predict` gives for examples, and what the last layer reads of each."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import fedweave
from fedweave.core.tree import leaves
from tests import commands
from tests.refusals import refusal
from tests.runs.test_edges_as_examples import CUT as BY_TIME
from tests.runs.test_edges_as_examples import DATA as EDGES
from tests.runs.test_edges_as_examples import MODEL
from tests.runs.test_edges_as_examples import tables as transfers
from tests.runs.test_target_files import CUT, graphs_folder, nodes_folder, of_numbers

DOCUMENT: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "synthetic", "nodes": 90, "classes": 3, "features": 6},
    "partition": {"clients": 3},
    "model": {"name": "sgc", "layers": 2},
    "algorithm": {"name": "fedavg", "local_steps": 1},
    "engine": {"threads": 1},
}


def rows_of(table: pa.Table) -> np.ndarray:
    """The vectors of a table, [rows, d]."""
    return np.stack([table[name].to_numpy() for name in table.column_names if name.startswith("e_")], 1)


def spread(edges: np.ndarray, nodes: int) -> np.ndarray:
    """D~^-1/2 (A + I) D~^-1/2, dense."""
    a = np.eye(nodes)
    a[edges[1], edges[0]] = 1
    scale = 1 / np.sqrt(a.sum(1))
    return scale[:, None] * a * scale


def test_they_are_what_the_last_layer_reads(tmp_path: Path) -> None:
    """SGC by hand: S X W, of which the last layer makes S (S X W) + b; and the table of predictions says the same."""
    run = fedweave.run(DOCUMENT, out=tmp_path / "run")
    table = run.embeddings()
    scores = ["predicted", "p_0", "p_1", "p_2"]
    assert table.column_names == ["client", "node", "split", "true", *scores, "e_0", "e_1", "e_2"]
    assert table.schema.field("e_0").type == pa.float32()
    data = fedweave.datasets.load("synthetic", seed=0, nodes=90, classes=3, features=6)
    weight = dict(leaves(run.weights()))["0/weight"].numpy()
    for client in set(table["client"].to_pylist()):
        rows = [row for row in table.to_pylist() if row["client"] == client]
        nodes = [row["node"] for row in rows]
        place = {node: at for at, node in enumerate(nodes)}
        inside = np.isin(data.edges, nodes).all(0)
        edges = np.vectorize(place.get)(data.edges[:, inside])
        expected = spread(edges, len(nodes)) @ np.asarray(data.x)[nodes] @ weight
        np.testing.assert_allclose([[row[f"e_{at}"] for at in range(3)] for row in rows], expected, atol=1e-5)
        assert [int(row["true"]) for row in rows] == data.y[nodes].tolist()


def test_the_command_writes_them_and_twice_the_same_bytes(tmp_path: Path) -> None:
    run = fedweave.run(DOCUMENT, out=tmp_path / "run")
    text = commands.run("embed", run.directory)
    assert "90 rows with vectors of 3 numbers" in text
    assert pq.read_table(run.directory / "embeddings.parquet").equals(run.embeddings())
    commands.run("embed", run.directory, "-o", tmp_path / "again.parquet")
    assert (run.directory / "embeddings.parquet").read_bytes() == (tmp_path / "again.parquet").read_bytes()


FAST = {"name": "fedavg", "lr": 0.05}
KINDS: dict[str, dict[str, Any]] = {
    "personal models": DOCUMENT | {"algorithm": {"name": "ditto"}, "model": {"hidden": 5}},
    "numbers": {"model": {"name": "mlp", "hidden": 5}},
    "labels of small graphs": {"model": {"name": "gin", "hidden": 5}},
    "edges by time": {"model": MODEL | {"hidden": 5}, "partition": BY_TIME},
}


def document_of(kind: str, folder: Path) -> dict[str, Any]:
    """A run whose last layer reads five numbers."""
    if kind == "numbers":
        data = of_numbers(nodes_folder(folder), "price", "rent", ignore=[])
    elif kind == "labels of small graphs":
        data = {"name": "graphs", "path": str(graphs_folder(folder)), "target": "labels"}
        data |= {"targets": ["long", "warm", "cold"]}
    elif kind == "edges by time":
        data = EDGES | {"path": str(transfers(folder))}
    else:
        return KINDS[kind]
    common = {"rounds": 2, "data": data, "partition": CUT, "algorithm": FAST, "engine": {"threads": 1}}
    return common | KINDS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_they_stand_behind_the_predictions(tmp_path: Path, kind: str) -> None:
    """Of every kind of example: the rows of `predict`, and what makes them."""
    run = fedweave.run(document_of(kind, tmp_path / "data"), out=tmp_path / "run")
    table = run.embeddings()
    commands.run("predict", run.directory)
    predicted = pq.read_table(run.directory / "predictions.parquet")
    assert table.column_names == [*predicted.column_names, *(f"e_{at}" for at in range(5))]
    assert table.select(predicted.column_names).equals(predicted)
    rows = rows_of(table)
    assert np.isfinite(rows).all()
    assert len(np.unique(rows, axis=0)) > len(rows) / 2


def test_the_last_layer_makes_the_scores_of_them(tmp_path: Path) -> None:
    """Edges by time: an example's vector has the messages of its own split, as its score does."""
    run = fedweave.run(document_of("edges by time", tmp_path / "data"), out=tmp_path / "run")
    table = run.embeddings()
    weights = {path: leaf.double().numpy() for path, leaf in leaves(run.weights())}
    last = max(int(path.partition("/")[0]) for path in weights)
    logits = torch.from_numpy(rows_of(table) @ weights[f"{last}/weight"] + weights[f"{last}/bias"])
    classes = [name for name in table.column_names if name.startswith("p_")]
    scores = np.stack([table[name].to_numpy() for name in classes], 1)
    np.testing.assert_allclose(torch.softmax(logits, -1), scores, atol=1e-5)


def test_new_tables_and_a_model_alone_have_them(tmp_path: Path) -> None:
    """The run's own tables as new ones, by the run and by its export."""
    folder = nodes_folder(tmp_path / "data")
    data = of_numbers(folder, "price", "rent", ignore=[])
    document = {"rounds": 2, "data": data, "model": {"hidden": 5}, "algorithm": FAST, "engine": {"threads": 1}}
    cut = CUT | {"clients": 1}
    run = fedweave.run(document | {"partition": cut}, out=tmp_path / "run")
    own = run.embeddings().sort_by("id")
    new = run.embeddings(data=folder).sort_by("id")
    np.testing.assert_allclose(rows_of(new), rows_of(own), atol=1e-5)
    commands.run("embed", run.directory, "--data", folder)
    assert pq.read_table(run.directory / "new-embeddings.parquet").sort_by("id").equals(new)
    commands.run("export", run.directory)
    commands.run("embed", run.directory / "export", "--data", folder, "-o", tmp_path / "alone.parquet")
    np.testing.assert_allclose(
        rows_of(pq.read_table(tmp_path / "alone.parquet").sort_by("id")), rows_of(new), atol=1e-6
    )


def test_a_narrow_member_has_gaps(tmp_path: Path) -> None:
    """Members with models of their own: behind the fewer numbers of one there are none."""
    models = {"hidden": 5, "members": {"client-1": {"hidden": 3}}}
    table = fedweave.run(
        DOCUMENT | {"algorithm": {"name": "local"}, "model": models}, out=tmp_path / "run"
    ).embeddings()
    for row in table.to_pylist():
        gaps = [row[f"e_{at}"] is None for at in range(5)]
        assert gaps == [False] * 3 + [row["client"] == "client-1"] * 2


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--data", "nowhere"), "data.unlike"),
        (("--client", "client-9"), "user.no-client"),
        (("-o", "taken.parquet"), "user.out"),
        (("-o", "vectors.txt"), "user.out"),
        (("-o", "vectors.parquet", "--spreadsheet"), "user.out"),
    ],
)
def test_what_it_cannot_do(trained: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: str) -> None:
    monkeypatch.chdir(trained.parent)
    (trained.parent / "taken.parquet").touch()
    commands.refuse(["embed", trained, *words], code)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(fedweave.run(DOCUMENT, out=tmp_path_factory.mktemp("runs") / "run").directory)


def test_a_model_alone_has_no_examples(trained: Path, tmp_path: Path) -> None:
    commands.run("export", trained, "--out", tmp_path / "export")
    commands.refuse(["embed", tmp_path / "export"], "user.no-data")


def test_a_model_without_a_last_layer_has_none(tmp_path: Path) -> None:
    document = DOCUMENT | {"model": {"name": "gcn", "layers": 1}}
    with refusal("user.no-embeddings"):
        fedweave.run(document, out=tmp_path / "run").embeddings()


def test_those_of_links_are_of_nodes_and_what_the_decoder_multiplies(tmp_path: Path) -> None:
    """σ(h_u · h_v) of the table's rows is the score of each pair that `predict` gives."""
    data = DOCUMENT["data"] | {"task": "links"}
    run = fedweave.run(
        DOCUMENT | {"data": data, "model": {"name": "gcn", "hidden": 4, "decoder": "dot"}}, out=tmp_path / "run"
    )
    table = run.embeddings()
    assert table.column_names == ["client", "node", "id", *(f"e_{at}" for at in range(table.num_columns - 3))]
    assert len(table) == 90
    rows = {(row["client"], row["id"]): np.array(list(row.values())[3:]) for row in table.to_pylist()}
    commands.run("predict", run.directory)
    pairs = pq.read_table(run.directory / "predictions.parquet").to_pylist()
    scores = [
        1 / (1 + np.exp(-rows[pair["client"], pair["source"]] @ rows[pair["client"], pair["target"]])) for pair in pairs
    ]
    np.testing.assert_allclose([pair["p_link"] for pair in pairs], scores, atol=1e-5)
    assert "embeddings" in fedweave.report(run, embeddings="pca").figures
    commands.refuse(["embed", run.directory, "--data", tmp_path, "-o", tmp_path / "new.parquet"], "user.no-embeddings")
