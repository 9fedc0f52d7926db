"""A site's side of a job: its data, state, secret and policy. This module does not depend on how calls travel."""

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from fedweave.algorithms.parts.part import KEEP
from fedweave.algorithms.trials import TRIED
from fedweave.core import random
from fedweave.core.algorithm import capabilities
from fedweave.core.federation import Declaration, StepInfo, step_info
from fedweave.core.tree import Tree, decode, encode, leaves, to
from fedweave.core.types import EVALUATION, PREDICTION, SETUP, TRAINING
from fedweave.engines.calls import check_declared, check_way, of_client
from fedweave.engines.devices import CPU, choose_device
from fedweave.engines.steps import carry_out, find_step
from fedweave.engines.sum_messages import INFO, fingerprint
from fedweave.errors import CallRefused, DiskFull, FedweaveError, StepFailed
from fedweave.experiment.graphs import graph_of
from fedweave.partition.external import columns_to_send
from fedweave.sites.flare.accounts import CallLog
from fedweave.sites.flare.admission import admit, check_exchange, check_forget, check_sites, check_task
from fedweave.sites.flare.alignment import MEETING, PartyData, read_party_data
from fedweave.sites.flare.baselines import INFO as INFO_ALONE
from fedweave.sites.flare.baselines import Baselines
from fedweave.sites.flare.chain import report_heads
from fedweave.sites.flare.entities import COUNTING, ENTITIES, NUMBERED, Entities
from fedweave.sites.flare.entities import INFO as UNITING
from fedweave.sites.flare.exchange import CLAIMING, Exchange
from fedweave.sites.flare.federation import JOIN
from fedweave.sites.flare.folder import LOG, SITE_FILE, fields
from fedweave.sites.flare.foresight import check_fields, check_target
from fedweave.sites.flare.holdings import Holdings, exclusion_of, hold, marks
from fedweave.sites.flare.joining import (
    FORM,
    JOINING,
    describe,
    describe_withheld,
    private_fields,
    site_lengths,
    withhold,
)
from fedweave.sites.flare.machine import read_about
from fedweave.sites.flare.participation import EARLY_SUMS, Participation
from fedweave.sites.flare.peers import REPEATED, SUM_OF, UNFINISHED, WITHHELD, WRITTEN, Post, Receipt, resend_info
from fedweave.sites.flare.policy import SCORES, PolicyViolation, check_calls, check_reply, min_exchange_nodes
from fedweave.sites.flare.policy_changes import PolicyFile
from fedweave.sites.flare.policy_names import read_checked
from fedweave.sites.flare.predicted import (
    form_of_run,
    keep_model,
    note_form,
    read_flags,
    rename_predictions,
    write_predictions,
)
from fedweave.sites.flare.preparation import prepare, sum_term
from fedweave.sites.flare.requests import (
    FORBIDDEN,
    MISTAKEN,
    Add,
    Agree,
    Answer,
    Join,
    Measure,
    Open,
    Request,
    StepRequest,
    check_versions,
    describe_request,
    read_request,
)
from fedweave.sites.flare.scores import models_scored, models_tried
from fedweave.sites.flare.site_data import nodes_scaling
from fedweave.sites.flare.sitefile import SECRET, Rules, SiteData, read_ids_key
from fedweave.sites.flare.states import StateFile
from fedweave.sites.flare.steps import client_on, is_noised, read_received, with_fingerprints
from fedweave.sites.protocols.identity import read_identity
from fedweave.sites.protocols.intersection import IntersectionParty

