"""FairFed: Ezzeldin et al. 2023, "FairFed: enabling group fairness in federated learning", algorithm 1.

ω_k ← ω_k − β (Δ_k − mean Δ) with Δ_k = |F_k − F|, the distance between the gap F_k of the received global model on
client k's training nodes and the gap on all clients' together; negative ω are set to 0, then all are normalized (eq.
6).

The paper leaves two points open. Here F is the gap of all clients' pooled counts (the paper's, exact) and not a mean of
the F_k; and F_k is the gap of the received model, which all clients share, and not of the trained one.

Deviations:
- The counts that make F are sent in plain; the paper adds them up securely.
- Where a round calls some clients only, ω are shares of that round's clients: those who took part before bring the ω
  that they had then, others n_k / Σ n over the round, and all are normalized. With all clients this is the paper's.
- F is of the clients that replied.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.algorithms.fairness import fairfed_deviation, fairfed_weights
from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.parts import Context, Needs, Part, Round
from fedweave.algorithms.parts.weights import EXAMPLES, by_size
from fedweave.algorithms.preset import preset_of
from fedweave.core.algorithm import Capabilities
from fedweave.core.bounds import NonNegative
from fedweave.core.federation import Federation, Sends
from fedweave.core.graph import TRAIN
from fedweave.core.ranges import Whole
from fedweave.core.tree import Tree
from fedweave.errors import DataError
from fedweave.metrics import groups

Gap = Literal["eo", "sp"]


@dataclass(frozen=True)
class FairFedWeights(Part):
    """A client's weight falls from round to round with the distance of its gap from the gap of all clients together.

    beta: β, how fast the weights follow the gaps; 0 is FedAvg.
    gap:  gap that counts, "eo" (equal opportunity) or "sp" (statistical parity).
    """

    beta: NonNegative = 0.05
    gap: Gap = "eo"
    recorded = True
    rounds_vary = True
    needs = Needs(data=("sensitive", "classes"), reads=("graph",), statistics="home")
    sends: ClassVar = EXAMPLES | {
        "groups": Sends(
            "how many training examples of each sensitive group have which label and prediction by the received model",
            within=Whole(),
        ),
        "correct": Sends("how many training examples the received model classifies correctly", within=Whole()),
    }

    def init(self, fed: Federation, w: Tree) -> Tree:
        unknown = torch.full((len(fed.clients),), -1.0, dtype=torch.float64, device=fed.device)
        return {"omega": unknown, "deviation": unknown.clone()}

    def report(self, ctx: Context) -> Tree:
        """{"n", "correct", "groups": float64 [2, 2, 2] by group, label and prediction}."""
        graph = ctx.client.graph
        if graph.sensitive is None:
            raise DataError("FairFed's weights need a sensitive attribute (sens); choose data that has one")
        outputs, train = ctx.outputs(ctx.received), graph.masks[TRAIN]
        pairs = groups.counts(outputs, graph.y, graph.sensitive, train[None], auc=False)
        correct = (train & (outputs.argmax(-1) == graph.y)).sum()
        return {"n": ctx.examples, "correct": correct, "groups": pairs["groups"][0]}

    def weigh(self, state: Tree, round: Round) -> Tensor:
        last, sizes = state["omega"][round.at], by_size(round)
        start = torch.where(last < 0, sizes, last)
        start = torch.where(start.sum() > 0, start, sizes)
        return fairfed_weights(start / start.sum(), round.once(self, lambda: self._deviation(round)), self.beta)

    def _deviation(self, round: Round) -> Tensor:
        """Δ [P], where a gap is undefined of accuracies on all training examples, 0 without any."""
        table, n, correct = (round.replies.stack(name).double() for name in ("groups", "n", "correct"))
        counts = torch.cat([table, table.sum(0, keepdim=True)])  # [P + 1, 2, 2, 2], the last of all clients
        gaps = groups.values({"groups": counts.cpu().numpy()})[f"{self.gap}_signed"]
        signed = torch.as_tensor(gaps, dtype=torch.float64, device=table.device)  # NaN where undefined
        accuracies, accuracy = correct / n.clamp(min=1), correct.sum() / n.sum().clamp(min=1)
        return fairfed_deviation(signed[:-1], signed[-1], accuracies, accuracy)

    def update(self, state: Tree, round: Round) -> Tree:
        """ω and Δ after a round; Δ is -1 at clients that it did not call."""
        deltas = round.once(self, lambda: self._deviation(round))
        deviation = torch.full_like(state["deviation"], -1.0).index_copy(0, round.at, deltas)
        return {"omega": state["omega"].index_copy(0, round.at, round.weights), "deviation": deviation}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """{"omega", "deviation"}, NaN where there is none yet, or none of the last round."""
        return {key: torch.where(value < 0, torch.nan, value) for key, value in state.items()}


@preset_of(FairFedWeights)
class FairFed:
    """FedAvg whose clients count less the further their gap between groups of people is from the global one."""

    capabilities: ClassVar[Capabilities] = replace(FedAvg.capabilities, sensitive=True)
