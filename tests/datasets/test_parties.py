"""A folder of parties: joined by id, with every refusal naming party, file, row and remedy."""

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedweave.datasets import Dataset, load
from fedweave.datasets.folder import Folder
from fedweave.datasets.parties import read_party, restrict
from fedweave.errors import DataError
from fedweave.experiment import build, config
from fedweave.partition.client_data import shares
from fedweave.partition.vertical import Parties
from tests.refusals import refusal

BANK = "id,income,age\nben,2,7\nanna,1,6\ndora,9,9\ncleo,3,8\n"
BANK_EDGES = "source,target\nanna,ben\ndora,anna\n"
SHOP = "id,label,split,spent\ncleo,,,0.5\nanna,good,train,1.5\nben,bad,test,-1\n"
SHOP_EDGES = "source,target\ncleo,ben\nben,cleo\n"


def party(root: Path, name: str, nodes: str, edges: str) -> Path:
    (root / name).mkdir(exist_ok=True)
    (root / name / "nodes.csv").write_text(nodes)
    (root / name / "edges.csv").write_text(edges)
    return root


def two(root: Path, bank: str = BANK, shop: str = SHOP, bank_edges: str = BANK_EDGES) -> Path:
    party(root, "bank", bank, bank_edges)
    return party(root, "shop", shop, SHOP_EDGES)


def loaded(root: Path, **params: Any) -> Dataset:
    return load("parties", str(root), **params)


