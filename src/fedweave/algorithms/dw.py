"""DW, data-size weighting: the baseline of FairGraphFL's paper whose rewards follow the clients' sizes."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedweave.algorithms.cgsv import SparseReward
from fedweave.algorithms.parts import Normalised, Round
from fedweave.algorithms.parts.weigh import BySize, by_size
from fedweave.algorithms.preset import preset_of
from fedweave.core.tree import Tree


@dataclass(frozen=True)
class SizeValue(BySize):
    """Values r_i = n_i / Σ n_k, which weigh the updates too."""

    def value(self, state: Tree, round: Round) -> Tensor:
        """r."""
        return by_size(round)


@preset_of(Normalised, SizeValue, SparseReward)
class DW:
    """CGSV with a client's share of the training examples as its value."""

    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "clients get a reward from normalised updates"
    }
