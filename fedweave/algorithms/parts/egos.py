"""Training on sampled ego-graphs as a term of a local objective (Zhang et al. 2023, FedEgo, section 4.1)."""

from dataclasses import dataclass

from torch import Tensor

from fedweave.algorithms.parts.objective import Stateless
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.sampling.egos import Egos


@dataclass(frozen=True)
class EgoCrossEntropy(Stateless, Egos):
    """Cross-entropy of a random mini-batch of training nodes, each seen through its sampled ego-graph.

    FedEgo and the baselines of its paper train so. One local step is one mini-batch.

    batch:   centres of a mini-batch.
    hops:    radius of an ego-graph.
    fan_out: neighbours sampled per node.
    """

    penalty = None
    needs_loss = False

    def check(self, model: Model) -> None:
        """Refuse a model that cannot run on ego-graphs."""
        self.split(model)

    def draw_steps(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """A mini-batch per step."""
        return self.batches(model, graph, key, steps)
