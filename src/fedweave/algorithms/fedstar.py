"""FedStar: Tan et al. 2023, "Federated learning on non-IID graphs via structural knowledge sharing".

Graphs of different domains have structure in common: clients share the part of the network that reads structure codes,
and keep the rest, which reads features. No known deviations; codes are computed from the edges that a client holds.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.parts import Part
from fedweave.algorithms.preset import preset
from fedweave.core.algorithm import Capabilities
from fedweave.core.types import Record
from fedweave.models.star import STRUCTURE


@preset
@dataclass(frozen=True)
class FedStar:
    """FedAvg of the structure channel of the model `star`; its other weights stay at their clients.

    share:       patterns of the weights that are shared.
    local_steps: optimizer steps per round.
    lr:          learning rate of the local training.
    """

    share: tuple[str, ...] = (f"*/{STRUCTURE}*",)
    local_steps: int = 1
    lr: float = 1e-3

    capabilities: ClassVar[Capabilities] = replace(FedAvg.capabilities, graph_level=True, model="star")
    example_model: ClassVar[str] = "Star(hidden=64)"
    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "it trains a model of small graphs"}
    test_settings: ClassVar[Record] = {"lr": 0.01}

    def parts(self) -> tuple[Part, ...]:
        return ()
