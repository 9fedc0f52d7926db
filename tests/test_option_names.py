"""A message names an option as its reader gives it: on the command line, or in Python."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedweave
from fedweave.errors import FedweaveError, UserError, command_line, option
from tests import commands
from tests.commands import SMALL
from tests.refusals import check_facts


@pytest.mark.parametrize(
    ("words", "at_command_line", "in_python"),
    [
        (("out",), "--out", "out"),
        (("resume", True), "--resume", "resume = True"),
        (("folds", 5), "--folds 5", "folds = 5"),
        (("round", "last"), "--round last", "round = 'last'"),
        (("out", Path("a b")), "--out a b", "out = 'a b'"),
        (("set", "model.hidden=3", "settings, model.hidden=3"), "--set model.hidden=3", "settings, model.hidden=3"),
        (("set", None, "settings"), "--set", "settings"),
    ],
)
def test_an_option_has_two_names(words: tuple[Any, ...], at_command_line: str, in_python: str) -> None:
    assert option(*words) == in_python
    with command_line():
        assert option(*words) == at_command_line
    with pytest.raises(UserError), command_line():
        raise UserError("a fault")
    assert option(*words) == in_python


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run."""
    root = tmp_path_factory.mktemp("options")
    (root / "small.toml").write_text(SMALL)
    fedweave.run(root / "small.toml", root / "run")
    return root


MISTAKES: dict[str, tuple[Callable[[Path], object], str, tuple[str, ...]]] = {
    "used": (
        lambda root: fedweave.run(root / "small.toml", root / "run"),
        "user.not-empty",
        ("resume = True", "overwrite = True", "out"),
    ),
    "another run": (
        lambda root: fedweave.run(tomllib.loads(SMALL) | {"seed": 3}, root / "run", resume=True),
        "user",
        ("seed", "out"),
    ),
    "no run": (lambda root: fedweave.load_run(root), "user.no-run", ()),
    "client": (
        lambda root: fedweave.load_run(root / "run").weights("personal", "nobody"),
        "user.no-client",
        ("client = 'nobody'",),
    ),
    "folds": (lambda root: fedweave.load_run(root / "run").embeddings(folds=1), "user.folds", ("folds = 1",)),
    "data and folds": (
        lambda root: fedweave.load_run(root / "run").embeddings(folds=2, data=root),
        "user.folds",
        ("folds", "data"),
    ),
    "whose": (lambda root: fedweave.load_run(root / "run").explain(None, 1), "user.no-client", ("client",)),
    "target": (
        lambda root: fedweave.load_run(root / "run").explain("client-0", 0, target="odd"),
        "explain.target",
        ("target = 'odd'",),
    ),
    "pair": (lambda root: fedweave.load_run(root / "run").explain("client-0", ("a", "b")), "explain.pair", ()),
    "forget": (lambda root: fedweave.load_run(root / "run").forget(), "forget.nothing", ("client", "ids")),
    "compare": (lambda root: fedweave.compare(root / "nowhere"), "user", ()),
    "range": (
        lambda root: fedweave.sweep(root / "small.toml", grid={"algorithm.lr": "1e-3..1,log"}, out=root / "sweep"),
        "config",
        ("grid['algorithm.lr']", "search"),
    ),
    "grid": (
        lambda root: fedweave.sweep(root / "small.toml", grid={"algorithm.nonsense": [1]}, out=root / "sweep"),
        "config",
        ("grid['algorithm.nonsense']",),
    ),
    "over": (
        lambda root: fedweave.sweep(root / "small.toml", over=["rounds"], out=root / "sweep"),
        "config",
        ("over = 'rounds'",),
    ),
    "seeds": (lambda root: fedweave.sweep(root / "small.toml", seeds="x", out=root / "sweep"), "config", ("'x'",)),
    "settings": (
        lambda root: fedweave.sweep(root / "small.toml", settings={"data.name.size": 1}, out=root / "sweep"),
        "config.flag",
        ("settings", "data.name"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_errors_in_python_name_arguments_of_python(folder: Path, mistake: str) -> None:
    call, code, facts = MISTAKES[mistake]
    with pytest.raises(FedweaveError) as error:
        call(folder)
    assert error.value.code == code, error.value
    check_facts(str(error.value), *facts)
    assert "--" not in str(error.value)


def test_errors_of_commands_name_options(folder: Path) -> None:
    run = folder / "run"
    commands.refuse(["run", folder / "small.toml", "--out", run], "user.not-empty", "--resume", "--overwrite", "--out")
    commands.refuse(["embed", run, "--folds", 1], "user.folds", "--folds 1")
    commands.refuse(["predict", run, "--model", "personal", "--client", "x"], "user.no-client", "--client x")
