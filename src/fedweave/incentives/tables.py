"""Which motifs each client's training graphs have, as its steps see it."""

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from fedweave.core import random
from fedweave.core.edge_list import EdgeList, MotifTable, derived
from fedweave.core.graph import TRAIN
from fedweave.core.operators import mean
from fedweave.core.sizes import agreed
from fedweave.datasets.base import Dataset
from fedweave.datasets.lookup import cache
from fedweave.errors import ConfigError, DataError
from fedweave.incentives.motifs import Motif, Motifs, extract, from_rows, to_rows
from fedweave.incentives.vocabulary import Vocabulary, vocabulary

MOTIF_MEAN = "motif_mean"
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


LIST = "motifs"  # what the list of a client's motifs is called where its length is agreed on


def found(data: Dataset, known: Vocabulary, folder: Path | None = None) -> Motifs:
    """The motifs of all small graphs of `data`, read from `folder`, by default the cache, where they have been looked
    for before.

    Raises:
        ConfigError: the examples are nodes.
        DataError: the cache cannot be used.
    """
    if data.graph_of is None:
        raise ConfigError(
            f"motifs are looked for in small graphs, but the examples of {data.name} are {data.example}s; choose data "
            "such as 'proteins', or a part without motifs.",
            code="config.small-graphs",
        )
    return cached(data.edges, data.graph_of, data.node_labels, data.edge_labels, known.max_ring, folder)


def table(motifs: Motifs, graphs: np.ndarray, train: np.ndarray, known: Vocabulary) -> MotifTable:
    """What one client keeps of `motifs`, counted over its training graphs alone.

    graphs: int64 [e], the rows of its examples in `motifs.counts`. train: bool [e].
    """
    counts = sp.csr_array(motifs.counts[graphs[train]])
    kept = vocabulary(counts, known.keep)
    having = sp.coo_array(counts[:, kept].T > 0)
    rows, columns = having.coords
    spread = (np.ones(len(rows), np.float32), (rows, np.flatnonzero(train)[columns]))
    keys = [motifs.keys[k] for k in kept]
    which = sp.csr_matrix(spread, shape=(len(kept), len(graphs)))
    return MotifTable(numbers(keys), which, tuple(map(str, keys)))


@derived(MOTIF_MEAN)
def motif_mean(edges: EdgeList) -> sp.csr_matrix:
    """[K, e]: the mean over the examples that have each motif, 0 where none does."""
    return mean(edges.known_motifs.having)


def numbers(keys: Sequence[Motif]) -> np.ndarray:
    """int64 [k]: what stands for each motif, the same at every client that has it, whoever found it."""
    return np.array([random.word(str(key)) for key in keys], np.int64)


def tables(
    data: Dataset, shares: Sequence[Dataset], graphs: Sequence[np.ndarray], known: Vocabulary, rewired: bool
) -> list[MotifTable]:
    """Each client's table, padded to the same number of rows (see `needed`).

    shares: what each client holds, its split as `public`. graphs: its examples' numbers in `data`. rewired: whether
    clients' edges are their own, so that motifs are to be looked for at each of them.
    """
    whole = None if rewired else found(data, known)
    made = []
    for own, numbered in zip(shares, graphs, strict=True):
        at = numbered if whole else np.arange(own.examples)
        made.append(table(whole or found(own, known), at, np.asarray(own.public)[TRAIN], known))
    sizes = agreed(map(needed, made))
    return [padded(one, sizes[LIST]) for one in made]


def own_table(data: Dataset, known: Vocabulary, folder: Path) -> MotifTable:
    """The table of a client that is alone with its `data`, whose split is in `public`, not padded; what was found is
    kept in `folder`. It has the rows that `tables` gives it among others."""
    return table(found(data, known, folder), np.arange(data.examples), np.asarray(data.public)[TRAIN], known)


def needed(given: MotifTable | None) -> dict[str, int]:
    """The sizes that a client with this table takes part in agreeing on (`core.sizes.agreed`)."""
    return {} if given is None else {LIST: len(given.numbers)}


def padded(given: MotifTable, rows: int) -> MotifTable:
    """The table with rows of no motif behind its own."""
    more = rows - len(given.numbers)
    having = sp.vstack([given.having, sp.csr_matrix((more, given.having.shape[1]), dtype=np.float32)], "csr")
    return MotifTable(np.pad(given.numbers, (0, more), constant_values=-1), having, given.names)
