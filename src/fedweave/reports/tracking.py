"""Trackers of experiments, as optional extras, behind one observer of a run.

A tracker receives a run's settings once, numbers by round, and the end. It writes into the run's directory, unless its
own setting (`MLFLOW_TRACKING_URI`) names another place.
"""

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from fedweave.core.ledger import Ledger
from fedweave.errors import FedweaveError, UserError
from fedweave.experiment.config import Config, Document, flat
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.run import RunObserver
from fedweave.experiment.runs.saving import Ready
from fedweave.privacy.accountant import bounds

EVENTS, MLFLOW_RUN, WANDB_RUN = "tensorboard", "mlflow.json", "wandb.json"  # in a run's directory


class Tracker(Protocol):
    """A service or format that stores the numbers of a run."""

    def numbers(self, round: int, values: Mapping[str, float]) -> None:
        """Store the numbers of a round, by name."""

    def close(self, finished: bool) -> None:
        """Close it when training is over; finished: whether the last round was reached."""


class Tracking:
    """Passes to trackers what a run's observers receive: metrics, seconds, bytes by direction and, at the end, ε.

    make: makes each tracker from the run's directory, its settings and the number of rounds completed before.
    """

    def __init__(self, make: Sequence[Callable[[Path, Document, int], Tracker]]) -> None:
        self._make, self._trackers = make, list[Tracker]()
        self._ledger = Ledger()
        self._round, self._rounds = 0, 0

    def begin(self, config: Config, built: Ready, directory: Path, done: int) -> None:
        self._ledger, self._round, self._rounds = built.fed.ledger, done, config.general.rounds
        with _tracker_errors():
            self._trackers = [make(directory, config.plain(), done) for make in self._make]

    def step(self, reached: Checkpoint) -> None:
        self._round = reached.round
        values = {f"bytes/{way}": float(size) for way, size in self._ledger.sizes().items()}
        self._tell(values | {"seconds": reached.seconds} | reached.summary)

    def alone(self, done: int, rounds: int) -> None:
        pass

    def stopping(self, number: int) -> None:
        pass

    def end(self) -> None:
        if self._round:
            spent = bounds(self._ledger.table())
            self._tell({f"epsilon/per {bound.per}": bound.epsilon for bound in spent})
        with _tracker_errors():
            for tracker in self._trackers:
                tracker.close(self._round == self._rounds)

    def _tell(self, values: Mapping[str, float]) -> None:
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        if finite:
            with _tracker_errors():
                for tracker in self._trackers:
                    tracker.numbers(self._round, finite)


@contextmanager
def _tracker_errors() -> Iterator[None]:
    """Report an error of a tracker as such."""
    try:
        yield
    except Exception as error:  # each tracker has errors of its own
        what = str(error).partition("\n")[0]
        raise FedweaveError(
            f"a tracker failed ({type(error).__name__}: {what}). Repair it and continue the run with --resume, "
            "or continue without --track.",
            code="tracker.failed",
        ) from error


class Observers:
    """Several observers of a run as one (see `experiment.runs.run.RunObserver`)."""

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


class TensorBoard:
    """Scalars in `directory`/tensorboard, for `tensorboard --logdir`; repeated rounds replace the earlier ones."""

    def __init__(self, directory: Path, settings: Document, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if not done:
            shutil.rmtree(directory / EVENTS, ignore_errors=True)
        self._writer = SummaryWriter(str(directory / EVENTS), purge_step=done + 1 if done else None)
        self._writer.add_text("config", "\n".join(f"    {name} = {value}" for name, value in flat(settings).items()))

    def numbers(self, round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)

    def close(self, finished: bool) -> None:
        self._writer.close()


class MLflow:
    """A run of the experiment "fedweave" at MLFLOW_TRACKING_URI; without it in `directory`/mlruns.

    A continued run continues the same MLflow run.
    """

    def __init__(self, directory: Path, settings: Document, done: int) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        where = os.environ.get("MLFLOW_TRACKING_URI", "")
        if not where:  # a folder needs no database; MLflow asks for an explicit permission
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            where = (directory / "mlruns").resolve().as_uri()
        self._client, file = MlflowClient(where), directory / MLFLOW_RUN
        earlier = json.loads(file.read_text()) if done and file.exists() else {}
        if earlier.get("uri") == where:
            self._run = str(earlier["run"])
            self._client.update_run(self._run, "RUNNING")
            return
        experiment = self._client.get_experiment_by_name("fedweave")
        number = experiment.experiment_id if experiment else self._client.create_experiment("fedweave")
        self._run = self._client.create_run(number, run_name=directory.name).info.run_id
        file.write_text(json.dumps({"uri": where, "run": self._run}))
        params = [Param(name, str(value)[:500]) for name, value in flat(settings).items()]
        self._client.log_batch(self._run, params=params)

    def numbers(self, round: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        at = int(1000 * time.time())
        self._client.log_batch(self._run, metrics=[Metric(name, value, at, round) for name, value in values.items()])

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


class WandB:
    """An offline run of Weights & Biases in `directory`/wandb, of the project "fedweave".

    A continued run continues the same W&B run. Nothing is sent, even if WANDB_MODE is set: to send it, give the folder
    to `wandb sync`.
    """

    def __init__(self, directory: Path, settings: Document, done: int) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # no reports of errors, which it would send
        import wandb

        file = directory / WANDB_RUN
        if not done:
            shutil.rmtree(directory / "wandb", ignore_errors=True)
        earlier = json.loads(file.read_text()) if done and file.exists() else {}
        about = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            quiet=True,
            silent=True,
            x_disable_machine_info=True,
            x_disable_stats=True,
        )
        self._run = wandb.init(
            project="fedweave",
            name=directory.name,
            id=earlier.get("run"),
            dir=str(directory),
            config=flat(settings),
            mode="offline",
            reinit="create_new",
            settings=about,
        )
        file.write_text(json.dumps({"run": self._run.id}))

    def numbers(self, round: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=round)

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


# {name, also of the package: the tracker}
TRACKERS: dict[str, Callable[[Path, Document, int], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def open_trackers(names: Sequence[str]) -> Tracking:
    """The observer that stores the run's numbers with the trackers of these names."""
    for name in names:
        if name not in TRACKERS:
            raise UserError(
                f"--track {name}: there is no such tracker; choose one of {', '.join(TRACKERS)}.",
                code="user.no-tracker",
            )
        if find_spec(name) is None:
            raise UserError(
                f'--track {name} needs a package that is not installed: pip install "fedweave[{name}]".',
                code="user.not-installed",
            )
    return Tracking([TRACKERS[name] for name in dict.fromkeys(names)])
