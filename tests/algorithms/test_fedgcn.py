"""FedGCN: two hops give what the whole graph gives; what is exchanged for that, and that each edge counts once."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.fedgcn import CROSSING, PLACES, NeighborSums, Places
from fedweave.core import model as models
from fedweave.core.graph import make_graph
from fedweave.core.graph_arrays import dense, graph_arrays
from fedweave.core.operators import NODES, Precomputed
from fedweave.core.types import FRAMING
from fedweave.engines.simulation import Simulation
from fedweave.errors import StepFailed
from fedweave.experiment import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.models import MODELS
from fedweave.partition.base import Partition
from tests.contract.federations import model
from tests.random_graphs import replace_fields
from tests.refusals import refusal

LOUVAIN = {"name": "louvain", "clients": 4}
OVERLAPPING = {"name": "ego_networks", "clients": 6, "hops": 1}


def begun(partition: dict[str, Any], hops: int) -> Any:
    """A run in double precision after the exchange."""
    document = {
        "seed": 2,
        "data": {"name": "synthetic", "nodes": 150, "classes": 3, "features": 8, "degree": 6.0},
        "partition": partition,
        "model": {"name": "gcn", "hidden": 5, "dropout": 0.0},
        "algorithm": {"name": "fedgcn", "hops": hops},
        "engine": {"name": "simulation", "dtype": "float64"},
    }
    built = build.build(resolve(document))
    built.fed.begin(0)
    return built, built.algorithm.init(built.fed)


def largest_gap(partition: dict[str, Any], hops: int) -> float:
    """Between the clients' results on their own nodes and those on the union of their graphs, for random weights."""
    built, state = begun(partition, hops)
    w = {layer: {k: torch.randn_like(v) for k, v in own.items()} for layer, own in state["w"].items()}
    held = np.unique(np.concatenate([part.nodes for part in built.partition.parts]))
    assert partition is LOUVAIN or len(held) < sum(len(part.nodes) for part in built.partition.parts)
    inside = np.isin(built.data.edges, held).all(0)
    masks = np.zeros((3, len(built.data.y)), bool)
    whole = make_graph(built.data.x, built.data.edges[:, inside], built.data.y, masks, dtype=torch.float64)
    expected = models.apply(built.algorithm.model, w, whole)
    gaps = [
        (models.apply(built.algorithm.net, w, graph)[: len(part.nodes)] - expected[part.nodes]).abs().max()
        for graph, part in zip(built.fed.graphs.values(), built.partition.parts, strict=True)
    ]
    return float(max(gaps))


@pytest.mark.parametrize("partition", [LOUVAIN, OVERLAPPING], ids=["disjoint", "overlapping"])
def test_two_layers_with_two_hops_are_those_on_the_whole_graph(partition: dict[str, Any]) -> None:
    torch.manual_seed(0)
    assert largest_gap(partition, 2) < 1e-9
    assert all(largest_gap(partition, hops) > 1e-2 for hops in (0, 1))


def test_one_hop_makes_one_convolution_exact() -> None:
    built, state = begun(LOUVAIN, 1)
    masks = np.zeros((3, len(built.data.y)), bool)
    whole = make_graph(built.data.x, built.data.edges, built.data.y, masks, dtype=torch.float64)
    first, exact = (models.apply(net[:1], state["w"], graph) for net, graph in ((built.algorithm.model, whole),) * 2)
    assert torch.equal(first, exact)
    for graph, part in zip(built.fed.graphs.values(), built.partition.parts, strict=True):
        own = models.apply(built.algorithm.net[:1], state["w"], graph)
        assert (own[: len(part.nodes)] - exact[part.nodes]).abs().max() < 1e-12


def by_hand(hops: int = 2, leaves: str = "") -> Simulation:
    """The path 0 - 1 - 2 - 3 with features 1, 2, 4, 8; "a" holds 0 and 1, "b" holds 2 and 3. leaves: the client that is
    not there, although the other one knows of the edge to it."""
    edges, masks = np.array([[0, 1], [1, 0]]), np.ones((3, 2), bool) & (np.arange(3) == 0)[:, None]
    x = {"a": [[1.0], [2.0]], "b": [[4.0], [8.0]]}
    along = {PLACES: NODES, CROSSING: CROSSING}
    places = {"a": ([0, 1], [[1, 2]]), "b": ([2, 3], [[0, 1]])}
    graphs = {}
    for client, own in x.items():
        if client == leaves:
            continue
        extra = Precomputed(dict(zip(along, map(np.array, places[client]), strict=True)), along=along)
        y, rest = np.array([0, 1]), {"dtype": torch.float64, "extra": extra}
        graphs[client] = make_graph(np.array(own), edges, y, masks, **rest)
    fed = Simulation(graphs, classes=2)
    ALGORITHMS["fedgcn"](MODELS["gcn"](hidden=2).build(1, 2), hops=hops).init(fed)
    return fed


