"""What is read of a finished run for a cell."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.algorithms import ALGORITHMS
from fedweave.core.algorithm import capabilities
from fedweave.core.records import Record
from fedweave.experiment.config import Document
from fedweave.experiment.runs.files import LEDGER, METRICS, SUMMARY, read_summary, read_table
from fedweave.metrics.measured import GLOBAL
from fedweave.papers.paper import Quantity
from fedweave.report.reading import read_run

# the names in a ledger of the steps that only evaluate; those of a preset are FedAvg's
EVALUATION = frozenset(
    f"{kind.__name__}.{step}"
    for kind in ALGORITHMS.values()
    if isinstance(kind, type)
    for step in capabilities(kind).evaluation
)


class Duration(NamedTuple):
    """`seconds` that the steps of all clients took together, one after the other in one process, and the `exchanges`
    between server and clients: calls of a step on all of them, each a message down and one up."""

    seconds: float
    exchanges: int

    def delayed(self, delay: float) -> float:
        """Seconds with `delay` seconds more per exchange, as if all clients' messages travelled at once."""
        return self.seconds + delay * self.exchanges


def duration(ledger: pa.Table, until: int | None = None) -> Duration:
    """Of the training rounds 1, …, `until` (None: all) in `ledger` (`core.ledger.SCHEMA`); evaluation is not counted,
    nor what the server computes between the calls."""
    last = pc.max(ledger["round"]).as_py() if until is None else until
    rounds, steps = ledger["round"], ledger["step"].cast(pa.string())
    training = pc.invert(pc.is_in(steps, pa.array(sorted(EVALUATION))))
    counted = pc.and_(training, pc.and_(pc.greater(rounds, 0), pc.less_equal(rounds, last or 0)))
    calls = ledger.filter(counted).group_by(["round", "call"]).aggregate([("seconds", "sum")])
    return Duration(pc.sum(calls["seconds_sum"]).as_py() or 0.0, len(calls))


MB = 2**20  # bytes; FedEgo's Table 9 counts so: 734,208 floats · 5 clients · 200 rounds are its 2,801 "MB"
NOT_REACHED = "not reached"


def accuracy(split: str, best: bool = False) -> Quantity:
    """Accuracy, which is micro-F1, on the "local" or "global" test, 0..1; with `best` that of the best round, too."""
    highest, name = partial(best_on_test, split) if best else None, f"{split}/accuracy"
    return Quantity(
        "F1", lambda run: summary(run)["metrics"].get(name), best=highest, curve=lambda run: evaluated(name, run)
    )


def mean_accuracy() -> Quantity:
    """Mean over the clients of the final model's test accuracy, in per cent, and that of the best round."""

    def value(run: Path) -> float | None:
        found = accuracy("local").read(run)
        return None if found is None else 100 * found

    return Quantity("%", value, digits=1, best=lambda run: 100 * best_on_test("local", run))


def client_accuracy(client: int) -> Quantity:
    """The same of one client alone, by its place among the clients' sorted names."""

    def values(run: Path) -> list[float]:
        table = _test_accuracy(run, "local")
        names = sorted(set(table["client"].to_pylist()))
        own = table.filter(pc.equal(table["client"], names[client])).sort_by("round")
        return [100 * value for value in own["value"].to_pylist()]

    return Quantity("%", lambda run: values(run)[-1], digits=1, best=lambda run: max(values(run)))


def best_on_test(split: str, run: Path) -> float:
    """The highest accuracy on the "local" (mean over clients) or "global" test among the evaluated rounds: a maximum
    over the test set, comparable with papers that print such, and nothing to choose by."""
    means = _test_accuracy(run, split).group_by("round").aggregate([("value", "mean")])
    return float(pc.max(means["value_mean"]).as_py())


def _test_accuracy(run: Path, split: str) -> pa.Table:
    """The rows of each evaluation's test accuracy: of every client, or the "global" one."""
    table = read_table(run, METRICS)
    table = table.filter((pc.field("metric") == "accuracy") & (pc.field("split") == "test"))
    outside = pc.field("client") == GLOBAL
    return table.filter(outside if split == GLOBAL else ~outside)


