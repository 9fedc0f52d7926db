"""Clients' data, which steps may replace: checked, versioned, and stored for resuming."""

from abc import abstractmethod
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedweave.core.edges import Edges
from fedweave.core.federation import DATA
from fedweave.core.graph import Graph, make_graph, stack
from fedweave.core.graph_arrays import graph_arrays, graph_tree, tree_graph
from fedweave.core.shown import Shown
from fedweave.core.sizes import BLOCK
from fedweave.core.text import counted
from fedweave.core.tree import Tree
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import check, refuse
from fedweave.ops.sparse import Sparse

_REMEDY = "Make it with core.arrays.graph_like(client.graph, …)."


class LazyGraphs(Shown, Mapping[str, Graph]):
    """Clients' graphs that are made on first use."""

    def facts(self) -> dict[str, object]:
        """The number of clients."""
        return {"": counted(len(self), "client")}

    @abstractmethod
    def rows(self, client: str) -> tuple[int, int]:
        """Numbers of nodes and of examples of a client's graph, padding included."""

    @abstractmethod
    def stack(self, clients: Sequence[str]) -> Graph:
        """The graphs of these clients, which have one size, stacked (see `core.graph.stack`)."""


class CurrentGraphs(Shown, ChainMap[str, Graph]):
    """{client: its graph}: replaced graphs first, then the graphs as loaded, which may be `LazyGraphs`."""

    def facts(self) -> dict[str, object]:
        """The numbers of all clients and of clients with replaced graphs."""
        return {"": counted(len(self), "client"), "replaced": len(self.maps[0])}

    def rows(self, client: str) -> tuple[int, int]:
        replaced, loaded = self.maps
        if isinstance(loaded, LazyGraphs) and client not in replaced:
            return loaded.rows(client)
        graph = self[client]
        return graph.nodes, len(graph.y)

    def stack(self, clients: Sequence[str]) -> Graph:
        replaced, loaded = self.maps
        if isinstance(loaded, LazyGraphs) and replaced.keys().isdisjoint(clients):
            return loaded.stack(clients)
        return stack([self[client] for client in clients])


class ClientData:
    """The clients' graphs, and their versions: 0 as loaded, one more with every step that could replace them.

    graphs: {client: its current graph}. versions: {client: number} of clients whose version is not 0. classes: number
    of classes in all graphs. device: where steps see the graphs; None where each graph is.
    """

    def __init__(self, graphs: Mapping[str, Graph], classes: int, device: torch.device | None = None) -> None:
        self.graphs = CurrentGraphs({}, graphs)  # type: ignore[arg-type]  # the second map is never written to
        self.classes, self.versions, self._device = classes, Counter[str](), device
        self._moved: dict[str, Graph] = {}  # {client: copy of its graph on the device of steps}

    def on_device(self, client: str) -> Graph:
        """A client's graph on the device of steps. It is copied there once."""
        graph = self.graphs[client]
        if self._device is None or graph.device == self._device:
            return graph
        if client not in self._moved:
            self._moved[client] = graph.to(self._device)
        return self._moved[client]

    def replace(self, client: str, new: object, where: str, columns: int) -> bool:
        """Move to the next version: the `new` graph that a step made, or the same data again for None; returns whether
        there is another graph. where, columns: see `check_replacement`.

        Raises:
            DataError: see `check_replacement`.
        """
        graph = None if new is None else check_replacement(new, self.graphs[client], self.classes, where, columns)
        self._enter(client, graph)
        return graph is not None

    def _enter(self, client: str, graph: Graph | None) -> None:
        self.versions[client] += 1
        if graph is not None:
            self.graphs[client] = graph
            self._moved.pop(client, None)

    def dump(self) -> Tree:
        """{client: its version, and its graph if that was replaced} of all clients whose version is not 0."""
        replaced = self.graphs.maps[0]
        dump = Tree()
        for client, version in self.versions.items():
            if version:
                dump[client] = {"version": version}
                if client in replaced:
                    dump[client][DATA] = graph_tree(replaced[client])
        return dump

    def load(self, tree: Tree) -> None:
        """Undo `dump`: clients that are not in `tree` get their loaded graphs back."""
        for changed in (self.graphs.maps[0], self.versions, self._moved):
            changed.clear()
        for client, entry in tree.items():
            old = self.graphs[client]
            graph = tree_graph(entry[DATA]).to(old.device) if DATA in entry else None
            self._enter(client, graph)
            self.versions[client] = int(entry["version"])


