"""Recording a repeated computation once and replaying its kernels without Python's dispatch in between.

A vectorised step runs the same few dozen kernels every time, and for small clients most of its time goes into
dispatching them through `vmap` and autograd. Once a computation has cost as much time as recording it would, it is
recorded with `make_fx` and replayed from then on. The kernels and their order are the same, so are the result's bits.
"""

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, leaves
from fedweave.ops.sparse import Sparse

# Eager time after which recording pays: measured, the first takes 1 s, for it loads torch's tracer, the others 0.2 s.
_SECONDS, _SECONDS_LATER = 1.0, 0.2
_KEPT = 64  # per batch of clients


class Form:
    """How a result is put together: its tree, and what in it is no tensor."""

    def __init__(self) -> None:
        self._spec: Any = None
        self._fixed: list[Any] = []

    def flat(self, result: Any) -> tuple[Tensor, ...]:
        """The tensors of a result, whose form is noted."""
        values, self._spec = pytree.tree_flatten(result)
        self._fixed = [None if isinstance(value, Tensor) else (value,) for value in values]
        return tuple(value for value in values if isinstance(value, Tensor))

    def whole(self, tensors: Iterable[Tensor]) -> Any:
        """The result that the tensors belong to."""
        fresh = iter(tensors)
        return pytree.tree_unflatten([next(fresh) if v is None else v[0] for v in self._fixed], self._spec)


class _Program:
    """One computation on one batch of clients."""

    def __init__(self, pinned: Any) -> None:
        self.pinned = pinned  # kept alive, for the key holds addresses and the recording matrices
        self.seconds = 0.0
        self.eager_only = False
        self.replay: Callable[..., tuple[Tensor, ...]] | None = None
        self.form = Form()


_RUNNING: list[_Program] = []


def traced(
    function: Callable[..., Any], identity: tuple[Any, ...], names: tuple[Any, ...], graph: Graph, operands: list[Any]
) -> Callable[..., Any]:
    """`function` (*own tensors, *operands) with the operands given, recorded once that pays.

    identity: the functions that decide what `function` computes; a new function object counts as a new computation.
    names:    what the tensors and operands are called, their shapes, and which of them differ between clients.
    operands: leaves (tensors and numbers) that `function` reads through its last arguments, `graph`'s among them. The
        tensors may change from call to call; the numbers are part of the computation, as are the graph's matrices.
    """
    program = _program(identity, names, graph, operands)
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]

    def compute(*given: Tensor) -> tuple[Tensor, ...]:
        own, fresh = given[: len(given) - len(tensors)], iter(given[len(given) - len(tensors) :])
        return program.form.flat(function(*own, *(next(fresh) if isinstance(o, Tensor) else o for o in operands)))

    def run(*own: Tensor) -> Any:
        limit = _SECONDS_LATER if "torch.fx.experimental.proxy_tensor" in sys.modules else _SECONDS
        if program.replay is None and program.seconds > limit and not program.eager_only:
            program.replay = _record(compute, *own, *tensors)
        if program.replay is not None:
            return program.form.whole(program.replay(*own, *tensors))
        _RUNNING.append(program)
        began = time.perf_counter()
        try:
            return function(*own, *operands)
        finally:
            program.seconds += time.perf_counter() - began
            _RUNNING.remove(program)

    return run


def recorded(function: Callable[[Graph, Tree], Any], graph: Graph, given: Tree) -> Any:
    """`function(graph, given)`, a tree of tensors: a part of a step that cannot be recorded as a whole.

    It must read everything that changes from call to call from its arguments: inside a vectorised call its kernels are
    recorded once and replayed. Not differentiable.
    """
    part = _Part(function)
    operands, part.spec = pytree.tree_flatten((graph, given))
    return part.form.whole(_Recorded.apply(part, *operands))


class _Part:
    """What `recorded` does, with the tensors taken out."""

    def __init__(self, function: Callable[[Graph, Tree], Any]) -> None:
        self.function, self.form = function, Form()
        self.spec: Any = None

    def __call__(self, *operands: Any) -> Any:
        return self.function(*pytree.tree_unflatten(operands, self.spec))


class _Recorded(torch.autograd.Function):
    """`recorded` on tensors alone, and its batching rule."""

    @staticmethod
    def forward(part: _Part, *operands: Any) -> tuple[Tensor, ...]:
        return part.form.flat(part(*operands))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise NotImplementedError("recorded parts of a step cannot be differentiated through")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], part: _Part, *operands: Any) -> tuple[Any, Any]:
        dims = in_dims[1:]
        graph, given = pytree.tree_unflatten(operands, part.spec)
        names = (*(path for path, _ in leaves(given)), *dims)
        run = traced(vmap(part, in_dims=dims), (part.function,), names, graph, list(operands))
        outputs = part.form.flat(run())
        return outputs, (0,) * len(outputs)


def stay_eager() -> None:
    """Say that the computation under way changes tensors in place, and must not be recorded as a whole."""
    for program in _RUNNING:
        program.eager_only = True


def _program(identity: tuple[Any, ...], names: tuple[Any, ...], graph: Graph, operands: list[Any]) -> _Program:
    blocks = graph.x.blocks if isinstance(graph.x, Sparse) else None
    kinds = tuple((o.shape, o.dtype, o.device) if isinstance(o, Tensor) else (type(o), o) for o in operands)
    key = (tuple(_address(f) for f in identity), names, id(blocks), kinds)
    programs = graph.edges.cache.recordings
    program = programs[key] = programs.pop(key, None) or _Program((identity, blocks))
    if len(programs) > _KEPT:
        del programs[next(iter(programs))]  # the one that was not asked for the longest
    return program


def _record(function: Callable[..., Any], *example: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    from torch.fx.experimental.proxy_tensor import make_fx

    function(*example)  # matrices that are built on first use must not become part of the recording
    module = make_fx(function)(*example)
    module.graph.eliminate_dead_code()
    module.recompile()
    for node in module.graph.nodes:
        node.meta.clear()
    return module.forward


def _address(function: Any) -> Any:
    """Bound methods are made anew at each access; their owner and function last."""
    return id(getattr(function, "__self__", None)), id(getattr(function, "__func__", function))
