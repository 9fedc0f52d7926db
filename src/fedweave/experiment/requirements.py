"""What an algorithm and a model demand of data, a partition and each other, checked before anything is computed."""

import os
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch

from fedweave.algorithms.deployment import deployable
from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.participation import drawn
from fedweave.algorithms.parts import SampledCrossEntropy
from fedweave.algorithms.parts.conflicts import shown
from fedweave.algorithms.parts.part import ONE_WIDTH, WIDTHS, weighing
from fedweave.core import edge_attributes as carrying
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import NO_LINKS, Algorithm, Capabilities, capabilities
from fedweave.core.federation import step_info
from fedweave.core.graph import Graph
from fedweave.core.mechanism import LDP, Gaussian
from fedweave.core.model import Model
from fedweave.core.target import CLASS, LABELS, NOUNS, NUMBER
from fedweave.core.text import counted
from fedweave.core.types import Values
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import BY_NODES, amounts
from fedweave.errors import ConfigError, listed
from fedweave.experiment.config import Config, parameters, registry
from fedweave.experiment.config.plugins import CODE, OwnModels
from fedweave.metrics.groups import check_groups
from fedweave.models import blocks
from fedweave.ops.tape import once
from fedweave.partition.base import Partition, client_ids
from fedweave.sampling.neighborhoods import bytes_of

# ----------------------------------------------------------------------------------------------------
# Whether a machine's memory can hold what a run is about to draw.


def check_memory(algorithm: Algorithm, model: Model, nodes: Sequence[int], engine: Values) -> None:
    """Refuse sampled neighborhoods that memory cannot hold.

    nodes: how many each client has. engine: the settings of [engine], which say how many clients run at once.

    Raises:
        ConfigError: says about how much they take, and what to lower.
    """
    parts = algorithm.composed.values()
    together = 1 if engine.get("mode") == "loop" else int(engine.get("chunk", 0))
    largest = sorted(nodes, reverse=True)[: together or None]
    for sampler in (part.sampler for part in parts if isinstance(part, SampledCrossEntropy)):
        need = sum(bytes_of(model, sampler, count, getattr(algorithm, "local_steps", 1)) for count in largest)
        if need > (there := _memory()):
            raise ConfigError(
                f"algorithm.parts: sampled_cross_entropy with batch = {sampler.batch} and fan_out = {sampler.fan_out} "
                f"draws about {need / 1e9:,.0f} GB for {counted(len(largest), 'client')} at once, and this machine has "
                f"{there / 1e9:,.0f} GB. Lower fan_out, batch, local_steps or model.layers, or set engine.chunk.",
                code="config.memory",
            )


