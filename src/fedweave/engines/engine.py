"""How engines handle a call, with any executor: randomness, called clients, messages, replies, ledger and sums."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from fedweave.core.algorithm import Engine
from fedweave.core.federation import Call, Sent
from fedweave.core.graph import Graph
from fedweave.core.ledger import Ledger, Uncounted, message_form
from fedweave.core.ledger_columns import Entry
from fedweave.core.model import Model
from fedweave.core.replies import Portion, Replies, members_by_size
from fedweave.core.shown import Words, line
from fedweave.core.tree import Tree
from fedweave.core.types import EVALUATION, RESERVED_CLIENTS, Ordering
from fedweave.engines.calls import (
    Keys,
    check_addressed,
    check_declared,
    check_quorum,
    check_summed,
    check_way,
    receivers,
    resolve_clients,
    sources,
)
from fedweave.engines.executor import Executor, GroupResult, Work
from fedweave.engines.messages import Messages, peer_messages
from fedweave.engines.resend import LastSent
from fedweave.engines.sum_messages import SumMeter, check_same_message
from fedweave.errors import ConfigError
from fedweave.metrics.kinds import selection_of
from fedweave.metrics.selection import Judging

Absent = Callable[[int, str], str | None]


@dataclass(frozen=True)
class DeliveredReplies(Sent):
    """`Sent` with its content. to: for an addressed step, {client: its peers}, whose places are keys of its reply."""

    content: Replies = field(repr=False)
    to: Mapping[str, Sequence[str]] | None = field(default=None, repr=False)

    def open(self) -> dict[str, Tree]:
        """{sender: the peers' part of its next message}."""
        trees = {client: self.content[client] for client in self.clients}
        if self.to is None:
            return {client: peer_messages(trees[client], self.sources[client], trees) for client in self.clients}
        place = dict[str, dict[str, str]]()  # {sender: {receiver: key of its parcel}}
        for client, peers in self.to.items():
            place[client] = {peer: str(at) for at, peer in enumerate(peers)}
        messages = dict[str, Tree]()
        for client in self.clients:
            senders = self.sources[client]
            parcels = {peer: trees[peer][place[peer][client]] for peer in senders if peer in trees}
            messages[client] = peer_messages(trees[client].get("0", {}), senders, parcels)
        return messages


class ServerEngine(Engine):
    """The server's part in every engine, wherever its clients are: randomness, and the checks of a call."""

    _keys: Keys
    _round: int
    selection = partial(selection_of, Judging())

    @property
    def round(self) -> int:
        return self._round

    def begin(self, round: int) -> None:
        self._round, self._calls = round, 0
        self._keys.begin(round)

    def key(self, purpose: str) -> Tensor:
        return self._keys.server(purpose)

    def _prepare(self, call: Call) -> tuple[int, tuple[str, ...], Messages]:
        """Check a call: how often its step ran in this round before, the called clients, their messages."""
        name, info, clients = call.name, call.info, call.clients
        occurrence = self._keys.occurrence(name)
        check_way(name, info, call.way)
        if clients is None and self.evaluated_clients and self.ledger.purpose == EVALUATION:
            clients = self.evaluated_clients
        chosen = resolve_clients(name, receivers(name, clients, call.received), self.place, call.quorum)
        peers = call.received.open() if isinstance(call.received, DeliveredReplies) else None
        messages = Messages(name, call.shared, call.each, chosen, self.clients, peers, self.device)
        if info.sums:
            check_same_message(name, messages)
        return occurrence, chosen, messages


class LocalEngine(ServerEngine):
    """A federation whose clients belong to one executor.

    executor: runs the steps; messages, replies and the server's tensors are on its device too.
    classes: number of classes. dtype: dtype of weights and features. test: global test graph or None.
    held: further graphs of the server, by role. pairs: the truth about every pair of clients, for comparisons.
    members: see `engines.loop`. absent: (round, client) -> reason or None, to rehearse clients that do not reply.
    resend: whether tensors that clients still have from the previous message are sent again. examples,
    samples_ranks: see `Engine`.

    Raises:
        ConfigError: there is no client, or a client's name is reserved.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        classes: int,
        dtype: torch.dtype = torch.float32,
        test: Graph | None = None,
        held: Mapping[str, Graph] | None = None,
        pairs: Mapping[str, Tensor] | None = None,
        members: Mapping[str, Tensor] | None = None,
        seed: int = 0,
        absent: Absent | None = None,
        resend: bool = True,
        examples: int | None = None,
        samples_ranks: bool = False,
    ) -> None:
        check_names(executor.clients)
        self.clients, self.classes, self.dtype, self.test = executor.clients, classes, dtype, test
        self.device = executor.device
        server_test: dict[str, Graph] = {} if test is None else {"test": test}
        self.held: Mapping[str, Graph] = server_test | dict(held or {})
        self.pairs: Mapping[str, Tensor] = dict(pairs or {})
        self.members, _ = members_by_size(members or {})
        self.executor, self.examples, self.samples_ranks = executor, examples, samples_ranks
        self.ledger, self._last = Ledger(), LastSent(resend)
        self._sums, self._keys, self._absent = SumMeter(self.ledger), Keys(seed, self.device), absent
        self.begin(0)

    def __repr__(self) -> str:
        dtype, device = Words(str(self.dtype).removeprefix("torch.")), Words(str(self.device))
        facts = {"round": self.round, "dtype": dtype, "device": device}
        return line(type(self).__name__, facts, [f"{len(self.clients):,} clients"])

    @property
    def computes_on(self) -> tuple[str, ...]:
        return self.executor.computes_on

    def answer(self, call: Call) -> Replies:
        name, info = call.name, call.info
        occurrence, chosen, messages = self._prepare(call)
        present, missing = self._present(name, chosen, call.quorum)
        check_summed(name, info, len(present), self.clients, missing)
        if info.sums:
            self._sums.record_agreement((self._round, self._calls), present)
        work = Work(call.step, name, info, self._keys.step(name, occurrence), messages, self.ranks)
        portions: list[Portion] = []
        for results in self.executor.run(work, present):
            portions.append(results.replies)
            for group in results.groups:
                self._record(call, [present[at] for at in group.at], messages, group)
        if info.sums:
            self._sums.record_opening((self._round, self._calls), present)
        self._calls += 1
        return Replies(present, portions, missing, info.sums)

    def deliver(self, call: Call) -> Sent:
        senders = sources(call.name, call.to, self.place)
        replies = self.answer(call)
        to = call.to if call.info.addressed else None
        if call.info.addressed:
            self._record_parcels(call, replies)
        return DeliveredReplies(call.name, replies.clients, replies.missing, senders, replies, to)

    def _present(self, name: str, chosen: Sequence[str], quorum: float) -> tuple[list[str], dict[str, str]]:
        if not self._absent:
            return list(chosen), {}
        missing = dict[str, str]()
        for client in chosen:
            reason = self._absent(self._round, client)
            if reason:
                missing[client] = reason
        check_quorum(name, quorum, len(chosen), missing)
        return [client for client in chosen if client not in missing], missing

    def _record(self, call: Call, group: Sequence[str], messages: Messages, result: GroupResult) -> None:
        """Record the server's messages to some clients, and their replies."""
        if not call.info.addressed:
            check_declared(call.name, call.info, result.form.paths)
        where = (self._round, self._calls, call.name)
        with self.recording():
            sent = [*self._last.group_by_message(group, messages)]
        for part, message, counts in sent:
            self.ledger.record(*where, part, "down", message, 0.0, call.info.message, (), counts)
        if call.way != "send":
            self.ledger.record(*where, group, "up", result.form, result.seconds, call.info)
            return
        self.ledger.record(*where, group, "up", {}, result.seconds)
        if call.info.addressed:  # `_record_parcels` records the messages to peers
            return
        senders, peers = list[str](), list[str]()
        for client in group:
            senders += [client] * len(call.to[client])
            peers += call.to[client]
        if peers:
            self.ledger.record(*where, tuple(senders), "peer", result.form, 0.0, call.info, tuple(peers))

    def _record_parcels(self, call: Call, replies: Replies) -> None:
        """Record each client's messages to its peers."""
        for client in replies.clients:
            parcels, peers = replies[client], call.to[client]
            check_addressed(call.name, parcels, len(peers))
            for at, peer in enumerate(peers):
                form = message_form(parcels[str(at)])
                check_declared(call.name, call.info, form.paths)
                where = (self._round, self._calls - 1, call.name)
                self.ledger.record(*where, (client,), "peer", form, 0.0, call.info, (peer,))

    @property
    def calls(self) -> int:
        """The number of calls of this round so far."""
        return self._calls

    def replay(
        self, entries: Sequence[Entry | Uncounted], counts: Sequence[Tensor], calls: int, seconds: float
    ) -> None:
        """Record in the ledger what a recorded round does again; its clients share the `seconds` equally. counts: of
        this round, for the entries that are uncounted."""
        replies = 0
        for entry in entries:
            if isinstance(entry, Entry) and entry.direction == "up":
                replies += len(entry.clients)
        each, remaining_counts = seconds / max(1, replies), iter(counts)
        for entry in entries:
            if isinstance(entry, Uncounted):
                entry = entry.repeat(self._round, next(remaining_counts))
            else:
                entry = replace(entry, round=self._round, seconds=each if entry.direction == "up" else 0.0)
            self.ledger.add_now(entry)
        self._calls += calls

    @contextmanager
    def scoring(self, ranks: Ordering) -> Iterator[None]:
        self.ranks = ranks
        try:
            with nullcontext() if ranks == "all" else self._keys.uncounted():
                yield
        finally:
            self.ranks = "all"

    def example_outputs(self, model: Model, w: Tree, clients: Sequence[str]) -> Iterable[Sequence[Tree]]:
        return self.executor.example_outputs(model, w, clients)

    def snapshot(self) -> Tree:
        """All clients' private states in client order, for a checkpoint."""
        return self.executor.snapshot()

    def stacked_snapshot(self) -> Tree:
        return self.executor.stacked_snapshot()

    def snapshot_data(self) -> Tree:
        return self.executor.snapshot_data()

    def restore(self, tree: Tree, data: Tree | None = None) -> None:
        self.executor.restore(tree, data or {})


def check_names(clients: Sequence[str]) -> None:
    """Raise an error if ids cannot name files and tree keys, or are reserved in a run's files.

    Raises:
        ConfigError: names them.
    """
    if not clients:
        raise ConfigError("a federation needs at least one client.", code="config.no-clients")
    bad = [client for client in clients if client in ("", ".", "..") or {"/", "\0"} & set(client)]
    if bad:
        raise ConfigError(f"client ids {bad} cannot name files and tree keys; use non-empty ids without '/'.")
    reserved = sorted(RESERVED_CLIENTS & set(clients))
    if reserved:
        raise ConfigError(
            f"no client can be called {' or '.join(reserved)}: a run's files reserve these names. Rename it.",
            code="config.client-name",
        )
