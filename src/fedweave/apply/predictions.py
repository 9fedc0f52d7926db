"""Predictions of models, as a table for the owners of the data."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import FunctionType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core import plugins
from fedweave.core.algorithm import graphs_of
from fedweave.core.graph import RELATION, SPLITS, VAL, Graph
from fedweave.core.model import Model
from fedweave.core.shown import Shown
from fedweave.core.target import CLASS, LABELS, NUMBER, from_scale, is_labeled, kind_of
from fedweave.core.text import counted
from fedweave.core.tree import Tree, device_of
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.links import NAMES
from fedweave.errors import ConfigError, UserError, listed
from fedweave.experiment.config import Config
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.runs.data_form import DataForm, form_of_config, read_form, scaling_record, targets_form
from fedweave.experiment.runs.files import SUMMARY, read_summary
from fedweave.experiment.runs.new_data import InputFormat, load_new_data
from fedweave.experiment.runs.trained import Trained, check_finite
from fedweave.metrics.intervals import HALF_WIDTH
from fedweave.metrics.measured import GLOBAL
from fedweave.metrics.ranking import by_validation
from fedweave.metrics.selection import HALF, THRESHOLD, Flagging, chooses_threshold, flagging, of_best
from fedweave.partition.base import Part
from fedweave.partition.client_data import global_test_part
from fedweave.partition.preparation import with_scaled_nodes
from fedweave.partition.scaling import of_part, target_scale_of

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Predicted:
    """The predictions of one client's model, or of the global one.

    client:      whose it is. probability: of the classes, [e, c], or of several labels, [e, t]; or numbers [e, t] in
                 the data's units; with padding behind the examples.
    examples:    int64 [e], their places in the data.
    masks:       bool [3, e], how the run used them; None if it did not.
    """

    client: str
    probability: Tensor
    examples: np.ndarray
    masks: np.ndarray | None = None


def predictions_table(
    predictions: Sequence[Predicted],
    ids: Sequence[str] = (),
    labels: Sequence[str] = (),
    example: str = "node",
    y: np.ndarray | None = None,
    flagging: Flagging | Mapping[str, Flagging] | None = None,
    ends: np.ndarray | None = None,
    targets: Sequence[str] = (),
    half_widths: Sequence[float] = (),
) -> pa.Table:
    """A row per client and example: "client", "node", "graph" or "edge" (its place in the data), "id", of an edge
    "source" and "target", "split" ("" in none), "true" (the known class, else null), "predicted" (the most probable
    one), and a column of probabilities for each class, "p_low", "p_high".

    ids: the names of the examples, () without. labels: the names of the classes, () for their numbers; then these are
    predicted, and the probabilities are "p_0", "p_1", … y: int64 [n], the classes of all data, -1 where unknown;
    without it, or where none is known, there is no column "true". flagging: of two classes, which examples are flagged,
    for all clients or for each, from 0.5 on for a client that is not in it; then there are "score", the probability of
    the positive class, "flagged" and the "threshold". ends: [2, e] of all data, see `ends_of`.

    Where `y` [n, t] has numbers, called `targets`: "true", "predicted" and, with a half-width of each prediction
    interval, "low" and "high", all in the data's units; of several, "true_price", "predicted_price" and so on for each.
    Where it has several labels: "p_toxic", "predicted_toxic", 1 from 0.5 on, and "true_toxic" for each.

    Raises:
        UserError: a probability or a number is NaN.
    """
    each = [one.probability[: len(one.examples)].cpu().numpy() for one in predictions]
    if diverged := [one.client for one, own in zip(predictions, each, strict=True) if not np.isfinite(own).all()]:
        raise UserError(
            f"the model of {listed(diverged)} predicts no numbers (NaN): its training diverged. Train again with a "
            "smaller algorithm.lr, or take the models of another round (--round best).",
            code="user.not-finite",
        )
    p = np.concatenate(each)
    at = np.concatenate([one.examples for one in predictions])
    clients = np.repeat(np.array([one.client for one in predictions]), [len(one.examples) for one in predictions])
    columns = {"client": clients, example: at} | ({"id": np.array(ids)[at]} if len(ids) else {})
    if ends is not None:
        columns |= {"source": ends[0, at], "target": ends[1, at]}
    if all(one.masks is not None for one in predictions):
        use = np.concatenate([_split(one.masks) for one in predictions if one.masks is not None])
        columns["split"] = use
    if y is not None and (kind := kind_of(y)) != CLASS:
        each_target = list(targets) or [str(number) for number in range(p.shape[1])]
        if kind == NUMBER:
            return pa.table(columns | _of_numbers(p, y[at], each_target, half_widths))
        return pa.table(columns | _of_labels(p, y[at], each_target))
    if y is not None and (y >= 0).any():
        columns["true"] = pa.array(_class_names(np.maximum(y[at], 0), labels), mask=y[at] < 0)
    columns["predicted"] = _class_names(p.argmax(-1), labels)
    if flagging is not None:
        positive, own = _by_client(flagging, [one.client for one in predictions])
        score, at_least = p[:, positive], np.repeat(own, [len(one.examples) for one in predictions])
        columns |= {"score": score, "flagged": score >= at_least, "threshold": at_least}
    names = labels or range(p.shape[-1])
    return pa.table(columns | {f"p_{name}": p[:, c] for c, name in enumerate(names)})


def _of_numbers(p: np.ndarray, y: np.ndarray, targets: Sequence[str], half_widths: Sequence[float]) -> Record:
    """Columns of predicted numbers [e, t], their intervals, and the true ones, NaN where unknown."""
    columns = Record()
    for at, name in enumerate(targets):
        suffix = "" if len(targets) == 1 else f"_{name}"
        if not np.isnan(y[:, at]).all():
            columns[f"true{suffix}"] = pa.array(y[:, at], mask=np.isnan(y[:, at]))
        columns[f"predicted{suffix}"] = p[:, at]
        if len(half_widths):
            columns |= {f"low{suffix}": p[:, at] - half_widths[at], f"high{suffix}": p[:, at] + half_widths[at]}
    return columns


def _of_labels(p: np.ndarray, y: np.ndarray, targets: Sequence[str]) -> Record:
    """Columns of the probabilities [e, t] of several labels, and the true ones, -1 where unknown."""
    columns = Record()
    for at, name in enumerate(targets):
        if (y[:, at] >= 0).any():
            columns[f"true_{name}"] = pa.array(np.maximum(y[:, at], 0), mask=y[:, at] < 0)
        columns |= {f"predicted_{name}": (p[:, at] >= HALF).astype(np.int64), f"p_{name}": p[:, at]}
    return columns


def _by_client(flagging: Flagging | Mapping[str, Flagging], clients: Sequence[str]) -> tuple[int, np.ndarray]:
    """The positive class, and the threshold of each of `clients`."""
    if isinstance(flagging, Flagging):
        return flagging.positive, np.full(len(clients), flagging.threshold)
    positive = next((rule.positive for rule in flagging.values()), 1)
    return positive, np.array([flagging[client].threshold if client in flagging else HALF for client in clients])


def ends_of(data: Dataset) -> np.ndarray | None:
    """[2, e], the names of the nodes at the ends of edges, or their numbers, where edges are the examples."""
    if data.edge_attrs is None or not data.edge_attrs.examples:
        return None
    ends: np.ndarray = np.array(data.node_ids)[data.edge_attrs.ends] if data.node_ids else data.edge_attrs.ends
    return ends


NOT_GIVEN = "neighbors_not_given"


def with_neighbors_not_given(table: pa.Table, data: Dataset) -> pa.Table:
    """The table of predictions of new `data` with a column of how many neighbors of an example, or of an edge's ends,
    its tables do not have: nodes elsewhere, which count in columns of external edges and pass no messages. Only where
    such edges are allowed."""
    if data.outside is None:
        return table
    near, far = np.sort(data.outside.edge_attrs.ends, 0)
    pairs = np.unique(np.stack([near, far]), axis=1)
    count = np.bincount(pairs[0], minlength=data.nodes)
    if data.example == "edge" and data.edge_attrs is not None:
        count = count[data.edge_attrs.ends].sum(0)
    return table.append_column(NOT_GIVEN, pa.array(count[table[data.example].to_numpy()]))


def right(table: pa.Table) -> float | None:
    """The share of rows whose class is known and predicted right; None where none is known, or no class predicted."""
    if "true" not in table.column_names or not any(name.startswith("p_") for name in table.column_names):
        return None
    share: float | None = pc.mean(pc.equal(table["true"], table["predicted"]).cast(pa.float64())).as_py()
    return share


def error_of(table: pa.Table) -> float | None:
    """The root of the mean squared error of one number, over rows where it is known; None of others, or without any."""
    if not {"true", "predicted"} <= set(table.column_names) or right(table) is not None:
        return None
    square = pc.power(pc.subtract(table["true"], table["predicted"]), 2)
    mean: float | None = pc.mean(square).as_py()
    return None if mean is None else math.sqrt(mean)


def _class_names(classes: np.ndarray, labels: Sequence[str]) -> np.ndarray:
    return np.array(labels)[classes] if len(labels) else classes


def _split(masks: np.ndarray) -> np.ndarray:
    """The names of the splits, "" for none: [e]."""
    return np.where(masks.any(0), np.array(SPLITS)[masks.argmax(0)], "")


# ----------------------------------------------------------------------------------------------------
# Predictions of a finished horizontal run: for its own examples, and for new nodes or graphs.


def probabilities(model: Model, w: Tree, graph: Graph) -> Tensor:
    """[e, c] of the classes, or [e, t] of several labels, or the numbers [e, t] that are predicted, in the data's
    units; padding included, on the host; the model runs where its weights lie.

    Raises:
        UserError: a weight is NaN or infinite.
    """
    check_finite(w)
    with torch.no_grad():
        return from_outputs(models.infer(model, w, graph.to(device_of(w))).cpu(), graph)


def from_outputs(outputs: Tensor, graph: Graph) -> Tensor:
    """`probabilities` of a model's outputs [e, …] for the examples of a graph."""
    if graph.target == CLASS:
        return torch.softmax(outputs, -1)
    if graph.target == LABELS:
        return torch.sigmoid(outputs)
    return outputs.double() if graph.scale is None else from_scale(outputs, graph.scale.to(outputs.device))


