"""Training a batch of clients: `vmap(loss)` forward, ordinary autograd outside, stacked weights updated in place."""

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.core.tree import leaves, nest
from fedweave.learn.descent import Stored, TrainSpec, differentiate
from fedweave.ops.recording import stay_eager, traced
from fedweave.ops.sparse import Sparse

Given = tuple[Any, Any]  # a tree, and for each of its leaves 0 (one per client, stacked) or None (shared)


def train_batch(
    plan: TrainSpec, clients: int, w: Given, anchor: Given, graph: Given, key: Given, args: Given, batches: Given
) -> tuple[Any, Any]:
    """Train all clients of a batch; returns outputs and their batch dimensions as `_Fit.vmap` must.

    Weights named in `plan.rows` that all clients start from alike are kept twice: the rows that a client's features
    touch, per client, and once for all a copy in which every row moves as an untouched one does.
    """
    stay_eager()
    batch = _Batch(plan, clients, w, anchor, graph, args)
    operands, spec = pytree.tree_flatten((batch.graph[0], args[0], batch.fixed))
    own, rest = batch.own, batch.rest
    minibatch, minibatch_dims = dict(leaves(batches[0])), dict(leaves(batches[1]))
    dims_of_args = nest(dict(leaves(args[1])) | minibatch_dims)

    def objective(key: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        now, tensors, count = dict(zip(minibatch, given, strict=False)), given[len(minibatch) :], len(own.tensors)
        data, mine, fixed = pytree.tree_unflatten(tensors[count + len(rest) :], spec)
        current = own.shaped(tensors[:count])
        seen = nest(dict(leaves(mine)) | now)
        last = vmap(plan.loss, in_dims=(0, batch.graph[1], 0, dims_of_args))(nest(current), data, key, seen)
        total = last.sum()
        if plan.penalty is not None:
            pull = plan.penalty
            for path, value in current.items():
                total = total + vmap(pull, in_dims=(0, batch.fixed_dim[path], args[1]))(value, fixed[path], mine).sum()
            for path, value in zip(rest, tensors[count:], strict=False):
                total = total + pull(value, fixed[path + "/rest"], mine)
        return last, total

    tensors = [*own.tensors, *rest.values()]
    shapes = ((path, leaf.shape, leaf.dtype) for path, leaf in minibatch.items())
    names = (*own.shapes.items(), *batch.fixed_dim.items(), *leaves(dims_of_args), *shapes)
    gradients = differentiate(objective, len(tensors), len(minibatch))
    step = traced(gradients, (plan.loss, plan.penalty), names, batch.graph[0], operands)

    def row(at: int) -> list[Tensor]:
        return [leaf[at] if minibatch_dims[path] is None else leaf[:, at] for path, leaf in minibatch.items()]

    last = plan.train_loop(tensors, step, key[0] if key[1] == 0 else key[0].expand(clients), row)
    plan.split = frozenset(rest)
    outputs: list[Tensor] = []
    dims: list[int | None] = []
    for path, tensor in own.shaped(own.tensors).items():
        outputs += [rest[path], batch.rows, tensor] if path in rest else [tensor]
        dims += [None, 0, 0] if path in rest else [0]
    return (*outputs, last), (*dims, 0)


class _Batch:
    """Weights, anchors and data of a batch, narrowed to touched rows where that is possible.

    own: stacked weights. rest: {path: the shared copy}. fixed: {path: anchor}. rows: int64 [P, m] touched features.
    """

    def __init__(self, plan: TrainSpec, clients: int, w: Given, anchor: Given, graph: Given, args: Given) -> None:
        shared = {path for path, dim in leaves(w[1]) if dim is None}
        self.graph = graph
        self.fixed: dict[str, Tensor] = dict(leaves(anchor[0] or {}))
        self.fixed_dim: dict[str, int | None] = dict(leaves(anchor[1] or {}))
        self.rest: dict[str, Tensor] = {}
        self.rows = torch.empty(0)
        alike = {path for path in shared if self.fixed_dim.get(path) is None}
        touched = plan.rows & alike if plan.penalty is None or _all_shared(args[1]) else frozenset()
        if touched and self._narrow():
            for path in touched & self.fixed.keys():
                self.fixed[path + "/rest"], self.fixed_dim[path] = self.fixed[path], 0
                self.fixed[path] = self._gather(self.fixed[path])
            self.rest = {path: tensor.clone() for path, tensor in leaves(w[0]) if path in touched}
        own: dict[str, Tensor] = {}
        for path, tensor in leaves(w[0]):
            if path in self.rest:
                own[path] = self._gather(tensor)
            else:
                own[path] = (tensor.expand(clients, *tensor.shape) if path in shared else tensor).clone()
        self.own = Stored(own, 1)

    def _narrow(self) -> bool:
        """Drop the features that a client's nodes do not have, if that leaves out enough to be worth it."""
        x = self.graph[0].x
        if not isinstance(x, Sparse) or self.graph[1].x.client_index is None:
            return False
        rows, blocks = x.blocks.touched
        if rows.shape[1] > 0.7 * x.blocks.cols:
            return False
        self.rows = rows
        self.graph = tuple(g._replace(x=Sparse(blocks, g.x.client_index)) for g in self.graph)
        return True

    def _gather(self, tensor: Tensor) -> Tensor:
        """Rows of [F, …] per client: [P, m, …], zero at padding."""
        return torch.cat([tensor, torch.zeros_like(tensor[:1])])[self.rows]


def _all_shared(dims: Any) -> bool:
    return all(dim is None for _, dim in leaves(dims))
