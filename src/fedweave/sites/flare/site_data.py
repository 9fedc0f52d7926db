"""A site's graph, read from the site's own files and checked."""

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from fedweave.core.graph import TEST, TRAIN, Graph, make_graph
from fedweave.core.links import Links
from fedweave.core.target import where_known
from fedweave.core.text import counted
from fedweave.core.types import NUMBER, Record
from fedweave.datasets import npz
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import first, refuse
from fedweave.datasets.external import EXCHANGE, REFUSE
from fedweave.datasets.features import AUTO
from fedweave.datasets.folder import Folder
from fedweave.datasets.graph_folder import GraphFolder, check_name_settings, is_of_graphs
from fedweave.datasets.links import TASK as LINKS
from fedweave.datasets.links import as_links, has_split
from fedweave.datasets.npz import Archive
from fedweave.datasets.settings import CommonSettings, DataSettings
from fedweave.datasets.structure import filled
from fedweave.datasets.triples import Triples, holds_triples
from fedweave.errors import ConfigError, DataError
from fedweave.experiment.runs.data_form import DataForm, form_of
from fedweave.export.source import HANDED_OUT
from fedweave.partition.base import Part
from fedweave.partition.divided import Divided
from fedweave.partition.external import check_inside
from fedweave.partition.forgetting import names_among, names_of, read_ids, without_ids
from fedweave.partition.preparation import with_external_columns, with_scaled_edges, with_scaled_nodes
from fedweave.partition.scaling import target_scale_of
from fedweave.sites.flare.sitefile import SiteData, read_ids_key

HASH = "hash"  # a value of `SiteData.split`
Source = TypeVar("Source", bound=CommonSettings | Triples)


class SiteGraph(NamedTuple):
    """A site's data as models read it; `unscaled`, without the scaling of nodes' features; and `tables`, also without
    the site's own scaling of edges' features ("auto")."""

    data: Dataset
    unscaled: Dataset
    tables: Dataset


def training_graph(site: SiteData, folder: Path, links: Links | None = None) -> Dataset:
    """The graph, or the small graphs, that a site trains on; see `site_graph`."""
    return site_graph(site, folder, None, links).data


def site_graph(
    site: SiteData, folder: Path, training_form: DataForm | None = None, links: Links | None = None
) -> SiteGraph:
    """The graph, or the small graphs, that a site trains on, before and after its scaling.

    training_form: see `hold`. links: the experiment's settings of link prediction, if links are predicted.
    """
    path = folder / site.path
    check_meant(path, site)
    if site.split == HASH and site.task != LINKS:
        raise ConfigError(
            f"data.split = {HASH!r}: only parties of vertical runs and link prediction support it. Give a column "
            "split, or set train_until and val_until."
        )
    graph = _graph(path, site, folder, links, training_form)
    check_split(path, graph.data)
    return SiteGraph(*(with_local_units(path, data) for data in graph))


def load_unscaled(site: SiteData, folder: Path) -> Dataset:
    """A site's data in the columns that models read, without the scaling of nodes' features."""
    path = folder / site.path
    return with_local_units(path, _graph(path, site, folder).unscaled)


def load_tables(site: SiteData, folder: Path) -> Dataset:
    """A site's data in the columns that models read, with the numbers of its tables."""
    unscaled = filled(load_unscaled(site, folder))
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


def with_local_units(path: Path, data: Dataset) -> Dataset:
    """The data with the scale of its numeric targets from the site's own training examples, if target_normalize =
    "own"."""
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
    kinds = list[str]()
    for what, names in lists.items():
        kinds += [f"{what} {name}" for name in names or ()]
    return tuple(kinds)


# Settings that `site.toml` may have in addition to the fields of the source; "parallel" is ignored, and triples have no
# features to normalize.
_ADDITIONAL: dict[type, set[str]] = {
    Archive: {"classes", "labels", "external", "parallel"},
    Triples: {"task", "normalize"},
}


def check_meant(path: Path, site: SiteData) -> None:
    """Refuse settings of `site.toml` that do not apply to the kind of data at `path`."""
    source, kind = _source_at(path)
    known = {field.name for field in fields(source)} | _ADDITIONAL.get(source, set())
    inapplicable = {field.name for field in fields(DataSettings)} - known
    inapplicable |= {"train_until", "val_until"} if source is GraphFolder else set()
    for setting in fields(site):
        if setting.name in inapplicable and getattr(site, setting.name) != setting.default:
            raise ConfigError(
                f"data.{setting.name}: does not apply, because {path} holds {kind}. Remove it from site.toml.",
                code="config.other-form",
            )


def _source_at(path: Path) -> tuple[type[Archive | Folder | GraphFolder | Triples], str]:
    """The source class that reads the data at `path`, and the name of its kind."""
    if not path.exists():
        raise DataError(f"{path} does not exist. Name the site's data as [data] path in site.toml.")
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


def read_graph(path: Path, site: SiteData) -> Dataset:
    """The graph, or the small graphs, in an .npz file or a folder of tables."""
    return _graph(path, site).data


