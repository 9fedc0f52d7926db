"""Two runs on the same test examples, worked by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from scipy import stats

from fedweave.reports.compare import example_differences


def group(label: str, *tables: dict[str, list[Any]] | None) -> Any:
    runs = [
        SimpleNamespace(config={"seed": seed}, predictions=None if own is None else pa.table(own))
        for seed, own in enumerate(tables)
    ]
    return SimpleNamespace(label=label, runs=runs)


def predicted(p: list[float], true: list[str | None], **more: list[Any]) -> dict[str, list[Any]]:
    """Of one client's nodes 0, 1, …, classes "no" and "yes"."""
    own = {
        "client": ["bank"] * len(p), "node": list(range(len(p))), "split": ["test"] * len(p), "true": true,
        "predicted": ["yes" if share > 0.5 else "no" for share in p], "p_no": [1 - share for share in p], "p_yes": p,
    }  # fmt: skip
    return own | more


def test_differences_are_over_the_examples_that_both_predict() -> None:
    """Four test nodes with a class: alone 2 are right and together 3, node 1 and 2 turn from wrong to right, node 3
    from right to wrong."""
    true = ["yes", "yes", "no", "no", "no", None]
    split = ["test", "test", "test", "test", "train", "test"]
    alone = predicted([0.8, 0.2, 0.7, 0.4, 0.9, 0.5], true, split=split)
    joint = predicted([0.9, 0.6, 0.2, 0.6, 0.9, 0.5], true, split=split)
    table = example_differences([group("alone", alone), group("joint", joint)])
    [row] = table.rows
    told = dict(zip(table.head, row, strict=True))
    assert [cell.text for cell in row[:5]] == ["joint", "bank", "4", "0.500", "0.750"]
    right = [0, 1, 1, -1]
    assert float(told["difference"].exact) == pytest.approx(0.25)
    low, high = stats.ttest_1samp(right, 0).confidence_interval(0.95)
    assert told["difference"].note == f"\N{MINUS SIGN}{-low:.4f} to +{high:.4f}"
    losses = [math.log(0.8 / 0.9), math.log(0.2 / 0.6), math.log(0.3 / 0.8), math.log(0.6 / 0.4)]
    assert float(told["log loss, difference"].exact) == pytest.approx(sum(losses) / 4)


def test_examples_of_several_seeds_count_once() -> None:
    """Node 0 is wrong, then right in two seeds of one run, and always right in the other: 0.5 of one example."""
    wrong, right = predicted([0.2, 0.9], ["yes", "yes"]), predicted([0.9, 0.9], ["yes", "yes"])
    [row] = example_differences([group("alone", wrong, right), group("joint", right, right)]).rows
    assert [cell.text for cell in row[2:5]] == ["2", "0.750", "1.000"]


def test_without_predictions_there_is_nothing_to_pair() -> None:
    own = predicted([0.2], ["yes"])
    assert not example_differences([group("alone", None), group("joint", own)]).rows
    assert not example_differences([group("alone", own), group("joint", predicted([0.2], ["yes"], split=["val"]))]).rows
