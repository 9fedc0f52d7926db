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
    """File formats of weights."""

    safetensors = "safetensors"
    torch = "torch"
    onnx = "onnx"


Kind = Annotated[Format, typer.Option("--format", help="Format of the weights; onnx contains the whole model.")]
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

    It exports the global model if there is one; --model personal or trained exports the --client's model. A run between
    sites has only the global model; `fedweave sites export` also writes the names of columns and classes.
    """
    folder = free(directory, out, form)
    model_source = source(directory, None if model is None else str(model), client, when=when.value)
    write_export(folder, directory, model_source, form, client)
    if model_source.form.scaling["how"] == AT_SITES:
        typer.echo(
            "note: only sites know the names of columns and the scaling of features; `fedweave sites export` takes "
            "them from the folder of a site"
        )


def free(directory: Path, out: Path | None, form: Format) -> Path:
    """The folder to create, after a check that this is possible.

    Raises:
        UserError: the folder exists, or the format needs a package that is not installed.
    """
    folder = out or directory / EXPORT
    if folder.exists():
        raise UserError(f"{folder} exists; name another folder with --out, or remove it.")
    if form == Format.onnx:
        from fedweave.export.onnx import check

        check()
    return folder


def write_export(
    folder: Path, directory: Path, model_source: "Source", form: Format, client: str | None = None
) -> None:
    """Write the model of the run in `directory` into a new `folder`, with its card."""
    about = model_source.described()
    files, usage = _files(about, model_source.weights, form)
    files["model.json"] = json.dumps(about, indent=2).encode()
    files["README.md"] = card(read_run(directory), model_source, client, usage).encode()
    with plain_errors(folder):
        folder.mkdir(parents=True)
    try:
        for file, content in files.items():
            write(folder / file, lambda at, content=content: at.write(content))  # type: ignore[misc]
        if model_source.scorer is not None:
            model_source.scorer.save(folder / SCORER)
    except BaseException:  # what is there of it is no export
        shutil.rmtree(folder)
        raise
    typer.echo(f"{model_source.which} model: {folder}")


def _files(about: Record, weights: Record, form: Format) -> tuple[dict[str, bytes], str]:
    """The files that hold the model, and the card's text on their use."""
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
