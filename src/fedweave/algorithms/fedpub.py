"""FED-PUB: Baek et al. 2023, "Personalized subgraph federated learning".

Every client gets a mix of all clients' weights, with more of those whose models behave like its own on a random graph,
and masks the part of the mix that it does not need by its own mask.

Deviations: the server computes the embeddings, from the weights w_i that it has anyway; masks stay at their clients, so
these embeddings come from w_i and not from w_i ∘ μ_i. Biases have no mask. The penalties have gradients; in the
authors' code they have none. But the gradient of ‖w − w̄_i‖₂ is 0 at w̄_i, where training starts: with one local step,
the default, only the L1 norm of the masks acts.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedweave.algorithms.parts import LocalSteps, Needs, Part, Round, Training
from fedweave.algorithms.preset import preset_of
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.bounds import NonNegative
from fedweave.core.edge_attributes import OF_EXAMPLES
from fedweave.core.federation import Federation
from fedweave.core.graph import Graph, make_graph
from fedweave.core.model import PAIRS, Hidden, Layer, Model
from fedweave.core.operators import POOLS
from fedweave.core.tree import Tree, leaves

SUFFIX = "_mask"
BLOCKS, SIZE, DENSITY = 5, 100, 0.1  # of the proxy graph, section 4.1 and the authors' code


def add_masks(layer: Layer, threshold: float) -> Layer:
    """`layer` with the weights w ∘ μ, a mask μ for each of its matrices.

    The mask of "weight" is the weight "weight_mask"; it starts at 1. Its entries below `threshold` in magnitude count
    as 0 in evaluation, when a layer gets no RNG key.
    """

    def init(key: Tensor) -> Tree:
        w = layer.init(key)
        return w | {name + SUFFIX: torch.ones_like(leaf) for name, leaf in w.items() if leaf.dim() > 1}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
        return layer.apply(_apply_masks(w, threshold if key is None else None), graph, h, key)

    return layer._replace(init=init, apply=apply, plain=partial(_apply_masks, threshold=threshold))


def _apply_masks(w: Tree, threshold: float | None) -> Tree:
    """The products of weights and masks, in which entries below a threshold in magnitude count as 0."""
    masks = {name: leaf for name, leaf in w.items() if name.endswith(SUFFIX)}
    if threshold is not None:
        masks = {name: torch.where(mask.abs() < threshold, 0, mask) for name, mask in masks.items()}
    plain = {name: leaf for name, leaf in w.items() if name not in masks}
    return plain | {name: leaf * masks[name + SUFFIX] for name, leaf in plain.items() if name + SUFFIX in masks}


@dataclass(frozen=True)
class FunctionalMix(Part):
    """Client i gets Σ_j a_ij w_j, a_ij = softmax_j(τ cos(h_i, h_j)), where h_i is the embedding of a random graph by
    the model of client i: the mean over nodes of its last convolution's output (section 4.1, eqs. 4-5).

    tau: τ, how much more similar clients share; 0 is the plain mean. The authors take 5 where clients share nodes, 3
        where they do not.
    """

    tau: NonNegative = 3.0
    recorded = True
    rounds_vary = True
    needs = Needs(models=("personal",))

    def check(self, training: Training) -> None:
        if not models.feature_rows(training.model) or not convolutions(training.model):
            raise ValueError(
                "FED-PUB compares models by their outputs on a random graph; choose a model with graph convolutions "
                "that multiplies features by a weight, such as gcn"
            )

    def init(self, fed: Federation, w: Tree) -> Tree:
        return {"proxy": fed.key("proxy")}

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """a, float64 [P, P]; its rows sum to 1."""
        cut, w = max(convolutions(round.model)) + 1, round.trained
        first = next(iter(models.feature_rows(round.model)))
        features = dict(leaves(w))[first]
        proxy = proxy_graph(int(state["proxy"]), features.shape[1], features.dtype, features.device)

        def embedding(w: Tree) -> Tensor:
            out = models.apply(round.model[:cut], w, proxy)
            h: Tensor = out["h"] if isinstance(out, dict) else out  # gcnii's layers hand on more than h
            return h[: BLOCKS * SIZE].mean(0)

        h = vmap(embedding, chunk_size=32)(w).double()  # [P, width]
        unit = F.normalize(h, dim=1)
        return torch.softmax(self.tau * (unit @ unit.T), 1)


def convolutions(model: Model) -> list[int]:
    """The numbers of the layers that pass messages."""
    return [at for at, layer in enumerate(model) if layer.operator not in (None, PAIRS, *POOLS, *OF_EXAMPLES)]


@lru_cache(maxsize=4)
def proxy_graph(key: int, features: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Graph:
    """5 blocks of 100 nodes; two nodes of a block are neighbors with probability 0.1, others never; x ~ N(0, 1)."""
    n, source = BLOCKS * SIZE, torch.tensor(key, device="cpu")
    pairs = random.keep(random.fold(source, "edges"), (n, n), DENSITY).numpy()
    block = np.arange(n) // SIZE
    linked = np.triu(pairs & (block[:, None] == block), 1)
    x = random.normal(random.fold(source, "x"), (n, features)).numpy()
    none = np.zeros((3, n), bool)
    graph = make_graph(x, np.stack(np.nonzero(linked | linked.T)), np.full(n, -1), none, dtype=dtype)
    return graph.to(device)


@dataclass(frozen=True)
class SparseMasks(Part):
    """Every client trains w ∘ μ_i with its own mask μ_i, which starts at 1 and never leaves the client, and adds l1
    ‖μ_i‖₁ + pull Σ ‖w − w̄_i‖₂ to its objective. The sum is over tensors, and w̄_i are the received weights (section
    4.2, eq. 7).

    l1:        weight of the masks' L1 norm, which makes them sparse.
    pull:      weight of the distance to the received weights; none in the first round, and without effect where
        local_steps is 1.
    threshold: smaller entries of a mask are 0 in evaluation.
    """

    l1: NonNegative = 1e-3
    pull: NonNegative = 1e-3
    threshold: NonNegative = 1e-3
    recorded = True
    client_learns = "how strongly training is pulled to the received weights"
    needs = Needs(
        reads=("features",),
        steps=LocalSteps(
            several="the pull to the received weights has a gradient; of the penalties only the masks' L1 norm acts"
        ),
        private=("*" + SUFFIX,),
        statistics="none",
    )

    def layers(self, model: Model, on_clients: bool) -> Model:
        return tuple(add_masks(layer, self.threshold) for layer in model)

    def init(self, fed: Federation, w: Tree) -> Tree:
        """No pull yet, as a tensor, for a number that changes would be a new computation to record."""
        return {"pull": torch.tensor(0.0, dtype=torch.float64, device=fed.device)}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        return {"pull": state["pull"]}, {}

    def penalty(self, w: Tree, received: Tree, inputs: Tree) -> Tensor:
        before, sizes, distances = dict(leaves(received)), [], []
        for path, leaf in leaves(w):
            if path.endswith(SUFFIX):
                sizes.append(leaf.abs().sum())
            else:
                distances.append((leaf - before[path]).norm())
        result: Tensor = self.l1 * torch.stack(sizes).sum() + inputs["pull"] * torch.stack(distances).sum()
        return result

    def update(self, state: Tree, round: Round) -> Tree:
        return {"pull": torch.full_like(state["pull"], self.pull)}


@preset_of(FunctionalMix, SparseMasks)
class FedPUB:
    """Clients with similar models share more, and each client masks a part of the weights that it gets.

    The paper's model has two graph convolutions of width 128 and a linear classifier; any with convolutions will do.

    local_steps:  optimizer steps per round.
    weight_decay: weight decay of the local training.
    """

    local_steps: int = 1
    weight_decay: float = 1e-6

    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "clients train masks, too"}
