"""The union of several parties' entities, from a sum that does not reveal the owner of an entity.

Every party writes hashes of its entities into a table, an invertible Bloom lookup table, and the tables' rows are added
up (Goodrich and Mitzenmacher 2011, "Invertible Bloom lookup tables"; Eppstein, Goodrich, Uyeda and Varghese 2011,
"What's the difference? Efficient set reconciliation without prior context", section 3). A hash is added to `PLACES`
rows. The sum of all tables gives the hashes one after the other: a row with a single hash reveals it, and the hash is
subtracted from its other rows. Deviation: a hash of several parties is in its rows several times. A row therefore has a
single hash if its content is that hash times the row's count.
"""

import hashlib
import hmac
from collections.abc import Sequence

import numpy as np
import torch

from fedweave.core.link_hashes import draws
from fedweave.errors import FedweaveError
from fedweave.ops.hashing import finalize

PLACES = 4  # rows of each hash
BITS = 48  # bits of each half of a hash, so that a sum over `MAX_PARTIES` parties has 63
MAX_PARTIES = 1 << 15
COUNT, FIRST, SECOND, CHECK = WIDTH = range(4)  # columns of a table
_MASK = (1 << BITS) - 1


def hashes(names: Sequence[str], key: bytes) -> np.ndarray:
    """int64 [n, 2]: two halves of a keyed hash of each name; all owners of the `key` compute the same."""
    digests = [hmac.digest(key, b"fedweave entity\0" + name.encode(), hashlib.sha256)[:16] for name in names]
    halves = np.frombuffer(b"".join(digests), "<i8").reshape(-1, 2)
    result: np.ndarray = halves & _MASK
    return result


def rows_for(entities: int) -> int:
    """Number of rows of a table from which `entities` hashes are read with a failure rate below 1 in thousands."""
    return PLACES * (-(-2 * entities // PLACES) + 16)


def table(elements: np.ndarray, rows: int) -> np.ndarray:
    """int64 [rows, 4]: the table of a party's hashes int64 [n, 2], each once."""
    result = np.zeros((rows, len(WIDTH)), np.int64)
    _add(result, elements, np.ones(len(elements), np.int64))
    return result


def union(total: np.ndarray, parties: int) -> np.ndarray:
    """int64 [F, 2], rising: the distinct hashes in the sum `total` int64 [rows, 4] of `parties` parties' tables."""
    rest, parts = total.copy(), [np.empty((0, 2), np.int64)]
    while rest.any():
        count = rest[:, COUNT]
        is_single = (count > 0) & (count <= parties)
        times = np.where(is_single, count, 1)
        is_single &= (rest[:, FIRST:] % times[:, None] == 0).all(1)
        single = rest // times[:, None]
        is_single &= (single[:, FIRST:] >= 0).all(1) & (single[:, CHECK] == _checksum(single[:, FIRST:CHECK]))
        at = np.flatnonzero(is_single)
        elements, first = np.unique(single[at, FIRST:CHECK], axis=0, return_index=True)
        if not len(at) or sum(map(len, parts)) + len(elements) > len(total):
            raise FedweaveError(
                "the sum of the members' tables of entities cannot be read: a member sent something else. Look for it "
                "in the members' journals, and start again without it.",
                code="reply.entities",
            )
        parts.append(elements)
        _add(rest, elements, -count[at][first])
    result: np.ndarray = np.unique(np.concatenate(parts), axis=0)
    return result


def places(elements: np.ndarray, rising: np.ndarray) -> np.ndarray:
    """int64 [n]: the place of each hash int64 [n, 2] in the list `rising` int64 [F, 2]; -1 if it is not there."""
    at = {(first, second): number for number, (first, second) in enumerate(rising.tolist())}
    return np.array([at.get((first, second), -1) for first, second in elements.tolist()], np.int64)


def _keys(elements: np.ndarray) -> np.ndarray:
    first, second = torch.from_numpy(elements.T.copy())
    return finalize(finalize(first) * 3 + second).numpy()


def _checksum(elements: np.ndarray) -> np.ndarray:
    result: np.ndarray = draws(_keys(elements), PLACES) & _MASK
    return result


def _add(cells: np.ndarray, elements: np.ndarray, times: np.ndarray) -> None:
    """Add each hash `times` times, in place."""
    keys, size = _keys(elements), len(cells) // PLACES
    row = np.column_stack([np.ones_like(keys), elements, _checksum(elements)]) * times[:, None]
    for number in range(PLACES):
        np.add.at(cells, number * size + draws(keys, number) % size, row)
