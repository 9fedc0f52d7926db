"""What `map` promises, in both modes."""

import contextlib
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedweave.core import random
from fedweave.core.federation import Client, Sends, on_client
from fedweave.core.graph import Graph
from fedweave.core.mechanism import LDP, Gaussian
from fedweave.core.replies import Replies, Stacked
from fedweave.core.tree import Tree, decode, encode
from fedweave.engines.simulation import MODES, Simulation
from fedweave.errors import ClientsMissing, ConfigError, FedweaveError, ReplyRefused, StepFailed
from tests.refusals import refusal

SIZES = [5, 40, 20, 70, 9]
Make = Callable[..., Simulation]


@pytest.fixture(params=MODES)
def make(request: pytest.FixtureRequest, make_graphs: Callable[..., dict[str, Graph]]) -> Make:
    def made(sizes: Any = SIZES, **options: Any) -> Simulation:
        return Simulation(make_graphs(sizes), **{"classes": 3, "mode": request.param} | options)

    return made


def numbers(replies: Replies, key: str = "x") -> list[float]:
    return [float(reply[key]) for reply in replies]


def digits(client: Client) -> Tensor:
    """The client's nodes, which tell clients apart."""
    return client.graph.real.sum()


@on_client(sends={"x": "a count"})
def count(client: Client, message: Tree) -> Tree:
    client.state["n"] = client.state.get("n", 0 * digits(client)) + message.get("by", 1)
    return {"x": client.state["n"]}


@on_client(sends={"x": Sends("noise", Gaussian(0.5)), "y": "noise", "secret": "noise"})
def draw(client: Client, message: Tree) -> Tree:
    return {
        "x": random.uniform(client.key, (3,)),
        "y": random.normal(random.fold(client.key, "other"), ()),
        "secret": random.uniform(client.secret, (3,)),
    }


@on_client(sends={"x": "the message"})
def echo(client: Client, message: Tree) -> Tree:
    return {"x": message["x"] * digits(client)}


@pytest.mark.parametrize("record", ["auto", "always", "never"])
def test_one_draw_of_numpys_for_a_whole_batch_is_refused(make: Make, record: str) -> None:
    """All clients would have the same number, and once recorded the same in every round."""

    @on_client(sends={"x": "noise"})
    def shaken(client: Client, message: Tree) -> Tree:
        return {"x": digits(client) + np.random.normal()}  # noqa: NPY002

    fed = make([40, 40, 20], record=record)
    if fed.mode == "loop":
        assert len(set(numbers(fed.map(shaken)))) == 3
        return
    with refusal("step-failed", "NumPy's", "client.key"):
        fed.map(shaken)


# State


def test_a_client_keeps_its_state_between_calls_and_nobody_elses(make: Make) -> None:
    fed = make()
    fed.map(count)
    assert numbers(fed.map(count)) == [2, 2, 2, 2, 2]
    assert numbers(fed.map(count, clients=["site3", "site1"])) == [3, 3]
    assert numbers(fed.map(count, {"by": 10})) == [12, 13, 12, 13, 12]
    assert {client: int(state["n"]) for client, state in fed.snapshot().items()} == {
        "site0": 12, "site1": 13, "site2": 12, "site3": 13, "site4": 12,
    }  # fmt: skip


def test_states_survive_a_checkpoint(make: Make) -> None:
    fed, straight = make(), make()
    for each in (fed, straight):
        each.map(count)
        each.map(count, {"by": 5}, clients=["site1"])
    again = make()
    again.map(count, {"by": 99})
    again.restore(decode(encode(fed.snapshot())))
    assert numbers(again.map(count)) == numbers(straight.map(count)) == [2, 7, 2, 2, 2]


def test_a_failed_call_leaves_no_trace_in_the_states(make: Make) -> None:
    @on_client(sends={"x": "nothing"})
    def fails(client: Client, message: Tree) -> Tree:
        client.state["n"].add_(100)
        raise ValueError("no")

    fed = make()
    fed.map(count)
    with pytest.raises(StepFailed):
        fed.map(fails)
    assert numbers(fed.map(count)) == [2] * 5


