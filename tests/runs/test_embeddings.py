"""Embeddings of a finished run: what the last layer reads of each client's examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import fedweave
from fedweave.core.tree import leaves
from tests import commands
from tests.refusals import refusal

DOCUMENT: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "synthetic", "nodes": 90, "classes": 3, "features": 6},
    "partition": {"clients": 3},
    "model": {"name": "sgc", "layers": 2},
    "algorithm": {"name": "fedavg", "local_steps": 1},
    "engine": {"threads": 1},
}


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
    assert table.column_names[:4] == ["client", "node", "split", "true"]
    assert table.num_columns == 4 + 3
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


def test_the_command_writes_them(tmp_path: Path) -> None:
    run = fedweave.run(DOCUMENT, out=tmp_path / "run")
    commands.run("predict", run.directory, "--embeddings")
    assert pq.read_table(run.directory / "embeddings.parquet").equals(run.embeddings())
    commands.run("predict", run.directory, "--embeddings", "--data", "x", code=2)


def test_a_model_without_a_last_layer_has_none(tmp_path: Path) -> None:
    document = DOCUMENT | {"model": {"name": "gcn", "layers": 1}}
    with refusal("user.no-embeddings"):
        fedweave.run(document, out=tmp_path / "run").embeddings()


def test_those_of_links_are_of_nodes_and_what_the_decoder_multiplies(tmp_path: Path) -> None:
    """σ(h_u · h_v) of the table's rows is the score of each pair that `predict` gives."""
    data = DOCUMENT["data"] | {"task": "links"}
    run = fedweave.run(DOCUMENT | {"data": data, "model": {"name": "gcn", "hidden": 4}}, out=tmp_path / "run")
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
