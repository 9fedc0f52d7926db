"""Graphs of PyTorch Geometric's in memory, one or several, and a file of them."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.datasets import KarateClub
from torch_geometric.transforms import RandomLinkSplit

import fedweave
from fedweave.datasets import from_pyg, load
from fedweave.datasets.contents import digests
from fedweave.errors import DataError
from tests.refusals import refusal


class InMemory(InMemoryDataset):
    """Graphs as PyG's own data sets hold them."""

    def __init__(self, graphs: list[Data]) -> None:
        super().__init__()
        self.data, self.slices = self.collate(graphs)


def triangle_and_path(with_x: bool = True) -> list[Data]:
    """Two small graphs, with a self loop that is dropped."""
    triangle, path = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 0]]), torch.tensor([[0], [1]])
    features = [torch.eye(3), torch.ones(2, 3)] if with_x else [None, None]
    return [
        Data(x=x, edge_index=ends, y=torch.tensor([label]), num_nodes=size)
        for x, ends, label, size in zip(features, (triangle, path), (1, 0), (3, 2), strict=True)
    ]


@pytest.mark.parametrize("form", [list, tuple, InMemory])
def test_several_graphs_are_small_graphs(form: type) -> None:
    data = from_pyg(form(triangle_and_path()))
    assert (data.example, data.graph_of.tolist(), data.y.tolist()) == ("graph", [0, 0, 0, 1, 1], [1, 0])
    assert data.edges.tolist() == [[0, 0, 1, 1, 2, 2, 3, 4], [1, 2, 0, 2, 0, 1, 4, 3]]
    np.testing.assert_array_equal(data.x, np.vstack([np.eye(3), np.ones((2, 3))]))


def test_small_graphs_without_features_have_one_hot_degrees() -> None:
    data = from_pyg(triangle_and_path(with_x=False))
    x = data.x if isinstance(data.x, np.ndarray) else data.x.toarray()
    assert x.argmax(1).tolist() == [2, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"y": torch.tensor([0, 1])}, r"graph 1: y has 2 values"),
        ({"x": torch.ones(2, 4)}, r"graph 1: x is \[2, 4\], but x of graph 0 is \[3, 3\]"),
        ({"x": None}, r"graph 1: the data has no x"),
        ({"edge_index": torch.tensor([[0], [2]])}, r"graph 1: edge_index, column 0: edge 0 -> 2"),
        ({"edge_index": torch.tensor([0, 1])}, r"graph 1: .*edge_index \[2\]"),
        ({"sens": torch.tensor([1])}, r"graph 1: it and graph 0 do not both have sens"),
        ({"edge_attr": torch.eye(2)[:1]}, r"graph 1: .*do not both have edge_attr"),
    ],
)
def test_a_small_graph_that_does_not_fit_is_named(changed: dict[str, torch.Tensor], what: str) -> None:
    first, second = triangle_and_path()
    for key, value in changed.items():
        second[key] = value
    with pytest.raises(DataError, match=what):
        from_pyg([first, second])


def test_an_empty_list_is_refused() -> None:
    with refusal("data.no-graphs"):
        from_pyg([])


def test_the_karate_club_is_read_and_its_lone_mask_noted() -> None:
    for given in (KarateClub(), KarateClub()[0]):
        data = from_pyg(given)
        assert (data.nodes, data.features, data.classes, data.public) == (34, 34, 4, None)
        [note] = data.notes
        assert re.search("train_mask", note)
        assert not from_pyg(given, ignore=["train_mask"]).notes


