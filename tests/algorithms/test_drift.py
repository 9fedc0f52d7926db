"""Data that changes while clients train, worked by hand, and what FairGFL's clients send of nodes that changed."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fairgfl.encoder import node_codes
from fedweave.algorithms.parts import Context, Drift, Part, Uniform
from fedweave.core import random
from fedweave.core.federation import Client
from fedweave.core.graph import make_graph
from fedweave.core.graph_arrays import GraphArrays, graph_arrays
from fedweave.core.tree import Tree
from fedweave.engines.simulation import Simulation
from fedweave.experiment.rounds import train
from fedweave.privacy.accountant import bounds
from fedweave.privacy.mechanisms import noisy_links
from tests.contract.federations import federation, model
from tests.random_graphs import replace_fields
from tests.refusals import refusal

SMALL: dict[str, Any] = {"code_size": 24, "encoder_rounds": 2, "sample": 16, "epsilon_a": 6.0, "lr": 0.1}
PART = "OverlapWeights"


def context(x: Any, y: list[int], seed: int = 0) -> tuple[Context, GraphArrays]:
    """A client of a path with these features and labels."""
    path = np.stack([np.arange(len(y) - 1), np.arange(1, len(y))])
    edges = np.concatenate([path, path[::-1]], 1)
    graph = make_graph(x, edges, np.array(y), np.ones((3, 1), bool) & (np.array(y) >= 0))
    client = Client(graph, {}, random.key(seed), random.key(seed))
    return Context(client, None, {}), graph_arrays(graph)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_by_hand(kind: Any) -> None:
    """Nodes 0 and 3 have one label, node 1 another, and nodes 2 and 4 none."""
    x = np.arange(1, 201, dtype=np.float32).reshape(5, 40)
    ctx, before = context(kind(x), [0, 1, -1, 0, -1])
    after, changed = Drift(1.0).changes(ctx, before)
    assert changed.tolist() == [True, True, False, True, False]
    new = after.x if isinstance(after.x, np.ndarray) else after.x.toarray()
    assert (new[[1, 2, 4]] == x[[1, 2, 4]]).all()  # there is nobody to take anything from
    for node, other in ((0, 3), (3, 0)):
        own = new[node] == x[node]
        assert (own | (new[node] == x[other])).all()
        assert 8 < own.sum() < 32  # half of 40, give or take four deviations
    assert all(np.array_equal(*pair) for pair in zip(after[1:4], before[1:4], strict=True))
    again, _ = Drift(1.0).changes(ctx, before)
    assert not np.any(new != (again.x if isinstance(again.x, np.ndarray) else again.x.toarray()))


def test_the_share_is_that_of_nodes_in_a_round() -> None:
    ctx, before = context(np.ones((2000, 1), np.float32), [0] * 2000)
    assert Drift(0.1).changes(ctx, before)[1].sum() == pytest.approx(200, abs=4 * 180**0.5)
    assert not Drift(0.0).changes(ctx, before)[1].any()


def made(name: str, share: float = 0.3, **options: Any) -> Any:
    return ALGORITHMS[name](model(), parts=(Drift(share),), **options)


def trained(algorithm: Any, fed: Simulation, rounds: int = 4, resume: Any = None, summary: Any = None) -> Tree:
    *_, last = train(algorithm, fed, rounds, eval_every=2, resume=resume, summary=summary)
    return {"server": last.state, "clients": fed.snapshot(), "summary": last.summary}


KINDS: dict[str, dict[str, Any]] = {"fairgfl": SMALL | {"renew": True}, "ditto": {"lr": 0.1}, "fedpub": {}}


def features(fed: Simulation, client: str) -> Tensor:
    x = graph_arrays(fed.graphs[client]).x
    return torch.from_numpy(x if isinstance(x, np.ndarray) else x.toarray())


@pytest.mark.often("True")
@pytest.mark.parametrize("renew", [False, True])
def test_codes_without_noise_are_those_of_the_data_as_it_is_or_was(renew: bool) -> None:
    fed = federation()
    before = features(fed, "site-1")
    state = trained(made("fairgfl", **SMALL | {"epsilon_a": math.inf, "renew": renew}), fed)["server"]
    now = features(fed, "site-1")
    assert (before != now).any()
    found = fed.snapshot()["site-1"][PART]["codes"][: len(now)]
    encoder = state["parts"][PART]["encoder"]
    current = node_codes(encoder, now).to(torch.uint8)
    first = federation()
    trained(made("fairgfl", **SMALL | {"epsilon_a": math.inf, "renew": renew}), first, 1)
    if renew:
        assert torch.equal(found, current)
    else:
        assert torch.equal(found, first.snapshot()["site-1"][PART]["codes"][: len(now)])
        assert not torch.equal(found, current)


def test_codes_of_nodes_that_did_not_change_keep_their_noise() -> None:
    fed, algorithm = federation(), made("fairgfl", 0.1, **SMALL | {"epsilon_a": 0.1, "renew": True})
    fed.begin(0)
    state, held = algorithm.init(fed), []
    for number in (1, 2):
        fed.begin(number)
        state = algorithm.round(state, fed)
        held.append((features(fed, "site-3"), fed.snapshot()["site-3"][PART]["codes"]))
    (x, codes), (later, again) = held
    versions = fed.snapshot()["site-3"][PART]["version"][: len(x)]
    same = versions == 0
    assert 0 < int((~same).sum()) < 20  # of 70
    assert torch.equal(codes[: len(x)][same], again[: len(x)][same])
    assert torch.equal(x[same], later[same])
    differ = (codes[: len(x)][~same] != again[: len(x)][~same]).double().mean()
    assert float(differ) > 0.3  # two independent draws of almost fair bits


def test_links_of_a_node_that_changed_are_drawn_anew_and_the_others_not() -> None:
    none, nodes, key = torch.zeros(40, 40, dtype=torch.bool), torch.arange(40), random.key(3)
    version = torch.zeros(40, dtype=torch.int64)
    version[[5, 6]] = torch.tensor([1, 2])
    before, after = (noisy_links(none, own, 0.1, key) for own in (nodes, nodes + 40 * version))
    kept = version == 0
    assert torch.equal(before[kept][:, kept], after[kept][:, kept])
    assert 0.3 < float((before != after)[~kept].double().mean()) < 0.7
    assert torch.equal(after, after.mT)


@pytest.mark.often("True")
@pytest.mark.parametrize("renew", [False, True])
def test_pairs_of_nodes_are_known_by_how_often_they_changed(renew: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pair's noise is drawn for: else a link that is new would show beside the noise that is the same."""
    drawn: list[Tensor] = []

    def noted(links: Tensor, nodes: Tensor, epsilon: float, key: Tensor) -> Tensor:
        drawn.append(nodes.clone())
        return noisy_links(links, nodes, epsilon, key)

    monkeypatch.setattr("fedweave.algorithms.fairgfl.noisy_links", noted)
    fed = federation(mode="loop")
    trained(made("fairgfl", 0.3, **SMALL | {"renew": renew}), fed, 3)
    assert len(drawn) == 3 * len(fed.clients)
    changed = 0
    for client, numbers in zip(fed.clients, drawn[-len(fed.clients) :], strict=True):
        size = fed.graphs[client].nodes
        versions = fed.snapshot()[client][PART]["version"] if renew else torch.zeros(size, dtype=torch.int64)
        assert torch.equal(numbers // size, versions[numbers % size])
        changed += int((numbers >= size).sum())
    assert (changed > 10) == renew


def test_every_message_counts_where_noise_is_drawn_anew() -> None:
    fed = federation()
    trained(made("fairgfl", **SMALL | {"renew": True, "epsilon_b": 1.5}), fed, 4)
    found = {bound.per: bound.epsilon for bound in bounds(fed.ledger.table())}
    assert found == {"node": pytest.approx(4 * 24 * 6.0), "pair of nodes": pytest.approx(4 * 1.5)}
    rows = fed.ledger.table().to_pylist()
    assert {row["round"] for row in rows if row["direction"] == "down" and "encoder" in row["key"]} == {1, 2, 3, 4}
    assert not [row for row in rows if row["step"].endswith("change") and row["key"] != "(names and framing)"]


@dataclass(frozen=True)
class Shrinking(Part):
    """Takes a node away."""

    def changes(self, ctx: Context, data: GraphArrays) -> tuple[GraphArrays, np.ndarray]:
        return replace_fields(data, x=data.x[1:]), np.ones(len(data.y), bool)


def test_the_number_of_nodes_stays() -> None:
    algorithm = ALGORITHMS["fedavg"](model(), parts=(Uniform(), Shrinking()))
    with refusal("step-failed", "Shrinking changes the number of nodes"):
        trained(algorithm, federation(), 1)
