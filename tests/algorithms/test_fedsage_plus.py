"""FedSage+: matching and mending by hand, that gradients of others are those of the pooled loss, and what leaves a
client."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.fedsage_plus import MissingNeighbours, forward_offers, sum_gradients
from fedweave.algorithms.generated_neighbors import add_neighbors, keep_largest
from fedweave.algorithms.neighbors import add_noise, classification, counts, embeddings, mismatch, squares
from fedweave.contract.subject import RecordingSimulation
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.federation import Client
from fedweave.core.graph import TRAIN, VAL, make_graph
from fedweave.core.graph_arrays import GraphArrays, graph_arrays
from fedweave.core.replies import Stacked
from fedweave.core.tree import Tree, leaves, map_leaves
from fedweave.engines.simulation import Simulation
from fedweave.errors import FedweaveError
from fedweave.models import MODELS
from fedweave.ops.sparse import dense
from tests.contract.federations import FEATURES, federation, model
from tests.refusals import refusal

PART = MissingNeighbours(slots=2, epochs=3, exchanges=3, peers=0, sample=6, hidden=(8,), rounding="floor")
DOUBLE = torch.float64


@cache
def learnt() -> dict[str, Tree]:
    """What five clients keep once they have learnt from what they hid, in double precision."""
    fed = federation(dtype=DOUBLE, mode="vmap", record="never")
    fed.begin(0)
    fed.map(PART.learn, {"classes": fed.classes})
    return fed.snapshot()


def begun(record: str = "never") -> Simulation:
    """These clients; they are made once for all tests."""
    fed = federation(dtype=DOUBLE, mode="vmap", record=record)
    fed.restore(learnt())
    fed.begin(0)
    return fed


def believing(fed: Simulation, count: float) -> Simulation:
    """All nodes are believed to miss so many neighbors, whose features do not depend on the node."""
    states = fed.snapshot()
    for state in states.values():
        kept = state["neighbours"]
        kept["count"] = torch.full_like(kept["count"], count)
        kept["w"]["count"]["0"] = {"weight": torch.zeros(128, 1).double(), "bias": torch.tensor([count]).double()}
    fed.restore(states, fed.snapshot_data())
    return fed


# --- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_matching_by_hand(kind: Any) -> None:
    """Node 0 makes (1, 0) and (0, 3), node 1 makes (1, 1) and something unused, node 2 may stand for nobody."""
    rows = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 2.0], [0.0, 0.0]])
    edges = np.array([[0, 1], [1, 0]])
    graph = make_graph(kind(rows), edges, np.zeros(4, int), np.zeros((3, 4), bool), dtype=DOUBLE)
    made = torch.tensor([[[1.0, 0.0], [0.0, 3.0]], [[1.0, 1.0], [9.0, 9.0]], [[5.0, 5.0]] * 2]).double()
    made.requires_grad_()
    candidates = torch.zeros(graph.nodes, 3, dtype=torch.bool)
    candidates[[0, 2], 0] = True  # (0, 0) and (0, 2)
    candidates[2, 1] = True
    used = torch.tensor([[True, True], [True, False], [True, True]])
    found = mismatch(made, used, graph.x, squares(graph.x), candidates)
    # squared distances 1 to (0, 0), 1 to (0, 2), and 1 + 1 to (0, 2), over two features and three slots
    assert found.detach() == pytest.approx((1 + 1 + 2) / 2 / 3)
    found.backward()
    nearest = [[[1.0, 0.0], [0.0, 1.0]], [[1.0, -1.0], [0.0, 0.0]], [[0.0, 0.0]] * 2]
    assert made.grad is not None
    assert (made.grad - torch.tensor(nearest).double() / 3).abs().max() < 1e-12


def test_matching_nothing_is_0_with_a_gradient_of_0() -> None:
    graph = make_graph(np.ones((2, 3)), np.zeros((2, 0), int), np.zeros(2, int), np.zeros((3, 2), bool))
    made = torch.ones(2, 1, 3, requires_grad=True)
    nobody = torch.zeros(graph.nodes, 2, dtype=torch.bool)
    loss = mismatch(made, torch.ones(2, 1, dtype=torch.bool), graph.x, squares(graph.x), nobody)
    loss.backward()
    assert loss == 0
    assert made.grad is not None
    assert made.grad.abs().max() == 0


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_mending_by_hand(kind: Any) -> None:
    """A path of three nodes; node 0 gets two neighbors and node 2 one."""
    x = np.array([[1.0, 0, 0], [0, 2, 0], [0, 3, 4]], np.float32)
    path = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
    before = GraphArrays(kind(x), path, np.array([1, 0, 1]), np.eye(3, dtype=bool), np.array([0, 1, -1]))
    made = np.array([[0.1, -0.3, 0.2], [0.4, 0.5, 0.6], [-0.9, 0.7, 0.8]], np.float32)
    after = add_neighbors(before, np.array([0, 0, 2]), made)
    new = after.x if isinstance(after.x, np.ndarray) else after.x.toarray()
    assert (new[:3] == x).all()
    if kind is sp.csr_matrix:  # the densest node has two features
        made = np.array([[0, -0.3, 0.2], [0, 0.5, 0.6], [-0.9, 0, 0.8]], np.float32)
    assert (new[3:] == made).all()
    pairs = {(int(a), int(b)) for a, b in after.edges.T}
    joined = {(0, 3), (0, 4), (2, 5)}
    assert pairs == {(0, 1), (1, 0), (1, 2), (2, 1)} | joined | {(b, a) for a, b in joined}
    assert after.edges.shape == (2, 10)
    assert after.y.tolist() == [1, 0, 1, -1, -1, -1]
    assert (after.masks[:, :3] == before.masks).all()
    assert not after.masks[:, 3:].any()
    assert after.sensitive is not None
    assert after.sensitive.tolist() == [0, 1, -1, -1, -1, -1]


def test_the_mended_classifier_is_graphsage_on_the_mended_graph() -> None:
    """What is computed with slots is what a two-layer SAGE gives on a graph with these nodes and edges in it."""
    fed = begun()
    graph = fed.graphs["site-1"]
    n, hidden = int(graph.real.sum()), torch.arange(graph.nodes) % 5 == 0
    visible = graph.real & ~hidden
    rows = torch.arange(graph.nodes).flip(0)[5:]
    made = random.uniform(random.key(1), (len(rows), 2, FEATURES)).double()
    used = (torch.arange(2) < (rows % 3)[:, None]) & visible[rows][:, None]
    w = PART.net.init(random.key(2), FEATURES, 3, DOUBLE)["classifier"]
    arrays = graph_arrays(graph)
    kept, shown = visible[:n].numpy(), visible & graph.masks[TRAIN]
    at = np.cumsum(kept) - 1
    edges = at[arrays.edges[:, kept[arrays.edges].all(0)]]
    own = GraphArrays(arrays.x.toarray()[kept], edges, arrays.y[kept], arrays.masks[:, kept])
    owners = at[rows.repeat_interleave(2)[used.flatten()].numpy()]
    whole = add_neighbors(own, owners, made[used].numpy())
    both = make_graph(*whole[:4], dtype=DOUBLE)
    sage = MODELS["sage"](hidden=64, dropout=0.0).build(FEATURES, 3)
    logits = models.apply(sage, w, both)[: kept.sum()]
    expected = torch.nn.functional.cross_entropy(logits[shown[:n][kept]], graph.y[shown])
    assert classification(w, graph, visible, rows, made, used) == pytest.approx(float(expected), abs=1e-12)


def test_the_encoder_sees_neither_hidden_nodes_nor_their_edges() -> None:
    """By hand: h ← ReLU(D~^-1 (A + I) h W + b) on what is left."""
    fed = begun()
    graph = fed.graphs["site-0"]
    visible = graph.real & (torch.arange(graph.nodes) % 4 > 0)
    w = PART.net.init(random.key(3), FEATURES, 3, DOUBLE)["encoder"]
    a = torch.from_numpy(graph.whole_edges.members[0].adjacency.toarray()).double()[visible][:, visible]
    looped = a + torch.eye(len(a))
    h = dense(graph.x)[visible]
    for i in "01":
        h = torch.relu(looped @ h @ w[i]["weight"] / looped.sum(1, keepdim=True) + w[i]["bias"])
    assert (embeddings(w, graph, visible)[visible] - h).abs().max() < 1e-12


# --- what clients learn ----------------------------------------------------------------------------------------------


def test_half_of_the_nodes_in_no_training_or_test_set_are_hidden() -> None:
    fed = begun()
    for client, state in fed.snapshot().items():
        graph, hidden = fed.graphs[client], state["neighbours"]["hidden"]
        assert not (hidden & ~graph.masks[VAL]).any()
        assert hidden.sum() == graph.masks[VAL].sum() // 2


def test_the_local_loss_is_of_what_visible_nodes_miss_and_of_their_hidden_neighbors() -> None:
    """Its first two terms node by node, of every visible node with hidden neighbors, of which there are fewer than are
    drawn; the third is held above."""
    part = MissingNeighbours(slots=2, sample=60, hidden=(8,), rounding="floor")
    graph, kept, key = begun().graphs["site-1"], learnt()["site-1"]["neighbours"], random.key(3)
    hidden = graph.real & (torch.arange(graph.nodes) % 5 == 1)
    w, x, n = kept["w"], dense(graph.x), int(graph.real.sum())
    near = [set(map(int, kept_by.nonzero()[0])) for kept_by in graph.whole_edges.members[0].adjacency.toarray()[:n]]
    theirs = {u: [v for v in near[u] if hidden[v]] for u in range(n) if not hidden[u]}
    z = embeddings(w["encoder"], graph, graph.real & ~hidden)
    count = counts(w["count"], z)
    wanted = torch.tensor([float(len(missed)) for missed in theirs.values()]).double()
    number = torch.nn.functional.smooth_l1_loss(count[list(theirs)], wanted)
    rows, real = part.draw_rows(graph, random.fold(key, "rows"), hidden)
    assert sorted(rows[real].tolist()) == [u for u, missed in theirs.items() if missed]
    assert 0 < int(real.sum()) < len(theirs)
    assert theirs[0], "the node that empty places stand for has hidden neighbors, too"
    made = part.net.features(w["features"], add_noise(z[rows], random.fold(key, "noise")))
    gaps = [
        min(((made[at, slot] - x[v]) ** 2).mean() for v in theirs[u])
        for at, u in enumerate(rows[real].tolist())
        for slot in range(min(2, len(theirs[u])))
    ]
    used = part.net.used_slots(torch.floor(count[rows]).long()) & real[:, None]
    third = classification(w["classifier"], graph, graph.real & ~hidden, rows, made, used)
    expected = number + torch.stack(gaps).mean() + third
    assert part.local_loss(w, graph, key, kept | {"hidden": hidden}) == pytest.approx(float(expected), abs=1e-12)


def test_no_count_begins_where_it_has_no_gradient() -> None:
    for seed in range(3):
        w = PART.net.init(random.key(seed), FEATURES, 3, DOUBLE)
        assert all((leaf >= 0).all() for _, leaf in leaves(w["count"]))
        assert (w["features"]["0"]["weight"] < 0).any()


def test_learning_lowers_the_local_loss() -> None:
    losses = []
    for epochs in (1, 30):
        part = MissingNeighbours(slots=2, epochs=epochs, sample=20, hidden=(8,))
        fed = federation(dtype=DOUBLE, mode="vmap")
        fed.begin(0)
        fed.map(part.learn, {"classes": fed.classes}, clients=["site-3"])
        kept = fed.snapshot()["site-3"]["neighbours"]
        losses.append(float(part.local_loss(kept["w"], fed.graphs["site-3"], random.key(5), kept)))
    assert losses[1] < 0.9 * losses[0]


def test_gradients_of_others_are_those_of_the_pooled_loss() -> None:
    """Σ_j over the other clients of their matching terms, written out in plain torch on what was offered."""
    fed = believing(begun(), 1.3)
    offers = fed.map(PART.offer)
    asked = PART.owners(offers.clients, random.key(0))
    assert asked.shape == (4, 5)
    replies = fed.map(PART.match, each=Stacked(offers.clients, forward_offers(offers, asked)))
    total = Stacked(offers.clients, sum_gradients(replies, asked))
    for client in fed.clients:
        offer = offers[client]
        w = map_leaves(lambda leaf: leaf.clone().requires_grad_(), offer["generator"])
        h = torch.relu(offer["embedding"] @ w["0"]["weight"] + w["0"]["bias"])
        made = torch.tanh(h @ w["1"]["weight"] + w["1"]["bias"]).view(-1, 2, FEATURES)
        assert offer["slots"].sum() > 0
        flat = made[torch.arange(2) < offer["slots"][:, None]]
        others = [dense(fed.graphs[c].x)[fed.graphs[c].real] for c in fed.clients if c != client]
        loss = sum(((flat[:, None] - x[None]) ** 2).mean(2).min(1).values.mean() for x in others)
        assert isinstance(loss, Tensor)
        loss.backward()
        found = dict(leaves(total.one(client)))
        assert all((found[path] - leaf.grad).abs().max() < 1e-12 for path, leaf in leaves(w))
        assert max(float(leaf.grad.abs().max()) for _, leaf in leaves(w)) > 1e-6


@pytest.mark.parametrize("peers", [1, 3, 0])
def test_every_generator_is_sent_to_as_many_others_and_never_to_its_own_client(peers: int) -> None:
    part = MissingNeighbours(peers=peers)
    names = ["c", "a", "d", "b", "e"]
    asked = part.owners(names, random.key(1))
    assert asked.shape == (peers or 4, 5)
    assert all(sorted(row) == list(range(5)) for row in asked.tolist())
    assert not (asked == torch.arange(5)).any()
    backwards = part.owners(names[::-1], random.key(1))
    assert torch.equal(4 - backwards.flip(1), asked)  # by name, whatever the order


def test_a_step_of_the_exchange_is_of_the_own_term_and_of_what_others_returned() -> None:
    graph, kept, key = begun().graphs["site-1"], learnt()["site-1"]["neighbours"], random.key(4)
    w = kept["w"]["features"]
    told = map_leaves(lambda leaf: random.uniform(random.key(5), tuple(leaf.shape)).double(), w)
    rows, real = PART.draw_rows(graph, random.fold(key, "rows"), kept["hidden"])
    made = PART.net.features(w, add_noise(kept["z"][rows], random.fold(key, "noise")))
    own = PART.local_mismatch(graph, made, rows, real, kept)
    others = sum(float((leaf * dict(leaves(told))[path]).sum()) for path, leaf in leaves(w))
    assert float(own) > 0.01
    assert PART.joint_loss(w, graph, key, kept | {"gradient": told}) == pytest.approx(float(own) + others)


def test_steps_of_the_exchange_go_on_with_adams_means() -> None:
    """Where gradients are large, all of one sign and alike, so are all steps: of the learning rate. Begun anew with
    every step, so would be those after the sign has changed, too."""
    graph, kept = begun().graphs["site-1"], learnt()["site-1"]["neighbours"]
    client, moved = Client(graph, {"neighbours": kept}, random.key(6), random.key(7)), []
    for sign in (1.0, 1.0, -1.0):
        before = client.state["neighbours"]["w"]["features"]["0"]["bias"]
        told = map_leaves(lambda leaf, sign=sign: torch.full_like(leaf, sign * 1e6), kept["w"]["features"])
        PART.improve(client, {"gradient": told})
        moved.append(float((client.state["neighbours"]["w"]["features"]["0"]["bias"] - before).mean()))
    # Kingma and Ba 2015, algorithm 1, with g = 1, 1 and -1: m is .1, .19 and .071, v is 1 - .999^t
    wanted = [-1e-3 * m / (1 - 0.9**t) for t, m in enumerate((0.1, 0.19, 0.071), 1)]
    assert moved == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
def test_the_exchange_brings_what_is_made_closer_to_others_nodes() -> None:
    def gap(fed: Simulation) -> float:
        gaps = []
        for client, state in fed.snapshot().items():
            kept = state["neighbours"]
            made = PART.net.features(kept["w"]["features"], kept["z"])
            for other in (c for c in fed.clients if c != client):
                graph = fed.graphs[other]
                mine = graph.real[:, None].expand(-1, len(made))
                used = torch.ones(made.shape[:2], dtype=torch.bool)
                gaps.append(float(mismatch(made, used, graph.x, squares(graph.x), mine)))
        return float(np.mean(gaps))

    fed = believing(begun(record="auto"), 2.0)
    before = gap(fed)
    for number in range(12):
        PART.exchange(fed, random.key(number))
    assert gap(fed) < 0.98 * before


# --- mended graphs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "each"), [(0.9, 0), (1.7, 1), (7.2, 2)])
def test_mending_adds_exactly_what_is_predicted(count: float, each: int) -> None:
    """⌊n̂⌋ neighbors of every node, `slots` at most, with the generator's features."""
    fed = believing(begun(), count)
    states, before = fed.snapshot(), dict(fed.graphs)
    fixed = torch.linspace(-0.9, 0.9, 2 * FEATURES).double()
    for state in states.values():
        last = state["neighbours"]["w"]["features"]["1"]
        last["weight"], last["bias"] = torch.zeros_like(last["weight"]), fixed
    fed.restore(states, fed.snapshot_data())
    fed.replace_data(PART.mend)
    for client, graph in fed.graphs.items():
        old, new = graph_arrays(before[client]), graph_arrays(graph)
        n = len(old.y)
        assert len(new.y) == n * (1 + each)
        assert new.edges.shape[1] == old.edges.shape[1] + 2 * n * each
        most = int(np.diff(old.x.indptr).max())
        expected = np.tanh(fixed.view(2, -1).numpy())[:each]
        expected = np.where(np.argsort(np.argsort(-np.abs(expected))) < most, expected, 0)
        assert np.abs(new.x.toarray()[n:] - np.tile(expected, (n, 1))).max(initial=0) < 1e-12
    assert all("neighbours" not in state for state in fed.snapshot().values())


