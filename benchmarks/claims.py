"""What two papers claim of methods that FairGFL is compared with, on Cora partitioned by Louvain, over seeds.

FedGCN (Yao et al. 2023): with sums over two hops, training comes near training on pooled data. 10 clients, all clients'
test nodes together. FED-PUB (Baek et al. 2023): clients' own models are better than FedAvg's. 20 clients, mean over
clients on their own nodes; FedAvg also by its models right after local training.

Prints a line for each method: test accuracy of the round with the best validation accuracy (mean ± deviation), at that
of two learning rates which has the best validation accuracy on seed 0. Then differences that are paired over seeds,
with 95 % intervals.

    python -m benchmarks.claims [--seeds 5] [--rounds 100] [--only fedgcn fedpub]
"""

import argparse
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.common import last_round, mean_deviation, mean_interval
from fedweave.reports.paired import paired_differences

HOPS = {f"FedGCN, {hops} hops": {"name": "fedgcn", "hops": hops} for hops in (0, 1, 2)}
SGD = {"local_steps": 3, "optimizer": "sgd", "weight_decay": 5e-4}
ADAM = {"local_steps": 1, "optimizer": "adam"}
POOLED = "pooled data"
CLAIMS: dict[str, tuple[int, dict[str, dict[str, Any]], tuple[float, float]]] = {
    "fedgcn": (10, {POOLED: {"name": "centralized"}, "FedAvg": {"name": "fedavg"}, **HOPS}, (0.5, 0.1)),
    "fedpub": (20, {"FedAvg": {"name": "fedavg"}, "FED-PUB": {"name": "fedpub"}}, (0.01, 0.003)),
}
COMMON = {"fedgcn": SGD, "fedpub": ADAM}
PLACES = {"fedgcn": ("global",), "fedpub": ("local", "trained")}  # where accuracy is measured


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
    return last_round(document, rounds, eval_every=5)[1].summary


def compare(claim: str, seeds: int, rounds: int) -> None:
    """Print a line for each method, and its differences from the first and from FedAvg."""
    _, methods, rates = CLAIMS[claim]
    accuracies: dict[tuple[str, str], dict[int, float]] = {}  # by method and place, of each seed
    for name, algorithm in methods.items():
        first = {lr: run(claim, algorithm, lr, 0, rounds) for lr in rates}
        best = max(rates, key=lambda lr: first[lr]["best_val/val/accuracy"])
        summaries = [first[best], *(run(claim, algorithm, best, seed, rounds) for seed in range(1, seeds))]
        for place in PLACES[claim]:
            of_seeds = {seed: summary[f"best_val/{place}/accuracy"] for seed, summary in enumerate(summaries)}
            accuracies[name, place] = of_seeds
            print(f"{claim} {name:15} {place:8} lr {best:5} {mean_deviation(of_seeds.values(), 4)}", flush=True)
    for one in accuracies:
        for other in accuracies:
            if other[0] in (POOLED, "FedAvg") and other[0] != one[0]:
                differences = paired_differences(accuracies[one], accuracies[other])
                print(f"{' '.join(one)} - {' '.join(other)}: {mean_interval(differences, '+.4f')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", nargs="+", choices=list(CLAIMS), default=list(CLAIMS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for claim in args.only:
        compare(claim, args.seeds, args.rounds)


if __name__ == "__main__":
    main()
