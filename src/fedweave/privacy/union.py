"""Which entities several parties have altogether, from a sum: nobody learns who has which.

Every party writes hashes of its entities into a table whose rows are added up, an invertible Bloom lookup table
(Goodrich and Mitzenmacher 2011, "Invertible Bloom lookup tables"; Eppstein, Goodrich, Uyeda and Varghese 2011, "What's
the difference? Efficient set reconciliation without prior context", section 3). A hash is added to `PLACES` rows. From
the sum of all tables the hashes are read one after the other: a row that one hash alone is in gives it away, and it is
taken out of its other rows. Deviation: a hash that several parties have is in its rows several times, so that a row is
of one hash where it is as many times that hash as the row counts.
"""

import hashlib
import hmac
from collections.abc import Sequence

import numpy as np
import torch

from fedweave.core.links import words
from fedweave.errors import FedweaveError
from fedweave.ops.hashing import finalize

PLACES = 4  # rows of each hash
BITS = 48  # of each half of a hash, so that a sum over `MOST` parties has 63
MOST = 1 << 15
COUNT, FIRST, SECOND, CHECK = WIDTH = range(4)  # columns of a table
_MASK = (1 << BITS) - 1


def hashes(names: Sequence[str], key: bytes) -> np.ndarray:
    """int64 [n, 2]: two halves of a keyed hash of each name; whoever has the `key` finds the same."""
    digests = [hmac.digest(key, b"fedweave entity\0" + name.encode(), hashlib.sha256)[:16] for name in names]
    halves = np.frombuffer(b"".join(digests), "<i8").reshape(-1, 2)
    result: np.ndarray = halves & _MASK
    return result


def rows_for(entities: int) -> int:
    """How many rows a table has in which that many hashes are found but once in many thousand times: twice as many."""
    return PLACES * (-(-2 * entities // PLACES) + 16)


def table(elements: np.ndarray, rows: int) -> np.ndarray:
    """int64 [rows, 4]: the table of the hashes int64 [n, 2] that a party has, each once."""
    result = np.zeros((rows, len(WIDTH)), np.int64)
    _add(result, elements, np.ones(len(elements), np.int64))
    return result


def union(total: np.ndarray, parties: int) -> np.ndarray:
    """int64 [F, 2]: the different hashes of which the sum of the tables of that many `parties`, int64 [rows, 4], is;
    rising.

    Raises:
        FedweaveError: it is no sum of such tables.
    """
    rest, parts = total.copy(), [np.empty((0, 2), np.int64)]
    while rest.any():
        count = rest[:, COUNT]
        alone = (count > 0) & (count <= parties)
        times = np.where(alone, count, 1)
        alone &= (rest[:, FIRST:] % times[:, None] == 0).all(1)
        single = rest // times[:, None]
        alone &= (single[:, FIRST:] >= 0).all(1) & (single[:, CHECK] == _checked(single[:, FIRST:CHECK]))
        at = np.flatnonzero(alone)
        elements, first = np.unique(single[at, FIRST:CHECK], axis=0, return_index=True)
        if not len(at) or sum(map(len, parts)) + len(elements) > len(total):
            raise FedweaveError(
                "the sum of the members' tables of entities cannot be read: a member sent something else. Look for it "
                "in the members' journals, and start anew without it.",
                code="reply.entities",
            )
        parts.append(elements)
        _add(rest, elements, -count[at][first])
    result: np.ndarray = np.unique(np.concatenate(parts), axis=0)
    return result


def places(elements: np.ndarray, listed: np.ndarray) -> np.ndarray:
    """int64 [n]: where each hash int64 [n, 2] stands in a rising list int64 [F, 2]; -1 where it does not."""
    at = {(first, second): number for number, (first, second) in enumerate(listed.tolist())}
    return np.array([at.get((first, second), -1) for first, second in elements.tolist()], np.int64)


def _keys(elements: np.ndarray) -> np.ndarray:
    first, second = torch.from_numpy(elements.T.copy())
    return finalize(finalize(first) * 3 + second).numpy()


def _checked(elements: np.ndarray) -> np.ndarray:
    result: np.ndarray = words(_keys(elements), PLACES) & _MASK
    return result


def _add(cells: np.ndarray, elements: np.ndarray, times: np.ndarray) -> None:
    """Add each hash so many times, in place."""
    keys, size = _keys(elements), len(cells) // PLACES
    row = np.column_stack([np.ones_like(keys), elements, _checked(elements)]) * times[:, None]
    for number in range(PLACES):
        np.add.at(cells, number * size + words(keys, number) % size, row)