def test_a_kept_message_is_the_clients_own(make: Make) -> None:
    @on_client()
    def keep(client: Client, message: Tree) -> Tree:
        client.state["w"] = message["w"]
        return {}

    @on_client(sends={"x": "weights"})
    def grow(client: Client, message: Tree) -> Tree:
        client.state["w"].add_(1)
        return {"x": client.state["w"]}

    fed, sent = make(), torch.zeros(2)
    fed.map(keep, {"w": sent})
    assert fed.map(grow).stack("x").tolist() == [[1, 1]] * 5
    assert torch.equal(sent, torch.zeros(2))
    sent.add_(50)
    assert fed.map(grow).stack("x").tolist() == [[2, 2]] * 5


# Messages


def test_each_client_gets_the_shared_message_and_its_own(make: Make) -> None:
    fed = make()
    each = {client: {"x": torch.tensor(float(10**i))} for i, client in enumerate(fed.clients)}
    assert numbers(fed.map(echo, {"x": torch.tensor(-1.0)}, each=each)) == [n * 10**i for i, n in enumerate(SIZES)]
    some = ["site4", "site2"]
    assert numbers(fed.map(echo, each=each, clients=some)) == [100 * 20, 10000 * 9]


@pytest.mark.parametrize("value", [0.1, 3, True])
def test_numbers_of_a_clients_own_keep_their_precision(make: Make, value: Any) -> None:
    @on_client(sends={"x": "x"})
    def times(client: Client, message: Tree) -> Tree:
        return {"x": torch.ones((), dtype=torch.float64) * message["x"]}

    fed = make()
    assert (
        fed.map(times, each={client: {"x": value} for client in fed.clients}).stack("x").tolist() == [float(value)] * 5
    )


def test_strings_can_be_a_clients_own_or_are_refused(make: Make) -> None:
    @on_client(sends={"x": "x"})
    def name(client: Client, message: Tree) -> Tree:
        return {"x": digits(client)}

    fed = make()
    try:
        fed.map(name, each={client: {"who": client} for client in fed.clients})
    except FedweaveError as error:
        assert re.search("who", str(error))  # noqa: PT017


def test_clients_own_numbers_of_two_kinds_stay_of_their_kind(make: Make) -> None:
    @on_client(sends={"x": "x"})
    def kind(client: Client, message: Tree) -> Tree:
        return {"x": torch.tensor(float(message["n"].is_floating_point()))}

    fed = make([40, 40])
    assert numbers(fed.map(kind, each={"site0": {"n": 3}, "site1": {"n": 3.0}})) == [0, 1]


def test_each_must_name_all_called_clients_in_every_mode(make: Make) -> None:
    fed = make([40, 40, 40])
    with refusal("call.each", "each"):
        fed.map(echo, {"x": torch.tensor(1.0)}, each={"site0": {"x": torch.tensor(2.0)}})


def test_each_must_not_name_strangers(make: Make) -> None:
    fed = make()
    each = {client: {"x": torch.tensor(1.0)} for client in [*fed.clients, "nobody"]}
    with refusal("call.each", "nobody"):
        fed.map(echo, each=each)


def test_each_must_give_every_client_the_same_keys(make: Make) -> None:
    fed, number = make([40, 40]), torch.tensor(1.0)
    for odd in ({"y": number}, {"x": number, "y": number}):
        with refusal("call.each"):
            fed.map(echo, each={"site0": {"x": number}, "site1": odd})


@pytest.mark.parametrize("called", [["site0", "nobody"], ["site0", "site0"]])
def test_strangers_and_repeated_clients_are_refused(make: Make, called: list[str]) -> None:
    with refusal("call.clients", "unknown or repeated"):
        make().map(count, clients=called)


def test_a_step_may_not_change_its_message_in_place(make: Make) -> None:
    @on_client(sends={"x": "x"})
    def mutate(client: Client, message: Tree) -> Tree:
        message["w"]["a"].add_(1)
        return {"x": digits(client)}

    fed, w = make(), {"a": torch.zeros(3)}
    with pytest.raises(StepFailed, match="changed its message"):
        fed.map(mutate, {"w": w})
    two = make([40, 40])
    with pytest.raises(StepFailed, match="changed its message"):
        two.map(mutate, each=Stacked(two.clients, {"w": {"a": torch.zeros(2, 3)}}))


def test_what_a_step_writes_into_its_own_message_reaches_no_other_client(make: Make) -> None:
    """Where the server gives two clients the same tensor. Run one after the other they would share it."""

    @on_client(sends={"x": "x"})
    def mutate(client: Client, message: Tree) -> Tree:
        return {"x": message["a"].add_(1).sum()}

    fed, a = make([40, 40]), torch.zeros(3)
    each = {client: {"a": a} for client in fed.clients}
    with pytest.raises(StepFailed, match="changed its message") if fed.mode == "loop" else contextlib.nullcontext():
        assert numbers(fed.map(mutate, each=each)) == [3, 3]
        assert not a.any()


