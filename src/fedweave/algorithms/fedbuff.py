"""FedBuff: Nguyen et al. 2022, "Federated learning with buffered asynchronous aggregation", algorithm 1.

Clients train at their own pace, M at a time, each from the server's weights at its start. The server takes a step when
K updates have arrived. An update of staleness s, whose training began s steps ago, counts 1/√(1 + s). A round here is
such a step. Training times are simulated: a client's update is computed when it begins, and waits at the server until
its time has come.

Deviations: updates count by size, as in FedAvg, unless a part decides otherwise; the server's learning rate comes from
a part such as `server_momentum`; a client that has sent an update begins again after the server's next step, since
before it would begin from the same weights.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedweave.algorithms import trials
from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.participation import name_order, places
from fedweave.algorithms.parts import Part, Round, has
from fedweave.algorithms.parts.names import parse_parts, part_name
from fedweave.core import random
from fedweave.core.bounds import Count, CountOrNone, NonNegative
from fedweave.core.federation import Federation
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.core.tree import Tree, leaves, map_leaves, nest
from fedweave.core.types import Record

STALENESS = "staleness"


@dataclass(frozen=True)
class Staleness(Part):
    """Multiplies an update by 1/√(1 + s); s is the number of the server's steps since its client began (section 5)."""

    recorded = True

    def limit(self, state: Tree, round: Round) -> Tensor:
        """1/√(1 + s), float64 [P]."""
        return 1 / (1 + round.replies.stack(STALENESS).double()).sqrt()


class Schedule(NamedTuple):
    """The events until the server's next step.

    starts:   the clients that begin, as places among all.
    arrivals: the clients whose updates the step takes, in order.
    due:      {client: when its update arrives} of those that are still training.
    clock:    when the step is taken.
    """

    starts: list[int]
    arrivals: list[int]
    due: dict[int, float]
    clock: float


def schedule(
    due: dict[int, float], idle: Sequence[int], durations: Sequence[float], clock: float, concurrency: int, buffer: int
) -> Schedule:
    """Clients begin while fewer than `concurrency` train, in the order of `idle`, until `buffer` updates have arrived.
    Among updates at the same time the client with the lower place comes first.

    due: as in `Schedule`, at the time of the last step, the `clock`. durations: each client's next training time.
    """
    training = [(time, client) for client, time in due.items()]
    heapq.heapify(training)
    waiting, starts, arrivals = list(idle), list[int](), list[int]()
    while len(arrivals) < buffer:
        while waiting and len(training) < concurrency:
            client = waiting.pop(0)
            starts.append(client)
            heapq.heappush(training, (clock + durations[client], client))
        clock, client = heapq.heappop(training)
        arrivals.append(client)
    return Schedule(starts, arrivals, {client: time for time, client in training}, clock)


