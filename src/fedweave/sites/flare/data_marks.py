"""What identifies a site's data and its examples over all runs: digests of its numbers and edges, and keyed hashes.

Earlier runs count where a run is on the same data. So no setting by which a run reads the data, and no other way to
write the same tables, may change what identifies it.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.datasets.base import Dataset
from fedweave.sites.flare.folder import private_folder, replace_private
from fedweave.sites.flare.sitefile import read_secret

KEY = "marks.key"  # beside the journals, whose loss is noticed


def site_key(folder: Path) -> bytes:
    """The key of a site's marks and of what it draws once for good. A site draws the key once; another
    `privacy.secret` does not change it."""
    path = private_folder(folder / "ledgers") / KEY
    if not path.exists():
        new = path.with_name(f"{KEY}.{os.getpid()}")
        replace_private(new, os.urandom(32).hex().encode())
        with suppress(FileExistsError):  # another job of the site was first
            os.link(new, path)
        new.unlink()
    return read_secret(path)


def key_mark(folder: Path) -> str:
    """A hash of the site's key, by which journals show whether it is the key of earlier marks."""
    return mark(site_key(folder), b"key", "")


def mark(key: bytes, purpose: bytes, name: str, size: int = 8) -> str:
    """A keyed hash of what an example is called, `size` bytes as hexadecimal digits."""
    return hashlib.blake2b(purpose + name.encode(), key=key, digest_size=size).hexdigest()


def files_digest(path: Path) -> str:
    """SHA-256 of a data file, or of all files in a folder of tables: the same under every setting in `site.toml`."""
    hasher = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file()):
        with open(file, "rb") as opened:
            hasher.update(hashlib.file_digest(opened, "sha256").digest())
    return hasher.hexdigest()


def data_digest(data: Dataset) -> str:
    """SHA-256 of the numbers and the edges of data with features not scaled.

    Names of columns and classes, labels and splits do not count: a site edits these, and its rows stay the same.
    Neither does the order of rows with ids, of columns and of edges.
    """
    names = data.node_names if data.graph_of is None else ()  # ids of small graphs name no nodes
    order = sorted(range(data.nodes), key=names.__getitem__) if names else range(data.nodes)
    place = np.empty(data.nodes, np.int64)  # of each row in that order
    place[order] = np.arange(data.nodes)
    hasher = hashlib.sha256(repr((data.nodes, [names[row] for row in order] if names else [])).encode())
    hasher.update(b"".join(sorted(_columns(data.x, place))))
    edges = EdgeAttributes(data.edges, directed=True) if data.edge_attrs is None else data.edge_attrs
    hasher.update(_edges(edges, place))
    if data.outside is not None:
        elsewhere = np.argsort(np.array(data.outside.names, str), kind="stable")
        hasher.update(repr([data.outside.names[at] for at in elsewhere]).encode())
        hasher.update(_edges(data.outside.edge_attrs, np.concatenate([place, data.nodes + np.argsort(elsewhere)])))
    if data.graph_of is not None:
        hasher.update(_digest(data.graph_of))
    return hasher.hexdigest()


def _digest(*arrays: np.ndarray) -> bytes:
    hasher = hashlib.sha256()
    for array in arrays:
        hasher.update(repr((array.shape, array.dtype.str)).encode())
        hasher.update(np.ascontiguousarray(array).tobytes())
    return hasher.digest()


def _columns(x: "np.ndarray | sp.csr_matrix", place: np.ndarray) -> Iterator[bytes]:
    """A digest of each column of x [n, d] that has a number, alike for dense and sparse matrices. place: int64 [n], the
    new numbers of the rows."""
    sparse = None if isinstance(x, np.ndarray) else x.tocsc()
    for at in range(x.shape[1]):
        if sparse is None:
            rows = np.flatnonzero(x[:, at])
            values = x[rows, at]
        else:
            here = slice(sparse.indptr[at], sparse.indptr[at + 1])
            rows, values = sparse.indices[here], sparse.data[here]
            rows, values = rows[values != 0], values[values != 0]
        if len(rows):
            order = np.argsort(place[rows])
            yield _digest(place[rows][order], values[order].astype(np.float32))


def _edges(edges: EdgeAttributes, place: np.ndarray) -> bytes:
    """A digest of the edges' ends, as new numbers of nodes, and of what each edge carries, in an order of their own."""
    ends = place[edges.ends]
    if not edges.directed:
        ends = np.sort(ends, axis=0)
    features = np.zeros((0, edges.total), np.float32) if edges.features is None else np.asarray(edges.features).T
    values = [one for one in (edges.weight, edges.time) if one is not None]
    order = np.lexsort((*features, *values, *ends[::-1]))
    return _digest(ends[:, order], *(row[order] for row in (*values, *features)))
