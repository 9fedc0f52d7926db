"""Seconds per round of FedEgo on Cora: fedweave's two engines and a plain PyG loop, in one run.

Label skew, 5 clients, batch 32, fan-out 6, 2 hops, 5 client epochs of 5 mini-batches, 5 server epochs. The sides take
turns, without evaluation. A line for each side: the median of all rounds but each turn's first, in brackets the 10 %
and 90 % quantiles, and how many times as long as fedweave's vectorized engine.

    python -m benchmarks.fedego [--hidden 256 512] [--rounds 10] [--turns 2]
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from benchmarks.common import in_turns, median_quantiles
from fedweave import datasets
from fedweave.algorithms import FedEgo
from fedweave.engines.simulation import Simulation
from fedweave.experiment.graphs import client_graphs
from fedweave.models import MODELS
from fedweave.partition import PARTITIONS
from fedweave.partition.ego_networks import edges_within

CLIENTS, BATCH, FAN_OUT, EPOCHS, BATCHES = 5, 32, 6, 5, 5
POSITIONS = 1 + FAN_OUT + FAN_OUT**2


def engine(mode: str, hidden: int, shared: bool) -> Callable[[int], list[float]]:
    """A function that runs rounds, on an engine that persists between turns, as in a long run."""
    data = datasets.load("cora")
    cut = PARTITIONS["label_skew"](clients=CLIENTS).cut(data, 0)
    model = MODELS["ego"](hidden=hidden, share_root_weight=shared).build(data.features, data.classes)
    algorithm = FedEgo(model, batch=BATCH, batches=BATCHES, epochs=EPOCHS, server_epochs=EPOCHS)
    fed = Simulation(client_graphs(data, cut), classes=data.classes, mode=mode)
    fed.begin(0)
    state, done = algorithm.init(fed), 0

    def rounds(count: int) -> list[float]:
        nonlocal state, done
        times = []
        for _ in range(count):
            done += 1
            fed.begin(done)
            began = time.perf_counter()
            state = algorithm.round(state, fed)
            times.append(time.perf_counter() - began)
        return times

    return rounds


class Net(nn.Module):
    """The two parts as a PyG user writes them."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(features, hidden)
        self.convs = nn.ModuleList([SAGEConv(hidden, hidden), SAGEConv(hidden, hidden)])
        self.classify = nn.Linear(hidden, classes)

    def embed(self, x: Tensor) -> Tensor:
        """Reduction embeddings."""
        return nn.functional.dropout(self.reduce(x).relu(), 0.5, self.training)

    def forward(self, r: Tensor, edges: Tensor) -> Tensor:
        """Logits of all positions."""
        for conv in self.convs:
            r = nn.functional.dropout(conv(r, edges).relu(), 0.5, self.training)
        return self.classify(r)


