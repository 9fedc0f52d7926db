"""Training of one client and, inside a vectorized call, of a batch of clients, by one loop."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, is_statistic, leaves, map_leaves, nest
from fedweave.learn.optimizers import Moments, Optimizer
from fedweave.learn.padding import PaddedTensors
from fedweave.learn.touched_features import BatchTree, Split, TouchedFeatures, TreeDims, fill_in
from fedweave.ops.batching import Batch, Context, Dims, Operands, Operation
from fedweave.ops.recording import record_or_play
from fedweave.ops.tape import kernel
from fedweave.ops.touched_rows import STACKED, TouchedRows, materialize, shared_scalar

Loss = Callable[[Tree, Graph, Tensor, Tree], Tensor]
Penalty = Callable[[Tree, Tree, Tree], Tensor]
Move = Callable[..., None]  # (weights, gradients, moments, steps[, rate])
Gradients = Callable[..., tuple[Tensor, ...]]  # (key, *minibatch, *weights) -> (last loss, *gradients)


class Fit(NamedTuple):
    """The result of training one client.

    w:     the trained weights. loss: the last step's loss, a scalar, without the penalty.
    state: the optimizer state for the next `fit`; {} if the optimizer has none.
    """

    w: Tree
    loss: Tensor
    state: Tree


def fit(
    loss: Loss,
    w: Tree,
    graph: Graph,
    key: Tensor,
    optimizer: Optimizer,
    steps: int,
    *,
    state: Tree | None = None,
    args: Tree | None = None,
    batches: Tree | None = None,
    penalty: Penalty | None = None,
    anchor: Tree | None = None,
    rows: frozenset[str] = frozenset(),
    limit: Tensor | None = None,
    rate: Tensor | None = None,
    clip: float = 0.0,
) -> Fit:
    """Train `w` on one client for `steps` optimizer steps.

    loss:    (w, graph, key of the step, args) -> scalar. It must read everything that changes from call to call from
             its arguments: inside a vectorized call its kernels are recorded once and replayed.
    state:   the optimizer state from an earlier `fit`; None or {} starts from scratch.
    batches: leaves [steps, …], such as mini-batches drawn beforehand; step s finds row s of each in `args`.
    penalty: (w, anchor, args) -> scalar, which depends only on the weights. With `rows` it must be a sum over their
             elements, and is called on parts of the weights. Running statistics (`core.tree.is_statistic`) are not
             among its arguments.
    rows:    paths of weights [features, …] that meet only `graph.x @ weight` (`core.model.feature_rows`). When all
             clients start from the same values and moments, only the rows that a client's features touch are trained
             per client. These weights and their moments come back as `TouchedRows`. Trees in `args` with such
             leaves, such as a control variate, are narrowed to the same rows.
    limit:   number of `steps` after which the client stops, int64 scalar, which may differ between clients. It excludes
             `state`, because optimizers then start from scratch, and `rows` that a penalty moves.
    rate:    a factor of the optimizer's learning rate, float64 scalar, the same for all clients; 1 if None.
    clip:    largest L2 norm of a step's gradient, before the optimizer's weight decay; 0 for no limit. With a penalty
             all `rows` are trained per client.

    Training cannot be differentiated through. The arguments are not changed. If the last loss is not finite, some of
    the weights are not finite.

    Raises:
        ValueError: a penalty without an anchor, the state of another optimizer, a state together with a limit, or a
            loss or penalty that is not a scalar.
    """
    if penalty is not None and anchor is None:
        raise ValueError("a penalty needs an anchor; give fit(…, anchor=…)")
    if state and set(state) != {*optimizer.moments, "steps"}:
        raise ValueError(f"{optimizer} cannot continue from a state of {', '.join(state)}; start with state=None")
    if state and limit is not None:
        raise ValueError(
            "where clients take different numbers of steps, their optimizers start from scratch; leave out state"
        )
    rows = frozenset() if clip and penalty is not None else rows  # the norm is over all rows that a client moves
    plan = TrainSpec(loss, penalty, optimizer, steps, rows, clip)
    copied_tree = map_leaves(lambda leaf: leaf, w)
    inputs = (copied_tree, anchor, graph, key, args or {}, batches or {}, state or {}, limit, rate)
    operands, plan.spec = pytree.tree_flatten(inputs)
    result = Fit(*pytree.tree_unflatten(_Fit.apply(plan, *operands), plan.result))
    if limit is not None:
        result = result._replace(state={})
    partly = [leaf for _, leaf in leaves({"w": result.w, "state": result.state}) if isinstance(leaf, TouchedRows)]
    for leaf in partly:
        if leaf.matrix is partly[0].matrix:  # one tensor for all, so that arithmetic sees equal rows
            leaf.rows = partly[0].rows
    return result


def keep_trained(trains: Tensor, trained: Tree, start: Tree) -> Tree:
    """The weights that a client keeps: `trained` if it `trains` (bool scalar), else `start`, because steps without
    examples only decay the weights. Partly stored leaves come back whole."""
    return map_leaves(lambda new, old: torch.where(trains, new, old), trained, start)


@dataclass(eq=False)
class TrainSpec:
    """The parts of a `fit` that are not tensors.

    spec:   tree structure of the operands. result: tree structure of the outputs (weights, last loss, optimizer state).
    """

    loss: Loss
    penalty: Penalty | None
    optimizer: Optimizer
    steps: int
    rows: frozenset[str]
    clip: float = 0.0
    spec: pytree.TreeSpec = field(init=False)
    result: pytree.TreeSpec = field(init=False)

    def train_loop(
        self,
        paths: Collection[str],
        tensors: list[Tensor],
        moments: Moments,
        steps_before: Tensor,
        gradients: Gradients,
        key: Tensor,
        minibatch: Callable[[int], list[Tensor]],
        limit: Tensor | None = None,
        weight_count: int | None = None,
        rate: Tensor | None = None,
    ) -> Tensor:
        """Train `tensors` in place and return the last step's loss, with the shape of `key`.

        paths: paths of the first tensors. Running statistics among them move by the difference that is their gradient;
        the optimizer moves all other tensors. moments: optimizer state, changed in place. steps_before: number of
        earlier steps, [], or [P] if it differs between clients.
        minibatch: step -> the step's mini-batch. limit: number of steps after which a client's weights stay, with the
        shape of `key`; these weights are the first `weight_count` tensors, all if None. rate: a factor of the learning
        rate, scalar.
        """
        numbers = steps_before.to(torch.float32, copy=True)
        statistics = {at for at, path in enumerate(paths) if is_statistic(path)}
        moving = [at for at in range(len(tensors)) if at not in statistics]
        moving_per_client = None if weight_count is None else weight_count - len(statistics)
        moving_moments = dict[str, list[Tensor]]()
        for name, moment in moments.items():
            moving_moments[name] = [moment[at] for at in moving]

        move_runs = _step_of_runs(self.optimizer, list(moments)) if numbers.dim() else None
        factor = () if rate is None else (rate,)
        last = tensors[0].new_zeros(key.shape)
        for step in range(self.steps):
            loss, *grads = gradients(random.fold(key, step), *minibatch(step), *tensors)
            before = [] if limit is None else [tensor.clone() for tensor in tensors[:weight_count]]

            # 1. the optimizer moves weights, and statistics move by their difference
            weights, slopes = [tensors[at] for at in moving], [grads[at] for at in moving]
            if self.clip:
                slopes = clip_gradients(slopes, self.clip, key.dim(), moving_per_client)
            slopes = [slope.contiguous() for slope in slopes]
            numbers.add_(1)
            if move_runs is None:
                self.optimizer.move(weights, slopes, moving_moments, [numbers] * len(weights), *factor)
            else:
                move_runs(weights, slopes, list(moving_moments.values()), numbers, *factor)
            for at in statistics:
                tensors[at].sub_(grads[at])

            # 2. clients that have reached their limit return to what they had
            if limit is not None:
                continues = limit > step
                for tensor, old in zip(tensors, before, strict=False):
                    mask = continues.view(*continues.shape, *[1] * (tensor.dim() - continues.dim()))
                    tensor.copy_(torch.where(mask, tensor, old))
                loss = torch.where(continues, loss, last)
            last = loss
        return last


def clip_gradients(gradients: list[Tensor], max_norm: float, batch_dims: int, count: int | None = None) -> list[Tensor]:
    """Gradients scaled so that the L2 norm of all of a client's is at most `max_norm`
    (`torch.nn.utils.clip_grad_norm_`).

    batch_dims: leading dimensions, over clients. count: number of leading gradients that belong to clients' separate
    weights; all other gradients are 0.
    """
    per_client = gradients[:count]
    squares = [slope.reshape(*slope.shape[:batch_dims], -1).square().sum(-1) for slope in per_client]  # [] or [P]
    share = (max_norm / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp(max=1.0)  # [] or [P]
    scaled = [slope * share.view(*share.shape, *[1] * (slope.dim() - batch_dims)) for slope in per_client]
    return scaled + gradients[len(per_client) :]


def _step_of_runs(optimizer: Optimizer, names: list[str]) -> Move:
    """A step of stacked tensors whose numbers of steps [P] differ; adjacent clients with equal numbers move at once.

    names: names of the moments. A recording has it as one call; it would take seconds to record a thousand calls.
    """

    def move(
        weights: list[Tensor], gradients: list[Tensor], moments: list[list[Tensor]], numbers: Tensor, *rate: Tensor
    ) -> None:
        starts = list(range(1, len(numbers)))  # on accelerators one run for each client: reading values would wait
        if numbers.device.type == "cpu":
            starts = (numbers.diff().nonzero()[:, 0] + 1).tolist()
        runs = [slice(*ends) for ends in pairwise([0, *starts, len(numbers)])]
        past = {name: _cut_into(runs, each) for name, each in zip(names, moments, strict=True)}
        counts = [numbers[run.start] for run in runs] * len(weights)
        optimizer.move(_cut_into(runs, weights), _cut_into(runs, gradients), past, counts, *rate)

    move.changes_inputs = True  # type: ignore[attr-defined]
    return kernel(move)


def _cut_into(runs: list[slice], tensors: list[Tensor]) -> list[Tensor]:
    pieces = []
    for tensor in tensors:
        pieces += [tensor[run] for run in runs]
    return pieces


def scalar(what: str, value: Tensor, clients: int = 0) -> Tensor:
    """Check that a loss or a penalty is a scalar for each of `clients`, or a single scalar if 0.

    Raises:
        ValueError: it has more numbers, such as one for each node; their sum would include padding.
    """
    if (value.dim() if isinstance(value, Tensor) else 0) != bool(clients):
        shape = list(value.shape[bool(clients) :])
        raise ValueError(
            f"fit: the {what} must be a scalar; it is a tensor of shape {shape}. Add it up (.sum()), or take the mean "
            "over the training examples"
        )
    return value


def differentiate(objective: Callable[..., tuple[Tensor, Tensor]], count: int, first: int) -> Gradients:
    """From (key, *tensors) -> (last, total) to (last, *gradients of `total` in `count` tensors from number `first`)."""

    def gradients(key: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            free = [tensor.detach().requires_grad_() for tensor in tensors[first : first + count]]
            last, total = objective(key, *tensors[:first], *free, *tensors[first + count :])
            grads = torch.autograd.grad(total, free, allow_unused=True)
        filled = [torch.zeros_like(f) if grad is None else grad for f, grad in zip(free, grads, strict=True)]
        return last.detach(), *filled

    return gradients


class _Fit(Operation):
    """`fit` with only tensors as operands, and its batching rule."""

    @staticmethod
    def forward(plan: TrainSpec, *operands: object) -> tuple[Tensor, ...]:
        w, anchor, graph, key, args, batches, state, limit, rate = pytree.tree_unflatten(operands, plan.spec)
        weights = _trainable(w, w)
        moments = {name: _trainable(state[name], w) if state else weights.zeros() for name in plan.optimizer.moments}
        minibatch = dict(leaves(batches))

        def objective(key: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
            current = nest(weights.reshape(tensors[len(minibatch) :]))
            args_now = nest(dict(leaves(args)) | dict(zip(minibatch, tensors, strict=False)))
            last = total = scalar("loss", plan.loss(current, graph, key, args_now))
            if plan.penalty is not None:
                inputs = map(_without_statistics, (current, anchor or {}, args))
                pull = scalar("penalty", plan.penalty(*inputs))
                total, last = total + pull, last + 0 * pull  # as in `train_batch`
            return last, total

        gradients = differentiate(objective, len(weights), len(minibatch))
        steps_before = materialize(state["steps"]) if state else torch.zeros((), dtype=torch.int64, device=key.device)

        def minibatch_of(step: int) -> list[Tensor]:
            return [leaf[step] for leaf in minibatch.values()]

        past = {name: moment.tensors for name, moment in moments.items()}
        last = plan.train_loop(
            weights.shapes, weights.tensors, past, steps_before, gradients, key, minibatch_of, limit, None, rate
        )
        weights.spread_nonfinite(last)
        state_after: Tree = {name: nest(moment.reshape(moment.tensors)) for name, moment in moments.items()}
        if state_after:
            state_after["steps"] = steps_before + plan.steps
        trained = nest(weights.reshape(weights.tensors))
        outputs, plan.result = pytree.tree_flatten((trained, last, state_after))
        return tuple(outputs)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> None:
        raise NotImplementedError("fit cannot be differentiated through")

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, plan: TrainSpec, *operands: Tensor) -> TreeDims:
        stacked_operands = [o.movedim(d, 0) if d else o for o, d in zip(operands, in_dims[1:], strict=True)]
        dims = [None if d is None else 0 for d in in_dims[1:]]
        inputs = pytree.tree_unflatten(stacked_operands, plan.spec)
        return train_batch(plan, info.batch_size, *zip(inputs, pytree.tree_unflatten(dims, plan.spec), strict=True))


def train_batch(
    plan: TrainSpec, clients: int, w: TreeDims, anchor: TreeDims, graph: TreeDims, key: TreeDims, args: TreeDims,
    batches: TreeDims, state: TreeDims, limit: TreeDims, rate: TreeDims,
) -> TreeDims:  # fmt: skip
    """Train all clients of a batch: `vmap(loss)` forward, ordinary autograd outside, stacked weights updated in place.
    Returns outputs and their batch dimensions, as `_Fit.vmap` must.

    Weights in `plan.rows` that start equal at all clients, with equal moments, are stored in two parts: for each client
    the rows that its features touch, and once for all a copy in which every row moves like an untouched row.
    """
    if rate[1] is not None:
        raise ValueError("the rate of training must be equal for all clients; take it from the message to all clients")
    batch = _Batch(plan, clients, w, anchor, graph, args, state)
    operands, spec = pytree.tree_flatten((batch.graph[0], batch.args[0], batch.anchor[0], batch.untouched_inputs))
    per_client, rest, tensors = batch.weights.per_client, batch.weights.rest, batch.weights.tensors
    minibatch, minibatch_dims = dict(leaves(batches[0])), dict(leaves(batches[1]))
    dims_of_args = nest(dict(leaves(batch.args[1])) | minibatch_dims)

    def objective(key: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        minibatch_now = dict(zip(minibatch, inputs, strict=False))
        inputs = inputs[len(minibatch) :]
        current = nest(per_client.reshape(inputs[: len(per_client)]))
        untouched = rest.reshape(inputs[len(per_client) : len(tensors)])
        data, args, anchor, untouched_inputs = pytree.tree_unflatten(inputs[len(tensors) :], spec)
        args_now = nest(dict(leaves(args)) | minibatch_now)
        last = vmap(plan.loss, in_dims=(0, batch.graph[1], 0, dims_of_args))(current, data, key, args_now)  # [P]
        total = scalar("loss", last, clients).sum()
        if plan.penalty is not None:
            dims = (0, *map(_without_statistics, (batch.anchor[1], batch.args[1])))
            pulls = vmap(plan.penalty, in_dims=dims)(*map(_without_statistics, (current, anchor, args)))  # [P]
            total = total + scalar("penalty", pulls, clients).sum()
            last = last + 0 * pulls  # a penalty that is not finite shows in the loss, even without a gradient
            if untouched:
                total = total + scalar("penalty", plan.penalty(nest(untouched), *untouched_inputs))
        return last, total

    shapes = [(path, leaf.shape, leaf.dtype) for path, leaf in minibatch.items()]
    names = (*per_client.shapes.items(), *leaves(batch.anchor[1] or {}), *leaves(dims_of_args), *shapes)
    gradients = differentiate(objective, len(tensors), len(minibatch))

    def record_gradients(*inputs: Tensor) -> tuple[Tensor, ...]:
        functions, roots = (plan.loss, plan.penalty), batch.graph[0].roots
        result: tuple[Tensor, ...] = record_or_play(gradients, functions, names, roots, [*inputs, *operands])
        return result

    def minibatch_of(step: int) -> list[Tensor]:
        return [leaf[step] if minibatch_dims[path] is None else leaf[:, step] for path, leaf in minibatch.items()]

    moments = {name: moment.tensors for name, moment in batch.moments.items()}
    keys = key[0] if key[1] == 0 else key[0].expand(clients)  # [P]
    limits = limit[0] if limit[1] == 0 or limit[0] is None else limit[0].expand(clients)  # [P]
    last = plan.train_loop(
        per_client.shapes, tensors, moments, batch.steps_before, record_gradients, keys, minibatch_of, limits,
        len(per_client), rate[0],
    )  # fmt: skip
    per_client.spread_nonfinite(last)
    state_after, state_dims = batch.state_after(plan.steps)
    outputs, plan.result = pytree.tree_flatten((batch.weights.tree(), last, state_after))
    return tuple(outputs), tuple(pytree.tree_leaves((batch.weights.dims(), 0, state_dims)))


class _Batch:
    """Weights, moments, anchors and data of a batch, narrowed to touched rows if possible.

    weights: the trained weights. moments: {name: a tree like the weights}. steps_before: number of earlier steps, [],
    or [P] if it differs between clients. graph, anchor, args: the arguments, narrowed too. untouched_inputs: anchor and
    args for the rows that no client touches.
    """

    def __init__(
        self,
        plan: TrainSpec,
        clients: int,
        w: TreeDims,
        anchor: TreeDims,
        graph: TreeDims,
        args: TreeDims,
        state: TreeDims,
    ) -> None:
        self._clients = clients
        self.steps_before = torch.zeros((), dtype=torch.int64, device=graph[0].device)
        trees = {"": w}  # the weights, and each moment
        if state[0]:
            steps = state[0]["steps"]
            self.steps_before = steps.rest if isinstance(steps, TouchedRows) else steps
            trees |= {name: (state[0][name], state[1][name]) for name in plan.optimizer.moments}

        # untouched rows are shared only if all trees agree in them at all clients
        splits = dict[str, dict[str, Split]]()
        stored = dict(leaves(w[0]))
        shared = {path for path, dim in leaves(w[1]) if dim is None or isinstance(stored[path], TouchedRows)}
        starts_equal = plan.rows <= shared and self.steps_before.dim() == 0
        touched = TouchedFeatures.of(graph) if plan.rows and starts_equal else None
        if touched is not None:
            splits_or_none = {name: touched.split_leaves(tree, plan.rows) for name, tree in trees.items()}
            narrow = [touched.narrow_tree(tree, plan.rows, plan.penalty is not None) for tree in (anchor, args)]
            if None in splits_or_none.values() or None in narrow:
                touched = None
            else:
                splits = splits_or_none  # type: ignore[assignment]
        if touched is None:
            self.graph = graph
            self.anchor, self.args = fill_in(anchor), fill_in(args)
            self.untouched_inputs: tuple[Tree, ...] = ()
        else:
            self.graph = touched.narrow_graph(graph)
            (self.anchor, self.args), self.untouched_inputs = zip(*narrow, strict=True)

        paths = [path for path, _ in leaves(w[0])]
        stores = dict[str, BatchTree]()
        for name, tree in trees.items():
            stores[name] = BatchTree.of(tree, paths, clients, splits.get(name, {}), touched)
        self.weights = stores.pop("")
        self.moments = stores or {name: self.weights.zeros() for name in plan.optimizer.moments}

    def state_after(self, steps: int) -> tuple[Tree, Tree]:
        """The optimizer's state after `steps` further steps, and its batch dimensions."""
        if not self.moments:
            return {}, {}
        state: Tree = {name: moment.tree() for name, moment in self.moments.items()}
        dims: Tree = {name: moment.dims() for name, moment in self.moments.items()}
        total = self.steps_before + steps
        if total.dim():
            state["steps"], dims["steps"] = total, 0
        else:  # its type shows the next `fit` that all clients have the same number, without reading values
            state["steps"], dims["steps"] = shared_scalar(total, self._clients), STACKED
        return state, dims


def _without_statistics(tree: Tree) -> Tree:
    """The leaves that a penalty applies to, or their batch dimensions."""
    flat = dict(leaves(tree or {}))
    moving = {path: leaf for path, leaf in flat.items() if not is_statistic(path)}
    return tree if len(moving) == len(flat) else nest(moving)


def _trainable(tree: Tree, like: Tree) -> PaddedTensors:
    """A tree's leaves, in the order of the leaves of `like`, as tensors to be trained in place."""
    flat = dict(leaves(tree))
    return PaddedTensors({path: materialize(flat[path]).detach().clone() for path, _ in leaves(like)}, 0)
