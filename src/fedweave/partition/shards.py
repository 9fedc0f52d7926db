"""The clients of a folder of shards (`datasets.shards`): how a cut is written, and read again.

`partition.client_data.shares` makes a client's data from a whole data set; this module stores what it selects before
anything is scaled, so that one function makes columns of a table wherever a client's data comes from.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedweave.core.plugins import remember_maker
from fedweave.core.settings import Settings
from fedweave.core.types import SHARDS, Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.shards import (
    CLIENTS,
    FORMAT,
    SERVER,
    UNSUPPORTED,
    VERSION,
    Arrays,
    ShardFolder,
    Shards,
    arrays_of,
    attribute_arrays,
    facts_of,
    narrow,
    of_csr,
    split_times_of,
    to_csr,
    write_arrays,
)
from fedweave.errors import ConfigError
from fedweave.partition.base import Part, Partition, client_ids
from fedweave.partition.ego_networks import edges_among, numbered_edges_within

_CODE = "config.not-sharded"
_EVALUATION = "evaluation_part"  # of the server's arrays


def check_supported(data: Dataset, partition: Partition) -> None:
    """Refuse data or a cut that shards do not describe.

    Raises:
        ConfigError: names what it is.
    """
    for name in UNSUPPORTED:
        if getattr(data, name) is not None:
            what = {"outside": "edges to nodes elsewhere", "links": "links as examples"}.get(name, name)
            raise ConfigError(
                f"{data.name} has {what}, which shards do not describe. Run the experiment from its own data.",
                code=_CODE,
            )
    if any(part.columns is not None or not part.labels or not part.groups for part in partition.parts):
        raise ConfigError(
            "partition: clients hold columns of the same nodes, or no labels, which shards do not describe. Run the "
            "experiment from its own data.",
            code=_CODE,
        )


def shard_files(data: Dataset, partition: Partition, folder: Path) -> Record:
    """Write the shards of data that is not scaled into a new folder; returns the manifest's facts about them.

    Raises:
        ConfigError: see `check_supported`.
    """
    check_supported(data, partition)
    groups = [part.nodes for part in partition.parts]
    names = client_ids(len(groups), partition.names)
    attributes = data.edge_attrs
    in_groups = edges_among(data, groups)
    by_node = data.example == "node"
    covered = np.zeros(data.edges.shape[1], bool)  # edges that some client has
    codes = None  # of all edges, where a client has a list of its own
    degree = np.bincount(data.edges[0], minlength=data.nodes)
    covered_rows = np.zeros(0 if attributes is None else attributes.total, bool)
    clients = list[Record]()
    for at, (part, (edges, places)) in enumerate(
        zip(partition.parts, numbered_edges_within(data, groups), strict=True)
    ):
        # 1. Nodes, examples and how the client uses them.
        arrays = arrays_of(data, part.nodes, part.examples) | {"masks": part.masks}
        # 2. Edges: those among its nodes, or its own list.
        if part.edges is not None:
            codes = data.edges[0] * data.nodes + data.edges[1] if codes is None else codes
            edges = np.searchsorted(part.nodes, part.edges)
            places = np.searchsorted(codes, part.edges[0] * data.nodes + part.edges[1])
            places = places.clip(max=max(len(codes) - 1, 0))
            if edges.size and not np.array_equal(data.edges[:, places], part.edges):
                raise ConfigError(
                    f"partition: {names[at]} has edges that the data does not have, which shards do not describe. Run "
                    "the experiment from its own data.",
                    code=_CODE,
                )
        arrays |= to_csr(edges, len(part.nodes))
        covered[places] = True
        if data.edge_labels is not None:
            arrays["edge_labels"] = data.edge_labels[places]
        # 3. What edges have.
        if attributes is not None:
            rows = in_groups[at] if part.edges is None or part.edge_rows is None else part.edge_rows
            arrays |= attribute_arrays(attributes, rows, np.searchsorted(part.nodes, attributes.ends[:, rows]))
            covered_rows[rows] = True
        entry: Record = {"name": names[at], "nodes": len(part.nodes), "examples": len(part.examples)}
        crossing = int(degree[part.nodes].sum()) - edges.shape[1]  # edges to nodes that it does not have
        entry |= {"edges": edges.shape[1] // 2, "crossing": crossing}
        entry |= {"edge_list": part.edges is not None, "split_times": part.split_times}
        entry["files"] = write_arrays(folder / CLIENTS / str(at), arrays)
        clients.append(entry)
    # 4. What no client holds, and what the partition has beside its clients.
    nodes = _others(groups, data.nodes)
    server = arrays_of(
        data, nodes, nodes if by_node else _others([part.examples for part in partition.parts], data.examples)
    )
    rest = ~covered & (data.edges[0] < data.edges[1])
    server["crossing"] = narrow(data.edges[:, rest])
    if data.edge_labels is not None:
        server["crossing_labels"] = data.edge_labels[rest]
    if attributes is not None:
        rows = np.flatnonzero(~covered_rows)
        server |= attribute_arrays(attributes, rows, attributes.ends[:, rows])
    nothing = np.arange(0)
    form = arrays_of(data, nothing, nothing) | to_csr(np.zeros((2, 0), np.int64), 0)
    if data.edge_labels is not None:
        form["edge_labels"] = data.edge_labels[:0]
    if attributes is not None:
        form |= attribute_arrays(attributes, nothing, attributes.ends[:, :0])
    facts: Record = {"named": partition.names is not None, "pairs": list(partition.pairs), "held": list(partition.held)}
    if partition.test is not None:
        server["test"] = partition.test
    for index, matrix in enumerate(partition.pairs.values()):
        server[f"pairs_{index}"] = matrix
    server_parts = {f"held_{index}": part for index, part in enumerate(partition.held.values())}
    if partition.evaluation_part is not None:
        server_parts[_EVALUATION] = partition.evaluation_part
    for name, part in server_parts.items():
        server |= _part_arrays(name, part)
    return {
        "format": FORMAT,
        "version": VERSION,
        "data": facts_of(data),
        "form": {name: (array.dtype.str, array.shape) for name, array in form.items()},
        "partition": facts,
        "clients": clients,
        "server": write_arrays(folder / SERVER, server),
    }


def _others(groups: Sequence[np.ndarray], total: int) -> np.ndarray:
    """int64, sorted: the numbers below `total` that are in no group."""
    inside = np.zeros(total, bool)
    for numbers in groups:
        inside[numbers] = True
    return np.flatnonzero(~inside)


def _part_arrays(prefix: str, part: Part) -> dict[str, np.ndarray]:
    """A part of the server's, which is of all edges among its nodes."""
    if part.edges is not None or part.columns is not None:
        raise ConfigError("partition: the server's nodes have edges of their own. Run from the source.", code=_CODE)
    arrays = {f"{prefix}_nodes": part.nodes, f"{prefix}_masks": part.masks}
    for name in ("graphs", "edge_rows"):
        if getattr(part, name) is not None:
            arrays[f"{prefix}_{name}"] = getattr(part, name)
    return arrays


