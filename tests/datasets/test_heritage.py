"""Heri-Graphs: three parties in a folder, read with the published counts, and made from the published tables."""

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pytest

from fedweave.datasets import DATASETS, load, social
from fedweave.datasets.lookup import Facts
from fedweave.datasets.social import BLOCKS
from fedweave.partition import PARTITIONS
from tests.refusals import refusal

SCRIPT = Path(__file__).parents[2] / "examples" / "heri_graphs.py"
FEATURES = {"social": "a,b", "spatial": "c", "temporal": "d"}
NODES = {"social": ["10,3,1,2", "11,,3,4", "12,8,5,6"], "spatial": ["12,9", "10,7", "11,8"]}
NODES |= {"temporal": ["10,1", "11,2", "12,3"]}
EDGES = {"social": "10,11", "spatial": "10,12\n12,11", "temporal": "11,12"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small "suzhou" in a folder of data sets, which this test takes for the published one."""
    monkeypatch.delenv("FEDWEAVE_DATA", raising=False)
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(social, "BLOCKS", {name: len(columns.split(",")) for name, columns in FEATURES.items()})
    monkeypatch.setattr(DATASETS["suzhou"], "facts", Facts(3, 3, 4, 9))
    for name, columns in FEATURES.items():
        (tmp_path / "data" / "suzhou" / name).mkdir(parents=True)
        head = "id,label," if name == "social" else "id,"
        for table, lines in (("nodes", [head + columns, *NODES[name]]), ("edges", ["source,target", EDGES[name]])):
            (tmp_path / "data" / "suzhou" / name / f"{table}.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "data"


def test_three_parties_worked_by_hand(folder: Path) -> None:
    data = load("suzhou", str(folder))
    assert (data.name, data.classes, data.y.tolist()) == ("suzhou", 9, [3, -1, 8])
    np.testing.assert_array_equal(data.x, [[1, 2, 7, 1], [3, 4, 8, 2], [5, 6, 9, 3]])
    assert data.parties is not None
    assert {it.name: it.columns.tolist() for it in data.parties} == {"social": [0, 1], "spatial": [2], "temporal": [3]}
    assert {it.name: it.edges.tolist() for it in data.parties} == {
        "social": [[0, 1], [1, 0]], "spatial": [[0, 1, 2, 2], [2, 2, 0, 1]], "temporal": [[1, 2], [2, 1]],
    }  # fmt: skip
    assert data.edges.shape == (2, 6)
    parts = PARTITIONS["parties"](train=1.0, val=0.0, test=0.0).cut(data, 0)
    assert parts.names == ("social", "spatial", "temporal")


def test_where_it_is_looked_for(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = load("suzhou", str(folder)).x.tobytes()
    assert load("suzhou", str(folder / "suzhou")).x.tobytes() == wanted
    monkeypatch.setenv("FEDWEAVE_DATA", str(folder))
    assert load("suzhou").x.tobytes() == wanted
    monkeypatch.setenv("FEDWEAVE_DATA", str(tmp_path / "nothing"))
    folder.rename(tmp_path / "cache")
    assert load("suzhou").x.tobytes() == wanted


def test_another_graph_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATASETS["suzhou"], "facts", Facts(3137, 916496, 4, 9))
    with refusal("data", "3", "4", "9", "3137", "4", "9"):
        load("suzhou", str(folder))
    monkeypatch.setattr(social, "BLOCKS", BLOCKS)
    with refusal("data", "'social'", "2", "'spatial'", "1", "'temporal'", "1", "'social'", "365"):
        load("suzhou", str(folder))
    nodes = folder / "suzhou" / "social" / "nodes.csv"
    nodes.write_text(nodes.read_text().replace("12,8,", "12,9,"))
    with refusal("data.row", "social/nodes.csv", "row 4", "9", "0..8"):
        load("suzhou", str(folder))
    with refusal("config.value", "'unit'"):
        load("suzhou", str(folder), normalize="unit")


def test_the_conversion_of_the_published_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On four posts in tables like the published ones: tab-separated, an unnamed index first."""
    monkeypatch.chdir(tmp_path)
    ids = ["7", "5", "6", "4"]
    blocks = {name: np.arange(4 * width).reshape(4, width) / 7 for name, width in BLOCKS.items()}
    faces = np.full((4, 3), -1.0)
    soft = np.full((4, 9), 0.1)
    soft[np.arange(4), [2, 8, 0, 2]] = 0.2

    def published(name: str, **columns: Any) -> None:
        path = tmp_path / "dataset" / "Suzhou" / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        count = len(next(iter(columns.values())))
        csv.write_csv(pa.table({"": range(count), **columns}), path, csv.WriteOptions(delimiter="\t"))

    order = (("Vis", blocks["temporal"]), ("Face", faces), ("SCE", blocks["social"]), ("ATT", blocks["spatial"]))
    visual = {f"{name}_{i}": column for name, block in order for i, column in enumerate(block.T)}
    published("Visual_Features", ID=ids, IO_Type=["indoor"] * 4, **visual)
    labels = {f"class {i}": column for i, column in enumerate(soft.T)}
    published("Attribute_Labels", ID=ids, **labels, labelled=[True, True, False, True])
    published(
        "Edge_List", **{"0": ["7", "5", "6"], "1": ["5", "6", "6"]}, Temporal_Similarity=[0.5, 0.0, 1.0],
        Social_Similarity=[0.0, 1.0, 1.0], Spatial_Similarity=[0.5, 0.5, 1.0],
    )  # fmt: skip

    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "Suzhou"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    monkeypatch.setattr(DATASETS["suzhou"], "facts", Facts(4, 0, 979, 9))
    data = load("suzhou", str(tmp_path))
    assert data.y.tolist() == [2, 8, -1, 2]  # of 4, 5, 6, 7
    rows = [3, 1, 2, 0]
    x = data.x if isinstance(data.x, np.ndarray) else data.x.toarray()
    np.testing.assert_allclose(x, np.concatenate([blocks[name][rows] for name in sorted(blocks)], 1), rtol=1e-6)
    assert data.parties is not None
    assert {it.name: it.edges.tolist() for it in data.parties} == {
        "social": [[1, 2], [2, 1]], "spatial": [[1, 1, 2, 3], [2, 3, 1, 1]], "temporal": [[1, 3], [3, 1]],
    }  # fmt: skip
