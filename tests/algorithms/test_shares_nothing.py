"""Clients that share no weights, and exchange what parts send; FedProto's laws are in `tests/contract`."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.fedopt import ServerAdam
from fedweave.algorithms.fedproto import ClassPrototypes
from fedweave.algorithms.parts import Clip, Part
from fedweave.experiment.rounds import train
from tests.contract.federations import distance, federation, graphs, model

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0, "local_steps": 2}


def test_no_weights_cross_and_each_client_keeps_its_own() -> None:
    fed = federation(dtype=torch.float64)
    *_, last = train(ALGORITHMS["fedproto"](model(), **SGD), fed, 2)
    assert (last.state["w"], "global/accuracy" in last.summary) == ({}, True)
    assert {client: row for client, row in fed.snapshot().items() if "w" not in row} == {}


def test_clients_learn_of_each_other_through_what_parts_send_alone() -> None:
    """Other data at one client changes another's model by way of prototypes; not where these pull at nothing."""
    ends = {}
    for lam in (0.0, 0.5):
        for changed in (None, 3):
            fed = federation(dtype=torch.float64, clients=graphs(torch.float64, changed))
            list(train(ALGORITHMS["fedproto"](model(), lam=lam, **SGD), fed, 3))
            ends[lam, changed] = fed.snapshot()["site-0"]["w"]
    assert distance(ends[0.0, None], ends[0.0, 3]) == 0
    assert distance(ends[0.5, None], ends[0.5, 3]) > 1e-5


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((), "share is empty, and clients report nothing"),
        ((ClassPrototypes(), Clip()), r"clip\.release is about updates"),
        ((ClassPrototypes(), ServerAdam()), r"server_adam\.step is about updates"),
    ],
)
def test_what_there_is_no_use_for_is_refused(parts: tuple[Part, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FedAvg(model(), share=(), parts=parts)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"client_learns": ["the mean"]}, r"Odd\.client_learns is to be a str"),
        ({"client_learns": {"mean": 3}}, r"Odd\.client_learns is to be a str"),
        ({"sends": "the mean"}, r"Odd\.sends is to be"),
        ({"sends": {"mean": None}}, r"Odd\.sends is to be"),
    ],
)
def test_a_declaration_of_another_form_is_one_clear_error(attributes: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FedAvg(model(), parts=(type("Odd", (Part,), dict(attributes))(),))