def tree_edges(batch: int) -> Tensor:
    """Child -> parent edges of `batch` egos, one after the other, [2, batch * (POSITIONS - 1)]."""
    child = np.arange(1, POSITIONS)
    one = np.stack([child, (child - 1) // FAN_OUT])
    return torch.from_numpy(np.concatenate([one + POSITIONS * i for i in range(batch)], axis=1))


def sample(a: sp.csr_matrix, centers: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Egos [m, positions], sampled with one draw per hop."""
    rings = [centers[:, None]]
    for _ in range(2):
        parents, degree = rings[-1], np.diff(a.indptr)[rings[-1]]
        pick = (rng.random((*parents.shape, FAN_OUT)) * degree[..., None]).astype(int)
        at = np.minimum(a.indptr[parents][..., None] + pick, len(a.indices) - 1)
        rings.append(np.where(degree[..., None] > 0, a.indices[at], parents[..., None]).reshape(len(centers), -1))
    return np.concatenate(rings, axis=1)


def plain_loop(hidden: int) -> Callable[[int], list[float]]:
    """One client after the other, dense features at every position, mini-batches of tree graphs."""
    data = datasets.load("cora")
    cut = PARTITIONS["label_skew"](clients=CLIENTS).cut(data, 0)
    rng, clients = np.random.default_rng(0), []
    for part, edges in zip(cut.parts, edges_within(data, [p.nodes for p in cut.parts]), strict=True):
        size = len(part.nodes)
        a = sp.csr_matrix((np.ones(edges.shape[1]), tuple(edges)), shape=(size, size))
        x, y = torch.from_numpy(data.x[part.nodes].toarray()), torch.from_numpy(data.y[part.nodes])
        clients.append((a, x, y, np.flatnonzero(part.masks[0]), Net(data.features, hidden, data.classes)))
    server = Net(data.features, hidden, data.classes)

    def step(net: Net, h: Callable[[], Tensor], target: Tensor, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        logits = net(h(), tree_edges(len(target)))[::POSITIONS]
        nn.functional.cross_entropy(logits, target).backward()
        optimizer.step()

    def train_round() -> None:
        mashed, labels = [], []
        for a, x, y, train, net in clients:
            net.train()
            optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
            for _ in range(EPOCHS):
                order = rng.permutation(train)
                for i in range(BATCHES):
                    centers = order[i * BATCH : (i + 1) * BATCH]
                    nodes = torch.from_numpy(sample(a, centers, rng).reshape(-1))
                    step(net, lambda net=net, x=x, nodes=nodes: net.embed(x[nodes]), y[centers], optimizer)
            net.eval()
            with torch.no_grad():
                for centers in np.array_split(rng.permutation(train), -(-len(train) // BATCH)):
                    mashed.append(net.embed(x)[torch.from_numpy(sample(a, centers, rng))].mean(0))
                    labels.append(nn.functional.one_hot(y[centers], data.classes).float().mean(0))
        server.train()
        optimizer = torch.optim.Adam([*server.convs.parameters(), *server.classify.parameters()], lr=3e-4)
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(mashed)).split(BATCH):
                egos = torch.cat([mashed[i] for i in batch])
                step(server, lambda egos=egos: egos, torch.stack([labels[i] for i in batch]), optimizer)
        with torch.no_grad():
            for name, parameter in server.named_parameters():
                weights = [net.get_parameter(name) for *_, net in clients]
                mean = torch.stack(weights).mean(0)
                for weight in weights:
                    weight.copy_(mean if name.startswith("reduce") else 0.5 * parameter + 0.5 * weight)

    def rounds(count: int) -> list[float]:
        times = []
        for _ in range(count):
            began = time.perf_counter()
            train_round()
            times.append(time.perf_counter() - began)
        return times

    return rounds


def compare(hidden: int, rounds: int, turns: int) -> None:
    """Print one line per side, with its ratio to the first."""
    vmap, shared = engine("vmap", hidden, False), engine("vmap", hidden, True)
    loop, pyg = engine("loop", hidden, False), plain_loop(hidden)
    for recording in (vmap, shared):
        recording(12)  # steps are recorded for most sizes by then (see src/fedweave/ops/recording.py)
    slow_rounds = max(3, rounds // 4)
    sides: dict[str, Callable[[], list[float]]] = {
        "fedweave, vmap": lambda: vmap(rounds),
        "fedweave, vmap, one weight (eq. 1)": lambda: shared(rounds),
        "fedweave, loop": lambda: loop(slow_rounds),
        "plain PyG loop": lambda: pyg(slow_rounds),
    }
    times = in_turns(sides, turns)
    for name, seconds in times.items():
        ratio = f"{median(seconds) / median(times['fedweave, vmap']):.2f} x"
        print(f"hidden {hidden:4d}  {name:36s} {median_quantiles(seconds, 3)} s per round, {ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=2)
    args = parser.parse_args()
    for hidden in args.hidden:
        compare(hidden, args.rounds, args.turns)


if __name__ == "__main__":
    main()
