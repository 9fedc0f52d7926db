"""Heads that let any node model predict links: decoders of pairs of embeddings."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.candidates import Compare, OfNodes, Queries, counting
from fedweave.core.edge_list import EdgeList, register_matrix
from fedweave.core.graph import FOREIGN, QUERIES, TARGET, Graph
from fedweave.core.links import Links
from fedweave.core.model import PAIRS, Architecture, Hidden, Layer, Model, rows_of
from fedweave.core.plugins import Maker, note
from fedweave.core.tensor_operators import DenseMatrix
from fedweave.core.tree import Tree
from fedweave.errors import ConfigError
from fedweave.models import blocks, relations
from fedweave.ops.csr import look_up
from fedweave.ops.linear import affine
from fedweave.ops.rows import gather_rows, row_products
from fedweave.ops.sparse import Sparse

WIDTH = 64  # width of the embeddings of a model without hidden layers
AT_ONCE = 1 << 17  # pairs that are decoded together
SCALE, SHIFT = 5.0, -4.0  # of cosines, before training: rows of features are much alike, and most pairs are not links
MIN_NORM = 1e-6  # a shorter row counts as 0
ADAMIC_ADAR = "adamic_adar"  # the operator whose entries are scores of pairs
MAX_NEIGHBORS = 1000  # of a common neighbor that counts: beyond, all pairs of its neighbors would be too many
NEIGHBOR_WEIGHT = 2.0  # of common neighbors, before training
Score = Callable[[Tree, Tensor, Tensor, Tensor], Tensor]  # (weights, h_u, h_v, relation) -> s [m]
OfProducts = Callable[[Tree, Tensor], Tensor]  # (weights, h_u · h_v [m]) -> s [m]
Lead = Callable[[Tree, Tensor, Tensor, Tensor], Tensor]  # (weights, h_u, relation, whether v is the target) -> [m, k]


@dataclass(frozen=True)
class OnPairs:
    """A model for links as examples: `of` gives each node an embedding h, and a pair (u, v) has the logits
    [0, s(u, v)], so that σ(s) is the probability of a link. h has the width of `of`.

    of:        the model, such as models.GCN(), whose `pool` is "none".
    decoder:   s: "dot", h_u · h_v; "cosine", their cosine with a trained scale; "common_neighbors", this and a trained
               multiple of log(1 + the Adamic-Adar score) of u and v; or "mlp", an MLP of one hidden layer on
               h_u ⊙ h_v; "distmult", "complex", "transe" or "rotate", with a vector for each relation
               (`models.relations`).
    relations: number of relations, for decoders with a vector for each relation.
    """

    of: Architecture
    decoder: str = "dot"
    relations: int = 1

    def build(self, features: int, classes: int = 2) -> Model:
        """Build the model from `features` columns to the two logits of each pair.

        Raises:
            ConfigError: `of` gives no row to each node, or there is no such decoder.
        """
        width, _ = head_settings(self.of)
        blocks.check_shape(features, width)
        if self.decoder not in DECODERS:
            raise ConfigError(
                f"model.decoder = {self.decoder!r} is not known; choose one of {', '.join(DECODERS)}.",
                code="config.value",
            )
        nodes = self.of.build(features, width)
        if models.example(nodes) != "node":
            raise ConfigError(
                "the examples are links, and the model pools small graphs; set model.pool = 'none'.",
                code="config.pooling",
            )
        return note((*nodes, DECODERS[self.decoder](width, self.relations)), Maker(self, (features, classes)))


def head_settings(model: Architecture) -> tuple[int, float]:
    """Width and dropout of a head on a model: its hidden layers' values, or `WIDTH` and 0 without these (`sgc`)."""
    width = getattr(model, "hidden", 0)
    return (width, getattr(model, "dropout", 0.0)) if width else (WIDTH, 0.0)


def on_links(model: Architecture, links: Links | None, decoder: str = "dot") -> Architecture:
    """The plug-in `model`, with a decoder if links are the examples."""
    if links is None:
        return model
    relations = max(1, len(links.relations))
    if getattr(model, "relations", 0) is None:  # a model that passes messages by relation
        model = replace(model, relations=relations)  # type: ignore[type-var]
    return OnPairs(model, decoder, relations)


class PairTerm(NamedTuple):
    """What scores add for the two nodes that a pair joins, whatever their rows.

    of_pairs: (weights, graph, u int64 [m], v int64 [m]) -> [m]; an end behind the graph's nodes is a foreign one.
    tensors:  (weights, graph) -> the tensors that `of_nodes` reads, which gives the same numbers.
    """

    of_pairs: Callable[[Tree, Graph, Tensor, Tensor], Tensor]
    tensors: Callable[[Tree, Graph], tuple[Tensor, ...]]
    of_nodes: OfNodes


def _unchanged(rows: Tensor) -> Tensor:
    return rows


