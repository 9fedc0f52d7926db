"""Knowledge graphs: tables of triples (head, relation, tail), of a user's own and published ones.

Entities have no features: each has a column of its own, so that a model learns a vector for it. The examples are the
triples, whose class is the relation; with [data] task = "links" a model predicts which triples are true.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import scipy.sparse as sp

from fedweave.core.bounds import BelowOne
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import TRAIN
from fedweave.core.link_hashes import hashes_of, pair_hashes, uniform
from fedweave.core.settings import Settings
from fedweave.core.target import LABELS
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.check import check, check_counts, refuse
from fedweave.datasets.column_names import check_columns, check_naming, rename_columns
from fedweave.datasets.columns import SPLIT_WORDS, masks_of, names_in, owners_of
from fedweave.datasets.features import NO_FEATURES
from fedweave.datasets.lookup import TABLES, Facts, PublishedFile, identify, refuse_other_form, require_folder, unread
from fedweave.datasets.notes import similar_name_notes
from fedweave.datasets.settings import Normalize
from fedweave.datasets.table import StackedTables, Table
from fedweave.datasets.table_files import find, first_line, read
from fedweave.datasets.targets import Targeted
from fedweave.errors import ConfigError, DataError, Faults

STEM = "triples"  # of the table's file
TRIPLE = (HEAD, RELATION, TAIL) = ("head", "relation", "tail")
SPLIT = "split"
MANY = 200_000  # entities, of which it takes seconds to find those that look the same
# Other names of the columns: those of edges, and those of RDF.
WORDS = {HEAD: ("source", "subject"), RELATION: ("predicate", "label"), TAIL: ("target", "object")}
TEXTS = ("train.txt", "valid.txt", "test.txt")
_STATEMENT = r"\s*(<|_:).*[\s>\"]\.\s*$"  # a row of N-Triples: its subject is an IRI or a blank node
_LAYOUT = "Name the folder that holds triples.csv|parquet, or train.txt, valid.txt and test.txt with tabs."
_WHOLE = "Take the published files, whole."
_DAMAGED = (pa.ArrowException, ValueError, KeyError, OSError)


def with_node_columns(data: Dataset, columns: np.ndarray | None = None, width: int = 0) -> Dataset:
    """The nodes without their features: each has a column of its own, 1 for it and 0 for all others. The first layer of
    a model is then a vector for each node, which is learned.

    columns: int64 [n], the column of each node among `width` columns, where holders of nodes number them together; a
    node at -1 has none.
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
    notes = tuple(note for note in data.notes if note != NO_FEATURES)
    return replace(data, x=x, columns=(), scaling="none", notes=notes)


def holds_triples(folder: Path) -> bool:
    """Whether there is a table of triples in the folder, or a text file of training triples."""
    names = ["train.txt", *(STEM + ending for ending in TABLES)]
    return any((folder / name).exists() for name in names)


