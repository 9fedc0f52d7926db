"""What a site holds: its graph, read from its own files and checked there."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from fedweave.core import random
from fedweave.core.federation import Declaration, Sends
from fedweave.core.graph import DTYPES, TEST, TRAIN, Graph, make_graph
from fedweave.core.links import Links
from fedweave.core.ranges import Whole
from fedweave.core.replies import Replies, ReplyBatch, as_row
from fedweave.core.sizes import agreed, least_rows
from fedweave.core.target import CLASS, LABELS, NUMBER, Kind, where_known
from fedweave.core.text import counted
from fedweave.core.tree import Tree, map_leaves
from fedweave.core.types import Record
from fedweave.datasets import npz
from fedweave.datasets.base import EXCHANGE, REFUSE, Dataset
from fedweave.datasets.check import first, refuse
from fedweave.datasets.features import (
    AUTO,
    OVER_NODES,
    by_holder,
    content,
    rescaled,
    scaled_by_holders,
)
from fedweave.datasets.folder import Folder, GraphFolder, check_named, is_of_graphs
from fedweave.datasets.links import TASK as LINKS
from fedweave.datasets.links import as_links, has_split
from fedweave.datasets.npz import Archive
from fedweave.datasets.settings import CommonSettings, DataSettings
from fedweave.datasets.tables import scaled_like
from fedweave.datasets.triples import knowledge_graph, learned, read_triples
from fedweave.deploy.flare.sitefile import Rules, SiteData, read_ids_key
from fedweave.errors import CallRefused, ConfigError, DataError, FedweaveError, UserError
from fedweave.experiment.build import scaled_until
from fedweave.experiment.config import Config
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.runs.data_form import DataForm
from fedweave.models.blocks import fitted, has_ports, ported
from fedweave.partition.base import Part
from fedweave.partition.client_data import target_scale_of
from fedweave.partition.divided import Divided
from fedweave.partition.external import check_inside, member_data

HASH = "hash"  # of `SiteData.split`
Source = TypeVar("Source", bound=CommonSettings)


class LabelVersion(NamedTuple):
    """A site's labels as they are: a fingerprint of all that it has, by its nodes' ids, and where those of a run are
    among them (`core.federation.Lasting`)."""

    fingerprint: bytes
    places: np.ndarray
    held: int

    @classmethod
    def of(cls, data: Dataset, rows: np.ndarray) -> "LabelVersion":
        """Of `data`, of whose examples a run has the `rows` int64 [m]; whatever the order in which a file lists
        examples that have ids."""
        order = sorted(range(data.examples), key=lambda row: data.ids[row]) if data.ids else [*range(data.examples)]
        content = [[data.ids[row] for row in order] if data.ids else [], data.y[order].tolist(), data.classes]
        digest = hashlib.blake2b(json.dumps(content).encode()).digest()
        return cls(digest, np.argsort(order)[rows], data.examples)

    @classmethod
    def of_rows(cls, y: np.ndarray) -> "LabelVersion":
        """Of the labels y int64 [n] of a run's examples, which have changed since they were loaded."""
        return cls(hashlib.blake2b(y.tobytes()).digest(), np.arange(len(y)), len(y))


@dataclass(frozen=True)
class Holdings:
    """A site's graph and the global test graph, as models see them, the site's data as read, and the names of what its
    features stand for (`kinds`), where they have names. version: of its labels, where noise on these may be drawn.
    whole: the data with features not scaled, where more is to be heard of its nodes (`alignment.Exchange`). apart: a
    party's nodes that not all parties have, which are none of these. pairs: a table of pairs to predict, of links."""

    graph: Graph
    test: Graph | None
    data: Dataset
    kinds: tuple[str, ...] = ()
    version: LabelVersion | None = None
    whole: Dataset | None = None
    apart: int = 0
    pairs: Path | None = None

    @property
    def features(self) -> int:
        """Number of features."""
        return self.data.features

    @property
    def classes(self) -> int:
        """Number of classes of the whole federation."""
        return self.data.classes