_WAYS = {"step": "map", "send": "send", "replace": "replace_data"}  # {kind of a request: the way of its step}


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
        self._measured = set[str]()
        self._states: StateFile | None = None
        self._flags = read_flags({})
        self._baselines: Baselines | None = None
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
                self._calls.log_answer(self._run_of(task), task)
                job, heads = self._job, ""
                if job is not None:
                    heads = report_heads(self._folder, self._name, job.accounts.chain.head, task)
                return Answer(reply, time.perf_counter() - began, note=note, heads=heads)
            except PolicyViolation as error:
                self._stopped = f"{FORBIDDEN}: {error}"
                return self._refuse(task, error)
            except CallRefused as error:
                self._stopped = f"the site refuses it: {error}"
                return self._refuse(task, error)
            except Exception as error:  # a fault here stops only this site, and its text may contain data
                reason = error.__cause__ if isinstance(error, StepFailed) else error
                known = isinstance(reason, FedweaveError) and not isinstance(reason, DiskFull)
                what = MISTAKEN if known else "it failed"
                self._stopped = (
                    f"{what} ({type(reason).__name__}); its owner finds the reason in {LOG} in the site's folder"
                )
                return self._refuse(task, error)

    def end(self) -> None:
        """Log that the job is over."""
        self._calls.log_end(self._run_of(None), self._stopped)
        if self._states is not None and not self._stopped:
            is_complete = self._states.now.round >= self._states.now.rounds
            self._states.end("done" if is_complete else "stopped")

    def _run_of(self, request: Request | None) -> str:
        if isinstance(request, Join):
            return request.run
        return "" if self._job is None else self._job.run

    def accept(self, sender: str, label: str, blob: bytes) -> str:
        """Keep a parcel of the site `sender` until a step needs it; returns "", or why the site rejects it.

        It does not use the lock of `answer`: two sites that send to each other would wait for each other.
        """
        try:
            call, job = json.loads(label), self._job
            if job is None or job.run != call["run"]:
                raise FedweaveError("the site takes no part in that run")
            find_step(job.algorithm, call["step"])
            job.inbox.accept(sender, call["step"], (int(call["round"]), int(call["again"])), blob)
        except Exception as error:  # a bad parcel must not stop this site
            self._log.error("refused what %s sent: %s", sender, error, extra=fields("parcel-refused", peer=sender))
            return "it was refused"
        return ""

    def _reply(self, request: Request, blob: bytes) -> tuple[bytes, str]:
        if isinstance(request, Join):
            return self._join(request, blob)
        if self._job is None:
            raise CallRefused(f"{describe_request(request)} was asked for before the site had joined the job")
        if request.pin != self._job.pin:
            raise CallRefused(
                f"{describe_request(request)} carries another configuration than the one that the site has joined"
                f"{self._job.other_release}"
            )
        self._job.renew()
        message = decode(blob, self._job.limit)
        if isinstance(request, Agree | Open):
            return self._prepare(self._job, request, message), ""
        if isinstance(request, Add):
            return self._add(self._job, request, message)
        if isinstance(request, Measure):
            return self._measure(self._job, request)
        if not isinstance(request, StepRequest):
            return self._report(request.round, *prepare(self._job, request, message, self._log))
        return self._step(request, message)

    def _refuse(self, request: Request | None, error: Exception) -> Answer:
        """Log for the owner why the site takes no further part in the job."""
        self._calls.log_refusal(self._folder, self._run_of(request), request, error)
        if self._states is not None:
            self._states.end("failed")
        return Answer(refusal=self._stopped, final=True)

    def _join(self, request: Join, blob: bytes) -> tuple[bytes, str]:
        if self._joined:
            raise CallRefused("a job joins once")
        self._joined, self._states = True, StateFile(self._folder, request.run)
        rename_predictions(self._folder, request.run)
        policy = PolicyFile(self._folder)  # before reading it: a change while the data is loaded is noticed later
        data, rules = read_checked(self._folder / SITE_FILE)
        check_versions(request, {}, rules.releases)  # another release's document could mean something else
        device = choose_device(read_about(self._folder / SITE_FILE).device, where="site.device")
        config = admit(rules, request.document)
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
        holdings: Holdings | PartyData
        if vertical:
            holdings = read_party_data(data, self._folder, request.run, request.sites, self._name, rules.members)
        else:
            holdings = hold(data, self._folder, config, form_of_run(request, self._folder))
        who = data.random_id or self._name, self._name, self._submitter
        job = self._job = Participation(self._folder, request, config, holdings, rules, policy, released, device, *who)
        for ledger, lines in job.accounts.damaged.items():
            more = fields("ledger-damaged", run=job.run, ledger=ledger, lines=lines)
            text = "ledgers/%s: damaged lines: %d; the accounts do not count them"
            self._log.warning(text, ledger, lines, extra=more)
        self._flags = read_flags(decode(blob, job.limit)) if request.predict and blob else None
        job.go_back()
        self._baselines = Baselines(job, self._log)
        if isinstance(holdings, PartyData):  # it finds the common nodes before it describes its data
            return self._report(request.round, JOIN, withhold(holdings.greeting(), private_fields(rules)), MEETING)
        return self._join_with_data(job, request, data, holdings)

    def _join_with_data(
        self, job: Participation, request: Join, site: SiteData, holdings: Holdings
    ) -> tuple[bytes, str]:
        """Check the data against earlier runs, make the algorithm, and report the data's form to the server."""
        # 1. Earlier runs on this data, and what it leaves out.
        forgotten, learned = holdings.forgotten, job.experiment.learned
        if forgotten is not None:
            count, more = len(forgotten.ids), fields("left-out", run=request.run, examples=len(forgotten.ids))
            text = "%d examples are left out (data.forget); the data lacks %d"
            self._log.info(text, count, forgotten.absent, extra=more)
        known = marks(holdings.data, site.normalize) | ({"features": "learned"} if learned else {})
        job.check_marks(known, partial(exclusion_of, site, self._folder, forgotten, job.accounts))
        note_form(request, self._folder, holdings.form)
        # 2. Entities get their numbers from all sites together, once; a run that continues has them in a file.
        if learned:
            entities = Entities.of(holdings.data, self._folder)
            if request.round < 0 and not request.predict:
                check_fields(job.rules, UNITING, len(request.sites))
                job.join_crowd()
                job.entities = entities
                return self._report(request.round, JOIN, entities.greeting(), COUNTING)
            data = entities.with_saved_numbers(job.run_folder / NUMBERED)
            holdings = replace(holdings, graph=graph_of(data, data.features, job.dtype), data=data)
            job.begin(holdings, data.features)
        else:
            if holdings.whole is not None:
                identity, key = read_identity(self._folder, job.rules.members), read_ids_key(self._folder)
                meeting = IntersectionParty(self._name, identity, request.run, tuple(request.sites), key)
                scaling = nodes_scaling(site, form_of_run(request, self._folder))
                min_nodes, columns = min_exchange_nodes(job.rules), columns_to_send(holdings.whole)
                job.exchange = Exchange(holdings.whole, columns, meeting, min_nodes, site, scaling)
            job.begin(holdings, holdings.data.features, site.normalize)
        # 3. The report, without the number of new records if a finished run's models predict them.
        denied = private_fields(job.rules)
        reply = describe(holdings, denied) | withhold(site_lengths(job.list_lengths), denied)
        if request.predict:
            reply = {key: reply[key] for key in FORM if key in reply}
        if job.exchange is None:
            return self._report(request.round, JOIN, reply, JOINING)
        reply |= withhold(job.exchange.greeting(), denied)
        return self._report(request.round, JOIN, reply, {**JOINING, **CLAIMING})

    def _prepare(self, job: Participation, request: Agree | Open, message: Tree) -> bytes:
        """Answer a request for keys, shares or signatures of a secure aggregation; no rule of the policy applies to
        them."""
        if request.round and job.ledger.purpose == SETUP:  # before the first step of training
            job.ledger.purpose = TRAINING
        info, reply = INFO[request.kind], job.prepare_sum(request, message)
        return self._send(request.round, f"({request.kind})", reply, info, job.rules.exempt(info.sends))

    def _add(self, job: Participation, request: Add, message: Tree) -> tuple[bytes, str]:
        """Send the site's masked term of an exchange over edges (`exchange.Exchange`), or of the table of entities."""
        if request.step not in EARLY_SUMS:
            raise CallRefused(f"{request.step} is not a sum before the first step")
        info, reply, digest = EARLY_SUMS[request.step], sum_term(job, request, message), fingerprint(message)
        reply = job.masking.mask_reply(request, info, digest, reply)
        return self._send(request.round, f"({request.step})", reply, info), json.dumps({SUM_OF: digest})

    def _measure(self, job: Participation, request: Measure) -> tuple[bytes, str]:
        """Measure what the site reaches alone, and send what the policy lets leave of it."""
        if self._baselines is None or not job.ready or job.request.predict or request.kind in self._measured:
            raise CallRefused(f"{request.kind} is measured once, in a job that trains")
        job.ledger.purpose = EVALUATION
        metrics, unfinished = self._baselines.measure(request)
        if unfinished:
            return encode({}), json.dumps({UNFINISHED: True})
        self._measured.add(request.kind)
        if not metrics:
            return encode({}), ""
        try:
            reply: Tree = {SCORES: {request.kind: metrics}}
            blob = self._send(request.round, f"({request.kind})", reply, INFO_ALONE[request.kind])
        except PolicyViolation as error:  # the run goes on without it
            more = fields("kept-back", run=job.run, what=request.kind)
            self._log.info("what the site reaches alone (%s) does not leave: %s", request.kind, error, extra=more)
            return encode({}), ""
        self._baselines.note_sent(request.kind, metrics)
        return blob, ""

    def _report(self, round: int, name: str, reply: Tree, sends: Declaration) -> tuple[bytes, str]:
        """Send a report about the site's data, from which the caller has removed what the policy denies, and a note
        that names these fields."""
        if self._job is None:
            raise CallRefused("nothing may leave before the site has joined a job")
        self._job.ledger.purpose = PREDICTION if self._job.request.predict else SETUP
        denied = private_fields(self._job.rules)
        info = describe_withheld(StepInfo.of(sends, ragged=True), denied)
        free = self._job.rules.exempt((*FORM, ENTITIES, "signed", "signature", *denied))
        withheld = [key for key in denied if key in reply]
        note = json.dumps({WITHHELD: withheld}) if withheld else ""
        return self._send(round, name, reply, info, free), note

    def _step(self, request: StepRequest, payload: Tree) -> tuple[bytes, str]:
        """Run a step; returns the reply to the server and the note with it."""
        # 1. May the site answer this request now?
        job = self._job
        if job is None or not job.ready or not isinstance(job.holdings, Holdings):
            raise CallRefused(f"{describe_request(request)} was asked for before the site had joined the job")
        step = find_step(job.algorithm, request.step)
        info = step_info(step)
        check_way(request.step, info, _WAYS[request.kind])
        job.order.admit(request.step, request.round, request.again)
        if self._states is not None:
            self._states.reach(request.round)
        job.ledger.purpose = job.order.purpose
        message = job.last.whole(payload)
        job.enter(request, message)
        # 2. What the step gets: the client with its state and key, the messages of peers, and labels to score on.
        job.keys.begin(request.round)
        call = job.keys.step(request.step, request.again)
        key = of_client(call, "client", torch.tensor(random.word(job.random_id), device="cpu"))
        state = job.memory.state_for(info)
        client = client_on(job, state, key, self._folder / SECRET)
        local_client = None  # scores the run's last model for the owner
        if job.ends_with(step):
            local_client = replace(client, state=to(job.memory.state_for(info), job.device))
        received, faults = read_received(job, request, self._name, self._log)
        scoring = job.scoring_of(step)
        draws = scoring.show(client, job.classes)
        # 3. Run it. A reply with noise that was made before is repeated: fresh noise would cost ε again.
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
        if job.request.predict and reply and not capabilities(job.config.algorithm.kind).predicts:
            raise CallRefused(f"{describe_request(request)}: where a finished run's models predict, nothing is sent")
        plain = reply if scoring.epsilon is None and not info.sums else None
        # 4. The form in which the reply may leave, and what is noted with it.
        reply, info, facts = scoring.prepare(reply, info, job.classes)
        info = with_fingerprints(request.step, info, reply, client.state | draws)
        resent = before is not None and before.sent and request.kind != "send"  # peers' parcels count each time
        if resent:
            info = resend_info(info)
            facts |= {REPEATED: True}
        digest = job.message_digest(request, info, message)
        facts |= faults
        if info.replaces_data:
            facts |= job.replace(graph, request, info.columns)
        if info.sums:
            facts[SUM_OF] = digest
            reply = job.masking.mask_reply(request, info, digest, reply)
        # 5. Send it, and keep the state.
        note = ""
        if request.kind == "send":
            sent, note = self._deliver(job, request, reply, info)
        else:
            sent = self._send(request.round, request.step, reply, info, resent=resent)
        if name:
            job.noised.mark_sent(name)
        if write_predictions(job, self._name, client.state, self._log, self._flags):
            facts[WRITTEN] = True
        if local_client is not None:  # the same step once more, for the site alone: nothing of it is sent
            score_alone = partial(run, local_client, to(message | received | {KEEP: 1}, job.device))
            w = keep_model(job, self._name, score_alone, local_client, self._log)
            if self._baselines is not None:
                self._baselines.note_joint(plain, w)
        job.memory.keep(client.state, digest, info)
        return sent, note or json.dumps(facts)

    def _deliver(self, job: Participation, request: StepRequest, reply: Tree, info: StepInfo) -> tuple[bytes, str]:
        """Send the reply to the peers that the server named. The server gets an empty reply with a receipt."""
        name, peers = request.step, request.to[self._name]
        if not set(peers) <= set(job.request.sites) - {self._name}:
            raise CallRefused(f"{describe_request(request)} names peers that are no other sites of the run")
        blob = self._send(request.round, name, reply, info, to=peers)
        receipt = Receipt.of(job.ledger.last, {})
        job.inbox.note_reply(name, (request.round, request.again), decode(blob, job.limit))
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
        resent: bool = False,
    ) -> bytes:
        """Check a reply to the server or to peers, enter it into the site's ledger, and return its bytes.

        info: the declaration of the site's own algorithm; no part of it comes from the request. resent: whether the
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
                check_target(job.rules, job.target, job.accounts.replies_under(job.counted), int(not resent))
            check_reply(rules or job.rules, job.accounts.spent, reply, copies * len(blob), info)
            job.ledger.record(round, 0, name, (self._name,) * copies, direction, reply, 0.0, info, to or ())
            job.accounts.count(job.ledger)
        self._calls.note_sent(reply, copies * len(blob), to or ())
        return blob
