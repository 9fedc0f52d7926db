"""A run and its directory: written so that a run killed at any moment resumes to the same final numbers.

Every file is replaced as a whole. metrics.parquet and ledger.parquet only grow, while a run goes on also by files
in separate files (`saving.Growing`). They are written before the checkpoint, which notes how many of their rows
belong to it; resuming cuts off the rest.
"""

import json
import logging
import math
import resource
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core import plugins
from fedweave.core.graph import TEST
from fedweave.core.types import CLASS, Record
from fedweave.datasets.contents import check_same, digests
from fedweave.errors import UserError
from fedweave.experiment.build import Built, build
from fedweave.experiment.config import Config, to_toml
from fedweave.experiment.requirements import check_training_examples
from fedweave.experiment.rounds import RoundResult, train
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.data_form import form_of_config, write_form
from fedweave.experiment.runs.files import (
    CHECKPOINT,
    CONFIG,
    EARLIER_LEDGER,
    KINDS,
    LEDGER,
    METRICS,
    OF_MODEL,
    PARTITION,
    SUMMARY,
    damage_error,
    lock,
    plain_errors,
    read_table,
    remove_leftovers,
    remove_run,
    write,
    write_table,
)
from fedweave.experiment.runs.link_references import link_references
from fedweave.experiment.runs.resuming import (
    Interrupted,
    Stop,
    check_replaceable,
    check_rounds,
    examine,
    recover,
    replacing,
)
from fedweave.experiment.runs.saving import Growing, Ready, RunFiles, Sites, lasting
from fedweave.experiment.runs.trained import partition_columns
from fedweave.experiment.runs.warm import Begun, begin, earlier_ledgers
from fedweave.experiment.runs.without_graph import rows_of, without_graph
from fedweave.metrics.measured import METRICS_SCHEMA
from fedweave.metrics.selection import TARGET_SPREAD, Judging
from fedweave.partition.scaling import distance_of_targets
from fedweave.privacy.accountant import bounds

_LOG = logging.getLogger(__name__)


class RunObserver(Protocol):
    """Gets the events of a run; the caller of `run` passes one in."""

    def begin(self, config: Config, built: Ready, directory: Path, done: int) -> None:
        """Training is about to start after `done` rounds."""

    def step(self, reached: Checkpoint) -> None:
        """A round is done; `reached` has its number, the seconds so far and the summary of its evaluation, if any."""

    def stopping(self, number: int) -> None:
        """Signal `number` asked to stop; the round is being finished."""

    def end(self) -> None:
        """Training is over, or has failed."""


def simulated(config: Config) -> Built:
    """`build`, for an engine that runs in this process.

    Raises:
        UserError: the configuration asks for a federation of sites.
    """
    if config.between_sites:
        raise UserError(
            f"engine.name is {config.engine.name!r}, but this command needs all clients in one process. Set "
            "engine.name = 'simulation'. Sites are trained with `fedweave sites run CONFIG.toml --sites DIR`."
        )
    return build(config)


def _write_found(directory: Path, built: Built) -> None:
    """Write tables of precomputed client features, with the names of the kinds of nodes and edges in their metadata
    (`files.KINDS`)."""
    kinds = [json.dumps(names) for names in (built.data.node_kinds, built.data.edge_kinds)]
    for finder in built.algorithm.finders if built.precomputed else ():
        for name, table in finder.tables(built.precomputed).items():
            output = table.replace_schema_metadata(dict(zip(KINDS, kinds, strict=True)))
            write_table(directory / f"{name}.parquet", output)


@dataclass(frozen=True)
class RunBackend:
    """The parts of a run that depend on where it runs; by default, on this process only.

    build: everything that the run needs. columns: of partition.parquet. noted: (federation, round) -> further
    rows of metrics.parquet, or None. stop: who may ask it to stop. source: digests that identify its data later.
    before: federation -> the clients' states and data after the last whole round, None if they cannot go back to it;
    saved where a round fails. earlier: the directory of the run that `init_from` names.
    """

    build: Callable[[Config], Any] = simulated
    columns: Callable[[Any], Record] = partition_columns
    noted: Callable[[Any, int], pa.Table | None] = lambda fed, round: None
    stop: Stop | None = None
    source: Callable[[Any], dict[str, str]] = lambda built: digests(built.data)
    before: Callable[[Any], Sites | None] = lambda fed: None
    earlier: Callable[[str], Path] = Path


def run(
    config: Config,
    directory: Path,
    watch: RunObserver,
    resume: bool = False,
    here: RunBackend | None = None,
    overwrite: bool = False,
) -> Record:
    """Run `config`, or continue it, and return the content of summary.json; a finished run is left as it is.

    overwrite: replace the run that `directory` holds; if the new one ends before it has saved a round, it is put back.

    Raises:
        UserError: `directory` holds something else or is being written; nothing has been written then.
        Exception: any error of a step; a simulation that has saved no round then leaves no files.
        Interrupted: SIGINT or SIGTERM came; the round was finished and saved, unless the signal came twice.
    """
    rounds = running(config, directory, watch, resume, here, overwrite)
    while True:
        try:
            next(rounds)
        except StopIteration as done:
            summary: Record = done.value
            return summary


