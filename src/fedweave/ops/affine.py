"""h W + b, with ReLU or without: one operation whose bias, ReLU and gradients are taken rows by rows, while these are
in a processor's cache. Its numbers are those of `ops.linear` with the bias and ReLU after it."""

import torch
from torch import Tensor

from fedweave.ops import gemm
from fedweave.ops.batched import Batch, Context, Dims, Operands, Operation, over_clients
from fedweave.ops.linear import COLUMNS, ROWS, WIDTH, blocks, gram, linear, multiply, product
from fedweave.ops.sparse import Sparse
from fedweave.ops.tape import kernel
from fedweave.ops.touched import materialize


def affine(h: Tensor | Sparse, w: Tensor, bias: Tensor, relu: bool = False) -> Tensor:
    """h @ w + bias, then ReLU if `relu`, for h [n, in], dense or sparse, w [in, out] and bias [out]."""
    if isinstance(h, Sparse) or w.shape[0] > COLUMNS or w.shape[0] % WIDTH or w.shape[1] % WIDTH:
        out = linear(h, w) + bias
        return torch.relu(out) if relu else out
    return _Affine.apply(h[None], materialize(w)[None], bias[None], relu).squeeze(0)


@kernel
def _affine(h: Tensor, w: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """h [P, n, in], w [P, in, out], bias [P, out]."""
    out = h.new_empty(*h.shape[:2], w.shape[2])
    if gemm.by_onednn(w.shape[1], w.shape[2], h):
        gemm.affine(h, w, bias, relu, out)
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
    """Of h (empty unless it is wanted, `below`), w and the bias."""
    of_h = h.new_empty(h.shape if below else (0, 0, 0))
    of_w, of_bias, back = torch.zeros_like(w), w.new_zeros(len(w), w.shape[2]), w.mT
    by_onednn = gemm.by_onednn(w.shape[1], w.shape[2], h)
    rows = gemm.ROWS if by_onednn else ROWS
    slopes = blocks(grad, rows)
    wanted = blocks(of_h, rows) if below else (None,) * len(slopes)
    for slope, part, after, into in zip(slopes, blocks(h, rows), blocks(out, rows), wanted, strict=True):
        own = torch.ops.aten.threshold_backward(slope, after, 0) if relu else slope.contiguous()
        for piece in blocks(own):
            of_bias += piece.sum(1)
        if by_onednn:
            gemm.add_gram(of_w, part, own)
        else:
            of_w.baddbmm_(part.mT, own)
        if into is not None:
            gemm.multiply(own, back, into) if by_onednn else multiply(own, back, into)
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
            own = grad * (out > 0).to(grad.dtype) if ctx.relu else grad
            return (product(own, w.mT) if below else None), gram(h, own), own.sum(1), None
        of_h, of_w, of_bias = _gradients(grad, h, w, out, ctx.relu, below)
        return of_h if below else None, of_w, of_bias, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, h: Tensor, w: Tensor, bias: Tensor, relu: bool) -> tuple[Tensor, int]:
        sides = over_clients(info.batch_size, in_dims, h, w, bias)
        out = _Affine.apply(*(side.flatten(0, 1) for side in sides), relu)
        return out.unflatten(0, (info.batch_size, -1)), 0
