"""A site's files of a run for its owner only: the form of its data, with the names and scaling of columns and classes,
and the predictions of a finished run's models. Also checks that all sites have written their predictions.
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
from fedweave.apply.histograms import columns_of, reference
from fedweave.apply.link_predictions import read_pairs, score_pairs
from fedweave.apply.prediction_table import ends_of, predictions_table
from fedweave.apply.predictions import links_table
from fedweave.apply.scorer import scorer_of
from fedweave.core.algorithm import capabilities
from fedweave.core.federation import Client
from fedweave.core.graph import TEST, VAL
from fedweave.core.text import counted
from fedweave.core.tree import Tree, to
from fedweave.datasets.base import Dataset
from fedweave.engines.devices import CPU
from fedweave.errors import CallRefused, FedweaveError, UserError
from fedweave.experiment.runs.data_form import DataForm, read_form, write_form
from fedweave.experiment.runs.files import EARLIER, HISTOGRAMS, PAIRS_SCORED, PREDICTIONS, SCORER, write_table
from fedweave.experiment.runs.new_data import InputFormat
from fedweave.experiment.runs.outputs import Predicted, probabilities
from fedweave.metrics.kinds import selection_of
from fedweave.metrics.ranking import by_validation
from fedweave.metrics.selection import Flagging, Judging, entries_of
from fedweave.sites.flare.folder import RUNS, fields
from fedweave.sites.flare.holdings import Holdings
from fedweave.sites.flare.participation import Participation
from fedweave.sites.flare.policy_names import read_checked
from fedweave.sites.flare.requests import Join, mendable
from fedweave.sites.flare.site_data import form_at, load_tables, load_unscaled
from fedweave.sites.flare.sitefile import SITE_FILE

_MAX_THRESHOLD = math.nextafter(1, 2)  # a threshold that flags nothing


def note_form(request: Join, folder: Path, form: DataForm | None) -> None:
    """Write the `form` of a site's training data into the run's folder. Data to predict must have the same form, so a
    prediction writes nothing."""
    if not request.predict and form is not None:
        write_form(folder / RUNS / request.run, form)


def form_of_run(request: Join, folder: Path) -> DataForm | None:
    """The form that `note_form` wrote, if the job predicts; else None."""
    return read_form(folder / RUNS / request.run) if request.predict else None


def before_of(site: Path, run: str = "") -> InputFormat:
    """How to turn the tables of the site in a folder into its training data. The form is the one that the site noted
    for the `run`, or the present one.

    Raises:
        ConfigError: there is no valid `site.toml`. DataError: the site noted no form, and the data is absent or
            invalid.
    """
    about, _ = read_checked(site / SITE_FILE)
    form = read_form(site / RUNS / run) if run else None
    return InputFormat.of_form(asdict(about), about.external, form or form_at(about, load_unscaled(about, site)), False)


def rename_predictions(folder: Path, run: str) -> None:
    """Rename earlier predictions of the `run` at the site in `folder`. The model or the data is about to change, and
    the owner must not mistake the old file for a new one if the job fails."""
    for name in (PREDICTIONS, PAIRS_SCORED):
        path = folder / RUNS / run / name
        if path.exists():
            path.replace(path.with_name(EARLIER.replace(PREDICTIONS, name)))


def write_predictions(
    job: Participation, site: str, state: Tree, log: logging.Logger, flags: Flagging | int | None = None
) -> bool:
    """Remove the "prediction" or "model" that a step left in a client's state for the owner, and write the predictions
    into the run's folder. Returns whether there were any. flags: of all sites, if known (`read_flags`)."""
    probs: Tensor | None = state.pop("prediction", None)
    model = state.pop("model", None)
    if model is not None:
        probs = probabilities(deployable(job.algorithm).net, model, job.graph)
    if probs is None:
        return False
    path, data, holdings = job.run_folder / PREDICTIONS, job.holdings.data, job.holdings
    if data.links is not None:
        names = np.array(data.node_ids)
        table = links_table(site, probs, job.graph, names, data.links.relations)
        write_table(path, table)
        more = fields("predictions", run=job.run, rows=table.num_rows)
        log.info("%d predictions: %s", table.num_rows, path, extra=more)
        if model is not None and isinstance(holdings, Holdings) and holdings.pairs is not None:  # the owner's table
            pairs = read_pairs(holdings.pairs, data.links)
            at, numbers = pairs.among(names)
            scores = score_pairs(site, deployable(job.algorithm).net, model, job.graph, names, data.links, numbers)
            absent = np.isin(np.arange(len(pairs.relation)), at, invert=True)
            table = pa.concat_tables([scores, pairs.unscored(absent, data.links, scores.schema)])
            path = job.run_folder / PAIRS_SCORED
            write_table(path, table)
            log.info("%d pairs: %s", table.num_rows, path, extra=fields("pairs", run=job.run))
        return True
    used = None if data.public is None else np.asarray(data.public) & data.has_label  # only labeled examples
    result = Predicted(site, probs, np.arange(data.examples), used)
    flagging = flags if isinstance(flags, Flagging) else _flagging_here(job, probs, log, flags)
    named = data.ids, data.labels, data.example
    write_table(path, predictions_table([result], *named, data.y, flagging, ends_of(data), data.targets))
    unaligned = holdings.unaligned if isinstance(holdings, Holdings) else 0
    without = f"; {note_unscored(unaligned, data.examples + unaligned)}" if unaligned else ""
    more = fields("predictions", run=job.run, rows=data.examples)
    log.info("%d predictions: %s%s", data.examples, path, without, extra=more)
    if model is not None:
        _keep_scorer(job, site, model, flagging, log)
    return True


