"""What sites send to each other: the server relays it and cannot read it, and every site looks before it uses it."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.algorithms.dfedgnn import ring
from fedweave.core.federation import StepInfo
from fedweave.core.tree import decode, encode
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.files import LEDGER, read_table
from fedweave.sites.flare.journal import entries
from fedweave.sites.flare.peers import Receipt, read_faults
from fedweave.sites.operation.running import run
from tests.contract.federations import distance
from tests.refusals import check_facts, refusal
from tests.sites.projects import SITES, call_request, experiment, joined, set_policy, simulated
from tests.sites.test_sites import Watcher

INFO = StepInfo.of({"w": "weights"})


def weights(project: Path, run: str = "r1") -> dict[str, Any]:
    return {site: decode((project / site / "runs" / run / "state.safetensors").read_bytes())["w"] for site in SITES}


def expected(config: Any) -> dict[str, Any]:
    _, sim = simulated(config)
    return {site: sim.snapshot()[client]["w"] for site, client in zip(SITES, sim.clients, strict=True)}


def test_neighbors_end_with_the_simulations_weights_and_its_ledger(project: Path) -> None:
    config = experiment("dfedgnn", rounds=2)
    fed, algorithm, link = joined(project, config)
    list(train(algorithm, fed, 2))
    _, sim = simulated(config)
    assert distance(weights(project), expected(config)) <= 1e-5
    names = dict(zip(sim.clients, SITES, strict=True)) | {None: None}
    columns = ("round", "step", "direction", "key", "shape", "bytes", "mechanism", "reveals")

    def lines(rows: list[dict[str, Any]], name: Any) -> Counter[tuple[Any, ...]]:
        return Counter((name(r["client"]), name(r["to"]), *(r[c] for c in columns)) for r in rows)

    rows = [row for row in fed.ledger.table().to_pylist() if row["step"] != "(join)"]
    assert lines(rows, lambda site: site) == lines(sim.ledger.table().to_pylist(), names.__getitem__)
    assert fed.ledger.bytes_peer == sum(map(len, link.passed)) == sim.ledger.bytes_peer > 0


def test_a_site_keeps_account_of_what_it_sent_to_whom(project: Path) -> None:
    fed, algorithm, _ = joined(project, experiment("dfedgnn", rounds=1))
    list(train(algorithm, fed, 1))
    [sent] = [e for e in entries(project / "bank-a/ledgers/r1.jsonl") if e.direction == "peer"]
    assert (sent.clients, set(sent.to)) == (("bank-a", "bank-a"), {"bank-b", "bank-c"})
    assert {key.split("/")[0] for key, *_ in sent.keys} == {"w"}


@pytest.mark.parametrize("what", ["nan", "shape", "garbage", "undeclared", "absent", "huge", "lost"])
def test_what_a_peer_sends_is_looked_at_before_it_is_used(project: Path, what: str) -> None:
    """bank-b's neighbors go on without it, with its share of the mean their own."""
    fed, algorithm, link = joined(project, experiment("dfedgnn", reply_mb=0.02, algorithm_settings={"quorum": 0.6}))

    def spoil(blob: bytes) -> bytes | str:
        tree = decode(blob)
        weight = tree["w"]["0"]["weight"]
        change = {"nan": weight * torch.nan, "shape": weight[None], "huge": torch.zeros(9000)}
        tree["w"]["0"]["weight"] = change.get(what, weight)
        tree |= {"graph": weight} if what == "undeclared" else {}
        if what == "absent":
            del tree["w"]["1"]
        return {"garbage": b"\x80\x04junk", "lost": "the cable is cut"}.get(what) or encode(tree)

    link.tamper["bank-b"] = spoil
    fed.begin(1)
    sent = fed.send(algorithm.train, ring(SITES), algorithm.init(fed))
    before = weights(project)
    fed.map(algorithm.mix, received=sent)
    after = weights(project)
    a, b, c = (before[site]["0"]["weight"] for site in SITES)
    for site, own, other in (("bank-a", a, c), ("bank-c", c, a)):
        torch.testing.assert_close(after[site]["0"]["weight"], (2 * own + other) / 3)
    torch.testing.assert_close(after["bank-b"]["0"]["weight"], (a + b + c) / 3)
    kind = "missing" if what in ("lost", "huge") else "refused"  # too much is not even kept
    assert fed.faults() == {("bank-b", kind): 2}


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ('deny = ["w"]', "policy.deny: w may not leave"),
        ("noise = {w = 0.5}", "policy.noise: w needs at least 0.5"),
        ("bytes = 9000", "policy.bytes"),  # enough for one copy, not for two
    ],
)
def test_the_policy_holds_for_peers(project: Path, policy: str, said: str) -> None:
    set_policy(project, policy)
    fed, algorithm, link = joined(project, experiment("dfedgnn"), quorum=0.6)
    fed.begin(1)
    blob: list[int] = []
    link.tamper["bank-a"] = lambda given: (blob.append(len(given)), given)[1]
    link.tamper["bank-b"] = lambda given: pytest.fail("bank-b sent something")
    sent = fed.send(algorithm.train, ring(SITES), algorithm.init(fed), quorum=0.6)
    assert said in sent.missing["bank-b"]
    assert sent.clients == ("bank-a", "bank-c")
    assert blob[0] < 9000 < 2 * blob[0]


def test_a_server_that_asks_for_what_is_for_peers_is_refused(project: Path) -> None:
    fed, algorithm, link = joined(project, experiment("dfedgnn"))
    config = experiment("dfedgnn")
    asked = call_request(config, "DFedGNN.train")
    honest = call_request(config, "DFedGNN.train", kind="send", to={"bank-b": []})
    refused, told = (
        link.members[site].answer(request, encode(algorithm.init(fed)))
        for site, request in (("bank-a", asked), ("bank-b", honest))
    )
    assert (refused.blob, refused.final) == (b"", True)
    assert (told.blob, told.final) == (encode({}), False)


