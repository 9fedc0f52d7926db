"""One graph type for all scenarios, and how clients' graphs are padded and stacked."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedweave.core.edges import MessagePassing
from fedweave.core.kinds import kinds
from fedweave.core.sizes import BLOCK, least_rows
from fedweave.ops.csr import Csr, StackedCsr
from fedweave.ops.rows import rounded
from fedweave.ops.sparse import Sparse
from fedweave.ops.tape import derived

TRAIN, VAL, TEST = 0, 1, 2
SPLITS = ("train", "val", "test")


class Graph(NamedTuple):
    """One client's graph with n nodes, d features, e examples and c classes; nodes and examples are padded.

    The examples are the nodes (e = n) or, with `graph_of`, the small graphs that the nodes belong to.

    x:        float [n, d], dense or `Sparse`; all zero at padding.
    edges:    who is connected to whom, and the operators made of it (see `Edges`).
    y:        int64 [e], class of each example; -1 is unlabelled or padding.
    masks:    bool [3, e], rows TRAIN, VAL, TEST; False at padding and at unlabelled examples.
    real:     bool [n], False at padding.
    sens:     int64 [e] sensitive attribute, -1 unknown; None if the data has none. Never an input of a model.
    graph_of: int64 [n], the small graph of each node, rising; -1 at padding. None where nodes are the examples.
    """

    x: "Tensor | Sparse"
    edges: MessagePassing
    y: Tensor
    masks: Tensor
    real: Tensor
    sens: Tensor | None = None
    graph_of: Tensor | None = None

    @property
    def nodes(self) -> int:
        """n, padding included."""
        return len(self.real)

    @property
    def own_edges(self) -> "Edges":
        """The client's whole edges, to sample from.

        Raises:
            TypeError: these are edges of a sample.
        """
        if not isinstance(self.edges, Edges):
            raise TypeError(f"{type(self.edges).__name__} are edges of a sample; sample from a client's whole graph")
        return self.edges

    @property
    def roots(self) -> tuple[Any, ...]:
        """What operators and other things are derived from (see `ops.tape.derived`)."""
        return getattr(self.x, "blocks", None), getattr(self.edges, "cache", None)


class MotifTable(NamedTuple):
    """Motifs that a client's examples have in common with others', K rows of which the last may be padding.

    numbers: int64 [K], the same for the same motif at every client; -1 is padding.
    having:  [K, e], 1 where an example has a motif; empty rows at padding.
    names:   what people call them; none at padding.
    """

    numbers: np.ndarray
    having: sp.csr_matrix
    names: tuple[str, ...] = ()


class EdgeList:
    """The raw edges of one client, in NumPy.

    index:    int64 [2, E], both directions of every undirected edge, no self loops.
    nodes:    rows of the graph, padding included.
    weight:   float [E]; None where all are 1.
    graph_of: int64 [m ≤ nodes], the small graph of each node; None where nodes are the examples.
    examples: small graphs, padding included.
    motifs:   what the small graphs have in common with others'; None where nobody asked for that.
    features: [m, d], the nodes'; None where nobody compares them.
    """

    def __init__(
        self,
        index: np.ndarray,
        nodes: int,
        weight: np.ndarray | None = None,
        graph_of: np.ndarray | None = None,
        examples: int = 0,
        motifs: MotifTable | None = None,
        features: "np.ndarray | sp.csr_matrix | None" = None,
    ) -> None:
        self.index, self.nodes, self.weight, self.graph_of, self.examples = index, nodes, weight, graph_of, examples
        self.motifs, self.features = motifs, features
        self._made: dict[str, Csr] = {}

    @cached_property
    def adjacency(self) -> sp.csr_matrix:
        """[nodes, nodes]; entry (i, j) is the weight of the edge from j to i."""
        values = np.ones(self.index.shape[1], np.float32) if self.weight is None else self.weight
        return sp.csr_matrix((values, (self.index[1], self.index[0])), shape=(self.nodes, self.nodes))

    @cached_property
    def membership(self) -> sp.csr_matrix:
        """[examples, nodes]; entry (i, j) is 1 where node j belongs to small graph i.

        Raises:
            ValueError: nodes are the examples.
        """
        if self.graph_of is None:
            raise ValueError("the examples are nodes, so there is nothing to pool; choose model.pool = 'none'")
        values = np.ones(len(self.graph_of), np.float32 if self.weight is None else self.weight.dtype)
        return sp.csr_matrix(
            (values, (self.graph_of, np.arange(len(self.graph_of)))), shape=(self.examples, self.nodes)
        )

    @cached_property
    def alike(self) -> tuple[np.ndarray, np.ndarray]:
        """One node of each kind, and the kind of each (see `core.kinds`); every node is one if nobody compares them."""
        if self.features is None:
            return np.arange(self.nodes), np.arange(self.nodes)
        return kinds(self.features, self.adjacency)

    @property
    def known_motifs(self) -> MotifTable:
        """`motifs`, with a column for each example, padding included.

        Raises:
            ValueError: nobody looked for motifs.
        """
        if self.motifs is None:
            raise ValueError(
                "no motifs are known here; they are looked for in small graphs, where a part asks for them"
            )
        numbers, having, names = self.motifs
        kind = np.float32 if self.weight is None else self.weight.dtype
        csr = (having.data.astype(kind), having.indices, having.indptr)
        return MotifTable(numbers, sp.csr_matrix(csr, shape=(len(numbers), self.examples)), names)

    def operator(self, kind: str) -> Csr:
        """One of the matrices of `Edges.operator`, built once."""
        if kind not in self._made:
            if kind == MOTIF_MEAN:
                made = _mean(self.known_motifs.having)
            elif kind == KINDS_SUM:
                made = _looped(self.adjacency)[self.alike[0]]
                made.resize(least_rows(made.shape[0]), self.nodes)
            elif kind == KINDS_SPREAD:
                ones, rows = np.ones(self.nodes, self.adjacency.dtype), np.arange(self.nodes)
                made = sp.csr_matrix((ones, (rows, self.alike[1])), shape=(self.nodes, least_rows(len(self.alike[0]))))
            else:
                made = POOLS[kind](self.membership) if kind in POOLS else OPERATORS[kind](self.adjacency)
            self._made[kind] = Csr.of(made)
        return self._made[kind]


class Neighbours(NamedTuple):
    """Who can be reached from each node of one client in one hop.

    first, degree: int64 [n]; the neighbours of node v are `columns[first[v] : first[v] + degree[v]]`.
    columns:       int64 [E], padded with 0.
    """

    first: Tensor
    degree: Tensor
    columns: Tensor


class BatchCache:
    """A batch's edges, each client's padded to `nodes`, and what is made of them and lasts as long as they do:
    operators and neighbours, stacked over clients, and the sizes of lists of nodes."""

    def __init__(self, members: Sequence[EdgeList], nodes: int) -> None:
        self.members, self.nodes = tuple(members), nodes
        self._sizes: dict[Any, int] = {}

    @property
    def sizes(self) -> tuple[int, int]:
        """(P, nodes)."""
        return len(self.members), self.nodes

    @derived
    def operator(self, kind: str) -> StackedCsr:
        """See `Edges.operator`."""
        made = [member.operator(kind) for member in self.members]
        return StackedCsr(made, max(one.rows for one in made), max(one.cols for one in made))

    @property
    @derived
    def neighbours(self) -> Neighbours:
        """The neighbours of every node, [P, …]."""
        width = max(1, *(member.index.shape[1] for member in self.members))
        tables = [torch.zeros(len(self.members), size, dtype=torch.int64) for size in (self.nodes, self.nodes, width)]
        for p, member in enumerate(self.members):
            a = member.adjacency
            for table, row in zip(tables, (a.indptr[:-1], np.diff(a.indptr), a.indices), strict=True):
                table[p, : len(row)] = torch.from_numpy(row.astype(np.int64))
        return Neighbours(*tables)

    @property
    @derived
    def motifs(self) -> Tensor:
        """The numbers of every client's motifs, int64 [P, K], padded with -1."""
        numbers = [torch.from_numpy(member.known_motifs.numbers) for member in self.members]
        return torch.nn.utils.rnn.pad_sequence(numbers, batch_first=True, padding_value=-1)

    def padded_size(self, name: Any, size: int) -> int:
        """What to pad the list `name` to, which has `size` entries now: the largest that was asked for yet, rounded up.
        Each combination of sizes is a computation of its own to record (`ops.recording`)."""
        self._sizes[name] = max(self._sizes.get(name, 0), rounded(size, 32, 8))
        return self._sizes[name]


