"""Codes of a node's position in its graph (Tan et al. 2023, "Federated learning on non-IID graphs via structural
knowledge sharing")."""

import numpy as np
import scipy.sparse as sp

from fedweave.core.edge_list import EdgeList, derived

CODES = "structure"  # the operator that has them as its columns
RETURNS, DEGREES = 16, 16  # how many of each


@derived(CODES, of_nodes=True)
def structure_codes(edges: EdgeList) -> sp.csr_matrix:
    """[n, 32]: the probabilities that a random walk from a node returns after 1 to 16 steps, and its degree, one-hot,
    16 standing for more; 0 for a node without neighbours (section 4.1). They pass no messages."""
    a = edges.adjacency
    degree = np.diff(a.indptr)
    scale = sp.diags(np.divide(1, np.sqrt(degree), out=np.zeros(len(degree)), where=degree > 0))
    walk = sp.csr_matrix(scale @ a.astype(np.float64) @ scale)  # similar to D^-1 A, with the same diagonals of powers
    powers = [walk]
    for _ in range(1, RETURNS // 2):
        powers.append(powers[-1] @ walk)
    pairs = ((powers[(k + 1) // 2 - 1], powers[k // 2 - 1]) for k in range(2, RETURNS + 1))
    returns = [walk.diagonal(), *(np.asarray(one.multiply(other).sum(1)).ravel() for one, other in pairs)]
    classes = np.eye(DEGREES)[np.clip(degree, 1, DEGREES) - 1] * (degree > 0)[:, None]
    return sp.csr_matrix(np.concatenate([np.stack(returns, 1), classes], 1).astype(a.dtype))
