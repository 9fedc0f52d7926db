"""Which keys of replies an algorithm that is installed here may send, so that a policy can be held against them."""

import ast
import inspect
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import MethodType

from fedweave.algorithms import ALGORITHMS, PARTS
from fedweave.algorithms.parts.composition import MadeOfParts
from fedweave.algorithms.score_sums import HISTOGRAM, MEAN
from fedweave.core import plugins
from fedweave.core.federation import Step, StepInfo, is_step, step_info, step_name
from fedweave.core.plugins import is_file
from fedweave.deploy.flare.parties.alignment import MEETING
from fedweave.deploy.flare.parties.exchange import CLAIMING
from fedweave.deploy.flare.site.joining import JOINING
from fedweave.deploy.flare.site.sitefile import Rules, SiteData, read_site_file
from fedweave.deploy.flare.wire.scores import COUNTED
from fedweave.errors import ConfigError
from fedweave.experiment.config import registry
from fedweave.experiment.config.toml import check_name, nearest
from fedweave.metrics import classification, group_fairness
from fedweave.models import MODELS
from fedweave.partition.external import ADDING


def spelled(files: Iterable[Path]) -> frozenset[str]:
    """Texts, names of functions, of keywords and of classes in these Python files, and "Class.function" of all classes
    with all functions of one file: a step may be inherited.

    Raises:
        ConfigError: names a file that cannot be read as Python.
    """
    found: set[str] = set()
    for file in files:
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read as Python: {error}; mend it, or take it out") from error
        found |= _names(tree)
    return frozenset(found)


def of_packages() -> tuple[Path, ...]:
    """The files of the algorithms and parts that installed packages announce."""
    kinds = [kind for section in ("algorithm", "part") for kind in plugins.announced(section).values()]
    return tuple(Path(inspect.getfile(kind)) for kind in kinds)


def _names(tree: ast.Module) -> set[str]:
    texts, functions, classes = set[str](), set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                texts.add(text)
            case ast.keyword(arg=str(name)):
                texts.add(name)
            case ast.FunctionDef(name=name):
                functions.add(name)
            case ast.ClassDef(name=name):
                classes.add(name)
    return texts | functions | classes | {f"{kind}.{name}" for kind in classes for name in functions}


# Leaves of `COUNTED`; not all are declared apart.
_SCORES = (*classification.COUNTED, *group_fairness.COUNTED, MEAN, HISTOGRAM)


def read_checked(path: Path) -> tuple[SiteData, Rules]:
    """A site's file (`sitefile.read_site_file`), whose policy names only algorithms and keys that there are: a rule for
    another would protect nothing.

    Raises:
        ConfigError: it cannot be read, or is not valid; names the key and what is.
    """
    data, rules = read_site_file(path)
    _check_listed(path, rules)
    others = _spelled_outside(path, rules)
    for step in rules.calls:
        if not _of_outside(step, others):
            check_name(f"{path}: policy.calls", step, known_steps())
    named = {"deny": rules.deny, "mixup": rules.mixup, "noise": rules.noise, "secure_sum": rules.secure_sum}
    for rule, keys in (named | {"unbounded": rules.unbounded}).items():
        for key in keys:
            if key.split("/")[0] not in others and (wrong := _unknown(key)):
                raise ConfigError(f"{path}: policy.{rule}: {wrong}", code="config.policy")
    return data, rules


def _spelled_outside(path: Path, rules: Rules) -> frozenset[str]:
    """What plug-ins of the policy's files and of installed packages may call their keys and steps."""
    listed = [Path(file).expanduser() for file in rules.files]
    for file in listed:
        if not file.is_file():
            raise ConfigError(
                f"{path}: policy.files: there is no file {file}; correct its path, or take it out",
                code="config.no-file",
            )
    try:
        return spelled([*listed, *of_packages()])
    except ConfigError as error:
        raise ConfigError(f"{path}: policy.files: {error}", code="config.code") from error


def _of_outside(step: str, others: frozenset[str]) -> bool:
    """Whether a file from outside has that step, or the class that inherits it."""
    kind, dot, name = step.rpartition(".")
    return step in others or (bool(dot) and kind in others and name in known_steps())


def _check_listed(path: Path, rules: Rules) -> None:
    """Algorithms and parts that the policy lists; one of a file is not looked up, because that would run the file."""
    if rules.parts and not rules.algorithms:
        raise ConfigError(
            f"{path}: policy.parts: without policy.algorithms any part may run; list both, or leave this out"
        )
    for rule, kind, names in (("algorithms", "algorithm", rules.algorithms), ("parts", "part", rules.parts)):
        for name in names:
            if not is_file(name):
                check_name(f"{path}: policy.{rule}", name, registry(kind))


def _unknown(key: str) -> str:
    """Why nothing that is sent has that key; "" if something has."""
    if not any(_within(key, sent) or _within(sent, key) for sent in known()):
        heads = sorted({sent.split("/")[0] for sent in known()})
        return f"no algorithm sends {key!r}; they send {', '.join(heads)}.{nearest(key, heads)}"
    head, below, name = key.partition("/")
    if below and head in COUNTED and name.split("/")[0] not in _SCORES:
        return f"no algorithm sends {key!r}; below {head} there are {', '.join(_SCORES)}.{nearest(name, _SCORES)}"
    return ""


@cache
def known_steps() -> tuple[str, ...]:
    """What `policy.calls` may name: every step by its own name, and with that of its algorithm or part; and jobs."""
    steps = {step_name(step) for name, kind in ALGORITHMS.items() for step in _steps(_made(name, kind))}
    steps |= {step_name(step) for kind in PARTS.values() for step in kind().setup}
    jobs = ("join", "blind", "align", "pad", "match", "exchange", "take")
    return (*jobs, *sorted({*steps, *(name.rpartition(".")[2] for name in steps)}))


@cache
def known() -> frozenset[str]:
    """All declared keys of replies, of algorithms and parts with their default settings."""
    found = {*JOINING, *MEETING, *CLAIMING, *ADDING}
    for name, kind in ALGORITHMS.items():
        for step in _steps(_made(name, kind)):
            found |= step_info(step).sends.keys()
    for part in (kind() for kind in PARTS.values()):
        found |= StepInfo.of(part.sends).sends.keys()
        for step in part.setup:
            found |= step_info(step).sends.keys()
    return frozenset(found)


def _within(path: str, key: str) -> bool:
    return f"{path}/".startswith(f"{key}/")


def _made(name: str, kind: Callable[[object], object]) -> object:
    """An algorithm of that name with its defaults and the first model that it takes."""
    for model in MODELS.values():
        try:
            return kind(model().build(4, 2))
        except (ValueError, TypeError):
            continue
    raise ConfigError(f"{name} takes no model with its default settings, so that what it sends is not known")


def _steps(algorithm: object) -> list[Step]:
    places = [algorithm, *(algorithm.composed.values() if isinstance(algorithm, MadeOfParts) else ())]
    return [MethodType(own, place) for place in places for own in _members(place) if callable(own) and is_step(own)]


def _members(place: object) -> Iterable[object]:
    """What a class has by each name, as its own or inherited."""
    return {name: own for kind in reversed(type(place).__mro__) for name, own in vars(kind).items()}.values()
