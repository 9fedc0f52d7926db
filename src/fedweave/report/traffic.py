"""What a run cost over its rounds: bytes that crossed, and the ε that was spent."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.filesize import decimal

from fedweave.privacy.spent import over_rounds
from fedweave.report import colours
from fedweave.report.panels import Figure, Line, Panel, legend_of
from fedweave.report.reading import Group

TITLES = {"up": "Sent by all clients", "down": "Received by all clients", "peer": "Sent from client to client"}


def figure(groups: Sequence[Group]) -> Figure | None:
    """Bytes in all up to each round, a panel for each direction, and ε for each kind of record; of the groups' first
    runs. None where the ledgers are empty."""
    runs = [(at, group.label, group.first) for at, group in enumerate(groups)]
    sums = {way: [(at, label, _bytes(run.ledger, way)) for at, label, run in runs] for way in TITLES}
    panels = [
        Panel(TITLES[way], _lines(of), below="round", low=0.0, form=lambda value: decimal(round(value)))
        for way, of in sums.items()
        if any(own for _, _, own in of)
    ]
    costs = [(at, label, over_rounds(run.ledger)) for at, label, run in runs]
    for per in dict.fromkeys(per for _, _, own in costs for per in own):
        lines = _lines([(at, label, own.get(per, {})) for at, label, own in costs])
        panels.append(Panel(f"ε per {per}, of the client that sent most", lines, below="round", low=0.0))
    if not panels:
        return None
    return Figure(tuple(panels), legend_of(panels[0].marks) if len(groups) > 1 else ())


def _bytes(ledger: pa.Table, way: str) -> dict[int, float]:
    """{round: bytes that went this way up to it}."""
    mine = (
        ledger.filter(pc.equal(ledger["direction"].cast(pa.string()), way))
        .group_by("round")
        .aggregate([("bytes", "sum")])
    )
    ordered = mine.sort_by("round")
    return dict(zip(ordered["round"].to_pylist(), np.cumsum(ordered["bytes_sum"].to_numpy()).tolist(), strict=True))


def _lines(found: Sequence[tuple[int, str, dict[int, float]]]) -> tuple[Line, ...]:
    return tuple(
        Line(label, list(own), list(own.values()), colours.of_run(at), colours.DASHES[at % len(colours.DASHES)])
        for at, label, own in found
        if own
    )
