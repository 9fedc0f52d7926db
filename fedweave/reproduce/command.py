"""The command `fedweave reproduce`."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedweave.errors import ConfigError

if TYPE_CHECKING:
    from fedweave.reproduce.paper import Paper, PaperTable


def reproduce(
    paper: Annotated[str | None, typer.Argument(metavar="PAPER", help="Which paper; without, they are listed.")] = None,
    table: Annotated[int | None, typer.Option(metavar="N", help="Its table N only.")] = None,
    figure: Annotated[int | None, typer.Option(metavar="N", help="Its figure N only.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A look of about a minute: not comparable.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where runs and tables are kept.")] = Path("reproduced"),
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at a time.")] = 1,
) -> None:
    """Run what a paper's tables report and print its numbers beside ours; finished runs are used again."""
    from fedweave.config.names import check_name
    from fedweave.report.terminal import screen
    from fedweave.reproduce.papers import PAPERS
    from fedweave.reproduce.session import Session
    from fedweave.reproduce.workers import Stopped

    console = screen()
    if paper is None:
        for name, about in PAPERS.items():
            for line in _listed(name, about):
                console.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    check_name("paper", paper, PAPERS)
    about = PAPERS[paper]
    chosen = [*_chosen("table", table, about.tables), *_chosen("figure", figure, about.figures)]
    if table is None and figure is None:
        chosen = [("table", n, it) for n, it in about.tables.items()]
        chosen += [("figure", n, it) for n, it in about.figures.items()]
    session = Session(console, out, quick, jobs)
    try:
        done = [session.show(f"{paper}-{kind}{n}", f"{about.title}, {kind} {n}", it) for kind, n, it in chosen]
    except Stopped as error:
        given = {"--table": table, "--figure": figure, "--out": out, "--jobs": jobs}
        words = ["fedweave", "reproduce", paper, *(["--quick"] if quick else [])]
        words += [str(word) for option in given.items() if option[1] is not None for word in option]
        typer.echo(f"{error} Continue with: {shlex.join(words)}", err=True)
        raise typer.Exit(128 + error.signal) from error
    if not all(done):
        raise typer.Exit(1)


def _chosen(kind: str, number: int | None, there: "Mapping[int, PaperTable]") -> "list[tuple[str, int, PaperTable]]":
    if number is None:
        return []
    if number not in there:
        valid = ", ".join(map(str, there)) or "none, there are none"
        raise ConfigError(f"--{kind}: there is no {kind} {number}; choose one of {valid}.")
    return [(kind, number, there[number])]


def _listed(name: str, paper: "Paper") -> Iterator[str]:
    yield f"{name}: {paper.title}"
    yield from _lines("--table", paper.tables)
    yield from _lines("--figure", paper.figures)


def _lines(option: str, tables: "Mapping[int, PaperTable]") -> Sequence[str]:
    return [f"  {f'{option} {number}':<12}{table.title}" for number, table in tables.items()]
