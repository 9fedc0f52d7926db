"""Published collections of small graphs side by side, one for each member: graphs of different domains."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from fedweave.datasets.base import Dataset
from fedweave.datasets.check import check
from fedweave.datasets.small_graphs import SMALL_GRAPHS
from fedweave.errors import ConfigError

_KINDS = {kind.name: kind for kind in SMALL_GRAPHS}


@dataclass(frozen=True)
class Domains:
    """Collections of small graphs, each of which a member holds alone (domain skew; GCFL's and FedStar's setting).

    `[partition] name = "column"` makes a client of each set. A set has feature columns of its own, which are 0
    elsewhere; classes are numbered from 0 in each, so that members share what lies between, as by share =
    ["[1-9]*/*"] or FedStar.

    sets: names of published collections, two or more, looked for as each is by itself.
    """

    sets: tuple[str, ...] = ("mutag", "bzr", "ptc-mr")

    def __post_init__(self) -> None:
        if odd := [name for name in self.sets if name not in _KINDS]:
            raise ConfigError(
                f"[data] sets: {odd[0]!r} is no collection; choose of {', '.join(_KINDS)}.", code="config.unknown-name"
            )
        if len(self.sets) < 2 or len(set(self.sets)) < len(self.sets):
            raise ConfigError(f"[data] sets = {list(self.sets)}: name two or more, each once.", code="config.value")

    def load(self, root: Path | None, seed: int) -> Dataset:
        """All sets' graphs, one set after the other; `seed` is not used.

        Raises:
            NotHeld: one is not in `root`.
            DataError: one is nowhere, or refused.
        """
        each = [_KINDS[name]().load(root, seed) for name in self.sets]
        nodes = np.cumsum([0, *(one.nodes for one in each)])
        graphs = np.cumsum([0, *(one.examples for one in each)])
        of = [np.asarray(one.graph_of) + first for one, first in zip(each, graphs, strict=False)]
        joined = Dataset(
            name="domains",
            x=sp.block_diag([sp.csr_matrix(one.x) for one in each], format="csr"),
            edges=np.concatenate([one.edges + first for one, first in zip(each, nodes, strict=False)], 1),
            y=np.concatenate([one.y for one in each]),
            classes=max(one.classes for one in each),
            graph_of=np.concatenate(of),
            owner=np.repeat(np.arange(len(each)), np.diff(graphs)),
            owners=self.sets,
        )
        return check(joined, "domains")
