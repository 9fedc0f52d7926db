"""Edges as examples, and splits by time: from tables to scores and predictions."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedweave import datasets
from fedweave.algorithms import ALGORITHMS, trials
from fedweave.algorithms.parts import Round
from fedweave.apply.run_predictions import predictions
from fedweave.contract.subject import ShardedRecorder
from fedweave.core import edge_attributes, random
from fedweave.core import model as models
from fedweave.core.algorithm import capabilities
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import TEST, TRAIN, VAL
from fedweave.core.graph_arrays import graph_tree, tree_graph
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.core.tree import decode, encode, leaves, map_leaves
from fedweave.errors import ConfigError
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.loading import load_data
from fedweave.export.source import source
from fedweave.incentives.coalitions import round_value
from tests.contract.federations import state_after
from tests.refusals import refusal
from tests.runs.test_predictions import made

ACCOUNTS, TRANSFERS = 60, 400
NODES_ALONE = {"adafgl", "f2gnn", "fairaug", "fedaux", "fedego", "fedgcn", "fedgta", "fedsage_plus"}
NODES_ALONE |= {"feddep", "fedtad", "fggp", "fgssl"}
# Others that this data, or a model of edges' features, is nothing for.
OTHERS = {"cffl", "fairgfl", "fairgraphfl", "fedstar"}
OTHERS |= {name for name, kind in ALGORITHMS.items() if capabilities(kind).vertical}
DATA = {"name": "folder", "task": "edges", "directed": True, "edge_features": ["amount"], "edge_time": "day"}
DATA |= {"loops": "keep", "unlabeled": "unknown", "owner": "bank"}
CUT = {"name": "column", "split": "time", "train_until": 0.5, "val_until": "1970-02-15"}
MODEL = {"name": "gine", "hidden": 8, "directed": "both", "dropout": 0.0}

SAMPLED = {"name": "fedavg", "parts": [{"name": "sampled_cross_entropy", "batch": 8, "fan_out": 2}], "local_steps": 2}


def tables(folder: Path, seed: int = 0, more: pd.DataFrame | None = None) -> Path:
    """Accounts of two banks, and transfers of which the large ones are fraud, over sixty days."""
    draw = np.random.default_rng(seed)
    bank = np.arange(ACCOUNTS) % 2
    source = draw.integers(0, ACCOUNTS, TRANSFERS)
    target = draw.integers(0, ACCOUNTS // 2, TRANSFERS) * 2 + np.where(draw.random(TRANSFERS) < 0.9, source % 2, 0)
    amount, label = draw.normal(size=TRANSFERS), np.full(TRANSFERS, "fine", object)
    label[amount > 1.0], label[draw.random(TRANSFERS) < 0.05] = "fraud", "unknown"
    edges = {"id": [f"t{at}" for at in range(TRANSFERS)], "source": source, "target": target, "amount": amount}
    edges |= {"day": draw.integers(0, 60, TRANSFERS), "label": label, "sens": draw.choice(["cash", "wire"], TRANSFERS)}
    table = pd.DataFrame(edges)
    folder.mkdir(parents=True, exist_ok=True)
    nodes = {"id": range(ACCOUNTS), "age": draw.normal(size=ACCOUNTS), "bank": np.array(["east", "west"])[bank]}
    pd.DataFrame(nodes).to_csv(folder / "nodes.csv", index=False)
    (table if more is None else pd.concat([table, more])).to_csv(folder / "edges.csv", index=False)
    return folder


def document(folder: Path, algorithm: str | dict = "fedavg", **more: object) -> dict[str, object]:
    sections = {
        "data": {**DATA, "path": str(folder)},
        "partition": CUT,
        "model": MODEL | ({"norm": "batch"} if algorithm == "fedbn" else {}),
        "algorithm": algorithm if isinstance(algorithm, dict) else {"name": algorithm},
    }
    return {"rounds": 2, **sections, "engine": {"threads": 1}, **more}


def trained(folder: Path, algorithm: str | dict = "fedavg", rounds: int = 2, mode: str = "vmap", **more: object):
    """A federation after some rounds: what was built, the server's state and its scores."""
    built = build(resolve(document(folder, algorithm, engine={"threads": 1, "mode": mode}, **more)))
    state = state_after(built.algorithm, built.fed, rounds)
    return built, state, built.algorithm.evaluate(state, built.fed)


