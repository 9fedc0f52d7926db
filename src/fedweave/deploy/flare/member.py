"""A site's side of a job: its data, state, secret and policy. This module does not depend on how calls travel."""

import dataclasses
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fedweave.algorithms.parts.part import KEEP
from fedweave.algorithms.scoring import TRIED
from fedweave.core import random
from fedweave.core.algorithm import capabilities
from fedweave.core.federation import Client, Declaration, Lasting, StepInfo, step_info
from fedweave.core.mechanism import LDP, Gaussian, Mechanism, release_of
from fedweave.core.tree import Tree, decode, encode, leaves, to
from fedweave.core.types import PREDICTION, SETUP, TRAINING
from fedweave.deploy.flare.accounts import CallLog
from fedweave.deploy.flare.admission import (
    PolicyFile,
    admitted,
    check_exchange,
    check_forget,
    check_sites,
    check_target,
    check_task,
    check_told,
    read_checked,
)
from fedweave.deploy.flare.alignment import (
    BLINDING,
    CLAIMING,
    MEETING,
    Exchange,
    PartyData,
    entered,
    read_openings,
    read_own,
)
from fedweave.deploy.flare.chain import told_heads
from fedweave.deploy.flare.data_marks import site_key
from fedweave.deploy.flare.entities import COUNTING, ENTITIES, NUMBERED, UNITE, Entities
from fedweave.deploy.flare.entities import INFO as UNITING
from fedweave.deploy.flare.federation import ALIGN, BLIND, JOIN
from fedweave.deploy.flare.folder import LOG, SITE_FILE, fields, read_about
from fedweave.deploy.flare.holdings import (
    FORM,
    JOINING,
    Holdings,
    LabelVersion,
    as_kept_back,
    describe,
    form_at,
    hold,
    kept_back,
    left_out_of,
    marks,
    nodes_scaling,
    site_lengths,
    withheld,
)
from fedweave.deploy.flare.participation import BEFORE, Participation
from fedweave.deploy.flare.peers import HEARD, REPEATED, WRITTEN, Post, Receipt, sent_again
from fedweave.deploy.flare.policy import (
    PolicyViolation,
    check_aligned,
    check_calls,
    check_lists,
    check_reply,
    least_told,
)
from fedweave.deploy.flare.predicted import keep_model, leave, note_form, noted_form, read_flags, set_aside
from fedweave.deploy.flare.requests import (
    FORBIDDEN,
    MISTAKEN,
    Add,
    Agree,
    Answer,
    Blind,
    Join,
    Open,
    Request,
    Settle,
    StepRequest,
    check_versions,
    described,
    read_request,
)
from fedweave.deploy.flare.scores import models_scored, models_tried
from fedweave.deploy.flare.sitefile import SECRET, Rules, read_secret
from fedweave.deploy.flare.states import StateFile
from fedweave.deploy.flare.sums import data, tensor
from fedweave.engines.calls import carry_out, check_declared, check_permanent, check_way, find_step, of_client
from fedweave.engines.devices import CPU, chosen
from fedweave.engines.messages import INFO, fingerprint
from fedweave.errors import CallRefused, DiskFull, FedweaveError, StepFailed
from fedweave.experiment.graphs import graph_of
from fedweave.ops import hashing
from fedweave.partition.preparation import with_scaled_nodes

# ----------------------------------------------------------------------------------------------------
# How a site answers requests after it has joined. Before the first step, the sites find common nodes, agree on lengths
# of lists, and exchange features over edges between sites. Then each site runs steps, with what other sites sent and
# with its own privacy noise. Noise that is drawn once for good stays the same.


def client_on(job: Participation, state: Tree, key: Tensor, secret_file: Path) -> Client:
    """The client that a step sees, on the device where the site's steps run. The rest of a job stays on the host."""
    labels, test = lasting(job.folder, job.labels), job.holdings.test if isinstance(job.holdings, Holdings) else None
    if labels is not None:
        labels = Lasting(*(one.to(job.device) for one in labels))
    tensors = to(state, job.device), key.to(job.device), noise_key(secret_file).to(job.device)
    return Client(job.graph_on_device, *tensors, None if test is None else test.to(job.device), lasting=labels)


