"""Arguments that several commands share, and messages to the user."""

import json
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from rich.console import Console

from fedweave.report.document import unmarked

Experiment = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The experiment.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="section.key=value", help="Change one setting; repeatable.")
]
Earlier = Annotated[
    Path | None,
    typer.Option("--init-from", metavar="RUN", help="Begin with the weights that an earlier run ended with."),
]

Trust = Annotated[bool, typer.Option("--trust", help="Run the Python files that the configuration names plug-ins in.")]


class Loaded:
    """The purpose for which a command's module is loaded: help and completion need no slow imports."""

    for_help: ClassVar[bool] = False  # `main` sets it once, before any command is loaded


def beginning(settings: list[str] | None, init_from: Path | None) -> list[str]:
    """The settings, with the earlier run that --init-from names."""
    return [*(settings or []), *([] if init_from is None else [f"init_from={json.dumps(str(init_from))}"])]


def check_consent(config: Path, trust: bool) -> None:
    """Raise an error if a configuration would run a Python file that the user has not trusted.

    Raises:
        UserError: names the file. ConfigError: the configuration cannot be read.
    """
    from fedweave.core.plugins import check_trusted  # imports pydantic, which a probe does not need
    from fedweave.experiment.config import load

    if not trust:
        check_trusted(load(config), config, "--trust")


def say(message: str) -> None:
    """A message for the user on stderr, in rich's markup."""
    Console(stderr=True, emoji=False).print(message, highlight=False, soft_wrap=True)


def escaped(text: object) -> str:
    """`text` without rich's markup, line by line."""
    return "\n".join(map(unmarked, str(text).split("\n")))
