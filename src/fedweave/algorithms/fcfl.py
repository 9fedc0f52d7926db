"""FCFL: Cui et al. 2021, "Addressing algorithmic disparity and performance inconsistency in federated learning".

The first stage lowers a soft maximum of the losses: clients are weighted by softmax((F_i − max F) / δ), with decreasing
δ. The second lowers the mean loss in a direction in which no client's loss rises.

Deviations: its loss part alone, without disparities between groups of people. Gradients are read off local SGD, exactly
with one step. The first stage ends where its gradient has vanished at the smallest δ, or after `first` rounds.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedweave.algorithms.parts import Context, Needs, Part, Round, Training
from fedweave.algorithms.preset import part_of, preset_of
from fedweave.algorithms.qfedavg import check_lipschitz, lipschitz_of
from fedweave.core.bounds import CountOrNone, Positive
from fedweave.core.federation import Federation, Sends
from fedweave.core.ranges import Real
from fedweave.core.tree import Tree
from fedweave.core.types import Record
from fedweave.errors import FedweaveError

SHRINK, TOLERANCE, SMALLEST = 0.01, 0.1, 1e-4  # of δ, in the authors' code


@dataclass(frozen=True)
class ParetoDescent(Part):
    """Updates count by softmax((F_i − max F) / δ) in the first stage, where δ ← .01 δ once .1 ‖g‖ ≤ δ, g the gradient
    of the smoothed maximum; and in the second by the α of the simplex that most lowers Σ F_i among those which let no
    F_i rise, a linear programme (sections 3.3 and 3.4).

    delta:     δ at first.
    first:     largest number of rounds of the first stage.
    lipschitz: the reciprocal of the local learning rate.
    """

    delta: Positive = 0.5
    first: CountOrNone = 100
    lipschitz: Positive = 10.0
    needs = Needs(reads=("graph",), statistics="home")
    sends: ClassVar = {"loss": Sends("mean training loss of the received weights", within=Real())}

    def check(self, training: Training) -> None:
        check_lipschitz("pareto_descent", self.lipschitz, training)

    def init(self, fed: Federation, w: Tree) -> Tree:
        return {"delta": self.delta, "round": 0, "stage": 1 if self.first else 2}

    def report(self, ctx: Context) -> Tree:
        return {"loss": ctx.loss(ctx.received)}

    def weigh(self, state: Tree, round: Round) -> Tensor:
        if state["stage"] == 1:
            loss = round.replies.stack("loss").double()
            return torch.softmax((loss - loss.max()) / state["delta"], 0)
        products = round.updates @ round.updates.T
        return torch.from_numpy(common_descent(products.cpu().numpy())).to(products.device)

    def update(self, state: Tree, round: Round) -> Tree:
        delta, stage, number = state["delta"], state["stage"], state["round"] + 1
        if stage == 1:
            small = TOLERANCE * self.lipschitz * (round.weights @ round.updates).norm() <= delta
            stage = 2 if number >= self.first or (small and delta <= SMALLEST) else 1
            delta = delta * SHRINK if small and delta > SMALLEST else delta
        return {"delta": delta, "round": number, "stage": stage}


def common_descent(products: np.ndarray) -> np.ndarray:
    """α float64 [P], the largest Σ_i (C α)_i over the simplex with C α ≥ 0, C = `products` [P, P] of the gradients: no
    loss rises along −Σ α_j g_j, to first order. There is always one, the shortest vector of their hull."""
    from scipy.optimize import linprog  # a quarter of a second, which every process of a run would spend

    count = len(products)
    scaled = products / max(np.abs(products).max(), 1e-300)
    solution = linprog(-scaled.sum(0), -scaled, np.zeros(count), np.ones((1, count)), np.ones(1))
    if solution.x is None:
        raise FedweaveError(f"the direction of common descent was not found: {solution.message}")
    result: np.ndarray = np.clip(solution.x, 0, None) / np.clip(solution.x, 0, None).sum()
    return result


@preset_of(ParetoDescent, without=("lipschitz",))
class FCFL:
    """FedAvg that first lowers the largest of the clients' losses, and then all of them while none rises.

    delta:       δ, how soft the maximum is at first.
    first:       rounds for the largest loss at most.
    local_steps: optimizer steps per round; with one, updates are exact gradients.
    optimizer:   optimizer of the local training; only SGD's updates are gradients.
    lr:          learning rate; tune it. In 60 rounds of 3 steps on ten Louvain clients 0.1 reaches .78 of
        Cora's validation nodes where 0.03 reaches .58, but .11 of amazon-computers' where 0.03 reaches .71.
    """

    local_steps: int = 1
    optimizer: Literal["sgd"] = "sgd"
    lr: float = 0.1

    test_settings: ClassVar[Record] = {"local_steps": 2}

    def parts(self) -> tuple[Part, ...]:
        return (part_of(self, ParetoDescent, lipschitz=lipschitz_of(self.lr)),)
