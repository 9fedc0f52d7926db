"""How a published graph is found: on disk as `.npz`, else fetched once from its public home."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedweave.datasets import download, npz
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import check_counts, refuse
from fedweave.datasets.features import check_normalise, compact, normalise
from fedweave.errors import DataError

_OWN = 'Take the published graph, whole; one of your own is read with [data] name = "npz" and its path.'


class Facts(NamedTuple):
    """Published counts: nodes, distinct undirected edges, features in the file, classes; `sens` names the attribute;
    `graphs` counts small graphs, where these are the examples."""

    nodes: int
    edges: int
    features: int
    classes: int
    sens: str | None = None
    graphs: int | None = None


@dataclass(frozen=True)
class Public:
    """Base of the data sets in `public`.

    The file `<name>.npz` is looked for in `root` (`<root>/<name>/<name>.npz`, `<root>/<name>.npz`, or `root` is the
    file) and nowhere else; without `root` likewise in $FEDWEAVE_DATA, then in the cache ($FEDWEAVE_CACHE, else
    $XDG_CACHE_HOME/fedweave, else ~/.cache/fedweave). If it is in neither and PyTorch Geometric can fetch it, it is
    downloaded into the cache.

    normalise: how features are scaled: none, row, binary, scale, standard or minmax (docs/data-format.md); over all
               nodes, before any partition. The default "none" keeps the published values (0/1 words, counts, TF-IDF):
               scaling rows is a choice that papers make differently.
    """

    normalise: str = "none"

    name: ClassVar[str]
    facts: ClassVar[Facts]
    sens_column: ClassVar[int | None] = None  # where the file repeats the sensitive attribute among the features
    exact: ClassVar[bool] = False  # whether the edges are counted, too, where thinned versions of the graph are about
    origin: ClassVar[str] = ""  # where to get a graph that is not downloaded

    def __post_init__(self) -> None:
        check_normalise(self.normalise)

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The whole graph; `seed` is not used.

        Raises:
            NotHeld: it is not in `root`.
            DataError: the file is nowhere and could not be downloaded (lists all places), is refused by `npz.read`, or
                has other counts than it must.
        """
        path = self._find(root)
        dataset = npz.read(path, self.name)
        counted = ("nodes", *(("edges",) if self.exact else ()), "features", "classes")
        check_counts(dataset, self.facts, path, counted, _OWN)
        dataset = self._allowed(dataset, path)
        return replace(dataset, x=normalise(compact(dataset.x), self.normalise, self.name))

    def _allowed(self, dataset: Dataset, path: Path) -> Dataset:
        """The data set with what models may see of the features in the file."""
        return dataset if self.sens_column is None else _without(dataset, self.sens_column, path)

    def _find(self, root: Path | None) -> Path:
        places = list(self._places(root))
        for place in places:
            if place.is_file():
                return place
        if root is not None:
            raise NotHeld(self.name, places)
        try:
            return download.fetch(self.name, self.facts, places[-1])
        except DataError as error:
            remedy = (
                f"Put {self.name}.npz (layout: docs/data-format.md) at one of these places, or name its folder in "
                f"[data] path or $FEDWEAVE_DATA.{self.origin}"
            )
            raise nowhere(self.name, str(error), places, remedy) from error

    def _places(self, root: Path | None) -> Iterator[Path]:
        base = root or shared()
        if base is not None and base.suffix == ".npz":
            yield base
        elif base is not None:
            yield base / self.name / f"{self.name}.npz"
            yield base / f"{self.name}.npz"
        if root is None:
            yield cache() / self.name / f"{self.name}.npz"


class NotHeld(DataError):
    """The user's path does not hold the data set `name`, which would be at one of `places`; none if it has no file."""

    def __init__(self, name: str, places: Iterable[Path] = ()) -> None:
        looked = " or ".join(map(str, places))
        super().__init__(f"{name} is not at {looked}" if looked else f"{name} is computed and not read from a path")


def nowhere(name: str, what: str, places: Iterable[Path], remedy: str) -> DataError:
    """Says that the data set `name` is at none of `places`."""
    looked = "".join(f"\n  {place}" for place in places)
    return DataError(f"{name}: {what}\nLooked at:{looked}\n{remedy}", code="data.nowhere")


def folders(root: Path | None, *names: str) -> list[Path]:
    """Where a data set of several files may be, a folder of one of `names` in `root` or that itself; without it
    likewise in $FEDWEAVE_DATA, then the first of `names` in the cache."""
    base = root or shared()
    places = [] if base is None else [*(base / name for name in names), base]
    return places if root is not None else [*places, cache() / names[0]]


def held_in(
    name: str, places: Sequence[Path], holds: Callable[[Path], bool], root: Path | None, what: str, remedy: str
) -> Path:
    """The first of `places` that `holds` the data set.

    Raises:
        NotHeld: none of the user's `root` does.
        DataError: none does, and there is no `root`; lists them.
    """
    for place in places:
        if holds(place):
            return place
    raise nowhere(name, what, places, remedy) if root is None else NotHeld(name, places)


def shared() -> Path | None:
    """The folder of data sets $FEDWEAVE_DATA, if it is set."""
    named = os.environ.get("FEDWEAVE_DATA")
    return Path(named).expanduser() if named else None


def cache() -> Path:
    """The folder of downloads: $FEDWEAVE_CACHE, else $XDG_CACHE_HOME/fedweave, else ~/.cache/fedweave."""
    named = os.environ.get("FEDWEAVE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fedweave"
    return Path(named).expanduser()


def _without(dataset: Dataset, column: int, path: Path) -> Dataset:
    """The data without the column that repeats the sensitive attribute: it is never an input of a model."""
    x: sp.csr_matrix = dataset.x
    if dataset.sens is None:
        refuse(path, "the array sens is missing", "Store the sensitive attribute as sens int64 [nodes].")
    if column >= x.shape[1] or not np.array_equal(x[:, [column]].toarray().ravel(), dataset.sens):
        refuse(
            path, f"feature column {column} does not repeat sens", "Use the published column order.", "sens-repeated"
        )
    columns = tuple(name for at, name in enumerate(dataset.columns) if at != column)
    return replace(dataset, x=x[:, np.arange(x.shape[1]) != column], columns=columns)
