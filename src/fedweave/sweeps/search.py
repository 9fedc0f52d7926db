"""Settings that Optuna proposes one after the other, from earlier results on validation examples."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedweave.core.settings import nearest
from fedweave.errors import ConfigError, UserError, option
from fedweave.experiment.config import Document
from fedweave.experiment.runs.reading import common_selection_metric, group_runs, read_runs, spread
from fedweave.metrics.selection import BEST, rank
from fedweave.sweeps.choosing import conditions
from fedweave.sweeps.plan import (
    algorithm_documents,
    check_scopes,
    combinations,
    grid_of,
    grid_of_options,
    is_whole,
    keys_of,
    of_grid,
    parse_seeds,
    range_of,
    split_scope,
)
from fedweave.sweeps.runs import PlannedRun, plan_run

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution

SAMPLERS = {"tpe": "TPESampler", "random": "RandomSampler", "qmc": "QMCSampler", "gp": "GPSampler"}
Execute = Callable[[list[PlannedRun]], dict[str, str]]  # the runs to make -> {name: why it failed}


@dataclass
class Search:
    """The search for one algorithm's settings in one condition.

    document: the experiment. space: {key: values as TOML}, or ranges of numbers.
    """

    document: Document
    space: Mapping[str, Sequence[str]]
    sampler: str
    seed: int
    study: "Study" = field(init=False)
    trial: "Trial" = field(init=False)
    runs: list[PlannedRun] = field(default_factory=list)

    def __post_init__(self) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = getattr(optuna.samplers, SAMPLERS[self.sampler])(seed=self.seed)
        self.study = optuna.create_study(direction="maximize", sampler=sampler)

    @cached_property
    def distributions(self) -> "dict[str, BaseDistribution]":
        """{key: Optuna's distribution}."""
        return {key: _distribution(self.document, key, values) for key, values in self.space.items()}

    def propose(self, seeds: Sequence[int], out: Path) -> list[PlannedRun]:
        """The next setting's runs; a number from a range is rounded to four digits."""
        self.trial = self.study.ask(self.distributions)
        setting = {}
        for key, value in self.trial.params.items():
            setting[key] = [f"{value:.3e}" if isinstance(value, float) else str(value)]
        [document] = combinations(self.document, setting)
        self.runs = [plan_run(document | {"seed": seed}, out / "runs") for seed in seeds]
        self.runs[0].config.check_made()
        return self.runs

    def report(self, failed: Mapping[str, str]) -> None:
        """Report the proposed setting's result to Optuna, the mean over seeds, or its failure if any run failed."""
        import optuna

        value = math.nan
        if not any(run.name in failed for run in self.runs):
            groups = group_runs(read_runs([run.directory for run in self.runs]))
            metric = common_selection_metric(groups)
            value = rank(metric, spread(groups[0].values(f"{BEST}/val/{metric}"))[0])
        if math.isnan(value):
            self.study.tell(self.trial, state=optuna.trial.TrialState.FAIL)
        else:
            self.study.tell(self.trial, value)


def _distribution(document: Document, key: str, values: Sequence[str]) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    bounds = range_of(values)
    if bounds is None:
        return CategoricalDistribution(list(values))
    low, high, log = bounds
    if is_whole(document, key):
        return IntDistribution(math.ceil(low), math.floor(high), log=log)
    return FloatDistribution(low, high, log=log)


def check_sampler(sampler: str) -> None:
    """Raise an error if the sampler is unknown or Optuna is not installed.

    Raises:
        ConfigError: there is no such sampler. UserError: Optuna is not installed; explains how to install it.
    """
    if sampler not in SAMPLERS:
        raise ConfigError(
            f"{option('sampler', sampler)}: there is no such sampler.{nearest(sampler, SAMPLERS)} Choose one of "
            f"{', '.join(SAMPLERS)}.",
            code="config.unknown-name",
        )
    check_optuna(option("search"))


def check_optuna(what: str) -> None:
    """Raise an error if Optuna is not installed, which `what` needs.

    Raises:
        UserError: explains how to install it.
    """
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise UserError(f"{what} needs Optuna: pip install 'fedweave[search]'.", code="user.no-optuna") from error


def run_search(
    config: Path,
    out: Path,
    seeds: str,
    algorithms: str,
    settings: Sequence[str],
    grid: Sequence[str],
    over: Sequence[str],
    count: int,
    sampler: str,
    execute: Execute,
) -> tuple[list[PlannedRun], dict[str, str], list[str]]:
    """Run `count` settings of each algorithm in each condition; returns all runs, {name: why it failed}, and notes.

    A repeated search proposes the same settings, and uses their finished runs.

    Raises:
        ConfigError: a name, key or value is not valid, or there is no key to search.
    """
    # 1. Keys to search, and keys of conditions, in each of which there is a search.
    whole_grid = grid_of_options(config, settings, grid)
    condition_keys = conditions(keys_of(whole_grid), over)
    condition_grid = {key: values for key, values in whole_grid.items() if split_scope(key)[1] in condition_keys}
    search_grid = {key: values for key, values in whole_grid.items() if key not in condition_grid}
    if not search_grid:
        raise ConfigError(
            f"{option('search')}: give {option('grid')} keys to search, such as algorithm.lr=1e-3..1e-1,log, or values."
        )
    for key, values in condition_grid.items():
        if range_of(values):
            raise ConfigError(f"{of_grid(key)}: algorithms are compared over this key. Give values, not a range.")
    documents, notes = algorithm_documents(config, algorithms, settings)
    check_scopes(whole_grid, documents)
    seed_numbers = parse_seeds(seeds)
    searches = []
    for document in documents:
        for variant in combinations(document, condition_grid):
            searches.append(Search(variant, grid_of(variant, search_grid), sampler, seed_numbers[0]))

    # 2. A setting of every search at a time, so that their runs go side by side.
    runs: dict[str, PlannedRun] = {}
    failed: dict[str, str] = {}
    for number in range(count):
        if number:  # an algorithm that has none of the keys runs once
            searches = [search for search in searches if search.space]
        proposed: dict[str, PlannedRun] = {}
        for search in searches:
            proposed |= {run.name: run for run in search.propose(seed_numbers, out)}
        failed |= execute(list(proposed.values()))
        runs |= proposed
        for search in searches:
            search.report(failed)
    return list(runs.values()), failed, notes
