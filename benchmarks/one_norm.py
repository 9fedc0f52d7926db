"""FairGraphFL with updates of one norm against updates that are scaled by one factor.

`algorithm.norm` makes the updates of all agents equally long, and on PROTEINS longer than they are. The third arm
multiplies all updates of a round by one factor, so that their mean norm is Γ and their ratios are as before. Prints
global and personalized test accuracy after the last round, and the mean norm of the updates as agents send them, in the
rounds of `ROUNDS`.

    python -m benchmarks.one_norm [--experiment experiments/fairgraphfl-proteins.toml] [--norm 0.15] [--seeds 0 1]
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from fedweave.algorithms.parts import Part, Round
from fedweave.core.tree import Tree
from fedweave.experiment import config
from fedweave.experiment.build import build
from fedweave.experiment.rounds import train

ROUNDS = (1, 2, 10, 50, 100, 200)  # whose norms are printed


@dataclass(frozen=True)
class OneFactor(Part):
    """The same factor for all updates of a round, so that their mean norm is `norm`; 0 leaves them as they are.

    sent: the mean norm before, one number a round.
    """

    norm: float
    sent: list[float] = field(default_factory=list, compare=False)

    def limit(self, state: Tree, round: Round) -> Tensor:
        """Γ / mean norm."""
        norms = round.replies.matrix("update").norm(dim=1)
        self.sent.append(float(norms.mean()))
        return torch.full_like(norms, self.norm / self.sent[-1] if self.norm else 1.0)


def arms(norm: float) -> Iterator[tuple[str, list[str], float]]:
    """Name, settings, and the mean norm that the server scales to."""
    yield "as they are", [], 0.0
    yield "one norm", [f"algorithm.norm={norm}"], 0.0
    yield "one factor", [], norm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", type=Path, default=Path("experiments/fairgraphfl-proteins.toml"))
    parser.add_argument("--norm", type=float, default=0.15)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    for seed in args.seeds:
        fixed = [f"seed={seed}", f"rounds={args.rounds}", "eval_every=0", "partition.split_seed=0"]
        for name, settings, norm in arms(args.norm):
            built = build(config.read(args.experiment, fixed + settings)[0])
            scaling = OneFactor(norm)
            algorithm = replace(built.algorithm, parts=(scaling, *built.algorithm.parts))
            *_, last = train(algorithm, built.fed, args.rounds, eval_every=0)
            norms = ", ".join(f"{scaling.sent[at - 1]:.3f}" for at in ROUNDS if at <= args.rounds)
            accuracy = "global {global/accuracy:.4f}, personalized {local/accuracy:.4f}".format(**last.summary)
            print(f"seed {seed}, {name}: {accuracy}, mean norms as sent {norms}", flush=True)


if __name__ == "__main__":
    main()
