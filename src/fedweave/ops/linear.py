"""The dense product of all models, with bits that depend neither on batching nor on padding.

`affine` adds a bias and optionally ReLU: one operation that computes bias, ReLU and gradients rows by rows, while these
are in a processor's cache. Its numbers equal `linear` followed by the bias and ReLU.
"""

from typing import Any

import torch
from torch import Tensor

from fedweave.ops.batching import Batch, Context, Dims, Operands, Operation, over_clients
from fedweave.ops.onednn import ONEDNN_ROWS, add_gram, by_onednn, onednn_affine, onednn_multiply
from fedweave.ops.sparse import Sparse
from fedweave.ops.tape import kernel
from fedweave.ops.touched_rows import materialize

# The CPU's matrix kernels choose their order of summation by shape. Measured over 4,000 combinations of widths, rows,
# clients, dtypes and threads: with widths padded to multiples of `WIDTH`, nodes taken `ROWS` and columns `COLUMNS` at a
# time, one client alone and the same client in a batch give the same bits, in the product and both gradients. A plain
# product does not (one output class, odd widths, more than about 200 nodes; on some processors, with two threads, more
# than 1,000 columns).
WIDTH = 4
ROWS = 128
COLUMNS = 512


def linear(h: Tensor | Sparse, w: Tensor) -> Tensor:
    """h @ w for h [n, in], dense or sparse, and w [in, out]."""
    if isinstance(h, Sparse) or torch.compiler.is_exporting():
        return h @ w
    return _LinearProduct.apply(h[None], materialize(w)[None]).squeeze(0)


@kernel
def _product(h: Tensor, w: Tensor) -> Tensor:
    """h [P, n, in] times w [P, in, out]."""
    wide = _widen(w, 2)
    if by_onednn(_wide(w.shape[1]), wide.shape[2], h):  # the bits equal those with padded columns: no copy of h
        out = h.new_empty(*h.shape[:2], wide.shape[2])
        onednn_multiply(h, wide, out)
        return _narrow(out, w.shape[2])
    wide, h = _widen(wide, 1), _widen(h, 2)
    out = h.new_empty(*h.shape[:2], wide.shape[2])
    for part, into in zip(blocks(h), blocks(out), strict=True):
        _sum(part, wide, into)
    return _narrow(out, w.shape[2])


def _sum(h: Tensor, w: Tensor, out: Tensor) -> None:
    """h @ w into `out`, in a fixed order of summation."""
    columns = COLUMNS if h.device.type == "cpu" else max(h.shape[2], 1)
    if h.shape[2] <= columns:  # `split` takes longer than the product of a small client
        multiply(h, w, out)
        return
    (first, top), *rest = zip(h.split(columns, 2), w.split(columns, 1), strict=True)
    torch.bmm(first, top, out=out)
    for part, below in rest:
        out.baddbmm_(part, below)


def multiply(h: Tensor, w: Tensor, out: Tensor) -> None:
    """h @ w into `out`. If the clients of `out` are not contiguous, PyTorch would multiply one after the other, which
    takes longer than a copy of the whole product."""
    if out.is_contiguous():
        torch.bmm(h, w, out=out)
    else:
        out.copy_(torch.bmm(h, w))


@kernel
def _gram(h: Tensor, g: Tensor) -> Tensor:
    """Σ over nodes of h [P, n, in] times g [P, n, out]: [P, in, out]."""
    wide_g = _widen(g, 2)
    if by_onednn(_wide(h.shape[2]), wide_g.shape[2], h):
        first = h.new_zeros(len(h), h.shape[2], wide_g.shape[2])
        add_gram(first, h, wide_g)
    else:
        pairs = iter(zip(blocks(_widen(h, 2)), blocks(wide_g), strict=True))
        a, b = next(pairs)
        first = torch.bmm(a.mT, b)
        for a, b in pairs:
            first.baddbmm_(a.mT, b)
    return first if first.shape[1:] == (h.shape[2], g.shape[2]) else first[:, : h.shape[2], : g.shape[2]].contiguous()


def product(h: Tensor, w: Tensor) -> Tensor:
    """h [P, n, in] times w [P, in, out], differentiable any number of times."""
    return _LinearProduct.apply(h, w)


def gram(h: Tensor, g: Tensor) -> Tensor:
    """Σ over nodes of h [P, n, in] times g [P, n, out]: [P, in, out]; differentiable any number of times."""
    if torch.compiler.is_exporting():
        return h.mT @ g
    return _Gram.apply(h, g)


def blocks(tensor: Tensor, rows: int = ROWS) -> tuple[Tensor, ...]:
    """Blocks of at most `rows` rows of a tensor [P, n, …], which the CPU multiplies at once."""
    # Accelerators promise no equal bits, and there the additional launches cost more than they gain.
    if tensor.shape[1] <= rows or tensor.device.type != "cpu":
        return (tensor,)
    result: tuple[Tensor, ...] = tensor.split(rows, 1)
    return result


def _wide(size: int) -> int:
    return size + -size % WIDTH


def _widen(tensor: Tensor, dim: int) -> Tensor:
    missing = _wide(tensor.shape[dim]) - tensor.shape[dim]
    if missing == 0:
        return tensor
    return torch.nn.functional.pad(tensor, (0, missing) if dim == 2 else (0, 0, 0, missing))


