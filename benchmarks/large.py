"""Memory and processor time of one process that loads, shards or trains on a large graph.

    python -m benchmarks.large make FILE.npz [--nodes 2400000] [--edges 31000000] [--features 100] [--within 0.9]
    python -m benchmarks.large load FILE.npz
    python -m benchmarks.large shard FILE.npz --out FOLDER
    python -m benchmarks.large worker FILE.npz|FOLDER
    python -m benchmarks.large train FILE.npz|FOLDER --out RUN [--algorithm sampled|full] [--rounds 3]

`make` writes a graph like ogbn-products: random edges of which a share lies within one of ten owners, normal features,
47 classes. The others print a line for each stage: peak resident memory since the start of the process, and processor
time of the stage; packages are imported before. `worker` loads what a worker on Ray with one of the
ten clients does, and makes its graph. `train` makes a whole run, evaluated in each round.
"""

import argparse
import resource
import time
from pathlib import Path

import numpy as np
import torch

from fedweave import datasets
from fedweave.experiment.build import worker
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.run import Quiet, run
from fedweave.experiment.runs.saving import Ready
from fedweave.experiment.sharding import write_shards

OWNERS, CLASSES = 10, 47
ALGORITHMS = {
    "sampled": (
        {"name": "sage", "hidden": 64},
        {
            "name": "fedavg",
            "local_steps": 20,
            "parts": [{"name": "sampled_cross_entropy", "batch": 512, "fan_out": 10}],
        },
    ),
    "full": ({"name": "gcn", "hidden": 16}, {"name": "fedavg", "local_steps": 1}),
}


def make(path: Path, nodes: int, edges: int, features: int, within: float) -> None:
    """Write the graph, with about `edges` undirected edges, without compression."""
    rng = np.random.default_rng(0)
    owner = rng.integers(0, OWNERS, nodes)
    order = np.argsort(owner, kind="stable")  # nodes, owner after owner
    starts = np.searchsorted(owner[order], np.arange(OWNERS + 1))
    source, target = rng.integers(0, nodes, (2, edges))
    local = np.flatnonzero(rng.random(edges) < within)
    first, count = starts[owner[source[local]]], np.diff(starts)[owner[source[local]]]
    target[local] = order[first + (rng.random(len(local)) * count).astype(np.int64)]
    different = source != target
    source, target = source[different], target[different]
    codes = np.concatenate([source * nodes + target, target * nodes + source])
    del source, target, local, first, count, different
    codes.sort()
    codes = codes[np.append(True, codes[1:] != codes[:-1])]
    np.savez(
        path,
        x_data=rng.standard_normal(nodes * features, dtype=np.float32),
        x_indices=np.tile(np.arange(features, dtype=np.int32), nodes),
        x_indptr=np.arange(0, nodes * features + 1, features, dtype=np.int32),
        x_shape=np.array([nodes, features]),
        edge_index=np.stack(np.divmod(codes, nodes)),
        y=rng.integers(0, CLASSES, nodes),
        owner=owner,
        owner_names=np.array([f"owner-{place}" for place in range(OWNERS)]),
    )
    print(f"{nodes:,} nodes, {len(codes):,} directed edges")


class Stages(Quiet):
    """Prints what each stage takes."""

    def __init__(self) -> None:
        self.before = time.process_time()

    def print(self, name: str) -> None:
        """The stage before has this name."""
        now = time.process_time()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{name:<12} {peak:8,.0f} MB at the peak so far, {now - self.before:7.1f} s of processor time", flush=True
        )
        self.before = now

    def begin(self, config: Config, built: Ready, directory: Path, done: int) -> None:
        self.print("set up")

    def step(self, reached: Checkpoint) -> None:
        self.print(f"round {reached.round}")


def document(path: Path, algorithm: str) -> dict[str, object]:
    """An experiment on a file or on a folder of shards."""
    model, training = ALGORITHMS[algorithm]
    source = {"name": "shards"} if path.is_dir() else {"name": "npz"}
    partition = {} if path.is_dir() else {"partition": {"name": "column"}}
    return {
        "data": {**source, "path": str(path)},
        **partition,
        "model": model,
        "algorithm": training,
        "engine": {"threads": 1},
    }


def main() -> None:
    """Do one step and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("make", "load", "shard", "worker", "train"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--nodes", type=int, default=2_400_000)
    parser.add_argument("--edges", type=int, default=31_000_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--within", type=float, default=0.9)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--algorithm", choices=sorted(ALGORITHMS), default="sampled")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.step == "make":
        make(args.path, args.nodes, args.edges, args.features, args.within)
        return

    torch.set_num_threads(1)
    stages = Stages()
    stages.print("imports")
    if args.step == "load":
        datasets.load("shards" if args.path.is_dir() else "npz", str(args.path))
    elif args.step == "shard":
        write_shards(resolve(document(args.path, args.algorithm)), args.out)
    elif args.step == "worker":
        config = resolve(document(args.path, args.algorithm) | {"engine": {"name": "ray"}})
        executor = worker(config.plain(), ["owner-0"])._executor
        list(executor.data.graphs.values())
    else:
        run(resolve(document(args.path, args.algorithm) | {"rounds": args.rounds}), args.out, stages)
    stages.print("the rest" if args.step == "train" else args.step)


if __name__ == "__main__":
    main()
