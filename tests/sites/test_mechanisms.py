"""A site believes its own algorithm and nobody else: servers that lie about what is done, and what journals count."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.algorithms import parts
from fedweave.core import random
from fedweave.core.federation import Sends, StepInfo
from fedweave.core.ledger_columns import Entry, Line
from fedweave.core.mechanism import LDP, Clipped, Cost, Gaussian, Mixup, PrivacyAccount, SecureSum, read_applied
from fedweave.core.tree import Tree, map_leaves
from fedweave.experiment.rounds import train
from fedweave.privacy.gaussian import GaussianRows, epsilon
from fedweave.sites.flare import participation
from fedweave.sites.flare.journal import Journal, entries
from fedweave.sites.flare.policy import PolicyViolation, Spent, check_reply
from fedweave.sites.flare.requests import Answer
from fedweave.sites.flare.sitefile import Rules
from fedweave.sites.flare.steps import with_fingerprints
from tests.refusals import check_facts, refusal
from tests.sites.projects import InProcess, cut_again, experiment, joined, set_policy

LIE = "mixup of 64 or more, clipped to 0.1, Gaussian noise of sigma 9 (μ = 0.001), secure sum of 9"
COUNTED = '["n", "own", "trained"]'  # what FedAvg sends without a bound, besides its update
KEPT = '["ids", "nodes", "masks", "labels", "gradient", "own"]'  # what GLASU sends without a bound
CLAIM = {"kind": "gaussian", "sigma": 9.0, "sensitivity": 0.009, "per": "row", "delta": 1e-5, "release": "old"}


class Lying(InProcess):
    """Adds to every call what an old server told of mechanisms, and what a new one might try."""

    def exchange(self, request: str, blobs: Mapping[str, bytes]) -> tuple[dict[str, Answer], dict[str, str]]:
        asked = json.loads(request)
        for name in ("protect", "mechanism", "mechanisms", "applied"):
            asked[name] = {"update": LIE, "h": LIE}
        asked["sends"] = {key: {"reveals": "nothing", "mechanism": [CLAIM]} for key in ("update", "h")}
        return super().exchange(json.dumps(asked), blobs)


def journal(project: Path, site: str = "bank-b", run: str = "r1") -> list[Entry]:
    return entries(project / site / f"ledgers/{run}.jsonl")


def lied(project: Path, site: str = "bank-b") -> bool:
    lines = (project / site / "ledgers/r1.jsonl").read_text().splitlines()
    told = [entry for entry in map(json.loads, lines) if "note" not in entry]
    text = "".join(json.dumps({name: said for name, said in entry.items() if name != "at"}) for entry in told)
    return any(word in text for word in ("sigma 9", "9.0", "secure", "mixup", "gaussian", "protect"))


@pytest.mark.parametrize(
    "policy",
    [
        "noise = {update = 0.5}",
        "mixup = {update = 8}",
        'secure_sum = ["update"]',
        'noise = {"update/0" = 0.5}',
        "mixup = {n = 2}",
    ],
)
def test_what_a_call_claims_satisfies_no_policy(project: Path, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_policy(project, policy)
    monkeypatch.setattr("tests.sites.projects.InProcess", Lying)
    fed, algorithm, link = joined(project, experiment("fedavg"), quorum=0.6)
    assert isinstance(link, Lying)
    replies = fed.map(algorithm.train, {"w": algorithm.init(fed)["w"]})
    assert replies.clients == ("bank-a", "bank-c")
    check_facts(replies.missing["bank-b"], f"policy.{policy.split()[0]}")
    assert not lied(project)
    sent = [entry for entry in journal(project, "bank-a") if entry.step == "FedAvg.train"]
    assert sent
    assert not lied(project, "bank-a")


@pytest.mark.often('secure_sum = ["h"]-agreed0-claimed0', "noise = {h = 1.0}-agreed1-claimed1")
@pytest.mark.parametrize(
    ("policy", "agreed", "claimed"),
    [
        ('secure_sum = ["h"]', {}, {"secure_sum": True}),
        ("noise = {h = 1.0}", {}, {"sigma": 9.0}),
        ("noise = {h = 1.0}", {"sigma": 0.5}, {"sigma": 9.0}),
        ("noise = {h = 3.0}", {"sigma": 4.0, "clip": 0.2}, {"sigma": 4.0, "clip": 1.0}),
    ],
)
def test_a_server_that_runs_another_algorithm_than_the_sites_agreed_to(
    project: Path, policy: str, agreed: dict[str, Any], claimed: dict[str, Any]
) -> None:
    """It joins with one document and calls, and keeps its ledger, as if with another: a site with a policy refuses
    what it agreed to, and the journal of one without says what its own algorithm did."""
    config = experiment("glasu", algorithm_settings=agreed)
    set_policy(cut_again(project, config), policy)
    with refusal("clients-missing", "bank-b: ", f"policy.{policy.split()[0]}"):
        joined(project, config)
    assert not [line for entry in journal(project) for line in entry.keys if line.key == "h"]
    set_policy(project, "")
    fed, algorithm, _ = joined(project, config, run="r2")
    asked = replace(algorithm, **claimed), fed, 1
    if "secure_sum" in claimed:
        with refusal("clients-missing", "it: secure sum:", "GLASU.infer"):
            list(train(*asked))
        return
    list(train(*asked))
    told = {line.applied for entry in journal(project, run="r2") for line in entry.keys if line.key == "h"}
    [applied] = told
    assert ((applied and read_applied(applied).mechanisms) or ()) == algorithm.release.rows.mechanisms


def test_a_site_counts_what_its_own_algorithm_costs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """σ = 4: each of the two aggregated layers costs μ = 1/2; two releases may leave, whatever the server says."""
    config = experiment("glasu", algorithm_settings={"sigma": 4.0, "steps": 1})
    set_policy(cut_again(project, config), f"epsilon = {GaussianRows(1.0, 4.0).epsilon(2) + 1e-6}\nunbounded = {KEPT}")
    monkeypatch.setattr("tests.sites.projects.InProcess", Lying)
    monkeypatch.setattr(participation, "needs_all", lambda config, algorithm: False)  # it would not join
    fed, algorithm, _ = joined(project, config)
    with refusal("clients-missing", "bank-b:", "policy.epsilon: ε ="):
        list(train(replace(algorithm, sigma=400.0), fed, 2))
    assert Spent.of(journal(project)).account.cost.squared_mu == pytest.approx(2 * 0.5**2)


# --- what is drawn once


def permanent(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAvg whose clients send noisy weights that each draws once."""

    def release(self: Any, ctx: parts.Context, update: Tree) -> Tree:
        noise = map_leaves(lambda leaf: random.normal(ctx.client.secret, tuple(leaf.shape)), update)
        return ctx.client.state.setdefault("drawn", noise)

    monkeypatch.setattr(parts.BySize, "protection", parts.Protection(LDP(2.0, "client", release="drawn")))
    monkeypatch.setattr(parts.BySize, "release", release)


