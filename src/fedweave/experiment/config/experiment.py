"""One experiment: from its document to every section resolved."""

import dataclasses
import json
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from fedweave.core.plugins import check_trusted
from fedweave.core.settings import Beside
from fedweave.core.shown import Words, line, page
from fedweave.core.types import PREDICT, Record, Values
from fedweave.errors import ConfigError, Faults
from fedweave.experiment.config import plugins as choices
from fedweave.experiment.config.plugins import (
    DEFAULT_NAMES,
    FOREIGN_ENDS,
    PARTS,
    REGISTRIES,
    Choice,
    MemberModels,
    Parameter,
    accepts,
    checked_values,
    choose,
    lookup,
    own_models,
    own_parameters,
    parameters,
    part_of,
    registry,
    taken,
)
from fedweave.experiment.config.toml import Document, check_keys, dumps, load, override, section
from fedweave.metrics.selection import JUDGES, Judging
from fedweave.metrics.stopping import Stopping

if TYPE_CHECKING:
    from fedweave.core.links import Links
    from fedweave.partition.forgetting import Forget
    from fedweave.partition.noise import Noise


# ----------------------------------------------------------------------------------------------------
# The settings that no plug-in brings along: the top level and the engines.


MOST_THREADS = 1024  # more are a mistake, or meant to exhaust a machine


Device = Annotated[
    str,  # as settings name a device; whether it is there is found out where it is used
    Field(
        pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$",
        description="'auto', 'cpu', 'cuda' or, of several GPUs, such as 'cuda:1'",
    ),
]


