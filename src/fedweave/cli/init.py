"""The commands `fedweave init` and `fedweave list`: a configuration to start from, and the names that it can use."""

import sys
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
        str,
        typer.Option(
            "--from",
            metavar="NAME",
            help="A start for your task (nodes, members, fraud, edges, numbers, links, knowledge, ratings, molecules, "
            "parties) or another experiment that comes with fedweave.",
        ),
    ] = "digits",
    labels: Annotated[
        str | None,
        typer.Option(metavar="all|holders", help="With parties: who sees the labels. A terminal asks for it."),
    ] = None,
) -> None:
    """Write the configuration of an experiment, to be changed and run."""
    from fedweave.experiment.runs.files import write

    experiments = example_experiments()
    check_name("--from", origin, experiments)
    if path.suffix != SUFFIX:
        raise UserError(f"{path}: name a file that ends in {SUFFIX}.")
    if path.exists():
        raise UserError(f"{path} exists; name another file, or remove it.")

    # Of parties: who sees the labels.
    text, line = experiments[origin], f'labels = "{HOLDERS[0]}"'
    if f"\n{line}" not in text:
        if labels is not None:
            raise UserError(f"--labels is for parties (--from parties); {origin} has none.")
    else:
        if labels is None and sys.stdin.isatty():
            question = "Who sees the labels: all parties, or only the holders, whose tables have them"
            labels = typer.prompt(question, "holders")
        if labels is None:
            typer.echo("note: all parties see the labels; --labels holders leaves them to those whose tables have them")
        elif labels not in HOLDERS:
            raise UserError(f"--labels {labels}: choose all, or holders: only parties whose tables have a label.")
        text = text.replace(line, f'labels = "{labels or HOLDERS[0]}"')
    write(path, lambda file: file.write(text.encode()))
    typer.echo(f"{path}: try it with `fedweave check {path}`, then `fedweave run {path}`")


def example_experiments() -> dict[str, str]:
    """{name: TOML} of the experiments that come with fedweave."""
    files_by_name = {file.name: file for file in (files("fedweave") / "experiments").iterdir()}
    texts = {}
    for name in sorted(files_by_name):
        if name.endswith(SUFFIX):
            texts[name.removesuffix(SUFFIX)] = files_by_name[name].read_text(encoding="utf-8")
    return texts


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
    from fedweave.datasets import describe  # imports torch
    from fedweave.reports.terminal import screen

    section, console = SECTIONS[kind], screen()
    plugins = config.registry(section).items()
    if name is not None:
        plugins = dict([config.lookup(f"list {kind}", section, name)]).items()  # which imports only this one
    rows = []
    for each, plugin in plugins:
        about = describe(each) if section == "data" else one_line(plugin)
        paper = source(plugin) if kind is Listing.algorithms else ""
        rows.append(Row(each, about, config.parameters(section, plugin), meanings(plugin), paper))
    show_list(console, rows, verbose or name is not None, config.groups(section))
    if not verbose and name is None:
        console.print(f"  settings of one: fedweave list {kind} NAME", highlight=False, markup=False, soft_wrap=True)
    elif kind is Listing.engines:
        from fedweave.engines.devices import describe_devices  # imports torch

        console.print(describe_devices(), highlight=False, markup=False, soft_wrap=True)