def of_own(run: Trained, model: str | None = None, client: str | None = None) -> pa.Table:
    """Predictions of the run's own examples: each client's by its model, by default the one that it uses. Without
    `client`, and unless `model` is another, also predictions of the global test graph by the global model.

    Raises:
        UserError: there is no such model or client.
    """
    built, weights = run.built, chosen_models(run, client, model or "personal")
    graphs = graphs_of(built.fed)
    predictions = [
        Predicted(name, probabilities(run.net_of(name), weights[name], graphs[name]), part.examples, part.masks)
        for name, part in zip(built.fed.clients, run.seen.parts, strict=True)
        if name in weights
    ]
    test, w = global_test_part(built.data, built.partition), run.algorithm.global_model(run.state)
    if (
        test is not None
        and built.fed.test is not None
        and w is not None
        and model in (None, "global")
        and client is None
    ):
        p = probabilities(run.algorithm.test_net, w, built.fed.test)
        predictions.append(Predicted(GLOBAL, p, test.examples, test.masks))
    data = built.data
    by, names = flagging_of(run, weights), (data.ids, data.labels, data.example)
    widths = half_widths(run) if model != "trained" else ()
    table = predictions_table(predictions, *names, data.y, by, ends_of(data), data.targets, widths)
    return _without_intervals(table, GLOBAL) if _own_units(run) else table


