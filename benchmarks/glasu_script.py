"""GLASU as its released scripts run it (Zhang et al. 2023; github.com/564612540/GLASU), in plain PyTorch and apart from
fedweave: the accuracies that its Table 2 should be read of.

What the scripts do and the paper's text does not say: blocks of GCN layers with batch normalization and dropout .4
around a residual, each client's neighbors sampled from the whole graph and normalized in the induced one of its own
edges, self loops of weight 2, random feature blocks, and where Q = 1 the gradient of the mean undivided for each client
(`--exact` divides it). Test accuracy on sampled neighbors, mean over clients, after every outer iteration and once
more.

    python -m benchmarks.glasu_script [--data cora] [--seeds 0 1 2] [--only Q4 Q1 Cent StAl] [--exact]
"""

import argparse
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedweave import datasets
from fedweave.datasets.base import Dataset

OUTER, INNER, BATCH, MU, DECAY, DROPOUT, LOOP = 32, 32, 16, 0.5, 5e-5, 0.4, 2.0
PER_CLASS, HIDDEN = {"cora": 60, "citeseer": 84}, {"cora": 192, "citeseer": 256}


@dataclass(frozen=True)
class Settings:
    """A line of the scripts. depth: layers of each block. alone: which client trains by itself; -1 is all. every: outer
    iterations after which the rate is quartered."""

    clients: int = 3
    depth: tuple[int, ...] = (2, 2)
    fan_out: int = 2
    steps: int = 4
    lr: float = 0.02
    momentum: float = 0.0
    dropped: float = 0.2
    alone: int = -1
    every: int = 12
    exact: bool = False


LINES = {
    "Q4": Settings(),
    "Q1": Settings(steps=1, lr=0.01),
    "Cent": Settings(clients=1, depth=(4,), fan_out=5, steps=1, lr=0.01, dropped=0.0),
    "StAl": Settings(depth=(4,), steps=1, lr=0.01, alone=2, every=8),
}


class Graphs:
    """The whole graph, and what each client has of it: a random third of the columns and four fifths of the edges."""

    def __init__(self, data: Dataset, settings: Settings, seed: int, per_class: int) -> None:
        self.draw, self.y = np.random.default_rng(seed), data.y
        count, columns = data.nodes, self.draw.permutation(data.features)
        self.whole = _csr(data.edges, count)
        train = [self.draw.permutation(np.flatnonzero(data.y == label))[:per_class] for label in range(data.classes)]
        self.train = np.concatenate(train)
        self.test = self.draw.permutation(np.setdiff1d(np.arange(count), self.train))[500:1500]
        blocks, one_way = np.array_split(columns, settings.clients), data.edges[:, data.edges[0] < data.edges[1]]
        x = sp.csr_matrix(data.x)
        self.x, self.own = [], []
        for block in blocks:
            kept = one_way[:, self.draw.random(one_way.shape[1]) >= settings.dropped]
            self.x.append(x[:, np.sort(block)].tocsr())
            self.own.append(_csr(np.hstack([kept, kept[::-1]]), count))
        if settings.alone >= 0:
            self.x, self.own = [self.x[settings.alone]], [self.own[settings.alone]]

    def around(self, nodes: np.ndarray, fan_out: int) -> np.ndarray:
        """`nodes` and up to so many neighbors of each, sorted."""
        found = [nodes]
        for node in nodes:
            near = self.whole.indices[self.whole.indptr[node] : self.whole.indptr[node + 1]]
            found.append(near if len(near) <= fan_out else self.draw.choice(near, fan_out, replace=False))
        return np.unique(np.concatenate(found))

    def plan(self, batch: np.ndarray, settings: Settings) -> tuple[list[Any], np.ndarray]:
        """By block and client the layers' matrices and where the block's outputs stand among its inputs; and the
        inputs of the first. Clients agree on blocks' inputs alone."""
        blocks, out = [], batch
        for layers in reversed(settings.depth):
            chains = []
            for _ in self.own:
                chain = [out]
                for _ in range(layers):
                    chain.insert(0, self.around(chain[0], settings.fan_out))
                chains.append(chain)
            inputs = np.unique(np.concatenate([chain[0] for chain in chains]))
            at = torch.from_numpy(np.searchsorted(inputs, out))
            pairs = [pairwise([inputs, *chain[1:]]) for chain in chains]
            blocks.insert(
                0, [([_matrix(own, *ends) for ends in each], at) for own, each in zip(self.own, pairs, strict=True)]
            )
            out = inputs
        return blocks, out


def _csr(edges: np.ndarray, count: int) -> sp.csr_matrix:
    return sp.csr_matrix((np.ones(edges.shape[1], np.float32), (edges[0], edges[1])), shape=(count, count))


def _matrix(own: sp.csr_matrix, inputs: np.ndarray, outputs: np.ndarray) -> sp.csr_matrix:
    """Rows `outputs` of D~^-1/2 (A + 2 I) D~^-1/2 of the graph that `inputs` induce."""
    near = own[inputs][:, inputs] + LOOP * sp.eye(len(inputs), dtype=np.float32)
    scale = sp.diags(np.asarray(near.sum(1)).ravel() ** -0.5)
    return (scale @ near @ scale).tocsr()[np.searchsorted(inputs, outputs)].astype(np.float32)


