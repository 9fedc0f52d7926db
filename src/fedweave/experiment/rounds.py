"""The one training loop: rounds, and an evaluation every few of them."""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch.nn.utils import get_total_norm

from fedweave.core import types
from fedweave.core.algorithm import Algorithm, Engine, Evaluation, give_defaults
from fedweave.core.federation import step_info
from fedweave.core.graph import TEST
from fedweave.core.link_examples import SAMPLE
from fedweave.core.replies import member_replies
from fedweave.core.shown import Shown, page
from fedweave.core.tree import Tree, check, leaves, to
from fedweave.core.types import Ordering
from fedweave.errors import FedweaveError, ReplyRefused, UserError, diverged_message, part_diverged_message
from fedweave.experiment.requirements import check_rounds
from fedweave.metrics.best_rounds import best_validated, fairest
from fedweave.metrics.kinds import selection_of
from fedweave.metrics.measured import (
    GLOBAL,
    OF,
    SAMPLED,
    Measurement,
    MetricRow,
    measure,
    of_splits,
    of_tests,
    table_of,
)
from fedweave.metrics.pooled import Alarm, pooled_examples, pooled_sums
from fedweave.metrics.selection import (
    BEST,
    MAX_TIED,
    OF_A_ROUND,
    OF_ORDER,
    POSITIVES,
    RANKS_SAMPLED,
    TIED,
    TIED_SENTENCE,
    Judging,
    positive_class,
    positive_of,
    selection_metric_of,
)
from fedweave.metrics.stopping import Stopping

Interval: TypeAlias = int | Literal["auto"]  # rounds between evaluations; 0: only at the end
AUTO = "auto"  # a run makes a number of it (`experiment.work`); where none can, each round is evaluated
SERVER = "server"
TIED_AUC = 0.5  # of equal scores
UNSORTED = f"{BEST}/unsorted"  # in a summary while not all examples of the best round were sorted
FEW = 50_000  # examples below which every evaluation sorts them (`Judging.ranks`)
SAMPLE_SENTENCE = (
    f"evaluations rank a sample of the links, at most {SAMPLE:,} queries of each split, the same in every round; all "
    "links of the round that is the result are ranked at the end. [evaluation] ranks = 'all' always ranks all."
)
_LOG = logging.getLogger(__name__)


class Summary(dict[str, float]):
    """The measurements of one evaluation. In a round without one it is empty, and reading a number raises KeyError."""

    def __init__(self, round: int, measured: Mapping[str, float] | None = None) -> None:
        super().__init__(measured or {})
        self.round = round

    def __missing__(self, name: str) -> float:
        """Refuse a number that was not measured."""
        why = f"it has {', '.join(self)}" if self else "this round was not evaluated (eval_every)"
        raise KeyError(f"{name!r} is not in the summary of round {self.round}: {why}")


@dataclass(repr=False)
class RoundResult(Shown):
    """The result of one round.

    round:   rounds done. state: the server's state after it.
    metrics: rows measured after it (`METRICS_SCHEMA`), or None: rows of an evaluation, and what the server knows of
             each client, whose split is "server".
    summary: "global/accuracy", "local/accuracy", "trained/accuracy", "fairness/…" of this round's evaluation, test
             split, "best_val/…" (see `best_validated`) and, where the data has a sensitive attribute, "groups/…" (see
             `metrics.groups`) and "best_fair/…" (see `fairest`); empty in a round without evaluation.
    last:    whether it is the last round.
    reranked:
             of the last round: rows of the chosen round that need all its examples sorted (`Judging.ranks`), if its
             evaluation left them out or ranked a sample; else None.
    """

    round: int
    state: Tree
    metrics: pa.Table | None = None
    summary: dict[str, float] = field(default_factory=dict)
    last: bool = False
    reranked: pa.Table | None = None

    def facts(self) -> dict[str, object]:
        """The round, and what it measured on test examples."""
        metric = selection_metric_of(self.summary)
        names = [name for name in self.summary if name in (f"global/{metric}", f"local/{metric}", "global/loss")]
        return {"": f"round {self.round:,}", **{name: self.summary[name] for name in names}}

    def _repr_html_(self) -> str:
        return page(f"round {self.round:,}", self.summary.items())

    @property
    def evaluated(self) -> bool:
        """Whether the summary has this round's evaluation."""
        return bool(self.summary)

    def of_clients(self, metric: str, split: str = "test") -> dict[str, float]:
        """{client: value} of `metric` on each client's `split`, or as the server knows it (split "server");
        clients where it is not defined are left out.

        Raises:
            KeyError: this round has no such number.
        """
        rows = () if self.metrics is None else self.metrics.to_pylist()
        client_rows = [row for row in rows if row["split"] == split and row["client"] != GLOBAL]
        values = {row["client"]: row["value"] for row in client_rows if row["metric"] == metric}
        if not values:
            metrics = ", ".join(dict.fromkeys(row["metric"] for row in client_rows)) or "nothing"
            raise KeyError(
                f"round {self.round} has no {metric!r} of clients in split {split!r}; there it has {metrics}"
            )
        return values


