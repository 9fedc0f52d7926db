"""What an algorithm is: three functions and, for all else, what the base class says; the class of a user need not
inherit from it."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedweave.algorithms import ALGORITHMS, GLASU, FedAvg, Local
from fedweave.algorithms.deployment import Deployable, deployable
from fedweave.contract.subject import Subject
from fedweave.core.algorithm import Algorithm, Capabilities, Evaluation, calls_of, capabilities, give_defaults
from fedweave.core.federation import Client, Federation, on_client
from fedweave.core.graph import TRAIN
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.experiment.rounds import train
from fedweave.metrics.classification import counts
from tests.contract.federations import CLASSES, federation, graphs, model
from tests.refusals import refusal


@on_client(sends={"own": "scores"})
def scores(client: Client, message: Tree) -> Tree:
    return {"own": counts(torch.zeros(len(client.graph.y), CLASSES), client.graph.y, client.graph.masks)}


class Rounds:
    """Counts rounds."""

    def init(self, fed: Federation) -> Tree:
        return {"rounds": 0}

    def round(self, state: Tree, fed: Federation) -> Tree:
        return {"rounds": state["rounds"] + 1}

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        return Evaluation(fed.map(scores))


def shapes() -> list[type]:
    """The same algorithm, of a class of its own and of one that inherits; made anew, as the first is changed."""

    @dataclass(frozen=True)
    class Plain(Rounds):
        model: Model

    @dataclass(frozen=True)
    class Derived(Rounds, Algorithm):
        pass

    return [Plain, Derived]


SHAPES = pytest.mark.parametrize("at", [0, 1], ids=["plain", "derived"])


@SHAPES
def test_three_functions_are_an_algorithm(at: int) -> None:
    kind = shapes()[at]
    made = kind(model())
    *_, last = train(made, federation(), 2)
    assert last.state == {"rounds": 2}
    assert type(made) is kind
    assert isinstance(made, Algorithm)
    assert [field.name for field in fields(kind)] == ["model"]
    assert capabilities(kind) == made.needs == Capabilities()
    assert (made.finders, made.composed, made.paced, made.notes, made.calls(2)) == ((), {}, (), (), None)
    assert (made.participation, made.quorum, made.batch, made.max_rounds, made.evaluates_received) == (
        1,
        1,
        0,
        None,
        False,
    )
    with refusal("user.no-models", f"{kind.__name__} keeps no models"):
        deployable(made)
    with refusal("failed", kind.__name__, "method `calls`"):
        calls_of(made, kind.__name__, 2)


@SHAPES
def test_having_a_method_is_enough(at: int) -> None:
    @dataclass(frozen=True)
    class Measuring(shapes()[at]):  # type: ignore[misc]
        def measures(self, state: Tree, fed: Federation) -> dict[str, Tensor]:
            return {"turn": torch.full((len(fed.clients),), float(state["rounds"]), dtype=torch.float64)}

        def counts(self, state: Tree) -> dict[str, float]:
            return {"rounds": state["rounds"]}

    *_, last = train(Measuring(model()), federation(), 2)
    assert set(last.of_clients("turn", "server").values()) == {2.0}
    assert last.summary["rounds"] == 2


@SHAPES
def test_a_field_goes_before_the_default(at: int) -> None:
    """With or without a default of its own, and whatever stands beside it."""

    @dataclass(frozen=True)
    class Fields(shapes()[at]):  # type: ignore[misc]
        quorum: float
        hidden: int
        batch: int
        participation: float = 0.5
        max_rounds: int = 7

    give_defaults(Fields)
    assert [field.name for field in fields(Fields)] == [
        *("model", "quorum", "hidden", "batch", "participation", "max_rounds")
    ]
    with pytest.raises(TypeError, match="hidden"):
        Fields(model(), 0.25)
    made = Fields(model(), 0.25, 8, 4)
    assert (made.quorum, made.batch, made.participation, made.max_rounds) == (0.25, 4, 0.5, 7)
    graph = graphs()["site-1"]
    assert made.min_examples(graph, {}) == {"Fields (batch)": min(4, int(graph.masks[TRAIN].sum()))}
    with refusal("user.target-rounds", "within 7 rounds"):
        next(train(made, federation(), 8))


@SHAPES
def test_a_default_is_no_setting_to_be_tried_with(at: int) -> None:
    """A field is one, and what a class fixes that its parent has as a field."""

    @dataclass(frozen=True)
    class Chosen(shapes()[at]):  # type: ignore[misc]
        batch: int = 8
        test_settings = {"batch": 2}  # noqa: RUF012

    @dataclass(frozen=True)
    class Fixed(Chosen):
        batch: ClassVar[int] = 4  # type: ignore[misc]

    @dataclass(frozen=True)
    class Odd(Chosen):
        test_settings = {"quorum": 0.5}  # noqa: RUF012

    assert (Subject(Chosen).build().batch, Subject(Fixed).build().batch) == (2, 4)
    with refusal("config", "test_settings", "'quorum'"):
        Subject(Odd)


@pytest.mark.parametrize("name", ["counts", "calls", "max_rounds"])
def test_a_setting_is_not_called_as_a_method_is(name: str) -> None:
    with pytest.raises(TypeError, match=f"Odd.{name}: .* Call the field otherwise"):
        type("Odd", (Algorithm,), {"__annotations__": {name: int}} | ({} if name == "max_rounds" else {name: 3}))


def test_who_lacks_a_function_is_told_which() -> None:
    @dataclass(frozen=True)
    class Short(Algorithm):
        def init(self, fed: Federation) -> Tree:
            return {}

        def round(self, state: Tree, fed: Federation) -> Tree:
            return state

    with pytest.raises(TypeError, match="evaluate"):
        Short(model())  # type: ignore[abstract]
    for wrong in (Short, None, object()):  # a class in the place of its object, and what is none
        with refusal("user.no-algorithm", "evaluate, init, round"):
            next(train(wrong, federation(), 1))  # type: ignore[arg-type]


def test_who_can_what() -> None:
    made = [FedAvg(model()), Local(model()), GLASU(model()), ALGORITHMS["ditto"](model())]
    says: dict[str, Callable[[Any], object]] = {
        "calls": lambda one: one.calls(3),
        "min_examples": lambda one: type(one).min_examples is not Algorithm.min_examples,
        "parts": lambda one: one.composed,
        "counts": lambda one: type(one).counts is not Algorithm.counts,
        "measures": lambda one: type(one).measures is not Algorithm.measures,
        "pairs": lambda one: type(one).pairs is not Algorithm.pairs,
        "predicts": lambda one: type(one).predict is not Algorithm.predict,
        "models": lambda one: isinstance(one, Deployable),
        "any_models": lambda one: one.any_models,
    }
    assert {name: [int(bool(ask(one))) for one in made] for name, ask in says.items()} == {
        "calls": [1, 1, 1, 1],
        "min_examples": [1, 1, 1, 1],
        "parts": [1, 0, 0, 1],
        "counts": [1, 0, 1, 1],
        "measures": [1, 0, 0, 1],
        "pairs": [1, 0, 0, 1],
        "predicts": [0, 0, 1, 0],
        "models": [1, 1, 0, 1],
        "any_models": [0, 1, 0, 0],
    }
    assert all(isinstance(one, Algorithm) for one in made)
