"""What members are owed for a whole run by coalitions' values, [pay]: limits, statements, and members that cheat."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.experiment.config import dumps, resolve
from fedweave.incentives.payoffs import capped
from fedweave.payments.statements import account
from fedweave.report.reading import read_run
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
    assert torch.allclose(capped(shares, sizes, 2), torch.tensor([0.5, 1 / 3, 1 / 6]).double())  # .2 go as 2 to 1
    assert torch.allclose(capped(shares, sizes, 1), torch.tensor([0.25, 0.25, 0.5]).double())
    assert torch.allclose(capped(shares, sizes, 4), shares.double())
    alone = capped(torch.tensor([1.0, 0.0, 0.0]), sizes, 2)  # the others are worth nothing: by size
    assert torch.allclose(alone, torch.tensor([0.5, 1 / 6, 1 / 3]).double())
    with refusal("user.cap"):
        capped(shares, sizes, 0.9)


def test_nobody_gets_more_than_the_limit_and_the_budget_is_spent() -> None:
    draw = torch.Generator().manual_seed(0)
    for at in range(200):
        shares, sizes = torch.rand(2, 2 + at % 7, generator=draw).double()
        shares, sizes, cap = shares**5 / (shares**5).sum(), sizes / sizes.sum(), 1 + at / 50
        limited = capped(shares, sizes, cap)
        assert abs(float(limited.sum()) - 1) < 1e-9
        assert bool((limited <= cap * sizes + 1e-9).all())
        assert bool((limited >= torch.minimum(shares, cap * sizes) - 1e-9).all())


def test_the_statement_is_of_the_whole_run_and_reconciles_to_the_cent(finished: Path) -> None:
    told = fedweave("statement", finished)
    assert "owed" in told
    assert "paid" not in told
    lines = pq.read_table(finished / "statement/statement.parquet").to_pylist()
    assert sum(line["pay"] for line in lines) == BUDGET
    gains = dict.fromkeys((line["member"] for line in lines), 0.0)
    for row in read_run(finished).metrics.to_pylist():
        gains[row["client"]] = gains.get(row["client"], 0.0) + row["value"] * (row["metric"] == "shapley")
    worth = {member: max(gain, 0.0) for member, gain in gains.items() if member.startswith("client")}
    for line in lines:
        assert abs(float(line["pay"]) - 1000.01 * worth[line["member"]] / sum(worth.values())) < 0.011
        assert f"gain {gains[line['member']]:.4f}" in line["reason"]
    page = (finished / "statement/statement.html").read_text()
    for word in ("issued", "Łódź Bank S.A. (client-0)", "date, signature", "for the whole run", "owed"):
        assert word in page, word


def test_a_member_checks_its_copy_and_finds_what_was_changed(finished: Path, tmp_path: Path) -> None:
    fedweave("statement", finished, "--member", "client-1", "--out", tmp_path / "one")
    fedweave("statement", "--member", "client-1", "--check", tmp_path / "one")
    fedweave("statement", finished, "--member", "client-1", "--check", tmp_path / "one")
    path = tmp_path / "one/config.toml"
    path.write_text(path.read_text().replace("1000.01", "9000.01"))
    fedweave("statement", "--member", "client-1", "--check", tmp_path / "one", code=2)


@pytest.mark.parametrize("cap", [0, 1.5])
def test_a_limit_holds_against_who_recognizes_its_update(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cap: float
) -> None:
    cheats.Liar(0, 5, cheats.fits).install(monkeypatch)
    directory = run(tmp_path, cap=cap)
    most = Decimal("1.5") * BUDGET / 5 + Decimal("0.01")  # five members of one size
    pay = owed(directory)
    assert sum(pay.values()) == BUDGET
    assert (pay["client-0"] <= most) == bool(cap)


def test_rounds_without_values_count_for_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cheats.Liar(0, 5, cheats.from_the_second_round).install(monkeypatch)
    directory = run(tmp_path)
    first = {row["client"]: max(row["value"], 0) for row in read_run(directory).metrics.to_pylist()
             if row["metric"] == "shapley"}  # fmt: skip
    assert {row["round"] for row in read_run(directory).metrics.to_pylist() if row["metric"] == "shapley"} == {1}
    for member, pay in owed(directory).items():
        assert abs(float(pay) - 1000.01 * first[member] / sum(first.values())) < 0.011
    monkeypatch.undo()
    fifty = cheats.Liar(0, 5, lambda liar, many, client, truth: {key: 50 * value for key, value in truth.items()})
    fifty.install(monkeypatch)  # from the first round on: no sum shows it, the evaluation does
    with refusal("statement.unmeasured", "Round 1", "evaluation"):
        owed(run(tmp_path / "again"))


def test_members_whose_updates_stay_hidden_are_owed_the_same(tmp_path: Path) -> None:
    """In a secure sum nobody knows what one of them brought."""
    pay = owed(run(tmp_path, ["secure_sum"], by="equal"))
    assert sorted(pay.values()) == [*[Decimal("200.00")] * 4, Decimal("200.01")]
    with refusal("statement.unmeasured", "coalition_value"):
        owed(run(tmp_path / "again", ["secure_sum"]))


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
    assert "pay" not in resolve(CONFIG).plain()
    assert resolve(CONFIG | {"pay": PAY}).plain()["pay"] == PAY
