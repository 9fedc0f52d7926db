"""The server's side of a job: the same run as `fedweave run`, on a federation of sites."""

import json
import logging
import re
import shutil
import signal
import tomllib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
import torch
from nvflare.collab import collab

from fedweave.algorithms.deployment import Which, deployable
from fedweave.core.algorithm import Algorithm, capabilities
from fedweave.core.graph_arrays import DTYPES
from fedweave.core.ledger import Ledger
from fedweave.core.replies import Replies
from fedweave.core.types import CLASS, Kind, Record
from fedweave.datasets.links import NAMES as LINK_NAMES
from fedweave.errors import ClientsMissing, DataError, FedweaveError, StepFailed, UserError
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.requirements import check, check_rounds
from fedweave.experiment.runs.checkpoint import Checkpoint, SavedRound
from fedweave.experiment.runs.files import CHECKPOINT, LEDGER, SUMMARY, read_summary, write_table
from fedweave.experiment.runs.resuming import Interrupted, Stop
from fedweave.experiment.runs.run import RunBackend, run
from fedweave.experiment.runs.saving import Ready
from fedweave.experiment.stages import Configured
from fedweave.metrics.measured import METRICS_SCHEMA
from fedweave.metrics.selection import THRESHOLD, Flagging, flagging, of_best, positive_class
from fedweave.models.edge_settings import has_ports
from fedweave.models.edges import model_of_form
from fedweave.sites.flare.agreement import (
    check_agreement,
    check_names,
    common_form,
    common_number,
    common_target,
    confirm_names,
    note_unnamed_columns,
    server_graphs,
)
from fedweave.sites.flare.alignment import max_features
from fedweave.sites.flare.chain import HEADS, Heads
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.folder import LOG, RUNS, fields, log_to
from fedweave.sites.flare.journal import Journal, journal_path
from fedweave.sites.flare.link import CollabLink
from fedweave.sites.flare.predicted import check_written, note_unscored, predicting_sites
from fedweave.sites.flare.requests import Link, mendable
from fedweave.sites.flare.states import State, StateFile
from fedweave.sites.protocols.identity import STARTUP, Authority, read_root

RESULT, TOPIC = "fedweave", "fedweave"  # the folder of a job's results, and of messages to a running job

RECENT = 20  # rounds in one progress report


@dataclass
class Progress:
    """The progress of a job, which the server reports to the watching administrator (a
    `experiment.runs.run.RunObserver`).

    after: the round after which the job began. again: number of later rounds that an earlier job had begun; their
    messages leave the sites once more. waiting: the sites that owe an answer now. recent: for the last rounds, the
    round, seconds, summary and bytes so far by direction, because rounds may end faster than the watcher asks.
    """

    status: State = "starting"  # then "running", "done", "stopped" or "failed"
    round: int = 0
    rounds: int = 0
    seconds: float = 0.0
    summary: dict[str, float] | None = None
    after: int = 0
    again: int = 0
    waiting: tuple[str, ...] = ()
    lost: dict[str, str] | None = None
    error: str = ""
    mistake: bool = False  # whether the error is the user's
    away: tuple[str, ...] = ()  # the sites whose absence ended the job; empty if another fault did
    note: str = ""  # on the sites' data
    recent: list[Record] = field(default_factory=list)

    link: CollabLink | None = None
    ledger: Ledger | None = None
    states: StateFile | None = None  # for the server's metrics

    def begin(self, config: Config, built: Ready, directory: Path, done: int) -> None:
        """Note that training is about to start."""
        self.status, self.round, self.rounds, self.after = "running", done, config.general.rounds, done
        self.ledger, self.note = built.fed.ledger, built.note  # the note is only for sites
        self.again = max(0, self.ledger.latest - done)
        self._state(state="running", round=done, rounds=self.rounds)

    def step(self, reached: Checkpoint) -> None:
        """Note that a round is done."""
        took = reached.seconds - self.seconds if self.seconds or reached.round == 1 else 0.0  # not of a resumed round
        self.round, self.seconds, self.summary = reached.round, reached.seconds, dict(reached.summary)
        self.lost = {} if self.link is None else self.link.lost
        self._state(round=self.round, missing=tuple(sorted(self.lost)), **({"seconds": took} if took else {}))
        sizes = {} if self.ledger is None else self.ledger.sizes()
        entry = {"round": self.round, "seconds": self.seconds, "summary": self.summary, "bytes": sizes}
        self.recent = [*self.recent, entry][-RECENT:]

    def alone(self, done: int, rounds: int) -> None:
        """Do nothing: after a run's last round its job is still running."""

    def stopping(self, number: int) -> None:
        """Do nothing: the job finishes its round."""

    def end(self) -> None:
        """Do nothing: `record_job` sets the status."""

    def _state(self, **changes: object) -> None:
        if self.states is not None:
            self.states.write(**changes)

    def plain(self) -> Record:
        """The progress as a record for JSON."""
        self.waiting = () if self.link is None else self.link.owing
        return {key: value for key, value in self.__dict__.items() if key not in ("link", "ledger", "states")}


