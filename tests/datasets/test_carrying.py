"""What edges carry, through every door, and who gets it."""

from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch_geometric.data import Data

from fedweave import datasets
from fedweave.core.graph_arrays import graph_tree, tree_graph
from fedweave.core.tree import decode, encode
from fedweave.datasets.check import check
from fedweave.datasets.columns import fill_gaps
from fedweave.datasets.contents import content
from fedweave.datasets.edge_tables import times_of
from fedweave.datasets.table import Table
from fedweave.errors import ConfigError, DataError
from fedweave.experiment.graphs import client_graphs
from fedweave.partition import Random
from fedweave.partition.client_data import pool_clients, shares
from tests.random_graphs import replace_fields
from tests.refusals import refusal

NODES = pd.DataFrame({"id": ["a", "b", "c"], "label": [0, 1, 1], "age": [1.0, 2.0, 4.0]})
EDGES = pd.DataFrame(
    {
        "source": ["a", "b", "a", "c", "a"],
        "target": ["b", "a", "b", "c", "c"],
        "amount": [3.0, 1.0, 5.0, 2.0, 7.0],
        "kind": ["wire", "cash", "wire", "wire", "cash"],
        "date": ["2024-01-03", "2024-01-01", "2024-01-02", "2024-01-04", "2024-01-05T12:00:00"],
    }
)
TRANSFERS = {
    "directed": True,
    "edge_features": ("amount", "kind"),
    "edge_weight": "amount",
    "edge_time": "date",
    "categories": {"edges.kind": ("cash", "wire")},
    "loops": "keep",
}
ENDS = [[0, 1, 0, 2, 0], [1, 0, 1, 2, 2]]


def transfers(edges=EDGES, **options):
    return datasets.from_frames(NODES, edges, **TRANSFERS | options)


def test_a_table_s_edges_keep_direction_columns_parallels_and_loops():
    data = transfers()
    own = data.edge_attrs
    assert own.ends.tolist() == ENDS
    assert own.directed
    assert own.weight.tolist() == [3, 1, 5, 2, 7]
    assert own.columns == ("amount", "kind = cash", "kind = wire")
    assert own.features.tolist() == [[3, 0, 1], [1, 1, 0], [5, 0, 1], [2, 0, 1], [7, 1, 0]]
    assert own.time.tolist() == [19725, 19723, 19724, 19726, 19727.5]  # days since 1970
    assert data.edges.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]  # as of bare edges
    assert data.columns == ("age",)


def test_all_columns_without_another_meaning_are_features():
    edges = EDGES[["source", "target", "amount"]].assign(fee=[0.0, 1, 2, 3, 4])
    options = {"edge_features": "all", "edge_time": None, "categories": None}
    assert transfers(edges, **options).edge_attrs.columns == ("fee",)
    assert transfers(edges, **options, **{"edge_weight": None}).edge_attrs.columns == ("amount", "fee")


@pytest.mark.parametrize(
    ("parallel", "directed", "ends", "weight", "amount"),
    [
        ("sum", True, [[1, 0, 2, 0], [0, 1, 2, 2]], [1, 8, 2, 7], [1, 8, 2, 7]),
        ("last", True, [[1, 0, 2, 0], [0, 1, 2, 2]], [1, 5, 2, 7], [1, 5, 2, 7]),
        ("count", True, [[1, 0, 2, 0], [0, 1, 2, 2]], [1, 2, 1, 1], [1, 5, 2, 7]),
        ("sum", False, [[0, 2, 0], [1, 2, 2]], [9, 2, 7], [9, 2, 7]),
    ],
)
def test_parallel_edges_become_one_as_declared(parallel, directed, ends, weight, amount):
    """Without times the later row is the last; of undirected edges a -> b and b -> a are parallel."""
    own = {"edge_time": None, "edge_weight": None if parallel == "count" else "amount", "edge_features": "amount"}
    edges = EDGES[["source", "target", "amount"]]
    made = transfers(edges, parallel=parallel, directed=directed, categories=None, **own).edge_attrs
    assert made.ends.tolist() == ends
    assert made.weight.tolist() == weight
    assert made.features[:, 0].tolist() == amount


