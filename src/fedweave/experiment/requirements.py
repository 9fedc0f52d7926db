"""What the sections of an experiment demand of each other: a function for each stage (`experiment.stages`).

`run`, `check`, `federation`, `train`, `sites check` and a site's admission pass the same stages. A requirement is an
`if` that yields a code and a message, "section.key = value: problem. Remedy."; the code's first word decides the class
of the error."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.deployment import deployable
from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.parts import SampledCrossEntropy
from fedweave.algorithms.parts.names import by_name
from fedweave.algorithms.parts.needs import ONE_WIDTH, WIDTHS
from fedweave.algorithms.parts.training import criterion_of
from fedweave.core import edge_attributes, random
from fedweave.core import model as models
from fedweave.core.algorithm import NO_LINKS, Algorithm, Calls, Capabilities, capabilities
from fedweave.core.federation import step_info
from fedweave.core.graph import Graph
from fedweave.core.plugins import maker_of, name_of
from fedweave.core.target import CLASS, LABELS, NOUNS, NUMBER, Kind
from fedweave.core.text import counted
from fedweave.core.types import PREDICT, SHARDS
from fedweave.datasets.external import WIDENING
from fedweave.datasets.features import BY_NODES, OVER_NODES
from fedweave.errors import ConfigError, DataError, UserError, listed
from fedweave.experiment.config.choices import MemberModels
from fedweave.experiment.config.plugins import CODE, FOREIGN_ENDS, PARTS, parameters, registry
from fedweave.experiment.stages import Assembled, Configured, Designed, Enrolled, Loaded, ModelFacts, Modelled, Stage
from fedweave.incentives.rules import RULES, SIZE
from fedweave.metrics.selection import OF_LISTS, OF_RANKS
from fedweave.ops.identity import once
from fedweave.sampling.minibatches import bytes_of

Unmet = Iterator[tuple[str, str]]  # codes and messages
AtStage = TypeVar("AtStage", bound=Stage)


def check(stage: AtStage) -> AtStage:
    """Check the requirements of a stage and of those that it contains; returns the stage.

    Raises:
        UserError: the first requirement that is not met.
    """
    for kind, requirements in REQUIREMENTS:
        if isinstance(stage, kind):
            for code, message in requirements(stage):
                error_class = {"data": DataError, "user": UserError}.get(code.partition(".")[0], ConfigError)
                raise error_class(message, code=code)
    return stage


def name_and_capabilities(algorithm: object) -> tuple[str, Capabilities]:
    """Name and `Capabilities` of an algorithm that was made in Python."""
    maker = maker_of(algorithm)  # of a preset, which declares its capabilities
    kind = type(algorithm) if maker is None else maker.plugin
    name = name_of(ALGORITHMS, kind) or type(algorithm).__name__
    return name, capabilities(algorithm if maker is None else kind)


def settings_alone(f: Configured) -> Unmet:
    """What settings demand of each other."""
    config = f.config
    if config.between_sites:
        if config.evaluation.clients > 0:
            yield (
                "config.sampled",
                f"evaluation.clients = {config.evaluation.clients}: it is of simulations. Between sites set it to 0, "
                "which is all.",
            )
        if config.noise is not None:
            yield (
                "config.sites",
                "noise: only simulations make it; each site reads data of its own. Leave [noise] out.",
            )
        if config.external == PREDICT:
            yield (
                "config.sites",
                f'data.external = "{PREDICT}": links between members are of simulations. Leave it out; each site then '
                "predicts links between its own nodes.",
            )
    if (config.data.name == SHARDS) != (config.partition.name == SHARDS):
        yield (
            "config.shards",
            f'partition.name = "{config.partition.name}": the clients of shards are those that were cut, and no other '
            f'data has them (data.name = "{config.data.name}"). Set both to "{SHARDS}", or neither.',
        )
    if config.noise is not None and config.noise.labels and config.links is not None:
        yield (
            "config.links",
            f"noise.labels = {config.noise.labels}: links have no labels that could be changed. Leave it out, or take "
            "noise.features.",
        )

    if config.forget is not None:
        if config.between_sites:
            yield (
                "forget.sites",
                "forget: between sites no document says what a member forgets. Its owner lists ids (data.forget in "
                "site.toml), and `fedweave sites forget` trains again. Leave [forget] out.",
            )
        if f.declared.vertical:
            yield (
                "forget.vertical",
                "forget: parties of a vertical run hold the same examples, so that none can leave alone. Remove the "
                "rows from every party's tables, or the party's folder, and run again.",
            )
        if config.noise is not None:
            yield (
                "forget.noise",
                "forget: [noise] is drawn for the data as a whole, and would differ without what is forgotten. Leave "
                "one of the two out.",
            )
        normalize = config.data.values.get("normalize", "none")
        if config.external in WIDENING and normalize in OVER_NODES:
            yield (
                "forget.scaling",
                f"forget: with data.external = {config.external!r} columns are scaled over all nodes (data.normalize "
                f'= {normalize!r}), also those to forget. Set data.normalize = "auto".',
            )

    folds = config.evaluation.joint_columns
    if folds == 1:
        yield (
            "config.value",
            "evaluation.joint_columns = 1: one fold is all training examples. Set 2 or more, or 0 for none.",
        )
    if config.fold is not None or folds:
        setting, reason = "fold" if config.fold is not None else "evaluation.joint_columns", ""
        if config.between_sites:
            reason = "sites keep their labels, and no document says which of them are withheld"
        elif f.declared.vertical:
            reason = "the parties of a vertical run hold the same examples"
        elif config.links is not None:
            reason = "the run predicts links, which have no labels"
        elif config.general.init_from is not None:
            reason = f"the weights of {config.general.init_from} may have learned the labels that are withheld"
        if config.fold is not None and folds:
            reason = "evaluation.joint_columns makes folds of its own"
        if reason:
            yield "config.fold", f"{setting}: {reason}. Leave it out."

    metric = config.evaluation.metric
    if metric in OF_RANKS and not (config.links is not None and config.links.candidates):
        yield (
            "config.metric",
            f'evaluation.metric = "{metric}": it is of links that are ranked. Set data.task = "links", and '
            "data.rank_negatives above 0.",
        )
    elif metric in OF_LISTS and (config.links.items is None or config.links.candidates != "all"):
        yield (
            "config.metric",
            f'evaluation.metric = "{metric}": it is of lists of all items for each user. Set data.users and '
            'data.items, and data.rank_negatives = "all".',
        )

    if config.external == PREDICT:
        if config.links is None or config.links.items is not None:
            yield (
                "config.external",
                f'data.external = "{PREDICT}": it is of links between nodes of one kind. Set data.task = "links", and '
                "leave data.users and data.items out.",
            )
        if PARTS not in config.algorithm.values or not f.declared.crossing or f.declared.pooled:
            yield (
                "config.external",
                f'data.external = "{PREDICT}": algorithm "{f.name}" does not train on links between members. Set '
                'algorithm.name = "fedavg", "fedprox" or another of its family.',
            )
    elif any(part.name == FOREIGN_ENDS for part in config.algorithm.values.get(PARTS) or ()):
        yield (
            "config.external",
            f'algorithm.parts: {FOREIGN_ENDS} is of links between members. Set data.external = "{PREDICT}", or leave '
            "the part out.",
        )

    if config.member_models:
        choices = (config.model, *config.member_models.each, *config.member_models.members.values())
        if len({bool(choice.values.get("ports", False)) for choice in choices}) > 1:
            yield (
                CODE,
                "model.members, model.each: ports = true is for all members' models or for none. Set one value.",
            )
    if config.between_sites and f.declared.pooled:
        yield (
            "user.pools",
            f"{f.label}: pools all data at one place, which no site allows. Choose another algorithm.",
        )


def members_and_settings(f: Enrolled) -> Unmet:
    """What settings demand of the clients or sites."""
    if f.config is not None and f.config.between_sites and f.members and f.declared.ids:
        yield (
            "user.neighbours-unknown",
            f"{f.label}: needs to know which nodes of other sites a site's nodes are connected to, which no site "
            'knows. Set engine.name = "simulation", or choose another algorithm.',
        )
    named = f.member_models.members if isinstance(f.member_models, MemberModels) else f.member_models
    unknown = [name for name in named if name not in f.members]
    if unknown:
        yield CODE, f"model.members: there is no member {listed(unknown)}. Name members of {listed([*f.members])}."
    if f.config is not None and 0 < f.config.evaluation.clients < len(f.members) and f.declared.vertical:
        yield (
            "config.sampled",
            f"evaluation.clients = {f.config.evaluation.clients}: parties of a vertical run predict jointly. Set it "
            "to 0, which is all.",
        )


def data_and_partition(f: Loaded) -> Unmet:
    """What an algorithm demands of the data and its partition."""
    data, needs = f.data, f.needs
    # the data
    if f.declared.graph_level and data.example != "graph":
        yield (
            "config.graph-algorithm",
            f"{f.label}: needs small graphs as examples, but the examples of {data.name} are {data.example}s. Set "
            'data.name = "proteins", for example (see `fedweave list datasets`).',
        )
    if data.links is not None and not f.declared.links:
        yield (
            NO_LINKS,
            f'{f.label}: does not take links as examples (data.task = "links"). Set algorithm.name = "fedavg" or '
            'another of its family, "local" or "centralized".',
        )
    if needs.nodes and data.example != "node":
        yield (
            "config.node-algorithm",
            f"{f.label}: is about nodes and their neighbors, and the examples of {data.name} are {data.example}s. Set "
            'algorithm.name = "fedavg" or another of its family, or "local".',
        )
    if needs.classes and data.target != CLASS:
        parts = by_name(f.parts) if isinstance(f, Designed) else {}
        about_classes = [name for name, part in parts.items() if "classes" in part.needs.data]
        part_name = f" (its part {about_classes[0]})" if about_classes else ""
        yield (
            "config.class-algorithm",
            f"{f.label}{part_name}: is about classes, and {data.name} has {NOUNS[data.target]}. Set "
            'algorithm.name = "fedavg", "fedprox", "local" or "centralized".',
        )
    if needs.sensitive and not f.predicts:
        if data.sensitive is None:
            yield (
                "config.no-sens",
                f"{f.label}: needs a sensitive attribute, and {data.name} has none. Add the column `sens` to its "
                f"table of {data.example}s (the array `sens` to an .npz), or choose published data that has one "
                "(`fedweave list datasets`), or an algorithm or parts that need none.",
            )
        if data.target == CLASS and data.classes != 2:
            yield (
                "data.two-classes",
                f"{data.name} has {data.classes} classes: group fairness compares two. Make class 1 the favorable one.",
            )
        if data.sensitive is not None and data.sensitive.max(initial=-1) > 1:
            if data.groups:
                problem = f"people are of the groups {', '.join(data.groups)}, and group fairness compares two. "
                remedy = "Correct misspelt names, or make two groups of them (an empty cell is in none)."
            else:
                problem = f"sens has the value {int(data.sensitive.max())}, and group fairness compares two groups. "
                remedy = "Recode it as 0 and 1."
            yield "data.groups", f"{data.name}: {problem}{remedy}"
    if needs.items and (data.links is None or data.links.items is None):
        yield (
            "config.users",
            'algorithm.users = "home": the data does not mark nodes as users, so that no row would stay local. Set '
            'data.task = "links", data.users and data.items.',
        )

    # the partition
    if f.declared.vertical and not all(np.array_equal(share.nodes, f.shares[0].nodes) for share in f.shares):
        sizes = [f"{client} {nodes:,}" for client, nodes in zip(f.members, f.nodes, strict=True)]
        more = f" and {len(sizes) - 3} more clients theirs" if len(sizes) > 3 else ""
        yield (
            "config.same-nodes",
            f"{f.label}: needs clients with the same nodes, and {_partition(f)} gives each its own "
            f'({", ".join(sizes[:3])}{more}). Set partition.name = "vertical" or "parties", or choose an algorithm '
            "for clients with nodes of their own.",
        )
    if not f.declared.vertical and not all(share.labels for share in f.shares):
        yield (
            "config.labels-withheld",
            f"{f.label}: needs labels at every client, and {_partition(f)} withholds some (partition.labels). Set "
            'partition.labels = "all", or choose an algorithm for vertically split data.',
        )
    if needs.nodes and f.has_times:
        yield (
            "config.timed",
            f'{f.label}: is about nodes and their neighbors at all times, and partition.split = "time" holds back '
            'later edges. Set algorithm.name = "fedavg" or another of its family, or partition.split = "random".',
        )


def _partition(f: Loaded) -> str:
    """The partition, in a message."""
    return "this partition" if f.config is None else f'partition.name = "{f.config.partition.name}"'


def model_and_edges(f: ModelFacts) -> Unmet:
    """What an algorithm demands of the model."""
    if f.declared.vertical and any(layer.operator in edge_attributes.kinds() for layer in f.model):
        model_name = "" if f.config is None else f" {f.config.model.name}"
        yield (
            "config.edge-model",
            f"{f.label}: samples neighbors without edge attributes, which the model{model_name} reads. Set model.name "
            '= "sage", or "gcn" with weighted = false and directed = "none".',
        )


def model_and_data(f: Modelled) -> Unmet:
    """What the model and the data demand of each other."""
    model_example = models.example(f.model)
    if model_example != f.example:
        model = "model"
        if f.config is not None:
            pool = f.config.model.values.get("pool", "none")
            model = f'model.pool = "{pool}" (model.name = "{f.config.model.name}")'
        if f.config is None and f.example == "edge":
            remedy = "Build it by models.OnEdges(models.GINE(…)).build(…)."
        elif f.config is None and f.example == "link":
            remedy = 'Build it by models.links.OnPairs(models.GCN(), "dot").build(…).'
        else:
            remedy = 'Set model.pool = "none".'
            if f.example == "graph":
                pooling = [name for name, kind in registry("model").items() if "pool" in parameters("model", kind)]
                remedy = f'Set model.pool = "sum" or "mean", with model.name one of {", ".join(pooling)}.'
            if f.config is None:
                remedy += f" In the class of a torch.nn.Module, set pools = {f.example == 'graph'}."
        yield (
            "config.pooling",
            f"{model}: has a result for each {model_example}, and the examples of {f.data.name} are {f.example}s. "
            f"{remedy}",
        )
    maker = maker_of(f.model)
    if maker is not None and model_example in ("node", "graph"):
        sizes = maker.arguments  # numbers of features and outputs, if the model's plug-in built layers for these
        if len(sizes) == 2 and all(isinstance(size, int) for size in sizes) and sizes[1] != f.data.outputs:
            yield (
                "config.outputs",
                f"model: is built for {sizes[1]} outputs, and {f.data.name} has {f.data.outputs} "
                f"({NOUNS[f.data.target]}). Give build(data.features, data.outputs).",
            )


def algorithm_settings(f: Designed) -> Unmet:
    """What an algorithm that is made, with its parts, demands of the model and the settings."""
    if f.member_models and not f.algorithm.any_models:
        yield (
            CODE,
            f'model.members, model.each: with algorithm "{f.name}" members share weights, so that all have one model. '
            "Leave these out, or choose fedproto, fedtgp or local.",
        )
    if f.config is not None and f.config.pay.budget > 0:
        pay = f.config.pay
        measure = RULES[pay.by].needs or (SIZE if pay.cap else "")
        if measure and measure not in f.algorithm.needs.measures:
            yield (
                "config.pay",
                f'pay.by = "{pay.by}": nothing in the run measures what pay is to follow from. Add '
                f"{' or '.join(repr(part) for part in RULES[measure].parts)} to algorithm.parts (with the family of "
                'fedavg, without secure_sum), or set pay.by = "equal" without a cap.',
            )
    if any(layer.infer for layer in f.model):
        samples = any(isinstance(part, SampledCrossEntropy) for part in f.parts.values())
        on_whole_graphs = [name for name, part in f.parts.items() if "graph" in part.needs.reads]
        if not samples or on_whole_graphs:
            reader = f"the part {on_whole_graphs[0]}" if samples else f'algorithm "{f.name}"'
            remedy = "Leave that part out" if samples else 'Set algorithm.parts = ["sampled_cross_entropy"]'
            yield (
                "config.whole-graphs",
                f"model.ego_ids = true: it marks the nodes around which neighborhoods are sampled, and {reader} reads "
                f"whole graphs. {remedy}, or leave model.ego_ids out.",
            )


def algorithm_and_data(f: Assembled) -> Unmet:
    """What an algorithm that is made, with its parts, demands of the data and the partition."""
    data, algorithm = f.data, f.algorithm
    intervals = 0.0 if f.config is None else f.config.evaluation.intervals
    if intervals and not getattr(f.parts, "uses_received", True):
        yield (
            "config.intervals",
            f"evaluation.intervals = {intervals:g}: intervals are of one model for all members, and here each has its "
            "own. Leave out evaluation.intervals, or the part by which members have their own, such as own_share.",
        )
    # the loss; other classes may mean something else by the names of a `Criterion`'s settings
    if "class_weight" in getattr(type(algorithm), "__dataclass_fields__", {}):
        criterion = criterion_of(algorithm)
        settings: list[tuple[str, bool, tuple[Kind, ...]]] = [
            ("class_weight", criterion.class_weight != "none", (CLASS, LABELS)),
            ("focal", criterion.focal > 0, (CLASS,)),
            ("logit_adjustment", criterion.logit_adjustment > 0, (CLASS,)),
            ("number_loss", criterion.number_loss != "mse", (NUMBER,)),
            ("quantile", criterion.quantile != 0.5, (NUMBER,)),
        ]
        for name, is_set, kinds in settings:
            if is_set and data.target not in kinds:
                yield (
                    "config.loss-target",
                    f"algorithm.{name}: it is of {' or '.join(NOUNS[kind] for kind in kinds)}, and the data has "
                    f"{NOUNS[data.target]}. Leave it out.",
                )
    weights = algorithm.class_weight
    if data.target == LABELS and isinstance(weights, tuple) and len(weights) != data.outputs:
        yield (
            "config.class-weight",
            f"algorithm.class_weight: has {len(weights)} numbers, and there are {data.outputs} labels. Give one of "
            "each.",
        )

    adds_columns = not (f.declared.vertical or f.declared.pooled)
    if adds_columns and any(share.columns is not None for share in f.shares):
        calls = algorithm.calls(len(f.shares)) or Calls()
        if any(step_info(step).sends for step in calls.round):
            yield (
                "config.columns",
                f"{f.label}: would take each client's first column for the same, and so on, and {_partition(f)} gives "
                "clients different ones. Choose an algorithm for vertically split data, such as glasu or standalone, "
                "or local, which adds nothing up.",
            )

    # memory for sampled neighborhoods of the clients that run at once
    concurrent = 1 if f.engine.get("mode") == "loop" else int(f.engine.get("chunk", 0))
    largest = sorted(f.nodes, reverse=True)[: concurrent or None]
    steps = getattr(algorithm, "local_steps", 1)
    for part in f.parts.values():
        if not isinstance(part, SampledCrossEntropy):
            continue
        sampler, memory = part.sampler, _memory()
        need = sum(bytes_of(f.model, sampler, nodes, steps) for nodes in largest)
        if need > memory:
            yield (
                "config.memory",
                f"algorithm.parts: sampled_cross_entropy with batch = {sampler.batch} and fan_out = {sampler.fan_out} "
                f"draws about {need / 1e9:,.0f} GB for {counted(len(largest), 'client')} at once, and this machine has "
                f"{memory / 1e9:,.0f} GB. Lower fan_out, batch, local_steps or model.layers, or set engine.chunk.",
            )

    # ε of single records does not hold if other records determine how features are scaled. A simulation scales
    # examples; a site also the nodes around them.
    protected = f.protected_records
    scaled = sorted(protected & ({"example"} if f.partition is not None else {"example", "node"}))
    scalings = {"normalize": f.scaling} if f.scaling in BY_NODES else {}
    if data.edge_attrs is not None and (data.edge_attrs.scaling or f.scales_own_edges):
        of_data = {} if f.config is None else f.config.data.values
        default = "auto" if data.edge_attrs.auto else "standard"
        scalings["edge_normalize"] = str(of_data.get("edge_normalize", default))
    if scaled:
        for key, scaling in scalings.items():
            yield (
                "config.scaling",
                f'data.{key} = "{scaling}": scales each {scaled[0]} by numbers over all of them, so that its ε, which '
                f'is of one {scaled[0]}, would not hold. Set "none" or "row", and scale the features by public numbers '
                "before.",
            )
    of_graphs = 0 if data.graph_columns is None else data.graph_columns.width
    expected = of_graphs if f.config is None else f.config.model.values.get("graph_features", 0)
    if expected != of_graphs:
        yield (
            "config.graph-columns",
            f"model.graph_features = {expected}: the data has {of_graphs} columns of whole graphs. Take gin or gine "
            f"with {of_graphs}.",
        )
    if protected and data.structure is not None:
        yield (
            "config.structure",
            f"data.structure = {list(data.structure.kinds)}: a column of one node depends on edges of others, so that "
            f"an ε of one {sorted(protected)[0]} would not hold. Leave structure out.",
        )
    if data.target == NUMBER and data.target_scaling != "none" and "example" in protected:
        yield (
            "config.target-scaling",
            f'data.target_normalize = "{data.target_scaling}": scales a number by the numbers of all training '
            'examples, so that the ε of one example would not hold. Set it to "none", and scale the numbers by public '
            "ones before.",
        )


def _memory() -> float:
    """Bytes of memory of this machine; inf where it does not report them."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return float("inf")


