"""Training only the rows of a weight that a client's features touch.

The other rows see no data gradient. While they and their moments start equal at all clients, the optimizer moves them
equally. So one copy, in which every row moves like an untouched row, serves all clients of a batch.
"""

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, leaves, nest
from fedweave.core.types import Record
from fedweave.learn.padding import PaddedTensors
from fedweave.ops.csr import StackedCsr
from fedweave.ops.sparse import Sparse
from fedweave.ops.touched_rows import STACKED, TouchedRows, materialize, rows_or_zeros, shared_scalar

TreeDims = tuple[Any, Any]  # a tree, and for each of its leaves 0 (one per client, stacked) or None (shared)
Dim = int | TouchedRows | None  # a leaf's axis of clients; `TouchedRows` of axes if the leaf is partly stored
Split = tuple[Tensor, Tensor]  # the tensor that all clients share [F, …], and each client's touched rows [P, m, …]

# Narrowing pays if it leaves out at least this share of the features.
_MIN_OMITTED_SHARE = 0.3


class TouchedFeatures:
    """The features that each client of a batch touches: `rows` int64 [P, m], padded with F, and the clients' matrices
    with only these features."""

    def __init__(self, matrix: StackedCsr) -> None:
        self.matrix = matrix
        self.rows, self._narrow = matrix.touched

    @classmethod
    def of(cls, graph: TreeDims) -> "TouchedFeatures | None":
        """The touched features of a batch's graphs; None if they leave out too few features."""
        x = graph[0].x
        if not isinstance(x, Sparse) or graph[1].x.client_index is None:
            return None
        touched = cls(x.blocks)
        return touched if touched.rows.shape[1] <= (1 - _MIN_OMITTED_SHARE) * x.blocks.cols else None

    def narrow_graph(self, graph: TreeDims) -> tuple[Graph, Graph]:
        """The graphs with only the touched features, and their batch dimensions."""
        data, dims = graph
        narrow_data = data._replace(x=Sparse(self._narrow, data.x.client_index))
        narrow_dims = dims._replace(x=Sparse(self._narrow, dims.x.client_index))
        return narrow_data, narrow_dims

    def gather(self, tensor: Tensor) -> Tensor:
        """The clients' rows of a tensor [F, …] that all clients share: [P, m, …], zero at padding."""
        return rows_or_zeros(tensor, self.rows)

    def split_leaves(self, tree: TreeDims, paths: frozenset[str]) -> dict[str, Split] | None:
        """The leaves at `paths`, split into new tensors; None if clients may differ in a row that one of them does not
        touch."""
        flat, dims = dict(leaves(tree[0])), dict(leaves(tree[1]))
        splits = dict[str, Split]()
        for path in paths:
            split = self._split_leaf(flat[path], dims[path])
            if split is None:
                return None
            splits[path] = split
        return splits

    def narrow_tree(self, tree: TreeDims, paths: frozenset[str], penalized: bool) -> tuple[TreeDims, Tree] | None:
        """Narrow a tree that training uses next to the weights, such as an anchor.

        Returns the tree, whose subtrees like the weights are narrowed at `paths`, and the tree that untouched rows use.
        None if a penalty may move untouched rows differently."""
        dims = dict(leaves(tree[1] or {}))
        entries = {path: (leaf, dims[path]) for path, leaf in leaves(tree[0] or {})}

        # 1. which leaves stand for a weight at `paths`, and the subtrees like the weights that these are in
        narrowable, subtrees = list[str](), set[str]()
        for path in entries:
            weight_path = next((weight for weight in paths if f"/{path}".endswith(f"/{weight}")), "")
            if weight_path:
                narrowable.append(path)
                subtrees.add(path.removesuffix(weight_path))

        # 2. what untouched rows use: all leaves outside these subtrees, and the shared part of each split leaf
        prefixes = tuple(subtrees)
        rest = {path: leaf for path, (leaf, _) in entries.items() if not (prefixes and path.startswith(prefixes))}
        rows_move_equally = all(entries[path][1] is None for path in rest)
        for path in narrowable:
            split = self._split_leaf(*entries[path])
            if split is None:
                rows_move_equally = False
                leaf, _ = _fill_in_leaf(*entries[path])
                padded = torch.cat([leaf, torch.zeros_like(leaf[:, :1])], 1)  # [P, F + 1, …]
                clients = torch.arange(len(self.rows), device=padded.device)[:, None]
                entries[path] = padded[clients, self.rows], 0
            else:
                rest[path] = split[0]
                entries[path] = split[1], 0
        if penalized and not rows_move_equally:
            return None
        return fill_in(_tree_and_dims(entries)), nest(rest)

    def _split_leaf(self, leaf: Tensor | TouchedRows, dim: Dim) -> Split | None:
        same_rows = isinstance(leaf, TouchedRows) and leaf.matrix is self.matrix
        if same_rows and isinstance(dim, TouchedRows) and dim.rest is None:
            return leaf.rest.clone(), leaf.values.clone()
        leaf, dim = _fill_in_leaf(leaf, dim)
        return (leaf.clone(), self.gather(leaf)) if dim is None else None

    def store_partly(self, leaf: Tensor) -> TouchedRows | Tensor:
        """Store whole tensors [P, F, …] partly, if clients agree in all rows that one of them does not touch."""
        clients = torch.arange(leaf.shape[0], device=leaf.device)[:, None]
        features = torch.arange(leaf.shape[1], device=leaf.device)
        is_touched = leaf.new_zeros(len(leaf), leaf.shape[1] + 1, dtype=torch.bool)
        is_touched[clients, self.rows] = True
        is_touched = is_touched[:, :-1]  # [P, F], without the column of padding
        rest = leaf[is_touched.to(torch.uint8).argmin(0), features]  # from a client that does not touch the row
        if not ((leaf == rest) | is_touched.view(*is_touched.shape, *[1] * (leaf.dim() - 2))).all():
            return leaf
        padded = torch.cat([leaf, torch.zeros_like(leaf[:, :1])], 1)  # [P, F + 1, …]
        return TouchedRows(rest, self.rows, padded[clients, self.rows], self.matrix)