def test_the_last_of_parallel_edges_is_that_of_the_latest_time():
    made = transfers(parallel="last").edge_attrs
    assert dict(zip(map(tuple, made.ends.T.tolist()), made.weight.tolist(), strict=True))[0, 1] == 3


@pytest.mark.parametrize(
    ("column", "value", "options", "what"),
    [
        ("amount", -1.0, {}, "row 1: weight 'amount' is -1, below 0"),
        ("amount", 1e38, {"edge_features": ["kind"]}, r"weight, row \d+: 1e\+38 is above 1e\+30"),
        ("amount", None, {}, "row 1: feature 'amount' is empty"),
        ("date", "soon", {}, "row 1: time 'date' is 'soon'"),
        ("kind", "gold", {}, "row 1: kind 'gold' is none of cash, wire"),
        ("amount", 1.0, {"edge_weight": "sum"}, "no column 'sum'"),
        ("amount", 1.0, {"loops": "refuse"}, "joins 'c' with itself"),
        ("amount", 1.0, {"edge_weight": None, "edge_features": None}, "unknown columns: amount, kind.*edge_features"),
    ],
)
def test_what_is_wrong_in_a_column_of_edges_is_told(column, value, options, what):
    edges = EDGES.copy()
    edges.loc[1, column] = value
    with pytest.raises(DataError, match=what):
        transfers(edges, **options)


def test_settings_that_mean_nothing_are_refused():
    for options in ({"parallel": "mean"}, {"edge_normalize": "log"}, {"parallel": "count"}, {"edge_time": "source"}):
        with pytest.raises(ConfigError):
            transfers(**options)
    with refusal("config.loops"):
        datasets.from_frames(NODES, EDGES[["source", "target"]], loops="keep")


def test_what_edges_carry_is_kept_in_an_archive(tmp_path):
    for data in (transfers(edge_normalize="standard"), transfers(directed=False)):
        data.save(tmp_path / "own.npz")
        again = datasets.load("npz", str(tmp_path / "own.npz"), sens_feature=True, loops="keep")
        assert content(again) == content(data) or not data.edge_attrs.directed
        for way in ("forward", "undirected"):
            assert messages(again, way) == messages(data, way)
        assert again.edge_attrs.columns == data.edge_attrs.columns
    with refusal("data.loop"):
        datasets.load("npz", str(tmp_path / "own.npz"), sens_feature=True)


def messages(data, way):
    """What goes where, with weights, whatever the order."""
    [graph] = client_graphs(data, pool_clients(Random(clients=2).cut(data, 0))).values()
    own = graph.whole_edges.members[0].messages
    index, edge = own.messages_of(way)
    return sorted(zip(*index.tolist(), data.edge_attrs.weight[edge].tolist(), strict=True))


def test_networkx_and_pyg_give_the_same_as_tables():
    multi = nx.MultiDiGraph()
    for node, label, age in NODES.itertuples(index=False):
        multi.add_node(node, label=label, age=age)
    for source, target, amount, kind, date in EDGES.itertuples(index=False):
        multi.add_edge(source, target, amount=amount, kind=kind, date=date)
    order = np.lexsort(transfers().edge_attrs.ends)
    known = transfers().edge_attrs
    own = datasets.from_networkx(multi, **TRANSFERS).edge_attrs
    again = np.lexsort(own.ends)
    assert np.array_equal(own.ends[:, again], known.ends[:, order])
    assert sorted(own.weight) == sorted(known.weight)
    features, weight, time = (torch.from_numpy(part) for part in (known.features, known.weight, known.time))
    plain = {"x": torch.tensor([[1.0], [2], [4]]), "y": torch.tensor([0, 1, 1]), "edge_index": torch.tensor(ENDS)}
    pyg = datasets.from_pyg(
        Data(**plain, edge_attr=features, edge_weight=weight, edge_time=time), loops="keep"
    ).edge_attrs
    assert pyg.directed
    assert content(replace(transfers(), edge_attrs=replace_columns(pyg, known))) == content(transfers())
    assert datasets.from_pyg(Data(**plain)).edge_attrs is None
    assert datasets.from_pyg(Data(**plain), directed=True).edge_attrs.total == 4  # loops are dropped


