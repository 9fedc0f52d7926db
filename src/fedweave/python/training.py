"""Runs from Python: the saved run with its tables and models (`SavedRun`), a whole experiment (`run`), and training
round by round (`train`)."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from fedweave.core.algorithm import Algorithm, Engine
from fedweave.core.shown import Shown, Words, page
from fedweave.core.tree import Tree
from fedweave.core.types import Values
from fedweave.errors import ConfigError, UserError
from fedweave.experiment.build import Built, Origin, origin_of, precomputed_features
from fedweave.experiment.config import Config, Document, EvaluationSettings, General, read, read_saved, resolve
from fedweave.experiment.config.plugins import CODE
from fedweave.experiment.rounds import AUTO, Interval, RoundResult
from fedweave.experiment.rounds import train as train_in_memory
from fedweave.experiment.runs import run as runs
from fedweave.experiment.runs.files import CONFIG, LEDGER, METRICS, PARTITION, SUMMARY, read_summary, read_table
from fedweave.experiment.runs.from_objects import check_described, describe
from fedweave.experiment.runs.warm import begin
from fedweave.experiment.work import evaluation_interval
from fedweave.metrics.selection import Judging, of_result, selection_metric_of
from fedweave.metrics.stopping import Stopping
from fedweave.reports.terminal import Terminal, screen

if TYPE_CHECKING:
    from torch import nn

    from fedweave.apply.explanation import Explanation, Method
    from fedweave.apply.forgetting_record import Forgetting
    from fedweave.apply.own_metrics import Metric, SplitScores
    from fedweave.experiment.runs.checkpoint import When


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class SavedRun(Shown):
    """The files that `fedweave run` wrote into `directory`. Tables are Arrow's: `run.metrics.to_pandas()` with pandas.

    config:    resolved configuration.
    summary:   content of summary.json, {} if the run is not finished.
    metrics:   columns round, client ("global" for all), split, metric, value; a row per number.
    ledger:    a row for each part of a message and each client that sent or received it.
    partition: a row per client.
    """

    directory: Path
    config: Config
    summary: Values
    metrics: pa.Table
    ledger: pa.Table
    partition: pa.Table

    def facts(self) -> dict[str, object]:
        """The experiment, the finished rounds, and the scores on test examples."""
        config, scores = self.config, of_result(self.summary) if self.summary else {}
        entries: dict[str, object] = {
            "": f"{config.algorithm.label} on {config.data.label}, {len(self.partition):,} clients",
            "rounds": self.summary.get("rounds", Words("not finished")),
        }
        for place in ("global", "local"):
            name = f"{place}/{selection_metric_of(scores)}"
            if scores.get(name) is not None:
                entries[name] = scores[name]
        return entries | {"directory": str(self.directory)}

    def _repr_html_(self) -> str:
        return page(repr(self), self.summary.get("metrics", {}).items())

    def weights(self, model: str = "global", client: str | None = None) -> Tree:
        """The weights of the global model, or of the `client`'s "personal" or "trained" model, as trees of tensors.

        Raises:
            UserError: the run is not finished, has no such model, or its data has changed; a run between sites has only
                the global model. DataError: its data is not there any more.
        """
        from fedweave.experiment.runs.trained import MODELS, finished_config, load_global_model, load_trained

        if model not in MODELS:
            raise UserError(f"there is no model {model!r}; choose one of {', '.join(MODELS)}.", code="user.no-model")
        if (client is None) != (model == "global"):
            raise UserError(
                "name a client of the run for its personal or trained model, and none for the global model.",
                code="user.no-client",
            )
        config = finished_config(self.directory)
        if config.between_sites and model == "global":
            return load_global_model(self.directory, config)[1]
        run = load_trained(self.directory, config, "Such a run has only the global model here.", model=model)
        return run.model_of(model, client or run.built.fed.clients[0])

    def measure(self, metric: "Metric", split: str = "test", model: str | None = None) -> "SplitScores":
        """Measure the user's own function, (y int64 [e], p float64 [e, classes]) -> number, on the run's examples.

        split: train, val or test. model: "personal", the model that each client uses, unless another is named.

        Raises:
            UserError: the run is not finished, was made between sites or of parties, or has no such model or split; the
                function fails or returns no number.
        """
        from fedweave.apply.own_metrics import measure_run

        return measure_run(self.directory, metric, split, model)

    def embeddings(
        self,
        model: str | None = None,
        client: str | None = None,
        *,
        data: str | Path | None = None,
        round: "When" = "chosen",
        folds: int = 0,
    ) -> pa.Table:
        """The table of `fedweave embed`: a row per client and example with "client", the example, "split", "true", the
        scores, and behind these what the last layer reads, "e_0", "e_1", …, float32. Of links, a row per client and
        node.

        model: "personal", the model that each client uses, unless another is named. client: only this client's rows.
        data: new examples instead of the run's own, as `fedweave predict --data` takes them. round: "chosen",
        "last" or "best".
        folds: above 0, training examples are predicted by this number of further runs, each without the labels of one
        fold, and "fold" is the fold of each.

        Raises:
            UserError: the run is not finished, was made between sites or of parties, or has no such model or client, or
                the model has no embeddings. DataError: the data is refused, or of another form than the run's.
        """
        from fedweave.apply.embeddings import embeddings

        folder = None if data is None else Path(data).expanduser()
        return embeddings(self.directory, folder, model, client, round, folds).table

    def explain(
        self,
        client: str | None,
        name: "str | int | Sequence[str | int]",
        *,
        data: str | Path | None = None,
        model: str | None = None,
        target: str | None = None,
        method: "Method" = "leave-out",
    ) -> "Explanation":
        """Why the client's model gives the example called `name` its score: `explanation.table` has a row for each
        column, neighbor and edge that moves it. Of a run on links, `name` is a pair: its source and target and, with
        several relations, the relation.

        data: new tables with the example; None is the run's own data. model: "personal", what the client uses, unless
        another is named. target: the class, label or number. method: "leave-out" or "gradients".

        Raises:
            UserError: there is no such client, example or target, or the run's models cannot be explained.
        """
        from fedweave.apply.reasons import explain

        folder = None if data is None else Path(data).expanduser()
        example = str(name) if isinstance(name, str | int) else tuple(map(str, name))
        return explain(self.directory, example, client, folder, model, target, method)

    def forget(
        self,
        client: str | Sequence[str] = (),
        ids: Sequence[str | int] = (),
        *,
        rounds: int | None = None,
        out: str | Path | None = None,
    ) -> "Forgetting":
        """Train the run without clients or examples, exactly and fast, and compare the models, as `fedweave forget`
        does: `forgetting.table` has a row for each.

        client: the name of one client, or of several. ids: nodes, edges or small graphs, as the tables call them, or
        their numbers. rounds: of the fast way; 0 leaves it out, None takes a tenth of the run's. out: a new folder, by
        default one in the run's.

        Raises:
            UserError: there is no such client or example, the run was made between sites, is vertical or on links, or
                `out` is used.
        """
        from fedweave.apply.forgetting import forget

        clients = (client,) if isinstance(client, str) else tuple(client)
        folder = None if out is None else Path(out).expanduser()
        return forget(self.directory, clients, tuple(map(str, ids)), rounds, folder)

    def module(self, model: str | None = None, client: str | None = None) -> "nn.Module":
        """A model as a plain `torch.nn.Module`, ready to predict: `module(x, edge_index)` gives logits.

        model: the global model by default, if there is one. See `models.exported`.

        Raises:
            UserError: see `export.source.source`.
        """
        from fedweave.export.source import source
        from fedweave.models.exported import ExportedModel, build

        trained = source(self.directory, model, client)
        description = trained.description()
        return ExportedModel(build(description), trained.weights, description).eval()


def load_run(directory: str | Path, config: Config | None = None) -> SavedRun:
    """Read the directory of a run, finished or not.

    config: its configuration, if it is already read.

    Raises:
        UserError: it is not the directory of a run, or no round of it is saved yet.
        FedweaveError: a file is damaged.
    """
    folder = Path(directory).expanduser()
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"{folder} is not the directory of a run: it has no {CONFIG}. Give the folder of one.",
            code="user.no-run",
        )
    summary = read_summary(folder / SUMMARY) if (folder / SUMMARY).exists() else {}
    config = config or read_saved(folder / CONFIG)
    metrics, ledger, partition = (read_table(folder, name) for name in (METRICS, LEDGER, PARTITION))
    return SavedRun(folder, config, summary, metrics, ledger, partition)


class Silent(runs.Quiet):
    """Watches a run and prints only what a user must know (see `experiment.runs.run.RunObserver`)."""

    def stopping(self, number: int) -> None:
        """Explain what a first Ctrl-C does."""
        _LOG.warning("finishing this round and saving; once more to stop at once")


def run(
    experiment: "str | Path | Document | Config",
    out: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
) -> SavedRun:
    """Run an experiment as `fedweave run` does, and return the files that it wrote.

    experiment: the path of its TOML file, its content as a dict, or a `Config`. out: where to write; by default
    runs/<experiment>-<algorithm>-s<seed>, where a dict or a `Config` has the data set instead of the experiment.
    resume: continue from the last checkpoint. overwrite: replace the run that `out` holds. progress: show the rounds as
    the command does; None shows them on a terminal and in a notebook.

    Raises:
        UserError: the experiment is not valid, or `out` holds something else.
    """
    if isinstance(experiment, Config):
        config, title = experiment, experiment.data.label
    elif isinstance(experiment, Mapping):
        config = resolve(dict(experiment))
        title = config.data.label
    else:
        config, title = read(Path(experiment).expanduser())[0], Path(experiment).stem
    name = f"{title}-{config.algorithm.label}-s{config.general.seed}"
    directory = Path("runs") / name if out is None else Path(out).expanduser()
    if progress is None:  # show it where a person is likely to see printed lines
        ipython = sys.modules.get("IPython")  # a library may have imported it outside a notebook, too
        progress = sys.stdout.isatty() or (ipython is not None and ipython.get_ipython() is not None)
    observer = Terminal(screen()) if progress else Silent()
    runs.run(config, directory, observer, resume, overwrite=overwrite)
    return load_run(directory, config)


def train(
    algorithm: Algorithm,
    fed: Engine,
    rounds: int,
    eval_every: Interval = 1,
    resume: "tuple[int, Tree] | bool | None" = None,
    summary: Mapping[str, float] | None = None,
    fair_margin: float = 0.0,
    judging: Judging | None = None,
    *,
    patience: int = 0,
    min_delta: float = 0.0,
    out: str | Path | None = None,
    overwrite: bool = False,
    init_from: str | Path | None = None,
) -> Iterator[RoundResult]:
    """Run `rounds` rounds of `algorithm` on `fed`, evaluating every `eval_every` (0: never) and at the end.

    eval_every:  a number, or "auto" (`experiment.config.sections.General`).
    resume:      with `out`, whether to continue the run there, on a new federation. Without `out`, (rounds done, server
                 state) of a checkpoint; the engine must have been restored too.
    summary:     without `out`, the checkpoint's, for its best rounds.
    fair_margin: see `metrics.best_rounds.fairest`.
    judging:     the selection metric, with the number of the positive class.
    patience, min_delta: early stopping (`metrics.stopping.Stopping`).
    out:         a directory for the run, as `fedweave run --out` writes it, so that report, compare, predict, sweep and
                 `load_run` accept it. If you stop early, finished rounds are saved. Data without a name is saved in the
                 same directory; a warning names everything that its config.toml cannot name.
    overwrite:   with `out`, replace the run that it holds.
    init_from:   the directory of an earlier run, from whose weights training begins; optimizers begin from scratch. A
                 resumed run continues from its own weights.

    Raises:
        ConfigError: members have their own models, with another algorithm or other settings.
        UserError: fewer than one round, a fresh start on a federation whose clients have trained already, or a state
            that no checkpoint can hold; training cannot begin from the earlier run; `out` holds something else, or the
            federation was not made by `fedweave.federation`.
    """
    origin = origin_of(fed)
    for member_algorithm in origin.member_algorithms.values() if origin is not None else ():
        same_type = type(member_algorithm) is type(algorithm)
        if not same_type or replace(member_algorithm, model=algorithm.model) != algorithm:
            raise ConfigError(
                "members of this federation have their own models, with another algorithm or other settings; train the "
                "algorithm that fedweave.federation received.",
                code=CODE,
            )
    if out is None:
        if resume is True or overwrite:
            name = "overwrite" if overwrite else "resume"
            raise UserError(
                f"{name} = True needs out, the directory of a run; without out nothing is saved.", code="user.value"
            )
        start = None if isinstance(resume, bool) else resume
        if init_from is not None and start is None:
            if origin is None:
                raise UserError(
                    "init_from needs a federation made by fedweave.federation, which knows its data.",
                    code="user.value",
                )
            folder = Path(init_from).expanduser()
            for note in begin(fed, algorithm, origin.data, folder, origin.member_algorithms).notes:
                _LOG.warning("note: %s", note)
        stopping = Stopping(patience, min_delta)
        if eval_every == AUTO:
            if origin is None:
                raise UserError(
                    "eval_every = 'auto' needs a federation made by fedweave.federation, which knows its data. Give a "
                    "number.",
                    code="user.value",
                )
            built = _built(origin, algorithm, fed)
            eval_every = evaluation_interval(built, rounds, "auto" if judging is None else judging.ranks)
        return train_in_memory(algorithm, fed, rounds, eval_every, start, summary, fair_margin, judging, stopping)
    if resume is not None and not isinstance(resume, bool):
        raise UserError(
            "with out, resume is True or False: the directory has the state from which the run continues.",
            code="user.value",
        )
    if origin is None:
        raise UserError(
            "out needs a federation made by fedweave.federation, which knows its data and partition.", code="user.value"
        )
    directory = Path(out).expanduser()
    earlier = None if init_from is None else str(Path(init_from).expanduser())
    general = General(origin.seed, rounds, eval_every, fair_margin, earlier)
    config, data = describe(algorithm, origin, general, directory)
    evaluation = EvaluationSettings(**asdict(judging)) if judging is not None else config.evaluation
    config = replace(config, evaluation=replace(evaluation, patience=patience, min_delta=min_delta))
    built = replace(_built(origin, algorithm, fed), data=data, precomputed=precomputed_features(fed))  # type: ignore[arg-type]
    check_described(config, built)
    backend = runs.RunBackend(build=lambda _: built)
    return runs.running(config, directory, Silent(), bool(resume), backend, overwrite)


def _built(origin: Origin, algorithm: Algorithm, fed: Engine) -> Built:
    """The experiment of a federation that was made of objects."""
    return Built(origin.data, origin.partition, algorithm, fed, member_algorithms=origin.member_algorithms)  # type: ignore[arg-type]
