"""A site's side of a job: its own data, state, secret and policy. Nothing here knows how calls travel."""

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from fedweave.algorithms.score_sums import TRIED
from fedweave.core import random
from fedweave.core.algorithm import capabilities
from fedweave.core.federation import Declaration, StepInfo, step_info
from fedweave.core.purposes import PREDICTION, SETUP, TRAINING
from fedweave.core.tree import Tree, check, decode, encode, leaves, to
from fedweave.deploy.flare.parties.alignment import MEETING, read_own
from fedweave.deploy.flare.parties.exchange import CLAIMING, entered
from fedweave.deploy.flare.parties.exchange import INFO as SHARING
from fedweave.deploy.flare.policy.admission import PolicyFile, admitted, check_exchange, check_sites
from fedweave.deploy.flare.policy.keys import read_checked
from fedweave.deploy.flare.policy.policy import PolicyViolation, check_calls, check_reply
from fedweave.deploy.flare.policy.precheck import check_target
from fedweave.deploy.flare.server.federation import JOIN
from fedweave.deploy.flare.site import steps
from fedweave.deploy.flare.site.accounts import CallLog
from fedweave.deploy.flare.site.folder import LOG, SITE_FILE, read_about
from fedweave.deploy.flare.site.holdings import Holdings, hold, marks
from fedweave.deploy.flare.site.joining import FORM, JOINING, as_kept_back, describe, kept_back, said, withheld
from fedweave.deploy.flare.site.participation import Participation
from fedweave.deploy.flare.site.predicted import leave, note_form, noted_form, read_flags, set_aside
from fedweave.deploy.flare.site.sitefile import SECRET, Rules
from fedweave.deploy.flare.site.steps import carry_out, client_on, read_received, with_fingerprints
from fedweave.deploy.flare.wire.chain import told_heads
from fedweave.deploy.flare.wire.peers import HEARD, WRITTEN, Post, Receipt
from fedweave.deploy.flare.wire.requests import (
    FORBIDDEN,
    MISTAKEN,
    Add,
    Agree,
    Answer,
    Call,
    Join,
    Open,
    Request,
    check_versions,
    described,
    read_request,
)
from fedweave.deploy.flare.wire.scores import models_scored
from fedweave.engines.calls import check_declared, check_way, of_client
from fedweave.engines.data import taken
from fedweave.engines.devices import CPU, chosen
from fedweave.engines.steps import find_step
from fedweave.engines.summing import INFO, fingerprint
from fedweave.errors import CallRefused, DiskFull, FedweaveError, StepFailed
from fedweave.partition.external import ADD

_WAYS = {"step": "map", "send": "send", "replace": "replace_data"}  # what asks for a step, by the kind of a request
_OWNER = f"its owner finds the reason in {LOG} in the site's folder"


