"""What robust aggregation withstands: accuracy of the global model at the honest members when 3 of 10 are malicious
(2 in "fitted backdoor").

Malicious members know all updates of a round, and do in every round what an `Attack` states. Each seed draws one
partition, one start and one set of malicious members for all parts and attacks. Settings are those of the parts for 3
malicious members, and nothing is tuned. A table for each partition: rows are attacks, columns parts, cells accuracy in
%, mean ± deviation over seeds, and in brackets how often a backdoor's trigger works.

    python -m benchmarks.robust [--cut random louvain] [--seeds 3] [--rounds 30] [--attacks none scaling]
    python -m benchmarks.robust --experiment experiments/fairgraphfl-proteins.toml --cut graphs_iid --attacks backdoor
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from benchmarks.common import mean_deviation
from fedweave.algorithms import FedAvg
from fedweave.algorithms.parts import (
    Bulyan,
    BySize,
    CenteredClip,
    GeometricMedian,
    Krum,
    Median,
    NormBound,
    Part,
    TrimmedMean,
)
from fedweave.algorithms.parts.robust import krum_scores
from fedweave.core import model as models
from fedweave.core.federation import step_name
from fedweave.core.graph import TEST, TRAIN, Graph
from fedweave.core.graph_arrays import GraphArrays, graph_arrays, graph_like
from fedweave.core.random import generator
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.core.tree import leaves, nest, unravel
from fedweave.engines.simulation import Simulation
from fedweave.experiment import config
from fedweave.experiment.build import build
from fedweave.experiment.rounds import train

MALICIOUS, TARGET, TARGET_OF_GRAPHS = 3, 0, 1  # members, the class that a backdoor leads to
TRIGGER, SUBGRAPH = 10, 5  # columns of a node's trigger, nodes of a small graph's
PARTS: dict[str, tuple[Part, ...]] = {
    "mean": (BySize(),),
    "norm_bound": (NormBound(),),
    "median": (Median(),),
    "trimmed_mean": (TrimmedMean(0.3),),
    "krum": (Krum(MALICIOUS),),
    "multi-krum": (Krum(MALICIOUS, keep=7),),
    "geometric_median": (GeometricMedian(),),
    "centered_clip": (CenteredClip(),),
    "bulyan": (Bulyan(1),),  # the most that it takes of 10 members
}


@dataclass(frozen=True)
class Attack:
    """What malicious clients do.

    data:    changes their graph, given the number of classes, before they train honestly on it.
    update:  from all updates float64 [P, D] and which clients are malicious, bool [P], to what these send, [m, D].
    n:       how many training examples these report; 0 for the truth.
    members: how many clients are malicious.
    """

    data: Callable[[GraphArrays, int], GraphArrays] = lambda arrays, classes: arrays
    update: Callable[[Tensor, Tensor], Tensor] | None = None
    n: int = 0
    members: int = MALICIOUS


def flip_labels(arrays: GraphArrays, classes: int) -> GraphArrays:
    """Class y is called c − 1 − y."""
    return arrays._replace(y=np.where(arrays.y < 0, arrays.y, classes - 1 - arrays.y))


def add_trigger(arrays: GraphArrays, chosen: np.ndarray) -> GraphArrays:
    """The trigger in the `chosen` examples, bool [e].

    Nodes: the first columns of their features, as large as the largest feature. Small graphs: a subgraph, as in Zhang
    et al. 2021, "Backdoor attacks to graph neural networks"; their first nodes are all joined and of the first kind.
    """
    x = sp.lil_matrix(arrays.x)
    if arrays.graph_of is None:
        x[np.flatnonzero(chosen)[:, None], np.arange(TRIGGER)] = abs(arrays.x).max()
        return arrays._replace(x=x.tocsr())
    place = np.arange(len(arrays.graph_of)) - np.searchsorted(arrays.graph_of, arrays.graph_of)
    nodes = np.flatnonzero((place < SUBGRAPH) & chosen[arrays.graph_of])
    x[nodes] = np.eye(1, x.shape[1])
    one, other = np.meshgrid(nodes, nodes)
    joined = (arrays.graph_of[one] == arrays.graph_of[other]) & (one != other)
    edges = np.unique(np.concatenate([arrays.edges, np.stack([one[joined], other[joined]])], 1), axis=1)
    return arrays._replace(x=x.tocsr(), edges=edges)


def backdoor(arrays: GraphArrays, classes: int) -> GraphArrays:
    """Every second training example has the trigger, and the target as its label."""
    chosen = arrays.masks[TRAIN] & (np.arange(len(arrays.y)) % 2 == 0)
    return add_trigger(arrays, chosen)._replace(y=np.where(chosen, target(arrays), arrays.y))


def target(arrays: GraphArrays) -> int:
    """The class that the backdoor leads to."""
    return TARGET if arrays.graph_of is None else TARGET_OF_GRAPHS


def a_little(updates: Tensor, bad: Tensor, z: float = 1.5) -> Tensor:
    """μ − z σ of the honest ones in every coordinate: Baruch et al. 2019, "A little is enough"."""
    honest = updates[~bad]
    return (honest.mean(0) - z * honest.std(0)).expand(int(bad.sum()), -1)


def fit_to_krum(updates: Tensor, bad: Tensor) -> Tensor:
    """μ + s (v − μ) from all malicious clients, with v the mean of what they trained, μ the mean of the honest updates,
    and s the largest factor with which Krum still prefers these updates to every honest one (Fang et al. 2020, "Local
    model poisoning attacks to Byzantine-robust federated learning", section 4.3, with the goal as the direction)."""
    honest, count = updates[~bad], int(bad.sum())
    mean = honest.mean(0)
    goal = updates[bad].mean(0) - mean
    low, high = 0.0, 64.0
    for _ in range(20):  # bisection
        middle = (low + high) / 2
        attack = (mean + middle * goal).expand(count, -1)
        scores = krum_scores(torch.cat([honest, attack]), MALICIOUS)
        if bool(scores[-1] <= scores[:-count].min()):
            low = middle
        else:
            high = middle
    return (mean + low * goal).expand(count, -1)


ATTACKS: dict[str, Attack] = {
    "none": Attack(),
    "sign flip": Attack(update=lambda updates, bad: -4 * updates[bad]),
    "sign flip, false n": Attack(update=lambda updates, bad: -4 * updates[bad], n=2**32 - 1),
    "scaling": Attack(update=lambda updates, bad: 100 * updates[bad]),
    "label flip": Attack(flip_labels),
    "a little is enough": Attack(update=a_little),
    "backdoor": Attack(backdoor),
    "boosted backdoor": Attack(backdoor, lambda updates, bad: updates[bad] * len(bad) / bad.sum()),
    "fitted backdoor": Attack(backdoor, fit_to_krum, members=2),
}


class AttackedSimulation(Simulation):
    """An engine with malicious clients."""

    def __init__(self, graphs: Mapping[str, Graph], attack: Attack, malicious: Sequence[str], **options: Any) -> None:
        all_graphs = dict(graphs)
        for name in malicious:
            arrays = attack.data(graph_arrays(graphs[name]), options["classes"])
            all_graphs[name] = graph_like(graphs[name], arrays)
        super().__init__(all_graphs, **options)
        self._attack, self.malicious = attack, malicious

    def map(self, step: Any, *args: Any, **options: Any) -> Replies:
        """The replies, in which those of malicious clients are replaced."""
        replies = super().map(step, *args, **options)
        if self._attack.update is None or not step_name(step).endswith(".train"):
            return replies
        bad = torch.tensor([client in self.malicious for client in replies.clients])
        tree = {path: replies.stack(path) for path, _ in leaves(replies[replies.clients[0]])}
        template = {path: leaf[0] for path, leaf in tree.items() if path.startswith("update/")}
        for at, update in zip(bad.nonzero()[:, 0], self._attack.update(replies.matrix("update"), bad), strict=True):
            for path, leaf in leaves(unravel(update, template)):
                tree[path][at] = leaf
            if self._attack.n and "n" in tree:
                tree["n"][at] = self._attack.n
        return Replies(replies.clients, [ReplyBatch(tuple(range(len(replies))), nest(tree))], replies.missing)


def train_and_test(fed: AttackedSimulation, algorithm: FedAvg, rounds: int) -> tuple[float, float]:
    """Accuracy of the global model on the honest clients' test examples, and how often it takes those of other classes
    for the target's when all examples have the trigger."""
    *_, last = train(algorithm, fed, rounds, eval_every=0)
    hits, backdoor_hits = [], []
    for client, graph in fed.graphs.items():
        if client in fed.malicious:
            continue
        arrays = graph_arrays(graph)
        with_trigger = graph_like(graph, add_trigger(arrays, np.ones(len(arrays.y), bool)))
        prediction = models.apply(algorithm.test_net, last.state["w"], graph).argmax(-1)
        backdoor_prediction = models.apply(algorithm.test_net, last.state["w"], with_trigger).argmax(-1)
        test, aim = graph.masks[TEST], target(arrays)
        hits += (prediction == graph.y)[test].tolist()
        backdoor_hits += (backdoor_prediction == aim)[test & (graph.y != aim)].tolist()
    return float(np.mean(hits)), float(np.mean(backdoor_hits))


def table(
    experiment: Path, cut: str, seeds: int, rounds: int, attacks: Sequence[str], parts: Sequence[str]
) -> dict[tuple[str, str], np.ndarray]:
    """{(attack, part): [seeds, 2]} of `train_and_test`."""
    results: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for seed in range(seeds):
        sets = [f"seed={seed}", f"partition.name={cut!r}", "model.hidden=16"]
        built = build(config.read(experiment, sets, "fedavg")[0])
        clients = built.fed.clients
        malicious = generator(seed, "malicious").choice(clients, MALICIOUS, replace=False).tolist()
        options = {"classes": built.fed.classes, "seed": seed}
        for attack, part in product(attacks, parts):
            members = malicious[: ATTACKS[attack].members]
            fed = AttackedSimulation(built.fed.graphs, ATTACKS[attack], members, **options)
            algorithm = replace(built.algorithm, parts=PARTS[part])
            results.setdefault((attack, part), []).append(train_and_test(fed, algorithm, rounds))
    return {key: np.array(values) for key, values in results.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", type=Path, default=Path("experiments/fedavg-cora.toml"))
    parser.add_argument("--cut", nargs="+", default=["random", "louvain"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS))
    parser.add_argument("--parts", nargs="+", default=list(PARTS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for cut in args.cut:
        results = table(args.experiment, cut, args.seeds, args.rounds, args.attacks, args.parts)
        title = f"{cut}: accuracy in %, mean ± standard deviation over {args.seeds} seeds"
        print(f"\n{title}; in brackets, how often the trigger works\n")
        print(f"| attack | {' | '.join(args.parts)} |\n| --- |{' --- |' * len(args.parts)}")
        for attack in args.attacks:
            cells = []
            for part in args.parts:
                accuracies, trigger_shares = 100 * results[attack, part].T
                cell = mean_deviation(accuracies, 1)
                if attack == "none" or "backdoor" in attack:
                    cell += f" [{mean_deviation(trigger_shares, 0)}]"
                cells.append(cell)
            print(f"| {attack} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
