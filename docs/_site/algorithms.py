"""A page for each algorithm, made from its file: paper, method, deviations, settings, what leaves, results."""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import reference
from docstrings import listed

from fedweave.algorithms import ALGORITHMS, GROUPS, PARTS
from fedweave.experiment import config
from fedweave.reports.listing import meanings

DOCS = Path(__file__).parents[1]
SYSTEMS = {  # algorithms that a page of their own explains further
    "f2gnn": ("F²GNN", "f2gnn.md"),
    "fairgfl": ("FairGFL", "fairgfl.md"),
    "fairgraphfl": ("FairGraphFL", "fairgraphfl.md"),
    "fedego": ("FedEgo", "fedego.md"),
    "fedsage": ("FedSage+", "fedsage.md"),
    "fedsage_plus": ("FedSage+", "fedsage.md"),
    "fede": ("Knowledge graphs", "knowledge-graphs.md"),
    **dict.fromkeys(GROUPS["Parties with the same nodes"], ("GLASU, vertical federations", "vertical.md")),
}
_BASE = "fedavg"  # whose settings other pages list by name alone
_HEAD = ("method", "clients' models", "to fedavg", "to local")  # columns of the table of baselines that a page repeats


def pages() -> dict[str, str]:
    """{path in the site: Markdown}: the index, which lists the algorithms by what they are for, and their pages."""
    return {"reference/algorithm.md": index()} | {
        f"reference/algorithms/{name}.md": page(name, kind) for name, kind in ALGORITHMS.items()
    }


def index() -> str:
    """The algorithms by what they are for, with what each is and where its page is."""
    lines = [
        "# `[algorithm]`",
        f"How the clients train together. `name` is `{_BASE}` unless you choose another. Each algorithm has a page "
        "with its paper, its settings and an example. `fedweave list algorithms` prints the same list.",
    ]
    grouped = {name for names in GROUPS.values() for name in names}
    rest = tuple(name for name in ALGORITHMS if name not in grouped)
    for title, names in (GROUPS | ({"Others": rest} if rest else {})).items():
        rows = [f"| [`{name}`](algorithms/{name}.md) | {reference.about(ALGORITHMS[name])} |" for name in names]
        lines += [f"## {title}", "\n".join(["| name | |", "| --- | --- |", *rows])]
    return "\n\n".join(lines) + "\n"


def page(name: str, kind: Any) -> str:
    """The page of one algorithm."""
    paper, method, deviations = _document(kind)
    blocks = [f"# {name}", reference.about(kind), f"**Source.** {paper}"]
    if name in SYSTEMS:
        title, path = SYSTEMS[name]
        blocks.append(f"More about it, with results: [{title}](../../{path}).")
    if works := [*([method] if method else []), *(["\n".join(terms)] if (terms := [*_terms(kind)]) else [])]:
        blocks += ["## How it works", *works]
    if deviations:
        blocks += ["## Where it differs from the paper", deviations]
    blocks += ["## Try it", *_example(name, kind), "## Settings", *_settings(name, kind)]
    if revealed := _row(DOCS / "security.md", name, 4):
        blocks += [
            "## What leaves a member",
            f"With {revealed[1]}, the server sees of a single member:",
            f"- in training: {revealed[2]}\n- of its scores: {revealed[3]}",
            "[Security](../../security.md) says against whom that holds. `fedweave ledger RUN` lists every message.",
        ]
    if rows := [*_standings(name)]:
        blocks += [
            "## Results",
            "Mean over clients, ± standard deviation over five seeds, and paired differences with 95 % intervals. "
            "[Settings, commits and all rows](../../results/baselines.md).",
            "\n".join(
                ["| data, cut, measure | clients' models | to `fedavg` | to `local` |", "| --- " * 4 + "|", *rows]
            ),
        ]
    return "\n\n".join(blocks) + "\n"


