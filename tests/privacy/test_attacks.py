"""Attacks on noisy codes and links: what they find out, what the defense stops and what it does not."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedweave.algorithms import ALGORITHMS
from fedweave.cli import app
from fedweave.cli.contract import attack_results
from fedweave.core import random
from fedweave.errors import UserError
from fedweave.experiment.config import read, resolve
from fedweave.privacy.attacks import majority_accuracy, reidentification_rate, repeated_query_accuracy
from fedweave.privacy.mechanisms import flip_probability
from tests.refusals import refusal

ROOT = Path(__file__).parents[2]
TABLE_5 = {1: 0.727, 5: 0.875, 10: 0.934, 20: 0.986, 30: 0.996}


@pytest.mark.parametrize(("queries", "expected"), [(1, 0.731), (5, 0.876), (10, 0.935), (20, 0.985), (30, 0.996)])
def test_table_5_is_a_majority_vote(queries: int, expected: float) -> None:
    flip = flip_probability(1.0)
    assert majority_accuracy(flip, queries) == pytest.approx(expected, abs=0.0006)
    assert majority_accuracy(flip, queries) == pytest.approx(TABLE_5[queries], abs=0.005)
    half = torch.arange(40_000) < 20_000
    assert repeated_query_accuracy(half, 1.0, queries, random.key(queries), False) == pytest.approx(expected, abs=0.012)


def test_majority_by_hand() -> None:
    assert majority_accuracy(0.25, 1) == pytest.approx(0.75)
    assert majority_accuracy(0.25, 2) == pytest.approx(0.75**2 + 0.75 * 0.25)
    assert majority_accuracy(0.25, 3) == pytest.approx(0.75**3 + 3 * 0.75**2 * 0.25)
    assert majority_accuracy(0.0, 4) == 1


def test_asking_again_is_of_no_use_against_permanent_noise() -> None:
    half = torch.arange(10_000) < 5_000
    shares = [repeated_query_accuracy(half, 1.0, queries, random.key(0), True) for queries in TABLE_5]
    assert len(set(shares)) == 1
    assert shares[0] == pytest.approx(1 - flip_probability(1.0), abs=0.015)


def test_many_holders_undo_permanent_noise() -> None:
    assert majority_accuracy(flip_probability(1.0), 27) > 0.99


def test_the_nearest_clean_code_by_hand() -> None:
    clean = torch.tensor([[0, 0, 0], [1, 1, 1], [1, 1, 1]])
    assert reidentification_rate(torch.tensor([[0, 0, 1]]), clean, torch.tensor([0])) == 1
    assert reidentification_rate(torch.tensor([[0, 1, 1]]), clean, torch.tensor([0])) == 0
    assert reidentification_rate(torch.tensor([[0, 1, 1]]), clean, torch.tensor([2])) == 0.5


def test_a_code_that_can_be_matched_names_its_node() -> None:
    rng, flip = np.random.default_rng(0), flip_probability(3.0)
    clean = torch.from_numpy(rng.integers(0, 2, (2000, 100)))
    noisy = clean ^ torch.from_numpy((rng.random((2000, 100)) < flip).astype(np.int64))
    assert reidentification_rate(noisy, clean, torch.arange(2000)) > 0.99
    weak = clean ^ torch.from_numpy((rng.random((2000, 100)) < flip_probability(0.2)).astype(np.int64))
    assert reidentification_rate(weak, clean, torch.arange(2000)) < 0.2


def experiment(**algorithm: Any) -> Any:
    return resolve(
        {
            "data": {"name": "digits"},
            "partition": {"name": "overlap", "clients": 6, "overlap": 0.1},
            "algorithm": {"name": "fairgfl", "encoder": "random", "code_size": 40, **algorithm},
        }
    )


def test_an_experiment_is_attacked_as_a_whole() -> None:
    rows = attack_results(experiment())
    asked = [row for row in rows if row[0] == "links, asked again"]
    assert [row[2] for row in asked] == pytest.approx([0.731, 0.876, 0.935, 0.985, 0.996], abs=0.015)
    assert len({row[3] for row in asked}) == 1
    [code] = [row for row in rows if row[0] == "node of one code"]
    assert 0.5 < code[3] <= code[2]
    assert not [row for row in attack_results(experiment(alpha=1.0)) if "links" in row[0]]
    [weak] = [row for row in attack_results(experiment(alpha=1.0, epsilon_a=0.2)) if row[0] == "node of one code"]
    assert weak[3] < 0.2


def test_experiments_that_send_no_codes_are_refused() -> None:
    with refusal("user.no-attack", "fairgfl"):
        attack_results(experiment(estimator="oracle"))
    with pytest.raises(UserError, match="'fedavg' send nothing"):
        attack_results(resolve({"data": {"name": "digits"}, "algorithm": {"name": "fedavg"}}))


def test_what_the_defense_does_not_stop_is_said() -> None:
    told = " ".join(ALGORITHMS["fairgfl"].remaining({"epsilon_b": 1.0, "lr": 0.1}))
    assert re.search("73.1% of 1, 87.6% of 5, 99.5% of 27 holders", told)  # e^(h ε / 2) / (1 + e^(h ε / 2)) by hand
    assert ALGORITHMS["fairgfl"].remaining({"estimator": "none"}) == ()
    assert ALGORITHMS["cgsv"].remaining({}) == ()


@pytest.mark.slow
def test_one_code_names_the_node_of_cora(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "FEDWEAVE_DATA", str(data_root))
    settings = ["algorithm.encoder_rounds=20", "algorithm.alpha=1.0"]
    config, _ = read(ROOT / "experiments/fairgfl-cora.toml", settings, None)
    [code] = attack_results(config)
    assert code[3] > 0.985


def test_the_command_prints_what_is_attacked(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(
        '[data]\nname = "digits"\n[partition]\nname = "overlap"\nclients = 6\n'
        '[algorithm]\nname = "fairgfl"\nencoder = "random"\n'
    )
    result = CliRunner().invoke(app, ["attack", str(file), "--set", "algorithm.code_size=16"])
    assert result.exit_code == 0, result.output
    for word in ("asked again", "27 clients", "node of one code", "99.6%"):
        assert word in result.output
