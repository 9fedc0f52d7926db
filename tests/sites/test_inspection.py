"""What the server makes of replies that no honest site sends: they are named, left out, and nobody else is blamed."""

import json
import math
from typing import Any

import pytest
import torch
from safetensors.torch import save

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.federation import Sends, StepInfo
from fedweave.core.ledger import Ledger
from fedweave.core.ranges import Pairs, Whole
from fedweave.core.tree import Tree, encode
from fedweave.ops.sparsified import Sparsified
from fedweave.sites.flare.alignment import MEETING
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.inspection import Inspector
from fedweave.sites.flare.link import _answer
from fedweave.sites.flare.peers import Inbox, Receipt
from tests.refusals import check_facts, refusal

INFO = StepInfo.of(
    {"update": Sends("a change", like="w"), "n": Sends("a count", within=Whole()), "own": Sends("hits", within=Pairs())}
)
W = {"w": {"0": {"weight": torch.ones(3, 2)}}}


def honest(seed: int = 0) -> Tree:
    weight = torch.randn(3, 2, generator=torch.Generator().manual_seed(seed))
    return {"update": {"0": {"weight": weight}}, "n": torch.tensor(7), "own": {"accuracy": torch.tensor([[3.0, 5.0]])}}


def spoiled(path: str, value: Any) -> Tree:
    tree = honest()
    *above, name = path.split("/")
    node = tree
    for key in above:
        node = node[key]
    node[name] = value
    return tree


def accept(replies: dict[str, Tree], inspector: Inspector | None = None, like: Tree | None = None) -> Any:
    blobs = {site: encode(tree) for site, tree in replies.items()}
    return (inspector or Inspector(10**6)).accept("train", INFO, dict.fromkeys(blobs, W), blobs, like)


BAD = {
    "a negative count": ("n", torch.tensor(-1), "n is -1"),
    "a huge count": ("n", torch.tensor(10**15), "n is 1e+15"),
    "half an example": ("n", torch.tensor(1.5), "n is not of whole numbers"),
    "5 of 1 correct": ("own/accuracy", torch.tensor([[5.0, 1.0]]), "counts more than there is"),
    "infinite": ("update/0/weight", torch.full((3, 2), torch.inf), "not finite"),
    "enormous": ("update/0/weight", torch.full((3, 2), 1e30), "update reaches 1e+30"),
    "enormous and negative": ("update/0/weight", torch.full((3, 2), -1e30), "update reaches 1e+30"),
    "another width": ("update/0/weight", torch.zeros(300, 2), r"update/0/weight is [300, 2] float32, not [3, 2]"),
    "another dtype": ("update/0/weight", torch.zeros(3, 2, dtype=torch.float64), "float64, not [3, 2] float32"),
}


@pytest.mark.parametrize("count", [1, 2, 4], ids=lambda count: f"{count} honest")
@pytest.mark.parametrize("what", BAD)
def test_the_offender_is_named_and_left_out(what: str, count: int) -> None:
    """Also where it is one of two, so that no majority says who is right."""
    path, value, said = BAD[what]
    good, refused = accept({"bad": spoiled(path, value), **{f"good-{i}": honest(i) for i in range(count)}})
    assert list(good) == [f"good-{i}" for i in range(count)]
    assert list(refused) == ["bad"]
    assert said in refused["bad"]


def test_tiny_numbers_do_not_make_honest_ones_look_large() -> None:
    tiny = {f"bad-{i}": spoiled("update/0/weight", torch.full((3, 2), 1e-30)) for i in range(3)}
    good, refused = accept({**tiny, "good": honest()})
    assert list(good) == [*tiny, "good"]
    assert not refused


def test_honest_replies_that_are_all_large_are_accepted() -> None:
    large = torch.full((3, 2), 1e9)
    replies = {f"site-{i}": spoiled("update/0/weight", large * (i + 1)) for i in range(3)}
    assert not accept(replies)[1]


def test_a_reply_alone_is_held_against_those_before() -> None:
    inspector = Inspector(10**6)
    accept({f"site-{i}": honest(i) for i in range(3)}, inspector)
    good, refused = accept({"site-0": spoiled("update/0/weight", torch.full((3, 2), 1e30))}, inspector)
    assert not good
    check_facts(refused["site-0"], "1e+30")


def test_a_few_bytes_do_not_fill_the_memory() -> None:
    wide = Sparsified(torch.zeros(1 << 20))
    blob = encode({"update": {str(i): wide for i in range(8)}})
    assert len(blob) < 2000
    _, refused = Inspector(1 << 20).accept("train", INFO, {}, {"bad": blob})
    check_facts(refused["bad"], "33554432")


@pytest.mark.parametrize(("value", "said"), [(math.nan, "not finite"), (1e30, "1e+30")])
def test_a_sparse_form_hides_no_number(value: float, said: str) -> None:
    replies = {f"site-{i}": honest(i) for i in range(3)}
    odd = Sparsified(torch.full((3, 2), value))
    _, refused = accept(replies | {"site-2": spoiled("update/0/weight", odd)})
    assert said in refused["site-2"]


