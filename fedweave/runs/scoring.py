"""Predictions of a finished horizontal run: for its own examples, and for new nodes or graphs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from fedweave import datasets
from fedweave.build import global_test_part, graph_of
from fedweave.config import Config
from fedweave.core import model as models
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import OVER_NODES, compact, normalise
from fedweave.datasets.folder import Folder
from fedweave.datasets.graph_folder import GraphFolder
from fedweave.errors import DataError, UserError
from fedweave.metrics.measured import GLOBAL
from fedweave.runs.predictions import Predicted, predictions_table
from fedweave.runs.trained import Trained


def probabilities(model: Model, w: Tree, graph: Graph) -> Tensor:
    """[e, c] of the classes, padding included."""
    with torch.no_grad():
        return torch.softmax(models.apply(model, w, graph), -1)


def of_own(run: Trained, model: str | None = None, client: str | None = None) -> pa.Table:
    """Predictions of the run's own examples: each client's by its model, by default the one that it uses; and, unless
    another is asked for, those of the global test graph by the global one.

    Raises:
        UserError: there is no such model or client.
    """
    built, chosen = run.built, _chosen(run, client, model or "personal")
    graphs, net = built.fed.graphs, built.algorithm.net
    found = [
        Predicted(name, probabilities(net, chosen[name], graphs[name]), part.examples, part.masks)
        for name, part in zip(built.fed.clients, run.seen.parts, strict=True)
        if name in chosen
    ]
    test, w = global_test_part(built.data, built.partition), built.algorithm.global_model(run.state)
    if (
        test is not None
        and built.fed.test is not None
        and w is not None
        and model in (None, "global")
        and client is None
    ):
        p = probabilities(built.algorithm.test_net, w, built.fed.test)
        found.append(Predicted(GLOBAL, p, test.examples, test.masks))
    return predictions_table(found, built.data.ids, built.data.labels, built.data.example, built.data.y)


def of_new(run: Trained, folder: Path, model: str | None = None, client: str | None = None) -> pa.Table:
    """Predictions of the nodes or small graphs in `folder`: by the global model, by default, if there is one and no
    client is named, else by every client's.

    Raises:
        UserError: there is no such model or client. DataError: the data is refused, or of another form than the run's.
    """
    built = run.built
    if any(part.columns is not None for part in run.seen.parts):
        raise UserError("in the run each client has columns of its own, so that no one table of new nodes fits them.")
    data = like(run.config, built.data, folder)
    which = model or ("personal" if client is not None or built.algorithm.global_model(run.state) is None else "global")
    chosen = _chosen(run, client, which)
    if which == "global":
        chosen = {client or GLOBAL: next(iter(chosen.values()))}
    graph, examples = graph_of(data, data.features, built.fed.dtype), np.arange(data.examples)
    net = built.algorithm.test_net
    found = [Predicted(name, probabilities(net, w, graph), examples) for name, w in chosen.items()]
    return predictions_table(found, data.ids, built.data.labels, data.example, data.y)


def _chosen(run: Trained, client: str | None, which: str) -> Mapping[str, Tree]:
    """{client: its weights} of all clients, or of the one that is named."""
    return run.models(which) if client is None else {client: run.model_of(which, client)}


_OF_TABLES = (
    "categories",
    "groups",
    "owner",
    "columns",
    "ignore",
    "unlabelled",
    "loops",
)  # settings by which new tables are read, too


def like(config: Config, before: Dataset, folder: Path) -> Dataset:
    """The new nodes or graphs in `folder`, in the form of the data `before` that the run was trained on: the same
    features in the same order, scaled by what they were then.

    Raises:
        DataError: the tables are refused, or have other features or classes; names the column and the remedy.
    """
    try:
        data = _read(config, before, folder)
    except DataError as error:
        about = "Tables of new examples are read by the [data] settings of the run, which stay as they are."
        raise DataError(f"{error}\n{about}") from error
    x = _scaled(config, _matched(data, before, folder))
    return replace(data, x=x, public=np.zeros((3, data.examples), bool))


def _read(config: Config, before: Dataset, folder: Path) -> Dataset:
    """The tables in `folder`, with the classes, kinds and text columns that were known before."""
    named = {"labels": before.labels} if before.labels else {"classes": before.classes}
    own: dict[str, Any] = {name: config.data.values[name] for name in _OF_TABLES if name in config.data.values}
    if before.graph_of is None:
        return Folder(sens_feature=True, **named, **own).load(folder, 0, labelled=False)
    return GraphFolder(sens_feature=True, **named, **_kinds(before), **own).load(folder, 0, labelled=False)


def _kinds(before: Dataset) -> dict[str, Any]:
    """Which one-hot columns small graphs had."""
    found: dict[str, Any] = {}
    for key, option in (("label", "node_labels"), ("degree", "degrees")):
        named = tuple(name.removeprefix(f"{key} = ") for name in before.columns if name.startswith(f"{key} = "))
        found |= {option: named if key == "label" else len(named)} if named else {}
    if not before.columns and before.node_labels is not None:
        found["node_labels"] = tuple(map(str, range(int(before.node_labels.max()) + 1)))
    return found


def _matched(data: Dataset, before: Dataset, folder: Path) -> Any:
    """The features of `data` in the order of those `before`."""
    if not before.columns:
        if data.features != before.features:
            raise DataError(
                f"{folder}: nodes have {data.features} feature columns, and the run was trained on {before.features}. "
                "Give the same ones in the same order."
            )
        return data.x
    if missing := [name for name in before.columns if name not in data.columns]:
        raise DataError(
            f"{folder}: nodes lack the feature column {missing[0]!r} that the run was trained on. Give every column of "
            f"{', '.join(before.columns)}."
        )
    if more := [name for name in data.columns if name not in before.columns]:
        raise DataError(
            f"{folder}: the run was trained without the feature column {more[0]!r} of nodes. Remove it; the columns "
            f"were {', '.join(before.columns)}."
        )
    return data.x[:, [data.columns.index(name) for name in before.columns]]


def _scaled(config: Config, x: Any) -> Any:
    """The features as the run's were scaled, over its own nodes."""
    how, name = config.data.values.get("normalise", "none"), config.data.name
    return compact(normalise(compact(x), how, name, unscaled(config) if how in OVER_NODES else None))


def unscaled(config: Config) -> Any:
    """The features of the run's data as they are."""
    raw = {**config.data.values, "normalise": "none"}
    return datasets.load(config.data.name, path=config.folder, seed=config.general.seed, **raw).x
