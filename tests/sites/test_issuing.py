"""Keys that sites make themselves, and certificates that the authority gives them for these."""

import json
import os
import shutil
import ssl
import stat
import subprocess
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from nvflare.fuel.f3.cellnet import cell_cipher
from nvflare.fuel.f3.drivers import net_utils
from nvflare.lighter.utils import load_crt
from nvflare.private.fed.utils.identity_utils import IdentityAsserter, IdentityVerifier

from fedweave.cli import app
from fedweave.errors import UserError
from fedweave.sites.flare.gatekeeper import obey
from fedweave.sites.flare.provision import provision
from fedweave.sites.operation import issuing
from fedweave.sites.operation.certificates import check_issuer, check_name, check_startup
from fedweave.sites.operation.processes import SiteProcess, wait_until_open
from fedweave.sites.operation.project import administer, greet, read_project
from fedweave.sites.operation.running import run
from tests.refusals import check_facts, refusal
from tests.sites.projects import SITES, experiment, until
from tests.sites.test_certificates import as_server, listening


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of another project's authority."""
    provision(into := tmp_path_factory.mktemp("theirs") / "project", SITES, "localhost", 9000)
    return into / "authority"


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
    sites("accept", folder, signed, code=2)
    check_facts(told := sites("status", project, code=1), "bank-b: ")  # nothing runs
    assert told.count("days left") == len(SITES) + 1


@pytest.mark.parametrize("odd", ["another key", "another site", "another authority", "no request"])
def test_a_certificate_that_is_not_the_keys_is_not_taken_up(
    project: Path, theirs: Path, tmp_path: Path, odd: str
) -> None:
    folder, other, signed = project / "bank-b", project / "bank-a", tmp_path / "given.crt"
    signer = project / "authority"
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
        signer, said = theirs, "was not signed by"
    else:
        asked.write_text("damaged")
        sites("sign", signer, asked, code=2)
        return
    sites("sign", signer, asked, "-o", signed)
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
    check_facts(said, "bank-b.crt", "bank-b", "bank-a")


def test_a_certificate_is_taken_up_again_after_an_interruption(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, signed = project / "bank-b", tmp_path / "bank-b.crt"
    sites("request", folder)
    waiting = (folder / "startup/client.key.new").read_bytes()
    sites("sign", project / "authority", folder / "startup/request.pem", "-o", signed)
    replace = os.replace

    def interrupted(made: Path, target: Path) -> None:
        if target.name == "client.crt":
            raise KeyboardInterrupt
        replace(made, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            issuing.accept(folder, signed)
    issuing.accept(folder, signed)
    assert (folder / "startup/client.key").read_bytes() == waiting
    assert (folder / "startup/client.crt").read_bytes() == signed.read_bytes()
    assert not [path.name for path in (folder / "startup").iterdir() if path.suffix in (".new", ".tmp")]


@pytest.mark.parametrize(
    ("name", "bits", "why"),
    [
        ("bank-b", 1024, "has 1024 bits, and 2048 are needed"),
        ("Bank B", 2048, "'Bank B' is not a name that a site can"),
        ("server", 2048, "SubjectAlternativeName"),
    ],
)
def test_a_weak_key_or_a_name_of_no_site_is_not_signed(
    project: Path, tmp_path: Path, name: str, bits: int, why: str
) -> None:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    key = rsa.generate_private_key(public_exponent=65537, key_size=bits)
    asked = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, SHA256())
    (tmp_path / "asked.pem").write_bytes(asked.public_bytes(Encoding.PEM))
    whose = ("--for", name) if name == "server" else ()
    said = sites("sign", project / "authority", tmp_path / "asked.pem", *whose, code=2)
    check_facts(said, "asked.pem")
    assert why in said


def asked_by(path: Path, name: str) -> Path:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, SHA256())
    path.write_bytes(made.public_bytes(Encoding.PEM))
    return path


@pytest.mark.parametrize("name", ["bank-x", "localhost"])
def test_who_is_no_member_gets_no_certificate_nor_the_servers_machine_as_a_site(
    project: Path, tmp_path: Path, name: str
) -> None:
    asked, authority = asked_by(tmp_path / "asked.pem", name), project / "authority"
    assert read_project(project).host == "localhost"
    for whose in ("", "server"):
        with refusal("certificate.name" if whose else "certificate.no-member"):
            issuing.sign(authority, asked, whose)
    issuing.sign(authority, asked_by(asked, "bank-b"))
    (authority / "issued.json").unlink()  # as an earlier version left it, which noted no members
    for each in ("bank-b", "bank-c"):
        assert issuing.sign(authority, asked_by(asked, each))[0] == each


