"""The parts of the FedAvg family: one idea of one paper each, on both sides of the wire (see `part.Part`).

An algorithm of the family is an ordered list of them. Parts that belong to one paper stand in that paper's file;
`algorithms.PARTS` names them all.
"""

from fedweave.algorithms.parts.composition import Composition
from fedweave.algorithms.parts.context import Context
from fedweave.algorithms.parts.dp import Clip, MemberNoise, Normalised
from fedweave.algorithms.parts.drift import ClassCounts, Drift
from fedweave.algorithms.parts.example_noise import ExampleNoise
from fedweave.algorithms.parts.needs import Needs, Protection
from fedweave.algorithms.parts.objective import CrossEntropy, Objective
from fedweave.algorithms.parts.outputs import Outputs
from fedweave.algorithms.parts.part import Part, has
from fedweave.algorithms.parts.robust import Krum, Median, NormBound, TrimmedMean
from fedweave.algorithms.parts.sampled import EgoCrossEntropy, GraphCrossEntropy, SampledCrossEntropy
from fedweave.algorithms.parts.secure_sum import SecureSum
from fedweave.algorithms.parts.start import MixedStart, TrainedModel
from fedweave.algorithms.parts.training import OptimizerName, OptimizerState, Training
from fedweave.algorithms.parts.weigh import BySize, Uniform, UniformTrained
from fedweave.core.round import Round

__all__ = [
    "BySize",
    "ClassCounts",
    "Clip",
    "Composition",
    "Context",
    "CrossEntropy",
    "Drift",
    "EgoCrossEntropy",
    "ExampleNoise",
    "GraphCrossEntropy",
    "Krum",
    "Median",
    "MemberNoise",
    "MixedStart",
    "Needs",
    "NormBound",
    "Normalised",
    "Objective",
    "OptimizerName",
    "OptimizerState",
    "Outputs",
    "Part",
    "Protection",
    "Round",
    "SampledCrossEntropy",
    "SecureSum",
    "TrainedModel",
    "Training",
    "TrimmedMean",
    "Uniform",
    "UniformTrained",
    "has",
]
