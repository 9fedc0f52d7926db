"""Plug-ins as users write them in a file of their own."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.fedopt import ServerMomentum
from fedweave.algorithms.parts import Context, Part
from fedweave.algorithms.preset import preset
from fedweave.core.algorithm import Algorithm
from fedweave.core.tree import Tree, map_leaves
from fedweave.datasets.base import Dataset
from fedweave.partition.base import Part as Share
from fedweave.partition.base import Partition


@preset
@dataclass(frozen=True)
class FedAvgM:
    """FedAvg with momentum at the server.

    beta: how much of the last step is kept.
    """

    beta: float = 0.5

    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "the server's step has momentum"}

    def parts(self) -> tuple[Part, ...]:
        return (ServerMomentum(momentum=self.beta),)


@preset
@dataclass(frozen=True)
class Undeclared:
    """The same momentum, which says nothing of what does not hold."""

    def parts(self) -> tuple[Part, ...]:
        return (ServerMomentum(momentum=0.5),)


@dataclass(frozen=True)
class Hidden(Part):
    """Steps whose length depends on a number that is in no state: a run again, or a resumed one, is another."""

    calls: ClassVar[list[int]] = []

    def step(self, state: Tree, w: Tree, delta: Tree) -> tuple[Tree, Tree]:
        self.calls.append(1)
        return map_leaves(lambda w, d: w + (1 + len(self.calls) % 7 / 10) * d, w, delta), {}


@dataclass(frozen=True)
class Peeking(Part):
    """Clients that report what any client in the process had before them."""

    seen: ClassVar[list[Tensor]] = []
    sends: ClassVar[dict[str, str]] = {"seen": "the examples of others"}

    def report(self, ctx: Context) -> Tree:
        self.seen.append(ctx.client.graph.x.double().sum())
        return {"seen": torch.stack(self.seen[-2:]).sum()}


@preset
@dataclass(frozen=True)
class Dishonest:
    """FedAvg that remembers what it should not."""

    def parts(self) -> tuple[Part, ...]:
        return (Hidden(), Peeking())


@dataclass(frozen=True)
class Thirds:
    """Three clients, by the remainder of the node's number."""

    def cut(self, data: Dataset, seed: int) -> Partition:
        held = [np.arange(data.nodes)[i::3] for i in range(3)]
        return Partition(tuple(Share(own, np.arange(3)[:, None] == np.arange(len(own)) % 3) for own in held))


@dataclass(frozen=True)
class Path:
    """A path of nodes, whose class is where they stand.

    nodes: how many.
    """

    nodes: int = 30

    def load(self, root: object, seed: int) -> Dataset:
        at = np.arange(self.nodes)
        ends = np.stack([at[:-1], at[1:]])
        edges = np.unique(np.concatenate([ends, ends[::-1]], 1), axis=1)
        x = np.stack([at / self.nodes, np.ones(self.nodes)], 1).astype(np.float32)
        return Dataset("path", x, edges, (at >= self.nodes // 2).astype(np.int64), 2)


class Convolution(nn.Module):
    """D~^-1/2 (A + I) D~^-1/2 X W + b (Kipf and Welling 2017), edge by edge."""

    def __init__(self, features: int, out: int) -> None:
        super().__init__()
        self.lin = nn.Linear(features, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        loops = torch.arange(len(x))
        source, target = torch.cat([edge_index, torch.stack([loops, loops])], 1)
        degree = torch.bincount(target, minlength=len(x)).to(x.dtype)
        h = (x @ self.lin.weight.T)[source] / (degree[source] * degree[target]).sqrt()[:, None]
        return torch.zeros(len(x), h.shape[1], dtype=h.dtype).index_add(0, target, h) + self.lin.bias


class Net(nn.Module):
    """Two graph convolutions.

    hidden: width between.
    """

    def __init__(self, features: int, classes: int, hidden: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = Convolution(features, hidden), Convolution(hidden, classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.dropout(torch.relu(self.first(x, edge_index))), edge_index)


class Frozen(nn.Module):
    """A linear map of what a frozen one makes."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.fixed, self.out = nn.Linear(features, 4, bias=False), nn.Linear(4, classes)
        self.fixed.requires_grad_(False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.out(self.fixed(x).relu())


def helper() -> None:
    """No plug-in."""


@dataclass(frozen=True)
class Unweighted(Part):
    """A part that works for no federation."""

    def weigh(self, state: Tree, round: object) -> Tensor:
        raise ValueError("these weights are for three clients")


@preset
@dataclass(frozen=True)
class Broken:
    """FedAvg that nobody can run."""

    def parts(self) -> tuple[Part, ...]:
        return (Unweighted(),)


class Wide(nn.Module):
    """Five logits, whatever the classes."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(features, 5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.out(x)


class Pooled(Wide):
    """Logits of the whole graph."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.out = nn.Linear(features, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.out(x).mean(0)


class Edgeless(Wide):
    """A forward without edges."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.out(x)


class Centered(Pooled):
    """Features less their mean over all nodes."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.out(x - x.mean(0))


class Caching(Pooled):
    """Keeps the edges of the first graph."""

    kept: Tensor | None = None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.kept = edge_index if self.kept is None else self.kept
        return self.out(x.index_add(0, self.kept[0], x[self.kept[1]]))


class Chancy(Pooled):
    """Drops in evaluation, too."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.out(nn.functional.dropout(x, 0.5))


class Lazy(Pooled):
    """Leaves a size to the data."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.out = nn.LazyLinear(classes)


class Weightless(Pooled):
    """Has nothing to train."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.out = nn.Identity()  # type: ignore[assignment]


class Unfitting(Wide):
    """Sizes that do not fit."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.out(x) + torch.zeros(5, 5)


class Bare:
    """What lacks its decorators."""

    def parts(self) -> tuple[Part, ...]:
        return ()


@dataclass(frozen=True)
class Forgetful(Algorithm):
    """Nobody judges its models."""

    def init(self, fed: Any) -> Any:
        return {}

    def round(self, state: Any, fed: Any) -> Any:
        return state


class Inheriting(FedAvg):
    """A setting that is none, for the class is not a dataclass of its own."""

    beta: float = 0.5


@dataclass(frozen=True)
class OddPath(Path):
    """A path that breaks one promise.

    how: which.
    """

    how: str = "one way"

    def load(self, root: str | None, seed: int) -> Any:
        data = super().load(root, seed)
        if self.how == "one way":
            return replace(data, edges=data.edges[:, data.edges[0] < data.edges[1]])
        if self.how == "infinite":
            return replace(data, x=np.full_like(data.x, np.nan))
        if self.how == "pair":
            return data.x, data.y
        raise KeyError("income")


@dataclass(frozen=True)
class Careless(Thirds):
    """A cut that breaks one promise.

    how: which.
    """

    how: str = "twice"

    def cut(self, data: Dataset, seed: int) -> Any:
        [one, *others] = super().cut(data, seed).parts
        wrong = {
            "twice": lambda: replace(one, masks=np.ones_like(one.masks)),
            "short": lambda: replace(one, masks=one.masks[:, 1:]),
            "beyond": lambda: replace(one, nodes=one.nodes + data.nodes),
            "falling": lambda: replace(one, nodes=one.nodes[::-1]),
            "tuple": lambda: (one.nodes, one.masks),
        }
        if self.how == "test":
            return Partition((one, *others), test=one.nodes)
        return Partition((wrong[self.how](), *others))
