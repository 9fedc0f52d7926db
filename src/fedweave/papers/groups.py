"""What is read of a run about two groups of people: of the fairest round (`metrics.best_rounds`) and of the last."""

import statistics
from pathlib import Path
from typing import Literal

import pyarrow.compute as pc

from fedweave.experiment.runs.files import METRICS, read_table
from fedweave.metrics.best_rounds import FAIREST
from fedweave.metrics.measured import GLOBAL
from fedweave.papers.paper import Quantity
from fedweave.papers.quantities import summary

When = Literal["fairest", "last"]


def score(name: str, when: When) -> Quantity:
    """Accuracy ("accuracy") or AUC ("auc") on the global test, in per cent."""
    return Quantity("%", lambda run: _percent(run, f"global/{name}", when), digits=2)


def gap(name: str, when: When) -> Quantity:
    """ΔSP ("sp"), ΔEO ("eo") or, with "_floor", what chance shows, on the global test, in per cent."""
    return Quantity("%", lambda run: _percent(run, f"groups/global/{name}", when), digits=2)


def median_score(name: str, when: When) -> Quantity:
    """Median over the clients of a score on their own test nodes, in per cent; clients where it is undefined are left
    out."""

    def value(run: Path) -> float | None:
        rows = read_table(run, METRICS)
        of_client = (pc.field("split") == "test") & (pc.field("metric") == name) & (pc.field("client") != GLOBAL)
        found = rows.filter(of_client & (pc.field("round") == round_of(run, when)))["value"].to_pylist()
        return 100 * statistics.median(found) if found else None

    return Quantity("%", value, digits=2, absent="undefined at every client")


def median_gap(name: str, when: When) -> Quantity:
    """The same of a gap."""
    read = f"groups/median/{name}"
    return Quantity("%", lambda run: _percent(run, read, when), digits=2, absent="undefined at every client")


def one_class(when: When) -> Quantity:
    """100 where the model predicts one class for the whole global test, so that its gaps are 0 and say nothing, else 0:
    over runs, the share of those that do."""

    def value(run: Path) -> float | None:
        classes = _percent(run, "global/classes_predicted", when)
        return None if classes is None else 100.0 * (classes == 100)

    return Quantity("% of runs", value, digits=0)


def gaps(when: When) -> Quantity:
    """ΔSP + ΔEO on the global test, in per cent."""

    def value(run: Path) -> float | None:
        sp, eo = (_percent(run, f"groups/global/{name}", when) for name in ("sp", "eo"))
        return None if sp is None or eo is None else sp + eo

    return Quantity("%", value, digits=2)


def tradeoff(name: str, when: When) -> Quantity:
    """A score / (ΔSP + ΔEO) on the global test: the ratio of their means over the runs."""
    return Quantity("", lambda run: _percent(run, f"global/{name}", when), digits=2, per=gaps(when).read)


def round_of(run: Path, when: When) -> int:
    """The number of that round."""
    found = summary(run)
    return int(found["metrics"][f"{FAIREST}/round"] if when == "fairest" else found["rounds"])


def _percent(run: Path, name: str, when: When) -> float | None:
    found = summary(run)["metrics"].get(f"{FAIREST}/{name}" if when == "fairest" else name)
    return None if found is None else 100 * found
