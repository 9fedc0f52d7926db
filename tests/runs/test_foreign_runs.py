"""A run's folder that is damaged, or that somebody else made up: every reader names the file, or does not need it."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from fedweave import datasets
from fedweave.apply.prediction_table import predictions_table
from fedweave.apply.run_predictions import predictions
from fedweave.cli import app
from fedweave.core.tree import Tree, decode, encode, with_digest
from fedweave.errors import FedweaveError
from fedweave.experiment.runs.outputs import Predicted
from fedweave.experiment.runs.reading import read_run
from fedweave.export.card import card
from fedweave.export.source import source
from fedweave.python.training import load_run
from fedweave.reports.html import render
from tests import commands
from tests.refusals import check_facts, refusal

SMALL = """
rounds = 2
[data]
name = "synthetic"
nodes = 60
classes = 3
features = 4
[partition]
clients = 3
[model]
hidden = 4
[engine]
threads = 1
"""
READERS: dict[str, Callable[[Path], object]] = {
    "report": lambda run: render([read_run(run)]),
    "load_run": load_run,
    "predict": predictions,
    "export": lambda run: card(read_run(run), source(run, None, None), None, "name"),
}
EDGES: dict[str, object] = {"features": 0, "weighted": False, "examples": False, "directed": False}
TABLES = ("metrics", "ledger", "partition")


def changed(name: str, change: Callable[[pa.Table], pa.Table], run: Path) -> None:
    """Write one of the run's tables again, changed."""
    path = run / f"{name}.parquet"
    pq.write_table(change(pq.read_table(path)), path)


def column(name: str, values: Callable[[int], pa.Array]) -> Callable[[pa.Table], pa.Table]:
    """Other values for the column `name`."""
    return lambda table: table.set_column(table.column_names.index(name), name, values(len(table)))


def said(text: str, run: Path) -> None:
    """Another configuration's first line."""
    path = run / "config.toml"
    path.write_text(f"{text}\n{path.read_text()}")


def section_as_word(name: str, run: Path) -> None:
    """A section that is a value."""
    lines = (run / "config.toml").read_text().splitlines()
    at = lines.index(f"[{name}]")
    end = next(number for number in range(at + 1, len(lines)) if lines[number].startswith("["))
    (run / "config.toml").write_text("\n".join([f'{name} = "x"', *lines[:at], *lines[end:]]))


def summed_up(key: str, value: object, run: Path) -> None:
    """Another entry in summary.json, of its metrics where it has a slash."""
    path = run / "summary.json"
    told = json.loads(path.read_text())
    (told["metrics"] if "/" in key else told)[key] = value
    path.write_text(json.dumps(told))


def state_of(key: str, value: object, run: Path) -> None:
    """Another entry in the checkpoint, whose digest is right all the same."""
    path = run / "checkpoint" / "state.safetensors"
    tree: Tree = decode(path.read_bytes())
    structure = json.loads(tree["structure"])
    if key == "structure":
        tree[key] = value
    else:
        tree[key], tree["structure"] = value, json.dumps({**structure, key: None})
    path.write_bytes(with_digest(encode(tree)))


def archived(matrix: np.ndarray, run: Path) -> None:
    """Another pairs.npz."""
    file = BytesIO()
    np.savez(file, nodes=matrix)
    (run / "pairs.npz").write_bytes(file.getvalue())


def of_tables() -> dict[str, tuple[str, Callable[[Path], None]]]:
    """Each table without a column, with another one alone, and with text in every column."""
    found: dict[str, tuple[str, Callable[[Path], None]]] = {}
    for name in TABLES:
        file = f"{name}.parquet"
        found[f"{name} lacks a column"] = file, partial(changed, name, lambda table: table.drop_columns(["client"]))
        found[f"{name} is another table"] = file, partial(changed, name, lambda table: pa.table({"x": [1]}))
        text = partial(changed, name, lambda table: pa.table({key: ["x"] * len(table) for key in table.column_names}))
        found[f"{name} is text"] = file, text
        empty = column("client", lambda rows: pa.nulls(rows, pa.string()))
        found[f"{name} names nobody"] = file, partial(changed, name, empty)
    return found


