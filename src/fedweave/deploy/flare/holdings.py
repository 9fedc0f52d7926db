"""A site's graph, read from the site's own files and checked at the site."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from fedweave.core import random
from fedweave.core.federation import Declaration, Sends
from fedweave.core.graph import TEST, TRAIN, Graph, make_graph
from fedweave.core.graph_arrays import DTYPES
from fedweave.core.links import Links
from fedweave.core.ranges import Whole
from fedweave.core.replies import Replies
from fedweave.core.sizes import common_lengths, padded_rows
from fedweave.core.target import where_known
from fedweave.core.text import counted
from fedweave.core.tree import Tree
from fedweave.core.types import CLASS, LABELS, NUMBER, Kind, Record
from fedweave.datasets import npz
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import first, refuse
from fedweave.datasets.contents import content
from fedweave.datasets.external import EXCHANGE, REFUSE
from fedweave.datasets.folder import Folder
from fedweave.datasets.graph_folder import GraphFolder, check_named, is_of_graphs
from fedweave.datasets.links import TASK as LINKS
from fedweave.datasets.links import as_links, has_split
from fedweave.datasets.npz import Archive
from fedweave.datasets.settings import CommonSettings, DataSettings
from fedweave.datasets.triples import Triples, holds_triples, learned
from fedweave.deploy.flare.accounts import Accounts, LeftOut
from fedweave.deploy.flare.data_marks import data_digest, files_digest, key_mark, mark, site_key
from fedweave.deploy.flare.sitefile import Rules, SiteData, read_ids_key
from fedweave.errors import CallRefused, ConfigError, DataError, FedweaveError, UserError
from fedweave.experiment.config import Config
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.runs.data_form import DataForm, form_of
from fedweave.export.source import HANDED_OUT
from fedweave.models.blocks import fitted, has_ports, ported
from fedweave.partition.base import Part
from fedweave.partition.client_data import target_scale_of
from fedweave.partition.divided import Divided
from fedweave.partition.external import check_inside
from fedweave.partition.forgetting import names_among, names_of, read_ids, without_ids
from fedweave.partition.preparation import with_external_columns, with_scaled_edges, with_scaled_nodes

HASH = "hash"  # a value of `SiteData.split`
Source = TypeVar("Source", bound=CommonSettings | Triples)


class LabelVersion(NamedTuple):
    """The present version of a site's labels: a fingerprint of all of them, sorted by its examples' ids, and a mark
    int64 [m] of each of a run's examples and its label (`core.federation.Lasting`)."""

    fingerprint: bytes
    marks: np.ndarray

    @classmethod
    def of(cls, data: Dataset, rows: np.ndarray) -> "LabelVersion":
        """The version of the labels of `data`, all that the site has. rows: int64 [m], the examples of a run. If
        examples have ids, their order in the file does not matter, and a mark depends on no other example. If not,
        other examples may have the same numbers in other data, and marks depend on all labels."""
        order = sorted(range(data.examples), key=lambda row: data.ids[row]) if data.ids else [*range(data.examples)]
        content = [[data.ids[row] for row in order] if data.ids else [], data.y[order].tolist(), data.classes]
        digest = hashlib.blake2b(json.dumps(content).encode()).digest()
        names = [f"id {data.ids[row]}" if data.ids else f"{row} of {digest.hex()}" for row in rows]
        return cls(digest, cls._marks(names, data.y[rows].tolist(), data.classes))

    @classmethod
    def of_rows(cls, y: np.ndarray, classes: int) -> "LabelVersion":
        """The version of labels y int64 [n] of a run's examples, which have changed since they were loaded."""
        digest = hashlib.blake2b(y.tobytes()).digest()
        return cls(digest, cls._marks([f"{row} of {digest.hex()}" for row in range(len(y))], y.tolist(), classes))

    @staticmethod
    def _marks(names: Sequence[str], labels: Sequence[object], classes: int) -> np.ndarray:
        each = (json.dumps([*one, classes]).encode() for one in zip(names, labels, strict=True))
        return np.frombuffer(b"".join(hashlib.blake2b(one, digest_size=8).digest() for one in each), np.int64)


