"""Accuracy against bytes of updates in fewer bytes: FedAvg with `quantize`, `top_k` and both, paired over seeds.

Each seed draws one cut and one start for all; nothing is tuned. Bytes are the ledger's, of what clients send.

    python -m benchmarks.fewer_bytes [--data cora citeseer pubmed] [--seeds 5] [--rounds 60]
"""

import argparse
import statistics
from typing import Any

import torch

from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.reports.paired import interval

PARTS: dict[str, list[Any]] = {
    "as they are": [],
    "quantize, 8 bits": ["quantize"],
    "quantize, 4 bits": [{"name": "quantize", "bits": 4}],
    "top_k, a tenth": ["top_k"],
    "top_k, a tenth, 8 bits": ["top_k", "quantize"],
}


def measured(data: str, seed: int, rounds: int, parts: list[Any]) -> tuple[float, int]:
    """The common model's accuracy on all clients' test nodes, and bytes up."""
    document = {
        "seed": seed,
        "rounds": rounds,
        "data": {"name": data},
        "partition": {"name": "louvain", "clients": 10},
        "model": {"name": "gcn"},
        "algorithm": {"name": "fedavg", "parts": parts},
        "engine": {"threads": 1},
    }
    built = build(resolve(document))
    *_, last = train(built.algorithm, built.fed, rounds, eval_every=0)
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
        plain: list[tuple[float, int]] = []
        for name, parts in PARTS.items():
            found = [measured(data, seed, args.rounds, parts) for seed in range(args.seeds)]
            plain = plain or found
            accuracy = [one for one, _ in found]
            low, high = interval([one - other for (one, _), (other, _) in zip(found, plain, strict=True)])
            mean = statistics.fmean(accuracy) - statistics.fmean(one for one, _ in plain)
            fewer = sum(size for _, size in plain) / sum(size for _, size in found)
            print(
                f"| {name} | {statistics.fmean(accuracy):.3f} ± {statistics.stdev(accuracy):.3f} | {mean:+.4f}, "
                f"{low:+.4f} to {high:+.4f} | {fewer:.1f} times |",
                flush=True,
            )


if __name__ == "__main__":
    main()
