"""Penalties that are asked about part of the weights: those of features that no node of a client has are trained once
for all clients, which the contract's clients make happen."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedweave.algorithms.parts import Needs, Part
from fedweave.algorithms.preset import preset_of
from fedweave.cli.contract import verdict
from fedweave.contract.laws import LAWS
from fedweave.contract.subject import Subject
from fedweave.core.tree import Tree, squared_distance, sub
from tests.refusals import refusal

LAW = "all_clients_at_once_do_in_double_precision"


@dataclass(frozen=True)
class LastOfThoseThere(Part):
    """A pull on the last layer of those that it is asked about, which need not be the model's."""

    def penalty(self, w: Tree, received: Tree, given: Tree) -> Tensor:
        last = max(received, key=int)
        return 0.5 * squared_distance(w[last], received[last])


@dataclass(frozen=True)
class Norm(Part):
    """The distance, which is not a sum over elements."""

    def penalty(self, w: Tree, received: Tree, given: Tree) -> Tensor:
        return (squared_distance(w, received) + 1.0).sqrt()


@dataclass(frozen=True)
class WholeNorm(Norm):
    """The same, which says so."""

    needs = Needs(reads=("features",))


@dataclass(frozen=True)
class LastIfThere(Part):
    """A pull on the last layer, which counts as 0 where it is absent."""

    def penalty(self, w: Tree, received: Tree, given: Tree) -> Any:
        return 0.5 * squared_distance(w["1"], received["1"]) if "1" in w else 0.0


@dataclass(frozen=True)
class Nothing(Part):
    """A plain number, as of a layer that the model lacks."""

    def penalty(self, w: Tree, received: Tree, given: Tree) -> Any:
        return 0.0


@dataclass(frozen=True)
class LastAmongThose(Part):
    """The same, by a tree that may be empty."""

    def penalty(self, w: Tree, received: Tree, given: Tree) -> Tensor:
        return 0.5 * squared_distance({name: layer for name, layer in w.items() if name == "1"}, received)


@dataclass(frozen=True)
class Last(Part):
    """A pull on the last layer, which is taken to be there."""

    def penalty(self, w: Tree, received: Tree, given: Tree) -> Tensor:
        return 0.5 * squared_distance(w["1"], received["1"])


@dataclass(frozen=True)
class Lost(Part):
    """It looks for what nobody sent."""

    def penalty(self, w: Tree, received: Tree, given: Tree) -> Tensor:
        return given["strength"] * squared_distance(w, received)


def subject(part: type[Part]) -> Subject:
    @preset_of(part)
    class Tried:
        """FedAvg with a part."""

    return Subject(Tried)


@pytest.mark.parametrize("part", [LastOfThoseThere, Norm])
def test_a_penalty_whose_numbers_depend_on_the_engine_is_found_out(part: type[Part]) -> None:
    """By the law's own steps and weight decay: with one step a penalty on the distance from the start does nothing."""
    assert verdict(subject(part), LAW).startswith("BROKEN : vmap and loop in double precision differ")


@pytest.mark.often("LastIfThere", "WholeNorm")
@pytest.mark.parametrize("part", [LastIfThere, LastAmongThose, Nothing, WholeNorm])
def test_one_that_adds_up_or_wants_all_weights_holds(part: type[Part]) -> None:
    assert verdict(subject(part), LAW) == "holds"


def test_a_penalty_that_misses_absent_leaves_is_told_what_it_was_asked() -> None:
    with refusal("step-failed.part-of-weights", "Last.penalty", "test_penalties", "0/weight", 'reads=("features",)'):
        LAWS[LAW](subject(Last))


def test_another_key_that_is_missing_is_told_as_it_is() -> None:
    said = verdict(subject(Lost), LAW)
    assert (said.count("KeyError: 'strength'"), said.count('reads=("features",)')) == (1, 0)


def test_halved_clients_lack_half_of_the_features() -> None:
    for graph in Subject(subject(Norm).kind).graphs(halved=True).values():
        assert len(graph.x.blocks.members[0].columns.unique()) <= 30


def test_the_distance_of_nothing_is_0() -> None:
    tree = {"0": torch.ones(2)}
    assert squared_distance({}, tree) == 0
    assert squared_distance(tree, sub(tree, tree)) == 2
