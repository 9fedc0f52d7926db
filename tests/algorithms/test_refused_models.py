"""What algorithms cannot train: models of another kind, and settings that contradict each other."""

from collections.abc import Callable
from typing import Any

import pytest

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fairgraphfl import AgentValue, MotifPrototypes, Payoff
from fedweave.core.model import Model
from fedweave.models import MODELS
from tests.contract.federations import CLASSES, FEATURES, gin, model

ONE_LAYER: Callable[[], Model] = lambda: model()[:1]  # noqa: E731
KIND: dict[str, Callable[[], Model]] = {
    "gin": gin,
    "one layer": ONE_LAYER,
    "unpooled": lambda: gin()[:2],
    "gcn": model,
    **{name: lambda name=name: model(name=name) for name in ("gat", "sage")},  # type: ignore[misc]
    "mlp": lambda: MODELS["mlp"](hidden=4).build(FEATURES, CLASSES),
    "last gcn": lambda: MODELS["gcn"](hidden=8, layers=2).build(FEATURES, CLASSES),
}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("adafgl", "gin", {}),
    ("adafgl", "gcn", {"share": ("0/*",)}),
    ("fairgraphfl", "unpooled", {}),
    ("fedavg", "gin", {"parts": (AgentValue(max_ring=5), Payoff(), MotifPrototypes(max_ring=6))}),
    ("fedaux", "gin", {}),
    ("fedaux", "one layer", {}),
    ("feddep", "gin", {}),
    ("fedego", "sage", {}),
    ("fedego", "gcn", {}),
    ("fedgcn", "sage", {}),
    ("fedgcn", "gat", {}),
    ("fedgta", "gin", {}),
    ("fedproto", "gcn", {"head": "prototype"}),
    ("fedproto", "one layer", {}),
    ("fedpub", "mlp", {}),
    ("fedtad", "gin", {}),
    ("fedtad", "gcn", {"near": 101}),
    ("fedtad", "gcn", {"share": ("0/*",)}),
    ("fedtgp", "gcn", {"head": "prototype"}),
    *(("fggp", kind, {}) for kind in ("gin", "gat", "sage", "one layer")),
    *(("fgssl", kind, {}) for kind in ("gin", "gat", "one layer")),
    ("glasu", "last gcn", {"aggregation": "concat"}),
    ("glasu", "gcn", {"backward": "exchanged", "steps": 2}),
    ("glasu", "gcn", {"backward": "exchanged", "sigma": 0.5}),  # gradients would be of rows without noise
]


@pytest.mark.parametrize(("name", "kind", "settings"), CASES)
def test_what_cannot_be_trained_is_refused(name: str, kind: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        ALGORITHMS[name](KIND[kind](), **settings)