def hold(site: SiteData, folder: Path, config: Config, noted: DataForm | None = None) -> Holdings:
    """Read what `site.toml` names. noted: the form of what a run was trained on whose models are to predict; features
    of edges are scaled as they were then, for there may be others now.

    Raises:
        DataError: a file is absent or refused, has no split, or the two graphs do not fit together.
    """
    dtype = DTYPES[config.engine.values["dtype"]]
    whole = across(folder / site.path, site) if site.external == EXCHANGE else None
    links = None if config.links is None else replace(config.links, seed=config.general.seed)
    data, model = own_graph(site, folder, whole, noted, links), config.model.make()
    data = ported(learned(data) if config.learned else data, fitted(model, data.edge_attrs))
    test = common_test(site, folder, data.features, dtype, has_ports(model))
    version = LabelVersion.of(data, np.arange(data.examples))
    pairs = None if site.pairs is None else folder / site.pairs
    return Holdings(graph_of(data, data.features, dtype), test, data, kinds_of(site), version, whole, pairs=pairs)


def own_graph(
    site: SiteData,
    folder: Path,
    whole: Dataset | None = None,
    noted: DataForm | None = None,
    links: Links | None = None,
) -> Dataset:
    """The graph, or the small graphs, that a site trains on; whole: where it has been read, its features not scaled;
    noted: see `hold`; by its numbers features are scaled that "auto" scales. links: what the experiment says of
    these, where they are predicted.

    Raises:
        DataError: it is absent or refused, or has no split. ConfigError: `site.toml` says of it what means nothing.
    """
    path = folder / site.path
    check_meant(path, site)
    if site.split == HASH and site.task != LINKS:
        raise ConfigError(
            f"data.split = {HASH!r}: it is of a party of a vertical run, and of links. Give a column split, or "
            "set train_until and val_until."
        )
    scaling = noted.edges["scaling"] if noted is not None and noted.edges is not None else {}
    like = site.edge_normalize in OVER_NODES and "shift" in scaling
    site = replace(site, edge_normalize="none") if like else site
    as_then = noted.scaling if noted is not None and whole is None and site.normalize == AUTO else {}
    site = replace(site, normalize="none") if "shift" in as_then else site
    data = read_graph(path, site, folder, links) if whole is None else _scaled(whole, site)
    check_split(path, data)
    if "shift" in as_then:
        data = replace(data, x=rescaled(data.x, **as_then))
    data = with_own_units(path, data)
    if like and data.edge_attrs is not None:
        pairs = tuple((shift, by or 0.0) for shift, by in zip(scaling["shift"], scaling["divisor"], strict=True))
        data = replace(
            data, edge_attrs=scaled_like(data.edge_attrs, data.edge_attrs._replace(scaling=pairs), scaling["how"])
        )
    return data


def with_own_units(path: Path, data: Dataset) -> Dataset:
    """The data with the units of its numbers by the site's own training examples, where these are asked for.

    Raises:
        DataError: no training example has one of the numbers.
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
    """What the site's file names in an order that all sites must share, besides the classes and groups."""
    lists = {"node_labels": site.node_labels, "edge_labels": site.edge_labels}
    lists |= {"relation": site.labels} if site.task == LINKS else {}
    lists |= {f"category {column}": tuple(values) for column, values in sorted((site.categories or {}).items())}
    return tuple(f"{what} {name}" for what, names in lists.items() for name in names or ())


# Settings beside those of `Archive` that `site.toml` may have of an .npz file; "parallel" is let pass.
_BESIDE = {"classes", "labels", "external", "parallel"}


def check_meant(path: Path, site: SiteData) -> None:
    """Refuse keys of `site.toml` that mean nothing for the kind of data at `path`: no setting of what reads it.

    Raises:
        ConfigError: names the first.
    """
    source, kind = _source_at(path)
    known = {field.name for field in fields(source)} | (_BESIDE if source is Archive else set())
    others = {field.name for field in fields(DataSettings)} - known
    others |= {"train_until", "val_until"} if source is GraphFolder else set()
    if odd := [one.name for one in fields(site) if one.name in others and getattr(site, one.name) != one.default]:
        raise ConfigError(
            f"data.{odd[0]}: means nothing where {path} holds {kind}; leave it out of site.toml.",
            code="config.other-form",
        )


