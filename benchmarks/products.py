"""Rounds with dense products by MKL and by oneDNN (`ops.onednn`), in turns, in one process: median processor seconds,
and how many times as long MKL takes, with quartiles.

fedweave uses oneDNN only on AMD's processors with AVX-512; here both are used on any processor.

    python -m benchmarks.products [--experiment experiments/fedego-cora.toml] [--turns 8]
"""

import argparse
import time
from pathlib import Path
from statistics import median, quantiles

import torch

from fedweave.experiment.build import build
from fedweave.experiment.config import load, resolve
from fedweave.experiment.rounds import train
from fedweave.ops import onednn

LIBRARIES = {"MKL": False, "oneDNN": True}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", type=Path, default=Path("experiments/fedego-cora.toml"))
    parser.add_argument("--turns", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    turns = args.turns + 2  # the first two record and warm up
    sides = {}
    for name in LIBRARIES:
        built = build(resolve(load(args.experiment) | {"rounds": turns}))
        sides[name] = train(built.algorithm, built.fed, turns, eval_every=0)
    seconds: dict[str, list[float]] = {name: [] for name in LIBRARIES}
    for _ in range(turns):
        for name, rounds in sides.items():
            onednn._faster = lambda chosen=LIBRARIES[name]: chosen  # type: ignore[assignment, misc]
            began = time.process_time()
            next(rounds)
            seconds[name].append(time.process_time() - began)
    mkl, by_onednn = (times[2:] for times in seconds.values())
    print(f"MKL     {median(mkl):.3f} s a round\noneDNN  {median(by_onednn):.3f} s a round")
    low, middle, high = quantiles([one / other for one, other in zip(mkl, by_onednn, strict=True)], n=4)
    print(f"MKL takes {middle:.2f} times as long (quartiles {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
