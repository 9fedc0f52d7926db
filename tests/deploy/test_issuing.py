"""Keys that sites make themselves, and certificates that the authority gives them for these."""

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')


from fedweave.cli import app
from fedweave.deploy.flare.server.provision import provision
from fedweave.deploy.sites import issuing
from fedweave.deploy.sites.certificates import check_issuer, check_name
from fedweave.deploy.sites.processes import SiteProcess, check_startup
from fedweave.deploy.sites.running import run
from tests.deploy.projects import SITES, copied, experiment


@pytest.fixture
def project(provisioned: Path, tmp_path: Path) -> Path:
    return copied(provisioned, tmp_path / "project")


def sites(*words: object, code: int = 0) -> str:
    found = CliRunner().invoke(app, ["sites", *map(str, words)])
    assert found.exit_code == code, found.output
    return " ".join(found.output.split())


def test_the_authority_keeps_nobodys_key_but_its_own_and_for_itself(project: Path) -> None:
    path = project / "authority/cert.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()).keys() == {"root_cert", "root_pri_key"}
    for site in SITES:
        key = (project / site / "startup/client.key").read_text()
        assert not any(key in file.read_text(errors="replace") for file in (project / "authority").rglob("*"))


def test_a_site_makes_its_own_key_and_renews_its_certificate_alone(project: Path, tmp_path: Path) -> None:
    folder, signed = project / "bank-b", tmp_path / "bank-b.crt"
    before = (folder / "startup/client.key").read_bytes()
    fingerprint = sites("request", folder).split()[-1]
    assert (folder / "startup/client.key").read_bytes() == before  # still in use
    assert sites("sign", project / "authority", folder / "startup/request.pem", "-o", signed).endswith(fingerprint)
    assert "PRIVATE" not in signed.read_text() + (folder / "startup/request.pem").read_text()
    pinned = x509.load_pem_x509_certificate(signed.read_bytes()).fingerprint(SHA256()).hex(":").upper()
    assert sites("accept", folder, signed).endswith(pinned)
    key = folder / "startup/client.key"
    assert key.read_bytes() != before
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    check_name(folder / "startup/client.crt", "bank-b")
    check_issuer(folder / "startup/client.crt", folder / "startup/rootCA.pem")
    check_startup(folder)
    assert "no key waits" in sites("accept", folder, signed, code=2)
    assert "bank-b: " in (told := sites("status", project, code=1))  # nothing runs
    assert told.count("days left") == len(SITES) + 1


@pytest.mark.parametrize("odd", ["another key", "another site", "another authority", "no request"])
def test_a_certificate_that_is_not_the_keys_is_not_taken_up(project: Path, tmp_path: Path, odd: str) -> None:
    folder, other, signed = project / "bank-b", project / "bank-a", tmp_path / "given.crt"
    authority = project / "authority"
    sites("request", folder)
    asked, said = folder / "startup/request.pem", "is of another key"
    if odd == "another key":
        shutil.copy(asked, tmp_path / "old.pem")
        sites("request", folder)
        asked = tmp_path / "old.pem"
    elif odd == "another site":
        sites("request", other)
        asked, said = other / "startup/request.pem", "is the certificate of bank-a"
    elif odd == "another authority":
        provision(tmp_path / "theirs", SITES, "localhost", 9000)
        authority, said = tmp_path / "theirs/authority", "was not signed by"
    else:
        asked.write_text("damaged")
        assert "is no request" in sites("sign", authority, asked, code=2)
        return
    sites("sign", authority, asked, "-o", signed)
    before = (folder / "startup/client.crt").read_bytes()
    assert said in sites("accept", folder, signed, code=2)
    assert (folder / "startup/client.crt").read_bytes() == before


def test_a_certificate_of_another_site_by_a_bare_name_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites("request", project / "bank-a")
    sites("request", project / "bank-b")
    sites("sign", project / "authority", project / "bank-b/startup/request.pem", "-o", tmp_path / "bank-b.crt")
    monkeypatch.chdir(tmp_path)
    said = sites("accept", project / "bank-a", "bank-b.crt", code=2)
    assert "bank-b.crt is the certificate of bank-b" in said
    assert "the folder of bank-a" in said


def test_a_certificate_is_taken_up_again_after_an_interruption(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, signed = project / "bank-b", tmp_path / "bank-b.crt"
    sites("request", folder)
    waiting = (folder / issuing.NEW_KEY).read_bytes()
    sites("sign", project / "authority", folder / "startup/request.pem", "-o", signed)
    replace = Path.replace

    def interrupted(self: Path, target: Any) -> Path:
        if Path(target).name == "client.crt":
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            issuing.accept(folder, signed)
    issuing.accept(folder, signed)
    assert (folder / issuing.KEY).read_bytes() == waiting
    assert (folder / issuing.CERTIFICATE).read_bytes() == signed.read_bytes()
    assert not [path.name for path in (folder / "startup").iterdir() if path.suffix in (".new", ".beside")]


@pytest.mark.parametrize(
    ("name", "bits", "why"),
    [("bank-b", 1024, "has 1024 bits, and 2048 are needed"), ("Bank B", 2048, "'Bank B' is no name that a site can")],
)
def test_a_weak_key_or_a_name_of_no_site_is_not_signed(
    project: Path, tmp_path: Path, name: str, bits: int, why: str
) -> None:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    key = rsa.generate_private_key(public_exponent=65537, key_size=bits)
    asked = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, SHA256())
    (tmp_path / "asked.pem").write_bytes(asked.public_bytes(Encoding.PEM))
    said = sites("sign", project / "authority", tmp_path / "asked.pem", code=2)
    assert "asked.pem is no request" in said
    assert why in said
    assert "--sites" not in said


@pytest.mark.slow
def test_a_site_with_a_key_of_its_own_takes_part(running: Path, tmp_path: Path) -> None:
    """The others' certificates stay; a secure sum is signed with the new key."""
    site = SiteProcess(running / "bank-b")
    site.stop()
    sites("request", site.folder)
    sites("sign", running / "authority", site.folder / "startup/request.pem", "-o", tmp_path / "b.crt")
    sites("accept", site.folder, tmp_path / "b.crt")
    site.start(threads=1)
    config = experiment("fedavg", rounds=2, algorithm_settings={"parts": ["secure_sum"]})
    assert run(config, running, tmp_path / "out", False, lambda now: None)["rounds"] == 2
