"""Memory and processor time of the estimation of overlaps for many clients: random minibatches of 64 nodes, codes of
100 bits with the noise of ε = 3. `benchmarks.fairness` compares it with a round of FedAvg and runs this, too.

    python -m benchmarks.overlap [--clients 1000]
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from benchmarks.common import peak_memory
from fedweave.algorithms.fairgfl import overlaps

SIZE, BATCH = 100, 64


def main() -> None:
    """Print seconds, and the largest memory of the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    estimate(args.clients)
    print(
        f"estimation, {args.clients} clients: {time.process_time() - began:.1f} s, {peak_memory() / 1e3:.2f} GB at most"
    )


@contextmanager
def time_estimation(part: Any) -> Iterator[list[float]]:
    """A list of the processor seconds of each estimation by parts of this class inside the context."""
    kind, seconds, original = type(part), [], type(part).observe

    def timed_estimate(*args: Any) -> Any:
        began = time.process_time()
        result = original(*args)
        seconds.append(time.process_time() - began)
        return result

    kind.observe = timed_estimate
    try:
        yield seconds
    finally:
        kind.observe = original


def estimate(clients: int) -> None:
    """One estimation for clients that each hold 64 of 20 nodes per client, codes with the noise of ε = 3."""
    rng = np.random.default_rng(0)
    people = rng.random((20 * clients, SIZE)) < 0.5
    codes = people[rng.integers(0, len(people), (clients, BATCH))] ^ (rng.random((clients, BATCH, SIZE)) < 0.047)
    links = torch.from_numpy(rng.random((clients, BATCH, BATCH)) < 0.01)
    sizes = torch.full((clients,), BATCH)
    pairs = overlaps.matches(torch.from_numpy(codes.astype(np.uint8)), sizes, 1, 18)
    common = overlaps.overlap_count(overlaps.counts(pairs, BATCH, clients), sizes, overlaps.Rates(18, 0.99, 1e-5))
    overlaps.node_ratios(common, sizes, 2 * sizes)
    overlaps.link_ratios(links | links.mT, pairs, sizes, 2 * sizes)


if __name__ == "__main__":
    main()
