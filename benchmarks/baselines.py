"""References for the speed of FedAvg: loops over clients in PyG and in plain sparse torch, with equal results.

Workload: FedAvg (McMahan et al. 2017, algorithm 1) with a two-layer GCN (Kipf and Welling 2017, eq. 9) and full-batch
local epochs of a fresh Adam; clients weigh by their train nodes; every round the new global model is scored on every
client's three splits. Prints a line for each reference: median milliseconds per round on Cora, and the pooled test
accuracy after the last round.

    python -m benchmarks.baselines [--clients 10 50 100] [--rounds 20]
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from fedweave.core import random
from fedweave.errors import DataError
from fedweave.ops.csr import Csr

Part: TypeAlias = tuple[sp.csr_matrix, np.ndarray, np.ndarray, np.ndarray]
"""A client: x [n, d], edge_index int64 [2, E] (both directions, no self loops), y [n], masks bool [3, n], disjoint."""

Weights: TypeAlias = dict[str, dict[str, Tensor]]
"""{"0": {"weight" [d, hidden], "bias" [hidden]}, "1": {"weight" [hidden, c], "bias" [c]}}."""


class Scores(NamedTuple):
    """One round's evaluation on P clients and the three splits: `loss` [P, 3], summed over nodes, and `confusion`
    int64 [P, 3, c, c], nodes by true and predicted class."""

    loss: Tensor
    confusion: Tensor

    def accuracy(self, split: int) -> float:
        """Share of right predictions, pooled over all clients."""
        counts = self.confusion[:, split].sum(0)
        return float(counts.trace() / counts.sum())


Result: TypeAlias = tuple[Weights, list[Scores], list[float]]
"""Final global weights, one `Scores` per round, seconds per round."""


class Tally:
    """Scores stacked logits of all clients with one pass over them."""

    def __init__(self, parts: Sequence[Part], classes: int, device: torch.device | str = "cpu") -> None:
        masks = np.concatenate([part[3] for part in parts], 1)
        if (masks.sum(0) > 1).any():
            raise DataError(f"{(masks.sum(0) > 1).sum()} nodes are in more than one split; make the masks disjoint.")
        if not masks[0].any():
            raise DataError("no client has a train node; mark some in row 0 of the masks.")
        client = np.repeat(np.arange(len(parts)), [len(part[2]) for part in parts])
        unused = 3  # a fourth, dropped split keeps every row in place, which is cheaper than selecting rows
        self.slot = torch.from_numpy(4 * client + np.where(masks.any(0), masks.argmax(0), unused)).to(device)
        self.y = torch.from_numpy(np.concatenate([part[2] for part in parts]).clip(0)).to(device)
        self.cell = (self.slot * classes + self.y) * classes
        self.shape = (len(parts), 4, classes, classes)

    def __call__(self, logits: Tensor) -> Scores:
        """Score `logits` [sum of n_i, c], rows in client order."""
        clients, splits, classes, _ = self.shape
        nll = -F.log_softmax(logits, 1).gather(1, self.y[:, None])[:, 0]
        loss = nll.new_zeros(clients * splits).index_add_(0, self.slot, nll).view(clients, splits)
        counts = torch.bincount(self.cell + logits.argmax(1), minlength=clients * splits * classes**2)
        return Scores(loss[:, :3].cpu(), counts.view(self.shape)[:, :3].cpu())


class Net(nn.Module):
    """PyG's two-layer GCN; one per client, since `cached` keeps the normalized graph inside the layer."""

    def __init__(self, weights: Weights, dropout: float) -> None:
        super().__init__()
        (d, hidden), classes = weights["0"]["weight"].shape, len(weights["1"]["bias"])
        self.conv1, self.conv2 = GCNConv(d, hidden, cached=True), GCNConv(hidden, classes, cached=True)
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = F.dropout(self.conv1(x, edge_index).relu(), self.dropout, self.training)
        return self.conv2(h, edge_index)


