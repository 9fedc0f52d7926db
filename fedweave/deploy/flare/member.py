"""A site's side of a job: its own data, state, secret and policy. Nothing here knows how calls travel."""

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedweave.config import Config, resolve
from fedweave.core import random
from fedweave.core.algorithm import capabilities
from fedweave.core.federation import Client, Declaration, StepInfo, step_info
from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, check, decode, encode
from fedweave.deploy.flare.alignment import MEETING
from fedweave.deploy.flare.federation import ALIGN, JOIN, Answer
from fedweave.deploy.flare.holdings import FORM, JOINING, Holdings, describe, hold, kept_back, marks, withheld
from fedweave.deploy.flare.journal import Journal, entries, journal_path, journals
from fedweave.deploy.flare.party import PartyData, read_own
from fedweave.deploy.flare.peers import VERSION, Inbox, Post, Receipt
from fedweave.deploy.flare.policy import PolicyViolation, Spent, check_algorithm, check_reply
from fedweave.deploy.flare.releases import with_fingerprints
from fedweave.deploy.flare.sitefile import SECRET, SITE_FILE, Rules, read_secret, read_site_file
from fedweave.deploy.flare.steps import find_step
from fedweave.deploy.flare.store import Store
from fedweave.engines.calls import Keys, check_declared, check_way, of_client
from fedweave.engines.data import ClientData, accepted, taken
from fedweave.errors import ConfigError, FedweaveError
from fedweave.runs.files import write, write_table
from fedweave.runs.predictions import PREDICTIONS, Predicted, predictions_table
from fedweave.runs.scoring import probabilities

RUNS, LOG, MARKS = "runs", "fedweave.log", "marks.json"
_WAYS = {"step": "map", "send": "send", "replace": "replace_data"}  # what asks for a step, by the kind of a request
_OWNER = f"its owner finds the reason in {LOG} in the site's folder"