@dataclass(frozen=True)
class DataOfSites:
    """The common form of all sites' data (compare `datasets.base.Dataset`)."""

    name: str
    features: int
    classes: int
    edge_form: dict[str, int | bool]
    labels: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    target: Kind = CLASS
    targets: tuple[str, ...] = ()
    outputs: int = 0


@dataclass(frozen=True)
class Joined:
    """The objects of a run (compare `experiment.build.Built`), after the sites have reported their data."""

    algorithm: Algorithm
    fed: Flare
    replies: Replies
    data: DataOfSites
    note: str = ""  # on values that could not be compared

    def close(self) -> None:
        """Do nothing: the sites' processes continue."""


class Server:
    """The server's object of a job.

    run: number of the run, which names its folder at the server and at every site. sites: all sites of the project, in
    order. document: the configuration as TOML, because NVFlare would read its tables as components. predict: "" to
    train, or the models of the finished run that predict (`algorithms.deployment.Which`, ignored for a vertical run),
    "@" and the round (`experiment.runs.checkpoint.SavedRound`).
    """

    def __init__(self, run: str, sites: Sequence[str], document: str, predict: str = "") -> None:
        self.run, self.sites, self.document, self.predict = run, list(sites), document, predict

    @collab.main
    def main(self) -> None:
        """Run, and write the run's files to the folder from which NVFlare collects a job's results."""
        root = Path(collab.workspace.get_root_dir())
        folder, results = root / RUNS / self.run, Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id()))
        log_to(root / LOG)
        progress = Progress(states=StateFile(root, self.run, self.sites))
        stop = Stop(lambda number: None)
        collab.fl_ctx.get_engine().register_app_command(TOPIC, _command, progress, stop)
        try:
            with record_job(f"run {self.run}{', predicting' * bool(self.predict)}", progress):
                config = resolve(tomllib.loads(self.document))
                progress.link = CollabLink(config.engine.values["timeout"])
                build = partial(self._join, root=root, folder=folder, link=progress.link)
                if self.predict:
                    progress.note = _predict(partial(build, config), folder, self.predict)
                else:
                    run(config, folder, progress, True, backend(build, stop, root))
        finally:
            if folder.is_dir():
                shutil.copytree(folder, results / RESULT, ignore=shutil.ignore_patterns(".lock", "*.tmp"))
            (results / RESULT).mkdir(parents=True, exist_ok=True)
            (results / RESULT / "progress.json").write_text(json.dumps(progress.plain()))
            if progress.link is not None:
                progress.link.close()

    def _join(self, config: Config, root: Path, folder: Path, link: CollabLink) -> Joined:
        """Make the algorithm and the federation, from the sites' reports of their data."""
        values = config.engine.values
        if values["threads"]:
            torch.set_num_threads(values["threads"])
        needs = capabilities(config.algorithm.kind)
        enrolled = check(Configured.of(config).with_members(self.sites))
        quorum = 0.0 if self.predict else values["quorum"]  # where each predicts on its own, no site waits for another
        if needs.vertical:  # a party needs all other parties' columns
            quorum = None
        ledger, authority = Journal(journal_path(root, self.run)), read_root(root / STARTUP)
        fed = federation(config, root, link, self.sites, ledger, quorum, authority, Heads(root / HEADS))
        checkpoint = folder / CHECKPOINT
        reached = Checkpoint.load(checkpoint) if checkpoint.exists() else Checkpoint(round=-1)
        flags = flagging_known(config, folder / SUMMARY, _which_models(self.predict)[1]) if self.predict else None
        after = reached.round
        replies = fed.join(config.plain(), self.run, after, needs.vertical, bool(self.predict), reached.data, flags)
        features = max_features(replies) if needs.vertical else common_number(replies, "features")
        outputs, kind = common_number(replies, "classes"), common_target(replies)
        fed.classes = outputs if kind == CLASS else 0
        form = {} if needs.vertical else common_form(replies)
        check_names(replies)
        if not needs.vertical:
            check_agreement(root, fed.held, features, outputs)
        algorithm = config.algorithm.make(model_of_form(config.model.make(), form, features, outputs, config.decoder))
        check(enrolled.with_design(algorithm.model, algorithm))
        check_rounds(algorithm, config.general.rounds)
        names, unsure = confirm_names(replies, config.data.values if config.links is None else {"labels": LINK_NAMES})
        data = DataOfSites(
            config.data.name, features, fed.classes, form, names["labels"], names["groups"], kind, outputs=outputs
        )
        named = {} if needs.vertical else {site: replies[site]["columns"] > 0 for site in replies.clients}
        return Joined(algorithm, fed, replies, data, "; ".join(filter(None, (note_unnamed_columns(named), *unsure))))


