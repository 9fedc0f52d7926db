"""DP-FedAvg: the accountant against a library and published values, what noise is added to, and ledgers."""

import math
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from fedweave.accounts.compliance import disclose
from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.parts import Clip, Composition, Context, MemberNoise, Uniform
from fedweave.core import random
from fedweave.core.federation import Client
from fedweave.core.mechanism import Clipped, Gaussian
from fedweave.core.tree import Tree, leaves, norm, ravel, sub
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.reading import read_run
from fedweave.experiment.runs.run import run
from fedweave.privacy.accountant import bounds
from fedweave.privacy.gaussian import epsilon, noise, noise_multiplier
from tests.contract.federations import distance, federation, graphs, model
from tests.refusals import refusal

SHAPES = {"0": {"w": (60, 8), "b": (8,)}, "1": {"w": (8, 3)}}


def tree(make: Any) -> Tree:
    return {layer: {name: make(shape) for name, shape in own.items()} for layer, own in SHAPES.items()}


def released(part: MemberNoise, update: Tree, secret: int) -> Tree:
    graph = graphs()["site-0"]
    client = Client(graph, {}, random.key(0), random.key(secret))
    return part.release(Context(client, None, {}), update)  # type: ignore[arg-type]


# --- the accountant


@pytest.mark.parametrize(
    ("sigma", "rounds", "delta"), [(1.0, 1, 1e-5), (5.0, 30, 1e-5), (40.0, 200, 1e-6), (0.3, 10, 1e-3)]
)
def test_epsilon_is_that_of_dp_accounting(sigma: float, rounds: int, delta: float) -> None:
    """Exactly its analytic Gaussian mechanism, and never more than its Rényi accountant's bound on the same rounds."""
    library = pytest.importorskip("dp_accounting", reason="needs dp-accounting, which is in the extra dev")
    [_, own] = MemberNoise(2.0, sigma, delta=delta).protection.mechanism
    told = epsilon(own.mu * math.sqrt(rounds), delta)
    # The library's noise is in units of the sensitivity, which is 2 · clip here.
    assert told == pytest.approx(library.get_epsilon_gaussian(sigma / 2 / math.sqrt(rounds), delta), rel=1e-9)
    renyi = library.rdp.RdpAccountant()
    renyi.compose(library.GaussianDpEvent(sigma / 2), rounds)
    assert 0.7 * renyi.get_epsilon(delta) < told <= renyi.get_epsilon(delta)
    assert noise_multiplier(told, delta, rounds) == pytest.approx(
        math.sqrt(rounds) * library.get_sigma_gaussian(told, delta), rel=1e-6
    )


@pytest.mark.parametrize(
    ("target", "delta", "published"), [(1.0, 0.5, 0.50706503), (math.log(3), 1e-5, 3.42466239), (1.0, 1e-5, 3.73063163)]
)
def test_the_noise_for_a_target_is_the_published_one(target: float, delta: float, published: float) -> None:
    """The analytic Gaussian mechanism (Balle and Wang 2018): values of TensorFlow Federated's tests and the manual of
    diPLSlib."""
    assert noise_multiplier(target, delta, 1) == pytest.approx(published, rel=1e-8)
    assert noise_multiplier(target, delta, 9) == pytest.approx(3 * published, rel=1e-8)


@pytest.mark.parametrize(("target", "rounds", "delta"), [(0.5, 10, 1e-5), (4.0, 30, 1e-7), (50.0, 1, 1e-3)])
def test_a_target_is_met_and_hardly_missed(target: float, rounds: int, delta: float) -> None:
    part = MemberNoise(clip=0.3, epsilon=target, delta=delta, target_rounds=rounds)
    [_, own] = part.protection.mechanism
    assert own.delta == delta
    spent = epsilon(own.mu * math.sqrt(rounds), delta)
    assert target * (1 - 1e-6) < spent <= target
    assert own.sigma == pytest.approx(0.3 * part.multiplier)


# --- what leaves


@pytest.mark.parametrize("kind", ["large", "opposite", "tiny", "nan", "infinite", "overflowing"])
def test_two_updates_are_two_clips_apart_at_most(kind: str) -> None:
    """Before noise, whatever the data was: what an update is made of does not matter."""
    part, ones = MemberNoise(clip=0.7), tree(torch.ones)
    scale = {"large": 1e6, "opposite": -3.0, "tiny": 1e-30, "nan": math.nan, "infinite": math.inf, "overflowing": 3e38}
    strange = tree(lambda shape: torch.full(shape, scale[kind]))
    apart = norm(sub(part.clip_tree(ones), part.clip_tree(strange)))
    assert all(leaf.isfinite().all() for _, leaf in leaves(part.clip_tree(strange)))
    assert float(norm(part.clip_tree(strange))) <= 0.7 * (1 + 1e-6)
    assert float(apart) <= 2 * 0.7 * (1 + 1e-6)
    if kind == "opposite":
        assert float(apart) == pytest.approx(1.4, rel=1e-6)  # the bound is reached
    if kind == "nan":
        assert float(norm(part.clip_tree(strange))) == 0


