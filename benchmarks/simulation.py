"""Seconds per round of fedweave's two engines and of two plain loops, on one workload in one run.

FedAvg, 2-layer GCN of width 64, Cora cut by Louvain, 3 full-batch epochs of a fresh Adam (lr .01, weight decay 5e-4)
per round, dropout .5, every client evaluated on train, val and test after every round. The sides take turns, so that a
change of the machine's speed affects them all. A line for each side: the median of all rounds but each turn's first, in
brackets the 10 % and 90 % quantiles, and how many times as long as fedweave's vectorized engine. On a CPU seconds are
processor time with one thread.

fedweave's evaluation also ranks every class for AUC; the loops compute accuracy and loss. `plain PyG loop` is what a
PyG user writes: dense features, `GCNConv(cached=True)`, torch.optim.Adam. `lean loop, sparse and fused` is the fair
reference for an engine: sparse features, A X formed once, only the rows that train nodes need, the fused Adam.

    python -m benchmarks.simulation [--clients 10 50 100] [--rounds 40] [--turns 3] [--scale] [--device cuda]

On a GPU, fedweave's vectorized engine and the plain PyG loop take turns there (see also `benchmarks.gpu`).
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from statistics import median
from typing import Any

import torch

from benchmarks import baselines, machine
from benchmarks.baselines import Part
from benchmarks.common import MANY_ROUNDS, durations, in_turns, median_quantiles, peak_memory
from fedweave import datasets
from fedweave.algorithms import FedAvg
from fedweave.core.graph import Graph
from fedweave.datasets.base import Dataset
from fedweave.engines.devices import choose_device
from fedweave.engines.simulation import Simulation
from fedweave.experiment.graphs import client_graphs
from fedweave.experiment.rounds import train
from fedweave.models import MODELS
from fedweave.partition import PARTITIONS
from fedweave.partition.ego_networks import edges_within

HIDDEN, EPOCHS = 64, 3


def cora(clients: int) -> tuple[Dataset, dict[str, Graph], list[Part]]:
    """The same cut as fedweave's graphs and as the plain loops' arrays."""
    data = datasets.load("cora")
    cut = PARTITIONS["louvain"](clients=clients).cut(data, 0)
    edges = edges_within(data, [part.nodes for part in cut.parts])
    parts = [(data.x[p.nodes], e, data.y[p.nodes], p.masks) for p, e in zip(cut.parts, edges, strict=True)]
    return data, client_graphs(data, cut), parts


def engine(
    graphs: dict[str, Graph], data: Dataset, mode: str, device: torch.device | None = None
) -> Callable[[int], list[float]]:
    """Run rounds on one engine, which lives on between turns as in a long run."""
    algorithm = FedAvg(MODELS["gcn"](hidden=HIDDEN).build(data.features, data.classes), local_steps=EPOCHS)
    steps = train(algorithm, Simulation(graphs, classes=data.classes, mode=mode, device=device), MANY_ROUNDS)
    clock = baselines.clock_of(device or "cpu")
    return lambda count: list(durations(islice(steps, count), clock))


def sides_of(clients: int, rounds: int, device: torch.device) -> tuple[dict[str, Callable[[], list[float]]], Any]:
    """{side: a function that runs a turn of rounds and returns their seconds}, and the workload's shape."""
    data, graphs, parts = cora(clients)
    start = baselines.glorot(data.features, HIDDEN, data.classes)
    vmap, loop = engine(graphs, data, "vmap", device), engine(graphs, data, "loop")
    vmap(4)  # past the second round, in which steps are recorded (see src/fedweave/ops/recording.py)
    few = max(4, rounds // 4)
    sides: dict[str, Callable[[], list[float]]] = {
        "fedweave, vmap": lambda: vmap(rounds),
        "fedweave, loop": lambda: loop(few),
        "lean loop, sparse and fused": lambda: baselines.sparse_loop(parts, rounds, start)[2],
        "lean loop, gradient by hand": lambda: baselines.sparse_loop(parts, rounds, start, by_hand=True)[2],
        "plain PyG loop": lambda: baselines.plain_pyg(parts, few, start, device=device)[2],
    }
    if device.type != "cpu":  # the others are loops on the host
        sides = {name: sides[name] for name in ("fedweave, vmap", "plain PyG loop")}
    return sides, machine.Shape.of(parts, HIDDEN, data.classes, EPOCHS)


def compare(clients: int, rounds: int, turns: int, device: torch.device) -> None:
    """Print one line per side, with its ratio to the first."""
    sides, shape = sides_of(clients, rounds, device)
    times = in_turns(sides, turns)
    ours = median(times["fedweave, vmap"])
    for name, seconds in times.items():
        ratio = f"{median(seconds) / ours:5.2f} x"
        print(f"{clients:4d} clients  {name:28s} {median_quantiles(seconds)} s per round, {ratio}", flush=True)
    if device.type != "cpu":
        return
    rates = machine.measure()
    for where, in_cache in (("in cache", True), ("from memory", False)):
        terms = machine.floor(shape, rates, in_cache)
        print(f"{clients:4d} clients  floor {where:22s} {terms['total']:.4f} s per round", flush=True)


def scale(clients: int) -> None:
    """Seconds per round, per client, and peak memory with many synthetic clients of 50 nodes."""
    data = datasets.load("synthetic", nodes=50 * clients, features=64, classes=5, degree=8.0)
    began = time.perf_counter()
    graphs = client_graphs(data, PARTITIONS["random"](clients=clients).cut(data, 0))
    ready = time.perf_counter() - began
    round_seconds = median(engine(graphs, data, "vmap")(12)[1:])
    print(
        f"{clients:6d} synthetic clients: cut and built in {ready:.1f} s, {round_seconds:.3f} s per round, "
        f"{1e6 * round_seconds / clients:.0f} us per client, peak {peak_memory():.0f} MB",
        flush=True,
    )


def whole(command: list[str]) -> None:
    """Wall time and peak memory of a whole process."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{' '.join(command[2:5])} …: {time.perf_counter() - began:.2f} s, peak so far {peak:.0f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 50, 100])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--scale", type=int, nargs="*", default=[1000, 10000], help="synthetic clients; none to skip")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    device = choose_device(args.device)
    torch.set_num_threads(1)
    for clients in args.clients:
        compare(clients, args.rounds, args.turns, device)
    if device.type != "cpu":
        return
    for clients in args.scale:
        subprocess.run([sys.executable, "-c", f"from benchmarks.simulation import scale; scale({clients})"], check=True)
    run = [sys.executable, "-m", "fedweave"]
    whole([*run, "--help"])
    for rounds in (1, 50):
        out = f"runs/benchmark-{time.time_ns()}"
        whole([*run, "run", "experiments/fedavg-cora.toml", "--quiet", "--set", f"rounds={rounds}", "--out", out])


if __name__ == "__main__":
    main()
