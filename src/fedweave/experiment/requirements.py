"""Requirements between the sections of an experiment: one list, each with the stage at which what it reads is known.
`run`, `check`, `federation`, `train`, `sites check` and a site's admission pass the same stages: `Configured`,
`Enrolled`, `Loaded`, `Modelled`, `Assembled`; of an algorithm `Designed` (without data) and `Scheduled`; of clients
`EmbeddingWidths` and `Counted`."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.deployment import deployable
from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.parts import SampledCrossEntropy
from fedweave.algorithms.parts.names import by_name
from fedweave.algorithms.parts.needs import ONE_WIDTH, WIDTHS
from fedweave.algorithms.parts.part import Part
from fedweave.algorithms.parts.training import criterion_of
from fedweave.core import edge_attributes, random
from fedweave.core import model as models
from fedweave.core.algorithm import NO_LINKS, Algorithm, Calls, Capabilities, capabilities
from fedweave.core.federation import step_info
from fedweave.core.graph import Graph
from fedweave.core.mechanism import LDP, Gaussian
from fedweave.core.model import Model
from fedweave.core.plugins import maker_of, name_of
from fedweave.core.target import CLASS, LABELS, NOUNS, NUMBER, Kind
from fedweave.core.text import counted
from fedweave.core.types import PREDICT, Values
from fedweave.datasets.base import Dataset
from fedweave.datasets.external import WIDENING
from fedweave.datasets.features import AUTO, BY_NODES, OVER_NODES, amounts
from fedweave.errors import ConfigError, DataError, UserError, listed
from fedweave.experiment.config.plugins import CODE, FOREIGN_ENDS, PARTS, MemberModels, parameters, registry
from fedweave.incentives.rules import RULES, SIZE
from fedweave.metrics.selection import OF_LISTS, OF_RANKS
from fedweave.ops.tape import once
from fedweave.partition.base import Part as Share
from fedweave.partition.base import Partition
from fedweave.sampling.minibatches import Minibatches, bytes_of


@dataclass(frozen=True, kw_only=True)
class Stage:
    """An algorithm, by what is known before anything else is.

    name, declared: its name and `Capabilities`. config: the configuration (`experiment.config.Config`, which checks
    itself by the list below, so that this module cannot import it); None for an experiment that Python put together.
    """

    name: str
    declared: Capabilities
    config: Any = None

    @property
    def label(self) -> str:
        """The algorithm, as the beginning of a message."""
        return f"algorithm {self.name}" if self.config is None else f'algorithm.name = "{self.name}"'

    @property
    def needs(self) -> Capabilities:
        """What the algorithm needs; once it is made, also what its settings and parts need."""
        return self.declared

    def unmet(self) -> Iterator[UserError]:
        """An error for each requirement of this stage that is not met."""
        return unmet(self)

    def check(self) -> Self:
        """Refuse what does not meet a requirement of this stage; returns the stage.

        Raises:
            UserError: the first requirement that is not met.
        """
        check_stage(self)
        return self


@dataclass(frozen=True, kw_only=True)
class Configured(Stage):
    """The settings of a configuration."""

    config: Any

    @classmethod
    def of(cls, config: Any) -> "Configured":
        """The stage of a configuration."""
        return cls(name=config.algorithm.name, declared=capabilities(config.algorithm.kind), config=config)

    def with_members(self, members: Sequence[str]) -> "Enrolled":
        """The same with the names of all clients or sites."""
        return Enrolled(**vars(self), members=members, member_models=self.config.member_models)


@dataclass(frozen=True, kw_only=True)
class Enrolled(Stage):
    """Who takes part.

    members: names of all clients or sites. member_models: models of single members, by the settings or by member.
    """

    members: Sequence[str]
    member_models: MemberModels | Mapping[str, Model]

    def with_design(self, model: Model, algorithm: Algorithm) -> "Designed":
        """The same with model and algorithm, where no data is at hand."""
        return Designed(**vars(self), model=model, algorithm=algorithm)

    def with_data(self, data: Dataset, normalize: str, **more: Any) -> "Loaded":
        """The same with data; `more` has the other fields of `Loaded`."""
        return Loaded(**vars(self), data=data, normalize=normalize, **more)


@dataclass(frozen=True, kw_only=True)
class ModelFacts(Stage):
    """A model: its layers."""

    model: Model


@dataclass(frozen=True, kw_only=True)
class Designed(Enrolled, ModelFacts):
    """Model and algorithm, as it is made of the model."""

    algorithm: Algorithm

    @property
    def needs(self) -> Capabilities:
        """What the algorithm, its settings and its parts need."""
        return self.algorithm.needs

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts that the algorithm is made of."""
        return self.algorithm.composed