def keep_model(
    job: Participation, site: str, score: Callable[[], object], client: Client, log: logging.Logger
) -> Tree | None:
    """Write a scorer with the model of a run's last evaluation for the owner, so that the site can score on its own.
    `score` leaves the model in the state of `client`. The threshold is from the site's own validation examples. If no
    scorer can be written, the log states why and the run continues. Returns the model; None without one."""
    data = job.holdings.data
    w: Tree | None = None
    try:
        score()
        w = to(client.state, CPU).get("model")
        if w is not None and data.links is None:
            p = probabilities(deployable(job.algorithm).net, w, job.graph)
            _keep_scorer(job, site, w, _flagging_here(job, p, log), log)
    except FedweaveError as error:
        log.info("no %s is written: %s", SCORER, error, extra=fields("no-scorer", run=job.run, code=error.code))
    return w


def _keep_scorer(job: Participation, site: str, w: Tree, flags: Flagging | None, log: logging.Logger) -> None:
    """Write the scorer of a model into the run's folder; if that is not possible, the log states why."""
    about, form = read_checked(job.folder / SITE_FILE)[0], read_form(job.run_folder)
    try:
        if form is None:
            raise UserError("the site noted no form of its data for this run", code="score.alone")
        named = site, max(job.order.round, 0), job.request.document, flags
        before = InputFormat.of_form(asdict(about), about.external, form, False)
        scorer = scorer_of(job.config, deployable(job.algorithm), w, before, *named)
        scorer.save(job.run_folder / SCORER)
    except FedweaveError as error:
        log.info("no %s is written: %s", SCORER, error, extra=fields("no-scorer", run=job.run, code=error.code))
        return
    if job.request.predict:  # perhaps of other data than the model was trained on
        return
    try:  # histograms of the columns of the site's tables, and of its scores, for `fedweave drift`
        data, columns = job.holdings.data, columns_of(load_tables(about, job.folder), scorer.form)
        used = None if data.public is None else np.asarray(data.public)  # [3, e]
        unseen = None if used is None else used[VAL] | used[TEST]
        histograms = reference(scorer.name, [*columns], scorer.predict(data), unseen, data.examples)
        histograms.save(job.run_folder / HISTOGRAMS)
    except Exception as error:  # the run goes on without them
        more = fields("no-histograms", run=job.run, error=type(error).__name__)
        log.info("no %s is written: %s: %s", HISTOGRAMS, type(error).__name__, error, extra=more)


