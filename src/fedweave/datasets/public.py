"""Published graphs in one `.npz` file, found on disk or else fetched once from their public home."""

import os
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from fedweave.datasets import npz
from fedweave.datasets.base import Dataset, undirected
from fedweave.datasets.check import check, check_counts, refuse
from fedweave.datasets.features import compact, scale_by_holders
from fedweave.datasets.lookup import Facts, NotHeld, Published, cache, kinds_of, nowhere, shared
from fedweave.datasets.settings import Normalize
from fedweave.errors import DataError

# ----------------------------------------------------------------------------------------------------
# Fetch a published data set through PyTorch Geometric, once, and keep it checked: a graph as `.npz`, a collection of
# small graphs as the text files that it is published as.


# name: (class in torch_geometric.datasets, its name there, host that must answer)
SOURCES = {
    "cora": ("Planetoid", "Cora", "https://github.com"),
    "citeseer": ("Planetoid", "CiteSeer", "https://github.com"),
    "pubmed": ("Planetoid", "PubMed", "https://github.com"),
    "amazon-computers": ("Amazon", "Computers", "https://github.com"),
    "amazon-photo": ("Amazon", "Photo", "https://github.com"),
    "coauthor-cs": ("Coauthor", "CS", "https://github.com"),
    "coauthor-physics": ("Coauthor", "Physics", "https://github.com"),
    "minesweeper": ("HeterophilousGraphDataset", "Minesweeper", "https://github.com"),
    "roman-empire": ("HeterophilousGraphDataset", "Roman-empire", "https://github.com"),
    "amazon-ratings": ("HeterophilousGraphDataset", "Amazon-ratings", "https://github.com"),
    "tolokers": ("HeterophilousGraphDataset", "Tolokers", "https://github.com"),
    "questions": ("HeterophilousGraphDataset", "Questions", "https://github.com"),
    "corafull": ("CitationFull", "Cora", "https://github.com"),
    "dblp": ("CitationFull", "DBLP", "https://github.com"),
    "flickr-attributed": ("AttributedGraphDataset", "Flickr", "https://drive.usercontent.google.com"),
}
TU_HOST = "https://www.chrsmrrs.com"
ANSWER_SECONDS = 5.0
STALL_SECONDS = 30.0


def fetch(name: str, published: object, path: Path) -> Path:
    """Download data set `name` and write it to `path` atomically; returns `path`.

    `published` are the counts that the download must have (`lookup.Facts`).

    Raises:
        DataError: no public source is known, it does not answer, or what it sends is not the published graph.
    """
    if name not in SOURCES:
        raise DataError("there is no public download for this data set, and its file was not found.")
    kind, own_name, host = SOURCES[name]

    def get(scratch: str) -> Path:
        dataset = convert(_source(kind)(scratch, own_name), name)
        check_counts(dataset, published, host)
        npz.write(check(dataset, host), Path(scratch, "done.npz"))
        return Path(scratch, "done.npz")

    return _download(host, path, get)


def fetch_texts(own_name: str, accept: Callable[[Path], object], path: Path) -> Path:
    """Download the TU collection `own_name` and put its text files into the folder `path` at once; returns `path`.

    accept: raises for a folder that does not hold the published data.

    Raises:
        DataError: the source does not answer, or what it sends is not accepted.
    """

    def get(scratch: str) -> Path:
        raw = Path(_source("TUDataset")(scratch, own_name).raw_dir)
        accept(raw)
        return raw

    return _download(TU_HOST, path, get)


def _download(host: str, path: Path, get: Callable[[str], Path]) -> Path:
    """Put what `get` downloads into a scratch folder and names to `path`, atomically."""
    _answers(host)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch, _impatient():
            os.replace(get(scratch), path)
    except Exception as error:  # network, disk, archive, missing pandas: one error for all
        raise DataError(f"the download from {host} failed ({type(error).__name__}: {error}).") from error
    return path


def convert(source: Any, name: str) -> Dataset:
    """A PyG in-memory dataset as ours.

    PyG sets every positive feature of `.npz` sources to 1; their published values are read from the raw file instead.
    """
    data = source[0]
    published = _published(Path(source.raw_paths[0]))
    pairs = data.edge_index.numpy()
    ends = pairs[:, pairs[0] != pairs[1]]
    return Dataset(
        name=name,
        x=_csr(data.x) if published is None else published,
        edges=undirected(ends[0], ends[1], int(data.num_nodes)),
        y=data.y.numpy().astype(np.int64),
        classes=int(data.y.max()) + 1,
        public=np.stack([_first(data[f"{split}_mask"].numpy()) for split in ("train", "val", "test")])
        if "train_mask" in data
        else None,
    )