def _own_units(run: Trained) -> bool:
    """Whether each client predicts numbers in units of its own, for which intervals hold."""
    return run.built.data.target_scale is not None and run.built.data.target_scaling == "own"


def _without_intervals(table: pa.Table, client: str) -> pa.Table:
    """The table without prediction intervals in the rows of a client."""
    keep = pc.not_equal(table["client"], client)
    for at, name in enumerate(table.column_names):
        if name.partition("_")[0] in ("low", "high"):
            table = table.set_column(at, name, pc.if_else(keep, table[name], None))
    return table


def of_own_links(run: Trained, model: str | None = None, client: str | None = None) -> pa.Table:
    """A row for each link of a client, and for each pair that was drawn for it: "client", "source", "target",
    "relation" where there are several, "split", "true" and "predicted" ("link" or "no link"), and the probabilities of
    these.

    Raises:
        UserError: there is no such model or client.
    """
    built, weights, tables = run.built, chosen_models(run, client, model or "personal"), list[pa.Table]()
    graphs, relations = graphs_of(built.fed), () if built.data.links is None else built.data.links.relations
    for name, w in weights.items():
        probability = probabilities(run.net_of(name), w, graphs[name])
        tables.append(links_table(name, probability, graphs[name].to("cpu"), link_names(run, name), relations))
    return pa.concat_tables(tables)


