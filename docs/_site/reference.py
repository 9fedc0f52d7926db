"""Reference pages made from the code: every `[section] key`, every command, the public Python API."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from typing import Any

import codes
import results
import typer
import typer.cli

import fedweave
from fedweave.cli import app
from fedweave.core.ledger_columns import COLUMNS, WORD
from fedweave.datasets import describe
from fedweave.experiment import config
from fedweave.experiment.config.plugins import DEFAULT_NAMES, REGISTRIES
from fedweave.reports.listing import default_text, meanings, one_line, type_name

SECTIONS = {
    "data": "What the experiment is on. With `path`, your own folder or file ([Your own data](../data-format.md)).",
    "partition": "How the data is cut into clients.",
    "model": "What clients train.",
    "part": 'What algorithms of the FedAvg family are made of: `parts = ["median", {name = "clip", norm = 1.0}]` in '
    "`[algorithm]`. See [Architecture](../architecture.md).",
    "engine": "Where it runs. In one process by default, at sites with `fedweave sites run`.",
}
WRITING = {  # {page: title, and what an author of algorithms uses}
    "parts": (
        "Parts of algorithms, from Python",
        [
            f"fedweave.algorithms.parts.{name}"
            for name in ("Part", "Needs", "LocalSteps", "Protection", "Context", "Round", "Objective", "Training")
        ],
    ),
    "federation": (
        "Federations, steps and algorithms",
        [
            *(f"fedweave.core.federation.{name}" for name in ("Federation", "Client", "on_client", "Sends", "Sent")),
            "fedweave.core.replies.Replies",
            "fedweave.core.ranges",
            "fedweave.core.mechanism",
            *(f"fedweave.core.algorithm.{name}" for name in ("Algorithm", "Capabilities", "Calls", "Evaluation")),
            *(f"fedweave.core.tree.{name}" for name in ("map_leaves", "leaves", "nest", "add", "scale")),
            "fedweave.core.random",
        ],
    ),
    "graphs": (
        "Graphs, operators and models' layers",
        [
            "fedweave.core.graph.Graph",
            "fedweave.core.edges.Edges",
            *(f"fedweave.core.model.{name}" for name in ("Layer", "init", "apply", "embedded")),
            "fedweave.ops.sparse.Sparse",
        ],
    ),
}


def pages() -> dict[str, str]:
    """{path in the site: Markdown} of all reference pages."""
    found = {f"reference/{name}.md": _section(name, about) for name, about in SECTIONS.items()}
    return found | {
        "reference/general.md": _general(),
        "reference/commands.md": commands(),
        "reference/errors.md": codes.page(),
        "reference/metrics.md": results.page(),
        "reference/ledger.md": ledger(),
        **python(),
    }


def _general() -> str:
    rows = table(config.field_parameters(config.General), meanings(config.General))
    about = " ".join((config.General.__doc__ or "").split())
    return f"# Top level\n\nBefore the first section of an experiment's file. {about}\n\n{rows}\n"


def _section(name: str, about: str) -> str:
    title = f"`[{name}]`" if name in REGISTRIES else "Parts of algorithms"
    if name in DEFAULT_NAMES:
        about += f" `name` is `{DEFAULT_NAMES[name]}` unless you choose another."
    return "\n\n".join([f"# {title}", about, *_plugins(name)]) + "\n"


def _plugins(section: str) -> Iterator[str]:
    for name, kind in config.registry(section).items():
        yield f"## {name}\n\n{describe(name) if section == 'data' else about(kind)}"
        parameters = config.parameters(section, kind)
        if parameters:
            yield table(parameters, meanings(kind))


def ledger() -> str:
    """The columns of ledger.parquet."""
    lines = ["| column | type | |", "| --- | --- | --- |"]
    for column in COLUMNS:
        kind = "text" if column.type == WORD else str(column.type)
        lines.append(f"| `{column.name}` | {kind} | {_cell(column.meaning)} |")
    about = (
        "`ledger.parquet` has a row for each client and each part of every message. [Reading the ledger](../ledger.md) "
        "is about its summary."
    )
    return "\n\n".join(["# Columns of the ledger", about, "\n".join(lines)]) + "\n"


def type_and_default(parameter: config.Parameter) -> tuple[str, str]:
    """The type and the default of a parameter, as a configuration has them."""
    if parameter.default is dataclasses.MISSING:
        return type_name(parameter), "required"
    return type_name(parameter), default_text(parameter, parameter.default)


def table(parameters: Mapping[str, config.Parameter], meanings: Mapping[str, str]) -> str:
    """The settings, with their types, defaults and meanings."""
    lines = ["| key | type | default | |", "| --- | --- | --- | --- |"]
    for key, parameter in parameters.items():
        kind, default = type_and_default(parameter)
        lines.append(f"| `{key}` | `{kind}` | `{default}` | {_cell(meanings.get(key, ''))} |")
    return "\n".join(lines)


def about(kind: Any) -> str:
    """The docstring's first paragraph."""
    return one_line(kind) if not kind.__doc__ else " ".join(kind.__doc__.partition("\n\n")[0].split())


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text).replace("<", "&lt;").replace("*", "\\*")


def commands() -> str:
    """Every command with its arguments and options, as typer documents it."""
    command = typer.main.get_command(app)
    text = typer.cli.get_docs_for_click(obj=command, ctx=typer.Context(command), name="fedweave")
    return re.sub(r"^# `fedweave`", "# Commands", text, count=1).replace("$ fedweave", "fedweave")


def python() -> dict[str, str]:
    """{path: Markdown} of the public names: one page for `fedweave` itself, one for each of its modules without the
    algorithms (`algorithms.python_index`)."""
    pages, top_level = {}, []
    for name in fedweave.__all__:
        member = getattr(fedweave, name)
        if inspect.ismodule(member):
            if name != "algorithms":
                pages[f"reference/python-{name}.md"] = _page(f"fedweave.{name}", _members(member))
        elif not name.startswith("__"):
            top_level.append(_definition(member))
    pages["reference/python.md"] = _page("fedweave", top_level)
    for name, (title, paths) in WRITING.items():
        pages[f"reference/writing-{name}.md"] = _page(title, [_definition(_import(path)) for path in paths])
    return pages


def _import(path: str) -> Any:
    """The object or module of an import path."""
    module_name, _, name = path.rpartition(".")
    module = importlib.import_module(module_name)
    return getattr(module, name) if hasattr(module, name) else importlib.import_module(path)


def _page(title: str, members: list[str]) -> str:
    return "\n\n".join([f"# {title}", *(f"::: {member}" for member in members)]) + "\n"


def _members(module: Any) -> list[str]:
    """The members of a module's `__all__` without its registries; without `__all__`, its modules."""
    if not hasattr(module, "__all__"):
        return [f"{module.__name__}.{info.name}" for info in pkgutil.iter_modules(module.__path__)]
    members = [getattr(module, name) for name in module.__all__]
    return [_definition(member) for member in members if not isinstance(member, Mapping)]


def _definition(member: Any) -> str:
    """The import path where a class or function is defined."""
    return member.__name__ if inspect.ismodule(member) else f"{member.__module__}.{member.__qualname__}"
