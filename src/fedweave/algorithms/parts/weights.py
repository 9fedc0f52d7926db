"""Parts that decide the weights of clients' updates."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedweave.algorithms.parts.part import Context, OwnCount, Part
from fedweave.core.algorithm import Round
from fedweave.core.federation import Sends
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.ranges import Whole
from fedweave.core.tree import Tree

EXAMPLES = {"n": Sends("number of training examples", within=Whole())}


def by_size(round: Round) -> Tensor:
    """n_i / Σ n_k, float64 [P], of clients that report "n"; uniform if none has a training example."""
    return _shares(round.replies.stack("n"))


def _shares(sizes: Tensor) -> Tensor:
    """Each size's share of the sum, float64 [P]; uniform if the sum is 0. Computed without waiting for a device."""
    total = sizes.sum()
    return torch.where(total > 0, sizes.double() / total, 1 / len(sizes))


class ReportsExamples(Part):
    """A part whose clients report their number of training examples."""

    sends: ClassVar = EXAMPLES

    def report(self, ctx: Context) -> Tree:
        """{"n": training examples}."""
        return {"n": ctx.examples}


@dataclass(frozen=True)
class BySize(ReportsExamples, OwnCount):
    """n_i / Σ n_k with n_i training examples (McMahan et al. 2017)."""

    recorded = True
    counted = "the number of all training examples"

    def counts(self, graph: Graph) -> Tensor:
        return graph.masks[TRAIN].sum()

    def weigh(self, state: Tree, round: Round) -> Tensor:
        return by_size(round)


@dataclass(frozen=True)
class UniformTrained(OwnCount):
    """1 / m for each of the m clients with training examples, 0 for the others; uniform if no client has any."""

    recorded = True
    counted = "how many have training examples"
    sends: ClassVar = {"trains": "whether the client has training examples"}

    def counts(self, graph: Graph) -> Tensor:
        return graph.masks[TRAIN].any().long()

    def report(self, ctx: Context) -> Tree:
        """{"trains"}, bool scalar."""
        return {"trains": ctx.examples > 0}

    def weigh(self, state: Tree, round: Round) -> Tensor:
        return _shares(round.replies.stack("trains").double())


@dataclass(frozen=True)
class Uniform(OwnCount):
    """1 / P, the plain mean that the code of FedEgo, FedSage, FedGCN and F2GNN takes."""

    recorded = True

    def counts(self, graph: Graph) -> Tensor:
        return torch.ones((), dtype=torch.int64, device=graph.device)

    def weigh(self, state: Tree, round: Round) -> Tensor:
        return torch.full_like(round.at, 1 / len(round.at), dtype=torch.float64)
