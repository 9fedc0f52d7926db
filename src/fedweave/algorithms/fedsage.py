"""FedSage: Zhang et al. 2021, "Subgraph federated learning with missing neighbor generation", section 3.2: FedAvg of a
GraphSAGE model that is trained on sampled neighborhoods.

Deviations: every step draws a new mini-batch, `local_steps` per round; the paper goes once through a client's training
nodes. In evaluation a node sees all its neighbors, not a sample.
"""

from typing import ClassVar

from fedweave.algorithms.parts import SampledCrossEntropy, Uniform
from fedweave.algorithms.preset import preset_of
from fedweave.core.types import Record


@preset_of(SampledCrossEntropy, Uniform)
class FedSage:
    """FedAvg of a model that is trained on mini-batches of nodes with sampled neighbors.

    local_steps: mini-batches per round.
    """

    local_steps: int = 5

    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "clients train on mini-batches"}
    test_settings: ClassVar[Record] = {"batch": 8, "fan_out": 2, "local_steps": 2}