class Member:
    """Answers the server's calls, one at a time, and takes what other sites send at any time.

    folder: the site's. post: carries what the site sends to others. Every error is written to the owner's log; the
    server hears the reason only where it tells nothing of the data.
    """

    def __init__(self, folder: Path, name: str, post: Post) -> None:
        self._folder, self._name, self._post, self._lock = folder, name, post, threading.Lock()
        self._job: _Job | None = None
        self._stopped = ""
        self._log = logging.getLogger(f"fedweave.site.{name}")

    def answer(self, request: str, blob: bytes) -> Answer:
        """Do what `request` asks for."""
        with self._lock:
            began = time.perf_counter()
            try:
                if self._stopped:
                    return Answer(refusal=self._stopped, final=True)
                asked = json.loads(request)
                reply, note = self._reply(asked, blob)
                return Answer(reply, time.perf_counter() - began, note=note)
            except PolicyViolation as error:
                self._stopped = f"the policy of the site forbids it: {error}"
                return self._refused(error, self._stopped)
            except Exception as error:  # whatever fails here fails this site alone, and says nothing of its data
                what = "its data or settings were refused" if isinstance(error, FedweaveError) else "it failed"
                self._stopped = f"{what} ({type(error).__name__}); {_OWNER}"
                return self._refused(error, self._stopped)

    def accept(self, sender: str, label: str, blob: bytes) -> str:
        """Keep what the site `sender` sent until a step wants it; returns why not, or nothing.

        Without the lock of `answer`: two sites that send to each other would wait for each other.
        """
        try:
            of, job = json.loads(label), self._job
            if job is None or job.run != of["run"]:
                raise FedweaveError("the site takes no part in that run")
            find_step(job.algorithm, of["step"])
            job.inbox.put(sender, of["step"], (int(of["round"]), int(of["again"])), blob)
        except Exception as error:  # whatever a peer sends, it is that peer's fault alone
            self._log.error("refused what %s sent: %s", sender, error)
            return "it was refused"
        return ""

    def _reply(self, asked: dict[str, Any], blob: bytes) -> tuple[bytes, str]:
        if asked["kind"] == "join":
            return self._join(asked), ""
        return (self._align(asked, decode(blob)), "") if asked["kind"] == "align" else self._step(asked, blob)

    def _refused(self, error: Exception, told: str) -> Answer:
        self._log.error("%s", error, exc_info=None if isinstance(error, FedweaveError) else error)
        return Answer(refusal=told, final=True)

    def _join(self, asked: dict[str, Any]) -> bytes:
        config = resolve(asked["document"])
        data, rules = read_site_file(self._folder / SITE_FILE)
        check_algorithm(rules, config.algorithm.name)
        if config.engine.values["threads"]:
            torch.set_num_threads(config.engine.values["threads"])
        vertical = capabilities(config.algorithm.kind).vertical
        found = read_own(data, self._folder, asked["run"]) if vertical else hold(data, self._folder, config)
        job = self._job = _Job(self._folder, asked["run"], config, found, rules, data.draws_as or self._name)
        job.go_back(asked["round"], asked.get("data", {}).get(self._name, {}).get("version", 0))
        if isinstance(found, Holdings):
            predict = bool(asked.get("predict"))
            self._check_marks(job, marks(found.data, data.normalise), predict)
            job.begin(found, found.features, as_loaded=predict)
            told = describe(found, withheld(rules))
            told = {key: told[key] for key in FORM} if predict else told  # how many new records there are is its own
            return self._tell(asked, JOIN, told, JOINING)
        return self._tell(asked, JOIN, kept_back(found.greeting(), withheld(rules)), MEETING)

    def _align(self, asked: dict[str, Any], told: Tree) -> bytes:
        """Keep of a party's nodes those that all parties have."""
        job = self._job
        if job is None or not isinstance(job.found, PartyData):
            raise FedweaveError("only a party of a vertical federation, which has joined it, can align its nodes.")
        holdings = job.found.align(told, getattr(torch, job.config.engine.values["dtype"]))
        if job.found.data.ids:
            self._log.info("%s", job.found.kept(holdings.data))
        predict = bool(asked.get("predict"))
        self._check_marks(job, job.found.marks(holdings.data), predict)
        job.begin(holdings, told["width"], as_loaded=predict)
        return self._tell(asked, ALIGN, describe(holdings, withheld(job.rules)), JOINING)

    def _check_marks(self, job: "_Job", marks: dict[str, Any], predict: bool) -> None:
        """Note what the run was trained on, or see that what is there to `predict` fits its models."""
        path = self._folder / RUNS / job.run / MARKS
        if not predict:
            return write(path, lambda file: file.write(json.dumps(marks).encode()))
        if not path.exists():
            raise FedweaveError(f"{path.parent} holds no models of this site: the run {job.run} was not trained here.")
        before = json.loads(path.read_bytes())
        if odd := [what for what in marks if marks[what] != before[what]]:
            remedy = {
                "features": f"Give the columns {before['features']}, in this order.",
                "scaled over nodes": "Scale the features yourself and train with normalise = 'none' in site.toml.",
            }
            raise FedweaveError(f"{odd[0]}: not as in the run {job.run}. {remedy[odd[0]]}")

    def _foretold(self, job: "_Job", probability: Tensor) -> None:
        """Keep what the site predicts, for its owner."""
        path, data = self._folder / RUNS / job.run / PREDICTIONS, job.found.data
        found = Predicted(self._name, probability, np.arange(data.examples), data.public)
        write_table(path, predictions_table([found], data.ids, job.found.labels or data.labels, data.example))
        self._log.info("%d predictions: %s", data.examples, path)

    def _tell(self, asked: dict[str, Any], name: str, told: Tree, sends: Declaration) -> bytes:
        """What the site says of itself, from which its policy has already taken what it denies."""
        if self._job is None:
            raise FedweaveError("nothing may leave before the site has joined a job")
        rules = self._job.rules
        free = replace(rules, deny=(), unbounded=(*rules.unbounded, *FORM, *withheld(rules)))
        return self._send(asked, name, told, StepInfo.of(sends, ragged=True), free)

    def _step(self, asked: dict[str, Any], blob: bytes) -> tuple[bytes, str]:
        """The reply to the server, and the note that goes with it."""
        job, round = self._job, asked["round"]
        if job is None or not isinstance(job.found, Holdings):
            raise FedweaveError("a step was called before the site had joined the job")
        step = find_step(job.algorithm, asked["step"])
        info = step_info(step)
        check_way(asked["step"], info, _WAYS[asked["kind"]])
        job.store.enter(round, asked["saved"])
        job.keys.begin(round)
        call = job.keys.step(asked["step"], asked["again"])
        key = of_client(call, "client", torch.tensor(random.word(job.draws_as)))
        client = Client(job.graph, job.store.tree, key, _noise(self._folder / SECRET), job.found.test)
        received, faults = self._received(job, asked)
        with torch.no_grad():
            reply = step(client, decode(blob) | received)
            made = taken(reply, info)
            check(reply, f"the reply of {asked['step']}")
            check(client.state, f"the state that {asked['step']} keeps")
        info = with_fingerprints(asked["step"], info, reply, client.state)
        noted = faults | (job.replace(made, asked) if info.replaces_data else {})
        if asked["kind"] == "send":
            sent, note = self._deliver(job, asked, reply, info)
        else:
            sent, note = self._send(asked, asked["step"], reply, info), json.dumps(noted)
        if "prediction" in client.state:
            self._foretold(job, client.state.pop("prediction"))
        if "model" in client.state:
            self._foretold(job, probabilities(job.algorithm.net, client.state.pop("model"), job.graph))
        job.store.keep(client.state)
        return sent, note

    def _received(self, job: "_Job", asked: dict[str, Any]) -> tuple[Tree, dict[str, str]]:
        """What the step finds of its peers, and {peer: "missing" or "refused"} of those who left nothing of use."""
        if "received" not in asked:
            return {}, {}
        of = asked["received"]
        info, call = step_info(find_step(job.algorithm, of["step"])), (asked["round"], of["again"])
        message, faults, refused = job.inbox.open(of["step"], info, call, of["sources"][self._name], of["clients"])
        for peer, why in refused.items():
            self._log.error("what %s sent is of no use: %s", peer, why)
        return message, faults

    def _deliver(self, job: "_Job", asked: dict[str, Any], reply: Tree, info: StepInfo) -> tuple[bytes, str]:
        """Send the reply to the peers that the server named; what the server gets is empty, with a receipt."""
        name, peers = asked["step"], asked["to"][self._name]
        blob = self._send(asked, name, reply, info, to=peers)
        receipt = Receipt.of(job.ledger.last, {})
        job.inbox.note_own(name, (asked["round"], asked["again"]), decode(blob))
        if peers:
            label = json.dumps({"run": job.run, "step": name, "round": asked["round"], "again": asked["again"]})
            receipt = receipt._replace(lost=self._post(peers, label, blob, job.patience))
        return self._send(asked, name, {}, info), receipt.note()

    def _send(
        self,
        asked: dict[str, Any],
        name: str,
        reply: Tree,
        info: StepInfo,
        rules: Rules | None = None,
        to: Sequence[str] | None = None,
    ) -> bytes:
        """The reply as it may leave, to the server or to peers, noted in the site's own ledger.

        info: what the site's own algorithm declares; nothing that is said of the reply comes from `asked`.
        """
        check_declared(name, info, reply)
        job, blob = self._job, encode(reply)
        if job is None:
            raise FedweaveError("nothing may leave before the site has joined a job")
        copies, way = (1, "up") if to is None else (len(to), "peer")
        check_reply(rules or job.rules, job.spent, reply, copies * len(blob), info)
        who = (self._name,) * copies
        job.ledger.record(asked["round"], 0, name, who, way, reply, 0.0, info, to or ())
        job.spent = job.spent.after_entry(job.ledger.last)
        return blob


