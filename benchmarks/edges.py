"""Edges as examples: which transfers launder money, by fedweave and by a plain PyTorch Geometric loop with the same
layers, on the same members and the same split by time.

FedAvg of ten banks' transfers (`[data] name = "transfers"`), GINE and PNA with separate weights for both directions and
ports, full batches, class weights from each member's counts, fresh Adam. Prints for each model and side the average
precision and F1 of the laundering transfers at the threshold that is best on validation, of the round that is best
there, mean ± deviation over seeds; and processor seconds of a round, of one thread, in turns.

    python -m benchmarks.edges [--accounts 5000] [--transfers 25000] [--rounds 20] [--seeds 3]
"""

import argparse
import time
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, precision_recall_curve
from torch import Tensor, nn
from torch_geometric.nn import GINEConv, PNAConv

from benchmarks.common import mean_deviation
from fedweave.core import model as models
from fedweave.core.edge_attributes import is_visible
from fedweave.core.graph import TEST, TRAIN, VAL
from fedweave.core.tree import device_of
from fedweave.experiment.build import Built, build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.models.pna import PNA
from fedweave.partition.client_data import shares

HIDDEN, LAYERS, STEPS, RATE, DROPOUT = 32, 2, 5, 0.01, 0.1


class Member(NamedTuple):
    """A bank's data for the plain loop: features, the examples' ends, features, classes and masks [3, e], and for each
    split the ends and features of the edges that messages go along."""

    x: Tensor
    ends: Tensor
    e: Tensor
    y: Tensor
    masks: Tensor
    views: tuple[tuple[Tensor, Tensor], ...]


def experiment(args: argparse.Namespace, model: str, ports: bool, seed: int) -> Built:
    """FedAvg on the transfers."""
    data = {"name": "transfers", "task": "edges", "accounts": args.accounts, "transfers": args.transfers}
    data |= {"fraud": 0.05, "banks": args.banks, "crossing": 0.1, "spanning": 0.2}
    algorithm = {"name": "fedavg", "local_steps": STEPS, "lr": RATE, "optimizer": "adam", "optimizer_state": "fresh"}
    algorithm |= {"class_weight": "balanced", "weight_decay": 0.0}
    net = {"name": model, "hidden": HIDDEN, "layers": LAYERS, "dropout": DROPOUT, "directed": "both", "ports": ports}
    sections = {"data": data, "partition": {"name": "column", "split": "time"}, "model": net, "algorithm": algorithm}
    return build(resolve({"seed": seed, "rounds": args.rounds, **sections, "engine": {"threads": 1}}))


class Net(nn.Module):
    """The same layers, of PyTorch Geometric."""

    def __init__(self, kind: str, features: int, edge_features: int, delta: float) -> None:
        super().__init__()
        self.first = nn.Linear(features, HIDDEN)
        self.convolutions = nn.ModuleList(Both(kind, edge_features, delta) for _ in range(LAYERS))
        self.hidden, self.nodes = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.read, self.last = nn.Linear(2 * HIDDEN + edge_features, HIDDEN), nn.Linear(HIDDEN, 2)

    def forward(self, member: Member, split: int) -> Tensor:
        """Logits [e, 2], by messages along the edges of a split."""
        index, e = member.views[split]
        h = self.first(member.x)
        for one in self.convolutions:
            h = self._dropout(torch.relu(one(h, index, e)))
        h = torch.relu(self.nodes(self._dropout(torch.relu(self.hidden(h)))))
        z = torch.cat([h[member.ends[0]], h[member.ends[1]], member.e], 1)
        return self.last(self._dropout(torch.relu(self.read(z))))

    def _dropout(self, h: Tensor) -> Tensor:
        return F.dropout(h, DROPOUT, self.training)


class Both(nn.Module):
    """A convolution for each direction, as `DirGNNConv`, which takes no features of edges."""

    def __init__(self, kind: str, edge_features: int, delta: float) -> None:
        super().__init__()
        self.into, self.out_of = (_convolution(kind, edge_features, delta) for _ in range(2))
        self.root = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, h: Tensor, index: Tensor, e: Tensor) -> Tensor:
        """[n, HIDDEN] of h [n, HIDDEN] along edges int64 [2, M] with features e [M, k]."""
        result: Tensor = (self.into(h, index, e) + self.out_of(h, index.flip(0), e)) / 2 + self.root(h)
        return result


def _convolution(kind: str, edge_features: int, delta: float) -> nn.Module:
    if kind == "gine":
        inner = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN))
        return GINEConv(inner, edge_dim=edge_features)
    degrees = torch.zeros(round(np.exp(delta)), dtype=torch.int64)
    degrees[-1] = 1  # so that its mean log(d + 1) is near δ
    aggregators, scalers = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
    return PNAConv(HIDDEN, HIDDEN, aggregators, scalers, degrees, edge_dim=edge_features, divide_input=False)


def members(built: Built) -> list[Member]:
    """The data of each client for the plain loop."""
    result = []
    for share in shares(built.data, built.partition.parts):
        edge_attrs = share.edge_attrs
        assert edge_attrs is not None
        ends, e = torch.from_numpy(edge_attrs.ends), torch.from_numpy(np.ascontiguousarray(edge_attrs.read))
        views = []
        for split in (TRAIN, VAL, TEST):
            visible = torch.from_numpy(is_visible(edge_attrs, split))
            views.append((ends[:, visible].contiguous(), e[visible]))
        x, y, masks = (torch.from_numpy(np.asarray(array)) for array in (share.x, share.y, share.public))
        result.append(Member(x, ends, e, y, masks, tuple(views)))
    return result