def test_mended_features_are_made_of_embeddings_with_noise() -> None:
    fed, key = believing(begun(), 1.3), random.key(8)
    graph, state = fed.graphs["site-4"], fed.snapshot()["site-4"]
    w, n = state["neighbours"]["w"], int(graph.real.sum())
    z = add_noise(embeddings(w["encoder"], graph, graph.real), random.fold(key, "noise"))
    most = int(np.diff(graph_arrays(graph).x.indptr).max())
    made = keep_largest(PART.net.features(w["features"], z)[:n, 0].numpy(), most)
    new = PART.mend(Client(graph, state, key, random.key(9)), {})["graph"]
    assert (dense(new.x)[n : 2 * n] - torch.from_numpy(made)).abs().max() < 1e-12


def test_a_client_alone_mends_its_graph_without_an_exchange() -> None:
    graph = federation(dtype=DOUBLE).graphs["site-1"]
    fed = Simulation({"only": graph}, classes=3)
    fed.begin(0)
    FedAvg(model(), parts=(PART,)).init(fed)
    called = {row["step"] for row in fed.ledger.table().to_pylist()}
    assert called == {"MissingNeighbours.learn", "MissingNeighbours.mend"}


# --- what leaves a client --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def heard() -> tuple[Simulation, dict[str, list[Tree]]]:
    """All replies up to the first round, by client; the server sends what no honest one would, too."""
    fed = federation(engine=RecordingSimulation, dtype=DOUBLE, mode="vmap")
    fed.begin(0)
    ALGORITHMS["fedsage_plus"](model(), slots=2, epochs=2, exchanges=1, sample=6, hidden=(8,), rounding="random").init(
        fed
    )
    fed.map(PART.learn, {"classes": 3})
    believing(fed, 1.5)
    greedy = {"hidden": 1, "norms": 1, "x": 1, "send": "x", "sample": 1000, "classes": 3}
    fed.map(PART.offer, greedy)
    offer = fed.heard[-1]
    fed.map(PART.match, greedy | {"offers": {"0": offer[fed.clients[0]]}})
    return fed, {client: [reply[client] for reply in fed.heard if client in reply.clients] for client in fed.clients}


