"""The numbers that cells read from finished runs: accuracies, times and bytes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.algorithms import ALGORITHMS
from fedweave.core.algorithm import capabilities
from fedweave.core.types import Record
from fedweave.experiment.config import Document
from fedweave.experiment.runs.files import LEDGER, METRICS, SUMMARY, read_summary, read_table
from fedweave.experiment.runs.reading import means, read_run, values_of
from fedweave.metrics.measured import GLOBAL
from fedweave.papers.paper import Quantity

EVALUATION: set[str] = set()  # the steps in a ledger that only evaluate
for _kind in ALGORITHMS.values():
    if isinstance(_kind, type):  # a preset has FedAvg's names
        EVALUATION |= {f"{_kind.__name__}.{step}" for step in capabilities(_kind).evaluation}


class Duration(NamedTuple):
    """`seconds` that the steps of all clients took in one process, one after the other, and the number of `exchanges`.

    An exchange is a call of a step on all clients: each client gets a message and answers it.
    """

    seconds: float
    exchanges: int

    def delayed(self, delay: float) -> float:
        """Seconds with `delay` seconds more per exchange, as if all clients' messages traveled at once."""
        return self.seconds + delay * self.exchanges


def duration(ledger: pa.Table, last_round: int | None = None) -> Duration:
    """Of the training rounds 1, …, `last_round` (None: all) in `ledger` (`ledger_columns.SCHEMA`); evaluation is not
    counted, nor what the server computes between the calls."""
    rounds = ledger["round"]
    last = pc.max(rounds).as_py() if last_round is None else last_round
    evaluates = pc.is_in(ledger["step"].cast(pa.string()), pa.array(sorted(EVALUATION)))
    trains = pc.and_(pc.greater(rounds, 0), pc.less_equal(rounds, last or 0))
    training = ledger.filter(pc.and_(trains, pc.invert(evaluates)))
    calls = training.group_by(["round", "call"]).aggregate([("seconds", "sum")])
    return Duration(pc.sum(calls["seconds_sum"]).as_py() or 0.0, len(calls))


MB = 2**20  # bytes; FedEgo's Table 9 counts so: 734,208 floats · 5 clients · 200 rounds are its 2,801 "MB"
NOT_REACHED = "not reached"


def accuracy(split: str, best: bool = False) -> Quantity:
    """Accuracy, which is micro-F1, on the "local" or "global" test, 0..1; with `best` also the best round's
    accuracy."""
    return replace(summary_metric(f"{split}/accuracy", "F1"), best=partial(best_on_test, split) if best else None)


def mean_accuracy() -> Quantity:
    """Mean over the clients of the final model's test accuracy, in per cent, and also for the best round."""

    def value(run: Path) -> float | None:
        share = summary(run)["metrics"].get("local/accuracy")
        return None if share is None else 100 * share

    return Quantity("%", value, digits=1, best=lambda run: 100 * best_on_test("local", run))


def client_accuracy(client: int) -> Quantity:
    """The test accuracy of one client in per cent, by its place among the clients' sorted names."""

    def values(run: Path) -> list[float]:
        table = _test_accuracy(run, "local")
        names = sorted(set(table["client"].to_pylist()))
        rows = table.filter(pc.equal(table["client"], names[client])).sort_by("round")
        return [100 * value for value in rows["value"].to_pylist()]

    return Quantity("%", lambda run: values(run)[-1], digits=1, best=lambda run: max(values(run)))


def best_on_test(split: str, run: Path) -> float:
    """The highest accuracy on the "local" (mean over clients) or "global" test among the evaluated rounds.

    A maximum over the test set is comparable with papers that print such maxima; never choose by it.
    """
    return max(means(_test_accuracy(run, split)).values())


def _test_accuracy(run: Path, split: str) -> pa.Table:
    """The rows of each evaluation's test accuracy: of every client, or the "global" one."""
    return values_of(read_table(run, METRICS), "accuracy", "test", split == GLOBAL)


