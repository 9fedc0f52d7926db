"""Secure sums in the simulation: exact words, the total alone, training as with the plain mean, ledger and policies."""

import pytest
import torch

from fedweave.algorithms.vertical.aggregation import RowRelease
from fedweave.core.federation import Federation, StepInfo, step_info
from fedweave.core.mechanism import Clipped, Gaussian, SecureSum, read_applied
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.experiment.rounds import train
from fedweave.privacy.gaussian import GaussianRows
from fedweave.privacy.secure_sum import FixedPoint, cut_counts, even_share, update_tally
from fedweave.sites.flare.policy import PolicyViolation, Spent, check_reply
from fedweave.sites.flare.sitefile import Rules
from tests.algorithms.test_glasu import federation, gap, made, outcome, parties, rows
from tests.refusals import refusal

WORDS = FixedPoint(32, 16)


@pytest.mark.parametrize("bits", [32, 64])
def test_a_sum_of_words_is_exact(bits: int) -> None:
    """1.5 - 0.25 = 1.25, with 16 digits behind the point; terms are kept within the bound that is given."""
    words = FixedPoint(bits, 16)
    told = torch.stack([words.encode(torch.tensor([value, 9e9]), words.word(2.0)) for value in (1.5, -0.25)])
    assert (told.dtype, told.tolist()) == (words.dtype, [[98304, 131072], [-16384, 131072]])
    total = Replies(("a", "b"), [ReplyBatch((0, 1), {"h": told})], {}, ("h",)).total("h")
    assert words.decode(total, torch.float64).tolist() == [1.25, 4.0]


@pytest.mark.parametrize("clients", [2, 3, 5, 7, 1000])
def test_even_shares_do_not_overflow_together(clients: int) -> None:
    """Also not where 1 / clients is rounded up, as that of 3 is in float32."""
    most = even_share(WORDS, torch.tensor(1 / clients, dtype=torch.float32))
    term = WORDS.encode(torch.tensor([1e9, -1e9]), most)
    assert (int(term[0]) * clients < 2**31) & (int(term[1]) * clients >= -(2**31))
    assert int(term[0]) * clients > 2**31 - 2 * clients


def test_a_bound_that_could_overflow_is_refused() -> None:
    WORDS.check(3276.7, 10, "h")
    with refusal("user.overflow", "3276.8"):
        WORDS.check(3276.8, 10, "h")
    for bits, fraction in ((16, 4), (32, 31), (64, -1)):
        with pytest.raises(ValueError, match="words have 32 or 64 bits"):
            FixedPoint(bits, fraction)


def test_replies_show_the_total_alone() -> None:
    tree = {"h": {"x": torch.ones(2, 3, dtype=torch.int32)}, "n": torch.ones(2)}
    replies = Replies(("a", "b"), [ReplyBatch((0, 1), tree)], {}, ("h",))
    assert replies.total("h")["x"].tolist() == [2, 2, 2]
    assert replies["a"].keys() == {"n"}
    for look in (replies.stack, replies.matrix, lambda key: replies.weighted_sum(key, torch.ones(2))):
        with refusal("reply.no-key", "client's"):
            look("h/x")
    assert replies.stack("n").tolist() == [1, 1]


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_training_is_that_of_the_plain_mean(mode: str) -> None:
    plain, hidden = (outcome(made(secure_sum=on, steps=2), federation(mode=mode))[1] for on in (False, True))
    assert gap(plain, {path: leaf for path, leaf in hidden.items() if path in plain}) < 1e-3
    assert hidden.keys() == plain.keys()


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_gradients_of_several_label_holders_are_added_up_unseen(mode: str) -> None:
    """Two of three clients have labels; training is as with the gradients in the open, to the words' 24 digits."""
    hidden, plain = (federation(parties(holders=(0, 2)), mode=mode) for _ in range(2))
    (_, found), (_, expected) = outcome(made(secure_sum=True), hidden), outcome(made(), plain)
    assert gap(expected, {path: leaf for path, leaf in found.items() if path in expected}) < 1e-3
    sent = rows(hidden, direction="up", key="gradient")
    assert {(row["step"], row["client"]) for row in sent} == {("GLASU.pull_sum", f"client-{i}") for i in range(3)}
    assert {read_applied(row["applied"]) for row in sent} == {("gradient", (SecureSum(2, everyone=True, fraction=24),))}
    assert all("the labels of the batch can be reconstructed" in row["reveals"] for row in sent)


def test_of_one_label_holder_there_is_no_sum_to_hide_in() -> None:
    fed = federation(parties(holders=(1,)))
    outcome(made(secure_sum=True), fed, 1)
    assert {row["step"] for row in rows(fed, direction="up", key="gradient")} == {"GLASU.pull"}
    algorithm, rules = made(secure_sum=True), Rules(secure_sum=("gradient",))
    reply = {"gradient": torch.zeros(2)}
    check_reply(rules, Spent(), reply, 8, step_info(algorithm.pull_sum))
    with pytest.raises(PolicyViolation, match="gradient may only leave in a secure sum"):
        check_reply(rules, Spent(), reply, 8, step_info(algorithm.pull))


