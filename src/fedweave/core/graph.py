"""One graph type for all scenarios, and how clients' graphs are padded and stacked."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.edge_list import EdgeList
from fedweave.core.edges import BatchCache, Edges
from fedweave.core.operators import EXAMPLES, NODES, MessagePassing, Precomputed, lookup_precomputed
from fedweave.core.shown import line, page
from fedweave.core.sizes import BLOCK, padded_rows
from fedweave.core.target import CLASS, NUMBER, is_labeled, kind_of, to_scale
from fedweave.ops.csr import Csr, StackedCsr
from fedweave.ops.sparse import Sparse

TRAIN, VAL, TEST = 0, 1, 2
SOURCE, TARGET, RELATION = 0, 1, 2  # rows of `Graph.pairs`
QUERY, QUERY_COUNT = 0, 1  # rows of `Graph.ranks`
# In `Graph.extra`, where links are the examples: the rows of the links to train on, -1 at padding; the sorted codes
# (relation n + source) n + target of the known links, with the largest number as padding; the nodes that a
# candidate may be, -1 at padding, where these are not all; where candidates are pairs, the rows of the others that are
# in a split, -1 at padding; and, in their length, whether there are several relations, and whether links join nodes
# with themselves.
TRAINED, KNOWN, ITEMS, SEVERAL = "trained links", "known links", "items", "several relations"
SPLIT_PAIRS = "pairs in a split"
LOOPS = "links of a node with itself"
LISTS = "lists of all items"  # each user's candidates are all items
# The drawn links that have ranks in evaluations of a sample (`Graph.with_sampled_ranks`): their rows, and the rows of
# their candidates or, where all nodes are candidates, the columns of their queries; -1 at padding.
RANKED_LINKS, RANKED_PAIRS = "links of the sample", "candidates of the sample"
# Where all nodes are candidates; see `core.candidates.Queries`.
QUERIES, CANDIDATES, FILTERED = "queries of links", "candidates of members", "links that members know"
OF_LINKS = (
    TRAINED,
    KNOWN,
    ITEMS,
    SPLIT_PAIRS,
    SEVERAL,
    LOOPS,
    LISTS,
    RANKED_LINKS,
    RANKED_PAIRS,
    QUERIES,
    CANDIDATES,
    FILTERED,
)
SPLITS = ("train", "val", "test")
# In `Graph.extra`, where links between members are predicted (`partition.crossing`); -1 at padding. The F foreign nodes
# that a client has links to have places 0 to F - 1, and in `Graph.pairs` the numbers from `Graph.nodes` on.
FOREIGN_PAIRS = "pairs with a foreign end"  # [c, 6]: own node, place, relation, whether it leads out, split, y
FOREIGN_TRAINED = "pairs with a foreign end to train on"  # [t, 1]: rows of FOREIGN_PAIRS, the links of training
FOREIGN_LINKS = "links to foreign nodes"  # [k, 1], sorted: codes (relation n + own node) F + place of all links
FOREIGN_NODES = "foreign nodes"  # [F, 2]: keyed hashes of the node's name, and of a pair that it is an end of
RECORDS = "pairs on record"  # [r, 2]: keyed hashes of all pairs with a foreign end, and own nodes
NODE_NAMES = "names of nodes"  # [n, 1]: keyed hashes
ROOM = "foreign nodes of one peer"  # its length: the most nodes that a client reports to one peer
FOREIGN = "rows of foreign nodes"  # float [F, k]: what the decoder reads of them, where a step has them


class Graph(NamedTuple):
    """One client's graph with n nodes, d features, e examples and c classes; nodes and examples are padded.

    The examples are the nodes (e = n), with `graph_of` the small graphs that the nodes belong to, the edges
    (`EdgeAttributes.examples`), or with `pairs` links: pairs of nodes; a model predicts whether they are joined.

    x:        float [n, d], dense or `Sparse`; all zero at padding.
    edges:    who is connected to whom, and the operators derived from it (see `Edges`).
    y:        int64 [e], class of each example; -1 is unlabeled or padding. Other targets are [e, t] (`core.target`).
    masks:    bool [3, e], rows TRAIN, VAL, TEST; False at padding and at unlabeled examples.
    real:     bool [n], False at padding.
    sensitive:
              int64 [e], the sensitive attribute, -1 unknown; None if the data has none. Never an input of a model.
    graph_of: int64 [n], the small graph of each node, rising; -1 at padding. None where nodes are the examples.
    extra:    what was precomputed on the data as it was loaded, where an algorithm asks for it
              (`core.operators.Precomputed`).
    scale:    float64 [3, t], the units of a model's outputs where these are numbers (`core.target.scale_of`), else
              None.
    pairs:    int64 [3, e], rows SOURCE, TARGET and RELATION, where links are the examples; RELATION is -1 at padding.
              y is 1 where they are joined, 0 where not, and -1 of pairs that only serve ranks. None otherwise.
    ranks:    int64 [2, e] with `pairs`, rows QUERY and QUERY_COUNT. For a pair that is not a link: the query that it is
              a candidate of, else -1. For a link: how many queries (0 to 2) it has. The queries of the link at row i
              are 2i, which replaces one end, and 2i + 1, which replaces the other. Where all nodes are candidates
              there is no pair for each (`core.candidates`).
    """

    x: "Tensor | Sparse"
    edges: MessagePassing
    y: Tensor
    masks: Tensor
    real: Tensor
    sensitive: Tensor | None = None
    graph_of: Tensor | None = None
    extra: Mapping[str, Tensor] = {}
    scale: Tensor | None = None
    pairs: Tensor | None = None
    ranks: Tensor | None = None

    def __repr__(self) -> str:
        return line("Graph", self.facts())

    def _repr_html_(self) -> str:
        return page("Graph", self.facts().items())

    def facts(self) -> dict[str, object]:
        """The graph's size, and how many examples each split has; only the shape for stacked graphs and inside
        `torch.func`."""
        if self.real.dim() != 1 or torch._C._functorch.is_functorch_wrapped_tensor(self.real):
            return {"x": tuple(self.x.shape)}
        splits = {name: int(mask.sum()) for name, mask in zip(SPLITS, self.masks, strict=True)}
        return {"nodes": int(self.real.sum()), "rows": len(self.real), "features": self.x.shape[-1], **splits}

    @property
    def target(self) -> str:
        """What a model predicts for an example (`core.target`): "class", "number" or "labels"."""
        return kind_of(self.y)

    @property
    def truth(self) -> Tensor:
        """The targets of a loss: classes int64 [e], 0 where unlabeled; labels int64 [e, t], -1 at gaps; or
        numbers [e, t] in units of `scale`, NaN at gaps."""
        if self.target == CLASS:
            return self.y.clamp(min=0)
        return self.y if self.scale is None else to_scale(self.y, self.scale)

    def truth_at(self, chosen: Tensor) -> Tensor:
        """The rows of `truth` of examples int64 […]: […] or […, t]."""
        truth, at = self.truth, chosen.reshape(-1)
        if truth.dim() == 1:
            return truth.gather(0, at).view(chosen.shape)
        return truth.index_select(0, at).view(*chosen.shape, truth.shape[1])

    @property
    def nodes(self) -> int:
        """n, padding included."""
        return self.real.shape[0]  # not its `len`, which `torch.export` would take for a constant

    @property
    def device(self) -> torch.device:
        """Where its tensors lie."""
        return self.real.device

    def to(self, device: torch.device | str) -> "Graph":
        """The same graph on a device, whole edges included; that device then derives operators from them again.

        Raises:
            TypeError: its edges are a sample's.
        """
        if self.device == torch.device(device):
            return self
        optional = ("sensitive", "graph_of", "scale", "pairs", "ranks")
        tensors = {name: getattr(self, name) for name in optional if getattr(self, name) is not None}
        return self._replace(
            x=self.x.to(device),
            edges=self.whole_edges.to(device),
            y=self.y.to(device),
            masks=self.masks.to(device),
            real=self.real.to(device),
            extra={name: tensor.to(device) for name, tensor in self.extra.items()},
            **{name: tensor.to(device) for name, tensor in tensors.items()},
        )

    def precomputed(self, name: str) -> Tensor:
        """The values that were precomputed under a name, as in `extra`.

        Raises:
            ValueError: no algorithm asked for it.
        """
        return lookup_precomputed(self.extra, name)

    @property
    def example(self) -> str:
        """The kind of an example: "node", "graph", "edge" or "link"."""
        if self.pairs is not None:
            return "link"
        if self.graph_of is not None:
            return "graph"
        attributes = self.edges.members[0].edge_attrs if isinstance(self.edges, Edges) else None
        return "edge" if attributes is not None and attributes.examples else "node"

    @property
    def several(self) -> bool:
        """Whether its links have several relations."""
        return SEVERAL in self.extra

    @property
    def usable_examples(self) -> Tensor:
        """bool [e]: nodes that are not padding or, for small graphs and edges, examples that are in a split; where
        messages depend on the split, the training examples."""
        if self.depends_on_split:
            return self.masks[TRAIN]
        return self.real if self.example == "node" else self.masks.any(0)

    @property
    def in_splits(self) -> "Graph":
        """The same graph of links without the pairs that only serve ranks (`SPLIT_PAIRS`)."""
        rows = self.extra[SPLIT_PAIRS]
        at = rows.clamp(min=0)  # [m]
        of_three = at.expand(3, -1)
        pairs = None if self.pairs is None else self.pairs.gather(1, of_three)
        masks = self.masks.gather(1, of_three) & (rows >= 0)
        return self._replace(y=self.y.gather(0, at), masks=masks, pairs=pairs, ranks=None)

    @property
    def with_sampled_ranks(self) -> "Graph":
        """The same graph of links in which only a sample of the links has ranks (`RANKED_LINKS`); itself where all
        have. Of pairs that only serve ranks, it has those of the sample, after all that are in a split."""
        if RANKED_LINKS not in self.extra or self.ranks is None or self.pairs is None:
            return self
        links, more = self.extra[RANKED_LINKS], self.extra[RANKED_PAIRS]
        drawn = torch.zeros_like(self.y).scatter_add(0, links.clamp(min=0), (links >= 0).long())  # [e], 0 or 1
        query, count = self.ranks[QUERY], self.ranks[QUERY_COUNT] * drawn
        if SPLIT_PAIRS not in self.extra:  # all nodes are candidates
            queries = self.extra[QUERIES].gather(1, more.clamp(min=0).expand(3, -1))
            queries = torch.where(more >= 0, queries, -1)
            return self._replace(ranks=torch.stack([query, count]), extra={**self.extra, QUERIES: queries})
        split = self.extra[SPLIT_PAIRS]
        place = torch.arange(len(split), device=split.device)
        new_place = torch.zeros_like(self.y).scatter_add(0, split.clamp(min=0), torch.where(split >= 0, place, 0))
        rows = torch.cat([split, more])  # [m]
        at = rows.clamp(min=0)
        query, count = query.gather(0, at), count.gather(0, at)
        query = torch.where(query >= 0, 2 * new_place.gather(0, query.clamp(min=0) // 2) + query % 2, query)
        return self._replace(
            y=self.y.gather(0, at),
            masks=self.masks.gather(1, at.expand(3, -1)) & (rows >= 0),
            pairs=self.pairs.gather(1, at.expand(3, -1)),
            ranks=torch.stack([torch.where(rows >= 0, query, -1), torch.where(rows >= 0, count, 0)]),
            extra={**self.extra, SPLIT_PAIRS: torch.where(split >= 0, place, -1)},
        )

    def at(self, split: int) -> "Graph":
        """The same graph with the messages for the examples of a split (`EdgeList.at`)."""
        return self._replace(edges=self.edges.at(split)) if isinstance(self.edges, Edges) else self

    @property
    def depends_on_split(self) -> bool:
        """Whether these messages depend on the split."""
        return isinstance(self.edges, Edges) and self.edges.cache.depends_on_split

    @property
    def whole_edges(self) -> Edges:
        """The client's whole edges, to sample from.

        Raises:
            TypeError: the edges are a sample's.
        """
        if not isinstance(self.edges, Edges):
            raise TypeError(f"{type(self.edges).__name__} are edges of a sample; sample from a client's whole graph")
        return self.edges

    @property
    def roots(self) -> tuple[object, ...]:
        """The objects from which operators and other values are derived (see `ops.tape.derived`)."""
        rows = self.x.blocks if isinstance(self.x, Sparse) else None
        return rows, self.edges.cache if isinstance(self.edges, Edges) else None


def make_graph(
    x: "np.ndarray | sp.spmatrix | sp.sparray",
    edges: np.ndarray,
    y: np.ndarray,
    masks: np.ndarray,
    sensitive: np.ndarray | None = None,
    dtype: torch.dtype = torch.float32,
    rows: int | None = None,
    graph_of: np.ndarray | None = None,
    examples: int | None = None,
    extra: Precomputed | None = None,
    edge_attrs: EdgeAttributes | None = None,
    scale: np.ndarray | None = None,
    pairs: np.ndarray | None = None,
    ranks: np.ndarray | None = None,
    lists: Mapping[str, np.ndarray] | None = None,
) -> Graph:
    """Build one client's padded `Graph` from arrays of n nodes and e examples: x [n, d], edges [2, E], y [e] or [e, t],
    masks [3, e], sensitive [e]. The examples are the nodes, with `graph_of` [n], rising, small graphs, edges if
    `edge_attrs` says so, or links with `pairs` [3, e] and `ranks` [2, e].

    SciPy features stay sparse. `edges` holds both directions. An example without a label is in no mask, unless no
    example has a label: then the masks say how examples with withheld labels are used.

    rows, examples: what nodes, and small graphs or edges, are padded to (see `core.sizes`); the fewest by default.
    extra: what was precomputed on the same data, lists in one length for all clients. edge_attrs: the same
    edges with their attributes, if any. scale: see `Graph`. lists: further entries of `Graph.extra`, as they are.

    The graph is on the host; `Graph.to` moves it.

    Raises:
        ValueError: the sizes do not fit.
    """
    n, label_count = x.shape[0], len(y)
    rows = padded_rows(n) if rows is None else rows
    of_nodes = graph_of is None and (edge_attrs is None or not edge_attrs.examples) and pairs is None
    if of_nodes:
        examples = rows
    elif examples is None:
        examples = padded_rows(label_count)
    for what, count, size in (("nodes", n, rows), ("examples", label_count, examples)):
        if size % BLOCK or size < count:
            raise ValueError(f"{count} {what} cannot be padded to {size} rows; take one of core.sizes")
    if sp.issparse(x):
        csr = Csr.of(sp.csr_matrix(x))
        starts = torch.cat([csr.starts, csr.starts[-1:].expand(rows - n)])
        features: Tensor | Sparse = Sparse.of(csr._replace(starts=starts, rows=rows, values=csr.values.to(dtype)))
    else:
        features = _pad(torch.from_numpy(np.asarray(x)).to(dtype), rows, 0)
    if kind_of(y) == NUMBER:
        target = _pad(torch.as_tensor(y, dtype=torch.float64, device="cpu"), examples, float("nan"))
    else:
        target = _pad(_int64(y), examples, -1)
    padded_pairs = None
    if pairs is not None:  # at padding node 0 twice, with relation -1
        padded_pairs = _pad(_int64(pairs), examples, 0, dim=1)
        padded_pairs[RELATION, pairs.shape[1] :] = -1
    weight = None if dtype == torch.float32 else np.ones(edges.shape[1])
    has_label = is_labeled(y)
    compared_features = None if graph_of is None else x
    extra = (extra or Precomputed()).pad({NODES: rows, EXAMPLES: examples})
    return Graph(
        x=features,
        edges=Edges.of([EdgeList(edges, rows, weight, graph_of, examples, extra, compared_features, edge_attrs)]),
        y=target,
        masks=_pad(torch.from_numpy(np.asarray(masks, bool) & (has_label | ~has_label.any())), examples, False, dim=1),
        real=torch.arange(rows, device="cpu") < n,
        sensitive=None if sensitive is None else _pad(_int64(sensitive), examples, -1),
        graph_of=None if graph_of is None else _pad(_int64(graph_of), rows, -1),
        extra={name: torch.from_numpy(array) for name, array in {**extra.arrays, **(lists or {})}.items()},
        scale=None if scale is None else torch.from_numpy(np.asarray(scale, np.float64)),
        pairs=padded_pairs,
        ranks=None if ranks is None else _pad(_int64(ranks), examples, -1, dim=1),
    )


def stack(graphs: Sequence[Graph]) -> Graph:
    """Stack P clients' graphs of one size along a new first axis.

    For `torch.func.vmap`, whose in_dims are then 0 for the tensors and None for the rest.

    Raises:
        ValueError: the graphs have different numbers of nodes or examples, with padding.
    """
    rows, examples = graphs[0].nodes, len(graphs[0].y)
    for graph in graphs:
        if (graph.nodes, len(graph.y)) != (rows, examples):
            raise ValueError(
                f"graphs of {rows} and {graph.nodes} rows, {examples} and {len(graph.y)} rows of y, cannot be stacked; "
                "pad them alike (core.sizes)"
            )
    members = list(chain.from_iterable(graph.whole_edges.members for graph in graphs))
    device = graphs[0].device
    client_index = torch.arange(len(graphs), device=device)
    if isinstance(graphs[0].x, Sparse):
        blocks = [graph.x.blocks.members[0] for graph in graphs]  # type: ignore[union-attr]
        x: Tensor | Sparse = Sparse(StackedCsr(blocks, rows, graphs[0].x.shape[1], device), client_index)
    else:
        # one large client's features are not copied
        x = graphs[0].x[None] if len(graphs) == 1 else torch.stack([graph.x for graph in graphs])  # type: ignore[misc]

    def stack_field(name: str) -> Tensor | None:
        parts = [getattr(graph, name) for graph in graphs]
        return None if parts[0] is None else torch.stack(parts)

    extra = dict[str, Tensor]()
    for name in graphs[0].extra:
        if all(name in graph.extra for graph in graphs):
            extra[name] = torch.stack([graph.extra[name] for graph in graphs])
    return Graph(
        x=x,
        edges=Edges(BatchCache(members, rows, device), client_index),
        y=stack_field("y"),  # type: ignore[arg-type]
        masks=stack_field("masks"),  # type: ignore[arg-type]
        real=stack_field("real"),  # type: ignore[arg-type]
        sensitive=stack_field("sensitive"),
        graph_of=stack_field("graph_of"),
        extra=extra,
        scale=stack_field("scale"),
        pairs=stack_field("pairs"),
        ranks=stack_field("ranks"),
    )


def _int64(numbers: np.ndarray) -> Tensor:
    return torch.as_tensor(numbers, dtype=torch.int64, device="cpu")


def _pad(tensor: Tensor, size: int, value: float, dim: int = 0) -> Tensor:
    missing = size - tensor.shape[dim]
    if missing == 0:
        return tensor.clone()
    shape = list(tensor.shape)
    shape[dim] = missing
    return torch.cat([tensor, tensor.new_full(shape, value)], dim)
