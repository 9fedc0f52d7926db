"""Graphs in the files that their authors released, each in a form of its own; there is no download."""

import json
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import scipy
import scipy.sparse as sp

from fedweave.core.graph_arrays import Matrix
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.check import check, check_counts, refuse
from fedweave.datasets.features import compact, scale_by_holders
from fedweave.datasets.lookup import Facts, PublishedFile
from fedweave.datasets.settings import StructureSettings
from fedweave.datasets.structure import with_places

_DAMAGED = (pa.ArrowException, ValueError, KeyError, OSError, EOFError)


@dataclass(frozen=True)
class Released(StructureSettings, PublishedFile):
    """Base of graphs in one form each."""

    counted: ClassVar[tuple[str, ...]] = ("nodes", "features", "classes")

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The whole graph."""
        folder = self.find(root)
        try:
            data = self.read(folder)
        except _DAMAGED as error:
            what = f"a file of {', '.join(self.files)} is damaged ({type(error).__name__}: {error})"
            refuse(folder, what, "Take the file as it is released.", "damaged")
        check_counts(data, self.facts, folder, self.counted)
        data = scale_by_holders(replace(data, x=compact(data.x)), self.normalize, self.name)
        return with_places(check(data, folder), self.structure)

    def read(self, folder: Path) -> Dataset:
        """The graph in `folder`, which has all files."""
        raise NotImplementedError

    def build(self, x: Matrix, ends: npt.ArrayLike, y: np.ndarray, public: np.ndarray | None = None) -> Dataset:
        """A data set; ends: int [2, m], in any order, loops and duplicates among them."""
        ends = np.asarray(ends, np.int64)
        if ends.size and not 0 <= ends.min() <= ends.max() < len(y):
            raise ValueError(f"an edge ends at {ends.max()}, of {len(y)} nodes")
        edges = to_undirected(ends, len(y))
        return Dataset(self.name, x.astype(np.float32), edges, y.astype(np.int64), self.facts.classes, public=public)


def _columns(path: Path, header: bool = False, **types: pa.DataType) -> np.ndarray:
    """The numbers of a table [rows, columns], of a `.csv` or `.csv.gz`."""
    options = pa.csv.ReadOptions(autogenerate_column_names=not header)
    table = pa.csv.read_csv(path, read_options=options, convert_options=pa.csv.ConvertOptions(column_types=types))
    return np.stack([column.to_numpy() for column in table.columns], 1)


class _Ogb(Released):
    """`raw/edge.csv.gz` and others, as the `ogb` package downloads them."""

    split: ClassVar[str]

    def __init_subclass__(cls) -> None:
        parts = (f"split/{cls.split}/{part}.csv.gz" for part in ("train", "valid", "test"))
        cls.files = ("raw/edge.csv.gz", "raw/node-feat.csv.gz", "raw/node-label.csv.gz", *parts)

    def read(self, folder: Path) -> Dataset:
        ends, x, y, *parts = (_columns(folder / file) for file in self.files)
        masks = np.zeros((len(parts), len(y)), bool)
        for mask, part in zip(masks, parts, strict=True):
            mask[part[:, 0]] = True
        return self.build(x, ends.T, y[:, 0], masks)


class Arxiv(_Ogb):
    """Hu et al. 2020 (OGB); papers by their words' vectors, split by year of publication."""

    name, called, split = "ogbn-arxiv", ("ogbn_arxiv",), "time"
    facts = Facts(169343, 1157799, 128, 40)
    counted = ("nodes", "edges", "features", "classes")


class Products(_Ogb):
    """Hu et al. 2020 (OGB); products bought together, split by their rank in sales."""

    name, called, split = "ogbn-products", ("ogbn_products",), "sales_ranking"
    facts = Facts(2449029, 61859140, 100, 47)


