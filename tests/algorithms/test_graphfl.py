"""GraphFL: first-order meta-learning against NumPy, and how support and query are drawn."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.fedopt import ServerMomentum
from fedweave.algorithms.graphfl import MetaGradient
from fedweave.algorithms.parts import Clip, Part, Uniform
from fedweave.algorithms.parts.composition import UPDATE
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN, make_graph
from fedweave.core.tree import ravel, unravel
from fedweave.experiment.rounds import train
from fedweave.learn import cross_entropy
from tests.contract.federations import arrays, federation, graphs, model, state_after

INNER, OUTER = 0.4, 0.7


class Watched(MetaGradient):
    """Keeps what was drawn."""

    def draw(self, *args: Any) -> Any:
        drawn = super().draw(*args)
        self.__dict__.setdefault("seen", []).append(drawn)
        return drawn


class Small(Part):
    """Keeps logits small, by a factor that the server sends."""

    client_learns = "how small logits are to be"

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def init(self, fed: Any, w: Any) -> Any:
        return {"factor": torch.tensor(self.factor, dtype=torch.float64)}

    def download(self, state: Any, at: Any) -> Any:
        return {"factor": state["factor"]}, {}

    def objective(self, outputs: Any) -> Any:
        return outputs.inputs["factor"] * outputs.logits.square().mean()


def test_a_round_is_that_of_the_reference(oracles: Any) -> None:
    net, part = model(0.0), Watched(examples=5)
    fed = federation(dtype=torch.float64, mode="loop")
    sgd: dict[str, Any] = {"local_steps": 1, "optimizer": "sgd", "lr": INNER, "weight_decay": 0.0}
    made = FedAvg(net, parts=(part, Uniform(), ServerMomentum(OUTER, 0.0)), **sgd)
    fed.begin(0)
    state = made.init(fed)
    w = ravel(state["w"]).numpy()
    for number in (1, 2):
        fed.begin(number)
        part.__dict__["seen"] = []
        before, state = state, made.round(state, fed)
        drawn = part.__dict__["seen"]
        assert len(drawn) == 10  # once for a client's step, once for its query
        assert all(torch.equal(drawn[2 * i]["query"], drawn[2 * i + 1]["query"]) for i in range(5))

        def gradient(graph: Any, chosen: Any, like: Any = before["w"]) -> Any:
            def at(flat: np.ndarray) -> np.ndarray:
                free = torch.from_numpy(flat).requires_grad_()
                logits = models.apply(net, unravel(free, like), graph)
                loss = cross_entropy(logits, graph.y.clamp(min=0), chosen.double())
                return torch.autograd.grad(loss, free)[0].numpy()

            return at

        held = graphs(torch.float64).values()
        clients = [
            (gradient(graph, drawn[2 * i]["support"][0]), gradient(graph, drawn[2 * i]["query"][0]))
            for i, graph in enumerate(held)
        ]
        w = oracles.graphfl_step(w, clients, INNER, OUTER)
        assert np.abs(ravel(state["w"]).numpy() - w).max() < 1e-9


def test_several_meta_steps_by_a_plain_server_are_per_fedavgs(baselines: Any) -> None:
    """Support and query are drawn anew for each step."""
    net, part = model(0.0), Watched(examples=5, meta_steps=3, meta_lr=OUTER)
    fed = federation(dtype=torch.float64, mode="loop")
    sgd: dict[str, Any] = {"local_steps": 1, "optimizer": "sgd", "lr": INNER, "weight_decay": 0.0}
    made = FedAvg(net, parts=(part, Uniform(), ServerMomentum(OUTER, 0.0)), **sgd)
    *_, last = train(made, fed, 1, eval_every=0)
    drawn = part.__dict__["seen"][: 5 * 3 * 2]  # then models are judged
    assert not torch.equal(drawn[0]["support"], drawn[2]["support"])
    fed.begin(0)
    start = made.init(fed)["w"]

    def slope(graph: Any, each: Any) -> Any:
        """The gradients on what was drawn, one after the other."""
        sets = iter(each)

        def at(flat: np.ndarray) -> np.ndarray:
            free = torch.from_numpy(flat).requires_grad_()
            logits = models.apply(net, unravel(free, start), graph)
            loss = cross_entropy(logits, graph.y.clamp(min=0), next(sets).double())
            return torch.autograd.grad(loss, free)[0].numpy()

        return at

    clients = []
    for at, graph in enumerate(graphs(torch.float64).values()):
        own = drawn[6 * at : 6 * at + 6]
        support, query = ([one[which][0] for one in own[first::2]] for first, which in ((0, "support"), (1, "query")))
        clients.append((slope(graph, support), slope(graph, query)))
    w = baselines.perfedavg(ravel(start).numpy(), clients, 1, 3, INNER, OUTER)
    assert np.abs(ravel(last.state["w"]).numpy() - w).max() < 1e-9
    assert part.protection.becomes.startswith("sum of negative gradients")


@pytest.mark.parametrize(("examples", "sizes"), [(5, (5, 5)), (100, (10, 10)), (8, (8, 8))])
def test_support_and_query_are_distinct_training_examples(examples: int, sizes: tuple[int, int]) -> None:
    x, edges, y, masks = arrays(60, 0)
    graph = make_graph(x, edges, y, masks)
    assert graph.masks[TRAIN].sum() == 20
    drawn = [MetaGradient(examples).draw((), graph, random.key(seed), 3) for seed in (1, 2)]
    for one in drawn:
        support, query = one["support"], one["query"]
        assert (support.sum(1).unique().item(), query.sum(1).unique().item()) == sizes
        assert not (support & query).any()
        assert not ((support | query) & ~graph.masks[TRAIN]).any()
        assert (support == support[0]).all()
    assert not torch.equal(drawn[0]["support"], drawn[1]["support"])


@pytest.mark.parametrize(("count", "sizes", "least"), [(21, (11, 10), 10), (1, (1, 0), 1), (0, (0, 0), 0)])
def test_of_an_odd_number_of_examples_the_query_set_has_one_less(
    count: int, sizes: tuple[int, int], least: int
) -> None:
    """Which is what a policy goes by, unless it is empty."""
    x, edges, y, masks = arrays(60, 0)
    masks[TRAIN] = np.arange(60) < count
    graph, part = make_graph(x, edges, y, masks), MetaGradient(100)
    drawn = part.draw((), graph, random.key(1), 1)
    assert (int(drawn["support"].sum()), int(drawn["query"].sum())) == sizes
    assert torch.equal(drawn["support"][0] | drawn["query"][0], graph.masks[TRAIN])
    assert part.min_examples(graph, 1) == least


def test_no_gradient_leaves_of_weights_that_are_not_shared() -> None:
    fed, made = federation(dtype=torch.float64, mode="loop"), ALGORITHMS["graphfl"](model(0.0), share=("0/*",))
    state_after(made, fed, 1)
    left = {row["key"] for row in fed.ledger.table().to_pylist() if row["direction"] == "up"}
    assert {key.split("/")[1] for key in left if key.startswith("update/")} == {"0"}


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_clients_use_what_they_trained_further(mode: str) -> None:
    fed = federation(dtype=torch.float64, mode=mode)
    made = ALGORITHMS["graphfl"](model(0.0), lr=0.5)
    state = state_after(made, fed, 0)
    losses = {}
    for name, tried in (("further", made), ("received", FedAvg(model(0.0)))):
        fed.begin(1)
        scores = tried.evaluate({"w": state["w"]}, fed).clients
        losses[name] = sum(float(reply["own"]["loss"][TRAIN, 0]) for reply in scores)
    assert losses["further"] < losses["received"]


def test_the_global_test_judges_what_clients_use_not_what_they_share() -> None:
    """A start from which each comes far with one step may predict one class alone."""
    fed, made = federation(dtype=torch.float64, mode="loop"), ALGORITHMS["graphfl"](model(0.0), lr=0.5)
    *_, last = train(made, fed, 2)
    told = last.of_clients("global_test/accuracy")
    assert sorted(told) == sorted(fed.clients)
    assert last.summary["global/accuracy"] == pytest.approx(sum(told.values()) / len(told))
    assert made.global_model(last.state) is not None


def test_the_gradient_that_leaves_has_the_share_of_a_term_whose_factor_the_server_sends() -> None:
    """At the received weights, which so short a step leaves as they were, it grows with the factor."""

    def moved(factor: float) -> Any:
        fed, parts = federation(dtype=torch.float64, mode="loop"), (MetaGradient(5), Small(factor))
        made = FedAvg(model(0.0), parts=parts, optimizer="sgd", lr=1e-9, weight_decay=0.0, local_steps=1)
        start = ravel(state_after(made, fed, 0)["w"])
        return ravel(state_after(made, fed, 1)["w"]) - start

    none, once, twice = moved(0.0), moved(1.0), moved(2.0)
    assert (once - none).norm() > 1e-3
    torch.testing.assert_close(twice - none, 2 * (once - none), rtol=0, atol=1e-7)


def test_the_ledger_says_that_a_gradient_leaves() -> None:
    def told(made: FedAvg) -> set[str]:
        fed = federation(dtype=torch.float64, mode="loop")
        state_after(made, fed, 1)
        rows = fed.ledger.table().to_pylist()
        return {row["reveals"] for row in rows if row["direction"] == "up" and row["key"].startswith("update/")}

    assert told(ALGORITHMS["graphfl"](model(0.0))) == {MetaGradient().protection.becomes}
    assert told(FedAvg(model(0.0), parts=(Clip(1.0),))) == {UPDATE}
