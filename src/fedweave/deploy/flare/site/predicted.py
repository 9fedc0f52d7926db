"""What a finished run's models predict at a site, for its owner alone; and who is to have it in the end."""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from fedweave.algorithms.deployment import deployable
from fedweave.core.algorithm import capabilities
from fedweave.core.graph import VAL
from fedweave.core.text import counted
from fedweave.core.tree import Tree
from fedweave.datasets.base import Dataset
from fedweave.deploy.flare.site.holdings import Holdings
from fedweave.deploy.flare.site.joining import FLAGS
from fedweave.deploy.flare.site.participation import RUNS, Participation
from fedweave.deploy.flare.wire.requests import mendable
from fedweave.errors import CallRefused, FedweaveError, UserError
from fedweave.experiment.runs.files import EARLIER, PREDICTIONS, write_table
from fedweave.experiment.runs.predictions import Predicted, ends_of, predictions_table
from fedweave.experiment.runs.scoring import probabilities
from fedweave.metrics.flagging import by_validation
from fedweave.metrics.judging import OF_POSITIVE, Flagging, Judging

_MOST = math.nextafter(1, 2)  # from which on nothing is flagged


def set_aside(folder: Path, run: str) -> None:
    """Rename what models of the `run` predicted earlier at the site in `folder`: the model is about to be another, or
    the data, and the file must not be taken for the new one if none comes."""
    path = folder / RUNS / run / PREDICTIONS
    if path.exists():
        path.replace(path.with_name(EARLIER))


def leave(job: Participation, site: str, state: Tree, log: logging.Logger, flags: Flagging | None = None) -> bool:
    """Take out of a client's state what a step left there for the owner, a "prediction" or a "model", and write what is
    predicted into the run's folder; whether there was anything. flags: by what all sites flag, if that is known."""
    found: Tensor | None = state.pop("prediction", None)
    if (model := state.pop("model", None)) is not None:
        found = probabilities(deployable(job.algorithm).net, model, job.graph)
    if found is None:
        return False
    path, data = job.folder / RUNS / job.run / PREDICTIONS, job.found.data
    own = Predicted(site, found, np.arange(data.examples), data.public)
    flagging = flags or flagged(job.config.evaluation, data, found)
    write_table(path, predictions_table([own], data.ids, data.labels, data.example, data.y, flagging, ends_of(data)))
    apart = job.found.apart if isinstance(job.found, Holdings) else 0
    without = f"; {unscored(apart, data.examples + apart)}" if apart else ""
    log.info("%d predictions: %s%s", data.examples, path, without)
    return True


def unscored(apart: int, nodes: int, of: str = "") -> str:
    """That `apart` of a party's `nodes` get no score, and why. of: whose, where it is not plain."""
    return f"{apart:,} of {nodes:,} nodes{of} get no score: not all parties have them (ids must be written alike)"


def read_flags(told: Tree) -> Flagging | None:
    """By what all sites flag, as the server `told`; None where it did not.

    Raises:
        CallRefused: that is no class of two, or no probability.
    """
    if isinstance(told, dict) and not told:
        return None
    positive, threshold = (told.get(key) if isinstance(told, dict) else None for key in FLAGS)
    if (
        type(positive) is not int
        or type(threshold) is not float
        or not (0 <= positive <= 1 and 0 <= threshold <= _MOST)
    ):
        raise CallRefused("the server tells a class or a threshold by which nothing can be flagged")
    return Flagging(positive, threshold)


def flagged(judging: Judging, data: Dataset, found: Tensor) -> Flagging | None:
    """Which examples of its own a site flags, by its own validation examples, where no threshold of all sites' is known
    (`Flare.join`); None where no class is looked for.

    found: probabilities [e, 2].
    """
    asked = judging.metric in OF_POSITIVE or judging.positive is not None or judging.threshold != "auto"
    if data.classes != 2 or not asked:
        return None
    val, p = np.asarray(data.public)[VAL], found[: data.examples].cpu().numpy()
    return by_validation(judging.of(data.labels, data.classes), {}, p[val], data.y[val])


def predicting(algorithm: object, state: Tree, sites: Sequence[str]) -> list[str]:
    """Those of the `sites` that predict with a finished run: all, or of a vertical run's parties those with labels."""
    return [site for site in sites if not capabilities(algorithm).predicts or state["holders"][site]]


def check_written(wanted: Sequence[str], lacking: Mapping[str, str]) -> None:
    """Refuse to call a prediction done that not all `wanted` sites have written.

    lacking: {site: why} of those that have not (`Flare.unwritten`).

    Raises:
        UserError: those who started the job, or own a site, can mend it; FedweaveError: they cannot.
    """
    if not lacking:
        return
    named = "; ".join(
        f"{site}: {why.removesuffix('.') or 'it never trained, and has no such model'}" for site, why in lacking.items()
    )
    others = ", ".join(site for site in wanted if site not in lacking)
    kind = UserError if mendable(lacking.values()) or "" in lacking.values() else FedweaveError
    raise kind(
        f"{len(lacking)} of {counted(len(wanted), 'site')} wrote no predictions. {named}. "
        f"{f'Those of {others} are written. ' if others else ''}Put it right and predict again."
    )