def test_no_site_is_named_as_the_servers_machine(tmp_path: Path) -> None:
    with refusal("certificate.name"):
        provision(tmp_path / "project", ("bank-a", "fl"), "fl", 9000)


def test_certificates_say_what_their_keys_are_for_by_openssl_too(project: Path, tmp_path: Path) -> None:
    """Made at first, or signed later; an administrator's is not a server's, and no member's signs another."""
    renewed(project, "bank-b", tmp_path)
    renewed(project, "admin", tmp_path, "--for", "admin@fedweave.org")
    for name in ("server", "bank-a", "bank-b", "admin"):
        path = check_startup(project / name)
        about = x509.load_pem_x509_certificate(path.read_bytes()).extensions
        assert not about.get_extension_for_class(x509.BasicConstraints).value.ca
        assert about.get_extension_for_class(x509.KeyUsage).value.digital_signature
        for purpose, fits in (("sslclient", True), ("sslserver", name != "admin"), ("crlsign", False)):
            words = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", path.with_name("rootCA.pem")]
            assert (subprocess.run([*words, path], capture_output=True, check=False).returncode == 0) == fits, purpose
    root = x509.load_pem_x509_certificate((project / "server/startup/rootCA.pem").read_bytes())
    assert root.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def renewed(project: Path, name: str, tmp_path: Path, *more: str) -> None:
    sites("request", project / name)
    sites("sign", project / "authority", project / name / "startup/request.pem", "-o", tmp_path / "new.crt", *more)
    sites("accept", project / name, tmp_path / "new.crt")


def hosts(path: Path) -> list[str]:
    made = x509.load_pem_x509_certificate(path.read_bytes())
    return made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)


@pytest.mark.parametrize(("name", "whose"), [("server", "server"), ("admin", "admin@fedweave.org")])
def test_server_and_administrator_renew_theirs_alone(project: Path, tmp_path: Path, name: str, whose: str) -> None:
    """A request in the server's name is not signed unasked: a site could have made it."""
    before = hosts(check_startup(project / name))
    sites("request", project / name)
    sites("sign", project / "authority", project / name / "startup/request.pem", code=2)
    renewed(project, name, tmp_path, "--for", whose)
    path = check_startup(project / name)
    made = x509.load_pem_x509_certificate(path.read_bytes())
    assert hosts(path) == before
    about = {each.oid: each.value for each in made.subject}
    assert name != "admin" or about[NameOID.UNSTRUCTURED_NAME] == "project_admin"
    with listening(project, as_server(project)) as where:
        greet(project / "bank-a/startup/client.crt", where)
        greet(project / "admin/startup/client.crt", where)


def test_the_authority_renews_its_own_certificate_and_what_it_signed_stays(
    project: Path, theirs: Path, tmp_path: Path
) -> None:
    made = tmp_path / "rootCA.pem"
    before = (project / "server/startup/rootCA.pem").read_bytes()
    sites("renew", project / "authority", "-o", made)
    for name in ("server", "bank-a"):
        sites("accept", project / name, made)
        check_startup(project / name)
    assert (project / "server/startup/rootCA.pem").read_bytes() == made.read_bytes() != before
    with listening(project, as_server(project)) as where:
        greet(project / "bank-a/startup/client.crt", where)
        greet(project / "bank-b/startup/client.crt", where)  # which has the earlier one still
    sites("renew", theirs, "-o", tmp_path / "theirs.pem")
    with refusal("certificate.authority"):
        issuing.accept(project / "bank-a", tmp_path / "theirs.pem")
    assert (project / "bank-a/startup/rootCA.pem").read_bytes() == made.read_bytes()


def test_a_revoked_member_is_refused_by_the_server_by_sites_and_by_itself(project: Path, tmp_path: Path) -> None:
    thief, given = tmp_path / "thief", tmp_path / "revoked.pem"
    shutil.copytree(project / "bank-b", thief / "bank-b")
    with listening(project, as_server(project)) as where:
        greet(thief / "bank-b/startup/client.crt", where)
    check_facts(sites("revoke", project / "authority", "bank-b", "-o", given), "1 certificate")
    for name in ("server", "bank-a", "bank-b", "admin"):
        check_facts(sites("accept", project / name, given), "1 certificate")
    with listening(project, as_server(project)) as where:
        greet(project / "bank-a/startup/client.crt", where)
        with refusal("certificate.refused"):
            greet(thief / "bank-b/startup/client.crt", where)  # the thief has no list
    with refusal("certificate.revoked"):
        check_startup(project / "bank-b")
    renewed(project, "bank-b", tmp_path)
    with listening(project, as_server(project)) as where:
        greet(check_startup(project / "bank-b"), where)
    sites("revoke", project / "authority", "server", "-o", given)
    with listening(project, as_server(project)) as where:
        sites("accept", project / "bank-a", given)
        with refusal("certificate.revoked"):
            greet(project / "bank-a/startup/client.crt", where)


