"""The command `fedweave list`."""

from enum import StrEnum
from typing import Annotated

import typer

from fedweave.datasets import describe
from fedweave.experiment import config
from fedweave.report.listing import Row, meanings, one_line, show_list
from fedweave.report.terminal import screen


class Kind(StrEnum):
    """What `fedweave list` lists."""

    algorithms = "algorithms"
    datasets = "datasets"
    partitions = "partitions"
    models = "models"
    engines = "engines"
    parts = "parts"


SECTIONS = {kind: kind.removesuffix("s") for kind in Kind} | {Kind.datasets: "data"}


def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this one, with its parameters.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show parameters, defaults and meanings.")] = False,
) -> None:
    """List the algorithms, their parts, datasets, partitions, models or engines there are."""
    section = SECTIONS[kind]
    rows = []
    for each, plugin in (
        config.registry(section).items() if name is None else [config.lookup(f"list {kind}", section, name)]
    ):
        about = describe(each) if section == "data" else one_line(plugin)
        rows.append(Row(each, about, config.parameters(section, plugin), meanings(plugin)))
    show_list(screen(), rows, verbose or name is not None)
