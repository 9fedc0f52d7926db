"""Folds: labels that a further run does not learn, and what models then say of the examples that had them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from scipy.stats import ortho_group
from sklearn.metrics import roc_auc_score

import fedweave
from fedweave import datasets
from fedweave.core.algorithm import graphs_of
from fedweave.core.graph import TRAIN
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.fold_runs import agreement, rotation
from fedweave.partition import Louvain, Random
from fedweave.partition.folds import Fold, folds_of
from tests import commands
from tests.refusals import check_facts, refusal
from tests.runs.test_embeddings import DOCUMENT
from tests.runs.test_target_files import CUT, nodes_folder, of_numbers

COUNT = 240


def planted(folder: Path) -> Path:
    """Examples with numbers of their own, and labels by the toss of a coin: only memory finds them."""
    draw = np.random.default_rng(0)
    folder.mkdir()
    x, y = draw.standard_normal((COUNT, 60)), draw.integers(0, 2, COUNT)
    names = [f"x{at}" for at in range(x.shape[1])]
    rows = [",".join([f"n{at}", str(y[at]), *(f"{value:.4f}" for value in x[at])]) for at in range(COUNT)]
    (folder / "nodes.csv").write_text("\n".join([",".join(["id", "label", *names]), *rows]) + "\n")
    (folder / "edges.csv").write_text("source,target\nn0,n1\n")
    return folder


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of a model that learns its training examples by heart."""
    root = tmp_path_factory.mktemp("planted")
    document = {
        "rounds": 40,
        "eval_every": 0,
        "data": {"path": str(planted(root / "data"))},
        "partition": {"name": "random", "clients": 2, "train": 0.7, "val": 0.1, "test": 0.2},
        "model": {"name": "mlp", "hidden": 32},
        "algorithm": {"name": "fedavg", "optimizer": "adam", "lr": 0.02, "local_steps": 5},
        "engine": {"threads": 1},
    }
    return fedweave.run(document, out=root / "run")


def auc(table: pa.Table) -> float:
    """Of the column "p_1" of training examples."""
    trained = table.filter(pc.field("split") == "train")
    return float(roc_auc_score(trained["true"].to_numpy(), trained["p_1"].to_numpy()))


def test_a_column_of_training_examples_leaks_without_folds_and_not_with_them(memory: Any) -> None:
    """The AUC of labels that only memory finds: near 1, and by chance .5, four standard errors (.045) around it."""
    assert auc(memory.embeddings()) > 0.97
    table = memory.embeddings(folds=4)
    assert abs(auc(table) - 0.5) < 0.18
    numbers, splits = table["fold"].to_pylist(), table["split"].to_pylist()
    assert {number is None for number, split in zip(numbers, splits, strict=True) if split == "train"} == {False}
    assert {number for number, split in zip(numbers, splits, strict=True) if split != "train"} == {None}
    assert set(numbers) - {None} == {1, 2, 3, 4}


def test_other_examples_are_those_of_the_run(memory: Any) -> None:
    plain, folded = memory.embeddings(), memory.embeddings(folds=4)
    for table in (plain, folded):
        assert len(table) == COUNT
    others = pc.invert(pc.equal(plain["split"], "train"))
    assert folded.drop_columns(["fold"]).filter(others).equals(plain.filter(others))


def test_further_runs_are_used_again_and_continued(memory: Any) -> None:
    """A finished one is not touched, and the table has the same bytes."""
    first = memory.embeddings(folds=4)
    marks = {path: path.stat().st_mtime_ns for path in memory.directory.glob("folds/*/summary.json")}
    assert len(marks) == 4
    assert memory.embeddings(folds=4).equals(first)
    assert marks == {path: path.stat().st_mtime_ns for path in memory.directory.glob("folds/*/summary.json")}


def test_the_command_shows_the_folds_and_how_far_vectors_agree(tmp_path: Path) -> None:
    document = DOCUMENT | {"partition": {"clients": 2}, "model": {"hidden": 4}}
    run = fedweave.run(document, out=tmp_path / "run")
    text = commands.run("embed", run.directory, "--folds", 2)
    check_facts(text, "fold 1 of 2", "fold 2 of 2", "R²")
    commands.refuse(["embed", run.directory, "--folds", 1, "-o", tmp_path / "one.parquet"], "user.folds")
    commands.refuse(["embed", run.directory, "--folds", 2, "--data", tmp_path, "-o", tmp_path / "x.csv"], "user.folds")
    with refusal("user.folds"):
        fedweave.load_run(run.directory / "folds" / "1-of-2").embeddings(folds=2)


def test_folds_are_even_in_each_class_at_each_client() -> None:
    data = datasets.load("synthetic", seed=0, nodes=300, classes=3, features=4)
    partition = Louvain(clients=4).cut(data, 0)
    folds = folds_of(data, partition, 5, seed=3)
    assert set(np.unique(folds)) == {0, 1, 2, 3, 4, 5}
    for part in partition.parts:
        trained = part.examples[part.masks[TRAIN]]
        assert (folds[trained] > 0).all()
        assert (folds[part.examples[~part.masks[TRAIN]]] == 0).all()
        assert np.ptp(np.bincount(folds[trained], minlength=6)[1:]) <= 1
        for label in range(3):
            assert np.ptp(np.bincount(folds[trained[data.y[trained] == label]], minlength=6)[1:]) <= 1
    assert (folds_of(data, partition, 5, seed=3) == folds).all()
    assert (folds_of(data, partition, 5, seed=4) != folds).any()


