"""The training loop refuses what has gone wrong."""

import pytest

from fedweave.algorithms import FedAvg
from fedweave.errors import FedweaveError, UserError
from fedweave.rounds import train
from tests.contract.federations import federation, model


def test_divergence_is_an_error_that_names_round_and_remedy() -> None:
    algorithm = FedAvg(model(), optimizer="sgd", lr=1e30)
    with pytest.raises(FedweaveError, match=r"diverged: after round \d+ 'w/.*Lower algorithm.lr"):
        list(train(algorithm, federation(), 10))


@pytest.mark.parametrize(("rounds", "eval_every"), [(0, 1), (3, -1)])
def test_impossible_lengths_are_refused(rounds: int, eval_every: int) -> None:
    with pytest.raises(UserError, match=f"rounds is {rounds} and eval_every {eval_every}"):
        list(train(FedAvg(model()), federation(), rounds, eval_every))