@dataclass(frozen=True)
class General:
    """The top-level settings: `seed` of everything random, `rounds` of training, `eval_every`, the rounds between
    evaluations (0: only at the end), and `fair_margin`, by how much a round's validation accuracy must exceed the
    accuracy of the better constant prediction for its gaps between groups to count (`metrics.best_rounds.fairest`; data
    with a sensitive attribute). `init_from` is the directory of an earlier run whose weights training begins from;
    between sites, the number of that run. `requester` and `purpose` state who asks for a run and what for; sites note
    them and show them in their reports."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    rounds: Annotated[int, Field(ge=1)] = 100
    eval_every: Annotated[int, Field(ge=0)] = 1
    fair_margin: Annotated[float, Field(ge=-1, le=1)] = 0.0
    init_from: str | None = None
    requester: Annotated[str, Field(max_length=500)] = ""
    purpose: Annotated[str, Field(max_length=500)] = ""

    def plain(self) -> Record:
        """The keys of a document, without those that have their defaults."""
        return {key: value for key, value in asdict(self).items() if value not in (None, "")}


if TYPE_CHECKING:
    Metric = str
else:
    Metric = Literal[("auto", *JUDGES)]
Price = Annotated[float, Field(gt=0)]
_EXACT = ConfigDict(extra="forbid")


class ThresholdCost(TypedDict):
    """The costs of a missed positive and of a false alarm."""

    __pydantic_config__ = _EXACT  # type: ignore[misc]
    miss: Price
    alarm: Price


class AtShare(TypedDict):
    """A share of the examples that is flagged."""

    __pydantic_config__ = _EXACT  # type: ignore[misc]
    recall_at: Annotated[float, Field(gt=0, lt=1)]


class AtCost(TypedDict):
    """By what is cheapest."""

    __pydantic_config__ = _EXACT  # type: ignore[misc]
    cost: ThresholdCost


Threshold = Literal["auto", "f1"] | Annotated[float, Field(ge=0, le=1)] | AtShare | AtCost


@dataclass(frozen=True)
class EvaluationSettings(Judging):
    """The section [evaluation], whose values are checked against these types.

    clients: how many clients are evaluated, drawn once for a run, the same in every round; 0 for all. Only for
              simulations.
    patience: rounds without an improvement of the selection metric on validation examples, after which the run ends;
              0: the run has all its rounds.
    min_delta: what an improvement must exceed.
    features: whether to compare the models with a logistic regression on features without the graph ("features/…" in
              the summary): "auto" where that costs little. For one regression on all clients' data, that means up to
              100 million nonzero features times classes; for one per client, up to 40 clients times classes. Only for
              simulations.
    """

    metric: Metric = "auto"
    positive: str | Annotated[int, Field(ge=0)] | None = None
    threshold: Threshold = "auto"
    intervals: Annotated[float, Field(ge=0, lt=1)] = 0.0
    clients: Annotated[int, Field(ge=0)] = 0
    patience: Annotated[int, Field(ge=0)] = 0
    min_delta: Annotated[float, Field(ge=0), Beside("patience")] = 0.0
    features: bool | Literal["auto"] = "auto"

    def plain(self) -> Record:
        """See `Judging.plain`; leaves out defaults."""
        usual = {"intervals": 0.0, "clients": 0, "patience": 0, "min_delta": 0.0, "features": "auto"}
        return {key: value for key, value in super().plain().items() if key not in usual or value != usual[key]}

    @property
    def stopping(self) -> Stopping:
        """When the run ends before its last round."""
        return Stopping(self.patience, self.min_delta)


@dataclass(frozen=True)
class PaySettings:
    """The section [pay]: what a run's members are owed for the whole run (`fedweave statement`). All sites agree to it
    as they join, like to every other setting.

    budget:   what all members together are owed, in whole cents; 0 has no such statement.
    currency: currency of the budget.
    by:       what shares of the budget follow from: "shapley" or "validated", the gains that the part coalition_value
              or validated_value has measured, summed over rounds: each member divides 1 / N of the budget among the
              others by the gains on its own examples; "size", the weight of each update in the mean, which these parts
              report; "equal".
    cap:      k: no member is owed more than k times its share by size, at least 1; 0 for no cap. What is cut off goes
              to the others in proportion.
    names:    {member: its legal name}.
    """

    budget: Annotated[float, Field(ge=0)] = 0.0
    currency: Annotated[str, Field(max_length=20)] = "EUR"
    by: Literal["shapley", "validated", "size", "equal"] = "shapley"
    cap: Annotated[float, Field(ge=0)] = 0.0
    names: dict[str, Annotated[str, Field(max_length=200)]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if 0 < self.cap < 1:
            message = (
                f"pay.cap = {self.cap:g}: all members could not get the whole budget. Set 1 or more, or 0 for no cap."
            )
            raise ConfigError(message, code="config.value")

    def plain(self) -> Document:
        """The TOML table that resolves to it, without what is usual."""
        usual = dataclasses.asdict(PaySettings())
        return {key: value for key, value in dataclasses.asdict(self).items() if value != usual[key]}


@dataclass(frozen=True)
class SimulationEngine:
    """All clients in this process.

    mode:               "vmap" runs a step for many clients at once, "loop" for one after the other.
    device:             where clients are computed: "cpu", "cuda", "cuda:1"; "auto" takes a GPU where there is one and
                        the mode is "vmap". Of the same seed a GPU's numbers differ from a CPU's by rounding.
    chunk:              clients run at once, 0 chooses.
    record:             whether "vmap" records what it runs and plays it when it comes again, which changes no number:
                        "auto" from its second time on, "always" from its first, "never".
    checkpoint_seconds: least time between two checkpoints, which take a tenth of a run at most; 0: after each round.
    threads:            threads of torch, 0 leaves its default.
    dtype:              number type of features and weights.
    resend:             whether clients are sent again what they have from the message before. With false the model
                        that they evaluated is not counted again for training; no result changes.
    """

    mode: Literal["vmap", "loop"] = "vmap"
    device: Device = "cpu"
    chunk: Annotated[int, Field(ge=0)] = 0
    record: Literal["auto", "always", "never"] = "auto"
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 10.0
    threads: Annotated[int, Field(ge=0, le=MOST_THREADS)] = 0
    dtype: Literal["float32", "float64"] = "float32"
    resend: bool = True


@dataclass(frozen=True)
class FlareEngine:
    """Every client at a site of its own, on NVIDIA FLARE (`fedweave sites run`).

    timeout:            seconds that sites have to answer a call; it goes on without sites that are later.
    quorum:             share of the called sites that must answer, where it is less than the algorithm's own.
    rejoin_seconds:     least time between two attempts to take sites back that were lost.
    wait:               seconds that a run waits for sites that it cannot do without, or for the server, after they have
                        stopped answering; 0: it ends at once and goes on with --resume.
    reply_mb:           largest reply that is accepted, in megabytes.
    checkpoint_seconds: least time between two checkpoints, which take a tenth of a run at most; 0: after each round.
    threads:            threads of torch in each process, 0 leaves its default.
    dtype:              number type of features and weights.
    resend:             whether sites are sent again what they have from the message before. With false the model that
                        they evaluated is not sent to them for training; each keeps its last message in memory.
    """

    timeout: Annotated[float, Field(gt=0)] = 600.0
    quorum: Annotated[float, Field(gt=0, le=1)] = 1.0
    rejoin_seconds: Annotated[float, Field(ge=0)] = 30.0
    wait: Annotated[float, Field(ge=0)] = 3600.0
    reply_mb: Annotated[float, Field(gt=0)] = 512.0
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 10.0
    threads: Annotated[int, Field(ge=0, le=MOST_THREADS)] = 0
    dtype: Literal["float32", "float64"] = "float32"
    resend: bool = True


@dataclass(frozen=True)
class RayEngine:
    """A cluster's workers, each with a share of the clients, on Ray (`pip install 'fedweave[ray]'`).

    workers:            number of workers; "auto" starts one for each core of the cluster.
    address:            address of a running cluster, "host:port"; "auto" finds the one that this machine belongs to,
                        "local" starts one only on this machine, for this run.
    start_seconds:      seconds that workers may take until they are ready.
    device:             device of every worker, as in the engine "simulation".
    gpus_per_worker:    GPUs that Ray keeps for each worker, 0.5 for two workers on one; without any it sees none.
    chunk:              clients that a worker runs at once, 0 chooses.
    record:             whether repeated steps are recorded, as in the engine "simulation".
    checkpoint_seconds: least time between two checkpoints, which take a tenth of a run at most; 0: after each round.
    threads:            threads of torch in each worker, 0 takes one.
    dtype:              number type of features and weights.
    resend:             whether clients are sent known messages again, as in the engine "simulation".
    """

    workers: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    address: str = "local"
    start_seconds: Annotated[float, Field(gt=0)] = 300.0
    device: Device = "cpu"
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0.0
    chunk: Annotated[int, Field(ge=0)] = 0
    record: Literal["auto", "always", "never"] = "auto"
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 10.0
    threads: Annotated[int, Field(ge=0, le=MOST_THREADS)] = 0
    dtype: Literal["float32", "float64"] = "float32"
    resend: bool = True

    def __post_init__(self) -> None:
        """Reject GPUs that Ray would hide."""
        if self.device.startswith("cuda") and not self.gpus_per_worker:
            raise ConfigError(
                f"engine.device is {self.device!r} and engine.gpus_per_worker 0, with which Ray hides GPUs from "
                "workers; set engine.gpus_per_worker = 1, or a part of 1 for several workers on one."
            )


ENGINES: dict[str, type] = {"simulation": SimulationEngine, "ray": RayEngine, "flare": FlareEngine}


def of_edges(table: Values) -> Record:
    """The settings of edges between members, which every section [data] may have.

    Raises:
        ConfigError: a value is not valid.
    """
    from fedweave.datasets.external import REFUSE, check_external

    external, least = table.get("external", REFUSE), table.get("min_external", 1)
    try:
        check_external(external)
    except ConfigError as error:
        raise ConfigError(f"data.{error}", code=error.code) from error
    if type(least) is not int or least < 1:
        raise ConfigError(f"data.min_external: must be a whole number >= 1, got {least!r}", code="config.value")
    return {"external": external, "min_external": least}


def with_foreign_ends(algorithm: Choice, external: str) -> Choice:
    """The algorithm with the part that trains on links between members, if [data] `external` asks for it and it takes
    parts."""
    present = algorithm.values.get(PARTS)
    if external != PREDICT or present is None or any(part.name == FOREIGN_ENDS for part in present):
        return algorithm
    parts = (*present, part_of(f"algorithm.{PARTS}", FOREIGN_ENDS))
    return dataclasses.replace(algorithm, values={**algorithm.values, PARTS: parts})


def links_of(table: Document) -> tuple[Document, "Links | None"]:
    """[data] without what it says of links as examples, and that; None where the task is another.

    Raises:
        ConfigError: a value is not valid.
    """
    if table.get("task") != "links":
        return table, None
    from fedweave.core.links import OF_DATA, Links  # needs torch

    fields = {name: field for name, field in own_parameters(Links).items() if name not in OF_DATA}
    values = checked_values("data.", {name: value for name, value in table.items() if name in fields}, fields)
    return {name: value for name, value in table.items() if name not in (*fields, "task")}, Links(**values)


def accepts_links(table: Document) -> bool:
    """Whether the data set of [data] takes task = "links", to read the links in its tables."""
    name = table.get("name")
    if not isinstance(name, str):
        return False
    kind = lookup("data.name", "data", name)[1]
    task = own_parameters(kind).get("task")
    return task is not None and accepts(task, "links")


def learned_of(table: Document) -> tuple[Document, bool]:
    """[data] without `features` where that is a word, and whether these are learned, a vector for each node.

    Raises:
        ConfigError: it is another word.
    """
    features = table.get("features")
    if not isinstance(features, str):  # a data set may have a setting of that name
        return table, False
    if features not in ("given", "learned"):
        raise ConfigError(f"data.features: must be 'given' or 'learned', got {features!r}", code="config.value")
    return {key: value for key, value in table.items() if key != "features"}, features == "learned"


def decoder_of(table: Document, of_links: bool) -> tuple[Document, str]:
    """[model] without `decoder`, where links are the examples, and that.

    Raises:
        ConfigError: there is no such decoder.
    """
    if not of_links or "decoder" not in table:
        return table, DECODER
    from fedweave.models.links import DECODERS

    decoder = table["decoder"]
    if decoder not in DECODERS:
        allowed = ", ".join(map(repr, DECODERS))
        raise ConfigError(f"model.decoder: must be one of {allowed}, got {decoder!r}", code="config.value")
    return {key: value for key, value in table.items() if key != "decoder"}, str(decoder)


ANY_FEATURES, ANY_CLASSES = 8, 2  # of a model that is built only to check its settings
DECODER = "dot"  # how links are scored where [model] does not say
_PACES = (("lr", "optimizer"), ("server_lr",))  # settings of the step size, which belong together
MOST_OTHERS = 9  # plug-ins that a hint names
_DEVICES = ("device", "gpu", "gpus", "cuda")
_CALLS_ALL = " This algorithm calls all clients in every round."
_ON_GPUS = " What computes is engine.device, such as 'cuda'; of a site, [site] device in its site.toml."
TUNE = "tune"  # the key of [algorithm] that lists values for `fedweave sweep` to try
_FOR_SWEEPS = "algorithm.tune: values that `fedweave sweep` tries"
_OF_SIMULATIONS = "Of simulations: every site read its own data and split, as its own site.toml says."


@dataclass(frozen=True, repr=False)
class Config:
    """One run, resolved: every key has its value. `folder` is the user's `[data] path` or None; `noise` is None where
    the document has no [noise], `forget` where it has no [forget]; `external` and `min_external` are settings of [data]
    for all kinds of data (`partition.external`); `member_models` are the models that members have instead of `model`;
    `links` states how links are the examples, if [data] task does, and `decoder` how [model] scores them
    (`models.links`); `learned` states whether nodes have a column each instead of their features
    (`datasets.triples.with_node_columns`)."""

    general: General
    data: Choice
    partition: Choice
    model: Choice
    algorithm: Choice
    engine: Choice
    folder: str | None = None
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    pay: PaySettings = field(default_factory=PaySettings)
    noise: "Noise | None" = None
    forget: "Forget | None" = None
    external: str = "refuse"
    min_external: int = 1
    member_models: MemberModels = field(default_factory=MemberModels)
    links: "Links | None" = None
    decoder: str = DECODER
    learned: bool = False

    def __repr__(self) -> str:
        names = {key: Words(choice.label) for key, choice in self.sections.items() if key != "algorithm"}
        facts = names | {"rounds": self.general.rounds, "seed": self.general.seed}
        return line("Config", facts, [self.algorithm.label])

    def _repr_html_(self) -> str:
        tables = ((key, table) for key, table in self.plain().items() if isinstance(table, dict))
        return page(repr(self), ((f"{key}.{name}", value) for key, table in tables for name, value in table.items()))

    @property
    def between_sites(self) -> bool:
        """Whether every client is at a site of its own, so that models and data are there."""
        return self.engine.name == "flare"

    def of_member(self, member: str, members: Sequence[str]) -> "Config":
        """The experiment with the model of one of its members as the only one."""
        model = self.member_models.of(member, members.index(member)) if self.member_models else None
        return dataclasses.replace(self, model=self.model if model is None else model, member_models=MemberModels())

    def in_process(self) -> "Config":
        """This experiment with all clients in this process, which changes no number."""
        fields = own_parameters(SimulationEngine)
        values = {name: self.engine.values.get(name, fields[name].default) for name in fields}
        return dataclasses.replace(self, engine=Choice("engine", "simulation", SimulationEngine, values))

    def on_device(self, device: str) -> "Config":
        """This experiment, in this process, on another device."""
        return dataclasses.replace(
            self, engine=dataclasses.replace(self.engine, values={**self.engine.values, "device": device})
        )

    @property
    def sections(self) -> dict[str, Choice]:
        """{section: its choice} for each section that chooses a plug-in."""
        chosen = (self.data, self.partition, self.model, self.algorithm, self.engine)
        return {choice.path: choice for choice in chosen}

    def plain(self) -> Document:
        """The TOML document that resolves to this config."""
        sections = {name: choice.plain() for name, choice in self.sections.items()}
        sections["model"] |= self.member_models.plain()
        if self.folder is not None:
            sections["data"]["path"] = self.folder
        if self.external != "refuse":
            sections["data"] |= {"external": self.external, "min_external": self.min_external}
        if self.links is not None:
            sections["data"] |= {"task": "links", **self.links.plain()}
            sections["model"]["decoder"] = self.decoder
        if self.learned:
            sections["data"]["features"] = "learned"
        noise = {} if self.noise is None else {"noise": dataclasses.asdict(self.noise)}
        forget = {} if self.forget is None else {"forget": {k: [*v] for k, v in asdict(self.forget).items() if v}}
        pay = {"pay": self.pay.plain()} if self.pay != PaySettings() else {}
        more = {"evaluation": self.evaluation.plain(), **pay, **noise, **forget, "privacy": {}}
        return {**self.general.plain(), **sections, **more}

    def any_model(self) -> Any:
        """The model for some number of features, to look at settings alone."""
        from fedweave.models.links import on_links

        return on_links(self.model.make(), self.links, self.decoder).build(ANY_FEATURES, ANY_CLASSES)

    def check_made(self) -> None:
        """Reject settings that the model or the algorithm rejects for any data.

        Raises:
            ConfigError: names the algorithm and the setting.
        """
        try:
            self.algorithm.make(self.any_model())
        except ConfigError as error:
            raise ConfigError(*(f"{self.algorithm.label}: {fault}" for fault in error.args), code=error.code) from error


@runtime_checkable
class ChoosesParts(Protocol):
    """The class of an algorithm that takes only some kinds of parts."""

    @staticmethod
    def takes_part(kind: type) -> bool:
        """Whether it takes parts of that class."""


@dataclass(frozen=True)
class Exchanged:
    """What `with_algorithm` did with the keys of [algorithm]. kept: keys that stay. replaced: learning
    rates and optimizers, with their old values, which the defaults of the new algorithm replace.
    dropped: keys that the new algorithm does not have, or cannot have with that value."""

    kept: tuple[str, ...] = ()
    replaced: Values = field(default_factory=dict)
    dropped: tuple[str, ...] = ()

    def notes(self, name: str, values: Values) -> list[str]:
        """Sentences about the keys; name: of the new algorithm. values: its settings."""
        if not (self.replaced or self.dropped):
            return []
        short = {key for key in self.kept if isinstance(values[key], int | float | str)}
        text = ", ".join(f"{key} = {values[key]}" if key in short else key for key in self.kept) or "nothing"
        sentences = (
            [f"{name} does not take {', '.join(self.dropped)}; dropped from [algorithm]"] if self.dropped else []
        )
        if self.replaced:
            now = ", ".join(f"{key} = {values[key]} (not {was})" for key, was in self.replaced.items())
            sentences.append(
                f"{name} has a learning rate and an optimizer of its own: {now}; --set algorithm.… changes it"
            )
        return [*sentences, f"{name} keeps {text} of [algorithm]"]


def written(document: Document) -> str:
    """The document of a run (`Config.plain`) as TOML, with a comment on sections that sites do not use."""
    of_sites = section(document, "engine").get("name") == "flare"
    return dumps(document, dict.fromkeys(("data", "partition"), _OF_SIMULATIONS) if of_sites else None)


def read(path: Path, overrides: Sequence[str] = (), algorithm: str | None = None) -> tuple[Config, list[str]]:
    """Resolve the TOML file at `path`, with `algorithm` instead of the file's and then `overrides`
    ("section.key=value").

    Returns the config and sentences on the keys of [algorithm] that it does not use: `tune` and, with another
    algorithm, keys that this algorithm does not have.

    Raises:
        ConfigError: the file cannot be read, or a key, name or value is not valid; names it and what is valid.
    """
    document = load(path)
    notes = [f"{_FOR_SWEEPS}; one run uses the other settings"] if tuned(document) else []
    exchanged = Exchanged()
    if algorithm is not None:
        document, exchanged = with_algorithm(document, algorithm)
    for text in overrides:
        override(document, text)
    try:
        config = resolve(document)
        return config, [*notes, *exchanged.notes(config.algorithm.label, config.algorithm.values)]
    except ConfigError as error:
        faults = [str(fault) for fault in error.args]
        messages = [*(_flagged(fault, overrides) for fault in faults), *_replacing(faults, overrides)]
        raise ConfigError(*messages, code=error.code) from error


def tuned(document: Document) -> dict[str, list[object]]:
    """Take the values to try of each key out of [algorithm].

    Raises:
        ConfigError: they are no table of lists.
    """
    table = section(document, "algorithm").pop(TUNE, {})
    if not isinstance(table, dict) or not all(isinstance(values, list) and values for values in table.values()):
        message = f"algorithm.{TUNE}: lists of values to try, such as {TUNE} = {{lr = [0.01, 0.1]}}, got {table!r}"
        raise ConfigError(message, code="config.tune")
    return table


def read_saved(path: Path) -> Config:
    """Resolve the configuration of a run's folder, which the folder's author may have written by hand.

    Raises:
        UserError: it names a Python file that is not trusted (`core.plugins.check_trusted`).
        ConfigError: it is not valid.
    """
    document = load_saved(path)
    check_trusted(document, path)
    with _of_a_run(path):
        return resolve(document)


def load_saved(path: Path) -> Document:
    """The document of a run's folder, checked as far as that needs no plug-in: its algorithm may not be at hand.

    Raises:
        ConfigError: it is not what a run writes there.
    """
    document = load(path)
    with _of_a_run(path):
        try:
            dumps(document)
        except (TypeError, ValueError) as error:  # a date, a number of thousands of digits
            raise ConfigError(str(error)) from error
        checked_values(
            "", document, {key: parameter for key, parameter in own_parameters(General).items() if key in document}
        )
        if odd := [key for key in REGISTRIES if not isinstance(section(document, key).get("name", ""), str)]:
            raise ConfigError(f"{odd[0]}.name: is no name")
        if not isinstance(section(document, "data").get("labels") or [], list):
            raise ConfigError("data.labels: is no list")
    return document


@contextmanager
def _of_a_run(path: Path) -> Iterator[None]:
    """Begin errors about the file with its path."""
    try:
        yield
    except ConfigError as error:
        message = f"{path} is not the configuration of a run of this version:"
        raise ConfigError(message, *error.args, code=error.code) from error


def _flagged(fault: str, overrides: Sequence[str]) -> str:
    """The fault, with the last override of the setting that it is about, if there is one."""
    about = re.findall(r"\w+", fault)[:3]  # every message begins with section and key
    for text in reversed(overrides):
        if set(re.split(r"\W+", text.partition("=")[0].strip())) <= set(about):
            return f"--set {text}: {fault}"
    return fault


def _replacing(faults: Sequence[str], overrides: Sequence[str]) -> Iterator[str]:
    """How to leave out the keys of a section where an override names a plug-in that lacks some of them."""
    for text in overrides:
        path, _, name = (part.strip() for part in text.partition("="))
        table = path.removesuffix(".name")
        if table != path and any(fault.startswith(f"{table}.") and "unknown key" in fault for fault in faults):
            whole = f"{table}={{name = {json.dumps(name.strip(chr(34)))}}}"
            yield f"--set {text} keeps the other keys of [{table}]; to leave all of them out, write --set '{whole}'"


def with_algorithm(document: Document, name: str, option: str = "--algorithm") -> tuple[Document, Exchanged]:
    """The document with another algorithm: NAME's defaults, and the keys that NAME also has, with values that it can
    have. A learning rate and its optimizer stay only where both algorithms have the same defaults. option: the
    command-line option that the name comes from.

    Raises:
        ConfigError: there is no such algorithm, or the section to be replaced is itself not valid.
    """
    table = section(document, "algorithm")
    before = parameters("algorithm", _choice_of("algorithm", table).kind)
    name, kind = lookup(option, "algorithm", name)
    fields = parameters("algorithm", kind)
    apart = {
        key for pace in _PACES if any(_default(fields, key) != _default(before, key) for key in pace) for key in pace
    }
    replaced = {key: value for key, value in table.items() if key in apart and key in fields}
    remaining = {
        key: value for key, value in table.items() if key in fields and key not in apart and accepts(fields[key], value)
    }
    dropped = tuple(key for key in table if key not in remaining and key not in replaced and key != "name")
    if "parts" in remaining and isinstance(kind, ChoosesParts):
        remaining["parts"], idle = taken(remaining["parts"], fields["parts"], kind.takes_part)
        dropped += tuple(f"parts {name}" for name in idle)
    exchanged = Exchanged(tuple(remaining), replaced, dropped)
    return {**document, "algorithm": {"name": name, **remaining}}, exchanged


def with_weight_decay(algorithm: Choice, links: bool) -> Choice:
    """The algorithm with the number that its `weight_decay` has by default, so that a run's file states it."""
    if algorithm.values.get("weight_decay", 0.0) is not None:
        return algorithm
    from fedweave.algorithms.fedavg import LocalTraining
    from fedweave.algorithms.parts.training import default_weight_decay
    from fedweave.algorithms.preset import Preset

    kind = algorithm.kind
    if not (isinstance(kind, Preset) or (isinstance(kind, type) and issubclass(kind, LocalTraining))):
        return algorithm  # a plug-in from outside, whose None has another meaning
    return dataclasses.replace(algorithm, values={**algorithm.values, "weight_decay": default_weight_decay(links)})


