"""The pages of algorithms, made from their files: an index, the settings that they share, and a page for each with its
paper, method, deviations, settings, what leaves and results."""

import inspect
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

import reference
from docstrings import fields_as_lists

from fedweave.algorithms import ALGORITHMS, GROUPS, PARTS
from fedweave.experiment import config
from fedweave.reports.listing import meanings, one_line

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
_BASE = "fedavg"  # whose settings are the shared ones
_REPEATED = 4  # settings of another algorithm, with the same rows, from which on a page links to them
_FEW = 8  # settings that a sentence lists by name


def pages() -> dict[str, str]:
    """{path in the site: Markdown}: the indexes by name and by Python class, the shared settings, and a page for each
    algorithm."""
    found = {f"reference/algorithms/{name}.md": page(name, kind) for name, kind in ALGORITHMS.items()}
    return {
        "reference/algorithm.md": index(),
        "reference/python-algorithms.md": python_index(),
        "reference/training-settings.md": training_settings(),
        **found,
    }


def index() -> str:
    """The algorithms by what they are for, with what each is and where its page is."""
    lines = [
        "# `[algorithm]`",
        f"How the clients train together. `name` is `{_BASE}` unless you choose another. Each algorithm has a page "
        "with its paper, its settings and an example. `fedweave list algorithms` prints the same list.",
    ]
    for title, names in _groups().items():
        rows = [f"| [`{name}`](algorithms/{name}.md) | {one_line(ALGORITHMS[name])} |" for name in names]
        lines += [f"## {title}", "\n".join(["| name | |", "| --- | --- |", *rows])]
    return "\n\n".join(lines) + "\n"


def _groups() -> dict[str, Iterable[str]]:
    """{what they are for: names of algorithms}."""
    ungrouped = dict.fromkeys(ALGORITHMS)
    groups: dict[str, Iterable[str]] = dict(GROUPS)
    for names in GROUPS.values():
        for name in names:
            ungrouped.pop(name, None)
    if ungrouped:
        groups["Others"] = ungrouped
    return groups


def python_index() -> str:
    """A line for each class of `fedweave.algorithms`: how to make one, and where its page is."""
    lines = [
        "# fedweave.algorithms",
        "Give an algorithm a model and its settings. `federation` takes it as it is:",
        "```python\nfrom fedweave.algorithms import FedProx\n\nalgorithm = FedProx(model, mu=0.1, lr=0.03)\n```",
        "Below are each class's own settings with their defaults. … stands for the "
        "[settings that algorithms share](training-settings.md). A class's link leads to its paper, its method and the "
        "meanings of its settings. Classes that are one paper's choice of FedAvg's parts return a `FedAvg`.",
    ]
    for title, names in _groups().items():
        lines += [f"## {title}", "\n".join(_python_line(name, ALGORITHMS[name]) for name in names)]
    return "\n\n".join(lines) + "\n"


def _python_line(name: str, kind: Any) -> str:
    own = _own_settings(kind)
    arguments = ["model", *reference.arguments(own)]
    if len(own) < len(config.parameters("algorithm", kind)):
        arguments.append("…")
    title = getattr(kind, "paper", kind).__name__
    return f"- [`{title}`](algorithms/{name}.md)`({', '.join(arguments)})`"


def training_settings() -> str:
    """The settings of FedAvg, which other algorithms have too."""
    kind = ALGORITHMS[_BASE]
    blocks = [
        "# Training settings",
        f"Settings in `[algorithm]` that `{_BASE}` and most other algorithms have: the clients' optimizer, their steps "
        "in a round, who takes part, and the loss. An algorithm's page lists its own settings, and those that have "
        "another default there. [How clients train](../training.md) shows how to choose them.",
        reference.table(config.parameters("algorithm", kind), meanings(kind)),
    ]
    return "\n\n".join(blocks) + "\n"


