"""Seconds per round of workers on one machine against one process, on the same clients in one run.

FedAvg, 2-layer GCN, synthetic clients of 50 nodes each, every client, or `--called` of them, trained in every round and
evaluated (or `--judged` of them). The sides take turns; medians over all rounds but each turn's first are printed, and
of the workers' side what passes in a round, processor time and memory, which `--alone` has without the other side's.

    python -m benchmarks.cluster [--clients 1000] [--workers 2] [--rounds 10] [--turns 3]
    python -m benchmarks.cluster --alone --called 1000 --judged 1000 --clients 100000 --turns 1 --rounds 2
    python -m benchmarks.cluster --clients 40 --features 512 --hidden 2048    # messages of 4 MB
"""

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median
from typing import Any

import psutil
import torch

from fedweave.experiment.build import Built, build
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.rounds import train

NODES = 50
MANY = 1_000_000  # rounds, of which every turn makes some
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
        self._share, executor._share = executor._share, self._told_all
        for shard in executor._shards:
            shard._channel = self._counted(shard._channel)
        self._driver = psutil.Process()
        below = self._driver.children(recursive=True)
        self.workers = [each for each in below if any("RemoteWorker" in part for part in each.cmdline())]

    def _counted(self, channel: Any) -> Callable[..., Any]:
        def counted(method: str, *blobs: object) -> Callable[[], bytes]:
            self.requests += 1
            self.down += sum(len(blob) for blob in blobs if isinstance(blob, bytes))
            wait = channel(method, *blobs)

            def answer() -> bytes:
                found: bytes = wait()
                self.up += len(found)
                return found

            return answer

        return counted

    def _told_all(self, blob: bytes) -> Any:
        self.shared += len(blob)
        return self._share(blob)

    def read(self) -> tuple[float, ...]:
        """Requests, bytes up, down and the same for all, and seconds of the driver's and workers' processors."""
        spent = [sum(each.cpu_times()[:2]) for each in (self._driver, *self.workers)]
        return self.requests, self.up, self.down, self.shared, spent[0], sum(spent[1:])

    def told(self, before: tuple[float, ...], rounds: int) -> str:
        """What a round took since `before`, and the memory that is held now."""
        requests, up, down, shared, driver, workers = (
            (now - then) / rounds for now, then in zip(self.read(), before, strict=True)
        )
        held = ", ".join(f"{each.memory_info().rss / MB:.0f}" for each in (self._driver, *self.workers))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB
        return (
            f"a round: {requests:.1f} requests, {up / MB:.3f} MB up, {down / MB:.3f} MB down to single workers, "
            f"{shared / MB:.3f} MB the same for all; processor: driver {driver:.3f} s, workers {workers:.3f} s\n"
            f"memory of driver and workers: {held} MB; driver at peak: {peak:.0f} MB"
        )


def side(built: Built, threads: int) -> Callable[[int], list[float]]:
    """Run rounds on an engine that lives on between turns, as in a long run."""
    steps = train(built.algorithm, built.fed, MANY)

    def turn(count: int) -> list[float]:
        torch.set_num_threads(threads)
        return list(_intervals(islice(steps, count)))

    return turn


def _intervals(steps: Iterator[Any]) -> Iterator[float]:
    began = time.perf_counter()
    for _ in steps:
        now = time.perf_counter()
        yield now - began
        began = now


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in {"clients": 1000, "workers": 2, "rounds": 10, "turns": 3, "features": 32, "hidden": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--called", type=int, default=MANY)
    parser.add_argument("--judged", type=int, default=0)
    parser.add_argument("--alone", action="store_true")
    args = parser.parse_args()
    config, threads = experiment(args), torch.get_num_threads()
    made = {"workers": build(config)}
    sides = {"workers": side(made["workers"], 1)}
    if not args.alone:
        made["one process"] = build(config.in_process())
        sides["one process"] = side(made["one process"], threads)
    traffic, seconds = Traffic(made["workers"]), {name: list[float]() for name in made}
    for turn in range(args.turns):
        for name, rounds in sides.items():
            rounds(3 if turn == 0 else 1)  # the first of which record steps
            before = traffic.read()
            seconds[name] += rounds(args.rounds)
            if name == "workers":
                print(traffic.told(before, args.rounds))
    print(f"{threads} threads in one process, torch {torch.__version__}")
    for name, own in seconds.items():
        print(f"{name}: {median(own):.4f} s a round ({min(own):.4f} to {max(own):.4f})")
    if not args.alone:
        print(f"ratio {median(seconds['workers']) / median(seconds['one process']):.2f}")
    made["workers"].close()


if __name__ == "__main__":
    main()
