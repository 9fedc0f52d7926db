"""The sections of an experiment that choose no plug-in: the top level, [evaluation] and [pay]; and the engines."""

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from fedweave.core.settings import Beside
from fedweave.core.types import Record
from fedweave.errors import ConfigError
from fedweave.experiment.config.toml import Document
from fedweave.metrics.selection import JUDGES, Judging, Ranks
from fedweave.metrics.stopping import Stopping

MAX_THREADS = 1024  # more are a mistake, or meant to exhaust a machine
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
    evaluations (0: only at the end; "auto": as few as keep evaluations below about a quarter of the time, by work that
    is counted before the first round, and at most a tenth of all rounds; between sites 1), and `fair_margin`, by how
    much a round's validation accuracy must exceed the accuracy of the better constant prediction for its gaps between
    groups to count (`metrics.best_rounds.fairest`; data with a sensitive attribute). `init_from` is the directory of an
    earlier run whose weights training begins from; between sites, the number of that run. `requester` and `purpose`
    state who asks for a run and what for; sites note them and show them in their reports."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    rounds: Annotated[int, Field(ge=1)] = 100
    eval_every: Annotated[int, Field(ge=0)] | Literal["auto"] = 1
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
    shelf:    whether to measure what members reach alone with the tools on their shelf, such as gradient boosting
              ("shelf/…" in the summary), and, for all members' examples together, what a pool would: true with up to
              200 trees and 100,000 training examples; "auto" with what takes about ten seconds of one core each, so
              that fewer examples, or of links fewer training, validation and test links, may be drawn, which the
              result says. Between sites there is no pool; each site measures its own at home, and sends what its
              policy.measures lets leave.
    alone: whether the same model is also trained at each member alone, after the last round, which shows what
              joining brings ("alone/…" in the summary; `experiment.runs.alone`): with the run's data, splits, seed
              and learning settings, and early stopping for each member. "auto": in runs of 2 to 100 members with an
              algorithm of FedAvg's family (not local, centralized, nor those whose model reads what others sent)
              whose members have the same model, all data of their own (not external = "exchange") and fresh weights
              (no init_from). No number of the run changes; its cost is shown separately. Between sites each site
              trains it at home, which takes about as long as its training in the run, and sends as for `shelf`.
    joint_columns: number of folds, 2 or more, for what members reach that add the joint model's columns to their shelf
              ("shelf_joint/…" in the summary): the run trains so many further runs, each without the labels of one fold
              of the training examples; 0 trains none. Only for simulations.
    """

    metric: Metric = "auto"
    positive: str | Annotated[int, Field(ge=0)] | None = None
    threshold: Threshold = "auto"
    intervals: Annotated[float, Field(ge=0, lt=1)] = 0.0
    ranks: Ranks = "auto"
    clients: Annotated[int, Field(ge=0)] = 0
    patience: Annotated[int, Field(ge=0)] = 0
    min_delta: Annotated[float, Field(ge=0), Beside("patience")] = 0.0
    shelf: bool | Literal["auto"] = "auto"
    alone: bool | Literal["auto"] = "auto"
    joint_columns: Annotated[int, Field(ge=0)] = 0

    def plain(self) -> Record:
        """See `Judging.plain`; leaves out defaults."""
        defaults: Record = {"intervals": 0.0, "ranks": "auto", "clients": 0, "patience": 0, "min_delta": 0.0}
        defaults |= {"shelf": "auto", "alone": "auto", "joint_columns": 0}
        return {key: value for key, value in super().plain().items() if key not in defaults or value != defaults[key]}

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
            raise ConfigError(
                f"pay.cap = {self.cap:g}: all members could not get the whole budget. Set 1 or more, or 0 for no cap.",
                code="config.value",
            )

    def plain(self) -> Document:
        """The TOML table that resolves to it, without defaults."""
        defaults = asdict(PaySettings())
        return {key: value for key, value in asdict(self).items() if value != defaults[key]}


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
    threads: Annotated[int, Field(ge=0, le=MAX_THREADS)] = 0
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
    threads: Annotated[int, Field(ge=0, le=MAX_THREADS)] = 0
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
    threads: Annotated[int, Field(ge=0, le=MAX_THREADS)] = 0
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
