"""GLASU as its released scripts run it (Zhang et al. 2023; github.com/564612540/GLASU), in plain PyTorch and without
fedweave: the accuracies that explain its Table 2.

What the scripts do and the paper's text does not mention: blocks of GCN layers with batch normalization and dropout .4
around a residual, each client's neighbors sampled from the whole graph and normalized in the induced graph of the
client's edges, self loops of weight 2, random feature blocks, and where Q = 1 the gradient of the mean undivided for
each client (`--exact` divides it). Test accuracy on sampled neighbors, mean over clients, is measured after every outer
iteration and once more. Printed are the last and the best of these, in %, mean ± deviation over seeds.

    python -m benchmarks.glasu_script [--data cora] [--seeds 0 1 2] [--only Q4 Q1 Cent StAl] [--exact]
"""

import argparse
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import mean_deviation
from fedweave import datasets
from fedweave.datasets.base import Dataset

OUTER, INNER, BATCH, MU, DECAY, DROPOUT, LOOP = 32, 32, 16, 0.5, 5e-5, 0.4, 2.0
PER_CLASS, HIDDEN = {"cora": 60, "citeseer": 84}, {"cora": 192, "citeseer": 256}


@dataclass(frozen=True)
class Settings:
    """A line of the scripts. depth: layers of each block. dropped: share of edges that a client does not have. alone:
    the only client that trains; -1 is all. every: outer iterations after which the rate is quartered."""

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
        self.rng, self.y = np.random.default_rng(seed), data.y
        count, columns = data.nodes, self.rng.permutation(data.features)
        self.whole = _csr(data.edges, count)
        train = [self.rng.permutation(np.flatnonzero(data.y == label))[:per_class] for label in range(data.classes)]
        self.train = np.concatenate(train)
        self.test = self.rng.permutation(np.setdiff1d(np.arange(count), self.train))[500:1500]
        blocks, one_way = np.array_split(columns, settings.clients), data.edges[:, data.edges[0] < data.edges[1]]
        x = sp.csr_matrix(data.x)
        self.x, self.adjacency = [], []  # of each client
        for block in blocks:
            edges = one_way[:, self.rng.random(one_way.shape[1]) >= settings.dropped]
            self.x.append(x[:, np.sort(block)].tocsr())
            self.adjacency.append(_csr(np.hstack([edges, edges[::-1]]), count))
        if settings.alone >= 0:
            self.x, self.adjacency = [self.x[settings.alone]], [self.adjacency[settings.alone]]

    def sample(self, nodes: np.ndarray, fan_out: int) -> np.ndarray:
        """`nodes` and up to `fan_out` neighbors of each, sorted."""
        result = [nodes]
        for node in nodes:
            near = self.whole.indices[self.whole.indptr[node] : self.whole.indptr[node + 1]]
            result.append(near if len(near) <= fan_out else self.rng.choice(near, fan_out, replace=False))
        return np.unique(np.concatenate(result))

    def plan(self, batch: np.ndarray, settings: Settings) -> tuple[list[Any], np.ndarray]:
        """For each block and client the layers' matrices, and the positions of the block's outputs among its inputs;
        and the inputs of the first block. Clients share only the inputs of blocks."""
        blocks, outputs = [], batch
        for layers in reversed(settings.depth):
            chains = []  # of each client: the nodes of the block's layers, from its inputs to its outputs
            for _ in self.adjacency:
                chain = [outputs]
                for _ in range(layers):
                    chain.insert(0, self.sample(chain[0], settings.fan_out))
                chains.append(chain)
            inputs = np.unique(np.concatenate([chain[0] for chain in chains]))
            positions = torch.from_numpy(np.searchsorted(inputs, outputs))
            of_clients = []
            for adjacency, chain in zip(self.adjacency, chains, strict=True):
                chain[0] = inputs
                matrices = [_matrix(adjacency, *ends) for ends in pairwise(chain)]
                of_clients.append((matrices, positions))
            blocks.insert(0, of_clients)
            outputs = inputs
        return blocks, outputs


def _csr(edges: np.ndarray, count: int) -> sp.csr_matrix:
    return sp.csr_matrix((np.ones(edges.shape[1], np.float32), (edges[0], edges[1])), shape=(count, count))


