"""Training on mini-batches of small graphs as a term of a local objective."""

from dataclasses import dataclass

from torch import Tensor

from fedweave.algorithms.parts.needs import Needs
from fedweave.algorithms.parts.outputs import Outputs
from fedweave.algorithms.parts.part import Part
from fedweave.algorithms.parts.training import Training
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.sampling.graphs import GraphBatches


@dataclass(frozen=True)
class GraphCrossEntropy(Part):
    """Cross-entropy of a random mini-batch of training graphs; within a round, none is drawn again before all were.

    One local step is one mini-batch.

    batch: graphs of a mini-batch.
    """

    batch: int = 128
    needs = Needs(supervised=True)

    def __post_init__(self) -> None:
        self.sampler  # noqa: B018  refuses impossible sizes

    @property
    def sampler(self) -> GraphBatches:
        """What draws them."""
        return GraphBatches(self.batch)

    def check(self, training: Training) -> None:
        """Refuse a model that has no result for each graph."""
        self.sampler.check(training.model)

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """A mini-batch per step."""
        return self.sampler.batches(graph, key, steps)

    def least_examples(self, graph: Graph, steps: int) -> int:
        """Of the smallest mini-batch."""
        return self.sampler.least(graph, steps)

    def objective(self, outputs: Outputs) -> Tensor:
        """Of one mini-batch, scalar."""
        o = outputs
        return self.sampler.loss(o.w, o.model, o.graph, o.key, o.drawn, o.loss)
