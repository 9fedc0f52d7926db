"""The protocol of secure sums between sites and a server, without anything that carries it (docs/security.md)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.random_graphs import replace_fields

pytest.importorskip("cryptography", reason='needs cryptography: pip install "fedweave[flare]"')
pytest.importorskip("Crypto", reason='needs pycryptodome: pip install "fedweave[flare]"')

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedweave.errors import CallRefused, FedweaveError
from fedweave.sites.protocols.aggregation import Advert, Answers, Participant, SumGroup, Use, subtract_masks
from fedweave.sites.protocols.identity import Identity
from fedweave.sites.protocols.pads import add_pad
from tests.privacy.authority import Authority
from tests.refusals import refusal

SITES = ("a", "b", "c", "d", "e")


@cache
def identities() -> dict[str, Identity]:
    authority = Authority()
    return {site: authority.issue(site) for site in (*SITES, "server")}


class Epoch:
    """Honest sites, and a server that carries what they say."""

    def __init__(self, sites: Sequence[str] = SITES, absent: Sequence[str] = (), needed: int = 0) -> None:
        self.group = SumGroup("r1", 1, tuple(sites), needed or len(sites) // 2 + 1, slots=2)
        self.all = {site: Participant(site, identities()[site], self.group) for site in sites if site not in absent}
        self.adverts = {site: own.advertise() for site, own in self.all.items()}
        self.letters = {site: own.share(self.adverts) for site, own in self.all.items()}

    def use(self, slot: int = 0, peers: Sequence[str] | None = None, **call: object) -> Use:
        return Use(slot, (1, "train", 0), tuple(self.all if peers is None else peers), **call)  # type: ignore[arg-type]

    def masked(self, use: Use, terms: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        sent = {site: terms[site].copy() for site in terms}
        for site, words in sent.items():
            self.all[site].mask(use, [words])
        return sent

    def signed(self, use: Use, survivors: Sequence[str]) -> dict[str, bytes]:
        return {site: self.all[site].sign(use.slot, survivors) for site in survivors}

    def to(self, site: str, slot: int) -> dict[str, bytes]:
        return {sender: letters[site][slot] for sender, letters in self.letters.items() if site in letters}

    def opened(self, use: Use, sent: dict[str, np.ndarray], answering: Sequence[str] | None = None) -> np.ndarray:
        """The sum of those who sent, opened by those who are still `answering`."""
        signatures = self.signed(use, list(sent))
        here = list(sent) if answering is None else answering
        answers = [self.all[site].reveal(use.slot, signatures, self.to(site, use.slot)) for site in here]
        total = sum(sent.values())
        subtract_masks([total], self.group, use, list(sent), answers, self.adverts)
        return total


def terms(sites: Sequence[str], dtype: type = np.uint32) -> dict[str, np.ndarray]:
    return {site: np.arange(7, dtype=dtype) * (at + 1) + at for at, site in enumerate(sites)}


# --- sums


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("sites", [SITES[:2], SITES[:3], SITES])
def test_masks_cancel_and_the_sum_is_exact(sites: Sequence[str], dtype: type) -> None:
    epoch, own = Epoch(sites), terms(sites, dtype)
    sent = epoch.masked(epoch.use(), own)
    assert not any((sent[site] == own[site]).any() for site in sites)
    assert (epoch.opened(epoch.use(), sent) == sum(own.values())).all()


def test_a_small_sum_by_hand() -> None:
    """1 + 2 + 4 294 967 295 (which stands for -1) = 2 modulo 2^32."""
    epoch = Epoch(SITES[:3])
    sent = epoch.masked(
        epoch.use(), {s: np.array([v], np.uint32) for s, v in zip("abc", (1, 2, 2**32 - 1), strict=True)}
    )
    assert epoch.opened(epoch.use(), sent).tolist() == [2]


def test_sites_that_drop_out_at_every_phase() -> None:
    """Too few are left to open the sum of three; of five, one sends no term, and one that did answers no more."""
    epoch = Epoch((*SITES[:4], "e"), absent=("e",))
    own, use = terms("abcd"), epoch.use()
    assert epoch.group.needed == 3
    sent = epoch.masked(use, {site: own[site] for site in "abc"})
    with pytest.raises(FedweaveError, match=r"2 shares of the secrets of 'c' have come, and 3 are needed"):
        epoch.opened(use, sent, answering=("a", "b"))
    again = Epoch(SITES)
    sent = again.masked(again.use(), {site: own[site] for site in "abcd"})
    assert (again.opened(again.use(), sent, answering=("a", "b", "d")) == sum(own.values())).all()


def test_without_the_shares_of_a_lost_site_its_pads_stay() -> None:
    epoch, own, use = Epoch(SITES), terms("abc"), Epoch(SITES).use()
    epoch.use()
    sent = epoch.masked(use, own)
    signatures = epoch.signed(use, "abc")
    answers = [epoch.all[site].reveal(0, signatures, epoch.to(site, 0)) for site in "abc"]
    only_masks = [
        Answers(answer.mask, {s: own for s, own in answer.shares.items() if s in "abc"}) for answer in answers
    ]
    with pytest.raises(FedweaveError, match=r"0 shares of the secrets of 'd'"):
        subtract_masks([sum(sent.values())], epoch.group, use, "abc", only_masks, epoch.adverts)
    total = sum(sent.values())
    subtract_masks([total], epoch.group, use, "abc", answers, epoch.adverts)
    assert (total == sum(own.values())).all()


def test_a_site_reveals_one_secret_of_each_other_site() -> None:
    """Of a survivor the share of its self mask, of another that of its key: together they are the letter."""
    epoch, use = Epoch(SITES), Epoch(SITES).use()
    epoch.masked(use, terms("abcd"))
    signatures = epoch.signed(use, "abcd")
    told = epoch.all["a"].reveal(0, signatures, epoch.to("a", 0))
    for site in SITES[1:]:
        letter = epoch.all["a"].open_letter(site, 0, epoch.letters[site]["a"][0])
        assert letter is not None
        assert told.shares[site] == {"a": letter[:16] if site == "e" else letter[16:]}
    assert list(told.mask) == ["a"]


def test_pads_are_the_ciphers_stream() -> None:
    key, words = bytes(range(32)), np.zeros(100_000, np.uint32)
    add_pad(key, [words[:70_000], words[70_000:]], 1)
    assert len(np.unique(words)) > 99_990
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(280_000))
    assert (words[:65_536] == np.frombuffer(stream, np.uint32, 65_536)).all()
    add_pad(key, [words[:70_000], words[70_000:]], -1)
    assert not words.any()


def test_what_a_site_sends_is_spread_evenly() -> None:
    """Also for whoever knows the self mask: bytes of 200,000 zeros, chi squared with 255 degrees of freedom."""
    epoch = Epoch(SITES[:2])
    words = {site: np.zeros(200_000, np.uint32) for site in "ab"}
    sent = epoch.masked(epoch.use(), words)["a"]
    counts = np.bincount(sent.view(np.uint8), minlength=256)
    expected = sent.nbytes / 256
    assert abs(((counts - expected) ** 2 / expected).sum() - 255) < 6 * (2 * 255) ** 0.5


@pytest.mark.parametrize("what", ["slot", "call", "epoch", "keys"])
def test_pads_do_not_repeat(what: str) -> None:
    """Another slot, another round, step or occurrence, another epoch or a new agreement: all words differ."""
    one, own = Epoch(), {site: np.zeros(64, np.uint32) for site in SITES}
    first = one.masked(one.use(), own)["a"]
    two = one if what == "slot" else Epoch()
    if what != "keys":
        for site in SITES:
            two.all[site]._seeds = [one.all[site]._seeds[0]] * 2
            if what == "epoch":
                two.all[site].group = replace(two.group, epoch=2)
        two.all["a"]._adverts = one.all["a"]._adverts
    use = replace(two.use(slot=1 if what == "slot" else 0), call=(1, "train", 1 if what == "call" else 0))
    words = np.zeros(64, np.uint32)
    if what == "slot":
        two.all["a"]._seeds[1] = one.all["a"]._seeds[0]
        adverts = {
            s: replace_fields(advert, keys=(advert.keys[0], *[advert.keys[1]] * 2)) for s, advert in one.adverts.items()
        }
        two.all["a"]._adverts = adverts
    two.all["a"].mask(use, [words])
    assert (words != first).all()


# --- a server that cheats


def test_keys_that_a_site_has_not_signed_are_refused() -> None:
    """The server puts keys of its own in between: with its own certificate, with the site's, and with the site's
    signature of other keys."""
    group, mine = (
        SumGroup("r1", 1, SITES[:2], 2, slots=2),
        Participant("a", identities()["a"], SumGroup("r1", 1, SITES[:2], 2, slots=2)),
    )
    theirs, servers = (Participant("b", identities()[name], group).advertise() for name in ("b", "server"))
    another = Authority().issue("b")
    forged = {
        "certificate is for": servers,
        "does not fit": replace_fields(servers, certificate=theirs.certificate),
        "the signature": replace_fields(theirs, keys=servers.keys),
        "from 'b' is not signed by it": Participant("b", another, group).advertise(),
        "fit the message": Participant("b", identities()["b"], replace(group, run="r2")).advertise(),
        "and the certificate's key": Participant("b", identities()["b"], replace(group, epoch=2)).advertise(),
    }
    own = mine.advertise()
    for why, advert in forged.items():
        with pytest.raises(CallRefused, match=why):
            mine.share({"a": own, "b": advert})
    assert mine.share({"a": own, "b": theirs}).keys() == {"b"}


def test_set_up_answers_once() -> None:
    epoch = Epoch()
    with refusal("call-refused", "advertised once"):
        epoch.all["a"].advertise()
    with refusal("call-refused", "dealt once"):
        epoch.all["a"].share(epoch.adverts)
    with refusal("call-refused", "not prepared"):
        Participant("a", identities()["a"], epoch.group).mask(epoch.use(), [np.zeros(3, np.uint32)])


def test_a_slot_is_used_once() -> None:
    epoch, words = Epoch(), np.zeros(3, np.uint32)
    epoch.all["a"].mask(epoch.use(), [words])
    for use in (epoch.use(), replace(epoch.use(), call=(2, "train", 0)), epoch.use(slot=2), epoch.use(slot=-1)):
        with refusal("call-refused", "not prepared, or has been used"):
            epoch.all["a"].mask(use, [words])


@pytest.mark.parametrize("peers", ["a", "ab", "bcde", "abcx", "acb", "aabc"])
def test_a_crowd_that_is_too_small_or_of_others_is_refused(peers: str) -> None:
    epoch, words = Epoch(), np.zeros(3, np.uint32)
    with pytest.raises(CallRefused, match=r"too few|are not this site and others"):
        epoch.all["a"].mask(epoch.use(peers=peers), [words])
    assert not words.any()
    with refusal("call-refused", "too few"):
        Epoch(SITES, absent="cde")


def test_where_all_must_take_part_nobody_is_left_out() -> None:
    epoch, words = Epoch(needed=5), np.zeros(3, np.uint32)
    with refusal("call-refused", "4 of 5"):
        epoch.all["a"].mask(epoch.use(peers="abcd"), [words])
    epoch.all["a"].mask(epoch.use(), [words])
    with refusal("call-refused", "5 are needed"):
        epoch.all["a"].sign(0, list("abcd"))


def test_a_server_that_tells_two_sites_of_other_survivors_opens_nothing() -> None:
    """To a and b it says that all sent, to c and d that e has dropped out: it would get shares of both secrets of e."""
    epoch, use = Epoch(), Epoch().use()
    epoch.masked(use, terms(SITES))
    signatures = {site: epoch.all[site].sign(0, list(SITES)) for site in "abe"}
    signatures |= {site: epoch.all[site].sign(0, list("abcd")) for site in "cd"}
    with refusal("signature.wrong", "'c'"):
        epoch.all["a"].reveal(0, signatures, epoch.to("a", 0))
    with pytest.raises(CallRefused, match=r"signs a list that it is not on|'a' is not signed by it"):
        epoch.all["c"].reveal(0, signatures, epoch.to("c", 0))
    with refusal("call-refused", "2 of 5"):
        epoch.all["c"].reveal(0, {site: signatures[site] for site in "cd"}, epoch.to("c", 0))


def test_a_site_signs_one_list_and_reveals_once() -> None:
    epoch, use = Epoch(), Epoch().use()
    epoch.masked(use, terms(SITES))
    with refusal("call-refused", "opened once, and after"):
        epoch.all["a"].reveal(0, {}, {})
    signatures = epoch.signed(use, SITES)
    for survivors in (list(SITES), list("abcd")):
        with refusal("call-refused", "signed once"):
            epoch.all["a"].sign(0, survivors)
    epoch.all["a"].reveal(0, signatures, epoch.to("a", 0))
    with refusal("call-refused", "opened once"):
        epoch.all["a"].reveal(0, signatures, epoch.to("a", 0))
    with refusal("call-refused", "no term in slot 1"):
        epoch.all["a"].sign(1, list(SITES))


def test_letters_that_the_server_has_changed_or_moved_are_no_shares() -> None:
    epoch, use = Epoch(), Epoch().use()
    epoch.masked(use, terms(SITES))
    signatures = epoch.signed(use, SITES)
    letters = epoch.to("a", 0)
    letters |= {"b": epoch.to("a", 1)["b"], "c": letters["b"], "d": bytes([letters["d"][0] ^ 1]) + letters["d"][1:]}
    assert epoch.all["a"].reveal(0, signatures, letters).shares.keys() == {"a", "e"}


def test_shares_that_do_not_belong_together_are_no_key() -> None:
    epoch, use = Epoch(), Epoch().use()
    sent = epoch.masked(use, terms("abcd"))
    signatures = epoch.signed(use, "abcd")
    answers = [epoch.all[site].reveal(0, signatures, epoch.to(site, 0)) for site in "abcd"]
    bad = Answers({}, {"e": {"a": bytes(16)}})
    with pytest.raises(FedweaveError, match=r"of the key of 'e' do not belong together"):
        subtract_masks([sum(sent.values())], epoch.group, use, "abcd", [bad, *answers[1:]], epoch.adverts)


def test_a_public_key_of_small_order_is_refused() -> None:
    """With it the server would know what two sites agree on; a site that signs it harms itself alone."""
    epoch = Epoch(SITES[:2])
    epoch.all["a"]._adverts["b"] = Advert(b"", (bytes(32),) * 3, b"")
    with pytest.raises(CallRefused, match=r"not a key of X25519"):
        epoch.all["a"].mask(epoch.use(), [np.zeros(1, np.uint32)])
