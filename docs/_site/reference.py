"""Reference pages made from the code: every `[section] key`, every command, the public Python API."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import codes
import results
import typer
from docstrings import fields_as_lists

import fedweave
from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.parts import Part
from fedweave.cli import app
from fedweave.core.ledger_columns import COLUMNS, WORD
from fedweave.core.settings import NAMED
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


_NUMBER = r"([-\d.,e+]*[\d])"
_SHORT_TYPES = (  # (what a type says in words, how tables write it)
    (rf"from {_NUMBER} to {_NUMBER}", r"[\1, \2]"),
    (rf"of at least {_NUMBER} and below {_NUMBER}", r"[\1, \2)"),
    (rf"above {_NUMBER} and at most {_NUMBER}", r"(\1, \2]"),
    (rf"above {_NUMBER} and below {_NUMBER}", r"(\1, \2)"),
    ("of at least", "≥"),
    ("of at most", "≤"),
    ("above", ">"),
    ("below", "<"),
    (r"tuple\[(\w+), \.\.\.\]", r"list[\1]"),
    (r" \| ", ", "),
)
_SHARED_OPTIONS = 3  # commands with the same option, from which on it stands once
_REPEATED = 3  # plug-ins of one of these sections with the same setting, from which on it stands once
_WITH_SHARED = ("data", "model", "partition")


def _section(name: str, about: str) -> str:
    title = f"`[{name}]`" if name in REGISTRIES else "Parts of algorithms"
    if name in DEFAULT_NAMES:
        about += f" `name` is `{DEFAULT_NAMES[name]}` unless you choose another."
    return "\n\n".join([f"# {title}", about, *_plugins(name)]) + "\n"


def _plugins(section: str) -> Iterator[str]:
    """The settings that several plug-ins share, and each plug-in with its others."""
    kinds = config.registry(section)
    rows = {name: setting_rows(config.parameters(section, kind), meanings(kind)) for name, kind in kinds.items()}
    counts = Counter(chain.from_iterable(of_one.items() for of_one in rows.values()))
    shared: dict[str, str] = {}
    for (key, row), count in counts.most_common():
        if section in _WITH_SHARED and count >= _REPEATED:
            shared.setdefault(key, row)
    if shared:
        yield "## Shared settings\n\nSettings that several of those below have, with this default and meaning."
        yield "\n".join([*TABLE_HEAD, *shared.values()])
    for name, kind in kinds.items():
        full = explanation(kind) if section in ("model", "partition") else about(kind)
        yield f"## {name}\n\n{describe(name) if section == 'data' else full}"
        algorithm, keys_elsewhere = _algorithm_of(kind, rows[name]) if section == "part" else ("", [])
        if algorithm:
            keys = ", ".join(f"`{key}`" for key in keys_elsewhere)
            yield f"With the settings of [`{algorithm}`](algorithms/{algorithm}.md#settings): {keys}."
        own = [row for key, row in rows[name].items() if shared.get(key) != row and key not in keys_elsewhere]
        if own:
            yield "\n".join([*TABLE_HEAD, *own])
        names = [f"`{key}`" for key, row in rows[name].items() if shared.get(key) == row]
        if names:
            yield f"[Shared](#shared-settings): {', '.join(names)}."


def _algorithm_of(part: Any, rows: Mapping[str, str]) -> tuple[str, list[str]]:
    """The algorithm whose page has most rows of a part that it is made of, and these settings; "" without any."""
    shared = config.parameters("algorithm", ALGORITHMS["fedavg"])
    best, found = "", list[str]()
    for name, kind in ALGORITHMS.items():
        if part in getattr(kind, "made_of", ()):
            of_page = setting_rows(config.parameters("algorithm", kind), meanings(kind))
            equal = [key for key, row in rows.items() if of_page.get(key) == row and key not in shared]
            if len(equal) > len(found):
                best, found = name, equal
    return best, found


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
    kind = type_name(parameter)
    for pattern, short in _SHORT_TYPES:
        kind = re.sub(pattern, short, kind)
    if parameter.default is dataclasses.MISSING:
        return kind, "required"
    return kind, default_text(parameter, parameter.default)


TABLE_HEAD = ("| key | type | default | |", "| --- | --- | --- | --- |")


def table(parameters: Mapping[str, config.Parameter], meanings: Mapping[str, str]) -> str:
    """The settings, with their types, defaults and meanings."""
    return "\n".join([*TABLE_HEAD, *setting_rows(parameters, meanings).values()])


def setting_rows(parameters: Mapping[str, config.Parameter], meanings: Mapping[str, str]) -> dict[str, str]:
    """{key: its line in the table}."""
    rows, first = {}, dict[str, str]()
    for key, parameter in parameters.items():
        kind, default = type_and_default(parameter)
        meaning = meanings.get(key, "")
        if first.setdefault(meaning, key) != key and meaning:  # settings that the docstring explains together
            meaning = f"as `{first[meaning]}`"
        rows[key] = f"| `{key}` | `{kind}` | `{default}` | {_cell(meaning)} |"
    return rows


def about(kind: Any) -> str:
    """The docstring's first paragraph."""
    return one_line(kind) if not kind.__doc__ else " ".join(kind.__doc__.partition("\n\n")[0].split())


