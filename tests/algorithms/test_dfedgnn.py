"""D-FedGNN: what neighbors on the ring make of each other's weights, and that nobody else gets them."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedweave.algorithms import DFedGNN, FedAvg
from fedweave.algorithms.dfedgnn import ring
from fedweave.algorithms.parts import Uniform
from fedweave.core.federation import Client, on_client
from fedweave.core.random import generator
from fedweave.core.tree import Tree, encode, leaves
from fedweave.core.types import FRAMING
from fedweave.engines.simulation import Simulation
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from tests.contract.federations import CLASSES, algorithm, distance, federation, graphs, model

MODES = ("vmap", "loop")


class Given(DFedGNN):
    """The weights are as given, instead of trained."""

    @on_client()
    def take(self, client: Client, message: Tree) -> Tree:
        client.state["w"] = {"0": {"weight": message["value"]}}
        return {}

    @on_client(sends={"w": "weights"}, peers=True)
    def train(self, client: Client, message: Tree) -> Tree:
        return {"w": client.state["w"]}


def mixed(values: Any, mode: str = "vmap", rounds: int = 1, absent: tuple[str, ...] = ()) -> list[float]:
    """Each client's weight, `values` before, after mixing; `absent` clients take no part."""
    names = [f"c{i}" for i in range(len(values))]
    one, *_ = graphs().values()
    fed = Simulation(
        dict.fromkeys(names, one),
        classes=CLASSES,
        mode=mode,
        absent=lambda round, client: "cable cut" if round and client in absent else None,
    )
    made = Given(model(), quorum=0.5)
    fed.map(made.take, each={name: {"value": value} for name, value in zip(names, values, strict=True)})
    for number in range(1, rounds + 1):
        fed.begin(number)
        made.round(made.init(fed), fed)
    return [float(fed.snapshot()[name]["w"]["0"]["weight"]) for name in names]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([3.0], [3.0]),
        ([3.0, 7.0], [5.0, 5.0]),
        ([0.0, 3.0, 9.0], [4.0, 4.0, 4.0]),
        ([3.0, 6.0, 0.0, 0.0, 30.0], [13.0, 3.0, 2.0, 10.0, 11.0]),
    ],
)
def test_weights_become_the_mean_of_three_neighbors(before: list[float], after: list[float], mode: str) -> None:
    assert mixed(before, mode) == pytest.approx(after, abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_the_share_of_an_absent_neighbor_stays_with_the_client(mode: str) -> None:
    """Without client 1: client 0 is (3 + 3 + 30) / 3, client 2 (0 + 0 + 0) / 3; the absent one stays as it was."""
    after = mixed([3.0, 6.0, 0.0, 0.0, 30.0], mode, absent=("c1",))
    assert after == pytest.approx([12.0, 6.0, 0.0, 10.0, 11.0], abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.data())
def test_mixing_keeps_the_mean_whoever_is_absent(count: int, data: st.DataObject) -> None:
    values = generator(count, "weights").normal(size=count)
    out = data.draw(st.sets(st.integers(0, count - 1), max_size=count // 2))
    after = mixed(values.tolist(), absent=tuple(f"c{i}" for i in out))
    assert sum(after) == pytest.approx(values.sum(), abs=1e-12)


@pytest.mark.parametrize("count", [2, 3, 6])
def test_mixing_alone_leads_to_consensus_at_the_mean(count: int) -> None:
    """The slowest mode of six clients shrinks by (1 + 2 cos 60°) / 3 = 2/3 in a round."""
    values = generator(7, "consensus").normal(size=count)
    after = mixed(values.tolist(), rounds=60)
    assert after == pytest.approx([values.mean()] * count, abs=1e-9)
    assert max(after) - min(after) <= (2 / 3) ** 60 * 10


def test_ring_names_each_neighbor_once() -> None:
    assert ring(["a"]) == {"a": ()}
    assert ring(["a", "b"]) == {"a": ("b",), "b": ("a",)}
    assert ring(["a", "b", "c", "d"]) == {"a": ("d", "b"), "b": ("a", "c"), "c": ("b", "d"), "d": ("c", "a")}


def trained(made: Any, rounds: int = 1, **options: Any) -> tuple[dict[str, Any], Simulation]:
    fed = federation(dtype=torch.float64, **options)
    list(train(made, fed, rounds))
    return {client: state["w"] for client, state in fed.snapshot().items()}, fed


def test_all_start_from_the_same_weights_which_are_fedavgs() -> None:
    after, _ = trained(DFedGNN(model(), lr=1e-12))
    expected = FedAvg(model()).init(federation(dtype=torch.float64))["w"]
    assert all(distance(w, expected) < 1e-9 for w in after.values())


def test_three_clients_end_a_round_as_uniform_fedavg_does() -> None:
    """On a ring of three, everybody is a neighbor; without dropout, for the steps draw differently."""
    clients = dict(list(graphs(torch.float64).items())[:3])
    after, _ = trained(DFedGNN(model(dropout=0.0)), clients=clients)
    averaged = federation(dtype=torch.float64, clients=clients)
    *_, last = train(FedAvg(model(dropout=0.0), local_steps=5, parts=(Uniform(),)), averaged, 1)
    assert all(distance(w, last.state["w"]) < 1e-9 for w in after.values())


def test_the_server_holds_no_weights_and_none_passes_through_it() -> None:
    made = algorithm("dfedgnn")
    fed = federation()
    *_, last = train(made, fed, 2)
    assert [(path, leaf.shape) for path, leaf in leaves(last.state)] == [("init", ())]
    rows = fed.ledger.table().to_pylist()
    assert {row["key"] for row in rows if row["step"] != "DFedGNN.score" and row["direction"] == "up"} == {FRAMING}
    assert {row["key"] for row in rows if row["direction"] == "down"} == {"init", FRAMING}
    assert not any(row["key"].startswith("w") for row in rows if row["direction"] != "peer")


def test_the_ledger_names_sender_receiver_and_what_is_learnt() -> None:
    fed = federation()
    list(train(algorithm("dfedgnn"), fed, 2))
    rows = [row for row in fed.ledger.table().to_pylist() if row["direction"] == "peer"]
    pairs = {(client, peer) for client, peers in ring(fed.clients).items() for peer in peers}
    assert {(row["client"], row["to"]) for row in rows} == pairs
    assert {row["step"] for row in rows} == {"DFedGNN.train"}
    assert {row["reveals"] for row in rows if row["key"] != FRAMING} == {"model weights after local training"}
    assert {row["key"].split("/")[0] for row in rows} == {"w", FRAMING}
    assert sum(row["bytes"] for row in rows) == fed.ledger.bytes_peer
    assert fed.ledger.bytes_peer == 2 * len(pairs) * len(encode({"w": fed.snapshot()["site-0"]["w"]}))


def test_a_client_that_rejoins_goes_on_from_its_own_weights() -> None:
    fed = federation(absent=lambda round, client: "cable cut" if round == 2 and client == "site-1" else None)
    states = [fed.snapshot()["site-1"]["w"] for _ in train(algorithm("dfedgnn", quorum=0.8), fed, 3)]
    assert distance(states[0], states[1]) == 0
    assert distance(states[1], states[2]) > 0


@pytest.mark.slow
def test_neighbors_help_on_digits() -> None:
    """Real images: with few labeled nodes each, models that neighbors average beat those that clients train alone."""
    document = {
        "data": {"name": "digits"},
        "partition": {"name": "random", "clients": 10, "train": 0.1, "val": 0.1, "test": 0.8},
        "model": {"name": "gcn", "hidden": 16},
    }
    scores = {}
    for name in ("local", "dfedgnn"):
        built = build(resolve(document | {"algorithm": {"name": name, "local_steps": 5}}))
        *_, last = train(built.algorithm, built.fed, 20, eval_every=0)
        scores[name] = last.summary["local/accuracy"]
    assert scores["dfedgnn"] > scores["local"] + 0.05