def _default(fields: Mapping[str, Parameter], key: str) -> object:
    return fields[key].default if key in fields else None


def resolve(document: Document) -> Config:
    """Check a document and fill in every default.

    Raises:
        ConfigError: keys, names or values are not valid; names of each its path, the value and what is allowed.
    """
    general, faults = own_parameters(General), Faults(ConfigError)
    top, sections = Record(), dict[str, Choice]()
    with faults:
        valid = [*general, *REGISTRIES, "evaluation", "pay", "noise", "forget", "privacy"]
        check_keys("", document, valid, hint=partial(_in_sections, document))
    with faults:
        top = checked_values("", document, general)
    folder, across, own_of, links = None, Record(), MemberModels(), None
    decoder, learned = DECODER, False
    for name in REGISTRIES:
        with faults:
            table = section(document, name)
            choose_plugin: Callable[[str, Document, str], Choice] = _choice_of
            if name == "data":
                table, folder = _located(table)
                across = of_edges(table)
                table, links = links_of(table)
                if links is not None and accepts_links(table):
                    table = {**table, "task": "links"}
                table, learned = learned_of(table)
            if name == "model":
                table, decoder = decoder_of(table, section(document, "data").get("task") == "links")
                choose_plugin = choices.pooling(_choice_of, choices.of_graphs(sections.get("data"), folder))
                table, own_of = own_models(table, choose_plugin)
            sections[name] = choose_plugin(name, table, name)
    evaluation = EvaluationSettings()
    with faults:
        evaluation = EvaluationSettings(**_values_of(document, "evaluation", EvaluationSettings))
    pay = PaySettings()
    with faults:
        pay = PaySettings(**_values_of(document, "pay", PaySettings))
    with faults:
        for key in section(document, "privacy"):
            text = f"privacy.{key}: this version has no [privacy] settings; leave the section empty"
            raise ConfigError(text, code="config.unknown-key")
    noise, forget = None, None
    with faults:
        noise = _noise(document)
    with faults:
        forget = _forget(document)
    if learned and "data" in sections and "normalize" in sections["data"].values:  # one-hot columns are no amounts
        values = {**sections["data"].values, "normalize": "none"}
        sections["data"] = dataclasses.replace(sections["data"], values=values)
    if links is not None and evaluation.metric == "auto":
        metric: Metric = "mrr" if links.candidates else "average_precision"
        positive = None if links.candidates else 1
        evaluation = dataclasses.replace(evaluation, metric=metric, positive=positive)
    if "algorithm" in sections:
        chosen = with_foreign_ends(sections["algorithm"], across.get("external", ""))
        sections["algorithm"] = with_weight_decay(chosen, links is not None)
    faults.refuse()
    from fedweave.experiment.requirements import Configured  # needs torch, as the plug-ins do

    across |= {**sections, "folder": folder, "evaluation": evaluation, "pay": pay, "noise": noise}
    across["member_models"] = own_of
    across["forget"] = forget
    across |= {"links": links, "decoder": decoder, "learned": learned}
    config = Config(General(**top), **across)
    Configured.of(config).check()
    return config


