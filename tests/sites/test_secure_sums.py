"""Secure sums at sites, without NVFlare between them: the simulation's numbers, dropouts, epochs, what is metered."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.federation import Sends, StepInfo, step_info
from fedweave.core.mechanism import Clipped, SecureSum
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, decode, encode, leaves
from fedweave.errors import CallRefused, ClientsMissing
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.partition.base import Partition
from fedweave.partition.vertical import Vertical
from fedweave.privacy.secure_sum import BEYOND
from fedweave.sites.flare.audit import audit, compare
from fedweave.sites.flare.journal import Journal, journal_path, read_journal
from fedweave.sites.flare.masking import Masking
from fedweave.sites.flare.requests import Agree, Answer, StepRequest, Sum
from fedweave.sites.flare.sums import Sums
from fedweave.sites.protocols.aggregation import SumGroup
from tests.contract.federations import distance
from tests.privacy.authority import write_kits
from tests.refusals import check_facts, refusal
from tests.security.cheating import agreed, make_sites
from tests.sites.projects import (
    SITES,
    check_equal,
    check_private,
    cut_again,
    job_of,
    joined,
    renamed,
    replies_of,
    set_policy,
    simulated,
)

EXTRA = ("(advertise)", "(share)", "(survivors)", "(reveal)")
SUM = ("FedAvg.train", "(survivors)", "(reveal)")  # the exchanges of a sum whose keys are agreed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = make_sites(tmp_path_factory.mktemp("summing") / "project")
    write_kits(project, SITES, 2048)
    return project


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Path:
    """Three sites that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "project"))


def words(link: Any, site: str, step: str) -> list[torch.Tensor]:
    """What the server hears of a site under its step's secure sum, from now on."""
    heard: list[torch.Tensor] = []

    def listen(answer: Answer) -> Answer:
        tree = decode(answer.blob) if answer.blob else {}
        if step in tree:
            heard.append(tree[step])
        return answer

    link.spoil[site] = listen
    return heard


def test_glasu_has_the_simulations_numbers_and_the_server_sees_noise(project: Path) -> None:
    config = agreed("glasu", rounds=2, algorithm_settings={"optimizer": "sgd", "lr": 0.5, "secure_sum": True})
    fed, algorithm, link = joined(cut_again(project, config), config)
    heard = words(link, "bank-b", "h")
    *_, last = train(algorithm, fed, 2)
    _, sim = check_equal(last, config, within=0.0)
    check_private(project, sim, within=0.0)
    assert len(heard) == 8
    for h in heard:
        assert h.dtype == torch.int32
        uniform = pytest.approx(2**30, rel=3 / h.numel() ** 0.5)  # 5 deviations
        assert float(h.double().abs().mean()) == uniform
    rows = [row for row in fed.ledger.table().to_pylist() if row["step"] in EXTRA and row["direction"] == "up"]
    steps = [row["step"] for row in rows if row["client"] == "bank-a" and row["key"] in ("keys", "shares", "signature")]
    assert [steps.count(name) for name in EXTRA] == [2, 1, 8, 8]  # of an advertisement the keys and their signature