def test_a_withheld_label_is_with_no_client_and_in_no_split() -> None:
    data = datasets.load("synthetic", seed=0, nodes=300, classes=3, features=4)
    partition = Random(clients=3).cut(data, 0)
    folds = folds_of(data, partition, 3, seed=0)
    withheld, rest = Fold(of=3, number=2).withhold(data, partition, 0)
    assert (withheld.y[folds == 2] == -1).all()
    assert (withheld.y[folds != 2] == data.y[folds != 2]).all()
    for part, before in zip(rest.parts, partition.parts, strict=True):
        stays = folds[part.examples] != 2
        assert (part.nodes == before.nodes).all()
        assert not part.masks[:, ~stays].any()
        assert (part.masks[:, stays] == before.masks[:, stays]).all()


def test_no_graph_has_a_withheld_label() -> None:
    document = DOCUMENT | {"partition": {"name": "random", "clients": 2}, "model": {"hidden": 4}}
    full = build(resolve(document))
    built = build(resolve(document | {"fold": {"of": 3, "number": 1}}))
    folds = folds_of(full.data, full.partition, 3, 0)
    for client, part in zip(built.fed.clients, built.partition.parts, strict=True):
        graph, withheld = graphs_of(built.fed)[client], folds[part.examples] == 1
        assert withheld.sum() >= 3
        assert (graph.y[: len(withheld)].numpy()[withheld] == -1).all()
        assert not graph.masks[:, : len(withheld)].numpy()[:, withheld].any()
        assert graph.masks[TRAIN].sum() == (part.masks[TRAIN]).sum()


def test_numbers_are_scaled_without_the_withheld_ones(tmp_path: Path) -> None:
    """The mean of the training examples that are left, of all clients."""
    data = of_numbers(nodes_folder(tmp_path / "data"), "price", target_normalize="all")
    document = {"data": data, "partition": CUT, "model": {"hidden": 4}, "engine": {"threads": 1}}
    full = build(resolve(document))
    built = build(resolve(document | {"fold": {"of": 3, "number": 1}}))
    folds = folds_of(full.data, full.partition, 3, 0)
    left = [part.examples[part.masks[TRAIN] & (folds[part.examples] != 1)] for part in full.partition.parts]
    y = full.data.y[np.concatenate(left), 0]
    [mean], [deviation], _ = graphs_of(built.fed)["client-0"].scale.numpy()
    np.testing.assert_allclose([mean, deviation], [y.mean(), y.std()])


@pytest.mark.parametrize("fold", [{"of": 3, "number": 4}, {"of": 1}, {"number": 0}])
def test_folds_that_cannot_be(fold: dict[str, int]) -> None:
    with refusal("config.value"):
        resolve(DOCUMENT | {"fold": fold})


def test_a_turned_basis_is_turned_back() -> None:
    """Rows in another basis, by hand: a rotation, a reflection and a shift are undone, noise stays."""
    draw = np.random.default_rng(1)
    wanted = draw.standard_normal((200, 6)) * np.array([3, 2, 1, 1, 1, 1]) + 4
    turn = ortho_group.rvs(6, random_state=2)
    turn[:, 0] *= -1
    rows = (wanted - 1) @ turn
    found = rotation(rows[:100], wanted[:100])
    np.testing.assert_allclose(found.turn @ found.turn.T, np.eye(6), atol=1e-12)
    np.testing.assert_allclose(found.apply(rows[100:]), wanted[100:], atol=0.1)
    before, after = agreement(rows, wanted)
    assert before < 0 < 0.99 < after
    noise = draw.standard_normal((200, 6))
    assert agreement(noise, wanted)[1] < 0.2


def test_few_examples_turn_little() -> None:
    """Without examples nothing moves; two of them decide about the line between them alone."""
    still = rotation(np.zeros((0, 4)), np.zeros((0, 4)))
    rows = np.arange(8.0).reshape(2, 4)
    np.testing.assert_array_equal(still.apply(rows), rows)
    a = np.array([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    b = np.array([[0, 1.0, 0, 0], [0, -1.0, 0, 0]])
    turn = rotation(a, b).turn
    np.testing.assert_allclose(turn[0], [0, 1, 0, 0], atol=0.02)  # the line is turned
    np.testing.assert_allclose(turn[2:, 2:], np.eye(2), atol=1e-9)  # the rest stays


def test_a_run_that_is_replaced_takes_its_fold_runs_along(tmp_path: Path) -> None:
    document = DOCUMENT | {"partition": {"clients": 2}, "model": {"hidden": 4}}
    run = fedweave.run(document, out=tmp_path / "run")
    run.embeddings(folds=2)
    fedweave.run(document | {"seed": 1}, out=tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "folds").exists()
