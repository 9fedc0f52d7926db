"""What a site keeps of a run for its owner alone: the form of its data, which says what columns and classes are called
and how they are scaled, and what a finished run's models predict; and who is to have that in the end.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from torch import Tensor

from fedweave.algorithms.deployment import deployable
from fedweave.core.algorithm import capabilities
from fedweave.core.graph import VAL
from fedweave.core.text import counted
from fedweave.core.tree import Tree
from fedweave.datasets.base import Dataset
from fedweave.deploy.flare.admission import read_checked
from fedweave.deploy.flare.holdings import FLAGS, Holdings, read_graph, with_own_units
from fedweave.deploy.flare.participation import RUNS, Participation
from fedweave.deploy.flare.requests import Join, mendable
from fedweave.deploy.flare.sitefile import SITE_FILE, SiteData
from fedweave.errors import CallRefused, FedweaveError, UserError
from fedweave.experiment.runs.data_form import Before, DataForm, read_form, write_form
from fedweave.experiment.runs.data_form import form_of as form_of_data
from fedweave.experiment.runs.files import EARLIER, PAIRS_SCORED, PREDICTIONS, SCORER, write_table
from fedweave.experiment.runs.link_predictions import read_pairs, scored
from fedweave.experiment.runs.predictions import Predicted, ends_of, links_table, predictions_table, probabilities
from fedweave.experiment.runs.scorer import scorer_of
from fedweave.export.source import HANDED_OUT
from fedweave.metrics.ranking import by_validation
from fedweave.metrics.selection import OF_POSITIVE, Flagging, Judging

_MOST = math.nextafter(1, 2)  # from which on nothing is flagged


def form_at(site: SiteData, folder: Path, data: Dataset | None = None) -> DataForm:
    """The form of what a site trains on; data: that, features not scaled, if it has been read.

    Raises:
        DataError: it is absent or refused.
    """
    if data is None:
        path = folder / site.path
        data = with_own_units(path, read_graph(path, replace(site, normalize="none"), folder))
    handed_out = site.random_id is not None and site.normalize == "none"
    edges = HANDED_OUT if site.random_id is not None and site.edge_normalize == "none" else site.edge_normalize
    return form_of_data(data, HANDED_OUT if handed_out else site.normalize, data.x, edges)


def note_form(request: Join, site: SiteData, folder: Path, data: Dataset | None) -> None:
    """Keep the form of the `data` that a site trains on (`form_at`) in the run's folder there; what it predicts has the
    same."""
    if not request.predict:
        write_form(folder / RUNS / request.run, form_at(site, folder, data))


def noted_form(request: Join, folder: Path) -> DataForm | None:
    """That form, where the models of the run are to predict."""
    return read_form(folder / RUNS / request.run) if request.predict else None


def before_of(site: Path, run: str = "") -> Before:
    """How the tables of the site in a folder become what it trains on; their form as the site noted it of the `run` of
    that number, or as it is now.

    Raises:
        ConfigError: it has no valid `site.toml`. DataError: nothing was noted, and the data is absent or refused.
    """
    about, _ = read_checked(site / SITE_FILE)
    return _before(about, (read_form(site / RUNS / run) if run else None) or form_at(about, site))


def _before(site: SiteData, form: DataForm, ports: bool = False) -> Before:
    return Before.noted(asdict(site), site.external, form, ports)


def set_aside(folder: Path, run: str) -> None:
    """Rename what models of the `run` predicted earlier at the site in `folder`: the model is about to be another, or
    the data, and the file must not be taken for the new one if none comes."""
    for path in (folder / RUNS / run / name for name in (PREDICTIONS, PAIRS_SCORED)):
        if path.exists():
            path.replace(path.with_name(EARLIER.replace(PREDICTIONS, path.name)))


def leave(job: Participation, site: str, state: Tree, log: logging.Logger, flags: Flagging | None = None) -> bool:
    """Take out of a client's state what a step left there for the owner, a "prediction" or a "model", and write what is
    predicted into the run's folder; whether there was anything. flags: by what all sites flag, if that is known."""
    probs: Tensor | None = state.pop("prediction", None)
    if (model := state.pop("model", None)) is not None:
        probs = probabilities(deployable(job.algorithm).net, model, job.graph)
    if probs is None:
        return False
    path, data = job.folder / RUNS / job.run / PREDICTIONS, job.found.data
    used = None if data.public is None else np.asarray(data.public) & data.labeled  # as far as there are labels
    if data.links is not None:
        return _leave_links(job, site, probs, model, log)
    result = Predicted(site, probs, np.arange(data.examples), used)
    flagging = flags or flagged(job.config.evaluation, data, probs)
    named = data.ids, data.labels, data.example
    write_table(path, predictions_table([result], *named, data.y, flagging, ends_of(data), data.targets))
    apart = job.found.apart if isinstance(job.found, Holdings) else 0
    without = f"; {unscored(apart, data.examples + apart)}" if apart else ""
    log.info("%d predictions: %s%s", data.examples, path, without)
    if model is not None:
        _keep_scorer(job, site, model, flagging, log)
    return True


