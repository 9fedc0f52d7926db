"""A run built again from its configuration, whether that is still the run, and the models of its checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import torch

from fedweave.algorithms.deployment import Deployable, Which, deployable
from fedweave.core import model as models
from fedweave.core import plugins, random
from fedweave.core.model import Model
from fedweave.core.text import counted
from fedweave.core.tree import Tree, leaves, not_finite, to
from fedweave.core.types import Record, Values
from fedweave.datasets.contents import check_same
from fedweave.engines.devices import CPU, usable
from fedweave.errors import UserError, listed, option
from fedweave.experiment.build import Built, build
from fedweave.experiment.config import Config, read_saved
from fedweave.experiment.loading import client_partition
from fedweave.experiment.runs.checkpoint import Checkpoint, SavedRound, When
from fedweave.experiment.runs.files import (
    CHECKPOINT,
    CONFIG,
    PARTITION,
    SUMMARY,
    damage_error,
    read_summary,
    read_table,
)
from fedweave.metrics.selection import CHOSEN_ROUND, LAST_ROUND
from fedweave.models.edges import model_of_form
from fedweave.partition.base import Partition, client_ids


def partition_columns(built: Built) -> Record:
    """The columns of partition.parquet: what each client holds."""
    return built.columns | {"client": client_ids(len(built.columns["client"]), built.partition.names)}


def check_unchanged(directory: Path, config: Config, built: Built, checkpoint: Checkpoint) -> None:
    """Refuse what the directory's configuration gives now, unless its data and clients are those that the run noted.

    Raises:
        UserError: names what has changed.
    """
    now = built.digests | plugins.digests(config.plain())
    check_same(checkpoint.source, now, directory, f"Bring it back; new data is given as {option('data')}.")
    if not (directory / PARTITION).exists():  # a copy of the folder may lack it
        return
    saved_table, table = read_table(directory, PARTITION), pa.table(partition_columns(built))
    # Another version of fedweave may have other columns.
    columns = [name for name in table.column_names if name in saved_table.column_names]
    if saved_table.select(columns).to_pylist() != table.select(columns).to_pylist():
        raise UserError(
            f"the clients of {directory} are not those that its config.toml gives now: it was changed, or the run is "
            "of another version of fedweave. Run it again with `fedweave run`."
        )


def check_fits(w: Tree, net: Model, directory: Path) -> Tree:
    """Return the weights `w` of a run if they fit the model that its configuration makes.

    Raises:
        FedweaveError: they do not.
    """
    shapes = _shapes(w)
    for path, expected in _shapes(models.init(net, random.key(0), torch.float32)).items():
        shape = shapes.get(path)
        if shape != expected:
            problem = "absent" if shape is None else f"of shape {shape}"
            message = f"{path} is {problem}, and the model of config.toml has of shape {expected} there"
            raise damage_error(directory / CHECKPOINT, message)
    return w


def _shapes(w: Tree) -> Mapping[str, list[int]]:
    return {path: list(leaf.shape) for path, leaf in leaves(w) if isinstance(leaf, torch.Tensor)}


def check_finite(w: Tree) -> Tree:
    """The weights `w` of a model, if they are numbers that something can be computed with.

    Raises:
        UserError: one of them is NaN or infinite.
    """
    path = not_finite(w)
    if path:
        raise UserError(
            f"the model's weights {path} are not finite: its training diverged, or the checkpoint was changed. Train "
            f"again with a smaller algorithm.lr, or take the models of another round ({option('round', 'best')}).",
            code="user.not-finite",
        )
    return w


MODELS: tuple[str, ...] = get_args(Which)


@dataclass(frozen=True)
class Trained:
    """A finished run, with its clients as they were left.

    state: the server's. when: the round after which server and clients are as here.
    """

    directory: Path
    config: Config
    built: Built
    state: Tree
    when: SavedRound = "last"

    @property
    def algorithm(self) -> Deployable:
        """The algorithm that trained the models.

        Raises:
            UserError: the algorithm keeps no models.
        """
        return deployable(self.built.algorithm)

    def net_of(self, client: str) -> Model:
        """The model that a client uses on its data."""
        return deployable(self.built.algorithm_of(client)).net

    def test_net_of(self, client: str) -> Model:
        """The model that a client uses on other graphs; for names that are no client's, the global model."""
        return deployable(self.built.algorithm_of(client)).test_net

    @property
    def visible_partition(self) -> Partition:
        """The partition that clients see, in the order of the federation's clients."""
        return client_partition(self.config.algorithm, self.built.partition, self.built.data)

    def models(self, which: str) -> Mapping[str, Tree]:
        """{client: its weights} of the model `which` (`algorithms.deployment.Deployable`).

        Raises:
            UserError: no client has such a model.
        """
        algorithm, fed = self.algorithm, self.built.fed
        if which == "global":
            w = algorithm.one_model(self.state)
            return dict.fromkeys(fed.clients, check_fits(w, algorithm.test_net, self.directory))
        fed.begin(fed.round)  # each call draws the same random numbers
        algorithm.deploy(self.state, fed, "trained" if which == "trained" else "personal")
        states = fed.snapshot()
        weights = {client: state["model"] for client, state in states.items() if "model" in state}
        result = {client: check_fits(w, self.net_of(client), self.directory) for client, w in weights.items()}
        if not result:
            if which == "trained" and self.when == "best":
                why = f"a run keeps trained models of its last round only. Leave {option('round')} out."
            else:
                why = f"take {option('model', 'personal')}."
            raise UserError(f"no client has a {which} model of round {fed.round}; {why}", code="user.no-model")
        return result

    def model_of(self, which: str, client: str) -> Tree:
        """The weights of one client's model.

        Raises:
            UserError: there is no such client, or it has no such model.
        """
        clients = self.built.fed.clients
        if client not in clients:
            raise UserError(
                f"{option('client', client)}: the run has no such client; it has {counted(len(clients), 'client')}: "
                f"{listed(clients)}.",
                code="user.no-client",
            )
        weights = self.models(which)
        if client not in weights:
            raise UserError(f"{option('client', client)}: it never trained; take {option('model', 'personal')}.")
        return weights[client]