def read_received(
    job: Participation, request: StepRequest, site: str, log: logging.Logger
) -> tuple[Tree, dict[str, str]]:
    """The message from peers at `site` for the requested step, and {peer: "missing" or "refused"} for the peers without
    a usable parcel."""
    received = request.received
    if received is None:
        return {}, {}
    info, call = step_info(find_step(job.algorithm, received.step)), (request.round, received.again)
    message, faults, refused = job.inbox.open(received.step, info, call, received.sources[site], received.clients)
    for peer, why in refused.items():
        log.error("the parcel of %s is not usable: %s", peer, why, extra=fields("parcel-refused", peer=peer))
    return message, faults


def with_fingerprints(step: str, info: StepInfo, reply: Tree, state: Tree) -> StepInfo:
    """`info`, where every release id has a fingerprint of the entry of `state` that it names.

    So a new draw, after the site went back to an earlier state or in another run, counts as another release.

    Raises:
        FedweaveError: the state has no such entry.
    """
    check_permanent(step, info, reply, state)
    permanent = {key: spec for key, spec in info.sends.items() if any(map(release_of, spec.mechanisms))}

    def marked(mechanism: Mechanism) -> Mechanism:
        name = release_of(mechanism)
        if not name or name not in state:
            return mechanism
        mark = hashlib.blake2b(encode({name: state[name]}), digest_size=16).hexdigest()
        return dataclasses.replace(mechanism, release=f"{name}:{mark}")  # type: ignore[arg-type]

    replacements = {
        key: dataclasses.replace(spec, mechanism=tuple(map(marked, spec.mechanisms))) for key, spec in permanent.items()
    }
    return dataclasses.replace(info, sends={**info.sends, **replacements})


def is_noised(info: StepInfo) -> bool:
    """Whether each reply of a step has noise of its own, and so costs ε."""
    mechanisms = (one for spec in info.sends.values() for one in spec.mechanisms)
    fresh = any(isinstance(one, Gaussian | LDP) and not release_of(one) for one in mechanisms)
    return fresh and not info.replaces_data


def noise_key(path: Path) -> Tensor:
    """A secret key for privacy noise (`ops.hashing`), from the site's own secret and fresh entropy. Others cannot
    compute it, not even from noise that left the site, and every call has another key.

    Raises:
        ConfigError: there is no secret, or others can read it.
    """
    key = read_secret(path)
    return hashing.from_bytes(hashlib.blake2b(os.urandom(32), key=key, digest_size=64).digest())


def lasting(folder: Path, version: LabelVersion | None) -> Lasting | None:
    """The secrets for noise on labels, which are the same in every run of the site in `folder`. None if the labels have
    no `version`.

    Raises:
        ConfigError: see `data_marks.site_key`.
    """
    if version is None:
        return None
    secret = site_key(folder)
    key, of_version = (
        hashing.from_bytes(hashlib.blake2b(purpose, key=secret, digest_size=64).digest())
        for purpose in (b"draws of labels", b"labels" + version.fingerprint)
    )
    return Lasting(key, of_version, torch.from_numpy(version.marks.copy()))


def answered(
    job: Participation, request: Blind | Settle, message: Tree, log: logging.Logger
) -> tuple[str, Tree, Declaration]:
    """The name of the call, the site's reply, and the reply's declaration.

    Raises:
        CallRefused: the request is out of turn, or `message` is not valid. PolicyViolation: the policy does not allow
            it.
    """
    check_begun(job, request)
    if isinstance(request, Blind):
        return BLIND, _blinded(job, request.turn, message), BLINDING.sends
    if request.kind == "align":
        align = _aligned if job.entities is None else _numbered
        return ALIGN, align(job, message, log), JOINING
    if request.kind == "pad":
        job.pad(message)
    elif request.kind == "match":
        _exchange(job).match(message)
    else:
        _take(job, message)
    return f"({request.kind})", {}, {}


