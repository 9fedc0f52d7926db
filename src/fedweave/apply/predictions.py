"""Predictions of a finished horizontal run: for its own examples, and for new nodes or graphs."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from fedweave.apply.prediction_table import ends_of, predictions_table, with_neighbors_not_given
from fedweave.core.algorithm import graphs_of
from fedweave.core.graph import RELATION, VAL, Graph
from fedweave.core.tree import Tree
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import AUTO
from fedweave.datasets.links import NAMES
from fedweave.errors import UserError, option
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.runs.data_form import DataForm, form_of_config, read_form, targets_form
from fedweave.experiment.runs.files import SUMMARY, read_summary
from fedweave.experiment.runs.new_data import InputFormat, load_new_data
from fedweave.experiment.runs.outputs import Predicted, example_predictions, probabilities, vectors_of
from fedweave.experiment.runs.trained import Trained, chosen_models
from fedweave.metrics.intervals import HALF_WIDTH
from fedweave.metrics.measured import GLOBAL
from fedweave.metrics.ranking import by_validation
from fedweave.metrics.selection import (
    HALF,
    THRESHOLD,
    Flagging,
    Judging,
    chooses_threshold,
    flagging,
    of_best,
    positive_class,
)
from fedweave.partition.base import Part
from fedweave.partition.client_data import shares
from fedweave.partition.preparation import (
    edge_scaling_record,
    numbers_in,
    scaling_record,
    with_scaled_edges,
    with_scaled_nodes,
)
from fedweave.partition.scaling import of_part, target_scale_of

_LOG = logging.getLogger(__name__)


def predict_examples(run: Trained, model: str | None = None, client: str | None = None) -> pa.Table:
    """The table of `example_predictions`.

    Raises:
        UserError: there is no such model or client.
    """
    return examples_table(run, example_predictions(run, model, client), model, client)


def examples_table(
    run: Trained, predictions: Sequence[Predicted], model: str | None = None, client: str | None = None
) -> pa.Table:
    """The table of `predict_examples` from its `predictions`."""
    data, weights = run.built.data, chosen_models(run, client, model)
    # Intervals are of the model in use and, where each client has its own units, not of the global one.
    table = predictions_table(
        predictions,
        *(data.ids, data.labels, data.example, data.y),
        flagging_of(run, weights),
        ends_of(data),
        data.targets,
        half_widths(run) if model != "trained" else (),
    )
    if not has_own_units(data):
        return table
    keep = pc.not_equal(table["client"], GLOBAL)
    for at, name in enumerate(table.column_names):
        if name.partition("_")[0] in ("low", "high"):
            table = table.set_column(at, name, pc.if_else(keep, table[name], None))
    return table


def predict_links(run: Trained, model: str | None = None, client: str | None = None) -> pa.Table:
    """A row for each link of a client, and for each pair that was drawn for it: "client", "source", "target",
    "relation" where there are several, "split", "true" and "predicted" ("link" or "no link"), and the probabilities of
    these.

    Raises:
        UserError: there is no such model or client.
    """
    links, graphs = run.built.data.links, graphs_of(run.built.fed)
    relations = () if links is None else links.relations
    tables = []
    for name, w in chosen_models(run, client, model).items():
        probability = probabilities(run.net_of(name), w, graphs[name])
        tables.append(links_table(name, probability, graphs[name].to("cpu"), node_names(run, name), relations))
    return pa.concat_tables(tables)


def links_table(
    client: str, probability: Tensor, graph: Graph, names: np.ndarray, relations: Sequence[str] = ()
) -> pa.Table:
    """The rows of `predict_links` for one client; probability: of the two classes of its examples, [e, 2]. names: of
    its nodes. relations: their names, if there are several."""
    if graph.pairs is None:
        raise ValueError(f"the examples of {client} are not links")
    rows = torch.nonzero((graph.y >= 0) & (graph.pairs[RELATION] >= 0))[:, 0]
    pairs, y = graph.pairs[:, rows], graph.y[rows].numpy()  # [3, links], [links]
    predicted = Predicted(client, probability[rows], np.arange(len(rows)), graph.masks[:, rows].numpy())
    table = predictions_table([predicted], (), NAMES, "pair", y, None, names[pairs[:2].numpy()])
    table = table.drop_columns(["pair"])
    if not relations:
        return table
    kinds = pa.array(np.array(relations)[pairs[RELATION].numpy()])
    return table.add_column(table.column_names.index("target") + 1, "relation", kinds)


def predict_new(
    run: Trained, path: Path, model: str | None = None, client: str | None = None, with_vectors: bool = False
) -> pa.Table:
    """Predictions of the nodes or small graphs at `path`: by the global model, by default, if there is one and no
    client is given, else by every client's. with_vectors: also what the models' last layers read.

    Raises:
        UserError: there is no such model or client, or a model has no vectors. DataError: the data is refused, or of
            another form than the run's.
    """
    # 1. The models, and which examples they flag.
    data = run.built.data
    if any(part.columns is not None for part in run.visible_partition.parts):
        raise UserError(
            "in the run each client has columns of its own, so that no one table of new nodes fits them.",
            code="user.own-columns",
        )
    form = form_of_run(run)
    if model is None:
        model = "personal" if client is not None or run.algorithm.global_model(run.state) is None else "global"
    weights = chosen_models(run, client, model)
    rule = flagging_of(run, weights)
    if model == "global":
        weights = {client or GLOBAL: next(iter(weights.values()))}
    if client is None:
        note_of_clients(run, model == "global")
    if model == "global" and client is None:
        note_of_joint_model(run)

    # 2. The new data: one graph for all, unless features or numbers are scaled by each client's own data.
    scales_nodes, scales_edges = data.scaling != "none", data.edge_attrs is not None and data.edge_attrs.auto
    is_shared = not (scales_nodes or scales_edges or has_own_units(data))
    form_to_read = replace(form, scaling={"how": "none"}) if scales_nodes or scales_edges else form
    if scales_edges:
        form_to_read = with_edge_scaling(form_to_read, {"how": "none"})
    new = load_new_data(InputFormat.of_run(run.config, form_to_read, data), path).data
    if GLOBAL not in weights and len(run.visible_partition.parts) > 1:
        note_of_scaling(form_of_client(run, form, next(iter(weights))), list(weights), new)
    graph, predictions = None, []
    for name, w in weights.items():
        if graph is None or not is_shared:
            client_form = form if is_shared or name == GLOBAL else form_of_client(run, form, name)
            scaled = with_scaled_edges(new, client_form.edge_scaling) if scales_edges else new
            if form_to_read is not form:
                scaled = with_scaled_nodes(scaled, client_form.scaling)
            graph = graph_of(replace(scaled, target_scale=client_form.target_scale), new.features, run.built.fed.dtype)
        net = run.test_net_of(name)
        p, vectors = probabilities(net, w, graph), vectors_of(net, w, graph, name) if with_vectors else None
        predictions.append(Predicted(name, p, np.arange(new.examples), vectors=vectors))

    # 3. The table. Intervals are of the model in use, and hold in units of all clients, or of the client's own.
    no_intervals = model == "trained" or (has_own_units(data) and GLOBAL in weights)
    table = predictions_table(
        predictions,
        *(new.ids, data.labels, new.example, new.y),
        rule,
        ends_of(new),
        data.targets,
        () if no_intervals else half_widths(run),
    )
    return with_neighbors_not_given(table, new)


def has_own_units(data: Dataset) -> bool:
    """Whether each client predicts numbers in units of its own, for which intervals hold."""
    return data.target_scale is not None and data.target_scaling == "own"


def note_of_clients(run: Trained, typical: bool) -> None:
    """Log in what new tables, which are one graph, are read otherwise than the data of the run's clients.

    typical: whether features are scaled by numbers of all clients, where each client of the run may have its own.
    """
    data, parts = run.built.data, run.visible_partition.parts
    if len(parts) < 2 or data.example == "graph":
        return
    notes = []
    if typical and (data.scaling != "none" or (data.edge_attrs is not None and data.edge_attrs.auto)):
        notes.append(f"features are scaled by typical numbers of the {len(parts)} clients, not by each client's own")
    lacking = edges_between(data, parts)
    if lacking:
        edges = f"{lacking:,} of {data.edges.shape[1] // 2:,} edges"
        notes.append(f"all edges of these tables carry messages; of its data the run left out {edges} between clients")
    if notes:
        _LOG.warning(
            "note: %s. Scores of the run's own nodes can therefore differ from the run's. To get those, pass the nodes "
            "and edges of one client together with %s, or leave out %s to take the run's own examples",
            "; ".join(notes),
            option("client", "NAME"),
            option("data", python="the argument data"),
        )


def note_of_joint_model(run: Trained) -> None:
    """Log how the global model that is used differs from the models whose results the run shows: where these are
    clients' own, and where each client has its own units of a number."""
    own = run.algorithm.evaluated_model(run.state) is None
    if not own and not has_own_units(run.built.data):
        return
    facts = ["the run's results are of each client's own model, and this is the joint one"] if own else []
    if has_own_units(run.built.data):
        facts.append("it predicts at the mean level of all clients, where each has its own level and spread")
    remedy = option("client", "NAME", python="client")
    _LOG.warning("note: %s. For one client's model and units give %s", "; ".join(facts), remedy)


