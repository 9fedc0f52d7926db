"""Edges as examples: which transfers launder money, by fedweave and by a plain PyTorch Geometric loop with the same
layers, on the same members and the same split by time.

FedAvg of ten banks' transfers (`[data] name = "transfers"`), GINE and PNA with separate weights for both directions and
ports, full batches, class weights from each member's counts, fresh Adam. Average precision and F1 of the laundering
transfers at the threshold that is best on validation, of the round that is best there; processor seconds of a round,
of one thread, in turns.

    python -m benchmarks.edges [--accounts 5000] [--transfers 25000] [--rounds 20] [--seeds 3]
"""

import argparse
import time
from collections.abc import Iterator
from statistics import mean, median, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, precision_recall_curve
from torch import Tensor, nn
from torch_geometric.nn import GINEConv, PNAConv

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
            h = self._dropped(torch.relu(one(h, index, e)))
        h = torch.relu(self.nodes(self._dropped(torch.relu(self.hidden(h)))))
        z = torch.cat([h[member.ends[0]], h[member.ends[1]], member.e], 1)
        return self.last(self._dropped(torch.relu(self.read(z))))

    def _dropped(self, h: Tensor) -> Tensor:
        return F.dropout(h, DROPOUT, self.training)


class Both(nn.Module):
    """A convolution for each direction, as `DirGNNConv`, which takes no features of edges."""

    def __init__(self, kind: str, edge_features: int, delta: float) -> None:
        super().__init__()
        self.into, self.out_of = (_convolution(kind, edge_features, delta) for _ in range(2))
        self.own = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, h: Tensor, index: Tensor, e: Tensor) -> Tensor:
        """[n, HIDDEN] of h [n, HIDDEN] along edges int64 [2, M] with features e [M, k]."""
        result: Tensor = (self.into(h, index, e) + self.out_of(h, index.flip(0), e)) / 2 + self.own(h)
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
    """What each client holds, for the plain loop."""
    held = []
    for own in shares(built.data, built.partition.parts):
        edge_attrs = own.edge_attrs
        assert edge_attrs is not None
        ends, e = torch.from_numpy(edge_attrs.ends), torch.from_numpy(np.ascontiguousarray(edge_attrs.read))
        kept = [torch.from_numpy(is_visible(edge_attrs, split)) for split in (TRAIN, VAL, TEST)]
        views = tuple((ends[:, one].contiguous(), e[one]) for one in kept)
        x, y, masks = (torch.from_numpy(np.asarray(part)) for part in (own.x, own.y, own.public))
        held.append(Member(x, ends, e, y, masks, views))
    return held


def plain(built: Built, kind: str, rounds: int, seed: int, own_models: bool = False) -> Iterator[list[Tensor]]:
    """FedAvg by a loop over the members: after each round the logits of their examples; `own_models`: after its
    training each member's model is evaluated, too, as fedweave does."""
    torch.manual_seed(seed)
    held = members(built)
    net = Net(kind, held[0].x.shape[1], held[0].e.shape[1], PNA().delta)
    counts = torch.tensor([float(own.masks[TRAIN].sum()) for own in held])
    for _ in range(rounds):
        start = {name: leaf.clone() for name, leaf in net.state_dict().items()}
        joint = {name: torch.zeros_like(leaf) for name, leaf in start.items()}
        for own, share in zip(held, counts / counts.sum(), strict=True):
            net.load_state_dict(start)
            _trained(net, own)
            if own_models:
                _judged(net, own)
            for name, leaf in net.state_dict().items():
                joint[name] += (share * leaf).to(leaf.dtype)
        net.load_state_dict(joint)
        yield [_judged(net, own) for own in held]


def _trained(net: Net, own: Member) -> None:
    net.train()
    adam, train_ = torch.optim.Adam(net.parameters(), RATE), own.masks[TRAIN]
    many = torch.bincount(own.y[train_], minlength=2).clamp(min=1)
    weight = train_.sum() / (2 * many)
    for _ in range(STEPS):
        adam.zero_grad()
        F.cross_entropy(net(own, TRAIN)[train_], own.y[train_], weight).backward()
        adam.step()


