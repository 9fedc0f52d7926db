"""MOON: Li, He and Song 2021, "Model-contrastive federated learning", eq. 3.

A loss term pulls a client's embeddings to the received model's embeddings and away from the embeddings by the weights
that it trained last. Deviations: no projection head, h_v is the input of the last layer; by default over all of a
client's nodes, as in OpenFGL, the source of the field's numbers for graphs (the paper's mini-batches are nodes =
"train"). A client's first training has no such term, in any round.
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from fedweave.algorithms.parts import Context, Needs, Outputs, Part, Training
from fedweave.algorithms.preset import preset_of
from fedweave.core import model as models
from fedweave.core.bounds import NonNegative, Positive
from fedweave.core.graph import TRAIN
from fedweave.core.tree import Tree


@dataclass(frozen=True)
class ModelContrast(Part):
    """μ times the mean over examples of −log(e^(near/τ) / (e^(near/τ) + e^(far/τ))), where near and far are the cosines
    of an example's embedding with its embeddings by the received weights and by the weights that the client trained
    last.

    mu:    μ, strength of the contrastive term; 0 is none.
    tau:   τ, temperature of the term.
    nodes: examples of the term: "all" nodes or graphs of a client, or only the training examples ("train").
    """

    mu: NonNegative = 1.0
    tau: Positive = 0.5
    nodes: Literal["all", "train"] = "all"
    recorded = True
    needs = Needs(reads=("received", "graph"))

    def check(self, training: Training) -> None:
        models.check_embeds(training.model, "moon")

    def recall(self, ctx: Context) -> Tree:
        """{"apart": the difference [e, d] between the directions of the embeddings by the client's last weights and by
        the received ones}, without gradient and dropout; {} before the client's first training."""
        last, model, graph = ctx.client.state.get("w"), ctx.training.model, ctx.client.graph
        if not last:
            return {}
        return {"apart": unit(models.embedded(model, last, graph)) - unit(models.embedded(model, ctx.received, graph))}

    def objective(self, outputs: Outputs) -> Tensor:
        """The term, scalar: the mean of log(1 + e^((far − near)/τ))."""
        h = outputs.embedding
        if "apart" not in outputs.inputs:
            return h.new_zeros(())
        train = outputs.graph.masks[TRAIN]
        # The examples of the mean, [e]; none at a client that does not train.
        counts = train if self.nodes == "train" else outputs.graph.usable_examples & train.any()
        counts = counts.to(h.dtype)
        each = F.softplus((unit(h) * outputs.inputs["apart"]).sum(1) / self.tau)  # [e]
        return self.mu * (each * counts).sum() / counts.sum().clamp(min=1)


def unit(h: Tensor) -> Tensor:
    """The rows of h [e, d] divided by their norms; a norm below 1e-8 counts as 1e-8."""
    return h / h.square().sum(1, keepdim=True).clamp(min=1e-16).sqrt()


@preset_of(ModelContrast)
class Moon:
    """FedAvg whose clients keep embeddings close to the global model's and away from their own last model's."""
