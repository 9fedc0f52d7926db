"""Mechanisms as values: what they cost together, worked out by hand, and that files give back what was written."""

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedweave.core.mechanism import (  # fmt: skip
    KINDS,
    LDP,
    UNBOUNDED,
    Applied,
    Clipped,
    Cost,
    Derived,
    Gaussian,
    Mechanism,
    Mixup,
    PrivacyAccount,
    SecureSum,
    read_applied,
)
from tests.refusals import refusal


def total(*releases: Applied) -> Cost:
    account = PrivacyAccount()
    for release in releases:
        account = account.after(release)
    return account.cost


# --- accounting


def test_gaussian_releases_compose_as_the_root_of_summed_squares() -> None:
    """Sensitivity 2 with σ = 1, 2 and 4 is μ = 2, 1 and 1/2; together μ² = 4 + 1 + 1/4."""
    cost = total(*(Applied("h", (Gaussian(sigma, 2.0),)) for sigma in (1.0, 2.0, 4.0)))
    assert cost == Cost(squared_mu=5.25)
    sixteen = PrivacyAccount().after(Applied("h", (Gaussian(4.0, 2.0),)), times=16)
    assert math.sqrt(sixteen.cost.squared_mu) == 4 * 0.5


def test_local_privacy_adds_up() -> None:
    nodes, pairs = Applied("codes", (LDP(3.0, "node"),)), Applied("edges", (LDP(0.5, "pair of nodes"),))
    assert total(nodes, pairs, pairs, nodes) == Cost(epsilon=7.0)


def test_what_bounds_nothing_is_no_zero() -> None:
    """Each of them, alone and together, leaves a release without a bound; a bounding one beside them bounds it."""
    nothing = (Mixup(8), Clipped(1.0), SecureSum(), Gaussian(3.0))
    assert [own.cost() for own in nothing] == [UNBOUNDED] * 4
    for mechanisms in ((), nothing, *((own,) for own in nothing)):
        assert total(Applied("x", mechanisms)) == Cost(0.0, 0.0, 1)
    assert total(Applied("x", (*nothing, Gaussian(1.0, 2.0), SecureSum()))) == Cost(squared_mu=4.0)
    assert total(Applied("x", (LDP(1.0, "node"), Gaussian(1.0, 2.0)))) == Cost(1.0, 4.0)  # safe: either would do
    assert PrivacyAccount().after(Applied("x", nothing), times=3).cost == Cost(unbounded=3)
    assert total(Applied("x", ()), Applied("y", (LDP(1.0, "node"),)), Applied("x", ())) == Cost(1.0, 0.0, 2)


def test_the_same_release_again_costs_nothing_more() -> None:
    once = Applied("codes", (LDP(3.0, "node", release="drawn"),))
    assert total(once, once, once) == Cost(epsilon=3.0)
    assert PrivacyAccount().after(once, times=40).cost == Cost(epsilon=3.0)
    noise = Applied("codes", (Gaussian(1.0, 2.0, release="drawn"),))
    assert total(noise, once, noise) == Cost(3.0, 4.0)


@pytest.mark.parametrize(
    "other",
    [
        Applied("codes", (LDP(3.0, "node", release="drawn again"),)),
        Applied("edges", (LDP(3.0, "node", release="drawn"),)),  # ids are those of a key
        Applied("codes", (LDP(3.0, "node"),)),
    ],
)
def test_another_release_costs_again(other: Applied) -> None:
    assert total(Applied("codes", (LDP(3.0, "node", release="drawn"),)), other) == Cost(epsilon=6.0)


def test_one_draw_that_several_keys_tell_of_costs_once() -> None:
    one = LDP(3.0, "label", release="drawn", one_draw=True)
    assert total(Applied("drawn", (one,)), Applied("gradient", (one,)), Applied("drawn", (one,))) == Cost(epsilon=3.0)


def test_a_release_does_not_lend_its_id_to_a_larger_one() -> None:
    small, large = (Applied("codes", (LDP(epsilon, "node", release="drawn"),)) for epsilon in (1.0, 8.0))
    assert total(small, large) == Cost(epsilon=9.0)


# --- words and files

POSITIVE = st.floats(min_value=0, exclude_min=True, allow_infinity=False) | st.integers(1, 10**9)
WORDS = st.text(min_size=1)
MECHANISMS = st.one_of(
    st.builds(Mixup, st.integers(1)),
    st.builds(Clipped, POSITIVE),
    st.builds(
        Gaussian, POSITIVE, st.none() | POSITIVE, WORDS, st.floats(0, 1, exclude_min=True, exclude_max=True), st.text()
    ),
    st.builds(LDP, POSITIVE, WORDS, st.text()),
    st.builds(SecureSum, st.integers(2)),
    st.builds(Derived, WORDS),
)


