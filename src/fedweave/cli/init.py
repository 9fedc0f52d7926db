"""The command `fedweave init`: a configuration to start from."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fedweave.errors import UserError

SUFFIX = ".toml"


def init(
    path: Annotated[Path, typer.Argument(metavar="[FILE.toml]", help="Where to write it.")] = Path("experiment.toml"),
    origin: Annotated[
        str, typer.Option("--from", metavar="NAME", help="Which of the experiments that come with fedweave.")
    ] = "digits",
) -> None:
    """Write the configuration of an experiment, to be changed and run."""
    from fedweave.experiment.config import check_name
    from fedweave.experiment.runs.files import write

    there = shipped()
    check_name("--from", origin, there)
    if path.suffix != SUFFIX:
        raise UserError(f"{path}: name a file that ends in {SUFFIX}.")
    if path.exists():
        raise UserError(f"{path} exists; name another file, or remove it.")
    text = there[origin]
    write(path, lambda file: file.write(text.encode()))
    typer.echo(f"{path}: try it with `fedweave check {path}`, then `fedweave run {path}`")


def shipped() -> dict[str, str]:
    """{name: TOML} of the experiments that come with fedweave."""
    found = (files("fedweave") / "experiments").iterdir()
    names = sorted((one for one in found if one.name.endswith(SUFFIX)), key=lambda one: one.name)
    return {one.name.removesuffix(SUFFIX): one.read_text(encoding="utf-8") for one in names}