@pytest.mark.parametrize("peer", ["server", "bank-x", "bank-a"])
def test_nothing_is_sent_to_whom_the_run_does_not_name(project: Path, peer: str) -> None:
    """Who relays could name itself, a site that takes no part, or the sender, besides a true neighbor."""
    config = experiment("dfedgnn")
    fed, algorithm, link = joined(project, config)
    link.tamper["bank-a"] = lambda given: pytest.fail("bank-a sent something")
    request = call_request(config, "DFedGNN.train", kind="send", to={"bank-a": ["bank-b", peer]})
    answer = link.members["bank-a"].answer(request, encode(algorithm.init(fed)))
    assert (answer.blob, answer.final) == (b"", True)
    check_facts(answer.refusal, "peers")
    assert not [e for e in entries(project / "bank-a/ledgers/r1.jsonl") if e.direction == "peer"]


def test_only_known_steps_of_the_run_are_taken_in(project: Path) -> None:
    _, _, link = joined(project, experiment("dfedgnn"))
    member = link.members["bank-a"]
    for label in ("junk", '{"run": "r1"}', '{"run": "r1", "step": "DFedGNN.round", "round": 1, "again": 0}'):
        assert member.accept("bank-b", label, b"x") == "it was refused"
    good = '{"run": "%s", "step": "DFedGNN.train", "round": 1, "again": 0}'
    assert member.accept("bank-b", good % "other", b"x") == "it was refused"
    assert member.accept("bank-b", good % "r1", b"x") == ""


def test_a_site_that_is_down_is_left_out_of_the_ring(project: Path) -> None:
    fed, algorithm, link = joined(project, experiment("dfedgnn", algorithm_settings={"quorum": 0.6}), quorum=0.6)
    link.absent["bank-c"] = "cable cut"
    fed.begin(1)
    algorithm.round(algorithm.init(fed), fed)
    rows = [row for row in fed.ledger.table().to_pylist() if row["direction"] == "peer"]
    assert {(row["client"], row["to"]) for row in rows} == {("bank-a", "bank-b"), ("bank-b", "bank-a")}
    link.absent["bank-b"] = "cable cut"
    with refusal("clients-missing", "bank-c:"):
        algorithm.round(algorithm.init(fed), fed)


@pytest.mark.parametrize(
    "note",
    [
        "",
        "[]",
        "null",
        '{"keys": [["w", "[2] float32", 8]], "size": 4, "lost": {}}',
        '{"keys": [["w", "[2] float32", -8]], "size": 4, "lost": {}}',
        '{"keys": [["graph/x", "[2] float32", 8]], "size": 99, "lost": {}}',
        '{"keys": [["w"]], "size": 99, "lost": {}}',
        '{"keys": [], "size": 99, "lost": {"stranger": "x"}}',
        '{"keys": [], "size": 99, "lost": []}',
        " " * 2**21,
    ],
)
def test_a_false_receipt_is_refused(note: str) -> None:
    with refusal("peer.receipt", "receipt"):
        Receipt.read(note, INFO, ["b"])
    assert read_faults(note, ["b"]) == {}


def test_a_receipt_is_read_as_it_was_written() -> None:
    receipt = Receipt((("w/0", "[2] float32", 8),), 99, {"b": "cable cut"})
    assert Receipt.read(receipt.note(), INFO, ["b"]) == receipt


@pytest.mark.slow
def test_the_servers_host_relays_ciphertext(running: Path, tmp_path: Path) -> None:
    """Real processes. The tap shows all that reaches the server's processes with TLS taken off: the replies to the
    server are there word for word, of what sites sent to each other not one piece, though every message passed."""
    for folder in ("server", *SITES):
        (running / folder / "tap").mkdir()
    config = experiment("dfedgnn", rounds=3)
    summary = run(config, running, tmp_path / "out", False, Watcher())
    taps = {(path.parts[-3], path.name): path.read_bytes() for path in running.glob("*/tap/*")}
    for folder in ("server", *SITES):
        shutil.rmtree(running / folder / "tap")
    number = json.loads((tmp_path / "out/run.json").read_text())["run"]
    assert distance(weights(running, number), expected(config)) <= 1e-5
    assert summary["bytes_peer"] == simulated(config)[1].ledger.bytes_peer
    totals: Counter[str] = Counter()
    for row in read_table(tmp_path / "out", LEDGER).to_pylist():
        totals[row["direction"]] += row["bytes"]
    assert totals == {way: summary[f"bytes_{way}"] for way in ("up", "down", "peer")}
    heard = taps["server", "heard"]
    for site in SITES:
        assert pieces(taps[site, "replied"], heard) > 0.5
        assert pieces(taps[site, "sent"], heard) == 0
    passed = Counter()
    for line in taps["server", "headers"].decode().splitlines():
        _, origin, destination, encrypted = json.loads(line)
        ends = tuple((end or "").split(".")[0] for end in (origin, destination))
        passed[ends, bool(encrypted)] += set(ends) <= set(SITES)
    assert {ends for (ends, encrypted), count in passed.items() if count and encrypted} == {
        (one, other) for one in SITES for other in SITES if one != other
    }


def pieces(sent: bytes, heard: bytes) -> float:
    """Share of the telling pieces of `sent` that stand in `heard`; names, which all blobs share, do not tell."""
    cut = (sent[at : at + 8] for at in range(0, len(sent) - 8, 8))
    telling = {piece for piece in cut if len(set(piece)) > 5 and not piece.isascii()}
    assert len(telling) > 8
    return sum(piece in heard for piece in telling) / len(telling)
