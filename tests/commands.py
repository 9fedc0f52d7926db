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