def _memory() -> float:
    """Bytes that this machine has; inf where it does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return float("inf")


def check_labels_and_nodes(config: Config, data: Dataset, partition: Partition) -> None:
    """Refuse data that lacks what the algorithm needs: one that trains on every client's labels would take withheld
    ones for a class, and one over vertical clients add up rows of different nodes."""
    check_examples(config, data)
    kind = capabilities(config.algorithm.kind)
    if kind.vertical:
        _check_same_nodes(config, partition)
    if not kind.vertical and not all(part.labels for part in partition.parts):
        labels = config.partition.values.get("labels")
        raise ConfigError(
            f"algorithm {config.algorithm.name!r} needs labels at every client, but partition.labels = {labels!r} "
            "withholds some; set it to 'all', or choose an algorithm for vertically split data."
        )


def _check_same_nodes(config: Config, partition: Partition) -> None:
    first, *others = partition.parts
    if all(np.array_equal(part.nodes, first.nodes) for part in others):
        return
    named = zip(client_ids(len(partition.parts), partition.names), partition.parts, strict=True)
    sizes = [f"{client} {len(part.nodes):,}" for client, part in named]
    text = ", ".join(sizes[:3]) + (f" and {len(sizes) - 3} more clients theirs" if len(sizes) > 3 else "")
    raise ConfigError(
        f"algorithm {config.algorithm.name!r} needs clients with the same nodes, but partition "
        f"{config.partition.name!r} gives each its own ({text}); set partition.name = 'vertical' or 'parties', or "
        "choose an algorithm for clients with nodes of their own."
    )


def check_columns(config: Config, partition: Partition, algorithm: Algorithm) -> None:
    """Refuse clients with columns of their own whose messages a horizontal algorithm would add up."""
    kind, apart = capabilities(config.algorithm.kind), any(part.columns is not None for part in partition.parts)
    if not apart or kind.vertical or kind.pooled or (calls := algorithm.calls(len(partition.parts))) is None:
        return
    if any(step_info(step).sends for step in calls.round):
        raise ConfigError(
            f"algorithm {config.algorithm.name!r} would take each client's first column for the same, and so on, but "
            f"partition {config.partition.name!r} gives clients different ones; choose an algorithm for vertically "
            "split data, such as glasu or standalone, or local, which adds nothing up."
        )


def check_examples(config: Config, data: Dataset) -> None:
    """Raise ConfigError unless the examples are what the algorithm needs."""
    if capabilities(config.algorithm.kind).graph_level and data.example != "graph":
        raise ConfigError(
            f"algorithm {config.algorithm.name!r} needs small graphs as examples, but those of {data.name} are "
            f"{data.example}s; choose data such as 'proteins' (see `fedweave list datasets`)."
        )
    if data.links is not None and not capabilities(config.algorithm.kind).links:
        raise ConfigError(
            f'algorithm.name = "{config.algorithm.name}": does not take links as examples (data.task = "links"). Set '
            'algorithm.name = "fedavg" or another of its family, "local" or "centralized".',
            code=NO_LINKS,
        )
    check_nodes(config, data, capabilities(config.algorithm.kind))


def check_nodes(config: Config, data: Dataset, asked: Capabilities) -> None:
    """Raise ConfigError where an algorithm that asks for nodes as examples has others."""
    if asked.nodes and data.example != "node":
        raise ConfigError(
            f"algorithm {config.algorithm.name!r} is about nodes and their neighbors, but the examples of {data.name} "
            f"are {data.example}s; take fedavg, or another of its family, or local.",
            code="config.node-algorithm",
        )


def check_target(data: Dataset, algorithm: Algorithm, name: str) -> None:
    """Raise ConfigError where an algorithm, called `name`, or a part of it is about classes and numbers or several
    labels are predicted, or weighs what there is not."""
    if data.target != CLASS and algorithm.needs.classes:
        parts = shown(algorithm.composed)
        part = next((f", by its part {label!r}," for label, part in parts.items() if part.needs.classes), "")
        raise ConfigError(
            f"algorithm {name!r}{part} is about classes, and {data.name} has {NOUNS[data.target]}. Take fedavg, "
            "fedprox, local or centralized.",
            code="config.class-algorithm",
        )
    weighing(algorithm).check_target(data.target)
    weights = algorithm.class_weight
    if data.target == LABELS and isinstance(weights, tuple) and len(weights) != data.outputs:
        raise ConfigError(
            f"algorithm.class_weight: has {len(weights)} numbers, and there are {data.outputs} labels. Give one of "
            "each.",
            code="config.class-weight",
        )


def check_users(data: Dataset, algorithm: Algorithm) -> None:
    """Raise ConfigError where rows of users are to stay at home and the data does not say who is a user."""
    parts = algorithm.composed.values()
    if any(part.needs.items for part in parts) and (data.links is None or data.links.items is None):
        raise ConfigError(
            "algorithm.users = 'home': the data does not say which nodes are users, so that no row would stay. Set "
            "data.task = 'links', data.users and data.items.",
            code="config.users",
        )


def check_sampling(
    config: Config, data: Dataset, nodes: Sequence[int], timed: bool, model: Model, algorithm: Algorithm
) -> None:
    """Raise ConfigError where the algorithm asks for nodes as examples and has others; where it samples more around the
    clients' `nodes` than memory holds; where messages depend on time, and it goes by neighbors whenever they are some;
    and where the model marks the seeds of sampled neighborhoods, and none are sampled."""
    if timed and algorithm.needs.nodes:
        raise ConfigError(
            f"algorithm {config.algorithm.name!r} is about nodes and their neighbors at all times, but split = 'time' "
            "holds back later edges; take fedavg, or another of its family, or split = 'random'."
        )
    check_nodes(config, data, algorithm.needs)
    check_memory(algorithm, model, nodes, config.engine.values)
    if not any(layer.judged for layer in model):
        return
    parts = algorithm.composed
    sampled = any(isinstance(part, SampledCrossEntropy) for part in parts.values())
    whole = [name for name, part in parts.items() if part.needs.whole_graphs]
    if whole or not sampled:
        reads = f"its part {whole[0]!r}" if sampled else f"algorithm {config.algorithm.name!r}"
        remedy = "take an algorithm without that part" if sampled else "set algorithm.parts = ['sampled_cross_entropy']"
        raise ConfigError(
            f"model.ego_ids = true marks the nodes around which neighborhoods are sampled, and {reads} reads whole "
            f"graphs; {remedy}, or leave model.ego_ids out.",
            code="config.whole-graphs",
        )


UNTESTED = (
    "no client has a test example and there is no global test set: the model is trained, and nothing says how good it "
    "is. Mark test examples (a column split), or give partition.test a share."
)


def check_trained(train: Sequence[int | None]) -> None:
    """Raise ConfigError where nobody would train: numbers of training examples by client, None where one does not
    say."""
    if None not in train and not sum(filter(None, train)):
        raise ConfigError(
            "no client has a labeled training example, so that nobody would train, and every score would be of a "
            "model with random weights. Mark training examples (a column split), or give partition.train a share."
        )


def untested(test: Sequence[int | None], has_global_test: bool) -> str:
    """What to say before a run in which nobody is tested, which is allowed, since its model may be all that is wanted;
    "" otherwise. test: numbers of test examples by client. has_global_test: whether there is a global test set."""
    return UNTESTED if not has_global_test and None not in test and not sum(filter(None, test)) else ""


def scales(data: Dataset, config: Config) -> str:
    """How features of nodes are scaled by other nodes, "none" where "auto" finds nothing to scale."""
    how: str = config.data.values.get("normalise", "none")
    return "none" if data.scaling != "none" and not len(amounts(data.x)) else how


def check_scaling(how: str, algorithm: Algorithm, records: Sequence[str]) -> None:
    """Refuse to scale features by numbers over all examples where ε is of one of them: it moves all the others, too.

    how: the scaling of the features (`datasets.features.normalise`). records: what ε may be of (`mechanism.LDP.per`).

    Raises:
        ConfigError: names the scaling and what to take instead.
    """
    if how in BY_NODES and (bounded := _bounded(algorithm) & set(records)):
        raise ConfigError(
            f"normalise = {how!r} scales each {min(bounded)} by numbers over all of them, so that its ε, which is of "
            f"one {min(bounded)}, would not hold; take 'none' or 'row', and scale the features by public numbers before"
        )


def check_target_scaling(data: Dataset, algorithm: Algorithm) -> None:
    """Refuse to scale numbers that are predicted by those of all examples where ε is of one of them, as `check_scaling`
    does features.

    Raises:
        ConfigError: says so.
    """
    if data.target == NUMBER and data.target_scaling != "none" and "example" in _bounded(algorithm):
        raise ConfigError(
            f'data.target_normalise = "{data.target_scaling}": scales a number by those of all training examples, so '
            'that the ε of one example would not hold. Set it to "none", and scale the numbers by public ones before.',
            code="config.target-scaling",
        )


def _bounded(algorithm: Algorithm) -> set[str]:
    """What an algorithm's ε is of (`mechanism.LDP.per`)."""
    if (calls := algorithm.calls(2)) is None:
        return set()
    declared = (send for step in calls.all for send in step_info(step).sends.values())
    mechanisms = (one for send in declared for one in send.mechanisms)
    return {one.per for one in mechanisms if isinstance(one, Gaussian | LDP)}


