"""GLASU: what crosses, what it costs, what is refused, and that it learns. Its gradients have a file of their own."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedweave import datasets
from fedweave.algorithms.glasu import GLASU
from fedweave.algorithms.vertical.aggregation import AGGREGATIONS, union
from fedweave.algorithms.vertical.special import VFGNN, VFL, PooledGNN, SimulatedCentralized, Standalone
from fedweave.algorithms.vertical.split import cuts
from fedweave.core.algorithm import capabilities
from fedweave.core.edge_list import EdgeList
from fedweave.core.edges import Edges
from fedweave.core.graph import Graph, make_graph
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.core.tree import Tree, leaves
from fedweave.engines import vectorized
from fedweave.engines.simulation import Simulation
from fedweave.experiment.graphs import client_graphs, width
from fedweave.experiment.rounds import train
from fedweave.models import MODELS
from fedweave.ops import rows as ops_rows
from fedweave.partition import PARTITIONS
from fedweave.privacy.accountant import bounds
from fedweave.privacy.gaussian import GaussianRows
from tests.random_graphs import replace_fields
from tests.refusals import refusal

NODES, FEATURES, CLASSES = 60, 12, 3
SLOW = pytest.mark.slow  # what the contract asks of every kind, in settings that it does not have
DATA = Path(os.environ.get("FEDWEAVE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def parties(
    clients: int = 3, holders: tuple[int, ...] | None = None, nodes: int = NODES, dtype: torch.dtype = torch.float32
) -> dict[str, Graph]:
    """Class-dependent sparse features and homophilous edges, of each client's own; the same labels and masks."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, nodes)
    masks = np.zeros((3, nodes), bool)
    masks[rng.integers(0, 3, nodes), np.arange(nodes)] = True
    graphs = {}
    for i in range(clients):
        odds = np.where(y[:, None] == y, 0.15, 0.03)
        pairs = np.triu(rng.random((nodes, nodes)) < odds, 1)
        x = rng.random((nodes, FEATURES)) < 0.1 + 0.3 * (np.arange(FEATURES) % CLASSES == y[:, None])
        edges = np.stack(np.nonzero(pairs | pairs.T))
        graph = make_graph(sp.csr_matrix(x.astype(np.float32)), edges, y, masks, dtype=dtype)
        graphs[f"client-{i}"] = (
            graph if holders is None or i in holders else replace_fields(graph, y=torch.full_like(graph.y, -1))
        )
    return graphs


def backbone(name: str = "gcnii", dropout: float = 0.2) -> Any:
    return MODELS[name](hidden=8, layers=4, dropout=dropout).build(FEATURES, CLASSES)


def federation(graphs: dict[str, Graph] | None = None, **options: Any) -> Simulation:
    return Simulation(graphs or parties(), classes=CLASSES, **options)


def made(kind: type = GLASU, name: str = "gcnii", **options: Any) -> Any:
    net = options.pop("net", None) or backbone(name)
    usual = {"batch": 8, "optimizer": "sgd", "lr": 0.2} | ({} if kind is VFL else {"fan_out": 2})
    return kind(net, **(usual | options))


def outcome(
    algorithm: Any, fed: Simulation, rounds: int = 3, resume: Any = None
) -> tuple[Any, dict[str, torch.Tensor]]:
    *_, last = train(algorithm, fed, rounds, eval_every=1, resume=resume)
    return last, dict(leaves(fed.snapshot()))


def gap(a: dict[str, Any], b: dict[str, Any]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[path] - b[path]).abs().max()) for path in a)


