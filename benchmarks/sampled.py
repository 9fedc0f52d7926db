"""The cost of a run with many clients of which each round calls some: setup, rounds, evaluation, rows, writing and
reading a checkpoint, memory.

FedAvg, 2-layer GCN of width 64, synthetic clients of 50 nodes each; `--called` of them train in each round, and
`--judged` clients are evaluated (0: all). Seconds are processor time of one process with one thread, so that other work
on the machine has little influence; a round is the median of all but the first two.

    python -m benchmarks.sampled [--clients 100000] [--called 1000] [--judged 1000] [--rounds 10]
        [--features 32] [--degree 4]
"""

import argparse
import time
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import MANY_ROUNDS, peak_memory
from fedweave.experiment.build import build
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.metrics.measured import measure

NODES = 50


def experiment(clients: int, called: int, judged: int, features: int = 32, degree: float = 4.0) -> Config:
    """FedAvg on synthetic data. called, judged: how many clients train and are evaluated in a round."""
    document: dict[str, Any] = {
        "data": {"name": "synthetic", "nodes": NODES * clients, "features": features, "degree": degree},
        "partition": {"name": "random", "clients": clients},
        "model": {"name": "gcn", "hidden": 64},
        "algorithm": {"name": "fedavg", "participation": called / clients},
        "engine": {"threads": 1},
    }
    if judged:
        document["evaluation"] = {"clients": judged}
    return resolve(document)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("clients", 100_000), ("called", 1000), ("judged", 1000), ("rounds", 10), ("features", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--degree", type=float, default=4.0)
    args = parser.parse_args()
    began = time.process_time()
    built = build(experiment(args.clients, args.called, args.judged, args.features, args.degree))
    costs, began, rounds = [f"setup {time.process_time() - began:.1f} s"], time.process_time(), []
    for step in islice(train(built.algorithm, built.fed, MANY_ROUNDS, eval_every=0), args.rounds):
        now = time.process_time()
        rounds.append(now - began)
        began, state = now, step.state
    costs.append(f"a round {median(rounds[2:]):.3f} s ({min(rounds[2:]):.3f} to {max(rounds[2:]):.3f})")
    built.fed.ledger.purpose = "evaluation"
    began = time.process_time()
    evaluation = built.algorithm.evaluate(state, built.fed)
    evaluated = time.process_time()
    measure(args.rounds, evaluation)
    measured = time.process_time()
    built.fed.ledger.table()
    costs.append(f"evaluation {evaluated - began:.2f} s, its rows {measured - evaluated:.2f} s")
    costs.append(f"the ledger's {time.process_time() - measured:.2f} s")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        began = time.process_time()
        Checkpoint(round=args.rounds, state=state, fed=built.fed.stacked_snapshot()).save(path)
        written = time.process_time()
        Checkpoint.load(path)
        read, size = time.process_time(), path.stat().st_size / 1e6
        costs.append(f"a checkpoint {written - began:.2f} s, read {read - written:.2f} s, {size:,.0f} MB")
    print(f"{args.clients:,} clients: {', '.join(costs)}, {peak_memory():,.0f} MB at peak")


if __name__ == "__main__":
    main()
