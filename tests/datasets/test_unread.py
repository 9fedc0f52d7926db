"""What came with the data and is not used is told: files beside those that are read, and a split."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from typer.testing import CliRunner

import fedweave
from fedweave.cli import app
from fedweave.datasets import Dataset, load, npz
from fedweave.datasets.lookup import unread
from fedweave.partition import Dirichlet, EgoNetworks, LabelSkew, Overlap, Random, Vertical, notes_on_unused

CASES = Path(__file__).parents[1] / "cases"


def test_files_that_look_like_data_and_were_not_read(tmp_path: Path) -> None:
    for name in ("a.csv", "b.txt.xz", "README.txt", ".c.csv", "d.toml", "LICENSE.txt", "in/e.parquet", "out/f.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "g.csv").mkdir()
    assert unread(tmp_path, [tmp_path / "a.csv"]) == (f"in {tmp_path}, b.txt.xz is not read",)
    [said] = unread(tmp_path, [], tmp_path / "in")
    assert said == f"in {tmp_path}, a.csv, b.txt.xz, in/e.parquet are not read"
    assert unread(tmp_path, [tmp_path / "b.txt.xz"], pattern="b*") == ()
    for number in range(9):
        (tmp_path / f"a{number}.csv").touch()
    assert unread(tmp_path, [])[0].endswith("a3.csv and 6 more are not read")


TABLES = {"graphs": "id,label\n1,0\n2,1\n", "nodes": "id,graph,label,f\n1,1,0,3\n2,2,1,4\n", "edges": "source,target\n"}


@pytest.mark.parametrize(
    ("kind", "folders", "stems"),
    [
        ("folder", ["."], ("nodes", "edges")),
        ("graphs", ["."], ("graphs", "nodes", "edges")),
        ("members", ["north", "south"], ("nodes", "edges")),
        ("parties", ["north", "south"], ("nodes", "edges")),
    ],
)
def test_every_kind_of_tables_tells_files_beside_them(
    tmp_path: Path, kind: str, folders: list[str], stems: tuple[str, ...]
) -> None:
    for own in folders:
        (tmp_path / own).mkdir(exist_ok=True)
        for stem in stems:
            (tmp_path / own / f"{stem}.csv").write_text(TABLES[stem])
    assert load(kind, str(tmp_path)).notes == ()
    (tmp_path / "targets.csv").touch()
    (tmp_path / folders[-1] / "more.csv").touch()
    [said] = load(kind, str(tmp_path)).notes
    assert "targets.csv" in said
    assert str(Path(folders[-1], "more.csv")) in said


def masked(rows: int = 60) -> Dataset:
    """Nodes of which the first half trains and the rest tests, as PyTorch Geometric holds them."""
    rng = np.random.default_rng(0)
    ends = torch.from_numpy(rng.integers(0, rows, (2, 3 * rows)))
    train = torch.arange(rows) < rows // 2
    x = torch.from_numpy(rng.standard_normal((rows, 4)))
    return fedweave.datasets.from_pyg(
        Data(
            x=x,
            edge_index=torch.cat([ends, ends.flip(0)], 1),
            y=torch.arange(rows) % 2,
            train_mask=train,
            test_mask=~train,
        )
    )


def said(partition: object, data: Dataset) -> str:
    return " ".join(notes_on_unused(partition, data, partition.cut(data, 0)))  # type: ignore[attr-defined]


def test_a_split_of_any_source_that_is_not_used_is_told(tmp_path: Path, data_root: Path) -> None:
    data = masked()
    npz.write(data, tmp_path / "mine.npz")
    for own in (data, load("npz", str(tmp_path / "mine.npz"))):
        assert "own split (30 train, 0 val, 30 test) is not used" in said(Random(clients=2), own)
        assert "use_dataset_split = true takes it" in said(Dirichlet(clients=2), own)
        assert "louvain" in said(Overlap(clients=6), own)
    assert said(Random(clients=2), replace(data, public=None)) == ""
    if (data_root / "cora").is_dir():
        assert "(140 train, 500 val, 1,000 test) is not used" in said(Random(clients=2), load("cora", str(data_root)))


@pytest.mark.parametrize(
    "partition",
    [
        Random(clients=2, use_dataset_split=True),
        Vertical(clients=2, use_dataset_split=True, train_on_rest=True),
        EgoNetworks(hops=1, clients=2, use_dataset_split=True),
        LabelSkew(clients=2, majors=1, use_dataset_split=True),
    ],
)
def test_a_split_that_is_used_is_seen_from_the_cut_alone(partition: object) -> None:
    data = masked()
    data = replace(data, public=data.public & (np.arange(60) % 3 > 0))  # a third is in no split
    assert said(partition, data) == ""
    assert notes_on_unused(None, data, partition.cut(data, 0)) == []  # type: ignore[attr-defined]


def test_arrays_that_are_not_read_are_noted_until_ignore_names_them() -> None:
    plain = {"x": torch.eye(3), "y": torch.tensor([0, 1, 1]), "edge_index": torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])}
    data = Data(pos=torch.rand(3, 2), num_nodes=3, place="here", **plain)
    [said] = fedweave.datasets.from_pyg(data).notes
    assert said.startswith("of pyg, pos is not read")
    assert (
        fedweave.datasets.from_pyg(data, ignore=["pos"]).notes == fedweave.datasets.from_pyg(Data(**plain)).notes == ()
    )


def fedweave_in(case: str, *words: str) -> tuple[int, str]:
    folder = CASES / case
    result = CliRunner().invoke(
        app, [words[0], str(folder / "e.toml"), *words[1:], "--set", f"data.path={folder}/data"]
    )
    assert "Traceback" not in result.output
    return result.exit_code, " ".join(result.output.split())


def test_attributes_of_a_collection_are_told_and_used_by_the_setting(tmp_path: Path) -> None:
    told = "data/AT_node_attributes.txt is not used; data.attributes = true"
    assert told in fedweave_in("tu-attributes", "check")[1]
    without = fedweave_in("tu-attributes", "run", "--out", str(tmp_path / "a"))[1]
    assert told in without
    assert "accuracy global 0.7500" in without
    used = fedweave_in("tu-attributes", "run", "--out", str(tmp_path / "b"), "--set", "data.attributes=true")[1]
    assert "note: " not in used.partition("round 30/30")[0]
    assert "accuracy global 1.0000" in used


def test_forms_of_published_collections_are_read_or_named() -> None:
    assert "FP (40 graphs, 150 nodes)" in (gaps := fedweave_in("tu-gaps", "check"))[1]
    assert "1 graph of 41 left out, without a node: 15" in gaps[1]
    code, temporal = fedweave_in("tu-temporal", "check")
    assert (code, "temporal form" in temporal) == (2, True)
    code, regression = fedweave_in("tu-regression", "check")
    assert (code, "ALC_graph_attributes.txt" in regression, "regression" in regression) == (2, True, True)