def running(
    config: Config,
    directory: Path,
    watch: RunObserver,
    resume: bool = False,
    here: RunBackend | None = None,
    overwrite: bool = False,
) -> Generator[RoundResult, None, Record]:
    """Yield the rounds of a run as they are done (see `run`) and return the summary; if you stop asking for rounds, the
    rounds done are saved."""
    recover(directory)
    if overwrite:
        check_replaceable(directory)
    elif finished := examine(config, directory, resume):
        return finished
    here = here or RunBackend()
    built = here.build(config)
    with ExitStack() as stack:
        stack.enter_context(closing(built))
        columns = here.columns(built)
        check_training_examples(columns["train"])  # before the directory is made
        judging = config.evaluation.of(built.data.labels, built.data.classes, built.data.target)
        origin = _warm_start(config, built, directory, here, overwrite)
        stack.enter_context(lock(directory))
        stack.enter_context(replacing(directory) if overwrite else nullcontext())
        if not overwrite:
            examine(config, directory, resume)  # again: now no other process writes
        source = here.source(built) | plugins.digests(config.plain())
        start, metrics = _prepare(config, built, directory, columns, source)
        if origin.ledger is not None:
            write_table(directory / EARLIER_LEDGER, origin.ledger)
        watch.begin(config, built, directory, start.round)
        files = RunFiles(directory, built, metrics, start, source)
        with here.stop or Stop(watch.stopping) as stop:
            try:
                yield from _train(config, judging, built, files, start, stop, watch, here)
            except KeyboardInterrupt as error:
                raise Interrupted(stop.signal or signal.SIGINT, files.saved, config.general.rounds) from error
            except Exception:  # a run that failed before it saved anything has nothing to resume: the place stays free
                if not (files.saved or overwrite) and not config.between_sites:
                    remove_run(directory)
                raise
            finally:
                watch.end()
        summary = _summary(config, built, files, directory, origin.notes)
        write(directory / SUMMARY, lambda file: file.write(json.dumps(summary, indent=2).encode() + b"\n"))
    return summary


def _warm_start(config: Config, built: Ready, directory: Path, here: RunBackend, overwrite: bool) -> Begun:
    """The earlier run that a run begins from, if any, as its federation's start."""
    if (where := config.general.init_from) is None:
        return Begun()
    goes_on, member_algorithms = (
        (directory / CHECKPOINT).exists() and not overwrite,
        built.member_algorithms if isinstance(built, Built) else {},
    )
    try:
        start = begin(built.fed, built.algorithm, built.data, here.earlier(where), member_algorithms)
    except UserError:
        if not goes_on:
            raise
        return Begun()  # the earlier run is gone, and not needed any more
    for note in () if goes_on else start.notes:
        _LOG.warning("note: %s", note)
    return start


def _prepare(
    config: Config, built: Ready, directory: Path, columns: Record, source: dict[str, str]
) -> tuple[Checkpoint, Growing]:
    """Write what is known before training and restore the checkpoint, if there is one."""
    remove_leftovers(directory)
    metrics_file = directory / METRICS
    start, metrics = Checkpoint(), Growing(metrics_file, METRICS_SCHEMA)
    if (directory / CHECKPOINT).exists():
        start = Checkpoint.load(directory / CHECKPOINT)
        check_rounds(start.round, config, directory)
        check_same(start.source, source, directory, "Bring that back, or start again with --overwrite.")
        metrics = Growing.resume(metrics_file, METRICS_SCHEMA, start.metrics, partial(lasting, round=start.round))
        built.fed.ledger.restore(_ledger(directory, start.ledger))
        built.fed.restore(start.fed, start.data)
    write(directory / CONFIG, lambda file: file.write(to_toml(config.plain()).encode()))
    write_table(directory / PARTITION, pa.table(columns))
    if isinstance(built, Built):  # sites alone know theirs
        write_form(directory, form_of_config(config, built.data, built.partition))
        _write_found(directory, built)
    with plain_errors(directory):  # last: only a resume that has begun removes the files of a finished run
        for name in (SUMMARY, *OF_MODEL):  # of fewer rounds than are wanted now
            (directory / name).unlink(missing_ok=True)
    return start, metrics


def _ledger(directory: Path, rows: int) -> pa.Table:
    table = read_table(directory, LEDGER)
    if len(table) < rows:
        raise damage_error(directory / LEDGER, f"it has {len(table)} rows, the checkpoint needs {rows}")
    return table.slice(0, rows)


_BETWEEN = 9  # times as long as the last checkpoint took passes before the next: a tenth of the time is for them


