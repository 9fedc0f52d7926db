"""How models are judged, shared by all algorithms."""

from fedweave.core import model as models
from fedweave.core.federation import Client, Federation
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.metrics.classification import counts

SCORES = {"own": "the model's loss and hits on the client's nodes, and how many nodes of each class it has"}
PERSONAL_SCORES = SCORES | {"global_test": "the loss and hits of the client's own model on the global test graph"}


def measure(model: Model, w: Tree, graph: Graph) -> Tree:
    """Additive pairs [3, 2, …] per metric of `w` on the train, val and test nodes of `graph`."""
    return counts(models.apply(model, w, graph), graph.y, graph.masks)


def score(model: Model, w: Tree, client: Client) -> Tree:
    """{"own": pairs} of `w` on the client's own nodes."""
    return {"own": measure(model, w, client.graph)}


def personal_score(model: Model, w: Tree, client: Client) -> Tree:
    """`score`, and the client's own model on the global test graph where there is one."""
    own = score(model, w, client)
    return own if client.test is None else own | {"global_test": measure(model, w, client.test)}


def on_global_test(model: Model, w: Tree, fed: Federation) -> Tree | None:
    """Pairs of one global model on the global test graph; None without one."""
    return None if fed.test is None else measure(model, w, fed.test)
