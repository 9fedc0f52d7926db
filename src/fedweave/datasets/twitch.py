"""Twitch: gamers of four countries (Rozemberczki et al. 2021, "Multi-scale attributed node embedding"), whom nobody
cut: no edge joins two countries."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import scipy.sparse as sp

from fedweave.datasets import npz
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import check, check_counts
from fedweave.datasets.features import check_normalise, compact, normalise
from fedweave.datasets.lookup import Facts, folders, held_in

COUNTRIES = ("de", "engb", "es", "fr")


@dataclass(frozen=True)
class Twitch:
    """MUSAE (Rozemberczki et al. 2021); gamers by games and habits, friends; mature content or not.

    `[partition] name = "column"` makes a client of each of the four countries.

    The files `<country>.npz` are looked for in `twitch` and the folder itself, of [data] path alone or, without it, of
    $FEDWEAVE_DATA, then of the cache; there is no download.

    normalise: how features are scaled: none, row, binary, scale, standard or minmax (docs/data-format.md).
    """

    normalise: str = "none"

    name: ClassVar[str] = "twitch"
    facts: ClassVar[Facts] = Facts(27821, 360510, 3170, 2)
    sens_column: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        check_normalise(self.normalise)

    def load(self, root: Path | None, seed: int) -> Dataset:
        """All four graphs, one country after the other; `seed` is not used.

        Raises:
            NotHeld: they are not in `root`.
            DataError: they are nowhere (lists all places), refused by `npz.read`, or have other counts than published.
        """
        folder = self._find(root)
        each = [npz.read(folder / f"{country}.npz", country) for country in COUNTRIES]
        first = np.cumsum([0, *(one.nodes for one in each)])
        joined = Dataset(
            name=self.name,
            x=sp.vstack([sp.csr_matrix(one.x) for one in each], format="csr"),
            edges=np.concatenate([one.edges + at for one, at in zip(each, first[:-1], strict=True)], 1),
            y=np.concatenate([one.y for one in each]),
            classes=2,
            labels=each[0].labels,
            owner=np.repeat(np.arange(len(each)), np.diff(first)),
            owners=COUNTRIES,
        )
        check_counts(joined, self.facts, folder, ("nodes", "edges", "features", "classes"))
        return check(replace(joined, x=normalise(compact(joined.x), self.normalise, self.name)), folder)

    def _find(self, root: Path | None) -> Path:
        files = [f"{country}.npz" for country in COUNTRIES]
        return held_in(
            self.name,
            folders(root, self.name),
            lambda place: all((place / file).is_file() for file in files),
            root,
            "its files were not found.",
            f"Put {', '.join(files)} (layout: docs/data-format.md) at one of these places, or name their folder in "
            "[data] path or $FEDWEAVE_DATA.",
        )