def _server_part(prefix: str, arrays: Arrays) -> Part:
    """The inverse of `_part_arrays`."""
    numbers: Record = {name: arrays.get(f"{prefix}_{name}") for name in ("graphs", "edge_rows")}
    return Part(arrays[f"{prefix}_nodes"], arrays[f"{prefix}_masks"], **numbers)


def client_part(folder: ShardFolder, at: int) -> Part:
    """The part of the client at this place, as its files have it.

    Raises:
        DataError: a file is absent or damaged.
    """
    arrays, entry = folder.client(at), folder.manifest["clients"][at]
    nodes, example = arrays["nodes"], folder.manifest["data"]["example"]
    return Part(
        nodes,
        arrays["masks"],
        edges=nodes[of_csr(arrays)] if entry["edge_list"] else None,
        graphs=arrays["examples"] if example == "graph" else None,
        edge_rows=arrays["examples"] if example == "edge" else None,
        split_times=split_times_of(entry),
    )


def is_local(path: Path) -> bool:
    """Whether each client's part of the folder at `path` stands on its own: there is no global test set, no further
    nodes of the server, no numbers to predict in a scale of all clients, and no third group of people.

    Raises:
        DataError: see `ShardFolder.open`.
    """
    manifest = ShardFolder.open(path).manifest
    facts, files = manifest["data"], manifest["server"]
    of_server = manifest["partition"]["held"] or "test" in files or f"{_EVALUATION}_nodes" in files
    in_one_scale = facts["target_scale"] is not None and facts["target_scaling"] != "none"
    return not of_server and not in_one_scale and bool(facts["largest_group"] <= 1)


