"""What a site holds in a run: its graph, what it leaves out of it, and marks by which later runs recognize the data."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedweave.core.graph import TRAIN, Graph
from fedweave.core.graph_arrays import DTYPES
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.contents import content
from fedweave.datasets.external import EXCHANGE
from fedweave.datasets.triples import with_node_columns
from fedweave.errors import FedweaveError
from fedweave.experiment.config import Config
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.runs.data_form import DataForm
from fedweave.models.edge_settings import add_ports, fit_to_edges, has_ports
from fedweave.partition.forgetting import names_among, names_of, read_ids, without_ids
from fedweave.sites.flare.accounts import Accounts, Exclusion
from fedweave.sites.flare.data_marks import data_digest, files_digest, key_mark, mark, site_key
from fedweave.sites.flare.site_data import _as_written, common_test, form_at, kinds_of, site_graph, training_graph
from fedweave.sites.flare.sitefile import SiteData


class LabelVersion(NamedTuple):
    """The present version of a site's labels: a fingerprint of all of them, sorted by its examples' ids, and a mark
    int64 [m] of each of a run's examples and its label (`core.federation.LabelNoise`)."""

    fingerprint: bytes
    marks: np.ndarray

    @classmethod
    def of(cls, data: Dataset, rows: np.ndarray) -> "LabelVersion":
        """The version of the labels of `data`, all that the site has. rows: int64 [m], the examples of a run. If
        examples have ids, their order in the file does not matter, and a mark depends on no other example. If not,
        other examples may have the same numbers in other data, and marks depend on all labels."""
        ids = list(data.ids)
        order = np.argsort(np.array(ids, object), kind="stable") if ids else np.arange(data.examples)
        content = [[ids[row] for row in order] if ids else [], data.y[order].tolist(), data.classes]
        digest = hashlib.blake2b(json.dumps(content).encode()).digest()
        names = [f"id {ids[row]}" if ids else f"{row} of {digest.hex()}" for row in rows]
        return cls(digest, _label_marks(names, data.y[rows].tolist(), data.classes))

    @classmethod
    def of_rows(cls, y: np.ndarray, classes: int) -> "LabelVersion":
        """The version of labels y int64 [n] of a run's examples, which have changed since they were loaded."""
        digest = hashlib.blake2b(y.tobytes()).digest()
        names = [f"{row} of {digest.hex()}" for row in range(len(y))]
        return cls(digest, _label_marks(names, y.tolist(), classes))


def _label_marks(names: Sequence[str], labels: Sequence[object], classes: int) -> np.ndarray:
    marks = bytearray()
    for name, label in zip(names, labels, strict=True):
        marks += hashlib.blake2b(json.dumps([name, label, classes]).encode(), digest_size=8).digest()
    return np.frombuffer(bytes(marks), np.int64)


@dataclass(frozen=True)
class Holdings:
    """A site's graph and the global test graph for models, and the site's data.

    kinds: names of node labels, edge labels and categories (`kinds_of`). version: the version of its labels, if noise
    may be drawn on them. whole: the data with features not scaled, if an exchange will add columns
    (`exchange.Exchange`). form: of the training data; None of a party's.
    tables: the data before the site scales any of it. unaligned: number of a party's nodes that not all parties have,
    and that the graph leaves out. forgotten: what `site.toml` lists to leave out, of what the data has. pairs: the
    file of pairs of nodes to predict, for links.
    """

    graph: Graph
    test: Graph | None
    data: Dataset
    kinds: tuple[str, ...] = ()
    version: LabelVersion | None = None
    whole: Dataset | None = None
    form: DataForm | None = None
    tables: Dataset | None = None
    unaligned: int = 0
    pairs: Path | None = None
    forgotten: "Forgotten | None" = None


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
        """What `site.toml` lists to leave out; None without a list."""
        if site.forget is None:
            return None
        whole = training_graph(replace(site, forget=None), folder)
        names = np.array(names_of(whole))
        listed, absent = names_among(names.tolist(), read_ids(folder / site.forget, "data.forget"))
        trained = np.asarray(whole.public)[TRAIN] & whole.has_label
        ids, training = names[listed].tolist(), names[listed & trained].tolist()
        version = LabelVersion.of(whole, np.flatnonzero(~listed))
        return cls(tuple(ids), tuple(training), absent, not whole.ids, version)

    def marks(self, ids: Sequence[str], folder: Path, data: str, size: int = 8) -> frozenset[str]:
        """Hashes of ids, keyed by the site in `folder`, so that its journal does not tell them. Numbers of rows are of
        these rows alone: the same number names another row once rows are removed.

        data: see `accounts.Exclusion`. size: in bytes.
        """
        key, purpose = site_key(folder), b"forget" + (data.encode() if self.numbers else b"")
        return frozenset(mark(key, purpose, name, size) for name in ids)


