"""A trained model as a plain PyTorch module: what an export loads, and what `torch.export` and ONNX trace.

    model = fedweave.models.load("export")  # the folder that `fedweave export` wrote
    logits = model(x, edge_index)           # of small graphs: model(x, edge_index, batch)
    logits = model(x, edge_index, edge_attr=edge_attr)   # where model.json has "edges"
    scores = model(x, edge_index, pairs=pairs, relation=relation)  # where model.json has "decoder"

The layers are those of training. Only their edges differ: `EdgeIndex` computes each matrix of message passing from
`edge_index` by operations of PyTorch itself, of any number of nodes and edges.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fedweave.core import model as models
from fedweave.core.edge_attributes import EXAMPLE_FEATURES, EXAMPLE_SOURCE, EXAMPLE_TARGET, kinds
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.operators import Operator
from fedweave.core.tensor_operators import DenseMatrix, RowSelection, ScatterSum, message_operator
from fedweave.core.tree import Tree, leaves, nest
from fedweave.core.types import Record
from fedweave.errors import UserError
from fedweave.models.edges import model_of_form
from fedweave.models.links import MAX_NEIGHBORS
from fedweave.models.registry import MODELS

MODEL, WEIGHTS = "model.json", "weights.safetensors"


class MessageMatrix:
    """A matrix [n, n] with the entry w_e at (target_e, source_e) of each edge e, by its E entries."""

    def __init__(self, source: Tensor, target: Tensor, rows: int, weight: Tensor | None = None) -> None:
        self.source, self.target, self.rows, self.weight = source, target, rows, weight

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, n)."""
        return self.rows, self.rows

    def __matmul__(self, h: Tensor) -> Tensor:
        sent = h.index_select(0, self.source)  # [E, k]
        if self.weight is not None:
            sent = sent * self.weight[:, None].to(h.dtype)
        return h.new_zeros(self.rows, h.shape[1]).index_add(0, self.target, sent)

    def attend(
        self, source: Tensor, target: Tensor, values: Tensor, slope: float, key: Tensor | None, rate: float
    ) -> Tensor:
        """`ops.attention.attend` without dropout: scores [n, H] at both ends, values [n, H C] -> [n, H C]."""
        scores = torch.nn.functional.leaky_relu(source[self.source] + target[self.target], slope)  # [E, H]
        into = ScatterSum(self.target, values.new_ones(self.rows))
        powers = torch.exp(scores - into.largest(scores)[self.target])
        shares = powers / (into @ powers)[self.target]
        heads = values[self.source].unflatten(1, (scores.shape[1], -1))  # [E, H, C]
        result: Tensor = into @ (shares[:, :, None] * heads).flatten(1)
        return result