def rows(fed: Simulation, **where: Any) -> list[dict[str, Any]]:
    table = fed.ledger.table().to_pylist()
    return [row for row in table if all(row[key] == value for key, value in where.items())]


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("at", [0, 2])
def test_joining_what_was_extracted_gives_the_aggregate(how: str, at: int) -> None:
    """Join ∘ Extract is the identity, and the others' part does not depend on the client's own."""
    kind, h = AGGREGATIONS[how], torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    place, share = torch.tensor(at), torch.tensor(1 / 3, dtype=torch.float64)

    def whole(parts: torch.Tensor) -> torch.Tensor:
        return kind.aggregate(Replies(("a", "b", "c"), [ReplyBatch((0, 1, 2), {"h": parts})], {}), "h", parts.dtype)

    others = kind.extract(whole(h), h[at], place, share)
    assert torch.allclose(kind.join(others, h[at], place, share), whole(h), atol=1e-15)
    changed = h.clone()
    changed[at] = 7.0
    assert torch.allclose(kind.extract(whole(changed), changed[at], place, share), others, atol=1e-15)
    assert torch.allclose(kind.join(others, changed[at], place, share), whole(changed), atol=1e-15)
    assert whole(h).shape == ((5, 4) if how == "mean" else (5, 12))


def test_aggregated_layers_by_hand() -> None:
    """Four layers pass messages, numbers 1 to 4 of GCNII's six."""
    model = backbone()
    assert [cuts(model, k) for k in range(5)] == [(), (4,), (2, 4), (2, 3, 4), (1, 2, 3, 4)]
    assert cuts(model, 2, (1, 3)) == (1, 3)
    assert cuts(backbone("gcn"), 4) == (0, 1, 2, 3)
    for at in ((0, 2), (3, 3), (2, 5)):
        with pytest.raises(ValueError, match=r"it must rise within 1, …, 4"):
            cuts(model, 2, at)
    with pytest.raises(ValueError, match="exchanges is 5, but only 4"):
        cuts(model, 5)


def test_models_that_collect_outputs_are_cut_after_the_last_of_these() -> None:
    """GPRGNN's last layer weighs all hops, of which parties keep those before the first exchange."""
    model = backbone("gprgnn")
    assert cuts(model, 1) == (5,)  # two layers of its MLP, then four hops
    for k in (2, 4):
        with pytest.raises(ValueError, match="exchanges = 1"):
            cuts(model, k)


def test_unions_by_hand() -> None:
    lists = [{"nodes": torch.tensor(nodes, dtype=torch.int32)} for nodes in ([4, 9, 4], [1, 4, 2])]
    replies = Replies(("a", "b"), [ReplyBatch((i,), {"nodes": t["nodes"][None]}) for i, t in enumerate(lists)], {})
    assert union(replies, 10)[:4].tolist() == [1, 2, 4, 9]
    assert union(replies, 10)[4:].tolist() == [1] * 60
    with refusal("call.sampled-nodes", "'a'", "0 to 8"):
        union(replies, 9)
    below = Replies(("a",), [ReplyBatch((0,), {"nodes": torch.tensor([[3, -1]], dtype=torch.int32)})], {})
    with refusal("call.sampled-nodes", "'a'", "0 to 9"):
        union(below, 10)


class Launched:
    """Captures that launch what they are of."""

    def capture(self, function: Callable[[], object]) -> Callable[[], object]:
        function()
        return function


def test_what_accelerators_capture_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """States lie in memory of the same form after a call as written, a recorded and a captured one."""
    monkeypatch.setattr(vectorized, "recorder_for", lambda device: Launched())
    monkeypatch.setattr(ops_rows, "COUNTING", set())
    fed = federation()
    told = [(fed.recordings.recorded, fed.recordings.captured) for _ in train(made(), fed, 5, 1)]
    calls = 7  # sample, infer twice, update; infer_full twice, score
    whole = calls + 1  # the evaluation as a whole; a round's lists of nodes depend on draws
    assert told == [(0, 0), (calls, 0), (calls, calls), (whole, calls), (whole, whole)]


def _sparse_to_dense(nodes: int) -> dict[str, Graph]:
    """Parties with many, half and a tenth of the edges, whose lists of nodes have different lengths."""
    graphs = parties(nodes=nodes)
    for client, share in zip(graphs, (1, 2, 10), strict=True):
        (links,) = graphs[client].edges.members
        first, second = links.index
        kept = links.index[:, (first + second) % share == 0]
        graphs[client] = replace_fields(graphs[client], edges=Edges.of([EdgeList(kept, links.nodes)]))
    return graphs


