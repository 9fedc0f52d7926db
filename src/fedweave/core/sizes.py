"""The number of rows to which a client's nodes are padded. It is fixed as long as the client's data lasts, so that
states and replies may have one row per node. A vectorized batch holds only clients of one size."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

# Every client's nodes are padded to a multiple of this. Dense kernels sum over nodes in blocks: with whole blocks, one
# client alone and the same client in a batch were measured to give the same bits on the CPU (see `ops.linear`).
BLOCK = 32
# The limit of padding beyond whole blocks: for all clients together 1 / `_SPARE`, for a client `_MAX_GROWTH` times its
# rows.
_SPARE, _MAX_GROWTH = 4, 2
_SPARE_CLIENTS = 8
# A further batch costs about as much time as this many padded rows (measured: one vectorized training call of a 2-layer
# GCN spends about 2 ms outside its kernels).
ROWS_PER_BATCH = 4096


def padded_rows(nodes: int) -> int:
    """`nodes` rounded up to whole blocks, at least one."""
    return -(-max(nodes, 1) // BLOCK) * BLOCK


def fits(rows: int, nodes: int) -> bool:
    """Whether a client of `rows` that has `nodes` now may keep its size."""
    required = padded_rows(nodes)
    return rows % BLOCK == 0 and required <= rows <= _MAX_GROWTH * required


def size_class(nodes: int) -> int:
    """The rows of a client considered on its own: 1, 2, 3, 5, 7, 10, 13, 17, … blocks, at most a quarter more than it
    needs."""
    blocks, required = 1, padded_rows(nodes) // BLOCK
    while blocks < required:
        blocks += 1 + (blocks + 1) // _SPARE
    return blocks * BLOCK


def size_classes(nodes: Sequence[int]) -> list[int]:
    """The rows of each of many clients with these numbers of `nodes`: few different numbers.

    Greedy: merge the two neighboring sizes that add the fewest rows; stop when all clients together would take more
    than a quarter above what they need, or when a merge would cost more than another batch. No client takes more than
    twice its own need.
    """
    required = [padded_rows(count) for count in nodes]
    classes = [[size] for size in sorted(Counter(required).items())]  # lists of (rows, clients)
    budget: float = sum(required) // _SPARE
    while len(classes) > 1:
        costs = [_padding_cost(low, high) for low, high in pairwise(classes)]
        fewest = min(costs)
        if fewest > min(budget, ROWS_PER_BATCH):
            break
        budget -= fewest
        at = costs.index(fewest)
        classes[at : at + 2] = [classes[at] + classes[at + 1]]
    rows_of = dict[int, int]()
    for members in classes:
        rows_of |= {rows: members[-1][0] for rows, _ in members}
    return [rows_of[rows] for rows in required]


def batch_sizes(clients: int, rows: int, max_size: int) -> list[tuple[int, int]]:
    """Batches for this number of clients, each with `rows` rows: (clients in it, size that it is filled up to).

    There are few batches of few sizes: powers of 2, or the `max_size` clients that run at once. A batch is filled up
    where that costs less than another batch, or at most an eighth of its size."""
    batches, remaining = [], clients
    while remaining:
        size = min(1 << (remaining - 1).bit_length(), max_size)
        spare = size - remaining
        if spare * rows > ROWS_PER_BATCH and spare * _SPARE_CLIENTS > size:
            size //= 2
        batches.append((min(remaining, size), size))
        remaining -= batches[-1][0]
    return batches


def common_lengths(requirements: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The common length of each list that all clients pad equally: the longest length that a client requires, in whole
    blocks. A client without such lists requires {}."""
    longest: dict[str, int] = {}
    for lengths in requirements:
        longest |= {name: max(longest.get(name, 0), padded_rows(size)) for name, size in lengths.items()}
    return longest


def _padding_cost(low: list[tuple[int, int]], high: list[tuple[int, int]]) -> float:
    """The rows that padding the sizes `low` to `high` adds, both (rows, clients) rising; infinite if one client would
    get too many."""
    rows = high[-1][0]
    return sum(clients for _, clients in low) * (rows - low[-1][0]) if rows <= _MAX_GROWTH * low[0][0] else float("inf")
