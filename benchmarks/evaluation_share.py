"""The share of a run's processor time that evaluations take, with `eval_every` 1 and "auto".

Six kinds of runs of FedAvg (FedE for triples): Cora; a graph of the size of ogbn-arxiv, 169,343 nodes with 128 features
and 1,157,799 edges; 1,160,000 links of 20 members; 310,116 triples of 14,541 entities; molecules (Delaney); links of
Amazon Photo. One process, one thread. A run's rounds take r without an evaluation (median). The share is what the
rounds take beyond r each: of the rounds between the fifth and the last, and of all, with the first and with the last,
after which all links of the chosen round are ranked.

    python -m benchmarks.evaluation_share [--kinds cora arxiv links triples molecules photo] [--rounds 20]

"auto" is resolved for a run of 1,000 rounds.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.common import durations
from benchmarks.links_scale import random_data
from fedweave import models
from fedweave.algorithms import FedAvg
from fedweave.algorithms.parts import LinkPrediction
from fedweave.core.links import Links
from fedweave.datasets.links import as_links
from fedweave.experiment.build import Built, build, federation
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.experiment.work import evaluation_interval
from fedweave.models.links import OnPairs
from fedweave.partition import Column

GCN = {"name": "gcn", "hidden": 64}
LOUVAIN = {"name": "louvain", "clients": 10}
FIRST = 5  # rounds, in which steps are recorded


def of_document(**sections: Any) -> Built:
    """The run of these sections."""
    return build(resolve({"algorithm": {"name": "fedavg"}, "model": GCN, "engine": {"threads": 1}, **sections}))


def arxiv() -> Built:
    """Ten members of a graph with the sizes of ogbn-arxiv, each class at one member."""
    data = {"name": "synthetic", "nodes": 169_343, "classes": 40, "features": 128, "degree": 13.67, "homophily": 0.98}
    return of_document(data=data, partition={"name": "dirichlet", "alpha": 0.05, "clients": 10})


def links() -> Built:
    """20 members with 1,160,000 links among 200,000 nodes, ranked among 100 candidates."""
    data = as_links(random_data(20, 1_160_000, 200_000, 32), Links())
    algorithm = FedAvg(OnPairs(models.GCN(hidden=64)).build(32), parts=(LinkPrediction(),))
    partition = Column().cut(data, 0)
    return Built(data, partition, algorithm, federation(data, partition, algorithm))


def triples() -> Built:
    """Ten members with 310,116 triples of 14,541 entities and 237 relations, as many as FB15k-237 has."""
    rng = np.random.default_rng(0)
    ends = rng.zipf(1.4, (4_000_000, 2)) % 14_541
    rows = np.unique(np.column_stack([ends[:, 0], rng.integers(0, 237, len(ends)), ends[:, 1]]), axis=0)
    rows = rows[rows[:, 0] != rows[:, 2]]
    rows = rows[np.sort(rng.choice(len(rows), 310_116, replace=False))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "triples.csv"
        np.savetxt(path, rows, "%d", ",", header="head,relation,tail", comments="")
        return of_document(
            data={"name": "triples", "path": folder, "task": "links", "rank_negatives": "all"},
            partition={"name": "edges", "by": "random", "clients": 10},
            model={"name": "embedding", "hidden": 64, "decoder": "distmult"},
            algorithm={"name": "fede", "parts": [{"name": "link_prediction"}]},
        )


def molecules() -> Built:
    """Four laboratories with the molecules of Delaney, in batches of 32."""
    path = str(Path(os.environ["FEDWEAVE_DATA"]) / "delaney")
    return of_document(
        data={"name": "graphs", "path": path, "target": "number", "targets": ["log_solubility"]},
        partition={"name": "scaffold", "clients": 4, "split": "scaffold"},
        model={"name": "gin", "hidden": 64, "layers": 3},
        algorithm={"name": "fedavg", "local_steps": 7, "parts": [{"name": "graph_cross_entropy", "batch": 32}]},
    )


def photo() -> Built:
    """Ten communities of Amazon Photo, whose links are predicted."""
    parts = [{"name": "link_prediction"}]
    data = {"name": "amazon-photo", "task": "links"}
    return of_document(data=data, partition=LOUVAIN, algorithm={"name": "fedavg", "parts": parts})


KINDS: dict[str, Callable[[], Built]] = {
    "cora": lambda: of_document(data={"name": "cora"}, partition=LOUVAIN),
    "arxiv": arxiv,
    "links": links,
    "triples": triples,
    "molecules": molecules,
    "photo": photo,
}


def seconds_of_rounds(built: Built, rounds: int, every: int) -> list[float]:
    """The processor seconds of each round."""
    return list(durations(train(built.algorithm, built.fed, rounds, every)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| run | a round, s | eval_every | share of the time | with the first and the last |")
    print("| --- | --- | --- | --- | --- |")
    for kind in args.kinds:
        auto = evaluation_interval(KINDS[kind](), 1000)
        plain = median(seconds_of_rounds(KINDS[kind](), args.rounds, 0)[FIRST:-1])
        for every, words in ((1, "1"), (auto, f'"auto": {auto}')):
            seconds = seconds_of_rounds(KINDS[kind](), args.rounds, every)
            between, all_rounds = (1 - plain * len(some) / sum(some) for some in (seconds[FIRST:-1], seconds))
            print(f"| {kind} | {plain:.3f} | {words} | {between:.0%} | {all_rounds:.0%} |", flush=True)


if __name__ == "__main__":
    main()
