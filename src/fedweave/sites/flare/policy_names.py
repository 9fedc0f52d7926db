"""The fields, steps and parts of installed algorithms, by which a site checks the names in its policy."""

import ast
import inspect
from collections.abc import Iterable
from functools import cache
from itertools import product
from pathlib import Path

from fedweave.algorithms.declarations import BELOW_SCORES, all_fields, all_steps
from fedweave.core import plugins
from fedweave.core.federation import step_name
from fedweave.errors import ConfigError
from fedweave.experiment.config import registry
from fedweave.experiment.config.toml import check_name, nearest
from fedweave.metrics.selection import ALONE, SHELF
from fedweave.partition.external import ADDING
from fedweave.sites.flare.alignment import MEETING
from fedweave.sites.flare.entities import COUNTING, UNITING
from fedweave.sites.flare.exchange import CLAIMING
from fedweave.sites.flare.joining import JOINING
from fedweave.sites.flare.policy import covers
from fedweave.sites.flare.scores import COUNTED
from fedweave.sites.flare.sitefile import Rules, SiteData, read_site_file


def names_in(files: Iterable[Path]) -> frozenset[str]:
    """All texts and the names of functions, keywords and classes in these Python files, and "Class.function" for every
    class with every function of the same file, because a class may inherit a step."""
    names = set[str]()
    for file in files:
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read as Python: {error}; correct or remove it") from error
        functions, classes = set[str](), set[str]()
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str(text)):
                    names.add(text)
                case ast.keyword(arg=str(name)):
                    names.add(name)
                case ast.FunctionDef(name=name):
                    functions.add(name)
                case ast.ClassDef(name=name):
                    classes.add(name)
        names |= functions | classes | {f"{kind}.{name}" for kind, name in product(classes, functions)}
    return frozenset(names)


def read_checked(path: Path) -> tuple[SiteData, Rules]:
    """A site's file (`sitefile.read_site_file`). Its policy may name only existing algorithms and message fields,
    because a rule for another name would protect nothing.

    Raises:
        ConfigError: the file cannot be read, or a key is not valid; names the key and the valid ones.
    """
    data, rules = read_site_file(path)
    # 1. Algorithms and parts. A plug-in in a file is not looked up, because that would run the file.
    if rules.parts and not rules.algorithms:
        raise ConfigError(
            f"{path}: policy.parts: without policy.algorithms any part may run; list both, or leave this out"
        )
    for rule, kind, names in (("algorithms", "algorithm", rules.algorithms), ("parts", "part", rules.parts)):
        for name in names:
            if not plugins.is_file(name):
                check_name(f"{path}: policy.{rule}", name, registry(kind))
    # 2. The names that plug-ins in the policy's files and in installed packages may give to fields and steps.
    files = [Path(file).expanduser() for file in rules.files]
    for file in files:
        if not file.is_file():
            raise ConfigError(
                f"{path}: policy.files: there is no file {file}; correct its path, or remove the entry",
                code="config.no-file",
            )
    announced = (*plugins.entry_point_plugins("algorithm").values(), *plugins.entry_point_plugins("part").values())
    try:
        plugin_names = names_in([*files, *(Path(inspect.getfile(kind)) for kind in announced)])
    except ConfigError as error:
        raise ConfigError(f"{path}: policy.files: {error}", code="config.code") from error
    # 3. Steps, which a plug-in's class may inherit, and fields.
    for step in rules.calls:
        owner, dot, name = step.rpartition(".")
        inherits = dot and owner in plugin_names and name in step_names()
        if step not in plugin_names and not inherits:
            check_name(f"{path}: policy.calls", step, step_names())
    named = {"deny": rules.deny, "mixup": rules.mixup, "noise": rules.noise, "secure_sum": rules.secure_sum}
    for rule, keys in (named | {"unbounded": rules.unbounded}).items():
        for key in keys:
            wrong = "" if key.split("/")[0] in plugin_names else _unknown(key)
            if wrong:
                raise ConfigError(f"{path}: policy.{rule}: {wrong}", code="config.policy")
    return data, rules


def _unknown(key: str) -> str:
    """Why no message has that field; "" if one has."""
    if not any(covers(sent, key) or covers(key, sent) for sent in reply_fields()):
        heads = sorted({sent.split("/")[0] for sent in reply_fields()})
        return f"no algorithm sends {key!r}; they send {', '.join(heads)}.{nearest(key, heads)}"
    head, below, name = key.partition("/")
    if below and head in COUNTED and name.split("/")[0] not in (*BELOW_SCORES, SHELF, ALONE):
        known_names = ", ".join(BELOW_SCORES)
        return f"no algorithm sends {key!r}; below {head} there are {known_names}.{nearest(name, BELOW_SCORES)}"
    return ""


@cache
def step_names() -> tuple[str, ...]:
    """The names that `policy.calls` may have: every step, with and without the name of its algorithm or part, and the
    requests before the first step and after the last."""
    steps = set(map(step_name, all_steps()))
    jobs = ("join", "blind", "align", "pad", "match", "exchange", "take", "unite", SHELF, ALONE)
    return (*jobs, *sorted({*steps, *(name.rpartition(".")[2] for name in steps)}))


@cache
def reply_fields() -> frozenset[str]:
    """All reply fields that algorithms and parts with default settings declare, or that sites send before a run."""
    return all_fields() | {*JOINING, *MEETING, *CLAIMING, *ADDING, *COUNTING, *UNITING}
