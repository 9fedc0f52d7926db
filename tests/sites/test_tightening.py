"""Which of two policies' rules hold while a run is under way."""

from dataclasses import fields

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.sites.flare import policy_changes
from fedweave.sites.flare.policy_changes import rule_changes, stricter
from fedweave.sites.flare.sitefile import Rules


def test_every_rule_says_how_two_of_it_hold_together() -> None:
    judged_again = {"algorithms", "parts", "files", "members", "lost", "releases"}
    assert {own.name for own in fields(Rules)} == judged_again | policy_changes._STRICTER.keys()


def test_rules_that_hold_together_by_hand() -> None:
    before = Rules(deny=("egos",), unbounded=("own", "n"), mixup={"egos": 4}, epsilon=None, calls={"train": 5})
    now = Rules(deny=("n",), unbounded=("own/accuracy",), mixup={"egos": 2, "h": 3}, epsilon=2.0, calls={"train": 9})
    both = stricter(before, now)
    assert both.deny == ("egos", "n")
    assert both.unbounded == ("own/accuracy",)
    assert both.mixup == {"egos": 4, "h": 3}
    assert (both.epsilon, both.calls) == (2.0, {"train": 5})
    tightened, loosened = rule_changes(before, now)
    assert tightened == ["deny", "mixup", "epsilon", "unbounded"]
    assert loosened == ["deny", "mixup", "calls"]
