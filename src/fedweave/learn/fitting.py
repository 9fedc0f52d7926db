"""`fit`: train one client; inside a vectorised call, all clients at once.

`recorded` records a part of a step by itself, where the step as a whole cannot be.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, leaves, map_leaves, nest
from fedweave.learn.batch import train_batch
from fedweave.learn.descent import Loss, Penalty, Stored, TrainSpec, differentiate, scalar
from fedweave.learn.narrow import Given
from fedweave.learn.optimisers import Optimiser
from fedweave.ops.batched import Batch, Context, Dims, Operands, Operation
from fedweave.ops.capture import Lasting
from fedweave.ops.memory import storage
from fedweave.ops.recording import Form, traced
from fedweave.ops.touched import TouchedRows, materialize

_RECORDED = 1 << 26  # numbers that a server's recorded computation may take at most


def recorded(function: Callable[[Graph, Tree], Tree], graph: Graph, given: Tree) -> Tree:
    """`function(graph, given)`, a tree of tensors: a part of a step that cannot be recorded as a whole.

    It must read everything that changes from call to call from its arguments. Not differentiable.
    """
    part = _Part(function)
    operands, part.spec = pytree.tree_flatten((graph, given))
    found: Tree = part.form.whole(_Recorded.apply(part, *operands))
    return found


def alone(
    function: Callable[..., Any], given: Tree, graph: Graph | None = None, names: tuple[Hashable, ...] = ()
) -> Any:
    """`function(given)`, a tree of tensors of a tree of tensors: what the server computes in every round, within
    `Federation.recording`. As `recorded`, without clients; it may be differentiated inside.

    Of very large tensors it is not recorded: their kernels take longer than launching them, and captures keep copies.

    graph: one that the server holds and that stays as it is, the function's second argument.
    names: what else decides what is computed.
    """
    held = () if graph is None else (graph,)
    fixed, (operands, spec) = len(pytree.tree_leaves(held)), pytree.tree_flatten((held, given))
    paths = tuple(path for path, _ in leaves(given))
    roots = () if graph is None else graph.roots
    if sum(own.numel() for own in operands[fixed:] if isinstance(own, Tensor)) > _RECORDED:
        return function(given, *held)

    def flat(*tensors: Tensor) -> Any:
        graphs, tree = pytree.tree_unflatten(tensors, spec)
        return function(tree, *graphs)

    lasting = Lasting((*roots, graph is not None and storage(graph.y)), frozenset(range(fixed)))
    return traced(flat, (function,), (*names, *paths), roots, operands, lasting)


class _Part:
    """What `recorded` does, with the tensors taken out."""

    def __init__(self, function: Callable[[Graph, Tree], Tree]) -> None:
        self.function, self.form = function, Form()
        self.spec: pytree.TreeSpec

    def __call__(self, *operands: object) -> Tree:
        return self.function(*pytree.tree_unflatten(operands, self.spec))


class _Recorded(Operation):
    """`recorded` on tensors alone, and its batching rule."""

    @staticmethod
    def forward(part: _Part, *operands: object) -> tuple[Tensor, ...]:
        return part.form.flat(part(*operands))

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> None:
        raise NotImplementedError("recorded parts of a step cannot be differentiated through")

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, part: _Part, *operands: object) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        dims = in_dims[1:]
        graph, given = pytree.tree_unflatten(operands, part.spec)
        names = (*(path for path, _ in leaves(given)), *dims)
        result = traced(vmap(part, in_dims=dims), (part.function,), names, graph.roots, list(operands))
        outputs = part.form.flat(result)
        return outputs, (0,) * len(outputs)


class Fit(NamedTuple):
    """What training one client leaves.

    w:     the trained weights. loss: the last step's, a scalar, without the penalty.
    state: the optimiser's, for the next `fit`; {} if it remembers nothing.
    """

    w: Tree
    loss: Tensor
    state: Tree


def fit(
    loss: Loss,
    w: Tree,
    graph: Graph,
    key: Tensor,
    optimiser: Optimiser,
    steps: int,
    *,
    state: Tree | None = None,
    args: Tree | None = None,
    batches: Tree | None = None,
    penalty: Penalty | None = None,
    anchor: Tree | None = None,
    rows: frozenset[str] = frozenset(),
    limit: Tensor | None = None,
) -> Fit:
    """Train `w` on one client for `steps` optimiser steps.

    loss:    (w, graph, key of the step, args) -> scalar. It must read everything that changes from call to call from
             its arguments: inside a vectorised call its kernels are recorded once and replayed.
    state:   the optimiser's, as an earlier `fit` left it; None or {} to start afresh.
    batches: leaves [steps, …], such as mini-batches drawn beforehand; step s finds row s of each in `args`.
    penalty: (w, anchor, args) -> scalar, which depends on the weights alone. With `rows` it must be a sum over their
             elements, and is taken of parts of these: of each leaf that it finds in w.
    rows:    paths of weights [features, …] that meet only `graph.x @ weight` (`core.model.feature_rows`). When all
             clients start from the same values and moments, only the rows that a client's features touch are trained
             per client, and these weights and their moments come back as `TouchedRows`. Trees in `args` with such
             leaves, such as a control variate, are cut to the same rows.
    limit:   after how many of the `steps` the client stops, int64 scalar, which may differ between clients; none with
             the `state` of an optimiser, which then starts afresh, nor with `rows` that more than data moves.

    Training cannot be differentiated through. What is given stays as it is. If the last loss is not finite, some of the
    weights are not either.

    Raises:
        ValueError: a penalty without an anchor, the state of another optimiser, or of any with a limit, or a loss or
            penalty that is no scalar.
    """
    if penalty is not None and anchor is None:
        raise ValueError("a penalty needs the anchor that it pulls to; give fit(…, anchor=…)")
    if state and set(state) != {*optimiser.moments, "steps"}:
        raise ValueError(f"{optimiser} cannot go on from a state of {', '.join(state)}; start afresh with state=None")
    if state and limit is not None:
        raise ValueError(
            "where clients take different numbers of steps, their optimisers start afresh; leave out state"
        )
    plan = TrainSpec(loss, penalty, optimiser, steps, rows)
    whole = map_leaves(lambda leaf: leaf, w)
    given = (whole, anchor, graph, key, args or {}, batches or {}, state or {}, limit)
    operands, plan.spec = pytree.tree_flatten(given)
    after = Fit(*pytree.tree_unflatten(_Fit.apply(plan, *operands), plan.result))
    after = after if limit is None else after._replace(state={})
    partly = [leaf for _, leaf in leaves({"w": after.w, "state": after.state}) if isinstance(leaf, TouchedRows)]
    for leaf in partly:
        if leaf.matrix is partly[0].matrix:  # one tensor, so that arithmetic sees that they are the same
            leaf.rows = partly[0].rows
    return after


def where_trained(trains: Tensor, trained: Tree, start: Tree) -> Tree:
    """The weights that a client keeps: `trained` ones where it `trains` (bool scalar), else those of the `start`, for
    without examples steps are of weight decay alone. Partly stored leaves come back whole."""
    return map_leaves(lambda new, old: torch.where(trains, new, old), trained, start)


class _Fit(Operation):
    """`fit` on tensors alone, and its batching rule."""

    @staticmethod
    def forward(plan: TrainSpec, *operands: object) -> tuple[Tensor, ...]:
        w, anchor, graph, key, args, batches, state, limit = pytree.tree_unflatten(operands, plan.spec)
        own = _own(w, w)
        moments = {name: _own(state[name], w) if state else own.zeros() for name in plan.optimiser.moments}
        minibatch = dict(leaves(batches))

        def objective(key: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
            current = own.shaped(tensors[len(minibatch) :])
            now = dict(zip(minibatch, tensors, strict=False))
            last = total = scalar("loss", plan.loss(nest(current), graph, key, nest(dict(leaves(args)) | now)))
            if plan.penalty is not None:
                pull = scalar("penalty", plan.penalty(nest(current), anchor or {}, args))
                total, last = total + pull, last + 0 * pull  # as in `learn.batch`
            return last, total

        step = differentiate(objective, len(own), len(minibatch))
        taken = materialize(state["steps"]) if state else torch.zeros((), dtype=torch.int64, device=key.device)
        past = {name: kept.tensors for name, kept in moments.items()}
        last = plan.train_loop(
            own.tensors, past, taken, step, key, lambda at: [leaf[at] for leaf in minibatch.values()], limit
        )
        own.mark(last)
        after = {name: nest(kept.shaped(kept.tensors)) for name, kept in moments.items()}
        result = nest(own.shaped(own.tensors)), last, after | ({"steps": taken + plan.steps} if after else {})
        outputs, plan.result = pytree.tree_flatten(result)
        return tuple(outputs)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> None:
        raise NotImplementedError("fit cannot be differentiated through")

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, plan: TrainSpec, *operands: Tensor) -> Given:
        moved = [o.movedim(d, 0) if d else o for o, d in zip(operands, in_dims[1:], strict=True)]
        dims = [None if d is None else 0 for d in in_dims[1:]]
        given = pytree.tree_unflatten(moved, plan.spec)
        return train_batch(plan, info.batch_size, *zip(given, pytree.tree_unflatten(dims, plan.spec), strict=True))


def _own(tree: Tree, like: Tree) -> Stored:
    """A tree's leaves, in the order of another's, as tensors to be trained in place."""
    flat = dict(leaves(tree))
    return Stored({path: materialize(flat[path]).detach().clone() for path, _ in leaves(like)}, 0)