class EdgeIndex:
    """Edges as int64 [2, E] among n nodes (a `core.operators.MessagePassing`).

    listed:    each edge once, as the data's tables have it; False if both directions are there, without loops.
    directed:  of listed edges, whether they lead only from source to target.
    edge_attr: float [E, k] of listed edges, or None.
    batch:     int64 [n], each node's small graph, or None.
    """

    shrinks = False

    def __init__(
        self,
        edge_index: Tensor,
        nodes: int,
        listed: bool = False,
        directed: bool = False,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> None:
        self.edge_index, self.nodes, self.listed, self.directed = edge_index, nodes, listed, directed
        self.edge_attr, self.batch = edge_attr, batch

    def operator(self, kind: str) -> Operator:
        """The matrix of that name (see `core.edges.Edges.operator`).

        Raises:
            ValueError: this form of edges does not have it.
        """
        n, device = self.nodes, self.edge_index.device
        if kind in kinds():
            return self._single_edge_operator(*kinds()[kind])
        if kind in ("pool_sum", "pool_mean"):
            graph_of = torch.zeros(n, dtype=torch.int64, device=device) if self.batch is None else self.batch
            graphs = graph_of.max().item() + 1  # int() would make the exporter look for a constant
            torch._check(graphs >= 1)
            share = torch.ones(graphs, device=device)  # type: ignore[arg-type]
            if kind == "pool_mean":
                share = 1 / _degree(graph_of, share).clamp(min=1)
            return ScatterSum(graph_of, share)
        if kind in (EXAMPLE_SOURCE, EXAMPLE_TARGET):
            return RowSelection(self.edge_index[0 if kind == EXAMPLE_SOURCE else 1])
        if kind == EXAMPLE_FEATURES and self.edge_attr is not None:
            return DenseMatrix(self.edge_attr)
        source, target = self._neighbors()
        node = torch.arange(n, device=device)
        degree = _degree(target, node)
        with_self = torch.cat([source, node]), torch.cat([target, node])
        match kind:
            case "sum":
                return MessageMatrix(source, target, n)
            case "sum_with_self":
                return MessageMatrix(*with_self, n)
            case "mean":
                return MessageMatrix(source, target, n, 1 / degree[target])
            case "mean_or_self":  # a node without neighbors is its own
                return MessageMatrix(*with_self, n, torch.cat([1 / degree[target], (degree == 0).float()]))
            case "neighbours":
                scale = degree.clamp(min=1).rsqrt()
                return MessageMatrix(source, target, n, scale[source] * scale[target])
            case "gcn":
                source, target = with_self
                scale = (degree + 1).rsqrt()
                return MessageMatrix(source, target, n, scale[source] * scale[target])
            case "two_hops":  # takes memory for every two nodes
                one = (node[:, None] == node).float()  # [n, n]
                near = (torch.zeros_like(one).index_add(0, target, one[source]) > 0).float()
                far = (near @ near > 0).float() * (1 - near) * (1 - one)
                scale = far.sum(1).clamp(min=1).rsqrt()
                return DenseMatrix(scale[:, None] * far * scale)
            case "adamic_adar":  # so does this
                one = (node[:, None] == node).float()  # [n, n]
                near = (torch.zeros_like(one).index_add(0, target, one[source]) > 0).float()
                weight = torch.where(degree > MAX_NEIGHBORS, 0.0, 1 / degree.clamp(min=2).log())
                return DenseMatrix((near * weight) @ near * (1 - one))
        raise ValueError(f"an exported model has no edges of kind {kind!r}")

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """The nodes that get new values, here all, and for each of them the mean over its neighbors."""
        return h, self.operator(kind) @ h

    def _neighbors(self) -> Tensor:
        """int64 [2, m]: both directions of every pair of different nodes that edges join, once each."""
        if not self.listed:
            return self.edge_index
        both = torch.cat([self.edge_index, self.edge_index.flip(0)], 1)
        both = both[:, both[0] != both[1]]
        codes, order = (both[0] * self.nodes + both[1]).sort()
        first = codes != torch.cat([codes.new_full((1,), -1), codes])[: codes.shape[0]]
        return both[:, order][:, first]

    def _single_edge_operator(self, what: str, way: str) -> Operator:
        """The matrix `what` (`core.edge_attributes.kinds`) of the messages that go along single edges in one `way`."""
        index, features = self.edge_index, None
        if self.listed and self.directed and way != "undirected":
            index, features = (index.flip(0) if way == "reverse" else index), self.edge_attr
        elif self.listed:
            back = index[0] != index[1]  # a loop is one message
            index = torch.cat([index, index.flip(0)[:, back]], 1)
            features = None if self.edge_attr is None else torch.cat([self.edge_attr, self.edge_attr[back]])
        source, target = index
        if what == "relation":  # all edges have the same one
            return DenseMatrix(torch.zeros_like(target)[:, None].float())
        nodes = torch.arange(self.nodes, device=target.device)
        return message_operator(what, source, target, features, _degree(target, nodes))


def _degree(target: Tensor, nodes: Tensor) -> Tensor:
    """float [n]: how many of `target`, int64 [m], are each of the n `nodes`."""
    return torch.zeros_like(nodes, dtype=torch.float32).index_add(0, target, torch.ones_like(target).float())


class ExportedModel(nn.Module):
    """A model for prediction, without dropout.

    model, w:  layers and their weights. about: the content of `model.json`.
    """

    def __init__(self, model: Model, w: Tree, about: Mapping[str, object]) -> None:
        super().__init__()
        self.layers = model
        weights = {path.replace("/", ":"): nn.Parameter(leaf.float()) for path, leaf in leaves(w)}  # no "." in names
        self.weights = nn.ParameterDict({name.replace(".", "~"): leaf for name, leaf in weights.items()})
        edges = about.get("edges")
        self.listed = bool(edges) and "decoder" not in about
        self.directed = isinstance(edges, dict) and bool(edges["directed"])
        self.pools = models.pools(model)
        targets = about.get("targets")
        scale = targets.get("scale") if isinstance(targets, dict) else None
        self.in_units = scale is not None
        if scale is not None:
            rows = torch.tensor(scale, dtype=torch.float64, device="cpu")
            for name, row in zip(("shift", "divisor", "log"), rows, strict=True):
                self.register_buffer(name, row, persistent=False)

    @property
    def tree(self) -> Tree:
        """The weights as `core.model.apply` takes them."""
        return nest({name.replace(":", "/").replace("~", "."): leaf for name, leaf in self.weights.items()})

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        batch: Tensor | None = None,
        edge_attr: Tensor | None = None,
        pairs: Tensor | None = None,
        relation: Tensor | None = None,
    ) -> Tensor:
        """Logits [nodes, graphs or edges, classes]; numbers in the data's units, float64; or scores [m] of pairs.

        x: float32 [n, features]. edge_index: int64 [2, E]. batch: int64 [n], each node's small graph, from 0 on.
        edge_attr: float32 [E, k]. pairs: int64 [2, m]; relation: int64 [m], each pair's relation.
        """
        nodes = x.shape[0]
        edges = EdgeIndex(edge_index, nodes, self.listed, self.directed, edge_attr, batch)
        real = torch.ones(nodes, dtype=torch.bool, device=x.device)
        graph = Graph(x, edges, real.long(), real.expand(3, -1), real, graph_of=batch if self.pools else None)
        if pairs is not None:
            relation = torch.zeros_like(pairs[0]) if relation is None else relation
            graph = graph._replace(pairs=torch.cat([pairs, relation[None]]))
        out = models.rows_of(models.apply(self.layers, self.tree, graph))
        if pairs is not None:
            return out[:, 1]
        if not self.in_units:
            return out
        values = out.double() * self.get_buffer("divisor") + self.get_buffer("shift")
        logarithm: Tensor = self.get_buffer("log") > 0
        return torch.where(logarithm, torch.where(logarithm, values, 0.0).exp(), values)


def build(about: Record) -> Model:
    """The layers of the model that a `model.json` describes.

    Raises:
        UserError: this version has no such model.
    """
    if about["model"] not in MODELS:
        raise UserError(f"{MODEL}: there is no model {about['model']!r}; those are {', '.join(MODELS)}.")
    kind = MODELS[about["model"]](**about["settings"])
    return model_of_form(
        kind, about.get("edges") or {}, about["features"], about["classes"], about.get("decoder", "dot")
    )


def load(folder: str | Path) -> ExportedModel:
    """The model in a folder that `fedweave export` wrote, ready to predict.

    Raises:
        UserError: the folder has no exported model.
    """
    from safetensors.torch import load_file

    folder = Path(folder)
    try:
        about = json.loads((folder / MODEL).read_text(encoding="utf-8"))
        weights = load_file(folder / WEIGHTS)
    except OSError as error:
        raise UserError(
            f"{folder} has no exported model ({error}). Name a folder that `fedweave export` wrote."
        ) from error
    return ExportedModel(build(about), nest(weights), about).eval()
