"""One experiment (`Config`), and `resolve`, which makes it of a document: every plug-in by name, every key with its
value."""

import dataclasses
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave.core.shown import Words, line, page
from fedweave.core.types import PREDICT, SHARDS, Record
from fedweave.errors import ConfigError, Faults
from fedweave.experiment.config.choices import (
    EACH,
    MEMBERS,
    Choice,
    MemberModels,
    accepts,
    check_values,
    choose,
    part_choice,
)
from fedweave.experiment.config.plugins import (
    DEFAULT_NAMES,
    FOREIGN_ENDS,
    PARTS,
    REGISTRIES,
    field_parameters,
    lookup,
    parameters,
    registry,
)
from fedweave.experiment.config.sections import EvaluationSettings, General, PaySettings, SimulationEngine
from fedweave.experiment.config.toml import Document, check_keys, section

if TYPE_CHECKING:
    from fedweave.core.links import Links
    from fedweave.partition.folds import Fold
    from fedweave.partition.forgetting import Forget
    from fedweave.partition.noise import Noise

ANY_FEATURES, ANY_CLASSES = 8, 2  # of a model that is built only to check its settings
DECODER, OF_FEATURES = "dot", "cosine"  # how links are scored where [model] does not say, and of nodes with features
COSINES = ("cosine", "common_neighbors")  # decoders that compare rows by their angle
LR, LR_OF_COSINES = 0.01, 0.003  # the default learning rate, and that of links which cosines score
TUNE = "tune"  # the key of [algorithm] that lists values for `fedweave sweep` to try
FOR_SWEEPS = "algorithm.tune: values that `fedweave sweep` tries"
_MAX_NAMES = 9  # plug-ins that a hint names
_DEVICES = ("device", "gpu", "gpus", "cuda")
_CALLS_ALL = " This algorithm calls all clients in every round."
_ON_GPUS = " What computes is engine.device, such as 'cuda'; of a site, [site] device in its site.toml."


@dataclass(frozen=True, repr=False)
class Config:
    """One run, resolved: every key has its value. `folder` is the user's `[data] path` or None; `noise`, `forget` and
    `fold` are None where the document has no such section; `external` and `min_external` are settings of [data] for all
    kinds of data (`partition.external`); `member_models` are the models that members have instead of `model`; `links`
    states how links are the examples, if [data] task does, and `decoder` how [model] scores them (`models.links`);
    `learned` states whether nodes have a column each instead of their features (`datasets.triples.with_node_columns`).
    """

    general: General
    data: Choice
    partition: Choice
    model: Choice
    algorithm: Choice
    engine: Choice
    folder: str | None = None
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    pay: PaySettings = field(default_factory=PaySettings)
    noise: "Noise | None" = None
    forget: "Forget | None" = None
    fold: "Fold | None" = None
    external: str = "refuse"
    min_external: int = 1
    member_models: MemberModels = field(default_factory=MemberModels)
    links: "Links | None" = None
    decoder: str = DECODER
    learned: bool = False

    def __repr__(self) -> str:
        names = {key: Words(choice.label) for key, choice in self.sections.items() if key != "algorithm"}
        facts = names | {"rounds": self.general.rounds, "seed": self.general.seed}
        return line("Config", facts, [self.algorithm.label])

    def _repr_html_(self) -> str:
        rows = []
        for key, table in self.plain().items():
            if isinstance(table, dict):
                rows += [(f"{key}.{name}", value) for name, value in table.items()]
        return page(repr(self), rows)

    @property
    def between_sites(self) -> bool:
        """Whether every client is at a site of its own, so that models and data are there."""
        return self.engine.name == "flare"

    def of_member(self, member: str, members: Sequence[str]) -> "Config":
        """The experiment with the model of one of its members as the only one."""
        model = self.member_models.of(member, members.index(member)) if self.member_models else None
        return dataclasses.replace(self, model=self.model if model is None else model, member_models=MemberModels())

    def in_process(self) -> "Config":
        """This experiment with all clients in this process, which changes no number."""
        fields = field_parameters(SimulationEngine)
        values = {name: self.engine.values.get(name, fields[name].default) for name in fields}
        return dataclasses.replace(self, engine=Choice("engine", "simulation", SimulationEngine, values))

    def on_device(self, device: str) -> "Config":
        """This experiment, in this process, on another device."""
        engine = dataclasses.replace(self.engine, values={**self.engine.values, "device": device})
        return dataclasses.replace(self, engine=engine)

    @property
    def sections(self) -> dict[str, Choice]:
        """{section: its choice} for each section that chooses a plug-in."""
        choices = (self.data, self.partition, self.model, self.algorithm, self.engine)
        return {choice.path: choice for choice in choices}

    def plain(self) -> Document:
        """The TOML document that resolves to this config."""
        document: Document = self.general.plain()
        document |= {name: choice.plain() for name, choice in self.sections.items()}
        data, model = document["data"], document["model"]
        model |= self.member_models.plain()
        if self.folder is not None:
            data["path"] = self.folder
        if self.external != "refuse":
            data |= {"external": self.external, "min_external": self.min_external}
        if self.links is not None:
            data |= {"task": "links", **self.links.plain()}
            model["decoder"] = self.decoder
        if self.learned:
            data["features"] = "learned"
        document["evaluation"] = self.evaluation.plain()
        if self.pay != PaySettings():
            document["pay"] = self.pay.plain()
        if self.noise is not None:
            document["noise"] = asdict(self.noise)
        if self.forget is not None:
            document["forget"] = {key: [*names] for key, names in asdict(self.forget).items() if names}
        if self.fold is not None:
            document["fold"] = asdict(self.fold)
        return {**document, "privacy": {}}

    def check_made(self) -> None:
        """Reject settings that the model or the algorithm rejects for any data.

        Raises:
            ConfigError: names the algorithm and the setting.
        """
        from fedweave.models.links import on_links

        try:
            head = on_links(self.model.make(), self.links, self.decoder)
            self.algorithm.make(head.build(ANY_FEATURES, ANY_CLASSES))
        except ConfigError as error:
            raise ConfigError(*(f"{self.algorithm.label}: {fault}" for fault in error.args), code=error.code) from error


