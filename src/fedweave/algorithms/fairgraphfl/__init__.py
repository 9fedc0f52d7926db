"""FairGraphFL: Pan et al. 2024, "Towards fair graph federated learning via incentive mechanisms".

A round by its parts (`i` is an agent, u_i its update, r_i its value, d_i its diversity):

    1. agent    starts from its last start plus its reward, trains with the pull of prototypes, sends u_i and c_ik
    2. server   u_N = Σ ReLU(r_i) u_i / Σ ReLU(r_i)                       AgentValue.weigh   (Eq. 13)
    3.          φ_i = cos(u_i, u_N), r_i ← r_i + α1 (φ_i + α2 d_i), normalized   AgentValue.value   (Eqs. 9, 10)
    4.          w ← w + u_N, the global model
    5.          c_k = Σ ReLU(r_i) c_ik / Σ ReLU(r_i)                      MotifPrototypes    (Eq. 12)
    6.          payoff_i from r_i and the values before                   Payoff             (Eqs. 5 to 7)
    7.          agent i is to get the ⌊D tanh(β r_i) / max_j tanh(β r_j)⌋ largest entries of u_N   ValueReward (Eq. 4)

Deviations: u_N is weighted with the values before the round, since the values after it need u_N. If the new values do
not sum to more than zero, the round leaves them as they are, and logs a note. An agent that misses a round earns no
reward and no payoff in it, and its value counts neither alignment nor diversity; it gets its earlier reward when it is
called again. Cross-entropy and pull take all training graphs at once; the paper's batch of 128 is larger than any
agent's data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.algorithms.cgsv import OwedReward, add_reward
from fedweave.algorithms.fairgraphfl.vocabulary import MOTIF_MEAN, MOTIFS, RingSize, Vocabulary
from fedweave.algorithms.parts import Context, Needs, Normalised, Outputs, Part, Round, Training
from fedweave.algorithms.parts.weights import EXAMPLES, by_size
from fedweave.algorithms.preset import part_of, preset_of
from fedweave.core import model as models
from fedweave.core.algorithm import Capabilities
from fedweave.core.bounds import NonNegative, Positive, Share
from fedweave.core.federation import Federation, Sends
from fedweave.core.model import Model
from fedweave.core.operators import POOLS
from fedweave.core.ranges import Whole
from fedweave.core.tree import Tree, map_leaves, ravel, unravel
from fedweave.core.types import Record
from fedweave.incentives.agent_values import alignment, distinct, diversity, quota, reward
from fedweave.incentives.payoffs import payoffs
from fedweave.incentives.statement import Terms

Distance = Literal["relative", "mean_square", "as_printed"]
LISTED = {
    "motif": Sends(
        "which motifs its training graphs have: bonds and rings of labels, by number", within=Whole(-1, 1 << 63)
    )
}


@dataclass(frozen=True)
class MotifPrototypes(Part):
    """λ times the distance of the agent's prototypes to the global ones, a term of its loss (section 3.3, Eq. 14).

    Prototype c_ik is the mean embedding of the agent's training graphs with motif k (Eq. 11); a graph's embedding is
    the output of the model's pooling. The global prototype is the mean of the agents' prototypes with weights ReLU(r_i)
    (Eq. 12).

    lam:      λ, the strength of the pull to the prototypes.
    distance: "relative" is Σ_k ‖c_ik − c_k‖² / Σ_k ‖c_k‖² over the agent's motifs, independent of the size of
              embeddings; "mean_square" the mean of (c_ik − c_k)² over these and the entries of a prototype;
              "as_printed" Σ_k ‖c_ik − c_k‖₂. "mean_square" and "as_printed" grow with the number of nodes if embeddings
              are sums over nodes, and can then dominate the cross-entropy (docs/fairgraphfl.md).
    max_ring: number of vertices of the longest ring motif.
    keep:     share of its motifs that an agent keeps, by highest TF-IDF.

    Deviations: all training graphs make one step; agents send prototypes of the trained model without dropout. A motif
    that no agent of positive value has sent has no effect.
    """

    lam: NonNegative = 0.1
    distance: Distance = "relative"
    max_ring: RingSize = 7
    keep: Share = 0.9
    sends: ClassVar = LISTED | {"prototype": "of each of its motifs, the mean embedding of its graphs that have it"}
    recorded = True
    client_learns = "of each motif that it listed, the mean of all members' embeddings of graphs that have it"

    @property
    def needs(self) -> Needs:
        return Needs(decided=("value",), finder=Vocabulary(self.max_ring, self.keep))

    def check(self, training: Training) -> None:
        if not models.pools(training.model):
            raise ValueError("prototypes need embeddings of small graphs; set model.pool = 'sum' or 'mean'")

    def objective(self, outputs: Outputs) -> Tensor:
        """λ times the distance, scalar; 0 before there are global prototypes."""
        embedded = outputs.embeddings[pooling_depth(outputs.model) - 1]  # [examples, h]
        if "prototype" not in outputs.inputs:
            result: Tensor = embedded.new_zeros(())
            return result
        prototypes = outputs.graph.edges.operator(MOTIF_MEAN) @ embedded  # [K, h]
        global_prototypes = outputs.inputs["prototype"][: len(prototypes)]
        known = outputs.inputs["known"][: len(prototypes)]
        return self.lam * self.prototype_distance(prototypes, global_prototypes, known)

    def prototype_distance(self, local: Tensor, global_: Tensor, known: Tensor) -> Tensor:
        """The distance of prototypes [K, h] to the global ones, over the `known` ones, bool [K]; 0 if none is known."""
        squared = torch.where(known[:, None], local - global_, 0.0).square().sum(1)
        if self.distance == "relative":
            size = torch.where(known[:, None], global_, 0.0).square().sum()
            return squared.sum() / torch.where(size > 0, size, 1.0)
        if self.distance == "mean_square":
            return squared.sum() / (known.sum() * local.shape[1]).clamp(min=1)
        positive = squared > 0  # elsewhere the square root has no gradient
        return torch.where(positive, torch.where(positive, squared, 1.0).sqrt(), 0.0).sum()

    def report(self, ctx: Context) -> Tree:
        """{"motif": int64 [K], "prototype": [K, h]} of the trained model, -1 and zeros behind the agent's motifs."""
        graph = ctx.client.graph
        embedded = models.apply(ctx.training.model[: pooling_depth(ctx.training.model)], ctx.trained, graph)
        return {"motif": graph.precomputed(MOTIFS), "prototype": graph.edges.operator(MOTIF_MEAN) @ embedded}

    def init(self, fed: Federation, w: Tree) -> Tree:
        return {"motif": torch.full((len(fed.clients), 0), -1, device=fed.device)}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        """Each agent gets the global prototypes of its own motifs, as it listed them, and which of them are known."""
        if "mean" not in state or not len(state["number"]):
            return {}, {}
        motif = state["motif"][at]  # [P, …]
        place = torch.searchsorted(state["number"], motif).clamp(max=len(state["number"]) - 1)
        known = (state["number"][place] == motif) & state["known"][place]
        return {}, {"prototype": torch.where(known[..., None], state["mean"][place], 0.0), "known": known}

    def update(self, state: Tree, round: Round) -> Tree:
        """Global prototypes `mean` [K, h] of the motifs `number` int64 [K] (`shapley.distinct`), and which are `known`;
        `motif` int64 [N, …] are each agent's motifs."""
        last_motifs, motif = last_motif_lists(state, round), motif_lists(round)
        number, prototypes = distinct(last_motifs), round.replies.stack("prototype", padding=0)
        share = round.value.relu()[:, None, None]
        shared = torch.cat([share * prototypes.double(), share.expand(*motif.shape, 1)], 2)  # [P, …, h + 1]
        place = torch.where(motif >= 0, torch.searchsorted(number, motif), len(number))  # the last row takes padding
        total = shared.new_zeros(len(number) + 1, shared.shape[2])
        for at, rows in zip(place, shared, strict=True):  # one agent after the other: the order decides the last bit
            total.index_add_(0, at, rows)
        total, weight = total[:-1, :-1], total[:-1, -1]
        known = weight > 0
        mean = total / torch.where(known, weight, 1.0)[:, None]
        return {"motif": last_motifs, "number": number, "known": known, "mean": mean.to(prototypes.dtype)}