CASES: dict[str, tuple[str, Callable[[Path], None]]] = {
    **of_tables(),
    "values are empty": (
        "metrics.parquet",
        partial(changed, "metrics", column("value", lambda rows: pa.nulls(rows, pa.float64()))),
    ),
    "values beyond all axes": (
        "metrics.parquet",
        partial(changed, "metrics", column("value", lambda rows: pa.array([1e308, -1e308] * rows)[:rows])),
    ),
    "an unknown direction": (
        "ledger.parquet",
        partial(changed, "ledger", column("direction", lambda rows: pa.array(["sideways"] * rows))),
    ),
    "motifs of nobody": (
        "motifs.parquet",
        lambda run: pq.write_table(pa.table({"motif": ["ring 0 0 1"]}), run / "motifs.parquet"),
    ),
    "counts of other lengths": (
        "partition.parquet",
        partial(changed, "partition", column("labels", lambda rows: pa.array([[1] * (2 + at) for at in range(rows)]))),
    ),
    "a date": ("config.toml", partial(said, "when = 2024-01-01")),
    "a number of 5,000 digits": ("config.toml", partial(said, f"x = 0x{'f' * 5000}")),
    "data is a word": ("config.toml", partial(section_as_word, "data")),
    "algorithm is a word": ("config.toml", partial(section_as_word, "algorithm")),
    "deep": ("summary.json", lambda run: (run / "summary.json").write_text("[" * 100_000) and None),
    "a metric beyond floats": ("summary.json", partial(summed_up, "global/accuracy", 10**400)),
    "a metric is text": ("summary.json", partial(summed_up, "global/accuracy", "x")),
    "a class is a table": ("summary.json", partial(summed_up, "classes", [1, {"a": 2}])),
    "features are not counted": ("summary.json", partial(summed_up, "features", None)),
    "classes are a fraction": ("summary.json", partial(summed_up, "class_count", 2.5)),
    "edges of no form": ("summary.json", partial(summed_up, "edges", {})),
    "edges with too little": ("summary.json", partial(summed_up, "edges", {"features": 0, "weighted": False})),
    "edges of words": ("summary.json", partial(summed_up, "edges", EDGES | {"features": "x"})),
    "a structure that is not JSON": ("state.safetensors", partial(state_of, "structure", "not json")),
    "a structure that is a list": ("state.safetensors", partial(state_of, "structure", "[1]")),
    "a state that is a number": ("state.safetensors", partial(state_of, "state", 5)),
    "pairs of words": ("pairs.npz", partial(archived, np.array([["a", "b"], ["c", "d"]]))),
    "pairs in a row": ("pairs.npz", partial(archived, np.zeros(2))),
    "no pairs": ("pairs.npz", partial(archived, np.zeros((0, 0)))),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "small.toml").write_text(SMALL)
    commands.run("run", folder / "small.toml", "--out", folder / "run")
    return folder / "run"


@pytest.mark.parametrize("case", CASES)
def test_every_reader_names_the_file_that_is_wrong(case: str, good: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(good, run)
    file, spoil = CASES[case]
    spoil(run)
    said: dict[str, str] = {}
    for name, read in READERS.items():
        try:
            read(run)
        except FedweaveError as error:
            said[name] = str(error)
    assert said, "somebody reads it"
    assert all(file in words for words in said.values()), said


def test_an_untouched_copy_is_read_by_all(good: Path) -> None:
    for read in READERS.values():
        read(good)


def test_an_export_does_not_need_what_the_configuration_says_too(good: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(good, run)
    told = json.loads((run / "summary.json").read_text())
    del told["seed"]
    (run / "summary.json").write_text(json.dumps(told | {"edges": EDGES}))
    check_facts(str(READERS["export"](run)), "(seed 0)")


COMMANDS = {
    "predict": "predictions.parquet",
    "export": "export",
    "contributions": "contributions",
    "predict --data {data}": "new-predictions.parquet",
}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_made_of_weights_that_are_no_numbers(command: str, value: float, good: Path, tmp_path: Path) -> None:
    """One weight of the checkpoint, whose digest is right all the same."""
    run = tmp_path / "run"
    shutil.copytree(good, run)
    tree = decode((run / "checkpoint" / "state.safetensors").read_bytes())
    tree["state"]["w"]["0"]["weight"].flatten()[0] = value
    state_of("state", tree["state"], run)
    data = tmp_path / "new.npz"
    datasets.load("synthetic", nodes=60, classes=3, features=4).save(data)
    said = CliRunner().invoke(app, [command.split()[0], str(run), *command.format(data=data).split()[1:]])
    assert (said.exit_code, isinstance(said.exception, SystemExit)) == (2, True), said.output
    check_facts(said.output, "finite")
    assert not (run / COMMANDS[command]).exists()


def test_predictions_that_are_no_numbers_are_refused_by_whose_they_are() -> None:
    """As of parties whose joint prediction has diverged."""
    rows = torch.tensor([[0.5, 0.5], [float("nan"), 0.5]])
    with refusal("user.not-finite", "bank-b"):
        predictions_table([Predicted("bank-a", rows[:1], np.arange(1)), Predicted("bank-b", rows, np.arange(2))])
    padded = Predicted("bank-b", rows, np.arange(1))  # what lies behind the examples does not matter
    assert len(predictions_table([padded])) == 1


@pytest.mark.parametrize("name", ["predict", "export", "weights"])
@pytest.mark.parametrize("changed", ["hidden = 4", "clients = 3"])
def test_a_model_is_not_used_as_another_configurations(changed: str, name: str, good: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(good, run)
    text = (run / "config.toml").read_text()
    assert changed in text
    (run / "config.toml").write_text(text.replace(changed, f"{changed[:-1]}5"))
    with pytest.raises(
        FedweaveError, match=r"checkpoint/state\.safetensors is damaged: .*|clients of .* are not those"
    ):
        (READERS | {"weights": lambda run: load_run(run).weights()})[name](run)


def test_a_resume_that_cannot_begin_leaves_what_a_finished_run_has(good: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(good, run)
    predictions(run)
    (run / "predictions.parquet").touch()
    (run / "partition.parquet").unlink()
    (run / "partition.parquet").mkdir()
    words = ["run", str(good.parent / "small.toml"), "--out", str(run), "--resume", "--set", "rounds=3"]
    commands.run(*words, code=2)
    assert (run / "summary.json").exists()
    assert (run / "predictions.parquet").exists()