def exclusion_of(site: SiteData, folder: Path, forgotten: Forgotten | None, accounts: Accounts) -> Exclusion:
    """What a run on the data that `site.toml` names leaves out. accounts: the site's, with the data of earlier runs."""
    whole = _as_written(replace(site, forget=None), folder)
    data, digests = identify(whole, folder / site.path, accounts)
    if forgotten is None:
        return Exclusion(data, data, digests=digests)
    marks = forgotten.marks(forgotten.ids, folder, data), forgotten.marks(forgotten.training, folder, data)
    return Exclusion(data, data_digest(without_ids(whole, forgotten.ids)), *marks, digests, key_mark(folder))


def identify(whole: Dataset, path: Path, accounts: Accounts) -> tuple[str, frozenset[str]]:
    """The digest under which the site's runs note data, and those by which a later run recognizes it. whole: the data
    at `path`, features not scaled."""
    digest = data_digest(whole)
    digests = frozenset((digest, files_digest(path)))
    return accounts.first_digest(digest, digests), digests


def hold(site: SiteData, folder: Path, config: Config, training_form: DataForm | None = None) -> Holdings:
    """Read the data that `site.toml` names.

    training_form: the form of the data on which a finished run was trained, if its models predict. Features are then
    scaled by the numbers of that data.
    """
    dtype, model = DTYPES[config.engine.values["dtype"]], config.model.make()
    links = None if config.links is None else replace(config.links, seed=config.general.seed)
    data, unscaled, tables = site_graph(site, folder, training_form, links)
    if config.learned:
        data, unscaled, tables = (with_node_columns(one) for one in (data, unscaled, tables))
    form, whole = training_form or form_at(site, unscaled), unscaled if site.external == EXCHANGE else None
    data = add_ports(data, fit_to_edges(model, data.edge_attrs))
    test = common_test(site, folder, data.features, dtype, has_ports(model))
    pairs = None if site.pairs is None else folder / site.pairs
    graph, forgotten = graph_of(data, data.features, dtype), Forgotten.of(site, folder)
    version = LabelVersion.of(data, np.arange(data.examples)) if forgotten is None else forgotten.version
    kinds = kinds_of(site)
    return Holdings(graph, test, data, kinds, version, whole, form, tables, pairs=pairs, forgotten=forgotten)


def marks(data: Dataset, scaling: str) -> Record:
    """Fingerprints of the data that must not change. For prediction: features, classes and how they are scaled. For a
    run that resumes: all of the data."""
    edge_columns = () if data.edge_attrs is None else data.edge_attrs.columns
    return {
        "features": list(data.columns) or data.features,
        "features of edges": list(edge_columns) or data.edge_features,
        "classes": list(data.labels or data.targets) or data.outputs,
        "scaling": scaling,
        "data": content(data),
    }


def check_as_before(path: Path, run: str, marks: Record) -> None:
    """Compare the `marks` of a site's data with the marks in the file `path`, written when the `run` began."""
    try:
        before = json.loads(path.read_bytes())
        if not isinstance(before, dict):
            raise TypeError("it holds no table")
    except (ValueError, TypeError, RecursionError) as error:
        raise FedweaveError(f"{path} is damaged ({error}). Restore it, or start a new run.") from error
    for what, value in marks.items():
        if what not in before or value == before[what]:
            continue
        was = before[what]
        remedy = {
            "data": "Restore the data that the run began with, or start a new run.",
            "features": f"Give the columns {was}, in this order.",
            "features of edges": f"Give edges the features {was}, in this order.",
            "classes": f"Write {'labels' if isinstance(was, list) else 'classes'} = {was} into site.toml.",
            "scaling": f"Write normalize = {was!r} into site.toml.",
            "scaled over nodes": "Scale the features yourself and train with normalize = 'none' in site.toml.",
        }
        raise FedweaveError(f"{what}: not as in the run {run}. {remedy[what]}")
