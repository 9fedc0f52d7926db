"""The settings that `fedweave tune` tries: a short list for each kind of task.

Nothing here changes what leaves a member: protections, how data is scaled over members and who shares which weights
stay as the configuration says. A value is offered only where this version's model, data or algorithm has the setting
and the experiment is valid with it; the configuration's own value is always offered.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedweave.core.algorithm import capabilities
from fedweave.core.types import CLASS, Record, Values
from fedweave.errors import ConfigError
from fedweave.experiment.config import Config, Document, parameters, resolve, with_algorithm
from fedweave.experiment.config.plugins import DEFAULT_NAMES, PARTS, lookup
from fedweave.experiment.config.toml import flat, part_tables, section

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

MODEL, ALGORITHM = "model.name", "algorithm.name"
LINK_PART = "link_prediction"  # keys "link_prediction.loss" are of this part of the algorithm
_ADAPTIVE = ("adam", "adamw", "rmsprop", "adagrad")  # optimizers whose steps have the length of lr
_WITH_HEADS = ("gat", "gatv2", "transformer")  # whose `hidden` is the width of one head
_WITH_FINGERPRINTS = ("gin", "gine")  # whose readout takes columns of graphs
_DECODERS_OF_RELATIONS = ("distmult", "complex", "transe", "rotate")


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, on a logarithmic scale."""

    low: float
    high: float

    def with_value(self, value: float) -> "Range":
        """The same, and the numbers up to `value`."""
        return Range(min(self.low, value), max(self.high, value))


Choices = tuple[object, ...] | Range

# What is tried for each kind of task. Models: those that were best on some of the public sets of their kind.
_MODELS = {
    "nodes": ("sage", "gcn", "gat", "mlp"),
    "edges": ("gine", "pna", "sage"),
    "graphs": ("gin", "gine", "pna"),
    "links": ("gcn", "sage"),
    "entities": (),
    "ratings": ("lightgcn",),
    "parties": (),
}
_READ_EDGES = ("gine", "pna")  # offered where edges have features
_LAYERS = {
    "nodes": (1, 2, 3, 4, 6),
    "edges": (1, 2, 3),
    "graphs": (2, 3, 4, 5),
    "links": (1, 2, 3),
    "entities": (),
    "ratings": (1, 2, 3),
    "parties": (),
}
_WIDTHS, _WIDTHS_OF_HEADS = (32, 64, 128), (4, 8, 16)
_OF_MODEL: Mapping[str, tuple[object, ...]] = {
    "dropout": (0.0, 0.2, 0.5),
    "norm": ("none", "layer"),  # neither has numbers of other nodes, so that members and sites agree
    "residual": (False, True),
    "input_layer": (False, True, 0, 1),
    "jump": ("none", "max", "cat"),
}
_ALGORITHMS = ("fedavg", "fedprox", "fedavg_ft")  # all send weights, and one mean of them comes back

# Settings that did well on public sets; tried right after the configuration's own, as far as they are offered.
_FIRST: Mapping[str, tuple[Values, ...]] = {
    "nodes": (
        {MODEL: "sage", "model.layers": 2, "model.norm": "layer", "model.residual": True, "algorithm.lr": 0.01},
        {MODEL: "gcn", "model.layers": 3, "model.norm": "layer", "model.residual": True, "algorithm.lr": 0.003},
    ),
    "edges": ({MODEL: "gine", "model.layers": 2, "model.norm": "layer", "model.dropout": 0.0, "algorithm.lr": 0.005},),
    "graphs": (
        {MODEL: "gine", "model.layers": 3, "model.dropout": 0.0, "algorithm.lr": 0.003, "algorithm.batch_size": 32},
        {MODEL: "gin", "model.layers": 3, "model.dropout": 0.0, "algorithm.lr": 0.003, "algorithm.batch_size": 32},
    ),
    "links": (
        {
            MODEL: "gcn",
            "model.decoder": "common_neighbors",
            "model.layers": 1,
            "model.dropout": 0.0,
            "algorithm.lr": 0.003,
        },
        {MODEL: "gcn", "model.decoder": "cosine", "model.dropout": 0.0, "algorithm.lr": 0.003},
    ),
    "entities": ({"model.decoder": "complex", "algorithm.lr": 0.03, "algorithm.local_steps": 10},),
    "ratings": ({MODEL: "lightgcn", "model.layers": 2, "algorithm.lr": 0.01},),
    "parties": (),
}