def pooling_depth(model: Model) -> int:
    """Number of layers up to the pooling, which gives the embeddings of small graphs."""
    return 1 + next(i for i, layer in enumerate(model) if layer.operator in POOLS)


def motif_lists(round: Round) -> Tensor:
    """The motifs of each of the round's P agents, int64 [P, …] with -1 elsewhere, also for repeated motifs, which would
    count twice."""
    motif = round.replies.stack("motif", padding=-1)
    ordered, at = motif.sort(dim=1, stable=True)
    repeated = torch.zeros_like(motif, dtype=torch.bool).scatter(1, at[:, 1:], ordered[:, 1:] == ordered[:, :-1])
    return torch.where(repeated, -1, motif)


def last_motif_lists(state: Tree, round: Round) -> Tensor:
    """The motifs in the last reply of each of N agents, int64 [N, …] padded with -1."""
    before, now = state["motif"], motif_lists(round)
    width = max(before.shape[1], now.shape[1])
    before = torch.nn.functional.pad(before, (0, width - before.shape[1]), value=-1)
    now = torch.nn.functional.pad(now, (0, width - now.shape[1]), value=-1)
    return before.index_copy(0, round.at, now)


@dataclass(frozen=True)
class AgentValue(Part):
    """Values r_i ← r_i + α1 (φ_i + α2 d_i), normalized to sum 1, with the alignment φ_i = cos(u_i, u_N) and the
    diversity d_i, the agent's share of all agents' motifs (Eqs. 9 and 10); r_i⁰ = 1/N. Updates count by ReLU(r_i).

    alpha1:    α1, weight of a round in a value.
    alpha2:    α2, weight of diversity; with 0 agents send no motifs.
    alignment: whether alignment counts.
    weights:   weights of updates: "value", ReLU(r_i) (Eq. 13), or "size", the number of training examples.
    one_norm:  whether alignments use updates scaled to one norm, so that a long update does not pull the joint one more
               than others; the model uses updates without this scaling.
    max_ring:  number of vertices of the longest ring motif.
    keep:      share of its motifs that an agent keeps, by highest TF-IDF.
    """

    alpha1: Positive = 0.05
    alpha2: NonNegative = 1.0
    alignment: bool = True
    weights: Literal["value", "size"] = "value"
    one_norm: bool = True
    max_ring: RingSize = 7
    keep: Share = 0.9
    recorded = True

    def __post_init__(self) -> None:
        if not self.alignment and not self.alpha2:
            raise ValueError("alignment = false: with alpha2 = 0 nothing is left to value. Keep one of them")

    @property
    def needs(self) -> Needs:
        return Needs(finder=Vocabulary(self.max_ring, self.keep) if self.alpha2 else None)

    @property
    def sends(self) -> Mapping[str, Sends | str]:  # type: ignore[override]
        return (LISTED if self.alpha2 else {}) | (EXAMPLES if self.weights == "size" else {})

    def init(self, fed: Federation, w: Tree) -> Tree:
        nothing = torch.zeros(len(fed.clients), dtype=torch.float64, device=fed.device)
        motif = nothing.new_full((len(fed.clients), 0), -1, dtype=torch.int64)
        known = {"r": nothing + 1 / len(fed.clients), "phi": nothing, "d": nothing, "heard": nothing > 0}
        return known | {"motif": motif, "changed": torch.ones_like(nothing[0], dtype=torch.bool)}

    def report(self, ctx: Context) -> Tree:
        motif = {"motif": ctx.client.graph.precomputed(MOTIFS)} if self.alpha2 else {}
        return motif | ({"n": ctx.examples} if self.weights == "size" else {})

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """ReLU(r_i) / Σ ReLU(r_j) with the values before the round; zeros where no agent that replied has any."""
        if self.weights == "size":
            return by_size(round)
        share: Tensor = state["r"][round.at].relu()
        total = share.sum()
        return share / torch.where(total > 0, total, 1.0)

    def value(self, state: Tree, round: Round) -> Tensor:
        r: Tensor = self.update(state, round)["r"]
        return r[round.at]

    def update(self, state: Tree, round: Round) -> Tree:
        """Values r, alignment phi and diversity d of all agents, float64 [N], the agents that were `heard`, and whether
        values `changed`."""
        nothing = torch.zeros_like(state["r"])
        updates = torch.nn.functional.normalize(round.updates.double()) if self.one_norm else round.updates
        global_update = round.weights.to(updates.dtype) @ updates  # [D]
        phi = nothing.index_copy(0, round.at, alignment(updates, global_update))
        motif = last_motif_lists(state, round) if self.alpha2 else state["motif"]
        d = diversity(motif)
        heard = nothing.index_fill(0, round.at, 1) > 0

        # r_i ← r_i + α1 (φ_i + α2 d_i), divided by their sum (Eq. 10). Dividing by a sum of zero or less would turn
        # good agents into bad ones: then the values stay.
        counted_phi = phi if self.alignment else nothing
        new = state["r"] + self.alpha1 * (counted_phi + self.alpha2 * torch.where(heard, d, 0.0))
        total = new.sum()
        changed = total > 0
        r = torch.where(changed, new / total, state["r"])
        return {"r": r, "phi": phi, "d": d, "heard": heard, "motif": motif, "changed": changed}

    def warns(self, state: Tree) -> Mapping[str, Tensor]:
        sentence = "the agents' new values do not sum to more than 0, so that this round leaves them unchanged"
        return {sentence: ~state["changed"]}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """{"value": r, "alignment": φ, "diversity": d}; NaN as alignment of agents that did not reply."""
        result = {"value": state["r"], "alignment": state["phi"].where(state["heard"], torch.nan)}
        return result | ({"diversity": state["d"]} if self.alpha2 else {})


