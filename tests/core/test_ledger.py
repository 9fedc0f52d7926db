from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedweave.core.federation import Sends, StepInfo
from fedweave.core.ledger import Counts, Ledger
from fedweave.core.ledger_columns import (
    COLUMNS,
    SCHEMA,
    WORD,
    Entry,
    LedgerColumn,
    Line,
    add_absent_columns,
    schema,
    table_of,
)
from fedweave.core.mechanism import Clipped, Gaussian, read_applied
from fedweave.core.tree import Tree, encode
from fedweave.core.types import EVALUATION, FRAMING
from fedweave.experiment.runs.files import LEDGER, read_table, write_table
from fedweave.experiment.runs.table_columns import LEDGER_COLUMNS
from fedweave.ops.sparsified import Sparsified
from fedweave.ops.touched_rows import TouchedRows

NOISE = (Clipped(0.5), Gaussian(2.0, 1.0, "client"))
UP: Tree = {
    "w": {"0": torch.zeros(3, 2), "1": torch.zeros(2, dtype=torch.float64)},
    "n": 5,
    "name": "héllo",
    "on": True,
}


NOW = 1_700_000_000.25  # 2023-11-14 22:13:20.250 UTC


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedweave.core.ledger.time.time", lambda: NOW)


def two_calls() -> Ledger:
    ledger = Ledger()
    ledger.record(1, 0, "train", ["a", "b"], "down", {"w": torch.zeros(4)})
    info = StepInfo.of({"w": Sends("weights", NOISE), "w/1": "biases", "n": "a count"})
    ledger.record(1, 0, "train", ["a", "b"], "up", UP, 0.5, info)
    ledger.record(2, 3, "score", ["b"], "up", {})
    return ledger


def total(table: pa.Table, **where: object) -> int:
    for column, value in where.items():
        table = table.filter(pc.equal(table[column], value))
    return pc.sum(table["bytes"]).as_py() or 0


def test_rows_since_the_last_time_are_those_of_the_whole_table() -> None:
    ledger, whole = two_calls(), two_calls().table()
    assert ledger.rows == len(whole)
    ledger.record(3, 0, "score", ["c"], "up", {"n": 1})
    rows = ledger.since(0).to_pylist()
    assert all(ledger.since(first).to_pylist() == rows[first:] for first in range(len(rows) + 1))
    assert ledger.since(len(whole)).column("client").to_pylist() == ["c", "c"]
    assert ledger.table().to_pylist() == whole.to_pylist() + rows[len(whole) :]


def test_rows_of_a_message_add_up_to_its_serialized_bytes() -> None:
    table = two_calls().table()
    assert table.schema == SCHEMA
    for client in ("a", "b"):
        assert total(table, client=client, direction="up", call=0) == len(encode(UP))
        assert total(table, client=client, direction="down") == len(encode({"w": torch.zeros(4)}))
    assert total(table, call=3) == len(encode({}))


@settings(max_examples=8, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]), st.sampled_from(["up", "down"]), st.integers(0, 9), st.text(max_size=5)
        ),
        max_size=6,
    )
)
def test_totals_are_the_sums_of_the_rows(messages: list[tuple[str, str, int, str]]) -> None:
    ledger, expected = Ledger(), {"up": 0, "down": 0}
    for call, (client, direction, size, text) in enumerate(messages):
        tree = {"x": torch.zeros(size), "s": text.encode("utf-8", "ignore").decode()}
        ledger.record(0, call, "step", [client], direction, tree)
        expected[direction] += len(encode(tree))
    table = ledger.table()
    assert (ledger.bytes_up, ledger.bytes_down) == (expected["up"], expected["down"])
    assert (total(table, direction="up"), total(table, direction="down")) == (expected["up"], expected["down"])