def _noise(document: Document) -> "Noise | None":
    """[noise], if there is one."""
    if "noise" not in document:
        return None
    from fedweave.partition.noise import Noise  # as plug-ins, imported only when needed

    return Noise(**_values_of(document, "noise", Noise))


def _forget(document: Document) -> "Forget | None":
    """[forget], if there is one."""
    if "forget" not in document:
        return None
    from fedweave.partition.forgetting import Forget

    return Forget(**_values_of(document, "forget", Forget))


def _values_of(document: Document, name: str, kind: type) -> Record:
    """The checked values of a section whose settings are the fields of `kind`."""
    fields, table = own_parameters(kind), section(document, name)
    check_keys(name, table, [*fields])
    return checked_values(f"{name}.", table, fields)


def _in_sections(document: Document, key: str) -> str:
    """A hint that names "section.key" of every section whose chosen plug-in has that key."""
    paths = []
    for path in REGISTRIES:
        table, kinds = document.get(path), registry(path)
        name = table.get("name", DEFAULT_NAMES.get(path)) if isinstance(table, dict) else DEFAULT_NAMES.get(path)
        if isinstance(name, str) and name in kinds and key in parameters(path, kinds[name]):
            paths.append(f"{path}.{key}")
    if not paths and key in _DEVICES:
        return _ON_GPUS
    return f" Did you mean {' or '.join(map(repr, paths))}?" if paths else ""


