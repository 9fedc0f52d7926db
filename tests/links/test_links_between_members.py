"""Links between members: worked by hand in plain torch, as laws, and with members that cheat."""

import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from fedweave import models
from fedweave.algorithms import FedAvg
from fedweave.algorithms.parts import ForeignEnds
from fedweave.algorithms.parts.external_ends import crossing_examples, crossing_pairs
from fedweave.apply.run_predictions import PairQuery, predictions
from fedweave.contract.subject import ShardedRecorder
from fedweave.core import model as core_models
from fedweave.core import random
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.federation import Client
from fedweave.core.graph import FOREIGN_NODES, FOREIGN_PAIRS, FOREIGN_TRAINED, NODE_NAMES, TEST, TRAIN, VAL, Graph
from fedweave.core.graph_arrays import graph_arrays
from fedweave.core.links import Links
from fedweave.core.tree import Tree, encoded_size, leaves
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.links import as_links
from fedweave.engines.simulation import Simulation
from fedweave.experiment.build import build, federation, ingredients
from fedweave.experiment.config import resolve
from fedweave.experiment.graphs import client_graphs
from fedweave.experiment.runs.run import run as run_experiment
from fedweave.experiment.runs.trained import finished_config, load_trained
from fedweave.metrics.measured import measure
from fedweave.models.links import OnPairs
from fedweave.partition.base import Partition
from fedweave.partition.crossing import name_hashes
from fedweave.python.training import Silent
from fedweave.reports.oddities import facts
from tests.refusals import check_facts, refusal

# Members hold nodes 0 to 2 and 3 to 5. Links within, links between; 0 is train, 1 val, 2 test.
INSIDE = [(0, 1, 0), (1, 2, 0), (3, 4, 0), (4, 5, 0)]
BETWEEN = [(0, 3, 0), (1, 4, 0), (2, 4, 0), (2, 5, 2), (0, 5, 1), (1, 3, 2)]
RATE = 0.1


def two_members() -> tuple[Dataset, Partition]:
    ends = np.array([(u, v) for u, v, _ in INSIDE + BETWEEN]).T
    split = np.array([where for _, _, where in INSIDE + BETWEEN])
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    data = Dataset("six", x, to_undirected(ends, 6), np.zeros(6, np.int64), 1)
    data = replace(data, edge_attrs=EdgeAttributes(ends, False, split=split))
    data = as_links(data, Links(rank_negatives=0))
    owner = replace(data, owner=np.array([0, 0, 0, 1, 1, 1]), owners=("a", "b"))
    from fedweave.partition import Column

    return owner, Column().cut(owner, 0)


def tiny(**settings: Any) -> tuple[FedAvg, Simulation]:
    data, partition = two_members()
    net = OnPairs(models.GCN(hidden=3, dropout=0.0)).build(4)
    part = ForeignEnds(**settings)
    how = {"local_steps": 1, "optimizer": "sgd", "lr": RATE, "weight_decay": 0.0}
    algorithm = FedAvg(net, parts=(part,), **how)
    return algorithm, federation(data, partition, algorithm, dtype=torch.float64, mode="loop")


def gcn(w: Tree, graph: Graph) -> Tensor:
    """h of a client's nodes in plain torch, by its own training links."""
    arrays = graph_arrays(graph)
    n = len(arrays.x)
    a = torch.eye(n, dtype=torch.float64)
    a[tuple(arrays.edges)] = 1.0
    scale = a.sum(1).rsqrt()
    a = scale[:, None] * a * scale
    h = torch.relu(a @ torch.from_numpy(np.asarray(arrays.x)) @ w["0"]["weight"] + w["0"]["bias"])
    result: Tensor = a @ h @ w["1"]["weight"] + w["1"]["bias"]
    return result


def copied(w: Tree) -> Tree:
    return {i: {name: leaf.clone().requires_grad_() for name, leaf in each.items()} for i, each in w.items()}