def read_clients(path: Path, names: Collection[str], kind: Shards) -> tuple[Dataset, Partition]:
    """The data of these clients, from their shards only, and the partition into all clients. Of the others it knows
    how many nodes and examples they have, and facts about every two clients. Without names no shard is opened.

    Raises:
        DataError: the folder is damaged.
    """
    folder = ShardFolder.open(path)
    entries = folder.manifest["clients"]
    own_names = folder.names if folder.manifest["partition"]["named"] else None
    clients = client_ids(len(entries), own_names)
    places = [at for at, client in enumerate(clients) if client in names]
    data, nodes, examples = folder.read(places)
    parts = list[Part]()
    for at, entry in enumerate(entries):
        if at not in places:
            parts.append(_absent_part(entry, data.example))
            continue
        part = client_part(folder, at)
        numbers: Record = {"nodes": np.searchsorted(nodes, part.nodes)}
        for name, among in (("edges", nodes), ("graphs", examples), ("edge_rows", examples)):
            values = getattr(part, name)
            if values is not None:
                numbers[name] = np.searchsorted(among, values)
        parts.append(replace(part, **numbers))
    pairs = _pairs(folder)
    return replace(kind.scaled(data, path), shards=path), Partition(tuple(parts), names=own_names, pairs=pairs)


def _pairs(folder: ShardFolder) -> dict[str, np.ndarray]:
    """`Partition.pairs` of a folder of shards."""
    files = {name: f"pairs_{index}" for index, name in enumerate(folder.manifest["partition"]["pairs"])}
    arrays = folder.server(files.values())
    return {name: np.array(arrays[file]) for name, file in files.items()}


def _absent_part(entry: Record, example: str) -> Part:
    """A part of which only the numbers of nodes and examples are known; its arrays take no memory."""
    nodes = np.broadcast_to(np.int64(0), entry["nodes"])
    examples = np.broadcast_to(np.int64(0), entry["examples"])
    return Part(
        nodes,
        np.broadcast_to(np.False_, (3, entry["examples"])),
        graphs=examples if example == "graph" else None,
        edge_rows=examples if example == "edge" else None,
        split_times=split_times_of(entry),
    )


@dataclass(frozen=True)
class ShardClients(Settings):
    """The clients of [data] name = "shards", as `fedweave shard` has cut them, with their splits."""

    examples: ClassVar[tuple[str, ...]] = ("node", "graph", "edge")

    @remember_maker
    def cut(self, data: Dataset, seed: int) -> Partition:
        if data.shards is None or data.links is not None:
            raise ConfigError(
                f'partition.name = "{SHARDS}": {data.name!r} is not as shards have it. Set data.name = "{SHARDS}" '
                "without a task, or choose another partition.",
                code="config.shards",
            )
        folder = ShardFolder.open(data.shards)
        facts, arrays = folder.manifest["partition"], folder.server()
        return Partition(
            tuple(client_part(folder, at) for at in range(len(folder.names))),
            arrays.get("test"),
            names=folder.names if facts["named"] else None,
            evaluation_part=_server_part(_EVALUATION, arrays) if f"{_EVALUATION}_nodes" in arrays else None,
            held={role: _server_part(f"held_{index}", arrays) for index, role in enumerate(facts["held"])},
            pairs=_pairs(folder),
        )
