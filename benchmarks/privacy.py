"""What differential privacy costs on Cora, by ε: of members (DP-FedAvg) and of labels (GLASU).

members: 10 Louvain clients, GCN of width 16; "global" accuracy. labels: 3 parties of which one has labels; GCNII of
width 32, one exchange, all training nodes in each step; accuracy at that party. Seeds are paired: each draws one cut
and one start for all rows. Nothing is tuned.

    python -m benchmarks.privacy members [--seeds 3] [--rounds 30] [--clip 4.0]
    python -m benchmarks.privacy labels [--seeds 3] [--rounds 100]
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedweave import config
from fedweave.algorithms.parts import Clip, MemberNoise, Part, Uniform
from fedweave.build import Built, build
from fedweave.privacy.gaussian import epsilon
from fedweave.privacy.ldp import kept_probability
from fedweave.rounds import train

DELTA = 1e-5
LABELS = {
    "partition": {"name": "vertical", "clients": 3, "labels": "first"},
    "model": {"name": "gcnii", "hidden": 32, "layers": 2},
    "algorithm": {"name": "glasu", "exchanges": 1, "batch": 0, "lr": 0.5},
}


def members(seed: int, rounds: int, clip: float) -> Iterator[tuple[str, Built, Any]]:
    """What a row is called, its data, and its algorithm."""
    parts: dict[str, tuple[Part, ...]] = {"`fedavg` | | ": (), "all members alike | | ": (Uniform(),)}
    parts["clipped, without noise | | "] = Uniform(), Clip(clip)
    for target in (1000.0, 100.0, 8.0):
        noise = MemberNoise(clip, epsilon=target, delta=DELTA, target_rounds=rounds)
        spent = epsilon(2 * math.sqrt(rounds) / noise.multiplier, DELTA)
        parts[f"`dp_fedavg` | {noise.multiplier:.2f} | {spent:.0f}"] = Uniform(), noise
    sets = [f"seed={seed}", "partition.name='louvain'", "model.hidden=16"]
    for name, own in parts.items():
        built = build(config.read(Path("experiments/fedavg-cora.toml"), sets, "fedavg")[0])
        yield name, built, replace(built.algorithm, parts=own)


def labels(seed: int, rounds: int, clip: float) -> Iterator[tuple[str, Built, Any]]:
    """As `members`."""
    for target in (None, 3.0, 2.0, 1.0):
        built = build(config.resolve(LABELS | {"seed": seed, "data": {"name": "cora"}}))
        kept = "" if target is None else f"{100 * kept_probability(target, built.data.classes):.0f} %"
        name = f"`glasu` | {kept} | {'' if target is None else f'{target:g}'}"
        yield name, built, replace(built.algorithm, label_epsilon=target)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["members", "labels"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--clip", type=float, default=4.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    kind, rounds = (members, given.rounds or 30) if given.what == "members" else (labels, given.rounds or 100)
    found: dict[str, list[float]] = {}
    for seed in range(given.seeds):
        for name, built, algorithm in kind(seed, rounds, given.clip):
            *_, last = train(algorithm, built.fed, rounds, eval_every=0)
            found.setdefault(name, []).append(100 * last.summary["global/accuracy"])
            guess = 100 * last.summary["global/majority"]
        found.setdefault("the largest class | | ", []).append(guess)
    print(f"| | {'sigma' if kind is members else 'labels kept'} | ε | accuracy in % |\n| --- | --- | --- | --- |")
    for name, values in found.items():
        print(f"| {name} | {np.mean(values):.1f} ± {np.std(values, ddof=1):.1f} |", flush=True)


if __name__ == "__main__":
    main()
