"""Names that look alike, columns that number the rows and data of one class are named before a run, and in it."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.datasets import load
from fedweave.datasets.features import normalize
from fedweave.datasets.name_matching import difference, plain, similar_names
from fedweave.datasets.notes import name_notes, single_class_notes
from fedweave.datasets.row_numbers import row_numbers
from fedweave.reports.notes import notes
from tests.refusals import refusal

CASES = Path(__file__).parents[1] / "cases"
DATA = load("synthetic", nodes=120, features=4, classes=2)


def with_column(values: np.ndarray, how: str = "none") -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(len(values), 3)).astype(np.float32)
    x[:, 1] = values
    return np.asarray(normalize(x, how, "x"))


@pytest.mark.parametrize("how", ["none", "scale", "standard", "minmax"])
def test_columns_that_number_the_rows_are_found_however_scaled(how: str) -> None:
    rng, rows = np.random.default_rng(0), np.arange(120.0)
    for values in (
        rows,
        rows + 7,
        rng.permutation(rows),  # of shuffled rows
        np.sort(rng.permutation(200)[:120]),  # of those that were kept
        np.tile(np.arange(40.0), 3),  # of three tables, one below the other
        rows[::-1],
    ):
        assert row_numbers(with_column(values, how)).tolist() == [1]
        assert row_numbers(sp.csr_matrix(with_column(values, how))).tolist() == [1]


def test_columns_that_say_something_number_no_rows() -> None:
    rng, rows = np.random.default_rng(0), np.arange(120)
    for values in (
        rng.normal(size=120),
        np.sort(rng.normal(size=120)),
        rng.integers(18, 90, 120),
        rows % 2,
        rows % 7,
        np.zeros(120),
        rng.integers(0, 10**6, 120),
    ):
        assert not len(row_numbers(with_column(values)))
    assert not len(row_numbers(with_column(np.arange(10))))  # too few to tell
    assert not list(name_notes(DATA))


def test_names_that_look_alike_are_asked_about() -> None:
    names = ("Fraud", "fine", "fraud", "Zo\u00eb", "Zoe\u0308", "a b", "a  b")
    assert list(similar_names(names)) == [("Fraud", "fraud"), ("Zo\u00eb", "Zoe\u0308"), ("a b", "a  b")]
    assert difference("Fraud", "fraud") == "case"
    assert difference("Zo\u00eb", "Zoe\u0308").startswith("the Unicode form")
    assert difference("7", "007") == "zeros before it"
    assert plain("000") == "0"
    for what, field in (("classes", "labels"), ("groups", "groups"), ("owners", "owners")):
        [said] = name_notes(replace(DATA, **{field: ("North", "north")}))  # type: ignore[arg-type]
        assert re.search(f"{what}, 'North' and 'north'", said)


def test_ids_that_look_alike_are_hinted_at(tmp_path: Path) -> None:
    with refusal("data.row", "'Zoë'"):
        load("folder", str(CASES / "unicode-forms/data"))
    nodes = (CASES / "unicode-forms/data/nodes.csv").read_text()
    for party, ids in (("bank", nodes), ("shop", nodes.replace("\u00eb", "e\u0308").replace("\u00f1", "n\u0303"))):
        (tmp_path / party).mkdir()
        (tmp_path / party / "nodes.csv").write_text(ids)
        (tmp_path / party / "edges.csv").write_text("source,target\n")
    with refusal("data.no-common-id"):
        load("parties", str(tmp_path))


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("class-case/case.toml", "'Fraud' and 'fraud' differ in case"),
        ("one-class/e.toml", "all labeled nodes are of one class, 0"),
        ("row-index/named.toml", "the feature row numbers the rows"),
    ],
)
def test_check_and_run_say_so(case: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (CASES / case).parent.rglob("*"):
        if file.is_file():
            at = tmp_path / file.relative_to((CASES / case).parent)
            at.parent.mkdir(exist_ok=True)
            at.write_text(file.read_text().replace("Unnamed: 0", "row"))
    (tmp_path / "named.toml").write_text((CASES / "row-index/unnamed.toml").read_text().replace("Unnamed: 0", "row"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    name = Path(case).name
    for words in (["check", name], ["run", name, "--out", "out", "--set", "rounds=1", "--set", "eval_every=1"]):
        told = CliRunner().invoke(app, words)
        assert told.exit_code == 0, told.output
        assert said in told.output


def test_a_result_on_one_class_says_nothing() -> None:
    metrics = {"global/accuracy": 1.0, "global/majority": 1.0}
    assert list(notes(metrics)) == ["alike"]
    assert list(notes(metrics | {"scores/coarse": 1.0})) == ["coarse"]  # the share may be rounded
    assert not notes(metrics | {"global/majority": 0.99})


def test_one_class_is_of_labeled_examples() -> None:
    assert not list(single_class_notes(DATA))
    [said] = single_class_notes(replace(DATA, y=np.where(DATA.y == 0, -1, DATA.y)))
    assert said.startswith("all labeled nodes are of one class, 1")