def note_of_scaling(form: DataForm, clients: Sequence[str], data: Dataset) -> None:
    """Log that the numbers of one client scale all members' rows of new tables, where each scaled its own in training.

    form: what a client's model takes. clients: all whose models score the tables. data: the tables.
    """
    members = 0 if data.owner is None else len(np.unique(data.owner))
    is_scaled = False
    for scaling in (form.scaling, form.edge_scaling):
        if scaling["how"] == AUTO:
            numbers = numbers_in(scaling)
            is_scaled |= bool(numbers.shift.any() or (numbers.divisor != 1).any())
    if members > 1 and is_scaled:
        _LOG.warning(
            "note: the tables are of %d members, and %s scale the features of all; in training each member scaled its "
            "own. Give each member's tables separately, with its own model",
            members,
            f"{clients[0]}'s numbers" if len(clients) == 1 else "the numbers of the client whose model scores",
        )


def edges_between(data: Dataset, parts: Sequence[Part]) -> int:
    """How many edges of the data, each pair of nodes once, join nodes of its clients that no client has together."""
    has_client = np.zeros(data.nodes, bool)
    for part in parts:
        has_client[part.nodes] = True
    nodes = np.concatenate([part.nodes for part in parts])
    if len(nodes) == has_client.sum():  # no node is with two clients
        holder = np.full(data.nodes, -1)
        holder[nodes] = np.repeat(np.arange(len(parts)), [len(part.nodes) for part in parts])
        together = holder[data.edges[0]] == holder[data.edges[1]]
    else:
        together = np.zeros(data.edges.shape[1], bool)
        for part in parts:
            is_here = np.zeros(data.nodes, bool)
            is_here[part.nodes] = True
            together |= is_here[data.edges].all(0)
    return int((has_client[data.edges].all(0) & ~together).sum()) // 2


