"""How models join the nodes of small graphs where an experiment does not say it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedweave.experiment import config

POOLING = [name for name, kind in config.registry("model").items() if "pool" in config.parameters("model", kind)]


def pool_of(model: dict[str, Any], **data: str) -> object:
    return config.resolve({"data": data, "model": model}).model.values["pool"]


@pytest.mark.parametrize("model", POOLING)
def test_models_of_small_graphs_pool_unless_the_document_says_how(model: str) -> None:
    usual = "sum" if model in ("gin", "star") else "mean"
    for data in ("proteins", "graphs", "tu", "domains"):
        assert pool_of({"name": model}, name=data) == usual
        assert pool_of({"name": model, "pool": "mean"}, name=data) == "mean"
    if model != "star":
        assert pool_of({"name": model, "pool": "none"}, name="proteins") == "none"  # said, and refused with the data
        assert pool_of({"name": model}, name="cora") == pool_of({"name": model}, name="folder") == "none"


def test_members_models_of_small_graphs_pool_each_as_its_kind_does() -> None:
    own = {"each": [{"name": "gin"}, {"name": "sage"}], "members": {"x": {"name": "gcn", "pool": "sum"}}}
    made = config.resolve({"data": {"name": "proteins"}, "algorithm": {"name": "local"}, "model": own})
    assert [choice.values["pool"] for choice in made.member_models.each] == ["sum", "mean"]
    assert made.member_models.members["x"].values["pool"] == "sum"
    assert config.resolve(made.plain()) == made


def test_a_file_of_small_graphs_is_seen_before_it_is_loaded(tmp_path: Path) -> None:
    for name, of in (("graphs", {"graph_of": np.zeros(2, np.int64)}), ("nodes", {})):
        np.savez(tmp_path / f"{name}.npz", edge_index=np.zeros((2, 0), np.int64), **of)
    (tmp_path / "damaged.npz").write_bytes(b"PK")
    found = {
        at: pool_of({"name": "gin"}, path=str(tmp_path / f"{at}.npz")) for at in ("graphs", "nodes", "damaged", "no")
    }
    assert found == {"graphs": "sum", "nodes": "none", "damaged": "none", "no": "none"}
