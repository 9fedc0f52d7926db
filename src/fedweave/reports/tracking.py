"""Experiment trackers (TensorBoard, MLflow, Weights & Biases; optional extras), which one observer of a run feeds.

A tracker receives a run's settings once, numbers by round, and the end. It writes into the run's directory, unless its
own setting (`MLFLOW_TRACKING_URI`) names another place.
"""

import json
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from fedweave.core.ledger import Ledger
from fedweave.errors import FedweaveError, UserError
from fedweave.experiment.config import Config, Document, flat
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.saving import Ready
from fedweave.privacy.accountant import bounds

_LOG = logging.getLogger(__name__)

# In a run's directory: the folder of TensorBoard's events, and files that identify the run at a tracker.
EVENTS = "tensorboard"
MLFLOW_RUN = "mlflow.json"
WANDB_RUN = "wandb.json"


class Tracker(Protocol):
    """A service or format that stores the numbers of a run."""

    def numbers(self, round: int, values: Mapping[str, float]) -> None:
        """Store the numbers of a round, by name."""

    def close(self, finished: bool) -> None:
        """Close it when training is over or has failed; finished: whether it ended by itself, after the last round or
        without a better round (`patience`)."""


class Tracking:
    """The observer that sends a run's numbers to trackers: after each round its metrics, and the seconds and bytes up
    to then, by direction and for evaluation; at the end ε.

    makers: each makes a tracker from the run's directory, its settings and the number of rounds completed before.
    """

    def __init__(self, makers: Sequence[Callable[[Path, Document, int], Tracker]]) -> None:
        self._makers = makers
        self._trackers = list[Tracker]()
        self._ledger = Ledger()
        self._round = 0  # the last completed one
        self._finished = False

    def begin(self, config: Config, built: Ready, directory: Path, done: int) -> None:
        self._config, self._ledger, self._round = config, built.fed.ledger, done
        self._finished = done == config.general.rounds
        self._trackers = []
        with _tracker_errors(), ExitStack() as opened:
            for make in self._makers:
                self._trackers.append(make(directory, config.plain(), done))
                opened.callback(self._trackers[-1].close, False)  # if a later one fails
            opened.pop_all()

    def step(self, reached: Checkpoint) -> None:
        self._round = reached.round
        is_last, stopping = reached.round == self._config.general.rounds, self._config.evaluation.stopping
        self._finished = is_last or stopping.stops(reached.round, reached.summary)
        sizes = {f"bytes/{kind}": float(size) for kind, size in self._ledger.sizes().items()}
        self._send(sizes | {"seconds": reached.seconds} | reached.summary)

    def alone(self, done: int, rounds: int) -> None:
        pass

    def stopping(self, number: int) -> None:
        pass

    def end(self) -> None:
        try:
            with ExitStack() as closing:  # closes all, even if one fails
                for tracker in self._trackers:
                    closing.callback(self._close, tracker)
                if self._round:
                    spent = bounds(self._ledger.table())
                    self._send({f"epsilon/per {bound.per}": bound.epsilon for bound in spent})
        except FedweaveError as error:  # the run's own files are complete without it
            _LOG.warning("note: %s", error)

    def _close(self, tracker: Tracker) -> None:
        with _tracker_errors():
            tracker.close(self._finished)

    def _send(self, values: Mapping[str, float]) -> None:
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        if finite:
            with _tracker_errors():
                for tracker in self._trackers:
                    tracker.numbers(self._round, finite)


@contextmanager
def _tracker_errors() -> Iterator[None]:
    """Raise any error of a tracker as a FedweaveError that says so."""
    try:
        yield
    except Exception as error:  # each tracker has errors of its own
        what = str(error).partition("\n")[0]
        raise FedweaveError(
            f"a tracker failed ({type(error).__name__}: {what}). Repair it and continue the run with --resume, "
            "or continue without --track.",
            code="tracker.failed",
        ) from error


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

        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        if not uri:  # a folder needs no database; MLflow asks for an explicit permission
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (directory / "mlruns").resolve().as_uri()
        self._client = MlflowClient(uri)
        file = directory / MLFLOW_RUN
        earlier = json.loads(file.read_text()) if done and file.exists() else {}
        if earlier.get("uri") == uri:
            self._run = str(earlier["run"])
            self._client.update_run(self._run, "RUNNING")
            return
        experiment = self._client.get_experiment_by_name("fedweave")
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment("fedweave")
        self._run = self._client.create_run(experiment_id, run_name=directory.name).info.run_id
        file.write_text(json.dumps({"uri": uri, "run": self._run}))
        params = [Param(name, str(value)[:500]) for name, value in flat(settings).items()]
        self._client.log_batch(self._run, params=params)

    def numbers(self, round: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())  # milliseconds
        self._client.log_batch(self._run, metrics=[Metric(name, value, now, round) for name, value in values.items()])

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


class WandB:
    """An offline run of Weights & Biases in `directory`/wandb, of the project "fedweave".

    A continued run continues the same W&B run. Nothing is sent, even if WANDB_MODE is set: to send it, give the folder
    to `wandb sync`.
    """

    def __init__(self, directory: Path, settings: Document, done: int) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # wandb would send reports of errors, even offline
        import wandb

        file = directory / WANDB_RUN
        if not done:
            shutil.rmtree(directory / "wandb", ignore_errors=True)
        earlier = json.loads(file.read_text()) if done and file.exists() else {}
        wandb_settings = wandb.Settings(
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
            settings=wandb_settings,
        )
        file.write_text(json.dumps({"run": self._run.id}))

    def numbers(self, round: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=round)

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


# {name of the tracker, which is also that of its package and of fedweave's extra: what makes it}
TRACKERS: dict[str, Callable[[Path, Document, int], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def open_trackers(names: Sequence[str]) -> Tracking:
    """The observer that sends a run's numbers to the trackers of these names, which open when the run begins.

    Raises:
        UserError: there is no tracker of a name, or its package is not installed.
    """
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
