"""What differential privacy costs on Cora, by ε: accuracy of the global model of 10 Louvain clients.

Privacy of members (DP-FedAvg, GCN of width 16), with a clip and rounds that were chosen after test numbers had been
seen (docs/privacy.md); or of examples (`dp_examples`, a perceptron of width 16, without edges), with a clip and a step
that were chosen by hand on validation accuracy of seed 0. Columns: the algorithm, its noise multiplier, ε, and accuracy
in %, mean ± deviation over seeds. Each seed draws one partition and one start for all rows.

    python -m benchmarks.privacy [--seeds 3] [--rounds 30] [--clip 4.0] [--record member]
"""

import argparse
import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from benchmarks.common import EXPERIMENTS, mean_deviation
from fedweave.algorithms.parts import Clip, ExampleNoise, MemberNoise, Part, Uniform
from fedweave.experiment import config
from fedweave.experiment.build import build
from fedweave.experiment.rounds import train
from fedweave.privacy.gaussian import epsilon

DELTA = 1e-5
TARGETS = (1000.0, 100.0, 8.0)
TRAINED = 135  # examples of a member, about half of 2,708 / 10 nodes
EXAMPLE_CLIP, STEP = 0.03, 100.0


def member_rows(rounds: int, clip: float) -> dict[str, tuple[Part, ...]]:
    """Parts of FedAvg, by the first cells of their row."""
    rows: dict[str, tuple[Part, ...]] = {"`fedavg` | |": (), "all members alike | |": (Uniform(),)}
    rows["clipped, without noise | |"] = Uniform(), Clip(clip)
    for target in TARGETS:
        noise = MemberNoise(clip, epsilon=target, delta=DELTA, target_rounds=rounds)
        spent = epsilon(2 * math.sqrt(rounds) / noise.multiplier, DELTA)
        rows[f"`dp_fedavg` | {noise.multiplier:.2f} | {spent:.0f}"] = Uniform(), noise
    return rows


def example_rows(rounds: int) -> dict[str, tuple[Part, ...]]:
    """The same for noise of examples."""
    rows: dict[str, tuple[Part, ...]] = {"`fedavg` | |": (), "all members alike | |": (Uniform(),)}
    little_noise = ExampleNoise(EXAMPLE_CLIP, 1e-6, examples=TRAINED, lr=STEP)
    rows["clipped, hardly any noise | |"] = Uniform(), little_noise
    for target in TARGETS[1:]:
        noise = ExampleNoise(EXAMPLE_CLIP, None, target, DELTA, rounds, TRAINED, STEP)
        rows[f"`dp_examples` | {noise.multiplier:.2f} | {target:.0f}"] = Uniform(), noise
    return rows


def run(seed: int, model: str, parts: tuple[Part, ...], rounds: int) -> Mapping[str, float]:
    """The summary of one run."""
    sets = [f"seed={seed}", "partition.name='louvain'", f"model.name='{model}'", "model.hidden=16"]
    built = build(config.read(EXPERIMENTS / "fedavg-cora.toml", sets, "fedavg")[0])
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
    if args.record == "member":
        model, rows = "gcn", member_rows(args.rounds, args.clip)
    else:
        model, rows = "mlp", example_rows(args.rounds)
    accuracies: dict[str, list[float]] = {}
    for seed in range(args.seeds):
        for name, parts in rows.items():
            summary = run(seed, model, parts, args.rounds)
            accuracies.setdefault(name, []).append(100 * summary["global/accuracy"])
        accuracies.setdefault("the largest class | |", []).append(100 * summary["global/majority"])
    print("| | sigma | ε | accuracy in % |\n| --- | --- | --- | --- |")
    for name, values in accuracies.items():
        print(f"| {name} | {mean_deviation(values, 1)} |", flush=True)


if __name__ == "__main__":
    main()
