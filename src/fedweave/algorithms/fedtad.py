"""FedTAD: Zhu et al. 2024, "FedTAD: topology-aware data-free knowledge distillation for subgraph federated learning",
algorithm 1.

FedAvg whose server then distills on generated graphs: for each class the mean model learns the predictions of the
clients' models that are most reliable for it. As in the text, a class's reliability is a share over clients, from
features and the probabilities that walks return. Deviations: the first mean is by training examples, only logits are
compared, and a reliability is at least 0. The released script does not run unchanged, describes nodes by the numbers of
nodes that a walk visits, and uses dropout in evaluation; OpenFGL, the source of the tables for graphs, takes shares
over a client's own classes.

The server generates nodes from noise, each for one class (section 4.2).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedweave.algorithms.parts import Needs, Round, Training
from fedweave.algorithms.parts.weights import ReportsExamples, by_size
from fedweave.algorithms.preset import preset_of
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.bounds import Count, CountOrNone, NonNegative, Positive
from fedweave.core.federation import Client, Federation, Sends, Step, on_client
from fedweave.core.graph import TRAIN, Graph, make_graph
from fedweave.core.model import Model
from fedweave.core.ranges import Real
from fedweave.core.tree import Tree, add, leaves, nest, sub
from fedweave.core.types import Record
from fedweave.learn import Adam, fit
from fedweave.models.blocks import affine
from fedweave.models.star import CODES, DEGREES, RETURNS
from fedweave.ops.sparse import dense

NOISE, WIDTHS = 32, (64, 128, 256)  # numbers that a node begins with; the generator's layers
WALK = 5  # steps of walks that return


def generator(key: Tensor, classes: int, features: int, dtype: torch.dtype) -> Tree:
    """A vector of each class, N(0, 1), and the layers of the generator."""
    widths = (NOISE + classes, *WIDTHS, features)
    weights: Tree = {"class": {"weight": random.normal(random.fold(key, "class"), (classes, classes))}}
    for at in range(len(WIDTHS) + 1):
        weights[str(at)] = affine(*widths[at : at + 2]).init(random.fold(key, "layer", at))
    return nest({path: leaf.to(dtype) for path, leaf in leaves(weights)})


def features(weights: Tree, z: Tensor, label: Tensor) -> Tensor:
    """[n, d] of noise z [n, 32] for nodes of the classes `label` int64 [n], by a `generator`."""
    h = torch.cat([z, weights["class"]["weight"][label]], 1)
    for at in range(len(WIDTHS)):
        h = torch.tanh(h @ weights[str(at)]["weight"] + weights[str(at)]["bias"])
    last = weights[str(len(WIDTHS))]
    x: Tensor = h @ last["weight"] + last["bias"]
    return x


def labels(count: int, classes: int, device: torch.device | str = "cpu") -> Tensor:
    """int64 [count]: ⌊count / C⌋ of each class, the rest of the last."""
    return (torch.arange(count, device=device) // max(1, count // classes)).clamp(max=classes - 1)


def nearest_pairs(cosine: Tensor, near: int) -> Tensor:
    """bool [n, n]: pairs in which one node is among the `near` largest columns of the other's row."""
    nearest = (-cosine).argsort(dim=1, stable=True)[:, :near]
    close = torch.zeros_like(cosine, dtype=torch.bool).scatter(1, nearest, True)
    return close | close.T


def pseudo_graph(x: Tensor, near: int) -> Graph:
    """Each node of x [n, d] linked to the `near` rows of the largest cosine, itself among them, both ways."""
    unit = F.normalize(x.detach(), dim=1)
    joined = nearest_pairs(unit @ unit.T, near).fill_diagonal_(False).cpu()
    masks, none = np.zeros((3, len(x)), bool), np.full(len(x), -1)
    return make_graph(x.detach().cpu().numpy(), joined.nonzero().T.numpy(), none, masks, dtype=x.dtype).to(x.device)


