"""Which algorithms are tried on every commit where a test tries them all; the others with `make test-slow`."""

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.preset import Preset

# The systems, and one algorithm for each other shape of a round.
OFTEN = (
    "fedavg", "dfedgnn", "ditto", "f2gnn", "fairgfl", "fairgraphfl", "fcfl", "fedego", "fedgcn", "fedpub", "glasu",
    "rffl", "scaffold",
)  # fmt: skip


def is_special(name: str) -> bool:
    """Whether an algorithm is another one with its parts or settings chosen: its family's tests cover it."""
    kind = ALGORITHMS[name]
    return isinstance(kind, Preset) or "round" not in vars(kind)
