"""Workers on a Ray cluster: one actor each, with a share of the clients.

Messages are configuration documents and packed trees; the part of a message for all clients is stored once per node.
"""

import json
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from fedweave.core.text import counted
from fedweave.core.types import Record, Values
from fedweave.engines.recovery import RecoveringChannel
from fedweave.engines.sharded import Channel, Pending, Shard, Sharded, Worker, deal
from fedweave.errors import ConfigError, FedweaveError, UserError, WorkerLost

Make = Callable[[Record, Sequence[str]], Worker]
_LOCAL = "local"
_INLINE = 100_000  # bytes from which a message is stored on the nodes instead of being sent with each call
_LOOK_SECONDS = 15.0  # how long to wait for a free core that replaces a lost worker's
_ATTEMPTS = "RAY_gcs_server_port_wait_time_s"  # Ray's setting: number of attempts to reach a cluster


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray listen on 127.0.0.1 as requested; by default it takes the machine's address instead, and opens its ports
    to all networks."""
    from ray._private import services

    resolve = getattr(services, "resolve_ip_for_localhost", None)
    if resolve is None:
        raise UserError(
            "this version of Ray cannot be kept to this machine; install ray 2.60, or start a cluster yourself and "
            "name it as engine.address.",
            code="user.ray-start",
        )
    services.resolve_ip_for_localhost = lambda host: host
    try:
        yield
    finally:
        services.resolve_ip_for_localhost = resolve


class RayWorkers:
    """Starts workers on a cluster and releases them.

    address, start_seconds, gpus: see `experiment.config.sections.RayEngine`; gpus is `gpus_per_worker` there.

    Raises:
        UserError: Ray is not installed or does not start, or there is no such cluster.
    """

    def __init__(self, address: str, start_seconds: float, gpus: float = 0.0) -> None:
        if find_spec("ray") is None:
            raise UserError("engine.name = 'ray' needs Ray; install it with `pip install 'fedweave[ray]'`.")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address == _LOCAL and "ray" not in sys.modules:  # Ray reads these variables at import
            # a cluster that this process starts accepts only clients with its token, which is not in a file
            os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        import ray

        self._ray, self._seconds, self._gpus = ray, start_seconds, gpus
        self._folder = tempfile.TemporaryDirectory(prefix="fedweave-workers-")
        self._owns_cluster = not ray.is_initialized()
        if self._owns_cluster:
            self._connect(address)

    def _connect(self, address: str) -> None:
        quiet: Record = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
        if address == _LOCAL:
            local: Record = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
            try:
                with _on_loopback():
                    self._ray.init(address=_LOCAL, num_cpus=os.cpu_count() or 1, **local, **quiet)
            except Exception as error:  # Ray raises many classes here
                raise UserError(
                    f"Ray did not start on this machine ({error}). A busy machine may be too slow for it: try again "
                    "later, or set engine.name = 'simulation'.",
                    code="user.ray-start",
                ) from error
            return
        try:
            with _single_attempt():
                self._ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"engine.address = {address!r}: no Ray cluster answers there ({error}). Start one with `ray start "
                "--head`, or set engine.address = 'local'."
            ) from error

    def count(self, workers: "int | Literal['auto']") -> int:
        """The number of workers to start.

        Raises:
            ConfigError: the cluster has fewer cores, or too few GPUs.
        """
        resources = self._ray.cluster_resources()
        cores = int(resources.get("CPU", 0))
        if self._gpus:
            gpus = float(resources.get("GPU", 0))
            max_workers = int(gpus / self._gpus)
            if max_workers < (1 if workers == "auto" else workers):
                enough_for = counted(max_workers, "worker")
                raise ConfigError(
                    f"engine.gpus_per_worker is {self._gpus:g}, which is enough for {enough_for} on the {gpus:g} GPUs "
                    "of the cluster; lower it, or engine.workers, or take engine.device = 'cpu'."
                )
            cores = min(cores, max_workers)
        if workers == "auto":
            return max(1, cores)
        if workers > cores:
            raise ConfigError(
                f"engine.workers is {workers}, and the cluster has {cores} cores; take {cores} or 'auto'."
            )
        return workers

    def executor(self, make: Make, document: Values, sizes: Mapping[str, int], workers: int) -> Sharded:
        """An executor whose shards are on this number of workers.

        make: builds a worker of some clients from the run's document, in the worker's own process. sizes: {client:
        nodes}, in client order.
        """
        text = json.dumps(document)

        def shard(at: int, clients: Sequence[str]) -> Shard:
            return Shard(clients, self._channel(f"worker {at + 1} ({len(clients)} clients)", make, text, clients, at))

        with ThreadPoolExecutor(workers) as side_by_side:
            shards = list(side_by_side.map(shard, count(), deal(sizes, workers)))
        return Sharded(tuple(sizes), shards, self._shared)

    def call(self, function: Callable[..., Record], *arguments: object, document: Values) -> Record:
        """What a function gives of the run's document and of further arguments, all of them JSON, in a process on some
        node that ends with it. It takes no core: workers wait meanwhile.

        Raises:
            WorkerLost: the process is gone. FedweaveError: the function raised it.
        """
        errors = self._ray.exceptions
        gone = (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError, errors.ObjectLostError)
        once = self._ray.remote(num_cpus=0, max_calls=1, max_retries=0)(_call)
        answer: Record = json.loads(
            _wait_for(self._ray, once.remote(function, json.dumps([document, *arguments])), gone)
        )
        return answer

    def close(self) -> None:
        """Disconnect from the cluster, which ends the workers."""
        if self._owns_cluster:
            self._ray.shutdown()
        self._folder.cleanup()

    def _shared(self, blob: bytes) -> Any:
        return blob if len(blob) < _INLINE else self._ray.put(blob)

    def _channel(self, name: str, make: Make, text: str, clients: Sequence[str], at: int) -> Channel:
        ray = self._ray
        kind = ray.remote(num_cpus=1, num_gpus=self._gpus, max_restarts=0)(RemoteWorker)
        gone = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.OwnerDiedError)
        restarts = False

        def start() -> Channel:
            nonlocal restarts
            place = self._placement(at) if restarts else {}
            actor = kind.options(name=f"fedweave-{uuid4().hex}", **place).remote(make, text, list(clients))
            _wait_for(ray, actor.ready.remote(), gone, self._seconds)
            restarts = True

            def channel(method: str, *blobs: object) -> Pending:
                task = actor.answer.remote(method, *blobs)
                return lambda: _wait_for(ray, task, gone)

            return channel

        return RecoveringChannel(name, start, Path(self._folder.name) / f"{at}")

    def _placement(self, at: int) -> Record:
        """Ray options that place the replacement of a lost worker: on a free core, or on another worker's core if there
        is none, for example after the loss of a machine. GPUs are not shared this way."""
        if self._gpus or self._has_free_core():
            return {}
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        cores = list[str]()  # the node of each core
        for node in self._ray.nodes():
            if node["Alive"]:
                cores += [node["NodeID"]] * int(node["Resources"].get("CPU", 0))
        if not cores:
            return {}
        return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(cores[at % len(cores)], soft=True)}

    def _has_free_core(self) -> bool:
        """Whether a core is free: whether it takes a task. The cluster's own count may include a lost machine's."""
        task = self._ray.remote(num_cpus=1)(_nothing).remote()
        done, _ = self._ray.wait([task], timeout=_LOOK_SECONDS)
        if not done:
            self._ray.cancel(task)
        return bool(done)


def _nothing() -> None:
    """A task that tests whether a core is free."""


@contextmanager
def _single_attempt() -> Iterator[None]:
    """Let Ray try only once to reach a cluster; by default it tries twenty times, 40 s each."""
    if _ATTEMPTS in os.environ:
        yield
        return
    os.environ[_ATTEMPTS] = "1"
    try:
        yield
    finally:
        del os.environ[_ATTEMPTS]


def _wait_for(ray: Any, task: Any, gone: tuple[type[Exception], ...], seconds: float | None = None) -> bytes:
    """A worker's answer.

    Raises:
        WorkerLost: the worker is gone, or not ready in time. FedweaveError: the error that the worker raised.
    """
    try:
        blob, kind, message = ray.get(task, timeout=seconds)
    except gone as error:
        raise WorkerLost(str(error).strip().splitlines()[0]) from error
    except ray.exceptions.GetTimeoutError as error:
        raise WorkerLost(f"it was not ready within {seconds:g} s: has the cluster a free core?") from error
    if kind:
        raise _ERRORS.get(kind, FedweaveError)(message)
    answer: bytes = blob
    return answer


def _errors_by_name(base: type[FedweaveError]) -> dict[str, type[FedweaveError]]:
    errors = {base.__name__: base}
    for kind in base.__subclasses__():
        errors |= _errors_by_name(kind)
    return errors


_ERRORS = _errors_by_name(FedweaveError)


class RemoteWorker:
    """A `Worker` in a separate process; its errors come back by name."""

    def __init__(self, make: Make, text: str, clients: Sequence[str]) -> None:
        self._worker = make(json.loads(text), clients)

    def ready(self) -> tuple[bytes, str, str]:
        """An empty answer: the worker is built."""
        return b"", "", ""

    def answer(self, method: str, *blobs: bytes) -> tuple[bytes, str, str]:
        """(answer, "", ""), or (b"", the error's name, its message)."""
        return _with_error(lambda: self._worker.answer(method, *blobs))


def _call(function: Callable[..., Record], text: str) -> tuple[bytes, str, str]:
    """(the JSON of what a function gives of arguments in JSON, "", ""), or (b"", the error's name, its message)."""
    return _with_error(lambda: json.dumps(function(*json.loads(text))).encode())


def _with_error(answer: Callable[[], bytes]) -> tuple[bytes, str, str]:
    """(answer, "", ""), or (b"", the error's name, its message)."""
    try:
        return answer(), "", ""
    except FedweaveError as error:
        return b"", type(error).__name__, str(error)
