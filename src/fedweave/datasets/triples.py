"""Knowledge graphs: tables of triples (head, relation, tail), of a user's own and published ones.

Entities have no features: each has a column of its own, so that a model learns a vector for it. The examples are the
triples, whose class is the relation; with [data] task = "links" a model predicts which triples are true.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import scipy.sparse as sp

from fedweave.core.bounds import BelowOne
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.links import hashes_of, pair_hashes, places
from fedweave.core.target import LABELS
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import check, check_counts, first, refuse
from fedweave.datasets.lookup import Facts, PublishedFile, named_folder
from fedweave.datasets.settings import Normalize
from fedweave.datasets.tables import skeleton
from fedweave.datasets.targets import Targeted
from fedweave.errors import ConfigError

HEAD, RELATION, TAIL, SPLIT = "head", "relation", "tail", "split"
CALLED = {HEAD: (HEAD, "source"), RELATION: (RELATION,), TAIL: (TAIL, "target")}  # names that columns may have
TEXTS = ("train.txt", "valid.txt", "test.txt")
TABLES = ("triples.parquet", "triples.csv")
SPLITS = {"train": 0, "val": 1, "valid": 1, "test": 2}
_LAYOUT = "Name the folder that holds triples.csv|parquet, or train.txt, valid.txt and test.txt with tabs."
_WHOLE = "Take the published files, whole."
_DAMAGED = (pa.ArrowException, ValueError, KeyError, OSError)


def learned(data: Dataset, columns: np.ndarray | None = None, width: int = 0) -> Dataset:
    """The nodes without their features: each has a column of its own, 1 for it and 0 for all others. The first layer of
    a model is then a vector for each node, which is learned.

    columns: int64 [n], the column of each node among `width` columns, where holders of nodes number them together; a
    node at -1 has none.

    Raises:
        ConfigError: the data is of small graphs or of parties, where holders share no nodes.
    """
    if data.graph_of is not None or data.parties is not None:
        raise ConfigError(
            f"data.features = 'learned': the nodes of {data.name} are of small graphs, or its columns of parties. "
            "Take data of one graph.",
            code="config.learned",
        )
    columns, width = (np.arange(data.nodes), data.nodes) if columns is None else (columns, width)
    rows = np.flatnonzero(columns >= 0)
    ones = np.ones(len(rows), np.float32)
    x = sp.csr_matrix((ones, (rows, columns[rows])), shape=(data.nodes, width))
    return replace(data, x=x, columns=(), scaling="none")


def read(folder: Path) -> tuple[pa.Table, Path]:
    """Text columns head, relation, tail, and split where there is one, of `TABLES` or `TEXTS`; and the file.

    Raises:
        DataError: none of these is there, a column is missing or a cell is empty.
    """
    for path in (folder / name for name in TABLES):
        if path.is_file():
            table = pq.read_table(path) if path.suffix == ".parquet" else _csv(path)
            return _renamed(table, path), path
    present = [folder / name for name in TEXTS if (folder / name).is_file()]
    if not present or present[0].name != TEXTS[0]:
        refuse(folder, "there are no triples", _LAYOUT, "no-triples")
    pieces = []
    for path in present:
        table = _tabbed(path)
        pieces.append(table.append_column(SPLIT, pa.array([path.stem] * len(table))))
    return pa.concat_tables(pieces), present[0]


def _csv(path: Path) -> pa.Table:
    every = pa.csv.ConvertOptions(column_types={name: pa.string() for names in CALLED.values() for name in names})
    return pa.csv.read_csv(path, convert_options=every)


def _tabbed(path: Path) -> pa.Table:
    options = pa.csv.ReadOptions(column_names=[HEAD, RELATION, TAIL])
    types = pa.csv.ConvertOptions(column_types=dict.fromkeys((HEAD, RELATION, TAIL), pa.string()))
    parsing = pa.csv.ParseOptions(delimiter="\t", quote_char=False)
    return pa.csv.read_csv(path, options, parsing, types)


def _renamed(table: pa.Table, path: Path) -> pa.Table:
    columns = dict[str, pa.ChunkedArray]()
    for meaning, names in CALLED.items():
        column = next((name for name in names if name in table.column_names), None)
        if column is None:
            refuse(path, f"there is no column {' or '.join(names)}", "Give head, relation and tail.", "column-missing")
        columns[meaning] = table[column].cast(pa.string())
    if SPLIT in table.column_names:
        columns[SPLIT] = table[SPLIT].cast(pa.string())
    return pa.table(columns)


def read_triples(folder: Path) -> tuple[pa.Table, Path] | None:
    """`read`, where the folder holds triples.

    Raises:
        DataError: they are damaged, or a column is missing.
    """
    return _read(folder) if any((folder / name).is_file() for name in (*TABLES, TEXTS[0])) else None


def knowledge_graph(table: pa.Table, path: Path, name: str, relations: Sequence[str] = ()) -> Dataset:
    """The triples of `read` as a data set whose entities are in the order of their names, and so are relations, unless
    `relations` names them all.

    Raises:
        DataError: a cell is empty, a split or a relation has another name, or there is no triple.
    """
    if not len(table):
        refuse(path, "there is no triple", "Give one row for each triple.", "no-triples")
    for column in (HEAD, RELATION, TAIL):
        if (row := first(pc.equal(pc.fill_null(table[column], ""), "").to_numpy())) is not None:
            refuse(path, f"row {row + 1}: {column} is empty", "Fill it in, or remove the row.", "row")
    entities = pa.array(sorted(set(table[HEAD].to_pylist()) | set(table[TAIL].to_pylist())))
    present = sorted(set(table[RELATION].to_pylist()))
    if relations and (odd := [one for one in present if one not in relations]):
        refuse(path, f"the relation {odd[0]!r} is none of data.labels", "Add it there, or correct it.", "relation")
    kinds = pa.array(relations or present)
    ends = np.stack([_places(table[column], entities) for column in (HEAD, TAIL)])
    kind = _places(table[RELATION], kinds)
    names = tuple(kinds.to_pylist())
    data = Dataset(
        name,
        sp.csr_matrix((len(entities), 1), dtype=np.float32),
        skeleton(ends, len(entities)),
        kind,
        len(names),
        public=_split(table, path),
        labels=names,
        node_ids=tuple(entities.to_pylist()),
        edge_attrs=EdgeAttributes(ends, True, examples=True),
    )
    return check(learned(data), path)


def _places(cells: pa.ChunkedArray, names: pa.Array) -> np.ndarray:
    places: np.ndarray = pc.index_in(cells.combine_chunks(), names).to_numpy(zero_copy_only=False).astype(np.int64)
    return places


def _split(table: pa.Table, path: Path) -> np.ndarray | None:
    if SPLIT not in table.column_names:
        return None
    cells = table[SPLIT].to_pylist()
    if odd := sorted({str(cell) for cell in cells if cell not in SPLITS}):
        refuse(path, f"split is {odd[0]!r}", "Write train, val or test.", "split")
    masks: np.ndarray = np.array([SPLITS[cell] for cell in cells]) == np.arange(3)[:, None]
    return masks


@dataclass(frozen=True)
class Triples:
    """Your own knowledge graph: a table triples of heads, relations and tails, or train.txt, valid.txt and test.txt.

    The table may have a column split. Columns of the text files are separated by tabs.
    """

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The knowledge graph in `root`; `seed` is not used.

        Raises:
            ConfigError: no folder is given.
            DataError: its files are missing or refused (`read`).
        """
        root = named_folder(root, "triples", "the folder with triples", _LAYOUT)
        return knowledge_graph(*_read(root), root.resolve().name)