def links_table(
    client: str, probability: Tensor, graph: Graph, called: np.ndarray, relations: Sequence[str] = ()
) -> pa.Table:
    """The rows of `of_own_links` for one client; probability: of the two classes of its examples, [e, 2]. called: its
    nodes' names. relations: their names, if there are several."""
    if graph.pairs is None:
        raise ValueError(f"the examples of {client} are no links")
    rows = torch.nonzero((graph.y >= 0) & (graph.pairs[RELATION] >= 0))[:, 0]
    pairs, y = graph.pairs[:, rows], graph.y[rows].numpy()
    one = Predicted(client, probability[rows], np.arange(len(rows)), graph.masks[:, rows].numpy())
    table = predictions_table([one], (), NAMES, "pair", y, None, called[pairs[:2].numpy()])
    table = table.drop_columns(["pair"])
    if not relations:
        return table
    return table.add_column(
        table.column_names.index("target") + 1, "relation", pa.array(np.array(relations)[pairs[RELATION].numpy()])
    )


def link_names(run: Trained, client: str) -> np.ndarray:
    """The names of a client's nodes, in its order."""
    part = run.seen.parts[list(run.built.fed.clients).index(client)]
    names: np.ndarray = np.array(run.built.data.node_ids)[part.nodes]
    return names


def of_new(run: Trained, path: Path, model: str | None = None, client: str | None = None) -> pa.Table:
    """Predictions of the nodes or small graphs at `path`: by the global model, by default, if there is one and no
    client is given, else by every client's.

    Raises:
        UserError: there is no such model or client. DataError: the data is refused, or of another form than the run's.
    """
    built = run.built
    if any(part.columns is not None for part in run.seen.parts):
        raise UserError(
            "in the run each client has columns of its own, so that no one table of new nodes fits them.",
            code="user.own-columns",
        )
    form = read_form(run.directory) or form_of_config(run.config, built.data, built.partition)
    which = model or ("personal" if client is not None or run.algorithm.global_model(run.state) is None else "global")
    weights = chosen_models(run, client, which)
    by = flagging_of(run, weights)
    if which == "global":
        weights = {client or GLOBAL: next(iter(weights.values()))}
    if client is None:
        note_of_clients(run, which == "global")
    plain = built.data.scaling == "none"  # all clients' features are scaled alike
    alike = plain and (built.data.target_scale is None or built.data.target_scaling != "own")
    form_to_read = form if plain else replace(form, scaling={"how": "none"})
    data = load_new_data(InputFormat.of_run(run.config, form_to_read, built.data), path).data

    @cache
    def graph(whose: str) -> Graph:
        client_form = form if whose == GLOBAL else form_of_client(run, form, whose)
        scaled = data if plain else with_scaled_nodes(data, client_form.scaling)
        return graph_of(replace(scaled, target_scale=client_form.target_scale), data.features, built.fed.dtype)

    examples = np.arange(data.examples)
    predictions = [
        Predicted(name, probabilities(run.test_net_of(name), w, graph(GLOBAL if alike else name)), examples)
        for name, w in weights.items()
    ]
    names = data.ids, built.data.labels, data.example
    widths = half_widths(run) if which != "trained" and not (_own_units(run) and GLOBAL in weights) else ()
    table = predictions_table(predictions, *names, data.y, by, ends_of(data), built.data.targets, widths)
    return with_neighbors_not_given(table, data)


