"""Numbers of a run about two groups of people: in the fairest round (`metrics.best_rounds`) and in the last."""

import statistics
from pathlib import Path
from typing import Literal

import pyarrow.compute as pc

from fedweave.experiment.runs.files import METRICS, read_table
from fedweave.experiment.runs.reading import values_of
from fedweave.metrics.best_rounds import FAIREST
from fedweave.papers.paper import Quantity
from fedweave.papers.quantities import summary

When = Literal["fairest", "last"]
UNDEFINED = "undefined at every client"


def percent(name: str, when: When) -> Quantity:
    """An entry of the summary's metrics, such as "global/accuracy" or "groups/global/sp", in per cent."""
    absent = UNDEFINED if name.startswith("groups/median/") else ""
    return Quantity("%", lambda run: _percent(run, name, when), digits=2, absent=absent)


def median_score(name: str, when: When) -> Quantity:
    """Median over the clients of a score on their own test nodes, in per cent, without clients where it is
    undefined."""

    def value(run: Path) -> float | None:
        record = summary(run)
        number = record["metrics"][f"{FAIREST}/round"] if when == "fairest" else record["rounds"]
        rows = values_of(read_table(run, METRICS), name, "test", pooled=False)
        scores = rows.filter(pc.field("round") == int(number))["value"].to_pylist()
        return 100 * statistics.median(scores) if scores else None

    return Quantity("%", value, digits=2, absent=UNDEFINED)


def one_class(when: When) -> Quantity:
    """100 where the model predicts one class for the whole global test, so that its gaps are 0 and mean nothing, else
    0.

    The mean over runs is the share of such runs.
    """

    def value(run: Path) -> float | None:
        classes = _percent(run, "global/classes_predicted", when)
        return None if classes is None else 100.0 * (classes == 100)

    return Quantity("% of runs", value, digits=0)


def gaps(when: When) -> Quantity:
    """ΔSP + ΔEO on the global test, in per cent."""

    def value(run: Path) -> float | None:
        sp = _percent(run, "groups/global/sp", when)
        eo = _percent(run, "groups/global/eo", when)
        return None if sp is None or eo is None else sp + eo

    return Quantity("%", value, digits=2)


def tradeoff(name: str, when: When) -> Quantity:
    """A score / (ΔSP + ΔEO) on the global test: the ratio of their means over the runs."""
    return Quantity("", lambda run: _percent(run, f"global/{name}", when), digits=2, per=gaps(when).read)


def _percent(run: Path, name: str, when: When) -> float | None:
    share = summary(run)["metrics"].get(f"{FAIREST}/{name}" if when == "fairest" else name)
    return None if share is None else 100 * share
