from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedweave.core.graph import Graph
from fedweave.engines import batches as batching
from fedweave.engines.batches import Batches
from fedweave.engines.data import CurrentGraphs


class Sized:
    """Stands for a graph of n padded rows."""

    def __init__(self, n: int) -> None:
        self.nodes, self.y = n, range(n)


def plan(sizes: list[int], chunk: int = 0) -> list[tuple[int, ...]]:
    graphs = {str(i): Sized(n) for i, n in enumerate(sizes)}
    return [tuple(map(int, batch)) for batch in Batches(CurrentGraphs({}, graphs), chunk).plan(list(graphs))]  # type: ignore[arg-type]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 600).map(lambda blocks: 32 * blocks), min_size=1, max_size=40), st.integers(0, 6))
def test_every_client_runs_once_in_bounded_batches(sizes: list[int], chunk: int) -> None:
    batches = plan(sizes, chunk)
    assert sorted(client for batch in batches for client in batch) == list(range(len(sizes)))
    for batch in batches:
        [size] = {sizes[client] for client in batch}
        assert list(batch) == sorted(batch)
        assert len(batch) <= (chunk or max(1, batching._ROWS_AT_ONCE // size))


def test_clients_of_one_size_run_together_up_to_the_chunk() -> None:
    assert plan([32] * 7) == [(0, 1, 2, 3, 4, 5, 6)]
    assert [len(batch) for batch in plan([32] * 7, chunk=3)] == [3, 3, 1]
    assert len(plan([32] * 10_000)) == -(-10_000 * 32 // batching._ROWS_AT_ONCE)


def test_clients_of_different_sizes_run_apart() -> None:
    assert sorted(plan([32, 64, 32, 20_000, 64])) == [(0, 2), (1, 4), (3,)]


def test_clients_of_one_algorithm_run_together_and_algorithms_are_not_compared_one_with_another() -> None:
    class Own:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise AssertionError

    one, other = Own(), Own()
    graphs, own = {name: Sized(32) for name in "abcde"}, {"a": one, "b": other, "c": one, "e": other}
    found = Batches(CurrentGraphs({}, graphs), 0, algorithms=own).plan("abcde")  # type: ignore[arg-type]
    assert sorted(found) == [("a", "c"), ("b", "e"), ("d",)]


def test_one_client_larger_than_memory_allows_runs_alone() -> None:
    assert plan([batching._ROWS_AT_ONCE * 2, batching._ROWS_AT_ONCE * 2]) == [(0,), (1,)]


def test_stacks_are_kept_for_the_next_round_and_bounded(
    make_graphs: Callable[..., dict[str, Graph]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "_MAX_BYTES", 50_000)
    graphs = make_graphs([5] * 12)
    batches = Batches(CurrentGraphs({}, graphs), 0)
    names = tuple(graphs)
    version, graph = batches.graph(names[:2])
    assert batches.graph(names[:2]) == (version, graph)
    assert graph.y.shape == (2, 32)
    for i in range(12):
        for j in range(i):
            batches.graph((names[j], names[i]))
    assert 2 <= len(batches._stacked) < 60
    assert sum(batching._bytes(graph) for _, graph in batches._stacked.values()) <= 50_000


def test_a_stack_of_changed_data_has_another_version(make_graphs: Callable[..., dict[str, Graph]]) -> None:
    graphs = make_graphs([5] * 4)
    batches, names = Batches(CurrentGraphs({}, graphs), 0), tuple(graphs)
    before = [batches.graph(pair)[0] for pair in (names[:2], names[2:])]
    batches.renew(names[:1])
    after = [batches.graph(pair)[0] for pair in (names[:2], names[2:])]
    assert after[1] == before[1]
    assert after[0] not in before


def test_what_runs_at_once_on_a_gpu_follows_from_its_free_memory(
    make_graphs: Callable[..., dict[str, Graph]], monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = make_graphs([5] * 12)
    names, rows = tuple(graphs), []
    for free in (10**4, 3 * 10**7, 10**11):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 2 * free))
        rows.append(max(map(len, Batches(CurrentGraphs({}, graphs), 0, torch.device("cuda")).plan(names))))
    assert rows[0] == 1 < rows[1] < rows[2] == 12
    assert max(map(len, Batches(CurrentGraphs({}, graphs), 3, torch.device("cuda")).plan(names))) == 3


def test_on_a_gpu_more_than_enough_does_not_run_at_once_and_batches_are_of_one_size(
    make_graphs: Callable[..., dict[str, Graph]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**12, 10**12))
    graphs = make_graphs([5] * 10)
    batches = Batches(CurrentGraphs({}, graphs), 0, torch.device("cuda"))
    assert len(batches.plan(tuple(graphs))) == 1
    one = batching._ENOUGH // batches.max_clients(next(iter(graphs)))
    monkeypatch.setattr(batching, "_ENOUGH", 4 * one)
    batches.renew(())
    assert [*map(len, batches.plan(tuple(graphs)))] == [4, 4, 2]
    monkeypatch.setattr(batching, "_ENOUGH", 9 * one)
    batches.renew(())
    assert [*map(len, batches.plan(tuple(graphs)))] == [5, 5]


@pytest.mark.parametrize("called", [["c", "a"], ["a", "c"]])
def test_batches_are_in_the_order_given(called: list[str]) -> None:
    graphs = {name: Sized(32) for name in "abc"}
    assert Batches(CurrentGraphs({}, graphs), 0).plan(called) == [tuple(called)]  # type: ignore[arg-type]