def test_an_edge_is_of_the_member_that_holds_both_ends_and_split_by_time(tmp_path):
    config = resolve(document(tables(tmp_path)))
    built = build(config)
    data, day = built.data, built.data.edge_attrs.time
    first = np.sort(day[data.y >= 0])[(np.count_nonzero(data.y >= 0) + 1) // 2 - 1]
    held = np.zeros(data.examples, bool)
    for at, part in enumerate(built.partition.parts):
        ends = data.edge_attrs.ends[:, part.examples]
        assert (data.owner[ends] == at).all()
        held[part.examples] = True
        known = data.y[part.examples] >= 0
        wanted = [day[part.examples] <= first, (day[part.examples] > first) & (day[part.examples] <= 45)]
        assert np.array_equal(part.masks[TRAIN], wanted[0] & known)
        assert np.array_equal(part.masks[VAL], wanted[1] & known)
        assert np.array_equal(part.masks.any(0), known)
    assert np.array_equal(held, data.owner[data.edge_attrs.ends[0]] == data.owner[data.edge_attrs.ends[1]])
    table = built.partition.table()
    assert table["examples"].to_pylist() == [len(part.examples) for part in built.partition.parts]
    assert data.labels == ("fine", "fraud")
    assert (data.y < 0).any()


@pytest.mark.parametrize("how", ["features", "exchange"])
def test_edges_between_members_make_the_columns_that_they_make_of_nodes_as_examples(tmp_path, how):
    """And are not examples themselves; in a member's own tables they lead to nodes that it does not have."""
    folder = tables(tmp_path)
    data = {**DATA, "path": str(folder), "external": how}
    built = build(resolve(document(folder, data=data, partition={"name": "column"})))
    nodes = pd.read_csv(folder / "nodes.csv").assign(label=np.arange(ACCOUNTS) % 2)
    nodes.to_csv(folder / "nodes.csv", index=False)
    data |= {"task": "nodes", "unlabeled": None, "ignore": ["edges.id", "edges.label", "edges.sens"]}
    data = {name: value for name, value in data.items() if value is not None}
    of_nodes, _, _ = load_data(resolve(document(folder, data=data, partition={"name": "column"})))
    assert np.array_equal(built.data.x, of_nodes.x)
    assert built.data.columns == of_nodes.columns
    assert built.data.features > 1
    for part in built.partition.parts:
        assert len({*built.data.owner[built.data.edge_attrs.ends[:, part.examples]].ravel()}) == 1
    east = pd.read_csv(folder / "nodes.csv").query("bank == 'east'").drop(columns=["label", "bank"])
    edges = pd.read_csv(folder / "edges.csv")
    own = tmp_path / "east"
    own.mkdir()
    here = edges["source"].isin(east["id"]), edges["target"].isin(east["id"])
    east.to_csv(own / "nodes.csv", index=False)
    edges[here[0] | here[1]].to_csv(own / "edges.csv", index=False)
    taken = {name: value for name, value in DATA.items() if name != "owner"} | {"external": how, "path": str(own)}
    alone = datasets.load(**taken)
    assert alone.ids == tuple(edges["id"][here[0] & here[1]])
    assert alone.outside.edge_attrs.total == int((here[0] != here[1]).sum())


@pytest.mark.often("model0-fedavg")
@pytest.mark.parametrize(
    ("model", "algorithm"),
    [
        ({**MODEL, "ports": True}, "fedavg"),
        ({"name": "sage"}, "fedavg"),
        ({"name": "gcn", "weighted": False}, "fedavg"),
        ({**MODEL, "ports": True}, SAMPLED),
    ],
)
def test_later_edges_that_give_labels_away_change_nothing_before(tmp_path, model, algorithm):
    """Planted after the end of validation, with features of it and between the same accounts, whatever the model."""
    draw = np.random.default_rng(5)
    source = draw.integers(0, ACCOUNTS // 2, 300) * 2
    late = {"id": [f"late{at}" for at in range(300)], "source": source, "target": (source + 2) % ACCOUNTS}
    late |= {"amount": 50.0, "day": 50, "label": "fraud", "sens": "cash"}
    cut = {**CUT, "train_until": 25.0, "val_until": 45.0}
    found = []
    for name, more in (("plain", None), ("planted", pd.DataFrame(late))):
        folder = tables(tmp_path / name, more=more)
        data = {**DATA, "path": str(folder), "edge_normalize": "standard"}
        found.append(trained(folder, algorithm, partition=cut, model=model, data=data))
    (_, one, before), (_, two, after) = found
    for (path, own), (_, other) in zip(leaves(one["w"]), leaves(two["w"]), strict=True):
        assert torch.equal(own, other), path
    for name in ("own/loss", "own/auc", "own/classes"):
        own, other = (evaluation.clients.stack(name) for evaluation in (before, after))
        assert torch.equal(own[:, :TEST], other[:, :TEST]), name
        assert not torch.equal(own[:, TEST], other[:, TEST]), name


def test_each_split_is_judged_with_the_edges_until_its_end(tmp_path):
    built, state, _ = trained(tables(tmp_path))
    model, graph = built.algorithm.net, next(iter(built.fed.graphs.values()))
    with torch.no_grad():
        whole = models.infer(model, state["w"], graph)
        for split in (TRAIN, VAL, TEST):
            seen = graph.whole_edges.members[0].at(split)
            assert seen.edge_attrs.time.max() <= (*graph.whole_edges.members[0].edge_attrs.split_times, 60.0)[split]
            own = models.apply(model, state["w"], graph.at(split))
            assert torch.equal(whole[graph.masks[split]], own[graph.masks[split]])
            assert split == TRAIN or not torch.equal(whole[graph.masks[TRAIN]], own[graph.masks[TRAIN]])


def test_models_are_tried_on_test_examples_with_the_messages_that_these_are_judged_by(tmp_path):
    built, _, _ = trained(tables(tmp_path), rounds=0)
    net, graph = built.algorithm.net, next(iter(built.fed.graphs.values()))
    each = [models.init(net, random.key(seed), graph.x.dtype) for seed in range(20)]
    many = map_leaves(lambda *rows: torch.stack(rows), *each)

    def right(logits):
        return int(((logits.argmax(1) == graph.y) & graph.masks[TEST]).sum())

    with torch.no_grad():
        found = trials.tried_pairs(net, many, graph)["accuracy"][:, 0].tolist()
        assert found == [right(models.infer(net, w, graph)) for w in each]
        assert found != [right(models.apply(net, w, graph)) for w in each]


def test_models_that_mark_their_seeds_are_tried_and_valued_by_sampled_neighborhoods(tmp_path):
    built, _, _ = trained(tables(tmp_path), SAMPLED, rounds=0, model={**MODEL, "layers": 1, "ego_ids": True})
    net, graphs = built.algorithm.net, [*built.fed.graphs.values()]
    first, *others = (models.init(net, random.key(seed), graphs[0].x.dtype) for seed in range(3))

    def right(w, graph):
        return int(((models.infer(net, w, graph).argmax(1) == graph.y) & graph.masks[TEST]).sum())

    with torch.no_grad():
        one = map_leaves(lambda leaf: leaf[None], first)
        found = trials.tried_pairs(net, one, graphs[0])["accuracy"][:, 0].tolist()
        assert found == [right(first, graphs[0])]
        update = ReplyBatch((0, 1), {"update": map_leaves(lambda a, b, c: torch.stack([b - a, c - a]), first, *others)})
        replies, share = Replies(("east", "west"), [update], {}), torch.tensor([0.5, 0.5], dtype=torch.float64)
        round = Round(replies, torch.arange(2), first, net, weights=share)
        gained = round_value(round, net, graphs, "accuracy")(torch.eye(2, dtype=torch.bool))
    examples = sum(int(graph.masks[TEST].sum()) for graph in graphs)
    hits = [sum(right(w, graph) for graph in graphs) / examples for w in (first, *others)]
    assert gained.tolist() == pytest.approx([own - hits[0] for own in hits[1:]], abs=1e-6)


@pytest.mark.often("fedavg")
@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - NODES_ALONE - OTHERS))
def test_algorithms_learn_from_edges_as_the_loop_does(tmp_path, name):
    folder = tables(tmp_path)
    loop, vmap = (trained(folder, name, mode=mode, rounds=1) for mode in ("loop", "vmap"))
    for (path, own), (_, other) in zip(leaves(loop[1]), leaves(vmap[1]), strict=True):
        assert torch.equal(torch.as_tensor(own).nan_to_num(), torch.as_tensor(other).nan_to_num()), path
    assert torch.equal(loop[2].clients.stack("own/accuracy"), vmap[2].clients.stack("own/accuracy"))