def added(job: Participation, request: Add, message: Tree) -> Tree:
    """The site's term of an exchange over edges or of the table of entities, not masked yet.

    Raises:
        CallRefused, PolicyViolation: see `answered`.
    """
    check_begun(job, request)
    check_told(job.rules, BEFORE[request.step], len(job.asked.sites))
    if request.step == UNITE:
        if job.entities is None:
            raise CallRefused("entities: sites number them once, right after they have joined")
        return job.entities.table(message)
    return _exchange(job).add(message, len(job.asked.sites))


def _numbered(job: Participation, message: Tree, log: logging.Logger) -> Tree:
    """Take the common numbers of the entities (`entities.Entities`) into the site's data."""
    holdings = job.holdings
    if job.entities is None or not isinstance(holdings, Holdings):
        raise CallRefused("entities: sites number them once, right after they have joined")
    data = job.entities.numbered(message, job.run_folder / NUMBERED, log)
    job.entities = None
    graph = graph_of(data, data.features, job.dtype)
    job.begin(replace(holdings, graph=graph, data=data), data.features)
    reply = kept_back(site_lengths(job.needed), withheld(job.rules))
    return describe(job.holdings if isinstance(job.holdings, Holdings) else holdings, withheld(job.rules)) | reply


def check_begun(job: Participation, request: Add | Blind | Settle) -> None:
    """Raise CallRefused unless the request is for the job that the site has joined."""
    if (request.round, request.predict) != job.begun:
        raise CallRefused(f"{described(request)} is allowed once, right after a site has joined, and only for that job")


def _exchange(job: Participation) -> Exchange:
    """The site's part in the present exchange. Its minimum number of nodes in a sum is the larger one of the experiment
    and the policy, which the owner may have tightened since the exchange began."""
    if job.exchange is None:
        raise CallRefused("exchange: sites exchange features over edges once, right after they have joined")
    job.exchange.least = max(job.config.min_external, least_told(job.rules))
    return job.exchange


def _take(job: Participation, message: Tree) -> None:
    """Take the columns that other sites sent for the site's nodes into its data."""
    holdings, exchange = job.holdings, _exchange(job)
    if not isinstance(holdings, Holdings):
        raise CallRefused("exchange: a party of a vertical federation has no edges to others' nodes")
    raw = replace(holdings.data, x=exchange.take(message, len(job.asked.sites)))
    note_form(job.asked, job.folder, form_at(exchange.site, raw))
    dataset = with_scaled_nodes(raw, exchange.scaling)
    job.exchange = None
    job.take_up(replace(holdings, graph=graph_of(dataset, dataset.features, job.dtype), data=dataset, whole=None))


def _blinded(job: Participation, turn: int, message: Tree) -> Tree:
    """Blind another site's ids (`privacy.intersection`). The journal notes the lengths of all lists, and the policy may
    bound them."""
    owner = job.holdings if isinstance(job.holdings, PartyData) else job.exchange
    meeting = None if owner is None else owner.meeting
    if meeting is None or "ids" in job.rules.deny:
        raise CallRefused("alignment: only a site that sends ids blinds others'")
    if turn == 1:
        meeting.hear(read_openings(message.get("openings")))
        check_lists(job.rules, {site: count for site, count in meeting.counts.items() if site != meeting.name})
        with job.accounts.open(job.ledger):
            job.ledger.note("lists", counts=meeting.counts)
    points = message.get("ids")
    if not isinstance(points, Tensor) or points.dtype != torch.uint8:
        raise CallRefused("alignment: the server sends no list of ids to blind")
    blinded, signature = meeting.blind(turn, points.numpy(), data(message.get("signature")))
    return {"ids": torch.from_numpy(blinded), "signature": tensor(signature)}


def _aligned(job: Participation, message: Tree, log: logging.Logger) -> Tree:
    """Restrict a party's data to the nodes that all parties have."""
    party = job.holdings
    if not isinstance(party, PartyData):
        raise CallRefused("a party of a vertical federation aligns its nodes once, right after it has joined")
    if party.meeting is not None:
        check_aligned(job.rules, len(message["common"]))
    holdings = party.align(message, job.dtype)
    if party.data.ids:
        with job.accounts.open(job.ledger):
            job.ledger.note("aligned", common=holdings.data.nodes, own=party.data.nodes)
        more = fields("aligned", run=job.run, common=holdings.data.nodes)
        log.info("%s", party.overlap(holdings.data), extra=more)
    job.check_marks(party.marks(holdings.data), partial(party.left_out, holdings.data, job.folder, job.accounts))
    job.begin(holdings, message["width"])
    return describe(holdings, withheld(job.rules))


