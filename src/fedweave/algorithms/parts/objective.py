"""The local objective: the terms that a client's parts add up, and how the client trains on them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedweave.algorithms.parts.context import Context, Forward, Outputs
from fedweave.algorithms.parts.needs import Needs
from fedweave.algorithms.parts.part import BoundsExamples, Part, has
from fedweave.algorithms.parts.training import BATCHES, COUNTS, RATE, Training, batches
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.bounds import Count
from fedweave.core.federation import Client
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree, check, is_statistic, leaves, nest, sub
from fedweave.errors import ConfigError, ReplyRefused, StepFailed, error_place, listed
from fedweave.learn import Fit, Optimizer, Penalty, fit
from fedweave.ops.tape import without_tape
from fedweave.ops.touched import Sparsified, TouchedRows
from fedweave.sampling.graphs import GraphBatches

# ----------------------------------------------------------------------------------------------------
# Checks of what the hooks of parts return, so that an error in a user's own part names the part and the hook. They look
# only at shapes and types, not at values, so that steps can be traced.


def tree_of(where: str, what: str, value: object) -> Tree:
    """The `value` of the hook `where`, checked to be a tree; what: its meaning, for the error.

    Raises:
        ConfigError: it is no tree.
    """
    try:
        return check(value, f"{where}: is to give {what}, a tree; what it gives")
    except ReplyRefused as refused:
        raise ConfigError(str(refused), code="config.hook") from refused


def state_of(where: str, value: object) -> Tree:
    """A part's state (see `tree_of`)."""
    return tree_of(where, "the part's state", value)


def alike(where: str, what: str, value: object, like: Tree, dtypes: bool = True) -> Tree:
    """A tree with the leaves and shapes of another, and its dtypes unless these may differ.

    Raises:
        ConfigError: a leaf differs; the message names the first.
    """
    tree = tree_of(where, what, value)
    there, due = dict(leaves(tree)), dict(leaves(like))
    faults = [f"{path!r} is missing" for path in due if path not in there]
    faults += [f"{path!r} is not among the weights" for path in there if path not in due]
    for path in due if not faults else ():
        if _form(there[path]) != _form(due[path]):
            faults.append(f"{path!r} is {_form(there[path])}, not {_form(due[path])}")
        elif dtypes and there[path].dtype != due[path].dtype:
            faults.append(f"{path!r} is {_named(there[path].dtype)}, not {_named(due[path].dtype)}")
    if faults:
        raise ConfigError(
            f"{where}: is to give {what}, with the leaves of the weights; {faults[0]}", code="config.hook"
        )
    return tree


def numbers(where: str, value: object, count: int, whose: str) -> Tensor:
    """A tensor [count].

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, Tensor) or value.shape != (count,):
        due = f"a tensor of {count} numbers, one of each {whose}"
        raise ConfigError(f"{where}: is to give {due}; it gives {_form(value)}", code="config.hook")
    return value


def term(where: str, value: object) -> Tensor | float:
    """A term of what a client trains for: a scalar, or a plain number.

    Raises:
        ConfigError: it is something else, such as one loss per node. A batch of clients would add these up over padding
            and other splits.
    """
    if isinstance(value, Tensor) and value.dim():
        remedy = ". Add it up (.sum()), or take the mean over the training examples"
    elif isinstance(value, Tensor | float | int):
        return value
    else:
        remedy = ""
    raise ConfigError(f"{where}: is to give a term of the training loss, a scalar; it gives {_form(value)}{remedy}")


def rows(where: str, value: object, count: int) -> Tree:
    """A tree for `count` clients, one row for each.

    Raises:
        ConfigError: it is no tree, or a leaf does not have one row per client.
    """
    tree = tree_of(where, "what each client gets", value)
    for path, leaf in leaves(tree):
        if not isinstance(leaf, Tensor | Sparsified) or leaf.shape[:1] != (count,):
            raise ConfigError(
                f"{where}: is to give each of the {count} called clients its row, leaves [{count}, …]; {path!r} is "
                f"{_form(leaf)}",
                code="config.hook",
            )
    return tree


def download(where: str, value: object, count: int, weights: bool) -> tuple[Tree, ...]:
    """A part's download: a tree for all called clients, and a tree with a row for each; with `weights`, also each
    client's weights instead of the global ones (`Part.download`).

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, tuple) or len(value) != 2 + weights:
        third = ", and, as the part has `receive`, what each gets instead of the global weights" if weights else ""
        raise ConfigError(
            f"{where}: is to give {2 + weights} trees, what all clients get and what each does ({{}} if nothing)"
            f"{third}; it gives {_form(value)}",
            code="config.hook",
        )
    return tree_of(where, "what all clients get", value[0]), *(rows(where, each, count) for each in value[1:])


