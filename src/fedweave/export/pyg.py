"""The exported model as a PyTorch Geometric module; needs torch and torch_geometric, and nothing else.

    from model import load
    model = load(".")                       # the folder with model.json and the weights
    logits = model(x, edge_index)           # of small graphs: model(x, edge_index, batch)

x is float32 [n, features] in the order and scaling that the model card names; edge_index int64 [2, E] has both
directions of every edge, without self loops. The module is for prediction: it has no dropout.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import elu
from torch_geometric.nn import GATConv as GATConv
from torch_geometric.nn import GCN2Conv, GCNConv, GINConv, SAGEConv, global_add_pool, global_mean_pool

POOLS = {"sum": global_add_pool, "mean": global_mean_pool}


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
    """As `SAGEConv`, but a node without neighbours is its own."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.lin_l, self.lin_r = nn.Linear(fan_in, fan_out), nn.Linear(fan_in, fan_out, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """[n, k] -> [n, out]."""
        source, target = edge_index
        neighbours = x.new_zeros(x.shape[0], 1).index_add(0, target, x.new_ones(target.shape[0], 1))
        means = torch.zeros_like(x).index_add(0, target, x[source]) / neighbours.clamp(min=1)
        out: Tensor = self.lin_l(torch.where(neighbours > 0, means, x)) + self.lin_r(x)
        return out


class Net(nn.Module):
    """Layers one after the other, each with its activation ("relu", "elu" or None); from features to logits."""

    def __init__(self, layers: list[tuple[nn.Module, str | None]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer for layer, _ in layers)
        self.activations = [activation for _, activation in layers]

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        """Logits [n, classes], or [graphs, classes] where the model pools; batch: int64 [n], each node's graph."""
        first = x
        for number, (layer, activation) in enumerate(zip(self.layers, self.activations, strict=True)):
            if isinstance(layer, Pool):
                x = layer(x, x.new_zeros(len(x), dtype=torch.int64) if batch is None else batch)
            elif isinstance(layer, GCN2Conv):
                x = layer(x, first, edge_index)
            else:
                x = layer(x) if isinstance(layer, nn.Linear) else layer(x, edge_index)
            x = torch.relu(x) if activation == "relu" else elu(x) if activation == "elu" else x
            first = x if number == 0 else first
        return x


def build(about: dict[str, Any]) -> Net:
    """The module that a model.json describes."""
    makers = {"gcn": gcn, "gat": gat, "sage": sage, "gin": gin, "mlp": mlp, "gcnii": gcnii, "ego": ego}
    return Net(makers[about["model"]](about["features"], about["classes"], about["settings"]))


def load(folder: str | Path) -> Net:
    """The module with its weights, ready to predict."""
    folder = Path(folder)
    model = build(json.loads((folder / "model.json").read_text()))
    if (folder / "weights.safetensors").exists():
        from safetensors.torch import load_file

        model.load_state_dict(load_file(folder / "weights.safetensors"))
    else:
        model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    return model.eval()


def gcn(features: int, classes: int, given: dict[str, Any]) -> list[tuple[nn.Module, str | None]]:
    """Graph convolutions (Kipf and Welling 2017)."""
    if given["linear"]:
        convolutions = _chain(GCNConv, features, given["hidden"], given)
        return [*convolutions, (nn.Linear(given["hidden"], classes), None)]
    return _pooled(GCNConv, features, classes, given)


def sage(features: int, classes: int, given: dict[str, Any]) -> list[tuple[nn.Module, str | None]]:
    """GraphSAGE with the mean of neighbours (Hamilton et al. 2017)."""
    return _pooled(SAGEConv, features, classes, given)


def mlp(features: int, classes: int, given: dict[str, Any]) -> list[tuple[nn.Module, str | None]]:
    """Linear layers, which see no edges."""
    return _pooled(nn.Linear, features, classes, given)


def gat(features: int, classes: int, given: dict[str, Any]) -> list[tuple[nn.Module, str | None]]:
    """Graph attention (Velickovic et al. 2018)."""
    heads, wide = given["heads"], given["heads"] * given["hidden"]
    sizes = [features, *[wide] * (given["layers"] - 1)]
    hidden = [(GATConv(size, given["hidden"], heads), "elu") for size in sizes[:-1]]
    return [*hidden, (GATConv(sizes[-1], classes, given["output_heads"], concat=False), None)]


def gin(features: int, classes: int, given: dict[str, Any]) -> list[tuple[nn.Module, str | None]]:
    """Graph isomorphism convolutions (Xu et al. 2019) after a linear layer."""
    size = given["hidden"]
    convolutions = [
        (GINConv(nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))), "relu")
        for _ in range(given["layers"])
    ]
    return [(nn.Linear(features, size), None), *convolutions, *_head(size, classes, given["pool"])]


def gcnii(features: int, classes: int, given: dict[str, Any]) -> list[tuple[nn.Module, str | None]]:
    """A linear layer, convolutions that return to its output (Chen et al. 2020), and a linear classifier."""
    size, alpha, theta = given["hidden"], given["alpha"], given["theta"]
    convolutions = [(GCN2Conv(size, alpha, theta, number + 1), "relu") for number in range(given["layers"])]
    return [(nn.Linear(features, size), "relu"), *convolutions, (nn.Linear(size, classes), None)]


def ego(features: int, classes: int, given: dict[str, Any]) -> list[tuple[nn.Module, str | None]]:
    """A linear layer, convolutions and a linear classifier (Zhang et al. 2023, FedEgo)."""
    size, passes = given["hidden"], [EgoConv] * given["layers"]
    kinds = [nn.Linear, *passes] if given["order"] == "mlp-gnn" else [*passes, nn.Linear]
    sizes = pairwise([features, *[size] * len(kinds)])
    made = [
        (kind(*pair), None if given["linear"] and kind is EgoConv else "relu")
        for kind, pair in zip(kinds, sizes, strict=True)
    ]
    return [*made, (nn.Linear(size, classes), None)]


def _chain(layer: Any, features: int, last: int, given: dict[str, Any]) -> list[tuple[nn.Module, str | None]]:
    """`layers` of them, with ReLU after each but the last."""
    sizes = [features, *[given["hidden"]] * (given["layers"] - 1), last]
    made = [layer(*pair) for pair in pairwise(sizes)]
    return [*((one, "relu") for one in made[:-1]), (made[-1], None)]


def _pooled(layer: Any, features: int, classes: int, given: dict[str, Any]) -> list[tuple[nn.Module, str | None]]:
    """A chain; or, with pooling, `layers` of them with ReLU and a head."""
    if given["pool"] == "none":
        return _chain(layer, features, classes, given)
    chain = [(one, "relu") for one, _ in _chain(layer, features, given["hidden"], given)]
    return [*chain, *_head(given["hidden"], classes, given["pool"])]


def _head(size: int, classes: int, pool: str) -> list[tuple[nn.Module, str | None]]:
    """Pooling (unless "none"), a linear layer with ReLU, and a linear classifier."""
    pooled: list[tuple[nn.Module, str | None]] = [] if pool == "none" else [(Pool(pool), None)]
    return [*pooled, (nn.Linear(size, size), "relu"), (nn.Linear(size, classes), None)]
