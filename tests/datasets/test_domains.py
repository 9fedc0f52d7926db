"""Collections of small graphs side by side: a member for each, who shares nothing of the others' columns."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedweave.datasets import load
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train

SETS = ("mutag", "ptc-mr")


def test_each_set_is_a_members_with_columns_of_its_own(data_root: Path) -> None:
    if not (data_root / "ptc-mr").is_dir():
        pytest.skip(f"no small graphs in {data_root}; set FEDWEAVE_DATA to the folder of data sets")
    joined, each = load("domains", str(data_root), sets=SETS), [load(name, str(data_root)) for name in SETS]
    assert joined.owners == SETS
    assert np.bincount(joined.owner).tolist() == [one.examples for one in each]
    assert joined.features == sum(one.features for one in each)
    assert joined.y.tolist() == [*each[0].y, *each[1].y]
    x, first = joined.x.toarray(), each[0].nodes
    assert not x[:first, each[0].features :].any()
    assert not x[first:, : each[0].features].any()
    assert (x[first:, each[0].features :] == sp.csr_matrix(each[1].x).toarray()).all()
    built = build(
        resolve(
            {
                "rounds": 1,
                "data": {"name": "domains", "path": str(data_root), "sets": SETS},
                "partition": {"name": "column"},
                "model": {"name": "gin", "hidden": 4, "pool": "sum"},
                "algorithm": {"name": "fedavg", "share": ["[1-9]*/*"]},
            }
        )
    )
    *_, last = train(built.algorithm, built.fed, 1)
    assert set(last.of_clients("accuracy")) == set(SETS)
