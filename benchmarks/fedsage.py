"""FedSage+ against FedSage on Cora: accuracy paired over seeds, what the generators cost, and seconds per round.

Both train the same partitions from the same first weights. A line for each run: accuracies of the final models,
seconds until the end of the first round ("before"), median seconds of the rounds from the third on ("round"; in the
first two, steps are recorded), and how many neighbors were generated. Then means, and differences with half of their
95 % intervals.

    python -m benchmarks.fedsage [--seeds 5] [--rounds 20] [--set algorithm.rounding=random]
"""

import argparse
import time
from collections.abc import Sequence
from statistics import fmean, median

import torch

from benchmarks.common import EXPERIMENTS, mean_half_width
from fedweave.experiment.build import build
from fedweave.experiment.config import read
from fedweave.experiment.rounds import train

METHODS = ("fedsage", "fedsage_plus")
MEASURED = ("local/accuracy", "global/accuracy")


def run(name: str, seed: int, rounds: int, settings: Sequence[str]) -> dict[str, float]:
    """One run's accuracies, seconds and generated neighbors; settings are FedSage+'s."""
    settings = settings if name == "fedsage_plus" else ()
    built = build(read(EXPERIMENTS / f"{name}-cora.toml", [f"seed={seed}", *settings])[0])
    nodes = sum(int(graph.real.sum()) for graph in built.fed.graphs.values())
    seconds, began = [], time.perf_counter()
    for step in train(built.algorithm, built.fed, rounds, eval_every=0):
        seconds.append(time.perf_counter() - began)
        began, last = time.perf_counter(), step
    generated = sum(int(graph.real.sum()) for graph in built.fed.graphs.values()) - nodes
    scores = {name: last.summary[name] for name in MEASURED}
    return scores | {"before": seconds[0], "round": median(seconds[2:]), "generated": generated}


def main() -> None:
    """Print a line for each run, then the means and paired differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], help="of FedSage+")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
    for seed in range(args.seeds):
        for name in METHODS:
            result = run(name, seed, args.rounds, args.set)
            results[name].append(result)
            cells = "  ".join(f"{key} {value:.4g}" for key, value in result.items())
            print(f"seed {seed}  {name:14}{cells}", flush=True)
    for key in MEASURED:
        plain, plus = ([result[key] for result in results[name]] for name in METHODS)
        difference = mean_half_width([b - a for a, b in zip(plain, plus, strict=True)], "+.4f")
        print(f"{key:16} FedSage {fmean(plain):.4f}  FedSage+ {fmean(plus):.4f}  difference {difference}")


if __name__ == "__main__":
    main()
