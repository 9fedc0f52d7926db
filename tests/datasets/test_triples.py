"""Knowledge graphs: a user's own triples, and published ones with their counts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from fedweave import datasets
from fedweave.datasets.synthetic import Synthetic
from fedweave.datasets.triples import KNOWLEDGE, with_node_columns
from fedweave.sites.flare.site_data import check_meant, training_graph
from fedweave.sites.flare.sitefile import SiteData
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
        ("head,relation,tail,split\na,r,b,later\n", "data.row"),
        (None, "data.no-triples"),
    ],
)
def test_what_is_no_knowledge_graph_is_refused(tmp_path, text, code):
    if text is not None:
        (tmp_path / "triples.csv").write_text(text)
    with refusal(code):
        datasets.load("triples", str(tmp_path))


# Forms of files that others have written.

CIRCLE = [(f"e{a}", f"r{(a + b) % 2}", f"e{b}") for a in range(5) for b in range(5) if a != b]
SPLITS = {"train": CIRCLE[:14], "valid": CIRCLE[14:17], "test": CIRCLE[17:]}


def texts(folder: Path, encoding: str = "utf-8", **changed: list[tuple[str, ...]]) -> Path:
    """A folder of text files of triples, 14 to train on, 3 to validate and 3 to test, or as `changed`."""
    for name, rows in (SPLITS | changed).items():
        (folder / f"{name}.txt").write_text("".join("\t".join(row) + "\n" for row in rows), encoding=encoding)
    return folder


def table(folder: Path, text: str, name: str = "triples.csv") -> Path:
    (folder / name).write_text(text)
    return folder


def rows(*names: str) -> str:
    return "".join(",".join((*row, "train")[: len(names)]) + "\n" for row in [names, *CIRCLE])


HEADER = ("head", "relation", "tail")
REFUSED: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    # a blank at an end makes another entity
    "a blank behind": (
        lambda f: texts(f, train=[(h, r, f"{t} ") for h, r, t in CIRCLE]),
        "data.row",
        "train.txt: row 1",
    ),
    "a blank before": (lambda f: texts(f, test=[("e0", "r0", " e1")]), "data.row", "test.txt: row 1"),
    "a blank of a word processor": (lambda f: texts(f, test=[("e0\u00a0", "r0", "e1")]), "data.row", "test.txt: row 1"),
    "a blank in CSV": (lambda f: table(f, rows(*HEADER) + "e1,r0 ,e2\n"), "data.row", "row 22: relation"),
    # words for nothing
    "nan": (lambda f: table(f, rows(*HEADER) + "nan,r0,e1\n"), "data.row", "row 22: head"),
    "NULL": (lambda f: texts(f, valid=[("e0", "r0", "NULL")]), "data.row", "valid.txt: row 1: tail"),
    "N/A": (lambda f: texts(f, train=[*CIRCLE, ("e0", "N/A", "e1")]), "data.row", "train.txt: row 21: relation"),
    "nothing in the second file": (
        lambda f: texts(f, valid=[("e1", "r0", "e2"), ("e1", "", "e3")]),
        "data.row",
        "valid.txt: row 2",
    ),
    # rows that are none
    "two cells": (lambda f: texts(f, test=[CIRCLE[0], ("e1", "r1")]), "data.row", "test.txt: row 2: it has 2 cells"),
    "blanks between cells": (
        lambda f: texts(f, train=[(" ".join(row),) for row in CIRCLE]),
        "data.row",
        "train.txt: row 1: it has 1 cells",
    ),
    "a fourth cell below a header": (
        lambda f: texts(f, train=[HEADER, CIRCLE[0], (*CIRCLE[1], "1")]),
        "data.row",
        "train.txt: row 3",
    ),
    # headers
    "a header in capitals": (lambda f: texts(f, train=[("Head", "Relation", "Tail"), *CIRCLE]), "data", "'Head'"),
    "a header again": (lambda f: texts(f, train=[HEADER, *CIRCLE, HEADER]), "data.row", "train.txt: row 22"),
    "a header of RDF again": (
        lambda f: texts(f, train=[("subject", "predicate", "object"), *CIRCLE, ("subject", "predicate", "object")]),
        "data.row",
        "train.txt: row 22",
    ),
    "a header again in CSV": (lambda f: table(f, rows(*HEADER) + "head,relation,tail\n"), "data.row", "row 22"),
    # columns
    "a column of no meaning": (lambda f: table(f, "head,relation,tail,weight\na,r,b,1\n"), "data", "weight"),
    "two columns of heads": (
        lambda f: table(f, "head,source,relation,tail\na,a,r,b\n"),
        "data.column-unknown",
        "source",
    ),
    "columns of other names": (
        lambda f: table(f, "drug,effect,disease\na,r,b\n"),
        "data.column-missing",
        'head = "drug"',
    ),
    "semicolons": (lambda f: table(f, "head;relation;tail\na;r;b\n"), "data", "semicolons"),
    # N-Triples
    "statements": (
        lambda f: texts(f, train=[(f"<x/{h}>", f"<x/{r}>", f"<x/{t}> .") for h, r, t in CIRCLE]),
        "data.n-triples",
        "train.txt",
    ),
    "statements with blanks": (
        lambda f: texts(f, train=[(f"<x/{h}> <x/{r}> <x/{t}> .",) for h, r, t in CIRCLE]),
        "data.n-triples",
        "train.txt",
    ),
    "statements with a cell for the dot": (
        lambda f: texts(f, train=[(f"_:{h}", f"<x/{r}>", f"<x/{t}>", ".") for h, r, t in CIRCLE]),
        "data.n-triples",
        "train.txt",
    ),
    "statements of literals": (
        lambda f: texts(f, test=[("<x/a>", "<x/b>", '"a text".')]),
        "data.n-triples",
        "test.txt",
    ),
    # files
    "packed": (lambda f: table(f, "", "train.txt.gz"), "data.file-other", "gunzip train.txt.gz"),
    "in capitals": (lambda f: table(f, "", "TRIPLES.CSV"), "data.file-other", "triples.csv"),
    "of another ending": (lambda f: table(f, "", "train.tsv"), "data.file-other", "train.txt"),
    "two to validate": (lambda f: table(texts(f), "e0\tr0\te1\n", "dev.txt"), "data.file-other", "dev.txt"),
    "nothing to train on": (lambda f: table(f, "e0\tr0\te1\n", "test.txt"), "data.no-triples", ""),
    "two tables": (lambda f: table(table(f, rows(*HEADER)), "", "triples.parquet"), "data", "both"),
    "UTF-16": (lambda f: texts(f, "utf-16"), "data", "UTF-16"),
    "Latin-1": (
        lambda f: texts(f, "latin-1", test=[("caf\u00e9", "r0", "e1")]),
        "data",
        "test.txt: the file is not UTF-8",
    ),
    "long numbers as floats": (
        lambda f: table(f, rows(*HEADER) + "12345678901234567890.0,r0,e1\n"),
        "data.row",
        "row 22: head",
    ),
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_would_be_another_graph_is_refused(tmp_path: Path, form: str) -> None:
    write, code, fact = REFUSED[form]
    with refusal(code, fact):
        datasets.load("triples", str(write(tmp_path)))


READ: dict[str, tuple[Callable[[Path], Path], dict[str, object]]] = {
    "texts": (texts, {}),
    "a byte order mark": (lambda f: texts(f, "utf-8-sig"), {}),
    "a header": (lambda f: texts(f, train=[HEADER, *SPLITS["train"]], test=[HEADER, *SPLITS["test"]]), {}),
    "a header of RDF in another order": (
        lambda f: texts(f, train=[("object", "subject", "predicate"), *((t, h, r) for h, r, t in SPLITS["train"])]),
        {},
    ),
    "a header that is declared": (
        lambda f: texts(f, **{name: [("Drug", "does", "to"), *rows] for name, rows in SPLITS.items()}),
        {"columns": {"head": "Drug", "relation": "does", "tail": "to"}},
    ),
    "RDF": (lambda f: table(f, rows("subject", "predicate", "object")), {}),
    "edges": (lambda f: table(f, rows("source", "label", "target", "split")), {}),
    "declared": (
        lambda f: table(f, rows("from", "how", "to")),
        {"columns": {"head": "from", "relation": "how", "tail": "to"}},
    ),
    "a column left out": (lambda f: table(f, rows("head", "relation", "tail", "source")), {"ignore": ("source",)}),
    "rows without a value": (lambda f: table(f, rows(*HEADER) + ",,\n\n"), {}),
    "comments": (lambda f: table(f, "# from elsewhere\n" + rows(*HEADER)), {}),
}


@pytest.mark.parametrize("form", READ)
def test_forms_of_one_graph_are_read_alike(tmp_path: Path, form: str) -> None:
    write, settings = READ[form]
    data = datasets.load("triples", str(write(tmp_path)), **settings)
    assert data.node_ids == ("e0", "e1", "e2", "e3", "e4")
    assert data.labels == ("r0", "r1")
    assert sorted(zip(*data.edge_attrs.ends.tolist(), data.y.tolist(), strict=True)) == sorted(
        (int(h[1]), int(t[1]), int(r[1])) for h, r, t in CIRCLE
    )


@pytest.mark.parametrize("name", ["dev", "val", "validation"])
def test_what_validates_has_several_names(tmp_path: Path, name: str) -> None:
    texts(tmp_path)
    (tmp_path / "valid.txt").rename(tmp_path / f"{name}.txt")
    (tmp_path / "entity2id.txt").write_text("5\n")
    data = datasets.load("triples", str(tmp_path))
    assert np.asarray(data.public).sum(1).tolist() == [14, 3, 3]
    assert [note for note in data.notes if "entity2id.txt" in note]
    csv = "head,relation,tail,split\na,r,b,train\nb,r,c," + name + "\n"
    table(tmp_path, csv)
    data = datasets.load("triples", str(tmp_path))
    assert np.asarray(data.public).sum(1).tolist() == [1, 1, 0]
    assert [note for note in data.notes if "train.txt" in note]


def test_whole_numbers_that_came_through_floats_are_those_numbers(tmp_path: Path) -> None:
    pairs = [(a, b) for a in range(5) for b in range(5) if a != b]
    frame = pd.DataFrame(pairs, columns=["head", "tail"]).assign(relation=1.0)
    (tmp_path / "parquet").mkdir()
    frame.astype({"tail": float}).to_parquet(tmp_path / "parquet/triples.parquet")
    (tmp_path / "csv").mkdir()
    frame.astype({"tail": float}).to_csv(tmp_path / "csv/triples.csv", index=False)
    (tmp_path / "texts").mkdir()
    texts(tmp_path / "texts", train=[(str(a), "1" if a else "1.0", f"{b}.0") for a, b in pairs])
    for name in ("valid", "test"):
        (tmp_path / f"texts/{name}.txt").unlink()
    for form in ("parquet", "csv", "texts"):
        data = datasets.load("triples", str(tmp_path / form))
        assert data.node_ids == ("0", "1", "2", "3", "4")
        assert data.labels == ("1",)


def test_a_folder_of_another_form_is_called_so(tmp_path: Path) -> None:
    texts(tmp_path)
    with refusal("data.other-layout", "triples"):
        datasets.load("folder", str(tmp_path))
    other = tmp_path / "other"
    other.mkdir()
    table(table(other, "id,label,f\na,0,1\nb,1,2\n", "nodes.csv"), "source,target\na,b\n", "edges.csv")
    with refusal("data.no-triples", 'name = "folder"'):
        datasets.load("triples", str(other))
    assert datasets.load("folder", str(table(other, "1\n", "train.txt"))).nodes == 2


def test_sites_read_triples_by_the_same_settings(tmp_path: Path) -> None:
    (tmp_path / "kg").mkdir()
    table(tmp_path / "kg", rows("drug", "does", "to", "split"))
    columns = {"head": "drug", "relation": "does", "tail": "to"}
    site = SiteData(path="kg", task="links", features="learned", columns=columns, labels=("r1", "r0"))
    check_meant(tmp_path / "kg", site)
    data = training_graph(site, tmp_path)
    assert data.links is not None
    assert data.links.relations == ("r1", "r0")
    assert data.node_ids == ("e0", "e1", "e2", "e3", "e4")
    for odd in ({"edge_weight": "to"}, {"classes": 2}, {"missing": ("to",)}, {"loops": "drop"}):
        with refusal("config.other-form", next(iter(odd))):
            check_meant(tmp_path / "kg", SiteData(path="kg", task="links", **odd))
    with refusal("data.row", "row 22"):
        training_graph(site, table(tmp_path / "kg", rows("drug", "does", "to", "split") + "e1 ,r0,e2,train\n").parent)


def test_relations_in_order_are_all_there_are(tmp_path: Path) -> None:
    texts(tmp_path)
    assert datasets.load("triples", str(tmp_path), labels=("r1", "r0", "nan")).labels == ("r1", "r0", "nan")
    with refusal("data.row", "train.txt", "r0"):
        datasets.load("triples", str(tmp_path), labels=("r1",))


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
    made = with_node_columns(data)
    assert (made.x != sp.eye(50)).nnz == 0
    assert made.edges is data.edges
    with refusal("config.learned"):
        with_node_columns(replace(data, graph_of=np.zeros(50, np.int64)))


def test_ratings_of_douban(data_root: Path):
    data = datasets.load("douban", str(data_root))
    assert np.asarray(data.public).sum(1).tolist() == [123202, 0, 13689]
    assert np.bincount(data.node_labels).tolist() == [2999, 3000]
    assert (data.node_labels[data.edge_attrs.ends] == [[0], [1]]).all()
    assert data.labels[data.y[0]] == "4"  # user 0 gives film 22 four stars