def keep_model(job: Participation, site: str, model: Callable[[], Tree | None], log: logging.Logger) -> None:
    """Keep for the owner the `model` that a client has used in a run's last evaluation, so that the site can score
    alone; what it flags, its own validation examples say. Where none can be kept, the run goes on and the log says why.
    """
    data = job.found.data
    if data.links is not None:
        return
    try:
        if (w := model()) is not None:
            p = probabilities(deployable(job.algorithm).net, w, job.graph)
            _keep_scorer(job, site, w, flagged(job.config.evaluation, data, p), log)
    except FedweaveError as error:
        log.info("no %s is written: %s", SCORER, error)


def _keep_scorer(job: Participation, site: str, w: Tree, flags: Flagging | None, log: logging.Logger) -> None:
    """Write the scorer of a model into the run's folder; where none can be, the log says why."""
    about, form = read_checked(job.folder / SITE_FILE)[0], read_form(job.run_folder)
    try:
        if form is None:
            raise UserError("the site noted no form of its data for this run", code="score.alone")
        named = site, max(job.order.round, 0), job.asked.document, flags
        scorer = scorer_of(job.config, deployable(job.algorithm), w, _before(about, form), *named)
        scorer.save(job.run_folder / SCORER)
    except FedweaveError as error:
        log.info("no %s is written: %s", SCORER, error)


def _leave_links(job: Participation, site: str, probability: Tensor, w: Tree | None, log: logging.Logger) -> bool:
    """Write what is predicted of a site's links, and of the pairs that its owner asks about."""
    folder, data = job.folder / RUNS / job.run, job.found.data
    called = np.array(data.node_ids)
    table = links_table(site, probability, job.graph, called)
    write_table(folder / PREDICTIONS, table)
    log.info("%d predictions: %s", table.num_rows, folder / PREDICTIONS)
    if w is None or data.links is None or not isinstance(job.found, Holdings) or job.found.pairs is None:
        return True
    pairs = read_pairs(job.found.pairs, data.links)
    at, numbers = pairs.among(called)
    scores = scored(site, deployable(job.algorithm).net, w, job.graph, called, data.links, numbers)
    absent = np.isin(np.arange(len(pairs.relation)), at, invert=True)
    table = pa.concat_tables([scores, pairs.unscored(absent, data.links, scores.schema)])
    write_table(folder / PAIRS_SCORED, table)
    log.info("%d pairs: %s", table.num_rows, folder / PAIRS_SCORED)
    return True


def unscored(apart: int, nodes: int, of: str = "") -> str:
    """That `apart` of a party's `nodes` get no score, and why. of: whose, where it is not plain."""
    return f"{apart:,} of {nodes:,} nodes{of} get no score: not all parties have them (ids must be written alike)"


def read_flags(message: Tree) -> Flagging | None:
    """By what all sites flag, as the server's `message` says; None where it does not.

    Raises:
        CallRefused: that is no class of two, or no probability.
    """
    if isinstance(message, dict) and not message:
        return None
    positive, threshold = (message.get(key) if isinstance(message, dict) else None for key in FLAGS)
    if (
        type(positive) is not int
        or type(threshold) is not float
        or not (0 <= positive <= 1 and 0 <= threshold <= _MOST)
    ):
        raise CallRefused("the server tells a class or a threshold by which nothing can be flagged")
    return Flagging(positive, threshold)


def flagged(judging: Judging, data: Dataset, probs: Tensor) -> Flagging | None:
    """Which examples of its own a site flags, by its own validation examples, where no threshold of all sites' is known
    (`Flare.join`); None where no class is looked for.

    probs: probabilities [e, 2].
    """
    wants_flags = judging.metric in OF_POSITIVE or judging.positive is not None or judging.threshold != "auto"
    if data.classes != 2 or not wants_flags:
        return None
    val, p = np.asarray(data.public)[VAL], probs[: data.examples].cpu().numpy()
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