def _source_at(path: Path) -> tuple[type[Archive | Folder | GraphFolder], str]:
    """What reads the data at `path`, and what is there."""
    if not path.is_dir():
        return Archive, "npz"
    return (GraphFolder, "graphs") if is_of_graphs(path) else (Folder, "nodes")


def source_of(kind: type[Source], site: SiteData) -> Source:
    """A source with what the site says of its settings; its other ones are of simulations."""
    values = {field.name: getattr(site, field.name) for field in fields(DataSettings)}
    return kind(**{field.name: values[field.name] for field in fields(kind) if field.name in values})


def marks(data: Dataset, scaling: str) -> Record:
    """What must be the same when a run's models predict: features, classes and scaling and, if features are scaled over
    them, the nodes; and when it resumes: all of the data."""
    scaled = json.dumps([data.nodes, *data.ids]) if scaling in OVER_NODES else ""
    return {
        "features": list(data.columns) or data.features,
        "features of edges": list(data.edge_attrs.columns)
        if data.edge_attrs is not None and data.edge_attrs.columns
        else data.edge_features,
        "classes": list(data.labels or data.targets) or data.outputs,
        "scaling": scaling,
        "scaled over nodes": hashlib.sha256(scaled.encode()).hexdigest(),
        "data": content(data),
    }


def read_graph(path: Path, site: SiteData, folder: Path | None = None, links: Links | None = None) -> Dataset:
    """The graph, or the small graphs, in an .npz file or a folder of tables; folder: the site's. links: see
    `own_graph`.

    Raises:
        DataError: it is absent or refused, or has a label beyond `site.class_count`.
        ConfigError: small graphs have labels that are names, and no order of these that all sites could share.
    """
    if site.external != REFUSE:
        return _scaled(across(path, site), site)
    data = _read(path, site, folder, links)
    check_inside(data)
    return data


def across(path: Path, site: SiteData) -> Dataset:
    """The graph at `path`, features not scaled, with columns made of its edges to nodes that it does not have.

    Raises:
        DataError, ConfigError: see `read_graph`; or nothing says by what ids others know its nodes.
    """
    data = _read(path, replace(site, normalize="none"))
    if not data.called and site.external == EXCHANGE:
        refuse(path, "its nodes have no ids, by which other sites could know them", "Give ids, or take tables.")
    return member_data(data, site.external)


def _scaled(data: Dataset, site: SiteData) -> Dataset:
    return by_holder(scaled_by_holders(data, site.normalize, data.name))


def _read(path: Path, site: SiteData, folder: Path | None = None, links: Links | None = None) -> Dataset:
    """What the file or folder itself holds, divided by time where `site` says so: in the place of its own split, and
    with features of edges scaled by those that training sees."""
    data = _undivided(path, replace(site, edge_normalize="none") if site.timed else site)
    if site.task == LINKS:
        data = linked(path, data, site, folder or path.parent, links or Links())
    if not site.timed:
        return data
    by_time = Divided(split="time", train_until=site.train_until, val_until=site.val_until)
    [part] = by_time.divided(data, [np.arange(data.nodes)], 0)
    timed = None if data.edge_attrs is None else data.edge_attrs._replace(until=part.until)
    return scaled_until(replace(data, public=part.masks, edge_attrs=timed), site.edge_normalize, part.until)


