"""What a site remembers of a run, and the fingerprint of the messages that made it."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.federation import Sends, StepInfo
from fedweave.core.mechanism import SecureSum
from fedweave.core.tree import Tree
from fedweave.sites.flare.memory import Memory

PLAIN = StepInfo({})
ALL, SOME = (StepInfo.of({"x": Sends("a sum", SecureSum(everyone=everyone))}) for everyone in (True, False))
ONE, OTHER = {"w": torch.ones(2)}, {"w": torch.zeros(2)}


def call(memory: Memory, message: Tree, info: StepInfo = PLAIN, changes: bool = True) -> str:
    """One call, which leaves the message in the state or nothing; what it was made of."""
    state, message_digest = memory.state_for(info), memory.message_digest("step", message, info)
    memory.keep(state | ({"w": message["w"].clone()} if changes else {}), message_digest, info)
    return message_digest


def chained(folder: Path, lasting: bool = True) -> Memory:
    memory = Memory(folder, lasting)
    memory.chained = True
    return memory


def test_a_term_depends_on_every_message_that_changed_the_state(tmp_path: Path) -> None:
    """And on no other, such as one that a party alone was told and kept nothing of."""
    first, second, third = (chained(tmp_path / name) for name in "abc")
    assert call(first, ONE) == call(second, ONE) != call(third, OTHER)
    call(first, OTHER, changes=False)
    assert call(first, ONE, ALL) == call(second, ONE, ALL) != call(third, ONE, ALL)


def test_a_step_of_labeled_sites_that_is_told_nothing_leaves_others_behind_in_nothing(tmp_path: Path) -> None:
    """What another step is told nothing in, or such a step is told something in, all have to hear."""
    first, second, third = (chained(tmp_path / name) for name in "abc")
    for memory in (first, second, third):
        memory.labelled = frozenset({"draw"})
        call(memory, ONE)
    drawn = first.message_digest("draw", {}, PLAIN)
    first.keep({"w": torch.ones(2), "key": torch.ones(1)}, drawn, PLAIN)
    third.keep({"w": torch.zeros(2)}, third.message_digest("train", {}, PLAIN), PLAIN)
    assert call(first, OTHER, ALL) == call(second, OTHER, ALL) != call(third, OTHER, ALL)
    assert first.message_digest("draw", ONE, PLAIN) != second.message_digest("draw", {}, PLAIN)


def test_it_outlasts_the_process_and_goes_back_with_the_state(tmp_path: Path) -> None:
    memory = chained(tmp_path)
    memory.enter(1, -1)
    call(memory, ONE)
    memory.enter(2, -1)
    again = chained(tmp_path)
    assert call(memory, OTHER) == call(again, OTHER)
    back = chained(tmp_path)
    back.go_back(1)
    assert torch.equal(back.state_for(PLAIN)["w"], ONE["w"])
    whole = chained(tmp_path / "other")
    call(whole, ONE)
    assert call(back, OTHER) == call(whole, OTHER)


def test_a_prediction_changes_nothing_that_lasts(tmp_path: Path) -> None:
    call(chained(tmp_path), ONE)
    asked = chained(tmp_path, lasting=False)
    call(asked, OTHER)
    assert torch.equal(asked.state_for(PLAIN)["w"], OTHER["w"])
    assert torch.equal(chained(tmp_path).state_for(PLAIN)["w"], ONE["w"])
    assert call(chained(tmp_path), ONE) != call(chained(tmp_path / "new"), ONE)


def test_where_clients_may_be_missing_nothing_is_remembered_for_a_term(tmp_path: Path) -> None:
    memory = Memory(tmp_path, persistent=True)
    memory.enter(1, -1)
    before = call(memory, ONE, SOME)
    call(memory, OTHER)
    assert memory.state_for(SOME) == {}
    assert call(memory, ONE, SOME) == before
    assert not [*tmp_path.glob("told*")]
