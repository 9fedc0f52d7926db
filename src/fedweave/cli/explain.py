"""The command `fedweave explain`: why a model gives one example its score."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedweave.accounts.document import print_line
from fedweave.cli.options import Chosen, ModelRound, OptionalNewData, RunOrModel, When, write_result_file
from fedweave.errors import UserError

TOP = 10  # reasons on a terminal


class Method(StrEnum):
    """How reasons are weighed (see `apply.reasons`)."""

    leave_out = "leave-out"
    gradients = "gradients"


def explain(
    place: RunOrModel,
    name: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The node, edge or small graph to explain.")
    ] = None,
    pair: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="SOURCE TARGET", help="Of a run on links: the pair of nodes to explain."),
    ] = None,
    relation: Annotated[
        str | None, typer.Option(metavar="NAME", help="Relation of the pair, where there are several.")
    ] = None,
    client: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a run's folder: the client that has the example.")
    ] = None,
    data: OptionalNewData = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Class, label or number to explain (the one looked for, or the predicted)."),
    ] = None,
    method: Annotated[
        Method,
        typer.Option(help="Leave columns, neighbors and edges out, or integrate gradients as a second opinion."),
    ] = Method.leave_out,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Also write a page (.html) or all reasons (.json)."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many reasons to show on the terminal.")] = TOP,
    model: Chosen = None,
    when: When = ModelRound.chosen,
) -> None:
    """Explain one score: which columns, neighbors and edges move it, each with the score without it.

    The command leaves each of them out in turn and asks the model again. It computes on your machine, needs no server,
    and sends nothing. Without --data the example is one of the run's own.
    """
    from fedweave.apply.reasons import explain as reasons_of
    from fedweave.experiment.runs.trained import round_in_words
    from fedweave.reports.explanation import page, show
    from fedweave.reports.terminal import screen

    if out is not None and out.suffix not in (".html", ".json"):
        raise UserError(f"--out {out}: name a file that ends in .html or .json.", code="explain.out")
    which = None if model is None else str(model)
    if relation is not None and pair is None:
        raise UserError("--relation is of a pair. Name it with --pair, or leave out --relation.", code="explain.pair")
    example: str | tuple[str, ...]
    if name is not None and pair is None:
        example = name
    elif pair is not None and name is None:
        example = pair if relation is None else (*pair, relation)
    else:
        raise UserError("name what to explain: --id ID, or of a run on links --pair SOURCE TARGET.", code="explain.one")
    explanation = reasons_of(place, example, client, data, which, target, method.value, when.value)
    if out is not None:
        write_result_file(out, lambda: page(explanation), explanation.record)
    show(explanation, top)
    of_round = round_in_words(place, when.value, which)
    if of_round:
        print_line(screen(), f"Model: {of_round}.")
    if out is not None:
        print_line(screen(), out)
