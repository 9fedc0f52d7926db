"""What fairness costs: a round of F²GNN against one of FedAvg, and FairGFL's estimation of overlaps against one.

Both sides of a comparison run by turns in one process, without evaluation, and processor time counts, so that other
work on the machine disturbs both alike; what is recorded in the first turns is left out. Printed are medians over
turns, and of the turns' own ratios the median and the quartiles.

F²GNN: Credit, 3 of 30 ego-networks of very different sizes in each round. FairGFL: Cora, 40 clients, minibatches of 64
nodes, codes of 100 bits; then made-up minibatches of many clients, in a process of its own, for its memory.

    python -m benchmarks.fairness [--turns 20] [--rounds 5] [--skip 100] [--clients 1000] [--only f2gnn overlap many]
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks import overlap
from fedweave.experiment.build import build
from fedweave.experiment.config import read

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


class Side:
    """An algorithm on an experiment, ready for its next round."""

    def __init__(self, experiment: str, name: str, *settings: str) -> None:
        made = build(read(EXPERIMENTS / f"{experiment}.toml", list(settings), name)[0])
        self.algorithm, self.fed, self.number = made.algorithm, made.fed, 0
        self.sizes = sorted(len(part.nodes) for part in made.partition.parts)
        self.fed.begin(0)
        self.state = self.algorithm.init(self.fed)

    def turn(self, rounds: int) -> float:
        """Seconds of processor time of a round, mean over `rounds` further ones."""
        began = time.process_time()
        for _ in range(rounds):
            self.number += 1
            self.fed.begin(self.number)
            self.state = self.algorithm.round(self.state, self.fed)
        return (time.process_time() - began) / rounds


def by_turns(sides: dict[str, Callable[[], float]], turns: int) -> None:
    """Print a line for each side, the first of which the others are compared with."""
    taken = {name: np.zeros(turns) for name in sides}
    for turn in range(turns):
        for name, side in sides.items():
            taken[name][turn] = side()
    first = next(iter(taken.values()))
    for name, own in taken.items():
        low, middle, high = np.quantile(own / first, [0.25, 0.5, 0.75])
        ratio = f"{middle:.3f} ({low:.3f} to {high:.3f})"
        print(f"{name:12} {1000 * np.median(own):8.2f} ms a round   {ratio if own is not first else ''}")


def f2gnn(turns: int, rounds: int, skip: int) -> None:
    """Rounds of both on Credit."""
    sides = {name: Side("f2gnn-credit", name) for name in ("fedavg", "f2gnn")}
    sizes = sides["fedavg"].sizes
    print(f"Credit, 3 of {len(sizes)} clients of {sizes[0]} to {sizes[-1]} nodes")
    for side in sides.values():
        side.turn(skip)
    by_turns({name: lambda side=side: side.turn(rounds) for name, side in sides.items()}, turns)


def estimation(turns: int, rounds: int, skip: int) -> None:
    """Rounds of FedAvg on Cora, and what of FairGFL's is spent on estimating overlaps at the server."""
    fedavg = Side("fairgfl-cora", "fedavg")
    fairgfl = Side("fairgfl-cora", "fairgfl", "algorithm.encoder_rounds=0")
    with overlap.timed(fairgfl.algorithm.composed["OverlapWeights"]) as spent:

        def estimated() -> float:
            before = len(spent)
            fairgfl.turn(rounds)
            return sum(spent[before:]) / rounds

        for side in (fedavg, fairgfl):
            side.turn(skip)
        print("Cora, 40 clients")
        by_turns({"fedavg": lambda: fedavg.turn(rounds), "estimation": estimated}, turns)


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
