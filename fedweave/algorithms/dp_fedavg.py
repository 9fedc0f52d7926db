"""DP-FedAvg: McMahan et al. 2018, "Learning differentially private recurrent language models", algorithm 1.

The paper's server is trusted: it sums clipped updates and adds noise once. Here each member adds its own noise to what
it sends, so that the bound also holds against the server, and the mean of P members has 1/√P of one member's noise.

Deviations: noise at the members, as above; clipping of all weights together (the paper's "flat" clipping, not that by
layer); all members have equal weight, as with the paper's w_k = 1, because numbers of examples would reveal something
about the data; a fixed number of members a round, and no privacy amplification by sampling, because the sample is drawn
from a seed that all know.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from fedweave.algorithms.parts import MemberNoise, Part, Uniform
from fedweave.algorithms.preset import preset


@preset
@dataclass(frozen=True)
class DPFedAvg:
    """FedAvg whose members clip their updates and add Gaussian noise to them, so that what leaves is differentially
    private with the whole member as record.

    clip:     L2 norm of an update at most, over all weights.
    sigma:    noise of each weight, in units of clip; 1 where no target is given.
    epsilon:  a target instead: the least noise with which `target_rounds` rounds have this ε.
    delta:    δ of that ε.
    target_rounds: how many rounds that is for; a run of more is refused.
    """

    clip: float = 1.0
    sigma: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    target_rounds: int | None = None

    does_not_owe: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "the server's step is one of a clipped update with noise"
    }
    tried_with: ClassVar[dict[str, Any]] = {"sigma": 0.01}  # with more noise five clients learn nothing

    def parts(self) -> tuple[Part, ...]:
        """The plain mean of noised updates."""
        return Uniform(), MemberNoise(self.clip, self.sigma, self.epsilon, self.delta, self.target_rounds)