def test_a_list_that_forgets_or_is_of_others_is_not_taken_up(project: Path, theirs: Path, tmp_path: Path) -> None:
    first, second, others = (tmp_path / f"{name}.pem" for name in ("first", "second", "others"))
    sites("revoke", project / "authority", "bank-b", "-o", first)
    sites("revoke", project / "authority", "bank-c", "-o", second)
    sites("revoke", theirs, "bank-a", "-o", others)
    sites("accept", project / "bank-a", second)
    for odd, code in ((first, "certificate.old"), (others, "config")):
        with refusal(code):
            issuing.accept(project / "bank-a", odd)
    with refusal("certificate.revoked-already"):
        issuing.revoke(project / "authority", "bank-b")
    (project / "authority/issued.json").unlink()  # as an earlier version left it
    with pytest.raises(UserError):
        issuing.revoke(project / "authority", "bank-a")
    shown = project / "bank-a/startup/client.crt"
    assert issuing.revoke(project / "authority", "bank-a", shown)[0] == 1


def test_nothing_is_shown_to_be_or_encrypted_for_one_whose_certificate_is_revoked(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has a revoked key could speak through another member's connection."""
    for module, name in ((cell_cipher, "verify_cert_chain"), (IdentityVerifier, "verify_common_name")):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(net_utils, "get_ssl_context", net_utils.get_ssl_context)
    kits = {name: project / name / "startup" for name in ("server", "bank-b")}
    obey(kits["server"])
    own, root = load_crt(str(kits["bank-b"] / "client.crt")), load_crt(str(kits["server"] / "rootCA.pem"))
    signature = IdentityAsserter(str(kits["bank-b"] / "client.key"), str(kits["bank-b"] / "client.crt"))
    shown = {"asserted_cn": "bank-b", "nonce": "", "asserter_cert": own, "signature": signature.sign_common_name("")}
    verifier = IdentityVerifier(str(kits["server"] / "rootCA.pem"))
    assert verifier.verify_common_name(**shown)
    cell_cipher.verify_cert_chain(own, [], root)
    sites("revoke", project / "authority", "bank-b", "-o", tmp_path / "revoked.pem")
    sites("accept", project / "server", tmp_path / "revoked.pem")
    for attempt in (lambda: verifier.verify_common_name(**shown), lambda: cell_cipher.verify_cert_chain(own, [], root)):
        with refusal("certificate.revoked"):
            attempt()
    params = {"secure": True, "ca_cert": str(kits["server"] / "rootCA.pem")}
    pair = {"server_cert": str(kits["server"] / "server.crt"), "server_key": str(kits["server"] / "server.key")}
    made = net_utils.get_ssl_context(params | pair, True)
    assert made.verify_flags & ssl.VERIFY_CRL_CHECK_LEAF


@pytest.mark.slow
def test_a_site_that_was_revoked_is_no_more_in_the_federation(running: Path, tmp_path: Path) -> None:
    """Its owner's folder has no list, as a thief's would not; a new key brings it back."""
    sites("revoke", running / "authority", "bank-c", "-o", tmp_path / "revoked.pem")
    server, thief = SiteProcess(running / "server"), SiteProcess(running / "bank-c")
    try:
        sites("accept", server.folder, tmp_path / "revoked.pem")
        for member in (thief, server):
            member.stop()
        for member in (server, thief):
            member.start(threads=1)
        about = read_project(running)
        wait_until_open(server, about.host, about.port)
        with refusal("certificate.refused"):
            greet(check_startup(thief.folder), about)
        with administer(running) as admin:
            assert until(lambda: set(admin.answering_sites()) == {"bank-a", "bank-b"})
            time.sleep(10)
            assert set(admin.answering_sites()) == {"bank-a", "bank-b"}
        config = experiment("fedavg", rounds=1, quorum=0.5, rejoin_seconds=1.0)
        summary = run(config, running, tmp_path / "out", False, lambda now: None)
        assert summary["rounds"] == 1
    finally:
        thief.stop()
        renewed(running, "bank-c", tmp_path)
        thief.start(threads=1)
    with administer(running) as admin:
        assert until(lambda: "bank-c" in admin.answering_sites())


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