OF_EDGES = {
    "gine": {},
    "gat": {"ports": True},
    "pna": {},
    "gcn": {},
    "gine ids": {"name": "gine", "ego_ids": True, "layers": 1},
}


@pytest.mark.often("gine ids-edges")
@pytest.mark.parametrize("task", ["edges", "nodes"])
@pytest.mark.parametrize("name", OF_EDGES)
def test_sampled_messages_train_alike_by_every_executor(tmp_path, name, task):
    folder = tables(tmp_path)
    of_nodes = pd.read_csv(folder / "nodes.csv").assign(label=np.arange(ACCOUNTS) % 2, opened=np.arange(ACCOUNTS))
    of_nodes.to_csv(folder / "nodes.csv", index=False)
    data = {**DATA, "path": str(folder), "ignore": ["nodes.label", "nodes.opened"]}
    if task == "nodes":
        data |= {"task": "nodes", "node_time": "opened", "ignore": ["edges.id", "edges.label", "edges.sens"]}
    model = {"name": name, "hidden": 8, "directed": "both", **OF_EDGES[name]}
    loop, vmap = (
        resolve(document(folder, SAMPLED, data=data, model=model, engine={"threads": 1, "mode": mode}))
        for mode in ("loop", "vmap")
    )
    built = build(vmap)
    shards = ShardedRecorder(built.fed.graphs, classes=2, shards=2, rebuild=lambda: build(vmap).algorithm)
    found = []
    for fed in (built.fed, build(loop).fed, shards):
        state = state_after(built.algorithm, fed, 2)
        scores = built.algorithm.evaluate(state, fed).clients
        found.append({**dict(leaves(state["w"])), "scores": scores.stack("own/loss")})
    fed.begin(0)
    start = dict(leaves(built.algorithm.init(fed)["w"]))
    assert any(not torch.equal(leaf, found[0][path]) for path, leaf in start.items())
    for other in found[1:]:
        for path, leaf in found[0].items():
            assert leaf.isfinite().all()
            assert torch.equal(leaf, other[path]), path