def plain_pyg(
    parts: Sequence[Part],
    rounds: int,
    weights: Weights,
    *,
    epochs: int = 3,
    lr: float = 0.01,
    weight_decay: float = 5e-4,
    dropout: float = 0.5,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Result:
    """Run the workload as a PyG user writes it: dense features, GCNConv, torch.optim.Adam, averaged state dicts.

    Raises:
        DataError: masks overlap, or nobody has a train node.
    """
    tally = Tally(parts, len(weights["1"]["bias"]), device)
    sizes = np.array([part[3][0].sum() for part in parts])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        data, labels = [], []
        for x, edges, y, masks in parts:
            data.append((torch.from_numpy(x.toarray()).to(device, dtype), torch.from_numpy(edges).to(device)))
            labels.append((torch.from_numpy(masks[0]).to(device), torch.from_numpy(y[masks[0]]).to(device)))
        nets = [Net(weights, dropout).to(device, dtype) for _ in parts]
        state = {}
        for i, layer in enumerate(weights.values(), 1):
            state[f"conv{i}.lin.weight"] = layer["weight"].T.to(device, dtype)
            state[f"conv{i}.bias"] = layer["bias"].to(device, dtype)
        for net in nets:
            net.load_state_dict(state)

        def one_round() -> Scores:
            total: dict[str, Tensor] = {name: torch.zeros_like(value) for name, value in state.items()}
            for net, inputs, (train, y), share in zip(nets, data, labels, sizes / sizes.sum(), strict=True):
                if share == 0:
                    continue
                net.train()
                optimizer = torch.optim.Adam(net.parameters(), lr=lr, weight_decay=weight_decay)
                for _ in range(epochs):
                    optimizer.zero_grad()
                    F.cross_entropy(net(*inputs)[train], y).backward()
                    optimizer.step()
                for name, value in net.state_dict().items():
                    total[name].add_(value, alpha=share)
            state.update(total)
            logits = []
            with torch.no_grad():
                for net, inputs in zip(nets, data, strict=True):
                    net.load_state_dict(state)  # serves the scoring and the next round's start
                    logits.append(net.eval()(*inputs))
                return tally(torch.cat(logits))

        scores, seconds = _run_rounds(one_round, rounds, device)
    final = {
        str(i): {"weight": state[f"conv{i + 1}.lin.weight"].T, "bias": state[f"conv{i + 1}.bias"]} for i in range(2)
    }
    return final, scores, seconds


class Site(NamedTuple):
    """One client's constants for `sparse_loop`, with S = [A X | 1] and A = D~^-1/2 (A + I) D~^-1/2.

    Training needs only the k train nodes' rows of A and, of S, the m rows of their neighbors: `a` [k, m] (divided by
    the keep probability, which is all of dropout's rescaling) and `s` [m, d + 1], each with its transpose; `y` [k] and
    its one-hot form [k, c]. Scoring needs all rows.
    """

    s: Tensor
    s_back: Tensor
    a: Tensor
    a_back: Tensor
    y: Tensor
    one_hot: Tensor
    s_all: Tensor
    a_all: Tensor
    nodes: slice
    share: float


class _Product(torch.autograd.Function):
    """Constant CSR times dense; the gradient goes to `into` if given, since a fresh [d, hidden] costs page faults."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: Tensor, back: Tensor, into: Tensor | None = None) -> Tensor:
        ctx.back, ctx.into = back, into
        return matrix @ dense

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        if ctx.into is None:
            return ctx.back @ grad, None, None, None
        torch.mm(ctx.back, grad, out=ctx.into)
        return None, None, None, None


class _Flat:
    """The model's weights, their gradients and Adam's state as views of flat buffers, so that a client starts from the
    global model with three fills. Layer 0's bias is the last row of its weight, met by S's column of ones."""

    def __init__(self, weights: Weights, dtype: torch.dtype, lr: float, weight_decay: float) -> None:
        first, second = weights["0"], weights["1"]
        parts = [torch.cat([first["weight"], first["bias"][None]]), second["weight"], second["bias"]]
        self.shapes = [part.shape for part in parts]
        self.start = torch.cat([part.flatten() for part in parts]).to(dtype)
        self.now, self.grad, self.total = (torch.zeros_like(self.start) for _ in range(3))
        self.moments, self.steps = self.start.new_zeros(2, len(self.start)), torch.zeros(3)
        self.weights = [view.requires_grad_() for view in self.views(self.now)]
        self.grads = self.views(self.grad)
        self.adam = torch.optim.Adam(self.weights, lr=lr, weight_decay=weight_decay, fused=True)
        state = zip(self.weights, self.steps, *map(self.views, self.moments), strict=True)
        for weight, step, mean, square in state:
            self.adam.state[weight] = {"step": step, "exp_avg": mean, "exp_avg_sq": square}

    def views(self, flat: Tensor) -> list[Tensor]:
        pieces = flat.split([shape.numel() for shape in self.shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def reset(self) -> None:
        with torch.no_grad():
            self.now.copy_(self.start)
        self.moments.zero_()
        self.steps.zero_()


def _by_autograd(flat: _Flat, site: Site, drop_out: Callable[[Tensor], Tensor]) -> None:
    w1, w2, b2 = flat.weights
    w1.grad = flat.grads[0]
    w2.grad = b2.grad = None
    h = drop_out(torch.relu(_Product.apply(w1, site.s, site.s_back, flat.grads[0])))
    z = torch.addmm(b2, _Product.apply(h, site.a, site.a_back), w2)
    F.cross_entropy(z, site.y).backward()


@torch.no_grad()
def _by_hand(flat: _Flat, site: Site, drop_out: Callable[[Tensor], Tensor]) -> None:
    w1, w2, b2 = flat.weights
    w1.grad, w2.grad, b2.grad = flat.grads
    h = drop_out((site.s @ w1).relu_())
    near = site.a @ h
    dz = torch.addmm(b2, near, w2).softmax(1).sub_(site.one_hot).mul_(1 / len(site.y))
    torch.sum(dz, 0, out=b2.grad)
    torch.mm(near.T, dz, out=w2.grad)
    dh = torch.ops.aten.threshold_backward(site.a_back @ (dz @ w2.T), h, 0)  # h > 0: passed the ReLU and not dropped
    torch.mm(site.s_back, dh, out=w1.grad)


def sparse_loop(
    parts: Sequence[Part],
    rounds: int,
    weights: Weights,
    *,
    epochs: int = 3,
    lr: float = 0.01,
    weight_decay: float = 5e-4,
    dropout: float = 0.5,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    by_hand: bool = False,
) -> Result:
    """Run the workload as the leanest loop over clients that plain torch allows: int32 CSR, A X formed once, only the
    rows that train nodes need, fused Adam, buffers kept across clients and rounds.

    `by_hand` replaces autograd by this one model's gradient written out: what per-client code could reach at the price
    of being tied to one model.

    Raises:
        DataError: masks overlap, or nobody has a train node.
    """
    classes = len(weights["1"]["bias"])
    tally, sites = Tally(parts, classes), _sites(parts, classes, 1 - dropout, dtype)
    flat, epoch = _Flat(weights, dtype, lr, weight_decay), _by_hand if by_hand else _by_autograd
    logits = torch.empty(sites[-1].nodes.stop, classes, dtype=dtype)
    source = torch.Generator().manual_seed(seed)

    def drop_out(h: Tensor) -> Tensor:
        return h if dropout == 0 else h * torch.empty_like(h).bernoulli_(1 - dropout, generator=source)

    def one_round() -> Scores:
        flat.total.zero_()
        for site in sites:
            if site.share == 0:
                continue
            flat.reset()
            for _ in range(epochs):
                epoch(flat, site, drop_out)
                flat.adam.step()
            with torch.no_grad():
                flat.total.add_(flat.now, alpha=site.share)
        flat.start.copy_(flat.total)
        w1, w2, b2 = flat.views(flat.start)
        for site in sites:
            torch.addmm(b2, site.a_all @ (site.s_all @ w1).relu_(), w2, out=logits[site.nodes])
        return tally(logits)

    scores, seconds = _run_rounds(one_round, rounds)
    w1, w2, b2 = flat.views(flat.start)
    return {"0": {"weight": w1[:-1], "bias": w1[-1]}, "1": {"weight": w2, "bias": b2}}, scores, seconds


def normalize_adjacency(edges: np.ndarray, nodes: int) -> sp.csr_matrix:
    """D~^-1/2 (A + I) D~^-1/2 of Kipf and Welling (2017, eq. 2), float64 [nodes, nodes]."""
    looped = sp.csr_matrix((np.ones(edges.shape[1]), tuple(edges)), shape=(nodes, nodes)) + sp.eye(nodes)
    scale = sp.diags(1 / np.sqrt(np.asarray(looped.sum(1)).ravel()))
    return (scale @ looped @ scale).tocsr()


def _sites(parts: Sequence[Part], classes: int, keep: float, dtype: torch.dtype) -> list[Site]:
    kind = np.float64 if dtype == torch.float64 else np.float32
    all_train, sites, start = sum(part[3][0].sum() for part in parts), [], 0
    for x, edges, y, masks in parts:
        a = normalize_adjacency(edges, len(y))
        s = sp.hstack([a @ x, np.ones((len(y), 1))]).tocsr()
        ours = a[masks[0]]
        near = np.unique(ours.indices)
        train, hidden = Csr.of((ours[:, near] / keep).astype(kind)), Csr.of(s[near].astype(kind))
        target = torch.from_numpy(y[masks[0]]).long()
        sites.append(
            Site(
                hidden.torch(),
                hidden.transpose().torch(),
                train.torch(),
                train.transpose().torch(),
                target,
                F.one_hot(target, classes).to(dtype),
                Csr.of(s.astype(kind)).torch(),
                Csr.of(a.astype(kind)).torch(),
                slice(start, start + len(y)),
                float(masks[0].sum() / all_train),
            )
        )
        start += len(y)
    return sites


def clock_of(device: torch.device | str) -> Callable[[], float]:
    """Processor time, which other work on the machine hardly changes; on a GPU the time that passes."""
    return time.process_time if torch.device(device).type == "cpu" else time.perf_counter


def _run_rounds(
    one_round: Callable[[], Scores], rounds: int, device: torch.device | str = "cpu"
) -> tuple[list[Scores], list[float]]:
    scores, seconds, clock = [], [], clock_of(device)
    for _ in range(rounds):
        begun = clock()
        scores.append(one_round())
        seconds.append(clock() - begun)
    return scores, seconds


def glorot(features: int, hidden: int, classes: int, seed: int = 0) -> Weights:
    """Initial weights: Glorot and Bengio's (2010, eq. 16) uniform matrices and zero biases, float32."""
    draw = random.generator(seed, "glorot")
    weights = {}
    for i, (rows, cols) in enumerate(((features, hidden), (hidden, classes))):
        bound = np.sqrt(6 / (rows + cols))
        matrix = torch.from_numpy(draw.uniform(-bound, bound, (rows, cols))).float()
        weights[str(i)] = {"weight": matrix, "bias": torch.zeros(cols)}
    return weights


def random_cora(clients: int, seed: int = 0) -> list[Part]:
    """Cora from $FEDWEAVE_DATA, its nodes dealt to clients at random and split 30/20/50 into train, val and test.

    Raises:
        DataError: the file is not there.
    """
    path = Path(os.environ.get("FEDWEAVE_DATA", "../shared/data")) / "cora" / "cora.npz"
    if not path.exists():
        raise DataError(f"{path} is missing; set FEDWEAVE_DATA to the folder that holds cora/cora.npz.")
    with np.load(path, allow_pickle=False) as raw:
        x = sp.csr_matrix((raw["x_data"], raw["x_indices"], raw["x_indptr"]), shape=tuple(raw["x_shape"]))
        edges, y = raw["edge_index"], raw["y"]
    draw = random.generator(seed, "random_cora")
    owner, split = draw.integers(0, clients, len(y)), np.searchsorted([0.3, 0.5], draw.random(len(y)), "right")
    a = sp.csr_matrix((np.ones(edges.shape[1]), tuple(edges)), shape=(len(y), len(y)))
    parts = []
    for client in range(clients):
        nodes = np.flatnonzero(owner == client)
        induced = a[nodes][:, nodes].tocoo()
        edges = np.stack([induced.row, induced.col]).astype(np.int64)
        parts.append((x[nodes], edges, y[nodes], split[nodes] == [[0], [1], [2]]))
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 50, 100])
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    runs: dict[str, Callable[[list[Part], Weights], Result]] = {
        "plain_pyg": lambda parts, w: plain_pyg(parts, args.rounds, w),
        "sparse_loop": lambda parts, w: sparse_loop(parts, args.rounds, w),
        "sparse_loop by hand": lambda parts, w: sparse_loop(parts, args.rounds, w, by_hand=True),
    }
    print(f"median over {args.rounds} rounds, {torch.get_num_threads()} threads")
    for clients in args.clients:
        parts = random_cora(clients)
        for name, run in runs.items():
            _, scores, seconds = run(parts, glorot(parts[0][0].shape[1], 64, 7))
            ms, accuracy = 1e3 * np.median(seconds), scores[-1].accuracy(2)
            print(f"{clients:5d} clients  {name:20s} {ms:8.2f} ms per round  test accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
