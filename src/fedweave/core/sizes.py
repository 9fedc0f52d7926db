"""The number of rows to which a client's nodes are padded. It is fixed as long as the client's data lasts, so that
states and replies may have one row per node. A vectorized batch holds only clients of one size."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

# Every client's nodes are padded to a multiple of this. Dense kernels sum over nodes in blocks: with whole blocks, one
# client alone and the same client in a batch were measured to give the same bits on the CPU (see `ops.linear`).
BLOCK = 32
# The limit of padding beyond whole blocks: for all clients together 1 / `_SPARE`, for a client `_MOST` times its rows.
_SPARE, _MOST = 4, 2
_SPARE_CLIENTS = 8
# A further batch costs about as much time as this many padded rows (measured: one vectorized training call of a 2-layer
# GCN spends about 2 ms outside its kernels).
_ROWS_PER_BATCH = 4096


def least_rows(nodes: int) -> int:
    """`nodes` rounded up to whole blocks, at least one."""
    return -(-max(nodes, 1) // BLOCK) * BLOCK


def fits(rows: int, nodes: int) -> bool:
    """Whether a client of `rows` that has `nodes` now may keep its size."""
    least = least_rows(nodes)
    return rows % BLOCK == 0 and least <= rows <= _MOST * least


def size_class(nodes: int) -> int:
    """The rows of a client considered by itself: 1, 2, 3, 5, 7, 10, 13, 17, … blocks, at most a quarter more than it
    needs."""
    blocks, wanted = 1, least_rows(nodes) // BLOCK
    while blocks < wanted:
        blocks += 1 + (blocks + 1) // _SPARE
    return blocks * BLOCK


def size_classes(nodes: Sequence[int]) -> list[int]:
    """The rows of each of many clients with these numbers of `nodes`: few different numbers.

    Greedy: merge the two neighboring sizes that add the fewest rows; stop when all clients together would take more
    than a quarter above what they need, or when a merge would cost more than another batch. No client takes more than
    twice its own need.
    """
    least = [least_rows(count) for count in nodes]
    classes = [[size] for size in sorted(Counter(least).items())]
    left: float = sum(least) // _SPARE
    while len(classes) > 1:
        added = [_added(low, high) for low, high in pairwise(classes)]
        fewest = min(added)
        if fewest > min(left, _ROWS_PER_BATCH):
            break
        left -= fewest
        at = added.index(fewest)
        classes[at : at + 2] = [classes[at] + classes[at + 1]]
    chosen = {need: members[-1][0] for members in classes for need, _ in members}
    return [chosen[need] for need in least]


def fillings(clients: int, rows: int, most: int) -> list[tuple[int, int]]:
    """Batches for this number of clients, each with `rows` rows: (clients in it, size that it is filled up to).

    There are few batches of few sizes: powers of 2, or the `most` that run at once. A batch is filled up where that
    costs less than another batch, or at most an eighth of its size."""
    batches, left = [], clients
    while left:
        size = min(1 << (left - 1).bit_length(), most)
        spare = size - left
        if spare * rows > _ROWS_PER_BATCH and spare * _SPARE_CLIENTS > size:
            size //= 2
        batches.append((min(left, size), size))
        left -= batches[-1][0]
    return batches


def agreed(needed: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The common length of each list that all clients pad equally: the longest length that a client `needed`, in whole
    blocks. Clients with nothing to agree on need {}."""
    most: dict[str, int] = {}
    for lengths in needed:
        most |= {name: max(most.get(name, 0), least_rows(size)) for name, size in lengths.items()}
    return most


def _added(low: list[tuple[int, int]], high: list[tuple[int, int]]) -> float:
    """The rows that padding the sizes `low` to `high` adds, both (rows, clients) rising; infinite if one client would
    get too many."""
    rows = high[-1][0]
    return sum(clients for _, clients in low) * (rows - low[-1][0]) if rows <= _MOST * low[0][0] else float("inf")
