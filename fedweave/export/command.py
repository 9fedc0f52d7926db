"""The command `fedweave export`."""

import json
import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedweave.errors import UserError
from fedweave.predict import Chosen, Client

if TYPE_CHECKING:
    from fedweave.core.tree import Tree
    from fedweave.datasets import Dataset

KNOWN = ("gcn", "gat", "sage", "gin", "mlp")


class Format(StrEnum):
    """How weights are written."""

    safetensors = "safetensors"
    torch = "torch"
    onnx = "onnx"


def export(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    form: Annotated[
        Format, typer.Option("--format", help="Of the weights; onnx, of the whole model.")
    ] = Format.safetensors,
    model: Chosen = None,
    client: Client = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="DIR", help="A new folder (RUN/export).")] = None,
) -> None:
    """Export a model of a finished run: weights, a PyTorch Geometric module that loads them, and a model card.

    It is the global model where there is one; --model personal or trained takes that of the --client.
    """
    from fedweave.export.card import card
    from fedweave.report.reading import read_run
    from fedweave.runs.files import write

    folder = out or directory / "export"
    if folder.exists():
        raise UserError(f"{folder} exists; name another folder with --out, or remove it.")
    if form == Format.onnx:
        from fedweave.export.onnx import check

        check()
    about, weights, which, data = described(directory, None if model is None else str(model), client)
    files, usage = _files(about, weights, form)
    size = sum(leaf.numel() for leaf in weights.values())
    files["model.json"] = json.dumps(about, indent=2).encode()
    files["README.md"] = card(read_run(directory), data, which, client, size, usage).encode()
    folder.mkdir(parents=True)
    for file, content in files.items():
        write(folder / file, lambda at, content=content: at.write(content))  # type: ignore[misc]
    typer.echo(f"{which} model: {folder}")


def described(directory: Path, model: str | None, client: str | None) -> "tuple[dict[str, Any], Tree, str, Dataset]":
    """What `pyg.build` needs to know of a run's model, its weights under PyTorch Geometric's names, which model it is,
    and the run's data.

    Raises:
        UserError: see `chosen`.
    """
    run, which, weights = chosen(directory, model, client)
    data = run.built.data
    about = {
        "model": run.config.model.name,
        "features": data.features,
        "classes": data.classes,
        "settings": run.config.model.values,
        "columns": data.columns,
        "labels": data.labels,
        "scaling": _scaling(run.config),
    }
    return about, weights, which, data


def chosen(directory: Path, model: str | None, client: str | None) -> tuple[Any, str, dict[str, Any]]:
    """The run, which model it is, and its weights under PyTorch Geometric's names.

    Raises:
        UserError: the run is not finished, was made between sites, has no such model, or one that cannot be exported.
    """
    from fedweave.core.algorithm import capabilities
    from fedweave.export.weights import state_dict, unmasked
    from fedweave.runs.trained import finished, trained

    config = finished(directory)
    if capabilities(config.algorithm.kind).predicts:
        raise UserError("a vertical run has no model that anybody could use alone; take `fedweave predict`.")
    if config.model.name not in KNOWN:
        raise UserError(f"model {config.model.name!r} cannot be exported; those that can are {', '.join(KNOWN)}.")
    run = trained(directory, config, "The server's folder has no model of a site's; export needs a simulated run.")
    algorithm = run.built.algorithm
    which = model or ("global" if client is None and algorithm.global_model(run.state) is not None else "personal")
    if which != "global" and client is None:
        raise UserError(f"every client has a {which} model of its own; name one of them with --client.")
    if any(part.columns is not None for part in run.seen.parts):
        raise UserError("in the run each client has columns of its own, so that no one module fits them.")
    w = run.model_of(which, client or run.built.fed.clients[0])
    masks = getattr(algorithm, "composed", {}).get("SparseMasks")
    net = config.model.make().build(run.built.data.features, run.built.data.classes)
    return run, which, state_dict(net, w if masks is None else unmasked(w, masks.threshold), _heads(config, len(net)))


def _heads(config: Any, layers: int) -> list[int]:
    """Heads of each layer with attention."""
    given = config.model.values
    return [*[given["heads"]] * (layers - 1), given["output_heads"]] if config.model.name == "gat" else []


def _scaling(config: Any) -> dict[str, Any]:
    """How features are to be scaled: "how", and where that depends on the run's nodes "shift" and "divisor" of every
    column, the latter None for those that become 0."""
    from fedweave.datasets.features import OVER_NODES, scaling
    from fedweave.runs.scoring import unscaled

    how = config.data.values.get("normalise", "none")
    if how not in OVER_NODES:
        return {"how": how}
    shift, divisor = (numbers.tolist() for numbers in scaling(unscaled(config), how))
    return {"how": how, "shift": shift, "divisor": [value if math.isfinite(value) else None for value in divisor]}


def _files(about: dict[str, Any], weights: dict[str, Any], form: Format) -> tuple[dict[str, bytes], str]:
    """The files that hold the model, and what the card says of how to use them."""
    if form == Format.onnx:
        from fedweave.export.onnx import packed, usage

        return {"model.onnx": packed(about, weights)}, usage(about)
    name = "weights.safetensors" if form == Format.safetensors else "weights.pt"
    source = (Path(__file__).parent / "pyg.py").read_bytes()
    return {name: _packed(weights, form), "model.py": source}, (
        f'`model.py` loads `{name}` into a PyTorch Geometric module: `from model import load; model = load(".")`.'
    )


def _packed(weights: dict[str, Any], form: Format) -> bytes:
    """The bytes of the weights' file."""
    if form == Format.safetensors:
        from safetensors.torch import save

        return bytes(save(weights))
    import io

    import torch

    buffer = io.BytesIO()
    torch.save(weights, buffer)
    return buffer.getvalue()
