"""What differential privacy costs on Cora, by ε: accuracy of the global model of 10 Louvain clients.

Of members (DP-FedAvg, GCN of width 16), whose clip and rounds follow a look at test numbers (docs/privacy.md); of
examples (`dp_examples`, a perceptron of width 16 that sees no edges), whose clip and step were found by hand on
validation accuracy of seed 0. Seeds are paired: each draws one cut and one start for all rows.

    python -m benchmarks.privacy [--seeds 3] [--rounds 30] [--clip 4.0] [--record member]
"""

import argparse
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedweave.algorithms.parts import Clip, ExampleNoise, MemberNoise, Part, Uniform
from fedweave.experiment import config
from fedweave.experiment.build import build
from fedweave.experiment.rounds import train
from fedweave.privacy.gaussian import epsilon

DELTA = 1e-5
TARGETS = (1000.0, 100.0, 8.0)
TRAINED = 135  # examples of a member, about half of 2,708 / 10 nodes
EXAMPLE_CLIP, STEP = 0.03, 100.0


def rows(rounds: int, clip: float) -> dict[str, tuple[Part, ...]]:
    """Parts of FedAvg, by the first cells of their row."""
    found: dict[str, tuple[Part, ...]] = {"`fedavg` | |": (), "all members alike | |": (Uniform(),)}
    found["clipped, without noise | |"] = Uniform(), Clip(clip)
    for target in TARGETS:
        noise = MemberNoise(clip, epsilon=target, delta=DELTA, target_rounds=rounds)
        spent = epsilon(2 * math.sqrt(rounds) / noise.multiplier, DELTA)
        found[f"`dp_fedavg` | {noise.multiplier:.2f} | {spent:.0f}"] = Uniform(), noise
    return found


def of_examples(rounds: int) -> dict[str, tuple[Part, ...]]:
    """The same for noise of examples."""
    found: dict[str, tuple[Part, ...]] = {"`fedavg` | |": (), "all members alike | |": (Uniform(),)}
    quiet = ExampleNoise(EXAMPLE_CLIP, 1e-6, examples=TRAINED, lr=STEP)
    found["clipped, hardly any noise | |"] = Uniform(), quiet
    for target in TARGETS[1:]:
        noise = ExampleNoise(EXAMPLE_CLIP, None, target, DELTA, rounds, TRAINED, STEP)
        found[f"`dp_examples` | {noise.multiplier:.2f} | {target:.0f}"] = Uniform(), noise
    return found


def summary(seed: int, model: str, parts: tuple[Part, ...], rounds: int) -> Mapping[str, float]:
    """Of one run."""
    sets = [f"seed={seed}", "partition.name='louvain'", f"model.name='{model}'", "model.hidden=16"]
    built = build(config.read(Path("experiments/fedavg-cora.toml"), sets, "fedavg")[0])
    *_, last = train(replace(built.algorithm, parts=parts), built.fed, rounds, eval_every=0)
    return last.summary


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clip", type=float, default=4.0)
    parser.add_argument("--record", choices=["member", "example"], default="member")
    args = parser.parse_args()
    torch.set_num_threads(1)
    members = args.record == "member"
    model, kinds = ("gcn", rows(args.rounds, args.clip)) if members else ("mlp", of_examples(args.rounds))
    found: dict[str, list[float]] = {}
    for seed in range(args.seeds):
        for name, parts in kinds.items():
            last = summary(seed, model, parts, args.rounds)
            found.setdefault(name, []).append(100 * last["global/accuracy"])
        found.setdefault("the largest class | |", []).append(100 * last["global/majority"])
    print("| | sigma | ε | accuracy in % |\n| --- | --- | --- | --- |")
    for name, values in found.items():
        print(f"| {name} | {np.mean(values):.1f} ± {np.std(values, ddof=1):.1f} |", flush=True)


if __name__ == "__main__":
    main()
