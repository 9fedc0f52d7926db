"""Published graphs in one `.npz` file, found on disk or else downloaded once."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import scipy.sparse as sp

from fedweave.datasets import npz
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import check_counts, refuse
from fedweave.datasets.download import fetch
from fedweave.datasets.features import compact, scale_by_holders
from fedweave.datasets.lookup import Facts, Published, cache, find_place, kinds_of, shared
from fedweave.datasets.settings import Normalize, StructureSettings
from fedweave.datasets.structure import with_places

_WHOLE = 'Take the published graph, whole; one of your own is read with [data] name = "npz" and its path.'


@dataclass(frozen=True)
class Public(StructureSettings, Published):
    """Base of the published graphs in one file.

    The file `<name>.npz` is looked for in `root` (`<root>/<name>/<name>.npz`, `<root>/<name>.npz`, or `root` is the
    file) and nowhere else; without `root` likewise in $FEDWEAVE_DATA, then in the cache ($FEDWEAVE_CACHE, else
    $XDG_CACHE_HOME/fedweave, else ~/.cache/fedweave). If it is in neither and PyTorch Geometric can fetch it, it is
    downloaded into the cache.

    The default of `normalize`, over all nodes, before any partition, keeps the published values (0/1 words, counts,
    TF-IDF): scaling rows is a choice that papers make differently.
    """

    exact: ClassVar[bool] = False  # whether the edges are counted, too, where thinned versions of the graph are about
    origin: ClassVar[str] = ""  # where to get a graph that is not downloaded
    sens_feature: ClassVar[bool] = False  # see `Sensitive`

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The whole graph."""
        remedy = (
            f"Put {self.name}.npz (layout: docs/data-layouts.md) at one of these places, or name its folder in "
            f"[data] path or $FEDWEAVE_DATA.{self.origin}"
        )
        download = lambda place: fetch(self.name, self.facts, place)  # noqa: E731
        path = find_place(self.name, root, list(self._places(root)), Path.is_file, remedy, download)
        dataset = npz.read(path, self.name)
        edges = ("edges",) if self.exact else ()
        check_counts(dataset, self.facts, path, ("nodes", *edges, "features", "classes"), _WHOLE)
        column = self.facts.sens_column
        if column is not None and not self.sens_feature:
            # The column that repeats the sensitive attribute is never an input of a model.
            x: sp.csr_matrix = dataset.x
            if dataset.sensitive is None:
                refuse(path, "the array sens is missing", "Store the sensitive attribute as sens int64 [nodes].")
            if column >= x.shape[1] or not np.array_equal(x[:, [column]].toarray().ravel(), dataset.sensitive):
                what, remedy = f"feature column {column} does not repeat sens", "Use the published column order."
                refuse(path, what, remedy, "sens-repeated")
            names = tuple(name for at, name in enumerate(dataset.columns) if at != column)
            dataset = replace(dataset, x=x[:, np.arange(x.shape[1]) != column], columns=names)
        dataset = scale_by_holders(replace(dataset, x=compact(dataset.x)), self.normalize, self.name)
        return with_places(dataset, self.structure)

    def _places(self, root: Path | None) -> Iterator[Path]:
        base = root or shared()
        if base is not None and base.suffix.lower() == ".npz":
            yield base
        elif base is not None:
            yield base / self.name / f"{self.name}.npz"
            yield base / f"{self.name}.npz"
        if root is None:
            yield cache() / self.name / f"{self.name}.npz"


@dataclass(frozen=True)
class People(Public):
    """Base of the tables of people below; features come in years, dollars and counts, so the default scales them."""

    normalize: Normalize = "minmax"


@dataclass(frozen=True)
class Sensitive(People):
    """Base of those whose features repeat the sensitive attribute in a column, which is dropped.

    sens_feature: keep that column, so that models are trained on the attribute.
    """

    sens_feature: bool = False  # type: ignore[misc]


