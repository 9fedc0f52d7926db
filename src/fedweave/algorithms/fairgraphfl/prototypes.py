"""Motif prototypes (FairGraphFL, section 3.3): the mean embedding of graphs with a common motif is a reference that a
loss term pulls agents' embeddings to."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from fedweave.algorithms.fairgraphfl.vocabulary import MOTIF_MEAN, MOTIFS, Vocabulary
from fedweave.algorithms.parts import Context, Needs, Outputs, Part, Round, Training
from fedweave.core import model as models
from fedweave.core.federation import Federation, Sends
from fedweave.core.model import Model
from fedweave.core.operators import POOLS
from fedweave.core.ranges import Whole
from fedweave.core.tree import Tree
from fedweave.incentives.shapley import distinct

Distance = Literal["relative", "mean_square", "as_printed"]
LISTED = {
    "motif": Sends(
        "which motifs its training graphs have: bonds and rings of labels, by number", within=Whole(-1, 1 << 63)
    )
}


@dataclass(frozen=True)
class MotifPrototypes(Part):
    """λ times the distance of the agent's prototypes to the global ones, a term of its loss (Eq. 14).

    Prototype c_ik is the mean embedding of the agent's training graphs with motif k (Eq. 11), a graph's embedding being
    what the model's pooling gives; the global one is the mean of the agents' with weights ReLU(r_i) (Eq. 12).

    lam:      λ, the strength of the pull to the prototypes.
    distance: "relative" is Σ_k ‖c_ik − c_k‖² / Σ_k ‖c_k‖² over the agent's motifs, whatever the size of embeddings;
              "mean_square" the mean of (c_ik − c_k)² over these and the entries of a prototype; "as_printed"
              Σ_k ‖c_ik − c_k‖₂. The latter two grow with the nodes of graphs where embeddings are sums over them, and
              then leave nothing of cross-entropy (docs/fairgraphfl.md).
    max_ring: vertices of the longest ring that is looked for.
    keep:     share of its motifs that an agent keeps, those of highest TF-IDF.

    Deviations: all training graphs make one step; prototypes that are sent are those of the trained model without
    dropout. A motif that no agent of positive value has sent has no effect.
    """

    lam: float = 0.1
    distance: Distance = "relative"
    max_ring: int = 7
    keep: float = 0.9
    sends: ClassVar = LISTED | {"prototype": "of each of its motifs, the mean embedding of its graphs that have it"}
    recorded = True
    client_learns = "of each motif that it listed, the mean of all members' embeddings of graphs that have it"

    def __post_init__(self) -> None:
        if self.lam < 0:
            raise ValueError(f"lam is {self.lam}; it must not be negative")
        if self.distance not in get_args(Distance):
            raise ValueError(f"distance is {self.distance!r}; choose one of {', '.join(get_args(Distance))}")
        self.needs  # noqa: B018  refuses impossible sizes

    @property
    def needs(self) -> Needs:
        """Values, and the motifs that have prototypes."""
        return Needs(decided=("value",), finder=Vocabulary(self.max_ring, self.keep))

    def check(self, training: Training) -> None:
        """Refuse a model without embeddings of graphs."""
        if not models.pools(training.model):
            raise ValueError("prototypes are of embeddings of small graphs; set model.pool = 'sum' or 'mean'")

    # --- client ---

    def objective(self, outputs: Outputs) -> Tensor:
        """λ times the distance, scalar; 0 before there are global prototypes."""
        given, embedded = outputs.given, outputs.embeddings[embedding(outputs.model) - 1]
        if "prototype" not in given:
            result: Tensor = embedded.new_zeros(())
            return result
        own = outputs.graph.edges.operator(MOTIF_MEAN) @ embedded
        return self.lam * self.away(own, given["prototype"][: len(own)], given["known"][: len(own)])

    def away(self, own: Tensor, whole: Tensor, known: Tensor) -> Tensor:
        """The distance of prototypes [K, h] to the global ones, over those that are `known`, bool [K]; 0 of none."""
        squared = torch.where(known[:, None], own - whole, 0.0).square().sum(1)
        if self.distance == "relative":
            size = torch.where(known[:, None], whole, 0.0).square().sum()
            return squared.sum() / torch.where(size > 0, size, 1.0)
        if self.distance == "mean_square":
            return squared.sum() / (known.sum() * own.shape[1]).clamp(min=1)
        apart = squared > 0  # elsewhere the square root has no gradient
        return torch.where(apart, torch.where(apart, squared, 1.0).sqrt(), 0.0).sum()

    def report(self, ctx: Context) -> Tree:
        """{"motif": int64 [K], "prototype": [K, h]} of the trained model, -1 and zeros behind the agent's motifs."""
        graph = ctx.client.graph
        embedded = models.apply(ctx.training.model[: embedding(ctx.training.model)], ctx.trained, graph)
        return {"motif": graph.found(MOTIFS), "prototype": graph.edges.operator(MOTIF_MEAN) @ embedded}

    # --- server ---

    def init(self, fed: Federation, w: Tree) -> Tree:
        """No motif is known."""
        return {"motif": torch.full((len(fed.clients), 0), -1, device=fed.device)}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        """Each agent gets the global prototypes of its own motifs, as it listed them, and which of them are known."""
        if "mean" not in state or not len(state["number"]):
            return {}, {}
        held = state["motif"][at]
        place = torch.searchsorted(state["number"], held).clamp(max=len(state["number"]) - 1)
        known = (state["number"][place] == held) & state["known"][place]
        return {}, {"prototype": torch.where(known[..., None], state["mean"][place], 0.0), "known": known}

    def update(self, state: Tree, round: Round) -> Tree:
        """Global prototypes `mean` [K, h] of the motifs `number` int64 [K] (`shapley.distinct`), and which are `known`;
        `motif` int64 [N, …] is what each agent listed."""
        held, motif = listed(state, round), lists(round)
        number, own = distinct(held), round.replies.stack("prototype", padding=0)
        share = round.value.relu()[:, None, None]
        shared = torch.cat([share * own.double(), share.expand(*motif.shape, 1)], 2)
        place = torch.where(motif >= 0, torch.searchsorted(number, motif), len(number))  # the last row takes padding
        total = shared.new_zeros(len(number) + 1, shared.shape[2])
        for at, rows in zip(place, shared, strict=True):  # one agent after the other: the order decides the last bit
            total.index_add_(0, at, rows)
        total, weight = total[:-1, :-1], total[:-1, -1]
        known = weight > 0
        mean = total / torch.where(known, weight, 1.0)[:, None]
        return {"motif": held, "number": number, "known": known, "mean": mean.to(own.dtype)}


def embedding(model: Model) -> int:
    """How many layers lead to the embeddings of small graphs: those up to the pooling."""
    return 1 + next(i for i, layer in enumerate(model) if layer.operator in POOLS)


def once(motif: Tensor) -> Tensor:
    """int64 [P, K]: the lists with −1 in place of each motif that stood in its list before, which would count twice."""
    ordered, at = motif.sort(dim=1, stable=True)
    again = torch.zeros_like(motif, dtype=torch.bool).scatter(1, at[:, 1:], ordered[:, 1:] == ordered[:, :-1])
    return torch.where(again, -1, motif)


def lists(round: Round) -> Tensor:
    """The motifs that each of the round's P agents listed, each once, int64 [P, …] with -1 elsewhere."""
    return once(round.replies.stack("motif", padding=-1))


def listed(state: Tree, round: Round) -> Tensor:
    """The motifs that each of N agents listed when it replied last, int64 [N, …] padded with -1."""
    before, now = state["motif"], lists(round)
    most = max(before.shape[1], now.shape[1])
    wide, rows = (torch.nn.functional.pad(own, (0, most - own.shape[1]), value=-1) for own in (before, now))
    return wide.index_copy(0, round.at, rows)
