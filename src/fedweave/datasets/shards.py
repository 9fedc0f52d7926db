"""A folder of shards: a data set that `fedweave shard` has cut, in NumPy files that are opened by memory-mapping.

`shards.json` has the format's version, the names and counts, the settings by which the data is scaled, what a run
states of its data (`experiment.facts`), and the SHA-256 of every file. `clients/0`, `clients/1`, … have a client's
nodes with their global numbers, its examples, and the edges among its nodes in CSR form; `server` has nodes, examples
and edges that no client holds. Numbers are as in the tables, before any scaling, so that a run makes its columns by the
functions that read every other form of data.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedweave.core.edge_attributes import ROWS, EdgeAttributes
from fedweave.core.graph_arrays import Matrix
from fedweave.core.types import SHARDS, Record
from fedweave.datasets.base import ColumnRange, Dataset, distinct, edges_of_codes
from fedweave.datasets.check import check, refuse
from fedweave.datasets.edges import scale_features
from fedweave.datasets.features import scale_by_holders
from fedweave.datasets.lookup import in_shared
from fedweave.datasets.settings import InputSettings, Normalize
from fedweave.datasets.structure import with_places
from fedweave.errors import ConfigError

FORMAT, VERSION, MANIFEST = "fedweave shards", 2, "shards.json"
SERVER, CLIENTS = "server", "clients"  # folders
OF_NODES = (
    "graph_of",
    "node_labels",
    "node_time",
    "node_ids",
)  # fields of `Dataset` with a row for each node, beside x
OF_EXAMPLES = ("y", "sensitive", "scaffold", "ids", "smiles")  # and for each example, beside public and owner
NAMES = ("columns", "labels", "targets", "owners", "groups", "node_kinds", "edge_kinds", "notes")
TEXTS = ("ids", "smiles", "node_ids")
SCALARS = ("name", "classes", "target_scaling", "scaling")
OF_ATTRIBUTES = ("directed", "examples", "ports", "dates", "auto")  # scalar fields of `EdgeAttributes`
UNSUPPORTED = ("parties", "outside", "links", "structure")
ATTRIBUTE = "attribute_"  # prefix of arrays with a row for each edge with attributes
_REMEDY = "Write the folder again with `fedweave shard`."
_SEAL = "sha256"  # entry of the manifest
Arrays = Mapping[str, np.ndarray]


class Holding(NamedTuple):
    """What one holder stores: arrays by name, and for each of its nodes and examples the place in the data set that is
    put together."""

    arrays: Arrays
    nodes: np.ndarray
    examples: np.ndarray


def narrow(numbers: np.ndarray) -> np.ndarray:
    """Whole numbers as int32 where they fit."""
    fits = not numbers.size or numbers.max() <= np.iinfo(np.int32).max
    return numbers.astype(np.int32) if fits else numbers


def facts_of(data: Dataset) -> Record:
    """What is not of a single node, example or edge, as JSON."""
    facts: Record = {name: getattr(data, name) for name in SCALARS}
    facts |= {name: list(getattr(data, name)) for name in NAMES}
    facts |= {"nodes": data.nodes, "examples": data.examples, "features": data.features, "example": data.example}
    facts["edges"] = data.edges.shape[1] // 2
    facts["largest_group"] = -1 if data.sensitive is None else int(data.sensitive.max(initial=-1))
    facts["target_scale"] = None if data.target_scale is None else data.target_scale.tolist()
    facts["graph_columns"] = None if data.graph_columns is None else list(data.graph_columns)
    attributes = data.edge_attrs
    if attributes is not None:
        facts["attributes"] = {name: getattr(attributes, name) for name in OF_ATTRIBUTES}
        facts["attributes"] |= {"columns": list(attributes.columns), "owners": list(attributes.owners)}
        facts["attributes"] |= {"scaling": attributes.scaling, "split_times": attributes.split_times}
    return facts


def arrays_of(data: Dataset, nodes: np.ndarray, examples: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of a holder of these nodes and examples (int64, sorted global numbers), without its edges."""
    x = data.x[nodes]
    arrays = {"nodes": nodes}
    if data.example != "node":
        arrays["examples"] = examples
    if isinstance(x, np.ndarray):
        arrays["x"] = x
    else:
        arrays |= {"x_values": x.data, "x_columns": narrow(x.indices), "x_starts": narrow(x.indptr)}
    rows = dict.fromkeys(OF_NODES, nodes) | dict.fromkeys(OF_EXAMPLES, examples)
    rows["owner"] = nodes if data.example == "edge" else examples
    for name, numbers in rows.items():
        values = getattr(data, name)
        if name in TEXTS:
            values = np.array([values[at] for at in numbers], str) if values else None
        elif values is not None:
            values = values[numbers]
        if values is not None:
            arrays[name] = values
    if data.public is not None:
        arrays["public"] = data.public[:, examples]
    return arrays