@pytest.mark.parametrize("name", sorted(NODES_ALONE))
def test_algorithms_of_nodes_refuse_edges_by_name(tmp_path, name):
    model = {"name": "gcn" if name in ("fedgcn", "fedtad", "fairaug", "fggp", "fgssl") else "sage", "hidden": 8}
    with pytest.raises(ConfigError, match="about nodes"):
        build(resolve(document(tables(tmp_path), name, model=model)))


def test_predictions_have_the_edges_ids_and_new_edges_are_scored(tmp_path):
    folder, data = tables(tmp_path / "data"), {**DATA}
    cut = {"name": "random", "clients": 1, "train": 0.5, "val": 0.2, "test": 0.3}
    own = {"name": "fedavg", "optimizer": "adam", "lr": 0.02, "local_steps": 10}
    found = made(tmp_path / "run", own, {**data, "path": str(folder)}, rounds=10, partition=cut, model=dict(MODEL))
    assert found["pooled/average_precision"] > 0.8
    table = predictions(tmp_path / "run", None, None, None).to_pandas()
    read = pd.read_csv(folder / "edges.csv")
    assert table["id"].tolist() == read["id"].tolist()
    assert table["edge"].tolist() == list(range(TRANSFERS))
    assert table["source"].tolist() == read["source"].astype(str).tolist()
    assert {"target", "p_fraud", "split"} <= {*table.columns}
    assert source(tmp_path / "run", None, None).form.edges["examples"]
    again = predictions(tmp_path / "run", folder, None, None).to_pandas()
    assert np.allclose(again["p_fraud"], table["p_fraud"], atol=1e-5)
    assert again["target"].tolist() == read["target"].astype(str).tolist()


