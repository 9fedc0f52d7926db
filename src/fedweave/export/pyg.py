"""The exported model as a PyTorch Geometric module; needs torch and torch_geometric, and nothing else.

    from model import load
    model = load(".")                       # the folder with model.json and the weights
    logits = model(x, edge_index)           # of small graphs: model(x, edge_index, batch)
    logits = model(x, edge_index, edge_attr=edge_attr)  # where model.json has "edges"
    scores = model(x, edge_index, pairs, relation)  # where model.json has "decoder"

x is float32 [n, features] in the order and scaling that the model card names; edge_index int64 [2, E] has both
directions of every edge, without self loops. Where model.json has "edges", edge_index has each edge once, as in the
tables, with its features float32 [E, k] in edge_attr; where these are the examples, logits are of edges, [E, classes].
Where model.json has "decoder", edge_index has both directions of the links that carry messages, and pairs int64 [2, m]
are scored, each under relation int64 [m] where links have several; torch.sigmoid gives the probability of a link.
Where model.json has "targets", these are no classes: numbers are given in the data's units, and logits of several
yes-or-no labels become probabilities by torch.sigmoid. The module is for prediction: it has no dropout.
"""

import json
import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import elu
from torch_geometric.nn import GATConv as GATConv
from torch_geometric.nn import GATv2Conv as GATv2Conv
from torch_geometric.nn import (
    GCN2Conv,
    GCNConv,
    GINConv,
    SAGEConv,
    TransformerConv,
    global_add_pool,
    global_mean_pool,
)

POOLS = {"sum": global_add_pool, "mean": global_mean_pool}
BOTH, ONE = ("came", "went"), ("one",)  # ways of messages
WIDTH = 64  # of the head for edges as examples, where the model has no hidden layers


Settings = dict[str, Any]  # the settings of a model in model.json
Layer = Callable[..., nn.Module]  # makes a layer from its sizes
Chain = list[tuple[nn.Module, str | None]]  # layers, each with the activation after it


class Pool(nn.Module):
    """The sum or mean over the nodes of each small graph."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        """[n, k] -> [graphs, k]."""
        result: Tensor = POOLS[self.how](x, batch)
        return result


class EgoConv(nn.Module):
    """As `SAGEConv`, but a node without neighbors is its own."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.lin_l, self.lin_r = nn.Linear(fan_in, fan_out), nn.Linear(fan_in, fan_out, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """[n, k] -> [n, out]."""
        source, target = edge_index
        neighbors = x.new_zeros(x.shape[0], 1).index_add(0, target, x.new_ones(target.shape[0], 1))
        means = torch.zeros_like(x).index_add(0, target, x[source]) / neighbors.clamp(min=1)
        out: Tensor = self.lin_l(torch.where(neighbors > 0, means, x)) + self.lin_r(x)
        return out


def spread(x: Tensor, edge_index: Tensor) -> Tensor:
    """D^-1/2 (A + I) D^-1/2 x, D being the degrees of A + I."""
    source, target = edge_index
    apart = (source != target).to(x.dtype)[:, None]
    scale = (1 + x.new_zeros(x.shape[0], 1).index_add(0, target, apart)).rsqrt()
    scaled = scale * x
    result: Tensor = scale * (scaled + torch.zeros_like(x).index_add(0, target, apart * scaled[source]))
    return result


class WholeModule(nn.Module):
    """A model that is no chain of such layers; its weights are called by layer and name, such as "0_weight"."""

    def __init__(self, sizes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.w = nn.ParameterDict({name: nn.Parameter(_any(size)) for name, size in sizes.items()})


class SGCModule(WholeModule):
    """K times the graph's messages, linear (Wu et al. 2019)."""

    def __init__(self, features: int, classes: int, settings: Settings) -> None:
        self.hops: int = settings["layers"]
        super().__init__({"0_weight": (features, classes), f"{self.hops}_bias": (classes,)})

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """[n, features] -> [n, classes]."""
        x = x @ self.w["0_weight"]
        for _ in range(self.hops):
            x = spread(x, edge_index)
        out: Tensor = x + self.w[f"{self.hops}_bias"]
        return out


