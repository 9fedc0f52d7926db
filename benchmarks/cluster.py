"""Seconds per round of workers on one machine against one process, on the same clients in one run.

FedAvg, 2-layer GCN of width 64, synthetic clients of 50 nodes each, every client trained and evaluated in every round.
The sides take turns; medians over all rounds but each turn's first are printed, and the memory of the driver.

    python -m benchmarks.cluster [--clients 1000] [--workers 2] [--rounds 10] [--turns 3]
"""

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median
from typing import Any

import torch

from fedweave.experiment.build import Built, build
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.rounds import train

NODES, FEATURES = 50, 32
MANY = 1_000_000  # rounds, of which every turn makes some


def experiment(clients: int, workers: int) -> Config:
    """The same experiment on workers; `in_process` is its other side."""
    return resolve(
        {
            "data": {"name": "synthetic", "nodes": NODES * clients, "features": FEATURES, "degree": 4.0},
            "partition": {"name": "random", "clients": clients},
            "model": {"name": "gcn", "hidden": 64},
            "algorithm": {"name": "fedavg"},
            "engine": {"name": "ray", "workers": workers},
        }
    )


def side(built: Built) -> Callable[[int], list[float]]:
    """Run rounds on an engine that lives on between turns, as in a long run."""
    steps = train(built.algorithm, built.fed, MANY)
    return lambda count: list(_intervals(islice(steps, count)))


def _intervals(steps: Iterator[Any]) -> Iterator[float]:
    began = time.perf_counter()
    for _ in steps:
        now = time.perf_counter()
        yield now - began
        began = now


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    config = experiment(given.clients, given.workers)
    made = {"workers": build(config), "one process": build(config.in_process())}
    sides, seconds = {name: side(built) for name, built in made.items()}, {name: list[float]() for name in made}
    for _ in range(given.turns):
        for name, rounds in sides.items():
            seconds[name] += rounds(given.rounds + 1)[1:]
    print(f"{torch.get_num_threads()} threads in this process, torch {torch.__version__}")
    for name, own in seconds.items():
        print(f"{name}: {median(own):.4f} s a round ({min(own):.4f} to {max(own):.4f})")
    print(f"ratio {median(seconds['workers']) / median(seconds['one process']):.2f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"driver at peak, with the other side's clients: {peak:.0f} MB")
    made["workers"].close()


if __name__ == "__main__":
    main()