@contextmanager
def record_job(what: str, progress: Progress) -> Iterator[None]:
    """Record in `progress` and in the server's log how the job `what` in the block goes. Errors end here, so that the
    job still returns what it has reached. A log in JSON has the text only of errors that tell nothing of the server's
    own data."""
    log, states = logging.getLogger("fedweave.server"), progress.states
    run = "" if states is None else states.now.run
    log.info("%s: begins", what, extra=fields("run-begins", run=run))
    fault = Record()  # for the log in JSON
    try:
        yield
        progress.status = "done"
    except Interrupted:
        progress.status = "stopped"
    except FedweaveError as error:
        progress.status, progress.error, progress.mistake = "failed", str(error), mistaken(error)
        progress.away = away(error, progress.link.silent if progress.link else ())
        plain = not isinstance(error, DataError | StepFailed)
        fault = {"code": error.code, "error": type(error).__name__, "reason": str(error) if plain else ""}
    except Exception as error:
        log.exception("the run failed", extra=fields("program-error", run=run))
        fault = {"error": type(error).__name__}
        reason = f"{type(error).__name__}: {error}"
        progress.status, progress.error = "failed", f"the run failed at the server ({reason}); see its {LOG}."
    after = f" after round {progress.round} of {progress.rounds}" if progress.rounds else ""
    level = logging.ERROR if progress.status == "failed" else logging.INFO
    if states is not None:
        missing = progress.away or tuple(sorted(progress.lost or ()))
        states.end("paused" if progress.away else progress.status, missing)
    about = {"run": run, "round": progress.round, "rounds": progress.rounds, "missing": list(progress.away)}
    error_text = progress.error and f": {progress.error}"
    more = fields(f"run-{progress.status}", **about, **fault)
    log.log(level, "%s: %s%s%s", what, progress.status, after, error_text, extra=more)


def federation(
    config: Config,
    root: Path,
    link: Link,
    sites: Sequence[str],
    ledger: Ledger,
    quorum: float | None = None,
    authority: Authority | None = None,
    heads: Heads | None = None,
) -> Flare:
    """The federation of these sites at the server, with the graphs in the server's folder `root`; see `Flare`."""
    values = config.engine.values
    dtype, limit = DTYPES[values["dtype"]], int(values["reply_mb"] * 1e6)
    graphs = server_graphs(root, dtype, has_ports(config.model.make()))
    return Flare(
        link,
        sites,
        ledger=ledger,
        seed=config.general.seed,
        dtype=dtype,
        quorum=quorum,
        limit=limit,
        graphs=graphs,
        root=authority,
        resend=values["resend"],
        heads=heads,
    )


def backend(build: Callable[[Config], Joined], stop: Stop, root: Path = Path()) -> RunBackend:
    """The functions that a run needs for sites. root: the server's folder, which has the files of earlier runs."""

    def earlier(number: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9]{1,64}", number):
            raise UserError(f"init_from: {number!r} is not a number of a run between sites.", code="init.run")
        return root / RUNS / number

    return RunBackend(
        build,
        _partition_columns,
        _fault_table,
        stop,
        source=lambda built: {},
        before=Flare.before_round,
        earlier=earlier,
        ask_alone=Flare.ask_alone,
    )


