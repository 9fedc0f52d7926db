"""Recording of computations outside `fit`: parts of a step that cannot be recorded as a whole, and the server's."""

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, leaves
from fedweave.ops.batching import Batch, Context, Dims, Operands, Operation
from fedweave.ops.captures import StableOperands
from fedweave.ops.identity import storage
from fedweave.ops.recording import ResultForm, record_or_play

_MAX_ELEMENTS = 1 << 26  # largest number of elements that a server's recorded computation takes


def record_part(function: Callable[[Graph, Tree], Tree], graph: Graph, inputs: Tree) -> Tree:
    """`function(graph, inputs)`, a tree of tensors: a recorded part of a step that cannot be recorded as a whole.

    It must read everything that changes from call to call from its arguments. Not differentiable.
    """
    part = _Part(function)
    operands, part.spec = pytree.tree_flatten((graph, inputs))
    result: Tree = part.form.whole(_RecordedPart.apply(part, *operands))
    return result


def compute_on_server(
    function: Callable[..., Any], inputs: Tree, graph: Graph | None = None, names: tuple[Hashable, ...] = ()
) -> Any:
    """`function(inputs)`, from a tree of tensors to a tree of tensors: a computation of the server in every round,
    within `Federation.recording`. Like `record_part`, without clients; it may be differentiated inside.

    With very large tensors it is not recorded: their kernels take longer than launching them, and captures store
    copies.

    graph: a constant graph of the server, the function's second argument.
    names: further values that decide what is computed.
    """
    graphs = () if graph is None else (graph,)
    graph_operands = len(pytree.tree_leaves(graphs))  # the first operands, which stay the same
    operands, spec = pytree.tree_flatten((graphs, inputs))
    if sum(leaf.numel() for leaf in operands[graph_operands:] if isinstance(leaf, Tensor)) > _MAX_ELEMENTS:
        return function(inputs, *graphs)

    def of_operands(*tensors: Tensor) -> Any:
        graphs, tree = pytree.tree_unflatten(tensors, spec)
        return function(tree, *graphs)

    paths = tuple(path for path, _ in leaves(inputs))
    roots = () if graph is None else graph.roots
    stable = StableOperands((*roots, graph is not None and storage(graph.y)), frozenset(range(graph_operands)))
    return record_or_play(of_operands, (function,), (*names, *paths), roots, operands, stable)


class _Part:
    """The arguments of `record_part` that are not tensors."""

    def __init__(self, function: Callable[[Graph, Tree], Tree]) -> None:
        self.function, self.form = function, ResultForm()
        self.spec: pytree.TreeSpec

    def __call__(self, *operands: object) -> Tree:
        return self.function(*pytree.tree_unflatten(operands, self.spec))


class _RecordedPart(Operation):
    """`record_part` with only tensors as operands, and its batching rule."""

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
        result = record_or_play(vmap(part, in_dims=dims), (part.function,), names, graph.roots, list(operands))
        outputs = part.form.flat(result)
        return outputs, (0,) * len(outputs)