def plain_loss(algorithm: FedAvg, w: Tree, fed: Simulation, client: str, key: Tensor, detached: bool = True) -> Tensor:
    """Both terms of a client's objective, from h of all nodes in plain torch and the pairs that parts draw."""
    held = {name: gcn(w, graph) for name, graph in fed.graphs.items()}
    graph, (peer,) = fed.graphs[client], [name for name in fed.graphs if name != client]
    other = held[peer].detach() if detached else held[peer]
    table = graph.extra[FOREIGN_PAIRS]
    names = graph.extra[FOREIGN_NODES][:, 0].tolist()
    theirs = fed.graphs[peer].extra[NODE_NAMES][:, 0].tolist()
    total = torch.zeros((), dtype=torch.float64)
    for name, part in algorithm.composed.items():
        if not hasattr(part, "negatives"):
            continue
        drawn = part.draw(algorithm.model, graph, random.fold(key, "minibatches", name), 1)
        links, real = part.links(graph)
        pairs = torch.cat([links[:, real], drawn["pairs"][0][:, real & drawn["there"][0, :, 0]]], 1)
        scores = []
        for u, v, _ in pairs.T.tolist():
            rows = [
                held[client][end] if end < graph.nodes else other[theirs.index(names[end - graph.nodes])]
                for end in (u, v)
            ]
            scores.append((rows[0] * rows[1]).sum())
        y = torch.cat([torch.ones(int(real.sum())), torch.zeros(pairs.shape[1] - int(real.sum()))]).double()
        total = total + F.binary_cross_entropy_with_logits(torch.stack(scores), y)
    assert set(table[:, 5].tolist()) == {-1, 0, 1}
    return total


def begun(algorithm: FedAvg, fed: Simulation) -> Tree:
    fed.begin(0)
    return algorithm.init(fed)


# --- worked by hand ---------------------------------------------------------------------------------------------------


def test_each_member_has_the_pairs_that_its_records_name_in_their_split() -> None:
    _, fed = tiny()
    for client, own in (("a", [0, 1, 2]), ("b", [3, 4, 5])):
        graph = fed.graphs[client]
        table, names = graph.extra[FOREIGN_PAIRS], graph.extra[FOREIGN_NODES][:, 0].tolist()
        other = next(name for name in fed.graphs if name != client)
        theirs = fed.graphs[other].extra[NODE_NAMES][:, 0].tolist()
        first = 3 if client == "a" else 0
        links = {(own[row[0]], first + theirs.index(names[row[1]]), row[4]) for row in table.tolist() if row[5] == 1}
        assert links == {(u, v, s) if client == "a" else (v, u, s) for u, v, s in BETWEEN}
        for split in range(3):  # one pair that is none for each link, whose foreign end has a link in that split
            ends = {row[1] for row in table.tolist() if row[5] == 1 and row[4] == split}
            no_links = [row for row in table.tolist() if row[5] == 0 and row[4] == split]
            assert {row[1] for row in no_links} <= ends
            known = {(row[0], row[1]) for row in table.tolist() if row[5] == 1}
            assert not known & {(row[0], row[1]) for row in no_links}


def test_a_round_is_that_of_plain_torch_and_no_gradient_goes_back() -> None:
    algorithm, fed = tiny()
    state = begun(algorithm, fed)
    before = state["w"]
    fed.begin(1)
    call = random.key_of(
        random.fold_bits(random.fold_bits(random.root(0), "round", 1), "step", "FedAvg.train", 0), "cpu"
    )
    after = algorithm.round(state, fed)["w"]
    moves = {detached: [] for detached in (True, False)}
    for detached, each in moves.items():
        for client in fed.clients:
            key = random.fold(call, "client", torch.tensor(random.word(client)))
            w = copied(before)
            plain_loss(algorithm, w, fed, client, key, detached).backward()
            each.append({path: leaf.grad for path, leaf in leaves(w)})
    for path, leaf in leaves(after):
        mean, back = (torch.stack([grads[path] for grads in moves[d]]).mean(0) for d in (True, False))
        assert torch.allclose(leaf, dict(leaves(before))[path] - RATE * mean, atol=1e-9, rtol=0)
        assert path != "0/weight" or not torch.allclose(mean, back, atol=1e-6)


