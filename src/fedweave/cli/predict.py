"""The command `fedweave predict`: predictions of a finished run's models, also for new nodes and graphs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from fedweave.apply.link_predictions import of_node, of_pairs
from fedweave.apply.predictions import (
    Metric,
    Predicted,
    SplitScores,
    embeddings_of_run,
    error_of,
    flagging_of,
    function,
    measured,
    of_new,
    of_own,
    of_own_links,
    predictions_table,
    right,
)
from fedweave.cli.options import ModelName, ModelRound
from fedweave.core.algorithm import capabilities
from fedweave.core.text import counted
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import OVER_NODES
from fedweave.errors import DataError, UserError, listed
from fedweave.experiment.build import Built, build
from fedweave.experiment.config import Config
from fedweave.experiment.runs.files import (
    EMBEDDINGS,
    NEW_PREDICTIONS,
    PAIRS_SCORED,
    PARTITION,
    PREDICTIONS,
    TOP_PAIRS,
    read_table,
    write_csv,
    write_table,
)
from fedweave.experiment.runs.trained import Trained, finished, here, trained
from fedweave.reports.terminal import screen

TOP = 10  # pairs of a node


class Asked(NamedTuple):
    """The pairs to score in a run on links: the pairs of a table, or a node's `top` pairs, optionally of one relation;
    without either, the run's own examples."""

    pairs: Path | None = None
    node: str | None = None
    top: int = TOP
    relation: str | None = None

    @property
    def of_links(self) -> bool:
        """Whether pairs were chosen."""
        return self.pairs is not None or self.node is not None


def write_predictions(
    directory: Path,
    data: Path | None,
    model: ModelName | None,
    client: str | None,
    when: ModelRound,
    out: Path | None,
    pairs: Path | None,
    node: str | None,
    top: int | None,
    relation: str | None,
    metric: list[str] | None,
    embeddings: bool,
    spreadsheet: bool,
) -> None:
    """Write predictions or embeddings, and print a line about them (`fedweave predict`)."""
    asked = Asked(pairs, node, top or TOP, relation)
    if sum(one is not None for one in (data, pairs, node)) > 1:
        raise UserError("--data, --pairs and --node: give one of them.", code="user.pairs")
    if embeddings and (data is not None or asked.of_links):
        raise UserError("--embeddings is for the run's own examples; leave out --data.", code="user.no-embeddings")
    if node is None and (top is not None or relation is not None):
        option = "--relation" if top is None else "--top"
        raise UserError(f"{option} needs a node: name one with --node.", code="user.pairs")
    of_links = PAIRS_SCORED if pairs is not None else TOP_PAIRS if node is not None else None
    usual = EMBEDDINGS if embeddings else of_links or (PREDICTIONS if data is None else NEW_PREDICTIONS)
    path = out or directory / usual
    if path.exists():
        raise UserError(f"{path} exists; name another file with --out, or remove it.")
    if path.suffix not in (".parquet", ".csv"):
        raise UserError(f"--out {path}: name a file that ends in .parquet or .csv.")
    if spreadsheet and path.suffix != ".csv":
        raise UserError(f"--spreadsheet is for a .csv file, and {path} is none; name one with --out.")
    if embeddings:
        table = embeddings_of_run(directory, None if model is None else str(model), client)
        (write_csv(path, table, spreadsheet) if path.suffix == ".csv" else write_table(path, table))
        screen().print(f"{len(table)} embeddings: {path}", highlight=False, markup=False, soft_wrap=True)
        return
    functions = _functions(metric or [], data)
    table = predictions(directory, data, None if model is None else str(model), client, when.value, asked)
    if path.suffix == ".csv":
        write_csv(path, table, spreadsheet)
    else:
        write_table(path, table)
    share = None if data is None else right(table)  # for its own examples the run's metrics show more
    error = None if data is None else error_of(table)
    known = "" if share is None else f", right for {share:.1%} of the examples with a known class"
    known += "" if error is None else f", RMSE {error:.4g} over the examples with a known number"
    lines = [f"{len(table)} predictions{known}: {path}"]
    if pairs is not None and (lost := table["score"].null_count):
        lines.append(f"note: no client has both ends of {counted(lost, 'pair')}, so that these have no score")
    if node is not None:
        rows = (row.values() for row in table.to_pylist())
        lines += ["  ".join(f"{one:.4f}" if isinstance(one, float) else str(one) for one in row) for row in rows]
    if model is ModelName.trained and client is None and (left := _without_rows(directory, table)):
        lines.append(f"note: {counted(len(left), 'client')} never trained and have no rows: {listed(left)}")
    lines += [_describe_scores(measured(table, function)) for function in functions]
    screen().print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _functions(names: Sequence[str], data: Path | None) -> list[Metric]:
    """The user's own metrics; they are not measured on new examples, which have no split."""
    if names and data is not None:
        raise UserError("--metric is for the run's own test examples; leave out --data.")
    return [function(name) for name in names]


def _describe_scores(scores: SplitScores) -> str:
    """A metric's values: mean over members, over all examples together, and on the global test graph."""
    overall = "" if scores.overall is None else f", on the global test graph {scores.overall:.4f}"
    return f"{scores.name}: mean over clients {scores.local:.4f}, of all test examples {scores.pooled:.4f}{overall}"


def _without_rows(directory: Path, table: pa.Table) -> list[str]:
    """The clients of a run without predictions."""
    predicted_clients = set(table["client"].to_pylist())
    return [
        client for client in read_table(directory, PARTITION)["client"].to_pylist() if client not in predicted_clients
    ]


