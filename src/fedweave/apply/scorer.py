"""A model with all that scoring needs, as one file: its weights, how tables become its columns, and what it flags.

The file is enough to score: you need neither the run nor its data, a server or another member.
"""

import json
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fedweave.algorithms.deployment import Deployable, deployable
from fedweave.apply.prediction_table import ends_of, predictions_table, with_neighbors_not_given
from fedweave.apply.predictions import (
    flagging_of,
    flagging_of_global,
    form_of_client,
    form_of_run,
    half_widths,
    has_own_units,
    note_of_clients,
    note_of_joint_model,
    note_of_scaling,
)
from fedweave.core import model as models
from fedweave.core import plugins, random
from fedweave.core.algorithm import capabilities
from fedweave.core.graph_arrays import DTYPES
from fedweave.core.model import Architecture, Model
from fedweave.core.tree import Tree, decode, encode, has_its_digest, leaves, with_digest
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset
from fedweave.errors import ReplyRefused, UserError, option
from fedweave.experiment.config import Choice, Config, Document, config_hash, load, lookup, parameters
from fedweave.experiment.config.choices import choose
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.runs.checkpoint import When
from fedweave.experiment.runs.data_form import DataForm
from fedweave.experiment.runs.files import COLUMNS, CONFIG, SCORER, read, write
from fedweave.experiment.runs.new_data import InputFormat, load_new_data
from fedweave.experiment.runs.outputs import Predicted, probabilities, vectors_of
from fedweave.experiment.runs.trained import Trained, check_finite, finished_config, load_trained
from fedweave.metrics.measured import GLOBAL
from fedweave.metrics.selection import Flagging
from fedweave.models.edge_settings import has_ports
from fedweave.models.edges import model_of_form

_LOG = logging.getLogger(__name__)

FORMAT = 1  # of the file; raise it when an older version would misread a new file
_ABOUT, _WEIGHTS = "about", "w"
_REMEDY = "Take the file from where it was written, or export again."