def page(name: str, kind: Any) -> str:
    """The page of one algorithm."""
    paper, method, deviations = _document(kind)
    method = method.partition("`client.state` holds")[0].strip()  # what follows is for who changes the file
    blocks = [f"# {name}", reference.about(kind), f"**Source.** {paper}"]
    if name in SYSTEMS:
        title, path = SYSTEMS[name]
        blocks.append(f"More about it, with results: [{title}](../../{path}).")
    works = [method, _preset_parts(kind)]
    if any(works):
        blocks += ["## How it works", *filter(None, works)]
    if deviations:
        blocks += ["## Where it differs from the paper", deviations]
    blocks += ["## Try it", *_example(name, kind), "## Settings", *_settings(name, kind)]
    privacy = _row(DOCS / "guarantees-sums.md", name, 4)
    if privacy:
        blocks += [
            "## What leaves a member",
            f"With {privacy[1]}, [the server sees of one member](../../guarantees-sums.md#no-single-message) in "
            f"training: {privacy[2]}; of its scores: {privacy[3]}.",
        ]
    pairs, gain = _compared(name)
    if pairs:
        blocks += [
            "## Results",
            (f"Mean gain over `{_BASE}`: {gain}, on " if gain else "On ")
            + f"{pairs} pairs of a data set and a partition ([baselines](../../findings/baselines.md), "
            "[all numbers](../../results/baselines.md)).",
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


def _preset_parts(kind: Any) -> str:
    """The parts of a preset."""
    names = {part: name for name, part in PARTS.items()}
    parts = [f"[`{names[part]}`](../part.md#{names[part]})" for part in getattr(kind, "made_of", ()) if part in names]
    return f"Parts: {', '.join(parts)}." if parts else ""


def _example(name: str, kind: Any) -> Iterator[str]:
    """A few lines of a file, and of Python where the model is an unusual one."""
    defaults = {}
    settings = config.parameters("algorithm", kind) if name == _BASE else _own_settings(kind)
    for key, parameter in list(settings.items())[:2]:
        if isinstance(parameter.default, bool | int | float | str):
            defaults[key] = parameter.default
    lines = ["[algorithm]", f'name = "{name}"', *(f"{key} = {json.dumps(value)}" for key, value in defaults.items())]
    paper = getattr(kind, "paper", kind)
    model = getattr(paper, "test_settings", {}).get("model")
    if model:  # the algorithm does not support every model
        values = {"name": model} if isinstance(model, str) else model
        lines += ["", "[model]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    yield "\n".join(["```toml", *lines, "```"])
    layers = getattr(paper, "example_model", "")
    if layers:
        title = getattr(paper, "__name__", name)
        first = f"`model = fedweave.models.{layers}.build(data.features, data.classes)`"
        yield f"In Python: {first}, then `algorithm = fedweave.algorithms.{title}(model)`."


def _own_settings(kind: Any) -> dict[str, config.Parameter]:
    """The settings that `fedavg` does not have, or has with another type or default."""
    shared = config.parameters("algorithm", ALGORITHMS[_BASE])
    own = {}
    for key, parameter in config.parameters("algorithm", kind).items():
        if key not in shared or reference.type_and_default(parameter) != reference.type_and_default(shared[key]):
            own[key] = parameter
    return own


@cache
def _rows_of_page(name: str) -> tuple[dict[str, str], str, list[str]]:
    """({setting: its row} on an algorithm's page, another algorithm whose page has its other own settings, and these);
    "" if there is none. That algorithm has more settings, or as many and comes first."""
    rows = reference.setting_rows(_own_settings(ALGORITHMS[name]), meanings(ALGORITHMS[name]))
    best, equal = "", list[str]()
    order = {one: (-len(_own_settings(kind)), at) for at, (one, kind) in enumerate(ALGORITHMS.items())}
    for other in sorted(order, key=order.__getitem__):
        if order[other] >= order[name]:
            break
        same = [key for key, row in _rows_of_page(other)[0].items() if rows.get(key) == row]
        if len(same) > max(len(equal), _REPEATED - 1):
            best, equal = other, same
    return {key: row for key, row in rows.items() if key not in equal}, best, equal


def _settings(name: str, kind: Any) -> Iterator[str]:
    own = _own_settings(kind)
    rows, other, equal = _rows_of_page(name)
    if rows:
        yield "\n".join([*reference.TABLE_HEAD, *rows.values()])
    if other:
        yield f"Of [`{other}`]({other}.md#settings): {', '.join(f'`{key}`' for key in equal)}."
    shared = config.parameters("algorithm", ALGORITHMS[_BASE])
    same = [f"`{key}`" for key in config.parameters("algorithm", kind) if key not in own]
    missing = [f"`{key}`" for key in shared if f"`{key}`" not in same and key not in own]
    link = f"[{len(same)} shared settings](../training-settings.md)"
    if not same:
        return
    before = "And the" if own else "The"
    if len(same) <= _FEW:
        yield f"{before} {link} {', '.join(same)}."
    elif missing:
        yield f"{before} {link}: all without {', '.join(missing)}."
    else:
        yield f"{before} {link}."


def _row(path: Path, name: str, width: int) -> list[str]:
    """The cells of the row of a table whose first cell names this, perhaps among others; empty if there is none."""
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and len(cells) == width and f"`{name}`" in cells[0].split(", "):
            return cells
    return []


def _compared(name: str) -> tuple[int, str]:
    """On how many pairs of a data set and a partition the baselines were compared with this one, and its mean gain over
    FedAvg, "" without; both as the first table of findings/baselines.md has them."""
    text = (DOCS / "findings/baselines.md").read_text(encoding="utf-8")
    table = text[text.index("| method |") :].partition("\n\n")[0]
    for line in table.splitlines():
        if line.startswith(f"| `{name}` |"):
            *cells, gain = line.split("|")[1:-1]
            return sum("." in cell for cell in cells), gain.strip().partition(" ")[0]
    return 0, ""