def linked(path: Path, data: Dataset, site: SiteData, folder: Path, links: Links) -> Dataset:
    """The `data` of `path` with its links as the examples. Where it says no split, one is by a hash of both ends' names
    that is keyed with `ids.key`, so that a link that two sites know is in the same split at both. No server has a say
    in it, and it is the same in all runs: two that differ in a link would tell of it.

    Raises:
        DataError, ConfigError: the data cannot have links as examples, or has a split of its own that is to be another;
            or there is no key.
    """
    if site.split == HASH and has_split(data):
        problem = f"its edges have a split, and site.toml says data.split = {HASH!r}"
        refuse(path, problem, "Leave out the column split, or data.split.", "split-twice")
    key = b"" if site.timed or has_split(data) else read_ids_key(folder)
    settings = replace(links, ratios=site.ratios, users=site.users, items=site.items, relation=site.relation, seed=0)
    data = as_links(data, settings, key)
    return replace(data, links=replace(data.links or settings, seed=links.seed))


def _undivided(path: Path, site: SiteData) -> Dataset:
    if require(path).is_dir():
        if (triples := read_triples(path)) is not None:
            return knowledge_graph(*triples, path.name, site.labels or ())
        if not is_of_graphs(path):
            return by_holder(source_of(Folder, site).load(path, 0))
        of_graphs = source_of(GraphFolder, site)
        check_named(path, of_graphs)
        return by_holder(of_graphs.load(path, 0))

    def classed(data: Dataset) -> Dataset:
        if site.task == LINKS and data.example != "edge":  # their relations are the classes
            return data
        return npz.without_gaps(path, data) if site.class_count is None else numbered(path, data, site)

    return by_holder(source_of(Archive, site).from_file(path, classed))


def require(path: Path) -> Path:
    """Return `path` if it exists, else raise DataError."""
    if not path.exists():
        raise DataError(f"{path} does not exist. Name the site's data as [data] path in site.toml.")
    return path


def numbered(path: Path, data: Dataset, site: SiteData) -> Dataset:
    """The data of `path` with the number of classes of the whole federation, and their names, if `site.toml` says them.

    Raises:
        DataError: a label is beyond it, or the file has other names.
    """
    classes = site.class_count
    if data.labels and (classes or len(data.labels), site.labels or data.labels) != (len(data.labels), data.labels):
        problem = f"label_names are {', '.join(data.labels)}, and site.toml says other labels or classes"
        refuse(path, problem, "Number the classes as site.toml does, or leave both out of it.")
    if classes is not None and (row := first(data.y >= classes)) is not None:
        what = f"y, row {row}: label {data.y[row]} is not in 0..{classes - 1}"
        refuse(path, what, "Correct it or raise data.classes.")
    return data if classes is None else replace(data, classes=classes, labels=site.labels or data.labels)


def check_split(path: Path, data: Dataset) -> None:
    """Raise DataError if the data of `path` has no split."""
    if data.public is None:
        remedy = f"Say of each {data.example} whether it is in train, val or test (a column split)"
        by_time = "" if data.example == "graph" else ", or until when they are (data.train_until and val_until)"
        refuse(path, "the graph has no split", f"{remedy}{by_time}.")


def global_test(path: Path, site: SiteData, dtype: torch.dtype, use: int = TEST, ports: bool = False) -> Graph:
    """The global test graph, or graphs, with the split or, if there is none, every labeled example in the TEST mask,
    or that of another `use`. Where a site makes columns of edges to nodes elsewhere, it has all columns, scaled.
    ports: whether models read those of its edges.

    Raises:
        DataError: see `read_graph`.
    """
    site = replace(site, train_until=None, val_until=None)
    data = read_graph(path, site if site.external == REFUSE else replace(site, external=REFUSE, normalize="none"))
    masks = np.zeros((3, data.examples), bool)
    masks[use] = data.labeled
    masks = masks if data.public is None else data.public
    attributes = None if data.edge_attrs is None else data.edge_attrs._replace(ports=ports)
    more = data.sens, dtype, None, data.graph_of
    return make_graph(data.x, data.edges, data.y, masks, *more, edge_attrs=attributes, scale=data.target_scale)