def test_a_row_says_what_left_and_what_it_reveals() -> None:
    rows = [row for row in two_calls().table().to_pylist() if row["client"] == "a" and row["direction"] == "up"]
    assert [row["key"] for row in rows] == ["w/0", "w/1", "n", "name", "on", FRAMING]
    assert [row["shape"] for row in rows] == ["[3, 2] float32", "[2] float64", "int", "str", "bool", ""]
    assert [row["bytes"] for row in rows[:5]] == [24, 16, 8, 6, 8]
    words = "clipped to L2 norm 0.5, Gaussian noise of sigma 2 (μ = 0.5 per client)"
    assert [row["mechanism"] for row in rows] == [words, "none", "none", "none", "none", "none"]
    assert [read_applied(row["applied"]) for row in rows[:1]] == [("w", NOISE)]
    assert [row["applied"] for row in rows[1:]] == [None] * 5
    assert [row["reveals"] for row in rows] == ["weights", "biases", "a count", "", "", ""]
    assert [row["seconds"] for row in rows] == [0.5, 0, 0, 0, 0, 0]
    assert {(row["round"], row["call"], row["step"]) for row in rows} == {(1, 0, "train")}


def test_a_row_says_when_and_what_for() -> None:
    ledger = Ledger()
    ledger.record(0, 0, "begin", ["a"], "up", {"x": 1.0})
    ledger.purpose = EVALUATION
    info = StepInfo.of({}, hears={"w": "the joint model"}).message
    ledger.record(1, 0, "score", ["a", "b"], "down", {"w": {"0": 1.0}}, info=info)
    rows = ledger.table().to_pylist()
    assert {row["at"] for row in rows} == {datetime(2023, 11, 14, 22, 13, 20, 250_000, UTC)}
    assert [row["purpose"] for row in rows] == [""] * 2 + [EVALUATION] * 4
    assert [row["reveals"] for row in rows if row["key"] == "w/0"] == ["the joint model"] * 2
    assert ledger.bytes_evaluation == ledger.bytes_down > 0
    again = Ledger()
    again.restore(ledger.table())
    assert (again.bytes_evaluation, again.bytes_up) == (ledger.bytes_evaluation, ledger.bytes_up)


def test_partly_stored_rows_count_whole() -> None:
    rows = TouchedRows(torch.zeros(9, 2), torch.tensor([1]), torch.zeros(1, 2))
    one, two = Ledger(), Ledger()
    one.record(0, 0, "s", ["a"], "up", {"w": rows})
    two.record(0, 0, "s", ["a"], "up", {"w": torch.zeros(9, 2)})
    assert one.table() == two.table()
    assert one.bytes_up == two.bytes_up > 72


def test_a_sparse_leaf_counts_its_entries_with_their_places() -> None:
    """Two of six float32 numbers are not 0: 4 bytes each, and 4 for where each stands."""
    leaf = Sparsified(torch.tensor([[0.0, 1.5, 0.0], [0.0, 0.0, -2.0]]))
    ledger = Ledger()
    ledger.record(0, 0, "s", ["a"], "up", {"w": leaf})
    own, framing = ledger.table().to_pylist()
    assert (own["shape"], own["bytes"]) == ("[2, 3] float32, sparse", 16)
    assert len(leaf.pack()) == 16
    assert own["bytes"] + framing["bytes"] == ledger.bytes_up == len(encode({"w": leaf}))


def test_reading_the_table_changes_nothing() -> None:
    ledger, straight = two_calls(), two_calls()
    first = ledger.table()
    assert ledger.table() == first
    for each in (ledger, straight):
        each.record(3, 4, "late", ["c"], "up", {"x": 1.0})
    assert ledger.table().to_pylist() == straight.table().to_pylist()
    assert ledger.table().num_rows == first.num_rows + 2


@pytest.mark.parametrize("through_file", [False, True])
def test_a_restored_ledger_continues(through_file: bool, tmp_path: Path) -> None:
    ledger, straight = two_calls(), two_calls()
    table = ledger.table()
    if through_file:
        pq.write_table(table, tmp_path / "ledger.parquet")
        table = pq.read_table(tmp_path / "ledger.parquet")
    again = Ledger()
    again.record(9, 9, "forgotten", ["z"], "up", {"x": 1.0})
    again.restore(table)
    assert (again.bytes_up, again.bytes_down) == (ledger.bytes_up, ledger.bytes_down)
    for each in (again, straight):
        each.record(3, 4, "late", ["c"], "down", {"x": 1.0})
    assert again.table().to_pylist() == straight.table().to_pylist()
    assert (again.bytes_up, again.bytes_down) == (straight.bytes_up, straight.bytes_down)


