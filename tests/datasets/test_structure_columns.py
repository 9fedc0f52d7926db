"""Structure as columns of nodes: by hand, against networkx, and the same at every door."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp

from fedweave import datasets
from fedweave.apply.run_predictions import predictions
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.structure import filled, with_places
from fedweave.errors import ConfigError
from fedweave.partition.base import Part
from fedweave.partition.client_data import shares
from fedweave.sites.flare.site_data import read_graph
from fedweave.sites.flare.sitefile import SiteData
from tests.datasets.test_public import real
from tests.runs.test_predictions import made

ALL = ("degree", "pagerank", "clustering", "laplacian 2")
# A triangle 0 1 2 with a tail 2 3, an edge 4 5, and a node alone.
ENDS = np.array([[0, 0, 1, 2, 4], [1, 2, 2, 3, 5]])
NODES = 7


def graph(ends: np.ndarray = ENDS, nodes: int = NODES, **fields: Any) -> Dataset:
    x = np.arange(2.0 * nodes, dtype=np.float32).reshape(nodes, 2)
    return Dataset("graph", x, to_undirected(ends, nodes), np.arange(nodes) % 2, 2, **fields)


def columns(data: Dataset, *kinds: str) -> np.ndarray:
    return np.asarray(filled(with_places(data, kinds)).x[:, data.features :])


def test_columns_by_hand() -> None:
    data = with_places(graph(columns=("a", "b")), ALL)
    assert data.columns[2:] == tuple(
        f"structure: {name}" for name in ("degree", "pagerank", "clustering", "laplacian 1", "laplacian 2")
    )
    assert (data.x[:, 2:] == 0).all()
    whole = filled(data)
    np.testing.assert_array_equal(whole.x[:, :2], data.x[:, :2])
    np.testing.assert_allclose(whole.x[:, 2], np.log1p([2, 2, 3, 1, 1, 1, 0]), rtol=1e-6)
    assert whole.x[:, 4].tolist() == [1, 1, pytest.approx(1 / 3), 0, 0, 0, 0]
    # Of two joined nodes the Laplacian has 0 and 2, with (1, -1); a node alone has no eigenvector but the trivial one.
    assert sorted(whole.x[4:6, 5].tolist()) == [-1, 1]
    assert (whole.x[4:, 6] == 0).all()
    assert whole.x[6, 5] == 0


def test_each_direction_has_a_degree() -> None:
    attributes = EdgeAttributes(np.array([[0, 0, 1, 2], [1, 1, 2, 2]]), True)
    data = graph(attributes.ends, 3, edge_attrs=attributes)
    expected = np.log1p([[0, 2], [2, 1], [2, 1]])  # parallel edges and loops are messages, too
    np.testing.assert_allclose(columns(data, "degree"), expected, rtol=1e-6)
    both_ways = replace(data, edge_attrs=attributes._replace(directed=False))
    np.testing.assert_allclose(columns(both_ways, "degree")[:, 0], np.log1p([2, 3, 2]), rtol=1e-6)


def test_they_are_what_networkx_says() -> None:
    whole = nx.karate_club_graph()
    nodes = whole.number_of_nodes()
    values = columns(graph(np.array([*whole.edges]).T, nodes), "pagerank", "clustering", "laplacian 3")
    rank, share = nx.pagerank(whole, weight=None, tol=1e-12, max_iter=500), nx.clustering(whole)
    np.testing.assert_allclose(np.exp(values[:, 0]) / nodes, [rank[at] for at in range(nodes)], rtol=1e-4)
    np.testing.assert_allclose(values[:, 1], [share[at] for at in range(nodes)], rtol=1e-6)
    laplacian = nx.normalized_laplacian_matrix(whole, weight=None).toarray()
    smallest = np.sort(np.linalg.eigvalsh(laplacian))[1:4]
    vectors = values[:, 2:]
    np.testing.assert_allclose(laplacian @ vectors, vectors * smallest, atol=1e-5)
    np.testing.assert_allclose(vectors.T @ vectors / nodes, np.eye(3), atol=1e-5)


def test_a_sparse_solver_gives_the_vectors_of_the_dense_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data = graph(np.array([*nx.karate_club_graph().edges]).T, 34)
    dense = columns(data, "laplacian 4")
    monkeypatch.setattr(datasets.structure, "DENSE_UP_TO", 0)
    np.testing.assert_allclose(columns(data, "laplacian 4"), dense, atol=1e-4)


def test_a_component_depends_on_no_other() -> None:
    alone = columns(graph(ENDS[:, :4], 4), *ALL[:3])
    np.testing.assert_allclose(columns(graph(), *ALL[:3])[:4], alone, atol=1e-6)


def test_a_client_counts_its_own_edges_and_those_until_training_ends() -> None:
    """The tail 2 3 leads to another client; the edge 0 2 comes after training."""
    times = EdgeAttributes(ENDS, False, time=np.array([1.0, 9, 1, 1, 1]))
    data = with_places(graph(edge_attrs=times), ("degree",))
    masks = np.zeros((3, 3), bool)
    for split_times, expected in ((None, [2, 2, 2]), ((5.0, 7.0), [1, 2, 1])):
        [share] = shares(data, [Part(np.arange(3), masks, split_times=split_times)])
        np.testing.assert_allclose(share.x[:, 2], np.log1p(expected), rtol=1e-6)
        again = filled(share)
        np.testing.assert_array_equal(again.x, share.x)


def test_links_to_be_predicted_are_in_no_degree() -> None:
    """The splits of links by hand: a degree that counts a test link gives it away."""
    attributes = EdgeAttributes(ENDS, False, split=np.array([0, 2, 0, 1, 0]))
    tables = replace(graph(edge_attrs=attributes), y=np.zeros(NODES, np.int64))
    data = with_places(datasets.links.as_links(tables, datasets.links.Links()), ("degree",))
    degrees = np.rint(np.expm1(filled(data).x[:, 2])).astype(int)
    assert degrees.tolist() == [1, 2, 1, 0, 1, 1, 0]


def test_sparse_features_get_the_same_columns() -> None:
    data = graph()
    wide = sp.csr_matrix((np.ones(2, np.float32), ([0, 3], [5, 90])), shape=(NODES, 100))
    whole = filled(with_places(replace(data, x=wide), ("degree", "clustering")))
    assert sp.issparse(whole.x)
    np.testing.assert_allclose(whole.x[:, 100:].toarray(), columns(data, "degree", "clustering"))
    assert whole.x[:, :100].sum() == 2


@pytest.mark.parametrize("kinds", [("degrees",), ("laplacian",), ("laplacian 0",), ("laplacian 65",), ("degree",) * 2])
def test_other_kinds_are_refused(kinds: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"data\.structure"):
        with_places(graph(), kinds)


def test_an_archive_has_no_structure_but_asks_for_it(tmp_path: Path) -> None:
    data = filled(with_places(graph(), ("degree",)))
    data.save(tmp_path / "a.npz")
    plain = datasets.load("npz", str(tmp_path / "a.npz"), normalize="none")
    assert plain.features == 2
    again = datasets.load("npz", str(tmp_path / "a.npz"), normalize="none", structure=["degree"])
    np.testing.assert_array_equal(filled(again).x, data.x)
    site = read_graph(tmp_path / "a.npz", SiteData(path="a.npz", normalize="none", structure=("degree",)))
    np.testing.assert_array_equal(site.x, data.x)


def folder(root: Path) -> Path:
    """A random graph whose classes are hubs and others, with an income."""
    root.mkdir()
    draw = np.random.default_rng(0)
    hub = np.arange(60) % 3 == 0
    rows = [f"n{at},{int(hub[at])},{draw.lognormal(9, 1):.2f}" for at in range(60)]
    ends = draw.integers(0, 60, (2, 240))
    ends[0, :180] = 3 * (ends[0, :180] // 3)
    (root / "nodes.csv").write_text("\n".join(["id,label,income", *rows]))
    edges = {f"n{source},n{target}" for source, target in ends.T.tolist() if source != target}
    (root / "edges.csv").write_text("\n".join(["source,target", *sorted(edges)]))
    return root


@pytest.mark.parametrize("how", ["auto", "standard"])
def test_new_tables_get_the_columns_of_training(tmp_path: Path, how: str) -> None:
    """A run on one client predicts its own tables as it predicted its nodes."""
    where, out = folder(tmp_path / "data"), tmp_path / "run"
    cut = {"name": "random", "clients": 1, "train": 0.5, "val": 0.0, "test": 0.5}
    data = {"name": "folder", "path": str(where), "directed": True, "structure": [*ALL], "normalize": how}
    data |= {"loops": "keep"}
    made(out, {"name": "fedavg", "local_steps": 10, "lr": 0.05}, data, 2, model={"name": "mlp"}, partition=cut)
    old = {row["id"]: row["p_1"] for row in predictions(out).to_pylist()}
    new = {row["id"]: row["p_1"] for row in predictions(out, where).to_pylist()}
    assert new == pytest.approx(old, abs=1e-5)
    assert np.std([*old.values()]) > 0.01


def test_published_graphs_have_them_too() -> None:
    folder = real("minesweeper")
    plain, data = (datasets.load("minesweeper", folder, structure=kinds) for kinds in ((), ("degree",)))
    assert data.features == plain.features + 1
    degrees = np.bincount(data.edges[0], minlength=data.nodes)
    np.testing.assert_allclose(sp.csr_matrix(filled(data).x)[:, [-1]].toarray()[:, 0], np.log1p(degrees), rtol=1e-6)
