"""The command `fedweave sites alive`, apart from the others, so that a probe loads nothing but this."""

from pathlib import Path
from typing import Annotated

import typer

from fedweave.deploy.sites.alive import chosen, process

sites = typer.Typer()


@sites.callback()
def group() -> None:
    """`fedweave sites`, as far as a probe needs it."""


@sites.command()
def alive(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="The project's directory; this one.")] = Path(),
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this one; repeatable.")] = None,
) -> None:
    """Say which of the server and the sites of this machine run, for probes: it asks nobody and takes a fraction of a
    second. Exit code 1 where one does not run."""
    running = {folder.name: process(folder) for folder in chosen(directory, tuple(only or ()))}
    for name, pid in running.items():
        typer.echo(f"{name}: {'not running' if pid is None else f'process {pid}'}")
    if None in running.values():
        raise typer.Exit(1)
