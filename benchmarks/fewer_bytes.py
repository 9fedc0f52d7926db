"""Accuracy against bytes of compressed updates: FedAvg with `quantize`, `top_k` and both, paired over seeds.

Each seed draws one partition and one start for all; nothing is tuned. Columns: accuracy of the global model on all
clients' test nodes (mean ± deviation), its paired difference to uncompressed updates with the 95 % interval, and how
many times fewer bytes the clients send, by the ledger.

    python -m benchmarks.fewer_bytes [--data cora citeseer pubmed] [--seeds 5] [--rounds 60]
"""

import argparse
from typing import Any

import torch

from benchmarks.common import last_round, mean_deviation, mean_interval

PARTS: dict[str, list[Any]] = {
    "as they are": [],
    "quantize, 8 bits": ["quantize"],
    "quantize, 4 bits": [{"name": "quantize", "bits": 4}],
    "top_k, a tenth": ["top_k"],
    "top_k, a tenth, 8 bits": ["top_k", "quantize"],
}


def run(data: str, seed: int, rounds: int, parts: list[Any]) -> tuple[float, int]:
    """Accuracy of the global model on all clients' test nodes, and bytes up."""
    document = {
        "seed": seed,
        "rounds": rounds,
        "data": {"name": data},
        "partition": {"name": "louvain", "clients": 10},
        "model": {"name": "gcn"},
        "algorithm": {"name": "fedavg", "parts": parts},
        "engine": {"threads": 1},
    }
    built, last = last_round(document, rounds)
    return last.summary["global/accuracy"], built.fed.ledger.bytes_up


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["cora", "citeseer", "pubmed"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for data in args.data:
        print(f"\n{data}, {args.seeds} seeds, {args.rounds} rounds\n")
        print("| updates | accuracy | difference, 95 % interval | fewer bytes up |\n| --- | --- | --- | --- |")
        reference: list[tuple[float, int]] = []
        for name, parts in PARTS.items():
            runs = [run(data, seed, args.rounds, parts) for seed in range(args.seeds)]
            reference = reference or runs
            accuracies, sizes = zip(*runs, strict=True)
            reference_accuracies, reference_sizes = zip(*reference, strict=True)
            differences = [one - other for one, other in zip(accuracies, reference_accuracies, strict=True)]
            cells = [name, mean_deviation(accuracies), mean_interval(differences, "+.4f")]
            print(f"| {' | '.join(cells)} | {sum(reference_sizes) / sum(sizes):.1f} times |", flush=True)


if __name__ == "__main__":
    main()
