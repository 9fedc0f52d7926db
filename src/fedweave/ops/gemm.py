"""Dense products, client by client, in the library that is the faster one on this processor.

PyTorch takes MKL for them, which has kernels for AVX2 alone for AMD's processors, whatever these can do; oneDNN, which
is in PyTorch too, uses AVX-512 there: of an EPYC's core 215 against 95 GFLOP/s. PyTorch reaches it in compiled graphs,
by the operator that is called here.
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor


def torch_from(major: int, minor: int) -> bool:
    """Whether PyTorch is of this release or a newer one."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (major, minor)


SMALL = 128 * 128  # entries of a weight, below which a client's call costs more than its product gains
# Rows that are summed over at once: with up to 1,024, a client alone and the same padded with rows of zeros gave the
# same bits in thousands of random shapes, with one thread and with two; with 2,048 not always.
ROWS = 512


def by_onednn(fan_in: int, fan_out: int, like: Tensor) -> bool:
    """Whether products with a weight [fan_in, fan_out] are oneDNN's, for tensors like this one.

    It may not depend on rows and clients, for the bits of a client's numbers do not.
    """
    plain = like.dtype == torch.float32 and like.device.type == "cpu"
    return plain and fan_in * fan_out >= SMALL and _faster()


def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """a [P, n, k] times b [P, k, m] into `out` [P, n, m], by oneDNN."""
    for own, other, into in zip(a.unbind(), b.unbind(), out.unbind(), strict=True):
        into.copy_(_linear(own, other))


def affine(h: Tensor, w: Tensor, bias: Tensor, relu: bool, out: Tensor) -> None:
    """h [P, n, k] times w [P, k, m], plus bias [P, m], with ReLU or without, into `out` [P, n, m], by oneDNN."""
    for own, weight, shift, into in zip(h.unbind(), w.unbind(), bias.unbind(), out.unbind(), strict=True):
        made = _linear(own, weight, shift)
        into.copy_(made.relu_() if relu else made)  # oneDNN's own ReLU makes 0 of NaN, which would hide a divergence


def add_gram(total: Tensor, h: Tensor, g: Tensor) -> None:
    """Add Σ over rows of h [P, n, k] times g [P, n, m] to `total` [P, k, m], by oneDNN."""
    for own, other, into in zip(h.unbind(), g.unbind(), total.unbind(), strict=True):
        for rows, slope in zip(own.split(ROWS), other.split(ROWS), strict=True):
            into.add_(_linear(slope.mT.contiguous(), rows).mT)  # the same bits as of rows.mT, which would be copied


def _linear(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a [n, k] @ b [k, m] + bias [m]. A single row is taken twice, for vectors are summed in another order."""
    if len(a) == 1:
        return _linear(a.expand(2, -1), b, bias)[:1]
    if not (b.is_contiguous() or b.mT.is_contiguous()):  # of a part of a matrix it takes 1,000 times as long
        b = b.contiguous()
    return torch.ops.mkldnn._linear_pointwise(a, b.mT, bias, "none", [], "")  # type: ignore[no-any-return]


def reliable() -> bool:
    """Whether this PyTorch has a oneDNN whose bits do not depend on padding: with 2.8 to 2.11 those of few rows did."""
    return torch_from(2, 12) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def _faster() -> bool:
    """Whether MKL leaves AVX-512 unused here, and oneDNN's bits do not depend on padding."""
    if not reliable() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    about = Path("/proc/cpuinfo")
    return about.exists() and "AuthenticAMD" in about.read_text(errors="replace")