class _Job:
    """What a site holds while it takes part in a run.

    found: what it has of the run's data; of a `PartyData` no step can be run until `begin`.
    """

    algorithm: Any = None

    def __init__(
        self, folder: Path, run: str, config: Config, found: Holdings | PartyData, rules: Rules, draws_as: str
    ) -> None:
        if not run.isalnum():
            raise ConfigError(f"the run {run!r} cannot name a folder; it has letters and digits alone.")
        engine = config.engine.values
        self.run, self.inbox = run, Inbox(int(engine["reply_mb"] * 1e6))
        # Half of what the server waits, so that a peer that cannot be reached does not make its senders late.
        self.patience = engine["timeout"] / 2
        self.config, self.found, self.rules, self.draws_as = config, found, rules, draws_as
        self.keys = Keys(config.general.seed)
        self.store = Store(folder / RUNS / run)
        self._replaced = Store(folder / RUNS / run, "data", "data-before-")
        self.spent = Spent.of(entry for journal in journals(folder) for entry in entries(journal))
        self.ledger = Journal(journal_path(folder, run))

    def go_back(self, round: int, version: int) -> None:
        """Continue from the state and the data after `round`.

        Raises:
            FedweaveError: the data is older than the `version` that the server knows.
        """
        self.store.go_back(round)
        self._replaced.go_back(round)
        own = self._replaced.tree.get("version", 0)
        if own < version:
            raise FedweaveError(
                f"the site's data in the run {self.run} is of version {own}, but was of version {version} after round "
                f"{round}. Bring back its folder {RUNS}/{self.run}, or start the run anew."
            )

    def begin(self, found: Holdings, width: int, as_loaded: bool = False) -> None:
        """Make the model, for graphs of `width` features, and take up the data as the run has changed it, unless what
        was loaded is wanted."""
        self.algorithm = self.config.algorithm.make(self.config.model.make().build(width, found.classes))
        self.found = found
        self._data = ClientData({self.draws_as: found.graph}, found.classes)
        if self._replaced.tree and not as_loaded:
            self._data.load({self.draws_as: self._replaced.tree})

    @property
    def graph(self) -> Graph:
        """The site's data now."""
        return self._data.graphs[self.draws_as]

    def replace(self, made: Any, asked: dict[str, Any]) -> dict[str, int]:
        """Keep the data that a step made, if it made any; what the server hears of it."""
        where = f"the graph that {asked['step']} made"
        graph = None if made is None else accepted(made, self.graph, self._data.classes, where)
        self._data.replace(self.draws_as, graph)
        self._replaced.enter(asked["round"], asked["saved"])
        self._replaced.keep(self._data.dump()[self.draws_as])
        return {VERSION: self._data.versions[self.draws_as]}


def _noise(path: Path) -> Tensor:
    """A key for privacy noise from the site's own secret and fresh entropy: neither the server nor a later call can
    work it out, and no two calls share it.

    Raises:
        ConfigError: there is no secret, or others can read it.
    """
    key = read_secret(path)
    return random.key(int.from_bytes(hashlib.blake2b(os.urandom(32), key=key, digest_size=8).digest()))
