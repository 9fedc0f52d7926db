"""Clients that share no weights, and exchange what parts send: class prototypes, as in FedProto (Tan et al. 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedweave.algorithms import FedAvg
from fedweave.algorithms.fedopt import ServerAdam
from fedweave.algorithms.parts import Clip, Outputs, Part
from fedweave.algorithms.preset import preset
from fedweave.cli.contract import verdict
from fedweave.contract.laws import LAWS
from fedweave.contract.subject import Subject
from fedweave.core import model as models
from fedweave.core.graph import TRAIN
from fedweave.core.tree import Tree
from fedweave.experiment.rounds import train
from tests.contract.federations import CLASSES, distance, federation, graphs, model

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0, "local_steps": 2}


@dataclass(frozen=True)
class ClassPrototypes(Part):
    """Logits are pulled to their classes' means over all clients."""

    lam: float = 0.1
    sends: ClassVar = {"prototype": "mean logits of each class", "number": "training nodes of each class"}
    client_learns: ClassVar = {
        "prototype": "each class's mean logits over all clients",
        "known": "which classes have one",
    }

    def report(self, ctx: Any) -> Tree:
        graph = ctx.client.graph
        own = torch.nn.functional.one_hot(graph.y.clamp(min=0), CLASSES) * graph.masks[TRAIN][:, None]
        logits = models.apply(ctx.training.model, ctx.trained, graph)
        return {"prototype": own.to(logits.dtype).T @ logits / own.sum(0).clamp(min=1)[:, None], "number": own.sum(0)}

    def update(self, state: Tree, round: Any) -> Tree:
        number = round.replies.stack("number").double()
        own = round.replies.stack("prototype")
        mean = (own.double() * number[..., None]).sum(0) / number.sum(0).clamp(min=1)[:, None]
        return {"prototype": mean.to(own.dtype), "known": number.sum(0) > 0}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        return state, {}

    def objective(self, outputs: Outputs) -> Tensor:
        logits, graph, given = outputs.logits, outputs.graph, outputs.given
        if "prototype" not in given:
            return logits.sum() * 0
        y = graph.y.clamp(min=0)
        counts = (graph.masks[TRAIN] & given["known"][y]).to(logits.dtype)
        apart = (logits - given["prototype"][y]).square().sum(1)
        return self.lam * (apart * counts).sum() / counts.sum().clamp(min=1)


@preset
@dataclass(frozen=True)
class FedProto:
    """Clients of FedAvg that share prototypes instead of weights."""

    lam: float = 0.1
    share: tuple[str, ...] = ()
    exempt_laws: ClassVar = {"one_client_is_ordinary_training": "the loss has another term"}

    def parts(self) -> tuple[Part, ...]:
        return (ClassPrototypes(self.lam),)


def ended(made: FedAvg, **options: Any) -> tuple[Any, Any]:
    fed = federation(dtype=torch.float64, **options)
    *_, last = train(made, fed, 3)
    return last, fed


@pytest.mark.parametrize("law", LAWS)
def test_the_laws_hold(law: str, subject: Subject) -> None:
    assert verdict(subject, law).startswith(("holds", "declared"))


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject(FedProto)


def test_no_weights_cross_and_what_does_is_what_the_part_declares() -> None:
    last, fed = ended(FedProto(model(), **SGD))
    assert (last.state["w"], "global/accuracy" in last.summary) == ({}, True)
    rows = [row for row in fed.ledger.table().to_pylist() if row["purpose"] == "training" and row["shape"]]
    crossed = {(row["direction"], row["key"]): row["reveals"] for row in rows}
    assert crossed.keys() - {("down", "init")} == {
        ("up", "prototype"), ("up", "number"), ("down", "ClassPrototypes/prototype"), ("down", "ClassPrototypes/known"),
    }  # fmt: skip
    assert crossed["down", "ClassPrototypes/known"] == "which classes have one"
    assert {client: row for client, row in fed.snapshot().items() if "w" not in row} == {}


def test_clients_learn_of_each_other_through_what_parts_send_alone() -> None:
    """Other data at one client changes another's model by way of prototypes; not where these pull at nothing."""
    ends = {}
    for lam in (0.0, 0.5):
        for changed in (None, 3):
            fed = ended(FedProto(model(), lam=lam, **SGD), clients=graphs(torch.float64, changed))[1]
            ends[lam, changed] = fed.snapshot()["site-0"]["w"]
    assert distance(ends[0.0, None], ends[0.0, 3]) == 0
    assert distance(ends[0.5, None], ends[0.5, 3]) > 1e-5


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((), "share is empty, and no part"),
        ((ClassPrototypes(), Clip()), r"Clip\.release is about updates"),
        ((ClassPrototypes(), ServerAdam()), r"ServerAdam\.step is about updates"),
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
