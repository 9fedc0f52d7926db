"""The motifs that each client keeps of its training graphs, precomputed: those of highest TF-IDF (FairGraphFL, appendix
A.2)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from pydantic import Field

from fedweave.algorithms.fairgraphfl.motifs import Motif, Motifs, extract_once
from fedweave.core import random
from fedweave.core.edge_list import EdgeList, register_matrix
from fedweave.core.graph import TRAIN
from fedweave.core.operators import Precomputed, lookup_precomputed, mean
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError, UserError
from fedweave.partition.base import Partition
from fedweave.partition.client_data import shares

MOTIFS, HAVING = "motifs", "motifs of graphs"  # int64 [K], the same for the same motif at every client; CSR [K, e]
MOTIF_MEAN = "motif_mean"
MAX_SHOWN = 8  # motifs of each agent, for readers
Ring: TypeAlias = Annotated[int, Field(ge=3, le=100)]  # vertices of the longest ring that is looked for


@dataclass(frozen=True)
class Vocabulary:
    """The motifs of a client: the bonds and rings of highest TF-IDF (FairGraphFL, appendix A.2).

    max_ring: number of vertices of the longest ring.
    keep:     share of its motifs that a client keeps, by highest TF-IDF.
    """

    max_ring: int = 7
    keep: float = 0.9

    def everywhere(self, data: Dataset, partition: Partition) -> list[Precomputed]:
        """The motifs of each client's training graphs, looked for in all graphs at once where clients have their edges.

        Raises:
            ConfigError: the examples are not small graphs. DataError: the cache cannot be used.
        """
        if any(part.edges is not None for part in partition.parts):
            return [self.alone(share) for share in shares(data, partition.parts)]
        motifs = self.search(data)
        tables = []
        for part in partition.parts:
            train = (part.masks & data.has_label[part.examples])[TRAIN]
            tables.append(self.table(motifs, part.examples, train))
        return tables

    def alone(self, data: Dataset, folder: Path | None = None) -> Precomputed:
        """The motifs of a client's training graphs, from only these graphs."""
        return self.table(self.search(data, folder), np.arange(data.examples), np.asarray(data.public)[TRAIN])

    def tables(self, precomputed: Mapping[str, Precomputed]) -> dict[str, pa.Table]:
        """The most frequent motifs of each client's training graphs: client, motif, graphs."""
        clients, motifs, graphs = [], [], []
        for client, entry in precomputed.items():
            names = entry.words[MOTIFS]
            counts = np.diff(entry.matrices[HAVING].indptr)[: len(names)]
            for k in np.argsort(-counts, kind="stable")[:MAX_SHOWN]:
                clients.append(client)
                motifs.append(names[k])
                graphs.append(int(counts[k]))
        return {MOTIFS: pa.table({"client": clients, "motif": motifs, "graphs": graphs})}

    def search(self, data: Dataset, folder: Path | None = None) -> Motifs:
        """The motifs of all small graphs of `data`; read from `folder`, by default the cache, if they were searched
        before."""
        if data.graph_of is None:
            raise ConfigError(
                f"motifs are looked for in small graphs, but the examples of {data.name} are {data.example}s; choose "
                "data such as 'proteins', or a part without motifs.",
                code="config.small-graphs",
            )
        path = None if folder is None else folder / MOTIFS
        return extract_once(data.edges, data.graph_of, data.node_labels, data.edge_labels, self.max_ring, path)

    def table(self, motifs: Motifs, graphs: np.ndarray, train: np.ndarray) -> Precomputed:
        """The motifs that one client keeps, counted over only its training graphs.

        graphs: int64 [e], the rows of its examples in `motifs.counts`. train: bool [e].
        """
        counts = sp.csr_array(motifs.counts[graphs[train]])
        index = vocabulary(counts, self.keep)
        rows, columns = sp.coo_array(counts[:, index].T > 0).coords
        entries = (np.ones(len(rows), np.float32), (rows, np.flatnonzero(train)[columns]))
        having = sp.csr_matrix(entries, shape=(len(index), len(graphs)))
        keys = [motifs.keys[k] for k in index]
        along, words = {MOTIFS: MOTIFS, HAVING: MOTIFS}, {MOTIFS: tuple(map(str, keys))}
        return Precomputed({MOTIFS: numbers(keys)}, {HAVING: having}, along, words)


@register_matrix(MOTIF_MEAN)
def motif_mean(edges: EdgeList) -> sp.csr_matrix:
    """[K, e]: the mean over the examples that have each motif, 0 where none does."""
    having = lookup_precomputed(edges.extra.matrices, HAVING).astype(
        np.float32 if edges.weight is None else edges.weight.dtype
    )
    return mean(sp.csr_matrix((having.data, having.indices, having.indptr), shape=(having.shape[0], edges.examples)))


def numbers(keys: Sequence[Motif]) -> np.ndarray:
    """int64 [k]: a hash of each motif, the same at every client."""
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

    Among equal values the lower column comes first.
    """
    if not 0 < keep <= 1:
        raise UserError(f"keep is {keep}; it is the share of motifs to keep, above 0 and at most 1.", code="user.keep")
    scores = tf_idf(counts)
    have = np.flatnonzero(scores)
    size = math.floor(Fraction(str(keep)) * len(have))  # as written: .29 of 100 is 29, though the float is below
    return np.sort(have[np.argsort(-scores[have], kind="stable")[:size]])
