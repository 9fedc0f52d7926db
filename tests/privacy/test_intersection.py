"""Parties find what all of them have, and a server that cheats, or works with one of them, finds no more."""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import pytest

from tests.random_graphs import replace_fields

pytest.importorskip("cryptography", reason='needs cryptography: pip install "fedweave[flare]"')

from fedweave.errors import CallRefused
from fedweave.sites.protocols.identity import Identity
from fedweave.sites.protocols.intersection import (
    WIDTH,
    IntersectionParty,
    Opening,
    common,
    digest,
    hash_to_point,
    multiple,
    opens,
)
from tests.privacy.authority import Authority
from tests.refusals import refusal

KEY = bytes(range(32))


@cache
def identities() -> dict[str, Identity]:
    authority = Authority()
    return {site: authority.issue(site) for site in "abcd"}


class Meeting:
    """Honest parties with these names, and a server that carries what they say and keeps all of it."""

    def __init__(self, names: Mapping[str, Sequence[str]], **keys: bytes) -> None:
        sites = tuple(names)
        self.names, self.sites = names, sites
        self.parties = {
            site: IntersectionParty(site, identities()[site], "r1", sites, keys.get(site, KEY)) for site in sites
        }
        opened = {site: party.open(names[site]) for site, party in self.parties.items()}
        self.lists = {site: points for site, (points, _) in opened.items()}
        self.openings = {site: opening for site, (_, opening) in opened.items()}
        self.seen, self.signed = list(self.lists.values()), dict.fromkeys(sites, b"")

    def hear(self, **lies: Opening) -> None:
        for party in self.parties.values():
            party.receive_openings(self.openings | lies)

    def turn(self, turn: int) -> None:
        owner = {site: self.sites[at - turn] for at, site in enumerate(self.sites)}
        told = {site: self.parties[site].blind(turn, self.lists[of], self.signed[of]) for site, of in owner.items()}
        for site, of in owner.items():
            self.lists[of], self.signed[of] = told[site]
            self.seen.append(self.lists[of])

    def run(self) -> dict[str, list[str]]:
        """What each party finds, in the order in which the server names it."""
        self.hear()
        for turn in range(1, len(self.sites)):
            self.turn(turn)
        found = common(self.lists)
        if not len(found[self.sites[0]]):
            return {site: [] for site in self.sites}
        return {
            site: [self.names[site][row] for row in party.rows(found[site].tolist())]
            for site, party in self.parties.items()
        }


def drawn(seed: int, parties: str) -> dict[str, list[str]]:
    rng = np.random.default_rng(seed)
    return {site: [f"é{i}" for i in rng.permutation(14)[: rng.integers(6, 13)]] for site in parties}


@pytest.mark.parametrize(("seed", "parties"), [(0, "ab"), (1, "abc"), (2, "abcd"), (3, "a")])
def test_it_is_the_intersection_and_in_one_order_everywhere(seed: int, parties: str) -> None:
    names = drawn(seed, parties)
    found = Meeting(names).run()
    assert set(found["a"]) == set.intersection(*map(set, names.values())) != set()
    assert len(found["a"]) == len(set(found["a"]))
    assert all(found[site] == found["a"] for site in parties)


def test_nothing_in_common_and_nothing_under_different_keys() -> None:
    assert Meeting({"a": ["x", "y"], "b": ["z"]}).run()["a"] == []
    assert Meeting({"a": ["x", "y"], "b": ["x"]}, b=KEY[::-1]).run()["a"] == []
    assert len({hash_to_point(KEY, "r1", "x"), hash_to_point(KEY, "r2", "x"), hash_to_point(KEY[::-1], "r1", "x")}) == 3


def test_before_all_have_blinded_them_no_two_lists_share_a_point() -> None:
    """The same names at all parties: the server sees each of them as another point at every stage but the last, and
    in another order in every meeting."""
    same = [f"n{i}" for i in range(9)]
    meeting = Meeting({"a": same, "b": same, "c": same})
    meeting.run()
    stages = [points.tobytes()[at : at + WIDTH] for points in meeting.seen[:-3] for at in range(0, 9 * WIDTH, WIDTH)]
    assert len(set(stages)) == len(stages) == 9 * 6
    assert {point.tobytes() for point in meeting.seen[-1]} == {point.tobytes() for point in meeting.seen[-2]}
    orders = [Meeting({"a": same, "b": same}).parties["a"].order for _ in range(4)]
    assert len(set(map(tuple, orders))) == 4


def test_server_and_party_together_can_try_out_the_names_on_its_list_alone() -> None:
    """With the parties' key and the secret number of c, and all that the server has seen. Keyed hashes, which this
    replaces, give every guess away."""
    guesses = [f"n{i}" for i in range(12)]
    meeting = Meeting({"a": guesses, "b": guesses, "c": guesses[:4]})
    meeting.run()
    secret, seen = meeting.parties["c"], {point.tobytes() for points in meeting.seen for point in points}
    powers = {name: [hash_to_point(KEY, "r1", name)] for name in guesses}
    for points in powers.values():
        for _ in range(3):
            points.append(multiple(secret._secret, points[-1]))
    assert {name for name, points in powers.items() if seen.intersection(points)} == set(guesses[:4])


# --- a server that does not carry what was said


