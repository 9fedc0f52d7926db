"""A run and its directory: written so that a run killed at any moment resumes to the same final numbers.

Every file is replaced as a whole. metrics.parquet and ledger.parquet only grow and are written before the checkpoint,
which notes how many of their rows it stands for; what is beyond is cut off on resuming.
"""

import errno
import fcntl
import hashlib
import json
import math
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from fedweave.build import Built, build, client_ids
from fedweave.config import Config, differences, dumps, load
from fedweave.core.tree import Tree, decode, encode, leaves, nest
from fedweave.errors import FedweaveError, ReplyRefused, UserError
from fedweave.partition.statistics import statistics
from fedweave.training import METRICS_SCHEMA, train

CONFIG, PARTITION, METRICS, LEDGER = "config.toml", "partition.parquet", "metrics.parquet", "ledger.parquet"
CHECKPOINT, SUMMARY, LOCK = "checkpoint/state.safetensors", "summary.json", ".lock"


class Interrupted(FedweaveError):
    """The run was stopped by `signal` and can be resumed."""

    def __init__(self, number: int, saved: int, rounds: int) -> None:
        self.signal = number
        super().__init__(f"stopped by {signal.Signals(number).name}; {saved} of {rounds} rounds are saved.")


class Watch(Protocol):
    """What a run tells whoever watches it."""

    def begin(self, config: Config, built: Built, directory: Path, done: int) -> None:
        """Training is about to start after `done` rounds."""

    def step(self, reached: "Checkpoint") -> None:
        """A round is done; `reached` has its number, the seconds so far and the last evaluation's summary."""

    def stopping(self, number: int) -> None:
        """Signal `number` asked to stop; the round is being finished."""

    def end(self) -> None:
        """Training is over, for whatever reason."""


