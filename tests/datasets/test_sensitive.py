"""The sensitive attribute among the features: found however it is coded, refused in own tables, dropped where it is
published so, kept where asked for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from fedweave import run
from fedweave.datasets import Dataset, from_frames, from_graph_frames, from_pyg, load, npz
from fedweave.datasets.leakage import group_columns
from fedweave.errors import DataError
from tests.refusals import refusal

SENS = np.array([0, 1, 1, 0, -1, 1])
EDGES = "source,target\n0,1\n1,2\n"


@pytest.mark.parametrize(
    "column",
    [[0, 1, 1, 0, 5, 1], [1, 0, 0, 1, 0, 0], [1, 2, 2, 1, 9, 2], [-0.3, 0.5, 0.5, -0.3, 0.0, 0.5]],
    ids=["sens", "its complement", "counted from 1", "scaled"],
)
def test_a_column_that_numbers_the_groups_is_found(column: list[float]) -> None:
    x = np.stack([np.arange(6.0), column], 1)
    assert group_columns(x, SENS).tolist() == [1]


@pytest.mark.parametrize("column", [[0, 1, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0], [0, 1, 2, 0, 0, 1], [3, 1, 4, 1, 5, 9]])
def test_other_columns_are_not(column: list[float]) -> None:
    assert group_columns(np.array(column, float)[:, None], SENS).tolist() == []


def test_more_than_two_groups_and_groups_of_one() -> None:
    three = np.array([0, 0, 1, 1, 2, 2])
    x = np.array([[2, 2, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1]], float).T
    assert group_columns(x, three).tolist() == [0]  # the other does not tell 1 from 2
    assert group_columns(np.array([[0.0], [1], [1]]), np.array([0, 1, 1])).tolist() == []
    assert group_columns(np.zeros((3, 1)), np.array([1, 1, 1])).tolist() == []


def tables(folder: Path, header: str, columns: list[list[float]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rows = zip(range(6), [0, 1, 0, 1, 0, 1], ["" if s < 0 else s for s in SENS], *columns, strict=True)
    lines = "".join(",".join(map(str, row)) + "\n" for row in rows)
    (folder / "nodes.csv").write_text(f"id,label,sens,{header}\n{lines}")
    (folder / "edges.csv").write_text(EDGES)
    return folder


def test_own_tables_are_refused_unless_asked_for(tmp_path: Path) -> None:
    folder = tables(tmp_path, "age,female", [[3, 1, 4, 1, 5, 9], [1, 0, 0, 1, 0, 0]])
    with refusal("data.sens-repeated", "nodes.csv:", "'female'"):
        load("folder", str(folder))
    asked = load("folder", str(folder), sens_feature=True)
    assert asked.features == 2
    np.testing.assert_array_equal(asked.sensitive, SENS)


def test_no_door_takes_the_attribute_for_a_feature_unless_asked_to(tmp_path: Path) -> None:
    """As tables do: an .npz in a simulation and at a site, PyTorch Geometric's data, and small graphs."""
    y, x = np.array([0, 1, 0, 1, 0, 1]), np.stack([[3, 1, 4, 1, 5, 9], 1 - SENS], 1).astype(np.float32)
    edges = np.array([[0, 1], [1, 0]])
    whole = Dataset("mine", sp.csr_matrix(x), edges, y, 2, SENS, np.eye(3, 6, dtype=bool))
    small = replace(whole, edges=edges[:, :0], graph_of=np.arange(6), public=None)
    npz.write(whole, tmp_path / "mine.npz")
    npz.write(small, tmp_path / "small.npz")
    parts = {key: torch.tensor(value) for key, value in {"x": x, "y": y, "edge_index": edges, "sens": SENS}.items()}
    frames = (
        pd.DataFrame({"id": range(6), "label": y, "sens": [s if s >= 0 else None for s in SENS]}),
        pd.DataFrame({"id": range(6), "graph": range(6), "age": x[:, 0], "female": x[:, 1]}),
        pd.DataFrame({"source": [""], "target": [""]})[:0],
    )
    doors: dict[str, Callable[..., Dataset]] = {
        "1": lambda **asked: load("npz", str(tmp_path / "mine.npz"), **asked),
        "1 ": lambda **asked: load("npz", str(tmp_path / "small.npz"), **asked),
        "1  ": lambda **asked: from_pyg(Data(**parts), **asked),
        "'female'": lambda **asked: from_graph_frames(*frames, **asked),
    }
    for column, door in doors.items():
        with pytest.raises(
            DataError, match=rf"the feature column {column.strip()} equals the sensitive attribute \(sens\)\. Remove it"
        ):
            door()
        assert door(sens_feature=True).features == 2


