"""Motifs of graphs that were searched before, in files."""

import hashlib
import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from fedweave.algorithms.fairgraphfl.motifs import Motifs, extract, from_rows, to_rows
from fedweave.datasets.lookup import cache
from fedweave.errors import DataError

VERSION = "fedweave motifs 1"  # to be raised when `extract` finds other motifs, or the file changes


def cached(
    edges: np.ndarray,
    graph_of: np.ndarray,
    labels: np.ndarray | None = None,
    edge_labels: np.ndarray | None = None,
    max_ring: int = 7,
    folder: Path | None = None,
) -> Motifs:
    """`motifs.extract` of these arguments, read from `folder` where they have been extracted before, else put there.

    folder: None is `motifs` in the folder of downloads (`datasets.lookup.cache`).

    Raises:
        DataError: the file of these graphs is damaged, or the folder cannot be used; what `extract` raises.
    """
    folder = cache() / "motifs" if folder is None else folder
    path = folder / f"{content_hash(edges, graph_of, labels, edge_labels, max_ring)}.npz"
    try:
        if path.exists():
            return read(path)
        motifs = extract(edges, graph_of, labels, edge_labels, max_ring)
        write(motifs, path)
    except OSError as error:
        raise DataError(
            f"motifs cannot be kept in {folder} ({error.strerror or error}); choose a folder that can be written, for "
            "instance with $FEDWEAVE_CACHE.",
            code="data.unwritable",
        ) from error
    return motifs


def content_hash(
    edges: np.ndarray,
    graph_of: np.ndarray,
    labels: np.ndarray | None,
    edge_labels: np.ndarray | None,
    max_ring: int,
) -> str:
    """SHA-256 in hexadecimal of all that the motifs depend on."""
    out = hashlib.sha256(f"{VERSION}, rings up to {max_ring}".encode())
    for array in (edges, graph_of, labels, edge_labels):
        out.update(b"none" if array is None else f"{array.shape}".encode())
        if array is not None:
            out.update(np.asarray(array, "<i8").tobytes())
    return out.hexdigest()


def write(motifs: Motifs, path: Path) -> None:
    """Put motifs into the file `path`, as a whole or not at all."""
    counts = motifs.counts
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        done = Path(scratch, "done.npz")
        np.savez_compressed(
            done,
            keys=to_rows(motifs.keys),
            count=counts.data,
            motif=counts.indices,
            start=counts.indptr,
        )
        os.replace(done, path)


def read(path: Path) -> Motifs:
    """The motifs in a file that `write` wrote.

    Raises:
        DataError: it is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            keys = from_rows(file["keys"])
            parts = (file["count"], file["motif"], file["start"])
        counts = sp.csr_array(parts, shape=(len(parts[2]) - 1, len(keys)))
        counts.check_format()
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is damaged ({error}); delete it, and it will be made again.", code="data.damaged"
        ) from error
    return Motifs(keys, counts)
