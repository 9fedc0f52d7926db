"""What members are owed for a whole run by coalitions' values, [pay]: limits, statements, and members that cheat."""

import html
import re
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from fedweave.accounts.document import MAX_TILES
from fedweave.accounts.statement_document import document, money
from fedweave.accounts.statements import account
from fedweave.cli import app
from fedweave.experiment.build import build
from fedweave.experiment.config import dumps, resolve
from fedweave.experiment.pay_notes import equal_size_note
from fedweave.experiment.runs.reading import read_run
from fedweave.incentives.payoffs import limit_shares
from fedweave.incentives.rules import PAYOFF, RULES
from fedweave.incentives.statement import of_member
from tests.algorithms import cheats
from tests.refusals import refusal

BUDGET = Decimal("1000.01")
CONFIG: dict[str, Any] = {
    "seed": 0,
    "rounds": 3,
    "data": {"name": "synthetic", "nodes": 600, "classes": 3, "features": 6, "signal": 0.8},
    "partition": {"name": "random", "clients": 5},
    "model": {"name": "gcn", "hidden": 8},
    "engine": {"mode": "loop"},
    "algorithm": {"name": "fedavg", "parts": ["coalition_value"]},
}
PAY: dict[str, Any] = {"budget": 1000.01, "currency": "CHF", "names": {"client-0": "Łódź Bank S.A."}}


def fedweave(*words: object, code: int = 0) -> str:
    told = CliRunner().invoke(app, [str(word) for word in words])
    assert told.exit_code == code, told.output
    return told.output


def run(folder: Path, parts: Any = ("coalition_value",), **pay: Any) -> Path:
    """A run whose members are owed parts of a budget."""
    folder.mkdir(exist_ok=True)
    document = CONFIG | {"pay": PAY | pay, "algorithm": {"name": "fedavg", "parts": list(parts)}}
    (folder / "config.toml").write_text(dumps(document))
    fedweave("run", folder / "config.toml", "--out", folder / "run", "--quiet")
    return folder / "run"


def owed(directory: Path) -> dict[str, Decimal]:
    return {line["member"]: line["pay"] for line in account(read_run(directory)).table.to_pylist()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("pay"))


def test_shares_are_limited_by_hand() -> None:
    shares, sizes = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([1.0, 1.0, 2.0])
    assert torch.allclose(limit_shares(shares, sizes, 2), torch.tensor([0.5, 1 / 3, 1 / 6]).double())  # .2 go as 2 to 1
    assert torch.allclose(limit_shares(shares, sizes, 1), torch.tensor([0.25, 0.25, 0.5]).double())
    assert torch.allclose(limit_shares(shares, sizes, 4), shares.double())
    alone = limit_shares(torch.tensor([1.0, 0.0, 0.0]), sizes, 2)  # the others are worth nothing: by size
    assert torch.allclose(alone, torch.tensor([0.5, 1 / 6, 1 / 3]).double())
    with refusal("user.cap"):
        limit_shares(shares, sizes, 0.9)


def test_nobody_gets_more_than_the_limit_and_the_budget_is_spent() -> None:
    draw = torch.Generator().manual_seed(0)
    for at in range(200):
        shares, sizes = torch.rand(2, 2 + at % 7, generator=draw).double()
        shares, sizes, cap = shares**5 / (shares**5).sum(), sizes / sizes.sum(), 1 + at / 50
        limited = limit_shares(shares, sizes, cap)
        assert abs(float(limited.sum()) - 1) < 1e-9
        assert bool((limited <= cap * sizes + 1e-9).all())
        assert bool((limited >= torch.minimum(shares, cap * sizes) - 1e-9).all())


def recomputed(why: str, budget: float) -> float:
    """The money of a line by the numbers that the page prints."""
    formula = why.replace("share = ", "").replace("\N{MULTIPLICATION SIGN}", "*").split(" = ")[0]
    formula = re.sub(r" by [\w-]+| by the server|size ", "", formula)
    limit = re.search(r", limited to (.*)$", formula)
    share = eval(limit.group(1) if limit else formula, {"__builtins__": {}})  # numbers, and + - * / ( )
    if left := re.search(r"and ([\d.e-]+) of what others' limit left", why):
        share += float(left.group(1))
    return float(share) * budget


