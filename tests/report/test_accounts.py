"""Statements of account end to end: they reconcile, and a member finds out what was changed."""

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from rich.filesize import decimal

from fedweave.accounts.checks import check_same
from fedweave.accounts.compliance import of_run
from fedweave.accounts.statement_document import document, money
from fedweave.accounts.statements import account
from fedweave.experiment.rounds import SERVER
from fedweave.experiment.runs.files import write_csv, write_table
from fedweave.experiment.runs.reading import group_runs, read_run
from fedweave.incentives.statement import Terms, chain, digest, hashes
from fedweave.reports import tables
from fedweave.reports.html import render
from fedweave.reports.motifs import Kinds, kinds_of, motif_drawing
from tests.commands import run
from tests.refusals import check_facts, refusal

ROUNDS = 5
ISSUED = date(2026, 11, 27)
ZERO = Decimal()
PARTS: tuple[Callable[[Decimal], Decimal], ...] = (lambda p: max(p, ZERO), lambda p: min(p, ZERO), lambda p: p)
CONFIG = """
rounds = {rounds}
eval_every = {rounds}
[data]
name = "tu"
path = "{data}"
[partition]
name = "graphs_iid"
clients = 3
[model]
name = "gin"
pool = "sum"
hidden = 4
layers = 1
[algorithm]
name = "fgfl"
alpha1 = 0.5
budget = 1000.01
currency = "CHF"
[engine]
threads = 1
"""


def write_graphs(folder: Path, count: int = 40) -> None:
    """Rings and paths of labeled nodes, in the TU layout."""
    rng = np.random.default_rng(0)
    edges, graph, label = [], [], []
    for at in range(count):
        size, first = int(rng.integers(3, 7)), len(graph)
        pairs = [(i, (i + 1) % size) for i in range(size if at % 2 else size - 1)]
        edges += [pair for a, b in pairs for pair in ((first + a, first + b), (first + b, first + a))]
        graph += [at + 1] * size
        label += rng.integers(0, 3, size).tolist()
    folder.mkdir()
    (folder / "DS_A.txt").write_text("".join(f"{a + 1}, {b + 1}\n" for a, b in edges))
    (folder / "DS_graph_indicator.txt").write_text("".join(f"{one}\n" for one in graph))
    (folder / "DS_graph_labels.txt").write_text("".join(f"{at % 2}\n" for at in range(count)))
    (folder / "DS_node_labels.txt").write_text("".join(f"{one}\n" for one in label))


def fedweave(*words: object, code: int = 0) -> str:
    """What the command says; in one line if it is to fail."""
    said = run(*words, code=code)
    return " ".join(said.split()) if code else said


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that pays three members."""
    folder = tmp_path_factory.mktemp("paid")
    write_graphs(folder / "data")
    (folder / "config.toml").write_text(CONFIG.format(rounds=ROUNDS, data=folder / "data"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDWEAVE_CACHE", str(folder / "cache"))
        fedweave("run", folder / "config.toml", "--out", folder / "run", "--quiet")
        fedweave("run", folder / "config.toml", "--set", "seed=1", "--out", folder / "other", "--quiet")
    fedweave("statement", folder / "run")
    return folder / "run"


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """The run and its statement, to be tampered with."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_the_three_forms_agree_and_reconcile_to_the_cent(finished: Path) -> None:
    lines = pq.read_table(finished / "statement/statement.parquet").to_pylist()
    sums: dict[int, Decimal] = defaultdict(Decimal)
    for line in lines:
        sums[line["round"]] += line["pay"]
        assert line["currency"] == "CHF"
    assert sums == dict.fromkeys(range(1, ROUNDS + 1), Decimal("1000.01"))
    written = pyarrow.csv.read_csv(finished / "statement/statement.csv").to_pylist()
    assert [(row["round"], row["member"], Decimal(str(row["pay"]))) for row in written] == [
        (line["round"], line["member"], line["pay"]) for line in lines
    ]
    page = (finished / "statement/statement.html").read_text()
    check_facts(page, f"<td>{money(Decimal('5000.05'))}</td></tr>")
    assert all(f"<td>{money(line['pay'])}</td>" in page for line in lines)