def test_offers_are_of_visible_nodes_that_miss_some_with_noise_that_the_client_alone_knows() -> None:
    """Every embedding is its node's number; even nodes miss more than there are slots, odd ones nobody."""
    part = MissingNeighbours(slots=2, sample=20, hidden=(8,), rounding="floor")
    fed = begun()
    graph, state, secret = fed.graphs["site-4"], fed.snapshot()["site-4"], random.key(2)
    number = torch.arange(graph.nodes)
    kept = state["neighbours"]
    kept |= {"z": number[:, None].double().expand(-1, 128), "count": 7.2 * (number % 2 == 0)}
    offer = part.offer(Client(graph, state, random.key(1), secret), {})
    members = (graph.real & ~kept["hidden"] & (number % 2 == 0)).nonzero()[:, 0].tolist()
    assert 0 < len(members) < 20
    assert kept["hidden"][::2].any()
    assert offer["slots"].tolist() == [2] * len(members) + [0] * (20 - len(members))
    plain = offer["embedding"] - random.normal(random.fold(secret, "noise"), (20, 128))
    assert (plain - plain.round()).abs().max() < 1e-5
    assert sorted(plain[: len(members), 0].round().int().tolist()) == members


def test_no_row_of_features_leaves_a_client_whatever_the_message_asks(heard: Any) -> None:
    fed, replies = heard
    for client, own in replies.items():
        rows = dense(fed.graphs[client].x)[fed.graphs[client].real]
        rows = rows[(rows != 0).any(1)]
        sent = [leaf for tree in own for _, leaf in leaves(tree) if leaf.numel() and leaf.numel() % FEATURES == 0]
        assert sent
        for leaf in sent:
            flat = leaf.double().reshape(-1, FEATURES)
            cosine = torch.nn.functional.normalize(flat) @ torch.nn.functional.normalize(rows).mT
            assert cosine.abs().max() < 0.999