def amounts_that_add_up(directory: Path, member: str, pay: Decimal) -> None:
    """The table of a member's statement: its last row is the sum of the others, and what the member is owed."""
    run = read_run(directory)
    whole = account(run)
    shown = document(whole, of_member(whole.table, member), "x", "y", run, date(2026, 11, 29))
    working = shown.sections[0].grid
    assert working is not None
    *amounts, total = [Decimal(row[1].replace(",", "").replace("\N{MINUS SIGN}", "-")) for row in working.rows]
    assert sum(amounts) == total == pay
    assert shown.tiles[0].value.split()[0] == money(pay)
    assert len(shown.tiles) == MAX_TILES
    assert whole.rule.formula in shown.sections[0].text[0]


@pytest.mark.parametrize(
    ("parts", "pay"),
    [
        (["coalition_value"], {"by": "shapley"}),
        (["coalition_value"], {"by": "shapley", "cap": 1.1}),
        (["norm_bound", "validated_value"], {"by": "validated"}),
        (["coalition_value"], {"by": "size"}),
        ([], {"by": "equal"}),
    ],
    ids=["shapley", "capped", "validated", "size", "equal"],
)
def test_the_page_prints_the_rule_that_paid_with_numbers_that_give_the_money(
    tmp_path: Path, parts: list[str], pay: dict[str, Any]
) -> None:
    directory = run(tmp_path, parts, **pay)
    output = fedweave("statement", directory)
    assert (bool(re.search("owed", output)), bool(re.search("paid", output))) == (True, False)
    lines = pq.read_table(directory / "statement/statement.parquet").to_pylist()
    page = html.unescape((directory / "statement/statement.html").read_text())
    assert sum(line["pay"] for line in lines) == BUDGET
    for line in lines:
        assert line["reason"] in page
        assert abs(recomputed(line["reason"], float(BUDGET)) - float(line["pay"])) < 0.011
    assert RULES[pay["by"]].formula in page
    words = {name: rule.words.format(metric="accuracy") for name, rule in RULES.items()}
    assert [name for name, text in words.items() if text in page] == [pay["by"]]
    assert PAYOFF.words not in page
    for line in lines:
        amounts_that_add_up(directory, line["member"], line["pay"])
    for word in ("issued", "Łódź Bank S.A. (client-0)", "date, signature", "for the whole run", "owed"):
        assert word in page, word


def test_the_page_of_rounds_prints_the_rule_that_paid_with_numbers_that_give_the_money(tmp_path: Path) -> None:
    """FairGraphFL's, as `[pay]` has no budget: r and the sum of a round give the money of that round."""
    document = CONFIG | {"algorithm": {"name": "cgsv", "alpha": 0.5}}
    document["algorithm"]["parts"] = [{"name": "payoff", "budget": 1000.0}]
    (tmp_path / "config.toml").write_text(dumps(document))
    fedweave("run", tmp_path / "config.toml", "--out", tmp_path / "run", "--quiet")
    fedweave("statement", tmp_path / "run")
    page = html.unescape((tmp_path / "run/statement/statement.html").read_text())
    assert PAYOFF.formula in page
    found = read_run(tmp_path / "run")
    for line in account(found).totals(account(found).table).to_pylist():
        amounts_that_add_up(tmp_path / "run", line["member"], line["pay"])
    assert "cos(u_i, u_N)" in page  # what r is
    assert not any(rule.words.format(metric="accuracy") in page for rule in RULES.values())
    table = page[page.index("Round by round") :]
    rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL)]
    names, *lines = [row for row in rows if len(row) > 5]
    before = dict[str, list[float]]()
    for line in lines:
        cells = dict(zip(names, line, strict=True))
        r, mine = float(cells["value r"]), before.setdefault(cells["member"], [])
        late = max(r - sum(mine) / len(mine), 0) if mine else 0.0
        money = 1000 * (r + late) / float(cells["sum"])
        assert abs(money - float(cells["pay, EUR"].replace(",", ""))) < 0.011
        mine.append(r)