class _Times(torch.autograd.Function):
    """A constant sparse matrix times a dense one."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: sp.csr_matrix) -> Tensor:
        ctx.matrix = matrix
        return torch.from_numpy(matrix @ dense.detach().numpy())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return torch.from_numpy(ctx.matrix.T @ grad.contiguous().numpy()), None


class Client(nn.Module):
    """A client's linear layer, blocks and classifier."""

    def __init__(self, features: int, hidden: int, classes: int, depth: tuple[int, ...]) -> None:
        super().__init__()
        bound = 1 / math.sqrt(features)
        self.weight = nn.Parameter(torch.empty(features, hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(hidden).uniform_(-bound, bound))
        self.linear = nn.ModuleList(nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(n)) for n in depth)
        self.norm = nn.ModuleList(nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(n)) for n in depth)
        self.classifier = nn.Linear(hidden, classes)

    def first(self, x: sp.csr_matrix) -> Tensor:
        """What the first block takes."""
        return F.relu(_Times.apply(self.weight, x) + self.bias)

    def block(self, at: int, h: Tensor, matrices: list[sp.csr_matrix], outputs: Tensor) -> Tensor:
        """mu_l of what the layers make of h, and 1 - mu_l of h itself."""
        kept, mu = h[outputs], MU / (at + 1)
        for matrix, linear, norm in zip(matrices, self.linear[at], self.norm[at], strict=True):
            h = F.dropout(norm(F.relu(linear(_Times.apply(h, matrix)))), DROPOUT, self.training)
        return mu * h + (1 - mu) * kept


class Trial:
    """One run."""

    def __init__(self, settings: Settings, name: str, seed: int) -> None:
        torch.manual_seed(seed)
        data = datasets.load(name)
        self.settings, self.graphs = settings, Graphs(data, settings, seed, PER_CLASS[name])
        self.clients = [Client(x.shape[1], HIDDEN[name], data.classes, settings.depth) for x in self.graphs.x]
        weights = [weight for client in self.clients for weight in client.parameters()]
        self.optimizer = torch.optim.SGD(
            weights, lr=settings.lr, momentum=settings.momentum, weight_decay=DECAY / len(self.clients)
        )

    def accuracies(self) -> list[float]:
        """The mean test accuracy of the clients after every outer iteration, and once more at the end."""
        found = []
        for outer in range(OUTER):
            if outer and outer % self.settings.every == 0:
                self.optimizer.param_groups[0]["lr"] /= 4
            for client in self.clients:
                client.train()
            for _ in range(INNER):
                self.update(np.sort(self.graphs.draw.permutation(self.graphs.train)[:BATCH]))
            found.append(self.test())
        return [*found, self.test()]

    def update(self, batch: np.ndarray) -> None:
        """Q steps on one mini-batch; others' representations are those of the first."""
        blocks, nodes = self.graphs.plan(batch, self.settings)
        xs, y, stale = [x[nodes] for x in self.graphs.x], torch.from_numpy(self.graphs.y[batch]), list[list[Tensor]]()
        for step in range(self.settings.steps):
            self.optimizer.zero_grad()
            hs = [client.first(x) for client, x in zip(self.clients, xs, strict=True)]
            for at, block in enumerate(blocks):
                outs = [client.block(at, h, *own) for client, h, own in zip(self.clients, hs, block, strict=True)]
                hs = self._aggregated(outs, stale, at, step)
            losses = [F.cross_entropy(client.classifier(h), y) for client, h in zip(self.clients, hs, strict=True)]
            sum(losses).backward()  # type: ignore[union-attr]
            self.optimizer.step()

    def _aggregated(self, outs: list[Tensor], stale: list[list[Tensor]], at: int, step: int) -> list[Tensor]:
        """What each client goes on with: the mean, with gradients as the scripts hand them back."""
        mean, many = torch.stack(outs).mean(0), len(outs)
        if self.settings.steps == 1:
            passed = mean.detach() + sum(out - out.detach() for out in outs)
            return [mean if self.settings.exact else passed] * many
        if step == 0:
            stale.append([(mean - out / many).detach() for out in outs])
        return [other + out / many for other, out in zip(stale[at], outs, strict=True)]

    def test(self) -> float:
        """With running statistics, on sampled neighbors, in mini-batches."""
        graphs, hits = self.graphs, 0
        for client in self.clients:
            client.eval()
        with torch.no_grad():
            for batch in np.split(graphs.draw.permutation(graphs.test), range(BATCH, len(graphs.test), BATCH)):
                blocks, nodes = graphs.plan(np.sort(batch), self.settings)
                hs = [client.first(x[nodes]) for client, x in zip(self.clients, graphs.x, strict=True)]
                for at, block in enumerate(blocks):
                    outs = [client.block(at, h, *own) for client, h, own in zip(self.clients, hs, block, strict=True)]
                    hs = [torch.stack(outs).mean(0)] * len(outs)
                y = torch.from_numpy(graphs.y[np.sort(batch)])
                hits += sum(
                    int((client.classifier(h).argmax(1) == y).sum()) for client, h in zip(self.clients, hs, strict=True)
                )
        return hits / len(graphs.test) / len(self.clients)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="cora", choices=sorted(PER_CLASS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=[*LINES], choices=[*LINES])
    parser.add_argument("--exact", action="store_true")
    args = parser.parse_args()
    for name in args.only:
        momentum = 0.1 if args.data == "cora" and name != "Q4" else 0.0
        settings = replace(LINES[name], exact=args.exact, momentum=momentum)
        found = [Trial(settings, args.data, seed).accuracies() for seed in args.seeds]
        for what, values in (("last", [own[-1] for own in found]), ("best on test", [max(own) for own in found])):
            spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
            print(f"{args.data} {name}, {what}: {100 * fmean(values):.1f}{spread}", flush=True)


if __name__ == "__main__":
    main()
