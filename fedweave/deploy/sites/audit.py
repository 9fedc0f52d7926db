"""The command `fedweave audit`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedweave.deploy.flare.audit import Run


def audit(
    directory: Annotated[Path, typer.Argument(metavar="SITE_DIR", help="The folder of a site.")],
) -> None:
    """Show a site's owner what was asked, what left to whom, what it cost in ε, and what was refused."""
    from fedweave.deploy.flare.audit import audit as read
    from fedweave.report.ledger import flow_table, spelt
    from fedweave.report.terminal import screen

    found, console = read(directory), screen()
    for run in found.runs:
        console.print(f"[bold]{_safe(run.name)}[/]", highlight=False)
        for line in _told(run):
            console.print(line, highlight=False, soft_wrap=True)
        if run.flows:
            console.print(flow_table(run.flows, 1, found.delta))
    cost = spelt(found.spent.account, found.delta) or "0"
    told = f"all runs: {found.spent.bytes:,} bytes have left; their ε is {cost} at δ = {found.delta:g}"
    if found.spent.account.cost.unbounded:
        told += ": at least some left without noise, and nothing limits what these tell"
    console.print(told, highlight=False, soft_wrap=True)
    console.print("added up over runs, or as CSV: fedweave ledger, with the same folder", highlight=False)


def _told(run: "Run") -> list[str]:
    """Jobs, refusals and damage, a line each."""
    told = []
    for note in run.joined:
        where = "from the start" if note.get("after") == -1 else f"from round {note.get('after')}"
        what = "prediction" if note.get("predict") else "training"
        versions = f"fedweave {note.get('fedweave')}, torch {note.get('torch')}"
        config = f"configuration {str(note.get('pin'))[:12]}"
        told.append(
            _safe(f"{note['at']}  the server began {what}, {where}: {note.get('algorithm')}, {config}, {versions}")
        )
    for note in run.lists:
        counts = ", ".join(f"{site} {count}" for site, count in dict(note.get("counts") or {}).items())
        told.append(_safe(f"{note['at']}  ids on the lists that were compared: {counts}"))
    for note in run.aligned:
        kept = f"{note.get('common')} of the site's {note.get('own')} nodes"
        told.append(_safe(f"{note['at']}  the server named {kept} as common to all"))
    for note in run.refused:
        told.append(f"[red]{_safe(note['at'])}  refused[/] {_safe(note.get('asked'))}: {_safe(note.get('why'))}")
    if run.damaged:
        told.append(f"[red]{run.damaged} damaged lines[/]: what they say has left is counted nowhere")
    return told


def _safe(text: object) -> str:
    from rich.markup import escape

    from fedweave.core.text import printable

    return escape(printable(str(text)))