def test_one_party_may_not_hold_what_another_calls_sensitive(tmp_path: Path) -> None:
    tables(tmp_path / "bank", "age", [[3, 1, 4, 1, 5, 9]])
    clinic = tmp_path / "clinic"
    clinic.mkdir()
    (clinic / "nodes.csv").write_text("id,sex\n" + "".join(f"{i},{2 * s}\n" for i, s in enumerate(abs(SENS))))
    (clinic / "edges.csv").write_text(EDGES)
    with refusal("data.sens-repeated", "nodes.csv", "'sex'"):
        load("parties", str(tmp_path))
    assert load("parties", str(tmp_path), sens_feature=True).features == 2


@pytest.mark.parametrize(("name", "column"), [("german", 0), ("bail", 0), ("credit", 1)])
def test_published_sets_keep_the_column_only_where_asked_for(name: str, column: int, data_root: Path) -> None:
    plain, asked = (load(name, str(data_root), sens_feature=keep, normalize="none") for keep in (False, True))
    assert plain.sensitive is not None
    assert group_columns(np.asarray(plain.x), plain.sensitive).tolist() == []
    assert group_columns(np.asarray(asked.x), plain.sensitive).tolist() == [column]
    np.testing.assert_array_equal(np.delete(asked.x, column, 1), plain.x)
    standard = np.asarray(load(name, str(data_root), normalize="standard").x)
    np.testing.assert_allclose(standard.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(standard.std(0), 1, atol=1e-3)


def test_nba_has_no_such_column(data_root: Path) -> None:
    data = npz.read(data_root / "nba" / "nba.npz", "nba")
    assert data.sensitive is not None
    assert group_columns(data.x.toarray(), data.sensitive).tolist() == []
    with refusal("config.unknown-key", "sens_feature"):
        load("nba", str(data_root), sens_feature=True)


def favoring(cells: list[object], favorable: str | int, **options: object) -> Dataset:
    nodes = pd.DataFrame({"id": range(4), "label": cells, "sens": [0, 1, 0, 1], "f": [0.1, 0.2, 0.4, 0.8]})
    edges = pd.DataFrame({"source": [0, 1], "target": [1, 2]})
    return from_frames(nodes, edges, favorable=favorable, **options)


@pytest.mark.parametrize(
    ("labels", "favorable", "names", "y"),
    [
        (["no", "yes", "no", None], "yes", ("no", "yes"), [0, 1, 0, -1]),
        (["no", "yes", "no", None], "no", ("yes", "no"), [1, 0, 1, -1]),
        ([0, 1, 0, None], 1, (), [0, 1, 0, -1]),
        ([0, 1, 0, None], 0, ("1", "0"), [1, 0, 1, -1]),
        (["0", "1.0", "1", ""], "0", ("1", "0"), [1, 0, 0, -1]),
        ([-1, 1, 1, -1], -1, ("1", "-1"), [1, 0, 0, 1]),
    ],
)
def test_the_favorable_class_is_the_second_of_two(
    labels: list[object], favorable: str | int, names: tuple[str, ...], y: list[int]
) -> None:
    made = favoring(labels, favorable)
    assert (made.labels, made.y.tolist(), made.classes) == (names, y, 2)


def test_a_favorable_class_that_is_not_one_of_two_is_refused() -> None:
    with refusal("data.no-class", "'maybe'", "no, yes"):
        favoring(["no", "yes", "no", "no"], "maybe")
    with refusal("data.no-class", "'a'", "a, b, c"):
        favoring(["a", "b", "c", "a"], "a")
    with refusal("config.conflict", "'no'", "['no', 'yes']"):
        favoring(["no", "yes", "no", "no"], "no", labels=("no", "yes"))
    with refusal("config.no-class", "'2'", "0 to 1"):
        favoring([0, 1, 1, 0], 2, classes=2)
    assert favoring(["no", "yes", "no", "no"], "no", labels=("yes", "no")).y.tolist() == [1, 0, 1, 1]


def test_gaps_are_those_of_the_classes_in_the_same_order(tmp_path: Path) -> None:
    """`favorable` and `labels` are two ways to say one thing; the other order gives other gaps."""
    rows = [f"{at},{'no' if at % 3 else 'yes'},{at % 2},{at * 7 % 5}\n" for at in range(40)]
    (tmp_path / "nodes.csv").write_text("id,label,sens,f\n" + "".join(rows))
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"{at},{at + 1}\n" for at in range(39)))
    about: dict[str, Any] = {"rounds": 1, "partition": {"name": "random", "clients": 2}, "model": {"hidden": 3}}

    def gaps(**settings: object) -> dict[str, float]:
        done = run(about | {"data": {"path": str(tmp_path), **settings}}, out=tmp_path / repr(settings))
        return {name: one for name, one in done.summary["metrics"].items() if name.startswith("groups/global/")}

    asked = gaps(favorable="no")
    assert asked == gaps(labels=["yes", "no"]) != gaps(labels=["no", "yes"]) == gaps()
    assert asked["groups/global/favorable"] > 0.5  # two thirds are "no"
