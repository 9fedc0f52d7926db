"""What two papers claim of methods that FairGFL is compared with, on Cora cut by Louvain, over seeds.

FedGCN (Yao et al. 2023): with sums over two hops, training comes near training on pooled data. 10 clients, all clients'
test nodes together. FED-PUB (Baek et al. 2023): clients' own models are better than FedAvg's. 20 clients, mean over
clients on their own nodes; FedAvg also by its models right after local training.

Test accuracy of the round with the best validation accuracy, at that of two learning rates which has the best
validation accuracy on seed 0. Mean ± deviation, and differences paired over seeds with 95 % intervals.

    python -m benchmarks.claims [--seeds 5] [--rounds 100] [--only fedgcn fedpub]
"""

import argparse
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import torch

from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.reports.paired import interval, paired_differences

HOPS = {f"FedGCN, {hops} hops": {"name": "fedgcn", "hops": hops} for hops in (0, 1, 2)}
SGD = {"local_steps": 3, "optimizer": "sgd", "weight_decay": 5e-4}
ADAM = {"local_steps": 1, "optimizer": "adam"}
POOLED = "pooled data"
CLAIMS: dict[str, tuple[int, dict[str, dict[str, Any]], tuple[float, float]]] = {
    "fedgcn": (10, {POOLED: {"name": "centralized"}, "FedAvg": {"name": "fedavg"}, **HOPS}, (0.5, 0.1)),
    "fedpub": (20, {"FedAvg": {"name": "fedavg"}, "FED-PUB": {"name": "fedpub"}}, (0.01, 0.003)),
}
COMMON = {"fedgcn": SGD, "fedpub": ADAM}
SHOWN = {"fedgcn": ("global",), "fedpub": ("local", "trained")}


def run(claim: str, algorithm: Mapping[str, Any], lr: float, seed: int, rounds: int) -> Mapping[str, float]:
    """The summary of one run."""
    document = {
        "seed": seed,
        "rounds": rounds,
        "data": {"name": "cora"},
        "partition": {"name": "louvain", "clients": CLAIMS[claim][0]},
        "model": {"name": "gcn", "hidden": 128, "layers": 2, "dropout": 0.5},
        "algorithm": COMMON[claim] | {"lr": lr} | dict(algorithm),
    }
    made = build(resolve(document))
    *_, last = train(made.algorithm, made.fed, rounds, eval_every=5)
    return last.summary


def compared(claim: str, seeds: int, rounds: int) -> None:
    """Print a line for each method, and its differences from the first and from FedAvg."""
    _, methods, rates = CLAIMS[claim]
    found: dict[tuple[str, str], dict[int, float]] = {}
    for name, algorithm in methods.items():
        first = {lr: run(claim, algorithm, lr, 0, rounds) for lr in rates}
        best = max(rates, key=lambda lr: first[lr]["best_val/val/accuracy"])
        ends = [first[best], *(run(claim, algorithm, best, seed, rounds) for seed in range(1, seeds))]
        for kind in SHOWN[claim]:
            own = found[name, kind] = {seed: end[f"best_val/{kind}/accuracy"] for seed, end in enumerate(ends)}
            print(f"{claim} {name:15} {kind:8} lr {best:5} {shown(list(own.values()))}", flush=True)
    for one, own in found.items():
        for other in [other for other in found if other[0] in (POOLED, "FedAvg") and other[0] != one[0]]:
            low, high = interval(apart := paired_differences(own, found[other]))
            print(f"{' '.join(one)} - {' '.join(other)}: {fmean(apart):+.4f}, 95 % {low:+.4f} to {high:+.4f}")


def shown(values: Sequence[float]) -> str:
    """Mean and deviation."""
    return f"{fmean(values):.4f} ± {stdev(values):.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", nargs="+", choices=list(CLAIMS), default=list(CLAIMS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for claim in args.only:
        compared(claim, args.seeds, args.rounds)


if __name__ == "__main__":
    main()
