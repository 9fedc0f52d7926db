"""The command `fedweave sites alive`, in a separate module, so that a probe loads only this."""

from pathlib import Path
from typing import Annotated

import typer

from fedweave.deploy.sites.alive import chosen, process

sites = typer.Typer()


@sites.callback()
def group() -> None:
    """`fedweave sites`, with only the command that a probe needs."""


@sites.command()
def alive(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="The project's directory; this one.")] = Path(),
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this one; repeatable.")] = None,
) -> None:
    """Show which of the server and the sites of this machine run, for probes: it sends no request and takes a fraction
    of a second. Exit code 1 if one does not run."""
    running = {folder.name: process(folder) for folder in chosen(directory, tuple(only or ()))}
    for name, pid in running.items():
        typer.echo(f"{name}: {'not running' if pid is None else f'process {pid}'}")
    if None in running.values():
        raise typer.Exit(1)
