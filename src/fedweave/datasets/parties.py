"""A vertical dataset: a folder with one sub-folder per party, which share nodes but neither features nor edges."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.graph_arrays import dense
from fedweave.datasets import columns
from fedweave.datasets.base import Dataset, Party, to_undirected
from fedweave.datasets.check import check, first, refuse
from fedweave.datasets.column_names import EDGES, NODES, check_columns
from fedweave.datasets.edge_tables import EdgeTables
from fedweave.datasets.features import compact, normalize, of_party
from fedweave.datasets.labels import labels_in
from fedweave.datasets.leakage import refuse_group_columns
from fedweave.datasets.lookup import require_folder, unread
from fedweave.datasets.name_matching import as_whole, difference, plain, without_dots
from fedweave.datasets.schema import Classified
from fedweave.datasets.table import Table
from fedweave.datasets.table_files import find

_LOG = logging.getLogger(__name__)
_LAYOUT = "Name the folder whose sub-folders are the parties, each with nodes and edges; see docs/data-parties.md."


@dataclass(frozen=True)
class PartyFolders(Classified):
    """Your own folder of parties, each a sub-folder with nodes.csv|parquet and edges.csv|parquet, joined by id.

    Settings are over the nodes that all parties have; a column of `categories`, `columns`, `ignore` or `missing` is of
    every party that has it.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_unless_classes("data of several parties, who share nodes,")
        columns.check_gaps(self.missing, self.categories)

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The nodes that all parties have, sorted by id as text; the parties in order of name, features side by
        side and called party/column.

        Logs how many nodes are common and what every party drops, as a warning if it drops any; `seed` is not used.

        Raises:
            ConfigError: no folder is given.
            DataError: fewer than two parties, no common id, parties that contradict each other, or a file that is
                missing or refused; the message names party, file, row (see `table.Table`) and remedy.
        """
        root = require_folder(root, "parties", "the folder of all parties' folders", _LAYOUT)
        # 1. Every party's tables.
        folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
        if len(folders) < 2:
            what = f"there is {f'only one party, {folders[0].name}' if folders else 'no party'}"
            remedy = f'{_LAYOUT} [data] name = "folder" reads a single graph.'
            refuse(root, f"{what}; a vertical dataset has at least two sub-folders", remedy)
        train = _training_ids(folders, self) if columns.AUTO in (self.categories or {}).values() else None
        inputs = [_read(folder, self, self.missing, train, shared=True) for folder in folders]
        for setting, names in (("categories", self.categories or {}), ("missing", self.missing or ())):
            for name in names:
                if not any(name in party.nodes.columns for party in inputs):
                    what = f"no party has a column {name!r}, which [data] {setting} names"
                    refuse(root, what, "Correct its name.", "column-named")
        # 2. The nodes that all have, and each party's rows of them.
        common = set.intersection(*(set(party.ids.to_pylist()) for party in inputs))
        if not common:
            examples = ", ".join(f"{party.name} has {party.ids[0].as_py()!r}" for party in inputs)
            what = f"no id is common to all parties ({_spelling_note(inputs, 0) or examples})"
            refuse(root, what, "Write the same ids in all tables of nodes.", "no-common-id")
        ids = pa.array(sorted(common), pa.string())
        rows = [pc.index_in(ids, party.ids).to_numpy(zero_copy_only=False).astype(np.int64) for party in inputs]
        # 3. Each party's columns and edges in the common numbering; edges to other nodes are dropped.
        parties, dropped, begin = list[Party](), list[str](), 0
        for party, party_rows in zip(inputs, rows, strict=True):
            width, all_nodes, all_edges = party.x.shape[1], len(party.ids), party.edges.shape[1] // 2
            edges = to_undirected(_among(party.edges, party_rows, all_nodes), len(ids))
            has_label, has_sens = "label" in party.nodes.columns, "sens" in party.nodes.columns
            place = np.arange(begin, begin + width)
            parties.append(Party(party.name, place, edges, has_label, party.names, has_sens))
            begin += width
            if len(ids) < all_nodes:
                nodes = f"{all_nodes - len(ids):,} of {all_nodes:,} nodes"
                dropped.append(
                    f"{party.name} drops {nodes} and {all_edges - edges.shape[1] // 2:,} of {all_edges:,} edges"
                )
        if dropped:
            dropped.append("what not all parties have is neither trained on nor predicted")
            dropped += filter(None, [_spelling_note(inputs, len(ids))])
        text = "; ".join(dropped) or "none is dropped"
        level = logging.WARNING if dropped else logging.INFO
        _LOG.log(level, "note: %s nodes are common to all %d parties: %s", f"{len(ids):,}", len(inputs), text)
        # 4. Labels, splits and groups, which any party may have.
        label = _join_parties(root, "label", ids, inputs, rows, self.labels or ())
        split = _join_parties(root, "split", ids, inputs, rows, ())
        sensitive = _join_parties(root, "sens", ids, inputs, rows, self.groups or ())
        if label is None:
            refuse(root, "no party's nodes have a column label", "Add it to the nodes of at least one party.")
        y, classes = self.labels_of(label)
        groups = None if sensitive is None else columns.sens_of(sensitive, self.groups)
        features = [party.x[party_rows] for party, party_rows in zip(inputs, rows, strict=True)]
        if not self.sens_feature:
            for party, x in zip(inputs, features, strict=True):
                refuse_group_columns(x, groups, party.names, party.nodes.path)
        files, feature_names = list[Path](), list[str]()
        for folder, party in zip(folders, inputs, strict=True):
            files += [find(folder, stem) for stem in self.stems]
            feature_names += [f"{party.name}/{name}" for name in party.names]
        dataset = Dataset(
            name=root.resolve().name,
            x=normalize(compact(np.concatenate(features, 1)), of_party(self.normalize), root.name),
            edges=to_undirected(np.concatenate([party.edges for party in parties], 1), len(ids)),
            y=y,
            classes=classes,
            sensitive=groups,
            groups=() if sensitive is None else columns.group_names(sensitive, self.groups),
            public=None if split is None else columns.masks_of(split, y),
            parties=tuple(parties),
            ids=tuple(ids.to_pylist()),
            columns=tuple(feature_names),
            labels=self.names_of(label),
            notes=unread(root, files, *folders),
        )
        return check(dataset, root)


def read_party(folder: Path, kind: EdgeTables) -> tuple[Dataset, tuple[str, ...]]:
    """One party's data on its own, with its ids and its unscaled features, and the names of the features; it may have
    no column of labels.

    kind: settings of its tables. A party without labels needs the classes or labels there.

    Raises:
        DataError: a file is missing or refused; the message names file, row (see `table.Table`) and remedy.
    """
    party = _read(folder, kind, kind.missing)
    labelled, classes = "label" in party.nodes.columns, kind.classes or len(kind.labels or ())
    if not labelled and not classes:
        what = "it has no column label, and site.toml does not give the classes"
        refuse(party.nodes.path, what, "Set [data] classes or labels in site.toml.")
    y = np.full(party.nodes.rows, -1)
    if labelled:
        y, classes = kind.labels_of(party.nodes)
    sensitive = columns.sens_of(party.nodes, kind.groups)
    if not kind.sens_feature:
        refuse_group_columns(party.x, sensitive, party.names, party.nodes.path)
    dataset = Dataset(
        name=folder.resolve().name,
        x=party.x,
        edges=party.edges,
        y=y,
        classes=classes,
        sensitive=sensitive,
        public=columns.masks_of(party.nodes, y if labelled else np.zeros_like(y))
        if "split" in party.nodes.columns
        else None,
        ids=tuple(party.ids.to_pylist()),
        labels=kind.names_of(party.nodes),
        notes=unread(folder, [find(folder, stem) for stem in kind.stems]),
    )
    return check(dataset, folder, labelled), party.names


def restrict(data: Dataset, rows: np.ndarray) -> Dataset:
    """The subgraph of the nodes `rows` int64 [m], in that order."""
    return replace(
        data,
        x=data.x[rows],
        edges=to_undirected(_among(data.edges, rows, data.nodes), len(rows)),
        y=data.y[rows],
        sensitive=None if data.sensitive is None else data.sensitive[rows],
        public=None if data.public is None else data.public[:, rows],
        ids=tuple(data.ids[row] for row in rows) if data.ids else (),
        node_labels=None if data.node_labels is None else data.node_labels[rows],
        edge_labels=None,  # of other edges than are left
    )


class _PartyTables(NamedTuple):
    """One party's tables as read: ids [n_m], features [n_m, d_m] and their names, edges [2, E_m] in the numbers of its
    own rows."""

    name: str
    nodes: Table
    ids: pa.Array
    x: np.ndarray
    names: tuple[str, ...]
    edges: np.ndarray


@dataclass(frozen=True)
class _Joined(Table):
    """One column of several parties' tables; errors name the file and row that a value comes from."""

    sources: tuple[Table, ...]
    which: np.ndarray
    rows_there: np.ndarray

    def place(self, row: int) -> tuple[Path, int]:
        result: tuple[Path, int] = self.sources[self.which[row]].place(int(self.rows_there[row]))
        return result


