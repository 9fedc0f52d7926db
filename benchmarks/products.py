"""Rounds with dense products by MKL and by oneDNN (`ops.gemm`), in turns, in one process: processor time.

Only on AMD's processors with AVX-512 does fedweave take oneDNN by itself; here both are made to be taken anywhere.

    python -m benchmarks.products [--experiment experiments/fedego-cora.toml] [--turns 8]
"""

import argparse
import time
from pathlib import Path
from statistics import median, quantiles

import torch

from fedweave.experiment.build import Built, build
from fedweave.experiment.config import load, resolve
from fedweave.experiment.rounds import train
from fedweave.ops import onednn

LIBRARIES = {"MKL": False, "oneDNN": True}


def built(experiment: Path, rounds: int) -> Built:
    """The experiment with so many rounds."""
    return build(resolve(load(experiment) | {"rounds": rounds}))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--experiment", type=Path, default=Path("experiments/fedego-cora.toml"))
    parser.add_argument("--turns", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    turns = args.turns + 2  # the first two record and warm up
    sides = {}
    for name in LIBRARIES:
        made = built(args.experiment, turns)
        sides[name] = train(made.algorithm, made.fed, turns, eval_every=0)
    seconds: dict[str, list[float]] = {name: [] for name in LIBRARIES}
    for _ in range(turns):
        for name, rounds in sides.items():
            onednn._faster = lambda chosen=LIBRARIES[name]: chosen  # type: ignore[assignment, misc]
            began = time.process_time()
            next(rounds)
            seconds[name].append(time.process_time() - began)
    pairs = [mkl / other for mkl, other in zip(*(of[2:] for of in seconds.values()), strict=True)]
    for name, of in seconds.items():
        print(f"{name:7s} {median(of[2:]):.3f} s a round")
    low, middle, high = quantiles(pairs, n=4)
    print(f"MKL takes {middle:.2f} times as long (quartiles {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