def check_replacement(new: object, old: Graph, classes: int, where: str, columns: int) -> Graph:
    """Check a step's new graph and copy it into new memory; it has `columns` more columns than the old graph.

    Raises:
        DataError: it is not a graph, does not have the form of the `old` graph, or breaks a promise of `Dataset`; the
            message begins with `where`.
    """
    if not isinstance(new, Graph):
        refuse(where, f"it is a {type(new).__name__}, not a Graph", _REMEDY)
    fault = next(_faults(new, old, columns), "")
    if fault:
        refuse(where, fault, _REMEDY)
    values, edges, y, masks, sensitive, graph_of, attributes, scale, pairs, ranks, lists = graph_arrays(new)
    x = values.astype(np.float32)
    dataset = Dataset(where, x, edges, y, classes, sensitive, masks, graph_of=graph_of, edge_attrs=attributes)
    check(dataset, where, labelled=False)
    sizes = new.x.dtype, new.nodes, graph_of, len(new.y)
    more = {"edge_attrs": attributes, "scale": scale, "pairs": pairs, "ranks": ranks, "lists": lists}
    return make_graph(values, edges, y, masks, sensitive, *sizes, **more).to(old.device)  # type: ignore[arg-type]


def _faults(new: Graph, old: Graph, columns: int) -> Iterator[str]:
    """Differences between the forms of a graph and the `old` graph, and padding without neutral values."""
    rows, real = new.nodes, int(new.real.sum())
    examples = rows if old.example == "node" else len(new.y)
    if rows % BLOCK or not torch.equal(new.real, torch.arange(rows, device=new.device) < real):
        yield f"its real nodes are not the first of whole blocks of {BLOCK} rows"
    if not isinstance(new.edges, Edges) or [current.nodes for current in new.edges.members] != [rows]:
        yield f"its edges do not belong to one client with {rows} rows"
    if examples % BLOCK:
        yield f"its {examples} rows of y are not whole blocks of {BLOCK} rows"
    shapes: dict[str, tuple[int, ...]] = {
        "x": (rows, old.x.shape[1] + columns),
        "y": (examples, *old.y.shape[1:]),
        "masks": (3, examples),
        "sensitive": (examples,),
        "graph_of": (rows,),
    }
    for name, shape in shapes.items():
        was, now = getattr(old, name), getattr(new, name)
        if was is None or now is None:
            if was is not now:
                yield f"{name} is {'absent' if now is None else 'there'}, unlike before"
        elif isinstance(was, Sparse) != isinstance(now, Sparse) or now.dtype != was.dtype or tuple(now.shape) != shape:
            yield f"{name} is {_form(now)}, not {_form(was, shape)}"
    real_examples = len(graph_arrays(new).y)
    gap = float("nan") if new.y.is_floating_point() else -1
    padding = {
        "x": (0, real),
        "y": (gap, real_examples),
        "masks": (0, real_examples),
        "sensitive": (-1, real_examples),
        "graph_of": (-1, real),
    }
    for name, (value, count) in padding.items():
        values = getattr(new, name)
        if values is not None and not _has_neutral_padding(values, count, value, 1 if name == "masks" else 0):
            yield f"{name} does not end with {value} after its {count} real {'nodes' if count == real else 'examples'}"


def _has_neutral_padding(values: "Tensor | Sparse", real: int, neutral: float, dim: int) -> bool:
    if isinstance(values, Sparse):
        [member] = values.blocks.members
        return bool((member.starts[real:] == member.starts[-1]).all())
    padding = values.narrow(dim, real, values.shape[dim] - real)
    return bool((padding.isnan() if neutral != neutral else padding == neutral).all())


def _form(values: "Tensor | Sparse", shape: tuple[int, ...] | None = None) -> str:
    kind = "sparse" if isinstance(values, Sparse) else "dense"
    return f"{kind} {str(values.dtype).removeprefix('torch.')} {list(shape or values.shape)}"
