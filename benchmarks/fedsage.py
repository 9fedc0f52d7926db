"""FedSage+ against FedSage on Cora: accuracy paired over seeds, what the generators cost, and seconds per round.

Both train the same cuts from the same first weights. Printed are accuracies of the final models, their differences with
95 % intervals, the seconds before the first round, the median of the rounds from the third on (in the first two steps
are recorded), and how many neighbors were generated.

    python -m benchmarks.fedsage [--seeds 5] [--rounds 20] [--set algorithm.rounding=random]
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

import torch

from fedweave.experiment.build import build
from fedweave.experiment.config import read
from fedweave.experiment.rounds import train
from fedweave.reports.paired import interval

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
METHODS = ("fedsage", "fedsage_plus")
MEASURED = ("local/accuracy", "global/accuracy")


def run(name: str, seed: int, rounds: int, settings: Sequence[str]) -> dict[str, float]:
    """One run's accuracies, seconds and generated neighbors; settings are FedSage+'s."""
    own = settings if name == "fedsage_plus" else ()
    built = build(read(EXPERIMENTS / f"{name}-cora.toml", [f"seed={seed}", *own])[0])
    held = sum(int(graph.real.sum()) for graph in built.fed.graphs.values())
    seconds, began = [], time.perf_counter()
    for step in train(built.algorithm, built.fed, rounds, eval_every=0):
        seconds.append(time.perf_counter() - began)
        began, last = time.perf_counter(), step
    generated = sum(int(graph.real.sum()) for graph in built.fed.graphs.values()) - held
    found = {name: last.summary[name] for name in MEASURED}
    return found | {"before": seconds[0], "round": median(seconds[2:]), "generated": generated}


def main() -> None:
    """Print a line for each run, then the means and paired differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], help="of FedSage+")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
    for seed in range(args.seeds):
        for name in METHODS:
            found[name].append(run(name, seed, args.rounds, args.set))
            told = "  ".join(f"{key} {value:.4g}" for key, value in found[name][-1].items())
            print(f"seed {seed}  {name:14}{told}", flush=True)
    for key in MEASURED:
        plain, plus = ([one[key] for one in found[name]] for name in METHODS)
        low, high = interval([b - a for a, b in zip(plain, plus, strict=True)])
        told = "" if low is None or high is None else f"  difference {(low + high) / 2:+.4f} ± {(high - low) / 2:.4f}"
        print(f"{key:16} FedSage {fmean(plain):.4f}  FedSage+ {fmean(plus):.4f}{told}")


if __name__ == "__main__":
    main()