def task_of(config: Config) -> str:
    """The kind of task of an experiment: a key of the lists above."""
    if capabilities(config.algorithm.kind).vertical:
        return "parties"
    if config.links is not None:
        if config.links.items is not None:
            return "ratings"
        return "entities" if config.decoder in _DECODERS_OF_RELATIONS else "links"
    if getattr(config.data.kind, "example", "node") == "graph" or config.model.values.get("pool", "none") != "none":
        return "graphs"
    return "edges" if config.data.values.get("task") == "edges" else "nodes"


@dataclass(frozen=True)
class Space:
    """What is tried for one experiment.

    document: the experiment, in the words of its file. shared: {key: choices} of settings outside the model.
    models: {model: {key: choices}}. current: {key: value} of the experiment. first: settings to try first, after these.
    """

    document: Document
    shared: Mapping[str, Choices]
    models: Mapping[str, Mapping[str, Choices]]
    current: Values
    first: tuple[Values, ...]

    def propose(self, trial: "BaseTrial") -> Record:
        """The {key: value} of a trial, numbers of ranges with three digits."""
        setting = {key: _suggest(trial, key, key, choices) for key, choices in self.shared.items()}
        model = str(setting.get(MODEL, self.current[MODEL]))
        for key, choices in self.models.get(model, {}).items():
            setting[key] = _suggest(trial, self.parameter(model, key), key, choices)
        return setting

    def parameter(self, model: str, key: str) -> str:
        """The name of a model's setting in the study: models that choose among the same values share it."""
        choices = self.models[model][key]
        first = next(of_model[key] for of_model in self.models.values() if key in of_model)
        return key if choices == first else f"{key} of {model}"

    def starts(self) -> list[Record]:
        """{parameter: value} of the settings to try first, beginning with the experiment's own."""
        starts = []
        for values in (self.current, *({**self.current, **first} for first in self.first)):
            model = str(values.get(MODEL, self.current[MODEL]))
            offered = dict(self.shared)
            names = {key: key for key in self.shared}
            for key, choices in self.models.get(model, {}).items():
                offered[key] = choices
                names[key] = self.parameter(model, key)
            start = {}
            for key, name in names.items():
                if key in values and _has(offered[key], values[key]):
                    start[name] = values[key] if isinstance(offered[key], Range) else _word(values[key])
            starts.append(start)
        return starts

    def apply(self, setting: Values) -> Document:
        """The experiment with a setting."""
        return _with_setting(self.document, setting)

    def changes(self, setting: Values) -> Record:
        """The values of a setting that are not the experiment's own."""
        return {key: value for key, value in setting.items() if not _same(self.current.get(key), value)}

    def plain(self) -> Record:
        """What the space holds, as JSON has it, to recognize it."""
        models = {model: {key: repr(choices) for key, choices in keys.items()} for model, keys in self.models.items()}
        shared = {key: repr(choices) for key, choices in self.shared.items()}
        return {"shared": shared, "models": models, "first": [repr(values) for values in self.first]}


def space_of(document: Document) -> Space:
    """What is tried for the experiment of a document.

    Raises:
        ConfigError: the document is not valid.
    """
    config = resolve(document)
    task = task_of(config)
    current = _current_values(config)
    shared = dict[str, Choices]()
    for key, choices in _shared(config, task):
        shared[key] = _offered(document, {}, key, choices, current.get(key))
    names = [config.model.name, *(name for name in _model_names(config, task) if name != config.model.name)]
    models = dict[str, Mapping[str, Choices]]()
    for name in names:
        if name != config.model.name and not _is_valid(document, {MODEL: name}):
            continue
        of_model = dict[str, Choices]()
        for key, choices in _of_model(config, task, name):
            default = current.get(key) if name == config.model.name else None
            of_model[key] = _offered(document, {MODEL: name}, key, choices, default)
        models[name] = _without_single(of_model)
    shared[MODEL] = tuple(models)
    return Space(document, _without_single(shared), models, current, _FIRST[task])


