"""Cases of a fuzz test, each made by its number alone: what is damaged, how, and who reads it.

    python -m tests.security.fuzzing 4711 [4712 ...]

runs single cases. A reader may return, or raise an error of fedweave's own; anything else is a finding.
"""

import json
import logging
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.config import load, resolve
from fedweave.core.federation import step_info
from fedweave.core.ledger import Ledger
from fedweave.core.tree import Tree, decode, encode
from fedweave.datasets import npz
from fedweave.datasets.folder import Folder
from fedweave.datasets.graph_folder import GraphFolder
from fedweave.datasets.parties import read_party
from fedweave.deploy.flare.answers import Answer
from fedweave.deploy.flare.federation import Flare
from fedweave.deploy.flare.keys import read_checked
from fedweave.deploy.flare.member import Member
from fedweave.deploy.flare.peers import Receipt, read_faults, read_version
from fedweave.errors import FedweaveError, StepFailed
from fedweave.runs.checkpoint import Checkpoint
from fedweave.runs.files import CHECKPOINT, read_arrays
from fedweave.runs.resuming import examine
from fedweave.runs.run import run
from tests.deploy.projects import SITES, InProcess, call_request, join_request, tables
from tests.security.cheating import SITE, agreed, make_sites

SECONDS = 20.0  # that a case may take
TOKENS = (
    b"", b"\0", b"\xff", b"\n", b"NaN", b"-inf", b"1e400", b"-1", b"99999999999999999999", b"[" * 2000, b"{", b'"',
    b"'", b"null", b"true", b"0.5", b",", b"\r\n", b"=1+1", b"\x1b[2J", b"[red]", b"../x", "é".encode(),
    b"\xf0\x9f\x92\xa9", b"\\ud800",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1.5, 2**31, 2**63, 10**30, -(10**30), float("nan"), float("inf"), "", "x", "1", "é\0",
    "[red]", "a" * 5000, [], [[]], ["x"], [1, "x", None], {}, {"x": 1}, {"name": "gcn"}, "../x", "adam",
)  # fmt: skip

Random = np.random.Generator


class Hang(BaseException):
    """A case took too long; no `except Exception` stops it."""


@dataclass(frozen=True)
class Stock:
    """Whole files, once for all cases. root: of a folder of each kind. sites: as `make_sites` makes them."""

    root: Path
    sites: Path
    replies: dict[str, bytes]


def make_stock(root: Path) -> Stock:
    """Data in every format, a finished run, sites, and a reply of each site."""
    tables(root / "parties")
    graphs = root / "graphs"
    graphs.mkdir()
    (graphs / "graphs.csv").write_text("id,label,split\n" + "".join(f"g{i},c{i % 2},train\n" for i in range(4)))
    (graphs / "nodes.csv").write_text("graph,id,f0\n" + "".join(f"g{i % 4},n{i},{i}\n" for i in range(12)))
    (graphs / "edges.csv").write_text("graph,source,target\n" + "".join(f"g{i},n{i},n{i + 4}\n" for i in range(4)))
    sites = make_sites(root / "sites")
    document = agreed(rounds=2).plain() | {"engine": {"name": "simulation", "mode": "loop"}}
    config = resolve(document)
    run(config, root / "run", Quiet())
    replies = {}
    link = InProcess(sites)
    for site in SITES:
        link.members[site].answer(join_request(agreed(), "r1"), b"")
        answer = link.members[site].answer(call_request(agreed(), "FedAvg.train"), encode(weights()))
        replies[site] = answer.blob
    shutil.copytree(sites / SITE, root / "journal")
    for site in SITES:
        for kept in ("ledgers", "runs"):
            shutil.rmtree(sites / site / kept)
    return Stock(root, sites, replies)