def note_of_clients(run: Trained, typical: bool) -> None:
    """Log in what new tables, which are one graph, are read otherwise than the data of the run's clients.

    typical: whether features are scaled by numbers of all clients, where each client of the run may have its own.
    """
    data, parts = run.built.data, run.seen.parts
    if len(parts) < 2 or data.example == "graph":
        return
    lacking, notes = edges_between(data, parts), list[str]()
    if typical and data.scaling != "none":
        notes.append(f"features are scaled by typical numbers of the {len(parts)} clients, not by each client's own")
    if lacking:
        edges = f"{lacking:,} of {data.edges.shape[1] // 2:,} edges"
        notes.append(f"all edges of these tables carry messages; of its data the run left out {edges} between clients")
    if notes:
        _LOG.warning(
            "note: %s. Scores of the run's own nodes can therefore differ from the run's. To get those, give the nodes "
            "and edges of one client and --client NAME, or take `fedweave predict` without --data",
            "; ".join(notes),
        )


def edges_between(data: Dataset, parts: Sequence[Part]) -> int:
    """How many edges of the data, each pair of nodes once, join nodes of its clients that no client has together."""
    held, together = np.zeros(data.nodes, bool), np.zeros(data.edges.shape[1], bool)
    for part in parts:
        held[part.nodes] = True
    nodes = np.concatenate([part.nodes for part in parts])
    if len(nodes) == held.sum():  # each node has one holder
        holder = np.full(data.nodes, -1)
        holder[nodes] = np.repeat(np.arange(len(parts)), [len(part.nodes) for part in parts])
        together = holder[data.edges[0]] == holder[data.edges[1]]
    else:
        for part in parts:
            here = np.zeros(data.nodes, bool)
            here[part.nodes] = True
            together |= here[data.edges].all(0)
    return int((held[data.edges].all(0) & ~together).sum()) // 2


def form_of_client(run: Trained, form: DataForm, client: str) -> DataForm:
    """The form of the run's data as a client has it, which may scale its features by its own nodes, and numbers that
    are predicted by its own training examples."""
    data = run.built.data
    part = run.seen.parts[list(run.built.fed.clients).index(client)]
    form = replace(form, targets=targets_form(replace(data, target_scale=target_scale_of(data, part))))
    return form if data.scaling == "none" else replace(form, scaling=scaling_record(data.scaling, *of_part(data, part)))


def half_widths(run: Trained) -> list[float]:
    """Half the width of the prediction interval of each number, as the run's summary has them; [] without intervals."""
    metrics = read_summary(run.directory / SUMMARY)["metrics"]
    metrics = of_best(metrics) if run.when == "best" else metrics
    widths = [metrics.get(f"{HALF_WIDTH}/{at}") for at in range(run.built.data.outputs)]
    return [] if None in widths else [float(width) for width in widths if width is not None]


def flagging_of(
    run: Trained, chosen: Mapping[str, Tree], predicted: Mapping[str, Tensor] | None = None
) -> Flagging | dict[str, Flagging] | None:
    """Which examples the run flags; None where it looks for no class, or has more than two. Where no one model serves
    all clients, {client: which} by the validation examples of each, of the `chosen` weights {client: w} or, of its own
    examples, as they are `predicted`."""
    data = run.built.data
    if data.classes != 2:
        return None
    metrics = read_summary(run.directory / SUMMARY)["metrics"]
    metrics = of_best(metrics) if run.when == "best" else metrics
    judging = run.config.evaluation.of(data.labels, data.classes)
    if metrics.get(THRESHOLD) is not None or not chooses_threshold(judging, metrics):
        return flagging(judging, metrics)
    graphs, rules = graphs_of(run.built.fed), dict[str, Flagging]()
    outputs = predicted or {name: probabilities(run.net_of(name), w, graphs[name]) for name, w in chosen.items()}
    for client, p in outputs.items():
        y, val = graphs[client].y.cpu().numpy()[: len(p)], graphs[client].masks[VAL].cpu().numpy()[: len(p)]
        rules[client] = by_validation(judging, metrics, p.cpu().numpy()[: len(y)][val], y[val])
    return rules


