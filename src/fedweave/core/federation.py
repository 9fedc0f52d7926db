"""The one primitive: `fed.map(step, …)` runs a named step on clients and returns their replies; `fed.send(step, …)`
hands the replies to other clients instead, and `fed.replace_data(step, …)` has the clients change their own data."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedweave.core.graph import Graph
from fedweave.core.mechanism import KINDS, Applied, Mechanism, SecureSum
from fedweave.core.ranges import Range
from fedweave.core.replies import Replies, Stacked
from fedweave.core.tree import Tree, leaves, map_leaves
from fedweave.core.types import Ordering
from fedweave.errors import FedweaveError


class LabelNoise(NamedTuple):
    """The secrets from which a client draws noise on its labels, the same in every run.

    key:     a secret one (`ops.hashing`).
    version: a secret one, too, of the client's present labels: draws on other labels count again.
    marks:   int64 [n], of each example and its label. Equal marks have equal draws.
    """

    key: Tensor
    version: Tensor
    marks: Tensor


@dataclass
class Client:
    """The data that a step may see.

    graph:  the client's own data.
    state:  private tree, kept between calls, never leaves. A step may store there a "prediction", [n, c], or a "model",
            weights, for the client's owner: a site takes it out and writes a table of predictions.
    key:    int64 scalar, reproducible randomness of this call: f(seed, round, step, client).
    secret: a key for privacy noise. Between organizations it is a secret one of the site's own entropy (`ops.hashing`).
            The simulation derives an int64 scalar from the seed so that runs can be repeated; its noise protects no
            client.
    test:   the global test graph that every client holds, or None.
    members: where one client holds the data of all members, the examples of each: int64 [M, m] for the members of one
            size, -1 at padding; () at all other clients. Only for scores.
    label_noise: the secret for noise on labels that is the same in every run; None where each run draws its own, as
            in a simulation.
    ranks:  whether scores include the metrics that order examples (`metrics.selection.OF_ORDER`), which cost most:
            "all"; "sample", those of links by a drawn sample of them; "none".
    """

    graph: Graph
    state: Tree
    key: Tensor
    secret: Tensor
    test: Graph | None = None
    members: tuple[Tensor, ...] = ()
    label_noise: LabelNoise | None = None
    ranks: Ordering = "all"


Step = Callable[[Client, Tree], Tree]
F = TypeVar("F", bound=Callable[..., object])


DATA = "graph"  # the key of a reply under which a step hands over its client's new data; it never leaves


@dataclass(frozen=True)
class Sends:
    """The declaration of a part of a reply.

    reveals:   the facts that its receiver learns from it.
    mechanism: the step's protection of it before it leaves; several in the order in which they are applied.
    within:    the range of its numbers; a receiver rejects others. None allows any.
    like:      the key of the message whose shapes and dtypes it has, such as "w" for a change of the weights; else "".
    mean:      whether the server needs only the mean of what parts report, weighted as updates are
               (`Round.weighted`), so that secure aggregation can include it.

    Raises:
        TypeError: `mechanism` is none of `core.mechanism.KINDS`.
    """

    reveals: str
    mechanism: Mechanism | tuple[Mechanism, ...] | None = None
    within: Range | None = None
    like: str = ""
    mean: bool = False

    def __post_init__(self) -> None:
        for mechanism in self.mechanisms:
            if type(mechanism) not in KINDS.values():
                raise TypeError(f"{mechanism!r} is not a mechanism; take one of fedweave.core.mechanism")

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """All mechanisms, as a tuple."""
        if self.mechanism is None:
            return ()
        return self.mechanism if isinstance(self.mechanism, tuple) else (self.mechanism,)


Declaration: TypeAlias = Mapping[str, Sends | str]


@dataclass(frozen=True)
class StepInfo:
    """A step's declaration: its `sends` and `hears`, computed, and the other arguments of `on_client`."""

    sends: Mapping[str, Sends]
    ragged: bool = False
    peers: bool = False
    replaces_data: bool = False
    per_node: frozenset[str] = frozenset()
    hears: Mapping[str, str] = field(default_factory=dict)
    apart: bool = False
    columns: int = 0
    addressed: bool = False
    optional: bool = False  # whether a site may leave out any of the keys

    @cached_property
    def message(self) -> "StepInfo":
        """The declaration of the client's message: what the client learns from each of its keys."""
        return StepInfo.of(self.hears)

    @property
    def way(self) -> "Way":
        """The function of a `Federation` that runs the step."""
        if self.peers:
            return "send"
        return "replace_data" if self.replaces_data else "map"

    @classmethod
    def of(
        cls, sends: Declaration, ragged: bool = False, peers: bool = False, per_node: frozenset[str] = frozenset(),
        hears: Mapping[str, str] | None = None,
    ) -> Self:  # fmt: skip
        """A declaration from `sends`, in which strings stand for `Sends`; the other fields as they are."""
        written = {key: Sends(declared) if isinstance(declared, str) else declared for key, declared in sends.items()}
        return cls(written, ragged, peers, False, per_node, hears or {})

    def covering(self, path: str) -> str | None:
        """The key of `sends` that declares a leaf: its path, or the nearest key above it; None if there is none."""
        while path and path not in self.sends:
            path = path.rpartition("/")[0]
        return path or None

    @cached_property
    def sums(self) -> dict[str, SecureSum]:
        """{key: its secure sum} of the declared keys whose sum is all that the server learns."""
        sums = dict[str, SecureSum]()
        for key, declared in self.sends.items():
            for mechanism in declared.mechanisms:
                if isinstance(mechanism, SecureSum):
                    sums[key] = mechanism
        return sums

    @cached_property
    def stateless(self) -> bool:
        """Whether the step begins with an empty state and replaces it, or leaves it as it was if it is `apart`.

        It adds to a sum that clients may be missing from, and a missing client would remember other messages than the
        rest. A server could then choose messages that make the others' terms 0 or known. Without a state a term depends
        only on the present message to all and the client's own data."""
        return self.apart or any(not secure_sum.everyone for secure_sum in self.sums.values())

    def mechanisms_of(self, reply: Tree) -> list[Applied]:
        """The mechanisms applied to `reply`: one entry for each declared key that covers a leaf of it."""
        keys = dict.fromkeys(self.covering(path) for path, _ in leaves(reply))
        return [Applied(key, self.sends[key].mechanisms) for key in keys if key is not None]