def _predict(build: Callable[[], Joined], folder: Path, models: str) -> str:
    """Predict with the models of the finished run in `folder`, jointly or at each site. The run's ledger gets the
    messages of this job, too. Returns a note on parties' nodes without a score.

    models: which models, see `Server`.
    """
    if not (folder / SUMMARY).exists():
        raise UserError("the server has no finished run of that number. Finish it with `fedweave sites run --resume`.")
    which, when = _which_models(models)
    chosen = Checkpoint.load(folder / CHECKPOINT).at(when)
    built, reached = build(), Checkpoint.load(folder / CHECKPOINT)
    built.fed.restore(reached.fed)
    built.fed.begin(reached.round)
    try:
        if capabilities(built.algorithm).predicts:
            built.algorithm.predict(chosen.state, built.fed)
        else:
            deployable(built.algorithm).deploy(chosen.state, built.fed, which)
        sites = predicting_sites(built.algorithm, reached.state, built.fed.clients)
        check_written(sites, built.fed.unwritten(sites))
    finally:
        write_table(folder / LEDGER, built.fed.ledger.table())
    listed = {site: counts for site, counts in built.fed.overlaps.items() if site in sites and counts[0] > counts[1]}
    return "; ".join(note_unscored(nodes - common, nodes, f" of {site}") for site, (nodes, common) in listed.items())


def _which_models(predict: str) -> tuple[Which, SavedRound]:
    """The models that predict, and the round after which they were saved (`Server`)."""
    which, _, when = predict.partition("@")
    models: dict[str, Which] = {"global": "global", "personal": "personal", "trained": "trained"}
    return models.get(which, "personal"), "best" if when == "best" else "last"


def flagging_known(config: Config, path: Path, when: SavedRound) -> Flagging | int | None:
    """The class and threshold by which all sites flag, from the run whose summary is at `path`, if sums of scores over
    all validation examples gave a threshold. Else the class alone, if sites are to flag and the settings name none.
    None if the run has neither."""
    summary, judging = read_summary(path), config.evaluation
    metrics = of_best(summary["metrics"]) if when == "best" else summary["metrics"]
    if not metrics or summary["class_count"] != 2:
        return None
    if metrics.get(THRESHOLD) is None:
        return positive_class(judging, metrics) if judging.flags and judging.positive is None else None
    labels = tuple(summary.get("classes") or config.data.values.get("labels") or ())
    return flagging(judging.of(labels, 2), metrics)


def mistaken(error: FedweaveError) -> bool:
    """Whether the user who started the job, or a site's owner, can correct the error."""
    return isinstance(error, UserError) or mendable(error.missing.values() if isinstance(error, ClientsMissing) else ())


def away(error: FedweaveError, silent: Collection[str]) -> tuple[str, ...]:
    """The `silent` sites, if only their silence has ended the job; () if another fault did."""
    missing = error.missing if isinstance(error, ClientsMissing) else {}
    return tuple(sorted(missing)) if missing.keys() <= set(silent) else ()


def _command(topic: str, data: object, fl_ctx: object, progress: Progress, stop: Stop) -> Record:
    """Answer a watcher's command to a running job: return the progress, and stop after the round if asked."""
    if isinstance(data, dict) and data.get("stop"):
        stop.signal = signal.SIGTERM
    return progress.plain()


def _partition_columns(built: Joined) -> Record:
    """partition.parquet of a federation, from the sites' reports. The number of edges between sites is unknown."""
    replies = built.replies
    rows = [replies[site] for site in replies.clients]
    columns: Record = {
        "client": list(replies.clients),
        "nodes": [None if reply["nodes"] < 0 else reply["nodes"] for reply in rows],
        "edges_kept": [None if reply["edges"] < 0 else reply["edges"] for reply in rows],
        "edges_cut": pa.nulls(len(rows), pa.int64()),
    }
    for at, name in enumerate(("train", "val", "test")):
        columns[name] = [int(reply["split"][at]) if len(reply["split"]) else None for reply in rows]
    columns["labels"] = [reply["labels"].tolist() or None for reply in rows]
    parties = capabilities(built.algorithm).vertical
    return columns | ({"features": [reply["features"] for reply in rows]} if parties else {})


def _fault_table(fed: Flare, round: int) -> pa.Table | None:
    """Rows with the sites that were missing, refused or late in a round, and the number of calls."""
    faults = fed.faults()
    if not faults:
        return None
    rows = list[Record]()
    for (site, what), times in sorted(faults.items()):
        rows.append({"round": round, "client": site, "split": "train", "metric": what, "value": float(times)})
    return pa.Table.from_pylist(rows, METRICS_SCHEMA)
