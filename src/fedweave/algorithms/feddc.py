"""FedDC: Gao et al. 2022, "FedDC: federated learning with non-IID data via local drift decoupling and correction",
algorithm 1.

It is FedDyn, whose sums of updates it calls drift, with SCAFFOLD's correction of local steps, as the released code has
it (the paper's form of that, from the last round's updates, agrees with it in the second round, and is wrong where some
clients alone take part). Both are made of updates, so that nothing else is sent. Deviations: as FedDyn's.
"""

from typing import ClassVar

from fedweave.algorithms.feddyn import DynamicRegularisation
from fedweave.algorithms.parts import OptimizerName, UniformTrained
from fedweave.algorithms.preset import preset_of
from fedweave.algorithms.scaffold import ControlVariates


@preset_of(DynamicRegularisation, ControlVariates, UniformTrained, without=("option", "mean"))
class FedDC:
    """FedAvg whose clients train on F_i(v) + α/2 ‖d_i + v − w_t‖² + ⟨c − c_i, v⟩, with a drift d_i that the server
    makes up for.

    optimizer: optimizer of the local training; the correction needs SGD's plain steps.
    lr:        learning rate of the local training.
    """

    optimizer: OptimizerName = "sgd"
    lr: float = 0.03

    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "the server goes on by what clients have drifted"
    }
