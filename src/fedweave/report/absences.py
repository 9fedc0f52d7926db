"""Who was asked and gave nothing of use: what a run's rows say of calls that were missed, refused or answered late."""

from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.text import counted
from fedweave.errors import listed

FAULTS = ("missing", "refused", "late")
_MOST = 3  # clients that a sentence names


def faults(metrics: pa.Table) -> dict[str, dict[str, dict[int, int]]]:
    """{client: {"missing" | "refused" | "late": {round: calls}}}, of the rows of metrics.parquet."""
    found: dict[str, dict[str, dict[int, int]]] = defaultdict(lambda: {what: {} for what in FAULTS})
    for row in metrics.filter(pc.is_in(metrics["metric"], pa.array(FAULTS))).to_pylist():
        found[row["client"]][row["metric"]][row["round"]] = int(row["value"])
    return dict(found)


def absent(metrics: pa.Table) -> str:
    """A sentence on those whose replies are missing from rounds of training, those most often first; "" if nobody's."""
    missed = {client: own for client, own in faults(metrics).items() if own["missing"]}
    if not missed:
        return ""
    order = sorted(missed, key=lambda client: (-len(missed[client]["missing"]), client))
    said = [f"of {client} in {_told(missed[client])}" for client in order[:_MOST]]
    more = f" and of {len(order) - _MOST} more" if len(order) > _MOST else ""
    return (
        f"replies are missing {', '.join(said)}{more}: these rounds went on with the others. The server's fedweave.log "
        "gives the reasons."
    )


def mostly(metrics: pa.Table) -> str:
    """A sentence for the headline on those who missed at least half of the rounds: a result is not theirs; "" if
    nobody did."""
    if not len(metrics):
        return ""
    rounds = pc.max(metrics["round"]).as_py()
    missed = {client: len(own["missing"]) for client, own in faults(metrics).items()}
    most = sorted((client for client, count in missed.items() if 2 * count >= rounds), key=lambda own: -missed[own])
    told = listed([f"{client} in {missed[client]}" for client in most])
    said = f"This result is mostly without some members: of {counted(rounds, 'round')} {told} took no part."
    return said if most else ""


def _told(own: dict[str, dict[int, int]]) -> str:
    rounds = len(own["missing"])
    why = " (what was sent was refused)" if own["refused"] else ""
    return f"{counted(rounds, 'round')}{why}"