def _judged(net: Net, own: Member) -> Tensor:
    net.eval()
    with torch.no_grad():
        train_, val, test = (net(own, split) for split in (TRAIN, VAL, TEST))
        return torch.where(own.masks[TRAIN][:, None], train_, torch.where(own.masks[VAL][:, None], val, test))


def ours(built: Built, rounds: int) -> Iterator[list[Tensor]]:
    """The same by fedweave."""
    for reached in train(built.algorithm, built.fed, rounds, eval_every=1):
        w = built.algorithm.global_model(reached.state)  # type: ignore[attr-defined]
        with torch.no_grad():
            graphs = [graph.to(device_of(w)) for graph in built.fed.graphs.values()]  # type: ignore[attr-defined]
            logits = [models.infer(built.algorithm.net, w, graph) for graph in graphs]  # type: ignore[attr-defined]
        yield [own[: len(part.examples)] for own, part in zip(logits, built.partition.parts, strict=True)]


def scores(sides: Iterator[list[Tensor]], built: Built) -> dict[str, float]:
    """Average precision and F1 of the test examples of all members, at the best round and threshold by validation."""
    parts = built.partition.parts
    y = np.concatenate([built.data.y[part.examples] for part in parts])
    _, val, test = np.concatenate([part.masks for part in parts], 1)
    best: tuple[float, np.ndarray] = -1.0, np.zeros(0)
    for logits in sides:
        p = torch.softmax(torch.cat(logits), 1)[:, 1].numpy()
        best = max(best, (float(average_precision_score(y[val], p[val])), p), key=lambda found: found[0])
    p = best[1]
    precision, recall, at = precision_recall_curve(y[val], p[val])
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    flagged = p[test] >= at[min(int(f1.argmax()), len(at) - 1)]
    hits = float((flagged & (y[test] == 1)).sum())
    return {
        "average precision": float(average_precision_score(y[test], p[test])),
        "F1": 2 * hits / max(float(flagged.sum() + (y[test] == 1).sum()), 1.0),
    }


def seconds(built: Built, kind: str, rounds: int) -> dict[str, float]:
    """Medians of a round's processor seconds, in turns: training, and evaluating the joint model and each member's own
    on all splits."""
    sides: dict[str, Iterator[Any]] = {
        "fedweave": train(built.algorithm, built.fed, rounds, eval_every=1),
        "plain loop": plain(built, kind, rounds, 0, own_models=True),
    }
    for _ in range(3):  # recordings are made
        next(sides["fedweave"])
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds - 3):
        for name, side in sides.items():
            began = time.process_time()
            next(side)
            found[name].append(time.process_time() - began)
    return {name: median(each) for name, each in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("accounts", 5000), ("transfers", 25000), ("banks", 10), ("rounds", 20), ("seeds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for kind, ports in (("gine", False), ("gine", True), ("pna", True)):
        name = f"{kind}{', ports' if ports else ''}"
        found: dict[str, list[dict[str, float]]] = {"fedweave": [], "plain loop": []}
        for seed in range(args.seeds):
            built = experiment(args, kind, ports, seed)
            found["plain loop"].append(scores(plain(built, kind, args.rounds, seed), built))
            found["fedweave"].append(scores(ours(built, args.rounds), built))
        for side, each in found.items():
            told = {what: [one[what] for one in each] for what in each[0]}
            shown = (f"{what} {mean(own):.3f} ± {stdev(own) if own[1:] else 0:.3f}" for what, own in told.items())
            print(f"{name:12s} {side:10s} {', '.join(shown)}", flush=True)
        took = seconds(experiment(args, kind, ports, 0), kind, 12)
        print(f"{name:12s} seconds a round: {', '.join(f'{side} {own:.3f}' for side, own in took.items())}", flush=True)


if __name__ == "__main__":
    main()