def spent(project: Path) -> float:
    return Spent.of(journal(project)).account.cost.epsilon


def test_what_is_drawn_once_is_paid_for_once_and_what_is_drawn_again_again(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    permanent(monkeypatch)
    set_policy(project, f"epsilon = 3.0\nunbounded = {COUNTED}")
    config = experiment("fedavg")
    fed, algorithm, _ = joined(project, config, quorum=0.6)
    w = algorithm.init(fed)["w"]
    for number in (1, 2, 3):
        fed.begin(number)
        assert "bank-b" in fed.map(algorithm.train, {"w": w}).clients
    assert spent(project) == 2.0
    again, _, _ = joined(project, config, after=2, quorum=0.6)  # back to a state that has it
    again.begin(3)
    assert "bank-b" in again.map(algorithm.train, {"w": w}).clients
    assert spent(project) == 2.0
    again, _, _ = joined(project, config, after=0, quorum=0.6)  # back to before it was drawn
    again.begin(1)
    check_facts(again.map(algorithm.train, {"w": w}).missing["bank-b"], "policy.epsilon: ε = 2", "2 more", "3")
    assert spent(project) == 2.0


def test_a_nodes_code_is_paid_for_once_however_often_it_is_asked_for(project: Path) -> None:
    """FairGFL: 256 coordinates of ε = 5.5, drawn once; a site that draws them again would have to pay again."""
    config = experiment("fairgfl")
    set_policy(
        cut_again(project, config), 'epsilon = 1408.5\nunbounded = ["update", "loss", "nodes", "own", "trained"]'
    )
    fed, algorithm, _ = joined(project, config, quorum=0.6)
    state = algorithm.init(fed)
    for number in (1, 2, 3):
        fed.begin(number)
        state = algorithm.round(state, fed)
        assert spent(project) == 1408.0
    assert int(state["parts"]["OverlapWeights"]["seen"].sum()) == 9  # all three sites took part
    again, _, _ = joined(project, config, after=0, quorum=0.6)  # back to before they were drawn
    again.begin(1)
    message = {"w": state["w"], "OverlapWeights": {"encoder": state["parts"]["OverlapWeights"]["encoder"]}}
    missing = again.map(algorithm.train, message).missing
    check_facts(missing["bank-b"], "policy.epsilon: ε = 1408", "1408 more", "1408.5")


def test_the_fingerprint_is_that_of_what_the_state_holds() -> None:
    info = StepInfo.of({"codes": Sends("codes", (Mixup(2), LDP(1.0, "node", release="drawn"))), "n": "a count"})
    reply: Tree = {"codes": torch.zeros(2), "n": 1}

    def release(drawn: Tree) -> Any:
        found = with_fingerprints("step", info, reply, {"drawn": drawn, "other": torch.rand(1)})
        assert found.sends["codes"].mechanisms[0] == Mixup(2)
        assert found.sends["n"] == info.sends["n"]
        return found.sends["codes"].mechanisms[1]

    one, other = release({"a": torch.zeros(3), "b": 1}), release({"a": torch.ones(3), "b": 1})
    assert one == release({"b": 1, "a": torch.zeros(3)})
    assert one != other
    assert one.release.startswith("drawn:")
    with refusal("step.release", "'drawn'", "client.state"):
        with_fingerprints("step", info, reply, {"other": torch.zeros(1)})
    assert with_fingerprints("step", info, {"n": 1}, {}) == info


# --- rules


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        (Rules(noise={"egos/embedding": 0.1}), True),
        (Rules(noise={"egos": 0.1}), False),  # the labels leave without noise
        (Rules(noise={"egos/embedding": 0.2}), False),
        (Rules(noise={"egos/embed": 9.0}), True),  # no such key
        (Rules(mixup={"egos": 4}), True),
        (Rules(mixup={"egos": 5}), False),
        (Rules(deny=("egos/label",)), False),
        (Rules(deny=("egos/lab", "ego")), True),
    ],
)
def test_a_rule_for_a_key_is_one_for_all_below_it(rules: Rules, allowed: bool) -> None:
    mixed = Mixup(4)
    info = StepInfo.of({"egos/embedding": Sends("means", (mixed, Gaussian(0.15))), "egos/label": Sends("y", mixed)})
    reply: Tree = {"egos": {"embedding": {"0": torch.zeros(2)}, "label": torch.zeros(2)}}
    if allowed:
        return check_reply(rules, Spent(), reply, 8, info)
    with pytest.raises(PolicyViolation, match=r"policy\.(noise|mixup|deny): egos"):
        check_reply(rules, Spent(), reply, 8, info)