@dataclass(frozen=True)
class FedBuff(FedAvg):
    """FedAvg whose server waits only for some updates, while the other clients go on training from older weights.

    The unit of simulated time is the median client's training.

    buffer:      K, number of updates that the server waits for, at most the number of clients that train at once.
    concurrency: M, number of clients that train at once; 0 for all.
    spread:      standard deviation of the logarithm of a client's training time, drawn once per client; 0 for equal
                 times.
    jitter:      standard deviation of a further such factor, drawn for each training.
    quorum:      share of the clients training at once from which the server must get replies.
    """

    buffer: Count = 3
    concurrency: CountOrNone = 0
    spread: NonNegative = 1.0
    jitter: NonNegative = 0.0

    exempt_laws: ClassVar[dict[str, str]] = {}
    test_settings: ClassVar[Record] = {"buffer": 2}

    def __post_init__(self) -> None:
        for part in parse_parts(self.parts):
            reason = _unsupported(part)
            if reason:
                raise ValueError(f"parts: {part_name(part)} {reason}; leave it out of fedbuff")
        super().__post_init__()
        if self.participation < 1:
            raise ValueError(
                f"participation = {self.participation:g}: clients begin one after the other. Set concurrency"
            )

    @property
    def paced(self) -> tuple[Part, ...]:
        """FedAvg's parts for the pace, and the part that weights updates by staleness."""
        return (*super().paced, Staleness())

    def init(self, fed: Federation) -> Tree:
        """FedAvg's state and each client's training time; no client is training."""
        zeros = torch.zeros(len(fed.clients), dtype=torch.float64, device=fed.device)
        clients: Tree = {
            "duration": self._factors(fed, self.spread),
            "due": zeros,
            "busy": zeros > 0,
            "since": zeros.long(),
            "staleness": zeros.long() - 1,
        }
        steps = torch.zeros((), dtype=torch.int64, device=fed.device)
        return super().init(fed) | {"clients": clients, "clock": zeros.sum(), "steps": steps}

    def round(self, state: Tree, fed: Federation) -> Tree:
        """Idle clients begin from w_t; then w_{t+1} = w_t + Σ_i weight_i / √(1 + s_i) · Δ_i over the first K
        updates."""
        clients, step, count = state["clients"], int(state["steps"]), len(fed.clients)
        if self.composed.changes:
            fed.replace_data(self.change, quorum=self.quorum)
        # 1. Idle clients begin. The quorum allows the same number of missing clients as that of all that train at once.
        plan = self._plan(state, fed)
        starts = [fed.clients[at] for at in sorted(plan.starts)]
        messages = self._download(state, starts, fed, self.composed)
        quorum = max(0.0, 1 - (1 - self.quorum) * min(self.concurrency or count, count) / len(starts))
        replies = fed.map(self.train, *messages, clients=starts, quorum=quorum)
        packing = self.composed.packing
        if packing is not None:
            replies = packing.unpack(replies, state["w"])
        # 2. Their updates wait at the server, leaves [N, …], until their time has come.
        at = places(fed, replies.clients)
        waiting = _update_rows(state.get("held"), replies, at, count)
        since = clients["since"].index_fill(0, at, step)
        missing = {fed.place[client] for client in replies.missing}
        arrivals = torch.tensor(sorted(set(plan.arrivals) - missing), dtype=torch.int64, device=fed.device)  # [K]
        staleness = step - since[arrivals]
        busy, due = torch.zeros_like(clients["busy"]), torch.zeros_like(clients["due"])
        for client, time in plan.due.items():
            busy[client], due[client] = client not in missing, time
        state = state | {
            "held": waiting,
            "clock": torch.full_like(state["clock"], plan.clock),
            "steps": state["steps"] + 1,
        }
        state["clients"] = clients | {
            "since": since,
            "due": due,
            "busy": busy,
            "staleness": torch.full_like(clients["staleness"], -1).index_copy(0, arrivals, staleness),
        }
        # 3. The server's step with the updates that have arrived.
        if not len(arrivals):
            return state
        rows = map_leaves(lambda leaf: leaf.index_select(0, arrivals), waiting) | {STALENESS: staleness}
        names = [fed.clients[place] for place in arrivals.tolist()]
        arrived = Replies(names, [ReplyBatch(tuple(range(len(names))), rows)], {})
        return state | self._server.after(state, arrived, fed, partial(trials.try_out, fed, self.try_out))

    def _plan(self, state: Tree, fed: Federation) -> Schedule:
        """The schedule until the next step; independent of the order in which clients are listed, because it is made of
        their ranks by name."""
        clients, by_name = state["clients"], name_order(fed.clients).tolist()
        rank = {client: place for place, client in enumerate(by_name)}
        busy, due = clients["busy"].tolist(), clients["due"].tolist()
        durations = (clients["duration"] * self._factors(fed, self.jitter)).tolist()
        keys = random.bits(fed.key("begin"), len(rank)).tolist()
        idle = [rank[client] for client in rank if not busy[client]]
        concurrency = self.concurrency or len(rank)
        plan = schedule(
            {rank[client]: due[client] for client in rank if busy[client]},
            sorted(idle, key=keys.__getitem__),
            [durations[client] for client in by_name],
            float(state["clock"]),
            concurrency,
            min(self.buffer, concurrency, len(rank)),
        )
        return Schedule(
            [by_name[place] for place in plan.starts],
            [by_name[place] for place in plan.arrivals],
            {by_name[place]: time for place, time in plan.due.items()},
            plan.clock,
        )

    def _factors(self, fed: Federation, deviation: float) -> Tensor:
        """exp(deviation · N(0, 1)), float64 [N], independent of the order in which clients are listed."""
        normal = random.normal(fed.key("durations"), (len(fed.clients),)).double()
        order = name_order(fed.clients).to(normal.device)
        return torch.exp(deviation * torch.empty_like(normal).index_copy(0, order, normal))

    def measures(self, state: Tree, fed: Federation) -> dict[str, Tensor]:
        """{"time": time of the last step, "staleness"} for the clients whose updates it took, NaN for others."""
        staleness = state["clients"]["staleness"].double()
        arrived = staleness >= 0
        return super().measures(state, fed) | {
            "time": torch.where(arrived, state["clock"], torch.nan),
            STALENESS: torch.where(arrived, staleness, torch.nan),
        }

    def counts(self, state: Tree) -> dict[str, float]:
        return super().counts(state) | {"fedbuff/time": float(state["clock"])}


def _unsupported(part: Part) -> str:
    """The reason why FedBuff does not support a part; "" if it does."""
    if part.protection.hides:
        return "adds up updates that arrive together, and here they arrive one after the other"
    if part.needs.all_clients:
        return "needs all clients in each round, and here only some send updates"
    if "personal" in part.needs.models or has(part, "receive"):
        return "gives every client different weights, and here the server has one model"
    return ""


def _update_rows(last: Tree | None, replies: Replies, at: Tensor, count: int) -> Tree:
    """Each client's `last` reply, leaves [N, …], None before any, with new replies at the places `at` int64 [P]."""
    before, result = dict(leaves(last or {})), Tree()
    for path in replies.readable:
        leaf = replies.stack(path)  # [P, …]
        rows = before[path] if before else leaf.new_zeros(count, *leaf.shape[1:])
        result[path] = rows.index_copy(0, at, leaf)
    return nest(result)