@dataclass(frozen=True)
class Distilled(ReportsExamples):
    """After the mean by size w̄, `outer` times: the generator takes a step on λ1 L_sem − L_dis + λ2 L_div, toward nodes
    with clear classes on which models and w̄ differ, and toward diverse nodes, and then w̄ takes `inner` steps on L_dis
    = Σ_i Σ_c φ_ic mean |f_w̄ − f_i| over the generated nodes of class c and the logits.

    outer:     number of distillations in a round; 0 is FedAvg.
    inner:     steps of the global model in each distillation.
    rate:      learning rate of generator and global model, by Adam.
    decay:     weight decay of generator and global model.
    semantic:  λ1, weight of the semantic loss.
    diversity: λ2, weight of the diversity loss.
    pseudo:    number of generated nodes, with equal numbers per class.
    near:      number of neighbors of a generated node by cosine, itself included.
    """

    outer: CountOrNone = 5
    inner: CountOrNone = 5
    rate: Positive = 1e-3
    decay: NonNegative = 5e-4
    semantic: float = 1.0
    diversity: float = 1.0
    pseudo: int = 100
    near: Count = 5
    recorded = True
    rounds_vary = True
    needs = Needs(data=("nodes", "classes"), models=("whole", "global"), statistics="none")

    def __post_init__(self) -> None:
        if self.near > self.pseudo:
            raise ValueError(f"near = {self.near}: must be at most pseudo, which is {self.pseudo}")

    def check(self, training: Training) -> None:
        if not models.feature_rows(training.model) or models.pools(training.model):
            raise ValueError(
                "FedTAD makes up nodes with features; choose a model of nodes that multiplies features by a weight, "
                "such as gcn"
            )

    @property
    def setup(self) -> tuple[Step, ...]:
        return (self.reliability,)

    def init(self, fed: Federation, w: Tree) -> Tree:
        known = fed.map(self.reliability, {"classes": fed.classes}).stack("reliability")
        return {"known": known, "key": fed.key("generator"), "round": torch.zeros_like(known[0, 0], dtype=torch.int64)}

    @on_client(
        sends={
            "reliability": Sends(
                "of each class, how many training nodes the client has, times how like their neighbors these are",
                within=Real(),
            )
        },
        hears={"classes": "how many classes there are"},
        ragged=True,
    )
    def reliability(self, client: Client, message: Tree) -> Tree:
        """{"reliability": φ float64 [C], at least 0}."""
        graph = client.graph
        codes = graph.edges.operator(CODES) @ torch.eye(RETURNS + DEGREES, dtype=graph.x.dtype, device=graph.device)
        walks = codes[:, :WALK]
        return {"reliability": reliability(graph, torch.cat([dense(graph.x), walks], 1), message["classes"])}

    def weigh(self, state: Tree, round: Round) -> Tensor:
        return by_size(round)

    def observe(self, state: Tree, round: Round) -> Tree:
        """The generator's state, and "moved", the change of the mean by distillation."""
        start = w = add(round.w, round.replies.weighted_sum("update", by_size(round)))
        adam = Adam(self.rate, self.decay)
        if "made" in state:
            generator_weights, of_made, of_w = state["made"], state["of_made"], state["of_mean"]
        else:  # the generator begins like torch's linear layers
            rows = dict(leaves(round.w))[next(iter(models.feature_rows(round.model)))]
            generator_weights = generator(state["key"], state["known"].shape[1], rows.shape[0], rows.dtype)
            of_made, of_w = adam.init(generator_weights), adam.init(round.w)
        label = labels(self.pseudo, state["known"].shape[1], state["known"].device)
        share = shares(state["known"][round.at])[:, label] / F.one_hot(label).sum(0)[label]
        task = _Task(self, round.model, label)
        dtype = next(leaves(w))[1].dtype
        inputs: Tree = {"teachers": round.trained, "share": share.to(dtype)}
        for time in range(self.outer):
            key = random.fold(state["key"], state["round"], time)
            z = random.normal(random.fold(key, "z"), (self.pseudo, NOISE)).to(dtype)
            graph = pseudo_graph(features(generator_weights, z, label), self.near)
            args = inputs | {"w": w, "z": z}
            generator_weights, _, of_made = fit(
                task.generator_loss, generator_weights, graph, key, adam, 1, state=of_made, args=args
            )
            graph = pseudo_graph(features(generator_weights, z, label), self.near)
            args = inputs | {"targets": task.logits(inputs["teachers"], graph)}
            w, _, of_w = fit(task.distillation_loss, w, graph, key, adam, self.inner, state=of_w, args=args)
        after = {"made": generator_weights, "of_made": of_made, "of_mean": of_w, "round": state["round"] + 1}
        return state | after | {"moved": sub(w, start)}

    def aggregate(self, state: Tree, round: Round) -> Tree:
        return add(round.weighted(), state["moved"])

    def update(self, state: Tree, round: Round) -> Tree:
        return {key: value for key, value in state.items() if key != "moved"}


