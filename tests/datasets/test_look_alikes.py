"""Ids, owners and labels that other programs write in another form: joined where they are the same, refused where that
is no longer known, hinted at where they look alike."""

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch_geometric.data import Data

from fedweave.datasets import from_frames, from_graph_frames, from_networkx, from_pyg, load
from fedweave.datasets.name_matching import difference, plain, similar_names
from fedweave.datasets.notes import name_notes
from fedweave.partition.divided import Column
from fedweave.sites.flare.site_data import read_graph
from fedweave.sites.flare.sitefile import SiteData
from tests.refusals import refusal

LONG = 9_100_000_000_000_000  # above 2^53, where odd numbers are not floats
IDS = [LONG + at for at in range(4)]
NODES = pd.DataFrame({"id": IDS, "label": [0, 1, 0, 1], "f": [0.5, 2, 1, 3]})
EDGES = pd.DataFrame({"source": IDS[:3], "target": IDS[1:]})


def folder(path: Path, nodes: pd.DataFrame, edges: pd.DataFrame, parquet: bool = False, **more: pd.DataFrame) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for stem, frame in {"nodes": nodes, "edges": edges, **more}.items():
        if parquet:
            frame.to_parquet(path / f"{stem}.parquet")
        else:
            frame.to_csv(path / f"{stem}.csv", index=False)
    return path