def note_unscored(unaligned: int, nodes: int, of: str = "") -> str:
    """A sentence that `unaligned` of a party's `nodes` get no score, and why. of: " of SITE", or ""."""
    return f"{unaligned:,} of {nodes:,} nodes{of} get no score: not all parties have them (ids must be written alike)"


def read_flags(message: Tree) -> Flagging | int | None:
    """The class and threshold of all sites in the server's `message`, or the class alone; None if it has neither."""
    if isinstance(message, dict) and not message:
        return None
    if not isinstance(message, dict) or "positive" not in message:
        raise CallRefused("the server sends a class or a threshold by which nothing can be flagged")
    positive, threshold = message["positive"], message.get("threshold", 0.0)
    known = type(positive) is int and type(threshold) is float
    if not known or not (0 <= positive <= 1 and 0 <= threshold <= _MAX_THRESHOLD):
        raise CallRefused("the server sends a class or a threshold by which nothing can be flagged")
    return Flagging(positive, threshold) if "threshold" in message else positive


def _flagging_here(
    job: Participation, probs: Tensor, log: logging.Logger, positive: int | None = None
) -> Flagging | None:
    """`local_flagging` of the site's data. If neither the server nor the settings name a class, the log says which."""
    judging = job.config.evaluation
    found = local_flagging(judging, job.holdings.data, probs, positive)
    if found is not None and positive is None and judging.positive is None:
        text = (
            "class %d is flagged, by this site's own training examples (the rarer class if it is rare, else class 1): "
            "the server has named none; evaluation.positive names one for all sites"
        )
        log.info(text, found.positive, extra=fields("flagged-class", run=job.run, positive=found.positive))
    return found


def local_flagging(judging: Judging, data: Dataset, probs: Tensor, positive: int | None = None) -> Flagging | None:
    """The class and threshold by which a site flags its examples, from its own validation examples, for use without a
    common threshold of all sites (`Flare.join`). None if no class is looked for.

    probs: probabilities [e, 2]. positive: the run's class; without it and without a setting, the site's own training
    examples decide which class is rare.
    """
    if data.classes != 2 or not judging.flags:
        return None
    judging, (train, val, _) = judging.of(data.labels, data.classes), np.asarray(data.public)
    if positive is not None:
        judging = replace(judging, positive=positive)
    y, p = data.y, probs[: data.examples].cpu().numpy()
    chosen = entries_of(*selection_of(judging, np.bincount(y[train & (y >= 0)], minlength=2)))
    return by_validation(judging, chosen, p[val], y[val])


def predicting_sites(algorithm: object, state: Tree, sites: Sequence[str]) -> list[str]:
    """The `sites` that predict with a finished run: all sites or, in a vertical run, the parties with labels."""
    return [site for site in sites if not capabilities(algorithm).predicts or state["holders"][site]]


def check_written(sites: Sequence[str], lacking: Mapping[str, str]) -> None:
    """Raise an error unless all `sites` have written their predictions.

    lacking: {site: why} for the sites that have not (`Flare.unwritten`).
    """
    if not lacking:
        return
    untrained = "it never trained, and has no such model"
    named = "; ".join(f"{site}: {why.removesuffix('.') or untrained}" for site, why in lacking.items())
    successful = ", ".join(site for site in sites if site not in lacking)
    kind = UserError if mendable(lacking.values()) or "" in lacking.values() else FedweaveError
    raise kind(
        f"{len(lacking)} of {counted(len(sites), 'site')} wrote no predictions. {named}. "
        f"{f'The predictions of {successful} are written. ' if successful else ''}Correct this and predict again."
    )
