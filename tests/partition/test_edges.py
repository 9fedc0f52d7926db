"""Cuts of edges: members hold edges and share nodes."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedweave import datasets
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import TEST, TRAIN, VAL
from fedweave.core.settings import hints_of
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.errors import ConfigError
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.partition import EdgeGroups, cut
from fedweave.partition.base import Partition
from fedweave.partition.client_data import pool_clients, shares
from fedweave.partition.edges import spans
from tests.random_graphs import replace_fields
from tests.refusals import refusal

KINDS = ("isa", "part of", "near")
ENDS = np.array([[0, 0, 1, 1, 2, 3, 0], [1, 1, 2, 2, 3, 0, 4]])
KIND = np.array([0, 1, 0, 1, 2, 2, 0])


def data(ends: np.ndarray = ENDS, kind: np.ndarray = KIND, nodes: int = 6, time: np.ndarray | None = None) -> Dataset:
    """Six nodes, of which the last has no edge, and seven edges of three kinds, two pairs of them parallel."""
    m = ends.shape[1]
    when = np.arange(m, dtype=np.float64) if time is None else time
    edge_attrs = EdgeAttributes(ends, True, time=when, owner=kind % 2, owners=("x", "y"))
    x = np.eye(nodes, dtype=np.float32)
    return Dataset(
        "triples",
        x,
        to_undirected(ends, nodes),
        kind,
        3,
        labels=KINDS,
        edge_attrs=replace_fields(edge_attrs, examples=True),
    )


def held(partition: Partition) -> list[list[int]]:
    return [part.examples.tolist() for part in partition.parts]


def test_a_member_of_each_kind_holds_the_ends_of_its_edges_and_no_edge_of_another_by_hand():
    """Nodes 0 and 1 are joined by an edge of each of two kinds: each member has its own alone."""
    whole = data()
    made = cut(EdgeGroups(by="relation", clients=3, train=1.0, val=0.0, test=0.0), whole, 0)
    assert sorted(held(made)) == [[0, 2, 6], [1, 3], [4, 5]]
    by_kind = {tuple(part.examples.tolist()): part for part in made.parts}
    nodes = {kind: part.nodes.tolist() for kind, part in by_kind.items()}
    assert nodes == {(0, 2, 6): [0, 1, 2, 4], (1, 3): [0, 1, 2], (4, 5): [0, 2, 3]}  # nobody holds node 5
    assert by_kind[4, 5].edges.tolist() == [[0, 2, 3, 3], [3, 3, 0, 2]]
    own = dict(zip(map(tuple, held(made)), shares(whole, made.parts), strict=True))
    assert own[4, 5].edge_attrs.ends.tolist() == [[1, 2], [2, 0]]  # among its own three
    assert own[4, 5].y.tolist() == [2, 2]
    assert own[4, 5].edges.tolist() == [[0, 1, 2, 2], [2, 2, 0, 1]]
    assert own[1, 3].y.tolist() == [1, 1]
    table = made.table(whole).to_pydict()
    columns = dict(
        zip(map(tuple, held(made)), zip(*(table[name] for name in ("nodes", "shared_nodes")), strict=True), strict=True)
    )
    assert columns == {(0, 2, 6): (4, 3), (1, 3): (3, 3), (4, 5): (3, 2)}


def test_owners_and_spans_of_time_by_hand():
    whole = data()
    by_owner = cut(EdgeGroups(by="owner"), whole, 0)
    assert by_owner.names == ("x", "y")
    assert held(by_owner) == [[0, 2, 4, 5, 6], [1, 3]]
    assert held(cut(EdgeGroups(by="time", clients=3), whole, 0)) == [[0, 1, 2], [3, 4], [5, 6]]
    assert spans(np.array([5.0, 1.0, 1.0, 1.0, 9.0, 9.0]), 2).tolist() == [1, 0, 0, 0, 1, 1]
    assert spans(np.array([1.0, 1.0, 1.0, 1.0, 9.0]), 2).tolist() == [0, 0, 0, 0, 1]  # no moment is divided


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 12),
    st.integers(1, 60),
    st.integers(1, 4),
    st.sampled_from(get_args(hints_of(EdgeGroups)["by"])),
    st.integers(0, 99),
)
def test_each_edge_is_at_exactly_one_member_that_holds_its_ends(nodes, edges, clients, by, seed):
    draw = np.random.default_rng(seed)
    ends, kind = draw.integers(0, nodes, (2, edges)), draw.integers(0, 3, edges)
    whole = data(ends, kind, nodes, draw.integers(0, 9, edges).astype(np.float64))
    try:
        made = cut(EdgeGroups(by=by, clients=clients), whole, seed)
    except ConfigError as refused:
        assert refused.code == "config.too-few"  # noqa: PT017  whether it is refused depends on what was drawn
        return
    assert sorted(np.concatenate([part.examples for part in made.parts]).tolist()) == list(range(edges))
    for part, own in zip(made.parts, shares(whole, made.parts), strict=True):
        assert part.nodes.tolist() == np.unique(ends[:, part.examples]).tolist()
        assert (part.nodes[own.edge_attrs.ends] == ends[:, part.examples]).all()
        assert (own.edges == to_undirected(own.edge_attrs.ends, own.nodes)).all()
        assert (own.public == part.masks).all()
        if by == "relation":
            others = np.setdiff1d(np.arange(edges), part.examples)
            assert not np.isin(kind[part.examples], kind[others]).any()
    [union] = shares(whole, pool_clients(made, whole).parts)
    assert union.edge_attrs.total == edges


def test_a_source_is_at_one_member_with_all_edges_from_it():
    made = cut(EdgeGroups(by="source", clients=2), data(), 0)
    assert {ENDS[0, 0] in ENDS[0, edges] for edges in held(made)} == {True, False}
    sources = [set(ENDS[0, edges].tolist()) for edges in held(made)]
    assert sources[0] | sources[1] == {0, 1, 2, 3}
    assert len(sources[0]) == len(sources[1]) == 2


def test_random_shares_are_equal_and_differ_by_seed():
    whole = data(np.random.default_rng(0).integers(0, 6, (2, 31)), np.arange(31) % 3)
    sizes = [len(edges) for edges in held(cut(EdgeGroups(clients=4), whole, 0))]
    assert sorted(sizes) == [7, 8, 8, 8]
    assert held(cut(EdgeGroups(clients=4), whole, 0)) != held(cut(EdgeGroups(clients=4), whole, 1))


def test_a_split_by_time_and_the_datas_own():
    whole = data()
    by_time = cut(EdgeGroups(by="relation", clients=3, split="time", train_until=2.0, val_until=4.0), whole, 0)
    for part in by_time.parts:
        times = whole.edge_attrs.time[part.examples]
        assert part.masks[TRAIN].tolist() == (times <= 2).tolist()
        assert part.masks[VAL].tolist() == ((times > 2) & (times <= 4)).tolist()
        assert part.split_times == (2.0, 4.0)
    own = replace(whole, public=np.arange(7) % 3 == np.arange(3)[:, None])
    published = cut(EdgeGroups(clients=2, use_dataset_split=True), own, 0)
    assert all((part.masks == own.public[:, part.examples]).all() for part in published.parts)
    assert published.parts[0].masks[TEST].any()


@pytest.mark.parametrize(
    ("how", "change", "code"),
    [
        ({"by": "kin"}, {}, "config.value"),
        ({"by": "relation"}, {"y": np.array([0, 1, 0, 1, 2, 2, -1])}, "config.no-column"),
        ({"by": "owner"}, {"owner": None}, "config.no-column"),
        ({"by": "time"}, {"time": None}, "config.no-column"),
        ({"by": "relation", "clients": 4}, {}, "config.too-few"),
        ({"by": "random", "clients": 8}, {}, "config.too-few"),
        ({"by": "random"}, {"examples": False}, "config.examples"),
    ],
)
def test_what_cannot_be_cut_is_refused(how, change, code):
    whole = data()
    if "y" in change:
        changed = replace(whole, y=change["y"])
    else:
        changed = replace(whole, edge_attrs=replace_fields(whole.edge_attrs, **change))
    if change.get("examples") is False:
        changed = replace(changed, y=np.zeros(6, np.int64))
    with refusal(code):
        cut(EdgeGroups(**how), changed, 0)


def test_tables_name_owners_and_members_train(tmp_path):
    """From columns of a table of edges to scores; a saved copy is cut alike."""
    draw = np.random.default_rng(0)
    edges = pd.DataFrame(draw.integers(0, 12, (80, 2)), columns=["source", "target"])
    edges["label"], edges["shop"] = draw.choice(["buys", "likes", "views"], 80), draw.choice(["east", "west"], 80)
    edges.to_csv(tmp_path / "edges.csv", index=False)
    pd.DataFrame({"id": range(12), "age": draw.normal(size=12)}).to_csv(tmp_path / "nodes.csv", index=False)
    settings = {"task": "edges", "directed": True, "loops": "keep", "edge_owner": "shop"}
    whole = datasets.load("folder", str(tmp_path), **settings)
    assert [whole.edge_attrs.owners[at] for at in whole.edge_attrs.owner] == edges.shop.tolist()
    again = datasets.load("npz", str(whole.save(tmp_path / "saved.npz")), loops="keep")
    assert again.edge_attrs.owners == ("east", "west")
    for by, names in (("owner", ("east", "west")), ("relation", None)):
        document = {
            "rounds": 1,
            "data": {"name": "folder", "path": str(tmp_path), **settings},
            "partition": {"name": "edges", "by": by, **({} if names else {"clients": 3})},
            "model": {"name": "gcn", "hidden": 4},
            "algorithm": {"name": "fedavg"},
        }
        built = build(resolve(document))
        assert built.partition.names == names
        built.fed.begin(0)
        state = built.algorithm.init(built.fed)
        built.fed.begin(1)
        built.algorithm.evaluate(built.algorithm.round(state, built.fed), built.fed)
        assert held(built.partition) == held(cut(EdgeGroups(by=by, clients=3), again, 0))