def _training_ids(folders: Sequence[Path], kind: Classified) -> pa.Array | None:
    """The ids whose split is "train" at some party; None where no party has one."""
    ids = list[pa.Array]()
    for folder in folders:
        nodes = kind.tables(folder, lacking=True).nodes
        trains = columns.training_rows(nodes)
        if trains is not None:
            check_columns(nodes, required=NODES[:1], known=NODES)
            ids.append(_number_ids(columns.ids_of(nodes)).filter(pa.array(trains)))
    return pa.concat_arrays(ids) if ids else None


def _read(
    folder: Path, kind: Classified, gaps: Sequence[str] | None, train: pa.Array | None = None, shared: bool = False
) -> _PartyTables:
    """gaps: columns that may have empty cells. train: the ids whose rows decide the categories; all if None. shared:
    whether named columns may belong to other parties, so that a party may lack them."""
    nodes, edges, _ = kind.tables(folder, lacking=shared)
    check_columns(nodes, required=NODES[:1], known=NODES)
    check_columns(edges, required=EDGES, known=EDGES, closed=True)
    if nodes.rows == 0:
        refuse(nodes.path, "the table has no rows", "Give one row per node.")
    nodes = columns.expand_lists(nodes, NODES)
    ids = _number_ids(columns.ids_of(nodes))
    trains = None if train is None else pc.is_in(ids, value_set=train).to_numpy(zero_copy_only=False)
    categories, columns_with_gaps = dict(kind.categories or {}), columns.gap_columns(gaps, False)
    if shared:
        categories = {name: values for name, values in categories.items() if name in nodes.columns}
        columns_with_gaps = [name for name in columns_with_gaps if name in nodes.columns]
    for name, values in categories.items():
        if values == columns.AUTO and name in nodes.columns:
            categories[name] = columns.training_values(nodes, name, trains)
    filled = columns.fill_gaps(nodes, columns_with_gaps)
    x = dense(columns.features_of(filled, categories=categories))
    if x.shape[1] == 0:
        refuse(nodes.path, f"party {folder.name} has no feature", "Give it a feature column, or remove its folder.")
    names = columns.feature_names(filled, categories=categories)
    return _PartyTables(folder.name, nodes, ids, x, names, columns.edges_of(edges, ids, kind.loops))