def chosen_models(run: Trained, client: str | None, which: str | None) -> Mapping[str, Tree]:
    """{client: its weights} of all clients, or only of `client`; by default of the model that it uses."""
    which = which or "personal"
    return run.models(which) if client is None else {client: run.model_of(which, client)}


def finished_config(directory: Path) -> Config:
    """The configuration of the finished run in `directory`.

    Raises:
        UserError: there is none.
    """
    if not (directory / CONFIG).is_file():
        raise UserError(
            f"{directory} is not the directory of a run. Give the folder of one.",
            code="user.no-run",
        )
    if not (directory / SUMMARY).exists():
        between_sites = read_saved(directory / CONFIG).between_sites
        how = f"`fedweave run`, with {option('resume', True)}"
        if between_sites:
            how = "`fedweave sites run --resume`"
        message = f"{directory} holds no finished run: it has no {SUMMARY}. Finish it by {how}."
        raise UserError(message, code="user.unfinished")
    return read_saved(directory / CONFIG)


def load_checkpoint(directory: Path, config: Config) -> Checkpoint:
    """The checkpoint of the run in `directory` of `config`.

    Raises:
        UserError: a file of a plug-in of the configuration has changed.
    """
    checkpoint = Checkpoint.load(directory / CHECKPOINT)
    check_same(checkpoint.source, plugins.digests(config.plain()), directory, "Bring it back, or train again.")
    return checkpoint


def saved_round(directory: Path, when: When, model: str | None = None) -> SavedRound:
    """The round that the finished run in `directory` takes models from. The models that clients' own training left
    (`model` "trained") are of the last round, unless another one is asked for."""
    return _round_of(read_summary(directory / SUMMARY), when, model) if when == "chosen" else when


def _round_of(summary: Values, when: When, model: str | None) -> SavedRound:
    """`saved_round` of the run with this summary."""
    if when != "chosen":
        return when
    return "best" if model != "trained" and "chosen_round" in summary else "last"


def round_in_words(place: Path, when: When, model: str | None = None) -> str:
    """The round that models of the finished run at `place` are from, such as "chosen round 25"; "" if no run is there,
    as beside an export."""
    if not (place / SUMMARY).is_file():
        return ""
    summary = read_summary(place / SUMMARY, "rounds")
    if _round_of(summary, when, model) == "best" and "chosen_round" in summary:
        return f"{CHOSEN_ROUND} {summary['chosen_round']:,}"
    return f"{LAST_ROUND} {summary['rounds']:,}"


def load_global_model(directory: Path, config: Config, when: When = "chosen") -> tuple[Any, Tree]:
    """The algorithm of a run between sites, made for data as the run noted it, and the global model of the run.

    Raises:
        UserError: it has no global model, or a file of a plug-in of the configuration has changed.
    """
    summary = read_summary(directory / SUMMARY)
    plugin, features = config.model.make(), int(summary["features"])
    # Only where examples have no classes is the number of outputs written.
    outputs = int(summary.get("outputs") or summary["class_count"])
    if "edges" in summary:
        model = model_of_form(plugin, summary["edges"], features, outputs, config.decoder)
    else:
        model = plugin.build(features, outputs)
    algorithm = config.algorithm.make(model)
    w = algorithm.one_model(load_checkpoint(directory, config).at(saved_round(directory, when)).state)
    return algorithm, check_fits(w, algorithm.test_net, directory)


def config_here(config: Config) -> Config:
    """A run's configuration for this process, which may lack the device that it was trained on."""
    local_config = config.in_process()
    return local_config if usable(local_config.engine.values["device"]) else local_config.on_device(CPU)


def load_trained(
    directory: Path, config: Config, instead: str, when: When = "chosen", model: str | None = None
) -> Trained:
    """The finished run in `directory` of `config`; instead: what to do about one that sites made. when, model: of
    which round, and which of its models (`saved_round`).

    Raises:
        UserError: it was made between sites, where its models are, or its data has changed. DataError: its data is not
            there any more.
    """
    if config.between_sites:
        raise UserError(
            f"{directory} was trained between sites, where its models are. {instead}", code="user.global-alone"
        )
    built, checkpoint = build(config_here(config)), Checkpoint.load(directory / CHECKPOINT)
    check_unchanged(directory, config, built, checkpoint)
    when = saved_round(directory, when, model)
    checkpoint = checkpoint.at(when)
    built.fed.restore(checkpoint.fed, checkpoint.data)
    # `best` is empty where the last round is the best one.
    is_earlier = when == "best" and bool(checkpoint.best)
    built.fed.begin(int(checkpoint.best["round"]) if is_earlier else checkpoint.round)
    return Trained(directory, config, built, to(checkpoint.state, built.fed.device), when)
