"""Heri-Graphs: posts about the heritage of three cities, each dataset three parties that share them (Bai et al. 2022,
"Heri-Graphs: a dataset creation framework for multi-modal machine learning on graphs of heritage values and attributes
with social media").

As in GLASU (Zhang et al. 2023, appendix D.1) each party holds one subgraph and one block of image features; the classes
are the nine heritage attributes. The published tables are not read as they are; docs/data-format.md converts them.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from fedweave.datasets.base import Dataset
from fedweave.datasets.check import check_counts, refuse
from fedweave.datasets.features import check_normalise
from fedweave.datasets.lookup import Facts, folders, held_in
from fedweave.datasets.parties import Parties

# Features by party: scene categories, scene attributes, hidden layer. Which goes with which subgraph is our choice.
BLOCKS = {"social": 365, "spatial": 102, "temporal": 512}


@dataclass(frozen=True)
class HeriGraph:
    """Base of the three cities, each a folder `<name>` of the parties social, spatial and temporal (see `parties`).

    It is looked for in `root` (`<root>/<name>`, or `root` is the folder) and nowhere else; without `root` likewise in
    $FEDWEAVE_DATA, then in the cache. There is no download.

    normalise: how features are scaled: none, row, binary, scale, standard or minmax (docs/data-format.md).
    """

    normalise: str = "none"

    name: ClassVar[str]
    facts: ClassVar[Facts]
    sens_column: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        check_normalise(self.normalise)

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The posts as nodes, the parties in order of name; `seed` is not used.

        Raises:
            NotHeld: it is not in `root`.
            DataError: the folder is nowhere (lists all places), is refused by `parties.Parties`, or does not hold the
                published counts.
        """
        folder = self._find(root)
        dataset = replace(Parties(self.normalise, classes=self.facts.classes).load(folder, seed), name=self.name)
        held = {party.name: len(party.columns) for party in dataset.parties or ()}
        if held != BLOCKS:
            refuse(folder, f"the parties' features are {held}, not {BLOCKS}", "See docs/data-format.md.")
        check_counts(dataset, self.facts, folder, ("nodes", "features", "classes"))
        return dataset

    def _find(self, root: Path | None) -> Path:
        return held_in(
            self.name,
            folders(root, self.name),
            lambda place: all((place / party).is_dir() for party in BLOCKS),
            root,
            f"there is no folder {self.name} with the parties {', '.join(BLOCKS)}.",
            "The data is published as tables at github.com/zzbn12345/Heri_Graphs; docs/data-format.md says how they "
            "become this folder. Name the folder above it in [data] path or $FEDWEAVE_DATA.",
        )


@dataclass(frozen=True)
class Suzhou(HeriGraph):
    """Heri-Graphs (Bai et al. 2022), three parties; posts by image features, social, spatial and temporal proximity."""

    name = "suzhou"
    facts = Facts(3137, 916496, 979, 9)


@dataclass(frozen=True)
class Venice(HeriGraph):
    """Heri-Graphs (Bai et al. 2022), three parties; posts by image features, social, spatial and temporal proximity."""

    name = "venice"
    facts = Facts(2951, 534513, 979, 9)


@dataclass(frozen=True)
class Amsterdam(HeriGraph):
    """Heri-Graphs (Bai et al. 2022), three parties; posts by image features, social, spatial and temporal proximity."""

    name = "amsterdam"
    facts = Facts(3727, 1271171, 979, 9)


HERITAGE: tuple[type[HeriGraph], ...] = (Suzhou, Venice, Amsterdam)
