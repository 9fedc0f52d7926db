"""The configuration from files: an experiment's with options of the command line, another algorithm in it, and the one
that a run's folder has."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from fedweave.core.plugins import check_trusted
from fedweave.core.types import Values
from fedweave.errors import ConfigError, option
from fedweave.experiment.config.choices import accepts, check_values, split_parts
from fedweave.experiment.config.experiment import FOR_SWEEPS, TUNE, Config, choose_plugin, resolve
from fedweave.experiment.config.plugins import PARTS, REGISTRIES, field_parameters, lookup, parameters
from fedweave.experiment.config.sections import General
from fedweave.experiment.config.toml import Document, dumps, inline, load, override, section

_PACES = (("lr", "optimizer"), ("server_lr",))  # settings of the step size, which belong together
_OF_SIMULATIONS = "Of simulations: every site read its own data and split, as its own site.toml says."


@runtime_checkable
class ChoosesParts(Protocol):
    """The class of an algorithm that takes only some kinds of parts."""

    @staticmethod
    def takes_part(kind: type) -> bool:
        """Whether it takes parts of that class."""


@dataclass(frozen=True)
class Exchanged:
    """What `with_algorithm` did with the keys of [algorithm]. remaining: keys that stay. replaced: learning
    rates and optimizers, with their old values, which the defaults of the new algorithm replace.
    dropped: keys that the new algorithm does not have, or cannot have with that value."""

    remaining: tuple[str, ...] = ()
    replaced: Values = field(default_factory=dict)
    dropped: tuple[str, ...] = ()

    def notes(self, name: str, values: Values) -> list[str]:
        """Sentences about the keys; name: of the new algorithm. values: its settings."""
        sentences = []
        if self.dropped:
            sentences.append(f"{name} does not take {', '.join(self.dropped)}; dropped from [algorithm]")
        if self.replaced:
            changes = ", ".join(f"{key} = {values[key]} (not {old})" for key, old in self.replaced.items())
            sentences.append(
                f"{name} has a learning rate and an optimizer of its own: {changes}; "
                f"{option('set', None, 'settings')} algorithm.… changes it"
            )
        if sentences:
            texts = []
            for key in self.remaining:
                is_short = isinstance(values[key], int | float | str)
                texts.append(f"{key} = {values[key]}" if is_short else key)
            sentences.append(f"{name} keeps {', '.join(texts) or 'nothing'} of [algorithm]")
        return sentences


def read(path: Path, overrides: Sequence[str] = (), algorithm: str | None = None) -> tuple[Config, list[str]]:
    """Resolve the TOML file at `path`, with `algorithm` instead of the file's and then `overrides`
    ("section.key=value").

    Returns the config and sentences on the keys of [algorithm] that it does not use: `tune` and, with another
    algorithm, keys that this algorithm does not have.

    Raises:
        ConfigError: the file cannot be read, or a key, name or value is not valid; names it and what is valid.
    """
    document = load(path)
    notes = [f"{FOR_SWEEPS}; one run uses the other settings"] if pop_tune(document) else []
    exchanged = Exchanged()
    if algorithm is not None:
        document, exchanged = with_algorithm(document, algorithm)
    for text in overrides:
        override(document, text)
    try:
        config = resolve(document)
    except ConfigError as error:
        faults = [str(fault) for fault in error.args]
        messages = [_name_override(fault, overrides) for fault in faults]
        messages += _replacement_hints(faults, overrides, document)
        raise ConfigError(*messages, code=error.code) from error
    return config, [*notes, *exchanged.notes(config.algorithm.label, config.algorithm.values)]


def pop_tune(document: Document) -> dict[str, list[object]]:
    """Take the values to try of each key out of [algorithm].

    Raises:
        ConfigError: they are not a table of lists.
    """
    table = section(document, "algorithm").pop(TUNE, {})
    if not isinstance(table, dict) or not all(isinstance(values, list) and values for values in table.values()):
        message = f"algorithm.{TUNE}: lists of values to try, such as {TUNE} = {{lr = [0.01, 0.1]}}, got {table!r}"
        raise ConfigError(message, code="config.tune")
    return table


def _name_override(fault: str, overrides: Sequence[str]) -> str:
    """The fault, with the last override of the setting that it is about, if there is one."""
    fault_words = re.findall(r"\w+", fault)[:3]  # every message begins with section and key
    for text in reversed(overrides):
        if set(re.split(r"\W+", text.partition("=")[0].strip())) <= set(fault_words):
            return f"--set {text}: {fault}"
    return fault


def _replacement_hints(faults: Sequence[str], overrides: Sequence[str], document: Document) -> list[str]:
    """How to leave out the keys of a section where an override names a plug-in that lacks some of them."""
    hints = []
    for text in overrides:
        path = text.partition("=")[0].strip()
        if not path.endswith(".name"):
            continue
        table = path.removesuffix(".name")
        values = section(document, table)
        unknown = [key for key in values if any(fault.startswith(f"{table}.{key}: unknown key") for fault in faults)]
        if unknown:
            unknown += ["path"] if table == "data" and "path" in values else []  # of the other data
            whole = inline({key: value for key, value in values.items() if key not in unknown})
            remedy = f"to leave out {', '.join(unknown)}, write --set '{table}={whole}'"
            hints.append(f"--set {text} keeps the other keys of [{table}]; {remedy}")
    return hints


def with_algorithm(document: Document, name: str, where: str = "--algorithm") -> tuple[Document, Exchanged]:
    """The document with another algorithm: NAME's defaults, and the keys that NAME also has, with values that it can
    have. A learning rate and its optimizer stay only where both algorithms have the same defaults. where: the option
    that the name comes from.

    Raises:
        ConfigError: there is no such algorithm, or the section to be replaced is itself not valid.
    """
    table = section(document, "algorithm")
    old_fields = parameters("algorithm", choose_plugin("algorithm", table).kind)
    name, kind = lookup(where, "algorithm", name)
    fields = parameters("algorithm", kind)
    different_paces = set[str]()
    for pace in _PACES:
        for key in pace:
            old = old_fields[key].default if key in old_fields else None
            new = fields[key].default if key in fields else None
            if old != new:
                different_paces.update(pace)

    remaining, replaced, dropped = Document(), Document(), list[str]()
    for key, value in table.items():
        if key in fields and key in different_paces:
            replaced[key] = value
        elif key in fields and accepts(fields[key], value):
            remaining[key] = value
        elif key != "name":
            dropped.append(key)
    if PARTS in remaining and isinstance(kind, ChoosesParts):
        remaining[PARTS], dropped_parts = split_parts(remaining[PARTS], fields[PARTS], kind.takes_part)
        dropped += [f"{PARTS} {part}" for part in dropped_parts]
    return {**document, "algorithm": {"name": name, **remaining}}, Exchanged(tuple(remaining), replaced, tuple(dropped))


def to_toml(document: Document) -> str:
    """The document of a run (`Config.plain`) as TOML, with a comment on sections that sites do not use."""
    is_of_sites = section(document, "engine").get("name") == "flare"
    return dumps(document, dict.fromkeys(("data", "partition"), _OF_SIMULATIONS) if is_of_sites else None)


def read_saved(path: Path) -> Config:
    """Resolve the configuration of a run's folder, which the folder's author may have written by hand.

    Raises:
        UserError: it names a Python file that is not trusted (`core.plugins.check_trusted`).
        ConfigError: it is not valid.
    """
    document = load_saved(path)
    check_trusted(document, path)
    with _errors_name(path):
        return resolve(document)


def load_saved(path: Path) -> Document:
    """The document of a run's folder, checked as far as that needs no plug-in: its algorithm may not be at hand.

    Raises:
        ConfigError: it is not what a run writes there.
    """
    document = load(path)
    with _errors_name(path):
        try:
            dumps(document)
        except (TypeError, ValueError) as error:  # a date, a number of thousands of digits
            raise ConfigError(str(error)) from error
        general = field_parameters(General)
        check_values("", document, {key: general[key] for key in general if key in document})
        for key in REGISTRIES:
            if not isinstance(section(document, key).get("name", ""), str):
                raise ConfigError(f"{key}.name: is not a name")
        if not isinstance(section(document, "data").get("labels") or [], list):
            raise ConfigError("data.labels: is not a list")
    return document


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """Begin errors about the file with its path."""
    try:
        yield
    except ConfigError as error:
        message = f"{path} is not the configuration of a run of this version:"
        raise ConfigError(message, *error.args, code=error.code) from error
