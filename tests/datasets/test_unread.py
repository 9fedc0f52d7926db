"""What came with the data and is not used is told: files beside those that are read, and a split."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import fedweave
from fedweave.datasets import Dataset, load, npz
from fedweave.datasets.lookup import unread
from fedweave.partition import Dirichlet, EgoNetworks, LabelSkew, Overlap, Random, Vertical, notes_on_unused
from tests.commands import call

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
    assert all(file in said for file in ("targets.csv", str(Path(folders[-1], "more.csv"))))


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
        assert re.search(r"\(30 train, 0 val, 30 test\)", said(Random(clients=2), own))
        assert re.search("use_dataset_split = true", said(Dirichlet(clients=2), own))
        assert re.search("louvain", said(Overlap(clients=6), own))  # a partition that takes it
    assert said(Random(clients=2), replace(data, public=None)) == ""
    if (data_root / "cora").is_dir():
        cora = load("cora", str(data_root))
        assert re.search(r"\(140 train, 500 val, 1,000 test\)", said(Random(clients=2), cora))


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
    code, stdout, stderr = call(words[0], folder / "e.toml", *words[1:], "--set", f"data.path={folder}/data")
    return code, " ".join(f"{stdout} {stderr}".split())


def test_attributes_of_a_collection_are_told_and_used_by_the_setting(tmp_path: Path) -> None:
    note = re.compile(r"AT_node_attributes\.txt .*data\.attributes = true")
    assert note.search(fedweave_in("tu-attributes", "check")[1])
    without = fedweave_in("tu-attributes", "run", "--out", str(tmp_path / "a"))[1]
    used = fedweave_in("tu-attributes", "run", "--out", str(tmp_path / "b"), "--set", "data.attributes=true")[1]
    assert (bool(note.search(without)), bool(note.search(used))) == (True, False)
    accuracies = [float(re.findall(r"accuracy ([\d.]+) all examples", said)[-1]) for said in (without, used)]
    assert accuracies == [0.75, 1.0]


def test_forms_of_published_collections_are_read_or_named() -> None:
    gaps = fedweave_in("tu-gaps", "check")[1]
    assert re.search(r"40 graphs, 150 nodes.*1 graph of 41 .*: 15", gaps)
    assert fedweave_in("tu-temporal", "check")[0] == 2
    code, regression = fedweave_in("tu-regression", "check")
    assert (code, regression.count("ALC_graph_attributes.txt") > 0) == (2, True)
