"""An algorithm under test, and its runs on a small federation."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch

from fedweave.algorithms.preset import Preset
from fedweave.contract import federations
from fedweave.core.algorithm import Algorithm, Capabilities, Engine, capabilities, give_defaults
from fedweave.core.federation import DATA, Call, Client, Step
from fedweave.core.graph import SPLITS, TRAIN, Graph
from fedweave.core.graph_arrays import graph_tree, tree_graph
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, decode, encode, leaves
from fedweave.core.types import Record, Values
from fedweave.engines.engine import LocalEngine
from fedweave.engines.loop import Loop
from fedweave.engines.sharded import Shard, Sharded, Worker, deal
from fedweave.engines.simulation import Simulation
from fedweave.engines.vectorized import Vectorized
from fedweave.errors import ConfigError
from fedweave.experiment.config import check_name, field_parameters
from fedweave.experiment.rounds import RoundResult, train
from fedweave.models import MODELS
from fedweave.ops.recording import When


class RecordingEngine(LocalEngine):
    """Stores every call's replies, also those to other clients, as `heard`, and {round: names of the called steps} as
    `ran`."""

    @cached_property
    def heard(self) -> list[Replies]:
        """All replies, in the order of the calls."""
        return []

    @cached_property
    def ran(self) -> dict[int, list[str]]:
        """All steps, in the order of the calls."""
        return {}

    def answer(self, call: Call) -> Replies:
        replies = super().answer(call)
        self.heard.append(replies)
        self.ran.setdefault(self.round, []).append(call.name)
        return replies


class RecordingSimulation(RecordingEngine, Simulation):
    """A simulation that stores all replies."""


class ShardedRecorder(RecordingEngine):
    """Clients dealt to `shards` executors, which exchange only bytes with the engine; each has its own algorithm, which
    `rebuild` makes."""

    def __init__(
        self,
        graphs: Mapping[str, Graph],
        *,
        classes: int,
        shards: int,
        rebuild: Callable[[], Algorithm],
        mode: str = "vmap",
        test: Graph | None = None,
        record: When = "auto",
        **options: Any,
    ) -> None:
        self.passed = 0  # bytes
        self.requests: list[str] = []  # methods

        def shard(clients: Sequence[str]) -> Shard:
            shard_graphs = {client: graphs[client] for client in clients}
            kind = partial(Vectorized, record=record) if mode == "vmap" else Loop
            worker = Worker(kind(shard_graphs, classes=classes, test=test), rebuild())

            def channel(method: str, *blobs: bytes) -> Callable[[], bytes]:
                answer = worker.answer(method, *blobs)
                self.passed += len(answer) + sum(map(len, blobs))
                self.requests.append(method)
                return lambda: answer

            return Shard(clients, channel)

        parts = deal({client: graph.nodes for client, graph in graphs.items()}, shards)
        executor, dtype = Sharded(tuple(graphs), [*map(shard, parts)]), next(iter(graphs.values())).x.dtype
        super().__init__(executor, classes=classes, dtype=dtype, test=test, **options)


class BytesEngine(Simulation):
    """Passes only bytes, as between organizations.

    Every message, reply and private state is serialized and parsed; `passed` counts the bytes. Bytes between clients
    count at the receiver.
    """

    def __init__(self, clients: Mapping[str, Graph], **options: Any) -> None:
        self.passed = {"up": 0, "down": 0, "peer": 0}
        super().__init__(clients, **(options | {"mode": "loop"}))

    def answer(self, call: Call) -> Replies:
        return super().answer(replace(call, step=self._through_bytes(call.step, call.way != "send")))

    def _through_bytes(self, step: Step, to_server: bool = True) -> Step:
        def step_on_bytes(client: Client, message: Tree) -> Tree:
            from_peers = {key: message.pop(key) for key in ("received", "present") if key in message}
            peers = {name: encode(tree) for name, tree in from_peers.get("received", {}).items()}
            down = encode(message)
            read = partial(decode, device=client.graph.device)
            client.state = read(encode(client.state))
            if from_peers:
                from_peers["received"] = {name: read(blob) for name, blob in peers.items()}
            reply = step(client, read(down) | from_peers)
            new_data = reply.pop(DATA, None)
            up = encode(reply)
            client.state = read(encode(client.state))
            self.passed["up"] += len(up if to_server else encode({}))
            self.passed["down"] += len(down)
            self.passed["peer"] += sum(map(len, peers.values()))
            parsed: Tree = read(up)
            if new_data is not None:
                parsed[DATA] = tree_graph(decode(encode(graph_tree(new_data)))).to(new_data.device)
            return parsed

        step_on_bytes.__name__ = step.__name__
        step_on_bytes.__self__ = step.__self__  # type: ignore[attr-defined]
        step_on_bytes.on_client = step.on_client  # type: ignore[attr-defined]
        return step_on_bytes


ROUNDS = 3  # steps are recorded in their second round, or at once, and played from then on
SAVED = 1  # the round whose checkpoint is stored
EVERY = 2  # rounds between evaluations
# Batches of two clients leave a batch of one client, and batches differ in their clients.
BATCHES: Record = {"mode": "vmap", "chunk": 2, "record": "never"}
TOGETHER: Record = {"mode": "vmap", "record": "never"}  # all clients at once
HIDDEN = 8


class ContractRun(NamedTuple):
    """The results of a run.

    final: server, clients and summary after its last round. fed: the federation.
    saved: the checkpoint after round `SAVED`. warnings: warnings during the run.
    """

    final: Tree
    fed: Any
    saved: bytes
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Subject:
    """One algorithm, and its runs, which several laws share.

    kind: makes the algorithm from a model. values: its settings; they override the `test_settings` of its class, and
    one local step. model: settings of the model, including its "name".
    """

    kind: Any
    values: Values = field(default_factory=dict)
    model: Values = field(default_factory=dict)
    _runs: dict[tuple[object, ...], ContractRun] = field(default_factory=dict, compare=False, repr=False)

    @property
    def exemptions(self) -> Mapping[str, str]:
        """{law: why it does not hold}, which the algorithm's class declares as `exempt_laws`."""
        laws: Mapping[str, str] = getattr(_class(self.kind), "exempt_laws", {})
        return laws

    @cached_property
    def needs(self) -> Capabilities:
        """The algorithm's needs of the data; parts may need groups of people too."""
        declared = capabilities(self.kind)
        return replace(declared, sensitive=declared.sensitive or self._build_for(declared).needs.sensitive)

    def __post_init__(self) -> None:
        if isinstance(self.kind, type):
            give_defaults(self.kind)
        for name in small_settings(self.kind).keys() - {"model"}:  # a class may fix a setting of its parent
            if not self.takes(name) and name not in getattr(_class(self.kind), "__dataclass_fields__", {}):
                raise ConfigError(f"test_settings: there is no setting {name!r}.")

    def takes(self, *names: str) -> bool:
        """Whether the algorithm has all these settings."""
        return set(names) <= field_parameters(self.kind).keys()

    def build(self, dropout: float = 0.5, **values: object) -> Algorithm:
        """The algorithm with a small model; `values` override its own settings."""
        return self._build_for(self.needs, dropout, **values)

    def _build_for(self, needs: Capabilities, dropout: float = 0.5, **values: object) -> Algorithm:
        defaults: Record = {"local_steps": 1, **small_settings(self.kind)}
        choice = defaults.pop("model", needs.model or ("gin" if needs.graph_level else "gcn"))
        options: Record = (choice if isinstance(choice, dict) else {"name": choice}) | dict(self.model)
        name = options.pop("name")
        check_name("test_settings: model", name, MODELS)
        options |= {"pool": "sum"} if needs.graph_level else {}
        model = MODELS[name](hidden=HIDDEN, layers=2, dropout=dropout, **options).build(*federations.shape(needs))
        supported = {name: value for name, value in defaults.items() if self.takes(name)}
        try:
            algorithm: Algorithm = self.kind(model, **(supported | dict(self.values) | values))
            return algorithm
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the algorithm refuses its settings: {error}", code="config.contract") from error

    def graphs(
        self,
        dtype: torch.dtype = torch.float32,
        changed: int | None = None,
        idle: int | None = None,
        halved: bool = False,
    ) -> dict[str, Graph]:
        """{client: graph}; client `changed` holds other data, and client `idle` has no training examples. halved:
        clients have half of the features each, so that weights of the others are trained for all at once."""
        graphs = federations.graphs(dtype, changed, self.needs, halved, self.build().finders)
        if idle is not None:
            graph = graphs[f"site-{idle}"]
            splits = torch.arange(len(SPLITS), device=graph.masks.device)[:, None]
            graphs[f"site-{idle}"] = graph._replace(masks=graph.masks & (splits != TRAIN))
        return graphs

    def federation(
        self, engine: type[LocalEngine] = RecordingSimulation, dtype: torch.dtype = torch.float32, **options: Any
    ) -> Any:
        """Five clients of different sizes, on an engine."""
        clients = options.pop("clients", None) or self.graphs(dtype)
        return federations.federation(engine, dtype, self.needs, clients=clients, **options)

    def run(
        self,
        rounds: int = ROUNDS,
        every: int = EVERY,
        settings: Values | None = None,
        backwards: bool = False,
        halved: bool = False,
        **options: Any,
    ) -> ContractRun:
        """A run, computed on the first request. settings: of the algorithm. backwards: reverses the clients' order.
        halved: see `graphs`. options: the engine's; the default is a `RecordingSimulation` that runs one client at a
        time."""
        options = {"mode": "loop", **options}
        engine_options = sorted((name, str(value)) for name, value in options.items())
        key = rounds, every, str(settings), backwards, halved, *engine_options
        if key not in self._runs:
            graphs = self.graphs(options.get("dtype", torch.float32), halved=halved)
            options["clients"] = dict(reversed(graphs.items())) if backwards else graphs
            self._runs[key] = self._run(rounds, every, settings or {}, options)
        return self._runs[key]

    def _run(self, rounds: int, every: int, settings: Values, options: Record) -> ContractRun:
        fed, saved = self.federation(**options), b""
        with _warnings() as warnings:
            for step in train(self.build(**settings), fed, rounds, every):
                saved = checkpoint(step, fed) if step.round == SAVED else saved
        return ContractRun(everything(step, fed), fed, saved, tuple(warnings))

    def loop_run(self) -> ContractRun:
        """The run of clients one after the other, which is the specification."""
        return self.run(mode="loop")

    def batch_run(self) -> ContractRun:
        """The run of clients in batches, computed as written."""
        return self.run(**BATCHES)

    def replay_run(self) -> ContractRun:
        """The run of these batches in steps that are recorded at once and then played."""
        return self.run(**BATCHES | {"record": "always"})

    def vmap_run(self) -> ContractRun:
        """The run of all clients at once, computed as written."""
        return self.run(**TOGETHER)

    def bytes_run(self) -> ContractRun:
        """The run of clients that exchange only bytes with the server."""
        return self.run(engine=BytesEngine)

    def shard_run(self, shards: int) -> ContractRun:
        """The run of clients dealt to several executors, which exchange only bytes with the engine."""
        return self.run(**self.shard_options(shards))

    def shard_options(self, shards: int) -> Record:
        """Options of an engine with several executors, each with its own algorithm."""
        return {"engine": ShardedRecorder, "mode": "vmap", "shards": shards, "rebuild": self.build}

    def resume(
        self, before: ContractRun, algorithm: Algorithm, every: int = EVERY, **options: object
    ) -> Iterator[tuple[RoundResult, Engine]]:
        """(result of a round, its federation) of the rounds after a run's checkpoint, in a new federation."""
        tree, fed = decode(before.saved), self.federation(**(TOGETHER | options))
        fed.restore(tree.get("clients", {}), tree.get("data"))
        for step in train(algorithm, fed, ROUNDS, every, (SAVED, tree.get("state", {}))):
            yield step, fed