def test_lines_are_what_the_server_knew(finished: Path) -> None:
    metrics = pq.read_table(finished / "metrics.parquet").to_pylist()
    known = {(r["round"], r["client"], r["metric"]): r["value"] for r in metrics if r["split"] == SERVER}
    for line in pq.read_table(finished / "statement/statement.parquet").to_pylist():
        at = (line["round"], line["member"])
        names = ("alignment", "diversity", "value", "density")
        assert [line[name] for name in names] == [known[*at, name] for name in names]
        assert abs(float(line["pay"]) - known[*at, "payoff"]) < 0.01


def test_pay_follows_from_the_values_of_a_statement_alone(finished: Path) -> None:
    """Eqs. 5 to 7 by what a member reads: r_i, and what it is above the member's mean in the rounds before."""
    lines = pq.read_table(finished / "statement/statement.parquet").to_pylist()
    values: dict[str, list[float]] = defaultdict(list)
    for number in range(1, ROUNDS + 1):
        own = {line["member"]: line for line in lines if line["round"] == number}
        late = {
            name: max(line["value"] - np.mean(values[name]), 0.0) if number > 1 else 0.0 for name, line in own.items()
        }
        due = {name: line["value"] + late[name] * (line["value"] >= 0) for name, line in own.items()}
        for name, line in own.items():
            assert float(line["pay"]) == pytest.approx(1000.01 * due[name] / sum(due.values()), abs=0.01)
            assert ("late contribution" in line["reason"]) == (late[name] > 0 and line["value"] >= 0)
            values[name].append(line["value"])


def test_the_terminal_shows_totals_and_the_page_what_leave_one_out_counts(copied: Path) -> None:
    told = fedweave("statement", copied)
    rows = pq.read_table(copied / "statement/statement.parquet").to_pylist()
    for member in ("client-0", "client-1", "client-2"):
        [line] = [line for line in told.splitlines() if line.strip().startswith(member)]
        assert line.split()[1:] == [
            str(ROUNDS),
            *(money(sum((part(row["pay"]) for row in rows if row["member"] == member), Decimal())) for part in PARTS),
            "CHF",
        ]
    fedweave("contributions", copied, "--rounds", "2", "--metric", "loss")
    fedweave("statement", copied)
    page = (copied / "statement/statement.html").read_text()
    check_facts(page, "gain in loss")
    assert page.count('<th scope="col">leave-one-out</th>') == 2


def test_pay_for_a_model_of_one_class_is_told_first(copied: Path, tmp_path: Path) -> None:
    """By the command, the page, the seal and a member's copy, which passes its check; not where there is one class."""
    summary = json.loads((copied / "summary.json").read_text())

    def told(predicted: int, accuracy: float) -> list[bool]:
        metrics = summary["metrics"] | {"global/classes_predicted": predicted, "global/accuracy": accuracy}
        (copied / "summary.json").write_text(json.dumps(summary | {"metrics": metrics}))
        said = fedweave("statement", copied, "--out", tmp_path / "whole").splitlines()[0]
        fedweave("statement", copied, "--member", "client-1", "--out", tmp_path / "own")
        fedweave("statement", "--member", "client-1", "--check", tmp_path / "own")
        page = (tmp_path / "whole/statement.html").read_text()
        first = page.partition("<main")[0]
        seals = [json.loads((tmp_path / name / "statement.json").read_text()) for name in ("whole", "own")]
        return ["one class" in said, "one class" in first, *("one class" in str(next(iter(s.values()))) for s in seals)]

    assert told(1, 0.6) == [True] * 4
    assert told(2, 0.6) == told(1, 1.0) == [False] * 4


def test_a_member_gets_its_own_lines_alone_and_can_check_them(finished: Path, tmp_path: Path) -> None:
    fedweave("statement", finished, "--member", "client-1", "--out", tmp_path / "mine")
    assert set(pq.read_table(tmp_path / "mine/statement-client-1.parquet")["member"].to_pylist()) == {"client-1"}
    for path in (tmp_path / "mine").glob("statement-client-1.*"):
        assert b"client-0" not in path.read_bytes()
    fedweave("statement", finished, "--member", "client-1", "--check", tmp_path / "mine")
    fedweave("statement", finished, "--member", "client-2", "--check", finished / "statement")