@dataclass(frozen=True)
class ValueReward(OwedReward):
    """Agent i gets the ⌊D tanh(β r_i) / max_j tanh(β r_j)⌋ entries of largest magnitude of all D entries of u_N, and
    none if r_i ≤ 0 (Eq. 4). The server keeps a global model, which gets all of u_N.

    beta: β, how evenly rewards are spread; the larger, the more equal.
    base: weights to which a reward is added: "before" the agent's training, which discards its own update (as in CGSV),
          or "after" it.
    """

    beta: Positive = 1.0
    base: Literal["before", "after"] = "before"
    recorded = True

    def init(self, fed: Federation, w: Tree) -> Tree:
        return super().init(fed, w) | {"density": torch.zeros(len(fed.clients), dtype=torch.float64, device=fed.device)}

    def receive(self, ctx: Context) -> Tree:
        return add_reward(ctx, ctx.memory["w"] if ctx.memory else ctx.first)

    def report(self, ctx: Context) -> Tree:
        ctx.keep({"w": ctx.received if self.base == "before" else ctx.trained})
        return {}

    def update(self, state: Tree, round: Round) -> Tree:
        delta = ravel(round.delta)  # [D]
        entries = quota(round.value, len(delta), self.beta)  # [P]
        rewards = unravel(reward(delta, entries), round.delta)  # [P, …]
        owed = map_leaves(lambda owed, reward: owed.index_copy(0, round.at, reward), state["owed"], rewards)
        density = torch.zeros_like(state["density"]).index_copy(0, round.at, entries.double() / len(delta))
        return {"owed": owed, "density": density}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        return {"density": state["density"]}