def common_test(site: SiteData, folder: Path, features: int, dtype: torch.dtype, ports: bool = False) -> Graph | None:
    """The global test graph that `site.toml` names, if it does, of so many `features` as the site's own data.

    Raises:
        DataError: see `global_test`; or it has another number of features.
    """
    if site.test is None:
        return None
    if site.target == NUMBER and site.target_normalize == "own":
        raise ConfigError(
            "data.test: a global model predicts numbers in each site's own units, and the global test has none. Leave "
            'test out, or set target_normalize = "none" in every site.toml.',
            code="config.target-scale",
        )
    test = global_test(folder / site.test, site, dtype, ports=ports)
    if test.x.shape[1] != features:
        what = f"it has {counted(test.x.shape[1], 'feature')}, the site's data {features:,}"
        refuse(folder / site.test, what, "Use the same columns.")
    return test


def fitting(marks: Record) -> Record:
    """Of the `marks` (`holdings.marks`) those that a run's models need to be as they were in training."""
    return {what: mark for what, mark in marks.items() if what != "data"}


def check_as_before(path: Path, run: str, marks: Record) -> None:
    """Compare the `marks` of a site's data with those in the file `path`, of when the `run` began.

    Raises:
        FedweaveError: one is another; says what to bring back. Or the file is damaged.
    """
    before = _marks_before(path)
    if odd := [what for what in marks if what in before and marks[what] != before[what]]:
        was = before[odd[0]]
        remedy = {
            "data": "Bring back the data that the run began with, or start a new run.",
            "features": f"Give the columns {was}, in this order.",
            "features of edges": f"Give edges the features {was}, in this order.",
            "classes": f"Say {'labels' if isinstance(was, list) else 'classes'} = {was} in site.toml.",
            "scaling": f"Say normalize = {was!r} in site.toml.",
            "scaled over nodes": "Scale the features yourself and train with normalize = 'none' in site.toml.",
        }
        raise FedweaveError(f"{odd[0]}: not as in the run {run}. {remedy[odd[0]]}")


def _marks_before(path: Path) -> Record:
    try:
        record = json.loads(path.read_bytes())
        if not isinstance(record, dict):
            raise TypeError("it holds no table")
    except (ValueError, TypeError, RecursionError) as error:
        raise FedweaveError(f"{path} is damaged ({error}). Bring it back, or start a new run.") from error
    return record


# ----------------------------------------------------------------------------------------------------
# What a site says of its data when it joins a run, and what of that its policy keeps back. Sites come to lists of the
# same length, such as of motifs, where an algorithm has every client hold one: each says how long its own is, in
# whole blocks (`core.sizes.agreed`), and the server tells all of them the longest. Nothing of what a list holds is
# said, and no site learns of another's.


SIZES = "sizes"
LENGTH = Whole(-1, 1 << 17)  # every site pads its list to that length. -1: kept back
TELLS = Sends("how long its lists are that all sites pad alike, such as of motifs, in blocks of 32", within=LENGTH)


def site_lengths(needed: Mapping[str, int]) -> Tree:
    """What a site says of the lists that it `needed`; nothing where there are none."""
    return {SIZES: agreed([needed])} if needed else {}


def longest(replies: Replies) -> Tree:
    """What the server tells the sites: for each list, the longest; {} where there is nothing to agree on.

    Raises:
        UserError: a site keeps back how long its own is.
    """
    sizes = {site: replies[site].get(SIZES, {}) for site in replies.clients}
    if silent := [site for site, lengths in sizes.items() if -1 in lengths.values()]:
        raise UserError(
            f"{', '.join(silent)}: the policy keeps back `{SIZES}`, without which the sites' lists cannot be of one "
            "length; allow it, or choose an algorithm that needs none."
        )
    return agreed(sizes.values())


def checked(told: Tree, needed: Mapping[str, int]) -> dict[str, int]:
    """The sizes that the server `told`, as a site takes them.

    Raises:
        CallRefused: they are not those of the site's lists, too short for them, or longer than any may be.
    """
    if told.keys() != needed.keys():
        raise CallRefused("the server tells the lengths of other lists than the site's algorithm has")
    for name, length in needed.items():
        size = told[name]
        if type(size) is not int or not length <= size <= LENGTH.most or size != least_rows(size):
            raise CallRefused(f"the server tells {size!r} as the length of {name}, which cannot be")
    return dict(told)


