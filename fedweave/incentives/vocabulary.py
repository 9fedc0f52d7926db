"""Which motifs an agent keeps, and how diverse that makes it (FairGraphFL, appendix A.2 and definition 2)."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from fedweave.errors import UserError


class Diversity(NamedTuple):
    """values: float64 [N], the share d_i = k_i / K of all kept motifs that agent i keeps. motifs: K, their number."""

    values: np.ndarray
    motifs: int


def tf_idf(counts: sp.csr_array) -> np.ndarray:
    """float64 [V]: T_k = C_k (log((1 + n) / (1 + n_k)) + 1) of an agent's n graphs; 0 for motifs that none has.

    counts: int64 [n, V], how often each graph has each motif. n_k is how many graphs have motif k, and C_k the mean
    of the counts over these (Eqs. 16 and 17). Eq. 16 as printed has the 1 outside the product, which only adds 1 - C_k.
    """
    graphs = counts.shape[0]
    having = np.bincount(counts.indices[counts.data > 0], minlength=counts.shape[1])
    mean = counts.sum(axis=0) / np.maximum(having, 1)
    return mean * (np.log((1 + graphs) / (1 + having)) + 1)


def vocabulary(counts: sp.csr_array, keep: float = 0.9) -> np.ndarray:
    """int64, ascending: the floor(keep V) columns of highest `tf_idf` of the V that the agent's graphs have at all.

    Of equal values that of the lower column is the higher.

    Raises:
        UserError: keep is not in (0, 1].
    """
    if not 0 < keep <= 1:
        raise UserError(f"keep is {keep}; it is the share of motifs to keep, above 0 and at most 1.")
    scores = tf_idf(counts)
    have = np.flatnonzero(scores)
    kept = math.floor(Fraction(str(keep)) * len(have))  # as written: .29 of 100 is 29, though the float is below
    return np.sort(have[np.argsort(-scores[have], kind="stable")[:kept]])


def diversity(vocabularies: Sequence[np.ndarray]) -> Diversity:
    """d_i = k_i / K for agents with these kept motifs; all 0 where nobody has any.

    Raises:
        UserError: there are no agents.
    """
    if not len(vocabularies):
        raise UserError("diversity compares agents; give the kept motifs of at least one.")
    sizes = np.array([len(np.unique(kept)) for kept in vocabularies], np.float64)
    motifs = len(np.unique(np.concatenate(vocabularies)))
    return Diversity(sizes / max(1, motifs), motifs)
