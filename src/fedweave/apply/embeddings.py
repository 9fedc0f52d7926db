"""Embeddings of a finished run's examples: the inputs of the models' last layer."""

from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from fedweave.apply.prediction_table import class_names, split_names
from fedweave.apply.predictions import chosen_models
from fedweave.core import model as models
from fedweave.core.algorithm import capabilities, graphs_of
from fedweave.core.target import CLASS
from fedweave.core.tree import device_of
from fedweave.core.types import Record
from fedweave.errors import UserError
from fedweave.experiment.runs.trained import Trained, check_finite, finished_config, load_trained


def embeddings_of_run(directory: Path, model: str | None = None, client: str | None = None) -> pa.Table:
    """`embeddings_of` a finished run.

    Raises:
        UserError: see `embeddings_of`; the run is not finished, is of parties, or was made between sites.
    """
    config = finished_config(directory)
    if capabilities(config.algorithm.kind).predicts:
        raise UserError(
            "the parties of a vertical run predict jointly, and no model has all of an example.",
            code="user.no-embeddings",
        )
    run = load_trained(directory, config, "Where sites are, their owners look at embeddings.", model=model)
    return embeddings_of(run, model, client)


def embeddings_of(run: Trained, model: str | None = None, client: str | None = None) -> pa.Table:
    """The inputs of the models' last layer for the run's own examples: a row per client and example, "client", "node",
    "graph" or "edge" (its place in the data), "id" where the data has ids, "split", "true", and columns "e_0", "e_1", …
    Of links: a row per client and node, as the decoder reads it, with "client", "node", "id" and the columns.

    model: which model of each client, by default the one that it uses.

    Raises:
        UserError: there is no such model or client, or it has no embeddings of examples.
    """
    weights, graphs, data = chosen_models(run, client, model), graphs_of(run.built.fed), run.built.data
    of_examples = data.links is None  # otherwise a row is a node
    tables = []
    for name, part in zip(run.built.fed.clients, run.visible_partition.parts, strict=True):
        if name not in weights:
            continue

        # 1. The last layer's input.
        net, w, graph = run.net_of(name), check_finite(weights[name]), graphs[name]
        embedded = None
        if len(net) > 1:
            with torch.no_grad():
                embedded = models.embedded(net, w, graph.to(device_of(w)))
        count = len(graph.y) if of_examples else graph.nodes
        if not isinstance(embedded, Tensor) or len(embedded) != count:
            raise UserError(
                f"the model of {name} has no embeddings of examples, what a last layer is computed from: take a model "
                "of two layers or more.",
                code="user.no-embeddings",
            )

        # 2. The rows that are not padding, and which examples or nodes they are.
        places, ids = (part.examples, data.ids) if of_examples else (part.nodes, data.node_ids)
        rows = embedded[: len(places)].cpu().numpy()  # [examples, width]
        columns: Record = {"client": [name] * len(places), data.example if of_examples else "node": places}
        if ids:
            columns["id"] = [ids[at] for at in places]
        if of_examples:
            columns["split"] = split_names(part.masks)
            if data.target == CLASS:
                columns["true"] = class_names(data.y[places], data.labels)
        for number in range(rows.shape[1]):
            columns[f"e_{number}"] = rows[:, number]
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)
