"""EU: the baseline of FairGraphFL's paper whose values follow how near updates are to the joint one.

Deviations: the paper says it in one sentence; 1 / (1 + ‖u_i − u_N‖) and the rest as in CGSV is our reading of it.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedweave.algorithms.cgsv import CosineValue, SparseReward
from fedweave.algorithms.parts import Normalised
from fedweave.algorithms.preset import preset_of


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


@preset_of(Normalised, EuclideanValue, SparseReward, without=("least",))
class EU:
    """CGSV with the closeness of updates to the joint one in place of their angle."""

    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "clients get a reward from normalised updates"
    }
