"""The command `fedweave export`."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedweave.cli.options import CardFile, Chosen, Client, Format, Kind, ModelRound, Out, When
from fedweave.errors import UserError

if TYPE_CHECKING:  # import torch
    from fedweave.export.card import CardSettings
    from fedweave.export.source import Source


def export(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    form: Kind = Format.safetensors,
    model: Chosen = None,
    client: Client = None,
    when: When = ModelRound.chosen,
    out: Out = None,
    card_file: CardFile = None,
    histograms: Annotated[
        bool,
        typer.Option(
            "--histograms", help="Also write histograms of the training data, for `fedweave drift`. They tell of it."
        ),
    ] = False,
) -> None:
    """Export a model of a finished run: weights, a PyTorch Geometric module that loads them, and a model card.

    It exports the global model if there is one; --model personal or trained exports the --client's model. A run between
    sites has only the global model; `fedweave sites export` also writes the names of columns and classes.
    """
    from fedweave.apply.histograms import reference_of_run
    from fedweave.experiment.runs.files import HISTOGRAMS
    from fedweave.experiment.runs.trained import finished_config, load_trained
    from fedweave.export.card import read_card
    from fedweave.export.source import AT_SITES, source

    folder, settings, which = (
        new_folder(directory, out, form),
        read_card(card_file),
        None if model is None else str(model),
    )
    model_source = source(directory, which, client, when=when.value)
    reference = None  # histograms of what the model was trained on
    if histograms:
        where = "A site keeps them next to its scorer; take that folder."
        run = load_trained(directory, finished_config(directory), where, when.value, which)
        scorer, reference = reference_of_run(run, which, client)
        if model_source.scorer is None or model_source.scorer.name != scorer.name:
            raise UserError(f"{directory} has no scorer that histograms would be of.", code="drift.none")
    write_export(folder, directory, model_source, form, client, settings)
    if reference is not None:
        reference.save(folder / HISTOGRAMS)
    if model_source.form.scaling["how"] == AT_SITES:
        typer.echo(
            "note: only sites know the names of columns and the scaling of features; `fedweave sites export` takes "
            "them from the folder of a site"
        )


def new_folder(directory: Path, out: Path | None, form: Format) -> Path:
    """The folder to create, after a check that this is possible."""
    from fedweave.experiment.runs.files import EXPORT
    from fedweave.export.programs import check_onnx

    folder = out or directory / EXPORT
    if folder.exists():
        raise UserError(f"{folder} exists; name another folder with --out, or remove it.")
    if form == Format.onnx:
        check_onnx()
    return folder


def write_export(
    folder: Path,
    directory: Path,
    model_source: "Source",
    form: Format,
    client: str | None = None,
    settings: "CardSettings | None" = None,
) -> None:
    """Write the model of the run in `directory` into a new `folder`, with its card."""
    from safetensors.torch import save

    from fedweave.core.tree import leaves
    from fedweave.experiment.runs.files import SCORER, plain_errors, write
    from fedweave.experiment.runs.reading import read_run
    from fedweave.experiment.runs.trained import round_in_words
    from fedweave.export.card import CardSettings, card
    from fedweave.export.programs import call_of, onnx_graph, torch_program, usage
    from fedweave.models.exported import MODEL, WEIGHTS

    about, weights = model_source.description(), model_source.weights
    call = call_of(about)
    if form == Format.onnx:
        files, words = {"model.onnx": onnx_graph(about, weights)}, usage(about)
    elif form == Format.torch:
        files = {"model.pt2": torch_program(about, weights)}
        words = f'`torch.export.load("model.pt2").module()` is the model, with PyTorch alone: `{call}`.'
    else:
        files = {WEIGHTS: save(dict(leaves(weights)))}
        words = f'`fedweave.models.load(".")` is the model, a `torch.nn.Module`: `{call}`.'
    files[MODEL] = json.dumps(about, indent=2).encode()
    files["README.md"] = card(read_run(directory), model_source, client, words, settings or CardSettings()).encode()
    with plain_errors(folder):
        folder.mkdir(parents=True)
    try:
        for file, content in files.items():
            write(folder / file, lambda at, content=content: at.write(content))  # type: ignore[misc]
        if model_source.scorer is not None:
            model_source.scorer.save(folder / SCORER)
    except BaseException:  # what is there of it is not an export
        shutil.rmtree(folder)
        raise
    typer.echo(f"{model_source.which} model ({round_in_words(directory, model_source.when)}): {folder}")
