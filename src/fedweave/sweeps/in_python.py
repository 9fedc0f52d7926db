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
from fedweave.experiment.runs.reading import Run, group_runs
from fedweave.python.comparing import Results, clients_of, figures_of, rows_of, table_of
from fedweave.reports.conditions import alone_first, conditions
from fedweave.reports.terminal import screen
from fedweave.sweeps import choosing, figures, plan
from fedweave.sweeps.comparison import rows_by_condition
from fedweave.sweeps.latex import latex
from fedweave.sweeps.results import (
    SweepOptions,
    comparison_lines,
    describe_numbers,
    failure_sentences,
    finish,
)
from fedweave.sweeps.runs import PlannedRun
from fedweave.sweeps.scheduler import run_unfinished
from fedweave.sweeps.search import check_sampler, run_search


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
    choices: tuple[choosing.ChosenSetting, ...] = ()

    @property
    def chosen(self) -> pa.Table:
        """The runs with the setting chosen for their algorithm."""
        return self.runs.filter(self.runs["chosen"])

    @property
    def conditions(self) -> pa.Table:
        """A row for each condition and algorithm: mean and deviation over seeds, in the round that is best on
        validation examples, rank, and the paired difference to the first algorithm with its 95 % interval."""
        return rows_of(rows_by_condition(self.choices))

    @property
    def latex(self) -> str:
        """The table for a paper, as --latex writes it; "" if no setting could be chosen."""
        return latex(self.choices) if self.choices else ""

    def save_figures(self, folder: str | Path) -> list[Path]:
        """Write curves and charts, with captions, as SVG, PDF and .tex, as --figures does; returns the files.

        Raises:
            UserError: matplotlib is not installed, or the folder cannot be written.
        """
        return figures.save_figures(self.choices, Path(folder).expanduser())


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
    # 1. The options in the form of the command.
    stem, document = name_and_document(experiment)
    folder = Path("sweeps") / stem if out is None else Path(out).expanduser()
    if isinstance(experiment, str | Path):
        file = Path(experiment).expanduser()
    else:
        file = folder / "experiment.toml"
        write_document(file, document)
    set_texts = setting_texts(settings)
    grid_texts = [f"{key}={_grid_values(key, values)}" for key, values in (grid or {}).items()]
    algorithm_names = algorithms if isinstance(algorithms, str) else ",".join(algorithms)
    seed_text = seeds if isinstance(seeds, str) else ",".join(map(str, seeds))
    whole_grid = plan.grid_of_options(file, set_texts, grid_texts)
    options = SweepOptions(plan.keys_of(whole_grid), tuple(over), csv=True, grid=whole_grid)
    plan.check_over(options.over, options.keys)

    # 2. The runs.
    console = screen(quiet=not progress)

    def execute(runs: Sequence[PlannedRun]) -> dict[str, str]:
        return run_unfinished(console, plan.up_to_date(runs, overwrite), jobs, announce=False)

    if search:
        check_sampler(sampler)
        runs, failed, plan_notes = run_search(
            file, folder, seed_text, algorithm_names, set_texts, grid_texts, options.over, search, sampler, execute
        )
    else:
        runs, plan_notes = plan.plan_runs(file, folder, seed_text, algorithm_names, set_texts, grid_texts)
        failed = execute(runs)

    # 3. The results.
    groups, choices = finish(screen(quiet=True), folder, runs, failed, options)
    chosen = {run.directory for choice in choices for run in choice.group.runs}

    def columns(run: Run) -> Record:
        values = flat(run.config)
        return {**{key: values.get(key) for key in options.keys}, "chosen": run.directory in chosen}

    selected = bool(options.keys and choices)
    chosen_runs = [run for choice in choices for run in choice.group.runs]
    compared = alone_first(group_runs(chosen_runs) if selected else groups)
    condition_keys = choosing.conditions(options.keys, options.over)
    lines = comparison_lines(compared, conditions(compared, condition_keys))
    return Sweep(
        table_of(groups, columns),
        tuple(line for line in lines if isinstance(line, str)),
        (*plan_notes, *choosing.describe_choices(choices), *describe_numbers(groups, choices)),
        figures_of(compared),
        clients_of(groups),
        folder,
        options.keys,
        tuple(failure_sentences(runs, failed, options.keys)),
        tuple(choices),
    )


def write_document(file: Path, document: Document) -> None:
    """Write an experiment as TOML."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, lambda opened: opened.write(dumps(document).encode()))


def setting_texts(settings: Mapping[str, object] | None) -> list[str]:
    """{"model.hidden": 32} as `--set` has it.

    Raises:
        UserError: TOML has no such type.
    """
    return [f"{key}={_as_toml(value)}" for key, value in (settings or {}).items()]


def name_and_document(experiment: "str | Path | Document | Config") -> tuple[str, Document]:
    """The experiment's name, by its file or its data; and the document, {} of a file."""
    if isinstance(experiment, Config):
        return experiment.data.label, experiment.plain()
    if not isinstance(experiment, Mapping):
        return Path(experiment).stem, {}
    data = experiment.get("data", {})
    if not isinstance(data, Mapping):
        return "data", dict(experiment)  # to be refused when it is read
    return str(data.get("name") or Path(str(data.get("path", "data"))).stem), dict(experiment)


def _grid_values(key: str, values: Sequence[object] | str) -> str:
    """Values of the grid in the form of the command.

    Raises:
        UserError: they are not a list.
    """
    if not isinstance(values, Iterable):
        raise UserError(f"grid[{key!r}] = {values!r}: one value. Give a list of values to try.", code="user.value")
    return values if isinstance(values, str) else ",".join(map(_as_toml, values))


def _as_toml(value: object) -> str:
    """A value as TOML text.

    Raises:
        UserError: TOML has no such type.
    """
    try:
        return inline(list(value) if isinstance(value, tuple) else value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{value!r} is of a type that no setting has.", code="user.value") from error