@dataclass(frozen=True)
class _Task:
    """The server's training on nodes of the classes `label` int64 [n]."""

    part: Distilled
    model: Model
    label: Tensor

    def logits(self, teachers: Tree, graph: Graph) -> Tensor:
        """[P, n, C]."""
        count = len(self.label)
        logits: Tensor = vmap(lambda w: models.apply(self.model, w, graph)[:count], chunk_size=32)(teachers)
        return logits

    def generator_loss(self, weights: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        """λ1 L_sem − L_dis + λ2 L_div."""
        x = features(weights, args["z"], self.label)
        graph = graph._replace(x=F.pad(x, (0, 0, 0, graph.nodes - len(x))))
        teachers = self.logits(args["teachers"], graph)
        student = models.apply(self.model, args["w"], graph)[: len(x)]
        plain = F.cross_entropy(teachers.transpose(1, 2), self.label.expand(len(teachers), -1), reduction="none")
        spread = F.pdist(args["z"]).square() * F.pdist(x, p=1.0) / (NOISE * x.shape[1])  # of each pair once
        semantic, diversity = (args["share"] * plain).sum(), len(teachers) * torch.exp(-2 * spread.sum() / len(x) ** 2)
        distance = divergence(student, teachers, args["share"])
        result: Tensor = self.part.semantic * semantic - distance + self.part.diversity * diversity
        return result

    def distillation_loss(self, w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        """L_dis, with dropout in the global model."""
        return divergence(models.apply(self.model, w, graph, key)[: len(self.label)], args["targets"], args["share"])


def reliability(graph: Graph, t: Tensor, classes: int) -> Tensor:
    """φ float64 [C]: Σ over training nodes v of each class of (1 + Σ_(u next to v) cos(t_v, t_u)) / (deg_v + 1), t
    [n, k]."""
    unit, a = F.normalize(t, dim=1), graph.edges.operator("sum")
    degree = (a @ torch.ones_like(unit[:, :1]))[:, 0]
    terms = (1 + (unit * (a @ unit)).sum(1)) / (degree + 1)
    member = (graph.y == torch.arange(classes, device=t.device)[:, None]) & graph.masks[TRAIN]
    return (member.double() @ terms.double()).clamp(min=0)


def shares(known: Tensor) -> Tensor:
    """[P, C]: each class's reliability as a share over clients, 0 where none has the class."""
    total = known.sum(0)
    return torch.where(total > 0, known / total.where(total > 0, 1.0), 0.0)


def divergence(outputs: Tensor, targets: Tensor, share: Tensor) -> Tensor:
    """Σ_i Σ_v share_iv mean over columns of |outputs_v − targets_iv|; outputs [n, C], targets [P, n, C], share
    [P, n]."""
    return ((outputs - targets).abs().mean(2) * share).sum()


@preset_of(Distilled)
class FedTAD:
    """FedAvg whose server distills the clients' most reliable models of each class into the global model."""

    test_settings: ClassVar[Record] = {"pseudo": 20, "rate": 1e-4, "decay": 0.0}
