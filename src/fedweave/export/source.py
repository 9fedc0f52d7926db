"""The model to export of a finished run: its weights, and the form of data that it needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedweave.algorithms.deployment import Deployable
from fedweave.apply.scorer import Scorer, choose_model, plain_weights, scorer_of, scorer_of_run
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import capabilities
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import Graph, make_graph
from fedweave.core.model import Model
from fedweave.core.target import NUMBER
from fedweave.core.tree import Tree, leaves, map_leaves
from fedweave.core.types import PREDICT, Record
from fedweave.errors import UserError
from fedweave.experiment.config import Config, load
from fedweave.experiment.runs.checkpoint import SavedRound, When
from fedweave.experiment.runs.data_form import DataForm
from fedweave.experiment.runs.files import CONFIG, SUMMARY, read_summary
from fedweave.experiment.runs.new_data import InputFormat
from fedweave.experiment.runs.trained import finished_config, load_global_model, load_trained, saved_round
from fedweave.metrics.measured import GLOBAL
from fedweave.metrics.selection import BEST, Flagging, flagging, of_best
from fedweave.models.edge_settings import has_ports
from fedweave.models.edges import model_of_form
from fedweave.models.exported import ExportedModel
from fedweave.models.registry import MODELS

AT_SITES = "sites"  # scaling of features that each site reads on its own
HANDED_OUT = "handed out"  # scaling of features that `sites init --split` wrote


@dataclass(frozen=True)
class Source:
    """A model to export.

    which: "global", "personal" or "trained". weights: float32, by layer. flagging: which examples the run
    flags, if it looks for a class. when: the round that it is of. scorer: the model for `fedweave score`; None
    where only sites know the meaning of columns.
    """

    config: "Config"
    which: str
    weights: "Tree"
    form: DataForm
    flagging: Flagging | None = None
    when: SavedRound = "last"
    scorer: Scorer | None = None

    def description(self) -> Record:
        """The content of model.json: what `models.load` and a person who prepares data need to know."""
        form = self.form
        record = {
            "model": self.config.model.name,
            "features": form.features,
            "classes": form.outputs,
            "settings": self.config.model.values,
            "columns": form.columns,
            "labels": form.labels,
            "scaling": form.scaling,
        }
        if form.edges is not None:
            record["edges"] = form.edges
        if form.targets is not None:
            record["targets"] = form.targets
        if self.config.links is not None:
            record["decoder"] = self.config.decoder
        return record if self.flagging is None else record | self.flagging._asdict()


def exportable(directory: Path) -> Config:
    """The configuration of the finished run in `directory`.

    Raises:
        UserError: there is no such run, or it has no model that can be exported.
    """
    config = finished_config(directory)
    if capabilities(config.algorithm.kind).predicts:
        raise UserError(
            "a vertical run has no model that one party could use on its own. Take `fedweave predict` or, between "
            "sites, `fedweave sites predict`."
        )
    if config.links is not None and (config.learned or config.external == PREDICT):
        what = 'data.features = "learned"' if config.learned else 'external = "predict"'
        raise UserError(
            f"{what}: an export has no rows of single nodes or of other members. Take `fedweave predict --pairs`.",
            code="user.link-export",
        )
    return config


def source(
    directory: Path, model: str | None, client: str | None, before: InputFormat | None = None, when: When = "chosen"
) -> Source:
    """The `model` of the run in `directory`: the global model if there is one, else the `client`'s.

    before: a site's description of the data that it trained on; only for a run between sites.

    Raises:
        UserError: the run is not finished, or it has no such model, or the model cannot be exported. For a run between
        sites: another model than the global one, or `before` describes other data. For other runs: `before` is set.
    """
    config = exportable(directory)
    if not config.between_sites:
        if before is not None:
            raise UserError(f"{directory} was not trained between sites; use fedweave export {directory}.")
        run = load_trained(directory, config, "", when, model)
        choice = choose_model(run, model, client)
        weights = export_weights(choice.config, choice.algorithm, choice.w, choice.form)
        scorer = None if config.links is not None else scorer_of_run(run, choice)
        return Source(choice.config, choice.which, weights, choice.form, choice.flagging, run.when, scorer)
    if client is not None or model not in (None, "global"):
        raise UserError(
            f"{directory} was trained between sites, which keep their own models; only the global model can be "
            "exported. `fedweave sites predict --model personal` predicts at the sites."
        )
    return _of_sites(directory, config, before, saved_round(directory, when))


def _of_sites(directory: Path, config: Config, before: InputFormat | None, when: SavedRound) -> Source:
    summary = read_summary(directory / SUMMARY)
    if not {"features", "class_count"} <= summary.keys():
        raise UserError(f"{directory} was trained by an earlier version, which did not note what data its model wants.")
    features, classes = int(summary["features"]), int(summary.get("outputs") or summary["class_count"])
    edges, targets = summary.get("edges"), None
    if config.model.values.get("pool", "none") != "none":
        example = "graph"
    else:
        example = "edge" if edges and edges["examples"] else "node"
    if summary.get("target"):
        targets = {"kind": summary["target"], "outputs": classes, "names": list(summary.get("targets", ()))}
    if before is None:
        form = DataForm(features, 0 if targets else classes, (), (), example, {"how": AT_SITES}, edges, targets)
    else:
        form = before.form
    if (form.features, form.outputs, form.example) != (features, classes, example):
        raise UserError(
            f"the site holds {form.example}s with {form.features} features of {form.outputs} classes, the model is for "
            f"{example}s with {features} of {classes}. Name the folder of a site that trained it."
        )
    if targets and targets["kind"] == NUMBER and form.target_scale is None:
        raise UserError(
            "the model's numbers are in units that each site has for itself, by its own training examples. Name the "
            "folder of a site that trained it, by fedweave sites export.",
            code="user.target-scale",
        )
    algorithm, w = load_global_model(directory, config, when)
    metrics = of_best(summary["metrics"]) if when == "best" else summary["metrics"]
    labels = form.labels or summary.get("classes") or config.data.values.get("labels") or ()  # sites send no names
    alarm = None
    if classes == 2 and targets is None:
        alarm = flagging(config.evaluation.of(labels, classes), metrics)
    weights, after, scorer = export_weights(config, algorithm, w, form), int(summary["rounds"]), None
    if when == "best":
        after = int(summary["metrics"].get(f"{BEST}/round") or after)
    if before is not None:
        scorer = scorer_of(config, algorithm, w, before, GLOBAL, after, load(directory / CONFIG), alarm)
    return Source(config, "global", weights, form, alarm, when, scorer)


ROWS = 64  # nodes of the graph on which an exported model is compared with the layers of training
TOLERANCE = 1e-5  # of an output, relative to the largest


def export_weights(config: Config, algorithm: Deployable, w: Tree, form: DataForm) -> Tree:
    """The plain weights that `w` represents, float32, once an exported model with them gives the model's outputs.

    Raises:
        UserError: an export has no such model, or its outputs differ.
    """
    name = config.model.name
    if name not in MODELS:
        raise UserError(f"model {name!r} cannot be exported: it is not a model of fedweave's. Take `fedweave predict`.")
    edges = form.edges or {}
    net = model_of_form(config.model.make(), edges, form.features, form.outputs, config.decoder)
    fresh = dict(leaves(models.init(net, random.key(0))))
    wider = [path for path, leaf in leaves(w) if path in fresh and leaf.shape != fresh[path].shape]
    if wider:
        raise UserError(
            f"the algorithm trains a model with weights {wider[0]} of its own, for which the exported model has no "
            "layers; take `fedweave predict`."
        )
    plain: Tree = map_leaves(lambda leaf: leaf.float().contiguous(), plain_weights(algorithm, w))
    inputs, graph = example(net, form.features, edges)
    about = {"edges": form.edges} if config.links is None else {"edges": form.edges, "decoder": ""}
    exported = ExportedModel(net, plain, about).eval()
    try:
        if has_ports(config.model.make()) or any(layer.infer for layer in net):
            raise ValueError("it reads ports or the ids of ego graphs")
        with torch.no_grad():
            outputs = exported(**inputs)
    except ValueError as error:
        raise UserError(
            f"model {name!r} cannot be exported: {error}. Take `fedweave predict`.", code="user.no-export"
        ) from error
    check_same(outputs, models.infer(net, plain, graph), name)
    return plain


def check_same(outputs: Tensor, trained: Tensor, name: str) -> None:
    """Compare what an export gives with the outputs [e, c] of the layers of training, rows of padding left out.

    Raises:
        UserError: they differ.
    """
    expected = trained[:, 1] if outputs.dim() < trained.dim() else trained
    expected = expected[: outputs.shape[0]]
    difference = float((outputs - expected).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):  # NaN differs, too
        raise UserError(
            f"the export of model {name!r} gives other outputs than the model, by up to {difference:.1e} on {ROWS} "
            "rows; nothing is written. Take `fedweave predict`, and report this.",
            code="user.export-differs",
        )


def example(net: Model, features: int, edges: Mapping[str, int | bool]) -> tuple[dict[str, Tensor], Graph]:
    """A small random graph: the inputs of an exported model, by name, and the same graph as layers of training see it.

    edges: the form of edges (`Dataset.edge_form`), or {}.
    """
    rng, pooled, links = np.random.default_rng(0), models.pools(net), models.example(net) == "link"
    x = rng.normal(size=(ROWS, features)).astype(np.float32)
    graph_of = np.arange(ROWS) // (ROWS // 4) if pooled else None
    ends = rng.integers(0, ROWS, (2, 3 * ROWS))
    ends = ends[:, (ends[0] != ends[1]) & (True if graph_of is None else graph_of[ends[0]] == graph_of[ends[1]])]
    both = np.unique(np.concatenate([ends, ends[::-1]], 1), axis=1)
    attributes, inputs = None, {"x": x, "edge_index": both}
    if edges and not links:
        count, width = ends.shape[1], int(edges["features"])
        weight = rng.random((count,)).astype(np.float32) if edges["weighted"] else None
        e = rng.normal(size=(count, width)).astype(np.float32) if width else None
        attributes = EdgeAttributes(ends, bool(edges["directed"]), weight, e, examples=bool(edges["examples"]))
        inputs["edge_index"] = ends
        if e is not None:
            inputs["edge_attr"] = e
    if graph_of is not None:
        inputs["batch"] = graph_of
    pairs = None
    if links:
        pairs = np.concatenate([ends, rng.integers(0, max(1, int(edges.get("relations", 1))), (1, ends.shape[1]))])
        inputs |= {"pairs": pairs[:2], "relation": pairs[2]}
    count = 4 if pooled else ROWS  # examples
    if links or (attributes is not None and attributes.examples):
        count = ends.shape[1]
    graph = make_graph(
        x, both, np.zeros(count, np.int64), np.ones((3, count), bool), graph_of=graph_of, edge_attrs=attributes,
        pairs=pairs, ranks=None if pairs is None else np.full((2, count), -1),
    )  # fmt: skip
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}, graph
