"""The models of a finished run, rebuilt from its configuration and its checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from fedweave.algorithms.deployment import Which
from fedweave.build import Built, build
from fedweave.config import Config, read_saved
from fedweave.core.algorithm import capabilities
from fedweave.core.tree import Tree
from fedweave.datasets.contents import check_same, digests
from fedweave.errors import UserError
from fedweave.partition.base import Partition
from fedweave.partition.pooling import pooled
from fedweave.runs.checkpoint import Checkpoint
from fedweave.runs.files import CHECKPOINT, CONFIG, SUMMARY

MODELS: tuple[str, ...] = get_args(Which)


@dataclass(frozen=True)
class Trained:
    """A finished run, with its clients as they were left. state: the server's."""

    config: Config
    built: Built
    state: Tree

    @property
    def seen(self) -> Partition:
        """What the clients hold, whose order is that of the federation's clients."""
        one = capabilities(self.config.algorithm.kind).pooled
        return pooled(self.built.partition) if one else self.built.partition

    def models(self, which: str) -> Mapping[str, Tree]:
        """{client: its weights} of the model `which` (`algorithms.deployment.Deployable`).

        Raises:
            UserError: no client has such a model.
        """
        own = self.built
        if which == "global":
            return dict.fromkeys(own.fed.clients, own.algorithm.one_model(self.state))
        own.fed.begin(own.fed.round)
        own.algorithm.deploy(self.state, own.fed, which)
        states = own.fed.snapshot()
        found = {client: state["model"] for client, state in states.items() if "model" in state}
        if not found:
            raise UserError(f"no client has a {which} model; take --model personal.")
        return found

    def model_of(self, which: str, client: str) -> Tree:
        """The weights of one client's model.

        Raises:
            UserError: there is no such client, or it has no such model.
        """
        if client not in self.built.fed.clients:
            raise UserError(
                f"--client {client}: the run has no such client; it has {', '.join(self.built.fed.clients)}."
            )
        found = self.models(which)
        if client not in found:
            raise UserError(f"--client {client}: it never trained; take --model personal.")
        return found[client]


def finished(directory: Path) -> Config:
    """The configuration of the finished run in `directory`.

    Raises:
        UserError: there is none.
    """
    if not (directory / CONFIG).is_file():
        raise UserError(f"{directory} is not the directory of a run. Give one that `fedweave run … --out DIR` wrote.")
    if not (directory / SUMMARY).exists():
        between = read_saved(directory / CONFIG).engine.name != "simulation"
        again = "fedweave sites run --resume" if between else "fedweave run --resume"
        raise UserError(f"{directory} holds no finished run: it has no {SUMMARY}. Finish it with `{again}`.")
    return read_saved(directory / CONFIG)


def trained(directory: Path, config: Config, instead: str) -> Trained:
    """The finished run in `directory` of `config`; instead: what to do about one that sites made.

    Raises:
        UserError: it was made between sites, where its models are, or its data has changed. DataError: its data is not
            there any more.
    """
    if config.engine.name != "simulation":
        raise UserError(f"{directory} was trained between sites, where its models are. {instead}")
    built, reached = build(config), Checkpoint.load(directory / CHECKPOINT)
    check_same(reached.source, digests(built.data), directory, "Bring it back; new data are for `predict --data`.")
    built.fed.restore(reached.fed, reached.data)
    built.fed.begin(reached.round)
    return Trained(config, built, reached.state)
