"""Local training: `fit`, the one loop that every algorithm trains with, and the optimizers it uses."""

from fedweave.learn.fitting import Fit, Loss, Penalty, fit, keep_trained
from fedweave.learn.losses import PLAIN, ClassWeight, Criterion, NumberLoss, class_counts, cross_entropy
from fedweave.learn.optimizers import OPTIMIZERS, Adagrad, Adam, AdamW, Optimizer, RmsProp, Sgd, optimizer_of
from fedweave.learn.recording import compute_on_server

__all__ = [
    "OPTIMIZERS",
    "PLAIN",
    "Adagrad",
    "Adam",
    "AdamW",
    "ClassWeight",
    "Criterion",
    "Fit",
    "Loss",
    "NumberLoss",
    "Optimizer",
    "Penalty",
    "RmsProp",
    "Sgd",
    "class_counts",
    "compute_on_server",
    "cross_entropy",
    "fit",
    "keep_trained",
    "optimizer_of",
]
