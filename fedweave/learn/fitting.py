"""`fit`: train one client; inside a vectorised call, all clients at once."""

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, leaves, map_leaves, nest
from fedweave.learn.batch import train_batch
from fedweave.learn.descent import Loss, Penalty, Stored, TrainSpec, differentiate
from fedweave.learn.optimisers import Optimiser
from fedweave.ops.touched import TouchedRows


def fit(
    loss: Loss,
    w: Tree,
    graph: Graph,
    key: Tensor,
    optimiser: Optimiser,
    steps: int,
    *,
    args: Tree | None = None,
    batches: Tree | None = None,
    penalty: Penalty | None = None,
    anchor: Tree | None = None,
    rows: frozenset[str] = frozenset(),
) -> tuple[Tree, Tensor]:
    """Train `w` on one client for `steps` optimiser steps.

    loss:    (w, graph, key of the step, args) -> scalar. It must read everything that changes from call to call from
             its arguments: inside a vectorised call its kernels are recorded once and replayed.
    batches: leaves [steps, …], such as mini-batches drawn beforehand; step s finds row s of each in `args`.
    penalty: (leaf of w, leaf of anchor, args) -> scalar, summed over leaves; must be a sum over elements.
    rows:    paths of weights [features, …] that meet only `graph.x @ weight` (`core.model.feature_rows`). When all
             clients start from the same values, only the rows that a client's features touch are trained per client,
             and these weights come back as `TouchedRows`.

    Returns the trained weights and the last step's loss (scalar, without the penalty). Training cannot be
    differentiated through.
    """
    if penalty is not None and anchor is None:
        raise ValueError("a penalty needs the anchor that it pulls to; give fit(…, anchor=…)")
    plan = TrainSpec(loss, penalty, optimiser, steps, rows)
    whole = map_leaves(lambda leaf: leaf, w)
    operands, plan.spec = pytree.tree_flatten((whole, anchor, graph, key, args or {}, batches or {}))
    outputs = list(_Fit.apply(plan, *operands))
    last = outputs.pop()
    trained: dict[str, Any] = {}
    for path, _ in leaves(whole):
        trained[path] = TouchedRows(*(outputs.pop(0) for _ in range(3))) if path in plan.split else outputs.pop(0)
    return nest(trained), last


class _Fit(torch.autograd.Function):
    """`fit` on tensors alone, and its batching rule."""

    @staticmethod
    def forward(plan: TrainSpec, *operands: Any) -> tuple[Tensor, ...]:
        w, anchor, graph, key, args, batches = pytree.tree_unflatten(operands, plan.spec)
        own = Stored({path: tensor.detach().clone() for path, tensor in leaves(w)}, 0)
        fixed, minibatch = dict(leaves(anchor or {})), dict(leaves(batches))

        def objective(key: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
            current = own.shaped(tensors[len(minibatch) :])
            now = dict(zip(minibatch, tensors, strict=False))
            last = total = plan.loss(nest(current), graph, key, nest(dict(leaves(args)) | now))
            if plan.penalty is not None:
                for path, value in current.items():
                    total = total + plan.penalty(value, fixed[path], args)
            return last, total

        step = differentiate(objective, len(own.tensors), len(minibatch))
        last = plan.train_loop(own.tensors, step, key, lambda at: [leaf[at] for leaf in minibatch.values()])
        return *own.shaped(own.tensors).values(), last

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise NotImplementedError("fit cannot be differentiated through")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], plan: TrainSpec, *operands: Any) -> tuple[Any, Any]:
        moved = [o.movedim(d, 0) if d else o for o, d in zip(operands, in_dims[1:], strict=True)]
        dims = [None if d is None else 0 for d in in_dims[1:]]
        given = pytree.tree_unflatten(moved, plan.spec)
        return train_batch(plan, info.batch_size, *zip(given, pytree.tree_unflatten(dims, plan.spec), strict=True))
