"""The command `fedweave predict`: what the parties of a finished vertical run jointly predict, also for new nodes."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave.errors import DataError, UserError

if TYPE_CHECKING:  # the command line imports this module, and should start quickly
    import pyarrow as pa


def predict(directory: Path, data: Path | None = None, out: Path | None = None) -> None:
    """Predict every node's class with the models of the finished vertical run DIRECTORY, jointly over its parties.

    --data is a folder of the same parties with the new nodes beside the old; without it the run's own nodes are
    predicted. Writes a row per node and party that has labels, by default to DIRECTORY/predictions.parquet; --out names
    another file, .parquet or .csv.
    """
    from pyarrow import csv

    from fedweave.report.terminal import screen
    from fedweave.runs.files import write, write_table
    from fedweave.runs.predictions import PREDICTIONS

    path = out or directory / PREDICTIONS
    if path.exists():
        raise UserError(f"{path} exists; name another file with --out, or remove it.")
    if path.suffix not in (".parquet", ".csv"):
        raise UserError(f"--out {path}: name a file that ends in .parquet or .csv.")
    table = predictions(directory, data)
    if path.suffix == ".csv":
        write(path, lambda file: csv.write_csv(table, file))
    else:
        write_table(path, table)
    screen().print(f"{len(table)} predictions: {path}", highlight=False, markup=False, soft_wrap=True)


def predictions(directory: Path, data: Path | None = None) -> "pa.Table":
    """Columns "client", "node" (position among the common nodes sorted by id, see docs/data-format.md), "id" (where the
    parties' tables name nodes), "class" (the most probable), "label" (its name, where [data] labels are set), and "p0",
    "p1", … its probabilities. Clients without labels have no trained prediction and no rows. It takes as many exchanges
    as the algorithm's evaluation.

    Raises:
        UserError: the run is not finished or was made between sites, its algorithm does not predict jointly, or the
            data is not of its parties.
    """
    from fedweave.build import build
    from fedweave.runs.checkpoint import Checkpoint
    from fedweave.runs.files import CHECKPOINT
    from fedweave.runs.predictions import predictions_table

    config = finished_run(directory)
    if config.engine.name != "simulation":
        raise UserError(
            f"{directory} was trained between sites, where its models are. Predict there, too: "
            f"fedweave sites predict {directory} --sites DIR"
        )
    built = build(config)
    if data is not None:
        try:
            now = build(_on(config, data))
        except DataError as error:
            raise DataError(
                f"{error} (--data needs all parties' new nodes beside the old, whose labels stay.)"
            ) from error
        built = _same_parties(built, now, data)
    reached = Checkpoint.load(directory / CHECKPOINT)
    built.fed.restore(reached.fed)
    built.fed.begin(reached.round)
    built.algorithm.predict(reached.state, built.fed)
    states = built.fed.snapshot()
    told = {client: states[client]["prediction"] for client in built.fed.clients if "prediction" in states[client]}
    return predictions_table(told, built.data.nodes, built.data.ids, config.data.values.get("labels") or ())


def finished_run(directory: Path) -> Any:
    """The configuration of the finished run in `directory`.

    Raises:
        UserError: there is none, or its algorithm does not predict jointly.
    """
    from fedweave.config import read
    from fedweave.config.plugins import registry
    from fedweave.core.algorithm import capabilities
    from fedweave.runs.files import CONFIG, SUMMARY

    if not (directory / SUMMARY).exists():
        raise UserError(
            f"{directory} holds no finished run: it has no {SUMMARY}. Finish it with `fedweave run --resume`."
        )
    config, _ = read(directory / CONFIG)
    if not capabilities(config.algorithm.kind).predicts:
        able = ", ".join(name for name, kind in registry("algorithm").items() if capabilities(kind).predicts)
        raise UserError(
            f"the run's algorithm {config.algorithm.name!r} has no joint prediction; those for vertically split data "
            f"have: {able}."
        )
    return config


def _on(config: Any, data: Path) -> Any:
    """The run's configuration on other data, whose split does not matter."""
    from fedweave.datasets.features import OVER_NODES

    values, partition = config.data.values, config.partition.values
    if values.get("normalise", "none") in OVER_NODES:
        raise UserError(
            f"the run was made with data.normalise = {values['normalise']!r}, which would scale the new nodes "
            "otherwise than the old. Scale the features yourself and train with data.normalise = 'none'."
        )
    kept = {key: partition[key] for key in partition if key not in ("public_split", "train_rest")}
    return replace(config, folder=str(data), partition=replace(config.partition, values=kept))


def _same_parties(before: Any, now: Any, data: Path) -> Any:
    """`now`, if the run's models fit it."""
    for what, of in (
        ("classes", lambda built: built.data.classes),
        ("parties", lambda built: ", ".join(built.fed.clients)),
        ("features per party", lambda built: [len(part.columns) for part in built.partition.parts]),
        ("feature columns", lambda built: [", ".join(party.names) for party in built.data.parties or ()]),
    ):
        if of(before) != of(now):
            raise UserError(
                f"{data} has other {what} than the run: {of(now)} for {of(before)}. Give the run's parties and "
                "columns; set [data] labels or classes in the run's configuration where new nodes have no labels."
            )
    return now
