"""A company's own authority, here openssl, signs for a project that has none of its own."""

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.errors import UserError
from fedweave.sites.operation.certificates import check_startup
from fedweave.sites.operation.experiments import hand_out, split
from fedweave.sites.operation.issuing import accept, company_root
from fedweave.sites.operation.project import greet, read_project
from fedweave.sites.operation.running import run
from tests.refusals import refusal
from tests.sites.projects import SITES, experiment, processes
from tests.sites.test_certificates import as_server, listening
from tests.sites.test_issuing import sites

NAME = "/O=Company/CN=Company issuing CA for the federation"
MEMBERS = ("server", "admin", *SITES)


def openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the company's key and certificate."""
    folder = tmp_path_factory.mktemp("company")
    about = ("-subj", NAME, "-days", 90, "-keyout", folder / "ca.key", "-out", folder / "ca.pem")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-addext", "keyUsage=critical,keyCertSign,cRLSign", *about)
    return folder


def signed(company: Path, folder: Path, *more: str) -> Path:
    """What the company's authority makes of a member's request."""
    sites("request", folder)
    given = company / f"{folder.name}.crt"
    ca = ("-CA", company / "ca.pem", "-CAkey", company / "ca.key", "-CAcreateserial", "-days", 30)
    openssl("x509", "-req", "-in", folder / "startup/request.pem", *ca, "-out", given, *more)
    return given


@pytest.fixture
def project(company: Path, tmp_path: Path) -> Path:
    """A project of that company, with certificates for all."""
    directory = tmp_path / "bank"
    sites("init", directory, "--sites", ",".join(SITES), "--ca", company / "ca.pem")
    for name in MEMBERS:
        accept(directory / name, signed(company, directory / name, "-copy_extensions", "copyall"))
    return directory


def test_members_trust_what_the_company_signed_and_no_key_of_it_is_in_the_project(project: Path, company: Path) -> None:
    assert not (project / "authority").exists()
    for name in MEMBERS:
        check_startup(project / name)
        openssl(
            "verify", "-x509_strict", "-CAfile", company / "ca.pem", next((project / name / "startup").glob("*.crt"))
        )
    with listening(project, as_server(project)) as where:
        for name in MEMBERS[1:]:
            greet(project / name / "startup/client.crt", where)
    sites("add", project, "bank-d")
    with pytest.raises(UserError):
        check_startup(project / "bank-d")  # it has none yet
    accept(project / "bank-d", signed(company, project / "bank-d", "-copy_extensions", "copyall"))
    with listening(project, as_server(project)) as where:
        greet(check_startup(project / "bank-d"), where)
    sites("remove", project, "bank-d")
    assert read_project(project).sites == SITES


def test_what_the_members_cannot_use_is_refused(project: Path, company: Path, tmp_path: Path) -> None:
    """A use of the key that is taken out, and a subject without the administrator's role."""
    uses, bare, plain = (tmp_path / name for name in ("uses.cnf", "bare.pem", "plain.pem"))
    uses.write_text("extendedKeyUsage=clientAuth\n")
    narrow = signed(company, project / "bank-a", "-extfile", str(uses))
    signed(company, project / "admin")
    waiting = project / "admin/startup/client.key.new"
    openssl("req", "-new", "-key", waiting, "-subj", "/CN=admin@fedweave.org", "-out", bare)
    ca = ("-CA", company / "ca.pem", "-CAkey", company / "ca.key", "-days", 30)
    openssl("x509", "-req", "-in", bare, *ca, "-out", tmp_path / "admin.crt")
    for name, given in (("bank-a", narrow), ("admin", tmp_path / "admin.crt")):
        with refusal("certificate.uses"):
            accept(project / name, given)
    no_authority = ("-addext", "basicConstraints=critical,CA:FALSE", "-keyout", tmp_path / "key.pem", "-out", plain)
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", NAME, *no_authority)
    with refusal("certificate.no-authority"):
        company_root(plain)


@pytest.mark.slow
def test_a_run_under_the_companys_authority(project: Path, tmp_path: Path) -> None:
    config = experiment(rounds=2, algorithm_settings={"parts": ["secure_sum"]})
    hand_out(*split(config, SITES), project, SITES)
    with processes(project):
        assert run(config, project, tmp_path / "out", False, lambda now: None)["rounds"] == 2