@dataclass(frozen=True)
class Holdings:
    """A site's graph and the global test graph for models, and the site's data.

    kinds: names of node labels, edge labels and categories (`kinds_of`). version: the version of its labels, if noise
    may be drawn on them. whole: the data with features not scaled, if an exchange will add columns
    (`alignment.Exchange`). form: of the training data; None of a party's.
    apart: number of a party's nodes that not all parties have, and that the graph leaves out. forgotten: what
    `site.toml` lists to leave out, of what the data has. pairs: the file of pairs of nodes to predict, for links.
    """

    graph: Graph
    test: Graph | None
    data: Dataset
    kinds: tuple[str, ...] = ()
    version: LabelVersion | None = None
    whole: Dataset | None = None
    form: DataForm | None = None
    apart: int = 0
    pairs: Path | None = None
    forgotten: "Forgotten | None" = None

    @property
    def features(self) -> int:
        """The number of features."""
        return self.data.features

    @property
    def classes(self) -> int:
        """Number of classes of the whole federation."""
        return self.data.classes


class Forgotten(NamedTuple):
    """The examples that a site leaves out. ids: their ids, as far as the data has them. training: of those among them
    that runs would train on. absent: how many ids of the list it does not have. numbers: whether the ids are numbers of
    rows. version: of all labels, with marks of the examples that are left."""

    ids: tuple[str, ...]
    training: tuple[str, ...]
    absent: int
    numbers: bool
    version: LabelVersion

    @classmethod
    def of(cls, site: SiteData, folder: Path) -> "Forgotten | None":
        """What `site.toml` lists to leave out; None without a list.

        Raises:
            DataError, ConfigError: the list or the data is absent or invalid.
        """
        if site.forget is None:
            return None
        whole = own_graph(replace(site, forget=None), folder)
        names = np.array(names_of(whole))
        listed, absent = names_among(names.tolist(), read_ids(folder / site.forget, "data.forget"))
        trained = np.asarray(whole.public)[TRAIN] & whole.labeled
        ids, training = names[listed].tolist(), names[listed & trained].tolist()
        version = LabelVersion.of(whole, np.flatnonzero(~listed))
        return cls(tuple(ids), tuple(training), absent, not whole.ids, version)

    def marks(self, ids: Sequence[str], folder: Path, data: str, size: int = 8) -> frozenset[str]:
        """Hashes of ids, keyed by the site in `folder`, so that its journal does not tell them. Numbers of rows are of
        these rows alone: the same number names another row once rows are removed.

        data: see `accounts.LeftOut`. size: in bytes.

        Raises:
            ConfigError: see `data_marks.site_key`.
        """
        key, purpose = site_key(folder), b"forget" + (data.encode() if self.numbers else b"")
        return frozenset(mark(key, purpose, name, size) for name in ids)


def left_out_of(site: SiteData, folder: Path, forgotten: Forgotten | None, accounts: Accounts) -> LeftOut:
    """What a run on the data that `site.toml` names leaves out. accounts: the site's, with the data of earlier runs.

    Raises:
        DataError: see `read_graph`. ConfigError: see `data_marks.site_key`.
    """
    whole = _as_written(replace(site, forget=None), folder)
    data, seen = recognized(whole, folder / site.path, accounts)
    if forgotten is None:
        return LeftOut(data, data, seen=seen)
    marks = forgotten.marks(forgotten.ids, folder, data), forgotten.marks(forgotten.training, folder, data)
    return LeftOut(data, data_digest(without_ids(whole, forgotten.ids)), *marks, seen, key_mark(folder))


def recognized(whole: Dataset, path: Path, accounts: Accounts) -> tuple[str, frozenset[str]]:
    """The digest under which the site's runs note data, and those by which a later run recognizes it. whole: the data
    at `path`, features not scaled."""
    digest = data_digest(whole)
    seen = frozenset((digest, files_digest(path)))
    return accounts.known_as(digest, seen), seen