def _graph(
    path: Path,
    site: SiteData,
    folder: Path | None = None,
    links: Links | None = None,
    training_form: DataForm | None = None,
) -> SiteGraph:
    """The data at `path`, by the steps of `partition.preparation`; training_form: see `hold`."""
    edges: Record = {"how": site.edge_normalize} if training_form is None else training_form.edge_scaling
    late = edges["how"] == AUTO  # after columns of edges to other sites' nodes are made of them
    data = _with_scaled_edges(path, site, folder or path.parent, links or Links(), {"how": "none"} if late else edges)
    if site.external == REFUSE:
        check_inside(data)
    if not data.node_names and site.external == EXCHANGE:
        refuse(path, "its nodes have no ids, by which other sites could know them", "Give ids, or take tables.")
    unscaled = tables = with_external_columns(data, site.external)
    if late:
        unscaled = with_scaled_edges(tables, edges, training_end(tables))
    return SiteGraph(with_scaled_nodes(unscaled, nodes_scaling(site, training_form)), unscaled, tables)


def nodes_scaling(site: SiteData, training_form: DataForm | None) -> Record:
    """How features of nodes are scaled: by the numbers of a finished run's training, if its models predict."""
    if training_form is not None and "shift" in training_form.scaling:
        return training_form.scaling
    return {"how": site.normalize}


def _with_scaled_edges(path: Path, site: SiteData, folder: Path, links: Links, edges: Record) -> Dataset:
    """The data in the file or folder with scaled features of edges, and its links as examples if `site` says so. If
    `site` divides by time, this division replaces the split in the data, and training edges alone count in the scaling.
    Rows of what `site` forgets are gone before anything is scaled."""
    # 1. Read the data, with nothing scaled.
    source, _ = _source_at(path)
    reader = source_of(source, replace(site, normalize="none", edge_normalize="none"))
    if isinstance(reader, Archive):

        def add_classes(data: Dataset) -> Dataset:
            if site.task == LINKS and data.example != "edge":  # their relations are the classes
                return data
            return npz.without_gaps(path, data) if site.class_count is None else with_classes(path, data, site)

        data = reader.from_file(path, add_classes)
    else:
        if isinstance(reader, GraphFolder):
            check_name_settings(path, reader)
        data = reader.load(path, 0)
    late = site.splits_by_time or site.forget is not None
    data = data if late else with_scaled_edges(data, edges)
    # 2. Links as examples. If the data has no split, a hash of both ends' names, keyed with `ids.key`, makes one. So a
    # link that two sites know is in the same split at both. The server cannot influence the split, and all runs have
    # the same one: two runs whose splits differed in a link would reveal that link.
    if site.task == LINKS:
        if site.split == HASH and has_split(data):
            problem = f"its edges have a split, and site.toml says data.split = {HASH!r}"
            refuse(path, problem, "Leave out the column split, or data.split.", "split-twice")
        key = b"" if site.splits_by_time or has_split(data) else read_ids_key(folder)
        kinds = {"users": site.users, "items": site.items, "relation": site.relation}
        settings = replace(links, ratios=site.ratios, seed=0, **kinds)  # type: ignore[arg-type]
        data = as_links(data, settings, key)
        data = replace(data, links=replace(data.links or settings, seed=links.seed))
    # 3. A split by time, and what the site forgets.
    if site.splits_by_time:
        by_time = Divided(split="time", train_until=site.train_until, val_until=site.val_until)
        [part] = by_time.divide_nodes(data, [np.arange(data.nodes)], 0)
        splits_by_time = None if data.edge_attrs is None else data.edge_attrs._replace(split_times=part.split_times)
        data = replace(data, public=part.masks, edge_attrs=splits_by_time)
    if site.forget is not None:
        check_split(path, data)
        names = np.array(names_of(data))
        listed, _ = names_among(names.tolist(), read_ids(folder / site.forget, "data.forget"))
        data = without_ids(data, names[listed].tolist())
    return with_scaled_edges(data, edges, training_end(data)) if late else data


def training_end(data: Dataset) -> float:
    """The last time of training; infinite where examples are not split by time."""
    times = None if data.edge_attrs is None else data.edge_attrs.split_times
    return math.inf if times is None else times[0]


def with_classes(path: Path, data: Dataset, site: SiteData) -> Dataset:
    """The data of `path` with the number and names of the whole federation's classes, if `site.toml` gives them."""
    classes = site.class_count
    if data.labels and (classes or len(data.labels), site.labels or data.labels) != (len(data.labels), data.labels):
        problem = f"label_names are {', '.join(data.labels)}, and site.toml says other labels or classes"
        refuse(path, problem, "Number the classes as in site.toml, or remove labels and classes from site.toml.")
    if classes is None:
        return data
    row = first(data.y >= classes)
    if row is not None:
        what = f"y, row {row}: label {data.y[row]} is not in 0..{classes - 1}"
        refuse(path, what, "Correct it or raise data.classes.")
    return replace(data, classes=classes, labels=site.labels or data.labels)


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
    """
    data = global_test_data(path, site).data
    masks = np.zeros((3, data.examples), bool)
    masks[use] = data.has_label
    masks = masks if data.public is None else data.public
    attributes = None if data.edge_attrs is None else data.edge_attrs._replace(ports=ports)
    more = data.sensitive, dtype, None, data.graph_of
    return make_graph(data.x, data.edges, data.y, masks, *more, edge_attrs=attributes, scale=data.target_scale)


def global_test_data(path: Path, site: SiteData) -> SiteGraph:
    """The global test data at `path`, without a split by time; nothing of it is forgotten."""
    site = replace(site, train_until=None, val_until=None, forget=None)
    return _graph(path, site if site.external == REFUSE else replace(site, external="refuse", normalize="none"))


def common_test(site: SiteData, folder: Path, features: int, dtype: torch.dtype, ports: bool = False) -> Graph | None:
    """The global test graph that `site.toml` names, or None. features: number of features of the site's own data."""
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
