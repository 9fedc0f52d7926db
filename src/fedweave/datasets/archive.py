"""Any graph in one `.npz` file of the user's own."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedweave.datasets import npz
from fedweave.datasets.base import Dataset
from fedweave.datasets.carrying import as_edges, scaled
from fedweave.datasets.check import refuse
from fedweave.datasets.edges import check_loops
from fedweave.datasets.features import check_normalise, compact, normalise
from fedweave.datasets.numerals import refuse_stray
from fedweave.datasets.sensitive import without_sens
from fedweave.errors import ConfigError


@dataclass(frozen=True)
class Archive:
    """Your own graph in one .npz file ([data] path), in the layout of `npz`.

    normalise: how features are scaled: none, row, binary, scale, standard or minmax (docs/data-format.md).
    sens_feature: allow a feature column that says the same as the array sens.
    loops: edges of a node with itself: "refuse", "drop", or "keep" where edges carry something.
    edge_normalise: how features of edges are scaled.
    task: what is classified where the file says classes of nodes and of edges: "nodes" or "edges".
    """

    normalise: str = "none"
    sens_feature: bool = False
    loops: str = "refuse"
    edge_normalise: str = "none"
    task: Literal["nodes", "edges"] = "nodes"

    def __post_init__(self) -> None:
        check_normalise(self.normalise)
        check_loops(self.loops, carries=True)
        check_normalise(self.edge_normalise)

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The graph in the file `root`, called like it; `seed` is not used.

        Raises:
            ConfigError: no file is given. DataError: it is refused (see `npz.read`).
        """
        if root is None:
            raise ConfigError('The dataset "npz" needs a file: set [data] path to it.', code="config.missing")
        if not root.is_file():
            refuse(root, "this is not a file", "Name the .npz file itself.")
        data = without_sens(npz.read(root, root.stem, loops=self.loops), root, self.sens_feature)
        data = as_edges(data) if self.task == "edges" and data.example != "edge" else data
        remedy = "Number the classes from 0, without gaps."
        refuse_stray(data.y, lambda row, what: refuse(root, f"y, row {row}: {what}", remedy))
        carried = None if data.carried is None else scaled(data.carried, self.edge_normalise, root)
        return replace(data, x=normalise(compact(data.x), self.normalise, data.name), carried=carried)