UNDECLARED = StepInfo({})


class _Mark(NamedTuple):
    """The arguments of `on_client`: two that may be computed from the algorithm, and the rest."""

    sends: Declaration | Callable[..., Declaration]
    hears: Mapping[str, str] | Callable[..., Mapping[str, str]]
    rest: StepInfo


# Bound methods pass the attributes of their functions on, which protocols do not see from Python 3.12 on.
def _mark_of(step: object) -> _Mark | None:
    mark = getattr(step, "on_client", None)
    return mark if isinstance(mark, _Mark) else None


def on_client(
    *,
    sends: Declaration | Callable[..., Declaration] | None = None,
    ragged: bool = False,
    peers: bool = False,
    replaces_data: bool = False,
    per_node: Sequence[str] = (),
    hears: Mapping[str, str] | Callable[..., Mapping[str, str]] | None = None,
    apart: bool = False,
    columns: int = 0,
    addressed: bool = False,
) -> Callable[[F], F]:
    """Allow a function or method `(client, message) -> reply` to be run on clients.

    Only marked steps can be called over the wire. `sends` maps each key of the reply to what it reveals (`Sends`; a
    string is short for `reveals` without a mechanism), or is a function of the algorithm that returns this mapping
    where the step runs. A key may be a path, "egos/label"; a leaf is declared by the nearest key at or above it. No
    other key may leave the client. `ragged` steps have shapes that depend on data and are never vectorized. Replies of
    steps for `peers` go to other clients (`Federation.send`) and never to the server, which cannot request them. With
    `addressed` replies each peer gets a tree of its own, {"0": tree, "1": …} in the order in which `to` names the
    client's peers; `sends` then declares the keys of one such tree. A step that `replaces_data` is ragged by nature and
    run by `Federation.replace_data`; it appends `columns` columns to the features. `per_node` names the keys of the
    reply whose tensors have one row per node, padding included: the number of rows differs between clients. `hears`
    maps keys of the message to what the client learns from them, for ledgers; it is computed like `sends`, and never a
    reason to reject a message. A step that is `apart` gets no state and leaves the client's as it is: its reply depends
    only on message and data.

    Raises:
        ValueError: the step is for peers and replaces data, or addresses peers and is not for them.
    """
    if addressed and not peers:
        raise ValueError("a step addresses peers and is not for them; mark it peers=True")
    if peers and replaces_data:
        raise ValueError("a step either replies to peers or replaces its client's data; make it two steps")

    rest = StepInfo(
        {}, ragged or replaces_data, peers, replaces_data, frozenset(per_node), {}, apart, columns, addressed
    )

    def mark(step: F) -> F:
        vars(step)["on_client"] = _Mark(sends or {}, hears or {}, rest)
        step_info.cache_clear()  # it may have been marked in another way before
        return step

    return mark


