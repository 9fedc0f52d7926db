"""Training a batch of clients: `vmap(loss)` forward, ordinary autograd outside, stacked weights updated in place."""

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.core.tree import Tree, leaves, nest
from fedweave.learn.descent import TrainSpec, differentiate, scalar
from fedweave.learn.narrow import Given, Kept, Touched, whole
from fedweave.ops.recording import traced
from fedweave.ops.touched import STACKED, TouchedRows, shared_scalar


def train_batch(
    plan: TrainSpec, clients: int, w: Given, anchor: Given, graph: Given, key: Given, args: Given, batches: Given,
    state: Given, limit: Given,
) -> Given:  # fmt: skip
    """Train all clients of a batch; returns outputs and their batch dimensions as `_Fit.vmap` must.

    Weights named in `plan.rows` that all clients start from alike, moments included, are kept twice: the rows that a
    client's features touch, per client, and once for all a copy in which every row moves as an untouched one does.
    """
    batch = _Batch(plan, clients, w, anchor, graph, args, state)
    operands, spec = pytree.tree_flatten((batch.graph[0], batch.args[0], batch.anchor[0], batch.beside))
    own, rest, tensors = batch.weights.own, batch.weights.rest, batch.weights.tensors
    minibatch, minibatch_dims = dict(leaves(batches[0])), dict(leaves(batches[1]))
    dims_of_args = nest(dict(leaves(batch.args[1])) | minibatch_dims)

    def objective(key: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        now, given = dict(zip(minibatch, given, strict=False)), given[len(minibatch) :]
        data, mine, fixed, beside = pytree.tree_unflatten(given[len(tensors) :], spec)
        current, untouched = own.shaped(given[: len(own)]), rest.shaped(given[len(own) : len(tensors)])
        seen = nest(dict(leaves(mine)) | now)
        last = vmap(plan.loss, in_dims=(0, batch.graph[1], 0, dims_of_args))(nest(current), data, key, seen)
        total = scalar("loss", last, clients).sum()
        if plan.penalty is not None:
            pulls = vmap(plan.penalty, in_dims=(0, batch.anchor[1], batch.args[1]))(nest(current), fixed, mine)
            total = total + scalar("penalty", pulls, clients).sum()
            last = last + 0 * pulls  # so that one that is no number shows, though it has no gradient
            if untouched:
                total = total + scalar("penalty", plan.penalty(nest(untouched), *beside))
        return last, total

    shapes = ((path, leaf.shape, leaf.dtype) for path, leaf in minibatch.items())
    names = (*own.shapes.items(), *leaves(batch.anchor[1] or {}), *leaves(dims_of_args), *shapes)
    gradients = differentiate(objective, len(tensors), len(minibatch))

    def step(*given: Tensor) -> tuple[Tensor, ...]:
        result: tuple[Tensor, ...] = traced(
            gradients, (plan.loss, plan.penalty), names, batch.graph[0].roots, [*given, *operands]
        )
        return result

    def row(at: int) -> list[Tensor]:
        return [leaf[at] if minibatch_dims[path] is None else leaf[:, at] for path, leaf in minibatch.items()]

    moments = {name: kept.tensors for name, kept in batch.moments.items()}
    keys = key[0] if key[1] == 0 else key[0].expand(clients)
    most = limit[0] if limit[1] == 0 or limit[0] is None else limit[0].expand(clients)
    last = plan.train_loop(tensors, moments, batch.taken, step, keys, row, most, len(own))
    own.mark(last)
    state_after, state_dims = batch.state(plan.steps)
    outputs, plan.result = pytree.tree_flatten((batch.weights.tree(), last, state_after))
    return tuple(outputs), tuple(pytree.tree_leaves((batch.weights.dims(), 0, state_dims)))


class _Batch:
    """Weights, moments, anchors and data of a batch, narrowed to touched rows where that is possible.

    weights: as they are trained. moments: {name: as the weights}. taken: steps taken before, [], or [P] where clients
    differ. graph, anchor, args: as given, narrowed too. beside: anchor and args as the rows that no client touches find
    them.
    """

    def __init__(
        self, plan: TrainSpec, clients: int, w: Given, anchor: Given, graph: Given, args: Given, state: Given
    ) -> None:
        self.graph = graph
        self._clients, self.taken = clients, torch.zeros((), dtype=torch.int64, device=graph[0].device)
        if state[0]:
            steps = state[0]["steps"]
            self.taken = steps.rest if isinstance(steps, TouchedRows) else steps
        names = plan.optimiser.moments if state[0] else ()
        given = {"": w} | {name: (state[0][name], state[1][name]) for name in names}
        touched = Touched.of(graph) if self._alike(plan, w) else None
        split = {name: touched.split(tree, plan.rows) for name, tree in given.items()} if touched else {}
        penalised, self.beside = plan.penalty is not None, ()
        found = [touched.narrowed_tree(tree, plan.rows, penalised) for tree in (anchor, args)] if touched else [None]
        if touched is None or None in split.values() or None in found:
            touched, split = None, {}
            self.anchor, self.args = (whole(tree) for tree in (anchor, args))
        else:
            self.graph = touched.narrowed(graph)
            (self.anchor, self.args), self.beside = zip(*found, strict=True)
        paths = [path for path, _ in leaves(w[0])]
        kept = {name: Kept.of(tree, paths, clients, split.get(name) or {}, touched) for name, tree in given.items()}
        self.weights = kept.pop("")
        self.moments = kept or {name: self.weights.zeros() for name in plan.optimiser.moments}

    def _alike(self, plan: TrainSpec, w: Given) -> bool:
        """Whether untouched rows start alike at all clients, their moments and what a penalty finds aside."""
        stored = dict(leaves(w[0]))
        shared = {path for path, dim in leaves(w[1]) if dim is None or isinstance(stored[path], TouchedRows)}
        return bool(plan.rows) and plan.rows <= shared and self.taken.dim() == 0

    def state(self, steps: int) -> tuple[Tree, Tree]:
        """The optimiser's state after `steps` further steps, and its batch dimensions."""
        if not self.moments:
            return {}, {}
        trees: dict[str, Given] = {name: (kept.tree(), kept.dims()) for name, kept in self.moments.items()}
        taken = self.taken + steps
        if taken.dim():
            trees["steps"] = taken, 0
        else:  # to be seen from what they are, not from their values, when the next `fit` finds them
            trees["steps"] = shared_scalar(taken, self._clients), STACKED
        state, dims = ({name: pair[i] for name, pair in trees.items()} for i in (0, 1))
        return state, dims
