"""What the tests of incentives share: graphs in the TU text layout."""

import lzma
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest


class Graphs(NamedTuple):
    edges: np.ndarray
    graph_of: np.ndarray
    labels: np.ndarray | None
    classes: np.ndarray


@pytest.fixture(scope="session")
def tu_graphs(data_root: Path) -> Callable[[str], Graphs]:
    """Name -> a data set of many graphs."""

    def read(name: str) -> Graphs:
        start = data_root / name.lower() / name
        with lzma.open(f"{start}_A.txt.xz") as file:
            numbers = file.read().replace(b",", b" ").split()
        nodes = Path(f"{start}_node_labels.txt")
        return Graphs(
            np.array(numbers, np.int64).reshape(-1, 2).T - 1,
            np.loadtxt(f"{start}_graph_indicator.txt", dtype=np.int64) - 1,
            np.loadtxt(nodes, dtype=np.int64) if nodes.exists() else None,
            np.loadtxt(f"{start}_graph_labels.txt", dtype=np.int64),
        )

    return read