def test_nodes_are_split_by_their_own_times_too(tmp_path):
    folder = tables(tmp_path)
    nodes = pd.read_csv(folder / "nodes.csv").assign(label=np.arange(ACCOUNTS) % 2, opened=np.arange(ACCOUNTS))
    nodes.to_csv(folder / "nodes.csv", index=False)
    own = {"name": "folder", "path": str(folder), "directed": True, "edge_time": "day", "node_time": "opened"}
    own |= {"ignore": ["edges.id", "edges.label", "edges.sens", "amount"], "loops": "keep", "owner": "bank"}
    built = build(resolve(document(folder, data=own, model={"name": "gcn", "hidden": 8})))
    until = built.partition.parts[0].split_times
    assert until == (29.0, 45.0)
    for part in built.partition.parts:
        assert np.array_equal(part.masks, np.searchsorted(until, part.nodes) == np.arange(3)[:, None])
    assert all(graph.depends_on_split for graph in built.fed.graphs.values())


@pytest.mark.parametrize(
    ("partition", "said"),
    [
        ({**CUT, "train_until": "soon"}, "train_until"),
        ({**CUT, "train_until": 0.9}, "second later"),
        ({"name": "column", "train_until": 0.5}, "split"),
        ({**CUT, "use_dataset_split": True}, "use_dataset_split"),
        ({"name": "dirichlet"}, "edges"),
    ],
)
def test_splits_that_cannot_be(tmp_path, partition, said):
    with pytest.raises(ConfigError, match=said):
        build(resolve(document(tables(tmp_path), partition=partition)))


def test_a_run_without_times_refuses_a_split_by_time(tmp_path):
    data = {**DATA, "path": str(tables(tmp_path)), "edge_time": None, "ignore": ["day"]}
    with refusal("config.no-times", "edge_time"):
        build(resolve(document(tmp_path, data={k: v for k, v in data.items() if v is not None})))


FRAMES = {"task": "edges", "directed": True, "loops": "keep", "edge_features": "amount", "edge_time": "day"}


def test_doors_give_the_same_edges(tmp_path):
    folder = tables(tmp_path / "data")
    own = datasets.load("folder", str(folder), unlabeled="unknown", **FRAMES, ignore=["bank"])
    nodes, edges = pd.read_csv(folder / "nodes.csv").drop(columns="bank"), pd.read_csv(folder / "edges.csv")
    frames = datasets.from_frames(nodes, edges, unlabeled="unknown", **FRAMES)
    file = datasets.load("npz", str(own.save(tmp_path / "own.npz")), loops="keep")
    for other in (frames, file):
        assert other.example == "edge"
        assert other.ids == own.ids
        assert other.node_ids == own.node_ids
        assert np.array_equal(other.y, own.y)
        assert np.array_equal(other.sensitive, own.sensitive)
        assert np.array_equal(other.edge_attrs.ends, own.edge_attrs.ends)
        assert other.labels == own.labels
        assert np.array_equal(other.edge_attrs.features, own.edge_attrs.features)
    split = np.random.default_rng(0).choice(["train", "test", ""], len(edges))
    split[own.y < 0] = ""
    table = datasets.from_frames(nodes, edges.assign(split=split), unlabeled="unknown", **FRAMES)
    again = datasets.load("npz", str(table.save(tmp_path / "split.npz")), loops="keep")
    assert np.array_equal(again.public, table.public)
    assert table.public[TEST].tolist() == (split == "test").tolist()


