import itertools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedweave.core.federation import Client, Sends, StepInfo, on_client, step_info, step_name
from fedweave.core.mechanism import Gaussian, Mixup
from fedweave.core.random import generator
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.core.tree import Tree, ravel
from fedweave.errors import FedweaveError
from fedweave.ops.touched_rows import TouchedRows
from tests.refusals import refusal

CLIENTS = [f"c{i}" for i in range(7)]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(generator(3, f"replies {shape}").normal(size=shape)).to(dtype)


def summed(replies: Replies, weights: Tensor) -> Any:
    return replies.weighted_sum("w", weights)


def grouped(w: Tensor, groups: list[list[int]], **more: Tensor) -> Replies:
    batches = [
        ReplyBatch(tuple(at), {"w": {"0": {"weight": w[at]}}, **{k: v[at] for k, v in more.items()}}) for at in groups
    ]
    return Replies(CLIENTS[: len(w)], batches, {})


def test_replies_are_in_client_order_however_they_arrived() -> None:
    n = torch.arange(5) * 10
    replies = grouped(values(5, 2), [[3, 1], [4], [2, 0]], n=n)
    assert len(replies) == 5
    assert replies.clients == tuple(CLIENTS[:5])
    assert [reply["n"].item() for reply in replies] == [0, 10, 20, 30, 40]
    assert replies["c3"]["n"] == 30
    assert torch.equal(replies.stack("n"), n)
    assert torch.equal(replies.stack("w/0/weight"), values(5, 2))


def test_missing_clients_are_named() -> None:
    replies = Replies(["a"], [ReplyBatch((0,), {"n": torch.tensor([1])})], {"b": "asleep"})
    assert replies.missing == {"b": "asleep"}
    assert [reply["n"].item() for reply in replies] == [1]


def test_numbers_stand_for_every_client_of_their_batch() -> None:
    replies = Replies(
        ["a", "b", "c"], [ReplyBatch((2, 0), {"n": 4, "s": "x"}), ReplyBatch((1,), {"n": 7, "s": "y"})], {}
    )
    assert replies.stack("n").tolist() == [4, 7, 4]
    assert [reply["s"] for reply in replies] == ["x", "y", "x"]


def test_numbers_keep_their_precision_when_stacked() -> None:
    replies = Replies(["a", "b"], [ReplyBatch((0, 1), {"loss": 0.1})], {})
    assert replies.stack("loss").double().tolist() == [0.1, 0.1]


def test_differing_shapes_cannot_be_stacked() -> None:
    replies = Replies(
        ["a", "b"], [ReplyBatch((0,), {"x": torch.zeros(1, 2)}), ReplyBatch((1,), {"x": torch.zeros(1, 3)})], {}
    )
    with refusal("reply.shapes", "'x': [2], [3]"):
        replies.stack("x")


def test_asking_for_what_was_not_sent_says_what_was() -> None:
    replies = grouped(values(2, 2), [[0, 1]])
    with refusal("reply.no-key", "'v'", "w/0/weight"):
        replies.weighted_sum("v", torch.ones(2))
    with refusal("reply.no-key", "'v'"):
        replies.stack("v")
    with refusal("reply.no-client", "'zz'"):
        replies["zz"]


def test_weights_of_another_number_of_clients_are_refused() -> None:
    with pytest.raises(FedweaveError):
        grouped(values(2, 2), [[0, 1]]).weighted_sum("w", torch.ones(5))


def test_weighted_sum_of_a_leaf_a_subtree_and_a_path() -> None:
    replies = grouped(values(3, 2), [[0, 1, 2]], n=torch.tensor([1.0, 2.0, 4.0]))
    weights = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    assert replies.weighted_sum("n", weights) == 2.0
    expected = (weights @ values(3, 2).double()).float()
    torch.testing.assert_close(replies.weighted_sum("w", weights)["0"]["weight"], expected)
    torch.testing.assert_close(replies.weighted_sum("w/0/weight", weights), expected)
    torch.testing.assert_close(replies.weighted_sum("w/0", weights)["weight"], expected)


