"""Training that begins from an earlier run, such as last month's."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedweave
from fedweave.accounts.compliance import disclose
from fedweave.algorithms import ALGORITHMS
from fedweave.core.tree import Tree, leaves
from fedweave.datasets import Dataset
from fedweave.experiment.config import dumps, resolve
from fedweave.experiment.runs.files import CHECKPOINT
from fedweave.experiment.runs.reading import read_run
from fedweave.experiment.runs.warm import Earlier, begin, earlier_ledgers
from fedweave.models import GCN
from fedweave.partition import Random
from tests import commands
from tests.refusals import check_facts, refusal

NOISED = {"name": "dp", "clip": 4.0, "epsilon": 8.0, "delta": 1e-5, "target_rounds": 2}


def document(algorithm: dict[str, Any], **general: Any) -> dict[str, Any]:
    return {
        "rounds": 2,
        "data": {"name": "synthetic", "nodes": 90, "classes": 2, "features": 6},
        "partition": {"name": "random", "clients": 3},
        "model": {"hidden": 4},
        "algorithm": {"local_steps": 1, **algorithm},
        **general,
    }


def weights(state: Tree) -> dict[str, torch.Tensor]:
    return dict(leaves(state.get("w") or state["own"]))


def begun(directory: Path, data: Dataset, algorithm: str = "fedavg", clients: int = 3, **model: Any) -> Any:
    """The state before the first round of a run that begins from `directory`, and what was noted."""
    built = GCN(**{"hidden": 4} | model).build(data.features, data.classes)
    made = ALGORITHMS[algorithm](built)
    fed = fedweave.federation(data, Random(clients).cut(data, 0), made)
    found = begin(fed, made, data, directory)
    fed.begin(0)
    return made.init(fed), found.notes


def trained(directory: Path, data: Dataset, algorithm: str = "fedavg") -> dict[str, torch.Tensor]:
    """The weights of the chosen round of a run in `directory`."""
    made = ALGORITHMS[algorithm](GCN(hidden=4).build(data.features, data.classes))
    fed = fedweave.federation(data, Random(3).cut(data, 0), made)
    rounds = list(fedweave.train(made, fed, 2, out=directory))
    return weights(rounds[int(rounds[-1].summary["best_val/round"]) - 1].state)


def named(columns: str, labels: tuple[str, ...] = ("good", "bad")) -> Dataset:
    data = fedweave.datasets.load("synthetic", nodes=90, classes=len(labels), features=6)
    wide = np.concatenate([data.x, data.x], 1)[:, : len(columns)]
    return replace(data, x=np.ascontiguousarray(wide), columns=tuple(columns), labels=labels)


@pytest.mark.often("fedavg", "fedpub")
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "scaffold", "fedadam", "fedpub"])
def test_training_begins_where_the_earlier_run_ended(algorithm: str, tmp_path: Path) -> None:
    data = named("abcdef")
    before = trained(tmp_path / "feb", data, algorithm)
    state, notes = begun(tmp_path / "feb", data, algorithm)
    now = weights(state)
    assert notes == ()
    assert before.keys() == now.keys()
    assert all(torch.equal(before[path], now[path]) for path in before)


def test_columns_are_found_by_name_and_new_ones_begin_fresh(tmp_path: Path) -> None:
    before = trained(tmp_path / "feb", named("abcdef"))
    net = ALGORITHMS["fedavg"](GCN(hidden=4).build(7, 2))
    fresh = weights(net.init(fedweave.federation(named("abcdefg"), Random(3).cut(named("abcdefg"), 0), net)))
    state, notes = begun(tmp_path / "feb", named("cabdexy"))
    now = weights(state)
    assert torch.equal(now["0/weight"][:5], before["0/weight"][[2, 0, 1, 3, 4]])
    assert torch.equal(now["0/weight"][5:], fresh["0/weight"][5:])
    assert all(torch.equal(now[path], before[path]) for path in before if path != "0/weight")
    check_facts(notes[0], "x, y")
    assert notes[1].endswith("gone: f")


def test_classes_are_found_by_name(tmp_path: Path) -> None:
    before = trained(tmp_path / "feb", named("abcdef"))
    state, notes = begun(tmp_path / "feb", named("abcdef", ("bad", "good", "unsure")))
    now = weights(state)
    for path in ("1/weight", "1/bias"):
        assert torch.equal(now[path][..., :2], before[path][..., [1, 0]])
    assert torch.equal(now["0/weight"], before["0/weight"])
    assert notes[0].endswith(": unsure")


def test_new_members_with_weights_of_their_own_begin_from_the_mean(tmp_path: Path) -> None:
    data = named("abcdef")
    before = trained(tmp_path / "feb", data, "fedpub")
    state, notes = begun(tmp_path / "feb", data, "fedpub", clients=4)
    now = weights(state)
    for path, own in before.items():
        assert torch.equal(now[path][:3], own)
        assert torch.allclose(now[path][3], own.mean(0))
    check_facts(notes[0], "client-3")


@pytest.mark.parametrize(
    ("code", "columns", "labels", "algorithm", "model"),
    [
        ("init.features", "", ("good", "bad"), "fedavg", {}),
        ("init.features", "uvwxyz", ("good", "bad"), "fedavg", {}),
        ("init.classes", "abcdef", ("a", "b", "c"), "fedavg", {}),
        ("init.model", "abcdef", ("good", "bad"), "fedavg", {"hidden": 5}),
        ("init.model", "abcdef", ("good", "bad"), "fedavg", {"layers": 3}),
        ("init.algorithm", "abcdef", ("good", "bad"), "local", {}),
    ],
)
def test_what_cannot_be_begun_from_is_named(
    code: str, columns: str, labels: tuple[str, ...], algorithm: str, model: dict[str, Any], tmp_path: Path
) -> None:
    trained(tmp_path / "feb", named("abcdef"))
    data = named(columns, labels) if columns else replace(named("abcdefg"), columns=())
    with refusal(code):
        begun(tmp_path / "feb", data, algorithm, **model)


def test_a_run_without_weights_at_its_server_and_no_run_are_refused(tmp_path: Path) -> None:
    fedweave.run(document({"name": "local"}), tmp_path / "local")
    for directory, code in ((tmp_path / "local", "init.algorithm"), (tmp_path, "init.run")):
        with refusal(code):
            fedweave.run(document({"name": "fedavg"}, init_from=str(directory)), tmp_path / "out")


def test_what_earlier_months_cost_stays_counted(tmp_path: Path) -> None:
    algorithm, before = {"name": "fedavg", "parts": ["uniform", NOISED], "optimizer_state": "fresh"}, None
    spent = []
    for month in ("feb", "mar", "apr"):
        earlier = {} if before is None else {"init_from": str(before)}
        run = fedweave.run(document(algorithm, **earlier), tmp_path / month)
        total = run.summary.get("privacy_total", run.summary["privacy"])
        spent.append((run.summary["privacy"][0]["epsilon"], total[0]["epsilon"], total[0]["messages"]))
        before = tmp_path / month
    own, total, messages = zip(*spent, strict=True)
    assert own == pytest.approx([8.0] * 3)
    assert list(messages) == [2, 4, 6]
    assert 8 < total[1] < 16  # Gaussian noise adds up by mu squared
    assert total[1] < total[2] < 24
    assert len(earlier_ledgers(tmp_path / "apr")) == 2
    sentences = disclose(read_run(tmp_path / "apr")).sentences
    assert any("began from" in said and f"{total[2]:.4g}" in said for said in sentences)


def test_the_configuration_says_where_a_run_began_and_it_goes_on_without_that(tmp_path: Path) -> None:
    feb, mar = tmp_path / "feb", tmp_path / "mar"
    fedweave.run(document({"name": "fedavg"}), feb)
    wanted = document({"name": "fedavg"}, init_from=str(feb))
    run = fedweave.run(wanted, mar)
    assert resolve(wanted).plain()["init_from"] == run.summary["init_from"] == str(feb)
    assert str(feb) in run.summary["note"]
    assert "init_from" not in resolve(document({"name": "fedavg"})).plain()
    feb.rename(tmp_path / "elsewhere")
    assert fedweave.run({**wanted, "rounds": 3}, mar, resume=True).summary["rounds"] == 3


def test_check_finds_what_cannot_be_begun_from(tmp_path: Path) -> None:
    fedweave.run(document({"name": "fedavg"}), tmp_path / "feb")
    wide = document({"name": "fedavg"}, init_from=str(tmp_path / "feb"), model={"hidden": 5})
    (tmp_path / "mar.toml").write_text(dumps(wide))
    said = commands.run("check", tmp_path / "mar.toml", code=2)
    check_facts(said, "model")


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    """Its weights fit, and its digest is right: it is of the same experiment with another seed."""
    for name in ("one", "two"):
        trained(tmp_path / name, named("ab"))
    shutil.copyfile(tmp_path / "two" / CHECKPOINT, tmp_path / "one" / CHECKPOINT)
    with refusal("run.other-checkpoint"):
        Earlier.read(tmp_path / "one")
    commands.run("report", tmp_path / "one", code=2)
    assert not (tmp_path / "one/report.html").exists()
    assert Earlier.read(tmp_path / "two").weights
    commands.run("report", tmp_path / "two")
