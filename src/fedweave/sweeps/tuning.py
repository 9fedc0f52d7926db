"""`fedweave tune`: settings proposed by Optuna, each trained in memory and compared by validation examples alone.

A trial is one setting, trained with every seed. Successive halving (Li et al. 2018, "A system for massively parallel
hyperparameter tuning", asynchronous) ends it at a ninth or a third of the rounds unless its validation value is among
the best third of those that came so far. The first trial is the experiment as it is, so that the result is never worse
on validation. Test examples decide nothing, and nothing about them is kept.

The study is a journal on disk. A repeated command takes up the trial that was interrupted and proposes what an
uninterrupted one would have, because the sampler's seed follows from the number of the trial.
"""

import json
import logging
import math
import statistics
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fedweave.core import random
from fedweave.core.types import Values
from fedweave.errors import FedweaveError, UserError, option
from fedweave.experiment.config import Config, Document, config_hash, resolve
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.files import plain_errors
from fedweave.experiment.runs.run import build_simulation
from fedweave.experiment.work import with_interval
from fedweave.metrics.selection import BEST, rank, selection_metric_of
from fedweave.sweeps.search import check_optuna
from fedweave.sweeps.space import Space, space_of

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

JOURNAL = "study.journal"
DEFAULT_MINUTES = 20.0
_FACTOR = 3  # a third of the trials goes on at each of two rungs
_RANDOM = 10  # trials before proposals follow from results
_MAX_STARTS = 2  # how often a trial is begun that ends the process, as where memory is not enough
FINISHED, STOPPED, FAILED = "finished", "stopped early", "failed"


@dataclass(frozen=True)
class TuningTrial:
    """One setting that was tried.

    number:     from 0, the experiment as it is.
    setting:    {key: value} where it differs from the experiment.
    value:      the selection metric on validation examples in the best round, mean over seeds; None without any.
    by_seed:    the same of each seed.
    rounds:     rounds that were trained.
    seconds:    that it took.
    outcome:    "finished", "stopped early" by successive halving, or "failed".
    reason:     why it failed.
    """

    number: int
    setting: Values
    value: float | None = None
    by_seed: tuple[float, ...] = ()
    rounds: int = 0
    seconds: float = 0.0
    outcome: str = FINISHED
    reason: str = ""


@dataclass(frozen=True)
class Tuning:
    """The trials of an experiment.

    space: what was tried. seeds: of every trial. metric: the selection metric. trials: in order.
    """

    space: Space
    seeds: tuple[int, ...]
    metric: str
    trials: tuple[TuningTrial, ...]

    @property
    def best(self) -> TuningTrial:
        """The trial that is best on validation examples; of equal ones the first."""
        scored = [trial for trial in self.trials if trial.value is not None and trial.outcome == FINISHED]
        return max(scored, key=lambda trial: rank(self.metric, trial.value or 0.0))

    @property
    def document(self) -> Document:
        """The experiment with the best setting."""
        return self.space.document if not self.best.number else self.space.apply(self.best.setting)

    @property
    def seconds(self) -> float:
        """What all trials took."""
        return math.fsum(trial.seconds for trial in self.trials)


class TuningWatch(Protocol):
    """Receives reports on trials while they go."""

    def begin(self, number: int, setting: Values) -> None:
        """A trial begins."""

    def evaluate(self, number: int, round: int, value: float) -> None:
        """A trial has been evaluated; the value is its best so far."""

    def end(self, trial: TuningTrial) -> None:
        """A trial is over."""


class _Progress(NamedTuple):
    """How far a run is: its rounds, its best validation value so far (NaN without one), and whether it is over."""

    round: int
    value: float
    metric: str
    last: bool


@dataclass
class _Budget:
    """The end of a tuning. seconds: of all trials together; None without a limit. trials: None without a limit."""

    trials: int | None
    seconds: float | None
    used: float = 0.0
    _began: float = field(default_factory=time.monotonic)

    def begin(self, used: float) -> None:
        """A trial begins; `used`: what the trials before it took."""
        self.used, self._began = used, time.monotonic()

    @property
    def of_trial(self) -> float:
        """Seconds since the trial began."""
        return time.monotonic() - self._began

    def is_over(self, trials: int) -> bool:
        """Whether no trial may begin after that many; one always may."""
        return trials > 0 and ((self.trials is not None and trials >= self.trials) or self.out_of_time())

    def out_of_time(self, since: float = 0.0) -> bool:
        """Whether the time is up, `since` seconds into a trial."""
        return self.seconds is not None and self.used + since >= self.seconds