@dataclass(frozen=True)
class Scorer:
    """A model that scores tables.

    model:    the section [model] that made it.
    weights:  weights of the plain model, without what an algorithm adds for training.
    before:   how tables become what it was trained on.
    client:   whose model it is, "global" for the server's.
    round:    after which round of the run.
    run:      SHA-256 of the run's configuration, as statements and compliance reports have it.
    dtype:    type of its computations, a key of `DTYPES`.
    flagging: which examples are flagged; None where no class is looked for.
    widths:   half the widths of the intervals of predicted numbers; () without intervals.
    release:  the version of fedweave that wrote it.
    """

    model: Document
    weights: Tree
    before: InputFormat
    client: str
    round: int
    run: str
    dtype: str = "float32"
    flagging: Flagging | None = None
    widths: tuple[float, ...] = ()
    release: str = field(default_factory=lambda: version("fedweave"))

    @property
    def form(self) -> DataForm:
        """The form of the data that it scores."""
        return self.before.form

    @cached_property
    def name(self) -> str:
        """12 hexadecimal digits of a SHA-256 of weights, recipe and threshold: two models with the same score alike."""
        return sha256(self._encoded).hexdigest()[:12]

    @cached_property
    def architecture(self) -> Architecture:
        """What makes the layers."""
        made: Architecture = _choice(self.model).make()
        return made

    @cached_property
    def net(self) -> Model:
        """The layers.

        Raises:
            UserError: the weights are not of the model that the section says.
        """
        net = net_of(self.model, self.form)
        plain = {path: leaf.shape for path, leaf in leaves(models.init(net, random.key(0), DTYPES[self.dtype]))}
        shapes = {path: leaf.shape for path, leaf in leaves(self.weights)}
        for path in sorted({*plain, *shapes}):
            if plain.get(path) != shapes.get(path):
                raise UserError(
                    f"the algorithm trains a model with weights {path} of its own, for which the plain model "
                    f"{self.model['name']!r} has no layers. Take `fedweave predict`, or `fedweave sites predict`.",
                    code="score.model",
                )
        return net

    def score(self, path: Path, at: datetime | None = None) -> pa.Table:
        """A row for each node, edge or small graph of the tables at `path`: the columns of `predictions_table`, and
        "model" (`name`), "run" and "scored_at", which is `at`, or now.

        Raises:
            DataError: the tables are not valid, or differ in form from the tables of training.
        """
        return self.score_data(self._load(path), at or datetime.now(UTC))

    def score_data(self, data: Dataset, at: datetime) -> pa.Table:
        """`score` of data in the form that the model wants."""
        table = self.predict(data)
        for name, word in (("model", self.name), ("run", self.run)):
            places = pa.array(np.zeros(len(table), np.int32))
            table = table.append_column(name, pa.DictionaryArray.from_arrays(places, [word]))
        moment = pa.scalar(at.astimezone(UTC), pa.timestamp("s", "UTC"))
        return table.append_column("scored_at", pa.repeat(moment, len(table)))

    def embed(self, path: Path) -> pa.Table:
        """The columns of `predictions_table` for the tables at `path`, with the vectors that the last layer reads.

        Raises:
            DataError: see `score`. UserError: the model has no vectors.
        """
        return self.predict(self._load(path), with_vectors=True)

    def _load(self, path: Path) -> Dataset:
        """The tables at `path` in the form that the model wants."""
        data = load_new_data(self.before, path).data
        if self.client != GLOBAL:
            note_of_scaling(self.form, (self.client,), data)
        return data

    def predict(self, data: Dataset, with_vectors: bool = False) -> pa.Table:
        """`score_data`, without the columns that say by what and when. with_vectors: also what the last layer reads.

        Raises:
            UserError: the model has no vectors.
        """
        form, graph = self.form, graph_of(data, data.features, DTYPES[self.dtype])
        p = probabilities(self.net, self.weights, graph)
        vectors = vectors_of(self.net, self.weights, graph, self.client) if with_vectors else None
        targets = form.targets["names"] if form.targets is not None else ()
        table = predictions_table(
            [Predicted(self.client, p, np.arange(data.examples), vectors=vectors)],
            *(data.ids, form.labels, data.example, data.y),
            self.flagging,
            ends_of(data),
            targets,
            self.widths,
        )
        return with_neighbors_not_given(table, data)

    def facts(self) -> Record:
        """Facts about the model, for people and monitors."""
        form = self.form
        facts: Record = {"model": self.name, "run": self.run, "client": self.client, "round": self.round}
        facts |= {"architecture": self.model["name"], "columns": list(self.before.columns), "examples": form.example}
        classes: list[object] = [*form.labels] or [*range(form.classes)]
        if form.targets is None:
            facts["classes"] = classes
        else:
            facts["targets"] = list(form.targets["names"])
        if self.flagging is not None:
            facts |= {"flagged": classes[self.flagging.positive], "threshold": self.flagging.threshold}
        return facts | {"release": self.release}

    def save(self, path: Path) -> None:
        """Write the one file, with a digest of its content."""
        self.net  # refuses what could not be read again  # noqa: B018
        write(path, lambda file: file.write(with_digest(self._encoded)))

    @property
    def _encoded(self) -> bytes:
        about = {
            "format": FORMAT,
            "model": self.model,
            "before": self.before.plain(),
            "client": self.client,
            "round": self.round,
            "run": self.run,
            "dtype": self.dtype,
            "flagging": None if self.flagging is None else [int(self.flagging[0]), float(self.flagging[1])],
            "widths": list(self.widths),
            "release": self.release,
        }
        return encode({_ABOUT: json.dumps(about), _WEIGHTS: self.weights})

    @classmethod
    def load(cls, path: Path) -> "Scorer":
        """Read what `save` wrote.

        Raises:
            UserError: the file was changed or is damaged, or is of another format than this version reads.
        """
        content = read(path)
        try:
            if not has_its_digest(content):
                raise ReplyRefused("its content does not match its digest")
            tree = decode(content, filled=0)
            about = json.loads(tree[_ABOUT])
            file_format = about["format"]
        except (ReplyRefused, TypeError, LookupError, ValueError, AttributeError, RecursionError) as error:
            raise UserError(f"{path} was changed or is damaged: {error}. {_REMEDY}", code="score.damaged") from error
        if file_format != FORMAT:
            raise UserError(
                f"{path} is of format {file_format}, by fedweave {about.get('release')}; {version('fedweave')} reads "
                f"format {FORMAT}. Export the model again with this version, or install that one.",
                code="score.format",
            )
        try:
            before = InputFormat.of_plain(about["before"], has_ports(_choice(about["model"]).make()))
            rule = about["flagging"]
            return cls(
                model=about["model"],
                weights=tree[_WEIGHTS],
                before=before,
                client=str(about["client"]),
                round=int(about["round"]),
                run=str(about["run"]),
                dtype=str(about["dtype"]),
                flagging=None if rule is None else Flagging(int(rule[0]), float(rule[1])),
                widths=tuple(map(float, about["widths"])),
                release=str(about["release"]),
            )
        except (TypeError, LookupError, ValueError, AttributeError) as error:
            raise UserError(f"{path} was changed or is damaged: {error}. {_REMEDY}", code="score.damaged") from error


