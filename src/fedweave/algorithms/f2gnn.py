"""F²GNN: Cui et al. 2023, "Equipping federated graph neural networks with structure-aware group fairness", section V.

Line by line: the client mixes the received weights and its own last weights by how much their predictions differ (eq.
2), trains with a penalty on the gaps between two groups of people (eq. 3), and reports these gaps and how balanced its
edges are; the server weights clients by both (eqs. 4 and 5).

Deviations:
- eq. 4 as printed gives clients with large gaps more weight; `prefer` = "fair", the default, flips the sign.
- The paper's score B = 1 − (|H_intra| − |H_inter|) exceeds 1 where most edges join the groups; ours is
  1 − |H_intra − H_inter|, as its text says ("maximum balance, B = 1, occurs when both are equal").
- Gaps are computed over training nodes, because those have labels, from the mean probability of class 1.
- The public script's penalty does nothing (a broadcast makes its ΔSP 0 and ΔEO a multiple of Σp, times 1e-6).
- Clients send their change of the received weights, and the server adds the weighted sum; as the shares sum to 1, that
  is eq. 5.
- The global model is evaluated, also at clients, not the mix that training starts from.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.algorithms.fairness import (
    Prefer,
    balance,
    class_divergence,
    f2gnn_weights,
    group_edges,
    node_divergence,
    shares,
    total_gap,
)
from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.parts import Context, Needs, Outputs, Part, Round
from fedweave.algorithms.preset import part_of, preset_of
from fedweave.core.algorithm import Capabilities
from fedweave.core.bounds import NonNegative, Positive
from fedweave.core.federation import Federation, Sends
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.ranges import Real
from fedweave.core.tree import Tree, map_leaves
from fedweave.errors import DataError
from fedweave.ops.batching import vectorize

Distance = Literal["class", "nodes"]
_NEEDS = "gaps between groups need a sensitive attribute (sens) and two classes; choose data with both"
_BETWEEN_CLASSES, _BETWEEN_NODES = vectorize(class_divergence), vectorize(node_divergence)


def gaps(logits: Tensor, graph: Graph) -> Tensor:
    """|ΔSP| + |ΔEO| of the probability of class 1 over the training nodes, scalar; a gap with an empty group is 0.

    Raises:
        DataError: the graph has no sensitive attribute, or there are not two classes.
    """
    return _sum_gaps(logits, _gap_weights(graph, logits.dtype))


def _sum_gaps(logits: Tensor, weights: Tensor) -> Tensor:
    if logits.shape[-1] != 2:
        raise DataError(_NEEDS)
    return total_gap(torch.softmax(logits, -1)[:, 1], weights)


def _gap_weights(graph: Graph, dtype: torch.dtype) -> Tensor:
    """The weights of the training nodes in the gaps."""
    if graph.sensitive is None:
        raise DataError(_NEEDS)
    return shares(graph.y, graph.sensitive, graph.masks[TRAIN], dtype)


@dataclass(frozen=True)
class FairPenalty(Part):
    """The client's loss and α (|ΔSP| + |ΔEO|) of its training nodes (eq. 3).

    alpha: α, strength of the penalty on the gaps |ΔSP| + |ΔEO|; 0 is none.
    """

    alpha: NonNegative = 1.0
    recorded = True
    needs = Needs(data=("sensitive", "classes"))

    def recall(self, ctx: Context) -> Tree:
        """{"shares": the weight of every node in the gaps}."""
        return {"shares": _gap_weights(ctx.client.graph, ctx.client.graph.x.dtype)}

    def objective(self, outputs: Outputs) -> Tensor:
        return self.alpha * _sum_gaps(outputs.logits, outputs.inputs["shares"])


@dataclass(frozen=True)
class DivergenceStart(Part):
    """Training starts from (1 − js) w_i + js w, the client's own last weights w_i mixed with the global ones by the
    divergence js of their predictions on the client's nodes (eq. 2); at its first call from the global weights.

    js: divergence of two models: "class", of the mean class probabilities over all nodes, in bits (the text); it is
        tiny, so clients take over little of the global model. "nodes", of the distributions over training nodes (the
        script; see `algorithms.fairness.node_divergence`).
    """

    js: Distance = "nodes"
    recorded = True
    needs = Needs(data=("classes",), reads=("graph",), personalizes="received")
    sends: ClassVar = {
        "js": Sends("how far apart the predictions of the global and the client's last model are", within=Real())
    }

    def init(self, fed: Federation, w: Tree) -> Tree:
        unknown = torch.full((len(fed.clients),), -1.0, dtype=torch.float64, device=fed.device)
        return {"js": unknown, "calls": torch.zeros(len(fed.clients), device=fed.device)}

    def start(self, ctx: Context) -> Tree:
        """ŵ_i."""
        last = ctx.client.state.get("w")
        if not last:
            ctx.keep({"js": torch.ones((), dtype=ctx.client.graph.x.dtype, device=ctx.client.graph.device)})
            return ctx.received
        graph, p = ctx.client.graph, _probabilities(ctx, ctx.received)  # [n, c]
        last_p = ctx.memory["p"] if "p" in ctx.memory else _probabilities(ctx, last)
        if self.js == "class":
            js = _BETWEEN_CLASSES(p, last_p, graph.usable_examples)
        else:
            js = _BETWEEN_NODES(p, last_p, graph.masks[TRAIN])
        ctx.keep({"js": js})
        rest = 1 - js
        return map_leaves(lambda w, previous: js * w + rest * previous, ctx.received, last)

    def follow_changes(self, ctx: Context, nodes: Tensor) -> None:
        """Forget predictions for data that may have changed: eq. 2 compares two models on the same nodes."""
        ctx.keep({key: value for key, value in ctx.memory.items() if key != "p"})

    def personalize(self, ctx: Context) -> Tree:
        return ctx.received  # the global model

    def report(self, ctx: Context) -> Tree:
        """{"js"}, 1 at the first call; what the trained model predicts, [n, c], is kept for the next."""
        ctx.keep(ctx.memory | {"p": _probabilities(ctx, ctx.trained)})
        return {"js": ctx.memory["js"]}

    def update(self, state: Tree, round: Round) -> Tree:
        divergences = torch.where(state["calls"][round.at] > 0, round.replies.stack("js").double(), -1.0)
        js = torch.full_like(state["js"], -1.0).index_copy(0, round.at, divergences)
        one = torch.ones_like(round.at, dtype=state["calls"].dtype)
        return {"js": js, "calls": state["calls"].index_add(0, round.at, one)}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """{"js"} of the last round, NaN at clients that it did not call, or called for the first time."""
        return {"js": _nan_if_missing(state["js"])}


@dataclass(frozen=True)
class GroupWeights(Part):
    """Clients count by how evenly their edges join equals and others, and by the gaps of their trained models (eq. 4).

    lam:    λ, how much balance counts next to fairness.
    tau:    τ, temperature; the lower, the more the weights differ (at 4 by 2.5 % at most).
    prefer: which gaps count more, "fair": small, "as_printed": large, "script": small, by another formula.
    """

    lam: float = 1.0
    tau: Positive = 0.05
    prefer: Prefer = "fair"
    recorded = True
    needs = Needs(data=("sensitive", "nodes", "classes"), reads=("graph",))
    sends: ClassVar = {
        "gaps": Sends(
            "|ΔSP| + |ΔEO| between the sensitive groups, of the trained model's probabilities on training nodes",
            within=Real(0.0, 2.0 + 1e-6),
        ),
        "balance": Sends(
            "how evenly the client's edges join equal and different sensitive groups, from 0 to 1",
            within=Real(0.0, 1.0 + 1e-6),
        ),
    }

    def init(self, fed: Federation, w: Tree) -> Tree:
        unknown = torch.full((len(fed.clients),), -1.0, dtype=torch.float64, device=fed.device)
        return {"gaps": unknown, "balance": unknown.clone(), "weight": unknown.clone()}

    def report(self, ctx: Context) -> Tree:
        """{"gaps", "balance"}, scalars; a balance without edges between known groups is 0, and gaps without training
        examples are 2, the largest: nothing speaks for that model."""
        graph = ctx.client.graph
        if "balance" not in ctx.memory:
            ctx.keep({"balance": balance(group_edges(graph)).score})
        group_gaps = gaps(ctx.outputs(ctx.trained), graph)
        return {"gaps": torch.where(ctx.examples > 0, group_gaps, 2.0), "balance": ctx.memory["balance"]}

    def follow_changes(self, ctx: Context, nodes: Tensor) -> None:
        ctx.keep({})

    def weigh(self, state: Tree, round: Round) -> Tensor:
        balances, group_gaps = round.replies.stack("balance"), round.replies.stack("gaps")
        return f2gnn_weights(balances, group_gaps, self.lam, self.tau, self.prefer)

    def update(self, state: Tree, round: Round) -> Tree:
        unknown = torch.full_like(state["gaps"], -1.0)
        return {
            "gaps": unknown.index_copy(0, round.at, round.replies.stack("gaps").double()),
            "balance": unknown.index_copy(0, round.at, round.replies.stack("balance").double()),
            "weight": unknown.index_copy(0, round.at, round.weights),
        }

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """{"gaps", "balance", "weight"} of the last round, NaN at clients that it did not call."""
        return {key: _nan_if_missing(value) for key, value in state.items()}


def _probabilities(ctx: Context, w: Tree) -> Tensor:
    return torch.softmax(ctx.outputs(w), -1)


def _nan_if_missing(value: Tensor) -> Tensor:
    return torch.where(value < 0, torch.nan, value)


@preset_of(FairPenalty, DivergenceStart, GroupWeights)
class F2GNN:
    """FedAvg between groups of people: a penalty on gaps, starts mixed by divergence, weights by balance and gaps.

    client: whether clients have the penalty and the mixed start.
    server: whether the server weighs by balance and gaps, else by number of examples.
    """

    client: bool = True
    server: bool = True

    capabilities: ClassVar[Capabilities] = replace(FedAvg.capabilities, sensitive=True)
    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "clients have a penalty on gaps between groups"
    }

    def parts(self) -> tuple[Part, ...]:
        parts: tuple[Part, ...] = ()
        if self.client:
            parts += (part_of(self, FairPenalty), part_of(self, DivergenceStart))
        if self.server:
            parts += (part_of(self, GroupWeights),)
        return parts