def test_two_parties_worked_by_hand(tmp_path: Path) -> None:
    """Common and sorted: anna, ben, cleo."""
    data = loaded(two(tmp_path))
    assert (data.name, data.classes) == (tmp_path.name, 2)
    np.testing.assert_array_equal(data.x, np.array([[1, 6, 1.5], [2, 7, -1], [3, 8, 0.5]], np.float32))
    np.testing.assert_array_equal(data.y, [1, 0, -1])  # bad < good
    np.testing.assert_array_equal(data.public, [[1, 0, 0], [0, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(data.edges, [[0, 1, 1, 2], [1, 0, 2, 1]])
    assert data.columns == ("bank/income", "bank/age", "shop/spent")
    bank, shop = data.parties  # type: ignore[misc]
    assert (bank.name, bank.columns.tolist(), bank.labels) == ("bank", [0, 1], False)
    assert (shop.name, shop.columns.tolist(), shop.labels) == ("shop", [2], True)
    assert bank.edges.tolist() == [[0, 1], [1, 0]]
    assert shop.edges.tolist() == [[1, 2], [2, 1]]


def test_what_is_dropped_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        loaded(two(tmp_path))
        (warned,) = caplog.records
        assert warned.levelno == logging.WARNING
        assert warned.getMessage() == (
            "note: 3 nodes are common to all 2 parties: bank drops 1 of 4 nodes and 1 of 2 edges; what not all "
            "parties have is neither trained on nor predicted"
        )
        caplog.clear()
        loaded(two(tmp_path, BANK.replace("dora,9,9\n", ""), bank_edges="source,target\nanna,ben\n"))
        (told,) = caplog.records
        assert (told.levelno, told.getMessage()[-15:]) == (logging.INFO, "none is dropped")


def test_parquet_equals_csv_and_hidden_folders_are_no_parties(tmp_path: Path) -> None:
    first = loaded(two(tmp_path))
    (tmp_path / ".cache").mkdir()
    bank = tmp_path / "bank"
    pq.write_table(
        pa.table({"id": ["ben", "anna", "dora", "cleo"], "income": [2, 1, 9, 3], "age": [7, 6, 9, 8]}),
        bank / "nodes.parquet",
    )
    pq.write_table(pa.table({"source": ["anna", "dora"], "target": ["ben", "anna"]}), bank / "edges.parquet")
    (bank / "nodes.csv").unlink()
    (bank / "edges.csv").unlink()
    second = loaded(tmp_path)
    for name in ("x", "edges", "y", "public"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()


def test_labels_of_several_parties_complete_each_other(tmp_path: Path) -> None:
    bank = "id,label,income\nanna,1.0,1\nben,,2\ncleo,0.0,3\n"
    shop = "id,label,spent\ncleo,,1\nanna,1,2\nben,2,3\n"
    data = loaded(two(tmp_path, bank, shop, "source,target\nanna,ben\n"))
    assert (data.y.tolist(), data.classes) == ([1, 2, 0], 3)
    assert loaded(tmp_path, classes=5).classes == 5


def test_labels_that_are_numbers_but_not_whole_are_refused_unless_listed(tmp_path: Path) -> None:
    bank = "id,label,income\nanna,1.0,1\nben,,2\ncleo,,3\n"
    shop = "id,label,spent\ncleo,,1\nanna,,2\nben,1.5,3\n"
    two(tmp_path, bank, shop, "source,target\nanna,ben\n")
    with refusal("data.row", "shop/nodes.csv", "row 4", "'1.5'"):
        loaded(tmp_path)
    data = loaded(tmp_path, labels=("1.5", "1.0"))
    assert (data.y.tolist(), data.labels) == ([1, 0, -1], ("1.5", "1.0"))
    (tmp_path / "shop" / "nodes.csv").unlink()
    floats = {"id": ["cleo", "anna", "ben"], "label": [None, None, 1.5], "spent": [1, 2, 3]}
    pq.write_table(pa.table(floats), tmp_path / "shop" / "nodes.parquet")
    with refusal("data.row", "shop/nodes.parquet", "row 3", "'label'", "1.5"):
        loaded(tmp_path)


def test_a_contradiction_names_both_places(tmp_path: Path) -> None:
    bank = "id,label,income\nanna,good,1\nben,good,2\ncleo,,3\n"
    two(tmp_path, bank, bank_edges="source,target\nanna,ben\n")
    wanted = (
        r"shop/nodes\.csv: row 4: label of id 'ben' is 'bad', but party bank says 'good' "
        r"\(.*bank/nodes\.csv, row 3\)\. Correct one of the two"
    )
    with pytest.raises(DataError, match=wanted):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("bank", "message"),
    [
        (BANK.replace("dora", "ben"), r"bank/nodes\.csv: row 4: id 'ben' is already in row 2"),
        (BANK.replace("ben,2", "ben,much"), r"bank/nodes\.csv: row 2: 'income' is 'much'\. .*give a finite number"),
        ("id,income\nzoe,1\ndora,2\nanna2,3\n", r"no id is common to all parties \(bank has 'zoe', shop has 'cleo'\)"),
        ("id\nanna\nben\ndora\n", r"bank/nodes\.csv: party bank has no feature"),
        ("income\n1\n", r"bank/nodes\.csv: there is no column 'id'"),
        ("id,income\n", r"bank/nodes\.csv: the table has no rows"),
    ],
)
def test_bad_nodes_are_refused(tmp_path: Path, bank: str, message: str) -> None:
    edges = "source,target\nzoe,dora\n" if "zoe" in bank else BANK_EDGES
    with pytest.raises(DataError, match=message):
        loaded(two(tmp_path, bank, bank_edges=edges))


def test_missing_files_and_parties_are_refused(tmp_path: Path) -> None:
    with refusal("config.missing", "[data] path"):
        load("parties")
    with pytest.raises(DataError, match="there is no party; a vertical dataset has at least two"):
        loaded(tmp_path)
    party(tmp_path, "bank", BANK, BANK_EDGES)
    with refusal("data", 'name = "folder"'):
        loaded(tmp_path)
    with pytest.raises(DataError, match="this is not a folder"):
        loaded(tmp_path / "bank" / "nodes.csv")
    (tmp_path / "shop").mkdir()
    with refusal("data", "nodes.parquet", "nodes.csv"):
        loaded(tmp_path)
    (tmp_path / "shop" / "nodes.csv").write_text(SHOP)
    with refusal("data", "edges.parquet", "edges.csv"):
        loaded(tmp_path)


def test_parties_become_clients_under_their_names(tmp_path: Path) -> None:
    sections: dict[str, dict[str, Any]] = {
        "data": {"name": "parties", "path": str(two(tmp_path))},
        "partition": {"name": "parties", "use_dataset_split": True},
        "algorithm": {"name": "local"},
    }
    built = build.build(config.resolve(sections))
    assert built.fed.clients == ("bank", "shop")
    centralized = build.build(config.resolve({**sections, "algorithm": {"name": "centralized"}}))
    assert centralized.fed.clients == ("client-0",)
    sections["partition"]["labels"] = "holders"
    with refusal("config.labels-withheld", "local", "partition.labels"):
        build.build(config.resolve(sections))
    build.build(config.resolve({**sections, "algorithm": {"name": "centralized"}}))


def test_a_party_by_itself_and_its_common_nodes_worked_by_hand(tmp_path: Path) -> None:
    """Without labels, but with a split; edges to dora go with her."""
    bank = BANK.replace("id,", "id,split,").replace("ben,", "ben,test,").replace("anna,", "anna,train,")
    bank = bank.replace("dora,", "dora,,").replace("cleo,", "cleo,,")
    two(tmp_path, bank=bank)
    data, columns = read_party(tmp_path / "bank", Folder(classes=2))
    assert (data.ids, data.classes, data.y.tolist()) == (("ben", "anna", "dora", "cleo"), 2, [-1] * 4)
    assert columns == ("income", "age")
    own = restrict(data, np.array([1, 0, 3]))
    np.testing.assert_array_equal(own.x, np.array([[1, 6], [2, 7], [3, 8]], np.float32))
    np.testing.assert_array_equal(own.public, [[1, 0, 0], [0, 0, 0], [0, 1, 0]])
    assert own.edges.tolist() == [[0, 1], [1, 0]]
    assert own.ids == ("anna", "ben", "cleo")
    with pytest.raises(DataError, match="no column label"):
        read_party(tmp_path / "bank", Folder())
    shop, _ = read_party(tmp_path / "shop", Folder())
    assert (shop.classes, shop.y.tolist()) == (2, [-1, 1, 0])


def test_text_and_groups_of_parties_worked_by_hand(tmp_path: Path) -> None:
    """Each party has the columns of categories that it has; the groups are named once."""
    bank = "id,job,sens\nben,nurse,m\nanna,clerk,f\ncleo,,f\n"
    root = two(
        tmp_path,
        bank,
        SHOP.replace("spent", "spent,job")
        .replace("0.5\n", "0.5,clerk\n")
        .replace("1.5\n", "1.5,clerk\n")
        .replace("-1\n", "-1,nurse\n"),
        "source,target\nanna,ben\n",
    )
    given = {"categories": {"job": ("clerk", "nurse")}, "groups": ("m", "f")}
    data = loaded(root, **given)
    np.testing.assert_array_equal(data.x, [[1, 0, 1.5, 1, 0], [0, 1, -1, 0, 1], [0, 0, 0.5, 1, 0]])
    assert [own.names for own in data.parties or ()] == [
        ("job = clerk", "job = nurse"),
        ("spent", "job = clerk", "job = nurse"),
    ]
    np.testing.assert_array_equal(data.sensitive, [1, 0, 1])
    alone, names = read_party(root / "bank", Folder(labels=("bad", "good"), **given))  # type: ignore[arg-type]
    assert names == ("job = clerk", "job = nurse")
    np.testing.assert_array_equal(alone.x, [[0, 1], [1, 0], [0, 0]])
    np.testing.assert_array_equal(alone.sensitive, [0, 1, 1])
    with refusal("data.column-named", "'jobs'", "[data] categories"):
        loaded(root, categories=given["categories"] | {"jobs": ("clerk",)})


def test_that_every_party_is_taken_to_see_labels_which_some_alone_have_is_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = loaded(two(tmp_path))
    Parties("holders", use_dataset_split=True).cut(data, 0)
    assert not re.search(r"partition\.labels", caplog.text)
    Parties(use_dataset_split=True).cut(data, 0)
    assert re.search(r"shop .*partition\.labels", caplog.text)


def test_columns_with_gaps_are_filled_at_the_party_that_has_them(tmp_path: Path) -> None:
    """0 stands in a gap, and a further feature of that party says where one was; without `missing` a gap is refused."""
    two(tmp_path, bank=BANK.replace("anna,1,6", "anna,,6"))
    with pytest.raises(DataError, match=r"nodes\.csv: row 3.*income"):
        loaded(tmp_path)
    data = loaded(tmp_path, missing=("income",))
    assert data.columns == ("bank/income", "bank/age", "bank/income is missing", "shop/spent")
    assert data.x.tolist() == [[0, 6, 1, 1.5], [2, 7, 0, -1], [3, 8, 0, 0.5]]
    own, names = read_party(tmp_path / "bank", Folder(classes=2, missing=("income",)))
    assert names == ("income", "age", "income is missing")
    assert own.x.tolist() == [[2, 7, 0], [0, 6, 1], [9, 9, 0], [3, 8, 0]]
    with refusal("data.column-named", "'wealth'", "missing"):
        loaded(tmp_path, missing=("income", "wealth"))


def test_a_party_knows_the_groups_of_its_own_tables_alone(tmp_path: Path) -> None:
    data = loaded(two(tmp_path, shop=SHOP.replace("id,", "id,sens,").replace("cleo,", "cleo,1,").replace(
        "anna,", "anna,0,").replace("ben,", "ben,1,")))  # fmt: skip
    assert [party.groups for party in data.parties or ()] == [False, True]
    cut = Parties(use_dataset_split=True).cut(data, 0)
    bank, shop = shares(data, cut.parts)
    assert bank.sensitive.tolist() == [-1, -1, -1]
    assert shop.sensitive.tolist() == [0, 1, 1]
