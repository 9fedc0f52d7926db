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
        """Global prototypes `mean` [K, h] of the motifs `number` int64 [K], rising, and which are `known`; `motif`
        int64 [N, …] is what each agent listed."""
        held = listed(state, round)
        number = torch.unique(held[held >= 0])
        weight = torch.zeros_like(number, dtype=torch.float64)
        total = weight[:, None]
        for reply, share in zip(round.replies, round.value.relu(), strict=True):
            motif = once(reply["motif"])
            real = motif >= 0
            place = torch.searchsorted(number, motif[real])
            own = reply["prototype"][real]
            total = total.expand(-1, own.shape[1]).contiguous().index_add(0, place, share * own.double())
            weight = weight.index_add(0, place, share.expand(len(place)))
        known = weight > 0
        mean = total / torch.where(known, weight, 1.0)[:, None]
        return {"motif": held, "number": number, "known": known, "mean": mean.to(own.dtype)}


def embedding(model: Model) -> int:
    """How many layers lead to the embeddings of small graphs: those up to the pooling."""
    return 1 + next(i for i, layer in enumerate(model) if layer.operator in POOLS)


def once(motif: Tensor) -> Tensor:
    """int64 [K]: the list with −1 in place of each motif that stood in it before, which would count twice."""
    number, which = torch.unique(motif, return_inverse=True)
    at = torch.arange(len(motif), device=motif.device)
    first = at.new_full((len(number),), len(motif)).scatter_reduce(0, which, at, "amin")
    return torch.where(first[which] == at, motif, -1)


def listed(state: Tree, round: Round) -> Tensor:
    """The motifs that each of N agents listed when it replied last, int64 [N, …] padded with -1."""
    before: Tensor = state["motif"]
    now = [once(reply["motif"]) for reply in round.replies]
    rows = max(before.shape[1], *(len(own) for own in now))
    out = before.new_full((len(before), rows), -1)
    out[:, : before.shape[1]] = before
    for place, own in zip(round.at.tolist(), now, strict=True):
        out[place] = torch.nn.functional.pad(own, (0, rows - len(own)), value=-1)
    return out
