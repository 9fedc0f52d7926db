"""Arguments that several commands take, and how they speak to the user."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

Experiment = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The experiment.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="section.key=value", help="Change one setting; repeatable.")
]


def say(message: str) -> None:
    """A message for the user on stderr, in rich's markup."""
    Console(stderr=True).print(message, highlight=False, soft_wrap=True)


def escaped(text: object) -> str:
    """`text` without rich's markup, of several lines each by itself."""
    from fedweave.report.markup import unmarked

    return "\n".join(map(unmarked, str(text).split("\n")))
