"""Clients whose replies are missing: what a run's rows record of calls that were missed, rejected or answered late."""

from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.text import counted
from fedweave.errors import listed

FAULTS = ("missing", "refused", "late")
_MAX_NAMES = 3  # clients in a sentence


def faults(metrics: pa.Table) -> dict[str, dict[str, dict[int, int]]]:
    """{client: {"missing" | "refused" | "late": {round: calls}}}, of the rows of metrics.parquet."""
    calls: dict[str, dict[str, dict[int, int]]] = defaultdict(lambda: {what: {} for what in FAULTS})
    for row in metrics.filter(pc.is_in(metrics["metric"], pa.array(FAULTS))).to_pylist():
        calls[row["client"]][row["metric"]][row["round"]] = int(row["value"])
    return dict(calls)


def absence_sentence(metrics: pa.Table) -> str:
    """A sentence on clients whose replies are missing from training rounds, the most frequent first; "" if none is
    missing."""
    missed = {client: by_fault for client, by_fault in faults(metrics).items() if by_fault["missing"]}
    if not missed:
        return ""
    order = sorted(missed, key=lambda client: (-len(missed[client]["missing"]), client))
    clauses = []
    for client in order[:_MAX_NAMES]:
        why = " (what was sent was refused)" if missed[client]["refused"] else ""
        clauses.append(f"of {client} in {counted(len(missed[client]['missing']), 'round')}{why}")
    more = f" and of {len(order) - _MAX_NAMES} more" if len(order) > _MAX_NAMES else ""
    return (
        f"replies are missing {', '.join(clauses)}{more}: these rounds went on with the others. The server's "
        "fedweave.log gives the reasons."
    )


def long_absence_sentence(metrics: pa.Table) -> str:
    """A sentence for the headline on clients that missed at least half of the rounds; "" if there are none.

    The result does not represent these clients.
    """
    if not len(metrics):
        return ""
    rounds = pc.max(metrics["round"]).as_py()
    missed = {client: len(by_fault["missing"]) for client, by_fault in faults(metrics).items()}
    order = sorted(missed, key=lambda client: -missed[client])
    absences = [f"{client} in {missed[client]}" for client in order if 2 * missed[client] >= rounds]
    if not absences:
        return ""
    return f"This result is mostly without some members: of {counted(rounds, 'round')} {listed(absences)} took no part."
