"""Seconds per round of workers on one machine against one process, on the same clients in one run.

FedAvg, 2-layer GCN, synthetic clients of 50 nodes each. Every client (or `--called` of them) trains in every round, and
every client (or `--judged` of them) is evaluated. The sides take turns. Printed are medians over all rounds but each
turn's first and, for the workers, what passes in a round, processor time and memory; with `--alone` only the workers
run, so that their memory does not include that of the other side.

    python -m benchmarks.cluster [--clients 1000] [--workers 2] [--rounds 10] [--turns 3]
    python -m benchmarks.cluster --alone --called 1000 --judged 1000 --clients 100000 --turns 1 --rounds 2
    python -m benchmarks.cluster --clients 40 --features 512 --hidden 2048    # messages of 4 MB
"""

import argparse
import time
from collections.abc import Callable
from itertools import islice
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.common import MANY_ROUNDS, durations, peak_memory
from fedweave.experiment.build import Built, build
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.rounds import train

NODES = 50
MB = 1e6


def experiment(args: argparse.Namespace) -> Config:
    """The same experiment on workers; `in_process` is its other side."""
    return resolve(
        {
            "data": {"name": "synthetic", "nodes": NODES * args.clients, "features": args.features, "degree": 4.0},
            "partition": {"name": "random", "clients": args.clients},
            "model": {"name": "gcn", "hidden": args.hidden},
            "algorithm": {"name": "fedavg", "participation": min(1.0, args.called / args.clients)},
            "evaluation": {"clients": args.judged},
            "engine": {"name": "ray", "workers": args.workers},
        }
    )


class Traffic:
    """Counts what passes between a built run and its workers, and the processor time of both."""

    def __init__(self, built: Built) -> None:
        self.requests, self.up, self.down, self.shared = 0, 0, 0, 0
        executor: Any = built.fed.executor
        share = executor._share

        def count_shared(blob: bytes) -> Any:
            self.shared += len(blob)
            return share(blob)

        executor._share = count_shared
        for shard in executor._shards:
            shard._channel = self._counting_channel(shard._channel)
        self._driver = psutil.Process()
        processes = self._driver.children(recursive=True)
        self.workers = [one for one in processes if any("RemoteWorker" in part for part in one.cmdline())]

    def _counting_channel(self, channel: Any) -> Callable[..., Any]:
        def send(method: str, *blobs: object) -> Callable[[], bytes]:
            self.requests += 1
            self.down += sum(len(blob) for blob in blobs if isinstance(blob, bytes))
            wait = channel(method, *blobs)

            def receive() -> bytes:
                answer: bytes = wait()
                self.up += len(answer)
                return answer

            return receive

        return send

    def read(self) -> tuple[float, ...]:
        """Requests, bytes up, down and the same for all, and seconds of the driver's and workers' processors."""
        driver, *workers = (sum(process.cpu_times()[:2]) for process in (self._driver, *self.workers))
        return self.requests, self.up, self.down, self.shared, driver, sum(workers)

    def per_round(self, before: tuple[float, ...], rounds: int) -> str:
        """What a round took since `before`, and the memory that is used now."""
        requests, up, down, shared, driver, workers = (np.array(self.read()) - before) / rounds
        memory = ", ".join(f"{process.memory_info().rss / MB:.0f}" for process in (self._driver, *self.workers))
        return (
            f"a round: {requests:.1f} requests, {up / MB:.3f} MB up, {down / MB:.3f} MB down to single workers, "
            f"{shared / MB:.3f} MB the same for all; processor: driver {driver:.3f} s, workers {workers:.3f} s\n"
            f"memory of driver and workers: {memory} MB; driver at peak: {peak_memory():.0f} MB"
        )


def side(built: Built, threads: int) -> Callable[[int], list[float]]:
    """A function that runs rounds, on an engine that persists between turns, as in a long run."""
    steps = train(built.algorithm, built.fed, MANY_ROUNDS)

    def turn(count: int) -> list[float]:
        torch.set_num_threads(threads)
        return list(durations(islice(steps, count), time.perf_counter))

    return turn


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"clients": 1000, "workers": 2, "rounds": 10, "turns": 3, "features": 32, "hidden": 64}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--called", type=int, default=MANY_ROUNDS)
    parser.add_argument("--judged", type=int, default=0)
    parser.add_argument("--alone", action="store_true")
    args = parser.parse_args()
    config, threads = experiment(args), torch.get_num_threads()
    built = build(config)
    sides = {"workers": side(built, 1)}
    if not args.alone:
        sides["one process"] = side(build(config.in_process()), threads)
    traffic, seconds = Traffic(built), {name: list[float]() for name in sides}
    for turn in range(args.turns):
        for name, rounds in sides.items():
            rounds(3 if turn == 0 else 1)  # the first of which record steps
            before = traffic.read()
            seconds[name] += rounds(args.rounds)
            if name == "workers":
                print(traffic.per_round(before, args.rounds))
    print(f"{threads} threads in one process, torch {torch.__version__}")
    for name, times in seconds.items():
        print(f"{name}: {median(times):.4f} s a round ({min(times):.4f} to {max(times):.4f})")
    if not args.alone:
        print(f"ratio {median(seconds['workers']) / median(seconds['one process']):.2f}")
    built.close()


if __name__ == "__main__":
    main()