def hold(site: SiteData, folder: Path, config: Config, noted: DataForm | None = None) -> Holdings:
    """Read the data that `site.toml` names.

    noted: the form of the data on which a finished run was trained, if its models predict. Features are then scaled by
    the numbers of that data.

    Raises:
        DataError: a file is absent or invalid, has no split, or the two graphs do not fit together.
    """
    dtype = DTYPES[config.engine.values["dtype"]]
    links = None if config.links is None else replace(config.links, seed=config.general.seed)
    (data, unscaled), model = site_graph(site, folder, noted, links), config.model.make()
    data, unscaled = (learned(data), learned(unscaled)) if config.learned else (data, unscaled)
    form, whole = noted or form_at(site, unscaled), unscaled if site.external == EXCHANGE else None
    data = ported(data, fitted(model, data.edge_attrs))
    test = common_test(site, folder, data.features, dtype, has_ports(model))
    pairs = None if site.pairs is None else folder / site.pairs
    graph, forgotten = graph_of(data, data.features, dtype), Forgotten.of(site, folder)
    version = LabelVersion.of(data, np.arange(data.examples)) if forgotten is None else forgotten.version
    return Holdings(graph, test, data, kinds_of(site), version, whole, form, pairs=pairs, forgotten=forgotten)


class SiteGraph(NamedTuple):
    """A site's data as models read it, and `unscaled`, without the scaling of nodes' features."""

    data: Dataset
    unscaled: Dataset


def own_graph(site: SiteData, folder: Path, links: Links | None = None) -> Dataset:
    """The graph, or the small graphs, that a site trains on; see `site_graph`."""
    return site_graph(site, folder, None, links).data


def site_graph(site: SiteData, folder: Path, noted: DataForm | None = None, links: Links | None = None) -> SiteGraph:
    """The graph, or the small graphs, that a site trains on, before and after the scaling of nodes' features.

    noted: see `hold`. links: the experiment's settings of link prediction, if links are predicted.

    Raises:
        DataError: the data is absent or invalid, or has no split. ConfigError: a setting in `site.toml` does not apply
            to this data.
    """
    path = folder / site.path
    check_meant(path, site)
    if site.split == HASH and site.task != LINKS:
        raise ConfigError(
            f"data.split = {HASH!r}: only parties of vertical runs and link prediction support it. Give a column "
            "split, or set train_until and val_until."
        )
    data, unscaled = _graph(path, site, folder, links, noted)
    check_split(path, data)
    return SiteGraph(with_own_units(path, data), with_own_units(path, unscaled))


def unscaled_at(site: SiteData, folder: Path) -> Dataset:
    """A site's data in the columns that models read, without the scaling of nodes' features.

    Raises:
        DataError, ConfigError: see `read_graph`.
    """
    path = folder / site.path
    return with_own_units(path, _graph(path, site, folder).unscaled)


def tables_at(site: SiteData, folder: Path) -> Dataset:
    """A site's data in the columns that models read, with the numbers of its tables.

    Raises:
        DataError, ConfigError: see `read_graph`.
    """
    unscaled = unscaled_at(site, folder)
    if site.edge_normalize == "none":
        return unscaled
    return replace(unscaled, edge_attrs=_as_written(site, folder).edge_attrs)


def _as_written(site: SiteData, folder: Path) -> Dataset:
    """A site's data with the numbers of its tables."""
    return _with_scaled_edges(folder / site.path, site, folder, Links(), {"how": "none"})


def form_at(site: SiteData, unscaled: Dataset) -> DataForm:
    """The form of a site's training data, `unscaled` as in a `SiteGraph`."""
    handed_out = site.random_id is not None and site.normalize == "none"
    edges = HANDED_OUT if site.random_id is not None and site.edge_normalize == "none" else site.edge_normalize
    return form_of(unscaled, HANDED_OUT if handed_out else site.normalize, unscaled.x, edges)