def test_the_server_sees_no_label_holders_gradient_where_there_are_two(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels at two of three parties: what leaves each is uniform words, their total the simulation's gradient."""
    real = Vertical.cut

    def cut(self: Vertical, data: Any, seed: int) -> Partition:
        *two, third = real(self, data, seed).parts
        return Partition((*two, replace(third, labels=False)))

    monkeypatch.setattr(Vertical, "cut", cut)
    config = agreed("glasu", rounds=2, algorithm_settings={"optimizer": "sgd", "lr": 0.5, "secure_sum": True})
    fed, algorithm, link = joined(cut_again(project, config), config)
    heard = [words(link, site, "gradient") for site in SITES]
    *_, last = train(algorithm, fed, 2)
    expected, sim = simulated(config)
    assert distance(last.state, renamed(expected.state, sim)) == 0
    for own in heard:
        assert len(own) == 2
        for gradient in own:
            uniform = pytest.approx(2**30, rel=3 / gradient.numel() ** 0.5)  # 5 deviations
            assert float(gradient.double().abs().mean()) == uniform
    assert not any(row["step"] == "GLASU.pull" for row in fed.ledger.table().to_pylist())


def metered(fed: Any) -> Counter[tuple[Any, ...]]:
    """What passed besides the terms, without names and certificates, which are as long as they are."""
    names = dict(zip(fed.clients, SITES, strict=True))
    kept = ("round", "step", "direction", "shape", "bytes")
    rows = [row for row in fed.ledger.table().to_pylist() if row["step"] in EXTRA]
    told = [row for row in rows if row["shape"] and "certificate" not in row["key"]]
    about = [(row["key"].rpartition("/")[2], *(row[key] for key in kept)) for row in told]
    return Counter(
        (names[row["client"]], names.get(key, key), *of) for row, (key, *of) in zip(told, about, strict=True)
    )


# --- FedAvg

PARTS = [{"name": "clip", "norm": 5.0}, {"name": "secure_sum", "require_all": False, "accomplices": 0}]


def secure(**settings: Any) -> Any:
    lasting = {"parts": PARTS, "quorum": 0.5, "optimizer_state": "fresh"}
    return agreed("fedavg", rounds=3, algorithm_settings=lasting | settings)


@cache
def without(*absent: tuple[int, str]) -> Any:
    """What the simulation of `secure` comes to with clients that do not reply to any call of a round."""
    config = secure()
    built = build(resolve({**config.plain(), "engine": {"name": "simulation", "mode": "loop"}}))
    names = dict(zip(built.fed.clients, SITES, strict=True))
    built.fed._absent = lambda round, client: "away" if (round, names[client]) in absent else None
    *_, last = train(built.algorithm, built.fed, config.general.rounds)
    return last.state


def lose(link: Any, *lost: tuple[str, int, str]) -> None:
    """Answers of sites that never come: (kind or step, round, site)."""
    whole = link.exchange

    def broken(request: str, blobs: Any) -> Any:
        asked = json.loads(request)
        names = {asked["kind"], asked.get("step", "").rpartition(".")[2]}
        gone = {site for what, round, site in lost if what in names and asked["round"] == round}
        answers, missing = whole(request, {site: blob for site, blob in blobs.items() if site not in gone})
        return answers, missing | dict.fromkeys(gone & blobs.keys(), "no answer within 60 s")

    link.exchange = broken


def test_fedavg_has_the_simulations_numbers_and_the_server_sees_noise(project: Path) -> None:
    set_policy(project, 'secure_sum = ["update", "n"]\npartial_sums = true')
    config = secure()
    fed, algorithm, link = joined(project, config, quorum=0.5)
    heard = words(link, "bank-b", "update")
    *_, last = train(algorithm, fed, 3)
    expected, sim = simulated(config)
    assert distance(last.state, expected.state) == 0
    assert metered(fed) == metered(sim)
    assert [compare(project / site, "r1", fed.ledger.table()) for site in SITES] == [([], [])] * len(SITES)
    assert len(heard) == 3
    bits = torch.cat([update["0"]["weight"].view(-1) for update in heard])[:, None] >> torch.arange(32) & 1
    assert float(bits.double().mean()) == pytest.approx(0.5, abs=6 * 0.5 / bits.numel() ** 0.5)
    entries = read_journal(journal_path(project / "bank-b", "r1")).entries
    lines = [line for entry in entries if entry.step == "FedAvg.train" for line in entry.keys if line.applied]
    assert lines
    assert {line.mechanism for line in lines if line.key.startswith("update")} == {
        f"{Clipped(5.0)}, {SecureSum(fraction=24)}"
    }


@pytest.mark.often("scaffold")
@pytest.mark.parametrize(
    ("name", "settings", "keys"),
    [
        ("scaffold", {"option": 1}, {"update", "control", "n", "beyond"}),
        ("fednova", {"max_local_steps": 3}, {"update", "reach", "n", "beyond", "steps"}),
        ("feddc", {}, {"update", "n", "beyond"}),
        ("fedrep", {}, {"update", "n", "beyond"}),
        ("pfedme", {}, {"update", "n", "beyond"}),
    ],
    ids=["scaffold", "fednova", "feddc", "fedrep", "pfedme"],
)
def test_whatever_a_mean_is_taken_of_is_the_simulations_and_words_to_the_server(
    project: Path, name: str, settings: Any, keys: set[str]
) -> None:
    """Whatever leaves a site before and during training is uniform words, and no number is the simulation's."""
    config = agreed(name, rounds=2, algorithm_settings={"parts": ["secure_sum"], **settings})
    set_policy(project, f"secure_sum = {sorted(keys - {'control'})}")
    fed, algorithm, link = joined(project, config)
    heard: dict[str, list[torch.Tensor]] = {}

    def listen(answer: Answer) -> Answer:
        tree = decode(answer.blob) if answer.blob else {}
        if not tree.keys() - keys:
            for path, leaf in leaves(tree):
                heard.setdefault(path.partition("/")[0], []).append(leaf.reshape(-1))
        return answer

    link.spoil["bank-b"] = listen
    *_, last = train(algorithm, fed, 2, 0)
    expected, _ = simulated(config)
    assert distance(last.state["w"], expected.state["w"]) == 0
    assert heard.keys() == keys
    for key, sent in heard.items():
        assert all(leaf.dtype in (torch.int32, torch.int64) for leaf in sent), key
        halves = torch.cat([leaf.view(torch.int32) for leaf in sent])[:, None] >> torch.arange(32) & 1
        assert float(halves.double().mean()) == pytest.approx(0.5, abs=6 * 0.5 / halves.numel() ** 0.5), key


def test_a_site_whose_training_diverged_sends_no_words_of_it(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server could not tell: words of what is not finite are words like any others."""
    fed, algorithm, link = joined(project, secure(optimizer="sgd", lr=1e38))
    heard = words(link, "bank-b", "update")
    with pytest.raises(ClientsMissing):
        list(train(algorithm, fed, 3))
    check_facts(caplog.text, "update/")
    assert not heard


def test_a_policy_that_asks_for_it_refuses_plain_updates(project: Path) -> None:
    set_policy(project, 'secure_sum = ["update"]')
    with refusal("clients-missing", "bank-b:", "policy.secure_sum:"):
        joined(project, agreed())


@pytest.mark.often("revealing")
@pytest.mark.parametrize(
    ("lost", "away"),
    [
        ([("train", 2, "bank-c")], [(2, "bank-c")]),  # its pads with the others are taken away
        ([("reveal", 2, "bank-a")], []),  # it sent its term: its self mask is put together from shares
        ([("survivors", 2, "bank-b")], []),
    ],
    ids=["masking", "revealing", "signing"],
)
def test_a_sum_survives_a_site_that_drops_out(project: Path, lost: Any, away: Any) -> None:
    config = secure()
    fed, algorithm, link = joined(project, config, quorum=0.5)
    lose(link, *lost, *[("score", 2, site) for _, site in away])
    *_, last = train(algorithm, fed, 3)
    assert distance(last.state, without(*away)) == 0
    rows = fed.ledger.table().to_pylist()
    exchanges = [{row["call"] for row in rows if row["round"] == round and row["step"] in SUM} for round in (1, 2)]
    assert [len(calls) for calls in exchanges] == [3, 3]  # no more for the site that is lost


def test_a_site_that_agreed_on_no_keys_is_missing_until_the_next_epoch(project: Path) -> None:
    """bank-a does not advertise for the first sum, the number of examples, and all agree again for the next."""
    fed, algorithm, link = joined(project, secure(), quorum=0.5)
    lose(link, ("advertise", 0, "bank-a"))
    fed.begin(0)
    state = algorithm.init(fed)
    assert int(state["parts"]["SecureSum"]["n"]) > 0
    assert fed.faults()["bank-a", "missing"] == 2
    fed.begin(1)
    algorithm.round(state, fed)
    assert not fed.faults()


@pytest.mark.parametrize("kind", ["advertise", "share", "survivors", "reveal"])
def test_a_site_that_sends_nonsense_besides_its_terms_harms_no_other(project: Path, kind: str) -> None:
    """A signature of nothing, or shares of another form: the sum is that of the others, or of all."""
    fed, algorithm, link = joined(project, secure(), quorum=0.5)
    key = {"share": "shares", "reveal": "shares"}.get(kind, "signature")
    whole = link.exchange

    def spoilt(request: str, blobs: Any) -> Any:
        answers, missing = whole(request, blobs)
        if json.loads(request)["kind"] == kind and "bank-b" in answers:
            tree = decode(answers["bank-b"].blob)
            tree[key] = tree[key][..., :-1].contiguous()
            answers["bank-b"] = answers["bank-b"]._replace(blob=encode(tree))
        return answers, missing

    link.exchange = spoilt
    fed.begin(0)
    state = algorithm.init(fed)
    n = [len(np.load(project / site / "data.npz")["train_idx"]) for site in SITES]
    left_out = kind in ("advertise", "share")
    assert int(state["parts"]["SecureSum"]["n"]) == sum(n) - left_out * n[1]
    assert fed.faults() == ({("bank-b", "missing"): 1} if left_out else {})


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ([("train", 1, "bank-b"), ("train", 1, "bank-c")], "2 are needed"),
        ([("train", 1, "bank-b"), ("reveal", 1, "bank-c")], "1 of 2 clients replied, 2 are needed"),
        ([("survivors", 1, "bank-b"), ("survivors", 1, "bank-c")], "1 of 3 clients replied, 2 are needed"),
    ],
)
def test_with_too_few_nothing_is_opened(project: Path, lost: Any, said: str) -> None:
    fed, algorithm, link = joined(project, secure(quorum=0.3), quorum=0.3)
    lose(link, *lost)
    with pytest.raises(ClientsMissing, match=said) as error:  # for which a run between sites can wait
        list(train(algorithm, fed, 1))
    assert error.value.missing.keys() <= {site for _, _, site in lost}


def test_epochs_rise_and_keys_are_agreed_again_when_used_up(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sums an epoch: the first round's and the one before, then two rounds'; and again in the next job."""
    monkeypatch.setattr(SumGroup.__init__, "__defaults__", (2,))
    config = secure()
    fed, algorithm, _ = joined(project, config, quorum=0.5)
    for step in train(algorithm, fed, 3):
        if step.round == 1:
            saved, state, before = fed.snapshot(), step.state, step.summary
    again, algorithm, _ = joined(project, config, after=1, quorum=0.5)
    again.restore(saved)
    *_, last = train(algorithm, again, 3, resume=(1, state), summary=before)
    assert distance(last.state, without()) == 0
    epochs = [
        note["epoch"] for note in read_journal(journal_path(project / "bank-a", "r1")).notes if note["note"] == "epoch"
    ]
    assert len(epochs) == 3
    assert epochs == sorted(set(epochs))


@pytest.mark.slow
def test_epochs_rise_where_the_servers_clock_is_set_back(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites refused the keys of the next job, and the run could not go on before the clock was where it had been."""
    now, config = 2_000_000_000_000, secure()
    path, state, saved = journal_path(project / "server", "r1"), None, None
    for job in range(3):
        monkeypatch.setattr(
            "fedweave.sites.flare.sums.time.time_ns", lambda job=job: (now - 7_200_000 * job) * 1_000_000
        )
        fed, algorithm, _ = joined(project, config, after=job or -1, quorum=0.5, ledger=Journal(path))
        if saved is not None:
            fed.restore(saved)
        step = next(iter(train(algorithm, fed, 3, resume=(job, state) if job else None, summary={})))
        saved, state = fed.snapshot(), step.state
    for folder in ("server", "bank-a"):
        notes = read_journal(journal_path(project / folder, "r1")).notes
        assert [note["epoch"] for note in notes if note["note"] == "epoch"] == [now, now + 1, now + 2]


STEPS = {
    "some": StepInfo.of({"n": Sends("a count", SecureSum())}),
    "all": StepInfo.of({"n": Sends("a count", SecureSum()), "h": Sends("a row", SecureSum(everyone=True))}),
}  # what a step needs is what the strictest of its sums needs


def maskings(project: Path) -> dict[str, Masking]:
    """The sites' parts in the sums of a run."""
    return {site: Masking(project / site, site, "r1", SITES, Journal(project / site / "sums.jsonl")) for site in SITES}


def test_keys_that_were_agreed_on_for_sums_of_fewer_sites_serve_no_sum_of_all(project: Path) -> None:
    """A sum under keys of an epoch can be opened by as many sites as the epoch was agreed on for."""
    sites = maskings(project)

    def agree(epoch: int, step: str) -> None:
        ask = {kind: Agree(kind, "", 0, step, epoch) for kind in ("advertise", "share")}
        adverts = {site: own.agree(ask["advertise"], STEPS[step], {}) for site, own in sites.items()}
        for own in sites.values():
            own.agree(ask["share"], STEPS[step], {"adverts": adverts})

    def term(step: str, epoch: int) -> torch.Tensor:
        call = StepRequest("step", "", step, 1, 0, -1, sum=Sum(epoch, 0, list(SITES)))
        masked = sites["bank-a"].mask_reply(call, STEPS[step], "", {"n": torch.ones(64, dtype=torch.int32)})
        return torch.as_tensor(masked["n"])

    for epoch, agreed_for, other in ((5, "some", "all"), (6, "all", "some")):
        agree(epoch, agreed_for)
        with refusal("call-refused", f"epoch {epoch}"):
            term(other, epoch)
        assert len(term(agreed_for, epoch).unique()) > 1


def test_the_server_has_new_keys_agreed_on_for_sums_of_another_number_of_sites(project: Path) -> None:
    sites = maskings(project)

    def ask(kind: Any, info: StepInfo, request: dict[str, Any], told: Mapping[str, Tree]) -> Replies:
        asked = Agree(kind, "", 0, **request)
        return replies_of({site: sites[site].agree(asked, STEPS[asked.step], dict(own)) for site, own in told.items()})

    sums = Sums(ask, SITES, "r1")
    prepared = [sums.prepare(step, STEPS[step], SITES) for step in ("some", "some", "all", "all", "some")]
    first, second, third = sorted({own["epoch"] for own in prepared})
    assert [(own["epoch"], own["slot"]) for own in prepared] == [
        (first, 0), (first, 1), (second, 0), (second, 1), (third, 0),
    ]  # fmt: skip


def test_where_a_step_has_changed_a_sites_data_no_sum_that_sites_may_be_missing_from_has_it(project: Path) -> None:
    """Its term would depend on what it was told before, such as data that say nothing but of one record."""
    _, algorithm, link = joined(project, secure())
    job, info = job_of(link.members["bank-a"]), step_info(algorithm.train)
    assert info.stateless
    call = StepRequest("step", job.pin, "FedAvg.train", 1, 0, -1)
    assert job.message_digest(call, info, {})
    job.replace(None, call, 0)
    with pytest.raises(CallRefused, match="sum"):
        job.message_digest(call, info, {})
    assert not job.message_digest(call, step_info(algorithm.score), {})


def test_what_a_sum_cuts_is_said_at_the_site_and_as_a_sum_alone_to_the_server(project: Path) -> None:
    """The server hears a masked word; each site's journal and audit have its own count, which add up to the run's."""
    tight = {"parts": [{"name": "secure_sum", "bound": 1e-3}], "optimizer": "sgd", "lr": 0.5}
    config = agreed("fedavg", rounds=2, algorithm_settings=tight)
    fed, algorithm, link = joined(cut_again(project, config), config)
    heard = words(link, "bank-b", BEYOND)
    *_, last = train(algorithm, fed, 2)
    expected = simulated(config)[0].summary
    assert last.summary == {name: value for name, value in expected.items() if "pooled/" not in name}
    own = [
        [note for note in read_journal(journal_path(project / site, "r1")).notes if note["note"] == "cut"]
        for site in SITES
    ]
    assert [[note["round"] for note in notes] for notes in own] == [[1, 2]] * len(SITES)
    assert sum(note["cut"] for notes in own for note in notes) == last.summary["secure_sum/cut"] > 0
    assert sum(note["values"] for notes in own for note in notes) == last.summary["secure_sum/values"]
    assert not {int(word) for word in heard} & {note["cut"] for notes in own for note in notes}
    run, *_ = audit(project / "bank-b").runs
    assert [note["cut"] for note in run.cut] == [note["cut"] for note in own[SITES.index("bank-b")]]