def small_settings(kind: object) -> Values:
    """What an algorithm's class, or a preset's, declares as `test_settings`; empty if it declares none."""
    settings: Values = getattr(_class(kind), "test_settings", {})
    return settings


def _class(kind: object) -> object:
    return kind.paper if isinstance(kind, Preset) else kind


def checkpoint(step: RoundResult, fed: Engine) -> bytes:
    """All data that a resumed run needs."""
    return encode({"state": step.state, "clients": fed.snapshot(), "data": fed.snapshot_data()})


def everything(step: RoundResult, fed: Engine) -> Tree:
    """All results of a run after a round."""
    return {"server": step.state, "clients": fed.snapshot(), "summary": dict(step.summary)}


def distance(a: Tree, b: Tree) -> float:
    """The largest difference between two trees; infinite if names or shapes differ."""
    flat_a, flat_b = dict(leaves(a)), dict(leaves(b))
    if flat_a.keys() != flat_b.keys():
        return float("inf")
    pairs = [(_host(x), _host(flat_b[path])) for path, x in flat_a.items()]
    gaps = [float((x - y).abs().max()) if x.shape == y.shape else float("inf") for x, y in pairs if x.numel()]
    return max(gaps, default=0.0)


def _host(leaf: object) -> torch.Tensor:
    return torch.as_tensor(leaf, device="cpu").double()


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """fedweave's warnings during the block, such as steps that could not be recorded."""
    messages: list[str] = []
    logger, handler = logging.getLogger("fedweave"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