def test_the_row_of_a_node_may_have_its_neighbors_but_for_the_link_that_is_scored() -> None:
    """Node 4 of b has training links to nodes 1 and 2 of a, node 3 to node 0, node 5 to none."""
    algorithm, fed = tiny(neighbors=True)
    state = begun(algorithm, fed)
    [part] = algorithm.parts
    assert isinstance(part, ForeignEnds)
    graph, memory = fed.graphs["a"], fed.snapshot()["a"]["ForeignEnds"]
    h = gcn(state["w"], graph)
    names = graph.extra[FOREIGN_NODES][:, 0].tolist()
    three, four, five = (names.index(name) for name in fed.graphs["b"].extra[NODE_NAMES][:3, 0].tolist())
    rows = part.external_rows(algorithm.model, state["w"], graph, memory) - memory["h"]
    due = {three: h[0], four: (h[1] + h[2]) / 2, five: (h[0] + h[1] + h[2]) / 3}
    for place, row in due.items():
        assert torch.allclose(rows[place], row, atol=1e-12)
    links, real = part.links(graph)
    apart = part._rows_without_link(
        graph, h.new_zeros(graph.nodes, 3).index_copy(0, torch.arange(3), h), memory, links, real
    )
    without = {(0, three): (h[1] + h[2]) / 2, (1, four): h[2], (2, four): h[1]}
    for (own, place), row in without.items():
        [at] = [i for i in range(int(real.sum())) if links[:2, i].tolist() == [own, graph.nodes + place]]
        assert torch.allclose(apart[at] - memory["h"][place], row, atol=1e-12)


def test_scores_are_those_of_plain_torch_and_scikit_learn() -> None:
    algorithm, fed = tiny()
    state = begun(algorithm, fed)
    fed.begin(1)
    state = algorithm.round(state, fed)
    replies = algorithm.evaluate(state, fed).clients
    held = {name: gcn(state["w"], graph) for name, graph in fed.graphs.items()}
    sums = {"auc": [], "average_precision": []}
    for client, graph in fed.graphs.items():
        other = next(name for name in fed.graphs if name != client)
        names, theirs = (
            fed.graphs[n].extra[what][:, 0].tolist() for n, what in ((client, FOREIGN_NODES), (other, NODE_NAMES))
        )
        table = [row for row in graph.extra[FOREIGN_PAIRS].tolist() if row[4] == TEST and row[5] >= 0]
        s = [float(held[client][row[0]] @ held[other][theirs.index(names[row[1]])]) for row in table]
        y = [row[5] for row in table]
        assert sum(y) == 2
        own = replies[client]["crossing"]
        loss = F.binary_cross_entropy_with_logits(torch.tensor(s).double(), torch.tensor(y).double(), reduction="sum")
        assert float(own["loss"][TEST, 0]) == pytest.approx(float(loss), abs=1e-6)
        auc = own["auc"][TEST]
        assert float(auc[0].flatten()[-1] / auc[1].flatten()[-1]) == pytest.approx(roc_auc_score(y, s), abs=1e-9)
        sums["auc"].append(roc_auc_score(y, s))
        sums["average_precision"].append(average_precision_score(y, s))
    summary = measure(1, algorithm.evaluate(state, fed)).summary
    assert summary["crossing/auc"] == pytest.approx(np.mean(sums["auc"]), abs=1e-9)
    assert summary["crossing/average_precision"] == pytest.approx(np.mean(sums["average_precision"]), abs=1e-6)


# --- laws ---


def document(**more: Any) -> dict[str, Any]:
    data = {"name": "synthetic", "task": "links", "external": "predict", "rank_negatives": 0, "ratios": [0.6, 0.2, 0.2]}
    base = {
        "rounds": 2,
        "data": data,
        "partition": {"name": "random", "clients": 3},
        "model": {"name": "gcn", "hidden": 8},
    }
    return base | more