# What `check` goes through, in this order: a stage, and what it requires.
REQUIREMENTS: Sequence[tuple[type[Stage], Callable[[Any], Unmet]]] = (
    (Configured, settings_alone),
    (Enrolled, members_and_settings),
    (Loaded, data_and_partition),
    (Modelled, model_and_data),
    (ModelFacts, model_and_edges),
    (Designed, algorithm_settings),
    (Assembled, algorithm_and_data),
)


def check_rounds(algorithm: Algorithm, rounds: int) -> None:
    """Check that an algorithm can run that many rounds.

    Raises:
        UserError: it was made for fewer.
    """
    limit = algorithm.max_rounds
    if limit is not None and rounds > limit:
        raise UserError(
            f"rounds = {rounds}: the algorithm spends its target ε within {limit} rounds (target_rounds), and the run "
            f"has {rounds}. Set rounds to {limit} or less, or algorithm.target_rounds to {rounds}.",
            code="user.target-rounds",
        )


def check_training_examples(counts: Sequence[int | None]) -> None:
    """Check that some client trains. counts: labeled training examples by client, None where it does not report them.

    Raises:
        ConfigError: none has any.
    """
    if None not in counts and not any(counts):
        raise ConfigError(
            "no client has a labeled training example: no client would train, and every score would come from a model "
            "with random weights. Mark training examples (a column split), or give partition.train a share.",
            code="config.untrained",
        )


