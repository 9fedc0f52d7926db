"""GraphFL: Wang et al. 2022, "GraphFL: a federated learning framework for semi-supervised node classification on
graphs", its model-agnostic meta-learning to first order.

The server seeks weights from which a few steps improve every client's model most. Deviations: every round draws support
and query sets; with fewer than two full sets of training nodes, each gets half. The server's optimizer is FedAdam's
(Reddi et al. 2021: no bias correction, β₂ = .99, τ = 1e-3), not the Adam of Kingma and Ba that the paper names. At the
same learning rate it takes shorter steps: on `experiments/fedavg-cora.toml` after 100 rounds, seeds 0 to 2, it has a
global accuracy of .844, .839 and .858, and Adam with its usual constants .826, .834 and .849.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.algorithms.fedopt import ServerAdam, ServerMomentum
from fedweave.algorithms.parts import Context, LocalSteps, Needs, Outputs, Part, Protection, Uniform
from fedweave.algorithms.preset import part_of, preset_of
from fedweave.core import random
from fedweave.core.bounds import Count, Positive
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree, add, scale, sub
from fedweave.learn import keep_trained


@dataclass(frozen=True)
class MetaGradient(Part):
    """Clients train on a support set of their training examples, and send the negative gradient of the loss on a query
    set at the trained weights, w − ∇F_support(w) lr after one step. Before an evaluation, also on the global test, they
    train the same number of steps again: the shared weights are only a start and predict little on their own.

    examples:   largest number of examples of the support set and of the query set.
    meta_steps: number of such gradients in a round, each from weights that the last gradient moved by `meta_lr`;
        clients send their sum. With server = "sgd" and server_lr = meta_lr the global model is then the mean of these
        weights, Per-FedAvg's (Fallah et al. 2020, algorithm 1, to first order).
    meta_lr:    learning rate of the moves between these steps.
    """

    examples: Count = 100
    meta_steps: Count = 1
    meta_lr: Positive = 0.1
    recorded = True
    needs = Needs(steps=LocalSteps(bounds=("examples",)), personalizes="tuned", supervised=True, statistics="none")

    @property
    def protection(self) -> Protection:
        what = "negative gradient" if self.meta_steps == 1 else "sum of negative gradients"
        return Protection(
            becomes=f"{what} of the loss on a query set of training examples, at weights trained on a support set"
        )

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """{"support", "query": bool [steps, e]}, the same in every step."""
        train = graph.masks[TRAIN]
        rank = torch.argsort(torch.argsort(random.order(key, train)))
        size = ((train.sum() + 1) // 2).clamp(max=self.examples)
        sets = {"support": rank < size, "query": (rank >= size) & (rank < 2 * size)}
        return {name: (chosen & train).expand(steps, -1) for name, chosen in sets.items()}

    def min_examples(self, graph: Graph, steps: int) -> int:
        """The size of the smaller of the two sets, unless it is empty."""
        count = int(graph.masks[TRAIN].sum())
        support = min((count + 1) // 2, self.examples)
        return min(support, count - support) or support

    def objective(self, outputs: Outputs) -> Tensor:
        """Mean cross-entropy over the support set, or over the query set if `inputs` contains "query"."""
        chosen = outputs.drawn["query" if "query" in outputs.inputs else "support"]
        return outputs.cross_entropy(outputs.logits, chosen)

    def release(self, ctx: Context, update: Tree) -> Tree:
        """−∇F_query at the trained weights, instead of the update."""
        client, inputs, key, w = ctx.client, ctx.sent, ctx.client.key, ctx.received
        query = inputs | {ctx.name: {"query": torch.ones_like(key)}}
        gradient = ctx.objective.gradient(ctx.trained, client, key, query)
        total = gradient
        for step in range(1, self.meta_steps):
            w, key = sub(w, scale(gradient, self.meta_lr)), random.fold(client.key, "meta", step)
            gradient = ctx.objective.gradient(ctx.objective.fit(w, client, key, inputs).w, client, key, query)
            total = add(total, gradient)
        return scale(ctx.shared(total), -1.0)

    def personalize(self, ctx: Context) -> Tree:
        w = ctx.objective.fit(ctx.received, ctx.client, random.fold(ctx.client.key, "tune"), ctx.sent).w
        return keep_trained(ctx.examples > 0, w, ctx.received)


@preset_of(MetaGradient, Uniform, ServerAdam, without=("beta1", "beta2", "tau"))
class GraphFL:
    """Clients share weights from which a few local steps improve each client's model most.

    local_steps:  steps on the support set.
    optimizer:    optimizer of these steps; the method needs the gradient of a plain step.
    lr:           learning rate of these steps.
    weight_decay: weight decay of these steps.
    server:       optimizer of the server's step along the mean: "adam" as in FedAdam, or plain "sgd".
    server_lr:    learning rate of the server.
    """

    local_steps: int = 1
    optimizer: Literal["sgd"] = "sgd"
    lr: float = 0.1
    weight_decay: float = 0.0
    server: Literal["adam", "sgd"] = "adam"
    server_lr: float = 0.01

    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "the server's step is one of Adam"}

    def parts(self) -> tuple[Part, ...]:
        step = part_of(self, ServerAdam) if self.server == "adam" else part_of(self, ServerMomentum, momentum=0.0)
        return part_of(self, MetaGradient), Uniform(), step