def with_own_units(path: Path, data: Dataset) -> Dataset:
    """The data with the scale of its numeric targets from the site's own training examples, if target_normalize =
    "own".

    Raises:
        DataError: no training example has a value of one of the targets.
    """
    if data.target != NUMBER or data.target_scaling != "own":
        return data
    part = Part.of(data, np.arange(data.examples), np.asarray(data.public))
    trained = where_known(data.y[part.masks[TRAIN]]).any(0)
    if not trained.all():
        name = (data.targets or tuple(map(str, range(data.outputs))))[int(np.argmin(trained))]
        what = f"no training example has {name!r}, by which it would be scaled"
        refuse(path, what, 'Give one, or set target_normalize = "none" in every site.toml.', "target-scale")
    return replace(data, target_scale=target_scale_of(data, part))


def kinds_of(site: SiteData) -> tuple[str, ...]:
    """The names in the site's file whose order all sites must share: node and edge labels, relations, categories."""
    lists = {"node_labels": site.node_labels, "edge_labels": site.edge_labels}
    lists |= {"relation": site.labels} if site.task == LINKS else {}
    lists |= {f"category {column}": tuple(values) for column, values in sorted((site.categories or {}).items())}
    return tuple(f"{what} {name}" for what, names in lists.items() for name in names or ())


# Settings that `site.toml` may have in addition to the fields of the source; "parallel" is ignored, and triples have no
# features to normalize.
_ADDITIONAL: dict[type, set[str]] = {
    Archive: {"classes", "labels", "external", "parallel"},
    Triples: {"task", "normalize"},
}


def check_meant(path: Path, site: SiteData) -> None:
    """Refuse settings of `site.toml` that do not apply to the kind of data at `path`.

    Raises:
        ConfigError: names the first such setting.
    """
    source, kind = _source_at(path)
    known = {field.name for field in fields(source)} | _ADDITIONAL.get(source, set())
    others = {field.name for field in fields(DataSettings)} - known
    others |= {"train_until", "val_until"} if source is GraphFolder else set()
    if odd := [one.name for one in fields(site) if one.name in others and getattr(site, one.name) != one.default]:
        raise ConfigError(
            f"data.{odd[0]}: does not apply, because {path} holds {kind}. Remove it from site.toml.",
            code="config.other-form",
        )


def _source_at(path: Path) -> tuple[type[Archive | Folder | GraphFolder | Triples], str]:
    """The source class that reads the data at `path`, and the name of its kind."""
    if not path.is_dir():
        return Archive, "npz"
    if holds_triples(path):
        return Triples, "triples"
    return (GraphFolder, "graphs") if is_of_graphs(path) else (Folder, "nodes")


def source_of(kind: type[Source], site: SiteData) -> Source:
    """A source with the site's settings. All other fields of the source belong to simulations and keep their
    defaults."""
    values: Record = {field.name: getattr(site, field.name) for field in fields(DataSettings)}
    if kind is Archive and site.task == LINKS:  # its file has nodes, or the relations of edges
        values["task"] = "nodes"
    return kind(**{field.name: values[field.name] for field in fields(kind) if field.name in values})


def marks(data: Dataset, scaling: str) -> Record:
    """Fingerprints of the data that must not change. For prediction: features, classes and how they are scaled. For a
    run that resumes: all of the data."""
    return {
        "features": list(data.columns) or data.features,
        "features of edges": list(data.edge_attrs.columns)
        if data.edge_attrs is not None and data.edge_attrs.columns
        else data.edge_features,
        "classes": list(data.labels or data.targets) or data.outputs,
        "scaling": scaling,
        "data": content(data),
    }


def read_graph(path: Path, site: SiteData, folder: Path | None = None, links: Links | None = None) -> Dataset:
    """The graph, or the small graphs, in an .npz file or a folder of tables.

    folder: the site's folder. links: see `site_graph`.

    Raises:
        DataError: the data is absent or invalid, or has a label beyond `site.class_count`.
        ConfigError: labels of small graphs are names, and `site.toml` gives no order of these.
    """
    return _graph(path, site, folder, links).data