def check_widths(algorithm: object, member_algorithms: Mapping[str, object], graphs: Mapping[str, Graph]) -> None:
    """Check that embeddings have the same number of columns at all clients if an algorithm compares them.

    member_algorithms: {client: its own algorithm} of clients whose model is not `algorithm`'s.

    Raises:
        ConfigError: they have not.
    """
    if not member_algorithms or not isinstance(algorithm, FedAvg):
        return
    smallest = min(graphs.values(), key=lambda graph: graph.nodes).to(torch.device("cpu"))
    algorithms = {client: member_algorithms.get(client, algorithm) for client in graphs}
    widths = once(partial(_embedding_width, graph=smallest), algorithms)
    first_clients = dict[int, str]()  # of each width
    for client, width in widths.items():
        first_clients.setdefault(width, client)
    if len(first_clients) > 1:
        text = ", ".join(f"{width} at {client}" for width, client in first_clients.items())
        raise ConfigError(
            f"model: {ONE_WIDTH}; they are {text}. Set the same model.hidden for all members.", code=WIDTHS
        )


def _embedding_width(algorithm: object, graph: Graph) -> int:
    net = deployable(algorithm).net
    with torch.no_grad():
        return int(models.embedded(net, models.init(net, random.key(0), graph.x.dtype), graph).shape[1])


UNTESTED = (
    "no client has a test example and there is no global test set: the run trains a model without testing it. Mark "
    "test examples (a column split), or give partition.test a share."
)


def warn_untested(counts: Sequence[int | None], has_global_test: bool) -> str:
    """The warning before a run without test examples, or "". Such a run is allowed, since you may want only its model.

    counts: numbers of test examples by client, None where it does not report them.
    """
    is_tested = has_global_test or None in counts or any(counts)
    return "" if is_tested else UNTESTED
