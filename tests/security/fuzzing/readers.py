"""Who reads what is damaged: each makes one case, and may return or raise an error of fedweave's own."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.core.federation import step_info
from fedweave.core.ledger import Ledger
from fedweave.core.tree import decode, encode
from fedweave.datasets import npz
from fedweave.datasets.folder import Folder
from fedweave.datasets.graph_folder import GraphFolder
from fedweave.datasets.parties import read_party
from fedweave.errors import StepFailed
from fedweave.experiment.config import load, resolve
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT, read_pairs
from fedweave.experiment.runs.resuming import examine
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.member import Member
from fedweave.sites.flare.peers import Receipt, read_faults, read_version
from fedweave.sites.flare.policy_names import read_checked
from fedweave.sites.flare.requests import Answer
from tests.security.cheating import SITE, agreed
from tests.security.fuzzing.damage import Random, damaged, grafted, message, request, spoilt, twisted
from tests.security.fuzzing.stock import Stock, weights
from tests.sites.projects import SITES, call_request, join_request


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
            read_pairs(folder)
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


def nobody(*told: Any) -> dict[str, str]:
    """A `Post` that reaches all."""
    return {}


def asked(member: Member, text: str, blob: bytes) -> None:
    """A site catches whatever goes wrong, and notes what it did not foresee with a traceback. That a step can do
    nothing with weights of another model is foreseen."""
    found: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = found.append
    log = logging.getLogger(f"fedweave.site.{SITE}")
    log.addHandler(handler)
    try:
        member.answer(text, blob)
    finally:
        log.removeHandler(handler)
    faults = [record.exc_info[1] for record in found if record.exc_info]
    if faults and not isinstance(faults[0], StepFailed):
        raise faults[0]


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
