"""Training only the rows of a weight that a client's features touch.

The other rows see no data gradient. While they start alike at all clients, and their moments do, the optimiser moves
them alike; so one copy, in which every row moves as an untouched one does, serves all clients of a batch.
"""

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedweave.core.graph import Graph
from fedweave.core.records import Record
from fedweave.core.tree import Tree, leaves, nest
from fedweave.learn.descent import Stored
from fedweave.ops.csr import StackedCsr
from fedweave.ops.sparse import Sparse
from fedweave.ops.touched import STACKED, TouchedRows, materialize, picked_rows, shared_scalar

Given = tuple[Any, Any]  # a tree, and for each of its leaves 0 (one per client, stacked) or None (shared)
Dim = int | TouchedRows | None  # of a leaf: where it has clients; such rows, if partly stored
Split = tuple[Tensor, Tensor]  # what all clients share [F, …], and the rows of their own [P, m, …]

# Narrowing must leave out this share of the features at least to be worth it.
_LEAST = 0.3


class Touched:
    """The features that each client of a batch touches: `rows` int64 [P, m], padded with F, and the clients' features
    without the others."""

    def __init__(self, matrix: StackedCsr) -> None:
        self.matrix = matrix
        self.rows, self._narrow = matrix.touched

    @classmethod
    def of(cls, graph: Given) -> "Touched | None":
        """Those of a batch's graphs; None if they leave out too few."""
        x = graph[0].x
        if not isinstance(x, Sparse) or graph[1].x.client_index is None:
            return None
        touched = cls(x.blocks)
        return touched if touched.rows.shape[1] <= (1 - _LEAST) * x.blocks.cols else None

    def narrowed(self, graph: Given) -> tuple[Graph, Graph]:
        """The graphs, and their batch dimensions, with the touched features alone."""
        data, dims = (g._replace(x=Sparse(self._narrow, g.x.client_index)) for g in graph)
        return data, dims

    def gather(self, tensor: Tensor) -> Tensor:
        """The clients' rows of a tensor [F, …] that they share: [P, m, …], zero at padding."""
        return picked_rows(tensor, self.rows)

    def split(self, given: Given, paths: frozenset[str]) -> dict[str, Split] | None:
        """The leaves at `paths` taken apart, in tensors of their own; None if clients may differ in a row that one of
        them does not touch."""
        flat, dims = dict(leaves(given[0])), dict(leaves(given[1]))
        apart = {path: self._split(flat[path], dims[path]) for path in paths}
        return None if None in apart.values() else apart  # type: ignore[return-value]

    def narrowed_tree(self, given: Given, paths: frozenset[str], penalised: bool) -> tuple[Given, Tree] | None:
        """A tree that training finds besides the weights, such as an anchor, in which the leaves at `paths` of trees
        like the weights are narrowed; and what of it the rows that a client does not touch find. None if a penalty may
        move these differently."""
        dims = dict(leaves(given[1] or {}))
        found = {path: (leaf, dims[path]) for path, leaf in leaves(given[0] or {})}
        weights = {path: next((own for own in paths if f"/{path}".endswith(f"/{own}")), "") for path in found}
        trees = tuple({path.removesuffix(own) for path, own in weights.items() if own})
        rest = {path: leaf for path, (leaf, _) in found.items() if not (trees and path.startswith(trees))}
        alike = all(found[path][1] is None for path in rest)
        for path in (path for path, own in weights.items() if own):
            if (apart := self._split(*found[path])) is None:
                alike, found[path] = False, (self._own(*found[path]), 0)
            else:
                rest[path], found[path] = apart[0], (apart[1], 0)
        if penalised and not alike:
            return None
        return whole(_apart(found)), nest(rest)

    def _own(self, leaf: Tensor | TouchedRows, dim: Dim) -> Tensor:
        """The clients' rows of a stacked tensor: [P, m, …], zero at padding."""
        leaf, _ = _whole(leaf, dim)
        padded = torch.cat([leaf, torch.zeros_like(leaf[:, :1])], 1)
        return padded[torch.arange(len(self.rows), device=padded.device)[:, None], self.rows]

    def _split(self, leaf: Tensor | TouchedRows, dim: Dim) -> Split | None:
        if (
            isinstance(leaf, TouchedRows)
            and leaf.matrix is self.matrix
            and isinstance(dim, TouchedRows)
            and dim.rest is None
        ):
            return leaf.rest.clone(), leaf.values.clone()
        leaf, dim = _whole(leaf, dim)
        return (leaf.clone(), self.gather(leaf)) if dim is None else None

    def found(self, leaf: Tensor) -> TouchedRows | Tensor:
        """Whole tensors [P, F, …] as partly stored ones, if clients do not differ in rows that one does not touch."""
        clients, features = (torch.arange(size, device=leaf.device) for size in leaf.shape[:2])
        clients = clients[:, None]
        mine = leaf.new_zeros(len(leaf), leaf.shape[1] + 1, dtype=torch.bool)
        mine[clients, self.rows] = True
        mine = mine[:, :-1]
        rest = leaf[mine.to(torch.uint8).argmin(0), features]  # of one that does not touch the row
        if not ((leaf == rest) | mine.view(*mine.shape, *[1] * (leaf.dim() - 2))).all():
            return leaf
        padded = torch.cat([leaf, torch.zeros_like(leaf[:, :1])], 1)
        return TouchedRows(rest, self.rows, padded[clients, self.rows], self.matrix)


