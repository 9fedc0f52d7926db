"""How much each client's update counts."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedweave.algorithms.parts.context import Context
from fedweave.algorithms.parts.part import Part
from fedweave.algorithms.parts.round import Round
from fedweave.core.federation import Sends
from fedweave.core.ranges import Whole
from fedweave.core.tree import Tree

EXAMPLES = {"n": Sends("number of training examples", within=Whole())}


def by_size(round: Round) -> Tensor:
    """n_i / Σ n_k, float64 [P], of clients that report "n"; uniform if none has a training example."""
    n = round.replies.stack("n").double()
    return n / n.sum() if n.sum() > 0 else torch.full_like(n, 1 / len(n))


class TellsExamples(Part):
    """Clients say how many training examples they have."""

    sends: ClassVar = EXAMPLES

    def report(self, ctx: Context) -> Tree:
        """{"n": training examples}."""
        return {"n": ctx.examples}


@dataclass(frozen=True)
class BySize(TellsExamples):
    """n_i / Σ n_k with n_i training examples (McMahan et al. 2017)."""

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """Proportional to n."""
        return by_size(round)


@dataclass(frozen=True)
class Uniform(Part):
    """1 / P, the plain mean that the code of FedEgo, FedSage, FedGCN and F2GNN takes."""

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """All equal."""
        return torch.full_like(round.at, 1 / len(round.at), dtype=torch.float64)
