from typing import Any

import numpy as np
import pytest

from fedweave.datasets import Dataset, load
from fedweave.datasets.check import check
from fedweave.datasets.synthetic import Blocks, draw_pairs
from fedweave.errors import ConfigError
from tests.refusals import refusal


def same(values: np.ndarray | None, edges: np.ndarray) -> float:
    assert values is not None
    return float((values[edges[0]] == values[edges[1]]).mean())


def as_bytes(data: Dataset) -> tuple[bytes, ...]:
    return tuple(np.asarray(part).tobytes() for part in (data.x, data.edges, data.y, data.sensitive))


@pytest.mark.parametrize(
    ("nodes", "classes", "degree", "homophily"),
    [(2000, 4, 10.0, 0.8), (999, 7, 3.0, 0.1), (300, 2, 40.0, 1.0), (300, 3, 6.5, 0.0)],
)
def test_degree_and_homophily_are_the_parameters(nodes: int, classes: int, degree: float, homophily: float) -> None:
    data = check(load("synthetic", nodes=nodes, classes=classes, degree=degree, homophily=homophily), "synthetic")
    edges = data.edges.shape[1] // 2
    assert edges == round(nodes * degree / 2)
    assert abs(same(data.y, data.edges) - homophily) <= 0.5 / edges + 1e-12
    assert np.ptp(np.bincount(data.y)) <= 1


def test_sensitive_homophily_and_class_homophily_hold_together() -> None:
    asked: dict[str, Any] = {"homophily": 0.7, "sens_homophily": 0.9, "sens_label_correlation": 0.6}
    data = check(load("synthetic", nodes=3000, classes=3, sensitive=True, **asked), "synthetic")
    assert same(data.y, data.edges) == pytest.approx(0.7, abs=1e-3)
    assert same(data.sensitive, data.edges) == pytest.approx(0.9, abs=1e-3)


def test_edges_ignore_the_sensitive_attribute_unless_told() -> None:
    data = load("synthetic", nodes=20000, sensitive=True)
    assert same(data.sensitive, data.edges) == pytest.approx(0.5, abs=0.01)  # std of the share is below 0.002


@pytest.mark.parametrize(("classes", "correlation"), [(2, 0.0), (2, 0.5), (5, 0.7), (4, 1.0)])
def test_sensitive_attribute_correlates_with_the_upper_classes(classes: int, correlation: float) -> None:
    data = load("synthetic", nodes=20000, classes=classes, sensitive=True, sens_label_correlation=correlation)
    upper = data.y >= (classes + 1) // 2
    assert np.corrcoef(np.asarray(data.sensitive), upper)[0, 1] == pytest.approx(correlation, abs=0.03)


def test_features_are_unit_noise_around_means_signal_apart() -> None:
    data = load("synthetic", nodes=40000, classes=4, features=6, signal=3.0, sensitive=True, sens_feature_shift=2.0)
    low = data.sensitive == 0
    means = np.stack([data.x[low & (data.y == c)].mean(0) for c in range(4)])
    for a in range(4):
        for b in range(a):
            assert np.linalg.norm(means[a] - means[b]) == pytest.approx(3.0, abs=0.1)
    assert np.allclose(data.x[low & (data.y == 0)].std(0), 1, atol=0.05)
    shift = data.x[~low].mean(0) - data.x[low].mean(0)
    assert np.linalg.norm(shift) == pytest.approx(2.0, abs=0.1)


@pytest.mark.slow
def test_every_pair_of_a_kind_is_equally_likely() -> None:
    y, group = np.array([0, 0, 0, 1, 1, 1, 1]), np.array([0, 0, 1, 0, 1, 1, 0])
    blocks, rng = Blocks.of(y, group, 2), np.random.default_rng(0)
    for same_class in (True, False):
        for same_group in (True, False):
            kind = {
                (a, b)
                for a in range(7)
                for b in range(a + 1, 7)
                if (y[a] == y[b]) == same_class and (group[a] == group[b]) == same_group
            }
            draws = [tuple(draw_pairs(blocks, same_class, same_group, 1, rng)[:, 0].tolist()) for _ in range(2000)]
            assert set(draws) == kind
            counts = np.array([draws.count(pair) for pair in sorted(kind)])
            expected = 2000 / len(kind)
            # chi-squared with len(kind) - 1 degrees of freedom: mean plus five standard deviations
            assert ((counts - expected) ** 2 / expected).sum() < len(kind) + 5 * np.sqrt(2 * len(kind))
            everything = draw_pairs(blocks, same_class, same_group, len(kind), rng)
            assert {tuple(pair) for pair in everything.T.tolist()} == kind


def test_same_seed_same_bytes_other_seed_other_graph() -> None:
    first, again, other = (load("synthetic", seed=seed, sensitive=True) for seed in (3, 3, 4))
    assert as_bytes(first) == as_bytes(again)
    assert all(a != b for a, b in zip(as_bytes(first), as_bytes(other), strict=True))


def test_more_edges_than_pairs_are_refused() -> None:
    with refusal("config.pairs", "20"):
        load("synthetic", nodes=6, classes=2, features=4, degree=20 / 3, homophily=1.0)


@pytest.mark.parametrize(
    "params",
    [
        {"nodes": 3},
        {"features": 3},
        {"features": 4, "sensitive": True},
        {"degree": 1e308},
        {"sens_homophily": 0.5},
        {"sens_feature_shift": 1.0},
    ],
)
def test_impossible_parameters_are_refused_by_name(params: dict[str, Any]) -> None:
    key = list(params)[-1] if "features" not in params else "features"
    with pytest.raises(ConfigError, match="sens_" if key.startswith("sens_") else key):
        load("synthetic", **params)
