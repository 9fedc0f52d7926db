"""How often a run is evaluated with `eval_every = "auto"`: from the work of a round and of an evaluation, which is
counted before the first round, so that it is the same wherever and whenever the run is repeated.

Work is counted in rows that are read: a pass of the model over a client's data reads each node's, where links are
examples also those that messages and pairs read. A step is two passes, forward and backward, of the examples in it. An
evaluation is three of all: of the shared model, of each client's own after its training, and the measuring; and one
for each model that a part `tries`. What else an algorithm computes is not counted.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedweave.core.link_examples import SAMPLE
from fedweave.core.links import Links
from fedweave.core.model import PAIRS, pools
from fedweave.core.sizes import ROWS_PER_BATCH
from fedweave.experiment.build import Built
from fedweave.experiment.config import Config
from fedweave.experiment.rounds import AUTO, FEW
from fedweave.sampling.minibatches import places_of

OF_STEP, OF_EVALUATION = 2, 3  # passes
MAX_SHARE = 1 / 4  # of the time that evaluations may take
MIN_EVALUATIONS = 10
# Numbers of a dense product that take as long as one that is read by its index, measured on one core.
DENSE = 32


def with_interval(config: Config, built: object) -> Config:
    """The config with a number for `eval_every = "auto"`: 1 between sites, whose sizes are not known when they agree on
    the rounds that are evaluated.

    built: what the config makes (`Built`, or what sites joined).
    """
    if config.general.eval_every != AUTO:
        return config
    every = 1
    if isinstance(built, Built) and not config.between_sites:
        every = evaluation_interval(built, config.general.rounds, config.evaluation.ranks)
    return replace(config, general=replace(config.general, eval_every=every))


def evaluation_interval(built: Built, rounds: int, ranks: str = "auto") -> int:
    """The fewest rounds between evaluations with which these are to take at most a quarter of the time, at most a tenth
    of all rounds. ranks: `Judging.ranks`."""
    round_work, evaluation_work = work_of(built, ranks)
    every = math.ceil(evaluation_work * (1 / MAX_SHARE - 1) / round_work)
    return min(max(every, 1), max(1, rounds // MIN_EVALUATIONS))


def work_of(built: Built, ranks: str = "auto") -> tuple[float, float]:
    """The rows that a round reads, and those that an evaluation reads, with ranks of a sample where it may take one."""
    algorithm, fed, columns = built.algorithm, built.fed, built.columns
    settings = algorithm, *algorithm.composed.values()
    nodes = np.array(columns["nodes"], float)  # [clients]
    train = np.array(columns["train"], float)
    passes, of_step, of_evaluation = nodes, np.zeros_like(nodes), 0.0
    if built.data.links is not None:
        passes, of_step, of_evaluation = _rows_of_links(built, built.data.links, settings, ranks)

    # Training. Only mini-batches of small graphs, and of nodes with sampled neighbors, are less than a whole pass.
    steps = getattr(algorithm, "local_steps", getattr(algorithm, "steps", 1))
    steps_of_client = np.full(len(nodes), float(steps))
    epochs, batch_size = getattr(algorithm, "local_epochs", 0), getattr(algorithm, "batch_size", 0)
    if epochs:
        steps_of_client[:] = epochs * (np.ceil(train / batch_size) if batch_size else 1)
    share = np.ones(len(nodes))
    for batch, fan_out in _batches(settings):
        if fan_out:
            share = np.minimum(share, batch * places_of(algorithm.model, fan_out) / np.maximum(nodes, 1))
        elif pools(algorithm.model):
            share = np.minimum(share, batch / np.maximum(columns["graphs"], 1))
    rows = float((steps_of_client * (passes * share + of_step)).sum()) * algorithm.participation
    round_work = OF_STEP * (rows + float(steps_of_client.max()) * ROWS_PER_BATCH)

    evaluated = len(fed.evaluated_clients or fed.clients) / len(fed.clients)
    of_all = OF_EVALUATION + sum(getattr(owner, "tries", 0) for owner in settings)
    evaluation_work = of_all * (float(passes.sum()) * _splits(built) * evaluated + ROWS_PER_BATCH)
    return round_work, evaluation_work + of_evaluation * evaluated


def _batches(settings: tuple[Any, ...]) -> Iterator[tuple[int, int]]:
    """The `batch` and the `fan_out`, 0 for none, of an algorithm and its parts that have mini-batches."""
    for owner in settings:
        batch = getattr(owner, "batch", 0)
        if batch:
            yield batch, getattr(owner, "fan_out", 0)


def _splits(built: Built) -> int:
    """How many passes an evaluation of one model takes: three where messages depend on the split."""
    links = built.data.links
    by_time = any(part.split_times is not None for part in built.partition.parts)
    return 3 if by_time or (links is not None and links.levels) else 1


def _rows_of_links(
    built: Built, links: Links, settings: tuple[Any, ...], ranks: str
) -> tuple[np.ndarray, np.ndarray, float]:
    """Of each client, [clients], the rows of a pass and those of a step's pairs; and those of all evaluated pairs."""
    data, columns = built.data, built.columns
    nodes = np.array(columns["nodes"], float)
    train, val, test = (np.array(columns[split], float) for split in ("train", "val", "test"))

    # A pass reads the rows of weights for features, then in each layer those of nodes and of messages.
    per_node = data.x.nnz / data.nodes if isinstance(data.x, sp.csr_matrix) else data.features / DENSE
    layers = sum(layer.operator not in (None, PAIRS) for layer in built.algorithm.model)
    passes = nodes * per_node + layers * (nodes + 2 * np.array(columns["edges_kept"], float))

    # A pair reads two rows. Each link in a split has one that is none; each of training gets `negatives` in a step.
    negatives = max((getattr(owner, "negatives", 0) for owner in settings), default=0)
    batch = max((batch for batch, _ in _batches(settings)), default=0)
    of_step = 2 * (np.minimum(train, batch) if batch else train) * (1 + negatives)
    of_evaluation = 2 * 2 * 2 * float((train + val + test).sum())  # by two models

    # Links that are ranked: all, or a sample of each split.
    queries = float((val + test).sum()) * (2 if links.relations and links.items is None else 1)
    if built.fed.samples_ranks and ranks != "all" and (built.fed.examples or 0) >= FEW:
        queries = min(queries, 2.0 * SAMPLE)
    if links.candidates == "all":
        of_evaluation += queries * float(nodes.mean()) / DENSE
    else:
        of_evaluation += 2 * queries * links.candidates
    return passes, of_step, of_evaluation
