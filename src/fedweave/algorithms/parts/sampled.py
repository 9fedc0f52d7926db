"""Training on examples drawn in each step: sampled neighborhoods (Hamilton et al. 2017, "Inductive Representation
Learning on Large Graphs", algorithm 2), ego-graphs and mini-batches of small graphs.
"""

from dataclasses import dataclass

from torch import Tensor

from fedweave.algorithms.parts.context import Outputs
from fedweave.algorithms.parts.needs import LocalSteps, Needs
from fedweave.algorithms.parts.part import Part
from fedweave.algorithms.parts.training import Training
from fedweave.core.bounds import Count, CountOrNone, Share
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.sampling.ego_graphs import Egos
from fedweave.sampling.graphs import GraphBatches
from fedweave.sampling.minibatches import Minibatches


@dataclass(frozen=True)
class EgoCrossEntropy(Part):
    """Cross-entropy of a random mini-batch of training nodes, each seen through its sampled ego-graph.

    FedEgo and the baselines of its paper train this way. One local step is one mini-batch.

    batch:   centers of a mini-batch.
    hops:    radius of an ego-graph.
    fan_out: neighbors sampled per node.
    epochs:  number of epochs in the local steps, whose mini-batches share no center; 0 draws each mini-batch
             independently.
    share:   training nodes of an epoch, as a share of the client's nodes.
    """

    batch: Count = 32
    hops: CountOrNone = 2
    fan_out: Count = 6
    epochs: CountOrNone = 0
    share: Share = 1.0
    recorded = True
    rounds_vary = True
    needs = Needs(data=("nodes",), steps=LocalSteps(bounds=("batch", "epochs", "share")), supervised=True)

    @property
    def egos(self) -> Egos:
        """The sampler."""
        return Egos(self.batch, self.hops, self.fan_out, self.epochs, self.share)

    def check(self, training: Training) -> None:
        """Raise a ValueError if the model cannot run on ego-graphs, or the steps are no whole epochs."""
        self.egos.split(training.model)
        if self.epochs and training.local_steps % self.epochs:
            raise ValueError(f"local_steps is {training.local_steps}; it must be a multiple of epochs = {self.epochs}")

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """A mini-batch per step."""
        return self.egos.batches(model, graph, key, steps)

    def least_examples(self, graph: Graph, steps: int) -> int:
        """The size of the smallest mini-batch."""
        return self.egos.min_examples(graph, steps)

    def objective(self, outputs: Outputs) -> Tensor:
        """The loss on one mini-batch, scalar."""
        o = outputs
        return self.egos.loss(o.w, o.model, o.graph, o.key, o.drawn, o.loss)


@dataclass(frozen=True)
class GraphCrossEntropy(Part):
    """Cross-entropy of a random mini-batch of training graphs; a round draws all graphs before it draws one again.

    One local step is one mini-batch.

    batch: graphs of a mini-batch.
    """

    batch: Count = 128
    recorded = True
    rounds_vary = True
    needs = Needs(supervised=True)

    @property
    def sampler(self) -> GraphBatches:
        """The sampler of mini-batches."""
        return GraphBatches(self.batch)

    def check(self, training: Training) -> None:
        """Raise a ValueError if the model has no output per graph."""
        self.sampler.check(training.model)

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """A mini-batch per step."""
        return self.sampler.batches(graph, key, steps)

    def least_examples(self, graph: Graph, steps: int) -> int:
        """The size of the smallest mini-batch."""
        return self.sampler.min_examples(graph, steps)

    def objective(self, outputs: Outputs) -> Tensor:
        """The loss on one mini-batch, scalar."""
        o = outputs
        return self.sampler.loss(o.w, o.model, o.graph, o.key, o.drawn, o.loss)


@dataclass(frozen=True)
class SampledCrossEntropy(Part):
    """Cross-entropy of a random mini-batch of training nodes, or edges, with a sample of their neighbors in every
    layer.

    One local step is one mini-batch; the evaluation uses all neighbors.

    batch:   nodes, or edges, of a mini-batch.
    fan_out: neighbors, or messages of each way along single edges, sampled per node and layer, without replacement.
    """

    batch: Count = 32
    fan_out: Count = 5
    recorded = True
    needs = Needs(supervised=True)

    @property
    def sampler(self) -> Minibatches:
        """The sampler of mini-batches."""
        return Minibatches(self.batch, self.fan_out)

    def check(self, training: Training) -> None:
        """Raise a ValueError if the model cannot run on sampled neighbors."""
        self.sampler.layers(training.model)

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """A mini-batch per step."""
        return self.sampler.batches(model, graph, key, steps)

    def objective(self, outputs: Outputs) -> Tensor:
        """The loss on one mini-batch, scalar."""
        o = outputs
        return self.sampler.loss(o.w, o.model, o.graph, o.key, o.drawn, o.loss)