def check_people(config: Config, data: Dataset, algorithm: Algorithm) -> None:
    """Raise ConfigError or DataError unless the data says of which group people are, where that is needed."""
    if not algorithm.needs.sens:
        return
    if data.sens is None:
        raise ConfigError(
            f"algorithm {config.algorithm.name!r} needs a sensitive attribute, but {data.name} has none; add the "
            f"column `sens` to its table of {data.example}s (the array `sens` to an .npz), or choose published data "
            "that has one (`fedweave list datasets`), or an algorithm or parts that need none.",
            code="config.no-sens",
        )
    check_groups(data.classes, data.sens, data.name, data.groups)


def check_edges(config: Config, model: Model) -> None:
    """Raise ConfigError where clients share nodes, of whose neighbors they see samples, and the model reads what edges
    carry."""
    if capabilities(config.algorithm.kind).vertical and any(layer.operator in carrying.kinds() for layer in model):
        raise ConfigError(
            f"algorithm {config.algorithm.name!r} samples neighbors and does not have what edges carry, which model "
            f"{config.model.name!r} reads; choose model sage, or gcn with weighted = false and directed = 'none'.",
            code="config.edge-model",
        )


def check_own_models(
    member_models: OwnModels | Mapping[str, Model], algorithm: Algorithm, members: Sequence[str], called: str
) -> None:
    """Raise ConfigError where members have models of their own and the algorithm, which is `called` so, shares weights,
    or one that is named is not there."""
    named = member_models.members if isinstance(member_models, OwnModels) else member_models
    if unknown := [name for name in named if name not in members]:
        raise ConfigError(
            f"model.members: there is no member {listed(unknown)}; the members are {listed(members)}.", code=CODE
        )
    if member_models and not algorithm.any_models:
        raise ConfigError(
            f"model.members, model.each: with algorithm {called!r} members share weights, so that all "
            "have one model; leave these out, or choose fedproto, fedtgp or local.",
            code=CODE,
        )


