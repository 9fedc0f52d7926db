"""The command `fedweave contributions`."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedweave.cli.options import Loaded
from fedweave.report.document import unmarked

if not Loaded.for_help:
    from fedweave.experiment.runs.files import CONTRIBUTIONS, locked, write_table
    from fedweave.incentives.coalitions import GAINS_IN, MEASURED_ON
    from fedweave.payments.contributions import measured, totals, unpayable
    from fedweave.report.terminal import screen


def contributions(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    rounds: Annotated[str, typer.Option(help='Which rounds: "last", "all", or numbers such as 1,10,20.')] = "last",
    metric: Annotated[
        str,
        typer.Option(help="What a model is worth: by what judges the run (auto), accuracy, loss, average_precision, …"),
    ] = "auto",
    permutations: Annotated[int, typer.Option(help="Orders of joining that are drawn, above 12 clients.")] = 200,
) -> None:
    """What each client brought to the global model: leave-one-out and Shapley values of single rounds, and the shares
    of a budget that would follow; also to RUN/contributions.parquet.

    They are measured on the global test set or, without one, on all clients' test examples. docs/contributions.md says
    what each column means.
    """
    with locked(directory) if directory.is_dir() else nullcontext():  # so that no other run takes its place meanwhile
        table = measured(directory, rounds, metric, permutations)
        write_table(directory / CONTRIBUTIONS, table)
    where, what = (table.schema.metadata[key].decode() for key in (MEASURED_ON, GAINS_IN))
    shown = Table(box=None, header_style="dim")
    summed = totals(table)
    for name in summed.column_names:
        shown.add_column(name.replace("_", " "), justify="left" if name == "client" else "right")
    for row in summed.to_pylist():
        shown.add_row(*(unmarked(value) if isinstance(value, str) else f"{value:.4f}" for value in row.values()))
    console = screen()
    console.print(shown)
    numbers = sorted(set(table["round"].to_pylist()))
    count = len(numbers)
    console.print(
        f"{f'{count} rounds' if count > 1 else f'round {numbers[0]}'}, gains in {what} on {where}"
        f"{', summed; shares are of the sums, cosines are means' * (count > 1)}: {directory / CONTRIBUTIONS}",
        highlight=False,
        markup=False,
    )
    if any(value != value for row in summed.to_pylist() for value in row.values()):  # as NaN alone
        console.print("nan: these gains sum to nothing or less, so that no budget can be divided by them")
    if odd := unpayable(summed):
        console.print(
            f"{', '.join(odd)}: some member's share is more than the whole budget, since gains of both signs nearly "
            "cancel; pay nobody by it, measure more rounds or take another share"
        )