def resolve(document: Document) -> Config:
    """Check a document and fill in every default.

    Raises:
        ConfigError: keys, names or values are not valid; names of each its path, the value and what is allowed.
    """
    faults, values = Faults(ConfigError), Record()
    general = field_parameters(General)
    with faults:
        valid = [*general, *REGISTRIES, "evaluation", "pay", "noise", "forget", "fold", "privacy"]
        check_keys("", document, valid, hint=partial(_hint_at_sections, document))
    with faults:
        values["general"] = General(**check_values("", document, general))

    # 1. The sections that choose plug-ins.
    with faults:
        values |= _resolve_data(section(document, "data"))
    with faults:
        table = section(document, "partition")
        default = getattr(values["data"].kind, "partition", None) if "data" in values else None
        values["partition"] = choose_plugin("partition", table if default is None else {"name": default, **table})
    with faults:
        is_of_links = section(document, "data").get("task") == "links"
        is_of_graphs = _has_small_graphs(values.get("data"), values.get("folder"))
        decoder = _default_decoder(values) if is_of_links else None
        of_graphs = _columns_of_graphs(values.get("data"), values.get("folder")) if is_of_graphs else 0
        values |= _resolve_model(section(document, "model"), decoder, is_of_graphs, of_graphs)
    links = values.get("links")
    with faults:
        algorithm = choose_plugin("algorithm", section(document, "algorithm"))
        algorithm = _with_foreign_ends(algorithm, values.get("external", ""))
        if links is not None and "lr" not in section(document, "algorithm"):
            algorithm = _with_rate_of(values.get("decoder", DECODER), algorithm)
        values["algorithm"] = with_weight_decay(algorithm, links is not None)
    with faults:
        values["engine"] = choose_plugin("engine", section(document, "engine"))

    # 2. The other sections.
    evaluation = EvaluationSettings()
    with faults:
        evaluation = EvaluationSettings(**_section_values(document, "evaluation", EvaluationSettings))
    if links is not None and evaluation.metric == "auto":
        if links.candidates:
            evaluation = dataclasses.replace(evaluation, metric="mrr", positive=None)
        else:
            evaluation = dataclasses.replace(evaluation, metric="average_precision", positive=1)
    values["evaluation"] = evaluation
    with faults:
        values["pay"] = PaySettings(**_section_values(document, "pay", PaySettings))
    with faults:
        for key in section(document, "privacy"):
            text = f"privacy.{key}: this version has no [privacy] settings; leave the section empty"
            raise ConfigError(text, code="config.unknown-key")
    with faults:
        if "noise" in document:
            from fedweave.partition.noise import Noise  # as plug-ins, imported only when needed

            values["noise"] = Noise(**_section_values(document, "noise", Noise))
    with faults:
        if "forget" in document:
            from fedweave.partition.forgetting import Forget

            values["forget"] = Forget(**_section_values(document, "forget", Forget))
    with faults:
        if "fold" in document:
            from fedweave.partition.folds import Fold

            values["fold"] = Fold(**_section_values(document, "fold", Fold))
    faults.refuse()

    # 3. What sections demand of each other.
    from fedweave.experiment.requirements import check  # needs torch, as the plug-ins do
    from fedweave.experiment.stages import Configured

    config = Config(**values)
    check(Configured.of(config))
    return config


