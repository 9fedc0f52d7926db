"""The command `fedweave export`."""

import json
import shutil
from pathlib import Path

import typer
from safetensors.torch import save

from fedweave.apply.drift import Reference
from fedweave.cli.options import Format, ModelName, ModelRound
from fedweave.core.tree import Tree, leaves
from fedweave.core.types import Record
from fedweave.errors import UserError
from fedweave.experiment.runs.files import EXPORT, HISTOGRAMS, SCORER, plain_errors, write
from fedweave.experiment.runs.reading import read_run
from fedweave.export.card import CardSettings, read_card
from fedweave.export.programs import check_onnx, onnx_graph, torch_program, usage
from fedweave.export.source import AT_SITES, Source, card, source
from fedweave.models.exported import MODEL, WEIGHTS


def export_run(
    directory: Path,
    form: Format,
    model: ModelName | None,
    client: str | None,
    when: ModelRound,
    out: Path | None,
    card_file: Path | None,
    histograms: bool,
) -> None:
    """Write a model of a finished run into a new folder (`fedweave export`)."""
    folder, settings = free(directory, out, form), read_card(card_file)
    model_source = source(directory, None if model is None else str(model), client, when=when.value)
    of_training = _histograms(directory, model_source, model, client, when.value) if histograms else None
    write_export(folder, directory, model_source, form, client, settings)
    if of_training is not None:
        of_training.save(folder / HISTOGRAMS)
    if model_source.form.scaling["how"] == AT_SITES:
        typer.echo(
            "note: only sites know the names of columns and the scaling of features; `fedweave sites export` takes "
            "them from the folder of a site"
        )


def _histograms(
    directory: Path, model_source: Source, model: ModelName | None, client: str | None, when: str
) -> Reference:
    """The histograms of what a model was trained on.

    Raises:
        UserError: the export has no scorer, or that of another model.
    """
    from fedweave.apply.drift import reference_of_run
    from fedweave.experiment.runs.trained import finished, trained

    where = "A site keeps them next to its scorer; take that folder."
    run = trained(directory, finished(directory), where, "best" if when == "best" else "last")
    scorer, reference = reference_of_run(run, None if model is None else str(model), client)
    if model_source.scorer is None or model_source.scorer.name != scorer.name:
        raise UserError(f"{directory} has no scorer that histograms would be of.", code="drift.none")
    return reference


def free(directory: Path, out: Path | None, form: Format) -> Path:
    """The folder to create, after a check that this is possible.

    Raises:
        UserError: the folder exists, or the format needs a package that is not installed.
    """
    folder = out or directory / EXPORT
    if folder.exists():
        raise UserError(f"{folder} exists; name another folder with --out, or remove it.")
    if form == Format.onnx:
        check_onnx()
    return folder


def write_export(
    folder: Path,
    directory: Path,
    model_source: Source,
    form: Format,
    client: str | None = None,
    settings: CardSettings | None = None,
) -> None:
    """Write the model of the run in `directory` into a new `folder`, with its card."""
    about = model_source.described()
    files, usage = _files(about, model_source.weights, form)
    files[MODEL] = json.dumps(about, indent=2).encode()
    files["README.md"] = card(read_run(directory), model_source, client, usage, settings or CardSettings()).encode()
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


def _files(about: Record, weights: Tree, form: Format) -> tuple[dict[str, bytes], str]:
    """The files that hold the model, and the card's text on their use."""
    if form == Format.onnx:
        return {"model.onnx": onnx_graph(about, weights)}, usage(about)
    call = "model(x, edge_index)"
    if form == Format.torch:
        return {"model.pt2": torch_program(about, weights)}, (
            f'`torch.export.load("model.pt2").module()` is the model, with PyTorch alone: `{call}`.'
        )
    return {WEIGHTS: save(dict(leaves(weights)))}, (
        f'`fedweave.models.load(".")` is the model, a `torch.nn.Module`: `{call}`.'
    )
