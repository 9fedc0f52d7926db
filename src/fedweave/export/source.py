"""The model to export of a finished run: its weights, and the form of data that it needs."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedweave.accounts.compliance import disclose
from fedweave.algorithms.deployment import Deployable
from fedweave.apply.scorer import Scorer, choose_model, plain_weights, scorer_of, scorer_of_run
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import capabilities
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import Graph, make_graph
from fedweave.core.model import Model
from fedweave.core.target import NUMBER
from fedweave.core.text import counted, printable
from fedweave.core.tree import Tree, leaves, map_leaves
from fedweave.core.types import PREDICT, Record
from fedweave.errors import UserError
from fedweave.experiment.config import Config, load
from fedweave.experiment.runs.checkpoint import When
from fedweave.experiment.runs.data_form import Before, DataForm
from fedweave.experiment.runs.files import CONFIG, SUMMARY, read_summary
from fedweave.experiment.runs.reading import Run
from fedweave.experiment.runs.trained import finished, joint, trained
from fedweave.export.card import CardSettings, data, gaps, limits, origin, privacy, use
from fedweave.metrics.measured import GLOBAL
from fedweave.metrics.selection import BEST, Flagging, flagging, of_best, selection_metric_of, title_of
from fedweave.models.edge_settings import has_ports
from fedweave.models.edges import model_of_form
from fedweave.models.exported import ExportedModel
from fedweave.models.registry import MODELS
from fedweave.reports.notes import RunFacts, notes

AT_SITES = "sites"  # scaling of features that each site reads on its own
HANDED_OUT = "handed out"  # scaling of features that `sites init --split` wrote


@dataclass(frozen=True)
class Source:
    """A model to export.

    which: "global", "personal" or "trained". weights: float32, by layer. flagging: which examples the run
    flags, if it looks for a class. when: the round, "last" or "best". scorer: the model for `fedweave score`; None
    where only sites know the meaning of columns.
    """

    config: "Config"
    which: str
    weights: "Tree"
    form: DataForm
    flagging: "Flagging | None" = None
    when: "When" = "last"
    scorer: Scorer | None = None

    def described(self) -> Record:
        """The content of model.json: what `models.load` and a person who prepares data need to know."""
        form = self.form
        return {
            "model": self.config.model.name,
            "features": form.features,
            "classes": form.outputs,
            "settings": self.config.model.values,
            "columns": form.columns,
            "labels": form.labels,
            "scaling": form.scaling,
            **({} if form.edges is None else {"edges": form.edges}),
            **({} if form.targets is None else {"targets": form.targets}),
            **({} if self.config.links is None else {"decoder": self.config.decoder}),
            **(self.flagging._asdict() if self.flagging is not None else {}),
        }


def exportable(directory: Path) -> "Config":
    """The configuration of the finished run in `directory`.

    Raises:
        UserError: there is no such run, or it has no model that can be exported.
    """
    config = finished(directory)
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
    directory: Path, model: str | None, client: str | None, before: Before | None = None, when: "When" = "last"
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
        return _simulated(directory, config, model, client, when)
    if client is not None or model not in (None, "global"):
        raise UserError(
            f"{directory} was trained between sites, which keep their own models; only the global model can be "
            "exported. `fedweave sites predict --model personal` predicts at the sites."
        )
    return _of_sites(directory, config, before, when)


def _simulated(directory: Path, config: "Config", model: str | None, client: str | None, when: "When") -> Source:
    run = trained(directory, config, "", when)
    choice = choose_model(run, model, client)
    weights = checked_weights(choice.config, choice.algorithm, choice.w, choice.form)
    scorer = None if config.links is not None else scorer_of_run(run, choice)
    return Source(choice.config, choice.which, weights, choice.form, choice.flagging, when, scorer)


def _of_sites(directory: Path, config: "Config", before: Before | None, when: "When") -> Source:
    summary = read_summary(directory / SUMMARY)
    if not {"features", "class_count"} <= summary.keys():
        raise UserError(f"{directory} was trained by an earlier version, which did not note what data its model wants.")
    features, classes = int(summary["features"]), int(summary.get("outputs") or summary["class_count"])
    edges = summary.get("edges")
    pools, example = config.model.values.get("pool", "none") != "none", "graph"
    if not pools:
        example = "edge" if edges and edges["examples"] else "node"
    targets = None
    if summary.get("target"):
        targets = {"kind": summary["target"], "outputs": classes, "names": list(summary.get("targets", ()))}
    form = (
        before.form
        if before
        else DataForm(features, 0 if targets else classes, (), (), example, {"how": AT_SITES}, edges, targets)
    )
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
    algorithm, w = joint(directory, config, when)
    metrics = of_best(summary["metrics"]) if when == "best" else summary["metrics"]
    labels = form.labels or summary.get("classes") or config.data.values.get("labels") or ()  # sites send no names
    alarm = flagging(config.evaluation.of(labels, classes), metrics) if classes == 2 and targets is None else None
    weights, reached = checked_weights(config, algorithm, w, form), int(summary["rounds"])
    after = int(summary["metrics"].get(f"{BEST}/round") or reached) if when == "best" else reached
    scorer = (
        None
        if before is None
        else scorer_of(config, algorithm, w, before, GLOBAL, after, load(directory / CONFIG), alarm)
    )
    return Source(config, "global", weights, form, alarm, when, scorer)


ROWS = 64  # nodes of the graph on which an exported model is compared with the layers of training
TOLERANCE = 1e-5  # of an output, relative to the largest


def checked_weights(config: "Config", algorithm: "Deployable", w: "Tree", form: DataForm) -> "Tree":
    """The plain weights that `w` represents, float32, once an exported model with them gives the model's outputs.

    Raises:
        UserError: an export has no such model, or its outputs differ.
    """
    name = config.model.name
    if name not in MODELS:
        raise UserError(f"model {name!r} cannot be exported: it is no model of fedweave's. Take `fedweave predict`.")
    edges = form.edges or {}
    net = model_of_form(config.model.make(), edges, form.features, form.outputs, config.decoder)
    fresh = dict(leaves(models.init(net, random.key(0))))
    if wider := [path for path, leaf in leaves(w) if path in fresh and leaf.shape != fresh[path].shape]:
        raise UserError(
            f"the algorithm trains a model with weights {wider[0]} of its own, for which the exported model has no "
            "layers; take `fedweave predict`."
        )
    plain: Tree = map_leaves(lambda leaf: leaf.float().contiguous(), plain_weights(algorithm, w))
    inputs, graph = example(net, form.features, edges)
    whole = ExportedModel(net, plain, {"edges": form.edges} | ({} if config.links is None else {"decoder": ""})).eval()
    try:
        if has_ports(config.model.make()) or any(layer.infer for layer in net):
            raise ValueError("it reads ports or the ids of ego graphs")
        with torch.no_grad():
            outputs = whole(**inputs)
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
    expected = trained[:, 1] if outputs.dim() == 1 else trained
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
        held = rng.normal(size=(count, width)).astype(np.float32) if width else None
        attributes = EdgeAttributes(ends, bool(edges["directed"]), weight, held, examples=bool(edges["examples"]))
        inputs |= {"edge_index": ends} | ({} if held is None else {"edge_attr": held})
    inputs |= {"batch": graph_of} if graph_of is not None else {}
    pairs = None
    if links:
        pairs = np.concatenate([ends, rng.integers(0, max(1, int(edges.get("relations", 1))), (1, ends.shape[1]))])
        inputs |= {"pairs": pairs[:2], "relation": pairs[2]}
    count = 4 if pooled else ROWS if attributes is None or not attributes.examples else ends.shape[1]
    count = count if pairs is None else pairs.shape[1]
    graph = make_graph(
        x, both, np.zeros(count, np.int64), np.ones((3, count), bool), graph_of=graph_of, edge_attrs=attributes,
        pairs=pairs, ranks=None if pairs is None else np.full((2, count), -1),
    )  # fmt: skip
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}, graph


# ----------------------------------------------------------------------------------------------------
# The model card: what the model is, the data that it needs, how good it was, and the data flow of its training.


NO_SETTINGS = CardSettings()
_PLACES = {
    "global": "on {test}",
    "local": "mean over clients on their own test examples, of the models that they use",
}
_SHOWN = (
    *(
        (f"{whose}/{metric}", f"{name}, {of}")
        for metric, name in (
            ("rmse", "root mean squared error in the data's units"),
            ("mae", "mean absolute error in the data's units"),
            ("r2", "R²"),
            ("rmse_of_mean", "root mean squared error of predicting the mean of the training examples"),
        )
        for whose, of in _PLACES.items()
    ),
    ("pooled/average_precision", "average precision, all members' test examples together"),
    ("pooled/recall_at_1", "share of the positive test examples among the hundredth with the highest scores"),
    ("pooled/recall", "share of the positive test examples that are flagged from the threshold on"),
    ("pooled/precision", "share of positives among the test examples that are flagged"),
    ("pooled/brier", "Brier score of the probabilities"),
    ("pooled/calibration_error", "expected calibration error of the probabilities, 15 bins"),
    ("global/macro_f1", "macro F1"),
    ("global/accuracy", "accuracy on {test}"),
    ("local/accuracy", "mean over clients of the accuracy on their own test examples, of the models that they use"),
    (
        "trained/accuracy",
        "mean over clients of the accuracy on their own test examples, of each model right after local training",
    ),
    ("global/loss", "test loss, of the examples of the global accuracy"),
    ("pooled/auc", "area under the ROC curve, all members' test examples compared with each other"),
    ("within/auc", "area under the ROC curve over pairs of test examples of the same member, of {members}"),
    ("global/auc", "area under the ROC curve on the global test set or, without one, within members"),
)
_EXAMPLES = {
    "edge": "; an example is one edge, such as a transfer, and the model gives logits for each row of edge_index"
}
_NUMBERS = ": (x - shift) / divisor, 0 where that is null, with the numbers in model.json"
_SCALED = {
    "none": "as they are",
    AT_SITES: "as in the sites' own data, after the conversions in each site.toml (normalize, categories)",
    HANDED_OUT: "as `sites init --split` handed them out: if its configuration has a normalize other than none, scaled "
    "with numbers of the whole data set that no site has",
    "binary": "1 where not 0",
    "row": "each row divided by the sum of its absolute values",
    "scale": f"each column divided by its standard deviation over the run's nodes{_NUMBERS}",
    "standard": f"each column to mean 0 and standard deviation 1 over the run's nodes{_NUMBERS}",
    "auto": f"columns that measure something to mean 0 and standard deviation 1 at each client, with the client's own "
    f"numbers, for the global model a typical client's{_NUMBERS}",
    "minmax": f"each column to [-1, 1] over the run's nodes{_NUMBERS}",
}


def card(run: Run, source: Source, client: str | None, usage: str, settings: CardSettings = NO_SETTINGS) -> str:
    """The model card as Markdown. client: the owner of the model, if not the server; usage: how to use its files;
    settings: what only its owner knows."""
    algorithm, dataset, metrics = run.summary["algorithm"], run.summary["dataset"], run.summary["metrics"]
    best, rounds = source.when == "best", counted(run.summary["rounds"], "round")
    after = f"round {metrics['best_val/round']:g}, of {rounds} the best on validation examples," if best else rounds
    metrics = of_best(metrics) if best else metrics
    whose = "the server's global model" if source.which == "global" else f"the {source.which} model of {client}"
    weights, model = sum(leaf.numel() for _, leaf in leaves(source.weights)), source.config.model.plain()
    parts = [
        f"# {plain(f'{algorithm} on {dataset}')}",
        f"This is {plain(whose)} after {after} with "
        f"{counted(run.summary['clients'], 'client')} (seed {source.config.general.seed}), exported by fedweave.",
        usage,
        _bullets(origin(run, None if source.scorer is None else source.scorer.name, settings)),
        "## Intended use",
        _bullets(use(run, settings)),
        "## Limits",
        _bullets(limits(run, metrics, settings)),
        "## Training data",
        _bullets(data(run, settings)),
        "## Architecture",
        _bullets([*(f"{key}: {value}" for key, value in model.items()), f"weights: {weights:,} numbers, float32"]),
        "## Data form",
        _bullets(_form(source.form) if source.config.links is None else _of_pairs(source.form)),
        "## Metrics",
        f"Of the whole run, after {'that round' if best else 'its last evaluation'}; they do not "
        "show this model separately.",
        *([plain(note)] if (note := _accuracy_caveat(run)) else []),
        *([_flagged(source)] if source.flagging is not None else []),
        _bullets(
            f"{about}: {metrics[name]:.4f}"
            for name, about in _card_metrics(metrics, RunFacts.of_summary(run.summary).test)
        ),
        *(["## Groups of people", *table] if (table := gaps(metrics)) else []),
        "## Privacy",
        _bullets(privacy(run)),
        "## Data flow",
        _bullets(disclose(run).sentences),
        "A model can reveal something of the data that it was trained on. Recipients of these files get that, too.",
    ]
    return "\n\n".join(parts) + "\n"


def _accuracy_caveat(run: Run) -> str:
    """Why accuracy is not the selection metric; "" where it is."""
    texts = notes(run.summary["metrics"], RunFacts.of_summary(run.summary))
    return texts.get("rare") or texts.get("judged") or ""


def _flagged(source: Source) -> str:
    """The probability from which on an example is flagged, in a sentence."""
    positive, threshold = source.flagging or (0, 0.0)
    name = source.form.labels[positive] if source.form.labels else f"class {positive}"
    return f"An example is flagged as {plain(str(name))} from the probability {threshold:.4g} on (model.json)."


def _card_metrics(metrics: Record, test: str) -> list[tuple[str, str]]:
    """The card's metrics and their descriptions, with the run's selection metric.

    The "global" AUC is left out where it is the same as the AUC within members. test: the examples of "global" metrics.
    """
    members = counted(int(metrics.get("within/members") or 0), "member")
    same = metrics.get("within/auc") is not None and metrics["within/auc"] == metrics.get("global/auc")
    return [
        (name, about.format(members=members, test=test))
        for name, about in (*_SHOWN, *_deciding(selection_metric_of(metrics)))
        if metrics.get(name) is not None and not (same and name == "global/auc")
    ]


def _deciding(metric: str) -> list[tuple[str, str]]:
    """The selection metric, if `_SHOWN` has it for no place."""
    if any(name.rpartition("/")[2] == metric for name, _ in _SHOWN):
        return []
    return [(f"{place}/{metric}", f"{title_of(metric)}, {of}") for place, of in _PLACES.items()]


def _form(form: DataForm) -> list[str]:
    """The features, their scaling, the classes and the edges that the model needs."""
    column_names = f": {_several(form.columns)}" if form.columns else ", in the order of the data set's"
    return [
        f"examples: {form.example}s{_EXAMPLES.get(form.example, '')}",
        f"features: {counted(form.features, 'column')}, float32{column_names}",
        f"scaling: {_SCALED[form.scaling['how']]}",
        _outputs(form),
        *(
            _edges(form.edges)
            if form.edges
            else ["edges: undirected, each in both directions, without self loops and weights"]
        ),
    ]


def _of_pairs(form: DataForm) -> list[str]:
    """The form of data for a model that scores pairs of nodes."""
    relations = (form.edges or {}).get("relations", 0)
    return [
        "examples: pairs of nodes; the model gives a score for each column of pairs, whose sigmoid is the probability "
        "of a link",
        *_form(replace(form, example="node", edges=None))[1:3],
        "edges: the links that carry messages, each in both directions",
        *([f"relation: of each pair, a number from 0 to {relations - 1}"] if relations > 1 else []),
    ]


def _outputs(form: DataForm) -> str:
    """The outputs of the model for each example."""
    if form.targets is None:
        classes = _several(form.labels) if form.labels else f"0 to {form.classes - 1}"
        return f"classes, in the order of the logits: {classes}"
    names = _several(form.targets["names"] or [*map(str, range(form.outputs))])
    if form.target_scale is None:
        return f"labels, in the order of the logits, whose probabilities are 1 / (1 + exp(-logit)): {names}"
    return f"numbers, in the data's units (the scale is part of the module): {names}"


def _edges(edges: Record) -> list[str]:
    """The form of edges, and their features."""
    kind = "directed, from source to target" if edges["directed"] else "undirected"
    lines = [f"edges: {kind}, each once, in rows of edge_index; parallel ones and loops are kept"]
    if not edges["features"]:
        return lines
    names = f": {_several(edges['columns'])}" if edges.get("columns") else ", in the order of the data set's"
    scaling = _SCALED[edges.get("scaling", {"how": AT_SITES})["how"]].replace("nodes", "edges")
    return [
        *lines,
        f"features of edges, edge_attr: {counted(edges['features'], 'column')}, float32{names}",
        f"scaling of these: {scaling}",
    ]


def _several(names: Sequence[str], most: int = 200) -> str:
    more = f" and {len(names) - most} more (see model.json)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _bullets(items: Iterable[object]) -> str:
    return "\n".join(f"- {plain(str(item))}" for item in items)


def plain(words: str) -> str:
    """Foreign words on one line, with the characters escaped that have a meaning in Markdown or HTML."""
    return re.sub(r"([\\`*\[\]<>#|]|(?<!\w)_|_(?!\w))", r"\\\1", printable(" ".join(words.split())))
