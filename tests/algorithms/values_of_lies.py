"""What one member of five is worth by the values of rounds if it sends something else than its update.

    python -m tests.algorithms.values_of_lies FILE.csv [--data digits cora] [--seeds 0 1 2]

A line for each data set, seed, rule and lie: the member's share, as in docs/contributions.md.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedweave.core.random import generator
from fedweave.experiment import config
from fedweave.experiment.build import Built, build
from fedweave.experiment.rounds import train
from fedweave.incentives.coalitions import measured_by
from fedweave.incentives.payoffs import impartial_shares
from tests.algorithms.adversaries import AGENT, LIES, Dishonest, Lie

CHEATS: dict[str, Lie | None] = {
    "its update": None,
    "noise of the same length": LIES["noise"],
    "its update with the sign flipped": LIES["its update with the sign flipped"],
    "ten times its update": lambda engine, sent, got: 10 * sent[AGENT],
    "a copy of another's update": LIES["a copy of another's update"],
    "the last global update": lambda engine, sent, got: engine.last if engine.last.dim() else 0 * sent[AGENT],
}
DATA: dict[str, dict[str, Any]] = {
    "digits": {"data": {"name": "digits", "neighbors": 5}, "model": {"name": "gcn", "hidden": 16}},
    "cora": {"data": {"name": "cora"}, "model": {"name": "gcn", "hidden": 16}},
}


class Cheating(Dishonest):
    """An engine of which the member also knows the last global update, the mean of all updates that are sent."""

    last = torch.zeros(())

    def map(self, step: Any, *args: Any, **options: Any) -> Any:
        replies = super().map(step, *args, **options)
        if any(path.startswith("update/") for path in replies.paths):
            sizes = replies.stack("n").double() if "n" in replies.paths else torch.ones(len(replies)).double()
            self.last = (sizes / sizes.sum()) @ replies.matrix("update")
        return replies


def prepared(data: str, seed: int, parts: Sequence[str], **settings: Any) -> Built:
    document = DATA[data] | {"seed": seed, "partition": {"name": "random", "clients": 5}}
    return build(config.resolve(document | {"algorithm": {"name": "fedavg", "parts": list(parts)} | settings}))


def rounds(built: Built, seed: int, lie: Lie | None, number: int = 5) -> list[dict[str, Tensor]]:
    """What the server measures in each round."""
    engine = type("Engine", (Cheating,), {"lie": lie, "rng": generator(seed, "adversary")})
    fed = engine(built.fed.graphs, classes=built.fed.classes, seed=seed)
    fed.last = torch.zeros(())
    steps = train(built.algorithm, fed, number, eval_every=0)
    return [built.algorithm.measures(step.state, fed) for step in steps]


def share(measured: Sequence[dict[str, Tensor]], name: str) -> float:
    """The member's share by the sums over rounds of what each member measured."""
    judges = range(len(measured[0][name]))
    by = torch.stack([torch.stack([one[measured_by(name, judge)] for one in measured]).sum(0) for judge in judges])
    return float(impartial_shares(by)[AGENT])


def main() -> None:
    """Write the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", nargs="+", default=list(DATA))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rules", nargs="+", default=["norm_bound+validated_value"])
    parser.add_argument("--lies", nargs="+", default=list(CHEATS), choices=CHEATS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with given.out.open("a", newline="") as file:
        for data in given.data:
            for seed in given.seeds:
                for rule in given.rules:
                    built = prepared(data, seed, rule.split("+"))
                    for what in given.lies:
                        measured = rounds(built, seed, CHEATS[what])
                        name = "validated" if "validated" in rule else "shapley"
                        csv.writer(file).writerow([data, seed, rule, what, f"{share(measured, name):.4f}"])
                        file.flush()


if __name__ == "__main__":
    main()