def explanation(kind: Any) -> str:
    """The docstring's paragraphs without the meanings of settings and its sections, and without a list of what a paper
    leaves open."""
    text, _, left_open = inspect.cleandoc(kind.__doc__ or one_line(kind)).partition("What the paper leaves open")
    first, *others = text.strip().split("\n\n")
    if left_open:
        others.insert(0, f"`help(fedweave.partition.{kind.__name__})` says how what the paper leaves open is resolved.")
    others = [text for text in others if not _is_about_settings(text)]
    return fields_as_lists("\n\n".join([" ".join(first.split()), *others]))


def _is_about_settings(paragraph: str) -> bool:
    return paragraph.startswith(("Raises:", "Inherited settings:")) or bool(NAMED.match(paragraph.partition("\n")[0]))


def arguments(parameters: Mapping[str, config.Parameter]) -> list[str]:
    """The parameters as a call has them: "lr=0.01"; only the name of one without default."""
    result = []
    for key, parameter in parameters.items():
        if parameter.default is dataclasses.MISSING:
            result.append(key)
        elif parameter.default is None:
            result.append(f"{key}=None")
        else:
            result.append(f"{key}={default_text(parameter, parameter.default)}")
    return result


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text).replace("<", "&lt;").replace("*", "\\*")


def commands() -> str:
    """Every command with its arguments and options; options that several commands share stand once."""
    root = typer.main.get_command(app)
    found = dict(_commands(root, typer.Context(root, info_name="fedweave")))
    counts = Counter(chain.from_iterable(options.items() for _, options in found.values()))
    shared = {option: text for (option, text), count in counts.items() if count >= _SHARED_OPTIONS}
    lines = [
        "# Commands",
        "`fedweave COMMAND --help` prints the same. A command with the shared options below names them only.",
        "\n".join(f"- `{option}`: {text}" for option, text in shared.items()),
    ]
    for words, (about, options) in found.items():
        own = [f"- `{option}`: {text}" for option, text in options.items() if shared.get(option) != text]
        same = [f"`{option}`" for option, text in options.items() if shared.get(option) == text]
        if same:
            own.append(f"- {', '.join(same)}")
        lines += [f"## `{words}`", *about, "\n".join(own)]
    return "\n\n".join(filter(None, lines)) + "\n"


def _commands(command: Any, context: Any) -> Iterator[tuple[str, tuple[list[str], dict[str, str]]]]:
    """(the words of a command, ([what it does], {option or argument: its help})) of a command and those below it."""
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    options = {name: _cell(text).strip() for name, text in filter(None, records) if "--help" not in name}
    yield context.command_path, ([inspect.cleandoc(command.help or "").replace("\b\n", "")], options)
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        below = command.get_command(context, name)
        yield from _commands(below, typer.Context(below, info_name=name, parent=context))


def python() -> dict[str, str]:
    """{path: Markdown} of the public names: one page for `fedweave` itself, one for each of its modules without the
    algorithms (`algorithms.python_index`)."""
    pages, top_level = {}, []
    for name in fedweave.__all__:
        member = getattr(fedweave, name)
        if inspect.ismodule(member):
            if name != "algorithms":
                pages[f"reference/python-{name}.md"] = _module_page(name, member)
        elif not name.startswith("__"):
            top_level.append(_definition(member))
    pages["reference/python.md"] = _page("fedweave", top_level)
    for name, (title, paths) in WRITING.items():
        above = "[Hooks of parts](../hooks.md) has the methods of `Part`." if name == "parts" else ""
        pages[f"reference/writing-{name}.md"] = _page(title, [_definition(_import(path)) for path in paths], above)
    return pages


def _import(path: str) -> Any:
    """The object or module of an import path."""
    module_name, _, name = path.rpartition(".")
    module = importlib.import_module(module_name)
    return getattr(module, name) if hasattr(module, name) else importlib.import_module(path)


def _page(title: str, members: list[str], above: str = "") -> str:
    hooks = "\n    options: {members: false}"  # of `Part`, which have a page
    blocks = [f"::: {member}{hooks if member == _definition(Part) else ''}" for member in members]
    return "\n\n".join([f"# {title}", *filter(None, [above]), *blocks]) + "\n"


def _module_page(name: str, module: Any) -> str:
    """The page of a module: links to the classes whose settings another page has, and all else in full."""
    title = f"fedweave.{name}"
    if not hasattr(module, "__all__"):
        return _page(title, [f"{module.__name__}.{info.name}" for info in pkgutil.iter_modules(module.__path__)])
    section = {"models": "model", "partition": "partition"}.get(name, "")
    keys = {kind: key for key, kind in config.registry(section).items()} if section else {}
    links, members = [], []
    for member in (getattr(module, name) for name in module.__all__):
        if isinstance(member, Mapping):  # a registry
            continue
        if isinstance(member, type) and member in keys:
            links.append(f"[`{member.__name__}`]({section}.md#{keys[member]})")
        else:
            members.append(_definition(member))
    above = f"Classes, with their settings under `[{section}]`: {', '.join(links)}." if links else ""
    return _page(title, members, above)


def _definition(member: Any) -> str:
    """The import path where a class or function is defined."""
    return member.__name__ if inspect.ismodule(member) else f"{member.__module__}.{member.__qualname__}"
