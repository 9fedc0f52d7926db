"""Cross-entropies to train on: of all of a client's training examples, of mini-batches of them, of sampled
neighborhoods (Hamilton et al. 2017, "Inductive Representation Learning on Large Graphs", algorithm 2), of ego-graphs,
and of mini-batches of small graphs. One local step is one mini-batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.algorithms.parts.needs import LocalSteps, Needs
from fedweave.algorithms.parts.part import Outputs, Part
from fedweave.algorithms.parts.training import Training
from fedweave.core.bounds import Count, CountOrNone, Share
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.sampling.ego_graphs import Egos
from fedweave.sampling.graphs import GraphBatches, ways_of
from fedweave.sampling.minibatches import Minibatches


@dataclass(frozen=True)
class CrossEntropy(Part):
    """Mean cross-entropy over the client's training examples; 0 at a client without any."""

    recorded = True
    needs = Needs(supervised=True)

    def objective(self, outputs: Outputs) -> Tensor:
        return outputs.cross_entropy(outputs.logits, outputs.graph.masks[TRAIN])


@dataclass(frozen=True)
class BatchCrossEntropy(CrossEntropy):
    """Mean cross-entropy over a mini-batch of the client's training examples. Messages pass along the whole graph.

    batch: examples per step, drawn without replacement until all have been drawn; then drawing starts again.
    """

    batch: Count = 32
    recorded = True

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        rows, real = GraphBatches(self.batch).draw(graph, key, steps)  # [steps, batch]
        count = graph.masks.shape[-1]
        chosen = torch.zeros(steps, count + 1, dtype=torch.bool, device=rows.device)  # the last column for padding
        return {"chosen": chosen.scatter(1, torch.where(real, rows, count), True)[:, :count]}  # [steps, examples]

    def min_examples(self, graph: Graph, steps: int) -> int:
        return GraphBatches(self.batch).min_examples(graph, steps)

    def objective(self, outputs: Outputs) -> Tensor:
        return outputs.cross_entropy(outputs.logits, outputs.drawn["chosen"])


@dataclass(frozen=True)
class EgoCrossEntropy(Part):
    """Cross-entropy of a random mini-batch of training nodes, each seen through its sampled ego-graph.

    FedEgo and the baselines of its paper train this way.

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
        return Egos(self.batch, self.hops, self.fan_out, self.epochs, self.share)

    def check(self, training: Training) -> None:
        self.egos.split(training.model)  # raises an error if the model cannot run on ego-graphs
        if self.epochs and training.local_steps % self.epochs:
            raise ValueError(f"local_steps is {training.local_steps}; it must be a multiple of epochs = {self.epochs}")

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        return self.egos.batches(model, graph, key, steps)

    def min_examples(self, graph: Graph, steps: int) -> int:
        return self.egos.min_examples(graph, steps)

    def objective(self, outputs: Outputs) -> Tensor:
        o = outputs
        return self.egos.loss(o.w, o.model, o.graph, o.key, o.drawn, o.loss)


@dataclass(frozen=True)
class GraphCrossEntropy(Part):
    """Cross-entropy of a random mini-batch of training graphs; a round draws all graphs before it draws one again.

    batch: graphs of a mini-batch.
    """

    batch: Count = 128
    recorded = True
    rounds_vary = True
    needs = Needs(supervised=True)

    @property
    def sampler(self) -> GraphBatches:
        return GraphBatches(self.batch)

    def check(self, training: Training) -> None:
        self.sampler.check(training.model)

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        return self.sampler.batches(graph, key, steps, ways_of(model))

    def min_examples(self, graph: Graph, steps: int) -> int:
        return self.sampler.min_examples(graph, steps)

    def objective(self, outputs: Outputs) -> Tensor:
        o = outputs
        return self.sampler.loss(o.w, o.model, o.graph, o.key, o.drawn, o.loss)


@dataclass(frozen=True)
class SampledCrossEntropy(Part):
    """Cross-entropy of a random mini-batch of training nodes, or edges, with a sample of their neighbors in every
    layer.

    The evaluation uses all neighbors.

    batch:   nodes, or edges, of a mini-batch.
    fan_out: neighbors, or messages of each way along single edges, sampled per node and layer, without replacement.
    """

    batch: Count = 32
    fan_out: Count = 5
    recorded = True
    needs = Needs(supervised=True)

    @property
    def sampler(self) -> Minibatches:
        return Minibatches(self.batch, self.fan_out)

    def check(self, training: Training) -> None:
        self.sampler.layers(training.model)  # raises an error if the model cannot run on sampled neighbors

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        return self.sampler.batches(model, graph, key, steps)

    def objective(self, outputs: Outputs) -> Tensor:
        o = outputs
        return self.sampler.loss(o.w, o.model, o.graph, o.key, o.drawn, o.loss)