def _document(kind: Any) -> tuple[str, str, str]:
    """The paper, the method and the deviations, which the docstring of an algorithm's file gives in this order."""
    module = inspect.getmodule(getattr(kind, "paper", kind))
    text = listed(inspect.cleandoc(getattr(module, "__doc__", None) or ""))
    head, _, rest = text.partition("\n\n")
    paper = " ".join(head.split())
    method, _, deviations = (
        re.split(r"(^|(?<=\s))Deviations:", rest, maxsplit=1) if "Deviations:" in rest else (rest, "", "")
    )
    if not deviations and "Deviations:" in paper:
        paper, _, deviations = paper.partition("Deviations:")
    deviations, _, after = (
        deviations.partition("\n\n") if not deviations.lstrip().startswith("- ") else (deviations, "", "")
    )
    method = f"{method.strip()}\n\n{after.strip()}".strip()
    text = dedent(deviations).strip()
    return paper.strip(), method, text[:1].upper() + text[1:]


def _terms(kind: Any) -> Iterator[str]:
    """What the parts of a preset do."""
    names = {part: name for name, part in PARTS.items()}
    for part in getattr(kind, "made_of", ()):
        link = f"[`{names[part]}`](../part.md#{names[part]}): " if part in names else ""
        yield f"- {link}{reference.about(part)}"


def _example(name: str, kind: Any) -> Iterator[str]:
    """A few lines of a file, and of Python."""
    own = [*_own(name, kind).items()][:2]
    shown = [f"{key} = {json.dumps(parameter.default)}" for key, parameter in own if _writable(parameter)]
    lines = ["[algorithm]", f'name = "{name}"', *shown]
    paper = getattr(kind, "paper", kind)
    if model := getattr(paper, "test_settings", {}).get("model"):  # the algorithm is not for every model
        values = {"name": model} if isinstance(model, str) else model
        lines += ["", "[model]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    yield "\n".join(["```toml", *lines, "```"])
    if name not in GROUPS["Parties with the same nodes"]:
        arguments = "".join(f", {key}={parameter.default!r}" for key, parameter in own if _writable(parameter))
        title, layers = getattr(paper, "__name__", name), getattr(paper, "example_model", "")
        model = f"`model = fedweave.models.{layers}.build(data.features, data.classes)`, then " if layers else ""
        yield f"In Python: {model}`algorithm = fedweave.algorithms.{title}(model{arguments})`."


def _writable(parameter: config.Parameter) -> bool:
    return isinstance(parameter.default, bool | int | float | str)


def _own(name: str, kind: Any) -> dict[str, config.Parameter]:
    """The settings that `fedavg` has not, or has otherwise."""
    mine = config.parameters("algorithm", kind)
    if name == _BASE:
        return dict(mine)
    base = config.parameters("algorithm", ALGORITHMS[_BASE])
    return {
        key: one for key, one in mine.items() if key not in base or reference.shown(one) != reference.shown(base[key])
    }


def _settings(name: str, kind: Any) -> Iterator[str]:
    own, said = _own(name, kind), meanings(kind)
    if own:
        yield reference.table(own, said)
    if same := [key for key in config.parameters("algorithm", kind) if key not in own]:
        yield f"As [`{_BASE}`]({_BASE}.md): {', '.join(f'`{key}`' for key in same)}."


def _row(path: Path, name: str, width: int) -> list[str]:
    """The cells of the row of a table that begins with this name; empty if there is none."""
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith(f"| `{name}` |") and len(cells) == width:
            return cells
    return []


def _standings(name: str) -> Iterator[str]:
    """The algorithm's rows in the tables of baselines."""
    title, columns = "", []
    for line in (DOCS / "results/baselines.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("## "):
            title = line.removeprefix("## ")
        elif line.startswith("| method |"):
            columns = cells
        elif line.startswith(f"| `{name}` |"):
            row = dict(zip(columns, cells, strict=True))
            yield f"| {title} | {' | '.join(row[column] for column in _HEAD[1:])} |"
