"""Dense products, client by client, in the library that is faster on this processor.

PyTorch uses MKL for them, which uses only AVX2 on AMD's processors, even if they have AVX-512. PyTorch also contains
oneDNN, which uses AVX-512 there: 215 instead of 95 GFLOP/s on a core of an EPYC. PyTorch calls oneDNN in compiled
graphs; this module calls the same operator.
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor


def torch_from(major: int, minor: int) -> bool:
    """Whether PyTorch is of this release or a newer one."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (major, minor)


SMALL = 128 * 128  # entries of a weight; for a smaller weight a call per client costs more than its product gains
# Rows per sum. With up to 1,024 rows, a client alone and the same client padded with zeros had the same bits in
# thousands of random shapes, with one thread and with two. With 2,048 rows the bits sometimes differed.
ONEDNN_ROWS = 512


def by_onednn(fan_in: int, fan_out: int, like: Tensor) -> bool:
    """Whether oneDNN computes products with a weight [fan_in, fan_out], for tensors like this one.

    The choice does not depend on rows and clients, because the bits of a client's numbers must not.
    """
    plain = like.dtype == torch.float32 and like.device.type == "cpu"
    return plain and fan_in * fan_out >= SMALL and _faster()


def onednn_multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """a [P, n, k] times b [P, k, m] into `out` [P, n, m], by oneDNN."""
    for rows, weight, into in zip(a.unbind(), b.unbind(), out.unbind(), strict=True):
        into.copy_(_linear(rows, weight))


def onednn_affine(h: Tensor, w: Tensor, bias: Tensor, relu: bool, out: Tensor) -> None:
    """h [P, n, k] times w [P, k, m], plus bias [P, m], with ReLU or without, into `out` [P, n, m], by oneDNN."""
    for rows, weight, shift, into in zip(h.unbind(), w.unbind(), bias.unbind(), out.unbind(), strict=True):
        result = _linear(rows, weight, shift)
        if relu:  # oneDNN's own ReLU turns NaN into 0, which would hide a divergence
            result.relu_()
        into.copy_(result)


def add_gram(total: Tensor, h: Tensor, g: Tensor) -> None:
    """Add Σ over rows of h [P, n, k] times g [P, n, m] to `total` [P, k, m], by oneDNN."""
    for part, other, into in zip(h.unbind(), g.unbind(), total.unbind(), strict=True):
        for rows, slope in zip(part.split(ONEDNN_ROWS), other.split(ONEDNN_ROWS), strict=True):
            into.add_(_linear(rows.mT.contiguous(), slope))


def _linear(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a [n, k] @ b [k, m] + bias [m]. A single row is doubled, because oneDNN sums vectors in another order."""
    if len(a) == 1:
        return _linear(a.expand(2, -1), b, bias)[:1]
    if not (b.is_contiguous() or b.mT.is_contiguous()):  # a slice of a matrix takes 1,000 times as long
        b = b.contiguous()
    return torch.ops.mkldnn._linear_pointwise(a, b.mT, bias, "none", [], "")  # type: ignore[no-any-return]


def reliable() -> bool:
    """Whether padding has no influence on the bits of this PyTorch's oneDNN, as it has in 2.8 to 2.11 with few rows."""
    return torch_from(2, 12) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def _faster() -> bool:
    """Whether MKL leaves this processor's AVX-512 unused, and oneDNN is `reliable`."""
    if not reliable() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    about = Path("/proc/cpuinfo")
    return about.exists() and "AuthenticAMD" in about.read_text(errors="replace")