class Quiet:
    """A run's hearer that says nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *told: None


def weights() -> Tree:
    from fedweave.core import model as models
    from fedweave.core import random

    return {"w": models.init(agreed().model.make().build(8, 3), random.key(1), torch.float32)}


# --- damage


def spoilt(rng: Random, blob: bytes) -> bytes:
    """Bytes with one to four of: a bit turned, a piece left out, doubled or replaced, half of what follows left out."""
    found = bytearray(blob)
    for _ in range(rng.integers(1, 5)):
        at, size = int(rng.integers(0, len(found) + 1)), int(rng.integers(1, 9))
        match rng.integers(0, 5):
            case 0 if at < len(found):
                found[at] ^= 1 << int(rng.integers(0, 8))
            case 1:
                del found[at : at + size]
            case 2:
                found[at:at] = found[at : at + size * 4]
            case 3:
                found[at : at + size * int(rng.integers(0, 2))] = TOKENS[rng.integers(0, len(TOKENS))]
            case _:
                del found[at + len(found) // 2 :]
    return bytes(found)


def twisted(rng: Random, document: Any) -> Any:
    """JSON with one to three values, anywhere in it, replaced, left out, or put where there was none."""
    document = json.loads(json.dumps(document))
    for _ in range(rng.integers(1, 4)):
        nodes = [node for node in walked(document) if node]
        if not nodes:
            return document
        node = nodes[rng.integers(0, len(nodes))]
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key, value = keys[int(rng.integers(0, len(keys)))], deepcopy(VALUES[rng.integers(0, len(VALUES))])
        match rng.integers(0, 4):
            case 0:
                del node[key]
            case 1 if isinstance(node, dict):
                node[str(VALUES[rng.integers(12, 18)])] = value
            case _:
                node[key] = value
    return document


def walked(document: Any) -> Iterator[Any]:
    if isinstance(document, dict | list):
        yield document
        for below in document.values() if isinstance(document, dict) else document:
            yield from walked(below)


def leaf(rng: Random) -> Any:
    """What a tree may hold, of a form that nobody asked for."""
    made = (
        torch.tensor(float("nan")), torch.zeros(0), torch.zeros(3, 0), torch.full((2, 2), -1), torch.full((5,), 2**62),
        torch.ones(1, dtype=torch.bool), torch.zeros(32, dtype=torch.uint8), torch.full((8, 16), 1e30), -1, 10**15, 0.5,
        "x", "",
    )  # fmt: skip
    return made[rng.integers(0, len(made))]


def grafted(rng: Random, tree: Tree) -> Tree:
    """A tree with leaves replaced, left out or added."""
    tree = decode(encode(tree))
    for _ in range(rng.integers(1, 4)):
        nodes = [node for node in walked(tree) if node]
        if not nodes:
            return {"x": leaf(rng)}
        node = nodes[rng.integers(0, len(nodes))]
        key = list(node)[int(rng.integers(0, len(node)))]
        match rng.integers(0, 4):
            case 0:
                del node[key]
            case 1:
                node[("x", "w", "n", "0", "ids", "width")[rng.integers(0, 6)]] = leaf(rng)
            case _:
                node[key] = leaf(rng)
    return tree


def message(rng: Random, tree: Tree) -> bytes:
    return spoilt(rng, encode(tree)) if rng.integers(0, 2) else encode(grafted(rng, tree))


# --- readers


def configuration(rng: Random, stock: Stock, scratch: Path) -> None:
    """An experiment, as text or as a document, and what it names."""
    if rng.integers(0, 2):
        (scratch / "c.toml").write_bytes(spoilt(rng, (stock.root / "run/config.toml").read_bytes()))
        document = load(scratch / "c.toml")
    else:
        document = twisted(rng, agreed().plain())
    config = resolve(document)
    config.algorithm.make(config.model.make().build(8, 3))


def policy(rng: Random, stock: Stock, scratch: Path) -> None:
    """A site's file."""
    text = (stock.sites / SITE / "site.toml").read_bytes()
    rules = b'epsilon = 3.0\ncalls = {train = 3}\nnoise = {h = 1.0}\nmin_nodes = 3\nunbounded = ["own"]\n'
    (scratch / "site.toml").write_bytes(spoilt(rng, text + rules))
    read_checked(scratch / "site.toml")


def data(rng: Random, stock: Stock, scratch: Path) -> None:
    """A folder of tables, of small graphs, of a party; an .npz file."""
    match rng.integers(0, 4):
        case 0:
            Folder("none", None, None, False).load(damaged(rng, stock.root / "parties/bank-a", scratch), 0)
        case 1:
            GraphFolder("none", None, None, False).load(damaged(rng, stock.root / "graphs", scratch), 0)
        case 2:
            read_party(damaged(rng, stock.root / "parties/bank-b", scratch), Folder("none", 3, None, False))
        case _:
            (scratch / "data.npz").write_bytes(spoilt(rng, (stock.sites / SITE / "data.npz").read_bytes()))
            npz.read(scratch / "data.npz", "data.npz")


def damaged(rng: Random, folder: Path, scratch: Path) -> Path:
    """A copy with one of its files spoilt."""
    copy = Path(shutil.copytree(folder, scratch / folder.name))
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    path = files[rng.integers(0, len(files))]
    path.write_bytes(spoilt(rng, path.read_bytes()))
    return copy


def run_folder(rng: Random, stock: Stock, scratch: Path) -> None:
    """A finished run, read by the commands that show it and by whatever resumes it."""
    folder = damaged(rng, stock.root / "run", scratch)
    if rng.integers(0, 4) == 0:
        summary = folder / "summary.json"
        summary.write_text(json.dumps(twisted(rng, json.loads((stock.root / "run/summary.json").read_bytes()))))
    match rng.integers(0, 8):
        case 0:
            command("report", str(folder))
        case 1:
            command("ledger", str(folder))
        case 2:
            command("compare", str(folder), str(stock.root / "run"), "-o", str(scratch / "page.html"))
        case 3 | 4:
            Checkpoint.load(folder / CHECKPOINT)
        case 5:
            read_arrays(folder / "pairs.npz")
            command("list", "runs", str(scratch))
        case _:
            examine(resolve(load(stock.root / "run/config.toml")), folder, True)


