"""Clients whose replies are missing: what a run's rows record of calls that were missed, rejected or answered late."""

from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.text import counted
from fedweave.errors import listed

FAULTS = ("missing", "refused", "late")
_MOST = 3  # clients that a sentence names


def faults(metrics: pa.Table) -> dict[str, dict[str, dict[int, int]]]:
    """{client: {"missing" | "refused" | "late": {round: calls}}}, of the rows of metrics.parquet."""
    calls: dict[str, dict[str, dict[int, int]]] = defaultdict(lambda: {what: {} for what in FAULTS})
    for row in metrics.filter(pc.is_in(metrics["metric"], pa.array(FAULTS))).to_pylist():
        calls[row["client"]][row["metric"]][row["round"]] = int(row["value"])
    return dict(calls)


def absent(metrics: pa.Table) -> str:
    """A sentence on clients whose replies are missing from training rounds, the most frequent first; "" if none is
    missing."""
    missed = {client: by_fault for client, by_fault in faults(metrics).items() if by_fault["missing"]}
    if not missed:
        return ""
    order = sorted(missed, key=lambda client: (-len(missed[client]["missing"]), client))
    clauses = [f"of {client} in {_missed_rounds(missed[client])}" for client in order[:_MOST]]
    more = f" and of {len(order) - _MOST} more" if len(order) > _MOST else ""
    return (
        f"replies are missing {', '.join(clauses)}{more}: these rounds went on with the others. The server's "
        "fedweave.log gives the reasons."
    )


def mostly(metrics: pa.Table) -> str:
    """A sentence for the headline on clients that missed at least half of the rounds; "" if there are none.

    The result does not represent these clients.
    """
    if not len(metrics):
        return ""
    rounds = pc.max(metrics["round"]).as_py()
    missed = {client: len(by_fault["missing"]) for client, by_fault in faults(metrics).items()}
    half = (client for client, count in missed.items() if 2 * count >= rounds)
    most = sorted(half, key=lambda client: -missed[client])
    if not most:
        return ""
    absences = listed([f"{client} in {missed[client]}" for client in most])
    return f"This result is mostly without some members: of {counted(rounds, 'round')} {absences} took no part."


def _missed_rounds(by_fault: dict[str, dict[int, int]]) -> str:
    rounds = len(by_fault["missing"])
    why = " (what was sent was refused)" if by_fault["refused"] else ""
    return f"{counted(rounds, 'round')}{why}"
