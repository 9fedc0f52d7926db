"""Which of two policies' rules hold while a run is under way."""

from dataclasses import fields
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.sites.flare.policy_changes import rule_changes, stricter
from fedweave.sites.flare.sitefile import Rules, Way, way_of
from tests.refusals import check_facts

ONE, TWO = ("a",), ("a", "b")
# {rule: (looser, stricter)}; of `lost` neither is.
ENDS: dict[str, tuple[Any, Any]] = {
    "algorithms": ((), ("fedavg",)),
    "parts": (TWO, ONE),
    "files": (("x.py",), ()),
    "releases": ("same-protocol", "same-files"),
    "deny": (ONE, TWO),
    "mixup": ({}, {"h": 4}),
    "noise": ({"h": 1.0}, {"h": 2.0}),
    "secure_sum": ((), ONE),
    "partial_sums": (True, False),
    "epsilon": (None, 2.0),
    "delta": (1e-5, 1e-6),
    "unbounded": (ONE, ("a/b",)),
    "repeats": (True, False),
    "bytes": (9, 8),
    "calls": ({"train": 5}, {"train": 4}),
    "min_nodes": (10, 11),
    "min_sites": (1, 3),
    "members": ({}, {"a": ":".join(["AB"] * 32)}),
    "min_summed": (2, 3),
    "min_difference": (2, 3),
    "exchange": (True, 5),
    "max_ids": (None, 100),
    "round_scores": (1, 10),
    "measures": (("loss", "auc"), ("auc",)),
    "score_epsilon": (None, 1.0),
    "true_labels": (True, False),
    "evaluations": (None, 0),
    "max_change": (2.0, 1.0),
}


def test_every_rule_declares_which_way_is_stricter() -> None:
    assert ENDS.keys() | {"lost"} == {rule.name for rule in fields(Rules)}
    for rule in fields(Rules):
        assert (way_of(rule.name) is Way.NEITHER) == (rule.name == "lost")


@pytest.mark.parametrize("rule", ENDS)
def test_a_change_of_any_rule_is_named_by_its_way(rule: str) -> None:
    loose, strict = (Rules(**{rule: value}) for value in ENDS[rule])
    for before, now, ways in ((loose, strict, (True, False)), (strict, loose, (False, True))):
        (change,) = rule_changes(before, now)
        assert (change.name, change.tightened, change.loosened) == (rule, *ways)
        check_facts(str(change), change.before, change.after)
        assert change.before != change.after
    assert rule_changes(strict, strict) == []


def test_of_some_changes_no_way_is_stricter_or_both_are() -> None:
    (lost,) = rule_changes(Rules(), Rules(lost=(f"1:{'a' * 32}",)))
    assert (lost.tightened, lost.loosened) == (False, False)
    (other,) = rule_changes(Rules(algorithms=("fedavg",)), Rules(algorithms=("fedgcn",)))
    assert (other.tightened, other.loosened) == (True, True)
    assert rule_changes(Rules(deny=("a", "b")), Rules(deny=("b", "a"))) == []


def test_rules_that_hold_together_by_hand() -> None:
    before = Rules(deny=("egos",), unbounded=("own", "n"), mixup={"egos": 4}, epsilon=None, calls={"train": 5})
    now = Rules(deny=("n",), unbounded=("own/accuracy",), mixup={"egos": 2, "h": 3}, epsilon=2.0, calls={"train": 9})
    both = stricter(before, now)
    assert both.deny == ("egos", "n")
    assert both.unbounded == ("own/accuracy",)
    assert both.mixup == {"egos": 4, "h": 3}
    assert (both.epsilon, both.calls) == (2.0, {"train": 5})
    changes = {change.name: (change.tightened, change.loosened) for change in rule_changes(before, now)}
    assert changes == {
        "deny": (True, True),
        "mixup": (True, True),
        "epsilon": (True, False),
        "unbounded": (True, False),
        "calls": (False, True),
    }
