"""Which releases of fedweave a site's policy allows at the server, and what a refusal says."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.tree import decode
from fedweave.errors import CallRefused
from fedweave.sites.flare.accounts import Accounts
from fedweave.sites.flare.audit import same_configuration
from fedweave.sites.flare.requests import PROTOCOL, Join, check_versions, pin, read_request, release, versions
from tests.contract.federations import distance
from tests.security.cheating import SITE, Cheat, agreed, make_sites, set_policy
from tests.sites.projects import SITES, join_request

PATCH = "0.9.1, files 0123456789abcdef"


def asked(**lies: Any) -> Join:
    request = read_request(json.dumps(json.loads(join_request(agreed())) | lies))
    assert isinstance(request, Join)
    return request


@pytest.mark.parametrize(
    ("releases", "protocol", "odd", "accepted"),
    [
        ("same-files", PROTOCOL, {}, True),
        ("same-files", 0, {}, True),  # a server of the same files tells the truth of its number
        ("same-files", PROTOCOL, {"fedweave": PATCH}, False),
        ("same-protocol", PROTOCOL, {"fedweave": PATCH}, True),
        ("same-protocol", PROTOCOL + 1, {"fedweave": PATCH}, False),
        ("same-protocol", 0, {"fedweave": PATCH}, False),
        ("same-protocol", PROTOCOL, {"fedweave": PATCH, "torch": "0.0.1"}, False),
        ("same-protocol", PROTOCOL, {"fedweave": "9" * 10_000}, False),  # the journal would keep it
    ],
)
def test_a_policy_allows_the_same_files_or_the_same_protocol(
    releases: Any, protocol: int, odd: dict[str, str], accepted: bool
) -> None:
    request = asked(versions=versions({}) | odd, protocol=protocol)
    if accepted:
        assert check_versions(request, {}, releases) == request.versions
        return
    with pytest.raises(CallRefused) as error:
        check_versions(request, {}, releases)
    assert error.value.code == "release.other"
    name = [*odd][-1]
    assert versions({})[name] in str(error.value)  # both are named
    assert odd[name][:40] in str(error.value)


def test_a_site_runs_with_a_server_of_another_release_as_with_its_own(tmp_path: Path) -> None:
    """The patch changes the fingerprint that every request carries, and no reply."""
    replies, config = [], agreed()
    for folder, theirs in ((tmp_path / "same", release()), (tmp_path / "other", PATCH)):
        set_policy(make_sites(folder), 'releases = "same-protocol"')
        released = versions({}) | {"fedweave": theirs}
        server = Cheat(folder, config, versions=released, protocol=PROTOCOL)
        assert not server.join().refusal
        answer = server.call("FedAvg.train", pin=pin(config.plain(), list(SITES), released))
        replies.append(decode(answer.blob))
        assert same_configuration(folder / SITE, "r1", config.plain(), list(SITES))
        assert not same_configuration(folder / SITE, "r1", config.plain() | {"seed": 4}, list(SITES))
    assert distance(*replies) == 0


def test_a_server_cannot_begin_a_configuration_anew_under_another_release(tmp_path: Path) -> None:
    """`policy.repeats` counts runs of the same configuration, whatever release a server says that it has."""
    set_policy(make_sites(tmp_path / "sites"), 'releases = "same-protocol"')
    for run, theirs in (("r1", release()), ("r2", PATCH), ("r3", f"{PATCH}0")):
        server = Cheat(tmp_path / "sites", run=run, protocol=PROTOCOL)
        assert not server.join(versions=versions({}) | {"fedweave": theirs}).refusal
    accounts = Accounts(tmp_path / "sites" / SITE)
    accounts.catch_up()
    pins = accounts.pins
    assert len(pins) == 3
    assert len(set(pins.values())) == 1