def _current_values(config: Config) -> Record:
    """{key: value} of everything that may be tried, as the experiment has it."""
    current: Record = {key: value for key, value in flat(config.plain()).items() if not isinstance(value, dict)}
    for part in config.algorithm.values.get(PARTS, ()):
        if part.name == LINK_PART:
            current |= {f"{LINK_PART}.{key}": value for key, value in part.values.items()}
    if config.links is not None and f"{LINK_PART}.loss" not in current:
        kind = lookup(f"algorithm.{PARTS}", "part", LINK_PART)[1]
        current |= {f"{LINK_PART}.{key}": field.default for key, field in parameters("part", kind).items()}
    return current


def _shared(config: Config, task: str) -> Iterator[tuple[str, Choices]]:
    """The settings outside the model, with what is tried of each."""
    algorithm, data = config.algorithm.values, config.data.values
    if config.algorithm.name in _ALGORITHMS:
        yield ALGORITHM, _ALGORITHMS
    if "lr" in algorithm:
        adaptive = algorithm.get("optimizer", "adam") in _ADAPTIVE
        lr = Range(5e-4, 0.05) if adaptive else Range(0.01, 1.0)
        yield "algorithm.lr", lr.with_value(algorithm["lr"])
    if isinstance(algorithm.get("weight_decay"), float):
        yield "algorithm.weight_decay", (0.0, 1e-5, 5e-4, 5e-3)
    if algorithm.get("local_epochs"):
        yield "algorithm.local_epochs", (1, 2, 5)
    elif "local_steps" in algorithm:
        yield "algorithm.local_steps", (1, 3, 5, 10, 20)
    if task == "graphs" and "batch_size" in algorithm:
        yield "algorithm.batch_size", (0, 32, 64)
    if (
        data.get("target", CLASS) == CLASS
        and config.links is None
        and algorithm.get("class_weight") in ("none", "balanced")
    ):
        yield "algorithm.class_weight", ("none", "balanced")
    if config.links is not None and PARTS in algorithm:
        yield f"{LINK_PART}.loss", ("cross_entropy", "bpr")
        yield f"{LINK_PART}.negatives", (1, 4, 8)
    if "structure" in data:
        yield "data.structure", ([], ["degree"], ["degree", "pagerank"])


def _model_names(config: Config, task: str) -> Sequence[str]:
    """The models that are tried besides the experiment's own."""
    if config.member_models or capabilities(config.algorithm.kind).vertical:
        return ()
    edge_features = config.data.values.get("edge_features") or config.data.name == "transfers"
    names = [name for name in _MODELS[task] if name not in _READ_EDGES or edge_features]
    return [*names, "gine"] if task == "nodes" and edge_features else names


def _of_model(config: Config, task: str, name: str) -> Iterator[tuple[str, Choices]]:
    """The settings of a model, with what is tried of each."""
    if config.member_models:
        return
    fields = parameters("model", lookup(MODEL, "model", name)[1])
    choices: Record = {"hidden": _WIDTHS_OF_HEADS if name in _WITH_HEADS else _WIDTHS, "layers": _LAYERS[task]}
    choices |= _OF_MODEL
    if task == "graphs":
        choices["pool"] = ("sum", "mean")
    if config.data.values.get("directed") or config.data.name == "transfers":
        choices["directed"] = ("none", "both")
    for key, values in choices.items():
        if key in fields:
            yield f"model.{key}", values
    if name in _WITH_FINGERPRINTS and config.data.values.get("fingerprint", "none") != "none":  # graphs have SMILES
        yield "data.fingerprint", ("none", "morgan", "descriptors", "both")
    if task == "links":
        yield "model.decoder", ("dot", "cosine", "common_neighbors", "mlp")
    elif task == "entities":
        yield "model.decoder", _DECODERS_OF_RELATIONS