def plain_loop(
    built: Built, kind: str, rounds: int, seed: int, evaluate_trained: bool = False
) -> Iterator[list[Tensor]]:
    """FedAvg by a loop over the members: after each round the logits of their examples. evaluate_trained: each member's
    model is also evaluated right after its training, as fedweave does."""
    torch.manual_seed(seed)
    clients = members(built)
    net = Net(kind, clients[0].x.shape[1], clients[0].e.shape[1], PNA().delta)
    counts = torch.tensor([float(member.masks[TRAIN].sum()) for member in clients])
    for _ in range(rounds):
        start = {name: leaf.clone() for name, leaf in net.state_dict().items()}
        average = {name: torch.zeros_like(leaf) for name, leaf in start.items()}
        for member, share in zip(clients, counts / counts.sum(), strict=True):
            net.load_state_dict(start)
            _train_locally(net, member)
            if evaluate_trained:
                _infer(net, member)
            for name, leaf in net.state_dict().items():
                average[name] += (share * leaf).to(leaf.dtype)
        net.load_state_dict(average)
        yield [_infer(net, member) for member in clients]


def _train_locally(net: Net, member: Member) -> None:
    net.train()
    adam, train_ = torch.optim.Adam(net.parameters(), RATE), member.masks[TRAIN]
    counts = torch.bincount(member.y[train_], minlength=2).clamp(min=1)
    weight = train_.sum() / (2 * counts)
    for _ in range(STEPS):
        adam.zero_grad()
        F.cross_entropy(net(member, TRAIN)[train_], member.y[train_], weight).backward()
        adam.step()


def _infer(net: Net, member: Member) -> Tensor:
    """Logits [e, 2], of each example with the edges that are visible in its split."""
    net.eval()
    with torch.no_grad():
        train_, val, test = (net(member, split) for split in (TRAIN, VAL, TEST))
        return torch.where(member.masks[TRAIN][:, None], train_, torch.where(member.masks[VAL][:, None], val, test))


def run_fedweave(built: Built, rounds: int) -> Iterator[list[Tensor]]:
    """The same by fedweave."""
    for step in train(built.algorithm, built.fed, rounds, eval_every=1):
        w = built.algorithm.global_model(step.state)  # type: ignore[attr-defined]
        with torch.no_grad():
            graphs = [graph.to(device_of(w)) for graph in built.fed.graphs.values()]  # type: ignore[attr-defined]
            logits = [models.infer(built.algorithm.net, w, graph) for graph in graphs]  # type: ignore[attr-defined]
        yield [z[: len(part.examples)] for z, part in zip(logits, built.partition.parts, strict=True)]


def scores(rounds: Iterator[list[Tensor]], built: Built) -> dict[str, float]:
    """Average precision and F1 of the test examples of all members, at the best round and threshold by validation."""
    parts = built.partition.parts
    y = np.concatenate([built.data.y[part.examples] for part in parts])
    _, val, test = np.concatenate([part.masks for part in parts], 1)
    best, p = -1.0, np.zeros(0)
    for logits in rounds:
        p_of_round = torch.softmax(torch.cat(logits), 1)[:, 1].numpy()
        average_precision = float(average_precision_score(y[val], p_of_round[val]))
        if average_precision > best:
            best, p = average_precision, p_of_round
    precision, recall, thresholds = precision_recall_curve(y[val], p[val])
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    alarms = p[test] >= thresholds[min(int(f1.argmax()), len(thresholds) - 1)]
    hits = float((alarms & (y[test] == 1)).sum())
    return {
        "average precision": float(average_precision_score(y[test], p[test])),
        "F1": 2 * hits / max(float(alarms.sum() + (y[test] == 1).sum()), 1.0),
    }


def seconds(built: Built, kind: str, rounds: int) -> dict[str, float]:
    """Medians of a round's processor seconds, in turns: training, and evaluating the global model and each member's
    local model on all splits."""
    sides: dict[str, Iterator[Any]] = {
        "fedweave": train(built.algorithm, built.fed, rounds, eval_every=1),
        "plain loop": plain_loop(built, kind, rounds, 0, evaluate_trained=True),
    }
    for _ in range(3):  # rounds in which steps are recorded
        next(sides["fedweave"])
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds - 3):
        for name, side in sides.items():
            began = time.process_time()
            next(side)
            times[name].append(time.process_time() - began)
    return {name: median(of_side) for name, of_side in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("accounts", 5000), ("transfers", 25000), ("banks", 10), ("rounds", 20), ("seeds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for kind, ports in (("gine", False), ("gine", True), ("pna", True)):
        name = f"{kind}{', ports' if ports else ''}"
        results: dict[str, list[dict[str, float]]] = {"fedweave": [], "plain loop": []}
        for seed in range(args.seeds):
            built = experiment(args, kind, ports, seed)
            results["plain loop"].append(scores(plain_loop(built, kind, args.rounds, seed), built))
            results["fedweave"].append(scores(run_fedweave(built, args.rounds), built))
        for side, of_seeds in results.items():
            cells = []
            for metric in ("average precision", "F1"):
                cells.append(f"{metric} {mean_deviation(one[metric] for one in of_seeds)}")
            print(f"{name:12s} {side:10s} {', '.join(cells)}", flush=True)
        times = seconds(experiment(args, kind, ports, 0), kind, 12)
        print(f"{name:12s} seconds a round:", *(f"{side} {time:.3f}" for side, time in times.items()), flush=True)


if __name__ == "__main__":
    main()
