"""Sites that join a project and leave it, what the authority notes of them, and an authority whose key is encrypted."""

import json
import shutil
import stat
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from hashlib import sha256

from fedweave.errors import FedweaveError
from fedweave.sites.flare.admin import Admin
from fedweave.sites.flare.provision import provision
from fedweave.sites.flare.sitefile import read_site_file
from fedweave.sites.operation import issuing, membership
from fedweave.sites.operation.certificates import check_startup
from fedweave.sites.operation.project import greet, read_project
from tests.refusals import check_facts, refusal
from tests.sites.projects import SITES
from tests.sites.test_certificates import as_server, listening
from tests.sites.test_issuing import asked_by, sites
from tests.sites.test_jobs import Session


def certificate(folder: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / "startup/client.crt").read_bytes())


def notes(project: Path, name: str) -> list[dict[str, Any]]:
    record = json.loads((project / "authority/issued.json").read_text())
    return [note for note in record if note["name"] == name]


def test_an_added_site_has_what_the_others_have_and_no_one_elses_folder_changes(project: Path) -> None:
    before = {path: path.read_bytes() for site in SITES for path in (project / site).rglob("*") if path.is_file()}
    sites("revoke", project / "authority", "bank-c", "-o", project / "revoked.pem")
    said = sites("add", project, "bank-d")
    folder, other = project / "bank-d", project / "bank-a"
    assert read_project(project).sites == (*SITES, "bank-d")
    assert {path: path.read_bytes() for path in before} == before
    check_startup(folder)
    ours = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    theirs = {str(path.relative_to(other)) for path in other.rglob("*")}
    assert ours == theirs - {"data.npz", "test.npz"} | {"startup/revoked.pem"}
    assert (folder / "ids.key").read_text() == (other / "ids.key").read_text()
    assert (folder / "privacy.secret").read_text() != (other / "privacy.secret").read_text()
    for name in ("ids.key", "privacy.secret", "startup/client.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert read_site_file(folder / "site.toml")[1].min_sites == 4
    (note,), cert = notes(project, "bank-d"), certificate(folder)
    public = cert.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert note.pop("at")[:10] == f"{cert.not_valid_before_utc + issuing.BACKDATED:%Y-%m-%d}"
    assert note == {
        "name": "bank-d",
        "serial": f"{cert.serial_number:x}",
        "from": f"{cert.not_valid_before_utc:%Y-%m-%d}",
        "until": f"{cert.not_valid_after_utc:%Y-%m-%d}",
        "fingerprint": cert.fingerprint(SHA256()).hex(":").upper(),
        "key": sha256(public).digest().hex(":").upper(),
    }
    check_facts(said, f"{note['fingerprint']}")


def test_a_removed_site_is_refused_by_the_server_and_gets_no_certificate(project: Path, tmp_path: Path) -> None:
    sites("add", project, "bank-d")
    stolen = shutil.copytree(project / "bank-d", tmp_path / "stolen/bank-d") / "startup/client.crt"
    (project / "bank-d/ledgers").mkdir()
    with listening(project, as_server(project)) as where:
        greet(stolen, where)
    sites("remove", project, "bank-d")
    assert read_project(project).sites == SITES
    assert not (project / "bank-d").exists()
    assert len(list(project.glob("removed_sites/bank-d-*/ledgers"))) == 1
    (note,) = notes(project, "bank-d")
    assert note["revoked"] <= note["removed"]
    assert not any("revoked" in each for site in SITES for each in notes(project, site))
    with listening(project, as_server(project)) as where:
        greet(project / "bank-a/startup/client.crt", where)
        with refusal("certificate.refused"):
            greet(stolen, where)
    asked = asked_by(tmp_path / "asked.pem", "bank-d")
    with refusal("certificate.no-member"):
        issuing.sign(project / "authority", asked)
    sites("add", project, "bank-d")  # it comes back, with another certificate
    issuing.sign(project / "authority", asked)
    with listening(project, as_server(project)) as where:
        greet(check_startup(project / "bank-d"), where)


@pytest.mark.parametrize("where", ["provision_site", "write_site_file"])
def test_an_addition_that_fails_leaves_no_folder_and_a_certificate_that_can_be_revoked(
    project: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(membership, where, failing)
        with pytest.raises(FedweaveError):
            membership.add(project, "bank-d")
    assert read_project(project).sites == SITES
    assert not (project / "bank-d").exists()
    assert issuing.revoke(project / "authority", "bank-d")[0] == 1
    sites("add", project, "bank-d")
    check_startup(project / "bank-d")


def test_a_removal_that_was_interrupted_is_done_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(membership, "accept", failing)
        with pytest.raises(FedweaveError):
            membership.remove(project, "bank-b")
    assert read_project(project).sites == SITES
    done = membership.remove(project, "bank-b")
    assert done.project.sites == read_project(project).sites == ("bank-a", "bank-c")
    assert all((project / name / "startup/revoked.pem").exists() for name in ("server", "bank-a", "bank-c"))


def test_a_certificate_that_the_authority_did_not_note_is_revoked_too(project: Path, tmp_path: Path) -> None:
    """Authorities of earlier versions kept no record. That another site is revoked says nothing of this one."""
    (project / "authority/issued.json").unlink()
    issuing.revoke(project / "authority", "bank-c", project / "bank-c/startup/client.crt")
    stolen = shutil.copytree(project / "bank-b", tmp_path / "stolen/bank-b") / "startup/client.crt"
    shutil.move(project / "bank-b", tmp_path / "elsewhere")
    with refusal("certificate.unknown"):
        membership.remove(project, "bank-b")
    issuing.revoke(project / "authority", "bank-b", stolen)
    membership.remove(project, "bank-b")
    membership.remove(project, "bank-a")
    with listening(project, as_server(project)) as where, refusal("certificate.refused"):
        greet(stolen, where)
    revoked = x509.load_pem_x509_crl((project / "server/startup/revoked.pem").read_bytes())
    assert len([*revoked]) == 3


def test_a_certificate_that_another_authority_signed_revokes_none_here(project: Path, tmp_path: Path) -> None:
    provision(tmp_path / "other", SITES, "localhost", 9)
    shown = tmp_path / "other/bank-a/startup/client.crt"
    with refusal("certificate.issuer"):
        issuing.revoke(project / "authority", "bank-a", shown)
    assert not (project / "authority/revoked.pem").exists()


def failing(*about: object, **more: object) -> None:
    raise FedweaveError("the disk is full")


def test_a_site_that_was_revoked_before_can_be_removed(project: Path, tmp_path: Path) -> None:
    sites("revoke", project / "authority", "bank-b", "-o", tmp_path / "revoked.pem")
    sites("remove", project, "bank-b")
    assert read_project(project).sites == ("bank-a", "bank-c")


@pytest.mark.parametrize(
    ("what", "name", "code"),
    [
        ("add", "bank-a", "member.known"),
        ("add", "Bank D", "user"),
        ("add", "server", "member.known"),
        ("add", "fl.example", "user"),
        ("add", "fl", "certificate.name"),
        ("remove", "bank-x", "member.unknown"),
        ("add", "bank-e", "certificate.authority"),
        ("remove", "bank-b", "certificate.authority"),
        ("add", "bank-f", "certificate.no-authority"),
    ],
)
def test_what_no_member_can_be_is_refused_and_nothing_changes(
    project: Path, tmp_path: Path, what: str, name: str, code: str
) -> None:
    authority = project / "authority"
    if code == "certificate.authority":
        provision(tmp_path / "theirs", SITES, "localhost", 9000)
        authority = tmp_path / "theirs/authority"
    elif code == "certificate.no-authority":
        authority = tmp_path
    elif name == "fl":
        about = json.loads((project / "project.json").read_text())
        (project / "project.json").write_text(json.dumps(about | {"host": "fl"}))
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    with refusal(code):
        getattr(membership, what)(project, name, authority)
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before


def test_no_site_leaves_while_a_job_runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    monkeypatch.setattr(membership, "administer", lambda project: nullcontext(Admin(session)))
    before = (project / "authority/issued.json").read_bytes()
    with refusal("member.job"):
        membership.remove(project, "bank-b")
    assert (project / "authority/issued.json").read_bytes() == before
    assert read_project(project).sites == SITES
    for job in ("j2", "j4"):
        Admin(session).abort(job)
    assert membership.remove(project, "bank-b").unseen == ""


def test_an_encrypted_key_signs_with_its_passphrase_alone(project: Path, tmp_path: Path) -> None:
    authority, right, wrong, short = project / "authority", *(tmp_path / name for name in ("right", "wrong", "short"))
    for file, word in ((right, "correct horse battery"), (wrong, "wrong horse battery"), (short, "horse")):
        file.touch(mode=0o600)
        file.write_text(f"{word}\n")
    sites("encrypt", authority, "--new-passphrase-file", short, code=2)
    sites("encrypt", authority, "--new-passphrase-file", right)
    assert "ENCRYPTED" in json.loads((authority / "cert.json").read_text())["root_pri_key"]
    asked, made = asked_by(tmp_path / "asked.pem", "bank-b"), tmp_path / "b.crt"
    cases = {(): "certificate.passphrase", ("--passphrase-file", wrong): "certificate.no-key"}
    for more, code in cases.items():
        ask = (lambda authority: issuing.passphrase_from(wrong)) if more else issuing.prompt
        with refusal(code):
            issuing.sign(authority, asked, ask=ask)
        sites("sign", authority, asked, "-o", made, *more, code=2)
        assert not made.exists()
    with_it = ("--passphrase-file", right)
    sites("sign", authority, asked, "-o", made, *with_it)
    sites("revoke", authority, "bank-c", "-o", tmp_path / "revoked.pem", *with_it)
    sites("renew", authority, "-o", tmp_path / "root.pem", *with_it)
    sites("add", project, "bank-d", *with_it)
    sites("remove", project, "bank-d", *with_it)
    right.chmod(0o644)
    sites("sign", authority, asked, "-o", made, *with_it, code=2)  # others can read the passphrase
