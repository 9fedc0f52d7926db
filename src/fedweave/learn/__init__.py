"""Local training: `fit`, the one loop that every algorithm trains with, and the optimizers it uses."""

from fedweave.learn.fitting import Fit, Loss, Penalty, compute_on_server, fit, where_trained
from fedweave.learn.losses import PLAIN, ClassWeight, Criterion, NumberLoss, class_counts, cross_entropy
from fedweave.learn.optimizers import MOST_STEPS, OPTIMIZERS, Adam, Optimizer, Sgd, check_training

__all__ = [
    "MOST_STEPS",
    "OPTIMIZERS",
    "PLAIN",
    "Adam",
    "ClassWeight",
    "Criterion",
    "Fit",
    "Loss",
    "NumberLoss",
    "Optimizer",
    "Penalty",
    "Sgd",
    "check_training",
    "class_counts",
    "compute_on_server",
    "cross_entropy",
    "fit",
    "where_trained",
]