@pytest.mark.parametrize("label", ["label", "fraud"])
def test_networkx_edges_are_examples_with_all_that_edges_of_tables_have(label):
    multi = nx.MultiDiGraph()
    for node in (3, 1, 2):
        multi.add_node(node, age=float(node))
    rows = [(3, 1, "ok", "train"), (3, 1, "bad", "test"), (1, 2, None, None), (2, 3, "ok", "val")]
    for at, (source, target, own, split) in enumerate(rows):
        given = {label: own, "split": split, "id": f"t{at}", "sens": "cash" if at % 2 else "wire"}
        multi.add_edge(source, target, amount=at / 2, day=at, weight=at + 1.0, **given)
    options = {
        "task": "edges",
        "directed": True,
        "edge_features": "amount",
        "edge_time": "day",
        "edge_weight": "weight",
    }
    data = datasets.from_networkx(multi, label=label, **options)
    frame = nx.to_pandas_edgelist(multi).rename(columns={label: "label"})
    nodes = pd.DataFrame({"id": [3, 1, 2], "age": [3.0, 1, 2]})
    assert content(data) == content(datasets.from_frames(nodes, frame, **options))
    assert (data.labels, sorted(data.y.tolist())) == (("bad", "ok"), [-1, 0, 1, 1])
    assert sorted(data.ids) == ["t0", "t1", "t2", "t3"]
    assert data.public.sum(1).tolist() == [1, 1, 1]
    assert sorted(data.edge_attrs.features[:, 0] * 2) == sorted(data.edge_attrs.time) == [0, 1, 2, 3]
    assert sorted(data.edge_attrs.weight) == [1, 2, 3, 4]
    multi.add_edge(1, 3, amount=1.0, day=1, weight=1.0)
    with pytest.raises(DataError, match=rf"1 of 5 edges lacks the attribute '{label}', such as \(1, 3\)"):
        datasets.from_networkx(multi, label=label, **options)


def replace_columns(edge_attrs, other):
    return replace_fields(edge_attrs, columns=other.columns)


def test_directions_that_nobody_asked_for_are_said_to_be_lost():
    plain = {"x": torch.eye(2), "y": torch.tensor([0, 1]), "edge_index": torch.tensor([[0], [1]])}
    digraph = nx.DiGraph([(0, 1)])
    nx.set_node_attributes(digraph, {0: 0, 1: 1}, "label")
    nx.set_node_attributes(digraph, 1.0, "age")
    for door, graph in ((datasets.from_pyg, Data(**plain)), (datasets.from_networkx, digraph)):
        assert [note for note in door(graph).notes if "directed = True" in note]
        assert not door(graph, directed=False).notes
        assert door(graph, directed=True).edge_attrs.directed
        assert not door(graph, directed=True).notes
    both = {**plain, "edge_index": torch.tensor([[0, 1], [1, 0]])}
    assert not datasets.from_pyg(Data(**both)).notes
    assert not datasets.from_networkx(digraph.to_undirected()).notes


def test_undirected_edges_of_pyg_are_listed_in_both_directions_and_count_once():
    plain = {"x": torch.eye(2), "y": torch.tensor([0, 1]), "edge_index": torch.tensor([[0, 1], [1, 0]])}
    own = datasets.from_pyg(Data(**plain, edge_weight=torch.tensor([2.0, 2.0]))).edge_attrs
    assert (own.directed, own.ends.tolist(), own.weight.tolist()) == (False, [[0], [1]], [2])


def test_members_folders_join_what_their_edges_carry(tmp_path):
    for member in ("north", "south"):
        (tmp_path / member).mkdir()
        NODES.to_csv(tmp_path / member / "nodes.csv", index=False)
        EDGES.to_csv(tmp_path / member / "edges.csv", index=False)
    own = datasets.load("members", str(tmp_path), **TRANSFERS).edge_attrs
    assert own.ends.tolist() == np.concatenate([ENDS, np.array(ENDS) + 3], 1).tolist()
    assert own.time[:5].tolist() == transfers().edge_attrs.time.tolist()


