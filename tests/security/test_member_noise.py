"""A server that wants more of a member than DP-FedAvg's noise lets through (docs/privacy.md)."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.ledger import Ledger
from fedweave.core.tree import Tree, norm
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.privacy.gaussian import epsilon
from fedweave.sites.flare.audit import compare
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.journal import entries, journals
from fedweave.sites.flare.member import Member
from fedweave.sites.flare.participation import MAX_RETURNS
from fedweave.sites.flare.policy import Spent
from fedweave.sites.flare.requests import pin
from tests.contract.federations import distance
from tests.privacy.authority import write_kits
from tests.refusals import check_facts
from tests.security.cheating import SITE, Cheat, agreed, reply, set_policy
from tests.sites.projects import SITES, InProcess

SCORED = 'unbounded = ["own", "trained"]'  # of which no ε holds


def noisy(**settings: Any) -> Any:
    """A run that goes on without a site whose cap is reached."""
    return agreed("dp_fedavg", rounds=9, algorithm_settings={"clip": 0.5, "quorum": 0.5} | settings)


def weights_of(server: Cheat) -> int:
    return sum(leaf.numel() for layer in server.weights()["w"].values() for leaf in layer.values())


def test_a_cap_lets_noised_updates_leave_until_it_is_reached_and_plain_ones_never(project: Path) -> None:
    """σ = 8: a round has μ = 1/4, and three have ε = epsilon(√3 / 4)."""
    cap = epsilon(math.sqrt(3) / 4, 1e-6)
    set_policy(project, f"epsilon = {cap + 1e-9}\ndelta = 1e-6\n{SCORED}")
    server = Cheat(project, noisy(sigma=8.0))
    assert not server.join().refusal
    for round in (1, 2, 3):
        left = reply(server.call("FedAvg.train", round))
        assert left.keys() == {"update"}  # and no number of examples
        size = 8.0 * 0.5 * math.sqrt(weights_of(server))
        assert float(norm(left["update"])) == pytest.approx(size, rel=0.3)
    refused = server.call("FedAvg.train", 4)
    assert refused.blob == b""
    assert refused.final
    check_facts(refused.refusal, f"policy.epsilon: ε = {cap:g}", f"{cap:g}", "1e-06", "3")
    spent = Spent.of(server.records().entries)
    assert spent.epsilon(1e-6) == pytest.approx(cap)
    other = Cheat(project, agreed(), run="r2").join()
    assert other.blob == b""
    check_facts(other.refusal, "policy.epsilon", "update")


@pytest.mark.parametrize(("rounds", "refused"), [(3, False), (4, True)])
def test_a_run_that_cannot_end_within_the_cap_does_not_begin(project: Path, rounds: int, refused: bool) -> None:
    """σ = 8, and a cap of three rounds, of which an earlier run has had none, and then one."""
    set_policy(project, f"epsilon = {epsilon(math.sqrt(3) / 4, 1e-6) + 1e-9}\ndelta = 1e-6\n{SCORED}")
    config = agreed("dp_fedavg", rounds=rounds, algorithm_settings={"clip": 0.5, "sigma": 8.0})
    server = Cheat(project, config)
    assert bool(why := server.join().refusal) == refused
    assert not refused or "ε = 0 of 1.92535 is spent at δ = 1e-06, so that a run that begins now" in why
    if not refused:
        assert server.call("FedAvg.train", 1, saved=0).blob
        check_facts(Cheat(project, config, run="r2").join().refusal, "round 3 of 3")
        assert not Cheat(project, config).join(after=1).refusal  # two are left, and two fit
    else:
        assert not server.call("FedAvg.train", 1).blob


@pytest.mark.parametrize("settings", [{"sigma": 0.01}, {"sigma": 8.0, "clip": 5.0}])
def test_a_server_that_wants_other_noise_than_was_agreed_is_refused(project: Path, settings: dict[str, float]) -> None:
    """In a call, and in a further job of the run."""
    server, wanted = Cheat(project, noisy(sigma=8.0)), noisy(**settings)
    assert not server.join().refusal
    answer = server.call("FedAvg.train", pin=pin(wanted.plain(), [*SITES]))
    check_facts(answer.refusal, "configuration")
    check_facts(Cheat(project, wanted).join().refusal, "configuration")
    assert not [entry for entry in server.records().entries if entry.step == "FedAvg.train"]


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("noise = {update = 0.5}", "policy.noise: update needs at least 0.5"),
        ("epsilon = 8.0", "policy.epsilon: ε = 0 is spent, .* more exceed 8 at δ = 1e-05; 0 such messages fit"),
    ],
)
def test_a_run_with_too_little_noise_is_refused_by_the_policy(project: Path, policy: str, why: str) -> None:
    set_policy(project, policy)
    loud = noisy(sigma=1e-9, clip=1e9, lr=1e8)  # the noise of 1 is nothing beside updates that may be so large
    for run, config in (("r1", noisy(sigma=0.01)), ("r2", loud)):
        joining = Cheat(project, config, run=run).join()
        assert joining.blob == b""
        assert re.search(why, joining.refusal)


def test_weights_of_a_cheating_server_get_no_more_of_an_example_than_its_noise_lets_through(project: Path) -> None:
    """Whatever it sends, each of a site's fewer than 200 training examples adds no more than the clip, and at the cap
    nothing leaves."""
    clip, sigma, examples = 0.5, 8.0, 5
    part = {"name": "dp_examples", "clip": clip, "sigma": sigma, "examples": examples, "lr": 1.0}
    cap = epsilon(math.sqrt(2) * 2 / sigma, 1e-5)
    settings = {"local_steps": 1, "quorum": 0.5, "parts": ["uniform", part]}
    set_policy(project, f"epsilon = {cap + 1e-9}\n{SCORED}")
    document = agreed(rounds=9, algorithm_settings=settings).plain()
    server = Cheat(project, resolve({**document, "model": {"name": "mlp", "hidden": 16}}))
    assert not server.join().refusal
    noise = sigma * clip * math.sqrt(weights_of(server))
    for round, crafted in ((1, server.weights()), (2, server.weights(1e4))):
        left = reply(server.call("FedAvg.train", round, crafted))
        assert left.keys() == {"update"}
        assert 0.5 * noise <= float(norm(left["update"])) * examples <= 1.5 * noise + clip * 200
    check_facts(server.call("FedAvg.train", 3).refusal, f"policy.epsilon: ε = {cap:g}")


def test_a_target_is_not_stretched_by_asking_for_more_rounds(project: Path) -> None:
    """The length of a run may change when it is resumed; what a site was promised may not."""
    part = {"name": "dp", "epsilon": 4.0, "target_rounds": 9}
    target, longer = (agreed(rounds=rounds, algorithm_settings={"parts": ["uniform", part]}) for rounds in (9, 10))
    assert not Cheat(project, target).join().refusal
    server = Cheat(project, longer)
    assert server.join().blob == b""
    assert server.call("FedAvg.train").blob == b""
    check_facts(server.refusals()[0]["why"], "ε", "9 rounds")


@pytest.mark.parametrize("allowed", [False, True])
def test_a_target_is_not_stretched_by_beginning_the_run_again(project: Path, allowed: bool) -> None:
    """Five times two rounds, for ε = 1 in two: as the same run, of whose checkpoints the server says nothing and which
    it begins with other weights, and as another of the same configuration."""
    set_policy(project, f"repeats = {str(allowed).lower()}")
    part = {"name": "dp", "epsilon": 1.0, "target_rounds": 2}
    config = agreed(rounds=2, algorithm_settings={"parts": ["uniform", part]})
    for at, run in enumerate(("r1", "r1", "r1", "r2", "r3")):
        server = Cheat(project, config, run=run)
        server.join()
        for round in (1, 2):
            server.call("FedAvg.train", round, server.weights(1 + at))
    found = Spent.of(entry for path in journals(server.folder) for entry in entries(path)).epsilon(1e-5)
    assert found == pytest.approx(2.44, abs=0.01) if allowed else found <= 1.0
    assert allowed or "policy.repeats: the target ε is for 2 replies" in server.refusals()[0]["why"]


def spent(server: Cheat) -> float:
    return Spent.of(entry for path in journals(server.folder) for entry in entries(path)).epsilon(1e-5)


def test_a_round_that_is_asked_for_again_has_the_noise_that_it_had(project: Path) -> None:
    """Another member's process dies in round 2, and the server begins the round again: the site's reply is the same,
    and costs nothing more. A server that sends other weights gets other noise, which counts."""
    part = {"name": "dp", "epsilon": 1.0, "target_rounds": 3}
    config = agreed(rounds=3, algorithm_settings={"parts": ["uniform", part]})
    server = Cheat(project, config)
    assert not server.join().refusal
    first, second = (server.call("FedAvg.train", round, saved=round - 1).blob for round in (1, 2))
    cost = spent(server)
    for _ in range(3):
        server = Cheat(project, config)
        assert not server.join(after=1).refusal
        assert server.call("FedAvg.train", 2, saved=1).blob == second != first
        assert spent(server) == cost
    assert server.call("FedAvg.train", 3, saved=1).blob
    assert spent(server) == pytest.approx(1.0, abs=1e-6)
    server = Cheat(project, config)
    assert not server.join(after=1).refusal  # the replies of both rounds are there
    check_facts(server.call("FedAvg.train", 2, server.weights(2.0), saved=1).refusal, "policy.repeats")
    assert spent(server) == pytest.approx(1.0, abs=1e-6)


def test_a_secure_sum_that_is_asked_for_again_is_of_the_same_noise(project: Path) -> None:
    """The site masks the term again, with keys of another epoch."""
    write_kits(project, SITES)
    part = {"name": "dp", "epsilon": 1.0, "target_rounds": 3}
    config = agreed(rounds=2, algorithm_settings={"parts": ["uniform", part, "secure_sum"]})
    saved: Tree = {}
    state: Tree = {}
    results: list[Tree] = []
    ledger = Ledger()
    for after in (-1, 1, 1):
        fed = Flare(InProcess(project), SITES, ledger=ledger, seed=config.general.seed)
        replies = fed.join(config.plain(), "r1", after)
        fed.classes = replies[SITE]["classes"]
        if after > 0:
            fed.restore(saved)
        algorithm = config.algorithm.make(config.model.make().build(replies[SITE]["features"], fed.classes))
        for step in train(algorithm, fed, 2, resume=(1, state) if after > 0 else None):
            if step.round == 1:
                saved, state = fed.snapshot(), step.state
        results.append(step.state["w"])
    assert distance(results[0], results[1]) == distance(results[1], results[2]) == 0
    journal = [one for path in journals(project / SITE) for one in entries(path)]
    noised = [one for one in journal if any(line.applied and "gaussian" in line.applied for line in one.keys)]
    assert len(noised) == 4
    assert Spent.of(journal).epsilon(1e-5) == Spent.of(noised[:2]).epsilon(1e-5)
    assert compare(project / SITE, "r1", ledger.table()) == ([], [])  # the run's ledger counts it once, too


def test_other_weights_in_a_round_that_is_repeated_cost_again(project: Path) -> None:
    config = noisy(sigma=8.0)
    server, costs = Cheat(project, config), list[float]()
    assert not server.join().refusal
    for scale in (1.0, 2.0, 2.0, 1.0):
        again = Cheat(project, config)
        assert not again.join().refusal
        reply(again.call("FedAvg.train", 1, again.weights(scale)))
        costs.append(spent(again))
    assert costs[0] < costs[1] == costs[2] == costs[3]


def test_noise_that_has_not_left_is_counted_when_it_leaves(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies after the noise is drawn and before the reply is in the ledger."""
    config, honest = noisy(sigma=8.0), Member._send

    def dying(self: Member, round: int, name: str, *more: Any, **named: Any) -> bytes:
        if name == "FedAvg.train":
            raise OSError
        return honest(self, round, name, *more, **named)

    monkeypatch.setattr(Member, "_send", dying)
    server = Cheat(project, config)
    assert not server.join().refusal
    assert server.call("FedAvg.train", 1).refusal
    assert spent(server) == 0
    monkeypatch.setattr(Member, "_send", honest)
    for _ in range(2):
        server = Cheat(project, config)
        assert not server.join().refusal
        reply(server.call("FedAvg.train", 1))
        assert spent(server) == pytest.approx(epsilon(1 / 4, 1e-5))


def test_a_run_goes_back_to_one_round_only_so_often(project: Path) -> None:
    config = noisy(sigma=8.0)
    for _ in range(MAX_RETURNS + 1):
        assert not Cheat(project, config).join().refusal
    check_facts(Cheat(project, config).join().refusal, "got no further")


def test_a_run_goes_on_within_its_target(project: Path) -> None:
    """A round that was done again with other weights is made up for by one fewer in all."""
    part = {"name": "dp", "epsilon": 1.0, "target_rounds": 3}
    settings = {"parts": ["uniform", part]}
    server = Cheat(project, agreed(rounds=3, algorithm_settings=settings))
    server.join()
    for round in (1, 2):
        assert server.call("FedAvg.train", round, saved=round - 1).blob
    again = Cheat(project, server.config)
    assert not again.join(after=1).refusal
    assert again.call("FedAvg.train", 2, again.weights(2.0), saved=1).blob
    assert not again.call("FedAvg.train", 3, saved=1).blob
    fewer = Cheat(project, agreed(rounds=2, algorithm_settings=settings))
    assert not fewer.join(after=1).refusal
    assert fewer.call("FedAvg.train", 2, saved=1).blob
    assert spent(fewer) == pytest.approx(1.0, abs=1e-6)