def test_no_pair_between_members_is_a_message() -> None:
    """Graphs, features and examples within members are those of `refuse`; what is trained on is of training alone."""
    with_pairs, without = (
        build(resolve(document(data=document()["data"] | {"external": how}))) for how in ("predict", "refuse")
    )
    for client, graph in with_pairs.fed.graphs.items():
        other = without.fed.graphs[client]
        assert np.array_equal(graph.whole_edges.members[0].index, other.whole_edges.members[0].index)
        assert torch.equal(graph.pairs, other.pairs)
        assert torch.equal(graph.masks, other.masks)
        table, rows = graph.extra[FOREIGN_PAIRS], graph.extra[FOREIGN_TRAINED][:, 0]
        trained = table[rows[rows >= 0]]
        assert len(trained)
        assert (trained[:, 4] == TRAIN).all()
        assert (trained[:, 5] == 1).all()
        part = ForeignEnds()
        links, real = part.links(graph)
        pairs, there = part.no_links(graph, links, random.key(3))
        assert there[real].float().mean() > 0.9
        drawn = set(map(tuple, pairs[:2, there & real].T.tolist()))
        known = set(map(tuple, crossing_pairs(graph)[:2, table[:, 5] == 1].T.tolist()))
        assert not drawn & (known | {(v, u) for u, v in known})


def test_a_test_pair_moves_no_weight(data_root: Path) -> None:
    """What is learned is the same whether a pair that is tested is a link or not, but for what is drawn beside it."""
    algorithm, fed = tiny()
    graphs = {client: graph._replace(extra=dict(graph.extra)) for client, graph in fed.graphs.items()}
    for graph in graphs.values():
        table = graph.extra[FOREIGN_PAIRS].clone()
        table[:, 0] = torch.where(table[:, 4] == TEST, 0, table[:, 0])
        graph.extra[FOREIGN_PAIRS] = table
    other = Simulation(graphs, classes=2, mode="loop")
    results = []
    for where in (fed, other):
        state = begun(algorithm, where)
        where.begin(1)
        results.append(algorithm.round(state, where)["w"])
    assert all(torch.equal(leaf, dict(leaves(results[1]))[path]) for path, leaf in leaves(results[0]))


@pytest.mark.parametrize(
    "settings", [{}, {"neighbors": True}, {"clip": 0.5}, {"clip": 0.5, "epsilon": 8.0, "target_rounds": 2}]
)
def test_loop_and_vectorized_give_the_same(settings: dict[str, Any]) -> None:
    parts = {"name": "fedavg", "parts": [{"name": "foreign_ends", **settings}]}
    runs = []
    for mode in ("loop", "vmap"):
        built = build(resolve(document(engine={"mode": mode}, algorithm=parts)))
        state = begun(built.algorithm, built.fed)
        for number in (1, 2):
            built.fed.begin(number)
            state = built.algorithm.round(state, built.fed)
        runs.append(
            (state["w"], measure(2, built.algorithm.evaluate(state, built.fed)).summary, built.fed.ledger.sizes())
        )
    (w, summary, sizes), (other, others, other_sizes) = runs
    assert all(torch.allclose(leaf, dict(leaves(other))[path], atol=1e-5) for path, leaf in leaves(w))
    assert summary == pytest.approx(others, abs=1e-5)
    assert sizes == other_sizes
    assert sizes["peer"] > 0


def test_the_ledger_has_the_bytes_that_were_sent_and_the_server_none() -> None:
    algorithm, fed = tiny()
    state = begun(algorithm, fed)
    fed.begin(1)
    algorithm.round(state, fed)
    table = fed.ledger.table()
    room = next(iter(fed.graphs.values())).extra["foreign nodes of one peer"].shape[0]
    parcel = {"h": torch.zeros(room, 3, dtype=torch.float64), "places": torch.zeros(room, dtype=torch.int64)}
    told = table.filter(pc.equal(table["step"], "FedAvg.tell"))
    for number in (0, 1):
        rows = told.filter(pc.and_(pc.equal(told["round"], number), pc.equal(told["direction"], "peer")))
        for client, peer in (("a", "b"), ("b", "a")):
            mine = rows.filter(pc.and_(pc.equal(rows["client"], client), pc.equal(rows["to"], peer)))
            assert sum(mine["bytes"].to_pylist()) == encoded_size(parcel)
            assert set(mine["key"].to_pylist()) == {"h", "places", "(names and framing)"}
    up = told.filter(pc.equal(told["direction"], "up"))
    assert set(up["key"].to_pylist()) == {"(names and framing)"}