def test_clients_get_what_the_edges_among_their_nodes_carry():
    draw = np.random.default_rng(0)
    ends = draw.integers(0, 40, (2, 300))
    table = {"source": ends[0], "target": ends[1], "amount": np.arange(300.0), "date": np.arange(300)}
    nodes = pd.DataFrame({"id": range(40), "label": np.arange(40) % 2, "age": np.arange(40.0)})
    options = {"edge_features": "amount", "categories": None, "edge_weight": None, "edge_normalize": "none"}
    data = datasets.from_frames(nodes, pd.DataFrame(table), **TRANSFERS | options)
    cut = Random(clients=3).cut(data, 0)
    for part, own in zip(cut.parts, shares(data, cut.parts), strict=True):
        inside = np.isin(ends, part.nodes).all(0)
        assert own.edge_attrs.time.tolist() == np.flatnonzero(inside).tolist()
        assert np.array_equal(part.nodes[own.edge_attrs.ends], ends[:, inside])
        assert own.edge_attrs.features[:, 0].tolist() == np.flatnonzero(inside).tolist()
        assert check(own, "a client") is own


def test_a_changed_graph_keeps_what_its_edges_carry():
    data = transfers()
    [graph] = client_graphs(data, pool_clients(Random(clients=2).cut(data, 0))).values()
    again = tree_graph(decode(encode(graph_tree(graph)))).whole_edges.members[0].edge_attrs
    assert again.ends.tolist() == ENDS
    assert again.features.tolist() == data.edge_attrs.features.tolist()
    assert graph.to("meta").whole_edges.members[0].edge_attrs is graph.whole_edges.members[0].edge_attrs


@pytest.mark.parametrize("form", ["frame", "csv", "text"])
def test_missing_values_are_told_from_zeros(tmp_path, form):
    """In a column of its own, for all columns that may have gaps, whether or not they have one."""
    nodes, edges = NODES.assign(age=[1.0, None, 0.0]), EDGES.drop(columns="kind").assign(amount=[3, None, 5, 2, 7])
    options = {"edge_features": "amount", "edge_weight": None, "categories": None, "missing": ["age", "edges.amount"]}
    if form == "text":
        nodes, edges = nodes.assign(age=["1", "", "0"]), edges.assign(amount=["3", "", "5", "2", "7"])
    if form == "csv":
        nodes.to_csv(tmp_path / "nodes.csv", index=False)
        edges.to_csv(tmp_path / "edges.csv", index=False)
        data = datasets.load("folder", str(tmp_path), **TRANSFERS | options)
    else:
        data = datasets.from_frames(nodes, edges, **TRANSFERS | options)
    assert data.columns == ("age", "age is missing")
    assert np.asarray(data.x if isinstance(data.x, np.ndarray) else data.x.todense()).tolist() == [
        [1, 0],
        [0, 1],
        [0, 0],
    ]
    assert data.edge_attrs.columns == ("amount", "amount is missing")
    assert data.edge_attrs.features.tolist() == [[3, 0], [0, 1], [5, 0], [2, 0], [7, 0]]
    whole = datasets.from_frames(NODES, edges.assign(amount=1.0), **TRANSFERS | options)
    assert whole.columns == data.columns
    with refusal("data.column-named", "'income'"):
        datasets.from_frames(NODES, edges.assign(amount=1.0), **TRANSFERS | options | {"missing": ["income"]})


def test_edges_features_are_scaled_as_nodes_are():
    own = transfers(edge_normalize="standard").edge_attrs
    np.testing.assert_allclose(own.features.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(own.features.std(0), 1, atol=1e-6)
    assert own.scaling[0] == pytest.approx((3.6, np.std([3, 1, 5, 2, 7]), 0))
    assert own.weight.tolist() == [3, 1, 5, 2, 7]


def test_a_column_without_any_value_is_missing_everywhere(tmp_path: Path) -> None:
    table = Table(tmp_path / "nodes.parquet", pa.table({"id": ["a", "b"], "income": pa.nulls(2)}), 1)
    filled = fill_gaps(table, ["income"]).data
    assert filled["income"].to_pylist() == [0, 0]
    assert filled["income is missing"].to_pylist() == [1, 1]


@pytest.mark.parametrize("word", ["nan", "inf"])
def test_a_time_is_a_finite_number(word: str, tmp_path: Path) -> None:
    table = Table(tmp_path / "edges.csv", pa.table({"when": ["1", word]}), 2)
    with pytest.raises(DataError, match="not a finite number"):
        times_of(table, "when")