# --- journals


def test_a_journal_gives_back_what_was_spent(tmp_path: Path) -> None:
    noisy = StepInfo.of({"h": Sends("rows", (Clipped(1.0), Gaussian(2.0, 2.0), SecureSum())), "n": "a count"})
    codes = StepInfo.of({"c/a": Sends("codes", LDP(1.0, "node")), "c/b": Sends("codes", LDP(1.0, "node"))})
    book, spent = Journal(tmp_path / "r1.jsonl"), Spent()
    for info, reply in ((noisy, {"h": {"0": torch.zeros(2), "1": torch.zeros(2)}, "n": 1}), (noisy, {"n": 1})):
        book.record(1, 0, "step", ("a",), "up", reply, 0.0, info)
        spent = spent.after_entry(book.last)
        assert spent.account == PrivacyAccount(spent.account.cost)
    book.record(1, 0, "step", ("a", "a"), "peer", {"c": {"a": 1, "b": 2}}, 0.0, codes, ("b", "c"))
    spent = spent.after_entry(book.last)
    assert Spent.of(entries(tmp_path / "r1.jsonl")) == spent
    assert spent.account.cost == Cost(2.0, 1.0, 2)
    assert spent.epsilon(1e-5) == pytest.approx(2.0 + epsilon(1.0, 1e-5))
    assert Journal(tmp_path / "r1.jsonl").table() == book.table()


def test_a_journal_of_a_later_version_stops_the_site(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    line = Line("h", "[2] float32", 8, "shuffled", "rows", '{"key": "h", "mechanisms": [{"kind": "shuffled"}]}')
    (project / "bank-b/ledgers").mkdir(exist_ok=True)
    entry = Entry(1, 0, "A.b", ("bank-b",), "up", (line,), 9, 0.0)
    (project / "bank-b/ledgers/r0.jsonl").write_text(json.dumps(vars(entry)) + "\n")
    fed, algorithm, _ = joined(project, experiment("fedavg"), quorum=0.6)
    replies = fed.map(algorithm.train, {"w": algorithm.init(fed)["w"]})
    assert list(replies.missing) == ["bank-b"]
    said = [record.getMessage() for record in caplog.records]
    assert any("r0.jsonl, line 1" in text and "'shuffled' is not one of" in text for text in said)
