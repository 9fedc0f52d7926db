"""The vocabulary of each client, precomputed: the motifs with the highest TF-IDF in its training graphs (FairGraphFL,
appendix A.2)."""

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

# What is precomputed for the K motifs of a client with e graphs:
MOTIFS = "motifs"  # int64 [K]: a hash of each motif, the same at every client
INCIDENCE = "motifs of graphs"  # CSR [K, e]: 1 where a training graph has the motif
MOTIF_MEAN = "motif_mean"  # the registered matrix [K, e]
MAX_SHOWN = 8  # motifs of each client in the table for people
RingSize: TypeAlias = Annotated[int, Field(ge=3, le=100)]  # vertices of the longest ring that is looked for


@dataclass(frozen=True)
class Vocabulary:
    """Which motifs a client keeps: the bonds and rings with the highest TF-IDF (`partition.precompute.Precompute`).

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
        results = []
        for part in partition.parts:
            train = (part.masks & data.has_label[part.examples])[TRAIN]
            results.append(self.of_client(motifs, part.examples, train))
        return results

    def alone(self, data: Dataset, folder: Path | None = None) -> Precomputed:
        """The motifs of a client's training graphs, from only these graphs."""
        return self.of_client(self.search(data, folder), np.arange(data.examples), np.asarray(data.public)[TRAIN])

    def tables(self, precomputed: Mapping[str, Precomputed]) -> dict[str, pa.Table]:
        """The motifs of each client that most of its training graphs have: client, motif, graphs (their number)."""
        clients, motifs, graphs = [], [], []
        for client, entry in precomputed.items():
            names = entry.words[MOTIFS]
            counts = np.diff(entry.matrices[INCIDENCE].indptr)[: len(names)]  # without rows of padding
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

    def of_client(self, motifs: Motifs, graphs: np.ndarray, train: np.ndarray) -> Precomputed:
        """The motifs that one client keeps, counted over only its training graphs.

        graphs: int64 [e], the rows of its examples in `motifs.counts`. train: bool [e].
        """
        counts = sp.csr_array(motifs.counts[graphs[train]])
        index = top_motifs(counts, self.keep)  # [K]
        rows, columns = sp.coo_array(counts[:, index].T > 0).coords  # motif, place among the training graphs
        entries = (np.ones(len(rows), np.float32), (rows, np.flatnonzero(train)[columns]))
        incidence = sp.csr_matrix(entries, shape=(len(index), len(graphs)))
        keys = [motifs.keys[k] for k in index]
        return Precomputed(
            arrays={MOTIFS: motif_hashes(keys)},
            matrices={INCIDENCE: incidence},
            along={MOTIFS: MOTIFS, INCIDENCE: MOTIFS},
            words={MOTIFS: tuple(map(str, keys))},
        )


@register_matrix(MOTIF_MEAN)
def motif_mean(edges: EdgeList) -> sp.csr_matrix:
    """[K, e]: the mean over the training graphs that have each motif, 0 where none does."""
    dtype = np.float32 if edges.weight is None else edges.weight.dtype
    incidence = lookup_precomputed(edges.extra.matrices, INCIDENCE).astype(dtype)
    shape = (incidence.shape[0], edges.examples)  # with columns for graphs of padding
    return mean(sp.csr_matrix((incidence.data, incidence.indices, incidence.indptr), shape=shape))


def motif_hashes(keys: Sequence[Motif]) -> np.ndarray:
    """int64 [k]: a hash of each motif, the same at every client."""
    return np.array([random.word(str(key)) for key in keys], np.int64)


def tf_idf(counts: sp.csr_array) -> np.ndarray:
    """float64 [V]: T_k = C_k (log((1 + n) / (1 + n_k)) + 1) of a client's n graphs; 0 for motifs that none has.

    counts: int64 [n, V], how often each graph has each motif. n_k is how many graphs have motif k, and C_k the mean
    of the counts over these (Eqs. 16 and 17). Eq. 16 as printed has the 1 outside the product, which only adds 1 - C_k.
    """
    graphs = counts.shape[0]
    graphs_with_motif = np.bincount(counts.indices[counts.data > 0], minlength=counts.shape[1])  # n_k
    mean_count = counts.sum(axis=0) / np.maximum(graphs_with_motif, 1)  # C_k
    result: np.ndarray = mean_count * (np.log((1 + graphs) / (1 + graphs_with_motif)) + 1)
    return result


def top_motifs(counts: sp.csr_array, keep: float = 0.9) -> np.ndarray:
    """int64, ascending: of the M columns that any of the client's graphs has, the floor(keep M) with the highest
    `tf_idf`. Among equal values the lower column comes first.

    Raises:
        UserError: `keep` is not in (0, 1].
    """
    if not 0 < keep <= 1:
        raise UserError(f"keep is {keep}; it is the share of motifs to keep, above 0 and at most 1.", code="user.keep")
    scores = tf_idf(counts)
    present = np.flatnonzero(scores)
    size = math.floor(Fraction(str(keep)) * len(present))  # as written: .29 of 100 is 29, though the float is below
    return np.sort(present[np.argsort(-scores[present], kind="stable")[:size]])
