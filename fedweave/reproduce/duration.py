"""How long training took, as far as a run's ledger tells."""

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.algorithms import ALGORITHMS
from fedweave.core.algorithm import capabilities

# the names in a ledger of the steps that only evaluate; those of a preset are FedAvg's
EVALUATION = frozenset(
    f"{kind.__name__}.{step}"
    for kind in ALGORITHMS.values()
    if isinstance(kind, type)
    for step in capabilities(kind).evaluation
)


class Duration(NamedTuple):
    """`seconds` that the steps of all clients took together, one after the other in one process, and the `exchanges`
    between server and clients: calls of a step on all of them, each a message down and one up."""

    seconds: float
    exchanges: int

    def delayed(self, delay: float) -> float:
        """Seconds with `delay` seconds more per exchange, as if all clients' messages travelled at once."""
        return self.seconds + delay * self.exchanges


def duration(ledger: pa.Table, until: int | None = None) -> Duration:
    """Of the training rounds 1, …, `until` (None: all) in `ledger` (`core.ledger.SCHEMA`); evaluation is not counted,
    nor what the server computes between the calls."""
    last = pc.max(ledger["round"]).as_py() if until is None else until
    rounds, steps = ledger["round"], ledger["step"].cast(pa.string())
    training = pc.invert(pc.is_in(steps, pa.array(sorted(EVALUATION))))
    counted = pc.and_(training, pc.and_(pc.greater(rounds, 0), pc.less_equal(rounds, last or 0)))
    calls = ledger.filter(counted).group_by(["round", "call"]).aggregate([("seconds", "sum")])
    return Duration(pc.sum(calls["seconds_sum"]).as_py() or 0.0, len(calls))