def _matrix(adjacency: sp.csr_matrix, inputs: np.ndarray, outputs: np.ndarray) -> sp.csr_matrix:
    """Rows `outputs` of D~^-1/2 (A + 2 I) D~^-1/2 of the graph that `inputs` induce."""
    near = adjacency[inputs][:, inputs] + LOOP * sp.eye(len(inputs), dtype=np.float32)
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
        """The inputs of the first block, [n, hidden]."""
        return F.relu(_Times.apply(self.weight, x) + self.bias)

    def block(self, at: int, h: Tensor, matrices: list[sp.csr_matrix], outputs: Tensor) -> Tensor:
        """mu_l times the output of the layers, and 1 - mu_l times h itself."""
        residual, mu = h[outputs], MU / (at + 1)
        for matrix, linear, norm in zip(matrices, self.linear[at], self.norm[at], strict=True):
            h = F.dropout(norm(F.relu(linear(_Times.apply(h, matrix)))), DROPOUT, self.training)
        return mu * h + (1 - mu) * residual


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
        result = []
        for outer in range(OUTER):
            if outer and outer % self.settings.every == 0:
                self.optimizer.param_groups[0]["lr"] /= 4
            for client in self.clients:
                client.train()
            for _ in range(INNER):
                self.update(np.sort(self.graphs.rng.permutation(self.graphs.train)[:BATCH]))
            result.append(self.test())
        return [*result, self.test()]

    def update(self, batch: np.ndarray) -> None:
        """Q steps on one mini-batch; other clients' representations are those of the first step."""
        blocks, nodes = self.graphs.plan(batch, self.settings)
        xs, y, stale = [x[nodes] for x in self.graphs.x], torch.from_numpy(self.graphs.y[batch]), list[list[Tensor]]()
        for step in range(self.settings.steps):
            self.optimizer.zero_grad()
            hs = [client.first(x) for client, x in zip(self.clients, xs, strict=True)]  # [n, hidden] of each client
            for at, block in enumerate(blocks):
                hs = self._aggregate(self._run_block(at, block, hs), stale, at, step)
            losses = [F.cross_entropy(client.classifier(h), y) for client, h in zip(self.clients, hs, strict=True)]
            sum(losses).backward()  # type: ignore[union-attr]
            self.optimizer.step()

    def _run_block(self, at: int, block: list[Any], hs: list[Tensor]) -> list[Tensor]:
        inputs = zip(self.clients, hs, block, strict=True)
        return [client.block(at, h, matrices, positions) for client, h, (matrices, positions) in inputs]

    def _aggregate(self, outs: list[Tensor], stale: list[list[Tensor]], at: int, step: int) -> list[Tensor]:
        """The input of each client's next block: the mean, with gradients as the scripts return them."""
        mean, count = torch.stack(outs).mean(0), len(outs)
        if self.settings.steps == 1:
            undivided = mean.detach() + sum(out - out.detach() for out in outs)
            return [mean if self.settings.exact else undivided] * count
        if step == 0:
            stale.append([(mean - out / count).detach() for out in outs])
        return [other + out / count for other, out in zip(stale[at], outs, strict=True)]

    def test(self) -> float:
        """Accuracy with running statistics, on sampled neighbors, in mini-batches."""
        graphs, hits = self.graphs, 0
        for client in self.clients:
            client.eval()
        with torch.no_grad():
            for batch in np.split(graphs.rng.permutation(graphs.test), range(BATCH, len(graphs.test), BATCH)):
                blocks, nodes = graphs.plan(np.sort(batch), self.settings)
                hs = [client.first(x[nodes]) for client, x in zip(self.clients, graphs.x, strict=True)]
                for at, block in enumerate(blocks):
                    outs = self._run_block(at, block, hs)
                    hs = [torch.stack(outs).mean(0)] * len(outs)
                y = torch.from_numpy(graphs.y[np.sort(batch)])
                for client, h in zip(self.clients, hs, strict=True):
                    hits += int((client.classifier(h).argmax(1) == y).sum())
        return hits / len(graphs.test) / len(self.clients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cora", choices=sorted(PER_CLASS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=[*LINES], choices=[*LINES])
    parser.add_argument("--exact", action="store_true")
    args = parser.parse_args()
    for name in args.only:
        momentum = 0.1 if args.data == "cora" and name != "Q4" else 0.0
        settings = replace(LINES[name], exact=args.exact, momentum=momentum)
        curves = [Trial(settings, args.data, seed).accuracies() for seed in args.seeds]
        print(f"{args.data} {name}, last: {mean_deviation((100 * curve[-1] for curve in curves), 1)}")
        print(
            f"{args.data} {name}, best on test: {mean_deviation((100 * max(curve) for curve in curves), 1)}", flush=True
        )


if __name__ == "__main__":
    main()