def own_copy(run: Path, member: str = "client-1") -> Path:
    fedweave("statement", run, "--member", member)
    return run / "statement" / member


def check_copy(copy: Path, code: int = 0, member: str = "client-1") -> str:
    """What the command says to a member that has nothing but its copy."""
    return fedweave("statement", "--member", member, "--check", copy, code=code)


def edit_seal(folder: Path, **values: Any) -> dict[str, Any]:
    """Change values of a statement's seal; returns what it had before."""
    before: dict[str, Any] = json.loads((folder / "statement.json").read_text())
    (folder / "statement.json").write_text(json.dumps(before | values))
    return before


def test_a_member_checks_with_its_copy_alone(copied: Path, tmp_path: Path) -> None:
    shutil.rmtree(copied / "statement")
    copy = own_copy(copied).rename(tmp_path / "mine")
    shutil.rmtree(copied)
    check_copy(copy)
    ledger = pq.read_table(copy / "ledger.parquet").unify_dictionaries().combine_chunks()
    for column in ledger.columns:  # a dictionary tells words of rows that were left out
        if pa.types.is_dictionary(column.type):
            assert set(column.chunk(0).dictionary.to_pylist()) == set(column.to_pylist()) - {None}
    for path in copy.iterdir():  # names of the others, and hashes, are all there is of them
        others = [row for row in tables_in(path) if row.get("client", row.get("member")) not in (None, "client-1")]
        assert not others, path
        assert path.suffix in (".csv", ".html", ".parquet", ".json", ".toml")
        assert path.suffix == ".json" or b"client-0" not in path.read_bytes()


def test_a_statement_has_a_number_and_a_period_and_a_pdf_says_the_same(copied: Path) -> None:
    run = read_run(copied)
    whole = account(run)
    shown = document(whole, whole.table, "x", "y", run, ISSUED)
    facts = dict(shown.facts)
    assert facts["number"] == shown.number
    assert whole.digest.digest[:12].upper() in shown.number
    assert f"{run.ledger['at'].to_pylist()[0]:%Y-%m-%d %H:%M}" in facts["period"]
    totals = next(one.grid for one in shown.sections if one.heading == "Totals")
    assert totals.rows[-1][-1] == money(sum(whole.table["pay"].to_pylist(), ZERO))
    assert totals.sums == 1
    odd = [(row["round"] + (row["member"] == "client-0")) % 2 == 0 for row in whole.table.to_pylist()]
    some = whole.table.filter(pa.array(odd))  # of each member other rounds
    totals = next(one.grid for one in document(whole, some, "x", "y", run, ISSUED).sections if one.heading == "Totals")
    assert int(totals.rows[-1][1]) == len({row["round"] for row in some.to_pylist()})
    fedweave("statement", copied, "--pdf")
    before = (copied / "statement/statement.pdf").read_bytes()
    fedweave("statement", copied, "--pdf")
    assert before.startswith(b"%PDF-")
    assert (copied / "statement/statement.pdf").read_bytes() == before
    assert shown.number in (copied / "statement/statement.html").read_text()


def test_a_runs_compliance_report_names_what_left_and_who_asked(copied: Path) -> None:
    path = copied / "config.toml"
    path.write_text('requester = "Clinic B"\npurpose = "a trial"\n' + path.read_text())
    found = of_run(read_run(copied))
    facts = dict(found.facts)
    assert (facts["asked by"], facts["purpose"]) == ("Clinic B", "a trial")
    check_facts(facts["run"], "simulation")
    sent = found.sections[0].grid
    left = pc.sum(read_run(copied).ledger.filter(pc.field("direction") != "down")["bytes"]).as_py()
    assert decimal(left) in found.verdict
    assert decimal(left) == found.tiles[0].value == sent.rows[-1][sent.head.index("size")]
    kinds = found.sections[1].grid
    assert kinds.rows[0][kinds.head.index("sent by")] == "each member"
    fedweave("compliance", copied)
    check_facts((copied / "compliance.html").read_text(), "Clinic B")
    fedweave("compliance", copied, "--run", "r1", code=2)
    fedweave("compliance", copied.parent, code=2)


