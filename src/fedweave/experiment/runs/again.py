"""A run's directory built again from its configuration, and whether that is still the run."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import torch

from fedweave.core import model as models
from fedweave.core import plugins, random
from fedweave.core.model import Model
from fedweave.core.records import Record
from fedweave.core.tree import Tree, leaves
from fedweave.datasets.contents import check_same, digests
from fedweave.errors import UserError
from fedweave.experiment.build import Built
from fedweave.experiment.config import Config
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT, PARTITION, damaged, read_table
from fedweave.partition.base import client_ids
from fedweave.partition.statistics import statistics


def partition_columns(built: Built) -> Record:
    """The columns of partition.parquet: what each client holds."""
    columns = statistics(built.data, built.partition)
    return columns | {"client": client_ids(len(columns["client"]), built.partition.names)}


def check_again(directory: Path, config: Config, built: Built, reached: Checkpoint) -> None:
    """Refuse what the directory's configuration gives now, unless its data and clients are those that the run noted.

    Raises:
        UserError: says what has changed.
    """
    now = digests(built.data) | plugins.digests(config.plain())
    check_same(reached.source, now, directory, "Bring it back; new data are for `predict --data`.")
    if not (directory / PARTITION).exists():
        return
    noted, now = read_table(directory, PARTITION), pa.table(partition_columns(built))
    both = [name for name in now.column_names if name in noted.column_names]
    if noted.select(both).to_pylist() != now.select(both).to_pylist():
        raise UserError(
            f"the clients of {directory} are not those that its config.toml gives now: it was changed, or the run is "
            "of another version of fedweave. Run it again with `fedweave run`."
        )


def check_fits(w: Tree, net: Model, directory: Path) -> Tree:
    """The weights `w` of a run, if they are those of the model that its configuration makes.

    Raises:
        FedweaveError: they are not.
    """
    found = _shapes(w)
    for path, shape in _shapes(models.init(net, random.key(0), torch.float32)).items():
        if found.get(path) != shape:
            told = f"{path} is {_told(found.get(path))}, and the model of config.toml has {_told(shape)} there"
            raise damaged(directory / CHECKPOINT, told)
    return w


def _shapes(w: Tree) -> Mapping[str, list[int]]:
    return {path: list(leaf.shape) for path, leaf in leaves(w) if isinstance(leaf, torch.Tensor)}


def _told(shape: list[int] | None) -> str:
    return "absent" if shape is None else f"of shape {shape}"