def _read(folder: Path) -> tuple[pa.Table, Path]:
    try:
        return read(folder)
    except _DAMAGED as error:
        refuse(folder, f"the triples are damaged ({type(error).__name__}: {error})", _LAYOUT, "damaged")


@dataclass(frozen=True)
class PublishedTriples(PublishedFile):
    """Base of published knowledge graphs, with the split that they are published with."""

    normalize: Normalize = "none"

    split: ClassVar[tuple[int, int, int]]  # triples to train on, to validate and to test

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The knowledge graph; `seed` is not used.

        Raises:
            NotHeld: it is not in `root`.
            DataError: its files are nowhere (lists all places), damaged, or have other counts than published.
        """
        folder = self._find(root)
        data = knowledge_graph(*_read(folder), self.name)
        check_counts(data, self.facts, folder, remedy=_WHOLE)
        held = (data.examples, 0, 0) if data.public is None else tuple(data.public.sum(1).tolist())
        if held != self.split:
            refuse(folder, f"the triples of each split are {held}, not {self.split}", _WHOLE, "counts")
        return data


class Nations(PublishedTriples):
    """Kemp et al. 2006, split as in pykeen; states and how they deal with each other."""

    name, files = "nations", TEXTS
    split, facts = (1592, 199, 201), Facts(14, 91, 14, 55)


class Kinships(PublishedTriples):
    """Kemp et al. 2006, split as in pykeen; members of the Alyawarra and what they call each other."""

    name, files = "kinships", TEXTS
    split, facts = (8544, 1068, 1074), Facts(104, 5356, 104, 25)


class Umls(PublishedTriples):
    """Kemp et al. 2006, split as in pykeen; biomedical concepts of UMLS and how they relate."""

    name, files = "umls", TEXTS
    split, facts = (5216, 652, 661), Facts(135, 3549, 135, 46)


class Wn18rr(PublishedTriples):
    """WN18RR (Dettmers et al. 2018); synsets of WordNet and how they relate."""

    name, files = "wn18rr", ("triples.parquet",)
    split, facts = (86835, 3034, 3134), Facts(40943, 75753, 40943, 11)


KNOWLEDGE: tuple[type[PublishedTriples], ...] = (Nations, Kinships, Umls, Wn18rr)


@dataclass(frozen=True)
class Douban(Targeted, PublishedFile):
    """Monti et al. 2017; users and films of Douban, ratings from 1 to 5; 2,999 users who rate, and 3,000 films.

    A rating is one of five classes or, with target = "number", a number.

    validation: share of the published training ratings that validate a model instead. A hash of user and film decides.
    """

    normalize: Normalize = "none"
    validation: BelowOne = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target == LABELS or self.targets is not None:
            raise ConfigError(
                'data.target: douban has one number for each user and film, its rating. Set target = "number" and '
                "leave targets out.",
                code="config.target",
            )

    name, files = "douban", ("ratings.parquet",)
    facts = Facts(5999, 136891, 5999, 5)
    split: ClassVar[tuple[int, int]] = (123202, 13689)

    def load(self, root: Path | None, seed: int) -> Dataset:
        """Users and then films as nodes, each with a column of its own; ratings as examples. `seed` is not used.

        Raises:
            NotHeld: it is not in `root`.
            DataError: the file is nowhere (lists all places), damaged, or has other counts than published.
        """
        folder = self._find(root)
        try:
            table = pq.read_table(folder / self.files[0])
            user, item, rating = (table[name].to_numpy() for name in ("user", "item", "rating"))
            train = pc.equal(table["split"], "train").to_numpy()
        except _DAMAGED as error:
            refuse(folder, f"the ratings are damaged ({type(error).__name__}: {error})", _WHOLE, "damaged")
        users, source = np.unique(user, return_inverse=True)
        items, target = np.unique(item, return_inverse=True)
        ends = np.stack([source, len(users) + target]).astype(np.int64)
        nodes = len(users) + len(items)
        data = Dataset(
            self.name,
            sp.csr_matrix((nodes, 1), dtype=np.float32),
            skeleton(ends, nodes),
            rating.astype(np.int64) - 1,
            self.facts.classes,
            public=np.stack([train, np.zeros_like(train), ~train]),
            labels=("1", "2", "3", "4", "5"),
            node_ids=(*(f"user {at}" for at in users), *(f"item {at}" for at in items)),
            node_labels=np.repeat([0, 1], [len(users), len(items)]),
            node_kinds=("user", "item"),
            edge_attrs=EdgeAttributes(ends, True, examples=True),
        )
        data = learned(data)
        check_counts(data, self.facts, folder, remedy=_WHOLE)
        if (held := (int(train.sum()), int((~train).sum()))) != self.split:
            refuse(folder, f"the ratings of train and test are {held}, not {self.split}", _WHOLE, "counts")
        hashes = hashes_of(data.node_ids)
        chosen = train & (places(pair_hashes(hashes[ends[0]], hashes[ends[1]], None, 0)) < self.validation)
        data = replace(data, public=np.stack([train & ~chosen, chosen, ~train]))
        return check(replace(data, **self.fields(rating[:, None].astype(np.float64), ("rating",))), folder)