@pytest.mark.often("options1")
@pytest.mark.parametrize(
    "options",
    [
        {"steps": 3}, {"backward": "exchanged"},
        *(pytest.param(own, marks=SLOW) for own in ({}, {"exchanges": 4}, {"exchanges": 1})),
    ],
)  # fmt: skip
def test_what_is_dropped_of_a_node_does_not_depend_on_the_list_it_stands_in(options: dict[str, Any]) -> None:
    """A client alone pads its lists to its own length, together all pad to the longest, and later to earlier ones."""
    graphs, ends = _sparse_to_dense(600), []
    for mode in ("loop", "vmap"):
        fed = federation(graphs, mode=mode)
        ends.append(outcome(made(net=backbone(dropout=0.5), fan_out=4, batch=16, **options), fed)[1])
    assert gap(*ends) < 1e-6
    rooms = [tuple(graph.edges.cache._sizes.values()) for graph in graphs.values()]  # of the loop
    assert len(set(rooms)) > 1


@pytest.mark.often("True-0.5-options1-mean")
@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize(
    ("same", "dropout", "options"),
    [(True, 0.0, {}), (True, 0.5, {"backward": "exchanged"}), (False, 0.0, {"steps": 3}), (False, 0.5, {})],
)
def test_when_predictions_stay_equal(how: Any, same: bool, dropout: float, options: dict[str, Any]) -> None:
    """ "This layer is the same among clients": it begins so, and what drops in it is drawn alike."""
    _, clients = outcome(made(net=backbone(dropout=dropout), aggregation=how, **options), federation(), 3)
    last = [clients[f"client-{i}/w/5/weight"] for i in range(3)]
    assert all(torch.allclose(last[0], w, atol=1e-6) == same for w in last[1:])
    assert not torch.allclose(clients["client-0/w/1/weight"], clients["client-1/w/1/weight"], atol=1e-2)


def uploaded(fed: Simulation) -> int:
    return sum(row["bytes"] for row in rows(fed, direction="up", key="h") if row["step"].endswith("infer"))