def _choice(section: Document) -> Choice:
    """The plug-in of a section [model].

    Raises:
        UserError: it is in a file, whose code no scorer holds. ConfigError: there is none of that name.
    """
    called = str(section["name"])
    if plugins.is_file(called) or plugins.is_in_python(called):
        raise UserError(
            f"model.name = {called!r}: a scorer holds no code, and this model is in a file of its own. Take `fedweave "
            "predict` or `fedweave sites predict`, or announce the model in an installed package.",
            code="score.model",
        )
    name, kind = lookup("model.name", "model", called)
    return choose("model", name, kind, parameters("model", kind), section)


def net_of(section: Document, form: DataForm) -> Model:
    """The plain layers that a section [model] makes for data of that form."""
    return model_of_form(_choice(section).make(), form.edges or {}, form.features, form.outputs)


def plain_weights(algorithm: Deployable, w: Tree) -> Tree:
    """The weights of the plain layers that an algorithm's layers stand for.

    Raises:
        UserError: one of them is NaN or infinite.
    """
    check_finite(w)
    net = algorithm.net
    return {number: net[int(number)].plain(weights) for number, weights in w.items()}


def check_alone(config: Config) -> None:
    """Refuse a run whose models cannot score new tables alone.

    Raises:
        UserError: names runs that can.
    """
    if config.links is not None or config.learned or capabilities(config.algorithm.kind).predicts:
        raise UserError(
            "fedweave score: this run predicts links, learns a vector for each node, or is of parties that predict "
            "jointly; none of its models can score new tables. Use `fedweave predict` or `fedweave sites predict`.",
            code="score.alone",
        )


def scorer_of(
    config: Config,
    algorithm: Deployable,
    w: Tree,
    before: InputFormat,
    client: str,
    round: int,
    run: Document,
    flagging: Flagging | None = None,
    widths: tuple[float, ...] = (),
) -> Scorer:
    """The scorer with the weights `w` that an `algorithm` of `config`, its client's, trained; run: the configuration of
    the whole run.

    Raises:
        UserError: the model cannot score alone.
    """
    check_alone(config)
    if not all(number.isdecimal() and int(number) < len(algorithm.net) for number in w):
        raise UserError(
            f"algorithm.name = {config.algorithm.name!r} puts models of its own together, which no scorer holds. Take "
            "`fedweave predict` or `fedweave sites predict`.",
            code="score.model",
        )
    return Scorer(
        model=config.model.plain(),
        weights=plain_weights(algorithm, w),
        before=before,
        client=client,
        round=round,
        run=config_hash(run),
        dtype=config.engine.values["dtype"],
        flagging=flagging,
        widths=widths,
    )


class ChosenModel(NamedTuple):
    """A model of a simulation's run. config: of its client, with its own model. client: None of the server's."""

    which: str
    client: str | None
    config: Config
    algorithm: Deployable
    w: Tree
    form: DataForm
    flagging: Flagging | None


