"""The commands `fedweave init` and `fedweave list`: a configuration to start from, and the names that it can use."""

import sys
from collections.abc import Iterator
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fedweave.errors import UserError
from fedweave.experiment import config
from fedweave.experiment.config import check_name
from fedweave.reports.listing import Row, meanings, one_line, show_list, source

SUFFIX = ".toml"
HOLDERS = ("all", "holders")


def init(
    path: Annotated[Path, typer.Argument(metavar="[FILE.toml]", help="Where to write it.")] = Path("experiment.toml"),
    origin: Annotated[
        str, typer.Option("--from", metavar="NAME", help="Which of the experiments that come with fedweave.")
    ] = "digits",
    labels: Annotated[
        str | None,
        typer.Option(metavar="all|holders", help="With parties: who sees the labels. A terminal asks for it."),
    ] = None,
) -> None:
    """Write the configuration of an experiment, to be changed and run."""
    from fedweave.experiment.runs.files import write

    experiments = shipped()
    check_name("--from", origin, experiments)
    if path.suffix != SUFFIX:
        raise UserError(f"{path}: name a file that ends in {SUFFIX}.")
    if path.exists():
        raise UserError(f"{path} exists; name another file, or remove it.")
    text = _with_labels(experiments[origin], origin, labels)
    write(path, lambda file: file.write(text.encode()))
    typer.echo(f"{path}: try it with `fedweave check {path}`, then `fedweave run {path}`")


def _with_labels(text: str, origin: str, labels: str | None) -> str:
    """The experiment with the parties that see the labels, if it has such a choice; a terminal asks for it.

    Raises:
        UserError: another experiment does not have this choice, or `labels` is neither value.
    """
    line = f'labels = "{HOLDERS[0]}"'
    if "\n" + line not in text:
        if labels is not None:
            raise UserError(f"--labels is for parties (--from own-parties); {origin} has none.")
        return text
    if labels is None and sys.stdin.isatty():
        labels = typer.prompt(
            "Who sees the labels: all parties, or only the holders, whose tables have them", "holders"
        )
    if labels is None:
        typer.echo("note: all parties see the labels; --labels holders leaves them to those whose tables have them")
    elif labels not in HOLDERS:
        raise UserError(f"--labels {labels}: choose all, or holders: only parties whose tables have a label.")
    return text.replace(line, f'labels = "{labels or HOLDERS[0]}"')


def shipped() -> dict[str, str]:
    """{name: TOML} of the experiments that come with fedweave."""
    entries = (files("fedweave") / "experiments").iterdir()
    names = sorted((one for one in entries if one.name.endswith(SUFFIX)), key=lambda one: one.name)
    return {one.name.removesuffix(SUFFIX): one.read_text(encoding="utf-8") for one in names}


class Listing(StrEnum):
    """What `fedweave list` lists."""

    algorithms = "algorithms"
    datasets = "datasets"
    partitions = "partitions"
    models = "models"
    engines = "engines"
    parts = "parts"


SECTIONS = {kind: kind.removesuffix("s") for kind in Listing} | {Listing.datasets: "data"}


def list_(
    kind: Annotated[Listing, typer.Argument(help="What to list.")],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this one, with its parameters.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show parameters, defaults and meanings.")] = False,
) -> None:
    """List the algorithms, their parts, datasets, partitions, models or engines there are."""
    from fedweave.reports.terminal import screen

    section, console = SECTIONS[kind], screen()
    show_list(console, _rows(kind, section, name), verbose or name is not None, config.groups(section))
    if not (verbose or name):
        console.print(f"  settings of one: fedweave list {kind} NAME", highlight=False, markup=False, soft_wrap=True)
    elif kind is Listing.engines:
        from fedweave.engines.devices import describe_devices  # imports torch

        console.print(describe_devices(), highlight=False, markup=False, soft_wrap=True)


def _rows(kind: Listing, section: str, name: str | None) -> Iterator[Row]:
    """The plug-ins of a section, or the one of that name, which this imports."""
    from fedweave.datasets import describe  # imports torch

    for each, plugin in (
        config.registry(section).items() if name is None else [config.lookup(f"list {kind}", section, name)]
    ):
        about = describe(each) if section == "data" else one_line(plugin)
        of_file = source(plugin) if kind is Listing.algorithms else ""
        yield Row(each, about, config.parameters(section, plugin), meanings(plugin), of_file)