def embeddings_of(run: Trained, model: str | None = None, client: str | None = None) -> pa.Table:
    """The inputs of the models' last layer for the run's own examples: a row per client and example, "client", "node",
    "graph" or "edge" (its place in the data), "id" where the data has ids, "split", "true", and columns "e_0", "e_1", …
    Of links: a row per client and node, as the decoder reads it, with "client", "node", "id" and the columns.

    model: which model of each client, by default the one that it uses.

    Raises:
        UserError: there is no such model or client, or it has no embeddings of examples.
    """
    built, weights = run.built, chosen_models(run, client, model or "personal")
    data, graphs, tables = built.data, graphs_of(built.fed), list[pa.Table]()
    for name, part in zip(built.fed.clients, run.seen.parts, strict=True):
        if name not in weights:
            continue
        net, w, graph = run.net_of(name), check_finite(weights[name]), graphs[name]
        with torch.no_grad():
            inner = models.embedded(net, w, graph.to(device_of(w))) if len(net) > 1 else graph.x
        count = len(graph.y) if data.links is None else graph.nodes
        if len(net) < 2 or not isinstance(inner, Tensor) or len(inner) != count:
            raise UserError(
                f"the model of {name} has no embeddings of examples, what a last layer is computed from: take a model "
                "of two layers or more.",
                code="user.no-embeddings",
            )
        places = part.examples if data.links is None else part.nodes
        rows, ids = inner[: len(places)].cpu().numpy(), data.ids if data.links is None else data.node_ids
        about = {"client": [name] * len(places), data.example if data.links is None else "node": places}
        about |= {"id": [ids[at] for at in places]} if ids else {}
        about |= {"split": _split(part.masks)} if data.links is None else {}
        about |= {"true": _classes_of(data, places)} if data.target == "class" and data.links is None else {}
        tables.append(pa.table(about | {f"e_{at}": rows[:, at] for at in range(rows.shape[1])}))
    return pa.concat_tables(tables)


def _classes_of(data: Dataset, places: np.ndarray) -> pa.Array:
    """The classes of examples by name, null where unknown."""
    y = data.y[places]
    return pa.array(_class_names(np.maximum(y, 0), data.labels), mask=y < 0)


def chosen_models(run: Trained, client: str | None, which: str) -> Mapping[str, Tree]:
    """{client: its weights} of all clients, or only of `client`."""
    return run.models(which) if client is None else {client: run.model_of(which, client)}


# ----------------------------------------------------------------------------------------------------
# User-defined metrics: functions of labels and probabilities, of a finished run's models on its own examples.


# (y int64 [e], p float64 [e, c]) -> a number, NaN where it has none. Of one number y and p are float64 [e], of several
# [e, t], NaN where y has gaps; of several labels y is int64 [e, t], -1 at gaps, and p float64 [e, t].
Metric = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True, repr=False)
class SplitScores(Shown):
    """The values of a function on one split.

    name:    of the function. clients: {client: its value on the client's own examples by the model that it uses}.
    local:   their mean, over those that have one. pooled: of all clients' examples together, each by its client's
             model; NaN without examples.
    overall: of the global test graph by the global model; None where there is none.
    """

    name: str
    clients: dict[str, float]
    local: float
    pooled: float
    overall: float | None = None

    def facts(self) -> dict[str, object]:
        """The function, and its values over clients."""
        values = {"local": self.local, "pooled": self.pooled, "overall": self.overall}
        about = {"": f"{self.name} of {counted(len(self.clients), 'client')}"}
        return about | {name: value for name, value in values.items() if value is not None}


def function(name: str) -> Metric:
    """The function that "file.py:name", or the name that an installed package announces, stands for.

    Raises:
        ConfigError: there is none, or it cannot be called.
    """
    if plugins.is_file(name):
        value = plugins.load(name)
    else:
        functions = plugins.entry_point_plugins("metric")
        if name not in functions:
            raise ConfigError(
                f"--metric {name}: write file.py:function, or the name of one that an installed package announces "
                f"({', '.join(functions) or 'none does'})."
            )
        value = functions[name]
    if not callable(value):
        raise ConfigError(f"--metric {name}: it is no function (y, p) -> number.")
    result: Metric = value
    return result


