"""What a server reads off the gradients of the party with labels, and what randomized response leaves of it."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedweave.algorithms.glasu import GLASU
from fedweave.core.federation import step_info, step_name
from fedweave.core.graph import TRAIN
from fedweave.core.mechanism import LDP, Applied
from fedweave.core.replies import Replies
from fedweave.engines.simulation import Simulation
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.privacy.accountant import bounds
from fedweave.privacy.attacks import labels_from_gradient
from fedweave.privacy.mechanisms import keep_probability
from tests.contract.federations import model

DOCUMENT: dict[str, Any] = {
    "partition": {"name": "vertical", "clients": 3, "labels": "first"},
    "model": {"name": "gcnii", "hidden": 32, "layers": 2},
}


class Curious(Simulation):
    """A server that follows the protocol, and looks at the gradients of the party with labels."""

    seen: list[Tensor]

    def map(self, step: Any, *args: Any, **options: Any) -> Replies:
        replies = super().map(step, *args, **options)
        if step_name(step).endswith(".pull"):
            self.seen.append(replies.stack("gradient")[0])
        return replies


def recovered(data_root: Path, rounds: int = 1, **settings: Any) -> tuple[Tensor, Tensor, Curious]:
    """What the server finds of the training labels of Cora in each round, [rounds, n], and what they are; it knows the
    classifier's first weights, which it drew the key of, and takes them for the later ones."""
    chosen = {"name": "glasu", "exchanges": 1, "batch": 0, "optimizer": "sgd", "lr": 0.5} | settings
    built = build(resolve(DOCUMENT | {"data": {"name": "cora", "path": str(data_root)}, "algorithm": chosen}))
    graphs = built.fed.graphs
    fed = Curious(graphs, classes=built.data.classes)
    fed.seen = []
    fed.begin(0)
    state = built.algorithm.init(fed)
    weight = next(iter(fed.snapshot().values()))["w"][str(len(built.algorithm.model) - 1)]["weight"]
    for number in range(1, rounds + 1):
        fed.begin(number)
        state = built.algorithm.round(state, fed)
    holder = next(iter(graphs.values()))
    training = holder.masks[TRAIN]
    guesses = torch.stack([labels_from_gradient(own, weight) for own in fed.seen])
    return guesses[:, training], holder.y[training], fed


def share(guess: Tensor, truth: Tensor) -> float:
    return float((guess == truth).double().mean())


def test_labels_are_read_off_one_gradient(data_root: Path) -> None:
    guess, truth, _ = recovered(data_root)
    assert len(truth) > 500
    assert share(guess[0], truth) > 0.95


@pytest.mark.often("2.0")
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomized_response_leaves_what_epsilon_allows(data_root: Path, epsilon: float) -> None:
    """Whatever is done with gradients that depend on the noisy labels alone, no more than e^ε / (e^ε + 6) of labels
    drawn alike are found in expectation; here the classes' sizes differ, so that the largest can be guessed."""
    guess, truth, fed = recovered(data_root, rounds=4, label_epsilon=epsilon)
    allowed = keep_probability(epsilon, 7)
    spread = 4 * math.sqrt(allowed * (1 - allowed) / len(truth))
    assert share(guess[0], truth) < allowed + spread
    assert share(guess[0], truth) > allowed - spread - 0.05  # so the attack finds all that there is
    voted = torch.nn.functional.one_hot(guess, 7).sum(0).argmax(-1)
    assert share(voted, truth) < allowed + spread  # asking again tells nothing more
    [bound] = bounds(fed.ledger.table())
    assert (bound.per, bound.epsilon, bound.messages) == ("label", epsilon, 5)  # the draw, and four gradients


def test_gradients_say_that_labels_can_be_reconstructed() -> None:
    once = LDP(2.0, "label", "labels", one_draw=True)
    for made, mechanisms in ((GLASU(model()), ()), (GLASU(model(), label_epsilon=2.0), (once,))):
        told = step_info(made.pull).sends["gradient"]
        assert re.search("labels of the batch.* can be reconstructed", told.reveals)
        assert told.mechanisms == mechanisms
        assert bool(Applied("gradient", told.mechanisms).text()) == bool(mechanisms)
        back = step_info(made.back).sends["gradient"]
        assert "labels of the batch can be reconstructed" in back.reveals
        assert back.mechanisms == ()