def check_ports(config: Config, plugin: object) -> None:
    """Raise ConfigError unless a member's own model numbers ports as [model] does: all have the same data."""
    if blocks.has_ports(plugin) != config.model.values.get("ports", False):
        raise ConfigError("model.members, model.each: ports = true is for all members' models or for none.", code=CODE)


def check_widths(algorithm: Algorithm, client_algorithms: Mapping[str, Algorithm], graphs: Mapping[str, Graph]) -> None:
    """Raise ConfigError unless what the last layers of all clients' models read is of one width, where prototypes of it
    are compared. client_algorithms: {client: its own algorithm}."""
    if not client_algorithms or not isinstance(algorithm, FedAvg):
        return
    least = min(graphs.values(), key=lambda graph: graph.nodes).to(torch.device("cpu"))
    widths = dict[int, str]()
    each = {client: client_algorithms.get(client, algorithm) for client in graphs}
    for client, width in once(partial(_width, graph=least), each).items():
        widths.setdefault(width, client)
    if len(widths) > 1:
        text = ", ".join(f"{width} at {client}" for width, client in widths.items())
        raise ConfigError(f"model: {ONE_WIDTH}; they are {text}.", code=WIDTHS)


def _width(algorithm: Algorithm, graph: Graph) -> int:
    """Of the embeddings that the last layer of its model reads."""
    net = deployable(algorithm).net
    with torch.no_grad():
        return int(models.embedded(net, models.init(net, random.key(0), graph.x.dtype), graph).shape[1])


def check_pooling(config: Config, data: Dataset, model: Model) -> None:
    """Raise ConfigError unless the model has one row of results per example."""
    if models.example(model) == (data.example if data.links is None else "link"):
        return
    label = f"model {config.model.name!r} with pool = {config.model.values.get('pool', 'none')!r}"
    if data.example != "graph":
        raise ConfigError(
            f"{label} pools small graphs, but the examples of {data.name!r} are {data.example}s; "
            "set model.pool = 'none'.",
            code="config.pooling",
        )
    pooling = [name for name, kind in registry("model").items() if "pool" in parameters("model", kind)]
    raise ConfigError(
        f"{label} has a result for each node, but the examples of {data.name!r} are graphs; set model.pool = 'sum' or "
        f"'mean', with model.name one of {', '.join(pooling)}."
    )


def evaluated_clients(config: Config, clients: Sequence[str]) -> tuple[str, ...]:
    """Whom evaluations call: as many clients as [evaluation] clients says, the same in every round of a run; () for
    all.

    Raises:
        ConfigError: the parties of a vertical algorithm cannot be judged apart.
    """
    most = config.evaluation.clients
    if not 0 < most < len(clients):
        return ()
    if capabilities(config.algorithm.kind).vertical:
        raise ConfigError(
            "evaluation.clients: parties of a vertical run predict jointly; set it to 0, which is all",
            code="config.sampled",
        )
    return tuple(drawn(tuple(clients), random.fold(random.key(config.general.seed), "evaluation"), most))
