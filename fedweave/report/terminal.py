"""What the command line shows: a run while it goes on, its result, its ledger, and the plug-ins there are."""

import dataclasses
import inspect
import signal
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedweave.config import Config, Parameter

# Where the output is not a terminal:
LINES = 20  # progress lines of a run
WIDTH = 160  # of tables


def screen(quiet: bool = False) -> Console:
    """Where results go: wide enough for every table when it is not a terminal."""
    console = Console(quiet=quiet)
    return console if console.is_terminal else Console(quiet=quiet, width=WIDTH)


class Terminal:
    """Shows a run on `console`: a bar on a terminal, plain lines elsewhere (see `runs.Watch`)."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._rounds = self._done = 0
        self._seconds = 0.0

    def begin(self, config: Config, built: Any, directory: Path, done: int) -> None:
        """The header, the clients, and where training starts."""
        from fedweave.partition.statistics import statistics, table, totals

        self._rounds, self._done = config.general.rounds, done
        engine = config.engine.plain()
        parts = [
            f"[bold]{built.data.name}[/] ({built.data.nodes:,} nodes)",
            f"{len(built.fed.clients):,} clients by {config.partition.name}",
            f"[bold]{config.algorithm.name}[/]",
            config.model.name,
            f"{engine['name']} ({engine['mode']}, {engine['dtype']})",
            f"seed {config.general.seed}",
        ]
        self._console.print(" · ".join(parts), highlight=False, soft_wrap=True)
        cut = built.data, built.partition
        self._console.print(table(statistics(*cut), totals(*cut)))
        if done:
            self._console.print(f"continuing after round {done} of {self._rounds}", highlight=False)
        if self._console.is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn())
            self._bar = Progress(TextColumn("rounds"), *columns, console=self._console)
            self._task = self._bar.add_task("rounds", total=self._rounds, completed=done, note="")
            self._bar.start()

    def step(self, reached: Any) -> None:
        """One more round."""
        note = f"{reached.seconds / reached.round:.3g} s/round"
        for name in ("global/accuracy", "local/accuracy"):
            if name in reached.summary:
                note += f"  {name} {reached.summary[name]:.4f}"
        if self._bar is not None:
            self._bar.update(self._task, completed=reached.round, note=note)
        elif reached.round == self._rounds or reached.round % max(1, self._rounds // LINES) == 0:
            self._console.print(f"round {reached.round}/{self._rounds}  {note}", highlight=False, soft_wrap=True)

    def stopping(self, number: int) -> None:
        """Say what a first Ctrl-C does."""
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self._console.print(f"{name}: finishing this round and saving; once more to stop at once", highlight=False)

    def end(self) -> None:
        """Leave the bar."""
        if self._bar is not None:
            self._bar.stop()


def show_result(console: Console, summary: Mapping[str, Any], directory: Path) -> None:
    """The final model on the test split, what it cost, and where the files are."""
    metrics = summary["metrics"]
    names = dict.fromkeys(key.partition("/")[2] for key in metrics if key.startswith(("global/", "local/")))
    table = Table("", "global", "local", title="test split, final model", title_justify="left")
    for name in names:
        table.add_row(name, _number(metrics.get(f"global/{name}")), _number(metrics.get(f"local/{name}")))
    console.print(table)
    fairness = {key.partition("/")[2]: value for key, value in metrics.items() if key.startswith("fairness/")}
    if fairness:
        table = Table("fairness", "", title_justify="left")
        for name, value in fairness.items():
            table.add_row(name, _number(value))
        console.print(table)
    up, down = decimal(summary["bytes_up"]), decimal(summary["bytes_down"])
    cost = f"{summary['rounds']} rounds in {summary['seconds']:.1f} s ({summary['seconds_per_round']:.3g} s each)"
    console.print(
        f"{cost}, {summary['peak_rss_mb']:.0f} MB at peak; clients sent {up}, received {down}", highlight=False
    )
    console.print(f"files: {directory}", highlight=False, soft_wrap=True, markup=False)


def show_ledger(console: Console, ledger: Any) -> None:
    """What left whom, from the ledger's pyarrow table: one row per step, direction, key and mechanism."""
    groups = ["direction", "step", "key", "shape", "mechanism", "reveals"]
    plain = ledger.select([*groups, "client", "bytes"])
    plain = plain.cast(_decoded(plain.schema))
    sums = plain.group_by(groups).aggregate([("client", "count_distinct"), ("bytes", "count"), ("bytes", "sum")])
    order = [("direction", "descending"), ("bytes_sum", "descending"), ("step", "ascending"), ("key", "ascending")]
    table = Table("way", "step", "key", "shape", "mechanism", "what the receiver learns", box=SIMPLE_HEAD)
    for heading in ("clients", "messages", "bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    totals = {"up": 0, "down": 0}
    for row in sums.sort_by(order).to_pylist():
        totals[row["direction"]] += row["bytes_sum"]
        counts = (f"{row['client_count_distinct']:,}", f"{row['bytes_count']:,}", decimal(row["bytes_sum"]))
        table.add_row(*(row[name] for name in groups), *counts)
    console.print(table)
    console.print(
        f"in all: {decimal(totals['up'])} left clients, {decimal(totals['down'])} reached them", highlight=False
    )


def show_list(console: Console, kinds: Iterable[tuple[str, str, Mapping[str, Parameter]]], verbose: bool) -> None:
    """Name and one line for each plug-in; with `verbose` its parameters, their types and defaults."""
    rows = list(kinds)
    width = max(len(name) for name, _, _ in rows)
    for name, about, parameters in rows:
        line = f"{name:<{width}}  {about}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
        for key, parameter in parameters.items() if verbose else ():
            missing = parameter.default is dataclasses.MISSING
            default = "required" if missing else f"= {_default(parameter, parameter.default)}"
            line = f"{'':<{width}}    {key}: {_type_name(parameter)} {default}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def one_line(kind: type) -> str:
    """The first sentence of a plug-in's docstring."""
    paragraph = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
    return paragraph.partition(". ")[0]


def _decoded(schema: Any) -> Any:
    """`schema` with dictionary-encoded columns as plain ones."""
    import pyarrow as pa

    plain = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
    return pa.schema(plain)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _type_name(parameter: Parameter) -> str:
    if parameter.family is not None:
        return f"{'list of ' if parameter.many else ''}{' | '.join(parameter.family)}"
    return _hint_name(parameter.hint)


def _hint_name(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return _hint_name(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return " | ".join(repr(option) for option in get_args(hint))
    if get_origin(hint) is types.UnionType:
        return " | ".join(_hint_name(option) for option in get_args(hint) if option is not type(None))
    return inspect.formatannotation(hint)


def _default(parameter: Parameter, value: Any) -> str:
    """A default as it would stand in the configuration."""
    if value is None:
        return "(none)"
    if parameter.family is not None:
        values = value if isinstance(value, tuple) else (value,)
        names = [name for one in values for name, kind in parameter.family.items() if type(one) is kind]
        return f"[{', '.join(names)}]" if parameter.many else names[0]
    return repr(list(value) if isinstance(value, tuple) else value)
