"""The outputs of models for the examples of a graph, and from these probabilities, or numbers in the data's units; the
vectors that their last layers read; and both for all examples of a finished run."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core.algorithm import graphs_of
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.target import CLASS, LABELS, from_scale
from fedweave.core.tree import Tree, device_of
from fedweave.errors import UserError
from fedweave.experiment.runs.trained import Trained, check_finite, chosen_models
from fedweave.metrics.measured import GLOBAL
from fedweave.partition.client_data import global_test_part

NO_VECTORS = "user.no-embeddings"  # the code of the error about a model without them


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


def vectors_of(net: Model, w: Tree, graph: Graph, client: str) -> Tensor:
    """[e, d]: what the last layer of the `client`'s model reads of each example, with the messages that its score gets;
    padding included, on the host.

    Raises:
        UserError: the model has one layer, or its last layer reads no rows of examples; a weight is NaN or infinite.
    """
    rows = None
    if len(net) > 1:
        check_finite(w)
        with torch.no_grad():
            rows = models.infer(net[:-1], w, graph.to(device_of(w)))
    return check_rows(rows, len(graph.y), client).cpu()


def has_vectors(run: Trained) -> bool:
    """Whether the models of all clients have vectors of examples (`vectors_of`)."""
    weights, graphs = chosen_models(run, None, None), graphs_of(run.built.fed)
    try:
        for client, w in weights.items():
            vectors_of(run.net_of(client), w, graphs[client], client)
    except UserError as error:
        if error.code != NO_VECTORS:
            raise
        return False
    return True


def check_rows(rows: object, count: int, client: str) -> Tensor:
    """The last layer's input in the model of a client, if it has a row for each of `count` examples or nodes.

    Raises:
        UserError: it does not.
    """
    if not isinstance(rows, Tensor) or len(rows) != count:
        raise UserError(
            f"the model of {client} has no embeddings of examples, what a last layer is computed from: take a model of "
            "two layers or more.",
            code=NO_VECTORS,
        )
    return rows


@dataclass(frozen=True)
class Predicted:
    """The predictions of one client's model, or of the global one.

    client:      whose it is. probability: of the classes, [e, c], or of several labels, [e, t]; or numbers [e, t] in
                 the data's units; with padding behind the examples.
    examples:    int64 [e], their places in the data.
    masks:       bool [3, e], how the run used them; None if it did not.
    vectors:     [e, d], what the model's last layer reads of each example, with padding behind; None where nothing
                 needs them.
    """

    client: str
    probability: Tensor
    examples: np.ndarray
    masks: np.ndarray | None = None
    vectors: Tensor | None = None


def example_predictions(
    run: Trained, model: str | None = None, client: str | None = None, with_vectors: bool = False
) -> list[Predicted]:
    """The predictions of the run's own examples: each client's by its `model`, by default the one that it uses. Without
    `client`, and unless `model` is another, also of the global test graph by the global model. with_vectors: also what
    the models' last layers read.

    Raises:
        UserError: there is no such model or client, or a model has no vectors.
    """
    # 1. Each client's examples.
    data, fed = run.built.data, run.built.fed
    weights, graphs = chosen_models(run, client, model), graphs_of(fed)
    predictions = []
    for name, part in zip(fed.clients, run.visible_partition.parts, strict=True):
        if name in weights:
            net, graph = run.net_of(name), graphs[name]
            p = probabilities(net, weights[name], graph)
            vectors = vectors_of(net, weights[name], graph, name) if with_vectors else None
            predictions.append(Predicted(name, p, part.examples, part.masks, vectors))

    # 2. The global test graph.
    test, w = global_test_part(data, run.built.partition), run.algorithm.global_model(run.state)
    if test is not None and fed.test is not None and w is not None and model in (None, "global") and client is None:
        net = run.algorithm.test_net
        p = probabilities(net, w, fed.test)
        vectors = vectors_of(net, w, fed.test, GLOBAL) if with_vectors else None
        predictions.append(Predicted(GLOBAL, p, test.examples, test.masks, vectors))
    return predictions
