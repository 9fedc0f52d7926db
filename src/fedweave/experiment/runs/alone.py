"""What each member has without the others: the same model, trained on its own examples only, beside a run.

After the last round the algorithm `local` trains on the run's clients, with the run's model, learning settings, data,
splits and seed. Each member stops where its own validation examples say so, and its result is its test result in the
round that was best on them. A member whose model diverges before it stops has no result. The run's clients have their
states back afterwards, and nothing of it is in the ledger. A site does the same with its own data
(`sites.flare.baselines`), and the ledger has what it sends of the result.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.algorithms.local import Local, local_of
from fedweave.core.types import Record
from fedweave.engines.engine import LocalEngine
from fedweave.errors import ConfigError, FedweaveError
from fedweave.experiment.build import Built
from fedweave.experiment.config import Config
from fedweave.experiment.rounds import RoundResult, train
from fedweave.experiment.runs.saving import Ready
from fedweave.metrics.measured import DIVERGED_CLIENT, GLOBAL, MetricRow, table_of
from fedweave.metrics.selection import (
    ALONE,
    DIVERGED_ALONE,
    METRICS,
    RMSE_OF_MEAN,
    Judging,
    rank,
    selection_entries,
    selection_metric_of,
)
from fedweave.metrics.stopping import Stopping

MAX_CLIENTS = 100  # up to which "auto" trains it
SECONDS = f"{ALONE}/seconds"  # in the summary of a checkpoint
# What runs may differ in that share it; of some of these sections `sharing_settings` adds what matters.
_NOT_SHARED = (
    "algorithm",
    "engine",
    "evaluation",
    "fair_margin",
    "init_from",
    "pay",
    "privacy",
    "purpose",
    "requester",
)
_MEASURED = tuple(name for name in METRICS if name != RMSE_OF_MEAN)


@dataclass
class MemberResult:
    """The round that is best for one member, and its result there.

    round: the round; the last one without validation examples, 0 where a site keeps it to itself. score: the
    selection metric on validation examples; None without any, or where a site keeps it. test: {metric: value} on
    test examples. stopping: `Stopping.update` of these scores. stopped: whether the member's training has ended, by
    early stopping or because it diverged. diverged: the round in which it did, and the member has no result; 0 for a
    finite model.
    """

    round: int = 0
    score: float | None = None
    test: dict[str, float] = field(default_factory=dict)
    stopping: dict[str, float] = field(default_factory=dict)
    stopped: bool = False
    diverged: int = 0

    def is_improved_by(self, metric: str, score: float | None) -> bool:
        """Whether a round with this score replaces the one so far."""
        if score is None or self.score is None:
            return self.score is None
        return rank(metric, score) > rank(metric, self.score)


@dataclass(frozen=True)
class AloneResult:
    """What members have without the others: {member: its result}, and the seconds that training took."""

    members: Mapping[str, MemberResult]
    seconds: float

    @classmethod
    def of_record(cls, record: Record) -> "AloneResult":
        """From its fields as JSON has them."""
        members = {client: MemberResult(**entry) for client, entry in record["members"].items()}
        return cls(members, float(record["seconds"]))

    @property
    def means(self) -> dict[str, float]:
        """{"alone/local/<metric>": mean over the members that have it, on test examples}, and the seconds."""
        means = dict[str, float]()
        for name in _MEASURED:
            values = [member.test[name] for member in self.members.values() if name in member.test]
            if values:
                means[f"{ALONE}/local/{name}"] = float(np.mean(values))
        return means | {SECONDS: self.seconds} if means else {}

    def rows(self, round: int, metric: str) -> pa.Table:
        """Rows of metrics.parquet of the run's last round: the means, of each member the test results, the round that
        they are of, and the selection metric on its validation examples, or only the round in which it diverged."""
        rows = list[MetricRow]()
        for client, member in self.members.items():
            if member.diverged:
                rows.append((round, client, "test", DIVERGED_ALONE, float(member.diverged)))
            if member.score is not None:
                rows.append((round, client, "val", f"{ALONE}/{metric}", member.score))
            if member.test and member.round:
                rows.append((round, client, "test", f"{ALONE}/round", float(member.round)))
            for name, value in member.test.items():
                rows.append((round, client, "test", f"{ALONE}/{name}", value))
        for name, value in self.means.items():
            if name != SECONDS:
                rows.append((round, GLOBAL, "test", name, value))
        return table_of(rows)


def is_wanted(config: Config, built: Ready) -> bool:
    """Whether a run trains it (`EvaluationSettings.alone`).

    Raises:
        ConfigError: evaluation.alone is true, and it cannot.
    """
    setting = config.evaluation.alone
    if setting is False:
        return False
    obstacle = _obstacle(config, built)
    if setting is True and obstacle:
        raise ConfigError(
            f"evaluation.alone = true: {obstacle}. Leave it out, and run algorithm.name = 'local' beside this run.",
            code="config.alone",
        )
    if obstacle:
        return False
    receives_columns = config.external == "exchange"
    few = len(built.fed.clients) <= MAX_CLIENTS
    return setting is True or (few and not receives_columns and config.general.init_from is None)


def _obstacle(config: Config, built: Ready) -> str:
    """Why the same model cannot be trained at each member of a run; "" if it can."""
    if len(built.fed.clients) < 2:
        return "there is one client"
    if built.member_algorithms if isinstance(built, Built) else config.member_models:
        return "members have models of their own"
    if local_of(built.algorithm) is None:
        return "it is for algorithms of FedAvg's family whose model reads only a client's own data"
    return ""


def train_alone(
    config: Config,
    built: Built,
    judging: Judging,
    summary: Mapping[str, float],
    show: Callable[[int, int], None],
    stops: Callable[[], bool],
) -> AloneResult | None:
    """Train it; None if it is to stop.

    summary: of the run, which names the selection metric. show: gets how many of how many rounds are done. stops:
    whether to stop after a round.

    Raises:
        FedweaveError: training diverged at every member.
    """
    local, executor, general = local_of(built.algorithm), built.fed.executor, config.general
    if local is None:
        raise TypeError("this run cannot train it: see `is_wanted`")
    verdict = selection_entries(summary)
    members = dict[str, MemberResult]()
    began = time.monotonic()
    show(0, general.rounds)
    with executor.untrained():
        test, dtype = built.fed.test, built.fed.dtype
        fed = LocalEngine(executor, classes=built.fed.classes, dtype=dtype, test=test, seed=general.seed)
        fed.evaluated_clients = built.fed.evaluated_clients
        metric = selection_metric_of(summary)
        for round in rounds_alone(members, local, fed, config, judging, metric, verdict):
            show(round, general.rounds)
            if stops():
                return None
    return AloneResult(members, time.monotonic() - began)


def rounds_alone(
    members: dict[str, MemberResult],
    local: Local,
    fed: LocalEngine,
    config: Config,
    judging: Judging,
    metric: str,
    verdict: Mapping[str, float],
) -> Iterator[int]:
    """Train `local` on a federation until all members have stopped; yields the number of each round, once the members'
    results so far are in `members`.

    metric: the run's selection metric. verdict: the entry of the run's summary that names it, if there is one.

    Raises:
        FedweaveError: training diverged at every member.
    """
    general, stopping, done = config.general, config.evaluation.stopping, 0
    rounds = train(local, fed, general.rounds, general.eval_every, summary=verdict, judging=judging, skip_diverged=True)
    try:
        for step in rounds:
            done = step.round
            _add_round(members, step, metric, verdict, stopping)
            yield done
            if members and all(member.stopped for member in members.values()):
                return
    except FedweaveError as error:  # those that stopped before keep their results
        if error.code != "diverged" or not any(member.test for member in members.values() if member.stopped):
            raise
        _end_diverged(members, members, done + 1)


def _add_round(
    members: dict[str, MemberResult],
    step: RoundResult,
    metric: str,
    verdict: Mapping[str, float],
    stopping: Stopping,
) -> None:
    """Add the evaluation of a round, if it has one, to the members' results."""
    if step.metrics is None or not step.evaluated:
        return
    rows = step.metrics.filter(pc.field("client") != GLOBAL)
    _end_diverged(members, rows.filter(pc.field("metric") == DIVERGED_CLIENT)["client"].to_pylist(), step.round)
    is_score = (pc.field("split") == "val") & (pc.field("metric") == metric)
    scores = {row["client"]: row["value"] for row in rows.filter(is_score).to_pylist()}
    is_test = (pc.field("split") == "test") & pc.field("metric").isin(_MEASURED)
    tests = dict[str, dict[str, float]]()
    for row in rows.filter(is_test).to_pylist():
        tests.setdefault(row["client"], {})[row["metric"]] = row["value"]
    for client in tests | scores:
        member, score = members.setdefault(client, MemberResult()), scores.get(client)
        if member.stopped:
            continue
        if member.is_improved_by(metric, score):
            member.round, member.score, member.test = step.round, score, tests.get(client, {})
        if stopping.patience and score is not None:
            member.stopping = stopping.update(step.round, score, {**verdict, **member.stopping})
            member.stopped = stopping.stops(step.round, member.stopping)


def _end_diverged(members: dict[str, MemberResult], diverged: Iterable[str], round: int) -> None:
    """Take the results of members whose models diverged in a round, unless they had stopped before."""
    for client in [*diverged]:
        if not members.get(client, MemberResult()).stopped:
            members[client] = MemberResult(stopped=True, diverged=round)


def sharing_settings(config: Config, built: Built) -> list[object]:
    """What decides on the result besides data and version: runs in which it is the same share it (`shared_file`)."""
    local, document = local_of(built.algorithm), config.plain()
    evaluation = {name: document["evaluation"].get(name) for name in ("metric", "positive", "patience", "min_delta")}
    engine = {name: config.engine.values.get(name) for name in ("dtype", "device", "mode")}
    learning = {one.name: repr(getattr(local, one.name)) for one in fields(Local) if one.name != "model"}
    experiment = {name: value for name, value in document.items() if name not in _NOT_SHARED}
    return [experiment, evaluation, engine, learning]
