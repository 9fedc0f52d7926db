"""APFL: Deng, Kamani and Mahdavi 2020, "Adaptive personalized federated learning", algorithm 1.

A client uses a mix of the weights of two models, one of its own and the joint one. Deviations: its own model takes its
steps after the joint one's, whose weights are fixed meanwhile, and not in turn with them; the mix's share is fixed
unless `adaptive`, and then moves once a round, as in the released code, but without that code's pull of .02 to 0;
clients count in the global model by their training examples (in the paper equally: the part `uniform`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.algorithms.parts import Context, LocalSteps, Needs, Part
from fedweave.algorithms.preset import preset_of
from fedweave.core import random
from fedweave.core.bounds import Fraction
from fedweave.core.tree import Tree, add, dot, scale, sub
from fedweave.learn import keep_trained


@dataclass(frozen=True)
class MixedModel(Part):
    """Every client also trains personal weights v_i, by the gradient of F_i at v̄_i = a v_i + (1 − a) w_i, and uses a
    v_i + (1 − a) w_t. v_i and a stay at the client.

    mix:      a, share of the client's own model in the mix, from 0 (FedAvg's model) to 1 (local training).
    adaptive: whether a starts at `mix` and takes a step of `lr` along its own gradient before each training.
    """

    mix: Fraction = 0.5
    adaptive: bool = False
    recorded = True

    @property
    def needs(self) -> Needs:
        return Needs(steps=LocalSteps(excludes=("schedule",) if self.adaptive else ()), statistics="none")

    def report(self, ctx: Context) -> Tree:
        personal, share = self._personal_weights(ctx), self._share(ctx)
        if self.adaptive:
            share = self.step_share(ctx, share, personal)
        ctx.keep({"share": share} | ctx.train_beside(personal, "personal", within=ctx.trained, share=share))
        return {}

    def step_share(self, ctx: Context, share: Tensor, personal: Tree) -> Tensor:
        """a − lr ⟨v_i − w_t, ∇F_i(v̄_i)⟩, within 0 and 1."""
        key = random.fold(ctx.client.key, "share")
        slope = ctx.objective.gradient(mix_weights(share, personal, ctx.received), ctx.client, key, ctx.sent)
        return (share - ctx.training.lr * dot(sub(personal, ctx.received), slope)).clamp(0, 1)

    def personalize(self, ctx: Context) -> Tree:
        return keep_trained(
            ctx.examples > 0, mix_weights(self._share(ctx), self._personal_weights(ctx), ctx.received), ctx.received
        )

    def _personal_weights(self, ctx: Context) -> Tree:
        v: Tree = ctx.memory["v"] if ctx.memory else ctx.received
        return v

    def _share(self, ctx: Context) -> Tensor:
        first = torch.full((), self.mix, dtype=torch.float64, device=ctx.client.key.device)
        share: Tensor = ctx.memory.get("share", first)
        return share


def mix_weights(share: float | Tensor, personal: Tree, other: Tree) -> Tree:
    """share · own + (1 − share) · other."""
    return add(scale(personal, share), scale(other, 1 - share))


@preset_of(MixedModel)
class APFL:
    """FedAvg whose clients use its model mixed with one of their own."""
