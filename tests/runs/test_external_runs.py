"""Runs whose data has columns of edges between members: what they are for new nodes."""

from pathlib import Path

import numpy as np
import pytest

from fedweave.experiment.config import resolve
from fedweave.experiment.loading import load_data
from fedweave.experiment.runs.data_form import form_of_config
from fedweave.experiment.runs.new_data import InputFormat, load_new_data

IN = "external in log count"


def member(root: Path, ages: str, ends: str) -> None:
    root.mkdir(parents=True)
    nodes = [
        f"{pair.replace('=', ',')},{at % 2},{('train', 'val', 'test')[at % 3]}" for at, pair in enumerate(ages.split())
    ]
    (root / "nodes.csv").write_text("\n".join(["id,age,label,split", *nodes]) + "\n")
    (root / "edges.csv").write_text("\n".join(["source,target", *ends.split()]) + "\n")


def test_new_nodes_get_the_columns_of_the_run_scaled_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    member(tmp_path / "m/a", "a1=1 a2=2 a3=4 a4=5 a5=7 a6=8", "a1,b1 b2,a2 a1,a2 c9,a3")
    member(tmp_path / "m/b", "b1=3 b2=6 b3=9 b4=9 b5=1 b6=2", "a1,b1 b2,a2 b3,b4")
    data = {"name": "members", "path": str(tmp_path / "m"), "directed": True, "normalize": "standard"}
    cut = {"name": "folders", "use_dataset_split": True}
    document = {"rounds": 1, "data": data | {"external": "exchange", "classes": 2}, "partition": cut}
    config = resolve({**document, "model": {"name": "sage", "hidden": 4}, "algorithm": {"name": "fedavg"}})
    made, parts, _ = load_data(config)
    before = InputFormat.of_run(config, form_of_config(config, made, parts), made)
    (tmp_path / "new").mkdir()
    (tmp_path / "new/nodes.csv").write_text("id,age\nn1,1\nn2,2\n")
    (tmp_path / "new/edges.csv").write_text("source,target\nx,n1\ny,n1\nn1,n2\n")
    new = load_new_data(before, tmp_path / "new").data
    raw = load_data(config, with_scaling=False)[0]
    at = new.columns.index(IN)
    was = np.asarray(raw.x[:, [at]].todense() if hasattr(raw.x, "todense") else raw.x[:, [at]], np.float64)
    wanted = (np.log1p([2, 0]) - was.mean()) / was.std()
    found = new.x.toarray() if hasattr(new.x, "toarray") else new.x
    np.testing.assert_allclose(found[:, at], wanted, atol=1e-5)
    assert caplog.text
