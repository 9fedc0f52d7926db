"""What an algorithm can do is what it has methods for; a caller asks by `isinstance`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.algorithms import ALGORITHMS, GLASU, FedAvg, Local
from fedweave.algorithms.deployment import deployable
from fedweave.algorithms.parts.composition import MadeOfParts
from fedweave.core.algorithm import (
    Algorithm,
    Capabilities,
    DeclaresCalls,
    Evaluation,
    LimitsExamples,
    LimitsRounds,
    MeasuresAll,
    MeasuresClients,
    MeasuresPairs,
    PredictsJointly,
    TakesQuorum,
    capabilities,
    needs,
)
from fedweave.core.federation import Client, Federation, on_client
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.experiment.rounds import train
from fedweave.metrics.classification import counts
from fedweave.partition.client_data import finders_of
from tests.contract.federations import CLASSES, federation, model
from tests.refusals import refusal


@dataclass(frozen=True)
class Plain:
    """The least: three functions and a model."""

    model: Model

    def init(self, fed: Federation) -> Tree:
        return {"rounds": 0}

    def round(self, state: Tree, fed: Federation) -> Tree:
        return {"rounds": state["rounds"] + 1}

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        return Evaluation(fed.map(scores))


@on_client(sends={"own": "scores"})
def scores(client: Client, message: Tree) -> Tree:
    return {"own": counts(torch.zeros(len(client.graph.y), CLASSES), client.graph.y, client.graph.masks)}


@dataclass(frozen=True)
class Measuring(Plain):
    """The same with two abilities, declared nowhere else."""

    def measures(self, state: Tree, fed: Federation) -> dict[str, Tensor]:
        return {"turn": torch.full((len(fed.clients),), float(state["rounds"]), dtype=torch.float64)}

    def counts(self, state: Tree) -> dict[str, float]:
        return {"rounds": state["rounds"]}


def test_three_functions_are_an_algorithm() -> None:
    made: Algorithm = Plain(model())
    *_, last = train(made, federation(), 2)
    assert last.state == {"rounds": 2}
    assert capabilities(made) == needs(made) == Capabilities()
    assert finders_of(made) == ()
    with refusal("user.no-models", "Plain keeps no models"):
        deployable(made)


def test_having_a_method_is_enough() -> None:
    *_, last = train(Measuring(model()), federation(), 2)
    assert set(last.of_clients("turn", "server").values()) == {2.0}
    assert last.summary["rounds"] == 2


def test_who_can_what() -> None:
    made = [FedAvg(model()), Local(model()), GLASU(model()), ALGORITHMS["ditto"](model())]
    table = {
        DeclaresCalls: [1, 1, 1, 1],
        LimitsExamples: [1, 1, 1, 1],
        LimitsRounds: [1, 0, 0, 1],
        MadeOfParts: [1, 0, 0, 1],
        MeasuresAll: [1, 0, 1, 1],
        MeasuresClients: [1, 0, 0, 1],
        MeasuresPairs: [1, 0, 0, 1],
        PredictsJointly: [0, 0, 1, 0],
        TakesQuorum: [1, 1, 0, 1],
    }
    assert {kind: [int(isinstance(one, kind)) for one in made] for kind in table} == table
