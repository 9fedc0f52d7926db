"""FedBN: Li, Jiang, Zhang, Kamp and Dou 2021, "FedBN: federated learning on non-IID features via local batch
normalization", algorithm 1.

Clients share all weights except normalization weights, so that each client brings its own features to a common scale.
Deviation: weights of layer and graph norm stay at the client too.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedweave.algorithms.parts import Needs, Part, Training
from fedweave.algorithms.preset import preset_of
from fedweave.core.types import Record


@dataclass(frozen=True)
class OwnNorms(Part):
    """The weights of normalization stay at their client, and so do batch norm's running statistics."""

    recorded = True

    needs = Needs(private=("norm/*",))

    def check(self, training: Training) -> None:
        if not any(layer.norms for layer in training.model):
            raise ValueError(
                "own_norms keeps weights of normalization at clients, and the model has none; set model.norm = 'batch' "
                "(or 'layer' or 'graph'), or take an own module with such layers"
            )


@preset_of(OwnNorms)
class FedBN:
    """FedAvg of all weights except normalization weights, which stay at each client."""

    example_model: ClassVar[str] = "GCN(hidden=64, norm='batch')"
    exempt_laws: ClassVar[Record] = {"one_client_is_ordinary_training": "its model has batch norm"}
    # Adam would turn the rounding of a bias before batch norm, whose gradient is 0, into steps.
    test_settings: ClassVar[Record] = {"model": {"name": "gcn", "norm": "batch"}, "optimizer": "sgd"}
