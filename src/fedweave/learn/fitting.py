"""Training of one client and of a batch of clients: the stored weights, and the loop that both share."""

from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, is_statistic, leaves, map_leaves, nest
from fedweave.core.types import Record
from fedweave.learn.optimizers import Moments, Optimizer
from fedweave.ops.recording import ResultForm, StableOperands, traced
from fedweave.ops.sparse import Batch, Context, Dims, Operands, Operation, Sparse, StackedCsr
from fedweave.ops.tape import kernel, storage
from fedweave.ops.touched import STACKED, TouchedRows, materialize, picked_rows, shared_scalar

Loss = Callable[[Tree, Graph, Tensor, Tree], Tensor]
Penalty = Callable[[Tree, Tree, Tree], Tensor]
Move = Callable[..., None]  # (weights, gradients, moments, steps[, rate])
Gradients = Callable[..., tuple[Tensor, ...]]  # (key, *minibatch, *weights) -> (last loss, *gradients)


class TrainSpec:
    """The parts of a `fit` that are not tensors.

    spec:   tree structure of the operands. result: tree structure of the outputs (weights, last loss, optimizer state).
    """

    def __init__(
        self,
        loss: Loss,
        penalty: Penalty | None,
        optimizer: Optimizer,
        steps: int,
        rows: frozenset[str],
        clip: float = 0.0,
    ) -> None:
        self.loss, self.penalty, self.optimizer, self.steps, self.rows = loss, penalty, optimizer, steps, rows
        self.clip = clip
        self.spec: pytree.TreeSpec
        self.result: pytree.TreeSpec

    def _moved_together(self, moments: Moments) -> Move:
        """A step of all clients at once, or of a single client."""

        def move(
            weights: list[Tensor], gradients: list[Tensor], _: list[list[Tensor]], numbers: Tensor, *rate: Tensor
        ) -> None:
            self.optimizer.move(weights, gradients, moments, [numbers] * len(weights), *rate)

        return move

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
        the optimizer moves the others. moments: optimizer state, changed in place. steps_before: number of earlier
        steps, [], or [P] if it differs between clients.
        minibatch: step -> the step's mini-batch. limit: number of steps after which a client's weights stay, with the
        shape of `key`; these weights are the first `weight_count` tensors, all if None. rate: a factor of the learning
        rate, scalar.
        """
        numbers = steps_before.to(torch.float32, copy=True)
        statistics = {at for at, path in enumerate(paths) if is_statistic(path)}
        moving = [at for at in range(len(tensors)) if at not in statistics]
        own_count = None if weight_count is None else weight_count - len(statistics)
        moments = {name: [each[at] for at in moving] for name, each in moments.items()}
        move = _moved_apart(self.optimizer, list(moments)) if numbers.dim() else self._moved_together(moments)
        pace = () if rate is None else (rate,)
        last = tensors[0].new_zeros(key.shape)
        for step in range(self.steps):
            loss, *grads = gradients(random.fold(key, step), *minibatch(step), *tensors)
            before = [] if limit is None else [tensor.clone() for tensor in tensors[:weight_count]]
            slopes = [grads[at] for at in moving]
            if self.clip:
                slopes = clipped(slopes, self.clip, key.dim(), own_count)
            numbers.add_(1)
            moving_tensors = [tensors[at] for at in moving]
            move(moving_tensors, [slope.contiguous() for slope in slopes], list(moments.values()), numbers, *pace)
            for at in statistics:
                tensors[at].sub_(grads[at])
            if limit is not None:
                goes = limit > step
                for tensor, old in zip(tensors, before, strict=False):
                    tensor.copy_(torch.where(goes.view(*goes.shape, *[1] * (tensor.dim() - goes.dim())), tensor, old))
                loss = torch.where(goes, loss, last)
            last = loss
        return last


def clipped(gradients: list[Tensor], most: float, batch_dims: int, count: int | None = None) -> list[Tensor]:
    """Gradients scaled so that the L2 norm of all of a client's is at most `most` (`torch.nn.utils.clip_grad_norm_`).

    batch_dims: leading dimensions, over clients. count: number of leading gradients that belong to clients' separate
    weights; the other gradients are 0.
    """
    mine = gradients[:count]
    norms = [slope.reshape(*slope.shape[:batch_dims], -1).square().sum(-1) for slope in mine]
    share = (most / (torch.stack(norms).sum(0).sqrt() + 1e-6)).clamp(max=1.0)
    shares = [share.view(*share.shape, *[1] * (slope.dim() - batch_dims)) for slope in mine]
    return [slope * part for slope, part in zip(mine, shares, strict=True)] + gradients[len(mine) :]


def _moved_apart(optimizer: Optimizer, names: list[str]) -> Move:
    """A step of stacked tensors whose numbers of steps [P] differ; adjacent clients with equal numbers move at once.

    names: names of the moments. A recording has it as one call; it would take seconds to record a thousand calls.
    """

    def move(
        weights: list[Tensor], gradients: list[Tensor], moments: list[list[Tensor]], numbers: Tensor, *rate: Tensor
    ) -> None:
        runs = _runs(numbers)
        past = {name: _parts(each, runs) for name, each in zip(names, moments, strict=True)}
        counts = [numbers[run.start] for run in runs] * len(weights)
        optimizer.move(_parts(weights, runs), _parts(gradients, runs), past, counts, *rate)

    move.changes_inputs = True  # type: ignore[attr-defined]
    return kernel(move)


def _runs(numbers: Tensor) -> list[slice]:
    """Slices of equal adjacent numbers; on accelerators one slice each, because reading values would wait."""
    starts = list(range(1, len(numbers)))
    if numbers.device.type == "cpu":
        starts = (numbers.diff().nonzero()[:, 0] + 1).tolist()
    return [slice(*ends) for ends in pairwise([0, *starts, len(numbers)])]


def _parts(tensors: list[Tensor], runs: list[slice]) -> list[Tensor]:
    return [tensor[run] for tensor in tensors for run in runs]


class Stored:
    """Weights as the optimizer holds them: every client's share of a tensor fills whole vector registers.

    Fused kernels round the last elements of a tensor, those that fill no register, differently. With padding, one
    client alone and the same client in a batch get the same bits.
    """

    WIDTH = 16

    def __init__(self, by_path: dict[str, Tensor], batch_dims: int) -> None:
        self.shapes = {path: tensor.shape for path, tensor in by_path.items()}
        self.batch_dims = batch_dims
        self.tensors = [self._pad(tensor) for tensor in by_path.values()]

    def _pad(self, tensor: Tensor) -> Tensor:
        flat = tensor.flatten(self.batch_dims) if tensor.dim() > self.batch_dims else tensor[..., None]
        missing = -flat.shape[-1] % self.WIDTH
        return torch.nn.functional.pad(flat, (0, missing)) if missing else tensor

    def mark(self, last: Tensor) -> None:
        """Make a last loss that is not finite, [] or [P], visible in its client's weights, in the smallest tensor: the
        gradient of such a loss may be finite."""
        least = min(self.tensors, key=Tensor.numel)
        least.add_((last.to(least.dtype) * 0).reshape(*last.shape, *[1] * (least.dim() - last.dim())))

    def __len__(self) -> int:
        return len(self.tensors)

    def shaped(self, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
        """{path: tensor in its original shape} of tensors stored like these, differentiable."""
        return {path: self._cut(t, shape) for t, (path, shape) in zip(tensors, self.shapes.items(), strict=True)}

    def zeros(self) -> "Stored":
        """Zeros of the same shapes."""
        zeros = {path: torch.zeros_like(tensor) for path, tensor in self.shaped(self.tensors).items()}
        return Stored(zeros, self.batch_dims)

    def _cut(self, stored: Tensor, shape: torch.Size) -> Tensor:
        return stored if stored.shape == shape else stored[..., : shape[self.batch_dims :].numel()].view(shape)


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
        zeroed = (torch.zeros_like(f) if s is None else s for f, s in zip(free, grads, strict=True))
        return last.detach(), *zeroed

    return gradients


# ----------------------------------------------------------------------------------------------------
# Training only the rows of a weight that a client's features touch. The other rows see no data gradient. While they
# and their moments start equal at all clients, the optimizer moves them equally. So one copy, in which every row moves
# like an untouched row, serves all clients of a batch.


TreeDims = tuple[Any, Any]  # a tree, and for each of its leaves 0 (one per client, stacked) or None (shared)
Dim = int | TouchedRows | None  # a leaf's axis of clients; `TouchedRows` of axes if the leaf is partly stored
Split = tuple[Tensor, Tensor]  # the tensor that all clients share [F, …], and the clients' own rows [P, m, …]

# Narrowing pays if it leaves out at least this share of the features.
_LEAST = 0.3


class Touched:
    """The features that each client of a batch touches: `rows` int64 [P, m], padded with F, and the clients' matrices
    with only these features."""

    def __init__(self, matrix: StackedCsr) -> None:
        self.matrix = matrix
        self.rows, self._narrow = matrix.touched

    @classmethod
    def of(cls, graph: TreeDims) -> "Touched | None":
        """The touched features of a batch's graphs; None if they leave out too few features."""
        x = graph[0].x
        if not isinstance(x, Sparse) or graph[1].x.client_index is None:
            return None
        touched = cls(x.blocks)
        return touched if touched.rows.shape[1] <= (1 - _LEAST) * x.blocks.cols else None

    def narrowed(self, graph: TreeDims) -> tuple[Graph, Graph]:
        """The graphs with only the touched features, and their batch dimensions."""
        data, dims = (g._replace(x=Sparse(self._narrow, g.x.client_index)) for g in graph)
        return data, dims

    def gather(self, tensor: Tensor) -> Tensor:
        """The clients' rows of a tensor [F, …] that all clients share: [P, m, …], zero at padding."""
        return picked_rows(tensor, self.rows)

    def split(self, tree: TreeDims, paths: frozenset[str]) -> dict[str, Split] | None:
        """The leaves at `paths`, split into new tensors; None if clients may differ in a row that one of them does not
        touch."""
        flat, dims = dict(leaves(tree[0])), dict(leaves(tree[1]))
        splits = {path: self._split(flat[path], dims[path]) for path in paths}
        return None if None in splits.values() else splits  # type: ignore[return-value]

    def narrowed_tree(self, tree: TreeDims, paths: frozenset[str], penalized: bool) -> tuple[TreeDims, Tree] | None:
        """Narrow a tree that training uses next to the weights, such as an anchor.

        Returns the tree, whose subtrees like the weights are narrowed at `paths`, and the tree that untouched rows use.
        None if a penalty may move untouched rows differently."""
        dims = dict(leaves(tree[1] or {}))
        entries = {path: (leaf, dims[path]) for path, leaf in leaves(tree[0] or {})}
        weights = {
            path: next((weight_path for weight_path in paths if f"/{path}".endswith(f"/{weight_path}")), "")
            for path in entries
        }
        trees = tuple({path.removesuffix(weight_path) for path, weight_path in weights.items() if weight_path})
        rest = {path: leaf for path, (leaf, _) in entries.items() if not (trees and path.startswith(trees))}
        alike = all(entries[path][1] is None for path in rest)
        for path in (path for path, weight_path in weights.items() if weight_path):
            if (split := self._split(*entries[path])) is None:
                alike, entries[path] = False, (self._client_rows(*entries[path]), 0)
            else:
                rest[path], entries[path] = split[0], (split[1], 0)
        if penalized and not alike:
            return None
        return whole(_apart(entries)), nest(rest)

    def _client_rows(self, leaf: Tensor | TouchedRows, dim: Dim) -> Tensor:
        """The clients' rows of a stacked tensor: [P, m, …], zero at padding."""
        leaf, _ = _whole(leaf, dim)
        padded = torch.cat([leaf, torch.zeros_like(leaf[:, :1])], 1)
        return padded[torch.arange(len(self.rows), device=padded.device)[:, None], self.rows]

    def _split(self, leaf: Tensor | TouchedRows, dim: Dim) -> Split | None:
        if (
            isinstance(leaf, TouchedRows)
            and leaf.matrix is self.matrix
            and isinstance(dim, TouchedRows)
            and dim.rest is None
        ):
            return leaf.rest.clone(), leaf.values.clone()
        leaf, dim = _whole(leaf, dim)
        return (leaf.clone(), self.gather(leaf)) if dim is None else None

    def partly_stored(self, leaf: Tensor) -> TouchedRows | Tensor:
        """Store whole tensors [P, F, …] partly, if clients agree in all rows that one of them does not touch."""
        clients, features = (torch.arange(size, device=leaf.device) for size in leaf.shape[:2])
        clients = clients[:, None]
        mine = leaf.new_zeros(len(leaf), leaf.shape[1] + 1, dtype=torch.bool)
        mine[clients, self.rows] = True
        mine = mine[:, :-1]
        rest = leaf[mine.to(torch.uint8).argmin(0), features]  # taken from a client that does not touch the row
        if not ((leaf == rest) | mine.view(*mine.shape, *[1] * (leaf.dim() - 2))).all():
            return leaf
        padded = torch.cat([leaf, torch.zeros_like(leaf[:, :1])], 1)
        return TouchedRows(rest, self.rows, padded[clients, self.rows], self.matrix)