@pytest.mark.slow
def test_bytes_per_update_fall_as_q_times_l_over_k() -> None:
    sizes = {}
    for exchanges, steps in ((4, 1), (2, 1), (1, 1), (4, 4), (2, 4)):
        fed = federation()
        outcome(made(exchanges=exchanges, steps=steps, batch=0), fed, 4 // steps)
        sizes[exchanges, steps] = uploaded(fed)
    full = sizes[4, 1]
    assert full == 4 * 4 * 3 * 64 * 8 * 4  # rounds, layers, clients, padded nodes, columns, bytes
    assert [full / sizes[pair] for pair in ((2, 1), (1, 1), (4, 4), (2, 4))] == [2, 4, 4, 8]


def test_what_the_server_learns_is_in_the_ledger() -> None:
    fed = federation(parties(holders=(1,)))
    outcome(made(), fed, 1)
    up = {(row["step"].split(".")[1], row["key"]): row for row in rows(fed, direction="up") if row["reveals"]}
    assert {key for _, key in up} == {"nodes", "masks", "labels", "h", "gradient", *OWN}
    assert "sampled neighbors" in up["sample", "nodes"]["reveals"]
    assert "labels" in up["pull", "gradient"]["reveals"]
    assert {row["client"] for row in rows(fed, direction="up", key="gradient")} == {"client-1"}
    assert not any(step == "update" for step, _ in up)


OWN = ("own/loss", "own/accuracy", "own/f1", "own/classes", "own/auc")


def test_without_exchange_nothing_but_scores_leaves() -> None:
    fed = federation()
    outcome(made(Standalone), fed, 2)
    assert {row["key"] for row in rows(fed, direction="up")} <= {
        "nodes",
        "masks",
        "labels",
        *OWN,
        "(names and framing)",
    }


def test_noise_is_in_what_leaves_and_in_the_ledger() -> None:
    fed = federation()
    outcome(made(sigma=4.0, clip=0.5, exchanges=2), fed, 3)
    said = [row["mechanism"] for row in rows(fed, direction="up", key="h", client="client-0")]
    assert said == 12 * ["clipped to L2 norm 0.5, Gaussian noise of sigma 2 (μ = 0.5 per row)"]  # 6 in evaluations
    [bound] = bounds(fed.ledger.table())
    assert (bound.per, bound.delta, bound.messages) == ("row", 1e-5, 12)
    assert bound.epsilon == pytest.approx(GaussianRows(0.5, 4.0).epsilon(12))
    plain, noisy = (outcome(made(sigma=sigma), federation(), 1)[1] for sigma in (0.0, 4.0))
    assert gap(plain, noisy) > 1e-3


@pytest.mark.parametrize("cheats", [False, True])
def test_a_node_that_stands_in_a_list_again_leaves_as_one_row(cheats: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise drawn anew for each of its rows would let the server average it away: a list is padded with its first
    node, and a server may put a node on it as often as it likes."""
    fed, again = federation(parties(nodes=120)), []
    plain = fed.map

    def heard(step: Any, message: Tree, *args: Any, **options: Any) -> Replies:
        if cheats and "nodes" in message:
            message = message | {"nodes": torch.full_like(message["nodes"], 5)}
        replies = plain(step, message, *args, **options)
        if step.__name__ == "infer" and "nodes" in message:
            nodes, place, times = message["nodes"].unique(return_inverse=True, return_counts=True)
            rows = replies.stack("h")
            for node in (times > 1).nonzero()[:, 0]:
                alike = rows[:, place == node]
                assert torch.equal(alike, alike[:, :1].expand_as(alike))
                assert float(alike.std()) > 1  # of noise
                again.append(int(nodes[node]))
        return replies

    monkeypatch.setattr(fed, "map", heard)
    next(iter(train(made(batch=16, fan_out=3, sigma=4.0, exchanges=2), fed, 1, eval_every=0)))
    assert again == [5] if cheats else len(again) >= 1


@pytest.mark.parametrize(("batch", "train", "least"), [(0, 30, 30), (16, 30, 16), (64, 30, 30), (16, 5, 5), (16, 0, 0)])
def test_a_mini_batch_is_of_no_more_nodes_than_train(batch: int, train: int, least: int) -> None:
    """Which is what a site's policy goes by."""
    graph = parties(nodes=120)["client-0"]
    masks = torch.zeros_like(graph.masks)
    masks[0, :train] = True
    found = made(batch=batch).min_examples(replace_fields(graph, masks=masks), {})
    assert found == {"GLASU (batch)": least}


@pytest.mark.parametrize("batch", [0, 16])
def test_no_row_leaves_without_noise_neither_in_training_nor_in_inference(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which has a standard deviation of 10⁴, where representations themselves are of the order of 1."""
    fed, left = federation(parties(nodes=120)), []
    plain = fed.map

    def heard(step: Any, *args: Any, **options: Any) -> Replies:
        replies = plain(step, *args, **options)
        if "h" in replies[replies.clients[0]]:
            left.append(step.__name__)
            assert float(replies.stack("h").std(2).min()) > 1e3
        return replies

    monkeypatch.setattr(fed, "map", heard)
    list(train(made(batch=batch, sigma=100.0, clip=100.0, exchanges=2, lr=1e-9), fed, 1))
    assert {"infer", "infer_full"} == set(left)


def test_special_cases_are_glasu_with_fixed_parameters() -> None:
    net = backbone()
    fixed: dict[type, dict[str, Any]] = {
        VFGNN: {"exchanges": 1},
        VFL: {"exchanges": 1, "edges": "none"},
        Standalone: {"exchanges": 0},
        SimulatedCentralized: {"exchanges": 4, "steps": 1},
        PooledGNN: {"exchanges": 0},
    }
    for kind, values in fixed.items():
        more: dict[str, Any] = {"fan_out": 1} if kind is VFL else {}
        one, other = made(kind, net=net), made(net=net, **values, **more)
        assert (one.split, one.how, one.release, one.labels) == (other.split, other.how, other.release, other.labels)
        assert (one.batch, one.steps, one.backward) == (other.batch, other.steps, other.backward)
        for name in values:
            with pytest.raises(TypeError, match=name):
                kind(net, **{name: 1})
    assert capabilities(PooledGNN).pooled


def test_labels_at_one_client_train_all_of_them() -> None:
    fed = federation(parties(holders=(1,)))
    algorithm = made()
    fed.begin(0)
    state = algorithm.init(fed)
    before = dict(leaves(fed.snapshot()))
    fed.begin(1)
    algorithm.round(state, fed)
    after = dict(leaves(fed.snapshot()))
    moved = {path for path in before if not torch.equal(before[path], after[path])}
    assert {f"client-{i}/w/{layer}/weight" for i in range(3) for layer in range(5)} <= moved
    assert {path for path in moved if "/5/" in path} == {"client-1/w/5/weight", "client-1/w/5/bias"}
    last, _ = outcome(algorithm, federation(parties(holders=(1,))), 1)
    measured = {row["client"] for row in last.metrics.to_pylist() if row["metric"] == "accuracy"}
    assert measured == {"client-1", "global"}


def test_a_party_with_labels_is_alone_what_it_is_where_all_have_them() -> None:
    """Its weights and its scores; of those without labels there are none."""
    (last, states), (whole, every) = (
        outcome(made(Standalone), federation(parties(holders=holders))) for holders in ((1,), None)
    )
    assert all(torch.equal(leaf, every[path]) for path, leaf in states.items() if path.startswith("client-1/"))
    assert last.of_clients("accuracy").keys() == {"client-1"}
    assert last.of_clients("accuracy")["client-1"] == whole.of_clients("accuracy")["client-1"]


def test_what_cannot_be_done_is_refused() -> None:
    with refusal("user.nodes-differ", "client-0 60, client-1 50; set partition.name"):
        outcome(made(), federation(parties(1) | {"client-1": parties(1, nodes=50)["client-0"]}))
    graphs = parties()
    own = graphs["client-1"].masks
    turned = own.clone()
    turned[:, :60] = own[:, :60].flip(1)  # as many of each kind
    for masks in (own.flip(0), turned):
        other = replace_fields(graphs["client-1"], masks=masks)
        with refusal("user.splits-differ", "client-1", "client-0"):
            outcome(made(), federation(graphs | {"client-1": other}))
    with refusal("user.label-holders", "partition.labels = 'all'"):
        outcome(made(), federation(parties(holders=())))
    with refusal("user.label-holders", "client-1"):
        outcome(made(at=(2,)), federation(parties(holders=(1,))))
    with refusal("diverged", "algorithm.lr"):
        outcome(made(lr=1e30), federation(), 4)
    absent = federation(absent=lambda number, client: "cable cut" if (number, client) == (2, "client-1") else None)
    with refusal("clients-missing", "client-1:"):
        outcome(made(), absent)


def test_predicting_is_what_is_scored() -> None:
    graphs = parties()
    fed, algorithm = federation(graphs), made(steps=2)
    last, _ = outcome(algorithm, fed, 3)
    algorithm.predict(last.state, fed)
    told: Tree = {client: fed.snapshot()[client]["prediction"] for client in graphs}
    scores = {
        row["client"]: row["value"]
        for row in last.metrics.to_pylist()
        if (row["split"], row["metric"]) == ("test", "accuracy")
    }
    for client, graph in graphs.items():
        assert told[client].shape == (len(graph.y), CLASSES)
        assert torch.allclose(told[client].sum(1), torch.ones(len(graph.y)), atol=1e-5)
        hit = (told[client].argmax(1) == graph.y)[graph.masks[2]]
        assert float(hit.double().mean()) == pytest.approx(scores[client])


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "cora" / "cora.npz").exists(), reason="Cora is not in $FEDWEAVE_DATA")
def test_cora_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the 1,000 published test nodes; the most frequent class has 32 % of them."""
    monkeypatch.setenv("FEDWEAVE_DATA", str(DATA))
    data = datasets.load("cora")
    cut = PARTITIONS["vertical"](use_dataset_split=True, train_on_rest=True).cut(data, 0)
    net = MODELS["gcn"](hidden=16, layers=2, dropout=0.2).build(width(data, cut), data.classes)
    fed = Simulation(client_graphs(data, cut), classes=data.classes)
    *_, last = train(made(net=net, steps=4, lr=1.0, batch=0), fed, 100, eval_every=0)
    assert last.summary["global/accuracy"] > 0.78