def test_a_saved_data_set_is_read_again_as_it_was(tmp_path: Path) -> None:
    masks = {f"{split}_mask": torch.arange(6) % 3 == i for i, split in enumerate(("train", "val", "test"))}
    ends = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    whole = Data(x=torch.eye(6), edge_index=ends, y=torch.arange(6) % 2, sens=torch.arange(6) // 3, **masks)
    for at, data in enumerate((from_pyg(whole), from_pyg(triangle_and_path()))):
        path = data.save(tmp_path / f"{at}.npz")
        assert digests(load("npz", str(path))) == digests(data)


def test_owners_and_kinds_are_saved_with_their_names(tmp_path: Path) -> None:
    nodes = {"id": ["a", "b", "c"], "label": ["x", "y", "x"], "f": [1.0, 2, 3], "branch": ["n", "s", "n"]}
    data = fedweave.datasets.from_frames(pa.table(nodes), pa.table({"source": ["a"], "target": ["b"]}), owner="branch")
    again = load("npz", str(data.save(tmp_path / "owned.npz")))
    assert (again.owners, again.owner.tolist(), again.labels) == (("n", "s"), [0, 1, 0], ("x", "y"))
    cut = fedweave.partition.Column().cut(again, seed=0)
    assert cut.names == ("n", "s")


def test_what_a_file_cannot_keep_or_be_is_refused(tmp_path: Path) -> None:
    data = from_pyg(KarateClub())
    with refusal("user.npz-name"):
        data.save(tmp_path / "karate.csv")
    with refusal("user.unwritable"):
        data.save(tmp_path / "no" / "karate.npz")


def shop() -> HeteroData:
    """Two users with an age, three items of two features, purchases with an amount, and friends without features."""
    data = HeteroData()
    data["user"].x, data["user"].y = torch.tensor([[30.0], [40.0]]), torch.tensor([1, 0])
    data["user"].train_mask, data["user"].test_mask = torch.tensor([True, False]), torch.tensor([False, True])
    data["item"].x = torch.tensor([[1.0, 2], [3, 4], [5, 6]])
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 1, 1], [2, 0, 1]])
    data["user", "buys", "item"].edge_attr = torch.tensor([[7.0], [8], [9]])
    data["user", "knows", "user"].edge_index = torch.tensor([[1], [0]])
    return data


def test_a_graph_of_several_types_is_refused_by_name_or_flattened_on_request() -> None:
    with refusal("data", "-buys", "-item", "-knows", "-user", "flatten = True"):
        from_pyg(shop())
    data = from_pyg(shop(), flatten=True)
    assert data.columns == ("type = user", "type = item", "user.0", "item.0", "item.1")
    x = data.x if isinstance(data.x, np.ndarray) else data.x.toarray()
    wanted = [[1, 0, 30, 0, 0], [1, 0, 40, 0, 0], [0, 1, 0, 1, 2], [0, 1, 0, 3, 4], [0, 1, 0, 5, 6]]
    assert x.tolist() == wanted
    assert data.y.tolist() == [1, 0, -1, -1, -1]
    assert data.public.tolist() == [[True, *[False] * 4], [False] * 5, [False, True, *[False] * 3]]
    assert data.edge_attrs.directed
    assert data.edge_attrs.ends.tolist() == [[0, 1, 1, 1], [4, 2, 3, 0]]
    assert data.edge_attrs.columns == ("type = user-buys-item", "type = user-knows-user", "user-buys-item.0")
    assert data.edge_attrs.features.tolist() == [[1, 0, 7], [1, 0, 8], [1, 0, 9], [0, 1, 0]]
    plain = Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1]))
    assert from_pyg(plain, flatten=True).columns == ()


def test_types_without_edges_have_columns_and_rows_that_do_not_fit_are_refused() -> None:
    data = shop()
    buys = data["user", "buys", "item"]
    buys.edge_index, buys.edge_attr = torch.zeros((2, 0), dtype=torch.int64), torch.zeros((0, 1))
    assert from_pyg(data, flatten=True).edge_attrs.features.tolist() == [[0, 1, 0]]
    buys.edge_attr = torch.zeros((2, 1))
    with refusal("data", "'user-buys-item'", "2 rows", "0"):
        from_pyg(data, flatten=True)
    del buys.edge_index
    with refusal("data", "'user-buys-item'", "edge_index"):
        from_pyg(data, flatten=True)
    data = shop()
    data["shop"].name = "corner"
    with pytest.warns(UserWarning, match="num_nodes"), refusal("data", "'shop'"):
        from_pyg(data, flatten=True)


