"""Data sets of small graphs in the TU layout, the user's own and public ones."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import scipy.sparse as sp

from fedweave.datasets.base import Dataset
from fedweave.datasets.check import check, check_counts, refuse
from fedweave.datasets.download import fetch_texts
from fedweave.datasets.features import scale_by_holders
from fedweave.datasets.lookup import (
    TU_SUFFIXES,
    Facts,
    cache,
    find_place,
    kinds_of,
    refuse_absent,
    require_folder,
    shared,
    tu_names,
)
from fedweave.datasets.settings import Normalize
from fedweave.datasets.targets import Targeted
from fedweave.datasets.tu_files import read
from fedweave.errors import ConfigError

_LAYOUT = "Name the folder of one data set in the TU layout; see docs/data-layouts.md."
COUNTED = ("graphs", "nodes", "edges", "features", "classes")


@dataclass(frozen=True)
class TU(Targeted):
    """Your own folder of small graphs in the TU text layout (DS_A.txt, DS_graph_indicator.txt, DS_graph_labels.txt).

    attributes: use the node attributes (DS_node_attributes) as features too.
    edge_features: "all" makes features of edges of their labels (DS_edge_labels), one for each kind, for gine and pna.
    normalize:  how features are scaled: auto, none, row, binary, scale, standard or minmax (docs/data-columns.md);
                but for auto over the nodes of all graphs, before any partition.
    """

    attributes: bool = False
    edge_features: Literal["all"] | None = None
    example: ClassVar[str] = "graph"

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The graphs in `root` (`tu_files.read`)."""
        root = require_folder(root, "tu", "the folder with DS_A.txt", _LAYOUT)
        names = tu_names(root)
        if not names:
            refuse_absent(root, "no file ends in _A.txt", "_A", TU_SUFFIXES, _LAYOUT)
        if len(names) != 1:
            refuse(root, f"{len(names)} data sets are there: {', '.join(names)}", _LAYOUT)
        return self._read(root, names[0])

    def _read(self, folder: Path, name: str, pattern: str = "*") -> Dataset:
        with_edges = self.edge_features is not None
        dataset = read(folder, name, self.attributes, pattern=pattern, target=self, edge_features=with_edges)
        return scale_by_holders(dataset, self.normalize, name)


@dataclass(frozen=True)
class PublicTU(TU):
    """Base of the published collections.

    The files of the collection are looked for in `root` (`<root>/<name>`, or `root` is the folder) and nowhere else;
    without `root` likewise in $FEDWEAVE_DATA, then in the cache. If they are in neither, they are downloaded into the
    cache.
    """

    name: ClassVar[str]
    facts: ClassVar[Facts]

    normalize: Normalize = "none"  # as published

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_unless_classes(f"the published collection {self.name!r}")

    published_name: ClassVar[str]  # in its file names

    def __init_subclass__(cls) -> None:
        cls.published_name = cls.name.upper().replace("PTC-", "PTC_")

    def load(self, root: Path | None, seed: int) -> Dataset:
        """All graphs."""

        def read_published(folder: Path) -> Dataset:
            dataset = self._read(folder, self.published_name, f"{self.published_name}_*")
            counted = tuple(name for name in COUNTED if name != "features" or not self.attributes)
            check_counts(dataset, self.facts, folder, counted)
            return replace(dataset, name=self.name)

        base = root or shared()
        places = [] if base is None else [base / self.name, base]
        if root is None:
            places.append(cache() / self.name)
        remedy = (
            f"Put {self.published_name}_A.txt and its other files (docs/data-layouts.md) there, or name their folder "
            "in [data] path or $FEDWEAVE_DATA."
        )
        is_there = lambda place: bool(tu_names(place, self.published_name))  # noqa: E731
        download = lambda place: fetch_texts(self.published_name, read_published, place)  # noqa: E731
        return read_published(find_place(self.name, root, places, is_there, remedy, download))


