"""What fairness costs: a round of F²GNN against one of FedAvg, and FairGFL's estimation of overlaps against one.

Both sides of a comparison run in turns in one process, without evaluation, and processor time is measured, so that
other work on the machine affects both equally. The first turns, in which steps are recorded, are left out. Each line
has the median over turns, and the median and the quartiles of the ratio to the first side in the same turn.

F²GNN: Credit, 3 of 30 ego-networks of very different sizes in each round. FairGFL: Cora, 40 clients, minibatches of 64
nodes, codes of 100 bits; then random minibatches of many clients, in a separate process, for its memory.

    python -m benchmarks.fairness [--turns 20] [--rounds 5] [--skip 100] [--clients 1000] [--only f2gnn overlap many]
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks import overlap
from benchmarks.common import EXPERIMENTS
from fedweave.experiment.build import build
from fedweave.experiment.config import read


class Side:
    """An algorithm on an experiment, ready for its next round."""

    def __init__(self, experiment: str, name: str, *settings: str) -> None:
        built = build(read(EXPERIMENTS / f"{experiment}.toml", list(settings), name)[0])
        self.algorithm, self.fed, self.number = built.algorithm, built.fed, 0
        self.sizes = sorted(len(part.nodes) for part in built.partition.parts)
        self.fed.begin(0)
        self.state = self.algorithm.init(self.fed)

    def turn(self, rounds: int) -> float:
        """Seconds of processor time of a round, mean over the next `rounds`."""
        began = time.process_time()
        for _ in range(rounds):
            self.number += 1
            self.fed.begin(self.number)
            self.state = self.algorithm.round(self.state, self.fed)
        return (time.process_time() - began) / rounds


def compare(sides: dict[str, Callable[[], float]], turns: int) -> None:
    """Print a line for each side, the first of which the others are compared with."""
    seconds = {name: np.zeros(turns) for name in sides}
    for turn in range(turns):
        for name, side in sides.items():
            seconds[name][turn] = side()
    first = next(iter(seconds.values()))
    for name, times in seconds.items():
        low, middle, high = np.quantile(times / first, [0.25, 0.5, 0.75])
        ratio = "" if times is first else f"{middle:.3f} ({low:.3f} to {high:.3f})"
        print(f"{name:12} {1000 * np.median(times):8.2f} ms a round   {ratio}")


def f2gnn(turns: int, rounds: int, skip: int) -> None:
    """Rounds of both on Credit."""
    sides = {name: Side("f2gnn-credit", name) for name in ("fedavg", "f2gnn")}
    sizes = sides["fedavg"].sizes
    print(f"Credit, 3 of {len(sizes)} clients of {sizes[0]} to {sizes[-1]} nodes")
    for side in sides.values():
        side.turn(skip)
    compare({name: lambda side=side: side.turn(rounds) for name, side in sides.items()}, turns)


def estimation(turns: int, rounds: int, skip: int) -> None:
    """Rounds of FedAvg on Cora, and the part of FairGFL's rounds in which the server estimates overlaps."""
    fedavg = Side("fairgfl-cora", "fedavg")
    fairgfl = Side("fairgfl-cora", "fairgfl", "algorithm.encoder_rounds=0")
    with overlap.time_estimation(fairgfl.algorithm.composed["OverlapWeights"]) as seconds:

        def estimate() -> float:
            before = len(seconds)
            fairgfl.turn(rounds)
            return sum(seconds[before:]) / rounds

        for side in (fedavg, fairgfl):
            side.turn(skip)
        print("Cora, 40 clients")
        compare({"fedavg": lambda: fedavg.turn(rounds), "estimation": estimate}, turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5, help="of a turn")
    parser.add_argument("--skip", type=int, default=100, help="rounds of either side before; a tenth of it on Cora")
    parser.add_argument(
        "--clients", type=int, default=1000, help="whose overlaps are estimated for the memory it takes"
    )
    parser.add_argument("--only", nargs="+", choices=["f2gnn", "overlap", "many"], default=["f2gnn", "overlap", "many"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    if "f2gnn" in args.only:
        f2gnn(args.turns, args.rounds, args.skip)
    if "overlap" in args.only:
        estimation(args.turns, 1, max(3, args.skip // 10))
    if "many" in args.only:
        subprocess.run([sys.executable, "-m", "benchmarks.overlap", "--clients", str(args.clients)], check=True)


if __name__ == "__main__":
    main()