class Kept:
    """A tree like the weights as a batch trains it: `own` stacked [P, …], of touched rows alone where the path is also
    in `rest`, which is shared."""

    def __init__(self, own: Stored, rest: Stored, touched: Touched | None) -> None:
        self.own, self.rest, self._touched = own, rest, touched

    @classmethod
    def of(
        cls, given: Given, paths: list[str], clients: int, split: dict[str, Split], touched: Touched | None
    ) -> "Kept":
        """A given tree, in tensors of its own; `split` holds the leaves that are taken apart."""
        flat, dims = dict(leaves(given[0])), dict(leaves(given[1]))
        own = {p: split[p][1] if p in split else _stacked(flat[p], dims[p], clients) for p in paths}
        return cls(Stored(own, 1), Stored({path: rest for path, (rest, _) in split.items()}, 0), touched)

    @property
    def tensors(self) -> list[Tensor]:
        """What the optimiser moves: `own`, then `rest`."""
        return [*self.own.tensors, *self.rest.tensors]

    def zeros(self) -> "Kept":
        """As large, and zero."""
        return Kept(self.own.zeros(), self.rest.zeros(), self._touched)

    def tree(self) -> Tree:
        """The tree, partly stored where `rest` holds the other rows."""
        flat: Record = self.own.shaped(self.own.tensors)
        if self._touched is not None:
            rows, matrix = self._touched.rows, self._touched.matrix
            for path, rest in self.rest.shaped(self.rest.tensors).items():
                flat[path] = TouchedRows(rest, rows, flat[path], matrix)
        return nest(flat)

    def dims(self) -> Tree:
        """The batch dimensions of `tree`."""
        return nest({path: STACKED if path in self.rest.shapes else 0 for path in self.own.shapes})


def share_again(state: Tree, graph: Graph) -> Tree:
    """Store the optimisers' states in a stacked state (dicts with "steps") as `TouchedRows` again, where all clients
    have taken equally many steps, as `fit` leaves them; from a checkpoint or another batch they come whole.

    Waits for the states' device; engines call it between steps.
    """
    touched = Touched.of((graph, graph))
    if "steps" not in state or touched is None:
        return {k: share_again(v, graph) if isinstance(v, dict) else v for k, v in state.items()}
    steps = state["steps"]
    if not isinstance(steps, Tensor) or not bool((steps == steps[0]).all()):
        return state
    features = touched.matrix.cols
    found = {
        path: touched.found(leaf) if isinstance(leaf, Tensor) and leaf.shape[1:2] == (features,) else leaf
        for path, leaf in leaves(state)
    }
    return nest(found | {"steps": shared_scalar(steps[0], len(steps))})


def whole(given: Given) -> Given:
    """A tree and its batch dimensions with partly stored leaves filled in."""
    dims = dict(leaves(given[1] or {}))
    return _apart({path: _whole(leaf, dims[path]) for path, leaf in leaves(given[0] or {})})


def _apart(found: dict[str, Given]) -> Given:
    return nest({path: leaf for path, (leaf, _) in found.items()}), nest(
        {path: dim for path, (_, dim) in found.items()}
    )


def _stacked(leaf: Tensor | TouchedRows, dim: Dim, clients: int) -> Tensor:
    leaf, dim = _whole(leaf, dim)
    result: Tensor = (leaf.expand(clients, *leaf.shape) if dim is None else leaf).clone()
    return result


def _whole(leaf: Tensor | TouchedRows, dim: Dim) -> tuple[Tensor, Dim]:
    """A leaf and its batch dimension; a partly stored one filled in."""
    return (vmap(materialize, in_dims=(dim,))(leaf), 0) if isinstance(leaf, TouchedRows) else (leaf, dim)
