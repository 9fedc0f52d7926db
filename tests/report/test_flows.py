"""A ledger as a compliance officer reads it."""

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from fedweave.accounts.compliance import left_section, messages_section, privacy_tile
from fedweave.accounts.ledger import flows, of_member, period, show_ledger
from fedweave.core.federation import Sends, StepInfo
from fedweave.core.ledger import Ledger
from fedweave.core.mechanism import LDP, Clipped, Derived, Gaussian, Mechanism, SecureSum
from fedweave.core.types import EVALUATION, FRAMING, KEPT_BACK, SETUP, TRAINING
from fedweave.partition.base import Part, Partition
from fedweave.partition.scaling import meter_scaling
from fedweave.privacy.accountant import of_members
from fedweave.privacy.gaussian import epsilon
from tests import commands
from tests.refusals import check_facts, refusal

SENT = StepInfo.of({"h": Sends("rows", (Clipped(1.0), Gaussian(0.5, 2.0))), "n": "a count"})
HEARD = StepInfo.of({"w": "the joint model"})


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> pa.Table:
    """Two banks send rows with μ = 4 twice, and one of them a message to the other; a round is a minute."""
    clock = SimpleNamespace(time=lambda: 1_700_000_000.0 + 60 * made.number)
    made = SimpleNamespace(number=0)
    monkeypatch.setattr("fedweave.core.ledger.time", clock)
    kept, h = Ledger(), {"h": {"x": torch.zeros(2), "y": torch.zeros(2)}, "n": 3}
    for made.number in (1, 2):
        kept.purpose = TRAINING
        kept.record(made.number, 0, "A.train", ["bank-a", "bank-b"], "down", {"w": torch.zeros(4)}, 0.0, HEARD)
        kept.record(made.number, 0, "A.train", ["bank-a", "bank-b"], "up", h, 0.5, SENT)
        kept.purpose = EVALUATION
        kept.record(made.number, 1, "A.score", ["bank-a", "bank-b"], "up", {"own": 1.0})
    kept.purpose = TRAINING
    peer = StepInfo.of({"s": Sends("a code", LDP(200.0, "node"))})
    kept.record(2, 2, "A.tell", ["bank-a"], "peer", {"s": 1.0}, 0.0, peer, ["bank-b"])
    return kept.table()


@pytest.mark.parametrize("kept_back", [("labels",), ("labels", "nodes")])
def test_the_line_of_what_left_before_training_has_nothing_that_was_kept_back(kept_back: tuple[str, ...]) -> None:
    sends = {"labels": Sends("counts", LDP(1.0, "label")), "nodes": Sends("how many nodes")}
    sends |= {key: replace(sends[key], reveals=f"{KEPT_BACK}kept back") for key in kept_back}
    ledger = Ledger()
    ledger.purpose = SETUP
    ledger.record(0, 0, "(join)", ["a"], "up", {"labels": torch.zeros(2), "nodes": 3}, 0.0, StepInfo(sends))
    table = left_section(flows(ledger.table()), 1).grid
    rows = [dict(zip(table.head, row, strict=True)) for row in table.rows]
    before = [row for row in rows if row["what the receiver learns"].startswith("before training")]
    expected = [] if "nodes" in kept_back else [("before training: nodes", "none")]
    assert [(row["what the receiver learns"], row["protection"]) for row in before] == expected
    sizes = [int(row["size"].split()[0]) for row in rows]
    assert sum(sizes[:-1]) == sizes[-1] == ledger.bytes_up


def test_a_kind_of_message_is_one_line_with_its_ends_times_and_sums(ledger: pa.Table) -> None:
    found = {(one.purpose, one.direction, one.key): one for one in flows(ledger)}
    rows = found[TRAINING, "up", "h"]
    assert (rows.senders, rows.receivers, rows.messages, rows.bytes) == (("bank-a", "bank-b"), ("server",), 4, 64)
    assert (rows.first, rows.last) == tuple(datetime(2023, 11, 14, 22, 13 + n, 20, tzinfo=UTC) for n in (1, 2))
    down = found[TRAINING, "down", "w"]
    assert (down.senders, down.receivers, down.reveals) == (("server",), ("bank-a", "bank-b"), "the joint model")
    told = found[TRAINING, "peer", "s"]
    assert (told.senders, told.receivers, told.messages) == (("bank-a",), ("bank-b",), 1)
    assert found[EVALUATION, "up", "own"].reveals == ""
    assert sum(one.bytes for one in found.values()) == sum(ledger["bytes"].to_pylist())
    order = [one.purpose for one in flows(ledger)]
    assert order == sorted(order, key=[TRAINING, EVALUATION].index)