class BatchTree:
    """A tree like the weights as a batch trains it. `per_client` is stacked [P, …], with only touched rows if the path
    is also in `rest`, which all clients share."""

    def __init__(self, per_client: Stored, rest: Stored, touched: Touched | None) -> None:
        self.per_client, self.rest, self._touched = per_client, rest, touched

    @classmethod
    def of(
        cls, tree: TreeDims, paths: list[str], clients: int, split: dict[str, Split], touched: Touched | None
    ) -> "BatchTree":
        """Copy a tree into new tensors; `split` holds the leaves that are split into rows."""
        flat, dims = dict(leaves(tree[0])), dict(leaves(tree[1]))
        per_client = {p: split[p][1] if p in split else _stacked(flat[p], dims[p], clients) for p in paths}
        return cls(Stored(per_client, 1), Stored({path: rest for path, (rest, _) in split.items()}, 0), touched)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that the optimizer moves: `per_client`, then `rest`."""
        return [*self.per_client.tensors, *self.rest.tensors]

    def zeros(self) -> "BatchTree":
        """Zeros of the same shapes."""
        return BatchTree(self.per_client.zeros(), self.rest.zeros(), self._touched)

    def tree(self) -> Tree:
        """The tree, with partly stored leaves where `rest` holds the other rows."""
        flat: Record = self.per_client.shaped(self.per_client.tensors)
        if self._touched is not None:
            rows, matrix = self._touched.rows, self._touched.matrix
            for path, rest in self.rest.shaped(self.rest.tensors).items():
                flat[path] = TouchedRows(rest, rows, flat[path], matrix)
        return nest(flat)

    def dims(self) -> Tree:
        """The batch dimensions of `tree`."""
        return nest({path: STACKED if path in self.rest.shapes else 0 for path in self.per_client.shapes})


def share_again(state: Tree, graph: Graph) -> Tree:
    """Store the optimizer states in a stacked state (dicts with "steps") as `TouchedRows` again, as `fit` returns them.
    A checkpoint or another batch has them whole. Requires that all clients have taken the same number of steps.

    Waits for the states' device; engines call it between steps.
    """
    touched = Touched.of((graph, graph))
    if "steps" not in state or touched is None:
        return {k: share_again(v, graph) if isinstance(v, dict) else v for k, v in state.items()}
    steps = state["steps"]
    if not isinstance(steps, Tensor) or not bool((steps == steps[0]).all()):
        return state
    features = touched.matrix.cols
    entries = {
        path: touched.partly_stored(leaf) if isinstance(leaf, Tensor) and leaf.shape[1:2] == (features,) else leaf
        for path, leaf in leaves(state)
    }
    return nest(entries | {"steps": shared_scalar(steps[0], len(steps))})


def whole(tree: TreeDims) -> TreeDims:
    """A tree and its batch dimensions, with partly stored leaves filled in."""
    dims = dict(leaves(tree[1] or {}))
    return _apart({path: _whole(leaf, dims[path]) for path, leaf in leaves(tree[0] or {})})


def _apart(entries: dict[str, TreeDims]) -> TreeDims:
    return nest({path: leaf for path, (leaf, _) in entries.items()}), nest(
        {path: dim for path, (_, dim) in entries.items()}
    )


def _stacked(leaf: Tensor | TouchedRows, dim: Dim, clients: int) -> Tensor:
    leaf, dim = _whole(leaf, dim)
    result: Tensor = (leaf.expand(clients, *leaf.shape) if dim is None else leaf).clone()
    return result


def _whole(leaf: Tensor | TouchedRows, dim: Dim) -> tuple[Tensor, Dim]:
    """A leaf and its batch dimension; a partly stored leaf is filled in."""
    return (vmap(materialize, in_dims=(dim,))(leaf), 0) if isinstance(leaf, TouchedRows) else (leaf, dim)


# ----------------------------------------------------------------------------------------------------
# Training a batch of clients: `vmap(loss)` forward, ordinary autograd outside, stacked weights updated in place.


def train_batch(
    plan: TrainSpec, clients: int, w: TreeDims, anchor: TreeDims, graph: TreeDims, key: TreeDims, args: TreeDims,
    batches: TreeDims, state: TreeDims, limit: TreeDims, rate: TreeDims,
) -> TreeDims:  # fmt: skip
    """Train all clients of a batch; returns outputs and their batch dimensions, as `_Fit.vmap` must.

    Weights in `plan.rows` that start equal at all clients, with equal moments, are stored in two parts: for each client
    the rows that its features touch, and once for all a copy in which every row moves like an untouched row.
    """
    batch = _Batch(plan, clients, w, anchor, graph, args, state)
    operands, spec = pytree.tree_flatten((batch.graph[0], batch.args[0], batch.anchor[0], batch.untouched_inputs))
    per_client, rest, tensors = batch.weights.per_client, batch.weights.rest, batch.weights.tensors
    minibatch, minibatch_dims = dict(leaves(batches[0])), dict(leaves(batches[1]))
    dims_of_args = nest(dict(leaves(batch.args[1])) | minibatch_dims)

    def objective(key: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        now, inputs = dict(zip(minibatch, inputs, strict=False)), inputs[len(minibatch) :]
        data, mine, fixed, untouched_inputs = pytree.tree_unflatten(inputs[len(tensors) :], spec)
        current, untouched = (
            per_client.shaped(inputs[: len(per_client)]),
            rest.shaped(inputs[len(per_client) : len(tensors)]),
        )
        seen = nest(dict(leaves(mine)) | now)
        last = vmap(plan.loss, in_dims=(0, batch.graph[1], 0, dims_of_args))(nest(current), data, key, seen)
        total = scalar("loss", last, clients).sum()
        if plan.penalty is not None:
            dims = (0, *map(_without_statistics, (batch.anchor[1], batch.args[1])))
            pulls = vmap(plan.penalty, in_dims=dims)(*map(_without_statistics, (nest(current), fixed, mine)))
            total = total + scalar("penalty", pulls, clients).sum()
            last = last + 0 * pulls  # a penalty that is not finite shows in the loss, even without a gradient
            if untouched:
                total = total + scalar("penalty", plan.penalty(nest(untouched), *untouched_inputs))
        return last, total

    shapes = ((path, leaf.shape, leaf.dtype) for path, leaf in minibatch.items())
    names = (*per_client.shapes.items(), *leaves(batch.anchor[1] or {}), *leaves(dims_of_args), *shapes)
    gradients = differentiate(objective, len(tensors), len(minibatch))

    def step(*inputs: Tensor) -> tuple[Tensor, ...]:
        result: tuple[Tensor, ...] = traced(
            gradients, (plan.loss, plan.penalty), names, batch.graph[0].roots, [*inputs, *operands]
        )
        return result

    def row(at: int) -> list[Tensor]:
        return [leaf[at] if minibatch_dims[path] is None else leaf[:, at] for path, leaf in minibatch.items()]

    moments = {name: moment.tensors for name, moment in batch.moments.items()}
    keys = key[0] if key[1] == 0 else key[0].expand(clients)
    most = limit[0] if limit[1] == 0 or limit[0] is None else limit[0].expand(clients)
    if rate[1] is not None:
        raise ValueError("the rate of training must be equal for all clients; take it from the message to all clients")
    paths = per_client.shapes
    last = plan.train_loop(paths, tensors, moments, batch.taken, step, keys, row, most, len(per_client), rate[0])
    per_client.mark(last)
    state_after, state_dims = batch.state(plan.steps)
    outputs, plan.result = pytree.tree_flatten((batch.weights.tree(), last, state_after))
    return tuple(outputs), tuple(pytree.tree_leaves((batch.weights.dims(), 0, state_dims)))


class _Batch:
    """Weights, moments, anchors and data of a batch, narrowed to touched rows if possible.

    weights: the trained weights. moments: {name: a tree like the weights}. taken: number of earlier steps, [], or [P]
    if it differs between clients. graph, anchor, args: the arguments, narrowed too. untouched_inputs: anchor and args
    for the rows that no client touches.
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
        self.graph = graph
        self._clients, self.taken = clients, torch.zeros((), dtype=torch.int64, device=graph[0].device)
        if state[0]:
            steps = state[0]["steps"]
            self.taken = steps.rest if isinstance(steps, TouchedRows) else steps
        names = plan.optimizer.moments if state[0] else ()
        trees = {"": w} | {name: (state[0][name], state[1][name]) for name in names}
        touched = Touched.of(graph) if self._alike(plan, w) else None
        split = {name: touched.split(tree, plan.rows) for name, tree in trees.items()} if touched else {}
        penalized, self.untouched_inputs = plan.penalty is not None, ()
        cuts = [touched.narrowed_tree(tree, plan.rows, penalized) for tree in (anchor, args)] if touched else [None]
        if touched is None or None in split.values() or None in cuts:
            touched, split = None, {}
            self.anchor, self.args = (whole(tree) for tree in (anchor, args))
        else:
            self.graph = touched.narrowed(graph)
            (self.anchor, self.args), self.untouched_inputs = zip(*cuts, strict=True)
        paths = [path for path, _ in leaves(w[0])]
        stores = {
            name: BatchTree.of(tree, paths, clients, split.get(name) or {}, touched) for name, tree in trees.items()
        }
        self.weights = stores.pop("")
        self.moments = stores or {name: self.weights.zeros() for name in plan.optimizer.moments}

    def _alike(self, plan: TrainSpec, w: TreeDims) -> bool:
        """Whether untouched rows start equal at all clients, regardless of moments and the penalty's arguments."""
        stored = dict(leaves(w[0]))
        shared = {path for path, dim in leaves(w[1]) if dim is None or isinstance(stored[path], TouchedRows)}
        return bool(plan.rows) and plan.rows <= shared and self.taken.dim() == 0

    def state(self, steps: int) -> tuple[Tree, Tree]:
        """The optimizer's state after `steps` further steps, and its batch dimensions."""
        if not self.moments:
            return {}, {}
        trees: dict[str, TreeDims] = {name: (moment.tree(), moment.dims()) for name, moment in self.moments.items()}
        steps_taken = self.taken + steps
        if steps_taken.dim():
            trees["steps"] = steps_taken, 0
        else:  # its type shows the next `fit` that all clients have the same number, without reading values
            trees["steps"] = shared_scalar(steps_taken, self._clients), STACKED
        state, dims = ({name: pair[i] for name, pair in trees.items()} for i in (0, 1))
        return state, dims