@dataclass(frozen=True)
class Payoff(Part):
    """Divides a budget B per round by value, with fines for values below 0 and a compensation for agents whose earlier
    values were lower (Eqs. 5 to 7).

    budget:   B, sum of all payoffs of a round.
    currency: currency of the budget; for statements (`fedweave statement`).
    """

    budget: float = 1.0
    currency: str = "EUR"
    needs = Needs(decided=("value",))
    recorded = True

    def __post_init__(self) -> None:
        Terms(self.budget, self.currency)  # raises an error if the budget cannot be divided into cents

    def init(self, fed: Federation, w: Tree) -> Tree:
        nothing = torch.zeros(len(fed.clients), dtype=torch.float64, device=fed.device)
        return {"sum": nothing, "rounds": nothing, "pay": nothing, "late": nothing, "heard": nothing > 0}

    def update(self, state: Tree, round: Round) -> Tree:
        at, r = round.at, round.value.double()
        past = state["rounds"][at]
        before = torch.where(past > 0, state["sum"][at] / past.clamp(min=1), r)  # no compensation in the first round
        pay, late = payoffs(r, before, self.budget)
        nothing = torch.zeros_like(state["sum"])
        return {
            "sum": state["sum"].index_add(0, at, r),
            "rounds": state["rounds"].index_add(0, at, torch.ones_like(r)),
            "pay": nothing.index_copy(0, at, pay),
            "late": nothing.index_copy(0, at, late),
            "heard": nothing.index_fill(0, at, 1) > 0,
        }

    def warns(self, state: Tree) -> Mapping[str, Tensor]:
        sentence = "the values of the agents that replied do not sum to more than 0, so that no agent is paid"
        return {sentence: ~state["pay"].any()} if self.budget else {}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """{"payoff": payoff of the round, "compensation": its part for late contributions}; NaN for agents that did not
        reply."""
        names = {"payoff": "pay", "compensation": "late"}
        return {name: state[key].where(state["heard"], torch.nan) for name, key in names.items()}