def test_nothing_but_what_is_declared_leaves(heard: Any) -> None:
    fed, replies = heard
    told = {path.split("/")[0] for own in replies.values() for tree in own for path, _ in leaves(tree)}
    assert told == {"generator", "embedding", "slots", "gradient"}
    table = [row for row in fed.ledger.table().to_pylist() if row["direction"] == "up" and row["reveals"]]
    up = {row["key"].split("/")[0]: row for row in table if row["key"][0] != "("}
    assert set(up) == told
    assert "hidden neighbors" in up["generator"]["reveals"]
    assert "of a generator made for that, a node's features" in up["gradient"]["reveals"]
    assert "aussian" in up["embedding"]["mechanism"]


def test_a_server_cannot_run_what_is_no_step() -> None:
    fed = begun()
    for asked in (PART.local_loss, PART.offers_loss):
        with refusal("step.unmarked", "@on_client"):
            fed.map(asked)
    with pytest.raises(FedweaveError):
        fed.map(PART.mend)  # the new graph would be the reply


def test_a_generator_made_for_it_reads_a_node_as_the_ledger_says() -> None:
    """A limit of the method: one slot, and a last layer whose bias alone has a gradient."""
    fed = begun()
    graph = fed.graphs["site-2"]
    w = map_leaves(torch.zeros_like, PART.net.init(random.key(0), FEATURES, 3, DOUBLE)["features"])
    offer = {"generator": w, "embedding": torch.zeros(1, 128).double(), "slots": torch.tensor([1])}
    client = Client(graph, fed.snapshot()["site-2"], random.key(0), random.key(0))
    told = PART.match(client, {"offers": {"0": offer}})["gradient"]["0"]["1"]["bias"][:FEATURES]
    read = -told * FEATURES / 2  # of ‖0 − x_u‖² / d
    assert (dense(graph.x)[graph.real] - read).abs().sum(1).min() < 1e-9