# ----------------------------------------------------------------------------------------------------
# `fit`: train one client; inside a vectorized call, all clients at once. `recorded` records a part of a step if the
# whole step cannot be recorded.


_RECORDED = 1 << 26  # largest number of elements that a server's recorded computation takes


def recorded(function: Callable[[Graph, Tree], Tree], graph: Graph, inputs: Tree) -> Tree:
    """`function(graph, inputs)`, a tree of tensors: a recorded part of a step that cannot be recorded as a whole.

    It must read everything that changes from call to call from its arguments. Not differentiable.
    """
    part = _Part(function)
    operands, part.spec = pytree.tree_flatten((graph, inputs))
    result: Tree = part.form.whole(_Recorded.apply(part, *operands))
    return result


def compute_on_server(
    function: Callable[..., Any], inputs: Tree, graph: Graph | None = None, names: tuple[Hashable, ...] = ()
) -> Any:
    """`function(inputs)`, from a tree of tensors to a tree of tensors: a computation of the server in every round,
    within `Federation.recording`. Like `recorded`, without clients; it may be differentiated inside.

    With very large tensors it is not recorded: their kernels take longer than launching them, and captures store
    copies.

    graph: a constant graph of the server, the function's second argument.
    names: further values that decide what is computed.
    """
    held = () if graph is None else (graph,)
    fixed, (operands, spec) = len(pytree.tree_leaves(held)), pytree.tree_flatten((held, inputs))
    paths = tuple(path for path, _ in leaves(inputs))
    roots = () if graph is None else graph.roots
    if sum(leaf.numel() for leaf in operands[fixed:] if isinstance(leaf, Tensor)) > _RECORDED:
        return function(inputs, *held)

    def flat(*tensors: Tensor) -> Any:
        graphs, tree = pytree.tree_unflatten(tensors, spec)
        return function(tree, *graphs)

    lasting = StableOperands((*roots, graph is not None and storage(graph.y)), frozenset(range(fixed)))
    return traced(flat, (function,), (*names, *paths), roots, operands, lasting)


