"""The exchangeable parts of the FedAvg family.

What a client trains for (`objective`), where it starts (`start`), how replies are weighed (`weigh`), what it does to
its weights before they leave (`release`), and what it gets back (`reward`). Each part is a frozen dataclass; an
algorithm of the family is a choice of five.
"""

from fedweave.algorithms.parts.egos import EgoCrossEntropy
from fedweave.algorithms.parts.objective import CrossEntropy, Objective, Proximal, draw, loss
from fedweave.algorithms.parts.release import Clip, Plain, Release
from fedweave.algorithms.parts.reward import Reward, SameForAll
from fedweave.algorithms.parts.start import GlobalStart, MixedStart, Start
from fedweave.algorithms.parts.weigh import BySize, Uniform, Weigh

PARTS: dict[str, dict[str, type]] = {
    "objective": {"cross_entropy": CrossEntropy, "ego_cross_entropy": EgoCrossEntropy, "proximal": Proximal},
    "start": {"global": GlobalStart, "mixed": MixedStart},
    "weigh": {"size": BySize, "uniform": Uniform},
    "release": {"plain": Plain, "clip": Clip},
    "reward": {"same": SameForAll},
}

__all__ = [
    "PARTS",
    "BySize",
    "Clip",
    "CrossEntropy",
    "EgoCrossEntropy",
    "GlobalStart",
    "MixedStart",
    "Objective",
    "Plain",
    "Proximal",
    "Release",
    "Reward",
    "SameForAll",
    "Start",
    "Uniform",
    "Weigh",
    "draw",
    "loss",
]
