"""How fast this machine is at FedAvg's kernels, and the time that any engine made of these kernels needs at least.

`measure()` times each kernel at the workload's sizes (`Rates`); `floor()` divides the workload's counts (`Shape`) by
these rates and lists each term in milliseconds, so that the largest terms can be seen.

    python -m benchmarks.machine [--clients 10 50 100]
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks.baselines import Part, normalize_adjacency, random_cora
from fedweave.core import random
from fedweave.ops.csr import Csr

FLOAT = 4  # bytes
CALLS_PER_EPOCH, CALLS_PER_ROUND = 20, 16


class Rates(NamedTuple):
    """Medians at torch's default number of threads.

    cache, dram: GB/s of a = b + s c (12 bytes per element; a store's read for ownership is not counted), at 2^17 and
                 2^25 elements per vector.
    adam:        10^9 elements/s of torch's fused Adam kernel with weight decay, at d hidden elements, in cache.
    forward:     GFLOP/s of CSR X W, 2 nnz hidden FLOPs, at X of n nodes.
    backward:    GFLOP/s of CSR X^T G, the same count; its output is d x hidden.
    gemm:        GFLOP/s of dense [n, hidden] [hidden, hidden].
    call:        microseconds per smallest torch call from Python (one element, output given).
    """

    cache: float
    dram: float
    adam: float
    forward: float
    backward: float
    gemm: float
    call: float


class Shape(NamedTuple):
    """Counts of one round, summed over clients; training touches only the rows that some train node's
    output depends on.

    clients, features, hidden, classes, epochs: P, d, h, c, local epochs.
    nodes, nnz, links:    all nodes, nonzeros of X, nonzeros of the adjacencies with self loops.
    trained, near, far:   train nodes (output rows), their neighborhoods (rows of H), and theirs (rows of X W).
    nnz_far:              nonzeros of those rows of X.
    links_out, links_in:  nonzeros of the adjacencies' `trained` and `near` rows.
    touched:              distinct features among those rows, counted at each client.
    """

    clients: int
    features: int
    hidden: int
    classes: int
    epochs: int
    nodes: int
    nnz: int
    links: int
    trained: int
    near: int
    far: int
    nnz_far: int
    links_out: int
    links_in: int
    touched: int

    @classmethod
    def of(cls, parts: Sequence[Part], hidden: int, classes: int, epochs: int = 3) -> "Shape":
        """Count them in the clients' data."""
        counts = np.zeros(10, np.int64)
        for x, edges, y, masks in parts:
            a = normalize_adjacency(edges, len(y))
            outer = a[masks[0]]
            near = np.unique(outer.indices)
            inner = a[near]
            far = np.unique(inner.indices)
            rows = x[far]
            sizes = (len(y), x.nnz, a.nnz, masks[0].sum(), len(near), len(far))
            counts += (*sizes, rows.nnz, outer.nnz, inner.nnz, len(np.unique(rows.indices)))
        return cls(len(parts), parts[0][0].shape[1], hidden, classes, epochs, *counts.tolist())

    @property
    def weights(self) -> int:
        """Elements that differ between clients, plus one copy of the first layer for the rest:
        touched h + P (h + h c + c) + d h."""
        h, c = self.hidden, self.classes
        return self.touched * h + self.clients * (h + h * c + c) + self.features * h


def floor(shape: Shape, rates: Rates, in_cache: bool = True) -> dict[str, float]:
    """Seconds per round by term, and "total": every count at its measured rate, one after the other.

    Per epoch:
        "X W", "X^T G"  2 nnz_far h FLOPs each, at the two CSR rates.
        "A H"           4 (links_in h + links_out c) FLOPs at the forward rate: both layers, forward and backward, the
                        second at width c.
        "H W"           6 near h c FLOPs at the gemm rate: forward and two gradients.
        "elementwise"   5 near h floats: ReLU with dropout reads and writes, its backward reads two and writes.
        "Adam"          `Shape.weights` elements.
    Per round:
        "start"         4 floats per element of `Shape.weights`: global model read, weights and two moments written.
        "average"       3 floats per element: weight and running total read, total written.
        "evaluate"      one forward pass over all nodes: 2 nnz h + 2 links (h + c) sparse and 2 nodes h c dense FLOPs,
                        2 nodes h floats.
        "calls"         20 torch calls per epoch and 16 per round, as if all clients were one batch.

    Client states are taken to fit the cache, chunk by chunk. `in_cache=False` moves every float at the DRAM rate, and
    Adam's seven per element too (weight, gradient, two moments read; all but the gradient written).

    A kernel that fuses several of these terms could do better: this bounds engines made of these kernels.
    """
    h, c, near = shape.hidden, shape.classes, shape.near
    bandwidth = 1e9 * (rates.cache if in_cache else rates.dram)
    spmm, back, gemm = 1e9 * rates.forward, 1e9 * rates.backward, 1e9 * rates.gemm
    adam = shape.weights / (1e9 * rates.adam)
    if not in_cache:
        adam = max(adam, 7 * FLOAT * shape.weights / bandwidth)
    epoch = {
        "X W": 2 * shape.nnz_far * h / spmm,
        "X^T G": 2 * shape.nnz_far * h / back,
        "A H": 4 * (shape.links_in * h + shape.links_out * c) / spmm,
        "H W": 6 * near * h * c / gemm,
        "elementwise": 5 * FLOAT * near * h / bandwidth,
        "Adam": adam,
    }
    terms = {name: shape.epochs * seconds for name, seconds in epoch.items()}
    terms["start"] = 4 * FLOAT * shape.weights / bandwidth
    terms["average"] = 3 * FLOAT * shape.weights / bandwidth
    sparse = 2 * shape.nnz * h + 2 * shape.links * (h + c)
    terms["evaluate"] = sparse / spmm + 2 * shape.nodes * h * c / gemm + 2 * FLOAT * shape.nodes * h / bandwidth
    terms["calls"] = 1e-6 * rates.call * (shape.epochs * CALLS_PER_EPOCH + CALLS_PER_ROUND)
    return {**terms, "total": sum(terms.values())}


def measure(nodes: int = 2708, features: int = 1433, nnz: int = 49216, hidden: int = 64) -> Rates:
    """Time every kernel of `Rates`, by default at Cora's size; about two seconds and 400 MB."""
    draw = random.generator(0, "machine")
    places = draw.choice(nodes * features, nnz, replace=False)
    x = sp.csr_matrix((np.ones(nnz, np.float32), np.divmod(places, features)), shape=(nodes, features))
    csr = Csr.of(x)
    forth, back = csr.torch(), csr.transpose().torch()
    w, g, square = torch.rand(features, hidden), torch.rand(nodes, hidden), torch.rand(hidden, hidden)
    into_w, into_g, one = torch.empty_like(w), torch.empty_like(g), torch.zeros(1)
    flops = 2e-9 * nnz * hidden
    return Rates(
        cache=_stream(2**17),
        dram=_stream(2**25),
        adam=1e-9 * w.numel() / _seconds(_adam(w.numel())),
        forward=flops / _seconds(lambda: torch.mm(forth, w, out=into_g)),
        backward=flops / _seconds(lambda: torch.mm(back, g, out=into_w)),
        gemm=2e-9 * nodes * hidden**2 / _seconds(lambda: torch.mm(g, square, out=into_g)),
        call=1e6 * _seconds(lambda: torch.add(one, one, out=one)),
    )


def _stream(size: int) -> float:
    a, b, c = (torch.ones(size) for _ in range(3))
    return 3e-9 * FLOAT * size / _seconds(lambda: torch.add(b, c, alpha=1.5, out=a))


def _adam(size: int) -> Callable[[], None]:
    weight, grad, mean, square = (torch.full((size,), 1e-3) for _ in range(4))
    step = torch.ones(())
    kernel = partial(torch._fused_adam_, lr=0.01, beta1=0.9, beta2=0.999, weight_decay=5e-4, eps=1e-8)
    # the bare kernel: torch.optim.Adam adds some 20 us of Python to each step
    return lambda: kernel([weight], [grad], [mean], [square], [], [step], amsgrad=False, maximize=False)


def _seconds(call: Callable[[], object], budget: float = 0.25) -> float:
    """Median seconds of one call, from blocks of at least 50 us so that the clock does not count."""
    call()
    began = time.perf_counter()
    call()
    block = max(1, int(5e-5 / (time.perf_counter() - began)))
    seconds: list[float] = []
    while len(seconds) < 5 or sum(seconds) * block < budget:
        began = time.perf_counter()
        for _ in range(block):
            call()
        seconds.append((time.perf_counter() - began) / block)
    return float(np.median(seconds))


def main() -> None:
    """Print the machine's rates and the floor of one round on Cora, in milliseconds by term."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 50, 100])
    args = parser.parse_args()
    rates = measure()
    print(f"{torch.get_num_threads()} threads:", *(f"{name} {value:.2f}" for name, value in rates._asdict().items()))
    for clients in args.clients:
        shape = Shape.of(random_cora(clients), 64, 7)
        print(f"{clients} clients:", *(f"{name} {value}" for name, value in shape._asdict().items()))
        for name, in_cache in (("in cache", True), ("from DRAM", False)):
            terms = floor(shape, rates, in_cache)
            print(f"  ms, {name}:", *(f"{term} {1e3 * seconds:.2f}" for term, seconds in terms.items()))


if __name__ == "__main__":
    main()
