"""The command `fedweave predict`: predictions of a finished run's models, also for new nodes and graphs."""

from pathlib import Path
from typing import Annotated

import typer

from fedweave.accounts.document import print_line
from fedweave.cli.options import (
    Chosen,
    Client,
    ModelName,
    ModelRound,
    OptionalNewData,
    Spreadsheet,
    When,
    check_table_file,
    write_table_file,
)
from fedweave.core.text import counted
from fedweave.errors import UserError, listed

TOP = 10  # pairs of a node


def predict(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    data: OptionalNewData = None,
    model: Chosen = None,
    client: Client = None,
    when: When = ModelRound.chosen,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="A .parquet or .csv file (RUN/predictions.parquet; with --data RUN/new-predictions.parquet).",
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For a run on links: score the pairs in this table of source and target."),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(metavar="ID", help="For a run on links: the pairs of this node with the highest scores."),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option("--top", min=1, metavar="N", help="Number of pairs of --node, without known links (10)."),
    ] = None,
    relation: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Relation of the pairs of --node; all relations by default."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.py:NAME", help="Also print your own metric, on test examples; repeatable."),
    ] = None,
    spreadsheet: Spreadsheet = False,
) -> None:
    """Predict classes, numbers or labels with the models of a finished run.

    Without --data it predicts the run's own examples: each client's with the model that the client uses, and the global
    test graph's with the global model. New examples get the global model if there is one, else a row for every client.
    The parties of a vertical run predict jointly, and --data holds the new nodes together with the old.
    """
    from fedweave.apply.own_metrics import load_metric, measure
    from fedweave.apply.prediction_table import accuracy_of, rmse_of
    from fedweave.apply.run_predictions import PairQuery, predictions
    from fedweave.experiment.runs import files
    from fedweave.experiment.runs.trained import round_in_words
    from fedweave.reports.terminal import screen

    # 1. Options that do not go together.
    if [data, pairs, node].count(None) < 2:
        raise UserError("--data, --pairs and --node: give one of them.", code="user.pairs")
    if node is None and (top is not None or relation is not None):
        option = "--relation" if top is None else "--top"
        raise UserError(f"{option} needs a node: name one with --node.", code="user.pairs")
    default = files.PREDICTIONS
    if data is not None:
        default = files.NEW_PREDICTIONS
    elif pairs is not None:
        default = files.PAIRS_SCORED
    elif node is not None:
        default = files.TOP_PAIRS
    path = out or directory / default
    check_table_file(path, spreadsheet)
    if metric and data is not None:  # new examples have no split
        raise UserError("--metric is for the run's own test examples; leave out --data.")

    # 2. The file.
    which = None if model is None else str(model)
    functions = [load_metric(name) for name in metric or ()]
    query = PairQuery(pairs, node, top or TOP, relation)
    table = predictions(directory, data, which, client, when.value, query)
    write_table_file(path, table, spreadsheet)

    # 3. What it has.
    text = f"{len(table)} predictions ({round_in_words(directory, when.value, which)})"
    if data is not None:  # for its own examples the run's metrics show more
        share, error = accuracy_of(table), rmse_of(table)
        text += "" if share is None else f", right for {share:.1%} of the examples with a known class"
        text += "" if error is None else f", RMSE {error:.4g} over the examples with a known number"
    lines = [f"{text}: {path}"]
    if pairs is not None and table["score"].null_count:
        unscored = counted(table["score"].null_count, "pair")
        lines.append(f"note: no client has both ends of {unscored}, so that these have no score")
    if node is not None:
        for row in table.to_pylist():
            cells = [f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()]
            lines.append("  ".join(cells))
    if model is ModelName.trained and client is None:
        with_rows = {*table["client"].to_pylist()}
        clients = files.read_table(directory, files.PARTITION)["client"].to_pylist()
        without_rows = [name for name in clients if name not in with_rows]
        if without_rows:
            never = counted(len(without_rows), "client")
            lines.append(f"note: {never} never trained and have no rows: {listed(without_rows)}")
    for own_metric in functions:
        scores = measure(table, own_metric)
        overall = "" if scores.overall is None else f", on the global test graph {scores.overall:.4f}"
        means = f"mean over clients {scores.local:.4f}, of all test examples {scores.pooled:.4f}"
        lines.append(f"{scores.name}: {means}{overall}")
    console = screen()
    for line in lines:
        print_line(console, line)
