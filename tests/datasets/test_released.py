"""Graphs in the files of their authors: tiny ones of the same layout, and what is said where there are none."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from fedweave.datasets import DATASETS, load
from fedweave.datasets.lookup import Facts
from fedweave.datasets.released import RELEASED, AmazonFraud
from fedweave.errors import DataError
from tests.refusals import refusal

X = np.array([[1.0, 0], [2, 1], [3, 0], [4, 5]])
TIMES = {"ogbn-arxiv": "time", "ogbn-products": "sales_ranking"}


def ogb(folder: Path, name: str) -> None:
    rows = {
        "raw/edge": [[0, 1], [1, 0], [2, 3], [3, 3]], "raw/node-feat": X, "raw/node-label": [[0], [1], [1], [0]],
        **{f"split/{TIMES[name]}/{part}": [[at]] for at, part in enumerate(("train", "valid", "test"))},
    }  # fmt: skip
    for file, values in rows.items():
        path = folder / name.replace("-", "_") / f"{file}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(",".join(map(str, row)) + "\n" for row in values).encode()))


def wiki(folder: Path, name: str) -> None:
    masks = {"train_masks": [[1, 0, 0, 0]] * 20, "val_masks": [[0, 1, 0, 0]] * 20, "test_mask": [0, 0, 1, 0]}
    held = {"features": X.tolist(), "labels": [0, 1, 1, 0], "links": [[1], [0], [3, 2], []], **masks}
    (folder / "data.json").write_text(json.dumps(held))


def elliptic(folder: Path, name: str) -> None:
    tables = {
        "features": [[70 + at, step, *row] for at, (step, row) in enumerate(zip((1, 30, 35, 40), X, strict=True))],
        "classes": [["txId", "class"], [73, "unknown"], [72, 1], [71, 1], [70, 2]],
        "edgelist": [["txId1", "txId2"], [70, 71], [72, 73]],
    }
    for file, rows in tables.items():
        text = "\n".join(",".join(map(str, row)) for row in rows)
        (folder / f"elliptic_txs_{file}.csv").write_text(text)


def fraud(folder: Path, name: str) -> None:
    a = sp.csc_matrix(np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], float))
    held = {
        "homo": a,
        "net_one": sp.csc_matrix((4, 4)),
        "features": sp.csc_matrix(X),
        "label": np.array([[0, 1, 1, 0]]),
    }
    scipy.io.savemat(folder / {"yelpchi": "YelpChi.mat", "amazon-fraud": "Amazon.mat"}[name], held)


WRITE: dict[str, Any] = {
    "ogbn-arxiv": ogb, "ogbn-products": ogb, "wiki-cs": wiki, "elliptic": elliptic, "yelpchi": fraud,
    "amazon-fraud": fraud,
}  # fmt: skip


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if these few nodes had been released."""
    for kind in RELEASED:
        monkeypatch.setattr(kind, "facts", Facts(4, 2, 2, 2))
    monkeypatch.setattr(AmazonFraud, "unlabeled", 1)


@pytest.mark.parametrize("name", WRITE)
def test_files_of_the_released_layout_are_read(small: None, tmp_path: Path, name: str) -> None:
    WRITE[name](tmp_path, name)
    held = load(name, str(tmp_path))
    assert held.edges.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    x = held.x.toarray() if sp.issparse(held.x) else held.x
    assert x.tolist() == X.tolist()
    y = {"elliptic": [0, 1, 1, -1], "amazon-fraud": [-1, 1, 1, 0]}.get(name, [0, 1, 1, 0])
    assert held.y.tolist() == y
    if name in ("yelpchi", "amazon-fraud"):
        assert held.public is None
        assert load(name, str(tmp_path), relation="net_one").edges.shape == (2, 0)
        with refusal("data.relation", "net_one"):
            load(name, str(tmp_path), relation="net_two")
    else:
        assert held.public is not None
        assert held.public.tolist() == np.eye(3, 4, dtype=bool).tolist()


@pytest.mark.parametrize("name", WRITE)
def test_what_is_not_there_is_named_and_other_counts_are_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDWEAVE_DATA", str(tmp_path))
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError) as found:
        load(name)
    assert all(file in str(found.value) for file in DATASETS[name].files)
    WRITE[name](tmp_path, name)
    with pytest.raises(DataError, match=r"published are \("):
        load(name)


def test_a_damaged_file_is_named(small: None, tmp_path: Path) -> None:
    for name, file in (("wiki-cs", "data.json"), ("yelpchi", "YelpChi.mat")):
        (tmp_path / file).write_text("[")
        with refusal("data.damaged"):
            load(name, str(tmp_path))
    fraud(tmp_path, "yelpchi")
    elliptic(tmp_path, "elliptic")
    (tmp_path / "elliptic_txs_edgelist.csv").write_text("txId1,txId2\n70,99\n")
    with refusal("data.damaged", "(KeyError"):
        load("elliptic", str(tmp_path))
