"""What clients have from the message before is not counted, or sent, again where `resend` is off."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedweave.core.federation import Client, on_client
from fedweave.core.graph import Graph
from fedweave.core.ledger import Ledger
from fedweave.core.replies import Stacked
from fedweave.core.tree import Tree, decode, encode, encoded_size
from fedweave.core.types import HELD
from fedweave.engines.messages import Messages
from fedweave.engines.resend import LastReceived, LastSent
from fedweave.engines.simulation import MODES, Simulation
from fedweave.ops.sparsified import Sparsified
from tests.refusals import refusal

SIZES = [5, 40, 20]
W, B = torch.ones(4, 3), torch.ones(3)


@on_client(sends={"x": "a sum"}, hears={"w": "a model"})
def add_up(client: Client, message: Tree) -> Tree:
    return {"x": sum(leaf.sum() for leaf in message["w"].values())}


@pytest.fixture(params=MODES)
def make(request: pytest.FixtureRequest, make_graphs: Callable[..., dict[str, Graph]]) -> Callable[..., Simulation]:
    return lambda resend: Simulation(make_graphs(SIZES), classes=3, mode=request.param, resend=resend)


def downs(fed: Simulation) -> list[dict[str, Any]]:
    return [row for row in fed.ledger.table().to_pylist() if row["direction"] == "down"]


def test_a_tensor_is_counted_once_until_it_changes(make: Callable[..., Simulation]) -> None:
    fed, w, b = make(resend=False), W.clone(), B.clone()
    fed.map(add_up, {"w": {"weight": w, "bias": b}})
    second = fed.map(add_up, {"w": {"weight": w, "bias": b}})
    b += 1  # in place
    third = fed.map(add_up, {"w": {"weight": w, "bias": b}})
    fed.map(add_up, {"w": {"weight": w.clone(), "bias": b}})  # equal, but not known to be
    fed.map(add_up, {"w": {"weight": w, "bias": b}})
    fed.map(add_up, {"w": {"weight": w, "bias": b}})  # the bias, which was left out before, is held all the same
    keys = [{row["key"] for row in downs(fed) if row["call"] == call} - {"(names and framing)"} for call in range(6)]
    assert keys == [
        {"w/weight", "w/bias"},
        {HELD},
        {"w/bias", HELD},
        {"w/weight", HELD},
        {"w/weight", HELD},
        {HELD},
    ]
    assert [float(reply["x"]) for reply in (*second, *third)] == [15.0] * 3 + [18.0] * 3
    assert len({row["reveals"] for row in downs(fed) if row["key"] == HELD}) == 1
    assert {row["reveals"] for row in downs(fed) if row["key"] == "w/bias"} == {"a model"}


def test_everything_is_counted_each_time_by_default(make: Callable[..., Simulation]) -> None:
    fed = make(resend=True)
    for _ in range(2):
        fed.map(add_up, {"w": {"weight": W}})
    size = encoded_size({"w": {"weight": W}})
    assert fed.ledger.bytes_down == 2 * len(SIZES) * size
    assert not any(row["key"] == HELD for row in downs(fed))


def test_who_was_not_called_gets_all(make: Callable[..., Simulation]) -> None:
    fed, message = make(resend=False), {"w": {"weight": W}}
    fed.map(add_up, message, clients=["site1"])
    fed.map(add_up, message)
    again = [row["client"] for row in downs(fed) if row["call"] == 1 and row["key"] == "w/weight"]
    assert sorted(again) == ["site0", "site2"]


def test_an_empty_message_leaves_what_is_known(make: Callable[..., Simulation]) -> None:
    @on_client()
    def rest(client: Client, message: Tree) -> Tree:
        return {}

    fed, message = make(resend=False), {"w": {"weight": W}}
    fed.map(add_up, message)
    fed.map(rest)
    fed.map(add_up, message)
    assert {row["key"] for row in downs(fed) if row["call"] == 2} == {HELD, "(names and framing)"}


@pytest.mark.parametrize("resend", [False, True])
def test_a_sparse_tensor_is_counted_as_long_as_it_is_for_each(resend: bool, make: Callable[..., Simulation]) -> None:
    @on_client()
    def rest(client: Client, message: Tree) -> Tree:
        return {}

    fed, names = make(resend=resend), ("site0", "site1", "site2")
    rows = torch.tensor([[1.0, 0, 0, 0], [1.0, 2.0, 3.0, 0], [0, 0, 0, 0]])
    fed.map(rest, each=Stacked(names, {"w": {"weight": Sparsified(rows)}}))
    counted = {row["client"]: row["bytes"] for row in downs(fed) if row["key"] == "w/weight"}
    sizes = {name: int(row.count_nonzero()) * (4 + 4) for name, row in zip(names, rows, strict=True)}
    assert counted == sizes


@pytest.mark.parametrize("resend", [False, True])
def test_sparse_tensors_of_many_clients_are_counted_at_once(resend: bool) -> None:
    """No kernel runs for each client, and none waits but one."""

    def kernels(clients: int) -> Counter[str]:
        names, rows = [f"c{at}" for at in range(clients)], torch.eye(40)[:clients]
        each = Stacked(tuple(names), {"w": {"weight": Sparsified(rows), "bias": Sparsified(rows[:, 0])}})
        messages, ledger = Messages("s", {}, each, names, names), Ledger()
        encoded_size(messages.down(names[0]))  # the form of such messages is known from then on
        with Counted() as counted:
            for part, sent, counts in LastSent(resend).group_by_message(names, messages):
                ledger.record(0, 0, "s", part, "down", sent, counts=counts)
        assert ledger.bytes_down == sum(len(encode(messages.down(name))) for name in names)
        return counted.kernels

    few, many = kernels(3), kernels(40)
    assert few == many
    assert few["aten._local_scalar_dense.default"] == few["aten.nonzero.default"] == 0


class Counted(TorchDispatchMode):
    """How often which kernel ran, views aside."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.kernels[str(function)] += not function.is_view
        return function(*args, **(kwargs or {}))


