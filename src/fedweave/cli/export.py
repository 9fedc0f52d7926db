"""The command `fedweave export`."""

import io
import json
import shutil
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fedweave.cli.options import Loaded
from fedweave.cli.predict import Chosen, Client, ModelRound, When
from fedweave.core.types import Record
from fedweave.errors import UserError

if not Loaded.for_help:
    import torch
    from safetensors.torch import save

    from fedweave.experiment.runs.files import EXPORT, SCORER, plain_errors, write
    from fedweave.export.source import AT_SITES, Source, card, source
    from fedweave.report.reading import read_run


class Format(StrEnum):
    """How weights are written."""

    safetensors = "safetensors"
    torch = "torch"
    onnx = "onnx"


Kind = Annotated[Format, typer.Option("--format", help="Of the weights; onnx, of the whole model.")]
Out = Annotated[Path | None, typer.Option("-o", "--out", metavar="DIR", help="A new folder (RUN/export).")]


def export(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    form: Kind = Format.safetensors,
    model: Chosen = None,
    client: Client = None,
    when: When = ModelRound.last,
    out: Out = None,
) -> None:
    """Export a model of a finished run: weights, a PyTorch Geometric module that loads them, and a model card.

    It is the global model where there is one; --model personal or trained takes that of the --client. Of a run between
    sites it is the global model alone; `fedweave sites export` also says what columns and classes are called.
    """
    folder = free(directory, out, form)
    model_source = source(directory, None if model is None else str(model), client, when=when.value)
    write_export(folder, directory, model_source, form, client)
    if model_source.form.scaling["how"] == AT_SITES:
        typer.echo(
            "note: which column is which, and how features are scaled, sites alone know; `fedweave sites export` takes "
            "it from the folder of one"
        )


def free(directory: Path, out: Path | None, form: Format) -> Path:
    """The folder to be made, once it is sure that it can be.

    Raises:
        UserError: it is there already, or the format needs what is not installed.
    """
    folder = out or directory / EXPORT
    if folder.exists():
        raise UserError(f"{folder} exists; name another folder with --out, or remove it.")
    if form == Format.onnx:
        from fedweave.export.onnx import check

        check()
    return folder


def write_export(folder: Path, directory: Path, found: "Source", form: Format, client: str | None = None) -> None:
    """Write the model of the run in `directory` into a new `folder`, with its card."""
    about = found.described()
    files, usage = _files(about, found.weights, form)
    files["model.json"] = json.dumps(about, indent=2).encode()
    files["README.md"] = card(read_run(directory), found, client, usage).encode()
    with plain_errors(folder):
        folder.mkdir(parents=True)
    try:
        for file, content in files.items():
            write(folder / file, lambda at, content=content: at.write(content))  # type: ignore[misc]
        if found.scorer is not None:
            found.scorer.save(folder / SCORER)
    except BaseException:  # what is there of it is no export
        shutil.rmtree(folder)
        raise
    typer.echo(f"{found.which} model: {folder}")


def _files(about: Record, weights: Record, form: Format) -> tuple[dict[str, bytes], str]:
    """The files that hold the model, and what the card says of how to use them."""
    if form == Format.onnx:
        from fedweave.export.onnx import packed, usage

        return {"model.onnx": packed(about, weights)}, usage(about)
    name = "weights.safetensors" if form == Format.safetensors else "weights.pt"
    source = files("fedweave.export").joinpath("pyg.py").read_bytes()
    return {name: _packed(weights, form), "model.py": source}, (
        f'`model.py` loads `{name}` into a PyTorch Geometric module: `from model import load; model = load(".")`.'
    )


def _packed(weights: Record, form: Format) -> bytes:
    """The bytes of the weights' file."""
    if form == Format.safetensors:
        return bytes(save(weights))
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    return buffer.getvalue()