class Edges:
    """The edges of one client; inside a vectorised call, of all clients at once.

    shrinks: whether a message-passing layer leaves fewer nodes than it found (see `sampling.ego`); never here.
    """

    shrinks = False

    def __init__(self, cache: BatchCache, client_index: Tensor) -> None:
        self.cache, self.client_index = cache, client_index

    @classmethod
    def of(cls, members: Sequence[EdgeList]) -> "Edges":
        """One client's edges, or those of several of one size, stacked."""
        client_index = torch.arange(len(members)) if len(members) > 1 else torch.tensor(0)
        return cls(BatchCache(members, members[0].nodes), client_index)

    @property
    def members(self) -> tuple[EdgeList, ...]:
        """The clients' raw edges."""
        return self.cache.members

    @property
    def nodes(self) -> int:
        """The rows of every client, padding included."""
        return self.cache.nodes

    def operator(self, kind: str) -> Sparse:
        """A message-passing matrix [n, n], or one that pools, [e, n].

        "sum" A, "mean" D^-1 A (Hamilton et al. 2017, eq. 1's mean aggregator), "gcn" D~^-1/2 (A + I) D~^-1/2 with D~
        the degree of A + I (Kipf and Welling 2017, eq. 2). A node without neighbours has an empty row in the first two;
        in "mean_or_self", otherwise "mean", it is its own neighbour. "sum_with_self" is A + I. "pool_sum" adds up the
        nodes of each small graph, "pool_mean" takes their mean. "motif_mean" [K, e] takes the mean over the examples
        that have each motif, 0 where none does. "kinds_sum" [k, n] has the rows of A + I of one node of each kind
        (`EdgeList.alike`), "kinds_spread" [n, k] gives every node what its kind has. "structure" [n, 32] passes no
        messages, but says where a node stands: the probabilities that a random walk is back after 1 to 16 steps, and
        its degree, one-hot, 16 standing for more; 0 for a node without neighbours (Tan et al. 2023, section 4.1).
        """
        return Sparse(self.cache.operator(kind), self.client_index)

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """The nodes that get new values, here all, and for each of them the mean over its neighbours."""
        return h, self.operator(kind) @ h

    @property
    def neighbours(self) -> Neighbours:
        """The neighbours of every node, to sample from."""
        return Neighbours(*(table.index_select(0, self.client_index[None])[0] for table in self.cache.neighbours))

    @property
    def motifs(self) -> Tensor:
        """The numbers of the examples' motifs, int64 [K], -1 at padding (see `MotifTable`).

        Raises:
            ValueError: nobody looked for motifs.
        """
        return self.cache.motifs.index_select(0, self.client_index[None])[0]