def tables_in(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist() if path.suffix == ".parquet" else []


def test_a_copy_needs_a_folder_of_its_own(copied: Path) -> None:
    copy = own_copy(copied)
    before = (copied / "ledger.parquet").read_bytes()
    for words, said in (
        ((copied, "--member", "client-0", "--out", copy), "holds statement-client-1.csv: give every member a separate"),
        ((copied, "--member", "client-0", "--out", copied), "holds a config.toml of a run or of something else"),
        ((copied, "--out", copy), "holds statement-client-1.csv"),  # everybody's lines beside what is handed to one
        ((copied, "--out", copied.parent / "run"), "holds a config.toml"),
        (("--member", "client-0", "--check", copied / "statement"), "is not a member's copy: it has no ledger.parquet"),
        ((), "name the directory of a run"),
    ):
        assert said in fedweave("statement", *words, code=2)
    assert (copied / "ledger.parquet").read_bytes() == before


def sealed_again(copy: Path, lines: Callable[[pa.Table], pa.Table], **values: Any) -> None:
    """What a dishonest writer of statements can do: lines, seal and spreadsheet agree."""
    path = copy / "statement-client-1.parquet"
    before = pq.read_table(path)
    after = lines(before)
    seal = edit_seal(copy)
    others = [line for line in seal["lines"] if line not in hashes(before)]
    kept = [*others, *hashes(after)]
    seal |= {"lines": kept, **values}
    sums = {int(number): total for number, total in seal["sums"].items()}
    start = digest(after, Terms(seal["budget"], seal["currency"]), seal["run"], sums).start
    edit_seal(copy, **seal | {"start": start, "digest": chain(start, kept)})
    write_table(path, after)
    write_csv(copy / "statement-client-1.csv", after)


def test_a_copy_that_pays_less_than_follows_from_its_values_is_refused(copied: Path) -> None:
    copy = own_copy(copied)
    sealed_again(copy, lambda lines: lines)
    check_copy(copy)  # what `sealed_again` does is not found out by itself
    sealed_again(copy, lambda lines: with_pay(lines, Decimal("-0.02")))
    assert re.search(r"in round 1 the statement pays \S+, and from its values follow", check_copy(copy, code=2))


def test_a_copy_that_lacks_a_round_in_which_the_member_trained_is_refused(copied: Path) -> None:
    """Also where the seal says that nobody was paid then."""
    copy = own_copy(copied)
    sealed_again(copy, lambda lines: lines.slice(1))
    check_facts(check_copy(copy, code=2), "client-1", "round 1")
    sums = edit_seal(copy)["sums"]
    sealed_again(copy, lambda lines: lines, sums=sums | {"1": 0.0})
    check_facts(check_copy(copy, code=2), "client-1", "round 1")


def with_line(table: pa.Table, **values: Any) -> pa.Table:
    """One more line in front: the first with other values."""
    return pa.concat_tables([pa.Table.from_pylist([table.slice(0, 1).to_pylist()[0] | values], table.schema), table])


def test_a_copy_with_lines_of_a_round_twice_or_of_none_is_refused(copied: Path) -> None:
    copy = own_copy(copied)
    honest = pq.read_table(copy / "statement-client-1.parquet")
    sealed_again(copy, lambda lines: with_line(lines, reason="fined", pay=Decimal("-900.00")))
    check_facts(check_copy(copy, code=2), "client-1", "round 1")
    against = ("statement", copied, "--member", "client-1", "--check", copy)
    check_facts(fedweave(*against, code=2), "client-1", "round 1")
    sealed_again(copy, lambda lines: with_line(honest, round=ROUNDS + 1))
    check_facts(check_copy(copy, code=2), f"round {ROUNDS + 1}", "client-1")


def test_lines_that_pay_the_same_for_other_reasons_are_refused_against_the_run(copied: Path) -> None:
    copy = own_copy(copied)

    def of_pity(lines: pa.Table) -> pa.Table:
        at = lines.column_names.index("reason")
        return lines.set_column(at, lines.schema.field("reason"), pa.array(["pity"] * len(lines)))

    sealed_again(copy, of_pity)
    told = fedweave("statement", copied, "--member", "client-1", "--check", copy, code=2)
    check_facts(told, "client-1", "reasons")


def test_what_pay_is_divided_by_is_sealed(copied: Path) -> None:
    copy = own_copy(copied)
    seal = edit_seal(copy)
    larger = {number: 2 * total for number, total in seal["sums"].items()}
    edit_seal(copy, sums=larger)
    check_facts(check_copy(copy, code=2), "sums")
    edit_seal(copy, **seal)
    first = min(seal["sums"])
    sealed_again(copy, lambda lines: lines, sums={n: total for n, total in seal["sums"].items() if n != first})
    check_facts(check_copy(copy, code=2), "round 1")
    for odd in ("Infinity", "NaN", "-1.0"):
        edit_seal(copy, sums=seal["sums"] | {first: float(odd)})
        check_facts(check_copy(copy, code=2), "statement.json")
    edit_seal(copy, **seal)
    sealed_again(copy, lambda lines: lines, sums=larger)  # the digest is another than other members have
    check_facts(check_copy(copy, code=2), "values")


def test_members_compare_their_copies_and_name_whose_is_another(copied: Path) -> None:
    """Each copy passes alone: the writer has divided one member's pay by a larger sum and sealed that."""
    copies = [own_copy(copied, f"client-{at}") for at in range(3)]
    words = [word for copy in copies for word in ("--compare", copy)]
    check_facts(fedweave("statement", *words), "client-0, client-1, client-2")
    check_facts(fedweave("statement", *words[:4]), "client-2")
    half = {number: 2 * total for number, total in edit_seal(copies[1])["sums"].items()}

    def halved(lines: pa.Table) -> pa.Table:
        paid = [(amount / 2).quantize(Decimal("0.01")) for amount in lines["pay"].to_pylist()]
        return lines.set_column(lines.column_names.index("pay"), "pay", pa.array(paid, lines["pay"].type))

    sealed_again(copies[1], halved, sums=half)
    (copies[1] / "statement-client-1.csv").unlink()
    check_copy(copies[1])
    with refusal("statement.differs", "client-1:"):
        check_same(copies)
    with refusal("statement.differs", "client-0, client-1"):
        check_same(copies[:2])


def test_a_comparison_counts_members_and_a_majority_that_lies_is_not_found_out(copied: Path, tmp_path: Path) -> None:
    """A member that hands in its forged copy twice counts once. Two of three that forge alike make the third the odd
    one: docs/security.md names it as not promised."""
    copies = [own_copy(copied, f"client-{at}") for at in range(3)]
    sums = {number: 2 * total for number, total in edit_seal(copies[1])["sums"].items()}
    sealed_again(copies[1], lambda lines: lines, sums=sums)
    again = Path(shutil.copytree(copies[1], tmp_path / "again"))
    with refusal("statement.differs", "client-1:"):
        check_same([*copies, again])
    shutil.copyfile(copies[1] / "statement.json", copies[2] / "statement.json")
    with refusal("statement.differs", "client-0:"):
        check_same(copies)


def test_a_copy_of_another_configuration_or_other_messages_is_refused(copied: Path) -> None:
    copy = own_copy(copied)
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(config.replace("1000.01", "1000.0"))
    check_facts(check_copy(copy, code=2), "config.toml")
    (copy / "config.toml").write_text(config)
    rewrite(copy / "ledger.parquet", with_bytes)
    check_facts(check_copy(copy, code=2), "ledger", "client-1")
    (copy / "statement.json").write_text("[]")
    check_facts(check_copy(copy, code=2), "statement.json")


def rewrite(path: Path, change: Any) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def with_pay(table: pa.Table, more: Decimal = Decimal("0.01")) -> pa.Table:
    pay = table["pay"].to_pylist()
    pay[0] += more
    return table.set_column(
        table.column_names.index("pay"), table.schema.field("pay"), pa.array(pay, table["pay"].type)
    )


def with_bytes(table: pa.Table) -> pa.Table:
    return table.set_column(table.column_names.index("bytes"), "bytes", pc.add(table["bytes"], 1))


def test_what_was_changed_is_found_out(copied: Path) -> None:
    words = ("statement", copied, "--member", "client-0", "--check", copied / "statement")
    fedweave(*words)
    honest = (copied / "statement/statement.parquet").read_bytes()
    rewrite(copied / "statement/statement.parquet", with_pay)
    check_facts(fedweave(*words, code=2), "client-0", "round 1")
    (copied / "statement/statement.parquet").write_bytes(honest)
    spread = copied / "statement/statement.csv"
    text = spread.read_text()
    pay = text.splitlines()[1].split(",")[6]
    spread.write_text(text.replace(f",{pay},", ",99.99,", 1))
    assert spread.read_text() != text
    check_facts(fedweave(*words, code=2), "statement.csv")
    mine = copied / "statement/statement-client-0.csv"  # of its own lines, beside the Parquet of all
    mine.write_text("\n".join([text.splitlines()[0], *(s for s in text.splitlines() if "client-0" in s)]) + "\n")
    spread.write_text(text)
    fedweave(*words)
    mine.write_text(mine.read_text().replace(f",{pay},", ",99.99,", 1))
    check_facts(fedweave(*words, code=2), "statement-client-0.csv")
    mine.unlink()
    (copied / "statement/statement.parquet").unlink()
    check_facts(fedweave(*words, code=2), "statement-client-0.parquet", "statement.parquet")
    (copied / "statement/statement.parquet").write_bytes(honest)
    spread.write_text(text)
    seal = edit_seal(copied / "statement")
    for key, value, told in [
        ("run", "0" * 64, "does not follow from the ledgers"),
        ("budget", "999.00", "differ from the configuration"),
        ("digest", "0" * 64, "do not lead to the digest"),
        ("lines", seal["lines"][1:], "do not lead to the digest"),
        ("start", "0" * 64, "about another run"),
    ]:
        edit_seal(copied / "statement", **seal | {key: value})
        assert told in fedweave(*words, code=2)
    edit_seal(copied / "statement", **seal)
    rewrite(copied / "ledger.parquet", with_bytes)
    check_facts(fedweave(*words, code=2), "ledger", "client-0")


@pytest.mark.parametrize("cheat", ["left out", "less"])
def test_whoever_seals_a_statement_cannot_leave_out_or_lower_what_the_run_pays(copied: Path, cheat: str) -> None:
    """With lines, seal and spreadsheet that agree."""
    own, path = copied / "own", copied / "own/statement-client-0.parquet"
    fedweave("statement", copied, "--member", "client-0", "--out", own)
    before = pq.read_table(path)
    after = before.slice(1) if cheat == "left out" else with_pay(before)
    seal, old, new = edit_seal(own), hashes(before), hashes(after)
    lines = [line for line in seal["lines"] if line != old[0]]
    if cheat == "less":
        lines.insert(seal["lines"].index(old[0]), new[0])
    edit_seal(own, lines=lines, digest=chain(seal["start"], lines))
    write_table(path, after)
    write_csv(own / "statement-client-0.csv", after)
    said = fedweave("statement", copied, "--member", "client-0", "--check", own, code=2)
    number = before["round"][0].as_py()
    told = "leaves it out" if cheat == "left out" else f"says {after['pay'][0].as_py()}"
    assert re.search(rf"in round {number} .* for client-0, and the statement {re.escape(told)}", said)


def test_what_a_statement_cannot_be_made_or_checked_of_is_named(copied: Path, finished: Path, tmp_path: Path) -> None:
    config = copied / "config.toml"
    config.write_text(re.sub(r"(?m)^currency.*\n", "", config.read_text()))  # as of an algorithm that pays nobody
    own, statement = ("--member", "client-0"), finished / "statement"
    for words, facts in (
        ((finished.parent / "other", *own, "--check", statement), ("other/config.toml",)),
        ((finished, "--member", "nobody", "--out", tmp_path), ("'nobody'", "client-0, client-1, client-2")),
        ((finished, "--check", statement), ("--member",)),
        ((finished, *own, "--check", tmp_path), ("statement.json",)),
        ((copied,), ("'fairgraphfl'", "no member")),
    ):
        check_facts(fedweave("statement", *words, code=2), *facts)


def test_rounds_in_which_nobody_was_paid_are_told(copied: Path) -> None:
    def unpaid(table: pa.Table) -> pa.Table:
        here = pc.and_(pc.equal(table["round"], 2), pc.equal(table["metric"], "payoff"))
        value = pc.if_else(here, 0.0, table["value"])
        return table.set_column(table.column_names.index("value"), "value", value)

    rewrite(copied / "metrics.parquet", unpaid)
    whole = account(read_run(copied))
    assert whole.empty == (2,)
    assert set(whole.table["round"].to_pylist()) == {1, 3, 4, 5}
    fedweave("statement", copied)
    check_facts((copied / "statement/statement.html").read_text(), "In rounds 2")


def test_the_report_shows_contributions_payoffs_and_motifs(finished: Path) -> None:
    page = render([read_run(finished)])
    section = page[page.index('<section id="incentives">') : page.index('<section id="split">')]
    table = tables.incentives(read_run(finished))
    assert table.head == (
        "client",
        *("alignment, mean", "diversity, last", "value, last", "density, mean", "payoff, sum before rounding to cents"),
    )
    assert sum(float(row[-1].exact) for row in table.rows) == pytest.approx(ROUNDS * 1000.01)
    assert "figure-incentives-0" in section
    known = pq.read_table(finished / "motifs.parquet").to_pylist()
    assert {row["client"] for row in known} == {"client-0", "client-1", "client-2"}
    assert section.count("<svg width=") == len(known)  # beside the figure's
    of_one = [row["graphs"] for row in known if row["client"] == "client-0"]
    assert of_one == sorted(of_one, reverse=True)


def test_fairness_is_the_correlation_with_local_training(finished: Path, tmp_path: Path) -> None:
    config = finished.parent / "config.toml"
    fedweave("run", config, "--algorithm", "local", "--out", tmp_path / "local", "--quiet")
    runs = [read_run(finished), read_run(tmp_path / "local"), read_run(finished.parent / "other")]
    table = tables.reward_fairness(group_runs(runs))
    (row,) = table.rows  # the other seed has another split
    one, other = (run.clients("accuracy") for run in runs[:2])
    wanted = np.corrcoef([[run[c] for c in sorted(run)] for run in (one, other)])[0, 1]
    assert float(row[2].exact) == pytest.approx(wanted, nan_ok=True)
    assert render(runs)
    assert not tables.reward_fairness(group_runs([runs[0], runs[2]])).rows


def test_runs_without_payoffs_have_no_such_section(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    rewrite(run / "metrics.parquet", lambda table: table.filter(pc.not_equal(table["split"], SERVER)))
    assert '<section id="incentives">' not in render([read_run(run)])


def test_motifs_are_drawn_by_their_labels() -> None:
    for name, vertices, lines in (("bond 0 1", 2, 1), ("bond 3 4 edge 2", 2, 1), ("ring 0 0 1", 3, 3)):
        svg = ElementTree.fromstring(motif_drawing(name))
        assert len(svg.findall("circle")) == vertices
        assert len(svg.findall("line")) == lines
        labels = [text.text for text in svg.findall("text")]
        assert sorted(labels) == sorted(word for word in name.split() if word.isdigit())
    molecules = Kinds(("C", "<N", "oxygen"), ("=",))
    svg = ElementTree.fromstring(motif_drawing("ring 0 1 2 edge 0", molecules))
    assert [text.text for text in svg.findall("text")] == ["=", "C", "<N", "2"]
    assert molecules.legend() == "kinds of nodes: 0 C, 1 <N, 2 oxygen; kinds of edges: 0 ="
    for odd in ("", "bond 0", "ring 0 1", "bond <b> 1", "ring 0 1 2 edge <script>"):
        with refusal("motif.drawing"):
            motif_drawing(odd)


def test_kinds_in_a_damaged_motifs_file_are_refused(finished: Path) -> None:
    motifs = pq.read_table(finished / "motifs.parquet")
    assert kinds_of(motifs) == Kinds()
    for odd in (b"{", b"{}", b"[1]"):
        with refusal("motif.kinds", "no valid names of kinds"):
            kinds_of(motifs.replace_schema_metadata({b"node kinds": odd}))