@given(st.text(), st.lists(MECHANISMS, min_size=1).map(tuple))
def test_files_give_back_what_was_written(key: str, mechanisms: tuple[Mechanism, ...]) -> None:
    applied = Applied(key, mechanisms)
    text = applied.text()
    assert text is not None
    assert read_applied(text) == applied
    assert read_applied(text).text() == text


def test_every_kind_has_words_and_a_form() -> None:
    several = (Mixup(8), Clipped(0.5), Gaussian(2.0, 1.0, "node", release="r"), LDP(3.0, "pair"), SecureSum(5))
    several += (Derived("update"),)
    assert {type(own) for own in several} == set(KINDS.values())
    assert str(Applied("h", several)) == (
        "mixup of 8 or more, clipped to L2 norm 0.5, Gaussian noise of sigma 2 (μ = 0.5 per node), drawn once, local "
        "differential privacy, ε = 3 per pair, secure sum of 5 clients or more, so the receiver learns only "
        "the sum, a function of what leaves as update, protected as that is"
    )
    assert json.loads(str(Applied("h", several[:1]).text())) == {
        "key": "h",
        "mechanisms": [{"kind": "mixup", "least": 8}],
    }
    assert (str(Applied("h", ())), Applied("h", ()).text()) == ("none", None)


GOOD: dict[str, Any] = {"kind": "ldp", "epsilon": 1.0, "per": "node", "release": ""}


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "prose"}, {"kind": None}, {"kind": ["ldp"]}, {"sigma": 2.0}, {"epsilon": "1"}, {"epsilon": 0},
        {"epsilon": -1.0}, {"epsilon": math.nan}, {"epsilon": math.inf}, {"epsilon": True}, {"epsilon": 10**400},
        {"epsilon": None}, {"per": ""}, {"per": 3}, {"release": None}, {"kind": "mixup"},
    ],
    ids=str,
)  # fmt: skip
def test_a_false_form_is_an_error(changed: dict[str, Any]) -> None:
    with refusal("mechanism.unknown"):
        read_applied(json.dumps({"key": "h", "mechanisms": [GOOD | changed]}))
    assert read_applied(json.dumps({"key": "h", "mechanisms": [GOOD]})).mechanisms == (LDP(1.0, "node"),)


@pytest.mark.parametrize(
    "text",
    ["", "none", "[]", "3", '{"key": "h"}', '{"key": 3, "mechanisms": [{"kind": "mixup", "least": 2}]}',
     '{"key": "h", "mechanisms": []}', '{"key": "h", "mechanisms": {}}', '{"key": "h", "mechanisms": ["mixup"]}',
     '{"key": "h", "mechanisms": [{"kind": "mixup", "least": 2}], "more": 1}', "[" * 100_000],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_what_is_no_form_is_an_error(text: str) -> None:
    with refusal("mechanism.unknown"):
        read_applied(text)


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (Mixup, {"least": 0}, "least is 0"), (Mixup, {"least": 2.0}, "least is 2.0"), (Mixup, {"least": True}, "least"),
        (Clipped, {"norm": 0.0}, "norm is 0"), (Gaussian, {"sigma": 0.0}, "sigma is 0"),
        (Gaussian, {"sigma": 1.0, "sensitivity": -1.0}, "sensitivity is -1"),
        (Gaussian, {"sigma": 1.0, "delta": 1.0}, "delta is 1"), (SecureSum, {"least": 1}, "least is 1"),
        (SecureSum, {"bits": 16}, "bits is 16"), (SecureSum, {"fraction": 31}, "fraction 31"),
        (SecureSum, {"bits": 64, "fraction": 63}, "fraction 63"), (SecureSum, {"everyone": 1}, "bits is 32"),
    ],
)  # fmt: skip
def test_impossible_values_are_refused(kind: type, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kind(**fields)


def test_a_sum_is_of_all_or_of_more_than_half() -> None:
    """With half of them a server could open two sums, each of other clients."""
    assert [SecureSum(everyone=True).min_terms(clients) for clients in (2, 3, 7)] == [2, 3, 7]
    assert [SecureSum().min_terms(clients) for clients in (2, 3, 4, 5, 8)] == [2, 2, 3, 3, 5]
    assert [SecureSum(4).min_terms(clients) for clients in (5, 7, 8)] == [4, 4, 5]


def test_they_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LDP(1.0, "node").epsilon = 0.1  # type: ignore[misc]
