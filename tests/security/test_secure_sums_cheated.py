"""A server that wants to know one site's term of a secure sum (docs/security.md)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.algorithms import FedAvg
from fedweave.core.tree import Tree, decode, encode, map_leaves
from fedweave.errors import FedweaveError
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.sites.flare import sums
from fedweave.sites.flare.masking import advert_tree
from fedweave.sites.flare.requests import Answer, pin
from fedweave.sites.protocols.aggregation import Participant, SumGroup
from tests.contract.federations import distance
from tests.privacy.authority import Authority, write_kits
from tests.refusals import check_facts, refusal
from tests.security.cheating import agreed, reply, set_policy
from tests.sites.projects import SITES, InProcess, call_request, cut_again, join_request, joined, simulated
from tests.sites.test_secure_sums import lose

EVERYONE = agreed(algorithm_settings={"parts": ["secure_sum"], "local_steps": 1})
SOME = {"name": "secure_sum", "require_all": False, "accomplices": 0}  # goes on with two of three
LEFT_OUT: dict[str, Any] = {"parts": [SOME], "optimizer_state": "fresh"}
CONFIG = agreed(algorithm_settings=LEFT_OUT | {"local_steps": 1})  # sums go on without who is missing


class Server:
    """Asks all sites, each for what it likes."""

    def __init__(self, project: Path, epoch: int = 5, after: int = -1, config: Any = CONFIG) -> None:
        self.members, self.epoch, self.config = InProcess(project).members, epoch, config
        for site in SITES:
            self.ask(site, json.loads(join_request(config, "r1", after)))

    def ask(self, site: str, request: dict[str, Any], message: Tree | None = None) -> Answer:
        return self.members[site].answer(json.dumps(request), encode(message or {}))

    def agree(self, site: str, kind: str, message: Tree | None = None, **lies: Any) -> Answer:
        about = {"pin": pin(self.config.plain(), list(SITES)), "round": 0, "step": "FedAvg.train"}
        return self.ask(site, {"kind": kind, "epoch": self.epoch} | about | lies, message)

    def prepare(self) -> None:
        adverts = {"adverts": {site: reply(self.agree(site, "advertise")) for site in SITES}}
        self.letters = {site: reply(self.agree(site, "share", adverts))["shares"] for site in SITES}

    def signed(self, slot: int, round: int) -> dict[str, Answer]:
        """What each site answers when all have signed whose terms the sum has, and it is to open it."""
        about = {"pin": pin(self.config.plain(), list(SITES)), "round": round, "epoch": self.epoch, "slot": slot}
        about |= {"peers": list(SITES), "survivors": list(SITES)}
        signatures = {site: reply(self.ask(site, about | {"kind": "survivors"}))["signature"] for site in SITES}
        given = {
            site: {peer: own[SITES.index(site), slot] for peer, own in self.letters.items() if peer != site}
            for site in SITES
        }
        told = {site: {"signatures": signatures, "letters": given[site]} for site in SITES}
        return {site: self.ask(site, about | {"kind": "reveal"}, told[site]) for site in SITES}

    def train(self, site: str, message: Tree, slot: int = 0, round: int = 1, **lies: Any) -> Answer:
        sum = {"epoch": self.epoch, "slot": slot, "peers": list(SITES)} | lies
        return self.ask(site, json.loads(call_request(self.config, "FedAvg.train", round, sum=sum)), message)

    def open(self, site: str, kind: str, survivors: Any, message: Tree | None = None) -> Answer:
        about = {"pin": pin(self.config.plain(), list(SITES)), "round": 1, "epoch": self.epoch, "slot": 0}
        return self.ask(site, about | {"kind": kind, "peers": list(SITES), "survivors": list(survivors)}, message)

    def to(self, site: str) -> Tree:
        return {peer: own[SITES.index(site), 0] for peer, own in self.letters.items() if peer != site}


@pytest.fixture
def message() -> Tree:
    from fedweave.core import model as models
    from fedweave.core import random

    w = models.init(CONFIG.model.make().build(8, 3), random.key(1), torch.float32)
    return {"w": w, "SecureSum": {"n": torch.tensor(100)}}


@pytest.fixture
def kits(project: Path) -> Path:
    write_kits(project, SITES)
    return project


def update(answer: Answer) -> torch.Tensor:
    return reply(answer)["update"]["0"]["weight"]


def test_words_leave_in_no_other_way_than_masked(kits: Path, message: Tree) -> None:
    """Without a sum, with one that was not prepared, and in an epoch of which the site knows nothing."""
    server = Server(kits)
    answer = server.ask("bank-a", json.loads(call_request(CONFIG, "FedAvg.train")), message)
    assert (answer.blob, answer.final) == (b"", True)
    check_facts(answer.refusal, "secure sum")
    check_facts(server.train("bank-b", message).refusal, "epoch 5")
    assert not server.agree("bank-c", "advertise").refusal
    check_facts(server.train("bank-c", message).refusal, "prepared")


def test_a_set_up_asked_for_again_is_refused(kits: Path) -> None:
    server = Server(kits)
    adverts = {"adverts": {site: reply(server.agree(site, "advertise")) for site in SITES}}
    check_facts(server.agree("bank-a", "advertise").refusal, "epoch 5")
    assert not server.agree("bank-b", "share", adverts).refusal
    check_facts(server.agree("bank-b", "share", adverts).refusal, "once")
    check_facts(
        server.agree("bank-c", "share", {"adverts": {"bank-c": adverts["adverts"]["bank-c"]}}).refusal, "too few"
    )


def test_a_server_that_puts_its_own_keys_in_between(kits: Path) -> None:
    """It has an authority of its own, which no site knows."""
    server = Server(kits)
    adverts = {site: reply(server.agree(site, "advertise")) for site in SITES}
    own = Participant("bank-b", Authority().issue("bank-b"), SumGroup("r1", 5, SITES, 2))
    answer = server.agree("bank-a", "share", {"adverts": adverts | {"bank-b": advert_tree(own.advertise())}})
    check_facts(answer.refusal, "'bank-b'", "signed")
    odd = adverts | {"bank-b": adverts["bank-b"] | {"keys": adverts["bank-c"]["keys"]}}
    check_facts(server.agree("bank-c", "share", {"adverts": odd}).refusal, "signed")


@pytest.mark.often("weights")
@pytest.mark.parametrize("lie", ["count", "weights"])
def test_a_sum_of_what_sites_were_told_differently_is_opened_by_nobody(kits: Path, message: Tree, lie: str) -> None:
    """With N = 2^62 the others' terms n_i / N · Δ_i are words of 0, and with other weights they can be known: the sum
    would be bank-b's own term."""
    server = Server(kits)
    server.prepare()
    others = {
        "count": message | {"SecureSum": {"n": torch.tensor(2**62)}},
        "weights": message | {"w": map_leaves(torch.zeros_like, message["w"])},
    }[lie]
    for site in SITES:
        update(server.train(site, message if site == "bank-b" else others))
    signed = {site: reply(server.open(site, "survivors", SITES))["signature"] for site in SITES}
    for site in SITES:
        told = {"signatures": signed, "letters": server.to(site)}
        answer = server.open(site, "reveal", SITES, told)
        assert answer.blob == b""
        check_facts(answer.refusal, "signed")
    again = Server(kits, epoch=6)  # those who heard the same do not reach the least that a sum is of without bank-b
    again.prepare()
    for site in SITES:
        update(again.train(site, message if site == "bank-b" else others))
    own = {"bank-b": reply(again.open("bank-b", "survivors", SITES))["signature"]}
    answer = again.open("bank-b", "reveal", SITES, {"signatures": own, "letters": again.to("bank-b")})
    check_facts(answer.refusal, "1 of 3")


