"""FedProx: Li et al. 2020, "Federated optimization in heterogeneous networks", algorithm 2.

Deviations: the local problem is solved by a fixed number of steps rather than to a given inexactness γ.
"""

from dataclasses import dataclass

from fedweave.algorithms import parts
from fedweave.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose local objective has the proximal term μ/2 ‖w − w_t‖² added (`parts.Proximal`).

    mu:       strength of the pull.
    adaptive: FedEgo's variant, which moves μ over {.001, .01, .1, 1} with the training loss.
    """

    mu: float = 0.01
    adaptive: bool = False

    @property
    def terms(self) -> tuple[parts.Objective, ...]:
        """FedAvg's terms and the proximal one."""
        return (*self.objective, parts.Proximal(self.mu, self.adaptive))
