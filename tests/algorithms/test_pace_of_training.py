"""Optimizers, schedules, mini-batches and clipping of the local training against loops of plain PyTorch."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fedweave.algorithms import ALGORITHMS, FedAvg, FedProx, Local
from fedweave.algorithms.parts import BatchCrossEntropy, RateSchedule, SampledCrossEntropy
from fedweave.core import random
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.tree import Tree, add, leaves, map_leaves, nest, scale
from fedweave.core.tree import sub as minus
from fedweave.core.types import FRAMING
from fedweave.engines.simulation import Simulation
from fedweave.errors import UserError
from tests.contract.federations import cross_entropy, distance, federation, model, state_after
from tests.random_graphs import replace_fields

DOUBLE = {"dtype": torch.float64}
ROUNDS, HALF = 4, 2  # of which a schedule in steps has one at 1, 1, 0.1 and 0.01
TORCH = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
OPTIMIZERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"optimizer": "adam", "betas": (0.8, 0.99)}, {"betas": (0.8, 0.99)}),
    ({"optimizer": "adamw"}, {}),
    ({"optimizer": "sgd", "local_momentum": 0.7}, {"momentum": 0.7}),
    ({"optimizer": "sgd", "local_momentum": 0.7, "nesterov": True}, {"momentum": 0.7, "nesterov": True}),
    ({"optimizer": "rmsprop"}, {}),
    ({"optimizer": "rmsprop", "local_momentum": 0.5}, {"momentum": 0.5}),
    ({"optimizer": "adagrad"}, {}),
]


def trained(algorithm: Any, fed: Simulation, rounds: int = ROUNDS) -> Tree:
    """The state after all rounds of a run of `ROUNDS`."""
    fed.rounds = ROUNDS
    state = state_after(algorithm, fed, rounds)
    return state


def factor(kind: str, warmup: int, done: int, rounds: int = ROUNDS) -> float:
    """The schedule as its specification has it, in plain Python."""
    if done < warmup:
        return (done + 1) / warmup
    s = (done - warmup) / (rounds - warmup)
    steps = 1.0 if s < 0.5 else 0.1 if s < 0.75 else 0.01
    return {"constant": 1.0, "linear": 1 - s, "cosine": (1 + math.cos(math.pi * s)) / 2, "step": steps}[kind]


def by_hand(
    fed: Simulation, start: Tree, how: dict[str, Any], rates: list[float], steps: int = 3, clip: float = 0.0
) -> Tree:
    """FedAvg with torch's optimizers, each client's kept from round to round; start: the first weights."""
    name, options = how.pop("optimizer"), how
    w, net = start, model(0.0)
    size = {client: int(graph.masks[TRAIN].sum()) for client, graph in fed.graphs.items()}
    flats = {c: {path: leaf.clone().requires_grad_() for path, leaf in leaves(w)} for c in fed.clients}
    makers = {c: TORCH[name](list(flat.values()), lr=0.05, weight_decay=0.01, **options) for c, flat in flats.items()}
    for rate in rates:
        total = map_leaves(torch.zeros_like, w)
        for client, graph in fed.graphs.items():
            flat, optimizer = flats[client], makers[client]
            with torch.no_grad():
                for path, leaf in leaves(w):
                    flat[path].copy_(leaf)
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * rate
            for _ in range(steps):
                optimizer.zero_grad()
                cross_entropy(nest(flat), net, graph).backward()
                if clip:
                    torch.nn.utils.clip_grad_norm_(list(flat.values()), clip)
                optimizer.step()
            update = minus(nest({path: leaf.detach() for path, leaf in flat.items()}), w)
            total = add(total, scale(update, size[client] / sum(size.values())))
        w = add(w, total)
    return w


def first(algorithm: Any, fed: Simulation) -> Tree:
    fed.rounds = ROUNDS
    fed.begin(0)
    w: Tree = algorithm.init(fed)["w"]
    return w


PLAIN: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.01}


@pytest.mark.parametrize(("ours", "theirs"), OPTIMIZERS)
def test_optimizers_are_torchs(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    algorithm = FedAvg(model(0.0), **PLAIN, **ours)
    fed = federation(**DOUBLE)
    start = first(algorithm, fed)
    expected = by_hand(fed, start, theirs | {"optimizer": ours["optimizer"]}, [1.0] * HALF)
    assert distance(trained(algorithm, federation(**DOUBLE), HALF)["w"], expected) <= 1e-9


@pytest.mark.often("cosine-2-adam", "linear-0-rmsprop", "step-0-sgd", "constant-3-adamw", "cosine-2-adagrad")
@pytest.mark.parametrize("optimizer", TORCH)
@pytest.mark.parametrize(("kind", "warmup"), [("cosine", 2), ("linear", 0), ("step", 0), ("constant", 3)])
def test_a_schedule_is_torchs_optimizer_with_that_rate(optimizer: str, kind: str, warmup: int) -> None:
    algorithm = FedAvg(model(0.0), optimizer=optimizer, schedule=kind, warmup=warmup, **PLAIN)  # type: ignore[arg-type]
    fed = federation(**DOUBLE)
    rates = [factor(kind, warmup, done) for done in range(ROUNDS)]
    expected = by_hand(fed, first(algorithm, fed), {"optimizer": optimizer}, rates)
    assert distance(trained(algorithm, federation(**DOUBLE))["w"], expected) <= 1e-9


@pytest.mark.parametrize("clip", [0.05, 0.5])
def test_gradients_are_clipped_as_torch_clips_them(clip: float) -> None:
    algorithm = FedAvg(model(0.0), optimizer="sgd", clip_gradient=clip, **PLAIN)
    fed = federation(**DOUBLE)
    start = first(algorithm, fed)
    expected = by_hand(fed, start, {"optimizer": "sgd"}, [1.0] * HALF, clip=clip)
    got = trained(algorithm, federation(**DOUBLE), HALF)["w"]
    assert distance(got, expected) <= 1e-9
    assert distance(got, trained(FedAvg(model(0.0), optimizer="sgd", **PLAIN), federation(**DOUBLE), HALF)["w"]) > 1e-6


def test_a_clip_is_of_the_penalty_too() -> None:
    """One client, where FedProx's pull counts from the second step on."""
    algorithm = FedProx(model(0.0), mu=3.0, optimizer="sgd", clip_gradient=0.2, local_steps=3, **PLAIN)
    fed = federation(**DOUBLE)
    start = first(algorithm, fed)
    state = trained(algorithm, federation(**DOUBLE), 1)
    sizes = {client: int(graph.masks[TRAIN].sum()) for client, graph in fed.graphs.items()}
    total = map_leaves(torch.zeros_like, start)
    for client, graph in fed.graphs.items():
        flat = {path: leaf.clone().requires_grad_() for path, leaf in leaves(start)}
        optimizer = torch.optim.SGD(list(flat.values()), lr=0.05, weight_decay=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            pull = sum(((flat[path] - leaf) ** 2).sum() for path, leaf in leaves(start))
            (cross_entropy(nest(flat), model(0.0), graph) + 1.5 * pull).backward()
            torch.nn.utils.clip_grad_norm_(list(flat.values()), 0.2)
            optimizer.step()
        update = minus(nest({path: leaf.detach() for path, leaf in flat.items()}), start)
        total = add(total, scale(update, sizes[client] / sum(sizes.values())))
    assert distance(state["w"], add(start, total)) <= 1e-9


# --- mini-batches ----------------------------------------------------------------------------------------------------


def drawn(graph: Graph, batch: int, steps: int, key: Tensor) -> Tensor:
    return BatchCrossEntropy(batch).draw(model(0.0), graph, key, steps)["chosen"]


@pytest.mark.parametrize("batch", [1, 3, 7, 1000])
def test_each_pass_takes_every_training_example_once(batch: int) -> None:
    for client, graph in federation().graphs.items():
        train = graph.masks[TRAIN]
        passes = math.ceil(int(train.sum()) / batch)
        chosen = drawn(graph, batch, 2 * passes, random.key(5))
        for half in (chosen[:passes], chosen[passes:]):
            assert torch.equal(half.sum(0), train.long()), client
            assert half.sum(1)[:-1].eq(min(batch, int(train.sum()))).all()
        if passes > 1 and batch > 1:
            assert not torch.equal(chosen[:passes], chosen[passes:])


def test_a_step_on_a_batch_is_the_gradient_of_its_loss() -> None:
    """Epochs of batches, by the masks that were drawn and torch's autograd."""
    batch, epochs, net = 4, 2, model(0.0)
    algorithm = FedAvg(net, optimizer="sgd", local_epochs=epochs, batch_size=batch, **PLAIN)
    fed = federation(**DOUBLE)
    start = first(algorithm, fed)
    keys: dict[str, Tensor] = {}
    seen = BatchCrossEntropy.draw

    def spy(self: BatchCrossEntropy, model: Any, graph: Graph, key: Tensor, steps: int) -> Tree:
        keys[str(graph.masks[TRAIN].sum().item()) + str(graph.masks.shape)] = key
        return seen(self, model, graph, key, steps)

    loop = federation(**DOUBLE, mode="loop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchCrossEntropy, "draw", spy)
        state = trained(algorithm, loop, 1)
    sizes = {client: int(graph.masks[TRAIN].sum()) for client, graph in loop.graphs.items()}
    total = map_leaves(torch.zeros_like, start)
    for client, whole in loop.graphs.items():
        count = epochs * math.ceil(sizes[client] / batch)
        key = keys[str(sizes[client]) + str(whole.masks.shape)]
        chosen, w = drawn(whole, batch, count, key), start
        for mask in chosen:
            graph = replace_fields(whole, masks=torch.stack([mask, *whole.masks[1:]]))
            slope = torch.func.grad(cross_entropy)(w, net, graph)
            w = map_leaves(lambda w, g: w - 0.05 * (g + 0.01 * w), w, slope)
        total = add(total, scale(minus(w, start), sizes[client] / sum(sizes.values())))
    assert distance(state["w"], add(start, total)) <= 1e-9


SETTINGS: list[dict[str, Any]] = [
    {"optimizer": "adamw", "schedule": "cosine", "warmup": 2},
    {"optimizer": "rmsprop", "local_momentum": 0.5, "schedule": "step"},
    {"optimizer": "adagrad", "clip_gradient": 0.1},
    {"batch_size": 4, "local_steps": 3, "schedule": "linear"},
    {"batch_size": 8, "local_epochs": 2, "optimizer_state": "fresh", "clip_gradient": 0.3},
    {"batch_size": 6, "local_epochs": 1, "optimizer": "sgd", "local_momentum": 0.0, "schedule": "cosine"},
]
TAKERS = ["fedavg", "local", "fedprox", "ditto", "dfedgnn", "fedper"]


def result(name: str, how: dict[str, Any], **engine: Any) -> Tree:
    algorithm = ALGORITHMS[name](model(), **how)
    fed = federation(**engine)
    state = trained(algorithm, fed, HALF + 1)  # beyond the first step of the rate
    return {"server": state, "clients": fed.snapshot()}


@pytest.mark.often("how0-fedavg", "how1-local", "how2-fedavg", "how3-local", "how4-fedavg", "how5-local")
@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.parametrize("how", SETTINGS)
def test_loop_batch_and_recording_agree(name: str, how: dict[str, Any]) -> None:
    loop, batch, recorded = (
        result(name, how, mode=mode, record=record, dtype=torch.float64)
        for mode, record in (("loop", "never"), ("vmap", "never"), ("vmap", "always"))
    )
    assert distance(loop, batch) <= 1e-9
    assert distance(batch, recorded) == 0


@pytest.mark.often("how0-local", "how1-fedavg", "how2-local", "how3-fedavg", "how4-local", "how5-fedavg")
@pytest.mark.parametrize("name", ["fedavg", "local"])
@pytest.mark.parametrize("how", SETTINGS)
def test_a_run_goes_on_from_a_checkpoint(name: str, how: dict[str, Any]) -> None:
    algorithm, whole, before, after = ALGORITHMS[name](model(), **how), federation(), federation(), federation()
    expected = trained(algorithm, whole, HALF + 2)
    state = trained(algorithm, before, HALF)
    after.restore(before.snapshot(), before.snapshot_data())
    for number in (HALF + 1, HALF + 2):
        after.begin(number)
        state = algorithm.round(state, after)
    assert distance({"s": state, "c": after.snapshot()}, {"s": expected, "c": whole.snapshot()}) == 0


def test_beyond_its_rounds_a_schedule_stays_at_the_last_rate() -> None:
    part = RateSchedule("cosine", 2)
    last, beyond = (part.factor(torch.tensor(done), 8) for done in (7, 30))
    assert last == beyond > 0


def test_epochs_of_whole_batches_are_steps() -> None:
    epochs, steps = (trained(FedAvg(model(), **how), federation()) for how in ({"local_epochs": 4}, {"local_steps": 4}))
    assert distance(epochs, steps) == 0


# --- what is refused -------------------------------------------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("fedavg", {"local_momentum": 0.5}, "local_momentum"),
    ("fedavg", {"optimizer": "sgd", "nesterov": True}, "nesterov"),
    ("fedavg", {"optimizer": "adagrad", "betas": (0.5, 0.9)}, "betas"),
    ("fedavg", {"local_epochs": 2, "batch_size": 8}, "optimizer_state"),
    ("fedavg", {"batch_size": 8, "parts": (SampledCrossEntropy(),)}, "batch_size"),
    ("scaffold", {"schedule": "cosine"}, "schedule"),
    ("scaffold", {"warmup": 2}, "schedule"),
    ("scaffold", {"local_momentum": 0.5}, "local_momentum"),
    ("scaffold", {"local_epochs": 2}, "local_epochs"),
    ("fednova", {"schedule": "cosine"}, "schedule"),
    ("qfedavg", {"schedule": "linear"}, "schedule"),
    ("pfedme", {"local_epochs": 2}, "local_epochs"),
    ("apfl", {"adaptive": True, "schedule": "linear"}, "schedule"),
]


@pytest.mark.parametrize(("name", "how", "setting"), REFUSED)
def test_what_does_not_go_together_is_refused(name: str, how: dict[str, Any], setting: str) -> None:
    with pytest.raises(ValueError, match=setting):
        ALGORITHMS[name](model(), **how)


@pytest.mark.parametrize("rounds", [0, 4])
def test_a_schedule_needs_more_rounds_than_warm_up(rounds: int) -> None:
    fed = federation()
    fed.rounds = rounds
    fed.begin(0)
    with pytest.raises(UserError) as refused:
        FedAvg(model(), schedule="cosine", warmup=4).init(fed)
    assert refused.value.code == "user.schedule"


def test_local_training_says_nothing_of_itself_without_batches() -> None:
    fed = federation()
    trained(Local(model()), fed)
    assert set(fed.ledger.table()["key"].to_pylist()) == {FRAMING}