class _Part:
    """The parts of `recorded` that are not tensors."""

    def __init__(self, function: Callable[[Graph, Tree], Tree]) -> None:
        self.function, self.form = function, ResultForm()
        self.spec: pytree.TreeSpec

    def __call__(self, *operands: object) -> Tree:
        return self.function(*pytree.tree_unflatten(operands, self.spec))


class _Recorded(Operation):
    """`recorded` with only tensors as operands, and its batching rule."""

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
        graph, inputs = pytree.tree_unflatten(operands, part.spec)
        names = (*(path for path, _ in leaves(inputs)), *dims)
        result = traced(vmap(part, in_dims=dims), (part.function,), names, graph.roots, list(operands))
        outputs = part.form.flat(result)
        return outputs, (0,) * len(outputs)


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
            loss or penalty that is no scalar.
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
    whole = map_leaves(lambda leaf: leaf, w)
    inputs = (whole, anchor, graph, key, args or {}, batches or {}, state or {}, limit, rate)
    operands, plan.spec = pytree.tree_flatten(inputs)
    after = Fit(*pytree.tree_unflatten(_Fit.apply(plan, *operands), plan.result))
    after = after if limit is None else after._replace(state={})
    partly = [leaf for _, leaf in leaves({"w": after.w, "state": after.state}) if isinstance(leaf, TouchedRows)]
    for leaf in partly:
        if leaf.matrix is partly[0].matrix:  # one tensor for all, so that arithmetic sees equal rows
            leaf.rows = partly[0].rows
    return after


