"""Labels as randomized response leaves them: its probabilities, GLASU's training on them, and the attack by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.core import random
from fedweave.engines.simulation import Simulation
from fedweave.experiment.rounds import train
from fedweave.privacy.attacks import labels_from_gradient
from fedweave.privacy.mechanisms import randomized_response
from tests.contract.federations import algorithm, distance, federation, graphs
from tests.random_graphs import replace_fields
from tests.refusals import refusal


def one_sided(mode: str = "vmap", dtype: torch.dtype = torch.float32) -> Simulation:
    """Three parties of which the first alone has labels."""
    parties = graphs(dtype, name="glasu")
    first, *rest = [*parties][:3]
    hidden = {name: replace_fields(parties[name], y=torch.full_like(parties[name].y, -1)) for name in rest}
    return federation(mode=mode, dtype=dtype, name="glasu", clients={first: parties[first]} | hidden)


# --- the attack


def test_a_row_by_hand() -> None:
    """W = I, p = (.5, .3, .2), the label is the second: (.5, −.7, .2) / n. A row of zeros has none."""
    gradient = torch.tensor([[0.05, -0.07, 0.02], [0.0, 0.0, 0.0]])
    assert labels_from_gradient(gradient, torch.eye(3)).tolist() == [1, -1]
    weight = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0], [3.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    dropped = (gradient @ weight.T) * torch.tensor([1.0, 0.0, 1.0, 1.0])
    assert labels_from_gradient(dropped, weight).tolist() == [1, -1]


# --- randomized response


@pytest.mark.parametrize(("epsilon", "classes"), [(0.5, 2), (1.0, 3), (3.0, 7)])
def test_randomized_response_is_epsilon_private(epsilon: float, classes: int) -> None:
    """The distribution of what a label becomes, from 200,000 draws for each label."""
    count = 200_000
    found = np.stack(
        [
            np.bincount(
                randomized_response(
                    torch.full((count,), label), classes, epsilon, random.bits(random.key(label), 2 * count)
                ),
                minlength=classes,
            )
            for label in range(classes)
        ]
    )
    stays = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    exact = np.where(np.eye(classes, dtype=bool), stays, (1 - stays) / (classes - 1))
    assert exact.max() / exact.min() == pytest.approx(math.exp(epsilon))
    assert np.abs(found / count - exact).max() < 5 * math.sqrt(0.25 / count)


def test_what_was_drawn_is_drawn_once_and_what_is_unknown_stays() -> None:
    y = torch.tensor([-1, 0, 1, 2, -1, 2, 1])
    one = randomized_response(y, 3, 0.1, random.bits(random.key(1), 2 * len(y)))
    assert one.tolist() == randomized_response(y, 3, 0.1, random.bits(random.key(1), 2 * len(y))).tolist()
    assert (one[y < 0] == -1).all()
    assert (
        randomized_response(y[:4], 3, 0.1, random.bits(random.key(1), 8)).tolist() == one[:4].tolist()
    )  # padding changes nothing


# --- in GLASU


@pytest.mark.slow
@pytest.mark.parametrize(("backward", "rounds"), [("frozen", 20), ("exchanged", 4)])
def test_loop_equals_vmap_with_noisy_labels(backward: str, rounds: int) -> None:
    ends = []
    for mode in ("loop", "vmap"):
        fed = one_sided(mode, torch.float64)
        [*train(algorithm("glasu", label_epsilon=1.0, backward=backward, batch=0), fed, rounds, eval_every=0)]
        ends.append(fed.snapshot())
    assert all(distance(ends[0][name]["w"], ends[1][name]["w"]) <= 1e-9 for name in ends[0])


@pytest.mark.slow
def test_it_trains_on_the_noisy_labels_alone() -> None:
    """With ε so large that all labels stay it is GLASU without label_epsilon; with a small one it is not."""

    def end(**settings: Any) -> Any:
        fed = one_sided()
        [*train(algorithm("glasu", **settings), fed, 2, eval_every=0)]
        return {name: state["w"] for name, state in fed.snapshot().items()}

    plain = end()
    assert distance(plain, end(label_epsilon=200.0)) == 0
    assert distance(plain, end(label_epsilon=0.1)) > 1e-4


def test_labels_at_several_parties_are_refused() -> None:
    with refusal("user.labels-alike", "site-0, site-1"):
        next(train(algorithm("glasu", label_epsilon=1.0), federation(name="glasu"), 1))