class Member:
    """Answers the server's calls, one at a time, and takes what other sites send at any time.

    folder: the site's. post: carries what the site sends to others. Every call and every error is written to the
    owner's log; the server hears the reason of an error only where it tells nothing of the data. submitter: with
    whose certificate the job was submitted, as the server says.
    """

    def __init__(self, folder: Path, name: str, post: Post, submitter: str = "") -> None:
        self._folder, self._name, self._submitter = folder, name, submitter
        self._post, self._lock = post, threading.Lock()
        self._job: Participation | None = None
        self._joined, self._stopped = False, ""
        self._device, self._flags = torch.device(CPU), read_flags({})
        self._calls = CallLog(name, submitter)
        self._log = self._calls.log

    def answer(self, request: str, blob: bytes) -> Answer:
        """Do what `request` asks for (`requests`)."""
        with self._lock:
            began = time.perf_counter()
            if self._stopped:
                return Answer(refusal=self._stopped, final=True)
            asked: Request | None = None
            try:
                asked = read_request(request)
                reply, note = self._reply(asked, blob)
                self._calls.done(self._run_of(asked), asked)
                return Answer(reply, time.perf_counter() - began, note=note, heads=self._heads(asked))
            except PolicyViolation as error:
                self._stopped = f"{FORBIDDEN}: {error}"
                return self._refused(asked, error)
            except CallRefused as error:
                self._stopped = f"the site refuses it: {error}"
                return self._refused(asked, error)
            except Exception as error:  # whatever fails here fails this site alone, and says nothing of its data
                reason = error.__cause__ if isinstance(error, StepFailed) else error
                known = isinstance(reason, FedweaveError) and not isinstance(reason, DiskFull)
                self._stopped = f"{MISTAKEN if known else 'it failed'} ({type(reason).__name__}); {_OWNER}"
                return self._refused(asked, error)

    def _run_of(self, asked: Request | None) -> str:
        return asked.run if isinstance(asked, Join) else self._job.run if self._job else ""

    def _heads(self, asked: Request) -> str:
        job = self._job
        return told_heads(self._folder, self._name, job.accounts.chain.head, asked) if job else ""

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

    def _reply(self, asked: Request, blob: bytes) -> tuple[bytes, str]:
        if isinstance(asked, Join):
            return self._join(asked, blob), ""
        if self._job is None:
            raise CallRefused(f"{described(asked)} was asked for before the site had joined the job")
        if asked.pin != self._job.pin:
            raise CallRefused(f"{described(asked)} carries another configuration than the one that the site has joined")
        self._job.renew()
        told = decode(blob, self._job.limit)
        if isinstance(asked, Agree | Open):
            return self._prepare(self._job, asked, told), ""
        if isinstance(asked, Add):
            return self._add(self._job, asked, told)
        if not isinstance(asked, Call):
            return self._tell(asked.round, *steps.answered(self._job, asked, told, self._log)), ""
        return self._step(asked, told)

    def _refused(self, asked: Request | None, error: Exception) -> Answer:
        """Tell the owner why the site takes no further part in the job."""
        self._calls.refused(self._folder, self._run_of(asked), asked, error)
        return Answer(refusal=self._stopped, final=True)

    def _join(self, asked: Join, blob: bytes) -> bytes:
        if self._joined:
            raise CallRefused("a job joins once")
        self._joined = True
        set_aside(self._folder, asked.run)
        check_versions(asked.versions, {})  # another release's document could mean something else
        policy = PolicyFile(self._folder)  # before it is read: what changes while the data is loaded is news
        data, rules = read_checked(self._folder / SITE_FILE)
        self._device = chosen(read_about(self._folder / SITE_FILE).device, where="site.device")
        config = admitted(rules, asked.document)
        check_versions(asked.versions, asked.document)  # files that the policy allows to be read
        if config.engine.name != "flare":
            raise CallRefused("the server names another engine than that of sites")
        check_sites(rules, self._name, asked.sites)
        if config.engine.values["threads"]:
            torch.set_num_threads(config.engine.values["threads"])
        vertical = capabilities(config.algorithm.kind).vertical
        check_exchange(rules, data, config, len(asked.sites))
        found = (
            read_own(data, self._folder, asked.run, asked.sites, self._name, rules.members)
            if vertical
            else hold(data, self._folder, config, noted_form(asked, self._folder))
        )
        who = data.random_id or self._name, self._name, self._submitter
        job = self._job = Participation(self._folder, asked, config, found, rules, policy, *who)
        self._warn(job)
        self._flags = read_flags(decode(blob, job.limit)) if asked.predict and blob else None
        job.go_back()
        job.check_version(asked.data[self._name].version if self._name in asked.data else 0)
        if isinstance(found, Holdings):
            job.check_marks(marks(found.data, data.normalise))
            note_form(asked, data, self._folder, found.data)
            if found.whole is not None:
                job.exchange = entered(self._folder, asked, self._name, rules, found.whole, data.normalise)
            job.begin(found, found.features, data.normalise)
            told = describe(found, withheld(rules)) | kept_back(said(job.needed), withheld(rules))
            if asked.predict:  # how many new records there are is the site's own affair
                told = {key: told[key] for key in FORM}
            if job.exchange is None:
                return self._tell(asked.round, JOIN, told, JOINING)
            told |= kept_back(job.exchange.greeting(), withheld(rules))
            return self._tell(asked.round, JOIN, told, {**JOINING, **CLAIMING})
        return self._tell(asked.round, JOIN, kept_back(found.greeting(), withheld(rules)), MEETING)

    def _warn(self, job: Participation) -> None:
        """Say which lines of the site's journals count for nothing."""
        for name, lines in job.accounts.damaged.items():
            self._log.warning("ledgers/%s: damaged lines: %d; what they say has left is counted no more", name, lines)

    def _prepare(self, job: Participation, asked: Agree | Open, told: Tree) -> bytes:
        """What secure sums need besides the terms; no policy speaks of it."""
        if asked.round and job.ledger.purpose == SETUP:  # before the first step of training
            job.ledger.purpose = TRAINING
        info, reply = INFO[asked.kind], job.prepare_sum(asked, told)
        return self._send(asked.round, f"({asked.kind})", reply, info, job.rules.freed(info.sends))

    def _add(self, job: Participation, asked: Add, told: Tree) -> tuple[bytes, str]:
        """Tell, in a secure sum, of the nodes that edges lead to (`parties.exchange`)."""
        reply, heard = steps.added(job, asked, told), fingerprint(told)
        reply = job.masking.masked(asked, SHARING, heard, reply)
        return self._send(asked.round, f"({ADD})", reply, SHARING), json.dumps({HEARD: heard})

    def _tell(self, round: int, name: str, told: Tree, sends: Declaration) -> bytes:
        """What the site says of itself, from which its policy has already taken what it denies."""
        if self._job is None:
            raise CallRefused("nothing may leave before the site has joined a job")
        self._job.ledger.purpose = PREDICTION if self._job.asked.predict else SETUP
        kept = withheld(self._job.rules)
        free = self._job.rules.freed((*FORM, "signed", "signature", *kept))
        return self._send(round, name, told, StepInfo.of(as_kept_back(sends, kept), ragged=True), free)

    def _step(self, asked: Call, told: Tree) -> tuple[bytes, str]:
        """The reply to the server, and the note that goes with it."""
        job = self._job
        if job is None or not job.ready or not isinstance(job.found, Holdings):
            raise CallRefused(f"{described(asked)} was asked for before the site had joined the job")
        step = find_step(job.algorithm, asked.step)
        info = step_info(step)
        check_way(asked.step, info, _WAYS[asked.kind])
        job.order.admit(asked.step, asked.round, asked.again)
        job.ledger.purpose = job.order.purpose
        message = job.last.whole(told)
        job.enter(asked, message)
        job.keys.begin(asked.round)
        call = job.keys.step(asked.step, asked.again)
        key = of_client(call, "client", torch.tensor(random.word(job.random_id), device="cpu"))
        own = job.memory.begun(info)
        client = client_on(self._device, job, own, key, self._folder / SECRET)
        received, faults = read_received(job, asked, self._name, self._log)
        scoring = job.scoring_of(step)
        draws = scoring.show(client, job.classes)
        with torch.no_grad():
            reply = carry_out(asked.step, step, client, to(message | received, self._device))
            made = taken(reply, info)
            check(reply, f"the reply of {asked.step}")
            check(client.state, f"the state that {asked.step} keeps")
        reply, client.state, draws = (to(tree, CPU) for tree in (reply, client.state, draws))
        if job.asked.predict and reply and not capabilities(job.config.algorithm.kind).predicts:
            raise CallRefused(f"{described(asked)}: where a finished run's models predict, nothing is sent")
        reply, info, noted = scoring.left(reply, info, job.classes)
        info = with_fingerprints(asked.step, info, reply, client.state | draws)
        heard = job.heard(asked, info, message)
        noted |= faults | (job.replace(made, asked, info.columns) if info.replaces_data else {})
        if info.sums:
            noted[HEARD] = heard
            reply = job.masking.masked(asked, info, heard, reply)
        if asked.kind == "send":
            sent, note = self._deliver(job, asked, reply, info)
        else:
            sent, note = self._send(asked.round, asked.step, reply, info), ""
        if leave(job, self._name, client.state, self._log, self._flags):
            noted[WRITTEN] = True
        job.memory.keep(client.state, heard, info)
        return sent, note or json.dumps(noted)

    def _deliver(self, job: Participation, asked: Call, reply: Tree, info: StepInfo) -> tuple[bytes, str]:
        """Send the reply to the peers that the server named; what the server gets is empty, with a receipt."""
        name, peers = asked.step, asked.to[self._name]
        if not set(peers) <= set(job.asked.sites) - {self._name}:
            raise CallRefused(f"{described(asked)} names peers that are no other sites of the run")
        blob = self._send(asked.round, name, reply, info, to=peers)
        receipt = Receipt.of(job.ledger.last, {})
        job.inbox.note_own(name, (asked.round, asked.again), decode(blob, job.limit))
        if peers:
            label = json.dumps({"run": job.run, "step": name, "round": asked.round, "again": asked.again})
            receipt = receipt._replace(lost=self._post(peers, label, blob, job.patience))
        return self._send(asked.round, name, {}, info), receipt.note()

    def _send(
        self,
        round: int,
        name: str,
        reply: Tree,
        info: StepInfo,
        rules: Rules | None = None,
        to: Sequence[str] | None = None,
    ) -> bytes:
        """The reply as it may leave, to the server or to peers, noted in the site's own ledger.

        info: what the site's own algorithm declares; nothing that is said of the reply comes from the request.
        """
        check_declared(name, info, (path for path, _ in leaves(reply)))
        job, blob = self._job, encode(reply)
        if job is None:
            raise CallRefused("nothing may leave before the site has joined a job")
        copies, way = (1, "up") if to is None else (len(to), "peer")
        with job.accounts.open(job.ledger):
            check_calls(job.rules, job.accounts.spent, name, models_scored(info, reply))
            if TRIED in reply:
                job.order.count_tried(len(reply[TRIED]))
            if name in job.target:
                check_target(job.rules, job.target, job.accounts.repeated(job.pin), 1)
            check_reply(rules or job.rules, job.accounts.spent, reply, copies * len(blob), info)
            job.ledger.record(round, 0, name, (self._name,) * copies, way, reply, 0.0, info, to or ())
            job.accounts.count(job.ledger)
        self._calls.left(reply, copies * len(blob), to or ())
        return blob