def part_of(run: Trained, client: str) -> Part:
    """What a client holds of the run's data."""
    return run.visible_partition.parts[list(run.built.fed.clients).index(client)]


def node_names(run: Trained, client: str) -> np.ndarray:
    """The names of a client's nodes, in its order."""
    names: np.ndarray = np.array(run.built.data.node_ids)[part_of(run, client).nodes]
    return names


def form_of_run(run: Trained) -> DataForm:
    """The form of the run's data, as it was noted or, of an earlier version's run, as its configuration gives it."""
    return read_form(run.directory) or form_of_config(run.config, run.built.data, run.built.partition)


def form_of_client(run: Trained, form: DataForm, client: str) -> DataForm:
    """The form of the run's data as a client has it, which may scale its features by its own nodes, and numbers that
    are predicted by its own training examples."""
    data, part = run.built.data, part_of(run, client)
    form = replace(form, targets=targets_form(replace(data, target_scale=target_scale_of(data, part))))
    if data.edge_attrs is not None and data.edge_attrs.auto:
        [share] = shares(data, [part])
        if share.edge_attrs is not None:
            form = with_edge_scaling(form, edge_scaling_record(share.edge_attrs, AUTO))
    return form if data.scaling == "none" else replace(form, scaling=scaling_record(data.scaling, of_part(data, part)))


def with_edge_scaling(form: DataForm, scaling: Record) -> DataForm:
    """The form with this scaling of features of edges."""
    return form if form.edges is None else replace(form, edges={**form.edges, "scaling": scaling})


def half_widths(run: Trained) -> list[float]:
    """Half the width of the prediction interval of each number, as the run's summary has them; [] without intervals."""
    metrics = _metrics(run)
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
    judging, metrics = run.config.evaluation.of(data.labels, data.classes), _metrics(run)
    if not _clients_choose_thresholds(judging, metrics):
        return flagging(judging, metrics)
    graphs = graphs_of(run.built.fed)
    if not predicted:
        predicted = {name: probabilities(run.net_of(name), w, graphs[name]) for name, w in chosen.items()}
    rules = {}
    for client, p in predicted.items():
        y, val = graphs[client].y.cpu().numpy()[: len(p)], graphs[client].masks[VAL].cpu().numpy()[: len(p)]
        rules[client] = by_validation(judging, metrics, p.cpu().numpy()[: len(y)][val], y[val])
    return rules


def flagging_of_global(run: Trained) -> Flagging | None:
    """Which examples the global model flags: from 0.5 on where each client chooses a threshold for its own model."""
    data = run.built.data
    if data.classes != 2:
        return None
    judging, metrics = run.config.evaluation.of(data.labels, data.classes), _metrics(run)
    if _clients_choose_thresholds(judging, metrics):
        return Flagging(positive_class(judging, metrics), HALF)
    return flagging(judging, metrics)


def _clients_choose_thresholds(judging: Judging, metrics: Mapping[str, float | None]) -> bool:
    """Whether each client chooses a threshold by its validation examples, because no one model served all of them."""
    return metrics.get(THRESHOLD) is None and chooses_threshold(judging, metrics)


def _metrics(run: Trained) -> Mapping[str, float | None]:
    """The summary's metrics of the round whose models are used."""
    metrics: dict[str, float | None] = read_summary(run.directory / SUMMARY)["metrics"]
    return of_best(metrics) if run.when == "best" else metrics
