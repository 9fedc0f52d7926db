"""The command `fedweave reproduce`."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedweave.cli.options import Loaded
from fedweave.experiment.config.toml import check_name
from fedweave.papers import selection
from fedweave.papers.paper import Paper, PaperTable
from fedweave.papers.protocol import CLEAN

if not Loaded.for_help:
    from fedweave.papers.papers import PAPERS, PROTOCOLS
    from fedweave.papers.session import Session
    from fedweave.papers.workers import Stopped
    from fedweave.report.terminal import screen


def reproduce(
    paper: Annotated[str | None, typer.Argument(metavar="PAPER", help="Which paper; without, they are listed.")] = None,
    table: Annotated[int | None, typer.Option(metavar="N", help="Its table N only.")] = None,
    figure: Annotated[int | None, typer.Option(metavar="N", help="Its figure N only.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A look of some minutes: not comparable.")] = False,
    protocol: Annotated[
        str, typer.Option(metavar="NAME", help="How runs are made and judged: clean, or one that the paper lists.")
    ] = "clean",
    one_off: Annotated[
        bool, typer.Option("--one-off", help="What each setting of --protocol is worth, one table in place of all.")
    ] = False,
    data: Annotated[str | None, typer.Option(metavar="NAME", help="Only the cells of one data set.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only rows or columns of this name; may be repeated.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="A-B", help="These seeds, such as 0-3 or 0,2,5.")] = None,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Where runs and tables are kept.")] = Path(
        "reproduced"
    ),
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at a time.")] = 1,
) -> None:
    """Run what a paper's tables report and print its numbers beside ours; finished runs are used again."""
    console = screen()
    if paper is None:
        for name, about in PAPERS.items():
            for line in _listed(name, about, PROTOCOLS.get(name, {})):
                console.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    check_name("paper", paper, PAPERS)
    about = PAPERS[paper]
    every = selection.tables(paper, about, PROTOCOLS.get(paper, {}), table, figure, protocol, one_off)
    chosen = selection.of_names(selection.of_data(every, data), only or ())
    session = Session(console, out, quick, jobs, selection.seeds_of(seeds))
    try:
        done = [session.show(name, heading, it) for name, heading, it in chosen]
    except Stopped as error:
        given = {"--table": table, "--figure": figure, "--data": data, "--seeds": seeds, "--out": out, "--jobs": jobs}
        given |= {"--protocol": protocol} if protocol != CLEAN else {}
        words = ["fedweave", "reproduce", paper, *["--quick"] * quick, *["--one-off"] * one_off]
        words += [word for name in only or () for word in ("--only", name)]
        words += [str(word) for option in given.items() if option[1] is not None for word in option]
        typer.echo(f"{error} Continue with: {shlex.join(words)}", err=True)
        raise typer.Exit(128 + error.signal) from error
    if not all(done):
        raise typer.Exit(1)


def _listed(name: str, paper: "Paper", protocols: "Iterable[str]") -> Iterator[str]:
    yield f"{name}: {paper.title}"
    yield from _lines("--table", paper.tables)
    yield from _lines("--figure", paper.figures)
    for protocol in protocols:
        yield f"  --protocol {protocol}, with --one-off: what each of its settings is worth"


def _lines(option: str, tables: "Mapping[int, PaperTable]") -> Sequence[str]:
    return [f"  {f'{option} {number}':<12}{table.title}" for number, table in tables.items()]