def keep_trained(trains: Tensor, trained: Tree, start: Tree) -> Tree:
    """The weights that a client keeps: `trained` if it `trains` (bool scalar), else `start`, because steps without
    examples only decay the weights. Partly stored leaves come back whole."""
    return map_leaves(lambda new, old: torch.where(trains, new, old), trained, start)


class _Fit(Operation):
    """`fit` with only tensors as operands, and its batching rule."""

    @staticmethod
    def forward(plan: TrainSpec, *operands: object) -> tuple[Tensor, ...]:
        w, anchor, graph, key, args, batches, state, limit, rate = pytree.tree_unflatten(operands, plan.spec)
        weights = _trainable(w, w)
        moments = {name: _trainable(state[name], w) if state else weights.zeros() for name in plan.optimizer.moments}
        minibatch = dict(leaves(batches))

        def objective(key: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
            current = weights.shaped(tensors[len(minibatch) :])
            now = dict(zip(minibatch, tensors, strict=False))
            last = total = scalar("loss", plan.loss(nest(current), graph, key, nest(dict(leaves(args)) | now)))
            if plan.penalty is not None:
                inputs = map(_without_statistics, (nest(current), anchor or {}, args))
                pull = scalar("penalty", plan.penalty(*inputs))
                total, last = total + pull, last + 0 * pull  # as in `train_batch`
            return last, total

        step = differentiate(objective, len(weights), len(minibatch))
        steps_before = materialize(state["steps"]) if state else torch.zeros((), dtype=torch.int64, device=key.device)
        past = {name: moment.tensors for name, moment in moments.items()}
        last = plan.train_loop(
            weights.shapes, weights.tensors, past, steps_before, step, key,
            lambda at: [leaf[at] for leaf in minibatch.values()], limit, None, rate,
        )  # fmt: skip
        weights.mark(last)
        after = {name: nest(moment.shaped(moment.tensors)) for name, moment in moments.items()}
        result = (
            nest(weights.shaped(weights.tensors)),
            last,
            after | ({"steps": steps_before + plan.steps} if after else {}),
        )
        outputs, plan.result = pytree.tree_flatten(result)
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


def _without_statistics(tree: Tree) -> Tree:
    """The leaves that a penalty applies to, or their batch dimensions."""
    flat = dict(leaves(tree or {}))
    moving = {path: leaf for path, leaf in flat.items() if not is_statistic(path)}
    return tree if len(moving) == len(flat) else nest(moving)


def _trainable(tree: Tree, like: Tree) -> Stored:
    """A tree's leaves, in the order of the leaves of `like`, as tensors to be trained in place."""
    flat = dict(leaves(tree))
    return Stored({path: materialize(flat[path]).detach().clone() for path, _ in leaves(like)}, 0)