def curve(run: Path) -> dict[int, float]:
    """{round: mean over the clients of the test accuracy in per cent}, for the evaluated rounds."""
    by_round = read_run(run).curve("accuracy", "test", False)
    return {number: round(100 * value, 9) for number, value in by_round.items()}  # 100 * 0.57 < 57


def first_accuracy_of(percent: float) -> Quantity:
    """The first `curve` value of at least `percent`."""

    def value(run: Path) -> float | None:
        first = _first_round_of(run, percent)
        return None if first is None else curve(run)[first]

    return Quantity("%", value, digits=1, absent=NOT_REACHED)


def seconds(delay: float = 0.0) -> Quantity:
    """Time of training, with `delay` seconds per exchange (see `duration`)."""
    return Quantity("s", lambda run: _duration(run, None, delay), digits=1)


def seconds_to(percent: float, delay: float = 0.0) -> Quantity:
    """Time of training until the first evaluation with at least `percent`."""

    def value(run: Path) -> float | None:
        first = _first_round_of(run, percent)
        return None if first is None else _duration(run, first, delay)

    return Quantity("s", value, digits=1, absent=NOT_REACHED)


def saving(delay: float = 0.0) -> Quantity:
    """The training time that the run saved against its baseline, in per cent of the baseline's."""

    def value(run: Path, baseline: Path) -> float:
        return 100 * (1 - _duration(run, None, delay) / _duration(baseline, None, delay))

    return Quantity("%", value, digits=1)


def minutes() -> Quantity:
    """Time that the whole run took on the machine at hand, with evaluation."""
    return Quantity("min", lambda run: summary(run)["seconds"] / 60, digits=3)


def megabytes(keys: tuple[str, ...], expected: Callable[[Document], float] | None = None, way: str = "") -> Quantity:
    """What training sent under `keys` (the first component of a key), "up", "down" or both, in 2^20 bytes.

    It sums over all clients and rounds, without evaluation and the framing of messages.
    """
    return Quantity("MB", lambda run: bytes_sent(run, keys, way) / MB, expected, digits=1)


def summary_metric(name: str, unit: str, digits: int = 4) -> Quantity:
    """An entry `name` of the summary's metrics (`rounds.RoundResult`)."""

    def value(run: Path) -> float | None:
        number: float | None = summary(run)["metrics"].get(name)
        return number

    return Quantity(unit, value, digits=digits, curve=partial(metric_curve, name))


def metric_curve(name: str, run: Path) -> dict[int, float]:
    """{round: value} of an entry of the summary's metrics in the evaluated rounds.

    Entries are over all test examples together ("global/…"), means over clients ("local/…"), or fairness between
    clients ("fairness/…").
    """
    split, _, metric = name.partition("/")
    rows = read_table(run, METRICS)
    if split in (GLOBAL, "local"):
        return means(values_of(rows, metric, "test", split == GLOBAL))
    return means(rows.filter((pc.field("metric") == name) & (pc.field("client") == GLOBAL)))


def bytes_sent(run: Path, keys: tuple[str, ...], way: str = "") -> int:
    """Bytes that training sent under `keys`; `way` is "up", "down", or both."""
    names = ["step", "key", "direction"]
    plain = pa.schema([*((name, pa.string()) for name in names), ("bytes", pa.int64())])
    ledger = read_table(run, LEDGER).select(plain.names).cast(plain)
    total = 0
    for row in ledger.group_by(names).aggregate([("bytes", "sum")]).to_pylist():
        trains = row["step"] not in EVALUATION
        if trains and way in ("", row["direction"]) and row["key"].split("/")[0] in keys:
            total += row["bytes_sum"]
    return total


def _first_round_of(run: Path, percent: float) -> int | None:
    """The first evaluated round with an accuracy of at least `percent`."""
    return next((number for number, value in curve(run).items() if value >= percent), None)


def _duration(run: Path, last_round: int | None, delay: float) -> float:
    return duration(read_table(run, LEDGER), last_round).delayed(delay)


def summary(run: Path) -> Record:
    """The content of a finished run's summary.json.

    Raises:
        FedweaveError: it is damaged.
    """
    return read_summary(run / SUMMARY)
