"""MOON's term against arithmetic that was written apart from it, and its laws."""

import math
from typing import Any

import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.local import Local
from fedweave.algorithms.moon import ModelContrast, unit
from fedweave.algorithms.parts import Outputs
from fedweave.algorithms.parts.part import Forward
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN
from fedweave.core.tree import leaves, map_leaves
from fedweave.experiment.rounds import train
from tests.contract.federations import cross_entropy, distance, federation, graphs, model

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.3, "weight_decay": 0.0, "local_steps": 2}


def term(part: ModelContrast, w: Any, received: Any, last: Any, graph: Any, net: Any) -> torch.Tensor:
    given = {"apart": unit(models.embedded(net, last, graph)) - unit(models.embedded(net, received, graph))}
    return part.objective(Outputs(Forward(w, net, graph, None), given, {}))  # type: ignore[arg-type]


def weights(net: Any, seed: int) -> Any:
    """Such that no embedding is 0, of which the reference has no cosine."""
    w = models.init(net, random.key(seed), torch.float64)
    return w | {"0": {"weight": w["0"]["weight"], "bias": w["0"]["bias"] + 0.5}}


@pytest.mark.parametrize("nodes", ["all", "train"])
@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_the_term_is_that_of_the_reference(baselines: Any, nodes: Any, tau: float) -> None:
    graph, net = graphs(torch.float64)["site-1"], model(0.0)
    now, received, last = (weights(net, seed) for seed in (1, 2, 3))
    rows = graph.masks[TRAIN] if nodes == "train" else graph.real
    z = [models.embedded(net, w, graph)[rows].numpy() for w in (now, received, last)]
    found = term(ModelContrast(2.0, tau, nodes), now, received, last, graph, net)
    assert float(found) == pytest.approx(2 * baselines.moon_term(*z, tau), abs=1e-12)


def test_where_both_models_are_the_same_the_term_is_log_2_and_has_no_gradient() -> None:
    graph, net = graphs(torch.float64)["site-1"], model(0.0)
    now, other = (weights(net, seed) for seed in (1, 2))
    slopes, value = torch.func.grad_and_value(lambda w: term(ModelContrast(), w, other, other, graph, net))(now)
    assert float(value) == pytest.approx(math.log(2))
    assert all(leaf.abs().max() == 0 for _, leaf in leaves(slopes))


def test_an_embedding_of_0_has_cosine_0_with_everything() -> None:
    graph, net = graphs(torch.float64)["site-1"], model(0.0)
    now, other, last = (weights(net, seed) for seed in (1, 2, 3))
    nothing = now | {"0": {name: torch.zeros_like(leaf) for name, leaf in now["0"].items()}}
    slopes, value = torch.func.grad_and_value(lambda w: term(ModelContrast(), w, other, last, graph, net))(nothing)
    assert float(value) == pytest.approx(math.log(2))
    assert all(leaf.isfinite().all() for _, leaf in leaves(slopes))


@pytest.mark.often("0.6")
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_without_strength_it_is_fedavg_to_the_bit(participation: float) -> None:
    ends = []
    for name, options in (("moon", {"mu": 0.0}), ("fedavg", {})):
        made = ALGORITHMS[name](model(), participation=participation, **options)
        *_, last = train(made, federation(), 3, eval_every=0)
        ends.append(last.state["w"])
    assert distance(*ends) == 0


def test_a_clients_first_training_has_no_term_whichever_round_it_is() -> None:
    """By hand: of two rounds of sampled clients, those called for the first time train as FedAvg's."""
    moved = {}
    for name in ("moon", "fedavg"):
        fed = federation(dtype=torch.float64)
        *_, last = train(ALGORITHMS[name](model(0.0), **SGD), fed, 1, eval_every=0)
        moved[name] = last.state["w"]
    assert distance(moved["moon"], moved["fedavg"]) == 0
    ends = [[*train(ALGORITHMS[name](model(0.0), **SGD), federation(dtype=torch.float64), 2, eval_every=0)][-1].state
            for name in ("moon", "fedavg")]  # fmt: skip
    assert distance(ends[0]["w"], ends[1]["w"]) > 1e-6


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_two_rounds_by_hand(mode: str) -> None:
    """Gradient descent on cross-entropy and the term, by autograd, on clients one after the other."""
    net, fed, clients = model(0.0), federation(dtype=torch.float64, mode=mode), graphs(torch.float64)
    made = ALGORITHMS["moon"](net, mu=0.7, **SGD)
    fed.begin(0)
    w = made.init(fed)["w"]
    sizes = torch.stack([graph.masks[TRAIN].sum() for graph in clients.values()]).double()

    def stepped(now: Any, received: Any, last: Any, graph: Any) -> Any:
        def loss(w: Any) -> torch.Tensor:
            plain = cross_entropy(w, net, graph)
            return plain + term(ModelContrast(0.7), w, received, last, graph, net) if last else plain

        return map_leaves(lambda leaf, slope: leaf - SGD["lr"] * slope, now, torch.func.grad(loss)(now))

    last: dict[str, Any] = {}
    for _ in range(2):
        after = {}
        for name, graph in clients.items():
            after[name] = stepped(stepped(w, w, last.get(name), graph), w, last.get(name), graph)
        last = after
        w = map_leaves(lambda *own: torch.tensordot(sizes / sizes.sum(), torch.stack(own), 1), *after.values())
    *_, end = train(made, fed, 2, eval_every=0)
    assert distance(end.state["w"], w) < 1e-12


def test_nothing_but_fedavgs_messages_crosses() -> None:
    keys = []
    for name in ("moon", "fedavg"):
        fed = federation()
        list(train(ALGORITHMS[name](model()), fed, 2))
        keys.append({(row["direction"], row["key"]) for row in fed.ledger.table().to_pylist()})
    assert keys[0] == keys[1]


def test_what_it_has_no_use_for_is_refused() -> None:
    with pytest.raises(ValueError, match="model_contrast would do nothing here"):
        Local(model(), parts=(ModelContrast(),))
    with pytest.raises(ValueError, match="take a model of two layers"):
        ALGORITHMS["moon"](model()[:1])
    with pytest.raises(ValueError, match="tau"):
        ModelContrast(tau=0.0)