@dataclass(frozen=True)
class Checkpoint:
    """All that a run continues from.

    seconds: of training, evaluation and writing so far, over all sessions. metrics, ledger: rows of the two tables that
    belong to it. summary: of the last evaluation. state: the server's. fed: the clients' (`snapshot`).
    """

    round: int = 0
    seconds: float = 0.0
    metrics: int = 0
    ledger: int = 0
    summary: dict[str, float] = field(default_factory=dict)
    state: Tree = field(default_factory=dict)
    fed: Tree = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the one file, with a digest of its content.

        `encode` keeps neither the order of keys nor empty subtrees, so the structure is noted too: sums over leaves
        must run in the same order after resuming.
        """
        tree = {**self.__dict__, "summary": nest(self.summary)}
        tree["structure"] = json.dumps(_structure(tree))
        tree["digest"] = hashlib.sha256(encode(tree)).hexdigest()
        blob = encode(tree)
        write(path, lambda file: file.write(blob))

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        """Read what `save` wrote.

        Raises:
            FedweaveError: the file is damaged.
        """
        with _plain_errors(path):
            blob = path.read_bytes()
        try:
            tree = decode(blob)
            if tree.pop("digest", None) != hashlib.sha256(encode(tree)).hexdigest():
                raise ReplyRefused("its content does not match its digest")
            tree = _arranged(json.loads(tree["structure"]), tree)
            return cls(**{**tree, "summary": dict(leaves(tree["summary"]))})
        except (ReplyRefused, TypeError, KeyError) as error:
            raise damaged(path, str(error)) from error


def run(config: Config, directory: Path, watch: Watch, resume: bool = False) -> dict[str, Any]:
    """Run `config`, or continue it, and return the content of summary.json; a finished run is left as it is.

    Raises:
        UserError: `directory` holds something else or is being written; nothing has been written then.
        Interrupted: SIGINT or SIGTERM came; the round was finished and saved, unless the signal came twice.
    """
    if finished := examine(config, directory, resume):
        return finished
    built = build(config)
    with locked(directory):
        examine(config, directory, resume)  # again: now nobody else writes
        start, metrics = _prepare(config, built, directory)
        watch.begin(config, built, directory, start.round)
        files = _Files(directory, built, metrics, start.round)
        with _Stop(watch) as stop:
            try:
                last = _train(config, built, files, start, stop, watch)
            except KeyboardInterrupt as error:
                raise Interrupted(stop.signal or signal.SIGINT, files.saved, config.general.rounds) from error
            finally:
                watch.end()
        summary = _summary(config, built, last)
        write(directory / SUMMARY, lambda file: file.write(json.dumps(summary, indent=2).encode() + b"\n"))
    return summary


def examine(config: Config, directory: Path, resume: bool) -> dict[str, Any] | None:
    """Check, by reading only, that `config` may be run in `directory`; returns the summary if that is done already.

    Raises:
        UserError: it may not; says why and what to do.
    """
    with _plain_errors(directory):
        if not _holds_something(directory):
            return None
    if not resume:
        raise UserError(
            f"{directory} is not empty. Continue its run with --resume, or choose another directory with --out."
        )
    if not (directory / CONFIG).exists():
        raise UserError(f"{directory} is not the directory of a run: it has no {CONFIG}. Choose another with --out.")
    saved, wanted = load(directory / CONFIG), config.plain()
    changed = [key for key in differences(saved, wanted) if key == "engine.dtype" or not _may_change(key)]
    if changed:
        raise UserError(
            f"{directory} holds another run, which differs in {', '.join(changed)} (see its {CONFIG}). Resume it with "
            "the same settings (rounds, eval_every and [engine] may change, not the dtype), or choose another --out."
        )
    if not (directory / SUMMARY).exists():
        return None
    try:
        with _plain_errors(directory):
            summary: dict[str, Any] = json.loads((directory / SUMMARY).read_text())
        done = summary["rounds"]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(directory / SUMMARY, f"{type(error).__name__} {error}") from error
    return _reached(summary, done, config, directory)


def read_table(directory: Path, name: str) -> pa.Table:
    """One of a run's Parquet files.

    Raises:
        UserError: there is none.
        FedweaveError: it is damaged.
    """
    path = directory / name
    if not path.exists():
        raise UserError(f"there is no {path}; give the directory of a run (the --out of `fedweave run`).")
    with _plain_errors(path):
        blob = path.read_bytes()
    try:
        return pq.read_table(pa.BufferReader(blob))
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, str(error)) from error


def write(path: Path, fill: Callable[[BinaryIO], Any]) -> None:
    """Replace `path` by what `fill` writes, such that after a crash either the old or the new content is there.

    Raises:
        FedweaveError: the disk is full; UserError: the place cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _plain_errors(path):
        try:
            path.parent.mkdir(exist_ok=True)
            with open(temporary, "wb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Create `directory` and keep other processes from writing it; the system frees the lock of a killed process.

    Raises:
        UserError: another process holds it.
    """
    with _plain_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        file = open(directory / LOCK, "a+")  # noqa: SIM115
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise UserError(
                f"process {file.read() or '(unknown)'} is writing {directory}. Wait for it, or choose another --out."
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def damaged(path: Path, reason: str) -> FedweaveError:
    """The error for a file of a run that cannot be read."""
    remedy = "Restore it from a copy, or run again from the start in another directory (--out)"
    return FedweaveError(f"{path} is damaged: {reason}. {remedy}.")


class _Files:
    """Saves what a run has reached."""

    def __init__(self, directory: Path, built: Built, metrics: pa.Table, saved: int) -> None:
        self.directory, self.built, self.saved, self._metrics = directory, built, saved, [metrics]

    def add(self, metrics: pa.Table | None) -> None:
        if metrics is not None:
            self._metrics.append(metrics)

    def save(self, reached: Checkpoint) -> None:
        self._metrics = [pa.concat_tables(self._metrics)]
        ledger = self.built.fed.ledger.table()
        _write_table(self.directory / METRICS, self._metrics[0])
        _write_table(self.directory / LEDGER, ledger)
        fed = self.built.fed.snapshot()
        whole = replace(reached, metrics=len(self._metrics[0]), ledger=len(ledger), fed=fed)
        whole.save(self.directory / CHECKPOINT)
        self.saved = reached.round


class _Stop:
    """Turns the first SIGINT or SIGTERM into a wish to stop after the round, and the second into KeyboardInterrupt."""

    def __init__(self, watch: Watch) -> None:
        self.signal: int | None = None
        self._watch, self._before = watch, {}  # type: ignore[var-annotated]

    def __enter__(self) -> "_Stop":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        self._watch.stopping(number)


def _prepare(config: Config, built: Built, directory: Path) -> tuple[Checkpoint, pa.Table]:
    """Write what is known before training and restore the checkpoint, if there is one."""
    for stray in [*directory.glob(".*.tmp"), *directory.glob("checkpoint/.*.tmp")]:
        stray.unlink()
    start, metrics = Checkpoint(), METRICS_SCHEMA.empty_table()
    if (directory / CHECKPOINT).exists():
        start = Checkpoint.load(directory / CHECKPOINT)
        _reached({}, start.round, config, directory)
        metrics = _cut(directory, METRICS, start.metrics)
        built.fed.ledger.restore(_cut(directory, LEDGER, start.ledger))
        built.fed.restore(start.fed)
    (directory / SUMMARY).unlink(missing_ok=True)  # of fewer rounds than are wanted now
    write(directory / CONFIG, lambda file: file.write(dumps(config.plain()).encode()))
    columns = statistics(built.data, built.partition)
    columns["client"] = client_ids(len(columns["client"]))
    _write_table(directory / PARTITION, pa.table(columns))
    return start, metrics


def _train(config: Config, built: Built, files: _Files, start: Checkpoint, stop: _Stop, watch: Watch) -> Checkpoint:
    general, every = config.general, config.engine.values["checkpoint_seconds"]
    began, due = time.monotonic() - start.seconds, time.monotonic() + every
    resume = (start.round, start.state) if start.round else None
    last = start
    for step in train(built.algorithm, built.fed, general.rounds, general.eval_every, resume):
        files.add(step.metrics)
        seconds = time.monotonic() - began
        last = Checkpoint(step.round, seconds, summary=step.summary or last.summary, state=step.state)
        watch.step(last)
        if stop.signal is not None or step.round == general.rounds or time.monotonic() >= due:
            files.save(last)
            due = time.monotonic() + every
        if stop.signal is not None and step.round < general.rounds:
            raise Interrupted(stop.signal, files.saved, general.rounds)
    return last


def _summary(config: Config, built: Built, last: Checkpoint) -> dict[str, Any]:
    return {
        "algorithm": config.algorithm.name,
        "dataset": built.data.name,
        "clients": len(built.fed.clients),
        "rounds": last.round,
        "seed": config.general.seed,
        "seconds": last.seconds,
        "seconds_per_round": last.seconds / last.round,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "bytes_up": built.fed.ledger.bytes_up,
        "bytes_down": built.fed.ledger.bytes_down,
        "metrics": {name: value if math.isfinite(value) else None for name, value in last.summary.items()},
    }


def _structure(tree: Tree) -> dict[str, Any]:
    return {key: _structure(value) if isinstance(value, dict) else None for key, value in tree.items()}


def _arranged(structure: dict[str, Any], tree: Tree) -> Tree:
    """`tree` with its keys in the order of `structure`, empty subtrees included."""
    return {k: tree[k] if below is None else _arranged(below, tree.get(k, {})) for k, below in structure.items()}


def _reached(summary: dict[str, Any], done: int, config: Config, directory: Path) -> dict[str, Any] | None:
    if done > config.general.rounds:
        raise UserError(f"{directory} has done {done} rounds already, more than the {config.general.rounds} asked for.")
    return summary if done == config.general.rounds else None


def _may_change(key: str) -> bool:
    return key in ("rounds", "eval_every") or key.split(".")[0] == "engine"


def _holds_something(directory: Path) -> bool:
    if not directory.is_dir():
        return directory.exists()
    return any(entry.is_file() and entry.name != LOCK and entry.suffix != ".tmp" for entry in directory.rglob("*"))


def _cut(directory: Path, name: str, rows: int) -> pa.Table:
    table = read_table(directory, name)
    if len(table) < rows:
        raise damaged(directory / name, f"it has {len(table)} rows, the checkpoint needs {rows}")
    return table.slice(0, rows)


def _write_table(path: Path, table: pa.Table) -> None:
    write(path, lambda file: pq.write_table(table, file, compression="zstd"))


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    """Say in plain words what the system refused."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            reason = f"the disk is full ({error.strerror})"
            raise FedweaveError(f"{path} cannot be written, {reason}. Free some space and use --resume.") from error
        raise UserError(
            f"{path} cannot be used: {error.strerror or error}. Choose another directory with --out."
        ) from error
