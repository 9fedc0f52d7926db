"""The part of a graph that one example's score depends on, copies of it with something left out, and their scores."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedweave.core.edge_attributes import OF_EXAMPLES, ROWS, EdgeAttributes
from fedweave.core.graph import RELATION, SEVERAL, TEST, Graph, make_graph
from fedweave.core.graph_arrays import dense
from fedweave.core.model import PAIRS, Model
from fedweave.core.operators import POOLS
from fedweave.core.tree import Tree
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.experiment.runs.outputs import probabilities

NUMBERS = 1 << 24  # of features and edges of the copies in one pass
WEIGHT = 16  # numbers that a node, or an edge, takes in addition to features
FAR = np.iinfo(np.int64).max  # the distance of a node that no path joins to the example


@dataclass(frozen=True)
class Neighborhood:
    """n nodes with d features, M edges and the examples among them; the `target` is one of these.

    x:        float32 [n, d]; sparse where nodes have learned vectors (`learned`).
    pairs:    int64 [2, P], who is joined to whom, each pair once.
    edge_attrs:  the edges with their attributes; None where the edges are the pairs.
    y, masks: of the examples, as in `Dataset`.
    example:  what an example is: "node", "edge" or "graph"; of graphs there is one.
    target:   the place of the example among these.
    link:     int64 [3], where the example is a pair of nodes that may be linked: their places here, and the relation;
              else None. The edges are those that carry messages. several: whether links have several relations.
    learned:  whether nodes have learned vectors, and no features.
    nodes:    int64 [n], the places of the nodes in the data; of the edges, or pairs, `edges` int64 [M].
    distance: int64 [n], of each node from the example; `FAR` where nothing joins them.
    sparse:   whether models read the features as a sparse matrix.
    scale:    see `Dataset.target_scale`.
    """

    x: "np.ndarray | sp.csr_matrix"
    pairs: np.ndarray
    edge_attrs: EdgeAttributes | None
    y: np.ndarray
    masks: np.ndarray
    example: str
    target: int
    nodes: np.ndarray
    edges: np.ndarray
    distance: np.ndarray
    sparse: bool
    scale: np.ndarray | None
    link: np.ndarray | None = None
    several: bool = False
    learned: bool = False

    @property
    def place(self) -> "int | np.ndarray":
        """The example as `around` takes it: its place in the data, or of a link the places of its ends there."""
        if self.link is not None:
            return np.array([*self.nodes[self.link[:2]], self.link[RELATION]])
        rows = self.nodes if self.example == "node" else self.edges
        return int(rows[self.target])

    @property
    def ends(self) -> np.ndarray:
        """int64 [2, M], the nodes that each edge joins."""
        return self.pairs if self.edge_attrs is None else self.edge_attrs.ends

    @property
    def near(self) -> np.ndarray:
        """int64, the nodes that the example is, joins or consists of."""
        return np.flatnonzero(self.distance == 0)

    @property
    def neighbors(self) -> int:
        """How many nodes are one edge away."""
        return int((self.distance == 1).sum())

    def without(self, node: int | np.ndarray | None = None, edge: int | np.ndarray | None = None) -> "Neighborhood":
        """The same without a node, or several, and their edges, or without an edge, or several."""
        node_stays = np.ones(len(self.nodes), bool)
        if node is not None:
            node_stays[node] = False
        edge_stays = node_stays[self.ends].all(0)
        if edge is not None:
            edge_stays[edge] = False
        number = np.cumsum(node_stays) - 1  # [n], of the nodes that stay
        pair_stays, edge_attrs = edge_stays, self.edge_attrs
        if edge_attrs is not None:  # a pair stays while one of its edges does
            ends = self.ends[:, edge_stays]
            codes = [np.minimum(*pairs) * len(node_stays) + np.maximum(*pairs) for pairs in (self.pairs, ends)]
            pair_stays = np.isin(*codes)
            edge_attrs = edge_attrs.select(edge_stays, number[ends])
        rows = {"node": node_stays, "edge": edge_stays}.get(self.example, np.ones(len(self.y), bool))
        return replace(
            self,
            x=self.x[node_stays],
            pairs=number[self.pairs[:, pair_stays]],
            edge_attrs=edge_attrs,
            y=self.y[rows],
            masks=self.masks[:, rows],
            target=int(rows[: self.target].sum()),
            nodes=self.nodes[node_stays],
            edges=self.edges[edge_stays],
            distance=self.distance[node_stays],
            link=None if self.link is None else np.array([*number[self.link[:2]], self.link[RELATION]]),
        )

    def blank(self) -> "Neighborhood":
        """The same where all features are 0."""
        return replace(self, x=self.x * np.float32(0))

    def with_columns(self, nodes: np.ndarray, columns: list[int], values: np.ndarray) -> "Neighborhood":
        """The same with values [c] in `columns` of some nodes."""
        x = dense(self.x).copy()
        x[nodes[:, None], columns] = values
        return replace(self, x=x)

    def with_edge_columns(self, edge: int, columns: list[int], values: np.ndarray) -> "Neighborhood":
        """The same with values [c] in `columns` of what one edge carries.

        Raises:
            ValueError: edges carry no features.
        """
        if self.edge_attrs is None or self.edge_attrs.features is None:
            raise ValueError("the edges carry no features")
        features = self.edge_attrs.features.copy()
        features[edge, columns] = values
        return replace(self, edge_attrs=self.edge_attrs._replace(features=features))


def reach(net: Model) -> int | None:
    """From how many edges away a model reads nodes for an example; None where it may read the whole graph."""
    if any(layer.runs_alone for layer in net):
        return None
    passing = [layer for layer in net if layer.operator and layer.operator not in {*POOLS, *OF_EXAMPLES, PAIRS}]
    return sum(2 if layer.reads == "graph" else 1 for layer in passing)  # which may read neighbors' neighbors


def around(
    data: Dataset, example: "int | np.ndarray", hops: int | None, several: bool = False, learned: bool = False
) -> Neighborhood:
    """The neighborhood of an example of `data` up to `hops` edges away; None is the whole graph. Of a small graph it is
    the graph. Of a pair of nodes, int64 [3] with a relation, `data` has the edges that carry messages. several,
    learned: see `Neighborhood`."""
    # 1. The distance of each node.
    starts = np.searchsorted(data.edges[0], np.arange(data.nodes + 1))  # [nodes + 1], of each node's edges
    distance = np.full(data.nodes, FAR)
    distance[_near(data, example)] = 0
    frontier, step = np.flatnonzero(distance == 0), 0
    while len(frontier) and (hops is None or step < hops) and data.example != "graph":
        step += 1
        reached = np.unique(np.concatenate([data.edges[1, starts[node] : starts[node + 1]] for node in frontier]))
        frontier = reached[distance[reached] == FAR]
        distance[frontier] = step

    # 2. The nodes, the pairs and the edges among them.
    is_whole = hops is None and data.example != "graph"
    nodes = np.arange(data.nodes) if is_whole else np.flatnonzero(distance < FAR)
    number = np.full(data.nodes, -1)
    number[nodes] = np.arange(len(nodes))
    edges_here = number[data.edges]  # [2, edges], -1 at ends elsewhere
    edges = np.flatnonzero((edges_here >= 0).all(0) & (edges_here[0] < edges_here[1]))
    pairs, edge_attrs = edges_here[:, edges], data.edge_attrs
    if edge_attrs is not None:
        ends = number[edge_attrs.ends]
        edges = np.flatnonzero((ends >= 0).all(0))
        edge_attrs = edge_attrs.select(edges, ends[:, edges])

    # 3. The examples.
    rows = {"node": nodes, "edge": edges}.get(data.example, np.array([example]))
    link = None if isinstance(example, int) else np.array([*number[example[:2]], example[RELATION]])
    masks = np.zeros((3, data.examples), bool) if data.public is None else np.asarray(data.public)
    return Neighborhood(
        x=data.x[nodes] if learned else np.asarray(dense(data.x[nodes]), np.float32),
        pairs=pairs,
        edge_attrs=edge_attrs,
        y=data.y[rows],
        masks=masks[:, rows],
        example=data.example,
        target=int(np.searchsorted(rows, example)) if isinstance(example, int) else 0,
        nodes=nodes,
        edges=edges,
        distance=distance[nodes],
        sparse=sp.issparse(data.x),
        scale=data.target_scale,
        link=link,
        several=several,
        learned=learned,
    )


def _near(data: Dataset, example: "int | np.ndarray") -> np.ndarray:
    """The nodes that an example is, joins or consists of."""
    if not isinstance(example, int):
        return example[:2]
    if data.graph_of is not None:
        return np.flatnonzero(data.graph_of == example)
    if data.example == "edge" and data.edge_attrs is not None:
        return data.edge_attrs.ends[:, example]
    return np.array([example])


def join_copies(copies: Sequence[Neighborhood], dtype: torch.dtype) -> tuple[Graph, Tensor]:
    """The graph of some neighborhoods side by side, and int64, the place of each one's target among its examples."""
    # 1. Nodes, pairs and edges; those of a copy are numbered after the copies before it.
    first, sizes = copies[0], np.array([len(copy.nodes) for copy in copies])
    offsets = np.cumsum(sizes) - sizes  # [copies]
    pairs = np.concatenate([copy.pairs + offset for copy, offset in zip(copies, offsets, strict=True)], 1)
    edges = to_undirected(pairs, int(sizes.sum()))
    x = sp.vstack([copy.x for copy in copies]) if first.learned else np.concatenate([copy.x for copy in copies])
    features = sp.csr_matrix(x) if first.sparse else x
    attributes = first.edge_attrs
    if attributes is not None:
        each = [copy.edge_attrs for copy in copies if copy.edge_attrs is not None]
        ends = np.concatenate([one.ends + offset for one, offset in zip(each, offsets, strict=True)], 1)
        rows = Record()
        for name in ROWS:
            if getattr(each[0], name) is not None:
                rows[name] = np.concatenate([getattr(one, name) for one in each])
        attributes = attributes._replace(ends=ends, **rows)

    # 2. Pairs of nodes that may be linked: each copy has one, a test link.
    if first.link is not None:
        links = []
        for copy, offset in zip(copies, offsets, strict=True):
            if copy.link is not None:
                links.append(copy.link + np.array([offset, offset, 0]))
        masks = np.zeros((3, len(links)), bool)
        masks[TEST] = True
        graph = make_graph(
            features,
            edges,
            np.ones(len(links), np.int64),
            masks,
            dtype=dtype,
            edge_attrs=attributes,
            pairs=np.stack(links, 1),
            ranks=np.tile([[-1], [0]], len(links)),
            lists={SEVERAL: np.ones(1, np.int64)} if first.several else None,
        )
        return graph, torch.arange(len(links), device="cpu")

    # 3. Nodes, edges or small graphs.
    graph = make_graph(
        features,
        edges,
        np.concatenate([copy.y for copy in copies]),
        np.concatenate([copy.masks for copy in copies], 1),
        dtype=dtype,
        graph_of=np.repeat(np.arange(len(copies)), sizes) if first.example == "graph" else None,
        edge_attrs=attributes,
        scale=first.scale,
    )
    before = np.cumsum([0, *(len(copy.y) for copy in copies[:-1])])  # [copies], examples of earlier copies
    return graph, torch.from_numpy(before + [copy.target for copy in copies])


def batches(copies: Iterable[Neighborhood], alone: bool) -> Iterator[Sequence[Neighborhood]]:
    """The copies, made as they are needed, in parts that fit into memory; alone: one after the other."""
    part, size = list[Neighborhood](), 0
    for copy in copies:
        part.append(copy)
        size += copy.x.size + WEIGHT * (len(copy.nodes) + copy.ends.shape[1])
        if size > NUMBERS or alone:
            yield part
            part, size = [], 0
    if part:
        yield part


def scores(net: Model, w: Tree, copies: Iterable[Neighborhood], dtype: torch.dtype, alone: bool = False) -> np.ndarray:
    """float64 [copies, outputs]: what `outputs.probabilities` says of the target of each copy."""
    rows = list[np.ndarray]()
    for part in batches(copies, alone):
        graph, targets = join_copies(part, dtype)
        rows.append(probabilities(net, w, graph)[targets].double().numpy())
    return np.concatenate(rows)
