"""Nodes that nobody has, made of noise for a class each (Zhu et al. 2024, "FedTAD", section 4.2)."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import Graph, make_graph
from fedweave.core.tree import Tree, leaves, nest
from fedweave.models.blocks import affine

NOISE, WIDTHS = 32, (64, 128, 256)  # numbers that a node begins with; the generator's layers


def generator(key: Tensor, classes: int, features: int, dtype: torch.dtype) -> Tree:
    """A vector of each class, N(0, 1), and the layers of the generator."""
    widths = (NOISE + classes, *WIDTHS, features)
    found: Tree = {"class": {"weight": random.normal(random.fold(key, "class"), (classes, classes))}}
    found |= {
        str(at): affine(*widths[at : at + 2]).init(random.fold(key, "layer", at)) for at in range(len(WIDTHS) + 1)
    }
    return nest({path: leaf.to(dtype) for path, leaf in leaves(found)})


def features(made: Tree, z: Tensor, label: Tensor) -> Tensor:
    """[n, d] of noise z [n, 32] for nodes of the classes `label` int64 [n], by a `generator`."""
    h = torch.cat([z, made["class"]["weight"][label]], 1)
    for at in range(len(WIDTHS)):
        h = torch.tanh(h @ made[str(at)]["weight"] + made[str(at)]["bias"])
    last = made[str(len(WIDTHS))]
    x: Tensor = h @ last["weight"] + last["bias"]
    return x


def labels(count: int, classes: int, device: torch.device | str = "cpu") -> Tensor:
    """int64 [count]: ⌊count / C⌋ of each class, the rest of the last."""
    return (torch.arange(count, device=device) // max(1, count // classes)).clamp(max=classes - 1)


def alike(cosine: Tensor, near: int) -> Tensor:
    """bool [n, n]: pairs of which one is among the `near` columns that are largest in the other's row."""
    nearest = (-cosine).argsort(dim=1, stable=True)[:, :near]
    close = torch.zeros_like(cosine, dtype=torch.bool).scatter(1, nearest, True)
    return close | close.T


def pseudo_graph(x: Tensor, near: int) -> Graph:
    """Each node of x [n, d] linked to the `near` rows of the largest cosine, itself among them, both ways."""
    unit = F.normalize(x.detach(), dim=1)
    joined = alike(unit @ unit.T, near).fill_diagonal_(False).cpu()
    masks, none = np.zeros((3, len(x)), bool), np.full(len(x), -1)
    return make_graph(x.detach().cpu().numpy(), joined.nonzero().T.numpy(), none, masks, dtype=x.dtype).to(x.device)
