"""The command `fedweave reproduce`."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedweave.errors import ConfigError

if TYPE_CHECKING:
    from fedweave.reproduce.paper import Paper, PaperTable
    from fedweave.reproduce.protocol import Protocol

CLEAN = "clean"  # the protocol of the tables as they stand (`protocol.CLEAN`, which takes long to import)


def reproduce(
    paper: Annotated[str | None, typer.Argument(metavar="PAPER", help="Which paper; without, they are listed.")] = None,
    table: Annotated[int | None, typer.Option(metavar="N", help="Its table N only.")] = None,
    figure: Annotated[int | None, typer.Option(metavar="N", help="Its figure N only.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A look of about a minute: not comparable.")] = False,
    protocol: Annotated[
        str, typer.Option(metavar="NAME", help="How runs are made and judged: clean, or one that the paper lists.")
    ] = "clean",
    one_off: Annotated[
        bool, typer.Option("--one-off", help="What each setting of --protocol is worth, one table in place of all.")
    ] = False,
    data: Annotated[str | None, typer.Option(metavar="NAME", help="Only the cells of one data set.")] = None,
    seeds: Annotated[str | None, typer.Option(metavar="A-B", help="These seeds, such as 0-3 or 0,2,5.")] = None,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Where runs and tables are kept.")] = Path(
        "reproduced"
    ),
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at a time.")] = 1,
) -> None:
    """Run what a paper's tables report and print its numbers beside ours; finished runs are used again."""
    from fedweave.config.names import check_name
    from fedweave.report.terminal import screen
    from fedweave.reproduce.papers import PAPERS, PROTOCOLS
    from fedweave.reproduce.session import Session
    from fedweave.reproduce.workers import Stopped

    console = screen()
    if paper is None:
        for name, about in PAPERS.items():
            for line in _listed(name, about, PROTOCOLS.get(name, {})):
                console.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    check_name("paper", paper, PAPERS)
    about = PAPERS[paper]
    chosen = _of_data(_tables(paper, about, PROTOCOLS.get(paper, {}), table, figure, protocol, one_off), data)
    session = Session(console, out, quick, jobs, _seeds(seeds))
    try:
        done = [session.show(name, heading, it) for name, heading, it in chosen]
    except Stopped as error:
        given = {"--table": table, "--figure": figure, "--data": data, "--seeds": seeds, "--out": out, "--jobs": jobs}
        given |= {"--protocol": protocol} if protocol != CLEAN else {}
        words = ["fedweave", "reproduce", paper, *["--quick"] * quick, *["--one-off"] * one_off]
        words += [str(word) for option in given.items() if option[1] is not None for word in option]
        typer.echo(f"{error} Continue with: {shlex.join(words)}", err=True)
        raise typer.Exit(128 + error.signal) from error
    if not all(done):
        raise typer.Exit(1)


def _tables(
    paper: str,
    about: "Paper",
    protocols: "Mapping[str, Protocol]",
    table: int | None,
    figure: int | None,
    protocol: str,
    one_off: bool,
) -> "list[tuple[str, str, PaperTable]]":
    """What to show: the name of its files, its heading, and the table."""
    from fedweave.config.names import check_name

    check_name("--protocol", protocol, {CLEAN: None, **protocols})
    if one_off:
        if protocol == CLEAN or table is not None or figure is not None:
            raise ConfigError("--one-off is a table of its own, of a protocol: give --protocol script, and no --table.")
        return [(f"{paper}-{protocol}-one-off", f"{about.title}, {protocol}", protocols[protocol].one_off())]
    chosen = [*_chosen("table", table, about.tables), *_chosen("figure", figure, about.figures)]
    if table is None and figure is None:
        chosen = [("table", n, it) for n, it in about.tables.items()]
        chosen += [("figure", n, it) for n, it in about.figures.items()]
    if protocol == CLEAN:
        return [(f"{paper}-{kind}{n}", f"{about.title}, {kind} {n}", it) for kind, n, it in chosen]
    return [
        (f"{paper}-{kind}{n}-{protocol}", f"{about.title}, {kind} {n}, {protocol}", protocols[protocol].table(it))
        for kind, n, it in chosen
    ]


def _of_data(tables: "list[tuple[str, str, PaperTable]]", data: str | None) -> "list[tuple[str, str, PaperTable]]":
    """The tables' cells of one data set, in files of their own; tables without it are left out."""
    if data is None:
        return tables
    there = {cell.document["data"]["name"] for _, _, table in tables for cell in table.cells}
    if data not in there:
        raise ConfigError(f"--data: no table has {data!r}; choose one of {', '.join(sorted(there))}.")
    found = []
    for name, heading, table in tables:
        if cells := tuple(cell for cell in table.cells if cell.document["data"]["name"] == data):
            found.append((f"{name}-{data}", f"{heading}, {data}", replace(table, cells=cells)))
    return found


def _seeds(text: str | None) -> Sequence[int] | None:
    """Seeds written as "0-3" or "0,2,5"."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    seeds = range(int(match[1]), int(match[2]) + 1) if match else [int(n) for n in text.split(",") if n.isdigit()]
    if not seeds or (not match and len(seeds) != len(text.split(","))) or len(set(seeds)) != len(seeds):
        raise ConfigError(
            f"--seeds {text}: give the first and the last, such as 0-3, or different ones, such as 0,2,5."
        )
    return seeds


def _chosen(kind: str, number: int | None, there: "Mapping[int, PaperTable]") -> "list[tuple[str, int, PaperTable]]":
    if number is None:
        return []
    if number not in there:
        valid = ", ".join(map(str, there)) or "none, there are none"
        raise ConfigError(f"--{kind}: there is no {kind} {number}; choose one of {valid}.")
    return [(kind, number, there[number])]


def _listed(name: str, paper: "Paper", protocols: "Iterable[str]") -> Iterator[str]:
    yield f"{name}: {paper.title}"
    yield from _lines("--table", paper.tables)
    yield from _lines("--figure", paper.figures)
    for protocol in protocols:
        yield f"  --protocol {protocol}, with --one-off: what each of its settings is worth"


def _lines(option: str, tables: "Mapping[int, PaperTable]") -> Sequence[str]:
    return [f"  {f'{option} {number}':<12}{table.title}" for number, table in tables.items()]
