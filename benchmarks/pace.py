"""What a schedule, clipping and mini-batches cost in a recorded round: A and B in turn, in one process, median ratio.

python -m benchmarks.pace [--data cora] [--clients 10] [--rounds 60]
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import RoundResult, train

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "schedule": {"schedule": "cosine", "warmup": 5},
    "batch_size": {"batch_size": 32},
    "schedule and batch_size": {"schedule": "cosine", "warmup": 5, "batch_size": 32},
    "clip_gradient": {"clip_gradient": 1.0},
}


def rounds_of(data: str, clients: int, rounds: int, settings: dict[str, Any]) -> Iterator[RoundResult]:
    """The rounds of one variant, none of them evaluated but the last."""
    document = {
        "rounds": rounds,
        "data": {"name": data},
        "partition": {"name": "louvain", "clients": clients},
        "model": {"name": "gcn"},
        "algorithm": {"name": "fedavg", **settings},
        "engine": {"threads": 1},
    }
    built = build(resolve(document))
    return train(built.algorithm, built.fed, rounds, eval_every=0)


def main() -> None:
    """Print a line for each variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cora")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    torch.set_num_threads(1)
    going = {name: rounds_of(given.data, given.clients, given.rounds, how) for name, how in VARIANTS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for number in range(given.rounds - 1):
        for name, rounds in going.items():
            began = time.process_time()
            next(rounds)
            if number >= 5:  # recorded by then
                seconds[name].append(time.process_time() - began)
    for name, taken in seconds.items():
        ratios = [one / plain for one, plain in zip(taken, seconds["plain"], strict=True)]
        print(f"{name}: {1000 * statistics.median(taken):.2f} ms, ratio {statistics.median(ratios):.3f}", flush=True)


if __name__ == "__main__":
    main()