def curve(run: Path) -> dict[int, float]:
    """{round: mean over the clients of the test accuracy in per cent}, of the rounds that were evaluated."""
    found = read_run(run).curve("accuracy", "test", False)
    return {number: round(100 * value, 9) for number, value in found.items()}  # 100 * 0.57 < 57


def accuracy_reached(wanted: float) -> Quantity:
    """The first `curve` value of at least `wanted` per cent."""

    def value(run: Path) -> float | None:
        first = _reached(run, wanted)
        return None if first is None else curve(run)[first]

    return Quantity("%", value, digits=1, absent=NOT_REACHED)


def seconds(delay: float = 0.0) -> Quantity:
    """Time of training, with `delay` seconds per exchange (see `duration`)."""
    return Quantity("s", lambda run: _duration(run, None, delay), digits=1)


def seconds_to(wanted: float, delay: float = 0.0) -> Quantity:
    """The same until the first evaluation that finds at least `wanted` per cent."""

    def value(run: Path) -> float | None:
        first = _reached(run, wanted)
        return None if first is None else _duration(run, first, delay)

    return Quantity("s", value, digits=1, absent=NOT_REACHED)


def saving(delay: float = 0.0) -> Quantity:
    """By how much less time than its baseline the run trained, in per cent of the baseline's."""

    def value(run: Path, baseline: Path) -> float:
        return 100 * (1 - _duration(run, None, delay) / _duration(baseline, None, delay))

    return Quantity("%", value, digits=1)


def minutes() -> Quantity:
    """Time that the whole run took on the machine at hand, with evaluation."""
    return Quantity("min", lambda run: summary(run)["seconds"] / 60, digits=3)


def megabytes(keys: tuple[str, ...], expected: Callable[[Document], float] | None = None, way: str = "") -> Quantity:
    """What training sent under `keys` (the first part of a key's path), "up", "down" or both over all clients and
    rounds, in 2^20 bytes; evaluation and the framing of messages are not counted."""
    return Quantity("MB", lambda run: sent(run, keys, way) / MB, expected, digits=1)


def summarised(name: str, unit: str, digits: int = 4, earlier: str = "") -> Quantity:
    """An entry `name` of the summary's metrics (`rounds.RoundResult`), which older runs have as `earlier`."""

    def value(run: Path) -> float | None:
        found = summary(run)["metrics"]
        result: float | None = found.get(name, found.get(earlier))
        return result

    return Quantity(unit, value, digits=digits, curve=lambda run: evaluated(name, run) or evaluated(earlier, run))


def evaluated(name: str, run: Path) -> dict[int, float]:
    """{round: value} of an entry of the summary's metrics in the rounds that were evaluated: of all test examples
    together ("global/…"), the mean over clients ("local/…"), or fairness between clients ("fairness/…")."""
    split, _, metric = name.partition("/")
    named, outside = pc.field("metric"), pc.field("client") == GLOBAL
    of_test = (named == metric) & (pc.field("split") == "test")
    chosen = {GLOBAL: of_test & outside, "local": of_test & ~outside}.get(split, (named == name) & outside)
    means = read_table(run, METRICS).filter(chosen).group_by("round").aggregate([("value", "mean")])
    return dict(zip(means["round"].to_pylist(), means["value_mean"].to_pylist(), strict=True))


def sent(run: Path, keys: tuple[str, ...], way: str = "") -> int:
    """Bytes that training sent under `keys`; `way` is "up", "down", or both."""
    plain = pa.schema([(name, pa.string()) for name in ("step", "key", "direction")] + [("bytes", pa.int64())])
    ledger = read_table(run, LEDGER).select(plain.names).cast(plain)
    sums = ledger.group_by(["step", "key", "direction"]).aggregate([("bytes", "sum")]).to_pylist()
    counted = [row for row in sums if row["step"] not in EVALUATION and way in ("", row["direction"])]
    return sum(row["bytes_sum"] for row in counted if row["key"].split("/")[0] in keys)


def _reached(run: Path, wanted: float) -> int | None:
    return next((number for number, value in curve(run).items() if value >= wanted), None)


def _duration(run: Path, until: int | None, delay: float) -> float:
    return duration(read_table(run, LEDGER), until).delayed(delay)


def summary(run: Path) -> Record:
    """What a finished run's summary.json says.

    Raises:
        FedweaveError: it is damaged.
    """
    return read_summary(run / SUMMARY)