def test_noise_has_its_epsilon_in_the_ledger() -> None:
    part = ForeignEnds(clip=1.0, epsilon=4.0, target_rounds=3)
    assert part.rows.epsilon(4) == pytest.approx(4.0, abs=1e-6)  # one release before the first round
    assert part.protection.max_rounds == 3
    assert [str(mechanism).split(" ")[0] for mechanism in part.mechanisms] == ["clipped", "Gaussian"]
    assert ForeignEnds(clip=2.0).mechanisms[0].cost().unbounded
    algorithm, fed = tiny(clip=0.01)
    begun(algorithm, fed)
    for state in fed.snapshot().values():
        memory = state["ForeignEnds"]
        norms = memory["h"][memory["there"]].norm(dim=1)
        assert (norms <= 0.01 + 1e-9).all()
        assert norms.max() > 0.0099


def test_a_resumed_run_is_the_whole_run(tmp_path: Path) -> None:
    whole = document(rounds=4)
    run_experiment(resolve(whole), tmp_path / "whole", Silent())
    run_experiment(resolve(document(rounds=2)), tmp_path / "half", Silent())
    run_experiment(resolve(whole), tmp_path / "half", Silent(), resume=True)
    one, other = (json.loads((tmp_path / name / "summary.json").read_text())["metrics"] for name in ("whole", "half"))
    assert one == other
    assert {"crossing/average_precision", "reference/adamic_adar/crossing/auc"} <= one.keys()


# --- members that cheat ---


def with_demand(fed: Simulation, client: str, name: int, evidence: int) -> Simulation:
    """The federation, in which a client also asks for a node."""
    graphs = dict(fed.graphs)
    graph = graphs[client]
    demand = graph.extra[FOREIGN_NODES].clone()
    at = int((demand[:, 0] != -1).sum())
    demand[at] = torch.tensor([name, evidence])
    graphs[client] = graph._replace(extra={**graph.extra, FOREIGN_NODES: demand})
    return Simulation(graphs, classes=2, mode="loop")