def measured(table: pa.Table, metric: Metric, split: str = "test") -> SplitScores:
    """The values of the function on the predictions of a run's own examples (`predictions.predictions_table`).

    Raises:
        UserError: there is no such split, no class is known, or the function fails or returns no number.
    """
    if split not in SPLITS:
        raise UserError(f"there is no split {split!r}; choose one of {', '.join(SPLITS)}.", code="user.no-split")
    if "split" not in table.column_names or not any(name.partition("_")[0] == "true" for name in table.column_names):
        raise UserError("no class of these examples is known, so that nothing can be measured.")
    y, p = _targets_and_predictions(table)
    client, used = (np.array(table[column].to_pylist()) for column in ("client", "split"))
    use = (used == split) & is_labeled(y if y.ndim > 1 or y.dtype.kind == "i" else y[:, None])

    def of(member: np.ndarray) -> float:
        at = use & member
        return _called(metric, y[at], p[at]) if at.any() else math.nan

    names = [name for name in dict.fromkeys(client.tolist()) if name != GLOBAL]
    clients = {name: of(client == name) for name in names}
    some = [value for value in clients.values() if not math.isnan(value)]
    return SplitScores(
        _name(metric),
        clients,
        float(np.mean(some)) if some else math.nan,
        of(client != GLOBAL),
        of(client == GLOBAL) if GLOBAL in client else None,
    )


def _targets_and_predictions(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """The arguments of a `Metric` for all rows: classes, numbers or labels, and the predictions."""

    def values(column: str, gap: float) -> np.ndarray:
        if column not in table.column_names:  # never known
            return np.full(len(table), gap)
        return np.array([gap if value is None else value for value in table[column].to_pylist()], np.float64)

    wide = [column.removeprefix("p_") for column in table.column_names if column.startswith("p_")]
    numbers = [column.removeprefix("predicted") for column in table.column_names if column.startswith("predicted")]
    if wide and numbers == [""]:
        place = {name: at for at, name in enumerate(wide)}
        y = np.array([-1 if value is None else place[str(value)] for value in table["true"].to_pylist()], np.int64)
        return y, np.stack([values(f"p_{name}", np.nan) for name in wide], 1)
    if wide:
        y = np.stack([values(f"true_{name}", -1) for name in wide], 1).astype(np.int64)
        return y, np.stack([values(f"p_{name}", np.nan) for name in wide], 1)
    y, p = (np.stack([values(f"{what}{name}", np.nan) for name in numbers], 1) for what in ("true", "predicted"))
    return (y, p) if len(numbers) > 1 else (y[:, 0], p[:, 0])


def of_run(
    directory: Path, metric: Metric, split: str = "test", model: str | None = None, config: Config | None = None
) -> SplitScores:
    """The values of the function for a finished run's models. config: of the run, where the caller knows it.

    Raises:
        UserError: see `measured`; the run is not finished, was made between sites, or has no such model.
    """
    from fedweave.core.algorithm import capabilities
    from fedweave.experiment.runs.trained import finished, trained

    config = finished(directory) if config is None else config
    if capabilities(config.algorithm.kind).predicts:
        raise UserError("the parties of a vertical run predict jointly: take `fedweave predict` and its table.")
    run = trained(directory, config, "Where sites are, their owners measure.")
    predict = of_own if config.links is None else of_own_links
    return measured(predict(run, model), metric, split)


def embeddings_of_run(directory: Path, model: str | None = None, client: str | None = None) -> pa.Table:
    """`embeddings_of` a finished run.

    Raises:
        UserError: as `of_run`.
    """
    return embeddings_of(_joint_free(directory), model, client)


def _joint_free(directory: Path) -> Trained:
    """A finished run whose clients have models of their own use.

    Raises:
        UserError: it is of parties, who predict jointly, or was made between sites.
    """
    from fedweave.core.algorithm import capabilities
    from fedweave.experiment.runs.trained import finished, trained

    config = finished(directory)
    if capabilities(config.algorithm.kind).predicts:
        raise UserError(
            "the parties of a vertical run predict jointly, and no model has all of an example.",
            code="user.no-embeddings",
        )
    return trained(directory, config, "Where sites are, their owners look at embeddings.")


def _name(metric: Metric) -> str:
    return metric.__name__ if isinstance(metric, FunctionType) else type(metric).__name__


def _called(metric: Metric, y: np.ndarray, p: np.ndarray) -> float:
    name = _name(metric)
    value = plugins.call_plugin(f"metric {name!r}", lambda: metric(y, p), UserError)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"metric {name!r} returned {type(value).__name__}, not a number.", code="user.metric"
        ) from error