def step_name(step: Step) -> str:
    """ "FedAvg.train" for a bound method, "function" for a plain one."""
    owner = getattr(step, "__self__", None)
    return step.__name__ if owner is None else f"{type(owner).__name__}.{step.__name__}"


def is_step(value: object) -> bool:
    """Whether a value is marked with `on_client`."""
    return _mark_of(value) is not None


@lru_cache(maxsize=64)
def step_info(step: Step) -> StepInfo:
    """The step's declaration, computed once for an algorithm's method: what an algorithm declares does not change.

    Raises:
        FedweaveError: the function is not marked with `on_client`.
    """
    mark = _mark_of(step)
    if mark is None:
        raise FedweaveError(
            f"{step_name(step)} is not marked @on_client, so it may not run on clients. "
            "Decorate it and declare what it sends.",
            code="step.unmarked",
        )
    owner = getattr(step, "__self__", None)  # the algorithm or part whose method it is; None for a plain function
    sends = mark.sends(owner) if callable(mark.sends) else mark.sends
    hears = mark.hears(owner) if callable(mark.hears) else mark.hears
    return replace(mark.rest, sends=StepInfo.of(sends).sends, hears=hears)


@dataclass(frozen=True)
class Sent:
    """Senders and receivers of one `send`; the server cannot read the contents.

    step:    the step's name. clients: ids of those who sent, in client order.
    missing: {id: reason} of those who did not.
    sources: {client: those who were to send to it, in client order}; the same number for every client.
    """

    step: str
    clients: tuple[str, ...]
    missing: Mapping[str, str]
    sources: Mapping[str, tuple[str, ...]]


Way: TypeAlias = Literal["map", "send", "replace_data"]


@dataclass(frozen=True)
class Call:
    """A request of `map`, `send` or `replace_data` of a `Federation` to run a step on clients.

    way:      which of them. shared, each: the message, `shared | each[client]`.
    clients:  who is called; None: all clients, or those who sent what is `received`.
    quorum:   the share of the called clients that must reply.
    received: the result of `send`. to: {client: the peers that its reply goes to} of a `send`.
    """

    way: Way
    step: Step
    shared: Tree | None = None
    each: Mapping[str, Tree] | Stacked | None = None
    clients: Sequence[str] | None = None
    quorum: float = 1.0
    received: Sent | None = None
    to: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The step's name (see `step_name`)."""
        return step_name(self.step)

    @cached_property
    def info(self) -> StepInfo:
        """The step's declaration."""
        return step_info(self.step)


