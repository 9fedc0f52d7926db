"""The settings that no plug-in brings along: the top level and the engines."""

import re
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from fedweave.core.records import Record, Values
from fedweave.errors import ConfigError
from fedweave.metrics.judging import Judging

MOST_THREADS = 1024  # more are a mistake, or meant to exhaust a machine


def _device(name: str) -> str:
    """A device as settings name it; whether it is there is found out where it is used."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name, re.ASCII):
        raise PydanticCustomError("device", "must be 'auto', 'cpu', 'cuda' or, of several GPUs, such as 'cuda:1'")
    return name


Device = Annotated[str, AfterValidator(_device)]


@dataclass(frozen=True)
class General:
    """The top-level keys: `seed` of everything random, `rounds` of training, rounds between evaluations (0: only
    at the end), and by how much a round's validation accuracy must exceed that of the better constant prediction for
    its gaps between groups to count (`metrics.best_rounds.fairest`; data with a sensitive attribute). `init_from` is
    the directory of an earlier run whose weights training begins from; between sites, that run's number. `requester`
    and `purpose` say who asks for a run and what for, in words that sites note and their reports show."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    rounds: Annotated[int, Field(ge=1)] = 100
    eval_every: Annotated[int, Field(ge=0)] = 1
    fair_margin: Annotated[float, Field(ge=-1, le=1)] = 0.0
    init_from: str | None = None
    requester: Annotated[str, Field(max_length=500)] = ""
    purpose: Annotated[str, Field(max_length=500)] = ""

    def plain(self) -> Record:
        """The keys of a document, without those that say nothing."""
        return {key: value for key, value in asdict(self).items() if value not in (None, "")}


Metric = Literal["auto", "accuracy", "macro_f1", "auc", "average_precision", "recall_at_1", "f1_positive"]
Price = Annotated[float, Field(gt=0)]
_EXACT = ConfigDict(extra="forbid")


class Cost(TypedDict):
    """What a missed positive and a false alarm cost."""

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
    cost: Cost


Threshold = Literal["auto", "f1"] | Annotated[float, Field(ge=0, le=1)] | AtShare | AtCost


@dataclass(frozen=True)
class Evaluation(Judging):
    """The section [evaluation], whose values are checked against these types.

    clients: how many clients are evaluated, drawn once for a run, the same in every round; 0 for all. Of simulations.
    features: whether a logistic regression on features alone stands beside the models ("features/…" in the summary):
              "auto" where that costs little: one of all clients' up to 100 million nonzero features times classes, one
              of each client's up to 40 clients times classes. Of simulations.
    """

    metric: Metric = "auto"
    positive: str | Annotated[int, Field(ge=0)] | None = None
    threshold: Threshold = "auto"
    clients: Annotated[int, Field(ge=0)] = 0
    features: bool | Literal["auto"] = "auto"

    def plain(self) -> Record:
        """See `Judging.plain`; what nobody asked for is left out."""
        usual = {"clients": 0, "features": "auto"}
        return {key: value for key, value in super().plain().items() if key not in usual or value != usual[key]}


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
    threads:            of torch, 0 leaves its default.
    dtype:              of features and weights.
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

    timeout:            seconds that sites have to answer a call; who has not by then is left out of it.
    quorum:             share of the called sites that must answer, where it is less than the algorithm's own.
    rejoin_seconds:     least time between two attempts to take sites back that were lost.
    reply_mb:           largest reply that is accepted, in megabytes.
    checkpoint_seconds: least time between two checkpoints, which take a tenth of a run at most; 0: after each round.
    threads:            of torch in each process, 0 leaves its default.
    dtype:              of features and weights.
    resend:             whether sites are sent again what they have from the message before. With false the model that
                        they evaluated is not sent to them for training; each keeps its last message in memory.
    """

    timeout: Annotated[float, Field(gt=0)] = 600.0
    quorum: Annotated[float, Field(gt=0, le=1)] = 1.0
    rejoin_seconds: Annotated[float, Field(ge=0)] = 30.0
    reply_mb: Annotated[float, Field(gt=0)] = 512.0
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 10.0
    threads: Annotated[int, Field(ge=0, le=MOST_THREADS)] = 0
    dtype: Literal["float32", "float64"] = "float32"
    resend: bool = True


@dataclass(frozen=True)
class RayEngine:
    """A cluster's workers, each with a share of the clients, on Ray (`pip install 'fedweave[ray]'`).

    workers:            how many; "auto" takes as many as the cluster has cores.
    address:            of a running cluster, "host:port"; "auto" finds the one that this machine belongs to, "local"
                        starts one on this machine alone, for this run.
    start_seconds:      how long workers may take until they are ready.
    device:             of every worker, as of the engine "simulation".
    gpus_per_worker:    GPUs that Ray keeps for each worker, 0.5 for two workers on one; without any it sees none.
    chunk:              clients that a worker runs at once, 0 chooses.
    record:             as of the engine "simulation".
    checkpoint_seconds: least time between two checkpoints, which take a tenth of a run at most; 0: after each round.
    threads:            of torch in each worker, 0 takes one.
    dtype:              of features and weights.
    resend:             as of the engine "simulation".
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
        """Refuse GPUs that Ray would hide."""
        if self.device.startswith("cuda") and not self.gpus_per_worker:
            raise ConfigError(
                f"engine.device is {self.device!r} and engine.gpus_per_worker 0, with which Ray hides GPUs from "
                "workers; set engine.gpus_per_worker = 1, or a part of 1 for several workers on one."
            )


ENGINES: dict[str, type] = {"simulation": SimulationEngine, "ray": RayEngine, "flare": FlareEngine}


def of_edges(table: Values) -> Record:
    """What [data] says of edges between members, of whatever data.

    Raises:
        ConfigError: a value is not valid.
    """
    from fedweave.datasets.edges import REFUSE, check_external

    external, least = table.get("external", REFUSE), table.get("external_least", 1)
    try:
        check_external(external)
    except ConfigError as error:
        raise ConfigError(f"data.{error}", code=error.code) from error
    if type(least) is not int or least < 1:
        raise ConfigError(f"data.external_least: must be a whole number >= 1, got {least!r}", code="config.value")
    return {"external": external, "external_least": least}
