"""Clients of equal size between which METIS cuts as few edges as it can (Karypis and Kumar 1998, "A fast and high
quality multilevel scheme for partitioning irregular graphs")."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse as sp

from fedweave.core.maker import noted
from fedweave.core.random import generator
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError, UserError
from fedweave.partition.base import Partition
from fedweave.partition.divided import Divided
from fedweave.partition.splits import check_clients, check_enough, group


@dataclass(frozen=True)
class Metis(Divided):
    """Disjoint clients by METIS: sizes within a few per cent, few edges cut, as in FED-PUB and what follows it. Needs
    `pip install 'fedweave[metis]'`.

    clients:          how many, P.
    """

    examples: ClassVar[tuple[str, ...]] = ("node", "edge")
    clients: int = 10

    def __post_init__(self) -> None:
        check_clients(self.clients)
        super().__post_init__()

    @noted
    def cut(self, data: Dataset, seed: int) -> Partition:
        """Cut `data` into `clients` parts.

        Raises:
            ConfigError: fewer nodes than clients, METIS leaves a client without nodes, or no published split.
            UserError: pymetis is not installed.
        """
        check_enough(data.nodes, self.clients)
        owner = parts_of(data, self.clients, generator(seed, "partition/metis"))
        return Partition(self.divided(data, held(owner, self.clients), seed))


def parts_of(data: Dataset, parts: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [n]: METIS's part 0..parts-1 of every node.

    Raises:
        UserError: pymetis is not installed.
    """
    try:
        import pymetis
    except ImportError as error:
        raise UserError(
            "the partitions metis and metis_plus need pymetis: pip install 'fedweave[metis]'. Without it, louvain cuts "
            "few edges, too.",
            code="user.metis",
        ) from error
    graph = sp.csr_matrix((np.ones(data.edges.shape[1]), tuple(data.edges)), shape=(data.nodes, data.nodes))
    adjacency = pymetis.CSRAdjacency(adj_starts=graph.indptr, adjacent=graph.indices)
    _, owner = pymetis.part_graph(parts, adjacency, options=pymetis.Options(seed=int(rng.integers(2**31))))
    return np.asarray(owner, dtype=np.int64)


def held(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    """The sorted nodes of every client, given each node's.

    Raises:
        ConfigError: a client has none.
    """
    found = group(owner, clients)
    if empty := sum(not len(own) for own in found):
        raise ConfigError(f"[partition] clients = {clients}: {empty} of them would hold no node; lower clients.")
    return found
