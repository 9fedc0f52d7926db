"""Training on many links: seconds and memory of a step of 100 members with 1,000,000 links in all.

Each member has nodes with random features, and random links among them: the work of a step does not depend on what the
links mean. FedAvg with a 2-layer GCN of width 64, the decoder `dot`, and 1 negative for each training link. Prints
processor seconds of the preparation, of a step and of an evaluation, and the largest memory so far.

    python -m benchmarks.links_scale [--members 100] [--links 1000000] [--nodes 200000] [--features 32] [--batch 0]

With `--batch`, a step uses this many training links of each member instead of all.
"""

import argparse
import statistics
import time

import numpy as np
import torch

from benchmarks.common import peak_memory
from fedweave import models
from fedweave.algorithms import FedAvg
from fedweave.algorithms.parts import LinkPrediction
from fedweave.core.links import Links
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.links import as_links
from fedweave.experiment.build import federation
from fedweave.models.links import OnPairs
from fedweave.partition import Column

STEPS = 3  # of a round, as by default


def random_data(members: int, links: int, nodes: int, features: int) -> Dataset:
    """The data of all members, whose nodes are equal shares."""
    rng, share = np.random.default_rng(0), nodes // members
    first, second = rng.integers(0, share, (2, int(1.01 * links)))
    offset = rng.integers(0, members, len(first)) * share
    ends = to_undirected(np.stack([offset + first, offset + second]), nodes)
    x = rng.normal(size=(nodes, features)).astype(np.float32)
    names = tuple(map(str, range(members)))
    owner = np.minimum(np.arange(nodes) // share, members - 1)
    return Dataset("random", x, ends, np.zeros(nodes, np.int64), 1, owner=owner, owners=names)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--links", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    data = as_links(random_data(args.members, args.links, args.nodes, args.features), Links(rank_negatives=0))
    net = OnPairs(models.GCN(hidden=64)).build(args.features)
    algorithm = FedAvg(net, local_steps=STEPS, parts=(LinkPrediction(batch=args.batch),))
    fed = federation(data, Column().cut(data, 0), algorithm)
    links = 0 if data.edge_attrs is None else data.edge_attrs.total
    ready = f"ready after {time.process_time() - began:.0f} s, {peak_memory() / 1e3:.1f} GB"
    print(f"{links:,} links, {len(fed.clients)} members: {ready}")
    state, seconds = algorithm.init(fed), []
    for number in range(1, args.rounds + 1):
        fed.begin(number)
        began = time.process_time()
        state = algorithm.round(state, fed)
        seconds.append(time.process_time() - began)
    step_seconds = statistics.median(seconds[2:]) / STEPS
    print(f"a step, of {STEPS} in a round: {step_seconds:.2f} s; {peak_memory() / 1e3:.1f} GB at the peak")
    began = time.process_time()
    algorithm.evaluate(state, fed)
    print(f"an evaluation: {time.process_time() - began:.1f} s; {peak_memory() / 1e3:.1f} GB at the peak")


if __name__ == "__main__":
    main()
