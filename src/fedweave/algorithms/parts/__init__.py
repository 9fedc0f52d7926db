"""The parts of the FedAvg family: one idea of one paper each, on both sides of the wire (see `part.Part`).

An algorithm of the family is an ordered list of them. Parts that belong to one paper are in that paper's file;
`algorithms.PARTS` names them all.
"""

from fedweave.algorithms.parts.client_data import ClassCounts, Drift
from fedweave.algorithms.parts.composition import Composition
from fedweave.algorithms.parts.cross_entropy import (
    BatchCrossEntropy,
    CrossEntropy,
    EgoCrossEntropy,
    GraphCrossEntropy,
    SampledCrossEntropy,
)
from fedweave.algorithms.parts.dp import Clip, MemberNoise, Normalised
from fedweave.algorithms.parts.example_noise import ExampleNoise
from fedweave.algorithms.parts.external_ends import ForeignEnds
from fedweave.algorithms.parts.links import LinkPrediction
from fedweave.algorithms.parts.needs import LocalSteps, Needs, Protection
from fedweave.algorithms.parts.pace import LocalEpochs, RateSchedule, Schedule
from fedweave.algorithms.parts.packing import Quantize, TopK
from fedweave.algorithms.parts.part import Context, Objective, Outputs, Part, has
from fedweave.algorithms.parts.robust import (
    Bulyan,
    CenteredClip,
    GeometricMedian,
    Krum,
    Median,
    NormBound,
    TrimmedMean,
)
from fedweave.algorithms.parts.secure_sum import SecureSum
from fedweave.algorithms.parts.start import MixedStart, TrainedModel
from fedweave.algorithms.parts.training import OptimizerName, OptimizerState, Training
from fedweave.algorithms.parts.weights import BySize, Uniform, UniformTrained
from fedweave.core.algorithm import Round

__all__ = [
    "BatchCrossEntropy",
    "Bulyan",
    "BySize",
    "CenteredClip",
    "ClassCounts",
    "Clip",
    "Composition",
    "Context",
    "CrossEntropy",
    "Drift",
    "EgoCrossEntropy",
    "ExampleNoise",
    "ForeignEnds",
    "GeometricMedian",
    "GraphCrossEntropy",
    "Krum",
    "LinkPrediction",
    "LocalEpochs",
    "LocalSteps",
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
    "Quantize",
    "RateSchedule",
    "Round",
    "SampledCrossEntropy",
    "Schedule",
    "SecureSum",
    "TopK",
    "TrainedModel",
    "Training",
    "TrimmedMean",
    "Uniform",
    "UniformTrained",
    "has",
]
