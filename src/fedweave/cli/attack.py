"""The command `fedweave attack`: what a curious server finds out of what an experiment's clients send."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedweave.cli.options import Loaded, Settings
from fedweave.core.plugins import check_trusted
from fedweave.errors import UserError
from fedweave.experiment.config import Config, load, read

if not Loaded.for_help:
    from fedweave.algorithms.parts.composition import MadeOfParts
    from fedweave.algorithms.parts.part import Attackable, Attacked
    from fedweave.core import random
    from fedweave.experiment.build import build
    from fedweave.experiment.runs.files import CONFIG
    from fedweave.report.terminal import screen


def attacks_table(rows: Iterable[tuple[str, str, float, float]]) -> Table:
    """A line for each attack: its name, what it knows, and the shares that it gets right without and with a defence."""
    shown = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
    for name in ("attack", "knows", "right without defence", "with it"):
        shown.add_column(name, justify="left" if name in ("attack", "knows") else "right")
    for named, known, without, protected in rows:
        shown.add_row(named, known, f"{without:.1%}", f"{protected:.1%}")
    return shown


def attack(
    source: Annotated[Path, typer.Argument(metavar="DIR|CONFIG.toml", help="A run or an experiment.")],
    settings: Settings = None,
) -> None:
    """Attack what clients send: what each attack finds out with and without the defence."""
    if source.is_dir():
        check_trusted(load(source / CONFIG), source / CONFIG)
    config, _ = read(source / CONFIG if source.is_dir() else source, settings or [], None)
    screen().print(attacks_table(found(config)))


def found(config: "Config") -> "list[Attacked]":
    """What attacks on what an experiment's clients send find out (`algorithms.parts.part.Attackable`).

    Raises:
        UserError: its clients send nothing that there are attacks on.
    """
    built = build(config)
    parts = built.algorithm.composed.values() if isinstance(built.algorithm, MadeOfParts) else ()
    key = random.fold(random.key(config.general.seed), "attack")
    built.fed.begin(0)
    attackable = [part for part in parts if isinstance(part, Attackable)]
    rows = [row for part in attackable for row in part.attacks(built.fed, built.data, built.partition, key)]
    if not rows:
        raise UserError(
            f"the clients of {config.algorithm.name!r} send nothing that attacks are known on here; give an experiment "
            "with noisy codes or links: algorithm.name = 'fairgfl', with its estimator 'ldp'."
        )
    return rows
