"""An owner who changes the policy while a run is under way (docs/security.md)."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.cli import app
from fedweave.sites.flare import member
from tests.refusals import check_facts
from tests.security.cheating import SITE, Cheat, reply, set_policy


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ('deny = ["update"]', "policy.deny: update may not leave"),
        ('algorithms = ["fedprox"]', "policy.algorithms: fedavg is not among fedprox"),
        ('secure_sum = ["update"]', "policy.secure_sum: update may only leave in a secure sum"),
        ("calls = {train = 1}", "policy.calls: train has replied 1 time, and may 1 time"),
        ("min_nodes = 1000", "policy.min_nodes"),
        ("min_sites = 9", "policy.min_sites: the run is of 3, and 9 are needed"),
        ("max_change = 1e-9", "policy.max_change"),
        ("min_nodes = nothing", "its data or settings were refused"),  # what the owner wants cannot be known
    ],
)
def test_a_policy_that_is_tightened_holds_from_the_next_call_on(project: Path, policy: str, why: str) -> None:
    server = Cheat(project)
    assert not server.join().refusal
    reply(server.call("FedAvg.train", 1))
    set_policy(project, policy)
    if "max_change" in policy:  # what comes first is what the next is compared with
        reply(server.call("FedAvg.train", 2))
    assert why in server.call("FedAvg.train", 3, server.weights(2.0)).refusal


def test_what_is_loosened_holds_from_the_next_job_on_and_both_are_in_the_journal(project: Path) -> None:
    set_policy(project, "round_scores = 10")
    server = Cheat(project)
    server.join()
    set_policy(project, 'round_scores = 1\nunbounded = ["own"]\nbytes = 100000000')
    coarse = reply(server.call("FedAvg.score", 1))["own"]["accuracy"]
    assert not (coarse % 10).any()
    [noted] = [note for note in server.records().notes if note["note"] == "policy"]
    assert (noted["tightened"], noted["loosened"]) == (["bytes"], ["unbounded", "round_scores"])
    told = CliRunner().invoke(app, ["audit", str(project / SITE)])
    check_facts(told.output, "unbounded loosened", "bytes tightened", "round_scores loosened")
    again = Cheat(project, run="r2")
    again.join()
    assert (reply(again.call("FedAvg.score", 1))["own"]["accuracy"] % 10).any()


def test_what_is_tightened_while_the_data_is_loaded_holds_from_the_next_call_on(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = member.hold

    def slow(*given: Any) -> Any:
        set_policy(project, 'deny = ["update"]')
        return hold(*given)

    monkeypatch.setattr(member, "hold", slow)
    server = Cheat(project)
    assert not server.join().refusal
    check_facts(server.call("FedAvg.train", 1).refusal, "policy.deny: update")
