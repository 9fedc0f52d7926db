"""FedAvg and its parts against arithmetic done here."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedweave.algorithms import FedAvg, FedProx
from fedweave.algorithms.fedprox import Proximal
from fedweave.algorithms.participation import sample
from fedweave.algorithms.parts import Clip, MixedStart, Uniform
from fedweave.core.graph import TRAIN
from fedweave.core.tree import Tree, add, leaves, map_leaves
from fedweave.engines.simulation import Simulation
from tests.contract.federations import Recorder, cross_entropy, distance, federation, model

DOUBLE = {"dtype": torch.float64}


def one_round(algorithm: FedAvg, fed: Simulation, rounds: int = 1) -> tuple[Tree, Tree]:
    """The state before and after the last round."""
    fed.begin(0)
    after = algorithm.init(fed)
    for number in range(1, rounds + 1):
        fed.begin(number)
        before, after = after, algorithm.round(after, fed)
    return before, after


def gradient(w: Tree, client: str, fed: Simulation) -> Tree:
    net, graph = model(dropout=0.0), fed.graphs[client]
    return torch.func.grad(lambda w: cross_entropy(w, net, graph))(w)


@pytest.mark.parametrize("weigh", ["size", "uniform"])
def test_one_step_of_sgd_is_a_step_along_the_weighted_mean_gradient(weigh: str) -> None:
    parts = {"parts": (Uniform(),)} if weigh == "uniform" else {}
    fed = federation(**DOUBLE)
    before, after = one_round(
        FedAvg(model(0.0), local_steps=1, optimizer="sgd", lr=0.5, weight_decay=0.0, **parts), fed
    )
    sizes = torch.stack([fed.graphs[client].masks[TRAIN].sum() for client in fed.clients]).double()
    weights = sizes / sizes.sum() if weigh == "size" else torch.full_like(sizes, 0.2)
    expected = before["w"]
    for client, weight in zip(fed.clients, weights, strict=True):
        expected = map_leaves(lambda w, g, p=weight: w - 0.5 * p * g, expected, gradient(before["w"], client, fed))
    assert distance(after["w"], expected) <= 1e-12


def test_fedprox_pulls_to_the_received_weights() -> None:
    """Two steps of SGD: the first feels no pull, the second w ← w − lr (g + μ (w − w_t))."""
    fed = federation(engine=Recorder, **DOUBLE)
    algorithm = FedProx(model(0.0), local_steps=2, optimizer="sgd", lr=0.5, weight_decay=0.0, mu=0.3)
    before, _ = one_round(algorithm, fed)
    received = before["w"]
    for client in fed.clients:
        once = map_leaves(lambda w, g: w - 0.5 * g, received, gradient(received, client, fed))
        twice = map_leaves(
            lambda w, g, start: w - 0.5 * (g + 0.3 * (w - start)), once, gradient(once, client, fed), received
        )
        assert distance(add(received, fed.heard[client]["update"]), twice) <= 1e-12


def test_fedprox_is_fedavg_with_a_proximal_term_and_at_zero_it_is_fedavg() -> None:
    net = model()
    built = FedAvg(net, parts=(Proximal(mu=0.2),))
    assert distance(*(one_round(a, federation(), 3)[1] for a in (FedProx(net, mu=0.2), built))) == 0
    plain, none = (one_round(a, federation(), 3)[1] for a in (FedAvg(net), FedProx(net, mu=0.0)))
    assert distance(plain["w"], none["w"]) == 0


def test_adaptive_mu_moves_on_the_grid() -> None:
    term = Proximal(mu=0.01, adaptive=True)
    state, seen = term.init(SimpleNamespace(device="cpu"), {}), []  # type: ignore[arg-type]
    for loss in [1.0, 1.5, 2.0, 3.0, 2.9, 2.9, 2.0, 1.0, 0.5, 0.1]:
        state = term.update(state, SimpleNamespace(mean=lambda key, loss=loss: loss))  # type: ignore[arg-type]
        seen.append(state["mu"])
    assert seen == pytest.approx([0.01, 0.1, 1.0, 1.0, 0.1, 0.1, 0.01, 0.001, 0.001, 0.001])


def test_only_what_adapts_sends_its_loss() -> None:
    for adaptive in (False, True):
        fed = federation(engine=Recorder)
        _, after = one_round(FedProx(model(), adaptive=adaptive), fed, 2)
        assert ("loss" in fed.heard["site-0"]) == adaptive
        sent = {str(key) for key, way in zip(*fed.ledger.table().select(["key", "direction"]), strict=True)
                if str(way) == "down"}  # fmt: skip
        assert {key for key in sent if key.startswith("Proximal")} == {"Proximal/mu"}
        assert (after["parts"]["Proximal"]["mu"] != 0.01) == adaptive


@pytest.mark.parametrize(("share", "count"), [(0.01, 1), (0.4, 2), (0.5, 2), (0.6, 3), (1.0, 5)])
def test_clients_are_sampled_without_replacement_and_evenly(share: float, count: int) -> None:
    fed, drawn = federation(), []
    for number in range(300):
        fed.begin(number)
        chosen = sample(fed, share)
        assert len(chosen) == len(set(chosen)) == count
        assert chosen == sorted(chosen)
        drawn += chosen
    for client in fed.clients:
        assert drawn.count(client) == pytest.approx(
            300 * count / 5, abs=4.5 * (300 * count / 5 * (1 - count / 5)) ** 0.5
        )


def test_absent_from_the_sample_means_no_message() -> None:
    fed = federation(engine=Recorder)
    one_round(FedAvg(model(), participation=0.4), fed)
    assert len(fed.heard) == 2
    assert set(map(str, fed.ledger.table().column("client"))) == set(fed.heard.clients)


def test_clipping_bounds_the_update_and_leaves_small_ones_alone() -> None:
    update = {"a": torch.tensor([3.0, 0.0, 0.0]), "b": {"c": torch.tensor([4.0])}}  # of norm 5
    ctx: Any = None
    clipped = Clip(norm=1.0).release(ctx, update)
    assert distance(clipped, {"a": torch.tensor([0.6, 0.0, 0.0]), "b": {"c": torch.tensor([0.8])}}) <= 1e-6
    assert distance(Clip(norm=5.5).release(ctx, update), update) <= 1e-6
    nothing = map_leaves(torch.zeros_like, update)
    assert distance(Clip(norm=1.0).release(ctx, nothing), nothing) == 0


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_a_clipped_round_moves_the_model_no_further(mode: str) -> None:
    before, after = one_round(FedAvg(model(), parts=(Clip(norm=0.01),)), federation(mode=mode))
    moved = [(x - dict(leaves(before["w"]))[path]).square().sum() for path, x in leaves(after["w"])]
    assert 0.001 < float(sum(moved)) ** 0.5 <= 0.01 + 1e-6


def test_a_mixed_start_is_the_stated_mix() -> None:
    fed = federation(engine=Recorder, **DOUBLE)
    algorithm = FedAvg(
        model(0.0), local_steps=1, optimizer="sgd", lr=0.5, weight_decay=0.0, parts=(MixedStart(alpha=0.3),)
    )
    one_round(algorithm, fed)
    kept = {client: state["w"] for client, state in fed.snapshot().items()}
    whole = federation(engine=Recorder, **DOUBLE)
    before, _ = one_round(algorithm, whole, 2)
    for client in whole.clients:
        start = map_leaves(lambda w, own: 0.3 * w + 0.7 * own, before["w"], kept[client])
        expected = map_leaves(lambda w, g: w - 0.5 * g, start, gradient(start, client, whole))
        assert distance(whole.snapshot()[client]["w"], expected) <= 1e-12
        assert distance(add(before["w"], whole.heard[client]["update"]), expected) <= 1e-12


def test_nothing_shared_is_refused() -> None:
    with pytest.raises(ValueError, match="share is empty"):
        FedAvg(model(), share=())
