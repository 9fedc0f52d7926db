"""What a run of many clients costs of which each round calls a few: setup, rounds, evaluation, rows, a checkpoint
that is written and read, memory.

FedAvg, 2-layer GCN of width 64, synthetic clients of 50 nodes each; `--called` of them train in each round, and
evaluations are of `--judged` clients (0: of all). Seconds are of the processor, in one process of one thread, so that
other work on the machine counts little; a round is the median of all but the first two.

    python -m benchmarks.sampled [--clients 100000] [--called 1000] [--judged 1000] [--rounds 10]
        [--features 32] [--degree 4]
"""

import argparse
import resource
import time
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from fedweave.experiment.build import build
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.metrics.measured import measure

NODES = 50
MANY = 1_000_000  # rounds, of which some are made


def experiment(clients: int, called: int, judged: int, features: int = 32, degree: float = 4.0) -> Config:
    """So many clients, of which some are called and some are judged."""
    return resolve(
        {
            "data": {"name": "synthetic", "nodes": NODES * clients, "features": features, "degree": degree},
            "partition": {"name": "random", "clients": clients},
            "model": {"name": "gcn", "hidden": 64},
            "algorithm": {"name": "fedavg", "participation": called / clients},
            "engine": {"threads": 1},
            **({"evaluation": {"clients": judged}} if judged else {}),
        }
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("clients", 100_000), ("called", 1000), ("judged", 1000), ("rounds", 10), ("features", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--degree", type=float, default=4.0)
    args = parser.parse_args()
    began = time.process_time()
    built = build(experiment(args.clients, args.called, args.judged, args.features, args.degree))
    told, last, rounds = [f"setup {time.process_time() - began:.1f} s"], time.process_time(), []
    for step in islice(train(built.algorithm, built.fed, MANY, eval_every=0), args.rounds):
        now = time.process_time()
        rounds.append(now - last)
        last, state = now, step.state
    told.append(f"a round {median(rounds[2:]):.3f} s ({min(rounds[2:]):.3f} to {max(rounds[2:]):.3f})")
    built.fed.ledger.purpose = "evaluation"
    replies: list[Any] = []
    for name, work in (
        ("evaluation", lambda: replies.append(built.algorithm.evaluate(state, built.fed))),
        ("its rows", lambda: measure(args.rounds, replies[0])),
        ("the ledger's", built.fed.ledger.table),
    ):
        began = time.process_time()
        work()
        told.append(f"{name} {time.process_time() - began:.2f} s")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        began = time.process_time()
        Checkpoint(round=args.rounds, state=state, fed=built.fed.snapshot()).save(path)
        written = time.process_time()
        Checkpoint.load(path)
        read, size = time.process_time(), path.stat().st_size / 1e6
        told.append(f"a checkpoint {written - began:.2f} s, read {read - written:.2f} s, {size:,.0f} MB")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{args.clients:,} clients: {', '.join(told)}, {peak:,.0f} MB at peak")


if __name__ == "__main__":
    main()
