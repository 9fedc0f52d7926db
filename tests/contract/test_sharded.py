"""Clients dealt to several executors: nothing but packed trees passes, and the numbers are those of one."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch

from fedweave.algorithms import ALGORITHMS, parts
from fedweave.contract.subject import TOGETHER, ShardedRecorder, Subject, distance, everything
from fedweave.core.tree import Tree, leaves
from fedweave.engines.sharded import deal, pack, unpack
from fedweave.experiment.rounds import train
from tests.contract.changing import Drifting, Mending
from tests.contract.federations import federation, model
from tests.random_graphs import replace_fields
from tests.refusals import refusal

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "sampled participation": ("fedavg", {"participation": 0.4}),
    "a secure sum": ("fedavg", {"parts": (parts.SecureSum(),)}),
    "a secure sum between parties": ("glasu", {"secure_sum": True}),
    "weights of each client's own": ("fedpub", {}),
}


@pytest.mark.often("weights of each client's own-2", "a secure sum between parties-2", "sampled participation-2")
@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("what", SETTINGS)
def test_the_number_of_executors_changes_no_number(what: str, shards: int) -> None:
    name, values = SETTINGS[what]
    subject = Subject(ALGORITHMS[name], values)
    assert distance(subject.shard_run(shards).final, subject.vmap_run().final) == 0


@pytest.mark.often("fedavg")
@pytest.mark.parametrize("name", ["fedavg", "dfedgnn", pytest.param("fedego", marks=pytest.mark.slow)])
def test_a_run_is_resumed_with_another_number_of_executors(name: str) -> None:
    subject = Subject(ALGORITHMS[name])
    before = subject.shard_run(3)
    *_, (last, fed) = subject.resume(before, subject.build(), **subject.shard_options(2))
    assert distance(everything(last, fed), subject.vmap_run().final) == 0
    *_, (last, fed) = subject.resume(before, subject.build(), **TOGETHER)
    assert distance(everything(last, fed), subject.vmap_run().final) == 0


@pytest.mark.often("Drifting")
@pytest.mark.parametrize("kind", [Drifting, Mending])
def test_data_is_replaced_where_it_is(kind: Any) -> None:
    one, several = federation(), federation(ShardedRecorder, shards=3, rebuild=partial(kind, model()))
    ends = [*_ends(kind(model()), one), *_ends(kind(model()), several)]
    assert distance(*ends) == 0
    assert distance(one.snapshot_data(), several.snapshot_data()) == 0


def _ends(algorithm: Any, fed: Any) -> list[Tree]:
    *_, last = train(algorithm, fed, 3)
    return [everything(last, fed)]


def test_a_sum_over_many_clients_comes_back_as_one_from_each_executor() -> None:
    """What passes up for a mean does not grow with the number of clients."""
    subject = Subject(ALGORITHMS["fedavg"])
    passed = {}
    for clients in (2, 5):
        own = dict(list(subject.graphs().items())[:clients])
        fed = subject.federation(clients=own, **subject.shard_options(1))
        made = subject.build()
        fed.begin(0)
        state = made.init(fed)
        fed.begin(1)
        made.round(state, fed)
        passed[clients] = fed.passed
    update = sum(4 * leaf.numel() for _, leaf in leaves(fed.snapshot()["site-0"]["optimizer"]["m"]))
    assert passed[5] - passed[2] < 3 * update / 2


@pytest.mark.often("a sample", "peers")
@pytest.mark.parametrize(
    ("name", "values", "besides"),
    [
        pytest.param("fedavg", {}, [], id="everybody"),
        pytest.param("fedavg", {"parts": (parts.SecureSum(),)}, [], id="a secure sum"),
        pytest.param("fedavg", {"participation": 0.4}, ["weighted_sum"], id="a sample"),  # other weights each time
        pytest.param("dfedgnn", {}, [], id="peers"),
    ],
)
def test_what_was_asked_of_replies_comes_with_the_next(name: str, values: dict[str, Any], besides: list[str]) -> None:
    """A round is one request to each executor for every step."""
    subject = Subject(ALGORITHMS[name], values)
    fed = subject.federation(**subject.shard_options(2))
    for reached in train(subject.build(), fed, 5):
        if reached.round == 3:
            fed.requests.clear()
    asked = Counter(fed.requests)
    steps, judged = asked.pop("run"), asked.pop("example_outputs", 0)
    assert sorted(asked) == besides
    scored = {5, reached.summary["best_val/round"]}  # all examples together, of the last round and the chosen one
    assert judged == (0 if name == "dfedgnn" else 2 * 2 * len(scored))  # the first class, then the others
    assert steps == 2 * 2 * len(fed.ran[5])


def test_a_step_that_fails_names_its_client() -> None:
    subject = Subject(ALGORITHMS["fedavg"])
    graphs = subject.graphs()
    graphs["site-3"] = replace_fields(graphs["site-3"], y=graphs["site-3"].y + 100)
    fed = subject.federation(clients=graphs, **subject.shard_options(2))
    with refusal("step-failed", "site-3"):
        list(train(subject.build(), fed, 1))


def test_packing_keeps_the_order_of_leaves() -> None:
    tree = {"b": {"z": torch.ones(2), "a": 1}, "a": "text"}
    assert list(unpack(pack(tree))) == ["b", "a"]
    assert list(unpack(pack(tree))["b"]) == ["z", "a"]


def test_clients_are_dealt_by_size() -> None:
    sizes = {"a": 1, "b": 10, "c": 4, "d": 5, "e": 1}
    assert deal(sizes, 2) == [("b",), ("a", "c", "d", "e")] or deal(sizes, 2) == [("b", "e"), ("a", "c", "d")]
    assert sorted(client for own in deal(sizes, 3) for client in own) == sorted(sizes)
    assert deal(sizes, 9) == [("b",), ("d",), ("c",), ("a",), ("e",)]