def run_tuning(
    document: Document,
    folder: Path,
    seeds: Sequence[int],
    trials: int | None,
    minutes: float | None,
    watch: TuningWatch,
    overwrite: bool = False,
) -> Tuning:
    """Try settings of an experiment until the budget is used, or go on where an earlier call was interrupted.

    document: the experiment. folder: of the study. trials, minutes: the budget, of all calls together; without either,
    20 minutes. overwrite: begin again.

    Raises:
        ConfigError: the experiment is not valid. UserError: Optuna is not installed, the folder has the study of
            another experiment, no client has validation examples, or the experiment fails as it is.
    """
    check_optuna("fedweave tune")
    config = resolve(document)
    if config.general.init_from is not None:
        raise UserError(
            "init_from: a run that begins from an earlier one has that one's model, so that there is little to choose. "
            "Leave it out, and tune the first run.",
            code="tune.init-from",
        )
    if trials is None and minutes is None:
        minutes = DEFAULT_MINUTES
    space = space_of(document)
    study = _open_study(space, config, folder, seeds, overwrite)
    budget = _Budget(trials, None if minutes is None else 60 * minutes)
    while True:
        done = [_read(space, trial) for trial in study.trials if trial.state.is_finished()]
        if budget.is_over(len(done)):
            break
        budget.begin(math.fsum(trial.seconds for trial in done))
        trial = _next_trial(study, seeds[0])
        setting = space.propose(trial)
        changes = space.changes(setting) if trial.number else {}
        watch.begin(trial.number, changes)
        tried = space.apply(setting) if trial.number else document
        with _quiet(trial.number > 0):
            watch.end(_try(study, space, trial, tried, seeds, budget, watch))
    metric = str(study.user_attrs.get("metric", ""))
    tuning = Tuning(space, tuple(seeds), metric, tuple(done))
    if not any(one.outcome == FINISHED and one.value is not None for one in tuning.trials):
        reasons = [one.reason for one in tuning.trials if one.reason]
        raise FedweaveError(f"no trial succeeded; the last error: {reasons[-1] if reasons else 'none'}")
    return tuning