def test_a_sum_is_opened_by_nobody_if_sites_were_told_differently_before(kits: Path, message: Tree) -> None:
    """Adam's moments of bank-a and bank-c become infinite in round 1, whose sum the server does not need. They change
    nothing in round 2, where all are told the same, and the sum would be bank-b's own term."""
    server = Server(kits, config=EVERYONE)
    server.prepare()
    huge = message | {"w": map_leaves(lambda leaf: torch.sign(leaf) * 1e18, message["w"])}
    for site in SITES:
        update(server.train(site, message if site == "bank-b" else huge))
    for site in SITES:
        update(server.train(site, message, slot=1, round=2))
    for answer in server.signed(1, 2).values():
        assert answer.blob == b""
        check_facts(answer.refusal, "signed")
    honest = Server(kits, epoch=6, config=EVERYONE)  # the states, and what they were made of, go back to the beginning
    honest.prepare()
    for round in (1, 2):
        for site in SITES:
            update(honest.train(site, message, slot=round, round=round))
    assert all(answer.blob for answer in honest.signed(2, 2).values())


@pytest.mark.parametrize("policy", ["", 'secure_sum = ["update", "n"]'])
def test_a_site_that_asks_for_sums_of_all_gives_no_two_that_differ_in_it_alone(kits: Path, policy: str) -> None:
    """The server tells all sites the same in two rounds, and drops bank-b's answer in the second."""
    set_policy(kits, policy)
    parts, settings = [SOME], {"optimizer_state": "fresh", "local_steps": 1}
    document = agreed(algorithm_settings={"parts": parts, **settings}).plain()
    config = resolve(document | {"model": document["model"] | {"dropout": 0.0}})
    if policy:
        with refusal("clients-missing", "bank-b:"):
            joined(kits, config)
        return
    fed, algorithm, link = joined(kits, config, quorum=0.5)
    lose(link, ("train", 2, "bank-b"))
    fed.begin(0)
    state, words = algorithm.init(fed), algorithm.composed["SecureSum"]._words
    asked = {"w": state["w"], "SecureSum": state["parts"]["SecureSum"]}
    sums = []
    for round in (1, 2):
        fed.begin(round)
        sums.append(words.decode(fed.map(algorithm.train, asked).total("update")["0"]["weight"], torch.float64))
    plain = agreed(algorithm_settings=settings).plain() | {"model": config.plain()["model"]}
    alone = simulated(resolve(plain))[1]
    [own] = alone.map(FedAvg(algorithm.model, **settings).train, {"w": state["w"]}, clients=alone.clients[1:2])
    term = own["n"] / asked["SecureSum"]["n"] * own["update"]["0"]["weight"].double()
    assert torch.allclose(sums[0] - sums[1], term, atol=1e-6)
    assert float(term.abs().max()) > 1e-3, "there is something to be learnt"