def test_what_a_step_puts_into_its_message_reaches_nobody(make: Make) -> None:
    @on_client(sends={"x": "x"})
    def replace(client: Client, message: Tree) -> Tree:
        message["w"]["a"] = message["w"]["a"] + 1
        message["w"]["b"] = torch.ones(())
        return {"x": message["w"]["a"].sum()}

    fed, w = make(), {"a": torch.zeros(3)}
    with contextlib.suppress(StepFailed):  # to refuse it is right too
        assert numbers(fed.map(replace, {"w": w})) == [3] * 5
    assert list(w) == ["a"]
    assert torch.equal(w["a"], torch.zeros(3))


def test_messages_that_are_no_trees_are_refused(make: Make) -> None:
    fed = make()
    with pytest.raises(ReplyRefused, match="the message of echo holds a list at 'x'"):
        fed.map(echo, {"x": [1]})
    with refusal("reply-refused", "'site0'", "'x'"):
        fed.map(echo, each={client: {"x": [1]} for client in fed.clients})


# Replies


def test_replies_are_in_client_order_whatever_was_asked(make: Make) -> None:
    fed = make()
    replies = fed.map(echo, {"x": torch.tensor(1.0)}, clients=["site3", "site0", "site4"])
    assert replies.clients == ("site0", "site3", "site4")
    assert numbers(replies) == [5, 70, 9]


def test_replies_are_copies(make: Make) -> None:
    """Neither states, messages nor graphs are reached through a reply."""

    @on_client(sends={"state": "s", "sent": "s", "y": "s"})
    def share(client: Client, message: Tree) -> Tree:
        client.state["w"] = client.state.get("w", torch.zeros(3)) + 1
        return {"state": client.state["w"], "sent": message["w"], "y": client.graph.y[:4]}

    fed, w = make([40] * 3), torch.zeros(3)
    first = fed.map(share, {"w": w})
    expected = [{key: leaf.clone() for key, leaf in reply.items()} for reply in first]
    for reply in first:
        for leaf in reply.values():
            leaf.add_(100)
    assert torch.equal(w, torch.zeros(3))
    second = fed.map(share, {"w": w})
    for reply, before in zip(second, expected, strict=True):
        assert torch.equal(reply["state"], before["state"] + 1)
        assert torch.equal(reply["sent"], before["sent"])
        assert torch.equal(reply["y"], before["y"])


def test_a_reply_does_not_follow_later_calls(make: Make) -> None:
    @on_client(sends={"x": "s"})
    def accumulate(client: Client, message: Tree) -> Tree:
        if "w" not in client.state:
            client.state["w"] = torch.zeros(2) + digits(client)
        else:
            client.state["w"].add_(1)
        return {"x": client.state["w"]}

    fed = make()
    first = fed.map(accumulate)
    before = first.stack("x").clone()
    fed.map(accumulate)
    assert torch.equal(first.stack("x"), before)
    assert before[:, 0].tolist() == SIZES


def test_a_stacked_leaf_is_a_copy(make: Make) -> None:
    replies = make([40] * 3).map(draw)
    before = replies.stack("x").clone()
    replies.stack("x").add_(1)
    assert torch.equal(replies.stack("x"), before)


@pytest.mark.parametrize(
    "reply",
    [None, [1], {"x": [1]}, {"x": None}, {"a/b": 1}, torch.zeros(1)],
    ids=["none", "list", "leaf", "none leaf", "key", "tensor"],
)
def test_replies_and_states_that_are_no_trees_are_refused(make: Make, reply: Any) -> None:
    @on_client(sends={"x": "x", "a/b": "x"})
    def bad(client: Client, message: Tree) -> Tree:
        return reply

    @on_client()
    def hoards(client: Client, message: Tree) -> Tree:
        client.state["s"] = reply
        return {}

    with pytest.raises(ReplyRefused, match="bad"):
        make().map(bad)
    if not isinstance(reply, Tensor):
        with refusal("reply-refused", "hoards"):
            make().map(hoards)


def test_undeclared_keys_do_not_leave(make: Make) -> None:
    @on_client(sends={"x": "a count"})
    def leaks(client: Client, message: Tree) -> Tree:
        return {"x": 1, "features": client.graph.y}

    fed = make()
    with refusal("reply-refused", "replies with features, but declares x"):
        fed.map(leaks)
    assert fed.ledger.bytes_up == 0


