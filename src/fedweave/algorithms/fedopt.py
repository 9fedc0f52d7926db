"""FedAvgM, FedAdam, FedYogi and FedAdagrad: Hsu, Qi and Brown 2019, "Measuring the effects of non-identical data
distribution for federated visual classification", and Reddi et al. 2021, "Adaptive federated optimization",
algorithm 2.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedweave.algorithms.parts import Part
from fedweave.algorithms.preset import preset_of
from fedweave.core.bounds import BelowOne, Positive
from fedweave.core.federation import Federation
from fedweave.core.tree import Tree, map_leaves
from fedweave.core.types import Record

_MAX_TAU = 1e15  # whose square float32 holds


@dataclass(frozen=True)
class ServerMomentum(Part):
    """The server's step m ← momentum · m + Δ, w ← w + lr · m.

    server_lr: the server's learning rate.
    momentum:  β, share of the last step in the next one.
    """

    server_lr: Positive = 0.5
    momentum: BelowOne = 0.5
    recorded = True

    def init(self, fed: Federation, w: Tree) -> Tree:
        return {"m": map_leaves(torch.zeros_like, w)}

    def step(self, state: Tree, w: Tree, delta: Tree) -> tuple[Tree, Tree]:
        m = map_leaves(lambda m, d: self.momentum * m + d, state["m"], delta)
        return map_leaves(lambda w, m: w + self.server_lr * m, w, m), {"m": m}


@dataclass(frozen=True)
class ServerAdam(Part):
    """The server's step m ← β₁ m + (1 − β₁) Δ, v ← β₂ v + (1 − β₂) Δ², w ← w + lr · m / (√v + τ), without bias
    correction; v starts at τ².

    server_lr: the server's learning rate.
    beta1:     decay of m.
    beta2:     decay of v.
    tau:       τ, floor of the divisor; the smaller, the more adaptive.
    """

    server_lr: Positive = 0.003
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    tau: Annotated[float, Field(gt=0, le=_MAX_TAU)] = 1e-3
    recorded = True

    def init(self, fed: Federation, w: Tree) -> Tree:
        return {"m": map_leaves(torch.zeros_like, w), "v": map_leaves(lambda w: torch.full_like(w, self.tau**2), w)}

    def step(self, state: Tree, w: Tree, delta: Tree) -> tuple[Tree, Tree]:
        m = map_leaves(lambda m, d: self.beta1 * m + (1 - self.beta1) * d, state["m"], delta)
        v = map_leaves(self.squares, state["v"], delta)
        return map_leaves(lambda w, m, v: w + self.server_lr * m / (v.sqrt() + self.tau), w, m, v), {"m": m, "v": v}

    def squares(self, v: Tensor, d: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * d**2


@dataclass(frozen=True)
class ServerYogi(ServerAdam):
    """`ServerAdam` with v ← v − (1 − β₂) Δ² sign(v − Δ²), which falls no faster than it rises."""

    recorded = True

    def squares(self, v: Tensor, d: Tensor) -> Tensor:
        return v - (1 - self.beta2) * d**2 * torch.sign(v - d**2)


@dataclass(frozen=True)
class ServerAdagrad(ServerAdam):
    """`ServerAdam` with v ← v + Δ², without β₂ and by default without β₁.

    beta1: decay of m.
    beta2: has no effect.
    """

    beta1: float = 0.0
    recorded = True

    def squares(self, v: Tensor, d: Tensor) -> Tensor:
        return v + d**2


@preset_of(ServerMomentum)
class FedAvgM:
    """FedAvg with momentum at the server."""

    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "the server's step has momentum"}
    test_settings: ClassVar[Record] = {"server_lr": 0.1, "momentum": 0.5, "local_steps": 2}


@preset_of(ServerAdam)
class FedAdam:
    """FedAvg with Adam at the server."""

    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "the server's step is one of Adam"}
    test_settings: ClassVar[Record] = {"server_lr": 0.03, "local_steps": 3}


@preset_of(ServerYogi)
class FedYogi:
    """FedAvg with Yogi at the server."""

    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "the server's step is one of Yogi"}
    test_settings: ClassVar[Record] = {"server_lr": 0.03, "local_steps": 3}


@preset_of(ServerAdagrad, without=("beta2",))
class FedAdagrad:
    """FedAvg with Adagrad at the server."""

    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "the server's step is one of Adagrad"}
    test_settings: ClassVar[Record] = {"server_lr": 0.03, "local_steps": 3}
