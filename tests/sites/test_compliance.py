"""A site's compliance report: its contents, and the signatures that hold it."""

import json
import shutil
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from rich.filesize import decimal
from typer.testing import CliRunner

from fedweave.accounts.document import MAX_TILES, Document, Grid
from fedweave.cli import app
from fedweave.errors import UserError
from fedweave.experiment.rounds import train
from fedweave.reports.listing import meanings
from fedweave.sites.flare.accounts import CallLog, note_refusal
from fedweave.sites.flare.audit import audit
from fedweave.sites.flare.compliance import Report, check_replaced, of_site, read_report, write_report
from fedweave.sites.flare.sitefile import Rules
from fedweave.sites.protocols.identity import Identity, read_root
from tests import commands
from tests.incentives import test_pay
from tests.refusals import check_facts, refusal
from tests.sites.projects import copied, experiment, joined

BY, FOR = "Consortium, Dr. Leiter", "fraud model, annex C"
ABOUT = """
[site]
legal_name = "Łódź Bank S.A."
contact = "dpo@b"
parties = {bank-a = "A AG", server = "Consortium e.V."}
"""


@pytest.fixture(scope="module")
def site(provisioned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of bank-b, after two jobs between which its owner has changed the policy, and a refusal."""
    project = copied(provisioned, tmp_path_factory.mktemp("reported") / "project")
    site = project / "bank-b"
    file = site / "site.toml"
    file.write_text(file.read_text() + ABOUT)
    config = experiment("fedavg", rounds=1)
    config = replace(config, general=replace(config.general, requester=BY, purpose=FOR))
    for run, more in (("r1", ""), ("r2", "bytes = 5000000\nmin_sites = 3\n")):
        file.write_text(file.read_text().replace("[policy]\n", f"[policy]\n{more}"))
        fed, algorithm, _ = joined(project, config, run, submitter="admin@example.org")
        list(train(algorithm, fed, 1))
    note_refusal(site, "r2", "step FedAvg.peek", "policy.deny: egos may not leave")
    CallLog("bank-b", "").log_refusal(site, "r2", None, IndexError("index 9 is out of bounds"))
    return site


def table(document: Document, heading: str) -> tuple[Grid, list[dict[str, str]]]:
    found = next(one for one in document.sections if one.heading.startswith(heading)).grid
    return found, [dict(zip(found.head, row, strict=True)) for row in found.rows]


def test_it_says_who_asked_for_what_and_what_left_whom(site: Path) -> None:
    found = of_site(site)
    facts = dict(found.facts)
    check_facts(found.title + facts["of"], "Łódź Bank S.A.")
    assert facts["contact"] == "dpo@b"
    assert BY in facts["asked by"]
    check_facts(facts["asked by"], "admin@example.org")
    assert FOR in facts["purpose"]
    check_facts(facts["other parties"], "A AG")
    check_facts(facts["other parties"], "bank-c")
    sent = table(found, "Every kind")[1]
    assert {row["who received it"] for row in sent} == {"Consortium e.V."}
    assert any("change of the model weights" in row["what the receiver learns"] for row in sent)
    assert next(row["used for"] for row in sent) == "training"
    assert next(row["what the receiver learns"] for row in sent if row["key"] == "labels").startswith("how many")
    first = table(found, "What left")[1]
    left = decimal(audit(site).spent.bytes)
    assert first[-1]["size"] == found.tiles[0].value == left
    assert len(first) < len(sent)  # what left before training is one line
    check_facts(found.verdict, left, "2 of 2 runs", "Consortium e.V.")
    asked = table(found, "What was asked")[1]
    assert [row["run"] for row in asked] == ["r1", "r2"]
    assert all(row["purpose"] == FOR and row["configuration"] for row in asked)
    assert [row["run"] for row in table(of_site(site, "r2"), "What was asked")[1]] == ["r2"]
    with pytest.raises(UserError):
        of_site(site, "r3")


def test_it_says_what_is_spent_and_left_and_under_which_policy(site: Path) -> None:
    found, spent = of_site(site), audit(site).spent
    cost = {row["what"]: row for row in table(found, "What it cost")[1]}
    assert cost["bytes"]["left"] == f"{5_000_000 - spent.bytes:,}"
    assert next(row for what, row in cost.items() if what.startswith("ε"))["spent"] == "none holds"
    rules = {row["rule"]: row["value"] for row in table(found, "Policy in force")[1]}
    assert (rules["bytes"], rules["min_sites"], rules["epsilon"]) == ("5,000,000", "3", "not set")
    check_facts(table(found, "Changes")[1][0]["what"], "bytes tightened: not set → 5,000,000", "min_sites tightened")
    refused = next(one for one in found.sections if one.heading == "What was refused")
    assert len(refused.warnings) == 2
    privacy, policy, refusals = found.tiles[1:]
    assert (privacy.value, policy.value, refusals.value, found.sign) == ("none", "yes", "2", 0)
    check_facts(refused.warnings[1], "IndexError")
    assert len(refusals.notes) == 2
    check_facts(refusals.notes[0], "policy.deny")


def test_a_cap_that_is_lowered_afterwards_is_no_longer_kept(site: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(site, tmp_path / "bank-b"))
    file = copy / "site.toml"
    file.write_text(file.read_text().replace("bytes = 5000000", "bytes = 1000"))
    found = of_site(copy)
    assert (found.sign, found.tiles[2].value) == (-1, "no")


def test_a_policy_that_was_another_one_at_a_run_is_named_with_its_rules(site: Path, tmp_path: Path) -> None:
    """The site's owner added bytes and min_sites between r1 and r2, and now demands a secure sum."""
    section = "Policy in force"
    assert not next(one for one in of_site(site, "r2").sections if one.heading == section).warnings
    check_facts(" ".join(of_site(site).tiles[2].notes), "r1", "bytes, min_sites")
    copy = Path(shutil.copytree(site, tmp_path / "bank-b"))
    file = copy / "site.toml"
    file.write_text(file.read_text().replace("bytes = 5000000", 'bytes = 5000000\nsecure_sum = ["update"]'))
    for run, names in (("r1", "secure_sum, bytes, min_sites"), ("r2", "secure_sum")):
        found = of_site(copy, run)
        check_facts(" ".join(found.tiles[2].notes), run, names)
        (warning,) = next(one for one in found.sections if one.heading == section).warnings
        check_facts(warning, run, "secure_sum tightened: not set → update")


def test_to_check_a_report_writes_nothing(site: Path, tmp_path: Path) -> None:
    kept = tmp_path / "report.json"
    write_report(kept, Report(of_site(site)).sign(site))
    kept.with_suffix(".html").write_text("<!DOCTYPE html><title>another page</title>")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    for more in ([], ["--authority", site / "startup"]):
        check_facts(commands.run("compliance", kept, *more), "bank-b")
        assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before
    commands.run("compliance", kept, "-o", tmp_path / "copy.html")
    assert kept.read_bytes() == before[kept][0]
    commands.run("compliance", kept, "--sign", site.parent / "server")
    assert read_report(kept).with_signatures().number in kept.with_suffix(".html").read_text()


def test_audit_says_who_asked(site: Path) -> None:
    told = " ".join(CliRunner().invoke(app, ["audit", str(site)]).output.split())
    check_facts(told, f"{BY}")
    assert FOR in told


def test_the_site_and_the_server_sign_it_and_a_change_is_found(site: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(site, tmp_path / "bank-b"))
    page = tmp_path / "report.html"
    words = ["compliance", str(own), "-o", str(page), "--sign", str(site.parent / "server")]
    commands.run(*words)
    kept = page.with_suffix(".json")
    report = read_report(kept)
    assert [one.name for one in report.signatures] == ["bank-b", "server"]
    shown = report.with_signatures()
    assert shown.number in page.read_text()
    assert report.document.digest in page.read_text()
    assert "<script" not in page.read_text()
    assert table(shown, "Signatures")[0].rows[0][0] == "bank-b"
    assert len(shown.tiles) == MAX_TILES
    assert shown.tiles[-1].value == "bank-b, server"
    assert "--authority" in shown.tiles[-1].notes[-1]
    text = kept.read_text()
    kept.write_text(text.replace("5,000,000", "9,000,000"))
    with pytest.raises(UserError, match="changed after bank-b"):
        read_report(kept)
    kept.write_text(json.dumps(json.loads(text) | {"kind": "other"}))
    commands.run("compliance", kept, code=2)


def test_a_report_of_an_earlier_version_is_not_called_changed(site: Path, tmp_path: Path) -> None:
    """Its document lacks what later ones have, so that no signature fits; it can be written again in its place."""
    kept = tmp_path / "report.json"
    write_report(kept, Report(of_site(site)).sign(site))
    earlier = json.loads(kept.read_text()) | {"kind": "fedweave compliance report"}
    for name in ("subtitle", "verdict", "sign", "tiles"):
        del earlier["document"][name]
    kept.write_text(json.dumps(earlier))
    for authority in (None, site / "startup"):
        with refusal("report.earlier"):
            read_report(kept, authority)
    assert "changed" not in commands.run("compliance", kept, code=2)
    commands.run("compliance", site, "-o", kept.with_suffix(".html"))
    assert read_report(kept, site / "startup").signatures


def test_a_report_that_others_have_signed_is_replaced_only_when_asked(site: Path, tmp_path: Path) -> None:
    page, server = tmp_path / "report.html", site.parent / "server"
    words, kept = ["compliance", site, "-o", page], page.with_suffix(".json")
    commands.run(*words)
    commands.run(*words)  # signed only by the site itself
    commands.run("compliance", kept, "--sign", server)
    before = kept.read_bytes(), page.read_bytes()
    commands.run(*words, code=2)
    with refusal("report.signed", "server"):
        check_replaced(kept, Report(of_site(site)).sign(site))
    assert (kept.read_bytes(), page.read_bytes()) == before
    commands.run(*words, "--sign", server)
    commands.run(*words, "--overwrite")
    assert [one.name for one in read_report(kept).signatures] == ["bank-b"]


def self_made(folder: Path, name: str, days: tuple[int, int]) -> Identity:
    """One of a certificate that its own key has issued, valid between these days from now."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    first, last = (now + timedelta(days=day) for day in days)
    made = x509.CertificateBuilder(named, named, key.public_key(), 1, first, last).sign(key, SHA256())
    (folder / "rootCA.pem").write_bytes(made.public_bytes(Encoding.PEM))
    return Identity(made.public_bytes(Encoding.DER), key, read_root(folder))


def test_a_report_outlives_its_signers_certificate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own, kept = self_made(tmp_path, "bank-a", (-9, -2)), tmp_path / "report.json"
    monkeypatch.setattr("fedweave.sites.protocols.identity.read_identity", lambda folder: own)
    for days, refused in ((-5, False), (-1, True)):
        at = (datetime.now(UTC) + timedelta(days=days)).isoformat()
        monkeypatch.setattr("fedweave.sites.flare.compliance.now", lambda at=at: at)
        write_report(kept, Report(Document("What left")).sign(tmp_path))  # in place of the one before
        if not refused:
            assert read_report(kept).signatures
            continue
        with pytest.raises(UserError, match="not valid then") as error:
            read_report(kept)
        assert "changed" not in str(error.value)
        write_report(kept, Report(Document("What left")))


def test_whose_authority_issued_a_certificate_is_asked_where_it_is_named(site: Path, tmp_path: Path) -> None:
    kept = tmp_path / "report.json"
    write_report(kept, Report(of_site(site)).sign(site))
    assert read_report(kept, site / "startup").signatures
    self_made(tmp_path, "bank-b", (-1, 1))
    commands.run("compliance", kept)
    told = commands.run("compliance", kept, "--authority", tmp_path, code=2)
    assert "changed" not in told


def test_a_report_stripped_of_its_signatures_is_refused_where_an_authority_is_named(site: Path, tmp_path: Path) -> None:
    """Who changes a report can take its signatures out; without an authority, the page says that it has none."""
    kept, signed = tmp_path / "report.json", Report(of_site(site)).sign(site)
    write_report(kept, replace(signed, signatures=()))
    ask = ["compliance", str(kept), "--authority", str(site / "startup")]
    commands.run(*ask, code=2)
    assert not (tmp_path / "report.html").exists()
    with refusal("report.unsigned"):
        read_report(kept, site / "startup")
    write_report(kept, signed)
    commands.run(*ask)
    commands.run("compliance", site, *ask[2:], code=2)


def test_another_member_cannot_sign_in_the_place_of_the_site(site: Path, tmp_path: Path) -> None:
    """It alters the report, removes the site's signature and signs by itself; or names itself, or no one, as signer."""
    kept, root = tmp_path / "report.json", site / "startup"
    document = replace(of_site(site), lead=("Nothing has left the site.",))
    cheat = site.parent / "bank-a"
    for signer, by, code in [
        ("bank-b", "", "report.unsigned"),
        ("", "", "report.no-signer"),
        ("", "bank-b", "report.unsigned"),
        ("bank-a", "bank-b", "report.unsigned"),
    ]:
        report = Report(replace(document, signer=signer)).sign(cheat)
        write_report(kept, report)
        with refusal(code):
            read_report(kept, root, by)
        words = ["compliance", str(kept), "--authority", str(root), *(["--by", by] if by else [])]
        commands.run(*words, code=2)
    write_report(kept, Report(replace(document, signer="bank-b")).sign(cheat))
    page = tmp_path / "report.html"
    commands.run("compliance", kept, "-o", page)
    check_facts(page.read_text(), "bank-b")
    write_report(kept, Report(of_site(site)).sign(site).sign(cheat))
    result = commands.run("compliance", kept, "--authority", root, "--by", "bank-b")
    check_facts(result, "bank-b, bank-a")


def test_a_statement_is_signed_by_who_issues_it_and_by_members(site: Path, tmp_path: Path) -> None:
    directory = test_pay.run(tmp_path)
    commands.run("statement", directory, "--sign", site)
    kept, authority = directory / "statement/statement-signed.json", site / "startup"
    more = ["compliance", str(kept), "--sign", str(site.parent / "bank-c"), "--authority", str(authority)]
    commands.run(*more)
    assert [one.name for one in read_report(kept, authority).signatures] == ["bank-b", "bank-c"]
    kept.write_text(kept.read_text().replace("1,000.01", "9,000.01"))
    commands.run(*more[:2], code=2)


def test_a_pdf_of_the_same_contents_is_the_same(site: Path, tmp_path: Path) -> None:
    pytest.importorskip("reportlab")
    commands.run("compliance", site, "-o", tmp_path / "report.pdf")
    before = (tmp_path / "report.pdf").read_bytes()
    assert before.startswith(b"%PDF-")
    again = ["compliance", str(tmp_path / "report.json"), "-o", str(tmp_path / "report.pdf")]
    commands.run(*again)
    assert (tmp_path / "report.pdf").read_bytes() == before
    commands.run("compliance", site, "-o", tmp_path / "report.doc", code=2)


def test_every_rule_has_a_meaning_that_the_report_can_show() -> None:
    assert meanings(Rules).keys() == {one.name for one in fields(Rules)}
