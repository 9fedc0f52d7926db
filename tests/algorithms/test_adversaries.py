"""What a dishonest agent is paid by FairGraphFL, on real small graphs, next to what it had been paid for its own work.

An agent with graphs of its own that sends back its last download, or another's update, is not found out by alignment:
both point where the joint update does. Only those without data of their own, who can name no motif, lose by it.
"""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from fedweave.algorithms.fairgraphfl import AgentValue, motif_lists
from tests.algorithms.adversaries import AGENT, LIES, paid

FOUND_OUT = ("noise", "zeros", "its update with the sign flipped")  # whatever else the agent has
every_seed = pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])


@pytest.fixture(autouse=True)
def kept(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWEAVE_DATA", str(data_root))


@lru_cache(maxsize=8)
def honest(seed: int) -> Tensor:
    return paid(seed)


def less(false: Tensor, seed: int) -> bool:
    """Whether the agent is paid less than every other, and than it would be for its own work."""
    others = torch.cat([false[:AGENT], false[AGENT + 1 :]])
    return bool(false[AGENT] < others.min()) and bool(false[AGENT] < honest(seed)[AGENT])


@pytest.mark.slow
@every_seed
@pytest.mark.parametrize("what", FOUND_OUT)
def test_one_that_sends_something_else_than_its_update_is_paid_less(what: str, seed: int) -> None:
    assert less(paid(seed, LIES[what]), seed)


@pytest.mark.often("zeros-0")
@every_seed
@pytest.mark.parametrize("what", LIES)
def test_one_without_data_is_paid_less_whatever_it_sends(what: str, seed: int) -> None:
    assert less(paid(seed, LIES[what], idle=True), seed)


@every_seed
def test_one_without_data_is_paid_less_however_often_it_lists_a_motif_of_anothers(seed: int) -> None:
    assert less(paid(seed, LIES["zeros"], idle=True, repeated=2048), seed)


def test_a_motif_counts_once_in_its_first_row() -> None:
    for motif, expected in (([7, 3, 7, -1, 3, 5, -1], [7, 3, -1, -1, -1, 5, -1]), ([], [])):
        stacked = torch.tensor([motif], dtype=torch.int64)
        round = SimpleNamespace(replies=SimpleNamespace(stack=lambda name, padding, stacked=stacked: stacked))
        assert motif_lists(round).tolist() == [expected]  # type: ignore[arg-type]


@pytest.mark.slow
@every_seed
@pytest.mark.parametrize("budget", [1.0, 1000.0])
def test_ten_times_its_update_earns_an_agent_nothing_where_that_is_money(budget: float, seed: int) -> None:
    """A budget of 1 divides shares as the paper does, where it earns up to a seventh more."""
    own = paid(seed, budget=budget)[AGENT]
    more = paid(seed, lambda engine, sent, got: 10 * sent[AGENT], budget=budget)[AGENT] / own
    assert more > 1.005 if budget == 1 else more < 1.005


def test_alignment_of_one_norm_does_not_know_how_long_updates_are() -> None:
    part, updates = AgentValue(alpha2=0.0), torch.randn(4, 9, generator=torch.Generator().manual_seed(1))
    r = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    state = {"r": r, "phi": 0 * r, "d": 0 * r, "heard": r < 0, "motif": torch.full((4, 0), -1)}

    def values(times: float, one_norm: bool) -> Tensor:
        scaled = updates * torch.tensor([times, 1, 1, 1])[:, None]
        round = SimpleNamespace(updates=scaled, weights=r.float(), at=torch.arange(4))
        return replace(part, one_norm=one_norm).update(state, round)["phi"]  # type: ignore[arg-type]

    assert torch.allclose(values(10.0, True), values(1.0, True))
    assert values(10.0, False)[0] > values(1.0, False)[0] + 0.1
    unit = updates.double() / updates.double().norm(dim=1, keepdim=True)
    assert torch.allclose(values(1.0, True), unit @ (r @ unit) / (r @ unit).norm(), atol=1e-6)


@every_seed
def test_honest_agents_share_the_budget_evenly(seed: int) -> None:
    shares = honest(seed) / honest(seed).sum()
    assert shares.sum() == pytest.approx(1)
    assert shares.min() > 0.6 / len(shares)
