"""What the terms of a local objective see of one training step."""

from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from fedweave.core import model as models
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Hidden, Model
from fedweave.core.tree import Tree
from fedweave.learn import ClassLoss


@dataclass(frozen=True)
class Forward:
    """One pass through the model with a step's weights, shared by all terms that read it."""

    w: Tree
    model: Model
    graph: Graph
    key: Tensor
    loss: ClassLoss = field(default_factory=ClassLoss)

    @cached_property
    def layers(self) -> tuple[Hidden, ...]:
        """Every layer's output."""
        return models.embeddings(self.model, self.w, self.graph, self.key)


@dataclass(frozen=True)
class Outputs:
    """What a part's `objective` sees of one training step.

    forward: the pass through the model, run if a term reads `logits` or `embeddings`, and once for all that do.
    given:   what the part's `download` sent and its `recall` told.
    drawn:   this step's row of what the part's `draw` drew.
    """

    forward: Forward
    given: Tree
    drawn: Tree

    def of(self, given: Tree, drawn: Tree) -> "Outputs":
        """The same step as another part sees it."""
        return replace(self, given=given, drawn=drawn)

    @property
    def logits(self) -> Tensor:
        """The model's outputs for all examples, with dropout: [e, c]."""
        logits: Tensor = self.forward.layers[-1]
        return logits

    @property
    def embeddings(self) -> tuple[Hidden, ...]:
        """Every layer's output, the first layer's first, the logits last; [n, …], or a tree of such (`core.model`)."""
        return self.forward.layers

    @property
    def embedding(self) -> Tensor:
        """What the last layer is computed from, [n, d], or [e, d] of small graphs."""
        return models.rows_of(self.forward.layers[-2])

    @property
    def w(self) -> Tree:
        """The weights that the step is at."""
        return self.forward.w

    @property
    def model(self) -> Model:
        """The model, for a part that makes a pass of its own."""
        return self.forward.model

    @property
    def graph(self) -> Graph:
        """The client's data."""
        return self.forward.graph

    def cross_entropy(self, logits: Tensor, chosen: Tensor) -> Tensor:
        """The mean over the `chosen` examples, bool [e], as the algorithm weighs classes; scalar, 0 without any. logits
        [e, c]: of all examples."""
        graph = self.graph
        return self.loss.of(logits, graph.y.clamp(min=0), chosen.to(logits.dtype), graph.y, graph.masks[TRAIN])

    @property
    def loss(self) -> ClassLoss:
        """How classes are weighed."""
        return self.forward.loss

    @property
    def key(self) -> Tensor:
        """Of the step's randomness."""
        return self.forward.key
