"""What the estimation of overlaps takes of memory and time for many clients: made-up minibatches of 64 nodes, codes of
100 bits with the noise of ε = 3. `benchmarks.fairness` compares it with a round of FedAvg and runs this, too.

    python -m benchmarks.overlap [--clients 1000]
"""

import argparse
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fedweave.algorithms.fairgfl import overlaps

SIZE, BATCH = 100, 64


def main() -> None:
    """Print seconds, and the memory that the process has had at most."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    many(args.clients)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"estimation, {args.clients} clients: {time.process_time() - began:.1f} s, {peak:.2f} GB at most")


@contextmanager
def timed(part: Any) -> Iterator[list[float]]:
    """Seconds of processor time of each estimation by parts of this class while it is entered."""
    kind, spent, estimate = type(part), [], type(part)._estimated

    def measured(*args: Any) -> Any:
        began = time.process_time()
        out = estimate(*args)
        spent.append(time.process_time() - began)
        return out

    kind._estimated = measured
    try:
        yield spent
    finally:
        kind._estimated = estimate


def many(clients: int) -> None:
    """One estimation for clients that each hold 64 of 20 nodes per client, codes with the noise of ε = 3."""
    rng = np.random.default_rng(0)
    people = rng.random((20 * clients, SIZE)) < 0.5
    codes = people[rng.integers(0, len(people), (clients, BATCH))] ^ (rng.random((clients, BATCH, SIZE)) < 0.047)
    links = torch.from_numpy(rng.random((clients, BATCH, BATCH)) < 0.01)
    taken = torch.full((clients,), BATCH)
    pairs = overlaps.matches(torch.from_numpy(codes.astype(np.uint8)), taken, 1, 18)
    common = overlaps.overlap_count(overlaps.counts(pairs, BATCH, clients), taken, overlaps.Rates(18, 0.99, 1e-5))
    overlaps.node_ratios(common, taken, 2 * taken)
    overlaps.link_ratios(links | links.mT, pairs, taken, 2 * taken)


if __name__ == "__main__":
    main()
