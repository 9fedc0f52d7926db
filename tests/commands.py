"""A small experiment, and commands that run in the process of the test."""

from typer.testing import CliRunner

from fedweave.cli import app

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


def run(*words: str, code: int = 0) -> str:
    """What a command says, what it says on stderr in one line; it exits with `code`."""
    found = CliRunner().invoke(app, list(words))
    assert found.exit_code == code, found.output
    return found.stdout + " ".join(found.stderr.split())
