"""What all tests share: one thread, the folder of real data, and small random graphs."""

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedweave.core.arrays import graph_arrays
from fedweave.core.graph import Graph, make_graph
from fedweave.core.random import generator

torch.set_num_threads(1)

ROOT = Path(__file__).parents[1]
DATA = (ROOT / os.environ.get("FEDWEAVE_DATA", "../shared/data")).resolve()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file, of one algorithm of the contract, or of running sites go to one process, which makes what they
    share once (pytest-xdist's --dist loadgroup). Sites, which are mostly waited for, come first and the algorithms,
    of which there are many, last, so that no process is left alone with a long group (--no-loadscope-reorder)."""
    place = {}
    for item in items:
        fixtures, values = getattr(item, "fixturenames", ()), getattr(getattr(item, "callspec", None), "params", {})
        of_algorithm, of_sites = "subject" in fixtures, "running" in fixtures
        group = f"{item.path.stem}-{values.get('name')}" if of_algorithm else item.path.stem
        item.add_marker(pytest.mark.xdist_group("sites" if of_sites else group))
        place[item] = 0 if of_sites else 1 + of_algorithm
    items.sort(key=place.__getitem__)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data sets."""
    if not DATA.is_dir():
        pytest.skip(f"no data in {DATA}; set FEDWEAVE_DATA to the folder of data sets")
    return DATA


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder of arithmetic written apart from the package."""
    folder = (ROOT / os.environ.get("FEDWEAVE_REFERENCE", "../shared/reference")).resolve()
    if not folder.is_dir():
        pytest.skip(f"no references in {folder}; set FEDWEAVE_REFERENCE to their folder")
    return folder


@pytest.fixture(scope="session")
def oracles(reference: Path) -> ModuleType:
    """The formulas of the algorithms in NumPy, written apart from the package."""
    spec = importlib.util.spec_from_file_location("oracles", reference / "oracles.py")
    if spec is None or spec.loader is None:
        pytest.skip(f"no oracles.py in {reference}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def random_graph(
    nodes: int,
    features: int = 6,
    *,
    classes: int = 3,
    sparse: bool = False,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Graph:
    """About four neighbours a node, three features a node; half of the nodes train, a quarter each val and test."""
    rng = generator(seed, f"test graph {nodes}")
    edges = rng.integers(0, nodes, (2, 2 * nodes))
    edges = edges[:, edges[0] != edges[1]]
    edges = np.unique(np.concatenate([edges, edges[::-1]], 1), axis=1)
    x = np.zeros((nodes, features))
    x[np.arange(nodes)[:, None], rng.integers(0, features, (nodes, 3))] = rng.random((nodes, 3))
    place = np.arange(nodes) % 4
    masks = np.stack([place < 2, place == 2, place == 3])
    data = sp.csr_matrix(x) if sparse else x
    return make_graph(data, edges, rng.integers(0, classes, nodes), masks, dtype=dtype)


def padded_alike(graphs: Sequence[Graph]) -> list[Graph]:
    """The same graphs, all padded to the rows of the largest, so that they can be stacked."""
    rows, examples = max(graph.nodes for graph in graphs), max(len(graph.y) for graph in graphs)
    return [
        make_graph(**graph_arrays(graph)._asdict(), dtype=graph.x.dtype, rows=rows, examples=examples)
        for graph in graphs
    ]


@pytest.fixture(scope="session")
def make_graphs() -> Callable[..., dict[str, Graph]]:
    """({client: nodes} or sizes, features, **options of `random_graph`) -> {client: graph}."""

    def made(sizes: "dict[str, int] | Sequence[int]", features: int = 6, **options: object) -> dict[str, Graph]:
        named = sizes if isinstance(sizes, dict) else {f"site{i}": size for i, size in enumerate(sizes)}
        return {client: random_graph(n, features, seed=i, **options) for i, (client, n) in enumerate(named.items())}  # type: ignore[arg-type]

    return made