def _number_ids(ids: pa.Array) -> pa.Array:
    """The ids, whole numbers as such where all of them are: other parties, who write "7" for "7.0", have the same."""
    plain = without_dots(ids)
    whole = pc.all(pc.match_substring_regex(plain, r"^-?\d+$")).as_py()
    return plain if whole and len(plain.unique()) == len(ids) else ids


def _among(edges: np.ndarray, rows: np.ndarray, nodes: int) -> np.ndarray:
    """int64 [2, E]: a party's edges that join common nodes, in the common numbering; `rows` are the nodes' rows at the
    party."""
    place = np.full(nodes, -1)
    place[rows] = np.arange(len(rows))
    among: np.ndarray = place[edges]
    return among[:, among.min(0, initial=len(rows)) >= 0]


def _spelling_note(inputs: list[_PartyTables], common: int) -> str:
    """A sentence on how many more nodes than `common` ones would be common if ids were `plain`; "" if none."""
    forms = list[dict[str, str]]()  # of each party: {plain form: name}
    for party in inputs:
        forms.append({plain(name): name for name in party.ids.to_pylist()})
    common_forms = sorted(set.intersection(*map(set, forms)))
    if len(common_forms) <= common:
        return ""
    names = list[str]()
    for form in common_forms:
        names = [by_form[form] for by_form in forms]
        if len(set(names)) > 1:
            break
    text = ", ".join(f"{party.name} has {name!r}" for party, name in zip(inputs, names, strict=True))
    how = difference(*list(dict.fromkeys(names))[:2])
    more = f"{len(common_forms) - common:,} more"
    return f"{more} would be common if ids were written the same way: {text}, which differ in {how}"


def _join_parties(
    root: Path, column: str, ids: pa.Array, inputs: list[_PartyTables], rows: list[np.ndarray], names: tuple[str, ...]
) -> _Joined | None:
    """`column` over the common nodes from all parties that have it; None if none does. Cells among `names` stay as
    written."""
    cells = np.full(len(ids), None, object)
    which, there = np.zeros(len(ids), np.int64), rows[0].copy()
    for number, (party, party_rows) in enumerate(zip(inputs, rows, strict=True)):
        if column not in party.nodes.columns:
            continue
        texts = labels_in(party.nodes, "labels") if column == "label" else party.nodes.texts(column)
        texts = pc.if_else(pc.is_in(texts, pa.array(names, pa.string())), texts, as_whole(texts))
        values = texts.take(pa.array(party_rows)).to_numpy(zero_copy_only=False)
        row = first((cells != None) & (values != None) & (cells != values))  # noqa: E711
        if row is not None:
            other = inputs[which[row]]
            text = f"{column} of id {ids[row].as_py()!r} is {values[row]!r}, but party {other.name} says {cells[row]!r}"
            place = f"{other.nodes.path}, row {there[row] + other.nodes.top}"
            remedy = "Correct one of the two, or leave it empty."
            party.nodes.refuse_at(int(party_rows[row]), f"{text} ({place})", remedy)
        new = (cells == None) & (values != None)  # noqa: E711
        cells[new], which[new], there[new] = values[new], number, party_rows[new]
    if not any(column in party.nodes.columns for party in inputs):
        return None
    table = pa.table({column: pa.array(cells, pa.string())})
    return _Joined(root, table, 0, tuple(party.nodes for party in inputs), which, there)
