"""Who shares nodes with whom on Cora, told from noisy codes: 40 clients, a fraction of a tenth in common on average."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from fedweave.experiment.build import build
from fedweave.experiment.config import read
from tests.contract.federations import state_after

EXPERIMENT = Path(__file__).parents[2] / "experiments/fairgfl-cora.toml"
CHEAP = ["model.hidden=8", "algorithm.local_steps=1"]  # what is estimated does not depend on the model


def estimated(monkeypatch: pytest.MonkeyPatch, data_root: Path, rounds: int, *settings: str) -> dict[str, Any]:
    """N as it is and as it was estimated after some rounds, and the rates of the codes."""
    monkeypatch.setenv("FEDWEAVE_DATA", str(data_root))
    built = build(read(EXPERIMENT, [*CHEAP, *settings], None)[0])
    state = state_after(built.algorithm, built.fed, rounds)
    part = state["parts"]["OverlapWeights"]
    return {"true": built.fed.pairs["nodes"].numpy(), "found": part["nodes"].numpy(), "rates": part["rates"]}


def auc(found: np.ndarray, true: np.ndarray) -> float:
    """The probability that of two pairs of clients the one that overlaps has the larger estimate; a tie counts half."""
    apart = ~np.eye(len(true), dtype=bool)
    rank, there = rankdata(found[apart]), true[apart] > 0
    return float((rank[there].mean() - (there.sum() + 1) / 2) / (~there).sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    "encoder",
    ["autoencoder", pytest.param("pca", marks=pytest.mark.slow), pytest.param("random", marks=pytest.mark.slow)],
)
def test_binary_codes_tell_overlapping_clients_from_others(
    monkeypatch: pytest.MonkeyPatch, data_root: Path, encoder: str
) -> None:
    settings = f'algorithm.encoder="{encoder}"', "algorithm.encoder_rounds=100"
    known = estimated(monkeypatch, data_root, 20, *settings)
    assert known["rates"]["true"] > 0.98
    assert known["rates"]["false"] < 1e-4
    assert auc(known["found"], known["true"]) > 0.97
    assert spearmanr(known["found"].sum(1), known["true"].sum(1)).statistic > 0.9
    for group in (slice(0, 13), slice(13, 27), slice(27, 40)):  # none, low, high: the level is right, too
        mean = known["true"][group].sum(1).mean()
        assert known["found"][group].sum(1).mean() == pytest.approx(mean, rel=0.1, abs=0.3)


@pytest.mark.slow
def test_min_max_codes_do_not(monkeypatch: pytest.MonkeyPatch, data_root: Path) -> None:
    """The paper's literal encoding: its codes hardly tell nodes apart, and its counts no clients."""
    settings = 'algorithm.code="minmax"', "algorithm.encoder_rounds=100", "algorithm.alpha=1.0"
    known = estimated(monkeypatch, data_root, 4, *settings)
    assert known["rates"]["true"] - known["rates"]["false"] < 0.5
    assert auc(known["found"], known["true"]) < 0.75
