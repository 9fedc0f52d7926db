"""Arguments that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

Experiment = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The experiment.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="section.key=value", help="Change one setting; repeatable.")
]