_COLLECTIONS = {
    "proteins": (
        Facts(43471, 81044, 3, 2, graphs=1113),
        "Borgwardt et al. 2005; proteins as secondary structure elements, enzymes or not.",
    ),
    "dd": (Facts(334925, 843046, 89, 2, graphs=1178), "Dobson and Doig 2003; proteins as amino acids, enzymes or not."),
    "imdb-binary": (
        Facts(19773, 96531, 136, 2, graphs=1000),
        "Yanardag and Vishwanathan 2015; actors who played together, by genre; features are degrees.",
    ),
    "imdb-multi": (
        Facts(19502, 98903, 89, 3, graphs=1500),
        "Yanardag and Vishwanathan 2015; actors who played together, by genre; features are degrees.",
    ),
    "nci1": (
        Facts(122747, 132753, 37, 2, graphs=4110),
        "Wale et al. 2008; compounds as atoms, active against lung cancer or not.",
    ),
    "mutag": (Facts(3371, 3721, 7, 2, graphs=188), "Debnath et al. 1991; compounds as atoms, mutagenic or not."),
    "bzr": (
        Facts(14479, 15535, 53, 2, graphs=405),
        "Sutherland et al. 2003; ligands of the benzodiazepine receptor as atoms, active or not.",
    ),
    "aids": (
        Facts(31385, 32390, 38, 2, graphs=2000),
        "Riesen and Bunke 2008; compounds as atoms, active against HIV or not.",
    ),
    "ptc-mr": (
        Facts(4915, 5054, 18, 2, graphs=344),
        "Helma et al. 2001; compounds as atoms, carcinogenic for male rats or not.",
    ),
    "enzymes": (
        Facts(19580, 37282, 3, 6, graphs=600),
        "Borgwardt et al. 2005; proteins as secondary structure elements, by the reaction that they catalyse.",
    ),
}
SMALL_GRAPHS: tuple[type[PublicTU], ...] = tuple(kinds_of(PublicTU, _COLLECTIONS))
_KINDS = {kind.name: kind for kind in SMALL_GRAPHS}


@dataclass(frozen=True)
class Domains:
    """Collections of small graphs; each member holds one of them (domain skew; GCFL's and FedStar's setting).

    `[partition] name = "column"` makes a client of each set. A set has feature columns of its own, which are 0
    elsewhere; classes are numbered from 0 in each, so that members share what lies between, as by share =
    ["[1-9]*/*"] or FedStar.

    sets: names of published collections, two or more, each at its usual place.
    """

    sets: tuple[str, ...] = ("mutag", "bzr", "ptc-mr")
    example: ClassVar[str] = "graph"

    def __post_init__(self) -> None:
        for name in self.sets:
            if name not in _KINDS:
                message = f"[data] sets: {name!r} is not a collection; choose of {', '.join(_KINDS)}."
                raise ConfigError(message, code="config.unknown-name")
        if len(self.sets) < 2 or len(set(self.sets)) < len(self.sets):
            raise ConfigError(f"[data] sets = {list(self.sets)}: name two or more, each once.", code="config.value")

    def load(self, root: Path | None, seed: int) -> Dataset:
        """All sets' graphs, one set after the other."""
        each = [_KINDS[name]().load(root, seed) for name in self.sets]
        nodes = np.cumsum([0, *(one.nodes for one in each)])
        graphs = np.cumsum([0, *(one.examples for one in each)])
        joined = Dataset(
            name="domains",
            x=sp.block_diag([sp.csr_matrix(one.x) for one in each], format="csr"),
            edges=np.concatenate([one.edges + first for one, first in zip(each, nodes, strict=False)], 1),
            y=np.concatenate([one.y for one in each]),
            classes=max(one.classes for one in each),
            graph_of=np.concatenate([one.graph_of + at for one, at in zip(each, graphs, strict=False)]),
            owner=np.repeat(np.arange(len(each)), np.diff(graphs)),
            owners=self.sets,
        )
        return check(joined, "domains")
