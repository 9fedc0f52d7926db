"""Training on sampled neighbourhoods as a term of a local objective (Hamilton et al. 2017, "Inductive Representation
Learning on Large Graphs", algorithm 2)."""

from dataclasses import dataclass

from torch import Tensor

from fedweave.algorithms.parts.needs import Needs
from fedweave.algorithms.parts.outputs import Outputs
from fedweave.algorithms.parts.part import Part
from fedweave.algorithms.parts.training import Training
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.sampling.minibatches import Minibatches


@dataclass(frozen=True)
class SampledCrossEntropy(Part):
    """Cross-entropy of a random mini-batch of training nodes, or edges, of whose neighbours every layer sees a sample.

    One local step is one mini-batch; models are judged on all neighbours.

    batch:   nodes, or edges, of a mini-batch.
    fan_out: neighbours, or messages of each way along single edges, sampled per node and layer, without replacement.
    """

    batch: int = 32
    fan_out: int = 5
    needs = Needs(supervised=True)

    def __post_init__(self) -> None:
        self.sampler  # noqa: B018  refuses impossible sizes

    @property
    def sampler(self) -> Minibatches:
        """Of the mini-batches."""
        return Minibatches(self.batch, self.fan_out)

    def check(self, training: Training) -> None:
        """Refuse a model that cannot run on sampled neighbours."""
        self.sampler.layers(training.model)

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """A mini-batch per step."""
        return self.sampler.batches(model, graph, key, steps)

    def objective(self, outputs: Outputs) -> Tensor:
        """Of one mini-batch, scalar."""
        o = outputs
        return self.sampler.loss(o.w, o.model, o.graph, o.key, o.drawn, o.loss)