MOTIF_MEAN = "motif_mean"
KINDS_SUM, KINDS_SPREAD = "kinds_sum", "kinds_spread"


def _mean(a: sp.csr_matrix) -> sp.csr_matrix:
    degree = np.asarray(a.sum(1)).ravel()
    return sp.diags(np.divide(1, degree, out=np.zeros_like(degree), where=degree > 0)) @ a


def _mean_or_self(a: sp.csr_matrix) -> sp.csr_matrix:
    alone = sp.diags((np.diff(a.indptr) == 0).astype(a.dtype))
    return sp.csr_matrix(_mean(a) + alone)


def _looped(a: sp.csr_matrix) -> sp.csr_matrix:
    return a + sp.eye(a.shape[0], dtype=a.dtype, format="csr")


def _gcn(a: sp.csr_matrix) -> sp.csr_matrix:
    looped = _looped(a)
    scale = sp.diags(1 / np.sqrt(np.asarray(looped.sum(1)).ravel()))
    return scale @ looped @ scale


RETURNS, DEGREES = 16, 16  # columns of "structure"


def _structure(a: sp.csr_matrix) -> sp.csr_matrix:
    degree = np.diff(a.indptr)
    scale = sp.diags(np.divide(1, np.sqrt(degree), out=np.zeros(len(degree)), where=degree > 0))
    walk = sp.csr_matrix(scale @ a.astype(np.float64) @ scale)  # similar to D^-1 A, with the same diagonals of powers
    powers = [walk]
    for _ in range(1, RETURNS // 2):
        powers.append(powers[-1] @ walk)
    pairs = ((powers[(k + 1) // 2 - 1], powers[k // 2 - 1]) for k in range(2, RETURNS + 1))
    returns = [walk.diagonal(), *(np.asarray(one.multiply(other).sum(1)).ravel() for one, other in pairs)]
    classes = np.eye(DEGREES)[np.clip(degree, 1, DEGREES) - 1] * (degree > 0)[:, None]
    return sp.csr_matrix(np.concatenate([np.stack(returns, 1), classes], 1).astype(a.dtype))


OPERATORS = {
    "structure": _structure,
    "sum": lambda a: a,
    "sum_with_self": _looped,
    "mean": _mean,
    "mean_or_self": _mean_or_self,
    "gcn": _gcn,
}
POOLS = {"pool_sum": lambda members: members, "pool_mean": _mean}


def make_graph(
    x: "np.ndarray | sp.spmatrix | sp.sparray",
    edges: np.ndarray,
    y: np.ndarray,
    masks: np.ndarray,
    sens: np.ndarray | None = None,
    dtype: torch.dtype = torch.float32,
    rows: int | None = None,
    graph_of: np.ndarray | None = None,
    examples: int | None = None,
    motifs: MotifTable | None = None,
) -> Graph:
    """Build one client's padded `Graph` from arrays of n nodes and e examples: x [n, d], edges [2, E], y [e],
    masks [3, e], sens [e]. The examples are the nodes or, with `graph_of` [n], rising, small graphs.

    SciPy features stay sparse. `edges` holds both directions. An example without a label is in no mask, unless none has
    one: then the masks say how examples are used whose labels are withheld.

    rows, examples: what the nodes and the small graphs are padded to (see `core.sizes`); the fewest by default.
    motifs: of the small graphs, if any part asks for them.

    Raises:
        ValueError: these do not fit.
    """
    n, own = x.shape[0], len(y)
    rows = least_rows(n) if rows is None else rows
    examples = rows if graph_of is None else least_rows(own) if examples is None else examples
    for what, count, size in (("nodes", n, rows), ("examples", own, examples)):
        if size % BLOCK or size < count:
            raise ValueError(f"{count} {what} cannot be padded to {size} rows; take one of core.sizes")
    if sp.issparse(x):
        csr = Csr.of(sp.csr_matrix(x))
        starts = torch.cat([csr.starts, csr.starts[-1:].expand(rows - n)])
        features: Tensor | Sparse = Sparse.of(csr._replace(starts=starts, rows=rows, values=csr.values.to(dtype)))
    else:
        features = _padded(torch.as_tensor(np.asarray(x)).to(dtype), rows, 0)
    weight = None if dtype == torch.float32 else np.ones(edges.shape[1])
    known = y >= 0
    return Graph(
        x=features,
        edges=Edges.of([EdgeList(edges, rows, weight, graph_of, examples, motifs, None if graph_of is None else x)]),
        y=_padded(torch.as_tensor(y, dtype=torch.int64), examples, -1),
        masks=_padded(torch.as_tensor(masks).bool() & torch.as_tensor(known | ~known.any()), examples, False, dim=1),
        real=torch.arange(rows) < n,
        sens=None if sens is None else _padded(torch.as_tensor(sens, dtype=torch.int64), examples, -1),
        graph_of=None if graph_of is None else _padded(torch.as_tensor(graph_of, dtype=torch.int64), rows, -1),
    )


def stack(graphs: Sequence[Graph]) -> Graph:
    """Stack P clients' graphs of one size along a new first axis.

    For `torch.func.vmap`, whose in_dims are then 0 for the tensors and None for the rest.

    Raises:
        ValueError: the graphs have different numbers of nodes or examples, with padding.
    """
    rows = graphs[0].nodes
    for name, sizes in (("", [graph.nodes for graph in graphs]), (" of y", [len(graph.y) for graph in graphs])):
        if odd := set(sizes) - {sizes[0]}:
            raise ValueError(
                f"graphs of {sizes[0]} and {min(odd)} rows{name} cannot be stacked; pad them alike (core.sizes)"
            )
    members = [member for graph in graphs for member in graph.own_edges.members]
    client_index = torch.arange(len(graphs))
    if isinstance(graphs[0].x, Sparse):
        blocks = [graph.x.blocks.members[0] for graph in graphs]  # type: ignore[union-attr]
        x: Tensor | Sparse = Sparse(StackedCsr(blocks, rows, graphs[0].x.shape[1]), client_index)
    else:
        x = torch.stack([graph.x for graph in graphs])  # type: ignore[misc]

    def joined(name: str) -> Tensor | None:
        parts = [getattr(graph, name) for graph in graphs]
        return None if parts[0] is None else torch.stack(parts)

    return Graph(
        x=x,
        edges=Edges(BatchCache(members, rows), client_index),
        y=joined("y"),  # type: ignore[arg-type]
        masks=joined("masks"),  # type: ignore[arg-type]
        real=joined("real"),  # type: ignore[arg-type]
        sens=joined("sens"),
        graph_of=joined("graph_of"),
    )


def _padded(tensor: Tensor, size: int, value: float, dim: int = 0) -> Tensor:
    missing = size - tensor.shape[dim]
    if missing == 0:
        return tensor.clone()
    shape = list(tensor.shape)
    shape[dim] = missing
    return torch.cat([tensor, tensor.new_full(shape, value)], dim)


pytree.register_pytree_node(
    Edges,
    lambda edges: ([edges.client_index], edges.cache),
    lambda children, cache: Edges(cache, next(iter(children))),
)
