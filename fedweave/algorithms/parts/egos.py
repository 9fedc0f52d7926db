"""Training on sampled ego-graphs as a term of a local objective (Zhang et al. 2023, FedEgo, section 4.1)."""

from dataclasses import dataclass

from torch import Tensor

from fedweave.algorithms.parts.part import Part
from fedweave.algorithms.parts.training import Training
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.sampling.egos import Egos


@dataclass(frozen=True)
class EgoCrossEntropy(Part):
    """Cross-entropy of a random mini-batch of training nodes, each seen through its sampled ego-graph.

    FedEgo and the baselines of its paper train so. One local step is one mini-batch.

    batch:   centres of a mini-batch.
    hops:    radius of an ego-graph.
    fan_out: neighbours sampled per node.
    """

    batch: int = 32
    hops: int = 2
    fan_out: int = 6

    def __post_init__(self) -> None:
        self.egos  # noqa: B018  refuses impossible sizes

    @property
    def egos(self) -> Egos:
        """The sampler."""
        return Egos(self.batch, self.hops, self.fan_out)

    def check(self, training: Training) -> None:
        """Refuse a model that cannot run on ego-graphs."""
        self.egos.split(training.model)

    def minibatches(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """A mini-batch per step."""
        return self.egos.batches(model, graph, key, steps)

    def loss(self, w: Tree, model: Model, graph: Graph, key: Tensor, given: Tree, minibatch: Tree) -> Tensor:
        """Of one mini-batch, scalar."""
        return self.egos.loss(w, model, graph, key, minibatch)