def _first(mask: np.ndarray) -> np.ndarray:
    """The first of several published splits."""
    return mask if mask.ndim == 1 else mask[:, 0]


def _published(raw: Path) -> sp.csr_matrix | None:
    if raw.suffix != ".npz":
        return None
    with np.load(raw, allow_pickle=False) as file:
        if "attr_data" not in file.files:
            return None
        parts = (file["attr_data"].astype(np.float32), file["attr_indices"], file["attr_indptr"])
        return _tidy(sp.csr_matrix(parts, shape=tuple(file["attr_shape"])))


def _csr(x: Any) -> sp.csr_matrix:
    if not x.is_sparse_csr:
        return sp.csr_matrix(x.numpy())
    parts = (x.values().float().numpy(), x.col_indices().numpy(), x.crow_indices().numpy())
    return _tidy(sp.csr_matrix(parts, shape=tuple(x.shape)))


def _tidy(x: sp.csr_matrix) -> sp.csr_matrix:
    x.sum_duplicates()
    return x


def _source(kind: str) -> Any:
    import torch_geometric.datasets as pyg  # slow to import, and needed only here

    return getattr(pyg, kind)


def _answers(host: str) -> None:
    """Ask for the head of the host's front page: a machine without network shall learn so in seconds."""
    try:
        with urllib.request.urlopen(urllib.request.Request(host, method="HEAD"), timeout=ANSWER_SECONDS):
            pass
    except urllib.error.HTTPError:
        pass  # a refusal of this page is an answer, too
    except OSError as error:
        raise DataError(f"{host} could not be reached for the download ({error}).") from error


@contextmanager
def _impatient() -> Iterator[None]:
    """PyG opens its connections without a time limit; for their duration, give sockets one."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALL_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


_OWN = 'Take the published graph, whole; one of your own is read with [data] name = "npz" and its path.'


@dataclass(frozen=True)
class Public(Published):
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
        return scale_by_holders(replace(dataset, x=compact(dataset.x)), self.normalize, self.name)

    def _allowed(self, dataset: Dataset, path: Path) -> Dataset:
        """The data set with the features of the file that models may see."""
        column = self.facts.sens_column
        return dataset if column is None else _without(dataset, column, path)

    def _find(self, root: Path | None) -> Path:
        places = list(self._places(root))
        for place in places:
            if place.is_file():
                return place
        if root is not None:
            raise NotHeld(self.name, places)
        try:
            return fetch(self.name, self.facts, places[-1])
        except DataError as error:
            remedy = (
                f"Put {self.name}.npz (layout: docs/data-format.md) at one of these places, or name its folder in "
                f"[data] path or $FEDWEAVE_DATA.{self.origin}"
            )
            raise nowhere(self.name, str(error), places, remedy) from error

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

    sens_feature: bool = False

    def _allowed(self, dataset: Dataset, path: Path) -> Dataset:
        return dataset if self.sens_feature else super()._allowed(dataset, path)


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
    ),
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
    ),
}
_REDDIT = (
    "\nThe graph is published with GraphSAGE; PyTorch Geometric's Reddit (not Reddit2) fetches it, and "
    "docs/data-format.md turns that into reddit.npz."
)
PUBLIC: tuple[type[Public], ...] = (
    *kinds_of(Public, _GRAPHS),
    *kinds_of(People, _PEOPLE),
    *kinds_of(Sensitive, _SENSITIVE),
    *kinds_of(Public, _COUNTED, exact=True, origin=_REDDIT),
)


def _without(dataset: Dataset, column: int, path: Path) -> Dataset:
    """The data without the column that repeats the sensitive attribute: it is never an input of a model."""
    x: sp.csr_matrix = dataset.x
    if dataset.sensitive is None:
        refuse(path, "the array sens is missing", "Store the sensitive attribute as sens int64 [nodes].")
    if column >= x.shape[1] or not np.array_equal(x[:, [column]].toarray().ravel(), dataset.sensitive):
        refuse(
            path, f"feature column {column} does not repeat sens", "Use the published column order.", "sens-repeated"
        )
    columns = tuple(name for at, name in enumerate(dataset.columns) if at != column)
    return replace(dataset, x=x[:, np.arange(x.shape[1]) != column], columns=columns)