def decoding(
    init: Callable[[Tensor], Tree],
    score: Score,
    compare: Compare,
    lead: Lead = lambda w, first, relation, last: first,
    weights: tuple[str, ...] = (),
    term: PairTerm | None = None,
    prepare: Callable[[Tensor], Tensor] = _unchanged,
    of_products: OfProducts | None = None,
) -> Layer:
    """The layer that reads the rows of both ends of `Graph.pairs` and gives them logits [0, s]: [n, k] -> [e, 2].

    score:   (weights, h_u [m, k], h_v [m, k], relation int64 [m], 0 at padding) -> s [m].
    compare: scores [m, n] of many pairs at once: from the rows that `lead` gives for m ends u [m, k], all candidates v
             [n, k] and the weights with the names `weights`.
    lead:    (weights, h_u [m, k], relation int64 [m], bool [m, 1] whether v is the target) -> [m, k].
    term:    is added to both.
    prepare: rows [m, k] -> [m, k], what `score` gets of h_u and h_v; each row of the result depends on that row only.
    of_products: what `score` computes from products of prepared rows, if it needs only these.
    """

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        if graph.pairs is None:
            raise ValueError("a decoder of links needs pairs; give [data] task = 'links'")
        rows, scores = rows_of(h), list[Tensor]()
        if FOREIGN in graph.extra:  # ends at other members, behind the client's own
            rows = torch.cat([rows, graph.extra[FOREIGN].to(rows.dtype)])
        # In evaluation there are many more pairs than rows: each row is prepared once. In training gradients are added
        # up over pairs first.
        prepare_pairs = prepare
        if key is None:
            rows, prepare_pairs = prepare(rows), _unchanged
        pieces = [graph.pairs] if torch.compiler.is_exporting() else graph.pairs.split(AT_ONCE, 1)
        for pairs in pieces:
            source, target, relation = pairs.unbind(0)
            if key is None and of_products is not None:
                s = of_products(w, row_products(rows, source, target))
            else:
                first, second = (prepare_pairs(gather_rows(rows, end)) for end in (source, target))
                s = score(w, first, second, relation.clamp(min=0))
            scores.append(s if term is None else s + term.of_pairs(w, graph, source, target))
        s = torch.cat(scores)
        return torch.stack([torch.zeros_like(s), s], 1)

    count = counting(compare, len(weights), None if term is None else term.of_nodes)

    def count_above(w: Tree, graph: Graph, h: Tensor) -> Tensor:
        queries = Queries.of(graph)
        if queries is None:
            raise ValueError("this graph asks for no ranks among all nodes")
        stays, _, relation = queries.ends
        points = lead(w, gather_rows(h, stays), relation, (graph.extra[QUERIES][1] == TARGET)[:, None])
        of_nodes = () if term is None else term.tensors(w, graph)
        return count(*queries, points, h, *(w[name] for name in weights), *of_nodes)

    return Layer(init, apply, operator=PAIRS, count_above=count_above)


def _on_products(of_products: OfProducts, **more: Any) -> Layer:
    """The decoder whose scores are a function of products of rows; more: arguments of `decoding`."""

    def score(w: Tree, first: Tensor, second: Tensor, relation: Tensor) -> Tensor:
        return of_products(w, (first * second).sum(1))

    return decoding(score=score, of_products=of_products, **more)


def dot(width: int, kinds: int) -> Layer:
    """s = h_u · h_v."""
    return _on_products(lambda w, products: products, init=lambda key: {}, compare=relations.products)