@dataclass(frozen=True, kw_only=True)
class Loaded(Enrolled):
    """Data, and how it is cut.

    data:      all of it, or at a site its own.
    normalize: how features of examples are to be scaled (`datasets.features`).
    partition: as clients see it; None at a site, which looks at its own data.
    engine:    the settings of [engine].
    predicts:  whether a trained model predicts, without training.
    """

    data: Dataset
    normalize: str
    partition: Partition | None = None
    engine: Values = field(default_factory=dict)
    predicts: bool = False

    def with_model(self, model: Model) -> "Modelled":
        """The same with a model."""
        return Modelled(**vars(self), model=model)

    @property
    def cuts(self) -> Sequence[Share]:
        """What each client holds; nothing at a site."""
        return () if self.partition is None else self.partition.parts

    @property
    def nodes(self) -> list[int]:
        """The number of nodes of each client; at a site, only its own."""
        return [self.data.nodes] if self.partition is None else [len(part.nodes) for part in self.cuts]

    @property
    def timed(self) -> bool:
        """Whether messages depend on time."""
        if self.partition is not None:
            return any(part.split_times is not None for part in self.cuts)
        attributes = self.data.edge_attrs
        return attributes is not None and attributes.split_times is not None and not self.declared.vertical

    @property
    def scaling(self) -> str:
        """How features are scaled; "none" where "auto" finds nothing to scale."""
        if self.normalize != AUTO:
            return self.normalize
        idle = self.data.scaling == "none" or (self.data.scaling == AUTO and not len(amounts(self.data.x)))
        return "none" if idle else AUTO

    @property
    def edge_scaling(self) -> bool:
        """Whether features of edges are scaled by numbers over all edges."""
        attributes = self.data.edge_attrs
        return attributes is not None and bool(attributes.scaling)


@dataclass(frozen=True, kw_only=True)
class Modelled(Loaded, ModelFacts):
    """Data and a model for it."""

    def with_algorithm(self, algorithm: Algorithm) -> "Assembled":
        """The same with the algorithm that is made of the model."""
        return Assembled(**vars(self), algorithm=algorithm)


@dataclass(frozen=True, kw_only=True)
class Assembled(Modelled, Designed):
    """Data, model and algorithm."""

    @property
    def bounded(self) -> set[str]:
        """The records that the algorithm's ε protects (`mechanism.LDP.per`)."""
        calls = self.algorithm.calls(2) or Calls()
        declared = (send for step in calls.all for send in step_info(step).sends.values())
        return {one.per for send in declared for one in send.mechanisms if isinstance(one, Gaussian | LDP)}

    @property
    def moved_by_others(self) -> set[str]:
        """Records whose ε would not hold if other records determined the scaling of their features. A simulation scales
        examples; a site also the nodes around them."""
        return self.bounded & ({"example", "node"} if self.partition is None else {"example"})


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """An algorithm and how many rounds it runs."""

    algorithm: Algorithm
    rounds: int


