"""A sweep from Python: `fedweave.sweep(…)`, like the command of that name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from fedweave.core.types import Record
from fedweave.errors import UserError
from fedweave.experiment.config import Config, Document, dumps
from fedweave.experiment.config.toml import flat, inline
from fedweave.experiment.runs.files import write
from fedweave.python.comparing import Results, clients_of, figures_of, rows_of, table_of
from fedweave.reports.conditions import conditions
from fedweave.reports.reading import Run, grouped
from fedweave.reports.terminal import screen
from fedweave.sweep import choosing, plan
from fedweave.sweep import search as seek
from fedweave.sweep.results import (
    SweepOptions,
    by_condition,
    compared_lines,
    describe_numbers,
    figures,
    finish,
    latex,
    lost,
)
from fedweave.sweep.runs import PlannedRun
from fedweave.sweep.scheduler import run_unfinished


@dataclass(frozen=True, repr=False)
class Sweep(Results):
    """The results of a sweep.

    directory: folder of its runs and of the report `report.html`. grid: keys of the grid, which are columns of `runs`,
    followed by "chosen": whether a run has the setting that is best on validation examples. failed: why runs failed.
    choices: the setting chosen for each algorithm in each condition, such as a data set and a partition.
    """

    directory: Path = Path()
    grid: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    choices: tuple[choosing.Chosen, ...] = ()

    @property
    def chosen(self) -> pa.Table:
        """The runs with the setting chosen for their algorithm."""
        return self.runs.filter(self.runs["chosen"])

    @property
    def conditions(self) -> pa.Table:
        """A row for each condition and algorithm: mean and deviation over seeds, in the round that is best on
        validation examples, rank, and the paired difference to the first algorithm with its 95 % interval."""
        return rows_of(by_condition(self.choices))

    @property
    def latex(self) -> str:
        """The table for a paper, as --latex writes it; "" if no setting could be chosen."""
        return latex(self.choices) if self.choices else ""

    def save_figures(self, folder: str | Path) -> list[Path]:
        """Write curves and charts, with captions, as SVG, PDF and .tex, as --figures does; returns the files.

        Raises:
            UserError: matplotlib is not installed, or the folder cannot be written.
        """
        return figures(self.choices, Path(folder).expanduser())


def sweep(
    experiment: "str | Path | Document | Config",
    *,
    seeds: str | Sequence[int] = range(5),
    algorithms: str | Sequence[str] = (),
    grid: Mapping[str, Sequence[object] | str] | None = None,
    search: int = 0,
    sampler: str = "tpe",
    over: Sequence[str] = (),
    settings: Mapping[str, object] | None = None,
    jobs: int = 1,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Sweep:
    """Run an experiment with several seeds, algorithms and settings, as `fedweave sweep` does; finished runs are used
    again.

    experiment: the path of a TOML file, its content as a dict, or a `Config`. seeds: numbers, or "0-4". algorithms:
    names; by default the experiment's own. grid: {"algorithm.lr": [.01, .1]}, in all combinations; with search also a
    range, "1e-3..1,log". search: number of settings to try, which Optuna proposes by its `sampler`. over: keys of the
    grid to compare algorithms over. settings: {"model.hidden": 32} for all. jobs: runs at a time. out: folder of the
    sweep, by default sweeps/<experiment>. overwrite: repeat runs with other code or data. progress: show it.

    Raises:
        UserError: a name, key or value is not valid. FedweaveError: all runs failed.
    """
    stem, document = _named(experiment)
    folder = Path("sweeps") / stem if out is None else Path(out).expanduser()
    file = Path(experiment).expanduser() if isinstance(experiment, str | Path) else folder / "experiment.toml"
    if not isinstance(experiment, str | Path):
        write_document(file, document)
    changed = [f"{key}={_value(value)}" for key, value in (settings or {}).items()]
    tried = [f"{key}={_values(key, values)}" for key, values in (grid or {}).items()]
    names = algorithms if isinstance(algorithms, str) else ",".join(algorithms)
    numbers = seeds if isinstance(seeds, str) else ",".join(map(str, seeds))
    ranges = plan.tries(file, changed, tried)
    options = SweepOptions(plan.keys_of(ranges), tuple(over), csv=True, grid=ranges)
    plan.check_over(options.over, options.keys)
    console = screen(quiet=not progress)

    def execute(runs: Sequence[PlannedRun]) -> dict[str, str]:
        return run_unfinished(console, runs, jobs, announce=False)

    if search:
        seek.check(sampler)
        runs, failed, about = seek.searched(
            file, folder, numbers, names, changed, tried, options.over, search, sampler,
            lambda runs: execute(plan.up_to_date(runs, overwrite)),
        )  # fmt: skip
    else:
        runs, about = plan.planned(file, folder, numbers, names, changed, tried)
        runs = plan.up_to_date(runs, overwrite)
        failed = execute(runs)
    groups, chosen = finish(screen(quiet=True), folder, runs, failed, options)
    best = {one.group.runs[0].directory for one in chosen}
    first = {run.directory: group.runs[0].directory for group in groups for run in group.runs}

    def known(run: Run) -> Record:
        values = flat(run.config)
        return {**{key: values.get(key) for key in options.keys}, "chosen": first[run.directory] in best}

    selected = bool(options.keys and chosen)
    compared = grouped([run for one in chosen for run in one.group.runs]) if selected else groups
    lines = compared_lines(compared, conditions(compared, choosing.conditions(options.keys, options.over), selected))
    words = tuple(line for line in lines if isinstance(line, str))
    notes = (*about, *choosing.describe_choices(chosen), *describe_numbers(groups, chosen))
    failures = tuple(lost(runs, failed, options.keys))
    table, shown, each = table_of(groups, known), figures_of(compared), clients_of(groups)
    return Sweep(table, words, notes, shown, each, folder, options.keys, failures, tuple(chosen))


def write_document(file: Path, document: Document) -> None:
    """Write an experiment as TOML."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, lambda opened: opened.write(dumps(document).encode()))


def _named(experiment: "str | Path | Document | Config") -> tuple[str, Document]:
    if isinstance(experiment, Config):
        return experiment.data.label, experiment.plain()
    if isinstance(experiment, Mapping):
        data = experiment.get("data", {})
        name = data.get("name") or Path(str(data.get("path", "data"))).stem if isinstance(data, Mapping) else "data"
        return str(name), dict(experiment)
    return Path(experiment).stem, {}


def _values(key: str, values: Sequence[object] | str) -> str:
    """Values of the grid in the form of the command.

    Raises:
        UserError: they are no list.
    """
    if not isinstance(values, Iterable):
        raise UserError(f"grid[{key!r}] = {values!r}: one value. Give a list of values to try.", code="user.value")
    return values if isinstance(values, str) else ",".join(map(_value, values))


def _value(value: object) -> str:
    """A value as TOML text.

    Raises:
        UserError: TOML has no such type.
    """
    try:
        return inline(list(value) if isinstance(value, tuple) else value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{value!r} is of a type that no setting has.", code="user.value") from error