def _resolve_data(table: Document) -> Record:
    """The values of `Config` that [data] sets.

    Raises:
        ConfigError: a key or a value is not valid.
    """
    from fedweave.datasets.external import REFUSE, check_external

    data = dict(table)
    # 1. `path`: without a name it also decides the kind of data.
    folder = data.pop("path", None)
    if folder is not None:
        if not isinstance(folder, str) or not folder:
            raise ConfigError(f"data.path: the folder of the data as a string, got {folder!r}", code="config.value")
        data = {"name": "npz" if folder.lower().endswith(".npz") else "folder", **data}

    # 2. Edges between members, which every kind of data may have.
    external, min_external = data.get("external", REFUSE), data.get("min_external", 1)
    try:
        check_external(external)
    except ConfigError as error:
        raise ConfigError(f"data.{error}", code=error.code) from error
    if type(min_external) is not int or min_external < 1:
        message = f"data.min_external: must be a whole number >= 1, got {min_external!r}"
        raise ConfigError(message, code="config.value")

    # 3. Links as examples.
    links = None
    if data.get("task") == "links":
        from fedweave.core.links import OF_DATA, Links  # needs torch

        fields = {name: parameter for name, parameter in field_parameters(Links).items() if name not in OF_DATA}
        settings = {name: data.pop(name) for name in fields if name in data}
        links = Links(**check_values("data.", settings, fields))
        del data["task"]
        if isinstance(data.get("name"), str):  # a data set may read the links in its tables
            _, kind = lookup("data.name", "data", data["name"])
            task = field_parameters(kind).get("task")
            if task is not None and accepts(task, "links"):
                data["task"] = "links"

    # 4. Learned features; a data set may have a setting of the same name, which is not a word.
    features = data.get("features")
    if isinstance(features, str):
        if features not in ("given", "learned"):
            raise ConfigError(f"data.features: must be 'given' or 'learned', got {features!r}", code="config.value")
        del data["features"]
    if data.get("name") == SHARDS:  # settings are the source's where the table does not say
        data = {**_recorded(folder).get("settings", {}), **data}
    choice = choose_plugin("data", data)
    if features == "learned" and "normalize" in choice.values:  # one-hot columns are not amounts
        choice = dataclasses.replace(choice, values={**choice.values, "normalize": "none"})
    return {
        "data": choice,
        "folder": folder,
        "external": external,
        "min_external": min_external,
        "links": links,
        "learned": features == "learned",
    }


def _default_decoder(values: Record) -> str:
    """The decoder of links where [model] names none: cosines of what a model makes of features, and products of vectors
    that are learned, or that recommend items, as is usual for these."""
    links = values.get("links")
    recommends = links is not None and links.users is not None
    return DECODER if recommends or values.get("learned") else OF_FEATURES


