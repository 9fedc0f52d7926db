"""One data set cut into sites' folders, for trials and tests."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedweave import datasets
from fedweave.build import client_ids, induced_edges
from fedweave.config import Config
from fedweave.datasets import npz
from fedweave.datasets.base import Dataset
from fedweave.engines.flare.provision import SERVER
from fedweave.engines.flare.sitefile import SITE_FILE, write_site_file
from fedweave.errors import UserError
from fedweave.partition.base import Partition

DATA, TEST = "data.npz", "test.npz"


def split(config: Config, sites: tuple[str, ...]) -> tuple[Dataset, Partition]:
    """The configuration's data and its cut into one part per site.

    Raises:
        UserError: the partition has another number of clients.
    """
    seed = config.general.seed
    data = datasets.load(config.data.name, path=config.folder, seed=seed, **config.data.values)
    partition = config.partition.make().cut(data, seed)
    if len(partition.parts) != len(sites):
        raise UserError(
            f"the partition makes {len(partition.parts)} clients for {len(sites)} sites; add "
            f"--set partition.clients={len(sites)}, or name as many sites."
        )
    return data, partition


def hand_out(data: Dataset, partition: Partition, project: Path, sites: tuple[str, ...]) -> None:
    """Write a part into each site's folder, and the global test graph, if there is one, into the server's and every
    site's."""
    edges = list(induced_edges(data, [part.nodes for part in partition.parts]))
    parts = zip(sites, client_ids(len(sites)), partition.parts, edges, strict=True)
    for site, client, part, own in parts:
        npz.write(_part(data, part.nodes, own, part.masks & (data.y[part.nodes] >= 0)), project / site / DATA)
        about = {"path": DATA, "classes": data.classes, "draws_as": client}
        write_site_file(project / site / SITE_FILE, about | ({} if partition.test is None else {"test": TEST}))
    if partition.test is not None:
        [own] = induced_edges(data, [partition.test])
        whole = _part(data, partition.test, own, None)
        for folder in (SERVER, *sites):
            npz.write(whole, project / folder / TEST)


def _part(data: Dataset, nodes: np.ndarray, edges: np.ndarray, masks: np.ndarray | None) -> Dataset:
    """The subgraph of `nodes`, its edges sorted as files have them."""
    order = np.lexsort((edges[1], edges[0]))
    sens = None if data.sens is None else data.sens[nodes]
    return replace(data, x=data.x[nodes], edges=edges[:, order], y=data.y[nodes], sens=sens, public=masks)
