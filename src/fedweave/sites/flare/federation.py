"""A `Federation` whose clients are sites at the other end of a link."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from fedweave.core.federation import Call, Declaration, Sent, StepInfo
from fedweave.core.graph import Graph
from fedweave.core.ledger import Ledger, line
from fedweave.core.ledger_columns import Entry
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, leaves
from fedweave.core.types import EVALUATION, PREDICTION, SETUP, Record
from fedweave.datasets.external import EXCHANGE
from fedweave.engines.calls import Keys, check_quorum, sources
from fedweave.engines.engine import ServerEngine
from fedweave.engines.messages import Messages
from fedweave.engines.resend import LastSent
from fedweave.errors import FedweaveError
from fedweave.experiment.config import Document
from fedweave.metrics.selection import METRICS, Flagging, is_possible
from fedweave.partition.external import ADD, SUMS, TOTALS
from fedweave.privacy import union
from fedweave.sites.flare import baselines, entities, exchange
from fedweave.sites.flare.agreement import invalid_counts, unusual_forms
from fedweave.sites.flare.alignment import BLINDING, MEETING, meet
from fedweave.sites.flare.chain import Heads, behind, heads_in
from fedweave.sites.flare.entities import CELLS, COUNTING, UNITE, rows_of
from fedweave.sites.flare.exchange import CLAIMING, match_nodes
from fedweave.sites.flare.inspection import Inspector, SiteFaults
from fedweave.sites.flare.joining import (
    FLAGS,
    JOINING,
    describe_withheld,
    max_lengths,
    withheld_in,
    without,
)
from fedweave.sites.flare.peers import (
    REPEATED,
    UNFINISHED,
    WRITTEN,
    DataVersions,
    Receipt,
    Relayed,
    read_faults,
    read_note,
    resend_info,
)
from fedweave.sites.flare.policy import SCORES
from fedweave.sites.flare.requests import PROTOCOL, Link, encode_messages, pin, versions
from fedweave.sites.flare.scores import as_arrived, read_scoring
from fedweave.sites.flare.sums import NO_KEYS, Sums
from fedweave.sites.protocols.identity import Authority

_KINDS = {"map": "step", "send": "send", "replace_data": "replace"}  # {way of a call: kind of its request}
JOIN, BLIND, ALIGN, PAD = "(join)", "(blind)", "(align)", "(pad)"


class Flare(ServerEngine):
    """An engine whose every client is a site with its own process, graph and private state.

    clients: names of the sites, in the order of the project. graphs: {role: graph at the server}, with the global test
    graph as "test". quorum: the share of the called sites with which a call continues if the
    algorithm asks for more; None: all sites are needed, and no setting changes that. ledger: records all messages, also
    over restarts. root: see `sums.Sums`. resend: send leaves again that sites have from the message before. heads: the
    last entries of the sites' accounts, also from earlier runs.
    """

    def __init__(
        self,
        link: Link,
        sites: Sequence[str],
        *,
        ledger: Ledger,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        graphs: Mapping[str, Graph] | None = None,
        quorum: float | None = None,
        limit: int = 512_000_000,
        root: Authority | None = None,
        resend: bool = True,
        heads: Heads | None = None,
    ) -> None:
        self.clients, self.classes, self.dtype, self.ledger = tuple(sites), 0, dtype, ledger
        self.device = torch.device("cpu")
        self.held = dict(graphs or {})
        self.test = self.held.get("test")
        self._link, self._fixed, self._inspector = link, quorum is None, Inspector(limit)
        self._quorum = 1.0 if quorum is None else quorum
        self._keys, self._last = Keys(seed), LastSent(resend)
        self._out: dict[str, str] = {}
        self._saved = self._snapshot = -1
        # vertical: {party: (number of nodes on its list, number of these that all parties have)}
        self._pin, self.overlaps = "", dict[str, tuple[int, int]]()
        self._faults, self._wrote = SiteFaults(), set[str]()
        self._versions, self._heads = DataVersions(), heads or Heads()
        self._sums = Sums(self._ask, self.clients, root=root, ledger=ledger)
        self.begin(0)

    def begin(self, round: int) -> None:
        """Start a round. The last checkpoint is safe now, so that the sites may delete the states from before it."""
        super().begin(round)
        self._saved = self._snapshot
        self._versions.begin()

    def join(
        self,
        document: Document,
        run: str,
        after: int,
        vertical: bool = False,
        predict: bool = False,
        data: Tree | None = None,
        flags: Flagging | int | None = None,
    ) -> Replies:
        """Send every site the experiment and the round after which to continue. Each site replies with the form of its
        data (`JOINING`), and learns the common length of lists that all sites pad (`joining.max_lengths`).

        vertical: the sites are parties with features of their own. They first find their common nodes (`alignment`),
        and reply with the form of their data on these. predict: the job predicts with a finished run's models. data:
        the versions of the sites' data at that round (`snapshot_data`); a site with an older version cannot join.
        flags: how sites flag predictions, or the class alone, for which each site chooses a threshold; None leaves both
        to each site.

        Raises:
            ClientsMissing: fewer than the quorum could join. UserError: the parties do not fit together.
        """
        more: Record = {"round": after, "predict": predict}
        sites, present = list(self.clients), self._reachable(self.clients)
        self.ledger.purpose = PREDICTION if predict else SETUP
        self._fixed |= predict  # a finished run's settings stay as they are
        self._pin, self._sums.run = pin(document, sites), run
        settings = document.get("data", {})
        exchanges = not vertical and settings.get("external") == EXCHANGE
        unites = settings.get("features") == "learned" and after < 0 and not predict

        def ask(turn: int, sent: Mapping[str, Tree]) -> Replies:
            return self._arrive(BLIND, BLINDING.sends, {"kind": "blind", "turn": turn, "pin": self._pin} | more, sent)

        # 1. The request to join. What a site replies depends on what the sites still have to agree on.
        if vertical:
            declaration = MEETING
        elif exchanges:
            declaration = {**JOINING, **CLAIMING}
        else:
            declaration = COUNTING if unites else JOINING
        known = {"data": data or {}, "heads": self._heads.plain(sites), "versions": versions(document)}
        about = {"sites": sites, "protocol": PROTOCOL} | known | more
        message: Tree = {}
        if flags is not None:
            message = flags._asdict() if isinstance(flags, Flagging) else {"positive": flags}
        request = {"kind": "join", "run": run, "document": document} | about
        replies = self._arrive(JOIN, declaration, request, dict.fromkeys(present, message))
        # 2. Parties find the nodes that all of them have, and that is all.
        if vertical:
            met = meet(replies, ask)
            for site, common in met.items():
                self.overlaps[site] = len(replies[site]["ids"]), len(common.get("common", ()))
            return self._arrive(ALIGN, JOINING, {"kind": "align", "pin": self._pin} | more, met)
        # 3. All other sites number their entities, if they learn vectors of these (`entities.Entities`).
        if unites:
            everyone = list(replies.clients)
            rows = rows_of({site: replies[site] for site in everyone})
            total = self._early_sum(UNITE, entities.INFO, CELLS, {"rows": rows}, everyone, more)
            listed: Tree = {"listed": torch.from_numpy(union.union(total.numpy(), len(everyone)))}
            align = {"kind": "align", "pin": self._pin} | more
            replies = self._arrive(ALIGN, JOINING, align, dict.fromkeys(everyone, listed))
        # 4. Sites whose data has another form are left out; the server refuses later those that it cannot leave out.
        replies = self._exclude(replies, unusual_forms(replies, self._quorum * len(self.clients)))
        # 5. Features go over edges between sites (`exchange.Exchange`).
        if exchanges:
            count, sent, local_slots = match_nodes(replies, ask)
            self._arrive("(match)", {}, {"kind": "match", "pin": self._pin} | more, sent)
            sums = self._early_sum(ADD, exchange.INFO, SUMS, {"slots": count}, list(sent), more)
            rows_of_sites = {site: {TOTALS: sums[slots]} for site, slots in local_slots.items()}
            self._arrive("(take)", {}, {"kind": "take", "pin": self._pin} | more, rows_of_sites)
        # 6. Lists get one length at all sites.
        sizes = max_lengths(replies)
        if not sizes:
            return replies
        padded = self._arrive(PAD, {}, {"kind": "pad", "pin": self._pin} | more, dict.fromkeys(replies.clients, sizes))
        return without(replies, {site: why for site, why in padded.missing.items() if site in replies.clients})

    def _arrive(self, name: str, declaration: Declaration, request: Record, sent: Mapping[str, Tree]) -> Replies:
        info = StepInfo.of(declaration, True, hears=exchange.RECEIVES | entities.RECEIVES | FLAGS)
        replies, _ = self._call(name, info, request, encode_messages(sent), sent, self.clients)
        if "split" in declaration:
            replies = self._exclude(replies, invalid_counts(replies))
        check_quorum(name.strip("()"), self._quorum, len(self.clients), replies.missing, self._fixed)
        return replies

    def ask_alone(
        self, kind: str, round: int, metric: str, positive: int, stops: Callable[[], bool] = lambda: False
    ) -> dict[str, dict[str, float]] | None:
        """{site: {metric: value}} of what sites reach alone and let leave (`baselines`), "shelf" or "alone"; None if it
        is to stop before all have answered. Sites that train longer than a request takes are asked again.

        round: the run's last one. metric, positive: the run's selection metric, and the number of the positive class,
        -1 for none. stops: asked after each request.
        """
        if self.round != round:  # of a run that an earlier job has trained
            self.begin(round)
        self.ledger.purpose = EVALUATION
        request = {"kind": kind, "pin": self._pin, "round": round, "metric": metric, "positive": positive}
        results, waiting = dict[str, dict[str, float]](), self._reachable(self.clients)
        for _ in range(self.rounds + 1):  # a site that is asked again has trained a round or more
            if not waiting:
                break
            sent: dict[str, Tree] = {site: {} for site in waiting}
            blobs = encode_messages(sent)
            replies, notes = self._call(f"({kind})", baselines.INFO[kind], request, blobs, sent, waiting)
            waiting = []
            for site in replies.clients:
                if read_note(notes[site]).get(UNFINISHED) is True:
                    waiting.append(site)
                    continue
                results[site] = {}
                for path, value in leaves(replies[site]):
                    name = path.removeprefix(f"{SCORES}/{kind}/")
                    if name in METRICS and isinstance(value, float) and is_possible(name, value):
                        results[site][name] = value
            if waiting and stops():
                return None
        return {site: metrics for site, metrics in results.items() if metrics}

    def _early_sum(
        self, step: str, info: StepInfo, key: str, message: Tree, sites: Sequence[str], more: Record
    ) -> Tensor:
        """The secure aggregation of the terms of these `sites` before the first step."""
        sent, where = dict.fromkeys(sites, message), {"pin": self._pin} | more
        request = {"kind": ADD, "step": step, "again": 0, "sum": self._sums.prepare(step, info, sites)} | where
        arrived, notes = self._call(f"({step})", info, request, encode_messages(sent), sent, sites)
        total: Tensor = self._sums.open_sum(step, info, request, arrived, message, notes).total(key)
        return total

    def _exclude(self, replies: Replies, faults: Mapping[str, str]) -> Replies:
        self._out |= faults
        self._count(faults, faults)
        return without(replies, faults)

    def answer(self, call: Call) -> Replies:
        """See `core.federation.Federation`. A site whose step fails or whose reply is rejected counts as missing. If a
        step replaces the data, the server learns only the version of the new data."""
        name, info, received = call.name, call.info, call.received
        occurrence, chosen, messages = self._prepare(call)
        request, present = self._request(call, occurrence), self._reachable(chosen)
        if received is not None:
            request["received"] = cast(Relayed, received).plain(chosen)
        if info.sums:
            request["sum"] = self._sums.prepare(name, info, present)
            present = request["sum"]["peers"]
        replies, notes = self._step(request, info, messages, chosen, present)
        self._wrote |= {site for site, note in notes.items() if read_note(note).get(WRITTEN) is True}
        if received is not None:
            for site, note in notes.items():
                self._faults.update(read_faults(note, received.sources[site]).items())
        check_quorum(name, min(call.quorum, self._quorum), len(chosen), replies.missing, self._fixed)
        if info.sums:
            replies = self._sums.open_sum(name, info, request, replies, messages.common(), notes)
        if call.way == "replace_data":
            self._versions.note(notes)
        return replies

    def _ask(self, name: str, info: StepInfo, request: Record, sent: Mapping[str, Tree]) -> Replies:
        """One exchange of `sums.Sums`, outside the steps. Equal messages are encoded once."""
        blobs = encode_messages({site: sent[site] for site in self._reachable(list(sent))})
        call = {"kind": name, "pin": self._pin, "round": self.round} | request
        return self._call(f"({name})", info, call, blobs, sent, list(sent))[0]

    def deliver(self, call: Call) -> Sent:
        """See `core.federation.Federation`. The server relays sealed messages, which it cannot read."""
        name, info, to, senders = call.name, call.info, call.to, sources(call.name, call.to, self.place)
        if info.addressed:
            raise FedweaveError(
                f"step {name} sends a different message to each peer, which sites do not support. Run it as a "
                "simulation.",
                code="step.addressed",
            )
        occurrence, chosen, messages = self._prepare(call)
        request, present, number = self._request(call, occurrence), self._reachable(chosen), self._calls
        request["to"] = dict[str, list[str]]()
        for site in present:
            request["to"][site] = [peer for peer in to[site] if peer in present]
        replies, notes = self._step(request, StepInfo({}, True, hears=info.hears), messages, chosen, present)
        missing, good = dict(replies.missing), []
        for site in replies.clients:
            try:
                receipt = Receipt.read(notes[site], info, request["to"][site])
            except FedweaveError as error:
                missing[site] = str(error)
                self._count({site: str(error)}, {site: str(error)})
                continue
            good.append(site)
            # The ledger gets what the site sent to other sites, by its receipt.
            peers = tuple(peer for peer in request["to"][site] if peer not in receipt.lost)
            keys = tuple(line(*key, info) for key in receipt.keys)
            if peers:
                senders_of = (site,) * len(peers)
                entry = Entry(self.round, number, name, senders_of, "peer", keys, receipt.size, 0.0, peers)
                self.ledger.add_now(entry)
        check_quorum(name, min(call.quorum, self._quorum), len(chosen), missing, self._fixed)
        ordered = {site: missing[site] for site in chosen if site in missing}
        return Relayed(name, tuple(good), ordered, senders, occurrence)

    def _request(self, call: Call, occurrence: int) -> Record:
        where = {"round": self.round, "again": occurrence, "saved": self._saved}
        return {"kind": _KINDS[call.way], "pin": self._pin, "step": call.name} | where

    def _step(
        self, request: Record, info: StepInfo, messages: Messages, chosen: Sequence[str], here: Sequence[str]
    ) -> tuple[Replies, dict[str, str]]:
        """Call a step on the sites that are both `chosen` and `here`; returns replies and notes."""
        several, common = messages.each or messages.rows.clients, messages.common()
        whole = {site: messages.one(site) if several else common for site in here}
        sent = self._last.shorten(whole)
        replies, notes = self._call(request["step"], info, request, encode_messages(sent), sent, chosen, whole)
        self._last.note(whole, replies.clients)
        return replies, notes

    def _reachable(self, chosen: Sequence[str]) -> list[str]:
        closed = self._out | self._link.unreachable()
        return [site for site in chosen if site not in closed]

    def _call(
        self,
        name: str,
        info: StepInfo,
        request: Record,
        blobs: Mapping[str, bytes],
        sent: Mapping[str, Tree],
        chosen: Sequence[str],
        whole: Mapping[str, Tree] | None = None,
    ) -> tuple[Replies, dict[str, str]]:
        """One exchange with the sites, entered into the ledger; returns replies and the sites' notes.

        whole: the full messages, if `sent` holds only the leaves that the sites lack.
        """
        where, closed = (self.round, self._calls, name), self._out | self._link.unreachable()
        # 1. Send the messages, and wait for the answers.
        missing = {site: closed.get(site, NO_KEYS) for site in chosen if site in closed or site not in blobs}
        for site in blobs:
            self.ledger.record(*where, (site,), "down", sent.get(site, {}), 0.0, info.message)
        answers, lost = self._link.exchange(json.dumps(request), blobs) if blobs else ({}, {})
        missing |= lost
        for site, answer in answers.items():
            if answer.refusal:
                missing[site] = answer.refusal
                if answer.final:
                    self._out[site] = answer.refusal
        # 2. Which replies are usable?
        arrived = {site: answer.blob for site, answer in answers.items() if not answer.refusal}
        good, refused = self._inspector.accept(name, info, whole or sent, arrived)
        missing |= refused
        # 3. A site whose accounts end before an entry that others know of is out: it has lost or hidden some.
        heads = {site: heads_in(answers[site].heads) for site in good}
        faults = behind(heads)
        if faults:
            good = {site: tree for site, tree in good.items() if site not in faults}
            missing |= faults
            self._out |= faults
        self._heads.note({site: heads[site][site] for site in good if site in heads[site]})
        # 4. Enter the replies into the ledger.
        here = [site for site in chosen if site in good]
        for site in here:
            arrived_info = as_arrived(info, good[site], read_scoring(answers[site].note))
            if name in (JOIN, ALIGN):
                arrived_info = describe_withheld(arrived_info, withheld_in(good[site], answers[site].note))
            if read_note(answers[site].note).get(REPEATED) is True:
                arrived_info = resend_info(arrived_info)
            self.ledger.record(*where, (site,), "up", good[site], answers[site].seconds, arrived_info)
        self._calls += 1
        self._count(missing, refused)
        ordered = {site: missing[site] for site in chosen if site in missing}
        return Replies.of({site: good[site] for site in here}, ordered), {site: answers[site].note for site in here}

    def _count(self, missing: Mapping[str, str], refused: Mapping[str, str]) -> None:
        self._faults.note(self.round, missing, refused)
        self._faults.update({(site, "late"): times for site, times in self._link.late.items()})
        self._link.late.clear()

    def faults(self) -> dict[tuple[str, str], int]:
        """{(site, "missing" | "refused" | "late"): number of calls} since the last call of this function."""
        return self._faults.take()

    def unwritten(self, sites: Sequence[str]) -> dict[str, str]:
        """{site: why} for the `sites` that have not reported that they wrote predictions. The reason is "" if
        the site took part and had no model to predict with."""
        return {site: self._faults.reasons.get(site, "") for site in sites if site not in self._wrote}

    def snapshot(self) -> Tree:
        """Only the round: the sites keep their states themselves."""
        self._snapshot = self.round
        return {"round": self.round}

    def snapshot_data(self) -> Tree:
        """The versions of the sites' data; the sites keep the data itself."""
        return self._versions.plain()

    def before_round(self) -> tuple[Tree, Tree]:
        """The results of `snapshot` and `snapshot_data` before the present round, to which the sites can still go
        back."""
        return {"round": self.round - 1}, self._versions.plain(before=True)

    def restore(self, tree: Tree, data: Tree | None = None) -> None:
        """Continue after the round of `tree`, to which the sites went back when they joined."""
        if tree.keys() != {"round"}:
            raise FedweaveError("this checkpoint is of a simulation; start the run at the sites in a new --out.")
        self._snapshot = int(tree["round"])
        self._versions.restore(data or {})
