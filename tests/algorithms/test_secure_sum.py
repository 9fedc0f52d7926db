"""Secure sums: masks cancel, the server sees noise, training is that of the plain mean, ledger and policies know."""

import math

import pytest
import torch
from torch import Tensor

from fedweave.algorithms.vertical.release import RowRelease
from fedweave.core import random
from fedweave.core.federation import Federation, StepInfo
from fedweave.core.mechanism import Clipped, Gaussian, SecureSum, read_applied
from fedweave.deploy.flare.policy import PolicyViolation, Spent, check_reply
from fedweave.deploy.flare.sitefile import Rules
from fedweave.errors import UserError
from fedweave.privacy import secure_sum
from fedweave.privacy.gaussian import GaussianRows
from tests.algorithms.test_glasu import federation, gap, made, outcome, parties, rows


def sealed(terms: Tensor, use: int = 1) -> Tensor:
    """What each of the clients of `terms` [M, …] sends, after they exchanged secrets as `receivers` says."""
    clients = tuple(f"c{i}" for i in range(len(terms)))
    given: list[list[Tensor]] = [[] for _ in clients]
    got: list[list[Tensor]] = [[] for _ in clients]
    for turn in range(1, secure_sum.turns(len(clients)) + 1):
        for sender, (receiver,) in secure_sum.receivers(clients, turn).items():
            secret = random.fold(random.key(turn), sender)
            given[clients.index(sender)].append(secret)
            got[clients.index(receiver)].append(secret)
    share = torch.tensor(1 / len(terms))
    out = [
        secure_sum.seal(term, share, torch.stack(given[i]), torch.stack(got[i]), torch.tensor(use))
        for i, term in enumerate(terms)
    ]
    return torch.stack(out)


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 8])
def test_masks_cancel(clients: int) -> None:
    terms = torch.randn(clients, 40, 3, generator=torch.Generator().manual_seed(0))
    out = sealed(terms)
    assert out.dtype == torch.int32
    assert torch.equal(secure_sum.opened(out, torch.float64), ((terms.double() * 65536).round() / 65536).sum(0))


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 8])
def test_fewer_than_all_are_uniform_words(clients: int) -> None:
    """The sum over any proper subset is masked: its bytes are spread evenly, whatever the terms are."""
    out = sealed(torch.zeros(clients, 50_000)).to(torch.int64)
    for some in (out[:1], out[:-1], out[1:]):
        words = some.sum(0) & 0xFFFFFFFF
        for shift in (0, 8, 16, 24):
            counts = torch.bincount(words >> shift & 255, minlength=256).double()
            chi = float(((counts - 50_000 / 256) ** 2 / (50_000 / 256)).sum())
            assert abs(chi - 255) < 6 * math.sqrt(2 * 255)  # χ² with 255 degrees of freedom


def test_masks_differ_from_sum_to_sum() -> None:
    terms = torch.zeros(3, 100)
    assert float((sealed(terms, 1) == sealed(terms, 2)).double().mean()) < 0.01


def test_large_terms_are_kept_within_range() -> None:
    """±2^15 / 4 each: four of them do not wrap around."""
    total = secure_sum.opened(sealed(torch.full((4, 2), 1e9)), torch.float64)
    assert torch.allclose(total, torch.full((2,), 2.0**15, dtype=torch.float64), atol=1e-3)


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_training_is_that_of_the_plain_mean(mode: str) -> None:
    plain, hidden = (outcome(made(secure_sum=on, steps=2), federation(mode=mode))[1] for on in (False, True))
    assert gap(plain, {path: leaf for path, leaf in hidden.items() if path in plain}) < 1e-3
    assert {path.split("/", 1)[1] for path in hidden.keys() - plain.keys()} == {"given", "got", "sums"}


def test_double_precision() -> None:
    """Sealed terms are whole numbers: their sum returns in the federation's own precision."""
    plain, hidden = (outcome(made(secure_sum=on), federation(parties(dtype=torch.float64)))[1] for on in (False, True))
    weights = {path: leaf for path, leaf in hidden.items() if path in plain}
    assert {leaf.dtype for path, leaf in weights.items() if "/w/" in path} == {torch.float64}
    assert gap(plain, weights) < 1e-3


def test_loop_and_vectorised_send_the_same() -> None:
    loop, together = (outcome(made(secure_sum=True), federation(mode=mode))[1] for mode in ("loop", "vmap"))
    assert gap(loop, together) < 1e-6


def test_what_is_sent_is_masked_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    fed = federation()
    heard = fed.map

    def listening(step, *args, **options):  # type: ignore[no-untyped-def]
        replies = heard(step, *args, **options)
        if step.__name__ in ("infer", "infer_full"):
            seen.append(replies.stack("h"))
        return replies

    monkeypatch.setattr(fed, "map", listening)
    outcome(made(secure_sum=True, sigma=1.0), fed, 1)
    assert len(seen) == 4
    for h in seen:
        assert h.dtype == torch.int32
        assert float(h.double().abs().mean()) == pytest.approx(2**30, rel=0.1)  # of uniform words
    said = {row["applied"] for row in rows(fed, direction="up", key="h")}
    assert [read_applied(text) for text in said] == [("h", (Clipped(1.0), Gaussian(1.0, 2.0), SecureSum(2)))]
    assert all(row["reveals"].startswith("nothing by itself; ") for row in rows(fed, direction="up", key="h"))
    secrets = rows(fed, direction="peer", key="secret")
    assert [(row["client"], row["to"]) for row in secrets] == [
        ("client-0", "client-1"),
        ("client-1", "client-2"),
        ("client-2", "client-0"),
    ]
    assert not rows(fed, direction="up", key="secret")


def test_what_cannot_be_hidden_is_refused() -> None:
    for options in ({"aggregation": "concat"}, {"backward": "exchanged"}):
        with pytest.raises(ValueError, match="secure_sum hides the terms of a mean"):
            made(secure_sum=True, **options)
    fed: Federation = federation(parties(1))
    with pytest.raises(UserError, match="at least two clients"):
        made(secure_sum=True).init(fed)


def test_a_policy_can_demand_it() -> None:
    rules, reply = Rules(secure_sum=("h",)), {"h": torch.zeros(2)}
    hidden = declared(RowRelease(GaussianRows(1, 2), masked=True))
    check_reply(rules, Spent(), reply, 8, hidden)
    check_reply(rules, Spent(), {"nodes": torch.zeros(2)}, 8, StepInfo.of({"nodes": "nodes"}))
    with pytest.raises(PolicyViolation, match=r"policy.secure_sum: h may only leave in a secure sum.*'none'"):
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
        spent = spent.after(8, info.applied(reply))
        assert spent.epsilon == pytest.approx(noised.epsilon(releases))
    with pytest.raises(PolicyViolation, match=r"policy\.epsilon: ε = "):
        check_reply(rules, spent, reply, 8, info)