@pytest.mark.parametrize("evidence", ["none", "of another pair"])
def test_a_member_that_asks_for_nodes_without_a_pair_is_refused_and_named(
    evidence: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With a pair that only the test has, node 3 of b has no link to a but for those of 0 and 1; 6th is asked for."""
    data, partition = two_members()
    edge_attrs = data.edge_attrs
    left = np.flatnonzero(
        ~(edge_attrs.ends == 5).any(0) | (edge_attrs.ends >= 3).all(0)
    )  # no link between members has node 5
    data = replace(
        data,
        edge_attrs=edge_attrs.select(left),
        y=data.y[left],
        public=data.public[:, left],
        edges=to_undirected(edge_attrs.ends[:, left], 6),
    )
    from fedweave.partition import Column

    partition = Column().cut(data, 0)
    net = OnPairs(models.GCN(hidden=3, dropout=0.0)).build(4)
    algorithm = FedAvg(net, parts=(ForeignEnds(),))
    honest = federation(data, partition, algorithm, dtype=torch.float64, mode="loop")
    name = int(honest.graphs["b"].extra[NODE_NAMES][2, 0])
    proof = 12345 if evidence == "none" else int(honest.graphs["a"].extra[FOREIGN_NODES][0, 1])
    fed = with_demand(honest, "a", name, proof)
    with caplog.at_level(logging.WARNING):
        state = begun(algorithm, fed)
    check_facts(caplog.text, "a ", "b ", "1")
    assert algorithm.measures(state, fed)["refused_demands"].tolist() == [1.0, 0.0]
    there = fed.snapshot()["a"]["ForeignEnds"]["there"]
    assert there.sum() == (honest.graphs["a"].extra[FOREIGN_NODES][:, 0] != -1).sum()
    lenient = replace(algorithm, parts=(ForeignEnds(unrecorded=True),))
    state = begun(lenient, with_demand(honest, "a", name, proof))
    assert lenient.measures(state, fed)["refused_demands"].tolist() == [0.0, 0.0]


def test_a_node_that_two_peers_say_to_hold_is_taken_from_neither() -> None:
    algorithm, fed = tiny()
    begun(algorithm, fed)
    graph = fed.graphs["a"]
    state = {"ForeignEnds": {"rows": torch.zeros(2, 4), "places": torch.zeros(2, 4)}}
    client = Client(graph, state, random.key(0), random.key(1), None, ())
    parcels = [
        {"h": torch.full((4, 3), 1.0).double(), "places": torch.tensor([0, 1, -1, 10**6])},
        {"h": torch.full((4, 3), 2.0).double(), "places": torch.tensor([1, 2, -1, -1])},
    ]
    message = {"received": {"0": parcels[0], "1": parcels[1]}, "present": torch.tensor([True, True])}
    algorithm.hear(client, message)
    memory = client.state["ForeignEnds"]
    assert memory["there"][:3].tolist() == [True, False, True]
    assert memory["h"][:3, 0].tolist() == [1.0, 0.0, 2.0]
    later = {"h": parcels[1]["h"], "places": torch.tensor([0, -1, -1, -1])}
    algorithm.hear(client, {"received": {"0": parcels[0], "1": later}, "present": torch.tensor([False, True])})
    assert client.state["ForeignEnds"]["h"][:3, 0].tolist() == [2.0, 0.0, 2.0]  # an absent peer's stay


def test_a_pair_of_one_file_is_an_example_there_and_its_holder_decides(tmp_path: Path) -> None:
    for member, nodes, edges in (
        ("a", ["a1", "a2", "a3"], [("a1", "a2"), ("a2", "a3"), ("a1", "b1")]),
        ("b", ["b1", "b2", "b3"], [("b1", "b2"), ("b2", "b3")]),
    ):
        (tmp_path / member).mkdir()
        csv.write_csv(pa.table({"id": nodes, "x": np.arange(3.0)}), tmp_path / member / "nodes.csv")
        ends = {"source": [u for u, _ in edges], "target": [v for _, v in edges]}
        csv.write_csv(pa.table(ends), tmp_path / member / "edges.csv")
    data = {"name": "members", "path": str(tmp_path), "task": "links", "external": "predict", "ratios": [1, 0, 0]}
    for unrecorded, there in ((False, 0), (True, 1)):
        parts = {"name": "fedavg", "parts": [{"name": "foreign_ends", "unrecorded": unrecorded}]}
        built = build(resolve(document(data=data, partition={"name": "column"}, algorithm=parts)))
        tables = {client: graph.extra[FOREIGN_PAIRS] for client, graph in built.fed.graphs.items()}
        assert {client: int((table[:, 5] == 1).sum()) for client, table in tables.items()} == {"a": 1, "b": 0}
        state = begun(built.algorithm, built.fed)
        assert int(built.fed.snapshot()["a"]["ForeignEnds"]["there"].sum()) == there
        built.fed.begin(1)
        state = built.algorithm.round(state, built.fed)
        assert built.algorithm.evaluate(state, built.fed).clients["a"]["crossing"]["loss"][TRAIN, 1] >= there


def test_a_pair_of_one_file_has_its_relation_and_its_split(tmp_path: Path) -> None:
    for member, nodes, edges in (
        (
            "a",
            ["a1", "a2", "a3"],
            [("a1", "a2", "owes"), ("a2", "a3", "knows"), ("a1", "b1", "owes"), ("a2", "b1", "knows")],
        ),
        ("b", ["b1", "b2", "b3"], [("b1", "b2", "owes"), ("b2", "b3", "knows")]),
    ):
        (tmp_path / member).mkdir()
        csv.write_csv(pa.table({"id": nodes, "x": np.arange(3.0)}), tmp_path / member / "nodes.csv")
        source, target, label = zip(*edges, strict=True)
        split = ["test" if end == "b1" and kind == "knows" else "train" for _, end, kind in edges]
        table = pa.table({"source": source, "target": target, "label": label, "split": split})
        csv.write_csv(table, tmp_path / member / "edges.csv")
    data = {"name": "members", "path": str(tmp_path), "task": "links", "external": "predict", "rank_negatives": 0}
    algorithm = {"name": "fedavg", "parts": [{"name": "foreign_ends"}]}
    model = {"name": "gcn", "hidden": 4, "decoder": "distmult"}
    built = build(resolve(document(data=data, model=model, partition={"name": "column"}, algorithm=algorithm)))
    table = built.fed.graphs["a"].extra[FOREIGN_PAIRS]
    links = table[table[:, 5] == 1]  # own end, external end, relation, whether it leads, split, y
    assert built.data.links.relations == ("knows", "owes")
    assert links[:, [0, 2, 4]].tolist() == [[0, 1, TRAIN], [1, 0, TEST]]


@pytest.mark.parametrize("external", ["predict", "features"])
def test_links_have_their_splits_in_any_order_of_rows(tmp_path: Path, external: str) -> None:
    edges = [
        ("a3", "b1", "val"),
        ("a2", "a3", "test"),
        ("a1", "b1", "test"),
        ("a2", "b1", "val"),
        ("a1", "a2", "train"),
    ]
    for member, nodes, rows in (("a", ["a1", "a2", "a3"], edges), ("b", ["b1", "b2"], [("b1", "b2", "train")])):
        (tmp_path / member).mkdir()
        csv.write_csv(pa.table({"id": nodes, "x": np.arange(float(len(nodes)))}), tmp_path / member / "nodes.csv")
        columns = zip(("source", "target", "split"), zip(*rows, strict=True), strict=True)
        csv.write_csv(pa.table(dict(columns)), tmp_path / member / "edges.csv")
    data = {"name": "members", "path": str(tmp_path), "task": "links", "external": external, "rank_negatives": 0}
    parts = ["foreign_ends"] if external == "predict" else []
    algorithm = {"name": "fedavg", "parts": parts}
    built = build(resolve(document(data=data, partition={"name": "column"}, algorithm=algorithm)))
    graph = built.fed.graphs["a"]
    links = graph.pairs[:2, graph.y == 1].T.tolist()
    splits = graph.masks[:, graph.y == 1].int().argmax(0).tolist()
    expected = {(0, 1): TRAIN, (1, 2): TEST}
    assert {
        (*sorted(ends),): split for ends, split in zip(links, splits, strict=True) if ends[0] != ends[1]
    } == expected
    if external == "predict":
        table = graph.extra[FOREIGN_PAIRS]
        assert sorted(table[table[:, 5] == 1][:, [0, 4]].tolist()) == [[0, TEST], [1, VAL], [2, VAL]]


# --- refusals ---


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"algorithm": {"name": "fedavg", "scores": "sum"}}, "config.foreign-ends"),
        ({"algorithm": {"name": "fedper"}}, "config.foreign-ends"),
        ({"algorithm": {"name": "fedavg", "parts": [{"name": "foreign_ends", "sigma": 1.0}]}}, "config.value"),
        ({"partition": {"name": "random", "clients": 1}}, "config.external"),
    ],
)
def test_what_does_not_go_together_is_refused(change: dict[str, Any], code: str) -> None:
    with refusal(code):
        built = build(resolve(document(**change)))
        built.fed.begin(0)
        built.algorithm.init(built.fed)


# --- what users see ---


def test_a_finished_run_scores_pairs_with_a_foreign_end(tmp_path: Path) -> None:
    run_experiment(resolve(document()), tmp_path / "run", Silent())
    built = build(resolve(document()))
    data = built.data
    holder = np.full(data.nodes, -1)
    for at, part in enumerate(built.partition.parts):
        holder[part.nodes] = at
    u, v = data.edge_attrs.ends
    crossing = np.flatnonzero(holder[u] != holder[v])[:5]
    names = np.array(data.node_ids)
    ends = [*zip(names[u[crossing]], names[v[crossing]], strict=True), (names[0], "nobody")]
    csv.write_csv(pa.table({"source": [a for a, _ in ends], "target": [b for _, b in ends]}), tmp_path / "pairs.csv")
    rows = predictions(tmp_path / "run", query=PairQuery(tmp_path / "pairs.csv")).to_pylist()
    for source, target in ends[:-1]:
        assert len([row for row in rows if (row["source"], row["target"]) == (source, target) and row["client"]]) == 2
    [absent] = [row for row in rows if (row["source"], row["target"]) == ends[-1]]
    assert absent["score"] is None


@pytest.mark.parametrize("neighbors", [False, True])
def test_pairs_that_users_ask_about_get_the_scores_that_evaluation_gives_them(tmp_path: Path, neighbors: bool) -> None:
    part = {"name": "foreign_ends", "neighbors": neighbors}
    config = resolve(document(algorithm={"name": "fedavg", "parts": [part]}))
    run_experiment(config, tmp_path / "run", Silent())
    run = load_trained(tmp_path / "run", finished_config(tmp_path / "run"), "")
    client, w = next(iter(run.models("personal").items()))
    own, graph = run.built.partition.parts[0].nodes, run.built.fed.graphs[client]
    memory = run.built.fed.snapshot()[client]["ForeignEnds"]
    judged = crossing_examples(ForeignEnds(neighbors=neighbors), run.net_of(client), w, graph, memory)
    scores = core_models.infer(run.net_of(client), w, judged).softmax(1)[:, 1]
    hashes = name_hashes(run.built.data, run.built.data.links).tolist()
    names = np.array(run.built.data.node_ids)
    called = [*names[own], *[""] * (graph.nodes - len(own))]
    called += [names[hashes.index(one)] if one in hashes else "" for one in graph.extra[FOREIGN_NODES][:, 0].tolist()]
    at = torch.nonzero(judged.masks[TEST])[:8, 0]
    ends = [(called[u], called[v]) for u, v, _ in judged.pairs[:, at].T.tolist()]
    csv.write_csv(pa.table({"source": [u for u, _ in ends], "target": [v for _, v in ends]}), tmp_path / "pairs.csv")
    rows = predictions(tmp_path / "run", query=PairQuery(tmp_path / "pairs.csv")).to_pylist()
    found = {(row["source"], row["target"]): row["score"] for row in rows if row["client"] == client}
    assert len(at) == 8
    assert [found[pair] for pair in ends] == pytest.approx(scores[at].tolist(), abs=1e-6)


def test_check_says_what_members_know() -> None:
    config = resolve(document())
    text = "\n".join(facts(config, build(config)))
    built = build(config)
    links = sum(int((graph.extra[FOREIGN_PAIRS][:, 5] == 1).sum()) for graph in built.fed.graphs.values())
    [line] = [line for line in text.split("\n") if "between members" in line]
    counts = [int(word.replace(",", "")) for word in re.findall(r"([0-9,]+) (?:train|val|test)", line)]
    assert sum(counts) == links > 0


def test_clients_dealt_to_workers_give_the_same() -> None:
    config = resolve(document())
    inputs = ingredients(config)
    graphs = client_graphs(inputs.data, inputs.visible_partition, finders=inputs.algorithm.finders)
    sharded = ShardedRecorder(graphs, classes=2, shards=2, rebuild=lambda: ingredients(config).algorithm, mode="loop")
    runs = []
    for fed in (Simulation(graphs, classes=2, mode="loop"), sharded):
        state = begun(inputs.algorithm, fed)
        fed.begin(1)
        runs.append((inputs.algorithm.round(state, fed)["w"], fed.ledger.sizes()["peer"]))
    assert all(torch.equal(leaf, dict(leaves(runs[1][0]))[path]) for path, leaf in leaves(runs[0][0]))
    assert runs[0][1] == runs[1][1] > 0
