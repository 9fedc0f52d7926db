"""What is said where numbers are not finite: that training diverged, or which part computes such numbers."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.local import Local
from fedweave.algorithms.parts import CrossEntropy, Needs, Part
from fedweave.core.tree import Tree
from fedweave.errors import FedweaveError
from fedweave.experiment.rounds import train
from tests.contract.federations import federation, model
from tests.refusals import refusal

NAN = float("nan")


@dataclass(frozen=True)
class Unsound(Part):
    """Adds to the loss what is not a number, and has no gradient."""

    needs = Needs(reads=("features",))

    def penalty(self, w: Tree, received: Tree, given: Tree) -> Tensor:
        return torch.tensor(NAN)


@dataclass(frozen=True)
class Weighed(Part):
    """Weighs by a report that is not a number."""

    sends: ClassVar = {"quality": "how good the client is"}

    def report(self, ctx: Any) -> Tree:
        return {"quality": ctx.examples * NAN}

    def weigh(self, state: Tree, round: Any) -> Tensor:
        quality: Tensor = round.replies.stack("quality").double()
        return quality / quality.sum()


@dataclass(frozen=True)
class Remembered(Part):
    """Keeps a report that is not a number."""

    sends: ClassVar = {"quality": "how good the client is"}

    def init(self, fed: Any, w: Tree) -> Tree:
        return {"kept": torch.zeros(len(fed.clients))}

    def report(self, ctx: Any) -> Tree:
        return {"quality": ctx.examples * NAN}

    def update(self, state: Tree, round: Any) -> Tree:
        return {"kept": round.replies.stack("quality").float()}


@pytest.mark.parametrize("mode", ["vmap", "loop"])
def test_a_loss_that_is_no_number_is_training_that_diverged(mode: str) -> None:
    """Its gradient was 0, so that the weights stayed finite and the run ended well."""
    with refusal("diverged", "training diverged"):
        list(train(FedAvg(model(), parts=(CrossEntropy(), Unsound())), federation(mode=mode), 1))


def test_weights_of_finite_losses_stay_as_they_are() -> None:
    fed = federation()
    *_, last = train(Local(model()), fed, 1)
    assert all(value < 10 for value in last.of_clients("loss").values())


@pytest.mark.parametrize(("part", "key"), [(Weighed(), "quality"), (Remembered(), "kept")])
def test_a_part_whose_report_is_no_number_is_named_and_no_rate_is_blamed(part: Part, key: str) -> None:
    with pytest.raises(FedweaveError, match=f"part '{type(part).__name__}'.*'{key}'") as said:
        list(train(FedAvg(model(), parts=(part,)), federation(), 1))
    assert "lr" not in str(said.value)


def test_weights_that_are_no_numbers_go_before_a_part_that_knows_them() -> None:
    parts = (CrossEntropy(), Unsound(), Remembered())
    with refusal("diverged", "training diverged"):
        list(train(FedAvg(model(), parts=parts), federation(), 1))
