"""A server that chooses with whom a site is in a secure sum (docs/security.md)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.ledger import Ledger
from fedweave.errors import ClientsMissing
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.sitefile import starting
from tests.privacy.authority import write_kits
from tests.refusals import check_facts, refusal
from tests.security.cheating import Cheat, agreed, set_policy
from tests.sites.projects import SITES, InProcess

SUMMED = agreed(algorithm_settings={"parts": ["secure_sum"], "local_steps": 1})
VICTIM, ACCOMPLICE = "bank-b", "bank-a"


@pytest.fixture
def kits(project: Path) -> Path:
    write_kits(project, SITES)
    return project


def allow(kits: Path, site: str, rule: str) -> None:
    path = kits / site / "site.toml"
    path.write_text(path.read_text().replace("[policy]\n", f"[policy]\n{rule}\n"))


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


def counted(kits: Path, sites: tuple[str, ...], run: str, config: Any = SUMMED) -> int:
    """The sum of the numbers of examples in a run of these sites."""
    fed = Flare(InProcess(kits), sites, ledger=Ledger())
    told = fed.join(config.plain(), run, -1)
    fed.begin(0)
    algorithm = config.algorithm.make(config.model.make().build(told[sites[0]]["features"], 3))
    return int(fed.map(algorithm.composed["SecureSum"].count).total("n"))


ODD = "bank-c"  # in one of two runs alone


@pytest.mark.parametrize("first", [SITES, SITES[:2]])
@pytest.mark.parametrize("other", ["same", "seed"])
def test_two_runs_that_differ_in_one_site_are_refused(kits: Path, first: tuple[str, ...], other: str) -> None:
    """The difference of their sums is the odd site's own term, whatever else the documents say."""
    again = SUMMED if other == "same" else replace(SUMMED, general=replace(SUMMED.general, seed=99))
    second = SITES[:2] if first == SITES else SITES
    counted(kits, first, "r1")
    counted(kits, first, "r2", again)  # the same sites may meet as often as they like
    with refusal("clients-missing", f"{VICTIM}:", "policy.min_difference", ODD):
        counted(kits, second, "r3", again)


def test_the_difference_of_two_runs_is_one_sites_term_where_its_owner_accepts_that(kits: Path) -> None:
    for site in SITES:
        allow(kits, site, "min_difference = 1")
    whole, part = counted(kits, SITES, "r1"), counted(kits, SITES[:2], "r2")
    held = Flare(InProcess(kits), SITES, ledger=Ledger()).join(SUMMED.plain(), "r3", -1)[ODD]["split"][0]
    assert whole - part == int(held)


def test_new_data_may_be_summed_with_other_sites(kits: Path) -> None:
    counted(kits, SITES, "r1")
    for site in SITES[:2]:
        path = kits / site / "data.npz"
        arrays = dict(np.load(path))
        features = next(name for name, array in arrays.items() if array.dtype.kind == "f")
        np.savez(path, **arrays | {features: arrays[features] + 1})
    counted(kits, SITES[:2], "r2")


def test_a_new_project_asks_for_all_of_its_sites() -> None:
    assert [starting(count, False)[1].get("min_sites") for count in (2, 3, 5, 12)] == [None, 3, 5, 12]


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
        check_facts(caplog.text, "'bank-a'")
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
    check_facts(caplog.text, "'bank-a'", "revoked")


def test_by_default_a_sum_protects_against_one_accomplice(kits: Path) -> None:
    """With two of three, one of whom tells the server its own term, the sum is the other's."""
    settings = {"parts": [{"name": "secure_sum", "require_all": False}], "optimizer_state": "fresh", "local_steps": 1}
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
    part = {"name": "secure_sum", "require_all": False, "accomplices": 0}
    settings = {"parts": [part], "optimizer_state": "fresh", "local_steps": 1}
    set_policy(project, f"min_summed = {least}")
    told = Cheat(project, agreed(algorithm_settings=settings)).join()
    assert ("policy.min_summed: the secure sum of n may be of 2 of 3 sites" in told.refusal) == refused
