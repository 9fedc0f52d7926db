"""Every command and every block of code that the documents show is one that the program takes."""

import ast
import importlib
import inspect
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from fedweave.cli import app
from fedweave.experiment import config
from fedweave.experiment.config.plugins import REGISTRIES
from fedweave.experiment.config.toml import override
from fedweave.export.card import CardSettings, read_card
from fedweave.sites.flare.sitefile import read_site_file
from tests.random_graphs import replace_fields
from tests.shown import ROOT, Block, Shown, blocks, commands

try:
    from typer._click.core import Context  # newer versions have a click of their own
    from typer._click.exceptions import BadOptionUsage, MissingParameter, UsageError
except ImportError:
    from click import BadOptionUsage, Context, MissingParameter, UsageError  # type: ignore[assignment]

OURS = [one for one in commands() if one.words[0] == "fedweave"]
BENCHMARKS = sorted({one.words[2:] for one in commands() if one.words[0] == "python"})
NUMBERS = {"N": "1"}  # what stands for a number
SITES = {"policy", "site", "server"}  # the sections of sites' own files


def parsed(shown: Shown) -> dict[str, Any]:
    """What the command line makes of the words, without doing anything; of a command in a sentence, what it can.

    Raises:
        UsageError: an option or an argument is none of the command's.
    """
    command: Any = typer.main.get_command(app)
    words, given = list(shown.words[1:]), dict[str, Any]()
    context = Context(command)
    while words and words[0] != "--help" and hasattr(command, "list_commands"):
        name = words.pop(0)
        if name not in command.list_commands(context):
            raise UsageError(f"there is no command {name}")
        command = command.get_command(context, name)
    if words == ["--help"]:
        return given
    try:
        with command.make_context(command.name, [NUMBERS.get(word, word) for word in words]) as made:
            given = made.params
    except (MissingParameter, BadOptionUsage) as error:  # the latter of an option without its argument
        if shown.whole or not (isinstance(error, MissingParameter) or shown.words[-1] == error.option_name):
            raise
    return given


@pytest.mark.parametrize("shown", OURS, ids=str)
def test_the_command_line_takes_what_is_shown(shown: Shown) -> None:
    parsed(shown)


@pytest.mark.parametrize("words", ["sweep e.toml --latex table.tex", "run e.toml --no-such", "sites wander", "predict"])
def test_what_the_command_line_does_not_take_is_found(words: str) -> None:
    with pytest.raises(UsageError):
        parsed(Shown("nowhere", ("fedweave", *words.split()), True))


@pytest.mark.parametrize("shown", [one for one in OURS if one.whole], ids=str)
def test_settings_experiments_and_names_that_commands_give_are_there(shown: Shown) -> None:
    """An experiment of ours is resolved with them; another may be of any data, so that keys alone are looked at."""
    given = parsed(shown)
    settings = [text for key in ("set_", "overrides", "settings") for text in given.get(key) or []]
    file = next((Path(str(value)) for value in given.values() if str(value).startswith("experiments/")), None)
    names = [name for key in ("algorithm", "algorithms") for name in (given.get(key) or "").split(",") if name]
    for name in (name for name in names if ".py" not in name):
        config.parameters("algorithm", config.registry("algorithm")[config.lookup("", "algorithm", name)[0]])
    if file is not None:
        config.read(ROOT / file, settings, given.get("algorithm"))
    if shown.words[1] == "contract":
        return  # its settings are those of an algorithm of the reader's
    for text in [*settings, *(given.get("grid") or [])]:
        section, _, key = text.partition("=")[0].rpartition(":")[2].rpartition(".")
        assert key in keys_of(section), text


def keys_of(section: str) -> set[str]:
    """The keys that a section can have."""
    if section in REGISTRIES:
        more = {"data": {"path", "external", "min_external"}}.get(section, set())
        kinds = config.registry(section).values()
        return {"name", *more, *(key for kind in kinds for key in config.parameters(section, kind))}
    document: dict[str, Any] = {}
    override(document, f"{section}.x=1" if section else "x=1")
    kind = {"": config.General, "evaluation": config.EvaluationSettings}.get(section)
    return set(config.field_parameters(kind)) if kind else {"labels", "edges"}