def choose_model(run: Trained, model: str | None, client: str | None) -> ChosenModel:
    """The `model` of a run: the global one where there is one, else the one of the `client`.

    Raises:
        UserError: there is no such model or client, or no one model fits new tables.
    """
    which = model
    if which is None:
        has_global = run.algorithm.global_model(run.state) is not None
        which = "global" if client is None and has_global else "personal"
    if which != "global" and client is None:
        raise UserError(f"every client has a {which} model of its own; name one of them as {option('client')}.")
    if any(part.columns is not None for part in run.visible_partition.parts):
        raise UserError("in the run each client has columns of its own, so that no one module fits them.")
    holder = client or run.built.fed.clients[0]
    w, config = run.model_of(which, holder), run.config.of_member(holder, run.built.fed.clients)
    form = form_of_run(run)
    if client is None:
        note_of_joint_model(run)
        flagging = flagging_of_global(run)
    else:
        form = form_of_client(run, form, client)
        rule = flagging_of(run, {client: w})
        flagging = rule[client] if isinstance(rule, dict) else rule
    return ChosenModel(which, client, config, deployable(run.built.algorithm_of(holder)), w, form, flagging)


def scorer_of_run(run: Trained, choice: ChosenModel) -> Scorer:
    """The scorer of a model of a simulation's run.

    Raises:
        UserError: see `scorer_of`.
    """
    has_intervals = choice.which != "trained" and (choice.client is not None or not has_own_units(run.built.data))
    return scorer_of(
        choice.config,
        choice.algorithm,
        choice.w,
        InputFormat.of_run(run.config, choice.form, run.built.data),
        choice.client or GLOBAL,
        run.built.fed.round,
        load(run.directory / CONFIG),
        choice.flagging,
        tuple(half_widths(run)) if has_intervals else (),
    )


def scorer_at(place: Path, model: str | None = None, client: str | None = None, when: When = "chosen") -> Scorer:
    """The scorer at `place`: its file; a folder that holds it (an export, a site's folder of a run); a site's folder,
    where the last of its runs counts; or the folder of a simulation's run, where `client` or `model` names the model.

    Raises:
        UserError: there is none, or it is another client's.
    """
    if (place / CONFIG).is_file():
        config = finished_config(place)
        check_alone(config)
        where = "Score where the model is: `fedweave sites export RUN --site DIR` on a site's machine, or its folder."
        run = load_trained(place, config, where, when, model)
        if client is None:
            note_of_clients(run, typical=True)
        return scorer_of_run(run, choose_model(run, model, client))
    if model is not None or when != "chosen":
        raise UserError(
            f"--model and --round are of a run's folder, and {place} holds one model. Leave them out.",
            code="score.client",
        )
    file = scorer_file(place)
    scorer = Scorer.load(file)
    if file.parent.parent == place / "runs":  # a site's folder: its runs that trained later, and left no scorer
        began = {run.parent: run.stat().st_mtime for run in place.glob(f"runs/*/{COLUMNS}")}
        later = [run for run in began if began[run] > file.stat().st_mtime and not (run / SCORER).exists()]
        if later:
            _LOG.warning(
                "note: the model is of %s; %s began later and has left none so far: %s may say why",
                file.parent.name,
                max(later, key=began.__getitem__).name,
                place / "fedweave.log",
            )
    if client is not None and client != scorer.client:
        raise UserError(
            f"--client {client}: {place} holds the model of {scorer.client}. Leave --client out.", code="score.client"
        )
    return scorer


def scorer_file(place: Path) -> Path:
    """The scorer's file at a `place` that is not a run's folder of a simulation; see `scorer_at`.

    Raises:
        UserError: there is none.
    """
    if place.is_file():
        return place
    if (place / SCORER).is_file():
        return place / SCORER
    files = sorted(place.glob(f"runs/*/{SCORER}"), key=lambda file: (file.stat().st_mtime, file.parent.name))
    if not files:
        raise UserError(
            f"{place} holds no {SCORER}. Name an export, a site's folder after a run, or a run's folder. "
            "Of a run between sites, `fedweave sites export RUN --site DIR` writes one.",
            code="score.no-model",
        )
    return files[-1]
