"""The pace of local training: the learning rate over rounds, and passes over a client's training examples.

Both come from settings of the FedAvg family and of local training, not from a list of parts (`pace_parts`).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.algorithms.parts.longest_pass import batches_declaration, encode_batches, max_batches
from fedweave.algorithms.parts.part import Part, copy_part
from fedweave.algorithms.parts.training import batches
from fedweave.core.algorithm import Round
from fedweave.core.bounds import CountOrNone
from fedweave.core.federation import Client, Federation, Sends, Step, on_client
from fedweave.core.graph import TRAIN
from fedweave.core.mechanism import SecureSum
from fedweave.core.ranges import Whole
from fedweave.core.tree import Tree
from fedweave.errors import UserError

Schedule = Literal["constant", "linear", "cosine", "step"]
_STEPS = Sends("how many mini-batches the client's training examples make", within=Whole())


@dataclass(frozen=True)
class RateSchedule(Part):
    """The learning rate of round t of T, t from 0, is lr · f(s) with s = (t − w) / (T − w). In the first w rounds, the
    warm-up, it is lr · (t + 1) / w.

    The server sends the factor with each round. A run that continues beyond its first number of rounds keeps the factor
    of the last one.

    kind:   f(s) is 1 ("constant"), 1 − s ("linear"), ½ (1 + cos π s) ("cosine", Loshchilov and Hutter 2017), or 1, .1
            from s = ½ on and .01 from s = ¾ on ("step", He et al. 2016, section 4.2).
    warmup: w.

    Raises:
        ValueError: w is negative.
    """

    kind: Schedule = "constant"
    warmup: CountOrNone = 0
    recorded = True
    client_learns: ClassVar = {"rate": "by which factor of its learning rate it trains in this round"}

    def init(self, fed: Federation, w: Tree) -> Tree:
        """{"round": 0, "rounds": T}.

        Raises:
            UserError: the run has no number of rounds, or all rounds are warm-up.
        """
        if not fed.rounds:
            raise UserError(
                "schedule: the run does not say how many rounds it has. Train with fedweave.train(…, rounds=…).",
                code="user.schedule",
            )
        if self.warmup >= fed.rounds:
            raise UserError(
                f"algorithm.warmup = {self.warmup}: the run has {fed.rounds} rounds. Set it below that.",
                code="user.schedule",
            )
        return {"round": torch.zeros((), dtype=torch.int64, device=fed.device), "rounds": fed.rounds}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        """{"rate": the factor, float64 scalar}."""
        return {"rate": self.factor(state["round"], state["rounds"])}, {}

    def update(self, state: Tree, round: Round) -> Tree:
        return self.after(state)

    def after(self, state: Tree) -> Tree:
        return state | {"round": state["round"] + 1}

    def factor(self, done: Tensor, rounds: int) -> Tensor:
        """f of the round after `done` rounds, an int64 scalar, of `rounds`: float64 scalar."""
        t = done.clamp(max=rounds - 1).double()
        s = ((t - self.warmup) / (rounds - self.warmup)).clamp(min=0)
        if self.kind == "linear":
            f = 1 - s
        elif self.kind == "cosine":
            f = 0.5 * (1 + torch.cos(math.pi * s))
        elif self.kind == "step":
            f = torch.where(s < 0.5, 1.0, torch.where(s < 0.75, 0.1, 0.01)).double()
        else:
            f = torch.ones_like(s)
        return torch.where(t < self.warmup, (t + 1) / self.warmup, f) if self.warmup else f


@dataclass(frozen=True)
class LocalEpochs(Part):
    """In each pass over its training examples, a client takes one step per mini-batch.

    batch: examples of a mini-batch.
    """

    batch: int = 32
    recorded = True
    within: ClassVar[SecureSum | None] = None  # the form of secure aggregation; None without it
    client_learns: ClassVar = {"batches": "how many mini-batches any member's training examples make at most"}

    @property
    def setup(self) -> tuple[Step, ...]:
        return (self.count,)

    def join_sum(self, within: SecureSum) -> Part:
        return copy_part(self, within=within)

    @on_client(sends=lambda self: {"batches": batches_declaration(_STEPS, self.within)})
    def count(self, client: Client, message: Tree) -> Tree:
        """{"batches": mini-batches of one pass, scalar}."""
        return {"batches": encode_batches(batches(client.graph.masks[TRAIN].sum(), self.batch), self.within)}

    def init(self, fed: Federation, w: Tree) -> Tree:
        """{"batches": the largest number of mini-batches of any client}."""
        return {"batches": max_batches(fed.map(self.count), "batches", self.within)}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        return {"batches": state["batches"]}, {}


def pace_parts(kind: Schedule, warmup: int, local_epochs: int, batch_size: int) -> tuple[Part, ...]:
    """The parts for these settings.

    Raises:
        ValueError: one of them is out of range.
    """
    if not (local_epochs >= 0 and batch_size >= 0):
        raise ValueError(f"local_epochs is {local_epochs} and batch_size {batch_size}; they must be at least 0")
    parts = list[Part]()
    if kind != "constant" or warmup:
        parts.append(RateSchedule(kind, warmup))
    if local_epochs and batch_size:
        parts.append(LocalEpochs(batch_size))
    return tuple(parts)