class WikiCs(Released):
    """Mernyei and Cangea 2020; articles by word vectors, links either way; the first of 20 published splits."""

    name, files = "wiki-cs", ("data.json",)
    facts = Facts(11701, 216123, 300, 10)

    def read(self, folder: Path) -> Dataset:
        """Read data.json, which lists the links of each article."""
        content = json.loads((folder / "data.json").read_text())
        links, y = content["links"], np.asarray(content["labels"])
        source = np.repeat(np.arange(len(links)), list(map(len, links)))
        target = np.array([*chain.from_iterable(links)], np.int64)
        masks = np.array([content["train_masks"][0], content["val_masks"][0], content["test_mask"]], bool)
        return self.build(np.array(content["features"]), np.stack([source, target]), y, masks)


class Elliptic(Released):
    """Weber et al. 2019; Bitcoin transactions, licit (0) or illicit (1), most of them unlabeled.

    The split is by time: steps to 29 train, to 34 validate, later ones test as in the paper.

    normalize: how features are scaled: auto, none, row, binary, scale, standard or minmax (docs/data-columns.md).
    """

    name = "elliptic"
    files = ("elliptic_txs_features.csv", "elliptic_txs_classes.csv", "elliptic_txs_edgelist.csv")
    called = ("elliptic_bitcoin_dataset",)
    facts = Facts(203769, 234355, 165, 2)
    counted = ("nodes", "edges", "features", "classes")

    def read(self, folder: Path) -> Dataset:
        """Read three tables, whose rows are in any order."""
        x = _columns(folder / self.files[0])
        number, kind = _columns(folder / self.files[1], header=True, **{"class": pa.string()}).T
        place = {int(row): at for at, row in enumerate(x[:, 0].tolist())}
        ends = _columns(folder / self.files[2], header=True)
        y = np.full(len(x), -1)
        y[[place[int(row)] for row in number]] = [{"1": 1, "2": 0}.get(one, -1) for one in kind]
        step = x[:, 1]
        masks = np.stack([step < 30, (step >= 30) & (step < 35), step >= 35]) & (y >= 0)
        source = [place[int(row)] for row in ends[:, 0]]
        target = [place[int(row)] for row in ends[:, 1]]
        return self.build(x[:, 2:], [source, target], y, masks)


@dataclass(frozen=True)
class _Fraud(Released):
    """Dou et al. 2020 (CARE-GNN's files): reviews or users by hand-made features; fraud (1) or not (0).

    relation: which of the graph's relations: "homo", all of them, or one.
    """

    relation: str = "homo"
    unlabeled: ClassVar[int] = 0  # of the first nodes, how many have no label

    def read(self, folder: Path) -> Dataset:
        try:
            content = scipy.io.loadmat(folder / self.files[0])
        except scipy.io.matlab.MatReadError as error:
            raise ValueError(error) from error
        relations = [key for key in content if key == "homo" or key.startswith("net_")]
        if self.relation not in relations:
            remedy = f"Set one of {', '.join(sorted(relations))}."
            refuse(folder, f"there is no relation {self.relation!r}", remedy, "relation")
        y = np.asarray(content["label"]).ravel().astype(np.int64)
        y[: self.unlabeled] = -1
        ends = sp.coo_matrix(content[self.relation])
        return self.build(sp.csr_matrix(content["features"]), [ends.row, ends.col], y)


@dataclass(frozen=True)
class YelpChi(_Fraud):
    """Dou et al. 2020; reviews of hotels and restaurants that Yelp filtered (1) or recommended (0).

    relation: "homo", all of the graph's relations, or "net_rur", "net_rtr" or "net_rsr" of them.
    """

    name, files, called = "yelpchi", ("YelpChi.mat",), ("YelpChi",)
    facts = Facts(45954, 3846979, 32, 2)


@dataclass(frozen=True)
class AmazonFraud(_Fraud):
    """Dou et al. 2020; users who review instruments, fraudulent (1) or not (0); the first 3,305 are unlabeled.

    relation: "homo", all of the graph's relations, or "net_upu", "net_usu" or "net_uvu" of them.
    """

    name, files, called = "amazon-fraud", ("Amazon.mat",), ("Amazon",)
    facts = Facts(11944, 4398392, 25, 2)
    unlabeled = 3305


RELEASED: tuple[type[Released], ...] = (Arxiv, Products, WikiCs, Elliptic, YelpChi, AmazonFraud)
