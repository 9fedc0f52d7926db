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
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import normalize
from fedweave.datasets.name_matching import difference, plain, similar_names
from fedweave.datasets.notes import MIN_VALIDATION, name_notes, single_class_notes, validation_notes
from fedweave.datasets.row_numbers import row_numbers
from fedweave.experiment.facts import positive_in_data
from fedweave.metrics.selection import Judging
from fedweave.reports.notes import notes
from tests import commands
from tests.commands import SMALL
from tests.refusals import check_facts, refusal

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


def two_classes(ones: int) -> Dataset:
    """Nodes of which the first `ones` are of class "fraud", and the others of class "fair"."""
    y = (np.arange(DATA.examples) < ones).astype(np.int64)
    return replace(DATA, y=y, labels=("fair", "fraud"))


def test_members_with_few_validation_examples_are_named() -> None:
    data = two_classes(20)
    few, enough = np.r_[0:2, 30:70], np.r_[2:12, 70:80]
    [[code, sentence]] = validation_notes(data, {"a": few, "b": enough, "c": few[:0]}, 1).items()
    assert code == "few-validation"
    assert re.findall(r"(\d+) at (\w+)", sentence) == [("2", "a")]
    # Without any examples nothing is chosen by them.
    assert validation_notes(data, {"b": enough, "c": few[:0]}, 1) == {}
    assert validation_notes(data, {"a": few}, 0) == {}  # the other class
    # Of more classes, of numbers and of labels all examples count.
    for other in (
        replace(data, classes=3, labels=("fair", "fraud", "odd")),
        replace(data, y=data.y[:, None].astype(np.float32), targets=("loss",), labels=()),
    ):
        assert validation_notes(other, {"a": few}) == {}
        assert list(validation_notes(other, {"a": few[: MIN_VALIDATION - 1]})) == ["few-validation"]
        assert validation_notes(other, {"a": few[:MIN_VALIDATION]}) == {}


def test_the_positive_class_of_data_is_that_of_a_run() -> None:
    """By hand: the one that is given, else the one that is rare in training, else class 1."""
    train = np.arange(100)
    for ones, given, expected in (
        (60, None, 1),  # neither is rare, also where class 0 is the rarer one
        (40, None, 1),
        (90, None, 0),
        (10, None, 1),
        (10, "fair", 0),
        (90, 1, 1),
    ):
        assert positive_in_data(Judging(positive=given), two_classes(ones), train) == expected, (ones, given)
    assert positive_in_data(Judging(), two_classes(100), np.arange(80, 120)) == 1  # of the training examples half
    assert positive_in_data(Judging(), replace(DATA, classes=3), train) is None
    with refusal("config.no-class", "'loan'"):
        positive_in_data(Judging(positive="loan"), two_classes(10), train)


@pytest.mark.parametrize("command", ["check", "run"])
def test_check_and_run_note_few_validation_examples(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL)
    few = commands.run(command, "small.toml", "--set", "data.nodes=60")
    check_facts(few, "8 at client-0", "8 at client-1", "8 at client-2")
    out = () if command == "check" else ("--out", "larger")
    assert " at client-0" not in commands.run(command, "small.toml", *out)