class Federation(ABC):
    """The operations that an algorithm may use. An engine implements `answer` and `deliver`; no algorithm knows which
    engine it is.

    clients: ids in client order. classes: number of classes. dtype: of weights and features. device: where messages,
    replies, what the server holds and the randomness of `key` lie, and with these the server's state. test: the global
    test graph or None. held: the graphs that the server itself holds, by role: the test graph as "test", and others
    such as "public", "validation" or "proxy".
    rounds: how many the run has; 0 if unknown.
    initial: replaces fresh weights by an earlier run's (see `started`); None where training begins from scratch.
    pairs: {name: float64 [N, N]}, the truth about every two clients (`Partition.pairs`), only for comparisons; {}
    where it is unknown.
    selection: from the number of training examples of each class [c], the metric that selects in this run, and the
    class that it describes, if it is of one.
    ranks: whether scores of the global test graph order examples, as `Client.ranks` is for clients' scores.
    """

    clients: tuple[str, ...]
    classes: int
    dtype: torch.dtype
    device: torch.device
    test: Graph | None
    held: Mapping[str, Graph]
    rounds: int = 0
    pairs: Mapping[str, Tensor] = MappingProxyType({})
    initial: "Callable[[Tree, Sequence[str]], Tree] | None" = None
    selection: Callable[[np.ndarray], tuple[str, int]]
    ranks: Ordering = "all"

    @cached_property
    def place(self) -> Mapping[str, int]:
        """{client: its place among all}, computed once."""
        return {client: at for at, client in enumerate(self.clients)}

    def start_weights(self, w: Tree, clients: Sequence[str] = ()) -> Tree:
        """Fresh weights, or an earlier run's weights if there is one; with `clients`, a row of them for each."""
        weights = map_leaves(lambda leaf: leaf.expand(len(clients), *leaf.shape).clone(), w) if clients else w
        return weights if self.initial is None else self.initial(weights, clients)

    def map(
        self,
        step: Step,
        shared: Tree | None = None,
        each: Mapping[str, Tree] | Stacked | None = None,
        clients: Sequence[str] | None = None,
        quorum: float = 1.0,
        received: Sent | None = None,
    ) -> Replies:
        """Run `step` on `clients` (all if None) with the message `shared | each[client]`, where `each` is a tree per
        client or, better, `Stacked` trees.

        quorum: the share of the called clients that must reply. received: the result of `send`; the step runs on the
        clients who sent, or on those among `clients`. Each message has "received", {"0": tree, "1": …}, one tree from
        each peer in the order of `sources`, and "present", bool [peers]; an absent peer's tree is zeros.

        Raises:
            ClientsMissing: fewer replied; names the absent ones.
            StepFailed: the step raised; names step and client.
            ReplyRefused: a reply is not a tree, or holds a key that the step does not declare.
        """
        return self.answer(Call("map", step, shared, each, clients, quorum, received))

    def send(
        self,
        step: Step,
        to: Mapping[str, Sequence[str]],
        shared: Tree | None = None,
        each: Mapping[str, Tree] | Stacked | None = None,
        quorum: float = 1.0,
    ) -> Sent:
        """Run `step` on the clients that `to` names and deliver each one's reply to its peers `to[client]`, not to the
        server, which learns its names, shapes and size.

        The step is declared for peers. Peers must be among those called, and each must have the same number of senders.
        Each peer gets the whole reply or, with an `addressed` step, its own tree. Otherwise as `map`.
        """
        return self.deliver(Call("send", step, shared, each, list(to), quorum, None, to))

    def replace_data(
        self,
        step: Step,
        shared: Tree | None = None,
        each: Mapping[str, Tree] | Stacked | None = None,
        clients: Sequence[str] | None = None,
        quorum: float = 1.0,
        received: Sent | None = None,
    ) -> Replies:
        """Run `step`, which `replaces_data`, on `clients`: the "graph" (`DATA`) in its reply is its client's data from
        the next call on. Without a graph the data stays as it is. The rest of the reply is sent.

        The new graph has the features, classes and dtype of the old one (`core.graph.graph_like` makes such a graph),
        and behind the features the `columns` that the step declares; existing nodes keep their numbers, and new ones
        come after them. If the number of rows changes, the step must adapt the rows of `client.state`. The engine keeps
        the data, and its version, with the client's state. Otherwise as `map`.

        Raises:
            DataError: a client's new graph is invalid; names client and fault. Between organizations that site is
                missing instead.
        """
        return self.answer(Call("replace_data", step, shared, each, clients, quorum, received))

    def recording(self) -> AbstractContextManager[None]:
        """A context in which the engine, if it traces steps, also traces what the server computes in every round
        (`learn.compute_on_server`)."""
        return nullcontext()

    @abstractmethod
    def answer(self, call: Call) -> Replies:
        """Carry out a `map` or a `replace_data`."""

    @abstractmethod
    def deliver(self, call: Call) -> Sent:
        """Carry out a `send`."""

    @abstractmethod
    def key(self, purpose: str) -> Tensor:
        """The server's randomness in this round for `purpose`."""
