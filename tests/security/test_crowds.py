"""A server that chooses with whom a site is in a secure sum (docs/security.md)."""

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.ledger import Ledger
from fedweave.deploy.flare.federation import Flare
from fedweave.errors import ClientsMissing
from tests.deploy.projects import SITES, InProcess
from tests.privacy.authority import write_kits
from tests.refusals import refusal
from tests.security.cheating import Cheat, agreed, set_policy

SUMMED = agreed(algorithm_settings={"parts": ["secure_sum"], "local_steps": 1})
VICTIM, ACCOMPLICE = "bank-b", "bank-a"


@pytest.fixture
def kits(project: Path) -> Path:
    write_kits(project, SITES)
    return project


def fingerprint(kits: Path, site: str) -> str:
    """As openssl prints it."""
    own = x509.load_pem_x509_certificate((kits / site / "startup/client.crt").read_bytes())
    return own.fingerprint(SHA256()).hex(":").upper()


def examples_of_the_victim(project: Path) -> tuple[int, int]:
    """What the server finds with a run of two, the sum of their numbers of examples less the accomplice's own; and what
    the victim, which could deny it, says of them when it joins."""
    link = InProcess(project)
    fed = Flare(link, (ACCOMPLICE, VICTIM), ledger=Ledger())
    told = fed.join(SUMMED.plain(), "r1", -1)
    fed.begin(0)
    algorithm = SUMMED.algorithm.make(SUMMED.model.make().build(told[VICTIM]["features"], 3))
    total = fed.map(algorithm.composed["SecureSum"].count).total("n")
    return int(total) - int(told[ACCOMPLICE]["split"][0]), int(told[VICTIM]["split"][0])


def test_a_run_of_a_site_and_an_accomplice_hides_nothing(kits: Path) -> None:
    found, held = examples_of_the_victim(kits)
    assert found == held


@pytest.mark.parametrize("rule", ["min_sites", "members"])
def test_a_run_of_too_few_sites_or_of_others_is_refused(kits: Path, rule: str) -> None:
    listed = f'members = {{bank-c = "{fingerprint(kits, "bank-c")}"}}'
    set_policy(kits, {"min_sites": "min_sites = 3", "members": listed}[rule])
    with refusal("clients-missing", f"policy.{rule}"):
        examples_of_the_victim(kits)


@pytest.mark.parametrize("issued_again", [False, True])
def test_keys_are_taken_of_the_listed_certificates_alone(
    kits: Path, issued_again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever has the authority's key can issue another certificate for a member's name."""
    known = {site: fingerprint(kits, site) for site in SITES}
    if issued_again:
        write_kits(kits, SITES)
    set_policy(kits, "members = {" + ", ".join(f'{site} = "{mark}"' for site, mark in known.items()) + "}")
    if issued_again:
        with pytest.raises(ClientsMissing):
            examples_of_the_victim(kits)
        assert "'bank-a' is signed with another certificate than its own" in caplog.text
    else:
        assert examples_of_the_victim(kits)


def test_keys_of_a_revoked_certificate_are_taken_by_no_site(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server, which does not heed the list, lets the thief of an accomplice's key take part."""
    authority = write_kits(project, SITES)
    assert examples_of_the_victim(project)
    stolen = x509.load_pem_x509_certificate((project / ACCOMPLICE / "startup/client.crt").read_bytes())
    (project / VICTIM / "startup/revoked.pem").write_bytes(authority.revoke(stolen.serial_number))
    with pytest.raises(ClientsMissing):
        examples_of_the_victim(project)
    assert "the certificate of 'bank-a' was revoked" in caplog.text


def test_by_default_a_sum_protects_against_one_accomplice(kits: Path) -> None:
    """With two of three, one of whom tells the server its own term, the sum is the other's."""
    settings = {"parts": [{"name": "secure_sum", "everyone": False}], "optimizer_state": "fresh", "local_steps": 1}
    config, link = agreed(algorithm_settings=settings), InProcess(kits)
    fed = Flare(link, SITES, ledger=Ledger(), quorum=0.5)
    fed.join(config.plain(), "r1", -1)
    fed.begin(0)
    link.absent["bank-c"] = "the server says so"
    algorithm = config.algorithm.make(config.model.make().build(8, 3))
    with refusal("clients-missing", "3 are needed"):
        fed.map(algorithm.composed["SecureSum"].count, quorum=0.5)


@pytest.mark.parametrize(("least", "refused"), [(2, False), (3, True)])
def test_a_site_can_ask_for_more_terms_than_the_algorithm_does(project: Path, least: int, refused: bool) -> None:
    part = {"name": "secure_sum", "everyone": False, "accomplices": 0}
    settings = {"parts": [part], "optimizer_state": "fresh", "local_steps": 1}
    set_policy(project, f"min_summed = {least}")
    told = Cheat(project, agreed(algorithm_settings=settings)).join()
    assert ("policy.min_summed: the secure sum of n may be of 2 of 3 sites" in told.refusal) == refused