def _train(
    config: Config,
    judging: Judging,
    built: Ready,
    files: RunFiles,
    start: Checkpoint,
    stop: Stop,
    watch: RunObserver,
    here: RunBackend,
) -> Iterator[RoundResult]:
    general, every = config.general, config.engine.values["checkpoint_seconds"]
    start_time, due = time.monotonic() - start.seconds, time.monotonic() + every
    resume = (start.round, start.state) if start.round else None
    length = general.rounds, general.eval_every
    rounds = train(
        built.algorithm,
        built.fed,
        *length,
        resume,
        start.summary,
        general.fair_margin,
        judging,
        config.evaluation.stopping,
    )
    for step in files.saving(rounds, here.before):
        files.add(step.metrics, step.last)
        files.add(here.noted(built.fed, step.round))
        seconds = time.monotonic() - start_time
        summary = step.summary or files.reached.summary
        if step.last and isinstance(built, Built):  # sites' examples are not here
            if built.data.links is not None:
                plain = link_references(built)
            else:
                plain = without_graph(built, judging, config.evaluation.features, summary)
                apart = distance_of_targets(built.data, built.partition) if len(built.fed.clients) > 1 else None
                plain |= {} if apart is None else {TARGET_SPREAD: apart}
            files.add(rows_of(step.round, plain), step.last)
            summary = summary | plain
        files.reach(Checkpoint(step.round, seconds, summary=summary, state=step.state))
        watch.step(replace(files.reached, summary=step.summary))
        last = stop.signal is not None or step.last
        if last or time.monotonic() >= due:
            saving = time.monotonic()
            files.save(whole=last or config.between_sites)  # sites' files are sent one by one
            due = time.monotonic() + (every and max(every, _BETWEEN * (time.monotonic() - saving)))
        if stop.signal is not None and not step.last:
            raise Interrupted(stop.signal, files.saved, general.rounds)
        try:
            yield step
        except GeneratorExit:
            if files.reached.round > files.saved:
                files.save()
            raise


def _summary(config: Config, built: Ready, files: RunFiles, directory: Path, notes: Sequence[str]) -> Record:
    noised = [table.filter(pc.is_valid(table["applied"])) for table in built.fed.ledger.tables()]
    ledger, before, last = pa.concat_tables(noised), earlier_ledgers(directory), files.reached
    spent = _bounded(ledger)
    earlier = config.general.init_from
    start_notes = [f"training began from the weights of the run {earlier}", *notes] if earlier else []
    return {
        "algorithm": config.algorithm.label,
        "dataset": built.data.name,
        **({"classes": list(built.data.labels)} if built.data.labels else {}),
        **({"targets": list(built.data.targets)} if built.data.targets else {}),
        **({"groups": list(built.data.groups)} if built.data.groups else {}),
        **(
            {"note": "; ".join(all_notes)} if (all_notes := [*filter(None, [built.note]), *start_notes]) else {}
        ),  # of what sites hold
        "features": built.data.features,
        "class_count": built.data.classes,
        **({} if built.data.target == CLASS else {"target": built.data.target, "outputs": built.data.outputs}),
        **({"edges": form} if any((form := built.data.edge_form).values()) else {}),
        "clients": len(built.fed.clients),
        **({} if (test := built.fed.test) is None else {"global_test": int(test.masks[TEST].sum())}),
        **({"members": len(built.fed.members)} if built.fed.members else {}),  # of the one client
        **({"devices": list(devices)} if (devices := built.fed.computes_on) else {}),  # sites know their own
        "rounds": last.round,
        **({"stopped": why} if (why := _stopped(config, last)) else {}),
        **({"missed": missed} if (missed := files.missed) else {}),  # rounds, by client
        "seed": config.general.seed,
        "seconds": last.seconds,
        "seconds_per_round": last.seconds / last.round,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "bytes_up": built.fed.ledger.bytes_up,
        "bytes_down": built.fed.ledger.bytes_down,
        **({"bytes_peer": built.fed.ledger.bytes_peer} if built.fed.ledger.bytes_peer else {}),
        "bytes_evaluation": built.fed.ledger.bytes_evaluation,
        **({"init_from": earlier} if earlier else {}),
        **({"privacy": spent} if spent else {}),
        **({"privacy_total": _bounded(*before, ledger)} if before else {}),  # with the runs that it began from
        "metrics": {name: _finite(value) for name, value in last.summary.items()},
    }


def _stopped(config: Config, last: Checkpoint) -> str:
    """Why the run ended before its last round; "" if it did not."""
    stopping = config.evaluation.stopping
    early = last.round < config.general.rounds and stopping.stops(last.round, last.summary)
    return stopping.sentence(last.round, last.summary) if early else ""


def _bounded(*ledgers: pa.Table) -> list[Record]:
    """The ε of ledgers, one after the other, as JSON."""
    return [{key: _finite(value) for key, value in asdict(bound).items()} for bound in bounds(*ledgers)]


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