@pytest.mark.often("update")
@pytest.mark.parametrize("step", ["begin", "update"])
def test_parties_that_were_told_differently_open_no_aggregate(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    """Others' shares near 0 make their terms 0, and so can what they train on; the aggregate would be bank-b's own.
    Then the server
    overlooks that they say so."""
    write_kits(project, SITES, 2048)
    decaying = {"lr": 0.5, "decay_every": 1, "decay": 0.5}  # so that the server tells the rate of a round
    config = agreed("glasu", rounds=2, algorithm_settings={"secure_sum": True, **decaying})
    fed, algorithm, link = joined(cut_again(project, config), config)
    whole = link.exchange

    def lying(request: str, blobs: Any) -> Any:
        if json.loads(request).get("step") == f"GLASU.{step}":
            lie = {"share": torch.tensor(1e-12)} if step == "begin" else {"lr": 1e-12}
            blobs = {site: blob if site == "bank-b" else encode(decode(blob) | lie) for site, blob in blobs.items()}
        return whole(request, blobs)

    link.exchange = lying
    with refusal("sum.told-differently", "bank-b", "bank-a"):
        list(train(algorithm, fed, 2))
    monkeypatch.setattr(sums, "_common_fingerprint", lambda step, heard: heard["bank-a"])
    monkeypatch.setattr(sums.Sums, "_signature", lambda *_: True)
    again, algorithm, link = joined(project, config, run="r2")
    whole, link.exchange = link.exchange, lying
    with pytest.raises(FedweaveError), caplog.at_level("ERROR"):
        list(train(algorithm, again, 2))
    assert caplog.text.count("is not signed by it") == len(SITES)


def test_where_a_site_may_be_missing_what_it_was_told_before_changes_nothing(kits: Path, message: Tree) -> None:
    """A server can always say that a site was missing, so that no two remember the same."""
    trained = []
    for epoch, first in enumerate((message, message | {"w": map_leaves(lambda leaf: leaf * 1e3, message["w"])})):
        server = Server(kits, epoch=epoch + 5)
        server.prepare()
        for site in SITES:
            update(server.train(site, first))
        update(server.train("bank-a", message, slot=1, round=2))
        trained.append(decode((kits / "bank-a" / "runs" / "r1" / "state.safetensors").read_bytes())["w"])
    assert distance(*trained) == 0


def test_the_server_is_no_site(kits: Path) -> None:
    """Its certificate is of the project's authority, too; in a sum of a site and itself it knew the site's term."""
    for own in ("server", "admin", "authority"):
        request = json.loads(join_request(EVERYONE, "r2")) | {"sites": ["bank-b", own]}
        answer = InProcess(kits).members["bank-b"].answer(json.dumps(request), encode({}))
        assert answer.blob == b""
        check_facts(answer.refusal, f"{own}")
    for other in ("..", "../../bank-a", "bank_a", "Bank-a"):  # which no site can be called
        request = json.loads(join_request(EVERYONE, "r2")) | {"sites": ["bank-b", other]}
        answer = InProcess(kits).members["bank-b"].answer(json.dumps(request), encode({}))
        assert (answer.blob, answer.refusal != "") == (b"", True)
    assert InProcess(kits).members["bank-b"].answer(join_request(EVERYONE, "r2"), encode({})).blob


def test_a_lie_about_survivors_reveals_nothing(kits: Path, message: Tree) -> None:
    """bank-a hears that all have sent, bank-b that bank-c has dropped out, although its term has come."""
    server = Server(kits)
    server.prepare()
    for site in SITES:
        update(server.train(site, message))
    lists = {"bank-a": SITES, "bank-b": SITES[:2], "bank-c": SITES}
    signed = {site: reply(server.open(site, "survivors", lists[site]))["signature"] for site in SITES}
    for site, others in (("bank-a", SITES), ("bank-b", SITES[:2])):
        given = {"signatures": {other: signed[other] for other in others}, "letters": server.to(site)}
        answer = server.open(site, "reveal", lists[site], given)
        assert answer.blob == b""
        check_facts(answer.refusal, "signed")
    own = {"signatures": {"bank-c": signed["bank-c"]}, "letters": server.to("bank-c")}
    check_facts(server.open("bank-c", "reveal", SITES, own).refusal, "1 of 3")


@pytest.mark.parametrize("what", ["slot", "crowd", "others"])
def test_a_second_term_under_the_same_pads_is_refused(kits: Path, message: Tree, what: str) -> None:
    server = Server(kits)
    server.prepare()
    if what == "slot":
        update(server.train("bank-a", message))
        check_facts(server.train("bank-a", message, round=2).refusal, "used")
    else:
        peers = ["bank-a"] if what == "crowd" else ["bank-a", "bank-b", "bank-x"]
        answer = server.train("bank-a", message, peers=peers)
        assert answer.blob == b""
        assert "too few" in answer.refusal or "are not this site and others" in answer.refusal


def test_an_epoch_that_has_been_is_refused(kits: Path) -> None:
    """Also by a new job, in which the site remembers none of the old keys, but the epoch."""
    assert not Server(kits).agree("bank-a", "advertise").refusal
    check_facts(Server(kits).agree("bank-a", "advertise").refusal, "epoch 5")
    check_facts(Server(kits, 4).agree("bank-a", "advertise").refusal, "epoch 4", "5")
    assert not Server(kits, 6).agree("bank-a", "advertise").refusal


def test_pads_do_not_repeat_where_a_run_resumes_with_another_eval_every(kits: Path, message: Tree) -> None:
    """The same round from the same weights and state: the terms are the same, and what left would be, too."""
    sent = []
    for epoch, config in ((5, CONFIG), (6, resolve(CONFIG.plain() | {"eval_every": 3, "rounds": 9}))):
        server = Server(kits, epoch, config=config)
        server.prepare()
        sent.append([update(server.train(site, message)) for site in SITES])
    for first, second in zip(*sent, strict=True):
        assert float((first == second).double().mean()) < 0.01
    assert decode(encode({"h": first}))["h"].dtype == torch.int32
