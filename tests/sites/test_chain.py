"""The chain of a site's accounts, and who is behind, by hand."""

import pytest

from fedweave.sites.flare.chain import Chain, ChainEntry, Head, behind
from fedweave.sites.flare.policy import PolicyViolation


def test_chains_by_hand() -> None:
    chain = Chain()
    for line in (b"one", b"two", b"three"):
        chain.after(line)
    one, two, three = (Head.of(number, line) for number, line in enumerate((b"one", b"two", b"three"), 1))
    assert chain.head == three
    links = [ChainEntry(three, two.hash), ChainEntry(one, ""), ChainEntry(two, one.hash)]
    whole, short, holed = Chain(), Chain(), Chain()
    whole.add(links)
    whole.check(str(two))
    short.add(links[1:])
    short.check(str(two))
    holed.add(links[:2])
    for kept, told, gone in ((short, str(three), three), (holed, "", two), (whole, "2:" + "0" * 32, None)):
        with pytest.raises(PolicyViolation, match=f'"{gone or "2:000"}'):
            kept.check(told)
    Chain([str(two)]).check(str(two))
    accepting = Chain([str(two)])
    accepting.add(links[:2])
    accepting.check(str(three))


def test_who_is_behind_by_hand() -> None:
    mark = "a" * 32
    told = {"a": {"a": f"5:{mark}", "b": f"9:{mark}"}, "b": {"b": f"7:{mark}", "a": f"5:{mark}"}}
    assert list(behind(told)) == ["b"]
    assert behind({"a": told["a"]}) == {}  # who does not say where it is cannot be compared
