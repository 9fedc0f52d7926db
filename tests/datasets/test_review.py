"""Gaps in columns that hold no numbers, paths in TOML, and scaling where nobody may scale."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedweave
from fedweave.datasets import from_frames
from fedweave.experiment.config.toml import load
from tests.refusals import refusal

NODES = pd.DataFrame({"id": range(12), "label": [0, 1] * 6, "amount": np.linspace(0, 5e4, 12)})
EDGES = pd.DataFrame({"source": range(11), "target": range(1, 12)})


def test_gaps_in_a_column_of_dates_are_refused() -> None:
    with refusal("data"):
        from_frames(NODES.assign(odd=pd.to_datetime(["2024-01-01"] * 11 + [None])), EDGES, missing=("odd",))


def test_parties_keep_their_columns() -> None:
    data = from_frames(NODES.assign(other=np.linspace(-3e3, 9e3, 12)), EDGES)
    cut = fedweave.partition.Vertical(clients=2).cut(data, seed=0)
    graphs = fedweave.client_graphs(data, cut)
    assert (
        max(float(graph.x.to_dense().max() if graph.x.is_sparse else graph.x.max()) for graph in graphs.values()) > 1e3
    )


@pytest.mark.parametrize("text", ['# path = "C:\\data"\na = 1', "p = 'x \"C:\\y\"'", 'labels = ["x:\\u00e4"]'])
def test_valid_toml_with_backslashes_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "e.toml").write_text(text)
    assert load(tmp_path / "e.toml")
