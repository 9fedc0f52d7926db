"""Which motifs of its small graphs an agent knows (FairGraphFL, appendix A.2), as its steps see it; the motifs of
graphs that were searched before are in files.
"""

import hashlib
import math
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from fedweave.algorithms.fairgraphfl.motifs import Motif, Motifs, extract, from_rows, to_rows
from fedweave.core import random
from fedweave.core.edge_list import EdgeList, derived
from fedweave.core.extra import Extra, asked
from fedweave.core.graph import TRAIN
from fedweave.core.operators import mean
from fedweave.datasets.base import Dataset
from fedweave.datasets.lookup import cache
from fedweave.errors import ConfigError, DataError, UserError
from fedweave.partition.base import Partition
from fedweave.partition.pooling import shares

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


MOTIFS, HAVING = "motifs", "motifs of graphs"  # int64 [K], the same for the same motif at every client; CSR [K, e]
MOTIF_MEAN = "motif_mean"
_SHOWN = 8  # motifs of each agent, for readers


@dataclass(frozen=True)
class Vocabulary:
    """Which motifs a client knows: bonds and rings, of which it keeps the most telling (FairGraphFL, appendix A.2).

    max_ring: vertices of the longest ring that is looked for.
    keep:     share of its motifs that a client keeps, those of highest TF-IDF.
    """

    max_ring: int = 7
    keep: float = 0.9

    def __post_init__(self) -> None:
        if not 3 <= self.max_ring <= 100:
            raise ValueError(f"max_ring is {self.max_ring}; a ring has at least 3 vertices, and at most 100 are sought")
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is {self.keep}; it is a share of motifs, above 0 and at most 1")

    def everywhere(self, data: Dataset, partition: Partition) -> list[Extra]:
        """The motifs of each client's training graphs, looked for in all graphs at once where clients have their edges.

        Raises:
            ConfigError: the examples are no small graphs. DataError: the cache cannot be used.
        """
        if any(part.edges is not None for part in partition.parts):
            return [self.alone(own) for own in shares(data, partition.parts)]
        whole = self.found(data)
        return [
            self.table(whole, part.examples, (part.masks & (data.y[part.examples] >= 0))[TRAIN])
            for part in partition.parts
        ]

    def alone(self, data: Dataset, folder: Path | None = None) -> Extra:
        """The motifs of a client's training graphs, looked for in these alone."""
        return self.table(self.found(data, folder), np.arange(data.examples), np.asarray(data.public)[TRAIN])

    def tables(self, found: Mapping[str, Extra]) -> dict[str, pa.Table]:
        """The motifs of each client that the most of its training graphs have: client, motif, graphs."""
        rows = []
        for client, own in found.items():
            names = own.words[MOTIFS]
            graphs = np.diff(own.matrices[HAVING].indptr)[: len(names)]
            rows += [(client, names[k], int(graphs[k])) for k in np.argsort(-graphs, kind="stable")[:_SHOWN]]
        columns = zip(*rows, strict=True) if rows else ((), (), ())
        return {MOTIFS: pa.table(dict(zip(("client", "motif", "graphs"), columns, strict=True)))}

    def found(self, data: Dataset, folder: Path | None = None) -> Motifs:
        """The motifs of all small graphs of `data`, read from `folder`, by default the cache, where they have been
        looked for before."""
        if data.graph_of is None:
            raise ConfigError(
                f"motifs are looked for in small graphs, but the examples of {data.name} are {data.example}s; choose "
                "data such as 'proteins', or a part without motifs.",
                code="config.small-graphs",
            )
        kept = None if folder is None else folder / MOTIFS
        return cached(data.edges, data.graph_of, data.node_labels, data.edge_labels, self.max_ring, kept)

    def table(self, motifs: Motifs, graphs: np.ndarray, train: np.ndarray) -> Extra:
        """What one client keeps of `motifs`, counted over its training graphs alone.

        graphs: int64 [e], the rows of its examples in `motifs.counts`. train: bool [e].
        """
        counts = sp.csr_array(motifs.counts[graphs[train]])
        kept = vocabulary(counts, self.keep)
        having = sp.coo_array(counts[:, kept].T > 0)
        rows, columns = having.coords
        spread = (np.ones(len(rows), np.float32), (rows, np.flatnonzero(train)[columns]))
        keys = [motifs.keys[k] for k in kept]
        which = sp.csr_matrix(spread, shape=(len(kept), len(graphs)))
        along, words = {MOTIFS: MOTIFS, HAVING: MOTIFS}, {MOTIFS: tuple(map(str, keys))}
        return Extra({MOTIFS: numbers(keys)}, {HAVING: which}, along, words)


@derived(MOTIF_MEAN)
def motif_mean(edges: EdgeList) -> sp.csr_matrix:
    """[K, e]: the mean over the examples that have each motif, 0 where none does."""
    own = asked(edges.extra.matrices, HAVING).astype(np.float32 if edges.weight is None else edges.weight.dtype)
    return mean(sp.csr_matrix((own.data, own.indices, own.indptr), shape=(own.shape[0], edges.examples)))


def numbers(keys: Sequence[Motif]) -> np.ndarray:
    """int64 [k]: what stands for each motif, the same at every client that has it, whoever found it."""
    return np.array([random.word(str(key)) for key in keys], np.int64)


def tf_idf(counts: sp.csr_array) -> np.ndarray:
    """float64 [V]: T_k = C_k (log((1 + n) / (1 + n_k)) + 1) of an agent's n graphs; 0 for motifs that none has.

    counts: int64 [n, V], how often each graph has each motif. n_k is how many graphs have motif k, and C_k the mean
    of the counts over these (Eqs. 16 and 17). Eq. 16 as printed has the 1 outside the product, which only adds 1 - C_k.
    """
    graphs = counts.shape[0]
    having = np.bincount(counts.indices[counts.data > 0], minlength=counts.shape[1])
    mean = counts.sum(axis=0) / np.maximum(having, 1)
    result: np.ndarray = mean * (np.log((1 + graphs) / (1 + having)) + 1)
    return result


def vocabulary(counts: sp.csr_array, keep: float = 0.9) -> np.ndarray:
    """int64, ascending: the floor(keep V) columns of highest `tf_idf` of the V that the agent's graphs have at all.

    Of equal values that of the lower column is the higher.

    Raises:
        UserError: keep is not in (0, 1].
    """
    if not 0 < keep <= 1:
        raise UserError(f"keep is {keep}; it is the share of motifs to keep, above 0 and at most 1.", code="user.keep")
    scores = tf_idf(counts)
    have = np.flatnonzero(scores)
    kept = math.floor(Fraction(str(keep)) * len(have))  # as written: .29 of 100 is 29, though the float is below
    return np.sort(have[np.argsort(-scores[have], kind="stable")[:kept]])