def test_a_path_of_four_nodes_by_hand() -> None:
    """(Â X)_v = Σ_u x_u / √(d~_u d~_v) over v and its neighbors u, d~ = 2, 3, 3, 2 along the path."""
    fed, r6 = by_hand(), np.sqrt(6)
    rows = np.array([1 / 2 + 2 / r6, 1 / r6 + 2 / 3 + 4 / 3, 2 / 3 + 4 / 3 + 8 / r6, 4 / r6 + 8 / 2])
    for client, own, elsewhere in (("a", [0, 1], 2), ("b", [2, 3], 1)):
        x, edges, y, masks, *_ = graph_arrays(fed.graphs[client])
        assert np.abs(x[:3, 0] - rows[[*own, elsewhere]]).max() < 1e-12
        # the neighbor elsewhere has one more neighbor, that a node without features stands for
        assert x[3:].tolist() == [[0.0]]
        assert np.bincount(edges[0]).tolist() == ([1, 2, 2, 1] if client == "a" else [2, 1, 2, 1])
        assert y[2:].tolist() == [-1, -1]
        assert not masks[:, 2:].any()


@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize(("leaves", "stays", "sum"), [("b", "a", 1 + 2), ("a", "b", 4 + 8)])
def test_a_client_that_left_before_the_exchange_has_no_edges(hops: int, leaves: str, stays: str, sum: float) -> None:
    """What is left are two joined nodes, d~ = 2 each: both rows are half of the sum, and nothing stands elsewhere."""
    x, edges, *_ = graph_arrays(by_hand(hops, leaves).graphs[stays])
    assert np.abs(x[:, 0] - sum / 2).max() < 1e-12
    assert edges.tolist() == [[0, 1], [1, 0]]


def test_a_client_that_is_absent_from_the_exchange_ends_the_run_before_any_training() -> None:
    """Named with its reason, whatever quorum rounds have."""
    there = by_hand()
    fed = Simulation(dict(there.graphs), classes=2, absent=lambda round, client: "ill" if client == "b" else None)
    algorithm = ALGORITHMS["fedgcn"](MODELS["gcn"](hidden=2).build(1, 2), quorum=0.5)
    with refusal("clients-missing", "1 of 2 clients replied, 2 are needed", "b: ill"):
        algorithm.init(fed)


def test_clients_hear_of_nodes_that_are_gone_only_where_some_are() -> None:
    for leaves, heard in (
        ("", {"mine", "own", "outside", "degree"}),
        ("b", {"mine", "own", "outside", "degree", "gone"}),
    ):
        table = by_hand(leaves=leaves).ledger.table().to_pylist()
        assert {row["key"] for row in table if row["direction"] == "down"} - {FRAMING} == heard


def test_without_a_client_the_exchange_is_that_of_the_others_graph() -> None:
    """A client of four leaves: the rest hold, bit for bit, what they do where it never was."""
    clients = [i for i in range(4) if i != 1]
    built, _ = begun(LOUVAIN, 0)
    parts = tuple(built.partition.parts[i] for i in clients)
    left, never = [], []
    for found, kept in (
        ([Places().everywhere(built.data, built.partition)[i] for i in clients], left),
        (Places().everywhere(built.data, Partition(parts)), never),
    ):
        graphs = {
            f"site-{i}": make_graph(
                **graph_arrays(list(built.fed.graphs.values())[i])._asdict(), dtype=torch.float64, extra=own
            )
            for i, own in zip(clients, found, strict=True)
        }
        fed = Simulation(graphs, classes=built.data.classes)
        FedAvg(built.algorithm.model, parts=(NeighborSums(),)).init(fed)
        kept += [graph_arrays(graph) for graph in fed.graphs.values()]
    assert any(len(own.y) > len(part.nodes) for own, part in zip(left, parts, strict=True))
    for one, other in zip(left, never, strict=True):
        assert np.array_equal(dense(one.x), dense(other.x))
        assert np.array_equal(one.edges, other.edges)


def test_the_ledger_says_that_identities_and_sums_leave() -> None:
    table = by_hand().ledger.table().to_pylist()
    up = {(row["client"], row["key"]): row["reveals"] for row in table if row["direction"] == "up"}
    for client in ("a", "b"):
        assert up[client, "node"] == "which nodes the client's nodes are or are joined to"
        assert "the sum of its neighbors' features" in up[client, "sum"]
        assert "which nodes of others" in up[client, "outside"]


def test_without_hops_nothing_is_exchanged() -> None:
    fed = by_hand(hops=0)
    assert not fed.ledger.table().num_rows
    assert graph_arrays(fed.graphs["a"]).x.tolist() == [[1.0], [2.0]]


def test_a_global_model_is_judged_on_the_test_graph_as_it_is() -> None:
    document = {
        "data": {"name": "synthetic", "nodes": 200, "classes": 3, "features": 8, "degree": 6.0},
        "partition": {"name": "label_skew", "clients": 3, "majors": 2, "test_nodes": 10},
        "model": {"name": "gcn", "hidden": 5, "dropout": 0.0},
        "algorithm": {"name": "fedgcn"},
    }
    built = build.build(resolve(document))
    *_, last = train(built.algorithm, built.fed, 2, eval_every=2)
    logits = models.apply(built.algorithm.model, last.state["w"], built.fed.test)
    test = built.fed.test.masks[2]
    assert test.any()
    expected = (logits.argmax(1) == built.fed.test.y)[test].double().mean()
    assert last.summary["global/accuracy"] == pytest.approx(float(expected), abs=1e-9)


def test_it_needs_places() -> None:
    fed = by_hand(hops=0)
    lone = Simulation({client: replace_fields(graph, extra={}) for client, graph in fed.graphs.items()}, classes=2)
    with pytest.raises(StepFailed):
        FedAvg(model(), parts=(NeighborSums(),)).init(lone)
