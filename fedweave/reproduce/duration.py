"""How long training took, as far as a run's ledger tells."""

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

EVALUATION = (".score", ".infer_full")  # how the names of the steps end that only evaluate


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
    names = pc.unique(ledger["step"]).to_pylist()
    training = pa.array([name for name in names if not name.endswith(EVALUATION)], pa.string())
    rounds, steps = ledger["round"], ledger["step"].cast(pa.string())
    counted = pc.and_(pc.is_in(steps, training), pc.and_(pc.greater(rounds, 0), pc.less_equal(rounds, last or 0)))
    calls = ledger.filter(counted).group_by(["round", "call"]).aggregate([("seconds", "sum")])
    return Duration(pc.sum(calls["seconds_sum"]).as_py() or 0.0, len(calls))