def journal(rng: Random, stock: Stock, scratch: Path) -> None:
    """A site's journal, read by its owner's commands, or by the site's next job."""
    folder = Path(shutil.copytree(stock.root / "journal", scratch / SITE))
    path = folder / "ledgers/r1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if rng.integers(0, 2):
        at = int(rng.integers(0, len(lines)))
        lines[at] = json.dumps(twisted(rng, json.loads(lines[at]))).encode() + b"\n"
        path.write_bytes(b"".join(lines))
    else:
        path.write_bytes(spoilt(rng, path.read_bytes()))
    match rng.integers(0, 3):
        case 0:
            command("audit", str(folder))
        case 1:
            command("ledger", str(folder))
        case _:
            asked(Member(folder, SITE, nobody), join_request(agreed(), "r1"), b"")


def site(rng: Random, stock: Stock, scratch: Path) -> None:
    """A request to a site, first or after it has joined; or a parcel from another."""
    member = Member(Path(shutil.copytree(stock.sites / SITE, scratch / SITE)), SITE, nobody)
    join = join_request(agreed(), "r1")
    if rng.integers(0, 3) == 0:
        return asked(member, request(rng, join), b"")
    asked(member, join, b"")
    kind, step = (("step", "FedAvg.train"), ("step", "FedAvg.score"), ("align", ""), ("pad", ""), ("blind", ""))[
        rng.integers(0, 5)
    ]
    text, blob = call_request(agreed(), step, kind=kind, turn=1), encode(weights())
    match rng.integers(0, 4):
        case 0:
            asked(member, request(rng, text), blob)
        case 1:
            label = json.dumps({"run": "r1", "step": "FedAvg.train", "round": 1, "again": 0})
            member.accept("bank-a", request(rng, label), spoilt(rng, blob))
        case _:
            asked(member, text, message(rng, weights()))


def request(rng: Random, text: str) -> str:
    if rng.integers(0, 2):
        return spoilt(rng, text.encode()).decode(errors="replace")
    return json.dumps(twisted(rng, json.loads(text)))


def nobody(*told: Any) -> dict[str, str]:
    """A `Post` that reaches all."""
    return {}


def asked(member: Member, text: str, blob: bytes) -> None:
    """A site catches whatever goes wrong, and notes what it did not foresee with a traceback. That a step can do
    nothing with weights of another model is foreseen."""
    found: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = found.append  # type: ignore[method-assign]
    log = logging.getLogger(f"fedweave.site.{SITE}")
    log.addHandler(handler)
    try:
        member.answer(text, blob)
    finally:
        log.removeHandler(handler)
    faults = [record.exc_info[1] for record in found if record.exc_info]
    if faults and not isinstance(faults[0], StepFailed):
        raise faults[0]  # type: ignore[misc]


class Replying:
    """A `Link` whose sites answer what they are told to."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.answers = answers
        self.late: Any = {}

    def unreachable(self) -> dict[str, str]:
        return {}

    def exchange(self, request: str, blobs: Any) -> tuple[dict[str, Answer], dict[str, str]]:
        return self.answers, {}


def server(rng: Random, stock: Stock, scratch: Path) -> None:
    """Replies of sites to a server, one of them not as it should be; and notes."""
    if rng.integers(0, 4) == 0:
        note = request(rng, json.dumps({"keys": [["w", "[3]", 12]], "size": 40, "lost": {"bank-a": "gone"}}))
        read_faults(note, SITES)
        read_version(note, 0)
        Receipt.read(note, step_info(fedavg().train), SITES)
        return
    tree = decode(stock.replies[SITE])
    bad = spoilt(rng, stock.replies[SITE]) if rng.integers(0, 2) else encode(grafted(rng, tree))
    answers = {site: Answer(blob) for site, blob in stock.replies.items()} | {SITE: Answer(bad)}
    fed = Flare(Replying(answers), SITES, ledger=Ledger(), quorum=0.5)
    fed.begin(1)
    replies = fed.map(fedavg().train, weights(), quorum=0.5)
    fed.faults()
    replies.weighted_sum("update", replies.stack("n") / replies.stack("n").sum())


def fedavg() -> Any:
    config = agreed()
    return config.algorithm.make(config.model.make().build(8, 3))


def command(*words: str) -> None:
    """A command, which may end with 0, 1 or 2 and a message."""
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1, 2), result.output


READERS = (configuration, policy, data, run_folder, journal, site, server, site, server, data, configuration, policy)

# --- cases


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `Hang` after so long."""

    def late(*told: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def finding(number: int, stock: Stock) -> str:
    """What is wrong with a case; nothing if nothing is."""
    rng, reader = np.random.default_rng(number), READERS[number % len(READERS)]
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with limit(SECONDS):
                reader(rng, stock, Path(scratch))
        except FedweaveError:
            return ""
        except Hang:
            return f"case {number} ({reader.__name__}) took more than {SECONDS:g} s"
        except Exception:
            return f"case {number} ({reader.__name__}):\n{traceback.format_exc(limit=-8)}"
    return ""


if __name__ == "__main__":
    logging.disable(logging.NOTSET)
    with tempfile.TemporaryDirectory() as where:
        made = make_stock(Path(where))
        for case in map(int, sys.argv[1:]):
            print(finding(case, made) or f"case {case}: nothing")
