"""FedNova: Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous federated optimization",
eqs. 5-8.

Clients that take more steps than others would pull the global model to their own optimum. So each update is
divided by a_i, how far its client's steps would carry a constant gradient (‖a_i‖₁ in the paper). The mean of these
updates is multiplied by τ_eff, the mean of a_i.

Deviations: The sizes of a client's mini-batches differ by at most one. With the proximal term, too, τ_eff is
Σ p_i ‖a_i‖₁, where the released code has Σ p_i τ_i. Adam is not supported, because a_i is not defined for it.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedweave.algorithms.parts import Context, LocalSteps, Needs, OptimizerName, Outputs, Part, Round
from fedweave.algorithms.parts.longest_pass import batches_declaration, encode_batches, max_batches
from fedweave.algorithms.parts.part import OwnCount, copy_part
from fedweave.algorithms.preset import part_of, preset_of
from fedweave.core import random
from fedweave.core.bounds import BelowOne, CountOrNone, NonNegative, Positive
from fedweave.core.federation import Client, Federation, Sends, Step, on_client
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.mechanism import SecureSum
from fedweave.core.model import Model
from fedweave.core.ranges import Real, Whole
from fedweave.core.tree import Tree, squared_distance
from fedweave.learn import Fit, Sgd

_STEPS = Sends("how many steps the client takes in a round at most", within=Whole())


@dataclass(frozen=True)
class NormalisedSteps(OwnCount):
    """Clients train on mini-batches, so larger clients take more steps, and update i has the weight
    p_i (Σ p_k a_k) / a_i, where a_i is how far its steps carry a constant gradient.

    With secure aggregation clients send p_i Δ_i A / a_i and p_i a_i / A, where A is the largest possible a_i of any
    client. The server multiplies the sum of the updates by the sum of the others, which is (Σ p_k a_k) / A.

    batch:           training examples of a mini-batch, one mini-batch per step; 0 takes all examples in each step.
    max_local_steps: largest number of passes, drawn for each client and round from local_steps to this number; 0 always
                     takes local_steps.
    momentum:        momentum of the local steps; it starts at 0 in each round.
    """

    batch: CountOrNone = 8
    max_local_steps: CountOrNone = 0
    momentum: BelowOne = 0.0
    recorded = True
    counted = "the number of all training examples"
    sends: ClassVar = {
        "n": Sends("number of training examples", within=Whole()),
        "reach": Sends(
            "how far the client's steps carry a constant gradient, which reveals their number",
            within=Real(0),
            mean=True,
        ),
    }
    within: ClassVar[SecureSum | None] = None  # the form of secure aggregation; None without it
    client_learns = "how many steps any member takes at most"

    @property
    def needs(self) -> Needs:
        """Plain steps of SGD, for which a_i is defined."""
        steps = LocalSteps(optimizer="sgd", excludes=("schedule", "local_epochs"))
        return Needs(supervised=True, steps=steps, statistics="home")

    # How many steps a client takes, and how far these lead.

    def batches(self, count: Tensor) -> Tensor:
        return -(-count // self.batch) if self.batch else (count > 0).long()

    def steps(self, ctx: Context) -> Tensor:
        """τ_i, int64 scalar: the passes that the client draws for this round, times the steps of a pass."""
        min_passes = ctx.training.local_steps
        choices = max(self.max_local_steps - min_passes, 0) + 1
        extra = (random.uniform(random.fold(ctx.client.key, "passes"), ()) * choices).long()
        return (min_passes + extra) * self.batches(ctx.examples)

    def max_steps(self, ctx: Context) -> int:
        """The steps of the longest passes of any client."""
        result: int = max(ctx.training.local_steps, self.max_local_steps) * ctx.downloaded["batches"]
        return result

    def reach(self, steps: Tensor, lr: float) -> Tensor:
        """a_i of τ_i `steps`, float64."""
        rho = self.momentum
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho) if rho else steps

    def _longest(self, ctx: Context) -> Tensor:
        """A, float64 scalar: the largest possible a_i of any client."""
        steps = torch.as_tensor(self.max_steps(ctx), dtype=torch.float64, device=ctx.client.graph.device)
        return self.reach(steps, ctx.training.lr)

    # At a client, before the first round.

    def join_sum(self, within: SecureSum) -> Part:
        return copy_part(self, within=within)

    @on_client(sends=lambda self: {"steps": batches_declaration(_STEPS, self.within)})
    def count(self, client: Client, message: Tree) -> Tree:
        """{"steps": steps of one pass, scalar, in the form of `encode_batches`}."""
        return {"steps": encode_batches(self.batches(client.graph.masks[TRAIN].sum()), self.within)}

    # At a client, in a round.

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """{"chosen": bool [steps, e]}, the mini-batch of each step; a pass takes every example once."""
        train = graph.masks[TRAIN]
        batches = self.batches(train.sum()).clamp(min=1)
        chosen = []
        for step in range(steps):
            order = random.order(random.fold(key, step // batches), train)  # one for each pass
            place = torch.argsort(torch.argsort(order))
            chosen.append((place % batches == step % batches) & train)
        return {"chosen": torch.stack(chosen)}

    def min_examples(self, graph: Graph, steps: int) -> int:
        count = graph.masks[TRAIN].sum()
        return int(count // self.batches(count).clamp(min=1))

    def objective(self, outputs: Outputs) -> Tensor:
        return outputs.cross_entropy(outputs.logits, outputs.drawn["chosen"])

    def train(self, ctx: Context) -> Fit:
        """τ_i steps from the received weights. All clients draw the mini-batches of the longest one."""
        training, client = ctx.training, ctx.client
        optimizer = Sgd(training.lr, training.weight_decay, self.momentum)
        return ctx.objective.fit(
            ctx.start,
            client,
            client.key,
            ctx.sent,
            ctx.received,
            steps=self.max_steps(ctx),
            optimizer=optimizer,
            limit=self.steps(ctx),
        )

    def report(self, ctx: Context) -> Tree:
        """{"n": n_i, "reach": a_i, or a_i / A with secure aggregation}."""
        reach = self.reach(self.steps(ctx).double(), ctx.training.lr)
        return {"n": ctx.examples, "reach": reach if self.within is None else reach / self._longest(ctx)}

    def counts(self, graph: Graph) -> Tensor:
        return graph.masks[TRAIN].sum()

    def scale(self, ctx: Context) -> Tensor:
        """A / a_i; finite also for a client without steps, whose weight is 0."""
        return self._longest(ctx) / self.reach(self.steps(ctx).clamp(min=1).double(), ctx.training.lr)

    # At the server.

    @property
    def setup(self) -> tuple[Step, ...]:
        return (self.count,)

    def init(self, fed: Federation, w: Tree) -> Tree:
        """{"batches": the largest number of mini-batches of any client}."""
        return {"batches": max_batches(fed.map(self.count), "steps", self.within)}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        return {"batches": state["batches"]}, {}

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """p_i τ_eff / a_i with τ_eff = Σ p_k a_k, for clients that train."""
        n, reach = (round.replies.stack(key).double() for key in ("n", "reach"))
        share = n / n.sum().clamp(min=1)
        return torch.where(n > 0, share * (share @ reach) / reach.clamp(min=1e-30), 0.0)

    def rescale(self, round: Round) -> Tensor:
        """(Σ p_k a_k) / A, by which the server multiplies the sum of the updates."""
        result: Tensor = round.opened["reach"]
        return result


@dataclass(frozen=True)
class ProximalSteps(NormalisedSteps):
    """`NormalisedSteps` with FedProx's term μ/2 ‖w − w_t‖² in the objective, which shortens a_i.

    mu: μ, strength of FedProx's term.
    """

    mu: Positive = 0.01
    recorded = True

    def __post_init__(self) -> None:
        if self.momentum:
            raise ValueError(f"momentum = {self.momentum}: the proximal term goes without momentum. Leave it out")

    @property
    def needs(self) -> Needs:
        return replace(super().needs, steps=replace(super().needs.steps, pull=self.mu))

    def penalty(self, w: Tree, received: Tree, inputs: Tree) -> Tensor:
        """μ/2 ‖w − w_t‖²."""
        return 0.5 * self.mu * squared_distance(w, received)

    def reach(self, steps: Tensor, lr: float) -> Tensor:
        """a_i with the term: (1 − (1 − η μ)^τ_i) / (η μ)."""
        return (1 - (1 - lr * self.mu) ** steps) / (lr * self.mu)


@preset_of(ProximalSteps)
class FedNova:
    """FedAvg of clients that take different numbers of steps, each update divided by how far these steps lead.

    local_steps: passes over a client's training examples in a round, one step per mini-batch.
    optimizer:   optimizer of the local training, SGD.
    lr:          learning rate of the local training.
    mu:          μ, strength of FedProx's term; 0 is none.
    """

    local_steps: int = 1
    optimizer: OptimizerName = "sgd"
    lr: float = 0.1
    mu: NonNegative = 0.0

    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "its steps are on mini-batches"}

    def parts(self) -> tuple[Part, ...]:
        return (part_of(self, ProximalSteps) if self.mu else part_of(self, NormalisedSteps),)
