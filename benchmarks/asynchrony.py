"""Accuracy against simulated time: FedBuff that waits for three of ten clients, and for all, which is FedAvg.

Each seed draws one partition, one start and how long each client takes, for both; nothing is tuned. Both end after the
simulated time that FedAvg takes for `--rounds`. Columns: a share of this time, in rounds of FedAvg; test accuracy of
the global model when all and when three are waited for; the paired difference with its 95 % interval; and how many
times the bytes of FedAvg are sent. A line of `--out` is an evaluation; a run that is in it is not run again.

    python -m benchmarks.asynchrony [--data cora citeseer pubmed] [--seeds 3] [--rounds 40] [--spread 1] [--jitter 0]
                                    [--out asynchrony.csv]
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.common import mean_deviation, mean_interval
from fedweave.core.types import Record
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train

CLIENTS, WAITS, EVERY = 10, (10, 3), {10: 1, 3: 5}
SHARES = (1 / 8, 1 / 4, 1 / 2, 1)
Row = tuple[str, int, int, float, float, int]  # data, seed, K, time, accuracy, bytes up


def evaluations(data: str, seed: int, buffer: int, rounds: int, until: float, pace: Record) -> Iterator[Row]:
    """Evaluations of one run, up to a time; pace: how durations are drawn."""
    document = {
        "seed": seed,
        "data": {"name": data},
        "partition": {"name": "louvain", "clients": CLIENTS},
        "model": {"name": "gcn"},
        "algorithm": {"name": "fedbuff", "buffer": buffer, **pace},
        "engine": {"threads": 1},
    }
    built = build(resolve(document))
    for step in train(built.algorithm, built.fed, rounds, EVERY[buffer]):
        time = float(step.state["clock"])
        if time > until:
            return
        if step.evaluated:
            yield data, seed, buffer, time, step.summary["global/accuracy"], built.fed.ledger.bytes_up


def last_until(rows: list[Row], time: float) -> Row:
    """The last evaluation up to a time."""
    return max((row for row in rows if row[3] <= time + 1e-9), key=lambda row: row[3])


def main() -> None:
    """Run what is not in the file yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["cora", "citeseer", "pubmed"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--spread", type=float, default=1.0)
    parser.add_argument("--jitter", type=float, default=0.0)
    parser.add_argument("--out", type=Path, default=Path("asynchrony.csv"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.touch()
    pace: Record = {"spread": args.spread, "jitter": args.jitter}
    for data in args.data:
        results: dict[float, list[tuple[float, float, float]]] = {share: [] for share in SHARES}
        for seed in range(args.seeds):
            runs = {}
            for buffer in WAITS:
                rows = [row for row in _read(args.out) if row[:3] == (data, seed, buffer)]
                if not rows:
                    until, max_rounds = (runs[10][-1][3], 10**5) if runs else (float("inf"), args.rounds)
                    rows = list(evaluations(data, seed, buffer, max_rounds, until, pace))
                    with args.out.open("a", newline="") as file:
                        csv.writer(file).writerows(rows)
                runs[buffer] = rows
            for share in SHARES:
                all_, three = (last_until(runs[buffer], share * runs[10][-1][3]) for buffer in WAITS)
                results[share].append((all_[4], three[4], three[5] / all_[5]))
        print(f"\n{data}, {args.seeds} seeds\n\n| time | all | three | difference, 95 % interval | bytes |")
        for share, of_seeds in results.items():
            synchronous, buffered, sizes = zip(*of_seeds, strict=True)
            differences = [b - a for a, b in zip(synchronous, buffered, strict=True)]
            cells = [mean_deviation(synchronous), mean_deviation(buffered), mean_interval(differences)]
            print(f"| {share * args.rounds:g} rounds | {' | '.join(cells)} | {fmean(sizes):.1f} times |", flush=True)


def _read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return [(r[0], int(r[1]), int(r[2]), float(r[3]), float(r[4]), int(r[5])) for r in csv.reader(file)]


if __name__ == "__main__":
    main()
