"""Whether new tables, and the scores of a model on them, differ from what the model was trained on."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fedweave.apply.histograms import REMEDY, Reference, Values, columns_of, reference_of_run, scores_of
from fedweave.apply.scorer import check_alone, scorer_at, scorer_file
from fedweave.core.shown import Shown, page
from fedweave.core.types import Record
from fedweave.datasets import contents
from fedweave.datasets.cells import is_gap
from fedweave.datasets.table_files import find
from fedweave.datasets.table_files import read as read_rows
from fedweave.errors import UserError
from fedweave.experiment.runs.checkpoint import When
from fedweave.experiment.runs.files import CONFIG, HISTOGRAMS
from fedweave.experiment.runs.new_data import InputFormat, load_new_data
from fedweave.experiment.runs.trained import finished_config, load_trained
from fedweave.metrics.drift import Histogram, by_chance, kolmogorov_smirnov, stability_index

THRESHOLD = 0.25  # of the stability index, from which on a shift counts as large by convention
MAX_NEW = 20  # new values of one column that are listed


class Shift(NamedTuple):
    """How far one column moved.

    stability: population stability index. chance: what it stays below without drift. distance: Kolmogorov-Smirnov; None
    of categories, which have no order. moved: the bin whose share changed most, with its shares before and now.
    """

    name: str
    of: str
    kind: str
    stability: float
    chance: float
    distance: float | None
    moved: tuple[str, float, float]

    def exceeds(self, threshold: float) -> bool:
        """Whether it moved further than the threshold, and further than by chance."""
        return self.stability > max(threshold, self.chance)


class NewValues(NamedTuple):
    """Values of a column of text that training did not have. rows: how many rows have any of them."""

    column: str
    of: str
    values: tuple[str, ...]
    rows: int
    total: int


@dataclass(frozen=True, repr=False)
class TableDrift(Shown):
    """How far new tables moved. shifts: the largest first. flagged: shares of flagged examples before and now."""

    model: str
    client: str
    run: str
    tables: str
    at: str
    threshold: float
    examples: tuple[int, int]
    scored: int
    unseen: bool
    shifts: tuple[Shift, ...]
    new: tuple[NewValues, ...]
    flagged: tuple[float, float] | None

    @property
    def alarms(self) -> tuple[Shift, ...]:
        """The columns and scores beyond the threshold."""
        return tuple(shift for shift in self.shifts if shift.exceeds(self.threshold))

    @property
    def record(self) -> Record:
        """All of it, for JSON."""
        shifts = []
        for shift in self.shifts:
            moved = dict(zip(("bin", "before", "now"), shift.moved, strict=True))
            shifts.append(shift._asdict() | {"moved": moved, "alarm": shift.exceeds(self.threshold)})
        new = [column._asdict() for column in self.new]
        return {**asdict(self), "shifts": shifts, "new": new, "alarms": len(self.alarms)}

    @property
    def table(self) -> pa.Table:
        """A row for each column and score."""
        columns = {}
        for name in ("name", "of", "kind", "stability", "chance", "distance"):
            columns[name] = [getattr(shift, name) for shift in self.shifts]
        return pa.table(columns)

    def facts(self) -> dict[str, object]:
        """How many columns moved, and the first."""
        first = {"first": self.shifts[0].name, "stability": self.shifts[0].stability} if self.shifts else {}
        return {"": self.tables, "columns": len(self.shifts), "alarms": len(self.alarms), **first}

    def _repr_html_(self) -> str:
        table = self.table
        return page(repr(self), [tuple(row.values()) for row in table.to_pylist()], table.column_names)


def drift(
    place: Path,
    tables: Path,
    threshold: float = THRESHOLD,
    model: str | None = None,
    client: str | None = None,
    when: When = "chosen",
) -> TableDrift:
    """How far the tables moved from what a model was trained on.

    place, model, client, when: see `scorer.scorer_at`.

    Raises:
        UserError: there is no model, or no histograms are kept with it. DataError: the tables are not valid, or differ
            in form from those of training; new categories are no such difference.
    """
    if (place / CONFIG).is_file():
        config = finished_config(place)
        check_alone(config)
        run = load_trained(place, config, "Name the site's folder as MODEL, where the data is.", when, model)
        scorer, before = reference_of_run(run, model, client)
    else:
        scorer = scorer_at(place, model, client, when)
        path = scorer_file(place).with_name(HISTOGRAMS)
        if not path.is_file():
            raise UserError(f"{path} is absent: this model has no histograms of training. {REMEDY}", code="drift.none")
        before = Reference.load(path)
        if before.model != scorer.name:
            message = f"{path} is of model {before.model}, and the scorer is {scorer.name}. {REMEDY}"
            raise UserError(message, code="drift.other-model")
    now = datetime.now(UTC)
    data, raw = load_new_data(scorer.before, tables, lenient=True)
    table = scorer.score_data(data, now)
    values = [*columns_of(raw, scorer.form), *scores_of(table)]
    flagged = None
    if before.flagged is not None and "flagged" in table.column_names and len(table):
        share = float(np.mean(table["flagged"].to_numpy(zero_copy_only=False)))
        flagged = before.flagged / max(before.scored, 1), share
    return TableDrift(
        model=scorer.name,
        client=scorer.client,
        run=scorer.run,
        tables=tables.name,
        at=now.isoformat(timespec="seconds"),
        threshold=threshold,
        examples=(before.examples, data.examples),
        scored=before.scored,
        unseen=before.unseen,
        shifts=_shifts(before.histograms, values),
        new=tuple(new_values(scorer.before, tables)),
        flagged=flagged,
    )


def _shifts(histograms: Sequence[Histogram], values: Sequence[Values]) -> tuple[Shift, ...]:
    """How far each column of the histograms moved that is among the new values, the largest shift first."""
    present = {(column.of, column.name): column for column in values}
    pairs = []
    for before in histograms:
        if (before.of, before.name) in present:
            pairs.append((before, present[before.of, before.name]))
    shifts = []
    for before, column in pairs:
        content = column.content
        if before.kind == "category":  # the places of the new values among the earlier
            place = [before.values.index(value) if value in before.values else -1 for value in column.values]
            content = np.array([*place, -1])[content]
        counts = before.count(content)
        index = stability_index(before.counts, counts)
        if math.isnan(index):
            continue
        was, now = (np.array(each) / max(sum(each), 1) for each in (before.counts, counts))  # [bins], shares
        at = int(np.abs(now - was).argmax())
        shift = Shift(
            name=before.name,
            of=before.of,
            kind=before.kind,
            stability=index,
            chance=by_chance(before.counts, counts, len(pairs)),
            distance=kolmogorov_smirnov(before.counts, counts) if before.kind != "category" else None,
            moved=(before.bin_name(at), float(was[at]), float(now[at])),
        )
        shifts.append(shift)
    return tuple(sorted(shifts, key=lambda shift: -shift.stability))


def new_values(before: InputFormat, tables: Path) -> Iterator[NewValues]:
    """Values in columns of text of the tables that are none of the model's categories."""
    edges = () if before.edge_attrs is None else before.edge_attrs.columns
    for of, names in (("node", before.columns), ("edge", edges)):
        known = dict[str, set[str]]()
        for column in map(contents.column, names):
            if column.kind == "category":
                known.setdefault(column.of, set()).add(column.value)
        if not known or not any(tables.glob(f"{of}s.*")):
            continue
        rows = read_rows(find(tables, f"{of}s"))
        for name in known:
            if name not in rows.columns:
                continue
            cells = [text for text in rows.texts(name).to_pylist() if text is not None and not is_gap(text)]
            new = [text for text in cells if text not in known[name]]
            if new:
                yield NewValues(name, of, tuple(sorted({*new})[:MAX_NEW]), len(new), len(cells))