def _open_study(space: Space, config: Config, folder: Path, seeds: Sequence[int], overwrite: bool) -> "Study":
    """The study of the folder, new or as it was left."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    file = folder / JOURNAL
    with plain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if overwrite:
            file.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        storage = JournalStorage(JournalFileBackend(str(file), JournalFileOpenLock(str(file))))
    general = config.general
    every = general.eval_every if isinstance(general.eval_every, int) else 1  # which is less than a rung
    first_rung = max(1, every, general.rounds // _FACTOR**2)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=first_rung, reduction_factor=_FACTOR)
    study = optuna.create_study(
        storage=storage, study_name="tune", direction="maximize", pruner=pruner, load_if_exists=True
    )
    about = {"experiment": config_hash(config.plain()), "seeds": list(seeds), "space": space.plain()}
    if not study.trials:
        study.set_user_attr("about", about)
        for start in space.starts():
            study.enqueue_trial(start, skip_if_exists=True)
    elif study.user_attrs.get("about") != json.loads(json.dumps(about)):
        raise UserError(
            f"{folder} has the trials of another experiment, of other seeds, or of another version. Continue with the "
            f"same ones, choose another folder as {option('out')}, or begin again with {option('overwrite', True)}.",
            code="tune.other",
        )
    return study


def _next_trial(study: "Study", seed: int) -> "Trial":
    """The trial that was interrupted, or a new one."""
    import optuna

    states = optuna.trial.TrialState
    begun = [trial for trial in study.trials if trial.state == states.RUNNING]
    waiting = [trial for trial in study.trials if trial.state == states.WAITING]
    number = [*begun, *waiting][0].number if begun or waiting else len(study.trials)
    bits = random.fold_bits(random.root(seed), "tuning", number)
    study.sampler = optuna.samplers.TPESampler(seed=bits % 2**32, n_startup_trials=_RANDOM)
    return optuna.trial.Trial(study, begun[0]._trial_id) if begun else study.ask()


def _try(
    study: "Study",
    space: Space,
    trial: "Trial",
    document: Document,
    seeds: Sequence[int],
    budget: _Budget,
    watch: TuningWatch,
) -> TuningTrial:
    """Train a trial with all seeds, round by round side by side, and enter its result.

    Raises:
        UserError: the experiment fails as it is, or has no validation examples.
    """
    from optuna.trial import TrialState

    starts = int(trial.user_attrs.get("starts", 0)) + 1
    trial.set_user_attr("starts", starts)
    state, reason = TrialState.COMPLETE, ""
    progress = [_Progress(0, math.nan, "", False) for _ in seeds]
    try:
        if starts > _MAX_STARTS:
            raise FedweaveError(f"it ended the process {_MAX_STARTS} times; memory may be too small for it")
        for progress in _train_side_by_side(document, seeds):
            value = statistics.fmean(one.value for one in progress)
            if math.isnan(value):
                continue
            metric = progress[0].metric
            study.set_user_attr("metric", metric)
            at = max(one.round for one in progress)
            watch.evaluate(trial.number, at, value)
            trial.report(rank(metric, value), at)
            if all(one.last for one in progress) or budget.out_of_time(budget.of_trial):
                break
            if trial.should_prune():
                state = TrialState.PRUNED
                break
        if any(math.isnan(one.value) for one in progress):
            raise UserError(
                "no client has a validation value, by which settings are compared. Leave examples for validation "
                "(partition.val).",
                code="user.no-validation",
            )
    except KeyboardInterrupt:
        trial.set_user_attr("starts", starts - 1)
        raise
    except Exception as error:  # of any kind: a setting that does not work must not end the others
        if trial.number == 0 and getattr(error, "code", "") != "diverged":
            trial.set_user_attr("starts", starts - 1)
            raise
        state, reason = TrialState.FAIL, str(error) or type(error).__name__
    values = [one.value for one in progress]
    trial.set_user_attr("by_seed", [value for value in values if not math.isnan(value)])
    trial.set_user_attr("rounds", max(one.round for one in progress))
    trial.set_user_attr("reason", reason)
    trial.set_user_attr("seconds", budget.of_trial)
    result = None if state != TrialState.COMPLETE else rank(progress[0].metric, statistics.fmean(values))
    return _read(space, study.tell(trial, result, state))


def _train_side_by_side(document: Document, seeds: Sequence[int]) -> Iterator[list[_Progress]]:
    """How far each seed's run is, after each evaluation of those that are not over."""
    runs = [_train(resolve(document | {"seed": seed})) for seed in seeds]
    try:
        progress = [next(run) for run in runs]
        yield progress
        while not all(one.last for one in progress):
            progress = [one if one.last else next(run) for one, run in zip(progress, runs, strict=True)]
            yield progress
    finally:
        for run in runs:
            run.close()


def _train(config: Config) -> Generator[_Progress, None, None]:
    """How far a run is, after each evaluation. Its measurements on test examples go no further than here."""
    with closing(build_simulation(config)) as built:
        general, evaluation = with_interval(config, built).general, config.evaluation
        judging = evaluation.of(built.data.labels, built.data.classes, built.data.target)
        rounds = train(
            built.algorithm,
            built.fed,
            general.rounds,
            general.eval_every,
            fair_margin=general.fair_margin,
            judging=judging,
            stopping=evaluation.stopping,
        )
        for step in rounds:
            if step.summary:
                metric = selection_metric_of(step.summary)
                value = dict(step.summary).get(f"{BEST}/val/{metric}", math.nan)
                yield _Progress(step.round, value, metric, step.last)


def _read(space: Space, trial: "FrozenTrial") -> TuningTrial:
    """A finished trial of the study."""
    from optuna.trial import FixedTrial, TrialState

    outcomes = {TrialState.COMPLETE: FINISHED, TrialState.PRUNED: STOPPED}
    about = trial.user_attrs
    by_seed = tuple(about["by_seed"])
    setting = space.changes(space.propose(FixedTrial(trial.params))) if trial.number else {}
    return TuningTrial(
        trial.number,
        setting,
        statistics.fmean(by_seed) if by_seed else None,
        by_seed,
        about["rounds"],
        about["seconds"],
        outcomes.get(trial.state, FAILED),
        about["reason"],
    )


@contextmanager
def _quiet(quiet: bool) -> Iterator[None]:
    """Without warnings of fedweave, which the first trial has shown."""
    logger = logging.getLogger("fedweave")
    level = logger.level
    if quiet:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