def _graph(
    path: Path,
    site: SiteData,
    folder: Path | None = None,
    links: Links | None = None,
    noted: DataForm | None = None,
) -> SiteGraph:
    """The data at `path`, by the steps of `partition.preparation`; noted: see `hold`."""
    edges: Record = {"how": site.edge_normalize} if noted is None else noted.edge_scaling
    data = _with_scaled_edges(path, site, folder or path.parent, links or Links(), edges)
    if site.external == REFUSE:
        check_inside(data)
    if not data.called and site.external == EXCHANGE:
        refuse(path, "its nodes have no ids, by which other sites could know them", "Give ids, or take tables.")
    unscaled = with_external_columns(data, site.external)
    return SiteGraph(with_scaled_nodes(unscaled, nodes_scaling(site, noted)), unscaled)


def nodes_scaling(site: SiteData, noted: DataForm | None) -> Record:
    """How features of nodes are scaled: by the numbers of a finished run's training, if its models predict."""
    return noted.scaling if noted is not None and "shift" in noted.scaling else {"how": site.normalize}


def _with_scaled_edges(path: Path, site: SiteData, folder: Path, links: Links, edges: Record) -> Dataset:
    """The data in the file or folder with scaled features of edges, and its links as examples if `site` says so. If
    `site` divides by time, this division replaces the split in the data, and training edges alone count in the scaling.
    Rows of what `site` forgets are gone before anything is scaled."""
    data, late = _undivided(path, site), site.timed or site.forget is not None
    data = data if late else with_scaled_edges(data, edges)
    if site.task == LINKS:
        data = linked(path, data, site, folder, links)
    if site.timed:
        by_time = Divided(split="time", train_until=site.train_until, val_until=site.val_until)
        [part] = by_time.divide_nodes(data, [np.arange(data.nodes)], 0)
        timed = None if data.edge_attrs is None else data.edge_attrs._replace(split_times=part.split_times)
        data = replace(data, public=part.masks, edge_attrs=timed)
    if site.forget is not None:
        check_split(path, data)
        names = np.array(names_of(data))
        listed, _ = names_among(names.tolist(), read_ids(folder / site.forget, "data.forget"))
        data = without_ids(data, names[listed].tolist())
    times = None if data.edge_attrs is None else data.edge_attrs.split_times
    return with_scaled_edges(data, edges, math.inf if times is None else times[0]) if late else data


def linked(path: Path, data: Dataset, site: SiteData, folder: Path, links: Links) -> Dataset:
    """The `data` of `path` with its links as examples.

    If the data has no split, a hash of both ends' names, keyed with `ids.key`, makes one. So a link that two sites know
    is in the same split at both. The server cannot influence the split, and all runs have the same one: two runs whose
    splits differed in a link would reveal that link.

    Raises:
        DataError, ConfigError: the data cannot have links as examples, or has a split and `site` asks for another; or
            there is no key.
    """
    if site.split == HASH and has_split(data):
        problem = f"its edges have a split, and site.toml says data.split = {HASH!r}"
        refuse(path, problem, "Leave out the column split, or data.split.", "split-twice")
    key = b"" if site.timed or has_split(data) else read_ids_key(folder)
    settings = replace(links, ratios=site.ratios, users=site.users, items=site.items, relation=site.relation, seed=0)
    data = as_links(data, settings, key)
    return replace(data, links=replace(data.links or settings, seed=links.seed))


def _undivided(path: Path, site: SiteData) -> Dataset:
    """The data in the file or folder, with nothing scaled."""
    site = replace(site, normalize="none", edge_normalize="none")
    if require(path).is_dir():
        if holds_triples(path):
            return source_of(Triples, site).load(path, 0)
        if not is_of_graphs(path):
            return source_of(Folder, site).load(path, 0)
        of_graphs = source_of(GraphFolder, site)
        check_named(path, of_graphs)
        return of_graphs.load(path, 0)

    def classed(data: Dataset) -> Dataset:
        if site.task == LINKS and data.example != "edge":  # their relations are the classes
            return data
        return npz.without_gaps(path, data) if site.class_count is None else numbered(path, data, site)

    return source_of(Archive, site).from_file(path, classed)


def require(path: Path) -> Path:
    """Return `path` if it exists, else raise DataError."""
    if not path.exists():
        raise DataError(f"{path} does not exist. Name the site's data as [data] path in site.toml.")
    return path