def _offered(document: Document, base: Values, key: str, choices: Choices, current: object) -> Choices:
    """The choices with which the document, changed by `base`, is valid; with its own value, unless that is None."""
    if isinstance(choices, Range):
        return choices
    offered = [value for value in choices if _is_valid(document, {**base, key: value})]
    if current is not None and not _has(tuple(offered), current):
        offered.append(current)
    return tuple(offered)


def _without_single(offered: Mapping[str, Choices]) -> dict[str, Choices]:
    """The settings with something to choose."""
    return {key: choices for key, choices in offered.items() if isinstance(choices, Range) or len(choices) > 1}


def _is_valid(document: Document, setting: Values) -> bool:
    """Whether the experiment may run with a setting, and keeps all else that its algorithm was told."""
    name = setting.get(ALGORITHM)
    try:
        if name is not None:
            exchanged = with_algorithm(document, str(name))[1]
            if exchanged.dropped or exchanged.replaced:
                return False
        resolve(_with_setting(document, setting)).check_made()
    except ConfigError:
        return False
    return True


def _with_setting(document: Document, setting: Values) -> Document:
    """The document with other values; of the old algorithm and model what the new ones also have."""
    result = deepcopy(document)
    if ALGORITHM in setting:
        result = with_algorithm(result, str(setting[ALGORITHM]))[0]
    if MODEL in setting:
        result["model"] = _with_model(section(result, "model"), str(setting[MODEL]))
    for key, value in setting.items():
        head, _, name = key.partition(".")
        if key in (ALGORITHM, MODEL):
            continue
        if head == LINK_PART:
            _set_of_part(section(result, "algorithm"), result, name, value)
        else:
            result.setdefault(head, {})[name] = value
    return result


def _with_model(table: Document, name: str) -> Document:
    """[model] with another model, and what that one has of the table's other keys."""
    if table.get("name", DEFAULT_NAMES["model"]) == name:
        return {**table, "name": name}
    fields = parameters("model", lookup(MODEL, "model", name)[1])
    kept = {key: value for key, value in table.items() if key in fields or key == "decoder"}
    kept.pop("hidden", None)  # the width of a layer here, of a head there
    return {"name": name, **kept}


def _set_of_part(algorithm: Document, document: Document, name: str, value: object) -> None:
    """Change a value of the algorithm's part for links, which is there by default."""
    document["algorithm"] = algorithm
    parts = [dict(part) for part in part_tables(algorithm)]
    if not any(part["name"] == LINK_PART for part in parts):
        parts.append({"name": LINK_PART})
    for part in parts:
        if part["name"] == LINK_PART:
            part[name] = value
    algorithm[PARTS] = parts


def _suggest(trial: "BaseTrial", parameter: str, key: str, choices: Choices) -> object:
    """A trial's value of a parameter."""
    if isinstance(choices, Range):
        value = trial.suggest_float(parameter, choices.low, choices.high, log=True)
        return float(f"{value:.3g}")
    at = trial.suggest_categorical(parameter, [_word(value) for value in choices])
    return next(value for value in choices if _word(value) == at)


def _word(value: object) -> str:
    """A value as text, because a study has no lists, and takes 0 and false for the same."""
    return value if isinstance(value, str) else repr(value)


def _has(choices: Choices, value: object) -> bool:
    if isinstance(choices, Range):
        return isinstance(value, int | float) and choices.low <= value <= choices.high
    return any(_same(one, value) for one in choices)


def _same(one: object, other: object) -> bool:
    """Whether two values are equal; 0 is not false, and a tuple is a list."""
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return list(one) == list(other)
    return one == other and isinstance(one, bool) == isinstance(other, bool)
