"""The data and the cut of a configuration, written once as a folder of shards (`datasets.shards`)."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np

from fedweave import datasets
from fedweave.core.types import SHARDS, Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.contents import digests
from fedweave.datasets.edges import scales_own_edges
from fedweave.datasets.features import AUTO, OVER_NODES, amounts
from fedweave.datasets.shards import ShardFolder, Shards
from fedweave.errors import ConfigError, UserError
from fedweave.experiment.config import Choice, Config
from fedweave.experiment.facts import data_notes, totals_of
from fedweave.experiment.loading import read_and_cut
from fedweave.experiment.runs.data_form import form_of_clients
from fedweave.experiment.runs.files import plain_errors
from fedweave.experiment.shelf.runs import entries_of, unscaled
from fedweave.partition.base import Part, Partition
from fedweave.partition.shards import ShardClients, check_supported, is_local, shard_files
from fedweave.partition.statistics import statistics

_CODE = "config.not-sharded"
_UNSCALED: Record = {"normalize": "none", "edge_normalize": "none", "structure": ()}


def write_shards(config: Config, folder: Path) -> Record:
    """Write the data and the cut of a configuration to a new folder, which is there as a whole or not at all; returns
    its manifest. [noise], [fold] and [forget] are of runs, and act on shards as on the source.

    Raises:
        ConfigError: the data or the cut is of a kind that shards do not describe. UserError: the folder exists, or
        cannot be written. DataError: the data is absent or refused.
    """
    if folder.exists():
        raise UserError(f"{folder} exists; name another folder with --out, or remove it.", code="user.out")
    check_settings(config)
    base = replace(config, noise=None, fold=None, forget=None)
    values = dict(config.data.values)
    data, partition = read_and_cut(base, values)
    check_supported(replace(data, structure=None), partition)
    settings = _settings(config, data)
    expected, partition = digests(data), replace(partition)  # the copy does not refer to the data
    manifest: Record = {
        "fedweave": version("fedweave"),
        "source": {
            "data": config.plain()["data"],
            "partition": config.plain()["partition"],
            "seed": config.general.seed,
        },
        "settings": settings,
        "digests": expected,
    }

    # The numbers of the tables, where the configuration scales them.
    if any(values.get(name, plain) not in (plain, AUTO) for name, plain in _UNSCALED.items()):
        raw = {name: _UNSCALED.get(name, value) for name, value in values.items()}
        del data
        data = datasets.read(config.data.name, path=config.folder, seed=config.general.seed, **raw)
    data = replace(unscaled(data), structure=None)

    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    with plain_errors(folder):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            manifest = {**manifest, **shard_files(data, partition, temporary), "facts": None}
            ShardFolder(temporary, manifest).write_manifest()
            del data
            manifest["facts"] = _checked_facts(config, temporary, settings, expected, partition)
            ShardFolder(temporary, manifest).write_manifest()
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def check_settings(config: Config) -> None:
    """Refuse settings of [data] that act between reading and cutting.

    Raises:
        ConfigError: names the setting.
    """
    for setting, is_set in (
        ('data.task = "links"', config.links is not None),
        (f'data.external = "{config.external}"', config.external != "refuse"),
        ('data.features = "learned"', config.learned),
        (f'data.name = "{SHARDS}"', config.data.name == SHARDS),
    ):
        if is_set:
            raise ConfigError(
                f"{setting}: shards do not describe this. Run the experiment from its own data.", code=_CODE
            )


def _settings(config: Config, data: Dataset) -> Record:
    """The settings of `Shards` by which the data is scaled as the configuration scales it."""
    by_holders = data.edge_attrs is not None and data.edge_attrs.auto
    defaults: Record = {
        "normalize": AUTO if data.scaling == AUTO else "none",
        "edge_normalize": AUTO if by_holders else "none",
        "structure": [],
    }
    return {name: config.data.values.get(name, value) for name, value in defaults.items()}


def _checked_facts(
    config: Config, folder: Path, settings: Record, expected: Record, partition: Partition
) -> Record | None:
    """The fields of `DataFacts`, but for the digests, of a folder from which a run gets the same data and cut; None
    where clients need more than their own shards.

    Raises:
        ConfigError: names what differs.
    """
    values = settings | {"structure": tuple(settings["structure"])}
    sharded = replace(
        config,
        data=Choice("data", SHARDS, Shards, values),
        partition=Choice("partition", SHARDS, ShardClients, {}),
        folder=str(folder),
        noise=None,
        fold=None,
        forget=None,
    )
    data, clients = read_and_cut(sharded, values)
    now = digests(data)
    different = [what for what in expected if expected[what] != now[what]]
    for one, other in zip(_parts(partition), _parts(clients), strict=True):
        if not _same_part(one, other):
            different.append("clients")
            break
    if different:
        raise ConfigError(
            f"{config.data.name}: shards would give a run other {', '.join(different)}. Run the experiment from its "
            'own data, or set data.normalize = "auto".',
            code=_CODE,
        )
    if not is_local(folder) or any(settings[name] in OVER_NODES for name in ("normalize", "edge_normalize")):
        return None
    attributes = data.edge_attrs
    return {
        "columns": statistics(data, clients),
        "totals": totals_of(data, clients),
        "notes": data_notes(ShardClients(), data, clients, config.evaluation),
        "form": asdict(form_of_clients(sharded, data, clients, clients)),
        "used": sum(int(part.masks.any(0).sum()) for part in clients.parts),
        "entries": entries_of(data),
        "amounts": len(amounts(data.x)) > 0,
        "edge_amounts": attributes is not None and scales_own_edges(attributes),
    }


def _parts(partition: Partition) -> Sequence[Part]:
    evaluation = () if partition.evaluation_part is None else (partition.evaluation_part,)
    return *partition.parts, *partition.held.values(), *evaluation


def _same_part(one: Part, other: Part) -> bool:
    """Whether two parts have the same numbers."""
    for name, value in vars(one).items():
        if isinstance(value, np.ndarray):
            if not np.array_equal(value, getattr(other, name)):
                return False
        elif value != getattr(other, name):
            return False
    return True