def trio() -> Meeting:
    return Meeting({site: [f"n{i}" for i in range(at, at + 5)] for at, site in enumerate("abc")})


def test_a_party_blinds_each_list_once_in_turn() -> None:
    meeting = trio()
    with refusal("call-refused", "turn 1 is not the next"):  # before it has heard how long the lists are
        meeting.parties["a"].blind(1, meeting.lists["c"], b"")
    meeting.hear()
    before = dict(meeting.lists)
    with refusal("call-refused", "not every list has been blinded yet"):
        meeting.parties["a"].rows([0])
    meeting.turn(1)
    for turn in (0, 1, 3):
        with refusal("call-refused", f"turn {turn}"):
            meeting.parties["a"].blind(turn, before["c"], b"")
    with refusal("call-refused", "not every list has been blinded yet"):
        meeting.parties["a"].rows([0])
    meeting.turn(2)
    with refusal("call-refused", "turn 3 is not the next"):
        meeting.parties["a"].blind(3, meeting.lists["a"], meeting.signed["a"])
    with refusal("call-refused", "lists once"):
        meeting.parties["a"].receive_openings(meeting.openings)


def test_no_turn_is_left_out() -> None:
    """Else a party would not have multiplied the list whose turn it was, and its names could be tried out."""
    meeting = trio()
    meeting.hear()
    blinded, signature = meeting.parties["c"].blind(1, meeting.lists["b"], b"")
    with refusal("call-refused", "turn 2 is not the next"):
        meeting.parties["a"].blind(2, blinded, signature)


def test_only_a_list_that_its_owner_signed_is_blinded() -> None:
    """Guesses in place of a party's names, a list of another meeting, one that is longer, points twice, no points."""
    guesses = Meeting({"a": ["x"], "b": ["x"], "c": [f"g{i}" for i in range(5)]}).lists["c"]
    old, twice = trio().lists["c"], np.repeat(trio().lists["c"][:1], 5, axis=0)
    for points, said in (
        (guesses, "not the one that it signed"),
        (old, "not the one that it signed"),
        (np.concatenate([guesses, old]), "another length than it signed"),
        (twice, "or a point twice"),
        (guesses[:, :31], "another length than it signed"),
    ):
        meeting = trio()
        meeting.hear()
        with pytest.raises(CallRefused, match=said):
            meeting.parties["a"].blind(1, points, b"")
    meeting = trio()
    meeting.hear()
    meeting.turn(1)
    with refusal("signature.wrong", "'c'"):  # c has blinded b's list
        meeting.parties["a"].blind(2, guesses, meeting.signed["b"])


def test_a_list_of_what_is_no_point_is_refused() -> None:
    """Signed by a site that works with the server, as on another curve it would have to be to find out the number."""
    meeting, own = trio(), identities()["c"]
    points = np.full((1, WIDTH), 255, np.uint8)
    meeting.openings["c"] = signed_by(own, meeting.openings["c"].nonce, points)
    with refusal("call-refused", "all sites' lists once"):
        meeting.parties["c"].receive_openings(meeting.openings)
    meeting.parties["a"].receive_openings(meeting.openings)
    with refusal("call-refused", "not a point of the curve"):
        meeting.parties["a"].blind(1, points, b"")


def signed_by(own: Identity, nonce: bytes, points: np.ndarray) -> Opening:
    about = opens("r1", "c", nonce, len(points), digest(points))
    return Opening(own.certificate, nonce, len(points), digest(points), own.sign(about))


def test_all_parties_are_told_of_the_same_lists() -> None:
    """Else a party that works with the server could have two lists, and every other site see one of them."""
    meeting, lie = trio(), np.stack([trio().lists["c"][at] for at in range(5)])
    other = signed_by(identities()["c"], bytes(16), lie)
    meeting.parties["a"].receive_openings(meeting.openings)
    meeting.parties["b"].receive_openings(meeting.openings | {"c": other})
    meeting.parties["c"].receive_openings(meeting.openings)
    blinded, signature = meeting.parties["a"].blind(1, meeting.lists["c"], b"")
    meeting.parties["b"].blind(1, meeting.lists["a"], b"")
    with refusal("signature.wrong", "'a'"):
        meeting.parties["b"].blind(2, blinded, signature)


@pytest.mark.parametrize("lie", ["size", "who", "missing", "run"])
def test_what_a_party_says_of_its_list_is_signed(lie: str) -> None:
    meeting = trio()
    openings = dict(meeting.openings)
    if lie == "size":
        openings["b"] = replace_fields(openings["b"], size=500)
    elif lie == "who":
        openings["b"] = openings["c"]
    elif lie == "run":
        _, openings["b"] = IntersectionParty("b", identities()["b"], "r0", meeting.sites, KEY).open(meeting.names["b"])
    else:
        del openings["b"]
    with pytest.raises(CallRefused, match=r"is not signed by it|must send all sites' lists once"):
        meeting.parties["a"].receive_openings(openings)


@pytest.mark.parametrize("places", [[], [0, 0], [-1], [5]])
def test_places_that_are_not_on_the_list_are_refused(places: list[int]) -> None:
    meeting = trio()
    meeting.run()
    with pytest.raises(CallRefused, match="no places, places outside this site's list, or one twice"):
        meeting.parties["a"].rows(places)
