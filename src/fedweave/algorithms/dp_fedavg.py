"""DP-FedAvg: McMahan et al. 2018, "Learning differentially private recurrent language models", algorithm 1.

The paper's server is trusted: it sums clipped updates and adds noise once. Here each member adds its own noise to what
it sends, so that the bound also holds against the server, and the mean of P members has 1/√P of one member's noise.

Deviations: noise at the members, as above; clipping of all weights together (the paper's "flat" clipping, not that by
layer); all members have equal weight, as with the paper's w_k = 1, because numbers of examples would reveal something
about the data; a fixed number of members a round, and no privacy amplification by sampling, because the sample is drawn
from a seed that all know.
"""

from typing import ClassVar

from fedweave.algorithms.parts import MemberNoise, Uniform
from fedweave.algorithms.preset import preset_of
from fedweave.core.types import Record


@preset_of(Uniform, MemberNoise)
class DPFedAvg:
    """FedAvg whose clients clip their updates and add Gaussian noise to them, so that updates are differentially
    private with all data of a client as record."""

    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "the server's step is one of a clipped update with noise"
    }
    test_settings: ClassVar[Record] = {"sigma": 0.01}  # with more noise five clients learn nothing
