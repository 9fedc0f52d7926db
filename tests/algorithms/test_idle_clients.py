"""Clients without training examples: no step of theirs, which would be of weight decay alone, moves any model."""

from typing import Any

import pytest
import torch

from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.tree import Tree, leaves
from fedweave.engines.simulation import Simulation
from fedweave.experiment.rounds import train
from fedweave.ops.touched_rows import materialize
from tests.contract.federations import VERTICAL, algorithm, distance, federation, graphs
from tests.random_graphs import replace_fields

DECAY = {"lr": 0.1, "weight_decay": 0.1}
NOISY = {"dp_fedavg"}  # its members send noise in any case
OTHERS = {"fedego"}  # it refuses a federation of such clients alone; below


def without_examples(graph: Graph) -> Graph:
    masks = graph.masks.clone()
    masks[TRAIN] = False
    return replace_fields(graph, masks=masks)


def weights(tree: Tree) -> dict[str, Any]:
    return {path: materialize(leaf) for path, leaf in leaves(tree) if {"w", "own"} & {*path.split("/")}}


def kept(name: str, step: Any, fed: Simulation) -> dict[str, Any]:
    """The weights that training goes on from: the server's and, where it does not send all, the clients'."""
    made = algorithm(name)
    at_server = isinstance(made, FedAvg) and not made._reads_last_weights
    return weights({"server": step.state} | ({} if at_server else fed.snapshot()))


@pytest.mark.often("fedavg", "ditto", "scaffold", "fcfl")
@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - VERTICAL - NOISY - OTHERS))
def test_where_nobody_has_examples_nothing_moves(name: str) -> None:
    idle = {client: without_examples(graph) for client, graph in graphs(name=name).items()}
    fed = federation(name=name, clients=idle, mode="vmap")
    first, *others = [kept(name, step, fed) for step in train(algorithm(name, **DECAY), fed, 3, 0)]
    assert first
    for later in others:
        assert later.keys() == first.keys()
        assert all(torch.equal(later[path], before) for path, before in first.items())


def with_one_idle(mode: str, **options: Any) -> Simulation:
    held = graphs(**options)
    return federation(mode=mode, clients=held | {"site-2": without_examples(held["site-2"])})


@pytest.mark.often("dfedgnn")
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "local", "dfedgnn", "rffl"])
def test_one_client_alone_and_in_a_batch(name: str) -> None:
    found = []
    for mode in ("loop", "vmap"):
        fed = with_one_idle(mode)
        made = [step.state for step in train(algorithm(name, 0.0, **DECAY), fed, 3, 0)]
        found.append({"server": made[-1]} | fed.snapshot())
    assert distance(*({"all": one} for one in found)) < 1e-5


def test_neighbors_do_not_get_a_decayed_model() -> None:
    fed = with_one_idle("vmap")
    run = train(algorithm("dfedgnn", **DECAY), fed, 3, 0)
    next(run)
    held = fed.snapshot()["site-2"]["w"]
    for _ in run:
        assert distance(fed.snapshot()["site-2"]["trained"], held) == 0
        held = fed.snapshot()["site-2"]["w"]


@pytest.mark.often("rffl")
@pytest.mark.parametrize("name", ["rffl", "cffl"])
def test_weights_that_stay_at_the_client_are_not_decayed(name: str) -> None:
    """RFFL: w_i ← w_i + Δ_i, of the update that was reported, which is 0."""
    fed = with_one_idle("vmap")
    norms = []
    for _ in train(algorithm(name, **DECAY), fed, 20, 0):
        norms.append(sum(float(leaf.norm()) for leaf in weights(fed.snapshot()["site-2"]).values()))
    assert norms[-1] > 0.5 * norms[0]


def test_fedego_averages_no_decayed_layers() -> None:
    """Θ of the idle client is the received one."""
    ego, fed = algorithm("fedego", **DECAY), with_one_idle("vmap")
    heard: list[Any] = []
    listened = fed.map

    def map_(*args: Any, **options: Any) -> Any:
        heard.append(listened(*args, **options))
        return heard[-1]

    fed.map = map_  # type: ignore[method-assign]
    fed.begin(0)
    state = ego.init(fed)
    fed.begin(1)
    ego.round(state, fed)
    assert distance(heard[-1]["site-2"]["theta"], state["theta"]) == 0
    assert distance(heard[-1]["site-1"]["theta"], state["theta"]) > 0