def cosine(width: int, kinds: int, term: PairTerm | None = None) -> Layer:
    """s = e^a cos(h_u, h_v) + c with trained scalars a, at first ln 5, and c, at first -4; a row of zeros has cosine 0.

    The lengths of rows do not matter. With `dot`, scores of nodes with many features grow a hundredfold in Adam's first
    steps, and the next steps push all hidden units below 0.
    """

    def init(key: Tensor) -> Tree:
        return {
            "scale": torch.full((1,), math.log(SCALE), device=key.device),
            "bias": torch.full((1,), SHIFT, device=key.device),
        }

    def of_products(w: Tree, products: Tensor) -> Tensor:
        s: Tensor = w["scale"].exp() * products + w["bias"]
        return s

    def compare(queries: Tensor, rows: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        return scale.exp() * (_unit(queries) @ _unit(rows).mT) + bias

    layer = _on_products(of_products, init=init, compare=compare, weights=("scale", "bias"), term=term, prepare=_unit)
    return layer._replace(bounded=True)


def common_neighbors(width: int, kinds: int) -> Layer:
    """s = e^a cos(h_u, h_v) + b log(1 + AA(u, v)) + c, as in `cosine`, with a trained scalar b, at first 2, and the
    score of `adamic_adar` along the edges that carry messages.

    Message passing sees no common neighbors, since a row does not say whose neighbors made it (Zhang et al. 2021,
    "Labeling trick: a theory of using graph neural networks for multi-node representation learning"; Yun et al. 2021,
    "Neo-GNNs"). The score of a training link does not know the link: it is not a path of two edges between its ends. A
    foreign end has no common neighbors.
    """
    base = cosine(width, kinds, PairTerm(_of_pairs, _tensors, _of_nodes))

    def init(key: Tensor) -> Tree:
        return base.init(key) | {"neighbors": torch.full((1,), NEIGHBOR_WEIGHT, device=key.device)}

    return base._replace(init=init)


@register_matrix(ADAMIC_ADAR)
def adamic_adar(edges: EdgeList) -> sp.csr_matrix:
    """[n, n]: Σ 1 / log d_z over the common neighbors z of two nodes, where z has d_z neighbors, at most
    `MAX_NEIGHBORS` (Adamic and Adar 2003, "Friends and neighbors on the web"); 0 on the diagonal."""
    a = edges.adjacency.copy()
    a.data[:] = 1  # whatever edges weigh
    degree = np.asarray(a.sum(1)).ravel()
    weight = np.where(degree > MAX_NEIGHBORS, 0, 1 / np.log(degree.clip(2)))
    scores = sp.csr_matrix(a @ sp.diags(weight.astype(a.dtype)) @ a)
    scores = sp.csr_matrix(scores - sp.diags(scores.diagonal()))
    scores.eliminate_zeros()
    return scores


def _scores_of_neighbors(graph: Graph) -> Sparse | DenseMatrix:
    """The matrix `adamic_adar`.

    Raises:
        ValueError: the edges are a sample's, which lacks neighbors.
    """
    matrix = graph.edges.operator(ADAMIC_ADAR)
    if not isinstance(matrix, Sparse | DenseMatrix):
        raise ValueError("these edges have no scores of pairs")
    return matrix


def _of_pairs(w: Tree, graph: Graph, first: Tensor, second: Tensor) -> Tensor:
    is_own = (first < graph.nodes) & (second < graph.nodes)  # [m]
    u, v = (torch.where(is_own, end, 0) for end in (first, second))
    term: Tensor = w["neighbors"] * torch.where(is_own, _scores_of_neighbors(graph).entries(u, v), 0.0).log1p()
    return term


def _tensors(w: Tree, graph: Graph) -> tuple[Tensor, ...]:
    matrix = _scores_of_neighbors(graph)
    if isinstance(matrix, DenseMatrix):
        raise ValueError("only whole graphs of a client have ranks among all nodes")
    return w["neighbors"], matrix.first_place, *matrix.blocks.entries


def _of_nodes(
    stays: Tensor, nodes: Tensor, count: int, weight: Tensor, first: Tensor, places: Tensor, values: Tensor
) -> Tensor:
    return weight * look_up(first + stays[:, None] * count + nodes, places, values).log1p()


def _unit(rows: Tensor) -> Tensor:
    """Rows [n, k] divided by their norms; one that is (almost) 0 becomes 0, with a gradient of 0."""
    squares = rows.square().sum(1, keepdim=True)  # [n, 1]
    exists = squares > MIN_NORM**2
    return rows * torch.where(exists, torch.where(exists, squares, 1.0).rsqrt(), 0.0)


def mlp(width: int, kinds: int) -> Layer:
    """s = w^T ReLU(W (h_u ⊙ h_v) + b) + c."""
    shapes = {"weight": (width, width), "bias": (width,), "weight_out": (width, 1), "bias_out": (1,)}

    def init(key: Tensor) -> Tree:
        return {name: blocks.lecun(random.fold(key, name), shape, width) for name, shape in shapes.items()}

    def score(w: Tree, first: Tensor, second: Tensor, relation: Tensor) -> Tensor:
        inner = torch.relu(affine(first * second, w["weight"], w["bias"]))
        return affine(inner, w["weight_out"], w["bias_out"])[:, 0]

    def compare(queries: Tensor, rows: Tensor, weight: Tensor, bias: Tensor, out: Tensor, last: Tensor) -> Tensor:
        return torch.stack([(torch.relu((query * rows) @ weight + bias) @ out + last)[:, 0] for query in queries])

    return decoding(init, score, compare, weights=tuple(shapes))


def relational(name: str, width: int, kinds: int) -> Layer:
    """The decoder of `models.relations` with this name; it has a vector for each of the `kinds` of links."""
    decoder = relations.DECODERS[name]
    if decoder.halves and width % 2:
        raise ConfigError(
            f"model.hidden = {width}: {name} reads vectors as complex numbers, in halves. Take an even one.",
            code="config.value",
        )

    def score(w: Tree, first: Tensor, second: Tensor, relation: Tensor) -> Tensor:
        return decoder.score(first, gather_rows(w["relation"], relation), second)

    def lead(w: Tree, first: Tensor, relation: Tensor, last: Tensor) -> Tensor:
        r = gather_rows(w["relation"], relation)
        return decoder.lead(first, torch.where(last, r, decoder.back(r)))

    layer = decoding(lambda key: {"relation": decoder.init(key, kinds, width)}, score, decoder.near, lead)
    return layer._replace(by_relation=("relation",))


DECODERS: dict[str, Callable[[int, int], Layer]] = {  # (width of embeddings, number of relations) -> layer
    "dot": dot,
    "cosine": cosine,
    "common_neighbors": common_neighbors,
    "mlp": mlp,
    **{name: partial(relational, name) for name in relations.DECODERS},
}