def train(
    algorithm: Algorithm,
    fed: Engine,
    rounds: int,
    eval_every: Interval = 1,
    resume: tuple[int, Tree] | None = None,
    summary: Mapping[str, float] | None = None,
    fair_margin: float = 0.0,
    judging: Judging | None = None,
    stopping: Stopping | None = None,
    skip_diverged: bool = False,
    best: tuple[int, Tree] | None = None,
) -> Iterator[RoundResult]:
    """Run `rounds` rounds of `algorithm` on `fed`, evaluating every `eval_every` (0: never) and at the end.

    resume: (rounds done, server state) of a checkpoint; the engine must have been restored too. summary: the
    checkpoint's, for its best rounds. fair_margin: see `fairest`. judging: the selection metric, with the
    number of the positive class. stopping: whether fewer rounds may be enough. skip_diverged: see `measure`.
    best: (number, server state) of a checkpoint's best round, to complete its metrics at the end.

    Raises:
        UserError: fewer than one round, a fresh start on a federation whose clients have trained already, or a state
            that no checkpoint can hold.
    """
    if rounds < 1 or (eval_every != AUTO and (not isinstance(eval_every, int) or eval_every < 0)):
        raise UserError(
            f"rounds is {rounds} and eval_every {eval_every!r}; rounds must be at least 1, eval_every 'auto' or a "
            "whole number of at least 0.",
            code="user.rounds",
        )
    give_defaults(type(algorithm))
    check_rounds(algorithm, rounds)
    done, state = resume or (0, None)
    if state is None and fed.trained:
        raise UserError(
            "this federation has trained before: its clients would start with what they learnt there, and its ledger "
            "would go on. Make a new one (fedweave.federation), or give `resume` the rounds done and the last state.",
            code="user.trained-before",
        )
    stopping, judging = stopping or Stopping(), judging or Judging()
    fed.trained, fed.rounds, fed.selection = True, rounds, partial(selection_of, judging)
    if state is None:
        fed.ledger.purpose = types.SETUP
        fed.begin(0)
        state = _check_state(algorithm, "init", algorithm.init(fed))
    state = to(state, fed.device)  # a checkpoint's is on the host
    before: dict[str, float] = dict(summary or {})
    best = None if best is None else (best[0], to(best[1], fed.device))
    evaluator = _Evaluator(algorithm, fed, rounds, fair_margin, judging, stopping, skip_diverged, best)
    if stopping.stops(done, before):
        return
    for number in range(done + 1, rounds + 1):
        fed.ledger.purpose = types.TRAINING
        fed.begin(number)
        state = _check_state(algorithm, "round", fed.carry_out(algorithm.round, state))
        for sentence in algorithm.warnings(state):
            _LOG.warning(sentence)
        metrics, result, last = server_rows(number, algorithm, state, fed), Summary(number), False
        reranked: pa.Table | None = None
        if is_evaluated(number, rounds, eval_every):
            fed.ledger.purpose = types.EVALUATION
            rows, before, reranked = evaluator.evaluate(number, state, before)
            last = number == rounds or stopping.stops(number, before)
            result = Summary(number, before)
            metrics = pa.concat_tables([rows, *([metrics] if metrics else [])])
        yield RoundResult(number, state, metrics, result, last, reranked)
        if last:
            return