def test_parts_that_tell_different_things_have_names_of_their_own() -> None:
    """ "own/classes" tells something else than the rest of "own"; "w/b" is not different from "w/a"."""
    info = StepInfo.of({"own": "hits", "own/classes": "counts by class", "w": "weights"})
    kept, tree = Ledger(), {"own": {"loss": 1.0, "hits": 2.0, "classes": torch.zeros(2)}, "w": {"a": 1.0, "b": 2.0}}
    kept.record(1, 0, "A.score", ["bank-a"], "up", tree, 0.0, info)
    named = {one.key: one.reveals for one in flows(kept.table())}
    assert named == {"own": "hits", "own/classes": "counts by class", "w": "weights", FRAMING: ""}


def test_epsilon_is_composed_for_each_member(ledger: pa.Table) -> None:
    """Two releases with μ = 4 are one with μ = √32."""
    spent = of_members(ledger)
    assert {name: [(one.per, one.messages) for one in own] for name, own in spent.items()} == {
        "bank-a": [("row", 2), ("node", 1)],
        "bank-b": [("row", 2)],
    }
    assert spent["bank-b"][0].epsilon == pytest.approx(epsilon(32**0.5, 1e-5))
    assert [one.remark for one in spent["bank-a"]] == ["protects little", "protects practically nothing"]
    weak = Ledger()
    weak.record(1, 0, "s", ["a"], "up", {"x": 1.0}, 0.0, StepInfo.of({"x": Sends("x", LDP(10.0, "node"))}))
    assert not of_members(weak.table())["a"][0].remark


def shown(ledger: pa.Table, member: str = "") -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    show_ledger(console, ledger, member)
    return " ".join(console.export_text().split())


def test_the_terminal_says_it_in_words(ledger: pa.Table) -> None:
    said = shown(ledger)
    for words in (
        "2 members: bank-a, bank-b",
        "training each member → server A.train: h rows",
        "training server → each member A.train: w the joint model none 4 64 bytes 2023-11-14 22:14:20, 22:15:20",
        "evaluation each member → server A.score: own not described",
        "bank-a: ε = 200 per node after 1 message, which protects practically nothing",
        "each member: ε = ",
        "An ε above 10 protects little, and one above 100 practically nothing",
        "In no ε, because nothing bounds what it reveals: A.score: own, A.train: n.",
    ):
        assert words in said, words
    alone = shown(ledger, "bank-b")
    check_facts(alone, "bank-a", "bank-b", "A.tell: s")
    assert not any("node" in line.split() for line in alone.splitlines())
    assert of_member(ledger, "bank-a")["client"].to_pylist().count("bank-b") == 0


def test_the_command_reads_a_runs_folder_and_refuses_others(ledger: pa.Table, tmp_path: Path) -> None:
    pq.write_table(ledger, tmp_path / "ledger.parquet")
    rows = json.loads(commands.run("ledger", tmp_path, "--json"))
    lines = list(csv.DictReader(io.StringIO(commands.run("ledger", tmp_path, "--csv"))))
    assert [row["messages"] for row in rows] == [int(line["messages"]) for line in lines]
    assert rows[0]["from"] == ["bank-a", "bank-b"]
    assert lines[0]["first"] == "2023-11-14T22:14:20+00:00"
    for words in ((tmp_path, "--member", "bank-z"), (tmp_path, "--csv", "--json"), (tmp_path / "none",)):
        commands.run("ledger", *words, code=2)


def test_an_older_ledger_is_shown_without_times(ledger: pa.Table, tmp_path: Path) -> None:
    pq.write_table(ledger.drop_columns(["at", "purpose"]), tmp_path / "ledger.parquet")
    rows = json.loads(commands.run("ledger", tmp_path, "--json"))
    assert {(row["purpose"], row["first"]) for row in rows} == {("", None)}