_GRAPHS = {
    "cora": (Facts(2708, 5278, 1433, 7), "Planetoid split (Yang et al. 2016); papers by words, citations."),
    "citeseer": (Facts(3327, 4552, 3703, 6), "Planetoid split (Yang et al. 2016); papers by words, citations."),
    "pubmed": (Facts(19717, 44324, 500, 3), "Planetoid split (Yang et al. 2016); papers by TF-IDF, citations."),
    "amazon-computers": (
        Facts(13752, 245861, 767, 10),
        "Shchur et al. 2018; products by words of reviews, bought together.",
    ),
    "coauthor-cs": (Facts(18333, 81894, 6805, 15), "Shchur et al. 2018; authors by keyword counts, co-authorship."),
    "dblp": (Facts(17716, 52867, 1639, 4), "Bojchevski and Günnemann 2018; papers by words, citations."),
    "corafull": (
        Facts(19793, 63421, 8710, 70),
        "Bojchevski and Günnemann 2018, their whole Cora; papers by words, citations.",
    ),
    "flickr-attributed": (
        Facts(7575, 239738, 12047, 9),
        "Attributed social network (Yang et al. 2023); users by tags, following.",
    ),
    "amazon-photo": (Facts(7650, 119081, 745, 8), "Shchur et al. 2018; products by words of reviews, bought together."),
    "coauthor-physics": (
        Facts(34493, 247962, 8415, 5),
        "Shchur et al. 2018; authors by keyword counts, co-authorship.",
    ),
    "actor": (
        Facts(7600, 26659, 932, 5),
        "Pei et al. 2020, as Platonov et al. 2023 have it; actors by words of their pages, named together.",
    ),
    "chameleon-filtered": (
        Facts(890, 8854, 2325, 5),
        "Platonov et al. 2023, without duplicates; pages by nouns, links; classes of traffic.",
    ),
    "squirrel-filtered": (
        Facts(2223, 46998, 2089, 5),
        "Platonov et al. 2023, without duplicates; pages by nouns, links; classes of traffic.",
    ),
    "minesweeper": (
        Facts(10000, 39402, 7, 2),
        "Platonov et al. 2023; cells of a grid, neighboring; mines. Judge by AUC: the majority is .80.",
    ),
    "roman-empire": (
        Facts(22662, 32927, 300, 18),
        "Platonov et al. 2023; words of an article, in sequence or depending; syntactic roles.",
    ),
    "amazon-ratings": (
        Facts(24492, 93050, 300, 5),
        "Platonov et al. 2023; products by words, bought together; classes of rating.",
    ),
    "tolokers": (
        Facts(11758, 519000, 10, 2),
        "Platonov et al. 2023; workers by profile, of one task; who was banned. Judge by AUC.",
    ),
    "questions": (
        Facts(48921, 153540, 301, 2),
        "Platonov et al. 2023; users by words, who answered whom; who stayed. Judge by AUC.",
    ),
}
_PEOPLE = {
    "nba": (
        Facts(403, 10621, 95, 2, sensitive="country"),
        "FairGNN (Dai and Wang 2021); players by statistics, relations online.",
    )
}
_SENSITIVE = {
    "german": (
        Facts(1000, 21742, 27, 2, sensitive="gender", sens_column=0),
        "NIFTY (Agarwal et al. 2021); bank clients, similarity.",
    ),
    "bail": (
        Facts(18876, 311870, 18, 2, sensitive="race", sens_column=0),
        "NIFTY (Agarwal et al. 2021); defendants, similarity.",
    ),
    "credit": (
        Facts(30000, 137377, 13, 2, sensitive="age", sens_column=1),
        "NIFTY (Agarwal et al. 2021); card holders, similarity.",
    ),
    "income": (
        Facts(14821, 42831, 14, 2, sensitive="race", sens_column=8),
        "Adults of the American census; similarity; who earns more than 50,000 dollars.",
    ),
}
_COUNTED = {
    "reddit": (
        Facts(232965, 57307946, 602, 41),
        "GraphSAGE (Hamilton et al. 2017); posts by mean word vectors, commented on by the same user.",
    )
}
_REDDIT = (
    "\nThe graph is published with GraphSAGE; PyTorch Geometric's Reddit (not Reddit2) fetches it, and "
    "docs/data-public.md turns that into reddit.npz."
)
PUBLIC: tuple[type[Public], ...] = (
    *kinds_of(Public, _GRAPHS),
    *kinds_of(People, _PEOPLE),
    *kinds_of(Sensitive, _SENSITIVE),
    *kinds_of(Public, _COUNTED, exact=True, origin=_REDDIT),
)