def test_steps_may_reply_with_nothing_or_with_numbers(make: Make) -> None:
    @on_client()
    def nothing(client: Client, message: Tree) -> Tree:
        return {}

    @on_client(sends={"n": "n", "s": "s"})
    def plain(client: Client, message: Tree) -> Tree:
        client.state["s"] = "kept"
        return {"n": 2.5, "s": "word"}

    fed = make()
    assert list(fed.map(nothing)) == [{}] * 5
    for _ in range(2):
        assert list(fed.map(plain)) == [{"n": 2.5, "s": "word"}] * 5


# Failures


def test_a_failing_step_is_named_with_the_client(make: Make) -> None:
    @on_client(sends={"x": "x"})
    def divides(client: Client, message: Tree) -> Tree:
        if client.graph.y.shape[-1] > 64:  # one client is padded to 96 rows, and when batched so is every other
            raise ZeroDivisionError("the ninth node")
        return {"x": 1}

    with pytest.raises(
        StepFailed, match=r"^step divides failed on client 'site3' \(test_simulation\.py, line \d+\): Zero"
    ):
        make().map(divides)


def test_a_step_that_fails_everywhere_names_a_client_too(make: Make) -> None:
    @on_client(sends={"x": "x"})
    def fails(client: Client, message: Tree) -> Tree:
        raise KeyError("w")

    with pytest.raises(
        StepFailed, match=r"^step fails failed on client 'site[0-4]' \(test_simulation\.py, line \d+\): KeyError"
    ) as caught:
        make().map(fails)
    assert caught.value.__cause__ is not None or caught.value.__context__ is not None


def test_a_step_that_only_fails_when_vectorized_says_what_to_do(make_graphs: Callable[..., dict[str, Graph]]) -> None:
    @on_client(sends={"x": "x"})
    def branches(client: Client, message: Tree) -> Tree:
        return {"x": float(client.graph.real.sum().item())}

    graphs = make_graphs(SIZES)
    told = r"branches failed when vectorized .* Leave out \.item\(\).* mark a step of your own .*ragged=True\), or set"
    with pytest.raises(StepFailed, match=told):
        Simulation(graphs, classes=3, mode="vmap").map(branches)
    assert numbers(Simulation(graphs, classes=3, mode="loop").map(branches)) == SIZES


def test_a_step_of_a_length_that_depends_on_data_is_told_of_ragged(
    make_graphs: Callable[..., dict[str, Graph]],
) -> None:
    @on_client(sends={"x": "x"})
    def some(client: Client, message: Tree) -> Tree:
        return {"x": client.graph.real.nonzero().flatten()}

    with refusal("step-failed", "@on_client(…, ragged=True)"):
        Simulation(make_graphs(SIZES), classes=3, mode="vmap").map(some)


def test_ragged_steps_run_in_both_modes(make: Make) -> None:
    @on_client(sends={"x": "nodes"}, ragged=True)
    def ragged(client: Client, message: Tree) -> Tree:
        client.state["seen"] = client.graph.real.nonzero().flatten()
        return {"x": client.state["seen"]}

    fed = make()
    assert [len(reply["x"]) for reply in fed.map(ragged)] == SIZES
    with refusal("reply.shapes", "differ in shape"):
        fed.map(ragged).stack("x")
    assert numbers(fed.map(count)) == [1] * 5  # states of different shapes do not stop the next step
    assert {client: len(state["seen"]) for client, state in fed.snapshot().items()} == dict(
        zip(fed.clients, SIZES, strict=True)
    )


def test_unmarked_steps_are_refused(make: Make) -> None:
    with refusal("step.unmarked", "@on_client"):
        make().map(lambda client, message: {})


# Absence


def test_absent_clients_are_named_with_their_reason(make: Make) -> None:
    fed = make(absent=lambda round, client: "asleep" if (round, client) in {(0, "site1"), (1, "site4")} else None)
    replies = fed.map(count, quorum=0.5)
    assert replies.clients == ("site0", "site2", "site3", "site4")
    assert replies.missing == {"site1": "asleep"}
    fed.begin(1)
    assert numbers(fed.map(count, quorum=0.5)) == [2, 1, 2, 2]
    assert fed.map(count, clients=["site0", "site1"]).missing == {}
    with refusal("clients-missing", "'count': 4 of 5", "Missing: site4:") as caught:
        fed.map(count)
    assert caught.value.missing == {"site4": "asleep"}