@dataclass(frozen=True)
class Triples(Settings):
    """Your own knowledge graph: a table triples of heads, relations and tails, or train.txt, valid.txt and test.txt.

    The table may have a column split. Columns of the text files are separated by tabs.

    columns: names of the columns that mean head, relation, tail or split, such as {head = "drug"}. By default source,
             subject, predicate, label, target and object are read, too.
    ignore:  columns that are left out; each other column must have a meaning.
    labels:  names of all relations, in order; None: those in the data, sorted.
    """

    columns: dict[str, str] | None = None
    ignore: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_naming(self.columns or {}, self.ignore or ())

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The knowledge graph in `root`, its entities in the order of their names."""
        root = require_folder(root, "triples", "the folder with triples", _LAYOUT)
        table, files = self.table(root)
        data = self.graph(table, root.resolve().name)
        looks = similar_name_notes({"entities": data.node_ids}) if data.nodes <= MANY else ()
        return replace(data, notes=(*data.notes, *looks, *unread(root, files)))

    def table(self, folder: Path) -> tuple[Table, list[Path]]:
        """The triples in a folder with the columns head, relation, tail and, where it is known, split; and their files.

        Raises:
            DataError: a file is missing or malformed, or a column has no meaning.
        """
        texts = _texts(folder)
        if texts:
            pieces = [self._with_meanings(self._text(path)) for path in texts]
            splits = np.repeat([path.stem for path in texts], [piece.rows for piece in pieces])
            data = pa.concat_tables([piece.data.select(TRIPLE) for piece in pieces])
            data = data.append_column(SPLIT, pa.array(splits, pa.string()))
            return StackedTables(folder / STEM, data, 0, sources=tuple(pieces)), texts
        table = self._with_meanings(read(find(folder, STEM)))
        return table, [table.path]

    def _with_meanings(self, table: Table) -> Table:
        """The table with its columns called by what they mean, in `columns` or by the words that they are called."""
        names, columns = table.columns, dict(self.columns or {})
        for meaning, words in WORDS.items():
            present = [word for word in words if word in names]
            if meaning not in (*names, *columns) and present and present[0] not in columns.values():
                columns[meaning] = present[0]
        [table] = rename_columns([table], table.path, columns, self.ignore or ())
        check_columns(table, TRIPLE, (*TRIPLE, SPLIT), closed=True)
        return table

    def _text(self, path: Path) -> Table:
        """The triples of a text file. A first line with names of columns is a header."""
        line = first_line(path)
        if re.match(_STATEMENT, line):
            what = "the file is N-Triples, where a dot ends each row, which is not part of the tail"
            refuse(path, what, "Write head, relation and tail with tabs between them, without the dot.", "n-triples")
        names, words = line.split("\t"), {*TRIPLE, *(self.columns or {}).values()}.union(*WORDS.values())
        are_names = words.issuperset(name if name in words else name.strip().casefold() for name in names)
        header = are_names and len(set(names)) == len(TRIPLE)
        return read(path, names if header else TRIPLE, header)

    def graph(self, table: Table, name: str) -> Dataset:
        """The data set of a `table` of triples."""
        if not table.rows:
            refuse(table.path, "there is no triple", "Give one row for each triple.", "no-triples")
        faults, ends, kind = Faults(DataError), list[pa.Array](), np.zeros(0, np.int64)
        for column in (HEAD, TAIL):
            with faults:
                ends.append(names_in(table, column))
        with faults:
            table.nonempty_texts(RELATION)
            relations = owners_of(table, RELATION) if self.labels is None else self.labels
            kind = table.kinds(RELATION, relations, "labels")
        split = None
        with faults:
            split = masks_of(table, np.zeros(table.rows), "triple") if SPLIT in table.columns else None
        faults.refuse()
        entities = pa.array(sorted(set(ends[0].to_pylist()) | set(ends[1].to_pylist())), pa.string())
        numbers = np.stack([pc.index_in(cells, entities).to_numpy(zero_copy_only=False) for cells in ends])
        data = Dataset(
            name,
            sp.csr_matrix((len(entities), 1), dtype=np.float32),
            to_undirected(numbers.astype(np.int64), len(entities)),
            kind,
            len(relations),
            public=split,
            labels=relations,
            node_ids=tuple(entities.to_pylist()),
            edge_attrs=EdgeAttributes(numbers.astype(np.int64), True, examples=True),
        )
        return check(with_node_columns(data), table.path)


def _texts(folder: Path) -> list[Path]:
    """The text files of triples in a folder, at most one of each split; none where there is a table."""
    if any((folder / f"{STEM}{ending}").exists() for ending in TABLES):
        return []
    files = {folder / f"{word}.txt": split for word, split in SPLIT_WORDS.items() if (folder / f"{word}.txt").is_file()}
    for split in set(files.values()):
        same = [path.name for path, split_of_file in files.items() if split_of_file == split]
        if same[1:]:
            refuse(folder, f"{' and '.join(same)} are both there", "Keep the one that counts.", "file-other")
    if TRAIN not in files.values():
        refuse_other_form(folder, "there is no table of triples", STEM, TABLES)
        refuse_other_form(folder, "there is no train.txt", "train", (".txt",))
        content, names = identify(folder, ())
        remedy = f'Set [data] name = "{names[0]}", or name another folder.' if names else _LAYOUT
        refuse(folder, f"there are no triples; it {content}", remedy, "no-triples")
    return sorted(files, key=lambda path: files[path])


@dataclass(frozen=True)
class PublishedTriples(PublishedFile):
    """Base of published knowledge graphs, with the split that they are published with."""

    normalize: Normalize = "none"

    split: ClassVar[tuple[int, int, int]]  # triples to train on, to validate and to test

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The knowledge graph."""
        folder = self.find(root)
        data = Triples().graph(Triples().table(folder)[0], self.name)
        check_counts(data, self.facts, folder, remedy=_WHOLE)
        counts = (data.examples, 0, 0) if data.public is None else tuple(data.public.sum(1).tolist())
        if counts != self.split:
            refuse(folder, f"the triples of each split are {counts}, not {self.split}", _WHOLE, "counts")
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
        """Users and then films as nodes, each with a column of its own; ratings as examples."""
        folder = self.find(root)
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
            to_undirected(ends, nodes),
            rating.astype(np.int64) - 1,
            self.facts.classes,
            public=np.stack([train, np.zeros_like(train), ~train]),
            labels=("1", "2", "3", "4", "5"),
            node_ids=(*(f"user {at}" for at in users), *(f"item {at}" for at in items)),
            node_labels=np.repeat([0, 1], [len(users), len(items)]),
            node_kinds=("user", "item"),
            edge_attrs=EdgeAttributes(ends, True, examples=True),
        )
        data = with_node_columns(data)
        check_counts(data, self.facts, folder, remedy=_WHOLE)
        counts = int(train.sum()), int((~train).sum())
        if counts != self.split:
            refuse(folder, f"the ratings of train and test are {counts}, not {self.split}", _WHOLE, "counts")
        hashes = hashes_of(data.node_ids)
        chosen = train & (uniform(pair_hashes(hashes[ends[0]], hashes[ends[1]], None, 0)) < self.validation)
        data = replace(data, public=np.stack([train & ~chosen, chosen, ~train]))
        return check(replace(data, **self.fields(rating[:, None].astype(np.float64), ("rating",))), folder)