def test_a_flattened_graph_may_have_edges_as_examples_and_says_what_it_does_not_read() -> None:
    data = shop()
    data["user", "buys", "item"].edge_label = torch.tensor([0, 1, 0])
    data["user", "buys", "item"].edge_time = torch.tensor([1.0, 2, 3])
    with pytest.raises(DataError, match=r"knows.*edge_time"):
        from_pyg(data, flatten=True)
    data["user", "knows", "user"].edge_time = torch.tensor([4.0])
    made = from_pyg(data, flatten=True, task="edges")
    assert (made.example, made.y.tolist(), made.edge_attrs.time.tolist()) == ("edge", [0, 1, 0, -1], [1, 2, 3, 4])
    data["item"].price = torch.ones(3)
    assert re.search(r"item\.price", str(from_pyg(data, flatten=True).notes))
    data["item"].y = torch.tensor([0, 1, 0])
    with refusal("data", "2"):
        from_pyg(data, flatten=True)
    data["user", "knows", "user"].edge_index[1, 0] = 2  # an item's place, were it not a user's
    with refusal("data", "-knows", "-user", "'user'", "0..1"):
        from_pyg(data, flatten=True)


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({"edge_label": None}, ("edge_label",)),
        ({"edge_label": torch.tensor([0, 1])}, ("edge_index [2, 3]", "edge_label [2]")),
        ({"train_mask": torch.ones(2, dtype=torch.bool), "test_mask": torch.ones(2, dtype=torch.bool)}, ("mask", "3")),
        ({"sens": torch.tensor([0, 1])}, ("sens", "2 values", "3 examples")),
        ({"edge_time": torch.tensor([0.0, 1.0])}, ("edge_time", "2 rows", "3 edges")),
        ({"edge_label": torch.tensor([0.0, 0.5, 1.0])}, ("edge_label",)),
    ],
)
def test_edges_as_examples_that_do_not_fit_are_refused(held: dict[str, object], words: tuple[str, ...]) -> None:
    ends = torch.tensor([[0, 1, 0], [1, 0, 1]])
    fits = {"x": torch.eye(2), "edge_index": ends, "edge_label": torch.tensor([0, 1, 0])}
    assert from_pyg(Data(**fits), task="edges").example == "edge"
    with refusal("data", *words):
        from_pyg(Data(**fits | held), task="edges")


def test_several_graphs_with_edges_as_examples_are_refused() -> None:
    with refusal("data", "several graphs", "Batch"):
        from_pyg(triangle_and_path(), task="edges")


def pairs_of_a_ring(**options: object) -> list[Data]:
    """RandomLinkSplit's three parts of a ring of 40 nodes."""
    ends = torch.stack([torch.arange(40), (torch.arange(40) + 1) % 40])
    ring = Data(x=torch.eye(40), edge_index=torch.cat([ends, ends.flip(0)], 1), y=torch.arange(40) % 2)
    return [*RandomLinkSplit(is_undirected=True, **options)(ring)]


@pytest.mark.parametrize("of", ["nodes", "edges"])
def test_labels_of_pairs_are_refused_by_name(of: str) -> None:
    """Laid over edge_index they would be labels of edges that they do not belong to: the numbers of both are equal."""
    train, *_ = parts = pairs_of_a_ring()
    assert train.edge_label.shape[0] == train.edge_index.shape[1]
    for given in (train, parts, tuple(parts)):
        with refusal("data.links", "edge_label_index"):
            from_pyg(given, task=of)
    apart = pairs_of_a_ring(split_labels=True)[0]
    with refusal("data.links", "pos_edge_label_index"):
        from_pyg(apart, task=of)


def test_nodes_of_a_graph_with_pairs_are_read_once_the_pairs_are_ignored() -> None:
    train, *_ = pairs_of_a_ring()
    assert from_pyg(train, ignore=["edge_label_index", "edge_label"]).y.tolist() == [0, 1] * 20
    with refusal("data.links", "edge_label_index"):  # there is no way of silencing it where edges are the examples
        from_pyg(train, task="edges", ignore=["edge_label_index"])


def test_labels_of_pairs_between_types_are_refused_by_the_types() -> None:
    kind = ("user", "buys", "item")
    train, *_ = RandomLinkSplit(num_val=0.0, num_test=0.5, edge_types=[kind])(shop())
    for flatten in (False, True):
        with refusal("data.links", "user-buys-item.edge_label_index"):
            from_pyg(train, flatten=flatten, task="edges")
