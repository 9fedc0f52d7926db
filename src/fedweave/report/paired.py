"""Two runs on the same test examples, such as a party alone and with others: paired example by example."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pyarrow as pa

from fedweave.report.cells import Cell, Table, interval, signed
from fedweave.report.reading import Group

_PLACES = ("node", "graph", "edge")
_LEAST = 1e-12  # of a probability whose logarithm is taken
HEAD = ("run", "client", "test examples", "right, first run", "right, this run", "difference", "log loss, difference")
NOTE = (
    "On the same examples: this run minus the first one, of the test examples that both predict (`fedweave predict`), "
    "with the two-sided 95 % interval over examples; where there are several seeds, of each example's mean over them. "
    "It says how sure the difference is for these models on other examples, not for models of other seeds."
)

Scores = dict[
    tuple[str, object], tuple[float, float]
]  # {(client, example): (1 where it is right, -log p of its class)}


def on_same_examples(groups: Sequence[Group]) -> Table:
    """A row for each group of runs but the first and each client whose test examples both predict; no rows where runs
    have no predictions."""
    first, *others = groups
    rows = [_row(other.label, client, pairs) for other in others for client, pairs in _pairs(first, other).items()]
    return Table(HEAD, tuple(rows), words=2)


def _pairs(first: Group, other: Group) -> dict[str, list[tuple[float, float, float]]]:
    """{client: (right in the first run, right in the other, difference of log losses) of each example}, means over the
    seeds that both have."""
    tables = [{run.config.get("seed"): run.predictions for run in group.runs} for group in (first, other)]
    found = defaultdict(list)
    for seed in tables[0].keys() & tables[1].keys():
        before, after = (_scores(own[seed]) for own in tables)
        for key in before.keys() & after.keys():
            (was, lost), (now, loses) = before[key], after[key]
            found[key].append((was, now, loses - lost))
    by_client = defaultdict(list)
    for client, example in sorted(found, key=str):
        values = found[client, example]
        by_client[client].append(tuple(map(statistics.fmean, zip(*values, strict=True))))
    return by_client  # type: ignore[return-value]


def _scores(table: pa.Table | None) -> Scores:
    """Of the test examples whose class is known."""
    if table is None or not {"split", "true"} <= {*table.column_names}:
        return {}
    return dict(_of_rows(table))


def _of_rows(table: pa.Table) -> Iterator[tuple[tuple[str, object], tuple[float, float]]]:
    place = next((name for name in ("id", *_PLACES) if name in table.column_names), _PLACES[0])
    for row in table.to_pylist():
        if row["split"] == "test" and row["true"] is not None:
            p = max(row[f"p_{row['true']}"], _LEAST)
            yield (row["client"], row[place]), (float(row["predicted"] == row["true"]), -math.log(p))


def _row(label: str, client: str, pairs: list[tuple[float, float, float]]) -> tuple[Cell, ...]:
    was, now, losses = zip(*pairs, strict=True)
    right = [one - other for one, other in zip(now, was, strict=True)]
    shares = [Cell(f"{statistics.fmean(own):.3f}") for own in (was, now)]
    return (Cell(label), Cell(client), Cell(f"{len(pairs):,}"), *shares, _difference(right), _difference(losses))


def _difference(values: Sequence[float]) -> Cell:
    low, high = interval(values)
    mean = statistics.fmean(values)
    between = "" if low is None or high is None else f"{signed(low)} to {signed(high)}"
    return Cell(signed(mean), repr(mean), between)