@dataclass(frozen=True, kw_only=True)
class EmbeddingWidths:
    """{client: how many numbers its embeddings have}; {} where these may differ."""

    widths: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Numbers of labeled training examples by client, None where a client does not report it."""

    train: Sequence[int | None]


AtStage = TypeVar("AtStage")


@dataclass(frozen=True)
class Requirement(Generic[AtStage]):
    """Something that one section of an experiment demands of another.

    stage:   what has to be known; evaluated at each stage that is one.
    code:    of the error; its first word decides the class of the error.
    applies: whether a stage is about it. holds: whether it is met; evaluated only where it applies.
    message: "section.key = value: problem. Remedy."
    """

    stage: type[AtStage]
    code: str
    applies: Callable[[AtStage], bool]
    holds: Callable[[AtStage], bool]
    message: Callable[[AtStage], str]


def unmet(stage: object) -> Iterator[UserError]:
    """An error for each requirement that a stage does not meet."""
    requirements: Sequence[Requirement[Any]] = REQUIREMENTS
    for requirement in requirements:
        if not isinstance(stage, requirement.stage) or not requirement.applies(stage) or requirement.holds(stage):
            continue
        kind = {"data": DataError, "user": UserError}.get(requirement.code.partition(".")[0], ConfigError)
        yield kind(requirement.message(stage), code=requirement.code)


def check_stage(stage: object) -> None:
    """Refuse a stage that does not meet a requirement.

    Raises:
        UserError: the first requirement that is not met.
    """
    for error in unmet(stage):
        raise error


def declared_by(algorithm: object) -> tuple[str, Capabilities]:
    """Name and `Capabilities` of an algorithm that was made in Python."""
    maker = maker_of(algorithm)  # of a preset, which declares its capabilities
    kind = type(algorithm) if maker is None else maker.plugin
    name = name_of(ALGORITHMS, kind) or type(algorithm).__name__
    return name, capabilities(algorithm if maker is None else kind)


# ----------------------------------------------------------------------------------------------------
# What the list below counts and names.


def _basis(facts: Designed) -> str:
    """What has to be measured for [pay]; "" for nothing."""
    pay = facts.config.pay
    return RULES[pay.by].needs or (SIZE if pay.cap else "")


def _unlike_ports(facts: Configured) -> bool:
    config = facts.config
    choices = (config.model, *config.member_models.each, *config.member_models.members.values())
    return len({bool(choice.values.get("ports", False)) for choice in choices}) > 1


def _strangers(facts: Enrolled) -> list[str]:
    """Names in `member_models` that are no members."""
    models_of = facts.member_models
    names = models_of.members if isinstance(models_of, MemberModels) else models_of
    return [name for name in names if name not in facts.members]


def _same_nodes(facts: Loaded) -> bool:
    first, *others = facts.cuts
    return all(np.array_equal(part.nodes, first.nodes) for part in others)


def _sizes(facts: Loaded) -> str:
    clients = facts.members
    sizes = [f"{client} {nodes:,}" for client, nodes in zip(clients, facts.nodes, strict=True)]
    return ", ".join(sizes[:3]) + (f" and {len(sizes) - 3} more clients theirs" if len(sizes) > 3 else "")


def _partition(facts: Loaded) -> str:
    """The partition, in a message."""
    return f'partition.name = "{facts.config.partition.name}"' if facts.config is not None else "this partition"


def _adds_up(facts: Assembled) -> bool:
    """Whether clients send anything in a round."""
    calls = facts.algorithm.calls(len(facts.cuts)) or Calls()
    return any(step_info(step).sends for step in calls.round)


def _of_classes(facts: Loaded) -> str:
    """The first part that is about classes, in a message."""
    parts = by_name(facts.parts) if isinstance(facts, Designed) else {}
    return next((f" (its part {name})" for name, part in parts.items() if "classes" in part.needs.data), "")


def _odd_loss(facts: Assembled) -> tuple[str, tuple[Kind, ...]] | None:
    """The first setting of the loss that is of another kind of target, and the kinds that it is of."""
    criterion = criterion_of(facts.algorithm)
    of: dict[str, tuple[bool, tuple[Kind, ...]]] = {
        "class_weight": (criterion.class_weight != "none", (CLASS, LABELS)),
        "focal": (criterion.focal > 0, (CLASS,)),
        "logit_adjustment": (criterion.logit_adjustment > 0, (CLASS,)),
        "number_loss": (criterion.number_loss != "mse", (NUMBER,)),
        "quantile": (criterion.quantile != 0.5, (NUMBER,)),
    }
    target = facts.data.target
    return next(((name, kinds) for name, (is_set, kinds) in of.items() if is_set and target not in kinds), None)


def _weighs(algorithm: Algorithm) -> bool:
    """Whether it has the settings of a `Criterion`; other classes may mean something else by these names."""
    return "class_weight" in getattr(type(algorithm), "__dataclass_fields__", {})


def _loss(facts: Assembled) -> str:
    name, kinds = _odd_loss(facts) or ("", ())
    return (
        f"algorithm.{name}: it is of {' or '.join(NOUNS[kind] for kind in kinds)}, and the data has "
        f"{NOUNS[facts.data.target]}. Leave it out."
    )


def _weights(facts: Assembled) -> tuple[float, ...] | None:
    """The numbers of `class_weight`, one for each class or label."""
    weights = facts.algorithm.class_weight
    return weights if isinstance(weights, tuple) else None


def _mismatch(facts: Modelled) -> str:
    """A model whose results are of other examples than the data's."""
    wanted = _example(facts)
    whose = f"has a result for each {models.example(facts.model)}, and the examples of {facts.data.name} are {wanted}s."
    if facts.config is not None:
        values = facts.config.model.values
        model = f'model.pool = "{values.get("pool", "none")}" (model.name = "{facts.config.model.name}")'
    else:
        model = "model"
    if facts.config is None and wanted in ("edge", "link"):
        decoder = "models.OnEdges(models.GINE(…))" if wanted == "edge" else 'models.links.OnPairs(models.GCN(), "dot")'
        return f"{model}: {whose} Build it by {decoder}.build(…)."
    module = "" if facts.config is not None else f" In the class of a torch.nn.Module, set pools = {wanted == 'graph'}."
    if wanted == "graph":
        return f'{model}: {whose} Set model.pool = "sum" or "mean", with model.name one of {_pooling()}.{module}'
    return f'{model}: {whose} Set model.pool = "none".{module}'


