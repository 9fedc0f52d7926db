"""Seconds per round of F²GNN against FedAvg, by turns in one process: 3 of 30 ego-networks of very different sizes.

Both train the same cut and model, without evaluation unless asked. Turns of several rounds alternate; the first turn of
either, in which steps are recorded, is left out of the medians and printed by itself.

    python -m benchmarks.fairness [--experiment experiments/f2gnn-credit.toml] [--turns 6] [--rounds 10] [--evaluate]
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from fedweave import config
from fedweave.build import Built, build
from fedweave.rounds import train


def seconds(built: Built, rounds: int, evaluate: bool) -> Iterator[float]:
    """Seconds of each round."""
    steps = train(built.algorithm, built.fed, rounds, eval_every=int(evaluate))
    for _ in range(rounds):
        began = time.perf_counter()
        next(steps)
        yield time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", type=Path, default=Path("experiments/f2gnn-credit.toml"))
    parser.add_argument("--methods", nargs="+", default=["fedavg", "f2gnn"])
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=10, help="of a turn")
    parser.add_argument("--evaluate", action="store_true", help="after every round")
    given = parser.parse_args()
    torch.set_num_threads(1)
    whole = given.turns * given.rounds + 1  # the last round, which is always evaluated, is never reached
    made = {name: build(config.read(given.experiment, [], name)[0]) for name in given.methods}
    sizes = sorted(len(part.nodes) for part in made[given.methods[0]].partition.parts)
    print(f"{given.experiment.stem}: clients of {sizes[0]} to {sizes[-1]} nodes, median {sizes[len(sizes) // 2]}")
    runs = {name: seconds(built, whole, given.evaluate) for name, built in made.items()}
    taken: dict[str, list[list[float]]] = {name: [] for name in made}
    for _ in range(given.turns):
        for name, run in runs.items():
            taken[name].append([next(run) for _ in range(given.rounds)])
    print("| algorithm | seconds per round, median (10-90 %) | ratio | first turn, mean |")
    print("| --- | --- | --- | --- |")
    base = np.median(taken[given.methods[0]][1:])
    for name, turns in taken.items():
        low, middle, high = np.quantile(turns[1:], [0.1, 0.5, 0.9])
        first = float(np.mean(turns[0]))
        print(f"| `{name}` | {middle:.4f} ({low:.4f}-{high:.4f}) | {middle / base:.2f} | {first:.4f} |")


if __name__ == "__main__":
    main()