@dataclass
class _Evaluator:
    """Evaluates a run's rounds (see `train`). best: the number and the server's state of the best round so far, if that
    determines all models."""

    algorithm: Algorithm
    fed: Engine
    rounds: int
    fair_margin: float
    judging: Judging
    stopping: Stopping
    skip_diverged: bool
    best: tuple[int, Tree] | None

    def evaluate(
        self, number: int, state: Tree, before: Mapping[str, float]
    ) -> tuple[pa.Table, dict[str, float], pa.Table | None]:
        """The rows and the summary of the evaluation after a round, and after the last one the rows of the chosen round
        with all examples sorted (`RoundResult.reranked`); before: the summary of the evaluation before."""
        last, ranks = number == self.rounds, self._first_ranks(number, before)
        mark = self.fed.ledger.mark()
        evaluation = self._score(number, state, ranks)
        if evaluation.total is not None:  # sums have all metrics
            ranks = "all"

        def measure_scores() -> Measurement:
            return measure(number, evaluation, self.judging, before, last, self.skip_diverged)

        rows, measured, validated, selection, each = measure_scores()
        if ranks == "none" and selection_metric_of(measured) in OF_ORDER:  # chosen by this evaluation
            self.fed.ledger.rewind(mark)
            ranks = self._ordered
            evaluation = self._score(number, state, ranks)
            rows, measured, validated, selection, each = measure_scores()
        if ranks == "sample" and _is_first(before) and not last:
            _LOG.warning("note: %s", SAMPLE_SENTENCE)
        progress = self.stopping.update(number, validated, {**before, **measured})
        stops = not last and self.stopping.stops(number, progress)
        last = last or stops
        chosen = best_validated(number, validated, measured, before).get(f"{BEST}/round")
        is_best = chosen == number
        # What sorts all examples is measured at the end, if this is the chosen round then.
        has_model = evaluation.total is None and bool(self.algorithm.evaluated_model(state))
        is_later = is_best and has_model and not last
        # All links are ranked in the round that is the result: the chosen one or, without one, the last.
        is_result = (is_best and not is_later) or (last and not self._is_kept(chosen, has_model))
        needed = "all" if is_result else self._ordered if last else ranks
        scores_again = ranks != needed and ranks != "all"
        if scores_again:
            self.fed.ledger.rewind(mark)
            evaluation, ranks = self._score(number, state, needed), needed
        if scores_again or stops:  # rounds are compared by the ranks of the same links, as measured before
            rows, measured, _, selection, each = measure_scores()
        if self._samples_ranks and ranks != "none":
            measured[RANKS_SAMPLED] = float(ranks == "sample")
            rows = pa.concat_tables([rows, of_tests(number, {RANKS_SAMPLED: measured[RANKS_SAMPLED]})])
        measured |= progress
        measured |= _ties(measured, before)
        if measured.get(TIED) == MAX_TIED:
            _LOG.warning("note: %s", TIED_SENTENCE.format(MAX_TIED))
        measured |= self.algorithm.counts(state)
        sample = self.fed.evaluated_clients
        if sample:
            measured |= {SAMPLED: float(len(sample)), OF: float(len(self.fed.clients))}
        best = best_validated(number, validated, measured | each, before)
        reranked = None
        if is_later:
            self.best = number, state
            best |= {} if ranks == "all" else {UNSORTED: 1.0}
        elif last and not is_best and self.best is not None and self.best[0] == best.get(f"{BEST}/round"):
            reranked, best = self._complete_best(*self.best, best, measured, before)
        if (is_best and not is_later) or last:
            pooled = self._pooled_metrics(state, measured, evaluation.total)  # {name: [3]}
            totals = _totals(pooled)
            if is_best:
                best |= {f"{BEST}/{name}": value for name, value in totals.items()}
            if last:
                measured |= totals
                rows = pa.concat_tables([rows, of_splits(number, pooled)])
        best |= fairest(number, selection, measured, before, self.fair_margin)
        return rows, measured | best, reranked

    def _complete_best(
        self,
        number: int,
        state: Tree,
        best: Mapping[str, float],
        measured: Mapping[str, float],
        before: Mapping[str, float],
    ) -> tuple[pa.Table | None, dict[str, float]]:
        """The entries of the best round in the summary with what needs all its examples sorted, and the rows that its
        evaluation lacked; None if it lacked none. measured: of the last round."""
        entries, rows = dict(best), None
        if entries.pop(UNSORTED, None):
            mark = self.fed.ledger.mark()  # of the round's evaluation, the ledger has what was sent
            evaluation = self._score(number, state, "all")
            self.fed.ledger.rewind(mark)
            complete = measure(number, evaluation, self.judging, before, False, self.skip_diverged)
            rows = complete.rows
            for name, value in (complete.summary | complete.each).items():
                is_new = f"{BEST}/{name}" not in best or any(metric in name for metric in OF_ORDER)
                if name.startswith(OF_A_ROUND) and is_new:
                    entries[f"{BEST}/{name}"] = value
            names = (*OF_ORDER, f"{POSITIVES}/", "within/", "labels")
            rows = rows.filter(pc.match_substring_regex(rows["metric"], "|".join(names)))
            if self._samples_ranks:
                rows = pa.concat_tables([rows, of_tests(number, {RANKS_SAMPLED: 0.0})])
        totals = _totals(self._pooled_metrics(state, measured, None))
        return rows, entries | {f"{BEST}/{name}": value for name, value in totals.items()}

    def _first_ranks(self, number: int, before: Mapping[str, float]) -> Ordering:
        """Which metrics that sort examples an evaluation has (`Judging.ranks`), as far as the evaluations before it
        decide."""
        has_groups = any(name.startswith("groups/") for name in before)  # every metric of the fairest round is shown
        may_be_tied = TIED in before or before.get("global/classes_predicted") == 1
        is_compared = has_groups or may_be_tied or selection_metric_of(before) in OF_ORDER
        if self._always_sorts or _is_first(before) or number == self.rounds or is_compared:
            return self._ordered
        return "none"

    @property
    def _ordered(self) -> Ordering:
        """What sorts examples in an evaluation that is not of the result."""
        return "sample" if self._samples_ranks else "all"

    def _is_kept(self, chosen: float | None, has_model: bool) -> bool:
        """Whether an earlier round `chosen` is the result: its models are kept. has_model: whether they are the
        server's state; if not, it had all metrics when it was the best so far."""
        if has_model:
            return self.best is not None and self.best[0] == chosen
        return chosen is not None and self.fed.graphs is not None

    @property
    def _always_sorts(self) -> bool:
        """Whether every evaluation has all metrics."""
        setting, examples = self.judging.ranks, self.fed.examples
        is_small = setting == "auto" and examples is not None and examples < FEW
        return examples is None or setting == "all" or is_small or self._sends_protected()

    @property
    def _samples_ranks(self) -> bool:
        """Whether evaluations may rank a sample of links."""
        return self.fed.samples_ranks and not self._always_sorts

    def _sends_protected(self) -> bool:
        """Whether a mechanism protects what an evaluation sends: a further evaluation of a round would count as a
        further release."""
        calls = self.algorithm.calls(len(self.fed.clients))
        steps = () if calls is None else calls.evaluation
        return any(spec.mechanisms for step in steps for spec in step_info(step).sends.values())

    def _score(self, number: int, state: Tree, ranks: Ordering) -> Evaluation:
        """The scores of a round's models; by member where one client holds what all do."""
        finite = _finite(state)
        if self.fed.device.type == "cpu" and not finite:
            _refuse_divergence(number, state)
        try:  # a device is waited for only when it has all of the evaluation to work on
            with self.fed.scoring(ranks):
                evaluation = self.fed.carry_out(self.algorithm.evaluate, state)
        finally:  # for models that are not finite, raise only this error
            if not finite:
                _refuse_divergence(number, state)
        return evaluation._replace(clients=member_replies(evaluation.clients, self.fed.members))

    def _pooled_metrics(self, state: Tree, measured: Mapping[str, float], total: Tree | None) -> dict[str, np.ndarray]:
        """Metrics of all examples together, from a simulation or from sums over all clients: float64 [3] by name."""
        threshold = self.judging.threshold
        if threshold == "auto" and positive_of(measured) is not None:
            threshold = "f1"
        alarm = Alarm(positive_class(self.judging, measured), threshold)
        share = self.judging.intervals
        if total is not None:
            return pooled_sums(total, alarm, share)
        w = self.algorithm.evaluated_model(state)
        if w is None:
            return {}
        examples = self.fed.example_outputs(self.algorithm.net, w, self.fed.evaluated_clients or self.fed.clients)
        if examples is None:
            return {}
        return pooled_examples(examples, alarm, share)