def _example(facts: Loaded) -> str:
    """What each row of the model's output has to stand for (`core.model.example`)."""
    return facts.data.example if facts.data.links is None else "link"


def _model_sizes(facts: ModelFacts) -> tuple[int, ...]:
    """Numbers of features and outputs that a model's plug-in built layers for; () where they are not of the data."""
    maker = maker_of(facts.model)
    sizes = () if maker is None or models.example(facts.model) not in ("node", "graph") else maker.arguments
    return sizes if len(sizes) == 2 and all(isinstance(size, int) for size in sizes) else ()


def _pooling() -> str:
    names = [name for name, kind in registry("model").items() if "pool" in parameters("model", kind)]
    return ", ".join(names)


def _samples(facts: Designed) -> bool:
    return any(isinstance(part, SampledCrossEntropy) for part in facts.parts.values())


def _whole(facts: Designed) -> str:
    """The first part that reads whole graphs."""
    return next((name for name, part in facts.parts.items() if "graph" in part.needs.reads), "")


def _whole_graphs(facts: Designed) -> str:
    sampled, whole = _samples(facts), _whole(facts)
    reads = f"the part {whole}" if sampled else f'algorithm "{facts.name}"'
    remedy = "Leave that part out" if sampled else 'Set algorithm.parts = ["sampled_cross_entropy"]'
    return (
        f"model.ego_ids = true: it marks the nodes around which neighborhoods are sampled, and {reads} reads whole "
        f"graphs. {remedy}, or leave model.ego_ids out."
    )


def _together(facts: Loaded) -> list[int]:
    """Nodes of the clients that run at once, at most."""
    together = 1 if facts.engine.get("mode") == "loop" else int(facts.engine.get("chunk", 0))
    return sorted(facts.nodes, reverse=True)[: together or None]


def _greedy(facts: Assembled) -> tuple[Minibatches, float] | None:
    """The first sampler that draws more than memory holds, and how many bytes it draws."""
    steps = getattr(facts.algorithm, "local_steps", 1)
    for sampler in (part.sampler for part in facts.parts.values() if isinstance(part, SampledCrossEntropy)):
        need = sum(bytes_of(facts.model, sampler, count, steps) for count in _together(facts))
        if need > _memory():
            return sampler, need
    return None