def test_a_member_checks_its_copy_and_finds_what_was_changed(finished: Path, tmp_path: Path) -> None:
    fedweave("statement", finished, "--member", "client-1", "--out", tmp_path / "one")
    fedweave("statement", "--member", "client-1", "--check", tmp_path / "one")
    fedweave("statement", finished, "--member", "client-1", "--check", tmp_path / "one")
    path = tmp_path / "one/config.toml"
    path.write_text(path.read_text().replace("1000.01", "9000.01"))
    fedweave("statement", "--member", "client-1", "--check", tmp_path / "one", code=2)


@pytest.mark.parametrize("lie", cheats.LIES)
def test_who_lies_about_its_counts_is_owed_what_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, finished: Path, lie: str
) -> None:
    cheats.Liar(0, 5, cheats.LIES[lie]).install(monkeypatch)
    pay = owed(run(tmp_path))
    assert sum(pay.values()) == BUDGET
    assert abs(pay["client-0"] - owed(finished)["client-0"]) <= Decimal("0.01")  # a cent of the others' rounding


def test_members_whose_updates_stay_hidden_are_owed_the_same(tmp_path: Path) -> None:
    """In a secure sum nobody knows what one of them brought."""
    pay = owed(run(tmp_path, ["secure_sum"], by="equal"))
    assert sorted(pay.values()) == [*[Decimal("200.00")] * 4, Decimal("200.01")]


@pytest.mark.parametrize(
    ("parts", "pay"),
    [
        ([], {}),
        (["secure_sum"], {"by": "shapley"}),
        (["norm_bound", "validated_value"], {"by": "shapley"}),
        (["coalition_value"], {"by": "validated"}),
        ([], {"by": "size"}),
        ([], {"by": "equal", "cap": 1.5}),
    ],
)
@pytest.mark.parametrize("command", ["check", "run"])
def test_pay_by_what_nothing_measures_is_refused_before_training(
    tmp_path: Path, command: str, parts: list[str], pay: dict[str, Any]
) -> None:
    document = CONFIG | {"pay": PAY | pay, "algorithm": {"name": "fedavg", "parts": parts}}
    (tmp_path / "config.toml").write_text(dumps(document))
    fedweave(command, tmp_path / "config.toml", code=2)
    assert not (tmp_path / "runs").exists()
    with refusal("config.pay"):
        build(resolve(document))


@pytest.mark.parametrize(
    ("parts", "pay", "noted"),
    [
        (["norm_bound", "validated_value"], {"by": "size"}, True),
        (["norm_bound", "validated_value"], {"by": "validated", "cap": 1.5}, True),
        (["norm_bound", "validated_value"], {"by": "validated"}, False),
        (["by_size", "norm_bound", "validated_value"], {"by": "size"}, False),
        (["coalition_value"], {"by": "size"}, False),
    ],
)
def test_sizes_that_are_all_equal_are_noted(parts: list[str], pay: dict[str, Any], noted: bool) -> None:
    config = resolve(CONFIG | {"pay": PAY | {"cap": 0.0} | pay, "algorithm": {"name": "fedavg", "parts": parts}})
    assert bool(equal_size_note(config, build(config).algorithm)) == noted


@pytest.mark.parametrize(
    ("pay", "code"),
    [
        ({"cap": 0.5}, "config.value"),
        ({"budget": -1}, "config.value"),
        ({"by": "luck"}, "config.value"),
        ({"share": 1}, "config.unknown-key"),
    ],
)
def test_settings_that_pay_nobody_are_refused(pay: dict[str, Any], code: str) -> None:
    with refusal(code):
        resolve(CONFIG | {"pay": pay})


def test_what_is_usual_is_in_no_configuration() -> None:
    assert resolve(CONFIG).plain().keys().isdisjoint({"pay"})
    assert resolve(CONFIG | {"pay": PAY}).plain()["pay"] == PAY
