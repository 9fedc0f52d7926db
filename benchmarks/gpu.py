"""Seconds per round on a GPU, against a PyG loop over clients on the same card in the same run, as a markdown table.

    python -m benchmarks.gpu                         # a few minutes on one card
    python -m benchmarks.gpu --device cpu --small    # whether it works, without one
    python -m benchmarks.gpu --host [--profile]      # without one: a process's time beside the captured kernels

All clients are evaluated after every round, except on the graph of a million nodes, where a step is timed. Medians over
the rounds after those in which steps are recorded and captured. Columns: the workload, seconds of a round, those of the
loop where there is one, how many times as fast fedweave is, and the largest memory of the GPU.
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import baselines
from benchmarks.common import EXPERIMENTS, MANY_ROUNDS, commit
from benchmarks.simulation import HIDDEN, cora
from fedweave.algorithms import FedAvg
from fedweave.core import random
from fedweave.core.graph import Graph, make_graph
from fedweave.engines import vectorized
from fedweave.engines.devices import choose_device, device_name
from fedweave.engines.simulation import Simulation
from fedweave.experiment import config
from fedweave.experiment.build import build
from fedweave.experiment.rounds import train
from fedweave.models import MODELS
from fedweave.ops import rows

WARM_UP = 7  # rounds in which steps are run as written, recorded and captured, and then the whole round
NODES, FEATURES, CLASSES = 50, 100, 5


class Row(NamedTuple):
    """One workload: seconds of a round, those of PyG's loop where there is one, GiB at peak, and of how many rounds."""

    name: str
    seconds: float
    loop: float | None
    peak: float
    rounds: int