def numbered(path: Path, data: Dataset, site: SiteData) -> Dataset:
    """The data of `path` with the number and names of the whole federation's classes, if `site.toml` gives them.

    Raises:
        DataError: a label is not below this number, or the file has other names.
    """
    classes = site.class_count
    if data.labels and (classes or len(data.labels), site.labels or data.labels) != (len(data.labels), data.labels):
        problem = f"label_names are {', '.join(data.labels)}, and site.toml says other labels or classes"
        refuse(path, problem, "Number the classes as in site.toml, or remove labels and classes from site.toml.")
    if classes is not None and (row := first(data.y >= classes)) is not None:
        what = f"y, row {row}: label {data.y[row]} is not in 0..{classes - 1}"
        refuse(path, what, "Correct it or raise data.classes.")
    return data if classes is None else replace(data, classes=classes, labels=site.labels or data.labels)


def check_split(path: Path, data: Dataset) -> None:
    """Raise DataError if the data of `path` has no split."""
    if data.public is None:
        remedy = f"Assign each {data.example} to train, val or test (a column split)"
        by_time = "" if data.example == "graph" else ", or until when they are (data.train_until and val_until)"
        refuse(path, "the graph has no split", f"{remedy}{by_time}.")


def global_test(path: Path, site: SiteData, dtype: torch.dtype, use: int = TEST, ports: bool = False) -> Graph:
    """The global test graph, or graphs, at `path`.

    use: the mask of every labeled example if the data has no split. ports: whether models read ports of its edges.
    If the sites compute columns from edges between sites, the test data must have these columns already, scaled.

    Raises:
        DataError: see `read_graph`.
    """
    site = replace(site, train_until=None, val_until=None, forget=None)
    data = read_graph(path, site if site.external == REFUSE else replace(site, external="refuse", normalize="none"))
    masks = np.zeros((3, data.examples), bool)
    masks[use] = data.labeled
    masks = masks if data.public is None else data.public
    attributes = None if data.edge_attrs is None else data.edge_attrs._replace(ports=ports)
    more = data.sensitive, dtype, None, data.graph_of
    return make_graph(data.x, data.edges, data.y, masks, *more, edge_attrs=attributes, scale=data.target_scale)


def common_test(site: SiteData, folder: Path, features: int, dtype: torch.dtype, ports: bool = False) -> Graph | None:
    """The global test graph that `site.toml` names, or None. features: number of features of the site's own data.

    Raises:
        DataError: see `global_test`; or the test graph has another number of features. ConfigError: the site scales
            numeric targets by its own data.
    """
    if site.test is None:
        return None
    if site.target == NUMBER and site.target_normalize == "own":
        raise ConfigError(
            "data.test: a global model predicts numbers in each site's own units, and the global test has none. Remove "
            'test, or set target_normalize = "none" in every site.toml.',
            code="config.target-scale",
        )
    test = global_test(folder / site.test, site, dtype, ports=ports)
    if test.x.shape[1] != features:
        what = f"it has {counted(test.x.shape[1], 'feature')}, the site's data {features:,}"
        refuse(folder / site.test, what, "Use the same columns.")
    return test


def fitting(marks: Record) -> Record:
    """The `marks` (`holdings.marks`) that a run's models need unchanged since training: all except the data itself."""
    return {what: mark for what, mark in marks.items() if what != "data"}


def check_as_before(path: Path, run: str, marks: Record) -> None:
    """Compare the `marks` of a site's data with the marks in the file `path`, written when the `run` began.

    Raises:
        FedweaveError: a mark differs, with the remedy; or the file is damaged.
    """
    before = _marks_before(path)
    if odd := [what for what in marks if what in before and marks[what] != before[what]]:
        was = before[odd[0]]
        remedy = {
            "data": "Restore the data that the run began with, or start a new run.",
            "features": f"Give the columns {was}, in this order.",
            "features of edges": f"Give edges the features {was}, in this order.",
            "classes": f"Write {'labels' if isinstance(was, list) else 'classes'} = {was} into site.toml.",
            "scaling": f"Write normalize = {was!r} into site.toml.",
            "scaled over nodes": "Scale the features yourself and train with normalize = 'none' in site.toml.",
        }
        raise FedweaveError(f"{odd[0]}: not as in the run {run}. {remedy[odd[0]]}")