def without(replies: Replies, odd: Mapping[str, str]) -> Replies:
    """The replies without those of the `odd` sites, which are missing for these reasons."""
    here = [site for site in replies.clients if site not in odd]
    batches = [ReplyBatch((at,), map_leaves(as_row, replies[site])) for at, site in enumerate(here)]
    return Replies(here, batches, {**replies.missing, **odd})


TARGET = "target"  # told where no class is predicted
RELATIONS = "relations"  # told where links are predicted
KINDS: tuple[Kind, ...] = (CLASS, NUMBER, LABELS)
WIDTH = Whole(-1, 1 << 17)  # columns or classes; every site makes a model of that width. -1: kept back
JOINING: Declaration = {
    "features": Sends("how many features the data has", within=WIDTH),
    "classes": Sends("how many classes the data has", within=WIDTH),
    TARGET: Sends("whether numbers (1) or several labels (2) are predicted, and no class", within=Whole(-1, 2)),
    RELATIONS: Sends("of how many relations the links are that are predicted", within=WIDTH),
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
    SIZES: TELLS,
}
OF_EDGES = {
    "edge_features": "features",
    "edge_weights": "weighted",
    "of_edges": "examples",
}  # key: of `Dataset.edge_form`
# What the server tells where a finished run's models predict.
FLAGS = {
    "positive": "which class is looked for",
    "threshold": "from which probability on an example is flagged, chosen on all members' validation examples",
}
# What says how the data is made up, and nothing of a record in it.
FORM = ("features", "classes", TARGET, RELATIONS, *OF_EDGES, "directed", "names", "columns", "kinds", "groups")


def fingerprint(labels: Sequence[str]) -> int:
    """A number that other names, or the same in another order, hardly share; 0 for numbered classes."""
    return random.word(json.dumps(list(labels))) if labels else 0


def describe(holdings: Holdings, deny: Sequence[str]) -> Tree:
    """What the site says of its data when it joins: counts (`JOINING`), -1 or empty for those that it keeps back."""
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
        "split": (masks if data.links is None else masks & (holdings.graph.y == 1)).sum(1),  # no pairs drawn beside
        "labels": _label_counts(holdings.graph, data),
    }
    return kept_back(counts, deny)


def _label_counts(graph: Graph, data: Dataset) -> torch.Tensor:
    """How many examples of each class there are, of each label that are 1, or that have each number."""
    if data.target == CLASS:
        return torch.bincount(graph.y[graph.y >= 0], minlength=data.classes)
    return (graph.y == 1).sum(0) if data.target == LABELS else (~graph.y.isnan()).sum(0)


def withheld(rules: Rules) -> tuple[str, ...]:
    """The keys that a site with these rules keeps back when it joins: what it denies, how many examples each class has
    unless it tells that and, under a cap on ε, all counts."""
    counts = [key for key in JOINING if key not in (*FORM, *rules.unbounded)] if rules.epsilon is not None else []
    labels = () if "classes" in rules.measures else ("labels",)
    return tuple(dict.fromkeys((*rules.deny, *labels, *counts)))


def kept_back(reply: Tree, deny: Sequence[str]) -> Tree:
    """`reply` with -1 or nothing for the keys that the site's policy denies."""
    return {key: _hidden(leaf) if key in deny else leaf for key, leaf in reply.items()}


def as_kept_back(sends: Declaration, deny: Sequence[str]) -> Declaration:
    """What `kept_back` gives away, for ledgers: of the keys in `deny` nothing."""
    whole = {key: spec if isinstance(spec, Sends) else Sends(spec) for key, spec in sends.items()}
    return {key: replace(spec, reveals="nothing: kept back") if key in deny else spec for key, spec in whole.items()}


def _hidden(leaf: object) -> object:
    if isinstance(leaf, dict):
        return {key: _hidden(below) for key, below in leaf.items()}
    return leaf[:0] if isinstance(leaf, torch.Tensor) else -1