def test_of_many_who_are_missing_few_are_named() -> None:
    """By the reason that they share; of ten or fewer each with its own."""
    missing = {f"c{i}": "asleep" for i in range(9_999)} | {"x": "its disk is full."}
    with refusal("clients-missing", "0 of 10000", "c0, c1, … c9998 (9,999): asleep; x (1): its disk is full. "):
        raise ClientsMissing("count", missing, 10_000, 10_000)
    replies = Replies([f"c{i}" for i in range(9_999)], [], {})
    with refusal("reply.no-client", "'x'", "9,999 did: c0, c1, … c9998"):
        replies["x"]


def test_a_call_below_quorum_runs_nobody(make: Make) -> None:
    fed = make(absent=lambda round, client: "off" if client == "site0" and round == 0 else None)
    with pytest.raises(ClientsMissing):
        fed.map(count)
    assert fed.ledger.table().num_rows == 0
    fed.begin(1)
    assert numbers(fed.map(count)) == [1] * 5


def test_at_least_one_client_must_reply(make: Make) -> None:
    with pytest.raises(ClientsMissing):
        make(absent=lambda round, client: "off").map(count, quorum=0.0)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 100), st.integers(0, 100), st.integers(0, 100))
def test_the_quorum_is_rounded_up_and_exact(called: int, present: int, percent: int) -> None:
    present = min(present, called)
    fed = object.__new__(Simulation)
    fed.clients = tuple(map(str, range(called)))
    fed._round = 0
    fed._absent = lambda round, client: "off" if int(client) >= present else None
    wanted = max(1, -(-Fraction(percent, 100) * called // 1))
    if present >= wanted:
        assert fed._present("step", fed.clients, percent / 100)[0] == list(fed.clients[:present])
    else:
        with refusal("clients-missing", f" {wanted} are needed"):
            fed._present("step", fed.clients, percent / 100)


@pytest.mark.parametrize("quorum", [-0.1, 1.1])
def test_a_quorum_is_a_share(make: Make, quorum: float) -> None:
    with refusal("call.quorum", "quorum"):
        make(absent=lambda round, client: None).map(count, quorum=quorum)


# Randomness


def drawn(fed: Simulation, **options: Any) -> dict[str, list[float]]:
    replies = fed.map(draw, **options)
    return {
        client: torch.cat([leaf.reshape(-1) for leaf in replies[client].values()]).tolist()
        for client in replies.clients
    }


def test_randomness_does_not_depend_on_who_else_runs(make: Make, make_graphs: Callable[..., dict[str, Graph]]) -> None:
    whole = drawn(make())
    assert len({tuple(values) for values in whole.values()}) == 5
    for chunk in (1, 2, 3):
        assert drawn(make(chunk=chunk)) == whole
    some = ["site4", "site1"]
    assert drawn(make(), clients=some) == {client: whole[client] for client in ("site1", "site4")}
    backwards = make(dict(reversed(list(zip(whole, SIZES, strict=True)))))
    assert drawn(backwards) == whole
    assert (
        drawn(make(absent=lambda round, client: "off" if client == "site2" else None), quorum=0.1).items()
        <= whole.items()
    )


def test_randomness_depends_on_seed_round_call_and_purpose(make: Make) -> None:
    fed = make()
    first, second = drawn(fed), drawn(fed)
    fed.begin(1)
    later = drawn(fed)
    other = drawn(make(seed=1))
    values = [tuple(map(tuple, each.values())) for each in (first, second, later, other)]
    assert len(set(values)) == 4
    assert all(own[:3] != own[-3:] for own in first.values())
    fed.begin(0)
    assert drawn(fed) == first


def test_randomness_does_not_depend_on_other_steps(make: Make) -> None:
    fed = make()
    first = drawn(fed)
    fed.begin(0)
    fed.map(count)
    with pytest.raises(ReplyRefused):
        fed.map(echo, {"x": None})
    assert drawn(fed) == first


def test_the_servers_key_is_of_the_round_and_purpose(make: Make) -> None:
    fed = make()
    a, b = fed.key("a"), fed.key("b")
    fed.map(count)
    assert fed.key("a") == a != b
    fed.begin(1)
    assert fed.key("a") != a


def test_both_modes_draw_the_same(make_graphs: Callable[..., dict[str, Graph]]) -> None:
    one, other = (drawn(Simulation(make_graphs(SIZES), classes=3, mode=mode)) for mode in MODES)
    assert one == other


# Metering


def test_every_message_is_metered_as_serialized(make: Make) -> None:
    fed, message = make(), {"x": torch.ones(7), "n": 3}
    replies = fed.map(echo, message, clients=["site1", "site2"])
    assert fed.ledger.bytes_down == 2 * len(encode(message))
    assert fed.ledger.bytes_up == sum(len(encode(reply)) for reply in replies)
    rows = fed.ledger.table().to_pylist()
    assert {row["client"] for row in rows} == {"site1", "site2"}
    assert {row["reveals"] for row in rows if row["key"] == "x" and row["direction"] == "up"} == {"the message"}
    each = {client: {"x": torch.ones(i)} for i, client in enumerate(fed.clients)}
    before = fed.ledger.bytes_down
    fed.map(echo, {"n": 3}, each=dict.fromkeys(fed.clients, each["site2"]))
    assert fed.ledger.bytes_down - before == 5 * len(encode({"n": 3, "x": torch.ones(2)}))


def test_the_mechanism_is_noted_where_it_was_applied(make: Make) -> None:
    fed = make()
    fed.map(draw)
    up = {row["key"]: row["mechanism"] for row in fed.ledger.table().to_pylist() if row["direction"] == "up"}
    assert (up["x"], up["y"]) == ("Gaussian noise of sigma 0.5", "none")


def test_what_is_said_to_be_drawn_once_must_be_kept(make: Make) -> None:
    @on_client(sends={"x": Sends("bits", LDP(1.0, "node", release="bits"))})
    def forget(client: Client, message: Tree) -> Tree:
        return {"x": client.graph.real.sum()}

    @on_client(sends={"x": Sends("bits", LDP(1.0, "node", release="bits")), "y": "nothing"})
    def keep(client: Client, message: Tree) -> Tree:
        client.state.setdefault("bits", client.graph.real.sum())
        return {"x": client.state["bits"]} if message["send"] else {"y": 0}

    fed = make()
    with refusal("step-failed", "site0", "'bits'", "client.state"):
        fed.map(forget)
    fed.map(keep, {"send": 0})
    fed.map(keep, {"send": 1})


# Construction


def test_impossible_federations_are_refused(make_graphs: Callable[..., dict[str, Graph]]) -> None:
    with refusal("config.unknown-name", "'fast'"):
        Simulation(make_graphs([5]), classes=3, mode="fast")
    with refusal("config.unknown-name", "'often'"):
        Simulation(make_graphs([5]), classes=3, record="often")
    with refusal("config.no-clients", "at least one client"):
        Simulation({}, classes=3)


@pytest.mark.parametrize("name", ["global", "server"])
def test_names_that_files_have_for_others_than_clients_are_refused(
    make_graphs: Callable[..., dict[str, Graph]], name: str
) -> None:
    """Else the rows of a client's numbers would be taken for those of all examples, or of the server."""
    [graph] = make_graphs([5]).values()
    with refusal("config.client-name", name):
        Simulation({"a": graph, name: graph}, classes=3)


@pytest.mark.parametrize("name", ["a/b", "", ".", "..", "a\0"])
def test_client_names_that_no_checkpoint_could_hold_are_refused(
    make_graphs: Callable[..., dict[str, Graph]], name: str
) -> None:
    with pytest.raises(ConfigError):
        Simulation(make_graphs({name: 5}), classes=3)


def test_the_global_test_graph_is_every_clients(make: Make, make_graphs: Callable[..., dict[str, Graph]]) -> None:
    @on_client(sends={"x": "the features' sum"})
    def own_sum(client: Client, message: Tree) -> Tree:
        return {"x": client.graph.x.sum()}  # type: ignore[union-attr]

    @on_client(sends={"x": "logits"})
    def judge(client: Client, message: Tree) -> Tree:
        assert client.test is not None
        return {"x": client.test.edges.operator("gcn") @ (client.test.x * client.graph.x.sum())}  # type: ignore[operator,union-attr]

    outside = make_graphs({"outside": 13})["outside"]
    fed = make(test=outside)
    total = fed.map(own_sum).stack("x")
    alone = outside.edges.operator("gcn") @ outside.x  # type: ignore[operator]
    for x, got in zip(total, fed.map(judge), strict=True):
        torch.testing.assert_close(got["x"], alone * x)
