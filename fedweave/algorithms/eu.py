"""EU: the baseline of FairGraphFL's paper whose values follow how near updates are to the joint one.

Deviations: the paper says it in one sentence; 1 / (1 + ‖u_i − u_N‖) and the rest as in CGSV is our reading of it.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedweave.algorithms.cgsv import CosineValue, SparseReward
from fedweave.algorithms.parts import Normalised, Part
from fedweave.algorithms.preset import preset


@dataclass(frozen=True)
class EuclideanValue(CosineValue):
    """Values r_i ← α r_i + (1 − α) / (1 + ‖u_i − u_N‖₂), at least `least`, normalised to sum 1; u_N as in
    `CosineValue`.

    alpha: how much of the last values goes on.
    least: the smallest value.
    """

    def likeness(self, updates: Tensor, whole: Tensor) -> Tensor:
        """1 / (1 + the distance), [P]; 0 for an update of 0, which is near a short joint one and brings nothing."""
        return torch.where(updates.any(1), 1 / (1 + (updates - whole).norm(dim=1)), 0.0)


@preset
@dataclass(frozen=True)
class EU:
    """CGSV with the closeness of updates to the joint one in place of their angle.

    gamma: Γ, norm of the updates that clients send.
    alpha: how much of the last values goes on.
    beta:  how evenly rewards are spread.
    """

    gamma: float = 0.5
    alpha: float = 0.95
    beta: float = 1.0

    does_not_owe: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "clients get a reward from normalised updates"
    }

    def parts(self) -> tuple[Part, ...]:
        """Normalised updates, values by distance, sparse rewards."""
        return Normalised(self.gamma), EuclideanValue(self.alpha), SparseReward(self.beta)
