"""Which motifs an agent keeps, and how diverse that makes it (FairGraphFL, appendix A.2 and definition 2)."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sp

from fedweave.errors import UserError


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


@runtime_checkable
class UsesVocabulary(Protocol):
    """An algorithm whose clients may have to know the motifs of their small graphs."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Which; None if none."""
        ...


def vocabulary_of(algorithm: object) -> Vocabulary | None:
    """Which motifs of its small graphs a client must know for an algorithm; None if none."""
    return algorithm.vocabulary if isinstance(algorithm, UsesVocabulary) else None
