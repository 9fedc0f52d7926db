"""SCAFFOLD: Karimireddy et al. 2020, "SCAFFOLD: stochastic controlled averaging for federated learning", algorithm 1.

Deviations: under option 2 the server makes c of the updates, so that nothing else is sent; c and c_i are in multiples
of local_steps · lr; a client without training examples is left out of means; these may be weighted by size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from fedweave.algorithms.parts import BySize, Context, LocalSteps, Needs, OptimizerName, Part, Round, UniformTrained
from fedweave.algorithms.preset import part_of, preset_of
from fedweave.core.federation import Federation, Sends
from fedweave.core.tree import Tree, add, dot, map_leaves, scale, sub

_CHANGE = "change of the client's mean gradient"


@dataclass(frozen=True)
class ControlVariates(Part):
    """Clients train on F_i + ⟨c − c_i, w⟩; c_i stays at the client, c is the mean of all clients'. What its weights are
    decides what is minimized, (1/N) Σ F_i or Σ p_i F_i.

    option: c_i becomes 2: the mean gradient of the client's steps, which only updates of SGD give; or 1: its gradient
            at the received weights, which takes another pass and is sent.
    mean:   weights of the mean c, "uniform", with uniform_trained, or by "size", with by_size and every client in each
            round.
    """

    option: Literal[1, 2] = 2
    mean: Literal["uniform", "size"] = "uniform"
    recorded = True
    client_learns = "the mean gradient of all members' training"

    @property
    def needs(self) -> Needs:
        """One model; of option 2, updates that are sums of gradients."""
        return Needs(
            steps=LocalSteps("sgd" if self.option == 2 else None, excludes=("schedule", "local_epochs")),
            models=("global",),
            all_clients=self.mean == "size",
            sends_gradients=self.option == 1,
        )

    @property
    def sends(self) -> Mapping[str, Sends]:  # type: ignore[override]
        return {"control": Sends(_CHANGE, like="w", mean=True)} if self.option == 1 else {}

    def init(self, fed: Federation, w: Tree) -> Tree:
        """c = 0, and the number of clients."""
        return {"control": map_leaves(torch.zeros_like, w), "clients": len(fed.clients)}

    def download(self, state: Tree, at: torch.Tensor) -> tuple[Tree, ...]:
        return {"control": state["control"]}, {}

    def recall(self, ctx: Context) -> Tree:
        c_i = ctx.memory_or_zeros("control", like=ctx.downloaded["control"])
        return {"slope": scale(sub(ctx.downloaded["control"], c_i), 1 / ctx.training.reach)}

    def penalty(self, w: Tree, received: Tree, inputs: Tree) -> torch.Tensor:
        """⟨c − c_i, w⟩."""
        return dot(inputs["slope"], w)

    def report(self, ctx: Context) -> Tree:
        c_i = ctx.memory_or_zeros("control", like=ctx.downloaded["control"])
        change = sub(scale(ctx.released, -1.0), ctx.downloaded["control"])
        if self.option == 1:
            slope = ctx.objective.gradient(ctx.received, ctx.client, ctx.client.key, ctx.sent)
            slope = add(slope, scale(ctx.received, ctx.training.weight_decay))
            change = sub(scale(ctx.shared(slope), ctx.training.reach), c_i)
        ctx.keep_with_steps({"control": add(c_i, change)})
        return {"control": scale(change, (ctx.examples > 0).double())} if self.option == 1 else {}

    def update(self, state: Tree, round: Round) -> Tree:
        """c ← c + Σ k_i (c_i⁺ − c_i) with k_i = 1 / N or n_i / Σ n."""
        change = (round.weighted("control") if self.option == 1
                  else sub(scale(round.delta, -1.0), state["control"]))  # fmt: skip
        share = 1.0 if self.mean == "size" else round.counting.double() / state["clients"]
        return state | {"control": add(state["control"], scale(change, share))}


@preset_of(ControlVariates)
class Scaffold:
    """FedAvg whose clients correct their steps by how the joint gradient differs from their own.

    optimizer: optimizer of the local training; option 2 needs SGD's plain steps.
    lr:        learning rate of the local training.
    """

    optimizer: OptimizerName = "sgd"
    lr: float = 0.5

    def parts(self) -> tuple[Part, ...]:
        part = part_of(self, ControlVariates)
        return part, BySize() if part.mean == "size" else UniformTrained()
