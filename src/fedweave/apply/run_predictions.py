"""Predictions of a finished run's models: of its own examples, of new nodes and graphs, and of pairs of nodes."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fedweave.apply.link_predictions import score_file, top_pairs
from fedweave.apply.prediction_table import predictions_table
from fedweave.apply.predictions import flagging_of, predict_examples, predict_links, predict_new
from fedweave.core.algorithm import capabilities
from fedweave.core.text import counted
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import OVER_NODES
from fedweave.errors import DataError, UserError
from fedweave.experiment.build import Built, build
from fedweave.experiment.config import Config
from fedweave.experiment.runs.checkpoint import When
from fedweave.experiment.runs.outputs import Predicted
from fedweave.experiment.runs.trained import Trained, config_here, finished_config, load_trained


class PairQuery(NamedTuple):
    """The pairs to score in a run on links: the pairs of a table, or a node's `top` pairs, optionally of one relation;
    without either, the run's own examples."""

    pairs: Path | None = None
    node: str | None = None
    top: int = 10
    relation: str | None = None


def predictions(
    directory: Path,
    data: Path | None = None,
    model: str | None = None,
    client: str | None = None,
    when: When = "chosen",
    query: PairQuery | None = None,
) -> pa.Table:
    """The table that `fedweave predict` writes (see `apply.prediction_table.predictions_table`).

    In a vertical run "node" is the position among the common nodes sorted by id (docs/data-parties.md). Parties without
    labels have no trained prediction and no rows. It takes the same exchanges as the algorithm's evaluation.

    Raises:
        UserError: the run is not finished or was made between sites, or has no such model or client. DataError: the
            data is rejected, or has another form than the run's.
    """
    query = query or PairQuery()
    config = finished_config(directory)
    instead = f"Predict there, too: fedweave sites predict {directory} --sites DIR"
    run = load_trained(directory, config, instead, when, model)
    if config.links is not None:
        if data is not None:
            raise UserError(
                "the run predicts links of the nodes that it knows; give pairs of them with --pairs, or a node with "
                "--node, instead of --data.",
                code="user.pairs",
            )
        if query.pairs is not None:
            return score_file(run, query.pairs, model, client)
        if query.node is not None:
            return top_pairs(run, query.node, query.top, query.relation, model, client)
        return predict_links(run, model, client)
    if query.pairs is not None or query.node is not None:
        raise UserError("--pairs and --node are for runs whose examples are links (data.task).", code="user.pairs")
    if not capabilities(config.algorithm.kind).predicts:
        return predict_examples(run, model, client) if data is None else predict_new(run, data, model, client)
    if model is not None or client is not None:
        raise UserError("the parties of a vertical run predict jointly; leave out --model and --client.")
    return _of_parties(run, data)


def _of_parties(run: Trained, data: Path | None) -> pa.Table:
    """Predictions of the parties of a vertical run."""
    built, masks = run.built, dict[str, np.ndarray]()  # masks: bool [3, nodes], of the run's own examples
    if data is None:
        for client, part in zip(built.fed.clients, run.visible_partition.parts, strict=True):
            masks[client] = part.masks
    else:
        try:
            new = build(config_here(config_on(run.config, data, built.data)))
        except DataError as error:
            raise DataError(
                f"{error} (--data needs all parties' new nodes together with the old, whose labels stay.)",
                code="data.new-beside-old",
            ) from error
        difference = parties_difference(built, new)
        if difference:
            raise UserError(f"{data} does not fit the run: {difference}.", code="user.columns")
        new.fed.restore(built.fed.snapshot())
        new.fed.begin(built.fed.round)
        built = new
    built.algorithm.predict(run.state, built.fed)
    states, nodes = built.fed.snapshot(), np.arange(built.data.nodes)
    probabilities, predictions = {}, []  # {client: [nodes, classes]}
    for client in built.fed.clients:
        if "prediction" in states[client]:
            probabilities[client] = states[client]["prediction"]
            predictions.append(Predicted(client, probabilities[client], nodes, masks.get(client)))
    return predictions_table(
        predictions,
        built.data.ids,
        built.data.labels,
        y=built.data.y,
        flagging=flagging_of(run, {}, probabilities if data is None else None),
    )


def config_on(config: Config, data: Path, before: Dataset) -> Config:
    """The run's configuration on other data, with the classes of the data `before`; the split does not matter."""
    values, partition = config.data.values, config.partition.values
    if values.get("normalize", "none") in OVER_NODES:
        raise UserError(
            f"the run was made with data.normalize = {values['normalize']!r}, which would scale the new nodes "
            "differently. Scale the features yourself and train with data.normalize = 'none'.",
            code="user.scaling",
        )
    options = {key: partition[key] for key in partition if key not in ("use_dataset_split", "train_on_rest")}
    if "labels" in values:
        classes = {"labels": before.labels} if before.labels else {"classes": before.classes}
        values = values | {"labels": None, "classes": None} | classes
    data_section, cut = replace(config.data, values=values), replace(config.partition, values=options)
    return replace(config, folder=str(data), data=data_section, partition=cut)


def parties_difference(before: Built, new: Built) -> str:
    """The difference between new data and the run's data that its models do not allow, and the remedy; "" if none."""
    labels = before.data.labels
    unknown = [name for name in new.data.labels if name not in labels]
    if labels and unknown:
        return f"the run has no label {', '.join(unknown)}, only {', '.join(labels)}. Correct it, or leave it empty"
    if before.data.classes != new.data.classes:
        counts = f"it has {counted(new.data.classes, 'class')}, and the run {before.data.classes}"
        return f"{counts}. If nodes do not have all labels, set [data] labels or classes in the run's configuration"
    if before.fed.clients != new.fed.clients:
        return f"its parties are {', '.join(new.fed.clients)}, and the run's {', '.join(before.fed.clients)}"
    for client, old, columns in zip(before.fed.clients, _columns(before), _columns(new), strict=True):
        if old != columns:
            missing = [name for name in old if name not in columns]
            further = [name for name in columns if name not in old]
            difference = [f"lacks {', '.join(missing)}"] if missing else []
            difference += [f"also has {', '.join(further)}"] if further else []
            text = " and ".join(difference) or f"has its columns in the order {', '.join(columns)}"
            return f"party {client} {text}. Give it the run's columns, in their order: {', '.join(old)}"
    return ""


def _columns(built: Built) -> list[list[str]]:
    """The names of each party's features, or their numbers."""
    names = []
    for party in built.data.parties or ():
        names.append(list(party.names) or _column_numbers(party.columns))
    if names:
        return names
    return [_column_numbers(part.columns) for part in built.partition.parts if part.columns is not None]


def _column_numbers(columns: np.ndarray) -> list[str]:
    return [f"column {at}" for at in range(len(columns))]
