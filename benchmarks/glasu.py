"""GLASU's seconds per iteration (local step), and accuracy over time without and with a network's delay.

Cora, 3 clients with 80 % of the edges each, GCNII with 4 layers, batch 16, fan-out 3, SGD; the published test and
validation nodes are kept, all others train. A round is Q iterations, with sampling. An exchange is one call of all
clients; time with a delay is the measured time plus the delay for every exchange, as if the messages of all clients
traveled at the same time. A line for each K and Q: median seconds per iteration with the 10 % and 90 % quantiles, and
exchanges per round; then the rounds and seconds to the accuracy `--to`.

    python -m benchmarks.glasu [--hidden 192] [--rounds 200] [--delay 0.05] [--to 0.8]
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.common import median_quantiles
from fedweave import datasets
from fedweave.algorithms import GLASU
from fedweave.engines.simulation import Simulation
from fedweave.experiment.graphs import client_graphs, width
from fedweave.metrics.measured import measure
from fedweave.models import MODELS
from fedweave.papers.quantities import Duration, duration
from fedweave.partition import PARTITIONS

SIDES: dict[str, dict[str, Any]] = {
    "K=2, Q=1": {"exchanges": 2, "steps": 1},
    "K=2, Q=4": {"exchanges": 2, "steps": 4},
    "K=4, Q=1": {"exchanges": 4, "steps": 1},
    "K=1, Q=4": {"exchanges": 1, "steps": 4},
}


class Side:
    """One setting, which persists between turns, as in a long run."""

    def __init__(self, hidden: int, lr: float, options: dict[str, Any]) -> None:
        data = datasets.load("cora")
        cut = PARTITIONS["vertical"](use_dataset_split=True, train_on_rest=True).cut(data, 0)
        net = MODELS["gcnii"](hidden=hidden, layers=4).build(width(data, cut), data.classes)
        self.algorithm = GLASU(net, optimizer="sgd", lr=lr, **options)
        self.fed = Simulation(client_graphs(data, cut), classes=data.classes)
        self.fed.begin(0)
        self.state, self.rounds = self.algorithm.init(self.fed), 0

    def train(self, rounds: int) -> Iterator[float]:
        """Seconds of each round."""
        for _ in range(rounds):
            self.rounds += 1
            self.fed.begin(self.rounds)
            began = time.perf_counter()
            self.state = self.algorithm.round(self.state, self.fed)
            yield time.perf_counter() - began

    def accuracy(self) -> float:
        """On the test nodes."""
        _, summary, *_ = measure(self.rounds, self.algorithm.evaluate(self.state, self.fed))
        return summary["global/accuracy"]

    def duration(self, seconds: float) -> Duration:
        """All rounds so far: `seconds`, with the server's, and the exchanges."""
        return duration(self.fed.ledger.table())._replace(seconds=seconds)


def speed(hidden: int, rounds: int, lr: float) -> None:
    """Seconds per iteration; the sides take turns, so that a change of the machine's speed affects them all."""
    sides = {name: Side(hidden, lr, options) for name, options in SIDES.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        list(side.train(rounds))  # steps are recorded for most sizes by then (see src/fedweave/ops/recording.py)
    for _ in range(4):
        for name, side in sides.items():
            times[name] += [seconds / side.algorithm.steps for seconds in side.train(max(1, rounds // 4))]
    for name, seconds in times.items():
        exchanges = f"{sides[name].duration(0).exchanges / sides[name].rounds:.0f} exchanges per round"
        print(f"hidden {hidden}, {name}: {median_quantiles(seconds)} s per iteration, {exchanges}", flush=True)


def to_accuracy(hidden: int, max_iterations: int, lr: float, delay: float, target: float) -> None:
    """Time until the test accuracy is first at least `target`, measured every 20 rounds."""
    for name, options in SIDES.items():
        side, seconds, accuracy = Side(hidden, lr, options), 0.0, 0.0
        while side.rounds * side.algorithm.steps < max_iterations and accuracy < target:
            seconds += sum(side.train(20))
            accuracy = side.accuracy()
        times = f"{seconds:.1f} s in process, {side.duration(seconds).delayed(delay):.1f} s with {delay} s per exchange"
        note = "" if accuracy >= target else " (not reached)"
        print(f"hidden {hidden}, {name}: accuracy {accuracy:.3f} after {side.rounds} rounds{note}, {times}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--delay", type=float, default=0.05, help="seconds per exchange")
    parser.add_argument("--to", type=float, default=0.8, help="test accuracy to reach; 0 to skip")
    parser.add_argument("--most", type=int, default=2000, help="iterations after which a side gives up")
    args = parser.parse_args()
    speed(args.hidden, args.rounds, args.lr)
    if args.to:
        to_accuracy(args.hidden, args.most, args.lr, args.delay, args.to)


if __name__ == "__main__":
    main()