def predictions(
    directory: Path,
    data: Path | None = None,
    model: str | None = None,
    client: str | None = None,
    when: Literal["last", "best"] = "last",
    asked: Asked | None = None,
) -> pa.Table:
    """The table that `predict` writes (see `experiment.runs.predictions.predictions_table`).

    In a vertical run "node" is the position among the common nodes sorted by id (docs/data-format.md). Parties without
    labels have no trained prediction and no rows. It takes the same exchanges as the algorithm's evaluation.

    Raises:
        UserError: the run is not finished or was made between sites, or has no such model or client. DataError: the
            data is rejected, or has another form than the run's.
    """
    config = finished(directory)
    run = trained(directory, config, f"Predict there, too: fedweave sites predict {directory} --sites DIR", when)
    if config.links is not None:
        return _of_links(run, data, model, client, asked or Asked())
    if asked is not None and asked.of_links:
        raise UserError("--pairs and --node are for runs whose examples are links (data.task).", code="user.pairs")
    if not capabilities(config.algorithm.kind).predicts:
        return of_own(run, model, client) if data is None else of_new(run, data, model, client)
    if model is not None or client is not None:
        raise UserError("the parties of a vertical run predict jointly; leave out --model and --client.")
    return _jointly(run, data)


def _of_links(run: Trained, data: Path | None, model: str | None, client: str | None, asked: Asked) -> pa.Table:
    """Predictions of the models of a run on links."""
    if data is not None:
        raise UserError(
            "the run predicts links of the nodes that it knows; give pairs of them with --pairs, or a node with "
            "--node, instead of --data.",
            code="user.pairs",
        )
    if asked.pairs is not None:
        return of_pairs(run, asked.pairs, model, client)
    if asked.node is not None:
        return of_node(run, asked.node, asked.top, asked.relation, model, client)
    return of_own_links(run, model, client)


def _jointly(run: Trained, data: Path | None) -> pa.Table:
    """Predictions of the parties of a vertical run."""
    built = run.built
    if data is not None:
        try:
            now = build(here(_on(run.config, data, built.data)))
        except DataError as error:
            raise DataError(
                f"{error} (--data needs all parties' new nodes together with the old, whose labels stay.)",
                code="data.new-beside-old",
            ) from error
        snapshot, round = built.fed.snapshot(), built.fed.round
        built = _same_parties(built, now, data)
        built.fed.restore(snapshot)
        built.fed.begin(round)
    built.algorithm.predict(run.state, built.fed)
    states, nodes = built.fed.snapshot(), np.arange(built.data.nodes)
    probabilities = {
        client: states[client]["prediction"] for client in built.fed.clients if "prediction" in states[client]
    }
    masks = {client: part.masks for client, part in zip(run.built.fed.clients, run.seen.parts, strict=True)}
    party_predictions = [
        Predicted(client, p, nodes, masks[client] if data is None else None) for client, p in probabilities.items()
    ]
    return predictions_table(
        party_predictions,
        built.data.ids,
        built.data.labels,
        y=built.data.y,
        flagging=flagging_of(run, {}, probabilities if data is None else None),
    )


def _on(config: Config, data: Path, before: Dataset) -> Config:
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
        known = {"labels": before.labels} if before.labels else {"classes": before.classes}
        values = values | {"labels": None, "classes": None} | known
    data_section, cut = replace(config.data, values=values), replace(config.partition, values=options)
    return replace(config, folder=str(data), data=data_section, partition=cut)


def _same_parties(before: Built, now: Built, data: Path) -> Built:
    """`now`, if the run's models fit it."""
    if odd := _unlike(before, now):
        raise UserError(f"{data} does not fit the run: {odd}.", code="user.columns")
    return now


def _unlike(before: Built, now: Built) -> str:
    """The difference between new data and the run's data that its models do not allow, and the remedy."""
    if before.data.labels and (new := [name for name in now.data.labels if name not in before.data.labels]):
        known = ", ".join(before.data.labels)
        return f"the run has no label {', '.join(new)}, only {known}. Correct it, or leave it empty"
    if before.data.classes != now.data.classes:
        counts = f"it has {counted(now.data.classes, 'class')}, and the run {before.data.classes}"
        return f"{counts}. If nodes do not have all labels, set [data] labels or classes in the run's configuration"
    if before.fed.clients != now.fed.clients:
        return f"its parties are {', '.join(now.fed.clients)}, and the run's {', '.join(before.fed.clients)}"
    for client, old, new in zip(before.fed.clients, *map(_columns, (before, now)), strict=True):
        if old != new:
            lacking, more = ([name for name in one if name not in other] for one, other in ((old, new), (new, old)))
            parts = (f"lacks {', '.join(lacking)}" if lacking else "", f"also has {', '.join(more)}" if more else "")
            how = " and ".join(filter(None, parts)) or f"has its columns in the order {', '.join(new)}"
            return f"party {client} {how}. Give it the run's columns, in their order: {', '.join(old)}"
    return ""


def _columns(built: Built) -> list[list[str]]:
    """The names of each party's features, or their numbers."""
    if parties := built.data.parties:
        return [list(part.names) or _numbered(part.columns) for part in parties]
    return [_numbered(part.columns) for part in built.partition.parts if part.columns is not None]


def _numbered(columns: np.ndarray) -> list[str]:
    return [f"column {at}" for at in range(len(columns))]