def test_an_empty_ledger_has_the_columns_and_can_be_restored() -> None:
    table = Ledger().table()
    assert table.schema == SCHEMA
    assert table.num_rows == 0
    again = two_calls()
    again.restore(table)
    assert (again.bytes_up, again.bytes_down, again.table().num_rows) == (0, 0, 0)


def test_counts_are_read_with_the_ledger_and_stay_in_their_place() -> None:
    rows, now, then = torch.tensor([[1.0, 0], [1.0, 2.0], [0, 0]]), Ledger(), Ledger()
    counts = torch.full((3, 1), -1)  # as of a device that has not counted yet
    for ledger in (now, then):
        ledger.purpose = EVALUATION
        ledger.record(1, 0, "first", ["z"], "up", {"x": 1.0})
    then.record(1, 1, "told", ["a", "c"], "down", {"w": Sparsified(rows[0])}, counts=Counts(("w",), counts, [1, 2]))
    for client, row in (("a", rows[1]), ("c", rows[2])):
        now.record(1, 1, "told", [client], "down", {"w": Sparsified(row)})
    for ledger in (now, then):
        ledger.record(1, 2, "last", ["z"], "up", {"x": 1.0})
    counts.copy_((rows != 0).sum(1, keepdim=True))
    assert then.sizes() == now.sizes()
    assert then.table().drop(["at"]) == now.table().drop(["at"])
    assert then.table()["client"].to_pylist() == ["z", "z", "a", "a", "c", "c", "z", "z"]


REGION = LedgerColumn("region", WORD, "test", lambda row: [row.line.shape] * 2, per_client=True, optional=True)


def test_a_new_column_is_an_entry_of_the_table() -> None:
    columns = (*COLUMNS, REGION)
    entry = Entry(1, 0, "train", ("a", "b"), "up", (Line("w", "[2] float32", 8),), 30, 0.5)
    table = table_of([entry], columns)
    assert table.schema == schema(columns)
    assert table["region"].to_pylist() == ["[2] float32"] * 2 + [""] * 2
    assert table.select(SCHEMA.names) == table_of([entry])
    assert add_absent_columns(table_of([entry]), columns).select(table.column_names).schema == table.schema


def test_a_file_without_optional_columns_is_read_and_continued(tmp_path: Path) -> None:
    optional = [column.name for column in COLUMNS if column.optional]
    assert optional == ["to", "applied", "at", "purpose"]
    write_table(tmp_path / LEDGER, two_calls().table().drop_columns(optional))
    table = read_table(tmp_path, LEDGER)
    ledger = Ledger()
    ledger.restore(table)
    assert table.schema.names == SCHEMA.names
    assert ledger.table().schema == SCHEMA
    assert {table[name].null_count for name in optional} == {len(table)}


def test_the_reader_of_files_knows_every_column() -> None:
    known = {name: column.full for name, column in LEDGER_COLUMNS.items()}
    assert known == {column.name: not column.optional for column in COLUMNS}
    assert all(LEDGER_COLUMNS[column.name].fits(column.type) for column in COLUMNS)
    assert all(column.meaning for column in COLUMNS)


def test_every_field_of_a_journal_reaches_a_column() -> None:
    """A field that no column reads would be lost in ledger.parquet."""
    line = Line("w", "[2] float32", 8, "clipped", "weights", "{}")
    entry = Entry(1, 2, "train", ("a",), "peer", (line,), 30, 0.5, ("b",), 7.0, "training")
    row = table_of([entry]).to_pylist()[0]
    fields = vars(entry) | line._asdict()
    plain = {key: value for key, value in fields.items() if key not in ("clients", "keys", "size", "to", "at")}
    assert {key: row[key] for key in plain} == plain
    assert (row["client"], row["to"], row["at"].timestamp()) == ("a", "b", 7.0)
    assert len(row) == len(plain) + 3