def _is_first(before: Mapping[str, float]) -> bool:
    """Whether an evaluation is the first; before: the summary of the one before."""
    return not any(name.startswith(OF_A_ROUND) for name in before)


def _totals(pooled: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The metrics of all examples together on test examples, where they are defined; pooled: float64 [3] by name."""
    return {name: float(splits[TEST]) for name, splits in pooled.items() if not math.isnan(splits[TEST])}


def _ties(measured: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """{"scores/tied": evaluations in a row in which all scores were equal}, that is every AUC one half; {} if they are
    not. before: the summary of the evaluation before."""
    areas = [measured[name] for name in ("global/auc", "local/auc", "within/auc") if name in measured]
    if not areas or any(area != TIED_AUC for area in areas):
        return {}
    return {TIED: before.get(TIED, 0.0) + 1}


def is_evaluated(number: int, rounds: int, eval_every: Interval) -> bool:
    """Whether a round is evaluated: every `eval_every`-th of `rounds` (0: none; `AUTO`: each), and the last."""
    every = eval_every if isinstance(eval_every, int) else 1
    return number == rounds or (every > 0 and number % every == 0)


def server_rows(round: int, algorithm: Algorithm, state: Tree, fed: Engine) -> pa.Table | None:
    """Rows of what the server knows of each client after a round; None if there is nothing."""
    rows = list[MetricRow]()
    for name, values in (algorithm.measures(state, fed) or {}).items():  # [clients] by name
        for client, value in zip(fed.clients, values.tolist(), strict=True):
            if not math.isnan(value):
                rows.append((round, client, SERVER, name, value))
    return table_of(rows) if rows else None


def _check_state(algorithm: Algorithm, method: str, state: object) -> Tree:
    """The state, if a checkpoint can hold it; checked before any time goes into more rounds."""
    what = f"{type(algorithm).__name__}.{method}: is to give the server's state, a tree; what it gives"
    try:
        return check(state, what)
    except ReplyRefused as refused:
        raise UserError(str(refused)) from refused


def _finite(state: Tree) -> torch.Tensor | bool:
    """Whether all numbers of the server are finite, as a bool [] tensor, to avoid waiting for the device."""
    tensors = [leaf for _, leaf in leaves(state) if isinstance(leaf, torch.Tensor)]
    numbers = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    return not numbers or get_total_norm(numbers, math.inf).isfinite()


def _refuse_divergence(round: int, state: Tree) -> None:
    """Raise an error that names what is not finite: a weight or, where weights are finite, the part that keeps it."""
    paths = []
    for path, leaf in leaves(state):
        if isinstance(leaf, torch.Tensor) and not leaf.isfinite().all():
            paths.append(path)
    if not paths:
        return
    path = min(paths, key=lambda path: path.startswith("parts/"))  # the first of the weights, if there is one
    message = diverged_message(f"after round {round} {path!r}")
    if path.startswith("parts/"):
        _, name, entry = path.split("/", 2)
        message = part_diverged_message(name, f"what it keeps as {entry!r} after round {round}")
    raise FedweaveError(message, code="diverged")