@preset_of(AgentValue, ValueReward, Payoff, MotifPrototypes)
class FairGraphFL:
    """Agents with small graphs are valued by alignment and diversity, rewarded with a part of the joint update, paid or
    fined, and pulled to common prototypes. The paper's ablations: alignment = false, alpha2 = 0, rewards = false,
    weights = "size", prototypes = false. With a GIN, share = ["1/*", "2/*", "3/*"] shares only the convolutions.

    one_norm:    whether alignments use updates scaled to one norm: "always", "never" as in the paper, or "money", only
                 with a budget other than 1.
    budget:      B, sum of all payoffs of a round.
    norm:        Γ, norm to which agents scale updates before they send them; 0 for no scaling.
    rewards:     whether agents get rewards by value; otherwise all get the global model.
    prototypes:  whether agents exchange prototypes.
    local_steps: optimizer steps per round, each on all of an agent's training graphs.
    lr:          learning rate of the local training.
    """

    one_norm: Literal["money", "always", "never"] = "money"
    budget: float = 1.0
    norm: NonNegative = 0.0
    rewards: bool = True
    prototypes: bool = True
    local_steps: int = 1
    lr: float = 0.001

    capabilities: ClassVar[Capabilities] = Capabilities(graph_level=True, evaluation=("score", "score_personal"))
    example_model: ClassVar[str] = "GIN(hidden=64, pool='sum')"
    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "it trains a model of small graphs"}
    test_settings: ClassVar[Record] = {"lr": 0.01, "max_ring": 4}

    def parts(self) -> tuple[Part, ...]:
        one_norm = self.one_norm == "always" or (self.one_norm == "money" and self.budget != 1)
        parts: list[Part] = [part_of(self, AgentValue, one_norm=one_norm)]
        if self.norm:
            parts.insert(0, Normalised(self.norm))
        if self.rewards:
            parts.append(part_of(self, ValueReward))
        parts.append(part_of(self, Payoff))
        if self.prototypes:
            parts.append(part_of(self, MotifPrototypes))
        return tuple(parts)
