"""What is specific to methods of group fairness: soft gaps to penalise, and how servers weight clients by fairness."""

from fedweave.algorithms.fairness.gaps import SoftGaps, shares, soft_gaps, total_gap
from fedweave.algorithms.fairness.weights import f2gnn_weights, fairfed_deviation, fairfed_weights

__all__ = [
    "SoftGaps",
    "f2gnn_weights",
    "fairfed_deviation",
    "fairfed_weights",
    "shares",
    "soft_gaps",
    "total_gap",
]
