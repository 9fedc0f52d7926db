"""The outputs of a model for the examples of a graph, and from these probabilities, or numbers in the data's units."""

import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.target import CLASS, LABELS, from_scale
from fedweave.core.tree import Tree, device_of
from fedweave.experiment.runs.trained import check_finite


def outputs_of(net: Model, w: Tree, graph: Graph) -> Tensor:
    """A model's outputs [e, …] for the examples of a graph, padding included, on the host; it runs where its weights
    lie."""
    with torch.no_grad():
        return models.infer(net, w, graph.to(device_of(w))).cpu()


def probabilities(net: Model, w: Tree, graph: Graph) -> Tensor:
    """[e, c] of the classes, or [e, t] of several labels, or the numbers [e, t] that are predicted, in the data's
    units; padding included, on the host.

    Raises:
        UserError: a weight is NaN or infinite.
    """
    return from_outputs(outputs_of(net, check_finite(w), graph), graph)


def from_outputs(outputs: Tensor, graph: Graph) -> Tensor:
    """`probabilities` of a model's outputs [e, …] for the examples of a graph."""
    if graph.target == CLASS:
        return torch.softmax(outputs, -1)
    if graph.target == LABELS:
        return torch.sigmoid(outputs)
    return outputs.double() if graph.scale is None else from_scale(outputs, graph.scale.to(outputs.device))