def of_clients(where: str, value: object, count: int) -> dict[str, Tensor]:
    """{name: a number per client} among a part's measures (`Part.measures`), without values per pair or for all.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, dict):
        raise ConfigError(
            f"{where}: is to give {{name: a number of each client}}; it gives {_form(value)}", code="config.hook"
        )
    of_all = {name for name, known in value.items() if isinstance(known, int | float)}
    pairs = {name for name, known in value.items() if isinstance(known, Tensor) and known.shape == (count, count)}
    per_client = {name: known for name, known in value.items() if name not in of_all | pairs}
    return {name: numbers(where, known, count, f"client as {name!r}") for name, known in per_client.items()}


def _form(value: object) -> str:
    if value is None:
        return "None"
    if not isinstance(value, Tensor | TouchedRows | Sparsified):
        return f"a {type(value).__name__}"
    return f"a tensor of shape {list(value.shape)}"


def _named(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def odd(value: object, waiting: bool) -> bool:
    """Whether numbers are not finite. On a device other than the CPU the check is skipped unless `waiting`, so that a
    round does not wait for it; the end of the round then shows the fault. A round that is recorded as a whole is
    checked when it is recorded; later its engine runs it again as written where its results are not finite."""
    if not isinstance(value, Tensor) or not (waiting or value.device.type == "cpu"):
        return False
    with without_tape():
        return not bool(value.isfinite().all())


# Keys among the loss's arguments, next to the parts' names: frozen weights, their share, and all clients' class counts.
_WITHIN, _SHARE, _COUNTS = "within", "share", "class counts"


@dataclass(frozen=True)
class CrossEntropy(Part):
    """Mean cross-entropy over the client's training examples."""

    recorded = True

    needs = Needs(supervised=True)

    def objective(self, outputs: Outputs) -> Tensor:
        """Scalar; 0 at a client without training examples."""
        return outputs.cross_entropy(outputs.logits, outputs.graph.masks[TRAIN])


@dataclass(frozen=True)
class BatchCrossEntropy(CrossEntropy):
    """Mean cross-entropy over a mini-batch of the client's training examples. Messages pass along the whole graph.

    batch: examples per step, drawn without replacement until all have been drawn; then drawing starts again.
    """

    batch: Count = 32
    recorded = True

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """{"chosen": bool [steps, e]}, the mini-batch of each step."""
        rows, real = GraphBatches(self.batch).draw(graph, key, steps)
        count = graph.masks.shape[-1]
        chosen = torch.zeros(steps, count + 1, dtype=torch.bool, device=rows.device)
        return {"chosen": chosen.scatter(1, torch.where(real, rows, count), True)[:, :count]}

    def least_examples(self, graph: Graph, steps: int) -> int:
        """The size of the smallest mini-batch."""
        return GraphBatches(self.batch).min_examples(graph, steps)

    def objective(self, outputs: Outputs) -> Tensor:
        """Scalar; 0 at a client without training examples."""
        return outputs.cross_entropy(outputs.logits, outputs.drawn["chosen"])


