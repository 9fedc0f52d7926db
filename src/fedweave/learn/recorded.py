"""`recorded`: a part of a step that is recorded by itself, where the step as a whole cannot be."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, leaves
from fedweave.ops.batched import Batch, Context, Dims, Operands, Operation
from fedweave.ops.recording import Form, traced


def recorded(function: Callable[[Graph, Tree], Any], graph: Graph, given: Tree) -> Any:
    """`function(graph, given)`, a tree of tensors: a part of a step that cannot be recorded as a whole.

    It must read everything that changes from call to call from its arguments. Not differentiable.
    """
    part = _Part(function)
    operands, part.spec = pytree.tree_flatten((graph, given))
    return part.form.whole(_Recorded.apply(part, *operands))


class _Part:
    """What `recorded` does, with the tensors taken out."""

    def __init__(self, function: Callable[[Graph, Tree], Any]) -> None:
        self.function, self.form = function, Form()
        self.spec: Any = None

    def __call__(self, *operands: object) -> Any:
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
    def vmap(info: Batch, in_dims: Dims, part: _Part, *operands: object) -> tuple[Any, Any]:
        dims = in_dims[1:]
        graph, given = pytree.tree_unflatten(operands, part.spec)
        names = (*(path for path, _ in leaves(given)), *dims)
        result = traced(vmap(part, in_dims=dims), (part.function,), names, graph.roots, list(operands))
        outputs = part.form.flat(result)
        return outputs, (0,) * len(outputs)
