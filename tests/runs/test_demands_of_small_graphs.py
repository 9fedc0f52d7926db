"""What an algorithm demands of examples and of its model is refused before a run, not in a step of it."""

from pathlib import Path
from typing import Any

import pytest

from fedweave.algorithms import ALGORITHMS, FedStar
from fedweave.contract import small_graphs
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.models import MODELS
from tests.refusals import refusal

CASE = Path(__file__).parents[1] / "cases/tu-attributes/data"


def on_graphs(algorithm: str, model: str = "gin", **settings: Any) -> Any:
    return resolve(
        {
            "data": {"name": "tu", "path": str(CASE)},
            "partition": {"name": "graphs_iid", "clients": 3},
            "model": {"name": model, "hidden": 4, "pool": "sum"},
            "algorithm": {"name": algorithm, **settings},
        }
    )


def test_neighborhoods_that_memory_cannot_hold_are_refused() -> None:
    """Edges by themselves are not nodes that could stand once: of six layers each takes eleven times the places."""
    config = on_graphs("fedavg").plain() | {
        "data": {"name": "transfers"},
        "partition": {"name": "column"},
        "model": {"name": "gine", "hidden": 4, "layers": 8},
        "algorithm": {"name": "fedavg", "parts": [{"name": "sampled_cross_entropy", "fan_out": 10}]},
    }
    with refusal("config.memory", "fan_out"):
        build(resolve(config))
    config["model"]["layers"] = 2
    assert build(resolve(config)).fed


@pytest.mark.parametrize("model", ["gin", "gcn"])
def test_fedstar_names_the_model_that_it_is_made_for(model: str) -> None:
    with refusal("config.model", "model.name = 'star'"):
        build(on_graphs("fedstar", model))
    assert build(on_graphs("fedstar", model, share=["0/*"])).algorithm.share == ("0/*",)
    assert build(on_graphs("fedstar", "star")).algorithm.model
    net = MODELS[model](hidden=4, pool="sum").build(small_graphs.FEATURES, small_graphs.CLASSES)
    with refusal("config.model", "model.name = 'star'"):
        FedStar(net)
    assert ALGORITHMS["fedstar"].capabilities.model in MODELS
