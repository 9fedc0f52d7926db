"""What a trained model gives a member as columns for other models: the scores of its examples, and the vectors that the
model's last layer reads."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from fedweave.apply.predictions import examples_table, predict_new
from fedweave.apply.scorer import scorer_at
from fedweave.core import model as models
from fedweave.core.algorithm import capabilities, graphs_of
from fedweave.core.tree import device_of
from fedweave.core.types import Record
from fedweave.errors import UserError, option
from fedweave.experiment.config import Config
from fedweave.experiment.runs import run as runs
from fedweave.experiment.runs.checkpoint import When
from fedweave.experiment.runs.files import CONFIG
from fedweave.experiment.runs.fold_runs import out_of_fold
from fedweave.experiment.runs.outputs import check_rows, example_predictions
from fedweave.experiment.runs.trained import Trained, check_finite, chosen_models, finished_config, load_trained


class Embedded(NamedTuple):
    """The table of `fedweave embed`. agreement: see `experiment.runs.fold_runs.OutOfFold`; None without folds."""

    table: pa.Table
    agreement: tuple[float, float] | None = None


_AT_SITES = "On a site's machine: `fedweave embed SITE --data PATH`."


def embeddings(
    place: Path,
    data: Path | None = None,
    model: str | None = None,
    client: str | None = None,
    when: When = "chosen",
    folds: int = 0,
    watch: Callable[[Config], runs.RunObserver] = lambda experiment: runs.Quiet(),
) -> Embedded:
    """The table of `fedweave predict` for the examples of the run at `place`, or for new ones at `data`, and behind it
    "e_0", "e_1", …, float32: what the models' last layers read of each example. Of links: see `node_vectors`. Where
    `place` is a model or a site (`apply.scorer.scorer_at`), only for new examples.

    model: which model of each client, by default the one that it uses; for new examples, the global one if there is
    one. client: only with this client's model. folds: above 0, training examples are predicted by this number of
    further runs, each without the labels of one fold (`experiment.runs.fold_runs`), and "fold" is the fold of each.
    watch: makes an observer for each of these, from its configuration.

    Raises:
        UserError: the run is not finished, is of parties, or was made between sites; there is no such model or client,
            or it has no such vectors; its labels cannot be withheld; a model is given no data, or is to train.
            DataError: the data is refused, or of another form than the run's.
    """
    # 1. A model without a run.
    if not (place / CONFIG).is_file():
        if folds:
            raise UserError(
                f"{option('folds', folds)}: {place} holds a model, which is not trained again. Give the folder of a "
                "simulation's run.",
                code="user.folds",
            )
        scorer = scorer_at(place, model, client, when)
        if data is None:
            raise UserError(
                f"{place} holds a model and no examples. Give tables as {option('data')}, such as the folder of a "
                "site's own data.",
                code="user.no-data",
            )
        return Embedded(scorer.embed(data))

    # 2. What such a run cannot give.
    config = finished_config(place)
    if capabilities(config.algorithm.kind).predicts:
        raise UserError(
            "the parties of a vertical run predict jointly, and no model has all of an example.",
            code="user.no-embeddings",
        )
    if folds and data is not None:
        raise UserError(
            f"{option('folds')} is for the run's own training examples; leave out {option('data')}.", code="user.folds"
        )
    if folds and config.links is not None:
        raise UserError(
            f"{option('folds')}: the run predicts links, and a node has no label that could be withheld. Leave it out.",
            code="user.folds",
        )
    if data is not None and config.links is not None:
        raise UserError(
            f"{option('data')}: the run predicts links of the nodes that it knows, and has vectors of these only. "
            "Leave it out.",
            code="user.no-embeddings",
        )

    # 3. The vectors of nodes, of new examples, or of the run's.
    run = load_trained(place, config, _AT_SITES, when, model)
    if config.links is not None:
        return Embedded(node_vectors(run, model, client))
    if data is not None:
        return Embedded(predict_new(run, data, model, client, with_vectors=True))
    if not folds:
        return Embedded(examples_table(run, example_predictions(run, model, client, with_vectors=True), model, client))

    def train(experiment: Config, folder: Path) -> None:
        runs.run(experiment, folder, watch(experiment), resume=True)

    result = out_of_fold(run, folds, train, model, client)
    table = examples_table(run, result.predictions, model, client)
    numbers = np.concatenate(result.folds)
    after_split = table.column_names.index("split") + 1
    return Embedded(table.add_column(after_split, "fold", pa.array(numbers, mask=numbers == 0)), result.agreement)


def node_vectors(run: Trained, model: str | None = None, client: str | None = None) -> pa.Table:
    """A row for each client and node of a run on links: "client", "node", "id" and "e_0", "e_1", …, what the decoder
    reads of the node.

    Raises:
        UserError: there is no such model or client, or it has no such vectors.
    """
    weights, graphs, data = chosen_models(run, client, model), graphs_of(run.built.fed), run.built.data
    tables = []
    for name, part in zip(run.built.fed.clients, run.visible_partition.parts, strict=True):
        if name not in weights:
            continue
        net, w, graph = run.net_of(name), check_finite(weights[name]), graphs[name]
        embedded = None
        if len(net) > 1:
            with torch.no_grad():
                embedded = models.embedded(net, w, graph.to(device_of(w)))
        rows = check_rows(embedded, graph.nodes, name)[: len(part.nodes)].float().cpu().numpy()  # [nodes, d]
        columns: Record = {"client": [name] * len(part.nodes), "node": part.nodes}
        if data.node_ids:
            columns["id"] = [data.node_ids[at] for at in part.nodes]
        for number in range(rows.shape[1]):
            columns[f"e_{number}"] = rows[:, number]
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)