@pytest.mark.parametrize(("how", "up", "down"), [("standard", 8 * (1 + 2 * 6), 2 * 8 * 6), ("none", 0, 0)])
def test_scaling_over_all_members_nodes_is_in_the_ledger(how: str, up: int, down: int) -> None:
    """In numbers: how many nodes and two sums for each of six features; a shift and a divisor of each come back."""
    parts = tuple(Part(np.arange(3), np.ones((3, 3), bool)) for _ in range(3))
    ledger, sizes = Ledger(), {"up": 0, "down": 0}
    meter_scaling(ledger, ("a", "b", "c"), Partition(parts), 6, how)
    for row in ledger.table().to_pylist():
        assert (row["purpose"], row["step"]) == (SETUP, "(scale)")
        sizes[row["direction"]] += row["bytes"] if row["reveals"] else 0
    assert sizes == {"up": 3 * up, "down": 3 * down}


def test_of_many_members_few_are_named() -> None:
    kept = Ledger()
    kept.record(
        1, 0, "A.train", [f"c{i:04}" for i in range(10_000)], "up", {"n": 1}, 0.0, StepInfo.of({"n": "a count"})
    )
    told = shown(kept.table())
    check_facts(told, "10,000 members: c0000, c0001, … c9999")
    assert len(told) < 2000
    with refusal("user.no-member", "'x'", "10,000 members: c0000, c0001, … c9999"):
        of_member(kept.table(), "x")


def test_a_compliance_report_says_all_that_is_learnt_of_each_key_a_line_for_each() -> None:
    kept, tells = Ledger(), "nothing by itself; with the others' the mean of: the model"
    for purpose, keys in ((TRAINING, {"update": tells}), (SETUP, {"names": "a fingerprint; 0 if none", "labels": "n"})):
        kept.purpose = purpose
        kept.record(1, 0, "A.x", ["a", "b"], "up", dict.fromkeys(keys, 1), 0.0, StepInfo.of(keys))
    found = messages_section(flows(kept.table()), 2).grid
    rows = [dict(zip(found.head, row, strict=True)) for row in found.rows]
    told = {row["key"]: row["what the receiver learns"] for row in rows if row["key"]}
    assert told == {"update": tells, "names": "a fingerprint; 0 if none", "labels": "n"}


def test_a_period_is_of_all_that_was_asked(ledger: pa.Table) -> None:
    assert period(ledger) == "2023-11-14 22:14 to 2023-11-14 22:15 UTC"
    assert period(ledger, ["2023-11-14T22:09:01+00:00"]) == "2023-11-14 22:09 to 2023-11-14 22:15 UTC"


PLAIN, SUM, NOISE = None, SecureSum(everyone=True), Gaussian(0.5, 2.0)


@pytest.mark.parametrize(
    ("mechanism", "value", "said", "unsaid"),
    [
        (PLAIN, "none", ("without differential privacy", "exact model updates leave"), ("secure sum",)),
        (SUM, "none", ("without differential privacy", "only in a secure sum"), ("exact model updates",)),
        (NOISE, "ε = ", ("with differential privacy",), ("secure sum", "exact model updates")),
        ((NOISE, SUM), "ε = ", ("with differential privacy", "only in a secure sum"), ("exact model updates",)),
    ],
)
def test_the_verdict_follows_from_what_protects_the_update(
    mechanism: Mechanism | tuple[Mechanism, ...] | None, value: str, said: tuple[str, ...], unsaid: tuple[str, ...]
) -> None:
    """What a site tells when it joins mentions weights, those of edges; it is no update."""
    kept = Ledger()
    kept.purpose = SETUP
    kept.record(0, 0, "(join)", ["a"], "up", {"edge_weights": 1}, 0.0, StepInfo.of({"edge_weights": "edges' weights"}))
    kept.purpose = TRAINING
    declared = StepInfo.of({"update": Sends("change of the model", mechanism), "more": Sends("x", Derived("update"))})
    kept.record(1, 0, "A.train", ["a"], "up", {"update": torch.zeros(2), "more": 1}, 0.0, declared)
    table = kept.table()
    tile, clause = privacy_tile(flows(table), of_members(table).get("a", ()))
    assert tile.value.startswith(value)
    check_facts(clause, *said)
    assert not any(words in clause for words in unsaid)
    assert all(len(note) < 100 for note in tile.notes if not note.startswith("ε"))
    check_facts(" ".join(tile.notes), "edge_weights")
