"""Edges between members become columns of features, by hand and as laws."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.ledger import Ledger
from fedweave.datasets import load, npz
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.errors import DataError
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.partition.base import Part, Partition
from fedweave.partition.external import member_data, meter_exchange, outside_edges, with_external_columns
from tests.refusals import refusal

# Members hold nodes 0 and 1, and 2 and 3; 4 is nobody's. Parallel transfers, both ways, a loop, one within a member.
ENDS = np.array([[0, 0, 0, 2, 3, 0, 0, 1], [2, 2, 3, 0, 1, 1, 0, 4]])
AMOUNT = np.array([10, 20, 5, 7, 1, 99, 50, 3], np.float32)
TIME = np.array([1, 4, 3, 8, 9, 11, 10, 2], np.float64)


def graph(carries: bool = True, x: Any = None) -> Dataset:
    x = np.arange(1, 6, dtype=np.float32)[:, None] if x is None else x
    edge_attrs = EdgeAttributes(ENDS, True, AMOUNT, None, TIME) if carries else None
    return Dataset("five", x, to_undirected(ENDS, 5), np.arange(5) % 2, 2, edge_attrs=edge_attrs, columns=("age",))


def cut(*groups: list[int]) -> Partition:
    return Partition(tuple(Part(np.array(nodes), np.ones((3, len(nodes)), bool)) for nodes in groups))


def columns(data: Dataset) -> dict[str, list[float]]:
    x = data.x.toarray() if sp.issparse(data.x) else data.x
    return dict(zip(data.columns, x.T.round(5).tolist(), strict=True))


def test_what_a_member_knows_of_its_own_edges_by_hand() -> None:
    found = columns(with_external_columns(graph(), cut([0, 1], [2, 3]), "features").data)
    logs, sinh = (
        (lambda *values: pytest.approx(np.log1p(values), abs=1e-5)),
        lambda *v: pytest.approx(np.arcsinh(v), abs=1e-5),
    )
    assert found["external out log count"] == logs(3, 1, 1, 1, 0)
    assert found["external in log count"] == logs(1, 1, 2, 1, 0)
    assert found["external out log sum of weight"] == sinh(35, 3, 7, 1, 0)
    assert found["external out log mean of weight"] == sinh(35 / 3, 3, 7, 1, 0)
    assert found["external out last time"] == pytest.approx([0.3, 0.1, 7 / 8, 1, 0], abs=1e-5)  # of 1 to 11, and 1 to 9
    assert len(found) == 1 + 2 * 4


def test_what_members_tell_each_other_by_hand() -> None:
    made = with_external_columns(graph(), cut([0, 1], [2, 3]), "exchange")
    found = columns(made.data)
    assert found["exchanged out log neighbors"] == pytest.approx(np.log1p([2, 0, 1, 1, 0]), abs=1e-5)
    assert found["exchanged out mean of age"] == [3.5, 0, 1, 2, 0]  # 0 pays 2, twice, and 3
    assert found["exchanged in mean of age"] == [3, 4, 1, 1, 0]
    assert (made.shared, made.words) == (4, 4)
    few = columns(with_external_columns(graph(), cut([0, 1], [2, 3]), "exchange", min_nodes=2).data)
    assert few["exchanged out mean of age"] == [3.5, 0, 0, 0, 0]
    ledger = Ledger()
    meter_exchange(ledger, ["a", "b"], made)
    rows = [row for row in ledger.table().to_pylist() if row["key"] == "sums"]
    assert {row["shape"] for row in rows} == {"[4, 5] int64"}
    assert all("secure sum" in row["mechanism"] for row in rows)


@pytest.mark.parametrize("carries", [True, False])
@pytest.mark.parametrize("sparse", [False, True])
def test_members_by_themselves_say_the_same_of_their_own_edges(tmp_path: Path, carries: bool, sparse: bool) -> None:
    """Also when these come from a file."""
    partition, data = cut([0, 1], [2, 3]), graph(carries, sp.csr_matrix(graph().x) if sparse else None)
    whole = columns(with_external_columns(data, partition, "features").data)
    for part, outside in zip(partition.parts, outside_edges(data, partition.parts), strict=True):
        held = np.isin(ENDS, part.nodes).all(0)
        place = np.searchsorted(part.nodes, ENDS[:, held])
        own = replace(
            data,
            x=data.x[part.nodes],
            y=data.y[part.nodes],
            edges=to_undirected(place, len(part.nodes)),
            edge_attrs=None if data.edge_attrs is None else data.edge_attrs.select(held, place),
            outside=outside,
        )
        npz.write(own, tmp_path / "own.npz")
        read = npz.read(tmp_path / "own.npz", "own", loops="keep")
        assert read.outside is not None
        assert read.outside.names == outside.names
        for at in (own, read):
            found = columns(member_data(at, "features"))
            assert {name: pytest.approx(whole[name][part.nodes[0] : part.nodes[-1] + 1]) for name in found} == found


def test_without_members_all_columns_are_nothing() -> None:
    """As of the union that a pooled algorithm sees."""
    made = with_external_columns(graph(), cut([0, 1, 2, 3, 4]), "exchange").data
    assert made.features == 1 + 8 + 4
    assert not np.asarray(made.x)[:, 1:].any()


def test_no_edge_after_the_end_of_training_is_in_a_column_of_a_split_by_time() -> None:
    split = replace(
        cut([0, 1], [2, 3]), parts=tuple(replace(p, split_times=(3.0, 9.0)) for p in cut([0, 1], [2, 3]).parts)
    )
    early = TIME <= 3
    edge_attrs = EdgeAttributes(ENDS[:, early], True, AMOUNT[early], None, TIME[early])
    known = replace(graph(), edge_attrs=edge_attrs, edges=to_undirected(ENDS[:, early], 5))
    for how in ("features", "exchange"):
        now = with_external_columns(graph(), split, how).data
        then = with_external_columns(known, cut([0, 1], [2, 3]), how).data
        assert np.array_equal(now.x, then.x)


def test_members_that_share_nodes_have_no_edges_elsewhere() -> None:
    with refusal("config.external"):
        with_external_columns(graph(), cut([0, 1], [1, 2]), "features")


def tables(root: Path, members: dict[str, tuple[str, str]]) -> Path:
    for name, (ages, ends) in members.items():
        folder = root / name
        folder.mkdir(parents=True)
        nodes = [f"{pair.replace('=', ',')},{at % 2}" for at, pair in enumerate(ages.split())]
        (folder / "nodes.csv").write_text("\n".join(["id,age,label", *nodes]) + "\n")
        (folder / "edges.csv").write_text("\n".join(["source,target", *ends.split()]) + "\n")
    return root


def test_foreign_ends_in_members_own_files_are_refused_or_used(tmp_path: Path) -> None:
    members = {"a": ("a1=1 a2=2", "a1,b1 x,a2 a1,a2"), "b": ("b1=5 b2=6", "a1,b1 b2,b1")}
    root = tables(tmp_path / "m", members)
    with pytest.raises(DataError, match=r"edges.csv: row 2: target 'a/b1' is not a node"):
        load("members", str(root), directed=True)
    data = load("members", str(root), directed=True, external="exchange")
    assert data.outside is not None
    assert set(data.outside.names) == {"x", "b1", "a1"}
    assert data.edge_attrs is not None
    assert data.edge_attrs.total == 2
    found = columns(with_external_columns(data, cut([0, 1], [2, 3]), "exchange").data)
    assert found["external in log count"] == pytest.approx(np.log1p([0, 1, 1, 0]), abs=1e-5)
    assert found["exchanged out mean of age"] == [5, 0, 0, 0]
    (root / "b/edges.csv").write_text("source,target\nx,y\n")
    with pytest.raises(DataError, match=r"edges.csv: row 2: neither .* is a node"):
        load("members", str(root), directed=True, external="features")


def test_an_id_of_two_members_is_nobodys_to_be_told_of(tmp_path: Path) -> None:
    root = tables(tmp_path / "m", {"a": ("a1=1 a2=2", "a1,b1"), "b": ("b1=5 a1=6", "b1,a1")})
    data = load("members", str(root), directed=True, external="exchange")
    with refusal("data.held-twice", "'a1'"):
        with_external_columns(data, cut([0, 1], [2, 3]), "exchange")


def test_a_run_keeps_its_bits_without_the_setting_and_says_what_it_exchanged_with_it() -> None:
    def built(**data: Any) -> Any:
        own = {"name": "transfers", "preset": "small", **data}
        section = {"data": own, "partition": {"name": "column"}, "model": {"name": "sage", "hidden": 4}}
        return build(resolve({**section, "algorithm": {"name": "fedavg"}}))

    plain, same, told = built(), built(external="refuse"), built(external="exchange")
    assert plain.data.features == same.data.features == 5
    for client, own in plain.fed.graphs.items():
        assert np.array_equal(np.asarray(own.x), np.asarray(same.fed.graphs[client].x))
    assert told.data.columns[:5] == plain.data.columns
    assert np.array_equal(np.asarray(told.data.x)[:, :5], np.asarray(plain.data.x))
    rows = {(row["step"], row["direction"]) for row in told.fed.ledger.table().to_pylist()}
    assert rows == {("(exchange)", "up"), ("(exchange)", "down")}
    with refusal("config.value", "data.external"):
        built(external="all")
