"""A small experiment, and commands that run in the process of the test."""

from collections.abc import Sequence

from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.errors import FedweaveError
from tests.refusals import refusal

SMALL = """
rounds = 3
[data]
name = "synthetic"
nodes = 90
classes = 3
features = 6
[partition]
clients = 3
[model]
hidden = 4
[algorithm]
local_steps = 1
[engine]
threads = 1
"""


def call(*words: object) -> tuple[int, str, str]:
    """A command's exit code, what it says, and what it says on stderr in one line."""
    found = CliRunner().invoke(app, [*map(str, words)])
    assert "Traceback" not in found.output
    return found.exit_code, found.stdout, " ".join(found.stderr.split())


def run(*words: object, code: int = 0) -> str:
    """What a command says, what it says on stderr in one line; it exits with `code`."""
    exit_code, stdout, stderr = call(*words)
    assert exit_code == code, stdout + stderr
    return stdout + stderr


def refuse(words: Sequence[object], code: str, *facts: str) -> None:
    """A command exits with 2 for an error with `code`, whose message has each of `facts` in their order."""
    found = CliRunner().invoke(app, [*map(str, words)])
    assert found.exit_code == 2, found.output
    error: BaseException | None = found.exception
    while error is not None and not isinstance(error, FedweaveError):
        error = error.__cause__ or error.__context__
    with refusal(code, *facts):
        if error is not None:
            raise error
