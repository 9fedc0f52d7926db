"""FedSage: Zhang et al. 2021, "Subgraph federated learning with missing neighbor generation", section 3.2: FedAvg of a
GraphSAGE model that is trained on sampled neighbourhoods.

Deviations: mini-batches are drawn anew in every step, `local_steps` of them a round; the paper goes once through a
client's training nodes. In evaluation a node sees all its neighbours, not a sample.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from fedweave.algorithms.parts import Part, SampledCrossEntropy, Uniform
from fedweave.algorithms.preset import preset


@preset
@dataclass(frozen=True)
class FedSage:
    """FedAvg of a model that is trained on mini-batches of nodes with sampled neighbours.

    batch:       training nodes of a mini-batch.
    fan_out:     neighbours sampled per node and layer.
    local_steps: mini-batches per round.
    """

    batch: int = 32
    fan_out: int = 5
    local_steps: int = 5

    does_not_owe: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "clients train on mini-batches"}
    tried_with: ClassVar[dict[str, Any]] = {"batch": 8, "fan_out": 2, "local_steps": 2}

    def parts(self) -> tuple[Part, ...]:
        """Sampled neighbourhoods, and the plain mean."""
        return SampledCrossEntropy(self.batch, self.fan_out), Uniform()