def floats(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    return frame.astype(dict.fromkeys(columns, float))


def test_long_ids_are_kept_as_whole_numbers_and_text(tmp_path: Path) -> None:
    whole = from_frames(NODES, EDGES)
    assert whole.edges.tolist() == [[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]
    for parquet in (False, True):
        again = load("folder", str(folder(tmp_path / str(parquet), NODES, EDGES, parquet)))
        assert np.array_equal(again.edges, whole.edges)
    text = from_frames(NODES.astype({"id": str}), EDGES.astype(str))
    assert np.array_equal(text.edges, whole.edges)


@pytest.mark.parametrize("parquet", [False, True])
def test_long_ids_that_came_through_floats_are_refused(parquet: bool, tmp_path: Path) -> None:
    """As floats, of which pandas writes "9100000000000000.0" to CSV, every odd id is its even neighbor."""
    for column in ("source", "target"):
        path = folder(tmp_path / column, NODES, floats(EDGES, column), parquet)
        with refusal("data.row", "edges", f"row {1 if parquet else 2}", column, f"{LONG}", "9,007,199,254,740,992"):
            load("folder", str(path))
    members = folder(tmp_path / "m/a", NODES, floats(EDGES, "target"), parquet)
    with refusal("data.row", "a/edges", "target"):
        load("members", str(members.parent))
    with refusal("data.row", "nodes", "id"):
        load("folder", str(folder(tmp_path / "ids", floats(NODES, "id")[::2], EDGES[:0], parquet)))


def test_long_ids_as_floats_are_refused_in_frames_graphs_sites_and_parties(tmp_path: Path) -> None:
    with refusal("data.row", "source"):
        from_frames(NODES, floats(EDGES, "source"))
    graphs = pd.DataFrame({"id": [LONG, LONG + 2], "label": [0, 1]})
    nodes = pd.DataFrame({"id": range(2), "graph": [float(LONG), float(LONG + 2)], "f": [1.0, 2]})
    with refusal("data.row", "graph"):
        from_graph_frames(graphs, nodes, EDGES[:0])
    path = folder(tmp_path / "parties/bank", NODES, floats(EDGES, "source"))
    with refusal("data.row", "source"):
        read_graph(path, SiteData(path="bank"))
    folder(tmp_path / "parties/shop", NODES[["id", "f"]], EDGES)
    with refusal("data.row", "bank", "source"):
        load("parties", str(tmp_path / "parties"))
    graph = nx.Graph([(float(LONG), float(LONG + 2))])
    nx.set_node_attributes(graph, 1, "label")
    nx.set_node_attributes(graph, 1.0, "f")
    with refusal("data.row", "id"):
        from_networkx(graph)


def test_narrow_floats_are_exact_up_to_less() -> None:
    narrow = 2**24
    nodes = NODES.assign(id=[narrow - 2, narrow - 1, narrow, narrow + 1])
    fine = pd.DataFrame({"source": [narrow - 2.0], "target": [narrow - 1.0]})
    assert from_frames(nodes, fine.astype("float32")).edges.tolist() == [[0, 1], [1, 0]]
    with refusal("data.row", "target", "16777216"):
        from_frames(nodes, (fine + 1).astype("float32"))
    assert from_frames(nodes, fine + 1).edges.tolist() == [[1, 2], [2, 1]]  # float64 keeps it
    own: dict[str, Any] = {"x": torch.ones(2, 1), "y": torch.tensor([0, 1])}
    with refusal("data", "16777216"):
        from_pyg(Data(**own, edge_index=torch.tensor([[2.0**24], [0]])))


HIDDEN = "\u200b"
UUID = "0000000c-9f2c-9cd0-4674-edea40000000"
FORMS = {
    "scientific": ("100000", "1e+05", "how the same number is written"),
    "fraction": ("100000", "1.0E5", "how the same number is written"),
    "zero width": ("n5", f"n5{HIDDEN}", "U+200B"),
    "byte order mark": ("n5", "\ufeffn5", "U+FEFF"),
    "soft hyphen": ("northwest", "north\u00adwest", "U+00AD"),
    "apostrophe": ("1000", "'1000", "apostrophe"),
    "curly apostrophe": ("1000", "\u20191000", "apostrophe"),
    "zeros": ("7", "007", "zeros before it"),
    "several": ("07", "'7", "zeros before it"),
    "wide letters": ("17", "\uff11\uff17", "the Unicode form"),
    "thousands": ("1000", "1,000", "signs between thousands"),
    "millions": ("1234567", "1.234.567", "signs between thousands"),
    "thousands of Switzerland": ("12000", "12'000", "signs between thousands"),
    "thousands of France": ("1000", "1\u202f000", "signs between thousands"),
    "thousands as floats": ("1000", "1,000.0", "signs between thousands"),
    "UUID of Windows": (UUID, f"{{{UUID.upper()}}}", "case and brackets around it"),
    "UUID of Python": (UUID, UUID.replace("-", ""), "how the same UUID is written"),
    "URN of a UUID": (UUID, f"urn:uuid:{UUID}", "how the same UUID is written"),
    "IRI": ("http://x/e1", "<http://x/e1>", "brackets around it"),
    "quotes": ("e1", '"e1"', "brackets around it"),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_one_name_are_told_at_every_door(form: str, tmp_path: Path) -> None:
    one, other, how = FORMS[form]
    assert plain(one) == plain(other)
    assert how in difference(one, other)
    assert how in difference(other, one)
    nodes = pd.DataFrame({"id": [other, "b"], "label": [0, 1], "f": [1.0, 2]})
    edges = pd.DataFrame({"source": [one], "target": ["b"]})
    for parquet in (False, True):
        with refusal("data.row", repr(one), repr(other), how):
            load("folder", str(folder(tmp_path / str(parquet), nodes, edges, parquet)))
    with refusal("data.row", repr(other), how):
        from_frames(nodes, edges)
    graphs = pd.DataFrame({"id": [other], "label": [0]})
    with refusal("data.row", repr(other), how):
        from_graph_frames(graphs, pd.DataFrame({"id": [1], "graph": [one], "f": [1.0]}), edges[:0])
    folder(tmp_path / "parties/bank", nodes[:1], edges[:0])
    folder(tmp_path / "parties/shop", nodes[:1].assign(id=one)[["id", "f"]], edges[:0])
    with refusal("data.no-common-id", how):
        load("parties", str(tmp_path / "parties"))
    folder(tmp_path / "members/bank", nodes, edges)
    folder(tmp_path / "members/shop", nodes, edges[:0])
    with refusal("data.row", f"bank/{one}", how):
        load("members", str(tmp_path / "members"))
    triples = pd.DataFrame({"head": [one, "b"], "relation": "r", "tail": ["b", other]})
    triples.to_parquet(tmp_path / "triples.parquet")
    [note] = load("triples", str(tmp_path)).notes
    assert how in note


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1e5", "1e6"),
        ("7", "-7"),
        ("0.5", "5"),
        ("a0", "a"),
        ("1000", "1,001"),
        ("1.000", "1000"),
        ("v1.2", "v12"),
        ("a-b", "ab"),
        ("{a", "a"),
        ("12345678901234567890123456789", "12345678901234567890123456780"),
    ],
)
def test_other_names_do_not_look_alike(one: str, other: str) -> None:
    assert plain(one) != plain(other)


def test_numbers_of_any_length_are_no_work() -> None:
    """An exponent is not written out, and what is not a number stays."""
    assert len(plain("1e9999")) < 10
    assert plain("1e99999999999") == "1e99999999999"
    assert plain("-0.0") == plain("000") == "0"


def owned(banks: list[Any]) -> pd.DataFrame:
    return pd.DataFrame({"id": range(6), "label": [0, 1] * 3, "bank": banks, "f": [0.5] * 6})


@pytest.mark.parametrize("parquet", [False, True])
@pytest.mark.parametrize(
    "banks", [["0", "0.0", "1", "1.0", "2", "2."], ["0.0", "0.0", "1.0", "1.0", "2.0", "2.0"], [0.0, 0, 1, 1, 2, 2]]
)
def test_owners_written_as_fractions_are_whole_numbers(banks: list[Any], parquet: bool, tmp_path: Path) -> None:
    edges = pd.DataFrame({"source": [0], "target": [1]})
    data = load("folder", str(folder(tmp_path, owned(banks), edges, parquet)), owner="bank")
    assert (data.owners, data.owner.tolist()) == (("0", "1", "2"), [0, 0, 1, 1, 2, 2])  # type: ignore[union-attr]
    assert Column().cut(data, 0).names == ("0", "1", "2")
    of_graphs = owned(banks).drop(columns="f")
    nodes = pd.DataFrame({"id": range(6), "graph": range(6), "f": [1.0] * 6})
    small = from_graph_frames(of_graphs, nodes, edges[:0], owner="bank")
    assert small.owners == data.owners


def test_owners_that_look_alike_in_an_archive_are_noted() -> None:
    named = from_frames(owned(["x"] * 6), pd.DataFrame({"source": [0], "target": [1]}), owner="bank")
    for pair in (("0", "0.0"), ("100000", "1e+05"), ("a", f"a{HIDDEN}")):
        assert [pair] == list(similar_names(pair))
        object.__setattr__(named, "owners", pair)
        [said] = name_notes(named)
        assert repr(pair[1]) in said


SEVERAL = {
    "bits": ["[0, 1, 0]", "[1, 0, 0]", "[0, 1, 1]", "[0, 0, 1]"],
    "an array as NumPy prints it": ["[0 1 0]", "[1 0 0]", "[0 1 1]", "[0 0 1]"],
    "a tuple in one cell": ["('a', 'b')", "a", "b", "a"],
    "a set": ["{1, 2}", "{2}", "{1}", "{1, 2}"],
    "semicolons": ["0;1", "1", "0", "1;2"],
    "bars": ["Action|Drama", "Action", "Drama", "Action"],
    "commas": ["0,1,0", "1,0,0", "0,1,1", "0,0,1"],
    "blanks": ["0 1 0", "1 0 0", "0 1 1", "0 0 1"],
}


@pytest.mark.parametrize("what", SEVERAL)
def test_several_targets_in_a_cell_are_refused_at_every_door(what: str, tmp_path: Path) -> None:
    labels, edges = SEVERAL[what], pd.DataFrame({"source": [0], "target": [1]})
    nodes = pd.DataFrame({"id": range(4), "label": labels, "f": [0.5, 2, 1, 3]})
    odd = labels[0]
    for parquet in (False, True):
        with refusal("data.row", "nodes", f"row {1 if parquet else 2}", odd, "labels"):
            load("folder", str(folder(tmp_path / str(parquet), nodes, edges, parquet)))
    with refusal("data.row", odd):
        load("members", str(folder(tmp_path / "m/a", nodes, edges).parent))
    with refusal("data.row", odd):
        from_frames(nodes, edges)
    with refusal("data.row", odd):
        read_graph(tmp_path / "True", SiteData(path="True"))
    with refusal("data.row", odd):
        ring = pd.DataFrame({"source": range(4), "target": [1, 2, 3, 0], "label": labels})
        from_frames(nodes.drop(columns="label"), ring, task="edges")
    graph = nx.Graph([(0, 1)])
    graph.add_nodes_from([2, 3])
    nx.set_node_attributes(graph, dict(enumerate(labels)), "label")
    nx.set_node_attributes(graph, 1.0, "f")
    with refusal("data.row", odd):
        from_networkx(graph)
    graphs = pd.DataFrame({"id": range(4), "label": [0, 1, 0, 1]})
    with refusal("data.row", odd, "node_labels"):
        from_graph_frames(graphs, nodes[["id", "label"]].assign(graph=range(4)), edges[:0])
    declared = from_frames(nodes, edges, labels=tuple(sorted(set(labels))))
    assert declared.classes == len(set(labels))


def test_names_with_marks_in_them_are_names() -> None:
    labels = ["Smith, John", "R&D | sales", "(not known)", "[unclear]", "24 hours", "a;b"]
    nodes = pd.DataFrame({"id": range(6), "label": labels, "f": [0.5] * 6})
    assert from_frames(nodes, pd.DataFrame({"source": [0], "target": [1]})).classes == 6


def test_lists_that_would_fill_the_memory_are_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred thousand equal numbers in lists take a few thousand bytes; of other numbers a limit says nothing."""
    monkeypatch.setattr("fedweave.core.decompression.MAX_IN_LISTS", 1 << 20)
    edges = pd.DataFrame({"source": [0], "target": [1]})
    nodes = pd.DataFrame({"id": range(4), "label": [0, 1, 0, 1], "f": [0.5, 2, 1, 3]})
    path = folder(tmp_path, nodes, edges, True)
    for values, fits in ((np.random.default_rng(0).normal(size=200_000), True), (np.zeros(200_000), False)):
        held = pa.ListArray.from_arrays(pa.array([0, 50_000, 100_000, 150_000, 200_000], pa.int32()), pa.array(values))
        pq.write_table(pa.Table.from_pandas(nodes).append_column("v", held), path / "nodes.parquet")
        if fits:
            assert load("folder", str(path), ignore=("v",)).nodes == 4
        else:
            with refusal("data.too-large", "200,000 values in lists"):
                load("folder", str(path), ignore=("v",))


@pytest.mark.parametrize("column", ["sens", "label"])
def test_a_kind_far_above_the_others_takes_no_memory(column: str) -> None:
    nodes = pd.DataFrame({"id": range(6), "label": [0, 1] * 3, "sens": [0, 1] * 3, "f": [0.5, 1, 2, 3, 4, 5]})
    nodes.loc[5, column] = 2_000_000_000
    with refusal("data.stray" if column == "sens" else "data.row", "2000000000"):
        from_frames(nodes, pd.DataFrame({"source": [0], "target": [1]}))
