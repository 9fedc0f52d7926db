"""The models of the round that was best on validation examples: kept, used, exported, and the same after a resume."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.apply.run_predictions import predictions
from fedweave.core.tree import leaves
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT
from fedweave.experiment.runs.reading import read_run
from fedweave.experiment.runs.run import run
from fedweave.export.card import card
from fedweave.export.source import source
from fedweave.python.training import Silent
from tests.refusals import check_facts, refusal


def config(name: str = "fedavg", rounds: int = 6, **settings: Any) -> Any:
    data = {"name": "synthetic", "nodes": 160, "classes": 2, "features": 6}
    algorithm = {"name": name, "lr": 0.1} | settings
    more = {"engine": {"name": "simulation", "checkpoint_seconds": 0.0}, "evaluation": {"threshold": "f1"}}
    return resolve(
        {"seed": 1, "rounds": rounds, "data": data, "model": {"name": "gcn", "hidden": 4}, "algorithm": algorithm}
        | {"partition": {"name": "dirichlet", "clients": 3}}
        | more
    )


def means(directory: Path, when: Any) -> float:
    """The mean over members of their test accuracies by the predictions."""
    table = predictions(directory, when=when).to_pandas()
    test = table[(table["split"] == "test") & (table["client"] != "global")]
    return float((test["predicted"] == test["true"]).groupby(test["client"]).mean().mean())


@pytest.mark.often("fedavg-3")
@pytest.mark.parametrize(("name", "best"), [("fedavg", 3), ("ditto", 2)])
def test_predictions_are_of_the_round_that_is_asked_for_also_after_a_resume(
    tmp_path: Path, name: str, best: int
) -> None:
    """What `best_val/…` and the last evaluation say of test examples, of joint and of personal models."""
    told = run(config(name), tmp_path / "whole", Silent())["metrics"]
    run(config(name, 4), tmp_path / "halved", Silent())
    run(config(name), tmp_path / "halved", Silent(), resume=True)
    assert told["best_val/round"] == best
    for directory in (tmp_path / "whole", tmp_path / "halved"):
        assert means(directory, "best") == pytest.approx(told["best_val/local/accuracy"], abs=1e-12)
        assert means(directory, "last") == pytest.approx(told["local/accuracy"], abs=1e-12)
    assert told["best_val/local/accuracy"] != told["local/accuracy"]
    one, other = (Checkpoint.load(tmp_path / own / CHECKPOINT).best for own in ("whole", "halved"))
    assert one["round"] == best
    assert bool(one["fed"]) == (name == "ditto")  # a joint model needs no client's state
    for path, leaf in leaves(one):
        assert np.array_equal(leaf, dict(leaves(other))[path])


def test_a_round_that_is_the_last_is_kept_once_and_exports_say_which_round(tmp_path: Path) -> None:
    last = tmp_path / "last"
    told = run(config(rounds=3), last, Silent())["metrics"]
    assert told["best_val/round"] == 3
    assert not Checkpoint.load(last / CHECKPOINT).best
    torch.testing.assert_close(source(last, None, None, when="best").weights, source(last, None, None).weights)
    directory = tmp_path / "whole"
    told = run(config(), directory, Silent())["metrics"]
    found = source(directory, None, None, when="best")
    assert found.flagging.threshold == told["best_val/pooled/threshold"] != told["pooled/threshold"]
    words = card(read_run(directory), found, None, "")
    check_facts(words, "round 3, of 6", f"{told['best_val/pooled/brier']:.4f}")
    check_facts(card(read_run(directory), source(directory, None, None), None, ""), "6 rounds")


def test_without_validation_examples_or_its_models_there_is_no_best_round(tmp_path: Path) -> None:
    whole = config(rounds=2).plain()
    whole["partition"] |= {"train": 0.5, "val": 0.0, "test": 0.5}
    run(resolve(whole), tmp_path / "none", Silent())
    with refusal("user", "round = 'best'"):
        predictions(tmp_path / "none", when="best")
    with refusal("user", "round = 'best'"):
        Checkpoint(round=4, summary={"best_val/round": 2.0}).at("best")
    assert len(predictions(tmp_path / "none")) == 160
