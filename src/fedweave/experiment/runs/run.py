"""A run and its directory: written so that a run killed at any moment resumes to the same final numbers.

Every file is replaced as a whole. metrics.parquet and ledger.parquet only grow, during a run also by separate files
(`saving.Growing`). They are written before the checkpoint, which notes how many of their rows belong to it; resuming
cuts off the rest.
"""

import json
import logging
import math
import resource
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core import plugins
from fedweave.core.graph import TEST
from fedweave.core.types import CLASS, Record
from fedweave.datasets.contents import check_same
from fedweave.errors import FedweaveError, UserError, WorkerLost, listed, option
from fedweave.experiment.build import Built, build
from fedweave.experiment.config import Config, to_toml
from fedweave.experiment.requirements import check_training_examples
from fedweave.experiment.rounds import RoundResult, train
from fedweave.experiment.runs import alone
from fedweave.experiment.runs.alone import SECONDS as ALONE_SECONDS
from fedweave.experiment.runs.alone import AloneResult, MemberResult, is_wanted, train_alone
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.data_form import DataForm, form_of_config, write_form
from fedweave.experiment.runs.files import (
    CHECKPOINT,
    CONFIG,
    EARLIER_LEDGER,
    FOLDS,
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
from fedweave.experiment.runs.fold_runs import out_of_fold
from fedweave.experiment.runs.outputs import has_vectors
from fedweave.experiment.runs.resuming import (
    Interrupted,
    Stop,
    check_replaceable,
    check_rounds,
    examine,
    recover,
    replacing,
)
from fedweave.experiment.runs.saving import LAST_ONLY, Growing, Ready, RunFiles, Sites, rows_to_keep
from fedweave.experiment.runs.shared import measure_once, shared_file
from fedweave.experiment.runs.trained import load_trained, partition_columns
from fedweave.experiment.runs.warm import WarmStart, begin, earlier_ledgers
from fedweave.experiment.shelf import runs as shelves
from fedweave.experiment.shelf.joint import joint_shelf
from fedweave.experiment.shelf.pair_scores import link_references
from fedweave.experiment.shelf.pairs import PairExamples, member_pairs
from fedweave.experiment.shelf.runs import LOCAL, ShelfResult, ShelfValues, shelf_of_run
from fedweave.experiment.work import with_interval
from fedweave.metrics.measured import METRICS_SCHEMA, of_tests
from fedweave.metrics.selection import (
    ALONE,
    SHELF,
    SHELF_JOINT,
    TARGET_SPREAD,
    Judging,
    positive_in,
    selection_metric_of,
)
from fedweave.partition.scaling import distance_of_targets
from fedweave.privacy.accountant import bounds

_LOG = logging.getLogger(__name__)


class RunObserver(Protocol):
    """Gets the events of a run; the caller of `run` passes one in."""

    def begin(self, config: Config, built: Ready, directory: Path, done: int) -> None:
        """Training is about to start after `done` rounds."""

    def step(self, reached: Checkpoint) -> None:
        """A round is done; `reached` has its number, the seconds so far and the summary of its evaluation, if any."""

    def alone(self, done: int, rounds: int) -> None:
        """The same model is trained at each member alone (`experiment.runs.alone`): `done` of at most `rounds` rounds
        are done, 0 as it begins."""

    def stopping(self, number: int) -> None:
        """Signal `number` asked to stop; the round is being finished."""

    def end(self) -> None:
        """Training is over, or has failed."""


class Quiet:
    """Watches a run and prints nothing (`RunObserver`)."""

    def begin(self, config: Config, built: Ready, directory: Path, done: int) -> None:
        pass

    def step(self, reached: Checkpoint) -> None:
        pass

    def alone(self, done: int, rounds: int) -> None:
        pass

    def stopping(self, number: int) -> None:
        pass

    def end(self) -> None:
        pass


class Observers:
    """Several observers of a run as one (`RunObserver`)."""

    def __init__(self, observers: Iterable[RunObserver]) -> None:
        self._observers = tuple(observers)

    def begin(self, config: Config, built: Ready, directory: Path, done: int) -> None:
        for observer in self._observers:
            observer.begin(config, built, directory, done)

    def step(self, reached: Checkpoint) -> None:
        for observer in self._observers:
            observer.step(reached)

    def alone(self, done: int, rounds: int) -> None:
        for observer in self._observers:
            observer.alone(done, rounds)

    def stopping(self, number: int) -> None:
        for observer in self._observers:
            observer.stopping(number)

    def end(self) -> None:
        for observer in self._observers:
            observer.end()


def build_simulation(config: Config) -> Built:
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


@dataclass(frozen=True)
class RunBackend:
    """The parts of a run that depend on where it runs; by default, on this process only.

    build: everything that the run needs. columns: of partition.parquet. extra_metrics: (federation, round) -> further
    rows of metrics.parquet, or None. stop: who may ask it to stop. source: digests that identify its data later.
    ask_alone: (federation, "shelf" or "alone", last round, selection metric, its class or -1, whether to stop) ->
    {member: {metric: value}}, where members measure at home what they reach alone (`sites.flare.baselines`); None if it
    is to stop.
    before: federation -> the clients' states and data after the last whole round, None if they cannot go back to it;
    saved where a round fails. earlier: the directory of the run that `init_from` names.
    """

    build: Callable[[Config], Any] = build_simulation
    columns: Callable[[Any], Record] = partition_columns
    extra_metrics: Callable[[Any, int], pa.Table | None] = lambda fed, round: None
    stop: Stop | None = None
    source: Callable[[Any], dict[str, str]] = lambda built: built.digests
    before: Callable[[Any], Sites | None] = lambda fed: None
    earlier: Callable[[str], Path] = Path
    ask_alone: Callable[[Any, str, int, str, int, Callable[[], bool]], Mapping[str, Record] | None] | None = None


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
    else:
        summary = examine(config, directory, resume)
        if summary is not None:
            return summary
    here = here or RunBackend()
    built = here.build(config)
    with ExitStack() as stack:
        stack.enter_context(closing(built))
        columns = here.columns(built)
        check_training_examples(columns["train"])  # before the directory is made
        declared, config = config, with_interval(config, built)
        judging = config.evaluation.of(built.data.labels, built.data.classes, built.data.target)
        wants_alone = is_wanted(config, built)
        origin = _warm_start(config, built, directory, here, overwrite)
        stack.enter_context(lock(directory))
        if overwrite:
            stack.enter_context(replacing(directory))
        else:
            examine(config, directory, resume)  # again: now no other process writes
        source = here.source(built) | plugins.digests(config.plain())
        start, metrics = _prepare(declared, built, directory, columns, source)
        if origin.ledger is not None:
            write_table(directory / EARLIER_LEDGER, origin.ledger)
        watch.begin(declared, built, directory, start.round)
        files = RunFiles(directory, built, metrics, start, source)
        with here.stop or Stop(watch.stopping) as stop:
            try:
                yield from _train(config, judging, built, files, start, stop, watch, here)
                peak_memory = _peak_memory()
                if here.ask_alone is not None:
                    _add_shelves_at_home(config, built, files, here, stop)
                if wants_alone:
                    _add_alone(config, judging, built, files, stop, watch, here)
                if config.evaluation.joint_columns and isinstance(built, Built):
                    _add_joint_columns(config, judging, built, files, directory)
            except KeyboardInterrupt as error:
                raise Interrupted(stop.signal or signal.SIGINT, files.saved, config.general.rounds) from error
            except Exception:  # a run that failed before it saved anything has nothing to resume: the place stays free
                if not (files.saved or overwrite) and not config.between_sites:
                    remove_run(directory)
                raise
            finally:
                watch.end()
        if files.shelf is None and isinstance(built, Built):  # a session before this one ended just before its summary
            files.shelf = _measure_shelf(config, judging, built, files, stop, files.reached.summary).facts()
        summary = _summary(config, built, files, directory, origin.notes, peak_memory)
        write(directory / SUMMARY, lambda file: file.write(json.dumps(summary, indent=2).encode() + b"\n"))
    return summary


def _warm_start(config: Config, built: Ready, directory: Path, here: RunBackend, overwrite: bool) -> WarmStart:
    """The earlier run that a run begins from, if any, as its federation's start."""
    if config.general.init_from is None:
        return WarmStart()
    resumes = (directory / CHECKPOINT).exists() and not overwrite
    member_algorithms = built.member_algorithms if isinstance(built, Built) else {}
    try:
        start = begin(built.fed, built.algorithm, built.data, here.earlier(config.general.init_from), member_algorithms)
    except UserError:
        if not resumes:
            raise
        return WarmStart()  # the earlier run is gone, and not needed any more
    if not resumes:
        for note in start.notes:
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
        check_same(
            start.source, source, directory, f"Bring that back, or start again with {option('overwrite', True)}."
        )
        stopped = config.evaluation.stopping.stops(start.round, start.summary)
        again: Sequence[str] = LAST_ONLY  # metrics that are measured again
        if start.round == config.general.rounds or stopped:
            of_shelves = any(name.startswith(f"{SHELF}/") for name in start.summary)
            known = {ALONE: ALONE_SECONDS in start.summary, SHELF: of_shelves}
            again = (SHELF_JOINT, *(what for what in known if not known[what]))
        keep = partial(rows_to_keep, round=start.round, again=again)
        metrics = Growing.resume(metrics_file, METRICS_SCHEMA, start.metrics, keep)
        ledger = read_table(directory, LEDGER)
        if len(ledger) < start.ledger:
            reason = f"it has {len(ledger)} rows, the checkpoint needs {start.ledger}"
            raise damage_error(directory / LEDGER, reason)
        built.fed.ledger.restore(ledger.slice(0, start.ledger))
        built.fed.restore(start.fed, start.data)
    write(directory / CONFIG, lambda file: file.write(to_toml(config.plain()).encode()))
    write_table(directory / PARTITION, pa.table(columns))
    if isinstance(built, Built):  # only sites know theirs
        facts = built.facts
        form = form_of_config(config, built.data, built.partition) if facts is None else DataForm(**facts.form)
        write_form(directory, form)
        if built.precomputed:
            # tables of precomputed client features, with the names of the kinds of nodes and edges in their metadata
            kind_names = json.dumps(built.data.node_kinds), json.dumps(built.data.edge_kinds)
            metadata = dict(zip(KINDS, kind_names, strict=True))
            for finder in built.algorithm.finders:
                for name, table in finder.tables(built.precomputed).items():
                    write_table(directory / f"{name}.parquet", table.replace_schema_metadata(metadata))
    with plain_errors(directory):  # last: only a resume that has begun removes the files of a finished run
        for name in (SUMMARY, *OF_MODEL):  # of fewer rounds than the run has now
            (directory / name).unlink(missing_ok=True)
    return start, metrics


_PAUSE = 9  # times as long as the last checkpoint took passes before the next: a tenth of the time is for them


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
    """Train round after round, and save every few seconds what the rounds gave."""
    general, interval = config.general, config.engine.values["checkpoint_seconds"]
    start_time = time.monotonic() - start.seconds
    due = time.monotonic() + interval
    rounds = train(
        built.algorithm,
        built.fed,
        general.rounds,
        general.eval_every,
        (start.round, start.state) if start.round else None,
        start.summary,
        general.fair_margin,
        judging,
        config.evaluation.stopping,
        best=(files.best["round"], files.best["state"]) if start.round else None,
    )
    for step in files.save_if_failing(rounds, here.before):
        files.add(step.metrics, step.last)
        if step.reranked is not None:
            files.replace(step.reranked)
        files.add(here.extra_metrics(built.fed, step.round))
        seconds = time.monotonic() - start_time
        summary = step.summary or files.reached.summary
        if step.last and isinstance(built, Built):  # sites' examples are not here
            links = None if built.data.links is None else member_pairs(built.data, built.partition)
            shelf = _measure_shelf(config, judging, built, files, stop, summary, links)
            references = dict(shelf.metrics)
            if links is not None:
                references |= link_references(built, links)
            distance = None
            if built.data.links is None and len(built.fed.clients) > 1:
                distance = distance_of_targets(built.data, built.partition)
            if distance is not None:
                references[TARGET_SPREAD] = distance
            files.add(pa.concat_tables([of_tests(step.round, references), shelf.rows(step.round)]), step.last)
            files.shelf = shelf.facts()
            summary = summary | references
        files.reach(Checkpoint(step.round, seconds, summary=summary, state=step.state))
        watch.step(replace(files.reached, summary=step.summary))
        last = stop.signal is not None or step.last
        if last or time.monotonic() >= due:
            before = time.monotonic()
            files.save(whole=last or config.between_sites)  # sites' files are sent one by one
            duration = time.monotonic() - before
            due = time.monotonic() + (max(interval, _PAUSE * duration) if interval else 0)
        if stop.signal is not None and not step.last:
            raise Interrupted(stop.signal, files.saved, general.rounds)
        try:
            yield step
        except GeneratorExit:
            if files.reached.round > files.saved:
                files.save()
            raise


def _measure_shelf(
    config: Config,
    judging: Judging,
    built: Built,
    files: RunFiles,
    stop: Stop,
    summary: Record,
    links: Mapping[str, PairExamples] | None = None,
) -> ShelfResult:
    """What members reach alone with the tools on their shelf; of a sweep, as an earlier run with the same data, split
    and seed has measured it. links: see `shelf_of_run`."""
    enabled, seed = config.evaluation.shelf, config.general.seed
    if enabled is False:
        return ShelfResult()
    settings = shelves.sharing_settings(config, judging, summary)
    path = shared_file(files.directory, "shelf", built, files.source, settings)

    def measure() -> ShelfResult:
        return shelf_of_run(built, judging, enabled, summary, seed, links)

    try:
        result = measure_once(path, measure, lambda record: ShelfResult(**record), lambda: stop.signal is not None)
    except WorkerLost as error:
        _LOG.warning("note: it could not be measured what members reach with the tools on their shelf: %s", error)
        return ShelfResult()
    return result or ShelfResult()


def _ask_members(
    kind: str, built: Ready, reached: Checkpoint, here: RunBackend, stops: Callable[[], bool]
) -> Mapping[str, Record] | None:
    """What members tell of what they reach alone (`RunBackend.ask_alone`)."""
    if here.ask_alone is None:
        return {}
    metric, positive = selection_metric_of(reached.summary), positive_in(reached.summary)
    return here.ask_alone(built.fed, kind, reached.round, metric, -1 if positive is None else positive, stops)


def _add_shelves_at_home(config: Config, built: Ready, files: RunFiles, here: RunBackend, stop: Stop) -> None:
    """Add what members tell of their shelves to the run's metrics, unless it has that."""
    reached = files.reached
    known = any(name.startswith(f"{SHELF}/") for name in reached.summary)
    if config.evaluation.shelf is False or known:
        return
    try:
        values = _ask_members(SHELF, built, reached, here, lambda: stop.signal is not None)
    except FedweaveError as error:
        _LOG.warning("note: what members reach alone on their shelf could not be asked: %s", error)
        return
    if values is None:
        raise Interrupted(stop.signal or signal.SIGINT, files.saved, config.general.rounds)
    shelf = shelves.result_of(ShelfValues({LOCAL: dict(values)}, {}), SHELF, built.data, 0.0)
    if shelf.metrics:
        _add_after_last_round(files, _rows_of_shelf(shelf, reached.round), shelf.metrics)


def _rows_of_shelf(shelf: ShelfResult, round: int) -> pa.Table:
    return pa.concat_tables([of_tests(round, shelf.metrics), shelf.rows(round)])


def _add_after_last_round(files: RunFiles, rows: pa.Table, metrics: dict[str, float]) -> None:
    """Add what is measured after the last round to its rows and to the summary, and save it."""
    files.add(rows, last=True)
    files.reached = replace(files.reached, summary=files.reached.summary | metrics)
    files.save()


def _add_alone(
    config: Config,
    judging: Judging,
    built: Ready,
    files: RunFiles,
    stop: Stop,
    watch: RunObserver,
    here: RunBackend,
) -> None:
    """Add what each member has without the others to the run's metrics, unless they have it: only a run that was killed
    later is here again."""
    reached = files.reached
    if ALONE_SECONDS in reached.summary:
        return

    def stops() -> bool:
        return stop.signal is not None

    def measure() -> AloneResult | None:
        if stops():
            return None
        if isinstance(built, Built):
            return train_alone(config, built, judging, reached.summary, watch.alone, stops)
        began, values = time.monotonic(), _ask_members(ALONE, built, reached, here, stops)
        if values is None:
            return None
        members = {client: MemberResult(test=dict(metrics)) for client, metrics in values.items()}
        return AloneResult(members, time.monotonic() - began)

    try:
        if isinstance(built, Built):
            path = shared_file(files.directory, "alone", built, files.source, alone.sharing_settings(config, built))
            result = measure_once(path, measure, AloneResult.of_record, stops)
        else:
            result = measure()
    except FedweaveError as error:
        _LOG.warning("note: the same model could not be trained at each member alone: %s", error)
        return
    if result is None:
        raise Interrupted(stop.signal or signal.SIGINT, files.saved, config.general.rounds)
    _add_after_last_round(files, result.rows(reached.round, selection_metric_of(reached.summary)), result.means)
    if files.diverged_alone:
        _LOG.warning("note: %s", _diverged_alone_note(files.diverged_alone))


def _diverged_alone_note(members: Sequence[str]) -> str:
    verb = "has no result and is not" if len(members) == 1 else "have no result and are not"
    return f"training alone diverged at {listed(members)}, which {verb} in the means of training alone"


def _add_joint_columns(config: Config, judging: Judging, built: Built, files: RunFiles, directory: Path) -> None:
    """Add what members reach that read the joint model's columns with their tools, after further runs."""
    count, reached = config.evaluation.joint_columns, files.reached
    _LOG.warning("note: evaluation.joint_columns = %d: training %d further runs in %s", count, count, directory / FOLDS)
    trained = load_trained(directory, config, "", "last" if files.best_round is None else "best")
    with_vectors = has_vectors(trained)

    def train_fold(experiment: Config, folder: Path) -> None:
        run(experiment, folder, Quiet(), resume=True)

    try:
        predictions = out_of_fold(trained, count, train_fold, with_vectors=with_vectors).predictions
    except Interrupted:
        raise
    except FedweaveError as error:
        _LOG.warning("note: it could not be measured what joint columns bring: %s", error)
        return
    enabled, seed = config.evaluation.shelf or "auto", config.general.seed
    shelf = joint_shelf(built, predictions, judging, enabled, reached.summary, seed)
    files.shelf_joint = shelf.facts()
    _add_after_last_round(files, _rows_of_shelf(shelf, reached.round), shelf.metrics)


def _peak_memory() -> float:
    """Most memory that the process used so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _summary(
    config: Config, built: Ready, files: RunFiles, directory: Path, notes: Sequence[str], peak_memory: float
) -> Record:
    data, fed, last, ledger = built.data, built.fed, files.reached, built.fed.ledger
    init_from = config.general.init_from
    all_notes = [built.note] if built.note else []  # of what sites hold
    if init_from:
        all_notes += [f"training began from the weights of the run {init_from}", *notes]
    if files.diverged_alone:
        all_notes.append(_diverged_alone_note(files.diverged_alone))
    if config.between_sites and files.silent_alone:
        all_notes.append(
            f"what {listed(files.silent_alone)} reaches alone stays there: means of the shelf and of training alone "
            "are over the other sites, the joint model's over all that sent theirs"
        )
    stopping = config.evaluation.stopping
    stopped_early = last.round < config.general.rounds and stopping.stops(last.round, last.summary)
    protected = pa.concat_tables([table.filter(pc.is_valid(table["applied"])) for table in ledger.tables()])
    earlier = earlier_ledgers(directory)
    entries = {
        "algorithm": config.algorithm.label,
        "dataset": data.name,
        "classes": list(data.labels) or None,
        "targets": list(data.targets) or None,
        "groups": list(data.groups) or None,
        "note": "; ".join(all_notes) or None,
        "features": data.features,
        "class_count": data.classes,
        "target": None if data.target == CLASS else data.target,
        "outputs": None if data.target == CLASS else data.outputs,
        "edges": data.edge_form if any(data.edge_form.values()) else None,
        "clients": len(fed.clients),
        "global_test": None if fed.test is None else int(fed.test.masks[TEST].sum()),
        "members": len(fed.members) or None,  # of the one client
        "devices": list(fed.computes_on) or None,  # sites know their own
        "rounds": last.round,
        "eval_every": config.general.eval_every,
        "chosen_round": files.best_round,
        "stopped": (stopping.sentence(last.round, last.summary) if stopped_early else "") or None,
        "missed": files.missed or None,  # rounds, by client
        "seed": config.general.seed,
        "seconds": last.seconds,
        "seconds_per_round": last.seconds / last.round,
        "alone_seconds": last.summary.get(ALONE_SECONDS),
        "peak_rss_mb": peak_memory,
        "bytes_up": ledger.bytes_up,
        "bytes_down": ledger.bytes_down,
        "bytes_peer": ledger.bytes_peer or None,
        "bytes_evaluation": ledger.bytes_evaluation,
        "init_from": init_from or None,
        "privacy": _epsilons(protected) or None,
        "privacy_total": _epsilons(*earlier, protected) if earlier else None,  # with the runs that it began from
        "shelf": files.shelf or None,
        "shelf_joint": files.shelf_joint or None,
        "metrics": {name: _finite(value) for name, value in last.summary.items() if name != ALONE_SECONDS},
    }
    return {key: value for key, value in entries.items() if value is not None}


def _epsilons(*ledgers: pa.Table) -> list[Record]:
    """The ε of ledgers, one after the other, as JSON."""
    return [{key: _finite(value) for key, value in asdict(bound).items()} for bound in bounds(*ledgers)]


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