def _resolve_model(table: Document, default_decoder: str | None, is_of_graphs: bool, of_graphs: int) -> Record:
    """The values of `Config` that [model] sets: the decoder if links are the examples, so that there is a default one,
    the model, and those in `each` and `members`. A table in these without a name is [model] with other values. Where
    [model] has no other keys, the first of `each` is its model. of_graphs: the number of columns of small graphs.

    Raises:
        ConfigError: a key or a value is not valid.
    """
    base = dict(table)
    decoder = DECODER if default_decoder is None else base.pop("decoder", default_decoder)
    if default_decoder is not None:
        from fedweave.models.links import DECODERS

        if decoder not in DECODERS:
            allowed = ", ".join(map(repr, DECODERS))
            raise ConfigError(f"model.decoder: must be one of {allowed}, got {decoder!r}", code="config.value")

    each, members = base.pop(EACH, []), base.pop(MEMBERS, {})
    if not isinstance(each, list) or not all(isinstance(entry, dict) for entry in each):
        example = '[{name = "gcn"}, {name = "sage"}]'
        raise ConfigError(
            f"model.{EACH}: tables of models, such as {EACH} = {example}, got {each!r}", code="config.value"
        )
    if not isinstance(members, dict) or not all(isinstance(entry, dict) for entry in members.values()):
        example = '{bank_a = {name = "sage"}}'
        raise ConfigError(
            f"model.{MEMBERS}: tables of models, such as {MEMBERS} = {example}, got {members!r}", code="config.value"
        )
    if not base and each:
        base = each[0]

    entries = {f"model.{EACH}[{i}]": entry for i, entry in enumerate(each)}
    entries |= {f"model.{MEMBERS}.{name}": entry for name, entry in members.items()}
    choices, faults = dict[str, Choice](), Faults(ConfigError)
    for path, entry in entries.items():
        with faults:
            choices[path] = _choose_model(
                {**base, **entry} if "name" not in entry else entry, path, is_of_graphs, of_graphs
            )
    faults.refuse()
    each_model = tuple(choices[f"model.{EACH}[{i}]"] for i in range(len(each)))
    by_member = {name: choices[f"model.{MEMBERS}.{name}"] for name in members}
    model = _choose_model(base, "model", is_of_graphs, of_graphs)
    return {"model": model, "member_models": MemberModels(each_model, by_member), "decoder": decoder}


def _choose_model(table: Document, path: str, is_of_graphs: bool, of_graphs: int) -> Choice:
    """The model that a table chooses; for small graphs it pools as its class declares, unless its table says how, and
    reads the columns of whole graphs.

    Raises:
        ConfigError: see `choose_plugin`; or there are such columns, and the model takes none.
    """
    choice = choose_plugin("model", table, path)
    changes: Record = {}
    default_pool = getattr(choice.kind, "graph_pool", None)
    if is_of_graphs and default_pool is not None and "pool" not in table:
        changes["pool"] = default_pool
    if of_graphs:
        if not hasattr(choice.kind, "graph_features"):
            raise ConfigError(
                f"{path}.name = {choice.name!r}: takes no columns of whole graphs, which data.graph_features and "
                "data.fingerprint make. Choose gine or gin, or leave these out.",
                code="config.graph-columns",
            )
        changes["graph_features"] = of_graphs
    return dataclasses.replace(choice, values={**choice.values, **changes}) if changes else choice


def _columns_of_graphs(data: Choice | None, folder: str | None) -> int:
    """How many columns of whole graphs the settings of data make."""
    from fedweave.datasets.fingerprints import width

    if data is None:
        return 0
    if data.name == SHARDS:
        return int(_recorded(folder).get("graph_columns", 0))
    return len(data.values.get("graph_features") or ()) + width(data.values.get("fingerprint", "none"))


def _has_small_graphs(data: Choice | None, folder: str | None) -> bool:
    """Whether the examples of the data are small graphs, as far as that shows before it is loaded."""
    if data is not None and data.name == "npz":
        from fedweave.datasets.npz import holds_graphs  # as plug-ins, imported only when needed

        return holds_graphs(Path(folder or ""))
    if data is not None and data.name == SHARDS:
        return bool(_recorded(folder).get("example") == "graph")
    return data is not None and getattr(data.kind, "example", "") == "graph"


def _recorded(folder: str | None) -> Record:
    """What a folder of shards says of its data."""
    from fedweave.datasets.shards import recorded

    return recorded(folder)


def _with_foreign_ends(algorithm: Choice, external: str) -> Choice:
    """The algorithm with the part that trains on links between members, if [data] `external` asks for it and it takes
    parts."""
    parts = algorithm.values.get(PARTS)
    if external != PREDICT or parts is None or any(part.name == FOREIGN_ENDS for part in parts):
        return algorithm
    parts = (*parts, part_choice(f"algorithm.{PARTS}", FOREIGN_ENDS))
    return dataclasses.replace(algorithm, values={**algorithm.values, PARTS: parts})


