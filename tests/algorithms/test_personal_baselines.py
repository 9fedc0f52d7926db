"""What clients use besides or instead of the joint model, by hand and against arithmetic that was written apart from
it: fine-tuning, heads of their own, mixes of two models, Moreau envelopes."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.fedper import OwnHead
from fedweave.algorithms.parts import Uniform
from fedweave.algorithms.pfedme import MoreauEnvelope
from fedweave.core.federation import Client
from fedweave.core.graph import TRAIN
from fedweave.core.tree import Tree, leaves, map_leaves, ravel
from fedweave.core.types import FRAMING
from fedweave.experiment.rounds import train
from fedweave.models import MODELS
from tests.algorithms.test_family_oracles import LR, ROUNDS, STEPS, Problem
from tests.algorithms.test_scaffold import ended
from tests.contract.federations import CLASSES, FEATURES, HIDDEN, cross_entropy, distance, federation, graphs, model

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": LR, "weight_decay": 0.0}


def stepped(w: Tree, graph: Any, steps: int, moves: str = "") -> Tree:
    """Gradient descent of the leaves whose path begins so."""
    for _ in range(steps):
        slope = torch.func.grad(lambda w: cross_entropy(w, model(0.0), graph))(w)
        w = {
            layer: map_leaves(lambda a, g: a - LR * g, w[layer], slope[layer]) if layer.startswith(moves) else w[layer]
            for layer in w
        }
    return w


def used(made: Any, fed: Any, state: Tree, name: str) -> Tree:
    """The weights that a client uses, as evaluation finds them."""
    shared, each = made.evaluation_message(state, fed)
    assert each is None
    return made.used(Client(fed.graphs[name], fed.snapshot()[name], torch.tensor(0), torch.tensor(0), None), shared)


# --- fedavg_ft -------------------------------------------------------------------------------------------------------


def test_without_steps_fine_tuning_is_fedavg_to_the_bit() -> None:
    summaries = []
    for name, options in (("fedavg_ft", {"tune_steps": 0}), ("fedavg", {})):
        *_, last = train(ALGORITHMS[name](model(), **options), federation(), 2)
        summaries.append(last.summary["local/accuracy"])
        summaries.append(float(ravel(last.state["w"]).sum()))
    assert summaries[:2] == summaries[2:]


def test_fine_tuning_takes_steps_of_its_own_from_the_joint_model_and_keeps_none() -> None:
    made = ALGORITHMS["fedavg_ft"](model(0.0), tune_steps=3, **SGD)
    fed = federation(dtype=torch.float64)
    *_, last = train(made, fed, 2)
    before = fed.snapshot()
    for name, graph in graphs(torch.float64).items():
        assert distance(used(made, fed, last.state, name), stepped(last.state["w"], graph, 3)) < 1e-12
    assert distance(before, fed.snapshot()) == 0
    plain, _ = ended("fedavg", 2, local_steps=3)
    assert distance(last.state["w"], plain["w"]) < 1e-12


# --- fedper, fedrep --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_heads_never_leave(name: str) -> None:
    _, fed = ended(name, 2)
    rows = [row for row in fed.ledger.table().to_pylist() if row["purpose"] == "training" and row["key"] != FRAMING]
    assert {row["key"] for row in rows} - {"init", "n", "trains"} == {
        "update/0/weight", "update/0/bias", "w/0/weight", "w/0/bias"
    }  # fmt: skip
    heads = [ravel(own["w"]["1"]) for own in fed.snapshot().values()]
    assert (heads[0] - heads[1]).abs().max() > 1e-3


def test_fedper_is_training_with_a_head_of_ones_own() -> None:
    state, fed = ended("fedper", 1, local_steps=2)
    start, sizes = Problem().like, [int(graph.masks[TRAIN].sum()) for graph in graphs().values()]
    ends = [stepped(start, graph, 2) for graph in graphs(torch.float64).values()]
    share = torch.tensor(sizes).double() / sum(sizes)
    body = map_leaves(lambda *own: torch.tensordot(share, torch.stack(own), 1), *(end["0"] for end in ends))
    assert distance(state["w"], {"0": body}) < 1e-12
    for own, end in zip(fed.snapshot().values(), ends, strict=True):
        assert distance(own["w"]["1"], end["1"]) < 1e-12


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_fedrep_fits_the_head_and_then_the_body(mode: str) -> None:
    """Two rounds by hand."""
    fed = federation(dtype=torch.float64, mode=mode)
    state, fed = ended("fedrep", 2, fed, local_steps=2, head_steps=3)
    w, heads = Problem().like, {}
    for _ in range(2):
        ends = {}
        for name, graph in graphs(torch.float64).items():
            own = stepped(w | {"1": heads.get(name, Problem().like["1"])}, graph, 3, moves="1")
            ends[name] = stepped(own, graph, 2, moves="0")
        heads = {name: end["1"] for name, end in ends.items()}
        w = {"0": map_leaves(lambda *own: torch.stack(own).mean(0), *(end["0"] for end in ends.values()))}
    assert distance(state["w"], w) < 1e-12
    assert all(distance(own["w"]["1"], heads[name]) < 1e-12 for name, own in fed.snapshot().items())


def test_without_head_steps_heads_stay_as_they_start() -> None:
    _, fed = ended("fedrep", 2, head_steps=0)
    assert all(distance(own["w"]["1"], Problem().like["1"]) == 0 for own in fed.snapshot().values())


def test_kept_moments_are_those_of_head_and_body_apart() -> None:
    _, fed = ended("fedrep", 2, optimizer="adam", lr=0.01, local_steps=2, head_steps=3)
    for own in fed.snapshot().values():
        steps = {phase: int(kept["steps"]) for phase, kept in own["optimizer"].items()}
        assert steps == {"head": 6, "body": 4}
        assert {path for path, _ in leaves(own["optimizer"]["head"]["m"])} == {"1/weight", "1/bias"}


def test_layers_may_be_counted_from_the_last() -> None:
    net = MODELS["gcn"](hidden=HIDDEN, layers=3, dropout=0.0).build(FEATURES, CLASSES)
    ends = []
    for share in (("0/*", "1/*"), ("-3/*", "-2/*")):
        *_, last = train(FedAvg(net, share=share, **SGD), federation(dtype=torch.float64), 2)
        ends.append(last.state["w"])
    assert distance(*ends) == 0
    assert {path[0] for path, _ in leaves(ends[0])} == {"0", "1"}


def test_a_head_that_leaves_nothing_to_share_is_refused() -> None:
    with pytest.raises(ValueError, match="has to leave some to be shared"):
        ALGORITHMS["fedper"](model()[:1])
    with pytest.raises(ValueError, match="has to leave some to be shared"):
        FedAvg(model(), parts=(OwnHead(()),))


# --- apfl ------------------------------------------------------------------------------------------------------------


def test_nothing_of_ones_own_in_the_mix_is_fedavg() -> None:
    made = ALGORITHMS["apfl"](model(0.0), mix=0.0, local_steps=2, **SGD)
    fed = federation(dtype=torch.float64)
    *_, last = train(made, fed, 2)
    plain, _ = ended("fedavg", 2, local_steps=2)
    assert distance(last.state["w"], plain["w"]) < 1e-12
    assert all(distance(used(made, fed, last.state, name), plain["w"]) < 1e-12 for name in fed.clients)


def test_nothing_but_ones_own_in_the_mix_is_local_training() -> None:
    made = ALGORITHMS["apfl"](model(0.0), mix=1.0, local_steps=2, **SGD)
    fed = federation(dtype=torch.float64)
    *_, last = train(made, fed, 2)
    for name, graph in graphs(torch.float64).items():
        assert distance(used(made, fed, last.state, name), stepped(Problem().like, graph, 4)) < 1e-12


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_own_weights_go_by_the_gradient_at_the_mix(baselines: Any, problem: Problem, mode: str) -> None:
    """Two rounds by hand, with a share that moves."""
    fed = federation(dtype=torch.float64, mode=mode)
    _, fed = ended("apfl", 2, fed, mix=0.4, adaptive=True, local_steps=2)
    w, own, share = problem.start, [problem.start] * 5, [0.4] * 5
    sizes = np.array([client[0] for client in problem.clients], float)
    for _ in range(2):
        ends = []
        for at, (_, _, slope) in enumerate(problem.clients):
            share[at] = baselines.apfl_share(share[at], own[at], w, slope, LR)
            end = w
            for _ in range(2):
                end = end - LR * slope(end)
            for _ in range(2):
                mixed = share[at] * own[at] + (1 - share[at]) * end
                own[at] = own[at] - LR * share[at] * slope(mixed)
            ends.append(end)
        w = (sizes / sizes.sum()) @ np.stack(ends)
    for kept, v, a in zip(fed.snapshot().values(), own, share, strict=True):
        assert np.abs(ravel(kept["MixedModel"]["v"]).numpy() - v).max() < 1e-9
        assert float(kept["MixedModel"]["share"]) == pytest.approx(a, abs=1e-9)
    assert len({round(a, 6) for a in share}) > 1


# --- pfedme ----------------------------------------------------------------------------------------------------------


@pytest.mark.often("loop-1.0")
@pytest.mark.parametrize("beta", [1.0, 0.5])
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_pfedmes_rounds_are_those_of_the_reference(baselines: Any, problem: Problem, beta: float, mode: str) -> None:
    settings = {"lam": 2.0, "outer_lr": 0.2, "inner_steps": 3, "beta": beta}
    fed = federation(dtype=torch.float64, mode=mode)
    state, fed = ended("pfedme", fed=fed, lr=0.1, **settings)
    theirs = baselines.pfedme(problem.start, problem.clients, ROUNDS, STEPS, 2.0, 0.2, 0.1, 3, beta)
    assert np.abs(ravel(state["w"]).numpy() - theirs).max() < 1e-9
    assert all(own["MoreauEnvelope"]["theta"] for own in fed.snapshot().values())


def test_its_own_model_is_near_the_minimum_of_the_envelope(baselines: Any, problem: Problem) -> None:
    made = ALGORITHMS["pfedme"](model(0.0), lam=2.0, outer_lr=0.2, inner_steps=3, local_steps=1, **SGD | {"lr": 0.1})
    fed = federation(dtype=torch.float64)
    *_, last = train(made, fed, 1)
    for name, (_, _, slope) in zip(fed.clients, problem.clients, strict=True):
        theirs = baselines.pfedme_inner(problem.start, slope, 2.0, 0.1, 3)
        assert np.abs(ravel(used(made, fed, last.state, name)).numpy() - theirs).max() < 1e-9


def test_the_whole_way_by_one_step_is_fedprox_of_the_plain_mean() -> None:
    state, _ = ended("pfedme", lam=5.0, outer_lr=0.2, inner_steps=STEPS, local_steps=1)
    prox, _ = ended("fedprox", mu=5.0, parts=(Uniform(),))
    assert distance(state["w"], prox["w"]) < 1e-9


def test_weights_that_go_beyond_the_own_model_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 1"):
        MoreauEnvelope(lam=15.0, outer_lr=0.1)
