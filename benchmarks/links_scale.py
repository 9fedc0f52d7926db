"""Training on many links: seconds and memory of a step of 100 members with 1,000,000 links in all.

Each member has nodes of its own with random features, and random links among them: the work of a step does not depend
on what the links say. FedAvg with a 2-layer GCN of width 64, the decoder `dot`, and 1 negative for each training link.

    python -m benchmarks.links_scale [--members 100] [--links 1000000] [--nodes 200000] [--features 32] [--batch 0]

With `--batch`, a step takes as many training links of each member instead of all.
"""

import argparse
import resource
import statistics
import time

import numpy as np
import torch

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


def made(members: int, links: int, nodes: int, features: int) -> Dataset:
    """The data of all members, whose nodes are equal shares."""
    random, share = np.random.default_rng(0), nodes // members
    first, second = random.integers(0, share, (2, int(1.01 * links)))
    at = random.integers(0, members, len(first)) * share

    ends = to_undirected(np.stack([at + first, at + second]), nodes)
    x = random.normal(size=(nodes, features)).astype(np.float32)
    names = tuple(map(str, range(members)))
    owner = np.minimum(np.arange(nodes) // share, members - 1)
    return Dataset("random", x, ends, np.zeros(nodes, np.int64), 1, owner=owner, owners=names)


def peak() -> float:
    """The most memory of this process until now, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


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
    data = as_links(made(args.members, args.links, args.nodes, args.features), Links(rank_negatives=0))
    cut = Column().cut(data, 0)
    algorithm = FedAvg(
        OnPairs(models.GCN(hidden=64)).build(args.features),
        local_steps=STEPS,
        parts=(LinkPrediction(batch=args.batch),),
    )
    fed = federation(data, cut, algorithm)
    links = 0 if data.edge_attrs is None else data.edge_attrs.total
    print(
        f"{links:,} links, {len(fed.clients)} members: ready after {time.process_time() - began:.0f} s, {peak():.1f} GB"
    )
    state, seconds = algorithm.init(fed), []
    for number in range(1, args.rounds + 1):
        fed.begin(number)
        began = time.process_time()
        state = algorithm.round(state, fed)
        seconds.append(time.process_time() - began)
    print(f"a step, of {STEPS} in a round: {statistics.median(seconds[2:]) / STEPS:.2f} s; {peak():.1f} GB at the peak")
    began = time.process_time()
    algorithm.evaluate(state, fed)
    print(f"an evaluation: {time.process_time() - began:.1f} s; {peak():.1f} GB at the peak")


if __name__ == "__main__":
    main()
