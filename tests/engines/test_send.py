"""What `send` promises, in both modes: replies go to peers, and to nobody else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedweave.core.federation import Client, Sends, on_client
from fedweave.core.graph import Graph
from fedweave.core.mechanism import LDP
from fedweave.core.tree import Tree, encode
from fedweave.engines.simulation import MODES, Simulation
from fedweave.errors import FedweaveError
from tests.refusals import refusal

SIZES = [5, 40, 20, 70]
LOOP = {"site0": ["site1"], "site1": ["site2"], "site2": ["site3"], "site3": ["site0"]}
PAIRS = {f"site{i}": [f"site{(i - 1) % 4}", f"site{(i + 1) % 4}"] for i in range(4)}
Make = Callable[..., Simulation]


@pytest.fixture(params=MODES)
def make(request: pytest.FixtureRequest, make_graphs: Callable[..., dict[str, Graph]]) -> Make:
    def made(sizes: Any = SIZES, **options: Any) -> Simulation:
        return Simulation(make_graphs(sizes), **{"classes": 3, "mode": request.param} | options)

    return made


@on_client(sends={"n": Sends("its size", LDP(2.0, "client")), "v": "a vector", "f": "a number"}, peers=True)
def tell(client: Client, message: Tree) -> Tree:
    size = client.graph.real.sum()
    return {"n": size * message.get("by", 1), "v": {"x": torch.stack([size, size + 1]).double()}, "f": 2}


@on_client(sends={"heard": "what came"})
def hear(client: Client, message: Tree) -> Tree:
    trees = [message["received"][str(at)] for at in range(len(message["received"]))]
    parts = torch.stack([torch.stack([tree["n"], tree["v"]["x"][1].long(), tree["f"]]) for tree in trees])
    return {"heard": torch.cat([parts, message["present"][:, None].long()], 1)}


def came(replies: Any) -> dict[str, list[list[int]]]:
    return {client: replies[client]["heard"].tolist() for client in replies.clients}


def test_peers_hear_each_other_in_client_order(make: Make) -> None:
    fed = make()
    said = {f"site{i}": [size, size + 1, 2, 1] for i, size in enumerate(SIZES)}
    assert came(fed.map(hear, received=fed.send(tell, LOOP))) == {
        "site0": [said["site3"]], "site1": [said["site0"]], "site2": [said["site1"]], "site3": [said["site2"]],
    }  # fmt: skip
    backwards = dict(reversed(PAIRS.items()))
    assert came(fed.map(hear, received=fed.send(tell, backwards)))["site0"] == [said["site1"], said["site3"]]


def test_a_sent_tree_can_be_received_by_several_calls_and_some_clients(make: Make) -> None:
    fed = make()
    sent = fed.send(tell, PAIRS, each={client: {"by": 10} for client in PAIRS})
    whole, part = came(fed.map(hear, received=sent)), came(fed.map(hear, received=sent, clients=["site2"]))
    assert whole["site2"] == part["site2"] == [[400, 41, 2, 1], [700, 71, 2, 1]]
    assert part.keys() == {"site2"}


def test_the_handle_names_who_sent_and_not_what(make: Make) -> None:
    sent = make().send(tell, LOOP)
    assert (sent.step, sent.clients, sent.missing) == ("tell", ("site0", "site1", "site2", "site3"), {})
    assert sent.sources == {"site0": ("site3",), "site1": ("site0",), "site2": ("site1",), "site3": ("site2",)}
    assert repr(sent).count("tensor") == 0


def absent(round: int, client: str) -> str | None:
    return "cable cut" if client == "site3" else None


def test_a_missing_peer_is_zeros_and_named(make: Make) -> None:
    fed = make(absent=absent)
    sent = fed.send(tell, PAIRS, quorum=0.7)
    assert sent.missing == {"site3": "cable cut"}
    assert came(fed.map(hear, received=sent)) == {
        "site0": [[40, 41, 2, 1], [0, 0, 0, 0]], "site1": [[5, 6, 2, 1], [20, 21, 2, 1]],
        "site2": [[40, 41, 2, 1], [0, 0, 0, 0]],
    }  # fmt: skip
    with refusal("call.not-sent", "site3"):
        fed.map(hear, received=sent, clients=["site3"])
    with refusal("clients-missing", "site3:"):
        fed.send(tell, PAIRS)


def test_the_server_is_sent_nothing_and_the_peers_bytes_are_counted_once(make: Make) -> None:
    fed = make()
    fed.map(hear, received=fed.send(tell, PAIRS, {"by": 3}))
    one = len(encode({"n": torch.tensor(0), "v": {"x": torch.zeros(2).double()}, "f": 2}))
    heard, empty = len(encode({"heard": torch.zeros(2, 4).long()})), len(encode({}))
    assert fed.ledger.bytes_peer == 8 * one
    assert fed.ledger.bytes_up == 4 * (empty + heard)
    assert fed.ledger.bytes_down == 4 * (len(encode({"by": 3})) + empty)
    rows = [row for row in fed.ledger.table().to_pylist() if row["key"] == "n"]
    assert {(row["direction"], row["mechanism"], row["reveals"], row["seconds"]) for row in rows} == {
        ("peer", "local differential privacy, ε = 2 per client", "its size", 0.0)
    }
    assert sorted((row["client"], row["to"]) for row in rows) == sorted((c, to) for c in PAIRS for to in PAIRS[c])


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ({"site0": ["site0"]}, "other clients"),
        ({"site0": ["site1"]}, "each a key of `to`"),
        ({"site0": ["site1", "site1"], "site1": ["site0"]}, "once"),
        ({"site0": ["site1", "site2"], "site1": ["site2"], "site2": ["site0"]}, "unequal numbers"),
        ({"site0": ["nobody"], "nobody": ["site0"]}, "unknown"),
    ],
)
def test_a_senseless_topology_is_refused(make: Make, to: Any, said: str) -> None:
    with pytest.raises(FedweaveError, match=said):
        make().send(tell, to)


def test_only_declared_keys_reach_peers(make: Make) -> None:
    @on_client(sends={"n": "a count"}, peers=True)
    def leak(client: Client, message: Tree) -> Tree:
        return {"n": client.graph.real.sum(), "graph": client.graph.y.sum()}

    with refusal("reply-refused", "graph"):
        make().send(leak, LOOP)


def test_what_is_for_peers_cannot_be_asked_for_and_the_other_way_round(make: Make) -> None:
    with refusal("step.way", "`send`"):
        make().map(tell)
    with refusal("step.way", "`map`"):
        make().send(hear, LOOP)


def test_keys_of_what_peers_sent_are_not_overwritten(make: Make) -> None:
    fed = make()
    with refusal("call.each", "present"):
        fed.map(hear, {"present": 1}, received=fed.send(tell, LOOP))


def test_a_client_cannot_change_what_another_hears(make: Make) -> None:
    @on_client()
    def spoil(client: Client, message: Tree) -> Tree:
        message["received"]["0"]["v"]["x"].mul_(0)
        return {}

    fed = make()
    sent = fed.send(tell, PAIRS)
    before = came(fed.map(hear, received=sent))
    fed.map(spoil, received=sent)
    assert came(fed.map(hear, received=sent)) == before


def test_trees_of_different_shapes_are_heard_too(make: Make) -> None:
    @on_client(sends={"v": "labels"}, ragged=True, peers=True)
    def labels(client: Client, message: Tree) -> Tree:
        return {"v": client.graph.y}

    @on_client(sends={"n": "a length"}, ragged=True)
    def length(client: Client, message: Tree) -> Tree:
        return {"n": len(message["received"]["0"]["v"])}

    fed = make()
    own = {client: len(graph.y) for client, graph in fed.graphs.items()}
    heard = fed.map(length, received=fed.send(labels, LOOP))
    assert [heard[client]["n"] for client in fed.clients] == [own[f"site{(i - 1) % 4}"] for i in range(4)]