class BatchTree:
    """A tree like the weights as a batch trains it. `per_client` is stacked [P, …], with only touched rows if the path
    is also in `rest`, which all clients share."""

    def __init__(self, per_client: PaddedTensors, rest: PaddedTensors, touched: TouchedFeatures | None) -> None:
        self.per_client, self.rest, self._touched = per_client, rest, touched

    @classmethod
    def of(
        cls, tree: TreeDims, paths: list[str], clients: int, splits: dict[str, Split], touched: TouchedFeatures | None
    ) -> "BatchTree":
        """Copy a tree into new tensors; `splits` holds the leaves that are split into rows."""
        flat, dims = dict(leaves(tree[0])), dict(leaves(tree[1]))
        per_client = dict[str, Tensor]()
        for path in paths:
            if path in splits:
                per_client[path] = splits[path][1]
            else:
                leaf, dim = _fill_in_leaf(flat[path], dims[path])
                per_client[path] = (leaf.expand(clients, *leaf.shape) if dim is None else leaf).clone()
        rest = {path: split[0] for path, split in splits.items()}
        return cls(PaddedTensors(per_client, 1), PaddedTensors(rest, 0), touched)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that the optimizer moves: `per_client`, then `rest`."""
        return [*self.per_client.tensors, *self.rest.tensors]

    def zeros(self) -> "BatchTree":
        """Zeros of the same shapes."""
        return BatchTree(self.per_client.zeros(), self.rest.zeros(), self._touched)

    def tree(self) -> Tree:
        """The tree, with partly stored leaves where `rest` holds the other rows."""
        flat: Record = self.per_client.reshape(self.per_client.tensors)
        if self._touched is not None:
            for path, rest in self.rest.reshape(self.rest.tensors).items():
                flat[path] = TouchedRows(rest, self._touched.rows, flat[path], self._touched.matrix)
        return nest(flat)

    def dims(self) -> Tree:
        """The batch dimensions of `tree`."""
        return nest({path: STACKED if path in self.rest.shapes else 0 for path in self.per_client.shapes})


def restore_touched_rows(state: Tree, graph: Graph) -> Tree:
    """The optimizer states in a stacked state (dicts with "steps"), stored as `TouchedRows` as `fit` returns them.
    A checkpoint or another batch has them whole. Requires that all clients have made the same number of steps.

    Waits for the states' device; engines call it between steps.
    """
    touched = TouchedFeatures.of((graph, graph))
    if "steps" not in state or touched is None:
        return {k: restore_touched_rows(v, graph) if isinstance(v, dict) else v for k, v in state.items()}
    steps = state["steps"]
    if not isinstance(steps, Tensor) or not bool((steps == steps[0]).all()):
        return state
    entries = dict(leaves(state))
    for path, leaf in entries.items():
        if isinstance(leaf, Tensor) and leaf.shape[1:2] == (touched.matrix.cols,):
            entries[path] = touched.store_partly(leaf)
    return nest(entries | {"steps": shared_scalar(steps[0], len(steps))})


def fill_in(tree: TreeDims) -> TreeDims:
    """A tree and its batch dimensions, with partly stored leaves filled in."""
    dims = dict(leaves(tree[1] or {}))
    return _tree_and_dims({path: _fill_in_leaf(leaf, dims[path]) for path, leaf in leaves(tree[0] or {})})


def _tree_and_dims(entries: dict[str, TreeDims]) -> TreeDims:
    tree = {path: leaf for path, (leaf, _) in entries.items()}
    dims = {path: dim for path, (_, dim) in entries.items()}
    return nest(tree), nest(dims)


def _fill_in_leaf(leaf: Tensor | TouchedRows, dim: Dim) -> tuple[Tensor, Dim]:
    return (vmap(materialize, in_dims=(dim,))(leaf), 0) if isinstance(leaf, TouchedRows) else (leaf, dim)