class Reached(Exception):
    """The arguments of a benchmark are parsed."""


@pytest.mark.parametrize("words", BENCHMARKS, ids=" ".join)
def test_benchmarks_take_the_arguments_that_are_shown(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    module = words[0]
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
    if "argparse" not in source:
        assert len(words) == 1, "it takes none"
        return
    import argparse

    parse = argparse.ArgumentParser.parse_args

    def stop(parser: Any, args: Any = None, namespace: Any = None) -> None:
        parse(parser, args, namespace)
        raise Reached

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr(sys, "argv", [module, *(NUMBERS.get(word, word) for word in words[1:])])
    with pytest.raises(Reached):
        importlib.import_module(module).main()


def test_make_and_pip_have_what_is_shown() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for one in commands():
        if one.words[0] == "make":
            assert set(one.words[1:]) <= targets, one
        if one.words[0] == "pip":
            assert set(re.findall(r"\[(\w+)\]", one.words[-1])) <= extras.keys(), one


BLOCKS = [block for block in blocks() if block.kind]


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "toml"], ids=lambda one: one.place)
def test_configurations_that_are_shown_resolve(block: Block, tmp_path: Path) -> None:
    """With data of their own where they say nothing of it; a site's file is read as sites read it."""
    document = tomllib.loads(block.text)
    if "project" in document:  # of a package that announces plug-ins
        assert set(document["project"]["entry-points"]) <= {f"fedweave.{kind}" for kind in ANNOUNCED}
        return
    if document.keys() <= config.field_parameters(CardSettings).keys():
        (tmp_path / "card.toml").write_text(block.text)
        read_card(tmp_path / "card.toml")
        return
    if SITES & document.keys() or (block.text.startswith("[data]") and "classes" in document["data"]):
        lacking = "" if "data" in document else '[data]\npath = "data"\nclasses = 2\n'
        if "path" not in document.get("data", {"path": ""}):
            lacking, block = "", replace_fields(block, text=block.text.replace("[data]\n", '[data]\npath = "data"\n'))
        shortened = re.sub(r'"17:5f3a…"', f'"17:{"5f3a" * 8}"', block.text)
        shortened = re.sub(r'"\w\w:\w\w:…"', f'"{":".join(["5F"] * 32)}"', shortened)
        (tmp_path / "site.toml").write_text(f"{shortened}\n{lacking}")
        read_site_file(tmp_path / "site.toml")
        return
    config.pop_tune(document)
    if not document.keys() <= {*REGISTRIES, "evaluation", "noise", "pay", *config.field_parameters(config.General)}:
        document = {"algorithm": document}  # keys of [algorithm] by themselves
    config.resolve({"data": {"name": "digits"}} | document)


ANNOUNCED = ("algorithms", "parts", "models", "datasets", "partitions", "metrics")


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "python"], ids=lambda one: one.place)
def test_python_that_is_shown_compiles_and_knows_its_names(block: Block) -> None:
    """Names of fedweave's are there, and their functions take the arguments that they are given by name."""
    tree = ast.parse(block.text.replace("…", "..."))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedweave":
            for name in node.names:
                resolved(f"{node.module}.{name.name}")
        if isinstance(node, ast.Attribute) and (path := dotted(node)).startswith("fedweave."):
            resolved(path)
        if isinstance(node, ast.Call) and (path := dotted(node.func)).startswith("fedweave."):
            takes = inspect.signature(resolved(path)).parameters
            if not any(one.kind is one.VAR_KEYWORD for one in takes.values()):
                assert {word.arg for word in node.keywords} <= takes.keys(), path


def dotted(node: ast.AST) -> str:
    """The name that attributes spell; "" of anything else."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return base and f"{base}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def resolved(path: str) -> Any:
    """What is called so."""
    found, *names = path.split(".")
    there: Any = importlib.import_module(found)
    for name in names:
        found = f"{found}.{name}"
        there = getattr(there, name) if hasattr(there, name) else importlib.import_module(found)
    return there