def _narrow(tensor: Tensor, width: int) -> Tensor:
    return tensor if tensor.shape[2] == width else tensor[..., :width].contiguous()


class _LinearProduct(Operation):
    """h @ w, batched over the first axis."""

    @staticmethod
    def forward(h: Tensor, w: Tensor) -> Tensor:
        return _product(h, w)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor]:
        h, w = ctx.saved_tensors
        return _LinearProduct.apply(grad, w.mT), _Gram.apply(h, grad)

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, h: Tensor, w: Tensor) -> tuple[Tensor, int]:
        return _over_all(_LinearProduct, info.batch_size, in_dims, h, w)


class _Gram(Operation):
    """h.mT @ g, batched over the first axis."""

    @staticmethod
    def forward(h: Tensor, g: Tensor) -> Tensor:
        return _gram(h, g)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor]:
        h, g = ctx.saved_tensors
        return _LinearProduct.apply(g, grad.mT), _LinearProduct.apply(h, grad)

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, h: Tensor, g: Tensor) -> tuple[Tensor, int]:
        return _over_all(_Gram, info.batch_size, in_dims, h, g)


def _over_all(kind: Any, clients: int, in_dims: Dims, *sides: Tensor) -> tuple[Tensor, int]:
    """One product over clients and the batch axis together."""
    merged = [side.flatten(0, 1) for side in over_clients(clients, in_dims, *sides)]
    out = kind.apply(*merged)
    return out.unflatten(0, (clients, -1)), 0


def affine(h: Tensor | Sparse, w: Tensor, bias: Tensor, relu: bool = False) -> Tensor:
    """h @ w + bias, then ReLU if `relu`, for h [n, in], dense or sparse, w [in, out] and bias [out]."""
    fits_kernel = not torch.compiler.is_exporting() and w.shape[0] <= COLUMNS
    if isinstance(h, Sparse) or not fits_kernel or w.shape[0] % WIDTH or w.shape[1] % WIDTH:
        out = linear(h, w) + bias
        return torch.relu(out) if relu else out
    return _Affine.apply(h[None], materialize(w)[None], bias[None], relu).squeeze(0)


@kernel
def _affine(h: Tensor, w: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """h [P, n, in], w [P, in, out], bias [P, out]."""
    out = h.new_empty(*h.shape[:2], w.shape[2])
    if by_onednn(w.shape[1], w.shape[2], h):
        onednn_affine(h, w, bias, relu, out)
        return out
    for part, into in zip(blocks(h), blocks(out), strict=True):
        torch.add(torch.bmm(part, w), bias[:, None], out=into)
        if relu:
            into.relu_()
    return out


@kernel
def _gradients(
    grad: Tensor, h: Tensor, w: Tensor, out: Tensor, relu: bool, below: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in h (empty unless `below`), w and the bias."""
    of_h = h.new_empty(h.shape if below else (0, 0, 0))
    of_w, of_bias, back = (
        torch.zeros_like(w),
        w.new_zeros(len(w), w.shape[2]),
        w.mT,
    )  # of_w [P, in, out], of_bias [P, out]
    onednn = by_onednn(w.shape[1], w.shape[2], h)
    rows = ONEDNN_ROWS if onednn else ROWS
    slopes = blocks(grad, rows)
    gradients = blocks(of_h, rows) if below else (None,) * len(slopes)
    for slope, part, after, into in zip(slopes, blocks(h, rows), blocks(out, rows), gradients, strict=True):
        inner_grad = torch.ops.aten.threshold_backward(slope, after, 0) if relu else slope.contiguous()
        for piece in blocks(inner_grad):
            of_bias += piece.sum(1)
        if onednn:
            add_gram(of_w, part, inner_grad)
        else:
            of_w.baddbmm_(part.mT, inner_grad)
        if into is not None:
            onednn_multiply(inner_grad, back, into) if onednn else multiply(inner_grad, back, into)
    return of_h, of_w, of_bias


class _Affine(Operation):
    """`affine`, batched over the first axis."""

    @staticmethod
    def forward(h: Tensor, w: Tensor, bias: Tensor, relu: bool) -> Tensor:
        return _affine(h, w, bias, relu)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        h, w, _, ctx.relu = inputs
        ctx.save_for_backward(h, w, output)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        h, w, out = ctx.saved_tensors
        below = ctx.needs_input_grad[0]
        if torch.is_grad_enabled():  # to be differentiated again
            inner_grad = grad * (out > 0).to(grad.dtype) if ctx.relu else grad
            return (product(inner_grad, w.mT) if below else None), gram(h, inner_grad), inner_grad.sum(1), None
        of_h, of_w, of_bias = _gradients(grad, h, w, out, ctx.relu, below)
        return of_h if below else None, of_w, of_bias, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, h: Tensor, w: Tensor, bias: Tensor, relu: bool) -> tuple[Tensor, int]:
        sides = [side.flatten(0, 1) for side in over_clients(info.batch_size, in_dims, h, w, bias)]
        out = _Affine.apply(*sides, relu)
        return out.unflatten(0, (info.batch_size, -1)), 0
