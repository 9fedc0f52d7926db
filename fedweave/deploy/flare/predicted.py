"""What a finished run's models predict at a site, for its owner alone."""

import logging

import numpy as np
from torch import Tensor

from fedweave.core.tree import Tree
from fedweave.deploy.flare.participation import RUNS, Participation
from fedweave.runs.files import PREDICTIONS, write_table
from fedweave.runs.predictions import Predicted, predictions_table
from fedweave.runs.scoring import probabilities


def hand_over(job: Participation, site: str, state: Tree, log: logging.Logger) -> None:
    """Take what a step left for the site's owner out of its `state`: a prediction, or a model that predicts."""
    if "prediction" in state:
        _leave(job, site, state.pop("prediction"), log)
    if "model" in state:
        _leave(job, site, probabilities(job.algorithm.net, state.pop("model"), job.graph), log)


def _leave(job: Participation, site: str, probability: Tensor, log: logging.Logger) -> None:
    """Write the probabilities [e, c] of the site's examples into the run's folder there."""
    path, data = job.folder / RUNS / job.run / PREDICTIONS, job.found.data
    found = Predicted(site, probability, np.arange(data.examples), data.public)
    table = predictions_table([found], data.ids, data.labels, data.example, data.y)
    write_table(path, table)
    log.info("%d predictions: %s", data.examples, path)
