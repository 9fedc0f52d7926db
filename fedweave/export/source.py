"""The model of a finished run that is to be exported: its weights, and what data it wants."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedweave.core.records import Record
from fedweave.errors import UserError
from fedweave.runs.form import Form, form_of_config, read_form

if TYPE_CHECKING:
    from fedweave.config import Config
    from fedweave.core.tree import Tree

KNOWN = ("gcn", "gat", "sage", "gin", "mlp", "gcnii", "ego")
AT_SITES = "sites"  # how features are scaled that each site reads by itself
HANDED_OUT = "handed out"  # how those are that `sites init --split` cut


@dataclass(frozen=True)
class Source:
    """A model to export. which: "global", "personal" or "trained". weights: under PyTorch Geometric's names."""

    config: "Config"
    which: str
    weights: "Tree"
    form: Form

    def described(self) -> Record:
        """What `pyg.build` needs to know, and who prepares data for it."""
        form = self.form
        return {
            "model": self.config.model.name,
            "features": form.features,
            "classes": form.classes,
            "settings": self.config.model.values,
            "columns": form.columns,
            "labels": form.labels,
            "scaling": form.scaling,
        }


def exportable(directory: Path) -> "Config":
    """The configuration of the finished run in `directory`.

    Raises:
        UserError: there is none, or nothing of it can be exported.
    """
    from fedweave.core.algorithm import capabilities
    from fedweave.runs.trained import finished

    config = finished(directory)
    if capabilities(config.algorithm.kind).predicts:
        raise UserError(
            "a vertical run has no model that anybody could use alone; take `fedweave predict` or, between sites, "
            "`fedweave sites predict`."
        )
    if config.model.name not in KNOWN:
        raise UserError(f"model {config.model.name!r} cannot be exported; those that can are {', '.join(KNOWN)}.")
    return config


def source(directory: Path, model: str | None, client: str | None, form: Form | None = None) -> Source:
    """The `model` of the run in `directory`: the global one where there is one, else that of the `client`.

    form: what a site that trained it says of its data; of a run between sites alone.

    Raises:
        UserError: the run is not finished, or has no such model, or one that cannot be exported; of a run of sites,
            any but the global model, or the `form` is of other data; of another, there is no site.
    """
    config = exportable(directory)
    if not config.between_sites:
        if form is not None:
            raise UserError(f"{directory} was not trained between sites; use fedweave export {directory}.")
        return _simulated(directory, config, model, client)
    if client is not None or model not in (None, "global"):
        raise UserError(
            f"{directory} was trained between sites, where each one's own models are; the global model alone can be "
            "exported. `fedweave sites predict --model personal` predicts at the sites."
        )
    return _of_sites(directory, config, form)


def _simulated(directory: Path, config: "Config", model: str | None, client: str | None) -> Source:
    from fedweave.runs.trained import trained

    run = trained(directory, config, "")
    algorithm, data = run.algorithm, run.built.data
    which = model or ("global" if client is None and algorithm.global_model(run.state) is not None else "personal")
    if which != "global" and client is None:
        raise UserError(f"every client has a {which} model of its own; name one of them with --client.")
    if any(part.columns is not None for part in run.seen.parts):
        raise UserError("in the run each client has columns of its own, so that no one module fits them.")
    w = run.model_of(which, client or run.built.fed.clients[0])
    form = read_form(directory) or form_of_config(config, data)
    return Source(config, which, _weights(config, algorithm, w, form), form)


def _of_sites(directory: Path, config: "Config", form: Form | None) -> Source:
    from fedweave.runs.files import SUMMARY, read_summary
    from fedweave.runs.trained import joint

    told = read_summary(directory / SUMMARY)
    if not {"features", "class_count"} <= told.keys():
        raise UserError(f"{directory} was trained by an earlier version, which did not note what data its model wants.")
    features, classes = int(told["features"]), int(told["class_count"])
    example = "node" if config.model.values.get("pool", "none") == "none" else "graph"
    form = form or Form(features, classes, (), (), example, {"how": AT_SITES})
    if (form.features, form.classes, form.example) != (features, classes, example):
        raise UserError(
            f"the site holds {form.example}s with {form.features} features of {form.classes} classes, the model is for "
            f"{example}s with {features} of {classes}. Name the folder of a site that trained it."
        )
    algorithm, w = joint(directory, config, features, classes)
    return Source(config, "global", _weights(config, algorithm, w, form), form)


def _weights(config: "Config", algorithm: object, w: "Tree", form: Form) -> "Tree":
    """`w` under PyTorch Geometric's names, with trained masks applied."""
    from fedweave.algorithms.fedpub import SparseMasks
    from fedweave.algorithms.parts.composition import MadeOfParts
    from fedweave.core.carried import kinds
    from fedweave.export.weights import state_dict, unmasked

    if any(layer.operator in kinds() for layer in getattr(algorithm, "model", ())):
        raise UserError(
            "the model reads what edges carry, for which the exported module has no layers; take `fedweave predict`."
        )
    parts = algorithm.composed.values() if isinstance(algorithm, MadeOfParts) else ()
    masks = next((part for part in parts if isinstance(part, SparseMasks)), None)
    net = config.model.make().build(form.features, form.classes)
    given = config.model.values
    heads = [*[given["heads"]] * (len(net) - 1), given["output_heads"]] if config.model.name == "gat" else []
    return state_dict(net, w if masks is None else unmasked(w, masks.threshold), heads)
