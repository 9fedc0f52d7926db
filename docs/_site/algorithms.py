"""A page for each algorithm, made from its file: paper, method, deviations, settings, what leaves, results."""

import inspect
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import reference
from docstrings import fields_as_lists

from fedweave.algorithms import ALGORITHMS, GROUPS, PARTS
from fedweave.experiment import config
from fedweave.reports.listing import meanings

DOCS = Path(__file__).parents[1]
SYSTEMS = {  # algorithms that have another page in docs/
    "f2gnn": ("F²GNN", "f2gnn.md"),
    "fairgfl": ("FairGFL", "fairgfl.md"),
    "fairgraphfl": ("FairGraphFL", "fairgraphfl.md"),
    "fedego": ("FedEgo", "fedego.md"),
    "fedsage": ("FedSage+", "fedsage.md"),
    "fedsage_plus": ("FedSage+", "fedsage.md"),
    "fede": ("Knowledge graphs", "knowledge-graphs.md"),
    **dict.fromkeys(GROUPS["Parties with the same nodes"], ("GLASU, vertical federations", "vertical.md")),
}
_BASE = "fedavg"  # whose settings other pages list only by name
_HEAD = ("method", "clients' models", "to fedavg", "to local")  # columns of the table of baselines that a page repeats


def pages() -> dict[str, str]:
    """{path in the site: Markdown}: the index, which lists the algorithms by what they are for, and their pages."""
    found = {f"reference/algorithms/{name}.md": page(name, kind) for name, kind in ALGORITHMS.items()}
    return {"reference/algorithm.md": index(), **found}


def index() -> str:
    """The algorithms by what they are for, with what each is and where its page is."""
    lines = [
        "# `[algorithm]`",
        f"How the clients train together. `name` is `{_BASE}` unless you choose another. Each algorithm has a page "
        "with its paper, its settings and an example. `fedweave list algorithms` prints the same list.",
    ]
    ungrouped = dict.fromkeys(ALGORITHMS)
    groups: dict[str, Iterable[str]] = dict(GROUPS)
    for names in GROUPS.values():
        for name in names:
            ungrouped.pop(name, None)
    if ungrouped:
        groups["Others"] = ungrouped
    for title, names in groups.items():
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
    works = [method, "\n".join(_preset_parts(kind))]
    if any(works):
        blocks += ["## How it works", *filter(None, works)]
    if deviations:
        blocks += ["## Where it differs from the paper", deviations]
    blocks += ["## Try it", *_example(name, kind), "## Settings", *_settings(name, kind)]
    privacy = _row(DOCS / "guarantees-sums.md", name, 4)
    if privacy:
        blocks += [
            "## What leaves a member",
            f"With {privacy[1]}, the server sees of a single member:",
            f"- in training: {privacy[2]}\n- of its scores: {privacy[3]}",
            "[Security](../../security.md) says against whom that holds. `fedweave ledger RUN` lists every message.",
        ]
    rows = list(_baseline_rows(name))
    if rows:
        head = ["| data, cut, measure | clients' models | to `fedavg` | to `local` |", "| --- " * 4 + "|"]
        blocks += [
            "## Results",
            "Mean over clients, ± standard deviation over five seeds, and paired differences with 95 % intervals. "
            "[Settings, commits and all rows](../../results/baselines.md).",
            "\n".join([*head, *rows]),
        ]
    return "\n\n".join(blocks) + "\n"


def _document(kind: Any) -> tuple[str, str, str]:
    """The paper, the method and the deviations, which the docstring of an algorithm's file gives in this order."""
    module = inspect.getmodule(getattr(kind, "paper", kind))
    text = fields_as_lists(inspect.cleandoc(getattr(module, "__doc__", None) or ""))
    first, _, rest = text.partition("\n\n")
    paper, _, deviations = " ".join(first.split()).partition("Deviations:")
    method = rest
    if "Deviations:" in rest:
        method, _, deviations = rest.partition("Deviations:")
    if not deviations.lstrip().startswith("- "):  # one paragraph; the method continues after it
        deviations, _, after = deviations.partition("\n\n")
        method = f"{method.strip()}\n\n{after.strip()}"
    deviations = dedent(deviations).strip()
    return paper.strip(), method.strip(), deviations[:1].upper() + deviations[1:]


def _preset_parts(kind: Any) -> Iterator[str]:
    """What the parts of a preset do."""
    names = {part: name for name, part in PARTS.items()}
    for part in getattr(kind, "made_of", ()):
        link = f"[`{names[part]}`](../part.md#{names[part]}): " if part in names else ""
        yield f"- {link}{reference.about(part)}"


def _example(name: str, kind: Any) -> Iterator[str]:
    """A few lines of a file, and of Python."""
    defaults = {}
    for key, parameter in list(_different_settings(name, kind).items())[:2]:
        if isinstance(parameter.default, bool | int | float | str):
            defaults[key] = parameter.default
    lines = ["[algorithm]", f'name = "{name}"', *(f"{key} = {json.dumps(value)}" for key, value in defaults.items())]
    paper = getattr(kind, "paper", kind)
    model = getattr(paper, "test_settings", {}).get("model")
    if model:  # the algorithm does not support every model
        values = {"name": model} if isinstance(model, str) else model
        lines += ["", "[model]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    yield "\n".join(["```toml", *lines, "```"])
    if name not in GROUPS["Parties with the same nodes"]:
        arguments = "".join(f", {key}={value!r}" for key, value in defaults.items())
        title, layers = getattr(paper, "__name__", name), getattr(paper, "example_model", "")
        first = f"`model = fedweave.models.{layers}.build(data.features, data.classes)`, then " if layers else ""
        yield f"In Python: {first}`algorithm = fedweave.algorithms.{title}(model{arguments})`."


def _different_settings(name: str, kind: Any) -> dict[str, config.Parameter]:
    """The settings that `fedavg` does not have, or has with another type or default."""
    settings = config.parameters("algorithm", kind)
    if name == _BASE:
        return dict(settings)
    base = config.parameters("algorithm", ALGORITHMS[_BASE])
    different = {}
    for key, parameter in settings.items():
        if key not in base or reference.type_and_default(parameter) != reference.type_and_default(base[key]):
            different[key] = parameter
    return different


def _settings(name: str, kind: Any) -> Iterator[str]:
    different = _different_settings(name, kind)
    if different:
        yield reference.table(different, meanings(kind))
    same = [f"`{key}`" for key in config.parameters("algorithm", kind) if key not in different]
    if same:
        yield f"As [`{_BASE}`]({_BASE}.md): {', '.join(same)}."


def _row(path: Path, name: str, width: int) -> list[str]:
    """The cells of the row of a table whose first cell names this, perhaps among others; empty if there is none."""
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and len(cells) == width and f"`{name}`" in cells[0].split(", "):
            return cells
    return []


def _baseline_rows(name: str) -> Iterator[str]:
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
