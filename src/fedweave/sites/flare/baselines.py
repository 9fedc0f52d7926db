"""What a site reaches alone, measured at home after a run's last round: with the tools on its shelf
(`experiment.shelf`), and with the run's model trained on its own examples (`experiment.runs.alone`).

The owner finds all of it in the run's folder, beside the joint model's result on the same test examples. The server
gets the metrics that `policy.measures` lets leave, under the rules for scores (`policy.SCORES`).
"""

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping

from fedweave.algorithms.deployment import deployable
from fedweave.algorithms.local import local_of
from fedweave.algorithms.scoring import measure
from fedweave.core.federation import Sends, StepInfo
from fedweave.core.graph import TEST
from fedweave.core.ranges import ANY
from fedweave.core.replies import on_host
from fedweave.core.tree import Tree
from fedweave.core.types import Record
from fedweave.engines.engine import LocalEngine
from fedweave.engines.loop import Loop
from fedweave.errors import CallRefused
from fedweave.experiment.runs.alone import MemberResult, rounds_alone
from fedweave.experiment.shelf.members import Judge
from fedweave.experiment.shelf.runs import member_seed, shelf_of_member
from fedweave.metrics.kinds import kind_by
from fedweave.metrics.selection import ALONE, METRICS, PLAIN, SHELF, entries_of, positive_class
from fedweave.sites.flare.folder import SITE_FILE, fields, replace_private
from fedweave.sites.flare.holdings import Holdings
from fedweave.sites.flare.own_results import BASELINES, read_baselines, verdict_at_site
from fedweave.sites.flare.participation import Participation
from fedweave.sites.flare.policy import SCORES
from fedweave.sites.flare.policy_names import read_checked
from fedweave.sites.flare.requests import Measure
from fedweave.sites.flare.site_data import global_test_data

_WHAT = {
    SHELF: "metrics on the site's test examples of the best of its own tools, trained on its own examples",
    ALONE: "metrics on the site's test examples of the run's model, trained on its own examples only",
}
INFO = {kind: StepInfo({SCORES: Sends(reveals, within=ANY)}, optional=True) for kind, reveals in _WHAT.items()}


class Baselines:
    """A site's results in a run on its own test examples: of the joint model, and of what it reaches alone."""

    def __init__(self, job: Participation, log: logging.Logger) -> None:
        self._job, self._log = job, log
        self._path = job.run_folder / BASELINES
        self._joint: tuple[int, Tree | None, Tree | None] | None = None
        self._training: Iterator[int] | None = None
        self._members = dict[str, MemberResult]()

    def note_joint(self, reply: Tree | None, w: Tree | None) -> None:
        """Note what the joint model's result after the present round is read from. reply: of the scoring step; None if
        it is a term of a sum, or of drawn labels. w: the weights that the site uses, if it has a whole model."""
        self._joint = self._job.order.round, None if reply is None else reply.get(SCORES), w

    def measure(self, request: Measure) -> tuple[Record, bool]:
        """The metrics that the policy lets leave, by name, and whether the site needs a further request to finish. If
        nothing can be measured, nothing leaves, and the log says why."""
        job = self._job
        if request.metric not in METRICS or request.positive >= max(2, job.holdings.data.outputs):
            raise CallRefused("the server names a selection metric or a class that there is not")
        try:
            record, unfinished = self._measure(request)
        except Exception as error:  # the run goes on without it
            more = fields("not-alone", run=job.run, what=request.kind, error=type(error).__name__)
            text = "what the site reaches alone (%s) could not be measured: %s: %s"
            self._log.info(text, request.kind, type(error).__name__, error, extra=more)
            return {}, False
        allowed = Record()
        for name, value in record.get(request.kind, {}).get("values", {}).items():
            if job.measures and (name == PLAIN or (METRICS[name].measure or name) in job.measures):
                allowed[name] = value
        return allowed, unfinished

    def note_sent(self, kind: str, metrics: Record) -> None:
        """Note for the owner which metrics have left."""
        record = read_baselines(self._job.run_folder)
        self._write(record | {"sent": record.get("sent", {}) | {kind: [*metrics]}})

    def _measure(self, request: Measure) -> tuple[Record, bool]:
        job, holdings, evaluation = self._job, self._job.holdings, self._job.config.evaluation
        if not isinstance(holdings, Holdings):
            raise CallRefused("the parties have not found their common nodes")
        if not getattr(evaluation, request.kind):
            return {}, False
        data = holdings.data
        verdict = entries_of(request.metric, request.positive)
        judging = evaluation.of(data.labels, data.classes, data.target)
        positive = positive_class(judging, verdict)
        about = {"round": request.round, "metric": request.metric, "positive": positive}
        record = read_baselines(job.run_folder)
        if any(record.get(name) != value for name, value in about.items()):
            record = about
        if self._joint is not None:
            round, pairs, w = self._joint
            if w is not None and holdings.test is not None and not job.graph.masks[TEST].any():
                tests = holdings.test._replace(scale=job.graph.scale).to(job.device)  # as for the shelf
                pairs = measure(deployable(job.algorithm).test_net, w, tests)
            elif not pairs and w is not None:
                pairs = measure(deployable(job.algorithm).net, w, job.graph)
            on_tests = {name: pair[TEST] for name, pair in on_host(pairs or {}).items()}
            if on_tests:
                record["joint"] = {"round": round, "values": _finite(kind_by(on_tests).values(on_tests, positive))}
                self._write(record)  # also where the site gets no further
        if request.kind not in record:
            if request.kind == SHELF:
                record[SHELF] = self._shelf(holdings, Judge(request.metric, positive, data.outputs))
            else:
                local = local_of(job.algorithm)
                if local is None:
                    return {}, False
                if self._training is None:
                    graphs, test = {job.random_id: holdings.graph}, holdings.test
                    loop = Loop(graphs, classes=data.classes, test=test, device=job.device)
                    seed = job.config.general.seed
                    fed = LocalEngine(loop, classes=data.classes, dtype=job.dtype, test=test, seed=seed)
                    how = job.config, judging, request.metric, verdict
                    self._training = rounds_alone(self._members, local, fed, *how)
                end = time.monotonic() + job.patience
                if any(time.monotonic() > end for _ in self._training):
                    return {}, True
                member = self._members.get(job.random_id, MemberResult())
                record[ALONE] = {"round": member.round, "values": _finite(member.test)}
        self._write(record)
        result = verdict_at_site(job.run_folder)
        if result is not None:
            self._log.info("%s", result.sentence, extra=fields("alone", run=job.run, what=request.kind))
        return record, False

    def _shelf(self, holdings: Holdings, judge: Judge) -> Record:
        job, test = self._job, None
        data = holdings.tables or holdings.data
        about = read_checked(job.folder / SITE_FILE)[0]
        if about.test is not None:
            test = global_test_data(job.folder / about.test, about).tables
        seed = member_seed(job.config.general.seed, job.random_id)
        shelf = shelf_of_member(data, test, judge, seed, job.config.evaluation.shelf)
        return {"values": _finite(shelf.values), "tool": shelf.tool, "drawn": shelf.drawn}

    def _write(self, record: Record) -> None:
        replace_private(self._path, json.dumps(record, indent=1).encode())


def _finite(values: Mapping[str, object]) -> dict[str, float]:
    numbers = {name: float(value) for name, value in values.items()}  # type: ignore[arg-type]
    return {name: value for name, value in numbers.items() if name in METRICS and math.isfinite(value)}