def _memory() -> float:
    """Bytes of memory of this machine; inf where it does not report them."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return float("inf")


def _too_much(facts: Assembled) -> str:
    sampler, need = _greedy(facts) or (None, 0.0)
    return (
        f"algorithm.parts: sampled_cross_entropy with batch = {sampler and sampler.batch} and fan_out = "
        f"{sampler and sampler.fan_out} draws about {need / 1e9:,.0f} GB for "
        f"{counted(len(_together(facts)), 'client')} at once, and this machine has {_memory() / 1e9:,.0f} GB. Lower "
        "fan_out, batch, local_steps or model.layers, or set engine.chunk."
    )


def _scaled(key: str, how: str, facts: Assembled) -> str:
    record = min(facts.moved_by_others)
    return (
        f'data.{key} = "{how}": scales each {record} by numbers over all of them, so that its ε, which is of one '
        f'{record}, would not hold. Set "none" or "row", and scale the features by public numbers before.'
    )


def widths(algorithm: object, member_algorithms: Mapping[str, object], graphs: Mapping[str, Graph]) -> dict[str, int]:
    """{client: how many numbers the last layer of its model reads}; {} where all clients have one model, or nothing of
    it is compared. member_algorithms: {client: its own algorithm}."""
    if not member_algorithms or not isinstance(algorithm, FedAvg):
        return {}
    least = min(graphs.values(), key=lambda graph: graph.nodes).to(torch.device("cpu"))
    each = {client: member_algorithms.get(client, algorithm) for client in graphs}
    return once(partial(_width, graph=least), each)


def _width(algorithm: object, graph: Graph) -> int:
    net = deployable(algorithm).net
    with torch.no_grad():
        return int(models.embedded(net, models.init(net, random.key(0), graph.x.dtype), graph).shape[1])


def _unlike_widths(facts: EmbeddingWidths) -> str:
    firsts = dict[int, str]()
    for client, width in facts.widths.items():
        firsts.setdefault(width, client)
    text = ", ".join(f"{width} at {client}" for width, client in firsts.items())
    return f"model: {ONE_WIDTH}; they are {text}. Set the same model.hidden for all members."


# ----------------------------------------------------------------------------------------------------
# The list. A new requirement is one more entry.


REQUIREMENTS = (  # without a type, so that each entry is checked against its stage
    # --- the configuration by itself ---
    Requirement(
        Configured,
        "config.sampled",
        lambda f: f.config.evaluation.clients > 0,
        lambda f: not f.config.between_sites,
        lambda f: (
            f"evaluation.clients = {f.config.evaluation.clients}: it is of simulations. Between sites set it to 0, "
            "which is all."
        ),
    ),
    Requirement(
        Configured,
        "config.links",
        lambda f: f.config.noise is not None and f.config.links is not None,
        lambda f: not f.config.noise.labels,
        lambda f: (
            f"noise.labels = {f.config.noise.labels}: links have no labels that could be changed. Leave it out, or "
            "take noise.features."
        ),
    ),
    Requirement(
        Configured,
        "config.sites",
        lambda f: f.config.between_sites,
        lambda f: f.config.noise is None,
        lambda f: "noise: only simulations make it; each site reads data of its own. Leave [noise] out.",
    ),
    Requirement(
        Configured,
        "forget.sites",
        lambda f: f.config.forget is not None,
        lambda f: not f.config.between_sites,
        lambda f: (
            "forget: between sites no document says what a member forgets. Its owner lists ids (data.forget in "
            "site.toml), and `fedweave sites forget` trains again. Leave [forget] out."
        ),
    ),
    Requirement(
        Configured,
        "forget.vertical",
        lambda f: f.config.forget is not None,
        lambda f: not f.declared.vertical,
        lambda f: (
            "forget: parties of a vertical run hold the same examples, so that none can leave alone. Remove the rows "
            "from every party's tables, or the party's folder, and run again."
        ),
    ),
    Requirement(
        Configured,
        "forget.noise",
        lambda f: f.config.forget is not None,
        lambda f: f.config.noise is None,
        lambda f: (
            "forget: [noise] is drawn for the data as a whole, and would differ without what is forgotten. Leave one "
            "of the two out."
        ),
    ),
    Requirement(
        Configured,
        "forget.scaling",
        lambda f: f.config.forget is not None and f.config.external in WIDENING,
        lambda f: f.config.data.values.get("normalize", "none") not in OVER_NODES,
        lambda f: (
            f"forget: with data.external = {f.config.external!r} columns are scaled over all nodes (data.normalize = "
            f'{f.config.data.values["normalize"]!r}), also those to forget. Set data.normalize = "auto".'
        ),
    ),
    Requirement(
        Configured,
        "config.sites",
        lambda f: f.config.between_sites,
        lambda f: f.config.external != PREDICT,
        lambda f: (
            f'data.external = "{PREDICT}": links between members are of simulations. Leave it out; each site then '
            "predicts links between its own nodes."
        ),
    ),
    Requirement(
        Configured,
        "config.metric",
        lambda f: f.config.evaluation.metric in OF_RANKS,
        lambda f: f.config.links is not None and bool(f.config.links.candidates),
        lambda f: (
            f'evaluation.metric = "{f.config.evaluation.metric}": it is of links that are ranked. Set data.task = '
            '"links", and data.rank_negatives above 0.'
        ),
    ),
    Requirement(
        Configured,
        "config.metric",
        lambda f: f.config.evaluation.metric in OF_LISTS,
        lambda f: f.config.links.items is not None and f.config.links.candidates == "all",
        lambda f: (
            f'evaluation.metric = "{f.config.evaluation.metric}": it is of lists of all items for each user. Set '
            'data.users and data.items, and data.rank_negatives = "all".'
        ),
    ),
    Requirement(
        Configured,
        "config.external",
        lambda f: f.config.external != PREDICT,
        lambda f: all(part.name != FOREIGN_ENDS for part in f.config.algorithm.values.get(PARTS) or ()),
        lambda f: (
            f"algorithm.parts: {FOREIGN_ENDS} is of links between members. Set data.external = "
            f'"{PREDICT}", or leave the part out.'
        ),
    ),
    Requirement(
        Configured,
        "config.external",
        lambda f: f.config.external == PREDICT,
        lambda f: f.config.links is not None and f.config.links.items is None,
        lambda f: (
            f'data.external = "{PREDICT}": it is of links between nodes of one kind. Set data.task = "links", and '
            "leave data.users and data.items out."
        ),
    ),
    Requirement(
        Configured,
        "config.external",
        lambda f: f.config.external == PREDICT,
        lambda f: PARTS in f.config.algorithm.values and f.declared.crossing and not f.declared.pooled,
        lambda f: (
            f'data.external = "{PREDICT}": algorithm "{f.name}" does not train on links between members. Set '
            'algorithm.name = "fedavg", "fedprox" or another of its family.'
        ),
    ),
    Requirement(
        Configured,
        CODE,
        lambda f: bool(f.config.member_models),
        lambda f: not _unlike_ports(f),
        lambda f: "model.members, model.each: ports = true is for all members' models or for none. Set one value.",
    ),
    # --- the configuration and the members ---
    Requirement(
        Configured,
        "user.pools",
        lambda f: f.config.between_sites,
        lambda f: not f.declared.pooled,
        lambda f: f"{f.label}: pools all data at one place, which no site allows. Choose another algorithm.",
    ),
    Requirement(
        Enrolled,
        "user.neighbours-unknown",
        lambda f: f.config is not None and f.config.between_sites and bool(f.members),
        lambda f: not f.declared.ids,
        lambda f: (
            f"{f.label}: needs to know which nodes of other sites a site's nodes are connected to, which no site "
            'knows. Set engine.name = "simulation", or choose another algorithm.'
        ),
    ),
    Requirement(
        Enrolled,
        CODE,
        lambda f: bool(f.member_models),
        lambda f: not _strangers(f),
        lambda f: f"model.members: there is no member {listed(_strangers(f))}. Name members of {listed([*f.members])}.",
    ),
    Requirement(
        Designed,
        CODE,
        lambda f: bool(f.member_models),
        lambda f: f.algorithm.any_models,
        lambda f: (
            f'model.members, model.each: with algorithm "{f.name}" members share weights, so that all have one model. '
            "Leave these out, or choose fedproto, fedtgp or local."
        ),
    ),
    Requirement(
        Enrolled,
        "config.sampled",
        lambda f: f.config is not None and 0 < f.config.evaluation.clients < len(f.members),
        lambda f: not f.declared.vertical,
        lambda f: (
            f"evaluation.clients = {f.config.evaluation.clients}: parties of a vertical run predict jointly. Set it "
            "to 0, which is all."
        ),
    ),
    # --- the algorithm and the data ---
    Requirement(
        Loaded,
        "config.graph-algorithm",
        lambda f: f.declared.graph_level,
        lambda f: f.data.example == "graph",
        lambda f: (
            f"{f.label}: needs small graphs as examples, but the examples of {f.data.name} are {f.data.example}s. Set "
            'data.name = "proteins", for example (see `fedweave list datasets`).'
        ),
    ),
    Requirement(
        Loaded,
        NO_LINKS,
        lambda f: f.data.links is not None,
        lambda f: f.declared.links,
        lambda f: (
            f'{f.label}: does not take links as examples (data.task = "links"). Set algorithm.name = "fedavg" or '
            'another of its family, "local" or "centralized".'
        ),
    ),
    Requirement(
        Loaded,
        "config.node-algorithm",
        lambda f: f.needs.nodes,
        lambda f: f.data.example == "node",
        lambda f: (
            f"{f.label}: is about nodes and their neighbors, and the examples of {f.data.name} are "
            f'{f.data.example}s. Set algorithm.name = "fedavg" or another of its family, or "local".'
        ),
    ),
    Requirement(
        Loaded,
        "config.class-algorithm",
        lambda f: f.needs.classes,
        lambda f: f.data.target == CLASS,
        lambda f: (
            f"{f.label}{_of_classes(f)}: is about classes, and {f.data.name} has {NOUNS[f.data.target]}. Set "
            'algorithm.name = "fedavg", "fedprox", "local" or "centralized".'
        ),
    ),
    Requirement(Assembled, "config.loss-target", lambda f: _weighs(f.algorithm), lambda f: not _odd_loss(f), _loss),
    Requirement(
        Assembled,
        "config.class-weight",
        lambda f: f.data.target == LABELS and _weights(f) is not None,
        lambda f: len(_weights(f) or ()) == f.data.outputs,
        lambda f: (
            f"algorithm.class_weight: has {len(_weights(f) or ())} numbers, and there are {f.data.outputs} labels. "
            "Give one of each."
        ),
    ),
    Requirement(
        Loaded,
        "config.no-sens",
        lambda f: f.needs.sensitive and not f.predicts,
        lambda f: f.data.sensitive is not None,
        lambda f: (
            f"{f.label}: needs a sensitive attribute, and {f.data.name} has none. Add the column `sens` to its table "
            f"of {f.data.example}s (the array `sens` to an .npz), or choose published data that has one (`fedweave "
            "list datasets`), or an algorithm or parts that need none."
        ),
    ),
    Requirement(
        Loaded,
        "data.two-classes",
        lambda f: f.needs.sensitive and not f.predicts and f.data.target == CLASS,
        lambda f: f.data.classes == 2,
        lambda f: (
            f"{f.data.name} has {f.data.classes} classes: group fairness compares two. Make class 1 the favorable one."
        ),
    ),
    Requirement(
        Loaded,
        "data.groups",
        lambda f: f.needs.sensitive and not f.predicts and f.data.sensitive is not None,
        lambda f: int(f.data.sensitive.max(initial=-1)) <= 1,  # type: ignore[union-attr]
        lambda f: (
            f"{f.data.name}: people are of the groups {', '.join(f.data.groups)}, and group fairness compares two. "
            "Correct misspelt names, or make two groups of them (an empty cell is in none)."
            if f.data.groups
            else f"{f.data.name}: sens has the value {int(f.data.sensitive.max())}, "  # type: ignore[union-attr]
            "and group fairness compares two groups. Recode it as 0 and 1."
        ),
    ),
    Requirement(
        Loaded,
        "config.users",
        lambda f: f.needs.items,
        lambda f: f.data.links is not None and f.data.links.items is not None,
        lambda f: (
            'algorithm.users = "home": the data does not mark nodes as users, so that no row would stay local. Set '
            'data.task = "links", data.users and data.items.'
        ),
    ),
    # --- the algorithm and the partition ---
    Requirement(
        Designed,
        "config.pay",
        lambda f: f.config is not None and f.config.pay.budget > 0,
        lambda f: _basis(f) in ("", *f.algorithm.needs.measures),
        lambda f: (
            f'pay.by = "{f.config.pay.by}": nothing in the run measures what pay is to follow from. Add '
            f"{' or '.join(repr(part) for part in RULES[_basis(f)].parts)} to algorithm.parts (with the family of "
            'fedavg, without secure_sum), or set pay.by = "equal" without a cap.'
        ),
    ),
    Requirement(
        Loaded,
        "config.same-nodes",
        lambda f: f.declared.vertical and f.partition is not None,
        _same_nodes,
        lambda f: (
            f"{f.label}: needs clients with the same nodes, and {_partition(f)} gives each its own ({_sizes(f)}). Set "
            'partition.name = "vertical" or "parties", or choose an algorithm for clients with nodes of their own.'
        ),
    ),
    Requirement(
        Loaded,
        "config.labels-withheld",
        lambda f: not f.declared.vertical,
        lambda f: all(part.labels for part in f.cuts),
        lambda f: (
            f"{f.label}: needs labels at every client, and {_partition(f)} withholds some (partition.labels). Set "
            'partition.labels = "all", or choose an algorithm for vertically split data.'
        ),
    ),
    Requirement(
        Assembled,
        "config.columns",
        lambda f: not (f.declared.vertical or f.declared.pooled) and any(part.columns is not None for part in f.cuts),
        lambda f: not _adds_up(f),
        lambda f: (
            f"{f.label}: would take each client's first column for the same, and so on, and {_partition(f)} gives "
            "clients different ones. Choose an algorithm for vertically split data, such as glasu or standalone, or "
            "local, which adds nothing up."
        ),
    ),
    Requirement(
        Loaded,
        "config.timed",
        lambda f: f.needs.nodes,
        lambda f: not f.timed,
        lambda f: (
            f'{f.label}: is about nodes and their neighbors at all times, and partition.split = "time" holds back '
            'later edges. Set algorithm.name = "fedavg" or another of its family, or partition.split = "random".'
        ),
    ),
    # --- the model and the data ---
    Requirement(
        Modelled, "config.pooling", lambda f: True, lambda f: models.example(f.model) == _example(f), _mismatch
    ),
    Requirement(
        Modelled,
        "config.outputs",
        lambda f: bool(_model_sizes(f)),
        lambda f: _model_sizes(f)[1] == f.data.outputs,
        lambda f: (
            f"model: is built for {_model_sizes(f)[1]} outputs, and {f.data.name} has {f.data.outputs} "
            f"({NOUNS[f.data.target]}). Give build(data.features, data.outputs)."
        ),
    ),
    # --- the model and the algorithm ---
    Requirement(
        ModelFacts,
        "config.edge-model",
        lambda f: f.declared.vertical,
        lambda f: not any(layer.operator in edge_attributes.kinds() for layer in f.model),
        lambda f: (
            f"{f.label}: samples neighbors without edge attributes, which the model"
            f"{f' {f.config.model.name}' if f.config is not None else ''} reads. Set model.name = "
            '"sage", or "gcn" with weighted = false and directed = "none".'
        ),
    ),
    Requirement(
        Assembled,
        "config.memory",
        _samples,
        lambda f: _greedy(f) is None,
        _too_much,
    ),
    Requirement(
        Designed,
        "config.whole-graphs",
        lambda f: any(layer.infer for layer in f.model),
        lambda f: _samples(f) and not _whole(f),
        _whole_graphs,
    ),
    Requirement(
        Scheduled,
        "user.target-rounds",
        lambda f: f.algorithm.most_rounds is not None,
        lambda f: f.rounds <= (f.algorithm.most_rounds or 0),
        lambda f: (
            f"rounds = {f.rounds}: the algorithm spends its target ε within {f.algorithm.most_rounds} rounds "
            f"(target_rounds), and the run has {f.rounds}. Set rounds to {f.algorithm.most_rounds} or less, or "
            f"algorithm.target_rounds to {f.rounds}."
        ),
    ),
    # --- ε and how the data is scaled ---
    Requirement(
        Assembled,
        "config.scaling",
        lambda f: f.scaling in BY_NODES,
        lambda f: not f.moved_by_others,
        lambda f: _scaled("normalize", f.scaling, f),
    ),
    Requirement(
        Assembled,
        "config.scaling",
        lambda f: f.edge_scaling,
        lambda f: not f.moved_by_others,
        lambda f: _scaled("edge_normalize", "standard", f),
    ),
    Requirement(
        Assembled,
        "config.target-scaling",
        lambda f: f.data.target == NUMBER and f.data.target_scaling != "none",
        lambda f: "example" not in f.bounded,
        lambda f: (
            f'data.target_normalize = "{f.data.target_scaling}": scales a number by the numbers of all training '
            'examples, so that the ε of one example would not hold. Set it to "none", and scale the numbers by public '
            "ones before."
        ),
    ),
    # --- what clients hold ---
    Requirement(
        EmbeddingWidths,
        WIDTHS,
        lambda f: bool(f.widths),
        lambda f: len({*f.widths.values()}) == 1,
        _unlike_widths,
    ),
    Requirement(
        Counted,
        "config.untrained",
        lambda f: None not in f.train,
        lambda f: any(f.train),
        lambda f: (
            "no client has a labeled training example: no client would train, and every score would come from a model "
            "with random weights. Mark training examples (a column split), or give partition.train a share."
        ),
    ),
)


UNTESTED = (
    "no client has a test example and there is no global test set: the run trains a model without testing it. Mark "
    "test examples (a column split), or give partition.test a share."
)


def untested(test: Sequence[int | None], has_global_test: bool) -> str:
    """The warning before a run without test examples, or "". Such a run is allowed, since you may want only its model.
    test: numbers of test examples by client. has_global_test: whether there is a global test set."""
    return UNTESTED if not has_global_test and None not in test and not sum(filter(None, test)) else ""
