"""What several benchmarks use: a run up to its last round, clocks, cells of tables, and rows that outlive a stop."""

import argparse
import csv
import resource
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

import fedweave
from fedweave.experiment.build import Built, build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import RoundResult, train
from fedweave.reports.paired import interval

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments"
MANY_ROUNDS = 1_000_000  # for training that the benchmark stops


def last_round(document: Mapping[str, Any], rounds: int, eval_every: int = 0) -> tuple[Built, RoundResult]:
    """Train an experiment to its end. eval_every: 0 evaluates only after the last round."""
    built = build(resolve(dict(document)))
    *_, last = train(built.algorithm, built.fed, rounds, eval_every=eval_every)
    return built, last


def durations(steps: Iterable[object], clock: Callable[[], float] = time.process_time) -> Iterator[float]:
    """The seconds that each step takes."""
    began = clock()
    for _ in steps:
        now = clock()
        yield now - began
        began = now


def in_turns(sides: Mapping[str, Callable[[], list[float]]], turns: int) -> dict[str, list[float]]:
    """{side: seconds of all its rounds but each turn's first}. The sides take turns, so that a change of the machine's
    speed affects them all."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(turns):
        for name, run in sides.items():
            times[name] += run()[1:]
    return times


def peak_memory() -> float:
    """The largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def median_quantiles(seconds: Sequence[float], digits: int = 4) -> str:
    """ "0.0258 (0.0223 to 0.0281)": the median and the 10 % and 90 % quantiles."""
    low, high = np.quantile(seconds, [0.1, 0.9])
    return f"{median(seconds):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def mean_deviation(values: Iterable[float], digits: int = 3) -> str:
    """ "0.887 ± 0.004": the mean and the standard deviation; the mean of a single value."""
    numbers = list(values)
    mean = f"{fmean(numbers):.{digits}f}"
    return f"{mean} ± {stdev(numbers):.{digits}f}" if len(numbers) > 1 else mean


def mean_interval(differences: Sequence[float], form: str = "+.3f") -> str:
    """ "+0.012 (+0.004 to +0.020)": the mean and its 95 % interval (Student's t); the mean of a single value."""
    low, high = interval(differences)
    mean = format(fmean(differences), form)
    return mean if low is None else f"{mean} ({low:{form}} to {high:{form}})"


def mean_half_width(values: Sequence[float], form: str = "+.3f") -> str:
    """ "+0.012 ± 0.008": the mean and half of its 95 % interval (Student's t); the mean of a single value."""
    low, high = interval(values)
    mean = format(fmean(values), form)
    return mean if low is None or high is None else f"{mean} ± {(high - low) / 2:{form.lstrip('+')}}"


def commit() -> str:
    """The commit of the checkout that fedweave is imported from, with a + where the package differs from it; "" outside
    of a checkout."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(fedweave.__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    is_changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
    return git("rev-parse", "--short=8", "HEAD") + ("+" if is_changed else "")


def parser_of_rows(about: str | None, sets: Iterable[str], rows: str, seeds: int = 3) -> argparse.ArgumentParser:
    """The options --seeds, --sets and --rows of a benchmark that keeps its rows in a file.

    about: its description. sets: their names. rows, seeds: the defaults.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--sets", nargs="+", choices=[*sets], default=[*sets])
    parser.add_argument("--rows", type=Path, default=Path(rows))
    return parser


class SavedRows:
    """Rows of a CSV file, {key: numbers}. A row is written as soon as it is measured, so that an interrupted benchmark
    continues where it stopped.

    keys, values: the names of the columns.
    """

    def __init__(self, path: Path, keys: Sequence[str], values: Sequence[str]) -> None:
        self._path, self._columns = path, (*keys, *values)
        self.rows: dict[tuple[str, ...], list[float]] = {}
        if path.exists():
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    self.rows[tuple(row[name] for name in keys)] = [float(row[name]) for name in values]

    def add(self, key: tuple[str, ...], values: Sequence[float]) -> None:
        """Write a row."""
        with self._path.open("a", newline="") as file:
            writer = csv.writer(file)
            if file.tell() == 0:
                writer.writerow(self._columns)
            writer.writerow([*key, *values])
        self.rows[key] = list(values)

    def measure(self, key: tuple[str, ...], values: Callable[[], Sequence[float]]) -> None:
        """Measure and write a row, unless the file has it."""
        if key not in self.rows:
            self.add(key, values())

    def by_seed(self, *key: str) -> dict[str, list[float]]:
        """{seed: numbers} of the rows whose key is this one and a seed."""
        return {row[-1]: values for row, values in self.rows.items() if row[:-1] == key}