def _with_rate_of(decoder: str, algorithm: Choice) -> Choice:
    """The algorithm with the learning rate that links scored by this decoder have by default: cosines are learned in
    smaller steps of Adam, which turn embeddings of many features too far otherwise."""
    values = algorithm.values
    if decoder not in COSINES or values.get("optimizer") not in ("adam", "adamw") or values.get("lr") != LR:
        return algorithm
    return dataclasses.replace(algorithm, values={**values, "lr": LR_OF_COSINES})


def with_weight_decay(algorithm: Choice, links: bool) -> Choice:
    """The algorithm with the number that its `weight_decay` has by default, so that a run's file states it."""
    if algorithm.values.get("weight_decay", 0.0) is not None:
        return algorithm
    from fedweave.algorithms.fedavg import LocalTraining
    from fedweave.algorithms.parts.training import default_weight_decay
    from fedweave.algorithms.preset import Preset

    kind = algorithm.kind
    if not (isinstance(kind, Preset) or (isinstance(kind, type) and issubclass(kind, LocalTraining))):
        return algorithm  # a plug-in from outside, whose None has another meaning
    return dataclasses.replace(algorithm, values={**algorithm.values, "weight_decay": default_weight_decay(links)})


def choose_plugin(section_name: str, table: Document, path: str = "") -> Choice:
    """The plug-in that a section chooses, or a table in it.

    path: the place of the table in the document.

    Raises:
        ConfigError: a key or a value is not valid.
    """
    path = path or section_name
    name = table.get("name", DEFAULT_NAMES.get(section_name))
    if name is None:
        remedy = f"choose one of {', '.join(registry(section_name))}, or give your own folder as {section_name}.path"
        raise ConfigError(f"{section_name}.name: is missing; {remedy}", code="config.missing")
    name, kind = lookup(f"{path}.name", section_name, name)
    if section_name == "algorithm" and TUNE in table:
        raise ConfigError(f"{FOR_SWEEPS}; leave it out here")
    more = ["path", "external", "min_external"] if section_name == "data" else []
    fields = parameters(section_name, kind)
    choice = choose(path, name, kind, fields, table, more, hint=partial(_hint_at_plugins, section_name, fields))
    if section_name != "algorithm":  # an algorithm is given its model, so `build` checks it
        choice.make()
    return choice


def _section_values(document: Document, name: str, kind: type) -> Record:
    """The checked values of a section whose settings are the fields of `kind`."""
    fields, table = field_parameters(kind), section(document, name)
    check_keys(name, table, [*fields], hint=_hint_at_top_level)
    return check_values(f"{name}.", table, fields)


def _hint_at_sections(document: Document, key: str) -> str:
    """A hint that names "section.key" of every section whose chosen plug-in has that key."""
    paths = []
    for path in REGISTRIES:
        table, name = document.get(path), DEFAULT_NAMES.get(path)
        if isinstance(table, dict):
            name = table.get("name", name)
        kinds: Mapping[str, Any] = registry(path)
        if isinstance(name, str) and name in kinds and key in parameters(path, kinds[name]):
            paths.append(f"{path}.{key}")
    if paths:
        return f" Did you mean {' or '.join(map(repr, paths))}?"
    return _ON_GPUS if key in _DEVICES else ""


def _hint_at_top_level(key: str) -> str:
    """A hint for a key of a section that is one of the top level."""
    return f" Write it at the top level, before all sections: {key} = …" if key in field_parameters(General) else ""


def _hint_at_plugins(path: str, valid: Container[str], key: str) -> str:
    """A hint for a key that a plug-in does not have: what it has instead, of the `valid` ones, or the plug-ins of the
    section that have it; "" where these are none or many."""
    if (path, key) == ("algorithm", "participation"):
        return _CALLS_ALL + (" `quorum` is the share of them that must reply." if "quorum" in valid else "")
    names = [name for name, kind in registry(path).items() if key in parameters(path, kind)]
    at_top_level = _hint_at_top_level(key)
    if at_top_level and not names:
        return at_top_level
    if len(names) == 1:
        return f" It is a key of {names[0]} ({path}.name = {json.dumps(names[0])})."
    if path == "engine" and not names and key in _DEVICES:
        return _ON_GPUS
    return f" It is a key of {', '.join(names)}." if 0 < len(names) <= _MAX_NAMES else ""