def _marks_before(path: Path) -> Record:
    try:
        record = json.loads(path.read_bytes())
        if not isinstance(record, dict):
            raise TypeError("it holds no table")
    except (ValueError, TypeError, RecursionError) as error:
        raise FedweaveError(f"{path} is damaged ({error}). Restore it, or start a new run.") from error
    return record


# ----------------------------------------------------------------------------------------------------
# What a site reports about its data when it joins a run, and what its policy withholds. Some algorithms need a list,
# such as of motifs, with the same length at every client. Each site reports the length of its own list in whole blocks
# (`core.sizes.common_lengths`), and the server sends the largest length to all. No content of a list leaves the site,
# and no site learns the length of another site's list.


SIZES = "sizes"
LENGTH = Whole(-1, 1 << 17)  # every site pads its list to that length. -1: kept back
REVEALS_SIZES = Sends(
    "how long its lists are that all sites pad alike, such as of motifs, in blocks of 32", within=LENGTH
)


def site_lengths(needed: Mapping[str, int]) -> Tree:
    """A site's report of the lengths `needed` for its lists; {} if it has no such lists."""
    return {SIZES: common_lengths([needed])} if needed else {}


def longest(replies: Replies) -> Tree:
    """The server's message to the sites: for each list the largest length; {} if there are no lists.

    Raises:
        UserError: a site withholds the length of its list.
    """
    sizes = {site: replies[site].get(SIZES, {}) for site in replies.clients}
    if silent := [site for site, lengths in sizes.items() if -1 in lengths.values()]:
        raise UserError(
            f"{', '.join(silent)}: the policy keeps back `{SIZES}`, without which the sites' lists cannot have one "
            "length. Allow it, or choose an algorithm that needs no such lists."
        )
    return common_lengths(sizes.values())


def checked(message: Tree, needed: Mapping[str, int]) -> dict[str, int]:
    """The lengths in the server's `message`, checked by a site.

    Raises:
        CallRefused: they are for other lists than the site's, too short for these, or longer than the limit.
    """
    if message.keys() != needed.keys():
        raise CallRefused("the server sends the lengths of other lists than the site's algorithm has")
    for name, length in needed.items():
        size = message[name]
        if type(size) is not int or not length <= size <= LENGTH.most or size != padded_rows(size):
            raise CallRefused(f"the server sends {size!r} as the length of {name}, which is not valid")
    return dict(message)


def without(replies: Replies, odd: Mapping[str, str]) -> Replies:
    """The replies without the `odd` sites, which count as missing for the reasons in `odd`."""
    here = {site: replies[site] for site in replies.clients if site not in odd}
    return Replies.of(here, {**replies.missing, **odd})


TARGET = "target"  # sent only if the target is no class
RELATIONS = "relations"  # sent only if links are predicted
KINDS: tuple[Kind, ...] = (CLASS, NUMBER, LABELS)
WIDTH = Whole(-1, 1 << 17)  # columns or classes; every site makes a model of that width. -1: kept back
JOINING: Declaration = {
    "features": Sends("how many features the data has", within=WIDTH),
    "classes": Sends("how many classes the data has", within=WIDTH),
    TARGET: Sends("whether numbers (1) or several labels (2) are predicted, and no class", within=Whole(-1, 2)),
    RELATIONS: Sends("how many relations the predicted links have", within=WIDTH),
    "edge_features": Sends("how many features edges have", within=WIDTH),
    "edge_weights": Sends("whether edges have weights", within=Whole(-1, 1)),
    "of_edges": Sends("whether the examples are edges", within=Whole(-1, 1)),
    "directed": Sends("whether edges have directions", within=Whole(-1, 1)),
    "names": "a fingerprint of the classes' names in their order; 0 if they are numbers",
    "columns": "a fingerprint of the features' names in their order; 0 if they are numbers",
    "kinds": "a fingerprint of the names of categories, and of nodes' and edges' labels; 0 if there are none",
    "groups": "a fingerprint of the names of the sensitive groups in their order; 0 if they are numbers",
    "nodes": Sends("how many nodes the site holds", within=Whole(-1)),
    "edges": Sends("how many edges the site holds", within=Whole(-1)),
    "split": Sends("how many examples it trains, validates and tests on", within=Whole()),
    "labels": Sends("how many examples of each class it has", within=Whole()),
    SIZES: REVEALS_SIZES,
}
OF_EDGES = {
    "edge_features": "features",
    "edge_weights": "weighted",
    "of_edges": "examples",
}  # key: of `Dataset.edge_form`
# What the server sends if a finished run's models predict.
FLAGS = {
    "positive": "which class is looked for",
    "threshold": "from which probability on an example is flagged, chosen on all members' validation examples",
}
# Fields that describe the form of the data and reveal no record.
FORM = ("features", "classes", TARGET, RELATIONS, *OF_EDGES, "directed", "names", "columns", "kinds", "groups")