@pytest.mark.slow
def test_double_precision() -> None:
    """Sealed terms are whole numbers: their sum returns in the federation's own precision."""
    plain, hidden = (outcome(made(secure_sum=on), federation(parties(dtype=torch.float64)))[1] for on in (False, True))
    weights = {path: leaf for path, leaf in hidden.items() if path in plain}
    assert {leaf.dtype for path, leaf in weights.items() if "/w/" in path} == {torch.float64}
    assert gap(plain, weights) < 1e-3


def test_what_is_sent_is_said() -> None:
    fed = federation()
    outcome(made(secure_sum=True, sigma=1.0), fed, 1)
    sent = rows(fed, direction="up", key="h")
    assert len(sent) == 4 * 3
    applied = ("h", (Clipped(1.0), Gaussian(1.0, 2.0), SecureSum(2, everyone=True)))
    assert {read_applied(row["applied"]) for row in sent} == {applied}
    assert all(row["reveals"].startswith("nothing by itself; ") and "int32" in row["shape"] for row in sent)


def test_a_sum_of_too_few_is_refused() -> None:
    """GLASU adds up all clients' terms or none."""
    fed = federation()
    algorithm = made(secure_sum=True)
    state = algorithm.init(fed)
    fed.begin(1)
    fed._absent = lambda round, client: "away" if client == "client-1" else None
    with refusal("clients-missing", "2 of 3"):
        fed.map(algorithm.infer, {"segment": 0}, quorum=0.5)
    assert state["nodes"]


def test_what_cannot_be_hidden_is_refused() -> None:
    for options in ({"aggregation": "concat"}, {"backward": "exchanged"}):
        with pytest.raises(ValueError, match="secure_sum hides the terms of a mean"):
            made(secure_sum=True, **options)
    fed: Federation = federation(parties(1))
    with refusal("user.two-clients", "at least two clients"):
        made(secure_sum=True).round(made(secure_sum=True).init(fed), fed)


def test_a_policy_can_demand_it() -> None:
    rules, reply = Rules(secure_sum=("h",)), {"h": torch.zeros(2)}
    hidden = declared(RowRelease(GaussianRows(1, 2), masked=True))
    check_reply(rules, Spent(), reply, 8, hidden)
    check_reply(rules, Spent(), {"nodes": torch.zeros(2)}, 8, StepInfo.of({"nodes": "nodes"}))
    with refusal("call-refused", "policy.secure_sum:", "'none'"):
        check_reply(rules, Spent(), reply, 8, StepInfo.of({"h": "a secure sum"}))


def declared(release: RowRelease) -> StepInfo:
    return StepInfo.of(release.sends("rows"))


def test_a_cap_on_epsilon_counts_every_release_of_noised_rows() -> None:
    """With σ = 4 four releases come to what the accountant says of four, and a fifth does not leave."""
    noised = GaussianRows(1.0, 4.0)
    rules, spent, reply = Rules(epsilon=noised.epsilon(4) + 1e-6), Spent(), {"h": torch.zeros(2)}
    info = declared(RowRelease(noised, masked=False))
    for releases in range(1, 5):
        check_reply(rules, spent, reply, 8, info)
        spent = spent.after(8, info.mechanisms_of(reply))
        assert spent.epsilon(1e-5) == pytest.approx(noised.epsilon(releases))
    with refusal("call-refused", "policy.epsilon: ε ="):
        check_reply(rules, spent, reply, 8, info)


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_how_many_representations_were_cut_is_said(
    mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where words hold little; else nothing is cut."""
    algorithm = made(secure_sum=True)
    *_, last = train(algorithm, federation(mode=mode), 1)
    assert algorithm.counts(last.state) == {}
    assert last.state["cut"][0] == 0 < last.state["cut"][1]
    monkeypatch.setattr("fedweave.algorithms.vertical.aggregation.even_share", lambda words, share: torch.tensor(99))
    *_, last = train(algorithm, federation(mode=mode), 1)
    told = {name: value for name, value in last.summary.items() if name.startswith("secure_sum/")}
    assert 0 < told["secure_sum/cut"] <= told["secure_sum/values"]
    assert told["secure_sum/bound"] == 99 / 2**16
    assert "secure aggregation cut" in caplog.text


def test_a_tally_adds_up_sums_and_keeps_the_bound_of_the_last_that_cut() -> None:
    first = update_tally(None, torch.tensor(3), 10, 0.5)
    second = update_tally(first, torch.tensor(0), 20, 9.0)
    assert second.tolist() == [3, 30, 1, 0.5]
    assert cut_counts(update_tally(second, torch.tensor(1), 5, 2.0)) == {
        "secure_sum/cut": 4, "secure_sum/values": 35, "secure_sum/sums": 2, "secure_sum/bound": 2.0,
    }  # fmt: skip
    assert cut_counts(update_tally(None, torch.tensor(0), 10, 0.5)) == {}