class GPRGNNModule(WholeModule):
    """Weighted hops of an MLP's logits (Chien et al. 2021)."""

    def __init__(self, features: int, classes: int, settings: Settings) -> None:
        self.hops, wide = int(settings["layers"]), settings["hidden"]
        sizes = {"0_weight": (features, wide), "0_bias": (wide,), "1_weight": (wide, classes), "1_bias": (classes,)}
        super().__init__(sizes | {f"{self.hops + 2}_gamma": (self.hops + 1, 1)})

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """[n, features] -> [n, classes]."""
        w, gamma = self.w, self.w[f"{self.hops + 2}_gamma"]
        x = torch.relu(x @ w["0_weight"] + w["0_bias"]) @ w["1_weight"] + w["1_bias"]
        out: Tensor = gamma[0] * x
        for k in range(self.hops):
            x = spread(x, edge_index)
            out = out + gamma[k + 1] * x
        return out


class APPNPModule(WholeModule):
    """Hops of an MLP's logits that return to them (Gasteiger et al. 2019)."""

    def __init__(self, features: int, classes: int, settings: Settings) -> None:
        self.hops, self.alpha, wide = int(settings["layers"]), float(settings["alpha"]), settings["hidden"]
        super().__init__(
            {"0_weight": (features, wide), "0_bias": (wide,), "1_weight": (wide, classes), "1_bias": (classes,)}
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """[n, features] -> [n, classes]."""
        w = self.w
        start = torch.relu(x @ w["0_weight"] + w["0_bias"]) @ w["1_weight"] + w["1_bias"]
        x = start
        for _ in range(self.hops):
            x = (1 - self.alpha) * spread(x, edge_index) + self.alpha * start
        return x


class RGCNModule(WholeModule):
    """Means over the messages along edges and against them, of edges of one relation.

    Both directions have their own weights (Schlichtkrull et al. 2018).
    """

    def __init__(self, features: int, classes: int, settings: Settings) -> None:
        self.depth, bases = int(settings["layers"]), int(settings["bases"])
        edges = settings["edges"]
        self.mirrored = bool(edges) and not edges["directed"]
        sizes: dict[str, tuple[int, ...]] = {}
        for i, (fan_in, out) in enumerate(pairwise([features, *[settings["hidden"]] * (self.depth - 1), classes])):
            sizes |= {f"{i}_basis": (fan_in, bases * out), f"{i}_mixture": (2, bases)}
            sizes |= {f"{i}_root": (fan_in, out), f"{i}_bias": (out,)}
        super().__init__(sizes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """[n, features] -> [n, classes]."""
        if self.mirrored:
            apart = edge_index[0] != edge_index[1]
            edge_index = torch.cat([edge_index, edge_index.flip(0)[:, apart]], 1)
        for i in range(self.depth):
            out = x @ self.w[f"{i}_root"] + self.w[f"{i}_bias"]
            mixture = self.w[f"{i}_mixture"]
            sent = (x @ self.w[f"{i}_basis"]).reshape(x.shape[0], mixture.shape[1], out.shape[1])
            for way, (source, target) in enumerate((edge_index, edge_index.flip(0))):
                message = (sent * mixture[way][:, None]).sum(1)
                count = x.new_zeros(x.shape[0], 1).index_add(0, target, x.new_ones(target.shape[0], 1))
                out = out + torch.zeros_like(out).index_add(0, target, message[source]) / count.clamp(min=1)
            x = torch.relu(out) if i < self.depth - 1 else out
        return x


class ACMGCNModule(WholeModule):
    """Three channels that every node mixes (Luan et al. 2022)."""

    channels = ("low", "high", "own")

    def __init__(self, features: int, classes: int, settings: Settings) -> None:
        self.depth: int = settings["layers"]
        sizes: dict[str, tuple[int, ...]] = {}
        for i, pair in enumerate(pairwise([features, *[settings["hidden"]] * (self.depth - 1), classes])):
            sizes |= {f"{i}_{one}": pair for one in self.channels}
            sizes |= {f"{i}_score_{one}": (pair[1], 1) for one in self.channels} | {f"{i}_mix": (3, 3)}
        super().__init__(sizes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """[n, features] -> [n, classes]."""
        for i in range(self.depth):
            low, high, identity = (x @ self.w[f"{i}_{one}"] for one in self.channels)
            signals = [spread(low, edge_index), high - spread(high, edge_index), identity]
            mixed = [torch.relu(one) for one in signals]
            scores = [one @ self.w[f"{i}_score_{name}"] for one, name in zip(mixed, self.channels, strict=True)]
            share = torch.softmax(torch.sigmoid(torch.cat(scores, 1)) @ self.w[f"{i}_mix"] / 3, 1)
            x = 3 * (share[:, :1] * mixed[0] + share[:, 1:2] * mixed[1] + share[:, 2:] * mixed[2])
            x = torch.relu(x) if i < self.depth - 1 else x
        return x


class H2GCNModule(WholeModule):
    """A node's own embedding, its neighbors', and its neighbors' at distance two (Zhu et al. 2020).

    It takes memory for every two nodes.
    """

    def __init__(self, features: int, classes: int, settings: Settings) -> None:
        self.rounds, wide = int(settings["layers"]), settings["hidden"]
        last = f"{self.rounds + 1}_weight"
        super().__init__({"0_weight": (features, wide), last: (wide * (2 ** (self.rounds + 1) - 1), classes)})

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """[n, features] -> [n, classes]."""
        number = torch.arange(x.shape[0], device=x.device)
        one = (number[:, None] == number).to(x.dtype)
        joined = one.new_zeros(x.shape[0], x.shape[0]).index_add(0, edge_index[1], one[edge_index[0]])
        near = (joined > 0).to(x.dtype) * (1 - one)
        far = (near @ near > 0).to(x.dtype) * (1 - near) * (1 - one)
        h = torch.relu(x @ self.w["0_weight"])
        rounds = [h]
        for _ in range(self.rounds):
            scales = [(a, a.sum(1, keepdim=True).clamp(min=1).rsqrt()) for a in (near, far)]
            h = torch.cat([scale * (a @ (scale * h)) for a, scale in scales], 1)
            rounds.append(h)
        out: Tensor = torch.cat(rounds, 1) @ self.w[f"{self.rounds + 1}_weight"]
        return out


class GINEModule(nn.Module):
    """MLP(h + sum ReLU(h_u + W e_uv)), as `GINEConv`, over edges with or without features."""

    def __init__(self, fan_in: int, fan_out: int, edge_features: int) -> None:
        super().__init__()
        self.edge = nn.Linear(edge_features, fan_in) if edge_features else None
        self.first, self.second = nn.Linear(fan_in, fan_out), nn.Linear(fan_out, fan_out)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        """[n, k] -> [n, out]."""
        source, target = edge_index
        sent = x[source] if self.edge is None else x[source] + self.edge(edge_attr)
        out: Tensor = self.second(
            torch.relu(self.first(x + torch.zeros_like(x).index_add(0, target, torch.relu(sent))))
        )
        return out


class Along(nn.Module):
    """A convolution `make_layer(in, out, edge_features)` along edges, or one for each direction and a linear layer.

    The second form is `DirGNNConv`. mirrored: messages also go against edges' directions, because each edge is listed
    once.
    """

    def __init__(
        self,
        make_layer: Layer,
        fan_in: int,
        fan_out: int,
        edge_features: int,
        both: bool = False,
        mirrored: bool = False,
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleDict({way: make_layer(fan_in, fan_out, edge_features) for way in (BOTH if both else ONE)})
        self.root, self.mirrored = nn.Linear(fan_in, fan_out) if both else None, mirrored

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        """[n, k] -> [n, out]."""
        if self.mirrored:
            apart = edge_index[0] != edge_index[1]
            edge_index = torch.cat([edge_index, edge_index.flip(0)[:, apart]], 1)
            edge_attr = None if edge_attr is None else torch.cat([edge_attr, edge_attr[apart]])
        if self.root is None:
            out: Tensor = self.convs["one"](x, edge_index, edge_attr)
            return out
        came, went = self.convs["came"](x, edge_index, edge_attr), self.convs["went"](x, edge_index.flip(0), edge_attr)
        out = 0.5 * came + 0.5 * went + self.root(x)
        return out


def joined(edge_index: Tensor, nodes: int) -> Tensor:
    """Both directions of every pair of different nodes that edges join, once each."""
    both = torch.cat([edge_index, edge_index.flip(0)], 1)
    both = both[:, both[0] != both[1]]
    codes, order = (both[0] * nodes + both[1]).sort()
    return both[:, order][:, codes != torch.cat([codes.new_full((1,), -1), codes])[: codes.shape[0]]]


class EdgeHeadModule(nn.Module):
    """Logits of each edge (u, v) with features e: an MLP of [ReLU(h_u), ReLU(h_v), e] of a `nodes` model's h."""

    def __init__(self, nodes: "Net", width: int, classes: int, edge_features: int) -> None:
        super().__init__()
        self.nodes, self.reads = nodes, edge_features > 0
        self.read, self.out = nn.Linear(2 * width + edge_features, width), nn.Linear(width, classes)

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None, edge_attr: Tensor | None = None
    ) -> Tensor:
        """Logits [E, classes]."""
        h = torch.relu(self.nodes(x, edge_index, batch, edge_attr))
        read = [h[edge_index[0]], h[edge_index[1]]] + ([edge_attr] if self.reads and edge_attr is not None else [])
        out: Tensor = self.out(torch.relu(self.read(torch.cat(read, 1))))
        return out


Weights = Mapping[str, Tensor]  # of a decoder


def dot(h: Tensor, t: Tensor, w: Weights, relation: Tensor) -> Tensor:
    """h · t."""
    return (h * t).sum(1)


def mlp_of_product(h: Tensor, t: Tensor, w: Weights, relation: Tensor) -> Tensor:
    """w^T ReLU(W (h ⊙ t) + b) + c."""
    inner = torch.relu((h * t) @ w["weight"] + w["bias"])
    return (inner @ w["weight_out"] + w["bias_out"])[:, 0]


def distmult(h: Tensor, t: Tensor, w: Weights, relation: Tensor) -> Tensor:
    """Σ h r t (Yang et al. 2015)."""
    return (h * w["relation"][relation] * t).sum(1)


def complex_product(h: Tensor, t: Tensor, w: Weights, relation: Tensor) -> Tensor:
    """Re Σ h r conj(t) (Trouillon et al. 2016); the first halves of rows are real parts."""
    (a, b), (c, d), (e, f) = (rows.chunk(2, 1) for rows in (h, w["relation"][relation], t))
    return ((a * c - b * d) * e + (a * d + b * c) * f).sum(1)


def transe(h: Tensor, t: Tensor, w: Weights, relation: Tensor) -> Tensor:
    """−‖h + r − t‖_1 (Bordes et al. 2013)."""
    return -(h + w["relation"][relation] - t).abs().sum(1)


def rotate(h: Tensor, t: Tensor, w: Weights, relation: Tensor) -> Tensor:
    """−‖h ∘ e^{ir} − t‖_2 (Sun et al. 2019); the first halves of rows are real parts."""
    (a, b), (e, f), r = h.chunk(2, 1), t.chunk(2, 1), w["relation"][relation]
    apart = torch.cat([a * r.cos() - b * r.sin() - e, a * r.sin() + b * r.cos() - f], 1)
    return -apart.square().sum(1).sqrt()


SCORES = {"dot": dot, "mlp": mlp_of_product, "distmult": distmult, "complex": complex_product}
SCORES |= {"transe": transe, "rotate": rotate}


class LinkModule(nn.Module):
    """How likely a link is between two nodes: a decoder scores pairs of embeddings.

    A `nodes` model gives each node an embedding of `width` numbers. relations: the number of kinds of links.
    """

    def __init__(self, nodes: "Net", decoder: str, width: int, relations: int) -> None:
        super().__init__()
        self.nodes, self.score = nodes, SCORES[decoder]
        sizes: dict[str, tuple[int, ...]] = {}
        if decoder == "mlp":
            sizes = {"weight": (width, width), "bias": (width,), "weight_out": (width, 1), "bias_out": (1,)}
        elif decoder != "dot":
            sizes = {"relation": (relations, width // 2 if decoder == "rotate" else width)}
        self.w = nn.ParameterDict({name: nn.Parameter(_any(size)) for name, size in sizes.items()})

    def forward(self, x: Tensor, edge_index: Tensor, pairs: Tensor, relation: Tensor | None = None) -> Tensor:
        """Scores [m] of pairs int64 [2, m]; torch.sigmoid turns them into probabilities of a link.

        relation: int64 [m], the number of each pair's relation.
        """
        h = self.nodes(x, edge_index)
        relation = torch.zeros_like(pairs[0]) if relation is None else relation
        return self.score(h[pairs[0]], h[pairs[1]], dict(self.w.items()), relation)


class Net(nn.Module):
    """Layers one after the other, each with its activation ("relu", "elu" or None); from features to logits.

    listed: whether edges are given once each, as they are listed.
    """

    def __init__(self, layers: Chain, listed: bool = False) -> None:
        super().__init__()
        self.listed = listed
        self.layers = nn.ModuleList(layer for layer, _ in layers)
        self.activations = [activation for _, activation in layers]

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None, edge_attr: Tensor | None = None
    ) -> Tensor:
        """Logits [n, classes], or [graphs, classes] where the model pools; batch: int64 [n], each node's graph."""
        first, edges = x, edge_index
        if self.listed and not any(isinstance(layer, Along | RGCNModule) for layer in self.layers):
            edge_index = joined(edges, x.shape[0])
        for number, (layer, activation) in enumerate(zip(self.layers, self.activations, strict=True)):
            if isinstance(layer, Pool):
                x = layer(x, x.new_zeros(len(x), dtype=torch.int64) if batch is None else batch)
            elif isinstance(layer, GCN2Conv):
                x = layer(x, first, edge_index)
            elif isinstance(layer, Along):
                x = layer(x, edges, edge_attr)
            else:
                x = layer(x) if isinstance(layer, nn.Linear) else layer(x, edge_index)
            x = torch.relu(x) if activation == "relu" else elu(x) if activation == "elu" else x
            first = x if number == 0 else first
        return x


class UnitsModule(nn.Module):
    """A `net` whose outputs are numbers, converted into the data's units.

    The conversion multiplies by a divisor and adds a shift; where the model has learned logarithms, exp follows. scale:
    [3, t], shifts, divisors, and 1 for logarithms.
    """

    def __init__(self, net: nn.Module, scale: list[list[float]]) -> None:
        super().__init__()
        self.net = net
        rows = torch.tensor(scale, dtype=torch.float64, device="cpu")
        self.shift: Tensor
        self.divisor: Tensor
        self.log: Tensor
        for name, row in zip(("shift", "divisor", "log"), rows, strict=True):
            self.register_buffer(name, row, persistent=False)

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None, edge_attr: Tensor | None = None
    ) -> Tensor:
        """Numbers [n, t], float64."""
        values = self.net(x, edge_index, batch, edge_attr).to(torch.float64) * self.divisor + self.shift
        logs: Tensor = self.get_buffer("log") > 0
        out: Tensor = torch.where(logs, torch.where(logs, values, 0.0).exp(), values)
        return out


def build(about: Settings) -> nn.Module:
    """The module that a model.json describes."""
    scale = (about.get("targets") or {}).get("scale")
    return of_outputs(about) if scale is None else UnitsModule(of_outputs(about), scale)


def of_outputs(about: Settings) -> nn.Module:
    """The module that a model.json describes, with the outputs on which the model was trained."""
    edges, width = about.get("edges"), about["settings"].get("hidden") or WIDTH
    if "decoder" in about:
        nodes = of_nodes({**about, "classes": width, "edges": None})
        return LinkModule(nodes, about["decoder"], width, max(1, (edges or {}).get("relations", 0)))
    if not edges or not edges["examples"]:
        return of_nodes(about)
    return EdgeHeadModule(of_nodes({**about, "classes": width}), width, about["classes"], edges["features"])


def of_nodes(about: Settings) -> Net:
    """The module for nodes or graphs, without the head for edges as examples."""
    edges = about.get("edges")
    wholes = {"sgc": SGCModule, "gprgnn": GPRGNNModule, "acmgcn": ACMGCNModule, "h2gcn": H2GCNModule}
    wholes |= {"appnp": APPNPModule, "rgcn": RGCNModule}
    settings = about["settings"] | {"edges": edges}
    if about["model"] in wholes:
        return Net([(wholes[about["model"]](about["features"], about["classes"], settings), None)], bool(edges))
    makers = {"gcn": gcn, "gat": gat, "sage": sage, "gin": gin, "mlp": mlp, "gcnii": gcnii, "ego": ego, "gine": gine}
    makers |= {"gatv2": gatv2, "transformer": transformer}
    return Net(makers[about["model"]](about["features"], about["classes"], settings), bool(edges))


def load(folder: str | Path) -> nn.Module:
    """The module with its weights, ready to predict."""
    folder = Path(folder)
    model = build(json.loads((folder / "model.json").read_text()))
    if (folder / "weights.safetensors").exists():
        from safetensors.torch import load_file

        model.load_state_dict(load_file(folder / "weights.safetensors"))
    else:
        model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    return model.eval()


def gcn(features: int, classes: int, settings: Settings) -> Chain:
    """Graph convolutions (Kipf and Welling 2017)."""
    if settings["linear"]:
        convolutions = _chain(GCNConv, features, settings["hidden"], settings)
        return [*convolutions, (nn.Linear(settings["hidden"], classes), None)]
    return _pooled(GCNConv, features, classes, settings)


def sage(features: int, classes: int, settings: Settings) -> Chain:
    """GraphSAGE with the mean of neighbors (Hamilton et al. 2017)."""
    return _pooled(SAGEConv, features, classes, settings)


def mlp(features: int, classes: int, settings: Settings) -> Chain:
    """Linear layers, which see no edges."""
    return _pooled(nn.Linear, features, classes, settings)


def gat(features: int, classes: int, settings: Settings) -> Chain:
    """Graph attention (Velickovic et al. 2018)."""
    return _attentive(GATConv, "elu", features, classes, settings)


def gatv2(features: int, classes: int, settings: Settings) -> Chain:
    """Graph attention whose scores see both ends together (Brody et al. 2022)."""
    return _attentive(GATv2Conv, "elu", features, classes, settings)


def transformer(features: int, classes: int, settings: Settings) -> Chain:
    """Attention with keys, queries and values over neighbors (Shi et al. 2021)."""
    return _attentive(TransformerConv, "relu", features, classes, settings)


def _attentive(layer: Layer, activation: str, features: int, classes: int, settings: Settings) -> Chain:
    """`layers` with heads side by side, and the last one's averaged."""
    heads, wide = settings["heads"], settings["heads"] * settings["hidden"]
    sizes = [features, *[wide] * (settings["layers"] - 1)]
    hidden: Chain = [(layer(size, settings["hidden"], heads), activation) for size in sizes[:-1]]
    return [*hidden, (layer(sizes[-1], classes, settings["output_heads"], concat=False), None)]


def gin(features: int, classes: int, settings: Settings) -> Chain:
    """Graph isomorphism convolutions (Xu et al. 2019) after a linear layer."""
    size = settings["hidden"]
    convolutions = [
        (GINConv(nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))), "relu")
        for _ in range(settings["layers"])
    ]
    return [(nn.Linear(features, size), None), *convolutions, *_head(size, classes, settings["pool"])]


def gine(features: int, classes: int, settings: Settings) -> Chain:
    """Graph isomorphism convolutions with features of edges (Hu et al. 2020) after a linear layer."""
    size, edges, way = settings["hidden"], settings["edges"], settings["directed"]
    reads = edges["features"] if edges and settings["edge_features"] != 0 else 0
    mirrored = bool(edges) and (way == "none" or not edges["directed"])
    convolutions = [
        (Along(GINEModule, size, size, reads, way == "both", mirrored), "relu") for _ in range(settings["layers"])
    ]
    return [(nn.Linear(features, size), None), *convolutions, *_head(size, classes, settings["pool"])]


def gcnii(features: int, classes: int, settings: Settings) -> Chain:
    """A linear layer, convolutions that return to its output (Chen et al. 2020), and a linear classifier."""
    size, alpha, theta = settings["hidden"], settings["alpha"], settings["theta"]
    convolutions = [(GCN2Conv(size, alpha, theta, number + 1), "relu") for number in range(settings["layers"])]
    return [(nn.Linear(features, size), "relu"), *convolutions, (nn.Linear(size, classes), None)]


def ego(features: int, classes: int, settings: Settings) -> Chain:
    """A linear layer, convolutions and a linear classifier (Zhang et al. 2023, FedEgo)."""
    size, passes = settings["hidden"], [EgoConv] * settings["layers"]
    kinds = [nn.Linear, *passes] if settings["order"] == "mlp-gnn" else [*passes, nn.Linear]
    sizes = pairwise([features, *[size] * len(kinds)])
    stack = [
        (kind(*pair), None if settings["linear"] and kind is EgoConv else "relu")
        for kind, pair in zip(kinds, sizes, strict=True)
    ]
    return [*stack, (nn.Linear(size, classes), None)]


def _any(size: tuple[int, ...]) -> Tensor:
    """Placeholder weights, until the weights of the file are loaded."""
    return torch.linspace(-40, 40, math.prod(size), device="cpu").cos().reshape(size)


def _chain(layer: Layer, features: int, last: int, settings: Settings) -> Chain:
    """A chain of `layers` layers, with ReLU after each but the last."""
    sizes = [features, *[settings["hidden"]] * (settings["layers"] - 1), last]
    layers = [layer(*pair) for pair in pairwise(sizes)]
    return [*((one, "relu") for one in layers[:-1]), (layers[-1], None)]


def _pooled(layer: Layer, features: int, classes: int, settings: Settings) -> Chain:
    """A chain without pooling; with pooling, `layers` layers with ReLU and a head."""
    if settings["pool"] == "none":
        return _chain(layer, features, classes, settings)
    chain = [(one, "relu") for one, _ in _chain(layer, features, settings["hidden"], settings)]
    return [*chain, *_head(settings["hidden"], classes, settings["pool"])]


def _head(size: int, classes: int, pool: str) -> Chain:
    """Pooling (unless "none"), a linear layer with ReLU, and a linear classifier."""
    pooled: Chain = [] if pool == "none" else [(Pool(pool), None)]
    return [*pooled, (nn.Linear(size, size), "relu"), (nn.Linear(size, classes), None)]