@dataclass(frozen=True)
class Objective:
    """The sum of the terms of all `parts`, and the settings of its training."""

    parts: Mapping[str, Part]
    training: Training

    def __post_init__(self) -> None:
        if not self._terms:
            raise ValueError("parts: no part has a term of the objective that depends on data; add cross_entropy")
        for name, part in self.parts.items():
            if "nodes" in part.needs.data and models.example(self.training.model) == "edge":
                raise ValueError(f"{name} is about nodes and their neighbors, but the examples are edges; take another")
            part.check(self.training)
            if part.protection.plain_loss and not self.training.loss.plain:
                raise ValueError(
                    f"{name} takes the cross-entropy of single examples as it is; leave out class_weight, focal and "
                    "logit_adjustment"
                )

    @cached_property
    def _terms(self) -> dict[str, Part]:
        return {name: part for name, part in self.parts.items() if has(part, "objective")}

    @cached_property
    def _penalties(self) -> dict[str, Part]:
        return {name: part for name, part in self.parts.items() if has(part, "penalty")}

    @cached_property
    def _feature_rows(self) -> frozenset[str]:
        whole = any("features" in part.needs.reads for part in self.parts.values())
        return frozenset() if whole else models.feature_rows(self.training.model)

    def least_examples(self, graph: Graph) -> dict[str, int]:
        """{part, with the settings that bound it: the fewest training examples of a step at a client}. Steps without
        examples do not count. The number is the smallest setting in `needs.steps.bounds`, all examples without one, or
        the part's `least_examples`."""
        result = dict[str, int]()
        for name, part in self.parts.items():
            bounds = {setting: getattr(part, setting) for setting in part.needs.steps.bounds if hasattr(part, setting)}
            if isinstance(part, BoundsExamples):
                training, count = self.training, int(graph.masks[TRAIN].sum())
                least = part.least_examples(graph, training.local_epochs * count or training.local_steps)
            else:
                least = min([int(graph.masks[TRAIN].sum()), *(size for size in bounds.values() if size > 0)])
            result[f"{name} ({', '.join(bounds)})" if bounds else name] = least
        return result

    def fit(
        self,
        w: Tree,
        client: Client,
        key: Tensor,
        inputs: Tree | None = None,
        anchor: Tree | None = None,
        state: Tree | None = None,
        penalty: Penalty | None = None,
        steps: int | None = None,
        optimizer: Optimizer | None = None,
        limit: Tensor | None = None,
        within: Tree | None = None,
        share: Tensor | float | None = None,
    ) -> Fit:
        """`local_steps` steps from `w`, or the steps of `local_epochs` passes over the training examples, at the
        round's rate.

        inputs: {part: values of its download and recall}. anchor: the received weights for penalties; None for no
        penalties. state: the optimizer's state; None starts it afresh. penalty: replaces the parts' penalties; it must
        be a method that stays the same object, because the traced training is stored under it. steps, optimizer:
        replace the training's. limit: the number of steps after which this client stops, int64 scalar (`learn.fit`).
        within: frozen weights around `w`: the loss is taken at `within` with the leaves of `w` or, with a `share`, at
        share · w + (1 − share) · within.
        """
        training, graph = self.training, client.graph
        if steps is None and limit is None and training.local_epochs and training.batch_size:
            steps = training.local_epochs * (inputs or {})[BATCHES]["batches"]
            limit = training.local_epochs * batches(graph.masks[TRAIN].sum(), training.batch_size)
        steps = training.steps if steps is None else steps
        optimizer = training.update_rule if optimizer is None else optimizer
        extra = self._penalties if anchor is not None and penalty is None else {}
        args = {name: value for name, value in (inputs or {}).items() if name in self._terms or name in extra}
        counts = (inputs or {}).get(COUNTS, {}).get("classes")
        args |= {k: extra for k, extra in ((_WITHIN, within), (_SHARE, share), (_COUNTS, counts)) if extra is not None}
        moves_all = limit is not None and (training.weight_decay > 0 or extra or penalty)
        drawn = {
            name: part.draw(training.model, graph, random.fold(key, "minibatches", name), steps)
            for name, part in self._terms.items()
        }
        return fit(
            self._loss,
            w,
            graph,
            key,
            optimizer,
            steps,
            args=args,
            batches={"drawn": drawn},
            penalty=penalty or (self._penalty if extra else None),
            anchor=anchor,
            rows=frozenset() if moves_all else self._feature_rows & {path for path, _ in leaves(w)},
            state=state,
            limit=limit,
            rate=(inputs or {}).get(RATE, {}).get("rate"),
            clip=training.clip_gradient,
        )

    def recalled(self, ctx: Context) -> Tree:
        """{part: values of its `recall` at the client}, without parts that recall nothing."""
        return {name: memory for name, part in self.parts.items() if (memory := part.recall(ctx.at(name)))}

    def gradient(self, w: Tree, client: Client, key: Tensor, inputs: Tree | None = None) -> Tree:
        """The gradient at `w` of the terms that depend on data, on one mini-batch if they draw mini-batches; computed
        as the difference that a plain step of length 1 makes."""
        inputs = {name: value for name, value in (inputs or {}).items() if name != RATE}
        slope = sub(w, self._one_step.fit(w, client, key, inputs).w)
        if not models.statistics(self.training.model):
            return slope
        return nest({path: 0 * leaf if is_statistic(path) else leaf for path, leaf in leaves(slope)})

    @cached_property
    def _one_step(self) -> "Objective":
        plain: dict[str, Any] = {"optimizer": "sgd", "lr": 1.0, "weight_decay": 0.0, "optimizer_state": "fresh"}
        plain |= {"local_epochs": 0, "clip_gradient": 0.0, "local_momentum": 0.0, "nesterov": False}
        return Objective(self.parts, replace(self.training, local_steps=1, betas=(0.9, 0.999), **plain))

    def _loss(self, w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        drawn = args.get("drawn", {})
        if _WITHIN in args:
            w = _merged(w, args[_WITHIN], args.get(_SHARE))
        loss = self.training.loss.by(args.get(_COUNTS))
        outputs = Outputs(Forward(w, self.training.model, graph, key, loss), {}, {})
        return _sum(
            {
                f"{name}.objective": part.objective(outputs.of(args.get(name, {}), drawn.get(name, {})))
                for name, part in self._terms.items()
            },
            w,
        )

    def _penalty(self, w: Tree, received: Tree, args: Tree) -> Tensor:
        return _sum({f"{name}.penalty": self._pull(name, w, received, args) for name in self._penalties}, w)

    def _pull(self, name: str, w: Tree, received: Tree, args: Tree) -> Tensor:
        try:
            return self._penalties[name].penalty(w, received, args.get(name, {}))
        except KeyError as error:
            paths = [path for path, _ in leaves(w)]
            if not self._feature_rows.issuperset(paths):
                raise
            raise StepFailed(
                f"{name}.penalty failed{error_place(error)}: KeyError: {error}: it got only a part of the weights, "
                f"{listed(paths)}, because weights of features that no node of a client has are trained once for all. "
                'Count leaves that are not in w as 0, or set needs = Needs(reads=("features",)) in the part.',
                code="step-failed.part-of-weights",
            ) from error


def _merged(w: Tree, others: Tree, share: Tensor | float | None) -> Tree:
    """`others` with the leaves of `w` in their places; with a share, a mix of both."""
    now = dict(leaves(w))

    def leaf(path: str, other: Tensor) -> Tensor:
        mine: Tensor = now.get(path, other)
        return mine if share is None or path not in now else share * mine + (1 - share) * other

    return nest(
        {path: leaf(path, other) for path, other in leaves(others)} | {p: n for p, n in now.items() if share is None}
    )


def _sum(terms: Mapping[str, Tensor], w: Tree) -> Tensor:
    """The sum of {part.hook: its term}; if all terms are plain numbers, a tensor with the dtype of `w`."""
    first, *others = (term(where, value) for where, value in terms.items())
    result: Tensor | float = sum(others, first)
    return result if isinstance(result, Tensor) else next(leaf for _, leaf in leaves(w)).new_full((), result)