@pytest.mark.parametrize("form", ["sparse float32 -1099511627776", "float"])
def test_what_is_said_of_leaves_that_do_not_come_is_refused(form: str) -> None:
    """A negative size would let the others be as large as they like."""
    tensors = {"a": Sparsified(torch.zeros(1 << 20)).pack()}
    told = {"a": "sparse float32 1048576", "nowhere": form}
    blob = save(tensors, {"python": json.dumps(told)})
    _, refused = Inspector(1 << 20).accept("train", INFO, {}, {"bad": blob})
    assert "nowhere" in refused["bad"] or "there is no sparse form" in refused["bad"]


def test_peers_hold_what_comes_against_their_own() -> None:
    info = StepInfo.of({"w": "weights"}, peers=True)
    inbox, call = Inbox(10**6), (1, 0)
    inbox.note_reply("train", call, {"w": torch.ones(3)})
    for peer, sent in (("good", torch.zeros(3)), ("bad", torch.full((3,), 1e30)), ("wide", torch.zeros(30))):
        inbox.accept(peer, "train", call, encode({"w": sent}))
    message, faults, refused = inbox.open("train", info, call, ["good", "bad", "wide"], ["good", "bad", "wide"])
    assert message["present"].tolist() == [True, False, False]
    assert faults == {"bad": "refused", "wide": "refused"}
    check_facts(refused["bad"], "1e+30")


@pytest.mark.parametrize(
    "note",
    ["[" * 100_000, '{"keys": [["w", "[3]", 1e400]], "size": 3, "lost": {}}', '{"keys": [], "size": 1e30, "lost": {}}',
     '{"keys": 5}', "", "null", '{"keys": [], "size": 0, "lost": {"other": "why"}}'],
)  # fmt: skip
def test_receipts_of_another_form_are_refused(note: str) -> None:
    with refusal("peer.receipt", "receipt"):
        Receipt.read(note, INFO, ["peer"])


@pytest.mark.parametrize("seconds", ["1e400", "nan", -1.0, None, 10**400, 1e300])
def test_times_that_cannot_be_are_refused(seconds: Any) -> None:
    check_facts(_answer({"blob": b"", "seconds": seconds, "refusal": "", "final": False}).refusal, "form")


def test_what_a_site_says_of_its_refusal_holds_no_control_characters() -> None:
    told = _answer({"blob": b"", "seconds": 0.1, "refusal": "no\x1b[2J\nFAKE", "final": True}).refusal
    assert told == "no [2J FAKE"


class Told:
    """A link at whose other end sites say what they are told to."""

    def __init__(self, replies: dict[str, Tree]) -> None:
        from collections import Counter

        self.replies, self.late = replies, Counter[str]()

    def unreachable(self) -> dict[str, str]:
        return {}

    def exchange(self, request: str, blobs: Any) -> Any:
        from fedweave.sites.flare.requests import Answer

        assert json.loads(request)
        return {site: Answer(encode(self.replies[site]), 0.1) for site in blobs}, {}


def holdings(**other: Any) -> Tree:
    counts = {"split": torch.tensor([3, 2, 2]), "labels": torch.tensor([4, 3])}
    of_edges = {"edge_features": 2, "edge_weights": 0, "of_edges": 1, "directed": 1}
    return {"features": 5, "classes": 2, **of_edges, "names": 0, "nodes": 7, "edges": 9} | counts | other


def joined(quorum: float, vertical: bool = False, **replies: Tree) -> tuple[Flare, Any]:
    fed = Flare(Told(replies), list(replies), ledger=Ledger(), quorum=quorum)
    return fed, fed.join({}, "r1", -1, vertical)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"features": 6}, "its data has 6 features and 2 classes, most others' 5 features and 2"),
        ({"classes": 3, "labels": torch.tensor([4, 3, 0])}, "3 classes"),
        ({"edge_features": 3}, "edges with 3 features, most others' 5 features and 2 classes, edges as examples"),
        ({"of_edges": 0}, "nodes or graphs as examples"),
        ({"features": 10**7}, "features is 1e+07"),
        ({"nodes": -5}, "nodes is -5"),
        ({"labels": torch.tensor([-4, 3])}, "labels is -4"),
        ({"labels": torch.tensor([4, 3, 1])}, "it reports 3 splits and 3 classes"),
        ({"split": torch.tensor([3])}, "it reports 1 splits and 2 classes"),
    ],
)
def test_a_site_with_other_data_is_left_out_of_the_run(other: dict[str, Any], said: str) -> None:
    fed, replies = joined(0.6, a=holdings(), b=holdings(**other), c=holdings())
    assert replies.clients == ("a", "c")
    assert said in replies.missing["b"]
    assert fed.faults()["b", "refused"] == 1


def test_a_claimed_width_reaches_no_party() -> None:
    """Every party would have made weights of that width."""
    ids = torch.zeros(0, 2, dtype=torch.int64)
    told = {"features": 5, "classes": 2, "ids": ids}
    assert "features" in MEETING
    with refusal("clients-missing", "refused:", "1e+07"):
        joined(1.0, vertical=True, a=told, b=told | {"features": 10**7}, c=told)