def fingerprint(labels: Sequence[str]) -> int:
    """A hash of names in their order, as a whole number; 0 for numbered classes."""
    return random.word(json.dumps(list(labels))) if labels else 0


def describe(holdings: Holdings, deny: Sequence[str]) -> Tree:
    """The site's report of its data when it joins: counts (`JOINING`), -1 or empty for the counts that it withholds."""
    data, masks = holdings.data, holdings.graph.masks
    counts = {
        "features": data.features,
        "classes": data.outputs,
        **({} if data.target == CLASS else {TARGET: KINDS.index(data.target)}),
        **({} if data.links is None else {RELATIONS: data.edge_form["relations"]}),
        **{key: int(data.edge_form[name]) for key, name in OF_EDGES.items()},
        "directed": int(data.edge_form["directed"]),
        "names": fingerprint(data.labels or data.targets),
        "columns": fingerprint((*data.columns, *(() if data.edge_attrs is None else data.edge_attrs.columns))),
        "kinds": fingerprint(holdings.kinds),
        "groups": fingerprint(data.groups),
        "nodes": data.nodes,
        "edges": data.edges.shape[1] // 2,
        "split": (masks if data.links is None else masks & (holdings.graph.y == 1)).sum(1),  # without drawn pairs
        "labels": _label_counts(holdings.graph, data),
    }
    return kept_back(counts, deny)


def _label_counts(graph: Graph, data: Dataset) -> torch.Tensor:
    """The number of examples of each class, with a 1 in each label, or with a value of each numeric target."""
    if data.target == CLASS:
        return torch.bincount(graph.y[graph.y >= 0], minlength=data.classes)
    return (graph.y == 1).sum(0) if data.target == LABELS else (~graph.y.isnan()).sum(0)


def withheld(rules: Rules) -> tuple[str, ...]:
    """The fields that a site with these rules withholds when it joins: denied ones, the number of examples of each
    class unless `measures` has "classes", and all counts if there is a cap on ε."""
    counts = [key for key in JOINING if key not in (*FORM, *rules.unbounded)] if rules.epsilon is not None else []
    labels = () if "classes" in rules.measures else ("labels",)
    return tuple(dict.fromkeys((*rules.deny, *labels, *counts)))


def kept_back(reply: Tree, deny: Sequence[str]) -> Tree:
    """`reply` with -1 or an empty tensor for the fields that the site's policy denies."""
    return {key: _hidden(leaf) if key in deny else leaf for key, leaf in reply.items()}


def as_kept_back(sends: Declaration, deny: Sequence[str]) -> Declaration:
    """The declaration of a reply of `kept_back`, for ledgers: the fields in `deny` reveal nothing."""
    whole = {key: spec if isinstance(spec, Sends) else Sends(spec) for key, spec in sends.items()}
    return {key: replace(spec, reveals="nothing: kept back") if key in deny else spec for key, spec in whole.items()}


def _hidden(leaf: object) -> object:
    if isinstance(leaf, dict):
        return {key: _hidden(below) for key, below in leaf.items()}
    return leaf[:0] if isinstance(leaf, torch.Tensor) else -1
