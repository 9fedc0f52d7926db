"""A note, before training, on a first step that may leave a model of links dead.

Adam's first step moves each weight by lr, so that a unit of the first layer moves by up to lr ‖x‖₁. Where rows of
features are long, products of embeddings grow a hundredfold, and the next steps push all units below 0 at all nodes:
ReLU gives 0, every pair has the same score, and no gradient leads back.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from fedweave.core import model as models
from fedweave.core.algorithm import Algorithm
from fedweave.core.graph import Graph
from fedweave.ops.sparse import Sparse

MAX_MOVE = 0.5  # models of amazon-photo (2.6) and coauthor-cs (.95) stop, of citeseer (.32) and cora (.18) not


def first_step_notes(algorithms: Iterable[Algorithm], graphs: Mapping[str, Graph]) -> list[str]:
    """A note for models whose scores are products of embeddings, trained by Adam, where lr times the mean ‖x‖₁ is above
    `MAX_MOVE`."""
    rates = [float(getattr(one, "lr", 0.0)) for one in algorithms if _may_stop(one)]
    if not rates:
        return []
    length = float(np.mean(np.concatenate([_lengths(graph) for graph in graphs.values()])))
    move = max(rates) * length
    if move <= MAX_MOVE:
        return []
    return [
        f"the first step of Adam moves a hidden unit by up to {move:.2g} (lr {max(rates):g}, times {length:.3g}, the "
        "mean sum of a row of features): such models of links often end with the same score for every pair. Set "
        'model.decoder = "cosine" or model.norm = "layer", scale features (data.normalize), or lower algorithm.lr'
    ]


def _may_stop(algorithm: Algorithm) -> bool:
    """Whether an algorithm trains, by Adam, a model whose scores grow with the lengths of embeddings."""
    model = algorithm.model
    if models.example(model) != "link" or model[-1].bounded or any(layer.norms for layer in model):
        return False
    return getattr(algorithm, "optimizer", "") in ("adam", "adamw")


def _lengths(graph: Graph) -> np.ndarray:
    """float [n]: ‖x‖₁ of each node of a client."""
    if isinstance(graph.x, Sparse):
        lengths: np.ndarray = np.asarray(abs(graph.x.blocks.members[0].scipy()).sum(1)).ravel()
    else:
        lengths = graph.x.abs().sum(1).cpu().numpy()
    real: np.ndarray = lengths[graph.real.cpu().numpy()]
    return real