def test_pyg_and_members_bring_their_own_edges(tmp_path):
    from torch_geometric.data import Data

    folder = tables(tmp_path / "all" / "north")
    tables(tmp_path / "all" / "south", seed=1)
    for member in ("north", "south"):
        for name in ("nodes", "edges"):
            path = tmp_path / "all" / member / f"{name}.csv"
            pd.read_csv(path).drop(columns={"nodes": "bank", "edges": "id"}[name]).to_csv(path, index=False)
    own = datasets.load("members", str(tmp_path / "all"), unlabeled="unknown", **FRAMES)
    assert own.example == "edge"
    assert own.examples == 2 * TRANSFERS
    assert own.ids[TRANSFERS] == "south/0"
    edges = pd.read_csv(folder / "edges.csv")
    index = torch.from_numpy(edges[["source", "target"]].to_numpy().T.copy())
    label = torch.from_numpy((edges["label"] == "fraud").to_numpy().astype(np.int64))
    held = Data(
        x=torch.eye(ACCOUNTS),
        edge_index=index,
        edge_label=label,
        edge_attr=torch.from_numpy(edges[["amount"]].to_numpy()),
    )
    pyg = datasets.from_pyg(held, task="edges", loops="keep")
    assert pyg.example == "edge"
    assert pyg.edge_attrs.directed
    assert pyg.y.tolist() == label.tolist()
    assert np.allclose(pyg.edge_attrs.features[:, 0], edges["amount"])
    assert np.array_equal(pyg.edge_attrs.ends, own.edge_attrs.ends[:, :TRANSFERS])


def test_ports_number_neighbors_in_order_of_time():
    ends = np.array([[0, 1, 0, 2, 0, 1], [3, 3, 3, 3, 1, 0]])
    edge_attrs = EdgeAttributes(ends, True, time=np.array([5.0, 1.0, 9.0, 7.0, 2.0, 2.0]), ports=True)
    into, out_of = edge_attributes.port_numbers(edge_attrs).T
    assert into.tolist() == [1, 0, 1, 2, 0, 0]  # 3 is reached from 1, then from 0, then from 2
    assert out_of.tolist() == [1, 0, 1, 0, 0, 1]  # 0 reaches 1, then 3; 1 reaches 3, then 0
    early = edge_attrs.select(edge_attrs.time <= 5)
    assert (
        edge_attributes.port_numbers(early).tolist()
        == edge_attributes.port_numbers(edge_attrs)[edge_attrs.time <= 5].tolist()
    )
    assert np.allclose(edge_attrs.read[:, 0], np.log1p(into))


def test_shards_and_bytes_keep_edges_as_they_are(tmp_path):
    config = resolve(document(tables(tmp_path), model={**MODEL, "ports": True}))
    built = build(config)
    graph = next(iter(built.fed.graphs.values()))
    again = tree_graph(decode(encode(graph_tree(graph))))
    assert again.example == "edge"
    assert again.depends_on_split
    assert torch.equal(again.masks, graph.masks)
    found = []
    for fed in (
        built.fed,
        ShardedRecorder(built.fed.graphs, classes=2, shards=2, rebuild=lambda: build(config).algorithm),
    ):
        fed.begin(0)
        state = built.algorithm.init(fed)
        fed.begin(1)
        state = built.algorithm.round(state, fed)
        found.append((state["w"], built.algorithm.evaluate(state, fed).clients.stack("own/accuracy")))
    (one, scores), (other, others) = found
    assert all(torch.equal(own, leaf) for (_, own), (_, leaf) in zip(leaves(one), leaves(other), strict=True))
    assert torch.equal(scores, others)
