"""Weights under the names and in the shapes that PyTorch Geometric's layers have."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedweave.core.model import Layer, Model
from fedweave.core.tree import Tree
from fedweave.errors import UserError
from fedweave.models.masked import SUFFIX, pruned


def state_dict(model: Model, w: Tree, heads: Sequence[int] = ()) -> dict[str, Tensor]:
    """float32 {"layers.0.weight": …} of the weights `w`, as `pyg.Net` loads them; heads: of each layer with attention.

    Raises:
        UserError: a layer is none of those that `pyg` has.
    """
    found: dict[str, Tensor] = {}
    for number, layer in enumerate(model):
        own = _named(layer, w.get(str(number), {}), heads[number] if heads else 1)
        found |= {f"layers.{number}.{name}": leaf.float().contiguous() for name, leaf in own.items()}
    return found


def unmasked(w: Tree, threshold: float) -> Tree:
    """The weights that trained masks leave (`models.masked`): products, without the masks."""
    return {
        number: {
            name: leaf * pruned(layer[name + SUFFIX], threshold) if name + SUFFIX in layer else leaf
            for name, leaf in layer.items()
            if not name.endswith(SUFFIX)
        }
        for number, layer in w.items()
    }


def _named(layer: Layer, w: Tree, heads: int) -> dict[str, Tensor]:
    """The weights of one layer."""
    names = set(w)
    if not w:
        return {}
    if layer.operator is None and names == {"weight", "bias"}:
        return {"weight": w["weight"].T, "bias": w["bias"]}
    if layer.operator == "gcn" and names == {"weight", "bias"}:
        return {"lin.weight": w["weight"].T, "bias": w["bias"]}
    if layer.operator == "gcn" and names == {"weight", "source", "target", "bias"}:
        halves = {f"att_{at}": w[name].reshape(1, heads, -1) for at, name in (("src", "source"), ("dst", "target"))}
        return {"lin.weight": w["weight"].T, "bias": w["bias"]} | halves
    if layer.operator == "gcn" and names == {"weight"}:
        return {"weight1": w["weight"]}
    if layer.operator in ("mean", "mean_or_self"):
        root = w["root"] if "root" in w else w["neigh"]  # one weight for both, where they share it
        return {"lin_l.weight": w["neigh"].T, "lin_l.bias": w["bias"], "lin_r.weight": root.T}
    if layer.operator == "sum":
        weights = {f"nn.{2 * i - 2}.weight": w[f"weight{i}"].T for i in (1, 2)}
        return weights | {f"nn.{2 * i - 2}.bias": w[f"bias{i}"] for i in (1, 2)} | {"eps": torch.zeros(1, device="cpu")}
    raise UserError("the model has a layer that the exported module lacks; take `fedweave predict`.")
