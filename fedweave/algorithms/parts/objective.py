"""What a client trains for: the terms of its objective, and the training of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from fedweave.algorithms.parts import answers
from fedweave.algorithms.parts.context import Context
from fedweave.algorithms.parts.part import Part, has
from fedweave.algorithms.parts.training import Training
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.federation import Client
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree, map_leaves, sub
from fedweave.learn import Fit, Penalty, cross_entropy, fit

_TERMS = ("loss", "criterion", "penalty", "regulariser")  # hooks that add to what is trained for
_ANCHOR = "received"  # where the loss finds the weights that regularisers compare with


@dataclass(frozen=True)
class CrossEntropy(Part):
    """Mean cross-entropy over the client's training examples."""

    supervised = True

    def loss(self, w: Tree, model: Model, graph: Graph, key: Tensor, given: Tree, minibatch: Tree) -> Tensor:
        """Scalar; 0 at a client without training examples."""
        return self.criterion(models.apply(model, w, graph, key), graph, given)

    def criterion(self, logits: Tensor, graph: Graph, given: Tree) -> Tensor:
        """The same of outputs that other terms have a use for, too."""
        return cross_entropy(logits, graph.y.clamp(min=0), graph.masks[TRAIN].to(logits.dtype))


@dataclass(frozen=True)
class Objective:
    """The sum of the terms of all `parts`, and how it is trained."""

    parts: Mapping[str, Part]
    training: Training

    def __post_init__(self) -> None:
        if not any(has(part, "loss") for part in self.parts.values()):
            raise ValueError("parts: none of them is a loss that depends on data; add cross_entropy")
        for part in self.parts.values():
            part.check(self.training)
        self._check_plain()

    def _check_plain(self) -> None:
        """Refuse terms that a part whose update is of the cross-entropy alone would not train on."""
        plain = next((name for name, part in self.parts.items() if part.plain_loss), "")
        for name, part in self.parts.items() if plain else ():
            if not isinstance(part, CrossEntropy) and any(has(part, hook) for hook in _TERMS):
                raise ValueError(
                    f"parts: {plain} sends a step on the cross-entropy of single examples alone, and {name} would add "
                    "to the loss in vain; leave out one of them"
                )

    @cached_property
    def _losses(self) -> dict[str, Part]:
        return {name: part for name, part in self.parts.items() if has(part, "loss") and not has(part, "criterion")}

    @cached_property
    def _criteria(self) -> dict[str, Part]:
        return {name: part for name, part in self.parts.items() if has(part, "criterion")}

    @cached_property
    def _penalties(self) -> dict[str, Part]:
        return {name: part for name, part in self.parts.items() if has(part, "penalty")}

    @cached_property
    def _regularisers(self) -> dict[str, Part]:
        return {name: part for name, part in self.parts.items() if has(part, "regulariser")}

    @cached_property
    def _feature_rows(self) -> frozenset[str]:
        whole = any(part.whole_features for part in self.parts.values())
        return frozenset() if whole else models.feature_rows(self.training.model)

    def least_examples(self, graph: Graph) -> dict[str, int]:
        """{part, with its settings that matter: the fewest training examples that a step at a client is on} (see
        `Part.least_examples`)."""
        steps, found = self.training.local_steps, dict[str, int]()
        for name, part in self.parts.items():
            settings = ", ".join(own for own in part.trains_on if hasattr(part, own))
            found[f"{name} ({settings})" if settings else name] = part.least_examples(graph, steps)
        return found

    def fit(
        self,
        w: Tree,
        client: Client,
        key: Tensor,
        given: Tree | None = None,
        anchor: Tree | None = None,
        state: Tree | None = None,
        penalty: Penalty | None = None,
    ) -> Fit:
        """`local_steps` steps from `w`.

        given: {part: what it was sent}. anchor: the received weights for penalties; without it there are none. state:
        of the optimiser, fresh if None. penalty: in place of the parts' penalties; a method that lasts, for the
        training is recorded under its name.
        """
        training, graph = self.training, client.graph
        steps = training.local_steps
        args = {name: own for name, own in (given or {}).items() if name in self.parts}
        for name, part in self._criteria.items():
            if prepared := part.prepare(graph):
                args[name] = args.get(name, {}) | prepared
        regularised = anchor is not None and penalty is None and bool(self._regularisers)
        if regularised:
            args |= {_ANCHOR: map_leaves(lambda leaf: leaf, anchor or {})}
        minibatches = {
            name: part.minibatches(training.model, graph, random.fold(key, "minibatches", name), steps)
            for name, part in self._losses.items()
        }
        return fit(
            self._loss,
            w,
            graph,
            key,
            training.optimiser,
            steps,
            args=args,
            batches={"minibatch": minibatches},
            penalty=penalty or (self._penalty if anchor is not None and self._penalties else None),
            anchor=anchor,
            rows=frozenset() if regularised else self._feature_rows,
            state=state,
        )

    def recalled(self, ctx: Context) -> Tree:
        """{part: what it recalls at the client}, of the parts that do."""
        return {name: own for name, part in self.parts.items() if (own := part.recall(ctx.at(name)))}

    def gradient(self, w: Tree, client: Client, key: Tensor, given: Tree | None = None) -> Tree:
        """The gradient at `w` of the terms that depend on data, on one mini-batch if they draw mini-batches: what a
        plain step of length 1 subtracts."""
        return sub(w, self._one_step.fit(w, client, key, given).w)

    @cached_property
    def _one_step(self) -> "Objective":
        step = replace(self.training, local_steps=1, optimizer="sgd", lr=1.0, weight_decay=0.0, optimizer_state="fresh")
        return Objective(self.parts, step)

    def _loss(self, w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        drawn, model = args.get("minibatch", {}), self.training.model
        terms = {
            f"{name}.loss": part.loss(w, model, graph, key, args.get(name, {}), drawn.get(name, {}))
            for name, part in self._losses.items()
        }
        if _ANCHOR in args:
            terms |= {
                f"{name}.regulariser": part.regulariser(w, args[_ANCHOR], args.get(name, {}))
                for name, part in self._regularisers.items()
            }
        if self._criteria:
            logits = models.apply(model, w, graph, key)
            terms |= {
                f"{name}.criterion": part.criterion(logits, graph, args.get(name, {}))
                for name, part in self._criteria.items()
            }
        return _sum(terms)

    def _penalty(self, w: Tensor, received: Tensor, args: Tree) -> Tensor:
        return _sum(
            {f"{name}.penalty": part.penalty(w, received, args.get(name, {})) for name, part in self._penalties.items()}
        )


def _sum(terms: Mapping[str, Tensor]) -> Tensor:
    """The sum of what hooks give, {part.hook: its term}."""
    first, *others = (answers.term(where, found) for where, found in terms.items())
    return sum(others, first)