def _of_others(path: str, valid: Container[str], key: str) -> str:
    """A hint for a key that a plug-in does not have: what it has instead, of the `valid` ones, or the plug-ins of the
    section that have it; "" where these are none or many."""
    if (path, key) == ("algorithm", "participation"):
        return _CALLS_ALL + (" `quorum` is the share of them that must reply." if "quorum" in valid else "")
    names = [name for name, kind in registry(path).items() if key in parameters(path, kind)]
    if len(names) == 1:
        return f" It is a key of {names[0]} ({path}.name = {json.dumps(names[0])})."
    if path == "engine" and not names and key in _DEVICES:
        return _ON_GPUS
    return f" It is a key of {', '.join(names)}." if 0 < len(names) <= MOST_OTHERS else ""


def _located(table: Document) -> tuple[Document, str | None]:
    """[data] without `path`, and the path; without a name, the path also decides the kind of data."""
    data = dict(table)
    folder = data.pop("path", None)
    if folder is None:
        return data, None
    if not isinstance(folder, str) or not folder:
        raise ConfigError(f"data.path: the folder of the data as a string, got {folder!r}", code="config.value")
    return {"name": "npz" if folder.lower().endswith(".npz") else "folder", **data}, folder


def _choice_of(path: str, table: Document, at: str = "") -> Choice:
    """The plug-in that a section chooses, or the table `at` a place in it."""
    at = at or path
    name = table.get("name", DEFAULT_NAMES.get(path))
    if name is None:
        remedy = f"choose one of {', '.join(registry(path))}, or give your own folder as {path}.path"
        raise ConfigError(f"{path}.name: is missing; {remedy}", code="config.missing")
    name, kind = lookup(f"{at}.name", path, name)
    more = ["path", "external", "min_external"] if path == "data" else []
    if path == "algorithm" and TUNE in table:
        raise ConfigError(f"{_FOR_SWEEPS}; leave it out here")
    fields = parameters(path, kind)
    choice = choose(at, name, kind, fields, table, more, hint=partial(_of_others, path, fields))
    if path != "algorithm":  # an algorithm is given its model, so `build` checks it
        choice.make()
    return choice
