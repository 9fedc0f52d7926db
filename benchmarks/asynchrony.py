"""Accuracy against simulated time: FedBuff that waits for three of ten clients, and for all, which is FedAvg.

Each seed draws one cut, one start and how long each client takes, for both; nothing is tuned. Time is that of FedAvg's
`--rounds`; both end there. A line of `--out` is an evaluation; a run that is in it is not run again.

    python -m benchmarks.asynchrony [--data cora citeseer pubmed] [--seeds 3] [--rounds 40] [--spread 1] [--jitter 0]
                                    [--out asynchrony.csv]
"""

import argparse
import csv
import statistics
from collections.abc import Iterator
from pathlib import Path

import torch

from fedweave.core.types import Record
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.reports.paired import interval

CLIENTS, WAITS, EVERY = 10, (10, 3), {10: 1, 3: 5}
SHARES = (1 / 8, 1 / 4, 1 / 2, 1)
Row = tuple[str, int, int, float, float, int]  # data, seed, K, time, accuracy, bytes up


def measured(data: str, seed: int, buffer: int, rounds: int, until: float, pace: Record) -> Iterator[Row]:
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


def reached(rows: list[Row], time: float) -> Row:
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
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.touch()
    pace: Record = {"spread": given.spread, "jitter": given.jitter}
    for data in given.data:
        differences: dict[float, list[tuple[float, float, float]]] = {share: [] for share in SHARES}
        for seed in range(given.seeds):
            runs = {}
            for buffer in WAITS:
                rows = [row for row in _read(given.out) if row[:3] == (data, seed, buffer)]
                if not rows:
                    until, most = (runs[10][-1][3], 10**5) if runs else (float("inf"), given.rounds)
                    rows = [*measured(data, seed, buffer, most, until, pace)]
                    with given.out.open("a", newline="") as file:
                        csv.writer(file).writerows(rows)
                runs[buffer] = rows
            for share in SHARES:
                all_, some = (reached(runs[buffer], share * runs[10][-1][3]) for buffer in WAITS)
                differences[share].append((all_[4], some[4], some[5] / all_[5]))
        print(f"\n{data}, {given.seeds} seeds\n\n| time | all | three | difference, 95 % interval | bytes |")
        for share, found in differences.items():
            waited, buffered, sizes = zip(*found, strict=True)
            low, high = interval([b - a for a, b, _ in found])
            mean = statistics.fmean(buffered) - statistics.fmean(waited)
            both = [f"{statistics.fmean(one):.3f} ± {statistics.stdev(one):.3f}" for one in (waited, buffered)]
            cells = [f"{share * given.rounds:g} rounds", *both, f"{mean:+.3f}, {low:+.3f} to {high:+.3f}"]
            print(f"| {' | '.join([*cells, f'{statistics.fmean(sizes):.1f} times'])} |", flush=True)


def _read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return [(r[0], int(r[1]), int(r[2]), float(r[3]), float(r[4]), int(r[5])) for r in csv.reader(file)]


if __name__ == "__main__":
    main()