def attribute_arrays(attributes: EdgeAttributes, rows: np.ndarray, ends: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of the edges with attributes at `rows` int64 [m], whose ends are the numbers int64 [2, m]."""
    arrays = {f"{ATTRIBUTE}rows": rows, f"{ATTRIBUTE}ends": narrow(ends)}
    for name in ROWS:
        values = getattr(attributes, name)
        if values is not None:
            arrays[ATTRIBUTE + name] = values[rows]
    return arrays


def to_csr(edges: np.ndarray, nodes: int) -> dict[str, np.ndarray]:
    """The arrays of edges int64 [2, E], sorted, among this number of nodes."""
    starts = np.concatenate([[0], np.cumsum(np.bincount(edges[0], minlength=nodes))])
    return {"edges_starts": narrow(starts), "edges_targets": narrow(edges[1])}


def of_csr(arrays: Arrays) -> np.ndarray:
    """The inverse of `to_csr`."""
    starts, targets = arrays["edges_starts"], arrays["edges_targets"]
    return np.stack([np.repeat(np.arange(len(starts) - 1), np.diff(starts)), targets.astype(np.int64)])


def write_arrays(folder: Path, arrays: Arrays) -> dict[str, str]:
    """Write each array to a file of its name; returns {name: SHA-256 of the file}."""
    folder.mkdir(parents=True)
    digests = dict[str, str]()
    for name, array in arrays.items():
        path = folder / f"{name}.npy"
        with path.open("wb") as file:
            np.save(file, np.ascontiguousarray(array), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        digests[name] = _file_digest(path)
    return digests


def _seal(manifest: Record) -> str:
    """SHA-256 of the content of `shards.json`."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    """The file's SHA-256; a process reads a file once, and again if it has changed by the clock or in size."""
    state = path.stat()
    return _digest(path, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


@cache
def _digest(path: Path, *state: int) -> str:
    """The SHA-256 of the file in this state, read in pieces that do not stay in this process's memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class ShardFolder:
    """A folder of shards whose manifest has been read.

    path: the folder. manifest: the content of `shards.json`, without its digest.
    """

    path: Path
    manifest: Record

    @classmethod
    def open(cls, path: Path) -> "ShardFolder":
        """The folder at `path`; no shard is opened.

        Raises:
            DataError: it is not a folder of shards, of another version, or damaged.
        """
        file = path / MANIFEST
        if not file.is_file():
            refuse(path, f"it has no {MANIFEST}", "Name a folder that `fedweave shard` wrote.", "shards")
        try:
            manifest: Record = json.loads(file.read_text(encoding="utf-8"))
            known, version = manifest["format"] == FORMAT, manifest["version"]
        except (ValueError, KeyError, TypeError) as error:
            refuse(file, f"it is damaged ({error})", _REMEDY, "shards-damaged")
        if not known:
            refuse(
                file, f"its format is {manifest['format']!r}", "Name a folder that `fedweave shard` wrote.", "shards"
            )
        if version != VERSION:
            refuse(
                file,
                f"it has version {version} of the format, and this fedweave reads {VERSION}",
                _REMEDY,
                "shards-version",
            )
        if manifest.pop(_SEAL, None) != _seal(manifest):
            refuse(file, "it is not what was written", _REMEDY, "shards-damaged")
        return cls(path, manifest)

    def write_manifest(self) -> None:
        """Write `shards.json`, with a digest of itself."""
        with (self.path / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump({**self.manifest, _SEAL: _seal(self.manifest)}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' names, in order."""
        return tuple(entry["name"] for entry in self.manifest["clients"])

    def client(self, at: int) -> Arrays:
        """The arrays of the client with this place, mapped into memory.

        Raises:
            DataError: a file is absent or damaged.
        """
        return self._open(self.path / CLIENTS / str(at), self.manifest["clients"][at]["files"])

    def server(self, names: Collection[str] | None = None) -> Arrays:
        """The arrays of what no client holds, likewise: those with these names, or all."""
        digests = self.manifest["server"]
        files = digests if names is None else {name: digests[name] for name in names}
        return self._open(self.path / SERVER, files)

    def form(self) -> Arrays:
        """The arrays of a holder of nothing, of which no file is opened."""
        return {name: np.zeros(shape, kind) for name, (kind, shape) in self.manifest["form"].items()}

    def _open(self, folder: Path, digests: Mapping[str, str]) -> Arrays:
        arrays = dict[str, np.ndarray]()
        for name, digest in digests.items():
            file = folder / f"{name}.npy"
            if not name.replace("_", "").isalnum() or not file.is_file():
                refuse(file, "the file is missing", _REMEDY, "shards-damaged")
            if _file_digest(file) != digest:
                refuse(file, "the file is not what was written", _REMEDY, "shards-damaged")
            arrays[name] = np.load(file, mmap_mode="r", allow_pickle=False)
        return arrays

    def read(self, clients: Sequence[int] | None = None) -> tuple[Dataset, np.ndarray, np.ndarray]:
        """The data as it was before scaling, with the global numbers of its nodes and examples.

        clients: places of clients, of whom the nodes, examples and edges come, renumbered from 0 in their order; []
        gives data of this form without nodes, and None all, with what no client holds, as the source has it.

        Raises:
            DataError: the folder is damaged.
        """
        whole = clients is None
        shards = [self.client(at) for at in (range(len(self.names)) if clients is None else clients)]
        server = self.server() if whole else {}
        held = [*shards, server] if whole else shards or [self.form()]
        facts = self.manifest["data"]
        try:
            nodes = _all_numbers(held, "nodes", facts["nodes"] if whole else None)
            by_node = facts["example"] == "node"
            examples = nodes if by_node else _all_numbers(held, "examples", facts["examples"] if whole else None)
            holdings = list[Holding]()
            for arrays in held:
                places = np.searchsorted(nodes, arrays["nodes"])
                of_examples = places if by_node else np.searchsorted(examples, arrays["examples"])
                holdings.append(Holding(arrays, places, of_examples))
            return _assemble(facts, holdings, server, len(nodes), len(examples)), nodes, examples
        except (KeyError, IndexError, ValueError, TypeError) as error:
            refuse(
                self.path, f"its files do not go together ({type(error).__name__}: {error})", _REMEDY, "shards-damaged"
            )


def _release(array: np.ndarray | None) -> None:
    """Give back the memory of the pages of a mapped file that have been read."""
    mapping = getattr(array, "base", None)
    if isinstance(mapping, mmap.mmap) and hasattr(mapping, "madvise"):
        mapping.madvise(mmap.MADV_DONTNEED)


def _all_numbers(held: Sequence[Arrays], key: str, total: int | None) -> np.ndarray:
    """The numbers that any holder has, sorted; of `total` it must be all."""
    numbers = distinct(np.concatenate([arrays[key] for arrays in held]), owned=True)
    if total is not None and (len(numbers) != total or (total and (numbers[0], numbers[-1]) != (0, total - 1))):
        raise ValueError(f"{len(numbers)} of {total} {key}")
    return numbers


def _assemble(facts: Record, holdings: Sequence[Holding], server: Arrays, nodes: int, examples: int) -> Dataset:
    """The data set of all holdings together."""
    fields: Record = {name: facts[name] for name in SCALARS} | {name: tuple(facts[name]) for name in NAMES}

    def scatter(name: str, places: Callable[[Holding], np.ndarray], total: int, axis: int = 0) -> np.ndarray | None:
        """The holders' arrays of this name as one; None where they have none."""
        parts = [(places(holding), holding.arrays[name]) for holding in holdings if name in holding.arrays]
        if not parts:
            return None
        shape = list(parts[0][1].shape)
        shape[axis] = total
        result = np.zeros(shape, np.result_type(*(values for _, values in parts)))
        for at, values in parts:
            result[(slice(None),) * axis + (at,)] = values
            _release(values)
        return result

    # 1. Edges, whose lists are the peak of memory.
    count = 0
    for arrays, _, _ in holdings:
        count += 2 * arrays["crossing"].shape[1] if arrays is server else len(arrays["edges_targets"])
    edges, begin = np.empty((2, count), np.int64), 0
    each, labels = list[np.ndarray](), list[np.ndarray]()
    for arrays, places, _ in holdings:
        if arrays is server:  # whose numbers are global, and each edge is there once
            crossing = arrays["crossing"].astype(np.int64)
            ends, label = np.concatenate([crossing, crossing[::-1]], 1), arrays.get("crossing_labels")
            label = None if label is None else np.tile(label, 2)
        else:
            ends, label = places[of_csr(arrays)], arrays.get("edge_labels")
        codes = ends[0] * nodes + ends[1]
        edges[1, begin : begin + len(codes)] = codes
        begin += len(codes)
        if label is not None:
            each.append(codes)
            labels.append(label)
        for name in ("edges_targets", "crossing"):
            _release(arrays.get(name))
    fields["edges"] = edges_of_codes(edges, nodes)
    del edges
    if labels:
        codes, first = np.unique(np.concatenate(each), return_index=True)
        at = np.searchsorted(codes, fields["edges"][0] * nodes + fields["edges"][1])
        fields["edge_labels"] = np.asarray(np.concatenate(labels)[first[at]])
    of_nodes, of_examples = (lambda holding: holding.nodes), (lambda holding: holding.examples)
    # 2. Nodes and examples.
    for name in OF_NODES:
        fields[name] = scatter(name, of_nodes, nodes)
    for name in OF_EXAMPLES:
        fields[name] = scatter(name, of_examples, examples)
    by_edge = facts["example"] == "edge"
    fields["owner"] = scatter("owner", of_nodes if by_edge else of_examples, nodes if by_edge else examples)
    fields["public"] = scatter("public", of_examples, examples, axis=1)
    for name in TEXTS:
        fields[name] = () if fields[name] is None else tuple(fields[name].tolist())
    if fields["graph_of"] is not None and examples != facts["examples"]:  # of some graphs, numbered from 0
        fields["graph_of"] = np.unique(fields["graph_of"], return_inverse=True)[1]
    fields["x"] = _features(holdings, scatter, nodes, facts["features"])
    # 3. What edges have.
    if "attributes" in facts:
        fields["edge_attrs"] = _attributes(facts["attributes"], holdings, server)
    scale, graph_columns = facts["target_scale"], facts["graph_columns"]
    fields["target_scale"] = None if scale is None else np.array(scale)
    fields["graph_columns"] = None if graph_columns is None else ColumnRange(*graph_columns)
    return Dataset(**fields)


def _features(holdings: Sequence[Holding], scatter: Any, nodes: int, features: int) -> Matrix:
    dense: np.ndarray | None = scatter("x", lambda holding: holding.nodes, nodes)
    if dense is not None:
        return dense
    blocks = list[sp.csr_matrix]()
    for arrays, places, _ in holdings:
        parts = arrays["x_values"], arrays["x_columns"], arrays["x_starts"]
        blocks.append(sp.csr_matrix(parts, shape=(len(places), features)))
    rows = np.unique(np.concatenate([places for _, places, _ in holdings]), return_index=True)[1]
    return sp.vstack(blocks, "csr")[rows]


def _attributes(facts: Record, holdings: Sequence[Holding], server: Arrays) -> EdgeAttributes:
    """The edges with attributes, in the source's order."""
    rows, ends = list[np.ndarray](), list[np.ndarray]()
    for arrays, places, _ in holdings:
        rows.append(arrays[f"{ATTRIBUTE}rows"])
        of_holder = arrays[f"{ATTRIBUTE}ends"]
        ends.append(of_holder.astype(np.int64) if arrays is server else places[of_holder])  # the server's are global
    first = np.unique(np.concatenate(rows), return_index=True)[1]
    values: Record = {name: facts[name] for name in OF_ATTRIBUTES}
    values["scaling"] = tuple(map(tuple, facts["scaling"]))
    values["split_times"] = split_times_of(facts)
    for name in ROWS:
        parts = [arrays[ATTRIBUTE + name] for arrays, _, _ in holdings if ATTRIBUTE + name in arrays]
        values[name] = np.concatenate(parts)[first] if parts else None
    return EdgeAttributes(
        np.ascontiguousarray(np.concatenate(ends, 1)[:, first]),
        columns=tuple(facts["columns"]),
        owners=tuple(facts["owners"]),
        **values,
    )


def split_times_of(record: Record) -> tuple[float, float] | None:
    """The last times of training and of validation, as JSON has them."""
    if record["split_times"] is None:
        return None
    first, second = record["split_times"]
    return float(first), float(second)


def recorded(path: str | None) -> Record:
    """What the manifest of the folder at `path` says of the data, which a configuration needs before it is loaded: the
    "settings" by which it is scaled, the kind of "example" and the number of "graph_columns"; {} where there is no such
    folder, which is refused when the data is loaded."""
    try:
        file = in_shared(Path(path or "").expanduser()) / MANIFEST
        manifest: Record = json.loads(file.read_text(encoding="utf-8"))
        data = manifest["data"]
        columns = data["graph_columns"] or (0, 0)
        return {"settings": dict(manifest["settings"]), "example": data["example"], "graph_columns": int(columns[1])}
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return {}


@dataclass(frozen=True)
class Shards(InputSettings):
    """Data that `fedweave shard` has cut and written to a folder ([data] path); its clients are the partition.

    normalize: how features are scaled: auto, none, row, binary, scale, standard or minmax (docs/data-columns.md).
               Settings that are left out are those of the data that the shards were cut from.
    """

    normalize: Normalize = "auto"
    partition: ClassVar[str] = SHARDS  # that [partition] has by default

    def load(self, root: Path | None, seed: int) -> Dataset:
        """The data of all clients, and what no client holds, as the source had it; `seed` is not used."""
        if root is None:
            raise ConfigError('The dataset "shards" needs a folder: set [data] path to it.', code="config.missing")
        data, _, _ = ShardFolder.open(root).read()
        return replace(self.scaled(check(data, root), root), shards=root)

    def scaled(self, data: Dataset, root: Path) -> Dataset:
        """Data as `ShardFolder.read` returns it, with the columns that models read."""
        attributes = None if data.edge_attrs is None else scale_features(data.edge_attrs, self.edge_normalize, root)
        data = scale_by_holders(replace(data, edge_attrs=attributes), self.normalize, data.name)
        return with_places(data, tuple(self.structure))