_WAYS = {"step": "map", "send": "send", "replace": "replace_data"}  # {kind of a request: the way of its step}
_OWNER = f"its owner finds the reason in {LOG} in the site's folder"


class Member:
    """Answers the server's requests, one at a time, and accepts parcels of other sites at any time.

    folder: the site's folder. post: sends the site's parcels to other sites. submitter: the name in the certificate
    that submitted the job, by the server. The owner's log has every request and every error. The server gets the reason
    of an error only if it reveals nothing about the data.
    """

    def __init__(self, folder: Path, name: str, post: Post, submitter: str = "") -> None:
        self._folder, self._name, self._submitter = folder, name, submitter
        self._post, self._lock = post, threading.Lock()
        self._job: Participation | None = None
        self._joined, self._stopped = False, ""
        self._states: StateFile | None = None
        self._flags = read_flags({})
        self._calls = CallLog(name, submitter)
        self._log = self._calls.log

    def answer(self, request: str, blob: bytes) -> Answer:
        """Do what `request` asks for (`requests`)."""
        with self._lock:
            began = time.perf_counter()
            if self._stopped:
                return Answer(refusal=self._stopped, final=True)
            task: Request | None = None
            try:
                task = read_request(request)
                reply, note = self._reply(task, blob)
                self._calls.done(self._run_of(task), task)
                return Answer(reply, time.perf_counter() - began, note=note, heads=self._heads(task))
            except PolicyViolation as error:
                self._stopped = f"{FORBIDDEN}: {error}"
                return self._refused(task, error)
            except CallRefused as error:
                self._stopped = f"the site refuses it: {error}"
                return self._refused(task, error)
            except Exception as error:  # a fault here stops only this site, and its text may contain data
                reason = error.__cause__ if isinstance(error, StepFailed) else error
                known = isinstance(reason, FedweaveError) and not isinstance(reason, DiskFull)
                self._stopped = f"{MISTAKEN if known else 'it failed'} ({type(reason).__name__}); {_OWNER}"
                return self._refused(task, error)

    def end(self) -> None:
        """Log that the job is over."""
        self._calls.ended(self._run_of(None), self._stopped)
        if self._states is not None and not self._stopped:
            whole = self._states.now.round >= self._states.now.rounds
            self._states.end("done" if whole else "stopped")

    def _run_of(self, request: Request | None) -> str:
        return request.run if isinstance(request, Join) else self._job.run if self._job else ""

    def _heads(self, request: Request) -> str:
        job = self._job
        return told_heads(self._folder, self._name, job.accounts.chain.head, request) if job else ""

    def accept(self, sender: str, label: str, blob: bytes) -> str:
        """Keep a parcel of the site `sender` until a step needs it; returns "", or why the site rejects it.

        It does not use the lock of `answer`: two sites that send to each other would wait for each other.
        """
        try:
            call, job = json.loads(label), self._job
            if job is None or job.run != call["run"]:
                raise FedweaveError("the site takes no part in that run")
            find_step(job.algorithm, call["step"])
            job.inbox.put(sender, call["step"], (int(call["round"]), int(call["again"])), blob)
        except Exception as error:  # a bad parcel must not stop this site
            self._log.error("refused what %s sent: %s", sender, error, extra=fields("parcel-refused", peer=sender))
            return "it was refused"
        return ""

    def _reply(self, request: Request, blob: bytes) -> tuple[bytes, str]:
        if isinstance(request, Join):
            return self._join(request, blob), ""
        if self._job is None:
            raise CallRefused(f"{described(request)} was asked for before the site had joined the job")
        if request.pin != self._job.pin:
            raise CallRefused(
                f"{described(request)} carries another configuration than the one that the site has joined"
                f"{self._job.other_release}"
            )
        self._job.renew()
        message = decode(blob, self._job.limit)
        if isinstance(request, Agree | Open):
            return self._prepare(self._job, request, message), ""
        if isinstance(request, Add):
            return self._add(self._job, request, message)
        if not isinstance(request, StepRequest):
            return self._tell(request.round, *answered(self._job, request, message, self._log)), ""
        return self._step(request, message)

    def _refused(self, request: Request | None, error: Exception) -> Answer:
        """Log for the owner why the site takes no further part in the job."""
        self._calls.refused(self._folder, self._run_of(request), request, error)
        if self._states is not None:
            self._states.end("failed")
        return Answer(refusal=self._stopped, final=True)

    def _join(self, request: Join, blob: bytes) -> bytes:
        if self._joined:
            raise CallRefused("a job joins once")
        self._joined, self._states = True, StateFile(self._folder, request.run)
        set_aside(self._folder, request.run)
        policy = PolicyFile(self._folder)  # before reading it: a change while the data is loaded is noticed later
        data, rules = read_checked(self._folder / SITE_FILE)
        check_versions(request, {}, rules.releases)  # another release's document could mean something else
        device = chosen(read_about(self._folder / SITE_FILE).device, where="site.device")
        config = admitted(rules, request.document)
        self._states.write(state="running", round=max(request.round, 0), rounds=config.general.rounds)
        released = check_versions(request, request.document, rules.releases)  # the policy allows reading these files
        if config.engine.name != "flare":
            raise CallRefused("the server names another engine than `flare`")
        check_sites(rules, self._name, request.sites)
        if config.engine.values["threads"]:
            torch.set_num_threads(config.engine.values["threads"])
        vertical = capabilities(config.algorithm.kind).vertical
        check_exchange(rules, data, config, len(request.sites))
        check_task(data, config)
        check_forget(data, config)
        noted = None if vertical else noted_form(request, self._folder)
        holdings = (
            read_own(data, self._folder, request.run, request.sites, self._name, rules.members)
            if vertical
            else hold(data, self._folder, config, noted)
        )
        who = data.random_id or self._name, self._name, self._submitter
        job = self._job = Participation(self._folder, request, config, holdings, rules, policy, released, device, *who)
        self._warn(job)
        self._flags = read_flags(decode(blob, job.limit)) if request.predict and blob else None
        job.go_back()
        job.check_version(request.data[self._name].version if self._name in request.data else 0)
        if isinstance(holdings, Holdings):
            if (out := holdings.forgotten) is not None:
                more = fields("left-out", run=request.run, examples=len(out.ids))
                self._log.info(
                    "%d examples are left out (data.forget); the data lacks %d", len(out.ids), out.absent, extra=more
                )
            known = marks(holdings.data, data.normalize)
            known |= {"features": "learned"} if config.learned else {}
            job.check_marks(known, partial(left_out_of, data, self._folder, holdings.forgotten, job.accounts))
            note_form(request, self._folder, holdings.form)
            if config.learned:
                return self._join_learned(job, request, holdings)
            if holdings.whole is not None:
                scaling = nodes_scaling(data, noted)
                job.exchange = entered(self._folder, request, self._name, rules, holdings.whole, data, scaling)
            job.begin(holdings, holdings.features, data.normalize)
            reply = describe(holdings, withheld(rules)) | kept_back(site_lengths(job.needed), withheld(rules))
            if request.predict:  # the number of new records does not leave the site
                reply = {key: reply[key] for key in FORM if key in reply}
            if job.exchange is None:
                return self._tell(request.round, JOIN, reply, JOINING)
            reply |= kept_back(job.exchange.greeting(), withheld(rules))
            return self._tell(request.round, JOIN, reply, {**JOINING, **CLAIMING})
        return self._tell(request.round, JOIN, kept_back(holdings.greeting(), withheld(rules)), MEETING)

    def _join_learned(self, job: Participation, request: Join, holdings: Holdings) -> bytes:
        """Report the number of entities, which the sites then number together; or go on with the numbers from
        before."""
        entities = Entities.of(holdings.data, self._folder)
        if request.round < 0 and not request.predict:
            check_told(job.rules, UNITING, len(request.sites))
            job.join_crowd()
            job.entities = entities
            return self._tell(request.round, JOIN, entities.greeting(), COUNTING)
        job.entities, listed = None, entities.as_noted(job.run_folder / NUMBERED)
        graph = graph_of(listed, listed.features, job.dtype)
        job.begin(replace(holdings, graph=graph, data=listed), listed.features)
        reply = describe(job.holdings if isinstance(job.holdings, Holdings) else holdings, withheld(job.rules))
        reply |= kept_back(site_lengths(job.needed), withheld(job.rules))
        if request.predict:
            reply = {key: reply[key] for key in FORM if key in reply}
        return self._tell(request.round, JOIN, reply, JOINING)

    def _warn(self, job: Participation) -> None:
        """Log which journals have damaged lines."""
        for name, lines in job.accounts.damaged.items():
            more = fields("ledger-damaged", run=job.run, ledger=name, lines=lines)
            self._log.warning("ledgers/%s: damaged lines: %d; the accounts do not count them", name, lines, extra=more)

    def _prepare(self, job: Participation, request: Agree | Open, message: Tree) -> bytes:
        """Answer a request for keys, shares or signatures of a secure aggregation; no rule of the policy applies to
        them."""
        if request.round and job.ledger.purpose == SETUP:  # before the first step of training
            job.ledger.purpose = TRAINING
        info, reply = INFO[request.kind], job.prepare_sum(request, message)
        return self._send(request.round, f"({request.kind})", reply, info, job.rules.freed(info.sends))

    def _add(self, job: Participation, request: Add, message: Tree) -> tuple[bytes, str]:
        """Send the site's masked term of an exchange over edges (`alignment.Exchange`), or of the table of entities."""
        if request.step not in BEFORE:
            raise CallRefused(f"{request.step} is no sum before the first step")
        info, reply, heard = BEFORE[request.step], added(job, request, message), fingerprint(message)
        reply = job.masking.masked(request, info, heard, reply)
        return self._send(request.round, f"({request.step})", reply, info), json.dumps({HEARD: heard})

    def _tell(self, round: int, name: str, reply: Tree, sends: Declaration) -> bytes:
        """Send a report about the site's data, from which the caller has removed what the policy denies."""
        if self._job is None:
            raise CallRefused("nothing may leave before the site has joined a job")
        self._job.ledger.purpose = PREDICTION if self._job.asked.predict else SETUP
        denied_keys = withheld(self._job.rules)
        free = self._job.rules.freed((*FORM, ENTITIES, "signed", "signature", *denied_keys))
        return self._send(round, name, reply, StepInfo.of(as_kept_back(sends, denied_keys), ragged=True), free)

    def _step(self, request: StepRequest, payload: Tree) -> tuple[bytes, str]:
        """Run a step; returns the reply to the server and the note with it."""
        job = self._job
        if job is None or not job.ready or not isinstance(job.holdings, Holdings):
            raise CallRefused(f"{described(request)} was asked for before the site had joined the job")
        step = find_step(job.algorithm, request.step)
        info = step_info(step)
        check_way(request.step, info, _WAYS[request.kind])
        job.order.admit(request.step, request.round, request.again)
        if self._states is not None:
            self._states.reach(request.round)
        job.ledger.purpose = job.order.purpose
        message = job.last.whole(payload)
        job.enter(request, message)
        job.keys.begin(request.round)
        call = job.keys.step(request.step, request.again)
        key = of_client(call, "client", torch.tensor(random.word(job.random_id), device="cpu"))
        state = job.memory.begun(info)
        client = client_on(job, state, key, self._folder / SECRET)
        alone = replace(client, state=to(job.memory.begun(info), job.device)) if job.ends_with(step) else None
        received, faults = read_received(job, request, self._name, self._log)
        scoring = job.scoring_of(step)
        draws = scoring.show(client, job.classes)
        # The server gets the reason of a CallRefused, and that a step wrote into the data reveals nothing about it.
        run = partial(carry_out, step, request.step, info, whose="this site", known=FedweaveError, written=CallRefused)
        name = job.noised.name(request, message | received, state, job.data_mark) if is_noised(info) else ""
        before = job.noised.read(name) if name else None
        if before is None:
            reply, graph = run(client, to(message | received, job.device))
        else:
            reply, client.state, graph = before.reply, before.state, None
        reply, client.state, draws = (to(tree, CPU) for tree in (reply, client.state, draws))
        if name and before is None:
            job.noised.keep(name, reply, client.state)
        if job.asked.predict and reply and not capabilities(job.config.algorithm.kind).predicts:
            raise CallRefused(f"{described(request)}: where a finished run's models predict, nothing is sent")
        reply, info, noted = scoring.left(reply, info, job.classes)
        info = with_fingerprints(request.step, info, reply, client.state | draws)
        again = before is not None and before.left and request.kind != "send"  # peers' parcels count each time
        info = sent_again(info) if again else info
        heard = job.heard(request, info, message)
        noted |= {REPEATED: True} if again else {}
        noted |= faults | (job.replace(graph, request, info.columns) if info.replaces_data else {})
        if info.sums:
            noted[HEARD] = heard
            reply = job.masking.masked(request, info, heard, reply)
        if request.kind == "send":
            sent, note = self._deliver(job, request, reply, info)
        else:
            sent, note = self._send(request.round, request.step, reply, info, again=again), ""
        if name:
            job.noised.mark_left(name)
        if leave(job, self._name, client.state, self._log, self._flags):
            noted[WRITTEN] = True
        if alone is not None:  # the same step once more, for the site alone: nothing of it is sent
            run_again = partial(run, alone, to(message | received | {KEEP: 1}, job.device))
            keep_model(job, self._name, run_again, alone, self._log)
        job.memory.keep(client.state, heard, info)
        return sent, note or json.dumps(noted)

    def _deliver(self, job: Participation, request: StepRequest, reply: Tree, info: StepInfo) -> tuple[bytes, str]:
        """Send the reply to the peers that the server named. The server gets an empty reply with a receipt."""
        name, peers = request.step, request.to[self._name]
        if not set(peers) <= set(job.asked.sites) - {self._name}:
            raise CallRefused(f"{described(request)} names peers that are no other sites of the run")
        blob = self._send(request.round, name, reply, info, to=peers)
        receipt = Receipt.of(job.ledger.last, {})
        job.inbox.note_own(name, (request.round, request.again), decode(blob, job.limit))
        if peers:
            label = json.dumps({"run": job.run, "step": name, "round": request.round, "again": request.again})
            receipt = receipt._replace(lost=self._post(peers, label, blob, job.patience))
        return self._send(request.round, name, {}, info), receipt.note()

    def _send(
        self,
        round: int,
        name: str,
        reply: Tree,
        info: StepInfo,
        rules: Rules | None = None,
        to: Sequence[str] | None = None,
        again: bool = False,
    ) -> bytes:
        """Check a reply to the server or to peers, enter it into the site's ledger, and return its bytes.

        info: the declaration of the site's own algorithm; no part of it comes from the request. again: whether the
        reply has left before, with the same noise.
        """
        check_declared(name, info, (path for path, _ in leaves(reply)))
        job, blob = self._job, encode(reply)
        if job is None:
            raise CallRefused("nothing may leave before the site has joined a job")
        copies, direction = (1, "up") if to is None else (len(to), "peer")
        with job.accounts.open(job.ledger):
            check_calls(job.rules, job.accounts.spent, name, models_scored(info, reply))
            if TRIED in reply:
                job.order.count_tried(models_tried(reply))
            if name in job.target:
                check_target(job.rules, job.target, job.accounts.repeated(job.counted), int(not again))
            check_reply(rules or job.rules, job.accounts.spent, reply, copies * len(blob), info)
            job.ledger.record(round, 0, name, (self._name,) * copies, direction, reply, 0.0, info, to or ())
            job.accounts.count(job.ledger)
        self._calls.left(reply, copies * len(blob), to or ())
        return blob