def fedavg(clients: int, device: torch.device, rounds: int) -> Row:
    """FedAvg with a GCN on Cora, and PyG's loop."""
    data, graphs, parts = cora(clients)
    algorithm = _gcn(data.features, data.classes)
    fed = Simulation(graphs, classes=data.classes, device=device)
    seconds, peak = _median_round(lambda: _rounds(algorithm, fed), device, rounds)
    start = baselines.glorot(data.features, HIDDEN, data.classes)
    loop = baselines.plain_pyg(parts, max(3, rounds // 4), start, device=device)[2]
    return Row(f"FedAvg, GCN-{HIDDEN}, Cora, {clients} clients", seconds, median(loop[1:]), peak, rounds)


def many(clients: int, device: torch.device, rounds: int) -> Row:
    """FedAvg with this many clients of 50 nodes."""
    draw, graphs = random.generator(0, "benchmark"), {}
    for at in range(clients):
        graphs[f"client-{at}"] = _random_graph(draw, NODES, 2 * NODES)
    fed = Simulation(graphs, classes=CLASSES, device=device)
    seconds, peak = _median_round(lambda: _rounds(_gcn(FEATURES, CLASSES), fed), device, rounds)
    return Row(f"FedAvg, {clients:,} clients of {NODES} nodes", seconds, None, peak, rounds)


def large(nodes: int, device: torch.device, rounds: int) -> Row:
    """A step of one client with this many nodes, and five times as many pairs of neighbors, each in both directions."""
    graph = _random_graph(random.generator(1, "benchmark"), nodes, 10 * nodes)
    fed = Simulation({"alone": graph}, classes=CLASSES, device=device)
    algorithm = FedAvg(MODELS["gcn"](hidden=HIDDEN).build(FEATURES, CLASSES), local_steps=1)
    seconds, peak = _median_round(lambda: _rounds(algorithm, fed, 0), device, rounds)
    return Row(f"one client, {nodes:,} nodes, a step", seconds, None, peak, rounds)


def experiment(name: str, device: torch.device, rounds: int, settings: tuple[str, ...] = ()) -> Row:
    """An experiment of this repository."""
    built = build(config.read(EXPERIMENTS / f"{name}.toml", [*settings, f"engine.device={device}"])[0])
    seconds, peak = _median_round(lambda: _rounds(built.algorithm, built.fed), device, rounds)
    return Row(", ".join([f"experiments/{name}.toml", *settings]), seconds, None, peak, rounds)


def _gcn(features: int, classes: int) -> FedAvg:
    return FedAvg(MODELS["gcn"](hidden=HIDDEN).build(features, classes), local_steps=3)


def _random_graph(draw: np.random.Generator, nodes: int, edges: int) -> Graph:
    pairs = draw.integers(0, nodes, (2, edges))
    pairs = pairs[:, pairs[0] < pairs[1]]
    both = np.unique(np.concatenate([pairs, pairs[::-1]], 1), axis=1)
    y = draw.integers(0, CLASSES, nodes)
    x = draw.standard_normal((nodes, FEATURES), np.float32)
    x[np.arange(nodes), y] += 1.5
    split = np.searchsorted([0.2, 0.4], draw.random(nodes), "right")
    return make_graph(x, both, y, split == np.arange(3)[:, None])


def _rounds(algorithm: Any, fed: Any, every: int = 1) -> Iterator[object]:
    return train(algorithm, fed, MANY_ROUNDS, every)


class NoKernels:
    """Captures without their kernels: a process's time is then what a GPU waits for."""

    def capture(self, function: Callable[[], object]) -> Callable[[], object]:
        function()
        return lambda: None


def host(start: Callable[[], Row], profile: bool) -> Row:
    """A workload on the CPU, whose seconds are the process's, with captures that launch nothing, and with lists of the
    lengths that they have on a GPU, where steps are captured because they count nothing."""
    recorder_for, clock = vectorized.recorder_for, time.perf_counter
    rows.COUNTING.discard("cpu")
    vectorized.recorder_for, time.perf_counter = lambda _: NoKernels(), time.process_time
    profiler = cProfile.Profile() if profile else None
    try:
        with profiler or nullcontext():
            return start()
    finally:
        vectorized.recorder_for, time.perf_counter = recorder_for, clock
        rows.COUNTING.add("cpu")
        if profiler is not None:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def _median_round(start: Callable[[], Iterator[object]], device: torch.device, rounds: int) -> tuple[float, float]:
    """Median seconds of a round, and GiB at peak where that is known."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    seconds = []
    steps = start()
    for _ in islice(steps, WARM_UP):
        wait()
    for _ in range(rounds):
        began = time.perf_counter()
        next(steps)
        wait()
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_reserved(device) / 2**30 if device.type == "cuda" else float("nan")
    return median(seconds), peak


def workloads(small: bool) -> dict[str, Callable[[torch.device, int], Row]]:
    """All of them, or small ones, by name."""
    runs: dict[str, Callable[[torch.device, int], Row]] = {}
    for clients in (10,) if small else (10, 100):
        runs[f"cora-{clients}"] = partial(fedavg, clients)
    for clients in (20,) if small else (1_000, 10_000, 100_000):
        runs[f"many-{clients}"] = partial(many, clients)
    hidden = "model.hidden=32" if small else "model.hidden=512"
    runs["fairgraphfl"] = partial(experiment, "fairgraphfl-proteins", settings=("eval_every=1",))
    runs["fedego"] = partial(experiment, "fedego-cora", settings=(hidden,))
    runs["glasu"] = partial(experiment, "glasu-cora", settings=("algorithm.steps=1",))
    runs["large"] = partial(large, 1_000 if small else 1_000_000)
    return runs


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="little workloads, to see that it works")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", nargs="+", metavar="WORKLOAD", help="those of these names")
    parser.add_argument("--host", action="store_true", help="on the CPU, without captured kernels")
    parser.add_argument("--profile", action="store_true", help="with --host: what the time goes into")
    args = parser.parse_args()
    device = choose_device("cpu" if args.host else args.device)
    rounds = min(args.rounds, 2) if args.small else args.rounds
    runs = workloads(args.small)
    print(f"{device_name(device)}, torch {torch.__version__}, commit {commit()}\n")
    print("| workload | s per round | PyG loop, s | times as fast | GiB at peak |\n| --- | --- | --- | --- | --- |")
    for run in [runs[name] for name in args.only or runs]:
        row = host(partial(run, device, rounds), args.profile) if args.host else run(device, rounds)
        loop, times = ("-", "-") if row.loop is None else (f"{row.loop:.4f}", f"{row.loop / row.seconds:.1f}")
        peak = "-" if np.isnan(row.peak) else f"{row.peak:.1f}"
        print(f"| {row.name} | {row.seconds:.4f} | {loop} | {times} | {peak} |", flush=True)


if __name__ == "__main__":
    main()