@pytest.mark.parametrize("clip", [2.0**-149, 1e-40, 1e-30, 0.1, 0.3, 0.7, 3e38])
@pytest.mark.parametrize("value", [2.0**-149, 1e-38, 1e-20, 0.5000001, 3e38])
def test_no_clip_that_a_server_may_name_is_too_small_for_the_arithmetic(clip: float, value: float) -> None:
    """In float32 squares vanish below 1e-23, and factors below 1e-38 are rounded to several times themselves."""
    found = MemberNoise(clip=clip).clip_tree(tree(lambda shape: torch.full(shape, value)))
    assert float(norm(found)) <= clip * (1 + 1e-12)


@pytest.mark.parametrize("clip", [1e-9, 1e-4, 0.7, 1e9])
@pytest.mark.parametrize("times", [1.001, 3.0, 1e20])
def test_longer_updates_are_exactly_a_clip_long(clip: float, times: float) -> None:
    value = clip * times / math.sqrt(sum(math.prod(shape) for own in SHAPES.values() for shape in own.values()))
    found = MemberNoise(clip=clip).clip_tree(tree(lambda shape: torch.full(shape, value)))
    assert float(norm(found)) == pytest.approx(clip, rel=1e-9)


def test_short_updates_are_as_they_were_before_noise() -> None:
    short = tree(lambda shape: torch.full(shape, 1e-3))
    assert torch.equal(ravel(MemberNoise(clip=1.0).clip_tree(short)), ravel(short).double())


@pytest.mark.slow
def test_noise_has_its_standard_deviation_and_is_drawn_anew() -> None:
    part, still = MemberNoise(clip=0.5, sigma=3.0), tree(torch.zeros)
    drawn = torch.stack([ravel(released(part, still, secret)) for secret in range(200)])
    count = drawn.numel()
    assert float(drawn.std()) == pytest.approx(1.5, rel=5 / math.sqrt(2 * count))
    assert abs(float(drawn.mean())) < 5 * 1.5 / math.sqrt(count)
    away = torch.corrcoef(drawn.double()).fill_diagonal_(0).abs()
    assert float(away.max()) < 6 / math.sqrt(drawn.shape[1])  # none is another's
    among = torch.corrcoef(drawn[:, :40].double().T).fill_diagonal_(0).abs()  # nor one weight's another weight's
    assert float(among.max()) < 6 / math.sqrt(200)
    assert torch.equal(ravel(released(part, still, 3)), drawn[3])


def test_noise_has_the_tails_of_a_normal_distribution() -> None:
    drawn = noise(random.key(5), (400_000,))
    for many in (1.0, 2.0, 3.0, 4.0):
        share, exact = float((drawn.abs() > many).double().mean()), math.erfc(many / math.sqrt(2))
        assert share == pytest.approx(exact, abs=5 * math.sqrt(exact / 400_000))
    assert drawn.unique().numel() == drawn.numel()


# --- runs


def test_the_ledger_adds_up_the_rounds() -> None:
    fed, made = federation(), ALGORITHMS["dp_fedavg"](model(), clip=0.5, epsilon=6.0, target_rounds=4, local_steps=1)
    *_, last = train(made, fed, 4, eval_every=0)
    assert last.round == 4
    [bound] = bounds(fed.ledger.table())
    assert (bound.per, bound.delta, bound.messages) == ("client", 1e-5, 4)
    assert bound.epsilon == pytest.approx(6.0, rel=1e-6)
    assert made.composed.mechanism == (
        Clipped(0.5),
        Gaussian(0.5 * made.composed["MemberNoise"].multiplier, 1.0, "client"),
    )
    assert {own for own, _ in leaves(made.composed.sends)} == set()  # no number of examples


def test_a_run_says_what_it_cost(tmp_path: Path) -> None:
    """In summary.json, and in the sentences of its page."""
    document = {
        "rounds": 3,
        "eval_every": 0,
        "data": {"name": "synthetic", "nodes": 60, "classes": 2, "features": 8},
        "partition": {"name": "random", "clients": 2},
        "model": {"name": "gcn", "hidden": 4},
        "algorithm": {"name": "dp_fedavg", "epsilon": 2.0, "target_rounds": 3, "local_steps": 1},
    }
    [own] = run(resolve(document), tmp_path / "run", Mock())["privacy"]
    assert own == {"per": "client", "epsilon": pytest.approx(2.0), "delta": 1e-5, "messages": 3}
    said = " ".join(disclose(read_run(tmp_path / "run")).sentences)
    assert re.search("per client: ε = 2 at δ = 1e-05 after 3 messages", said)


def test_without_noise_to_speak_of_it_is_fedavg_with_clipping() -> None:
    ends = [
        [*train(FedAvg(model(), parts=(Uniform(), part)), federation(dtype=torch.float64), 3, eval_every=0)][-1].state[
            "w"
        ]
        for part in (Clip(0.4), MemberNoise(0.4, sigma=1e-13))
    ]
    assert distance(*ends) < 1e-10


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"sigma": 1.0, "epsilon": 2.0, "target_rounds": 3}, "config.value"),
        ({"epsilon": 2.0}, "config.idle"),
        ({"target_rounds": 3}, "config.idle"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], code: str) -> None:
    with refusal(code):
        MemberNoise(**given)


def test_nothing_is_made_of_an_update_after_it_has_been_protected() -> None:
    assert list(Composition((Clip(), MemberNoise()))) == ["Clip", "MemberNoise"]
    with pytest.raises(ValueError, match="list clip before dp"):
        Composition((MemberNoise(), Clip()))
