"""The commands `fedweave score|serve`, which use only one model and one site's tables."""

import os
from pathlib import Path
from typing import Annotated

import typer

from fedweave.accounts.document import print_line
from fedweave.cli.options import Chosen, ModelRound, NewData, Spreadsheet, When, check_table_file, write_table_file
from fedweave.core.text import counted

SCORES = Path("scores.parquet")
Scoring = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="scorer.safetensors; or a folder with it: an export, a site's folder after a run, or a run's folder.",
    ),
]
Whose = Annotated[str | None, typer.Option(metavar="NAME", help="Of a run's folder: the client whose model scores.")]


def score(
    place: Scoring,
    data: NewData,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FILE", help="A new .parquet or .csv file for the scores.")
    ] = SCORES,
    client: Whose = None,
    model: Chosen = None,
    when: When = ModelRound.chosen,
    spreadsheet: Spreadsheet = False,
) -> None:
    """Score new tables with one model, alone, where the data is.

    The command needs no server, no administrator and no other member, and nothing leaves the machine. It makes the
    columns as training did, and rejects tables of another form. Every row of the result has the score, the flag, the
    threshold, the model, the hash of the run and the time.
    """
    import pyarrow.compute as pc

    from fedweave.apply.scorer import scorer_at
    from fedweave.experiment.runs.trained import round_in_words
    from fedweave.reports.terminal import screen

    check_table_file(out, spreadsheet, "score.out")
    which = None if model is None else str(model)
    scorer = scorer_at(place, which, client, when.value)
    table = scorer.score(data)
    write_table_file(out, table, spreadsheet)
    of_round = round_in_words(place, when.value, which) or f"round {scorer.round:,}"
    text = f"{counted(len(table), scorer.form.example)} ({of_round})"
    if "flagged" in table.column_names:
        text += f", {pc.sum(table['flagged']).as_py() or 0:,} flagged"
    print_line(screen(), f"{text}: {out}")


def serve(
    place: Scoring,
    host: Annotated[str, typer.Option(help="Address to listen on; loopback unless you name another.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="Port to listen on; 0 takes a free one.")
    ] = 8100,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file of mode 0600 with the token that every request must carry; needed beyond loopback.",
        ),
    ] = None,
    body_mb: Annotated[
        float,
        typer.Option("--body-mb", min=0.001, max=1024, metavar="MB", help="Largest body of a request, in megabytes."),
    ] = 16.0,
    client: Whose = None,
    model: Chosen = None,
    when: When = ModelRound.chosen,
) -> None:
    """Answer requests for scores on this machine, as `fedweave score` gives them.

    POST /score takes rows as JSON; GET /health, /model and /version say how the server is. It needs the extra `serve`.
    It listens on loopback, where every user of the machine can ask; elsewhere only with a token. Put a proxy with TLS
    before it if requests come over a network.
    """
    from fedweave.apply.scorer import scorer_at
    from fedweave.export import serving

    serving.check_installed()
    token = None if token_file is None else serving.read_token(token_file)
    serving.check_address(host, token)
    scorer = scorer_at(place, None if model is None else str(model), client, when.value)
    app = serving.application(scorer, token, int(body_mb * 1e6), serving.names_of(host))
    with serving.listening(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"http://{shown}:{listener.getsockname()[1]} (process {os.getpid()}); stop with Ctrl-C")
        serving.run(app, listener)