def test_weighted_sum_of_an_empty_tensor_is_empty() -> None:
    assert grouped(torch.zeros(3, 0), [[0, 1], [2]]).weighted_sum("w", torch.ones(3))["0"]["weight"].shape == (0,)


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(7)), st.sets(st.integers(1, 6)), st.sampled_from([torch.float32, torch.float64]))
def test_neither_order_nor_grouping_shows_in_the_sum(order: list[int], cuts: set[int], dtype: torch.dtype) -> None:
    w = values(7, 5, 3, dtype=dtype)
    weights = torch.tensor([float(Fraction(i + 1, 28)) for i in range(7)], dtype=torch.float64)
    ends = [0, *sorted(cuts), 7]
    groups = [list(order[a:b]) for a, b in itertools.pairwise(ends)]
    got = grouped(w, groups).weighted_sum("w", weights)["0"]["weight"]
    whole = grouped(w, [list(range(7))]).weighted_sum("w", weights)["0"]["weight"]
    dense = (weights.view(-1, 1, 1) * w.double()).sum(0)
    assert got.dtype == dtype
    if dtype == torch.float32:
        assert torch.equal(got, whole)
        assert torch.equal(got, dense.float())
    else:
        torch.testing.assert_close(got, dense, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("count", [2, 3, 5, 7])
def test_the_mean_of_equal_weights_is_that_weight(count: int) -> None:
    w = values(1, 1000).expand(count, -1)
    weights = torch.full((count,), 1 / count, dtype=torch.float64)
    assert torch.equal(grouped(w, [list(range(count))]).weighted_sum("w", weights)["0"]["weight"], w[0])


def test_pieces_of_large_tensors_add_up() -> None:
    w = values(3, 70_001)
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    got = grouped(w, [[0, 1], [2]]).weighted_sum("w", weights)["0"]["weight"]
    torch.testing.assert_close(got.double(), weights @ w.double(), rtol=1e-6, atol=1e-9)


def test_rows_that_are_stored_once_count_for_every_client() -> None:
    rest, rows = values(6, 2), torch.tensor([[0, 3], [5, 6], [3, 6], [6, 6]])  # 6 marks padding
    own = values(4, 2, 2) + 10
    touched = TouchedRows(rest, rows, own)
    whole = torch.stack([TouchedRows(rest, rows[p], own[p]).materialize() for p in range(4)])
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    replies = Replies(CLIENTS[:4], [ReplyBatch((0, 1, 2, 3), {"w": touched})], {})
    plain = Replies(CLIENTS[:4], [ReplyBatch((0, 1, 2, 3), {"w": whole})], {})
    assert torch.equal(summed(replies, weights), summed(plain, weights))
    assert torch.equal(replies.stack("w"), whole)
    assert torch.equal(replies["c1"]["w"].materialize(), whole[1])
    mixed = Replies(
        CLIENTS[:4],
        [
            ReplyBatch((2,), {"w": whole[2:3]}),
            ReplyBatch((0, 1, 3), {"w": TouchedRows(rest, rows[[0, 1, 3]], own[[0, 1, 3]])}),
        ],
        {},
    )
    assert torch.equal(summed(mixed, weights), summed(plain, weights))


def test_a_matrix_has_a_row_for_each_client_as_ravel_orders_it() -> None:
    trees = [{"b": values(3, 2) + p, "a": {"z": values(2) * p, "k": torch.tensor(float(p))}} for p in range(3)]
    stacked = {
        "b": torch.stack([t["b"] for t in trees]),
        "a": {k: torch.stack([t["a"][k] for t in trees]) for k in "zk"},
    }
    replies = Replies(
        CLIENTS[:3],
        [
            ReplyBatch(
                (2, 0), {"w": {"b": stacked["b"][[2, 0]], "a": {k: v[[2, 0]] for k, v in stacked["a"].items()}}}
            ),
            ReplyBatch((1,), {"w": {"b": TouchedRows(values(3, 2), torch.tensor([[0, 1, 2]]), stacked["b"][1:2]),
                               "a": {k: v[1:2] for k, v in stacked["a"].items()}}}),
        ],
        {},
    )  # fmt: skip
    matrix = replies.matrix("w")
    assert matrix.dtype == torch.float64
    assert torch.equal(matrix, torch.stack([ravel(tree).double() for tree in trees]))
    assert torch.equal(replies.matrix("w/a/k"), torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64))


def test_clients_that_touch_no_row_at_all_send_the_shared_rows() -> None:
    touched = TouchedRows(values(6, 2), torch.zeros(3, 0, dtype=torch.int64), torch.zeros(3, 0, 2))
    replies = Replies(CLIENTS[:3], [ReplyBatch((0, 1, 2), {"w": touched})], {})
    torch.testing.assert_close(replies.weighted_sum("w", torch.ones(3) / 3), values(6, 2))


@on_client(sends={"n": "how many"})
def count(client: Client, message: Tree) -> Tree:
    return {"n": 1}


@dataclass(frozen=True)
class Made:
    word: str = "x"

    @on_client(sends=lambda self: {self.word: "a word"}, ragged=True)
    def step(self, client: Client, message: Tree) -> Tree:
        return {self.word: 1}


def test_steps_declare_what_they_send() -> None:
    assert step_info(count) == StepInfo({"n": Sends("how many")}, False)
    assert step_info(Made("y").step) == StepInfo({"y": Sends("a word")}, True)
    assert (step_name(count), step_name(Made().step)) == ("count", "Made.step")


def test_the_nearest_declaration_speaks_for_a_leaf() -> None:
    mixed, noised = Mixup(4), Gaussian(0.5)
    told = {"egos": Sends("egos", mixed), "egos/x": Sends("rows", (mixed, noised)), "n": "how many", "a/b": "one leaf"}
    info = StepInfo.of(told)
    assert [info.covering(path) for path in ("egos/x/0", "egos/y", "egos", "n", "a/b/c", "a/c", "egosx")] == [
        "egos/x", "egos", "egos", "n", "a/b", None, None,
    ]  # fmt: skip
    reply = {"egos": {"x": {"0": 1, "1": 2}, "y": 3, "z": 4}, "n": 5}
    assert info.mechanisms_of(reply) == [("egos/x", (mixed, noised)), ("egos", (mixed,)), ("n", ())]


def test_a_mechanism_is_a_value_and_no_prose() -> None:
    assert [Sends("x", own).mechanisms for own in (None, Mixup(2), (Mixup(2), Gaussian(1.0)))] == [
        (), (Mixup(2),), (Mixup(2), Gaussian(1.0)),
    ]  # fmt: skip
    for claim in ("LDP ε=1", ("LDP ε=1",), (Mixup(2), "noise"), Mixup):
        with pytest.raises(TypeError, match="not a mechanism"):
            Sends("x", claim)  # type: ignore[arg-type]


def test_unmarked_functions_are_refused() -> None:
    def plain(client: Client, message: Tree) -> Tree:
        return {}

    with refusal("step.unmarked", "@on_client"):
        step_info(plain)
    plain.on_client = True  # type: ignore[attr-defined]
    with refusal("step.unmarked", "@on_client"):
        step_info(plain)
