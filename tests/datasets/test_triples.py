"""Knowledge graphs: a user's own triples, and published ones with their counts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from fedweave import datasets
from fedweave.datasets.synthetic import Synthetic
from fedweave.datasets.triples import KNOWLEDGE, learned
from tests.refusals import refusal

ROWS = [("cat", "is a", "animal"), ("dog", "is a", "animal"), ("cat", "fears", "dog"), ("dog", "likes", "dog")]


def test_a_table_and_texts_give_the_same_by_hand(tmp_path):
    table = pd.DataFrame(ROWS, columns=["head", "relation", "tail"]).assign(split=["train", "train", "val", "test"])
    (tmp_path / "table").mkdir()
    table.to_csv(tmp_path / "table" / "triples.csv", index=False)
    (tmp_path / "texts").mkdir()
    for name, rows in (("train", ROWS[:2]), ("valid", ROWS[2:3]), ("test", ROWS[3:])):
        (tmp_path / "texts" / f"{name}.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    (tmp_path / "named").mkdir()
    renamed = table.rename(columns={"head": "source", "tail": "target"})
    renamed.to_parquet(tmp_path / "named" / "triples.parquet")
    for form in ("table", "texts", "named"):
        data = datasets.load("triples", str(tmp_path / form))
        assert data.node_ids == ("animal", "cat", "dog")
        assert data.labels == ("fears", "is a", "likes")
        assert data.edge_attrs.ends.tolist() == [[1, 2, 1, 2], [0, 0, 2, 2]]
        assert data.y.tolist() == [1, 1, 0, 2]
        assert data.edge_attrs.directed
        assert np.asarray(data.public).astype(int).tolist() == [[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
        assert (data.x.toarray() == np.eye(3)).all()
        assert data.edges.tolist() == [[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]
    assert datasets.load("npz", str(data.save(tmp_path / "saved.npz")), loops="keep").labels == data.labels


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("head,relation\na,b\n", "data.column-missing"),
        ("head,relation,tail\n", "data.no-triples"),
        ("head,relation,tail\na,r,b\n,r,b\n", "data.row"),
        ("head,relation,tail,split\na,r,b,later\n", "data.split"),
        (None, "data.no-triples"),
    ],
)
def test_what_is_no_knowledge_graph_is_refused(tmp_path, text, code):
    if text is not None:
        (tmp_path / "triples.csv").write_text(text)
    with refusal(code):
        datasets.load("triples", str(tmp_path))


@pytest.mark.parametrize("kind", KNOWLEDGE, ids=lambda kind: kind.name)
def test_published_counts_and_splits(kind, data_root: Path):
    data = datasets.load(kind.name, str(data_root))
    assert tuple(np.asarray(data.public).sum(1)) == kind.split
    assert len(data.labels) == kind.facts.classes
    assert len(data.node_ids) == data.nodes == data.features == kind.facts.nodes


def test_other_triples_than_the_published_are_refused(tmp_path, data_root: Path):
    for name in ("train", "valid", "test"):
        rows = (data_root / "nations" / f"{name}.txt").read_text().splitlines()
        (tmp_path / f"{name}.txt").write_text("\n".join(rows[: len(rows) - (name == "test")]) + "\n")
    with refusal("data.counts"):
        datasets.load("nations", str(tmp_path))


def test_learned_features_are_a_column_for_each_node():
    data = Synthetic(nodes=50).load(None, 0)
    made = learned(data)
    assert (made.x != sp.eye(50)).nnz == 0
    assert made.edges is data.edges
    with refusal("config.learned"):
        learned(replace(data, graph_of=np.zeros(50, np.int64)))


def test_ratings_of_douban(data_root: Path):
    data = datasets.load("douban", str(data_root))
    assert np.asarray(data.public).sum(1).tolist() == [123202, 0, 13689]
    assert np.bincount(data.node_labels).tolist() == [2999, 3000]
    assert (data.node_labels[data.edge_attrs.ends] == [[0], [1]]).all()
    assert data.labels[data.y[0]] == "4"  # user 0 gives film 22 four stars
