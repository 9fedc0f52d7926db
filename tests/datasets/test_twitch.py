"""Twitch's four countries as one data set whose owners are the countries."""

from pathlib import Path

import numpy as np
import pytest

from fedweave.datasets import load
from fedweave.partition import PARTITIONS, cut


def test_countries_are_the_owners_and_the_clients(data_root: Path) -> None:
    if not (data_root / "twitch/de.npz").is_file():
        pytest.skip(f"twitch is not in {data_root}; set FEDWEAVE_DATA to the folder of data sets")
    data = load("twitch", str(data_root))
    assert (data.nodes, data.edges.shape[1] // 2, data.features, data.classes) == (27821, 360510, 3170, 2)
    assert data.owners == ("de", "engb", "es", "fr")
    assert data.owner is not None
    assert (data.owner[data.edges[0]] == data.owner[data.edges[1]]).all()
    found = cut(PARTITIONS["column"](), data, 0)
    assert found.names == data.owners
    told = [np.bincount(data.y[part.nodes]).tolist() for part in found.parts]
    assert told == [[3756, 5742], [3238, 3888], [3288, 1360], [4135, 2414]]
