"""How much each client's update counts."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedweave.algorithms.parts.context import Context
from fedweave.algorithms.parts.part import Part
from fedweave.core.federation import Sends
from fedweave.core.ranges import Whole
from fedweave.core.round import Round
from fedweave.core.tree import Tree

EXAMPLES = {"n": Sends("number of training examples", within=Whole())}


def by_size(round: Round) -> Tensor:
    """n_i / Σ n_k, float64 [P], of clients that report "n"; uniform if none has a training example."""
    return _shares(round.replies.stack("n"))


def _shares(sizes: Tensor) -> Tensor:
    """Each one's part of the sum, float64 [P]; uniform if that is 0. Nobody waits for a device."""
    total = sizes.sum()
    return torch.where(total > 0, sizes.double() / total, 1 / len(sizes))


class TellsExamples(Part):
    """Clients say how many training examples they have."""

    sends: ClassVar = EXAMPLES

    def report(self, ctx: Context) -> Tree:
        """{"n": training examples}."""
        return {"n": ctx.examples}


@dataclass(frozen=True)
class BySize(TellsExamples):
    """n_i / Σ n_k with n_i training examples (McMahan et al. 2017)."""

    recorded = True

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """Proportional to n."""
        return by_size(round)


@dataclass(frozen=True)
class UniformTrained(Part):
    """1 each of the clients that have training examples, divided by how many these are; uniform if none has."""

    recorded = True
    sends: ClassVar = {"trains": "whether the client has training examples"}

    def report(self, ctx: Context) -> Tree:
        """{"trains"}, bool scalar."""
        return {"trains": ctx.examples > 0}

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """Equal, of those that train."""
        return _shares(round.replies.stack("trains").double())


@dataclass(frozen=True)
class Uniform(Part):
    """1 / P, the plain mean that the code of FedEgo, FedSage, FedGCN and F2GNN takes."""

    recorded = True

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """All equal."""
        return torch.full_like(round.at, 1 / len(round.at), dtype=torch.float64)