def test_only_the_last_message_counts_on_both_sides() -> None:
    server, client = LastSent(resend=False), LastReceived(resend=False)
    for message in ({"w": W}, {"b": B}):
        client.whole(server.shorten({"a": message})["a"])
        server.note({"a": message}, ["a"])
    assert HELD not in server.shorten({"a": {"w": W}})["a"]
    with refusal("call-refused", "leaves out"):
        client.whole({HELD: "w"})


def test_clients_with_the_same_message_get_what_each_of_them_lacks() -> None:
    server, message = LastSent(resend=False), {"w": W}
    server.note({"a": message}, ["a"])
    sent = server.shorten({"a": message, "b": message, "c": message})
    assert [HELD in sent[client] for client in "abc"] == [True, False, False]
    assert sent["b"] is sent["c"]


def test_both_sides_agree_and_one_that_missed_a_call_gets_all() -> None:
    server, client, message = (
        LastSent(resend=False),
        LastReceived(resend=False),
        {"w": {"weight": W, "bias": B}, "n": 3},
    )
    for replied, held in ((["a"], False), (["a"], True), ([], True), (["a"], False)):
        sent = server.shorten({"a": message})["a"]
        got = client.whole(decode(encode(sent)))
        assert got["n"] == 3
        assert torch.equal(got["w"]["weight"], W)
        assert torch.equal(got["w"]["bias"], B)
        got["w"]["weight"] += 1  # a step's mistake, which must not reach the next call
        assert (HELD in sent) == held
        server.note({"a": message}, replied)


@pytest.mark.parametrize(
    "message",
    [
        {HELD: "w/other"},
        {HELD: "w/weight\nw/other"},
        {HELD: "w/weight", "w": {"weight": B}},
        {HELD: "w/weight", "w": 3},
        {HELD: 3},
        {HELD: torch.ones(2)},
    ],
)
def test_a_server_cannot_leave_out_what_it_never_sent(message: Tree) -> None:
    client = LastReceived(resend=False)
    client.whole({"w": {"weight": W}})
    with refusal("call-refused", "leaves out"):
        client.whole(message)


def test_a_client_that_keeps_nothing_takes_nothing_for_known() -> None:
    client = LastReceived(resend=True)
    client.whole({"w": {"weight": W}})
    with refusal("call-refused", "leaves out"):
        client.whole({HELD: "w/weight"})
