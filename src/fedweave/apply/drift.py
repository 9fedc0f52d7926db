"""Whether new tables, and the scores of a model on them, differ from what the model was trained on.

A run's folder has the data of training. A model alone needs histograms of it, which a site keeps next to its scorer in
a file of their own (`HISTOGRAMS`). Nothing of them is in the scorer.
"""

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from pydantic import TypeAdapter, ValidationError

from fedweave.apply.scorer import Scorer, check_alone, choose_model, scorer_at, scorer_file, scorer_of_run
from fedweave.core.graph import TEST, TRAIN, VAL
from fedweave.core.shown import Shown, page
from fedweave.core.types import Record
from fedweave.datasets import contents
from fedweave.datasets.base import Dataset
from fedweave.datasets.cells import is_gap
from fedweave.datasets.table_files import find
from fedweave.datasets.table_files import read as read_rows
from fedweave.errors import UserError
from fedweave.experiment.loading import load_tables
from fedweave.experiment.runs.checkpoint import When
from fedweave.experiment.runs.data_form import DataForm
from fedweave.experiment.runs.files import CONFIG, HISTOGRAMS, read, write
from fedweave.experiment.runs.new_data import InputFormat, load_new_data
from fedweave.experiment.runs.trained import Trained, finished, trained
from fedweave.metrics.drift import (
    Histogram,
    by_chance,
    kolmogorov_smirnov,
    of_categories,
    of_numbers,
    stability_index,
)
from fedweave.metrics.selection import HALF
from fedweave.partition.client_data import global_test_part, pool_clients, shares
from fedweave.partition.external import is_exchanged
from fedweave.partition.preparation import with_scaled_edges, with_scaled_nodes

FORMAT = 1
THRESHOLD = 0.25  # of the stability index, from which on a shift counts as large by convention
MOST_NEW = 20  # new values of one column that are listed
_REMEDY = (
    "Sites keep it after `fedweave sites run` and `sites predict`. With a run's folder as MODEL none is needed, and "
    "`fedweave export RUN --histograms` writes it."
)


class Values(NamedTuple):
    """The values of one column. content: float64 [n]; of a category int64 [n], places in `values`, -1 for none. dates:
    whether they are days since 1970."""

    name: str
    of: str
    content: np.ndarray
    values: tuple[str, ...] = ()
    dates: bool = False

    @property
    def histogram(self) -> Histogram:
        """Their histogram, with bins of its own."""
        if self.values:
            return of_categories(self.name, self.of, self.values, self.content)
        return of_numbers(self.name, self.of, self.content, "date" if self.dates else "number")


@dataclass(frozen=True)
class Reference:
    """What a model was trained on, as histograms.

    model:   12 digits of the model (`Scorer.name`). examples: how many. scored: how many of them have a score here,
             and `unseen` whether these are validation and test examples only. flagged: how many of them are flagged;
             None where nothing is.
    """

    model: str
    examples: int
    scored: int
    unseen: bool
    histograms: tuple[Histogram, ...]
    flagged: int | None = None
    format: int = FORMAT

    def save(self, path: Path) -> None:
        """Write the file, which only its owner can read."""
        text = json.dumps(asdict(self), allow_nan=False) + "\n"
        write(path, lambda file: file.write(text.encode()), lambda name, flags: os.open(name, flags, 0o600))

    @classmethod
    def load(cls, path: Path) -> "Reference":
        """Read what `save` wrote.

        Raises:
            UserError: it is damaged, or of another format.
        """
        try:
            result: Reference = TypeAdapter(Reference).validate_json(read(path))
            if result.format != FORMAT:
                raise ValueError(f"it is of format {result.format}, and this version reads {FORMAT}")
            for one in result.histograms:
                bins = len(one.values if one.kind == "category" else one.edges) + 1
                if len(one.counts) != bins or min(one.counts) < 0 or sorted(one.edges) != list(one.edges):
                    raise ValueError(f"column {one.name!r} has {len(one.counts)} counts for {bins} bins")
        except (ValidationError, ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged: {error}. {_REMEDY}", code="drift.damaged") from error
        return result


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
        return tuple(one for one in self.shifts if one.exceeds(self.threshold))

    @property
    def record(self) -> Record:
        """All of it, for JSON."""
        shifts = [
            one._asdict() | {"moved": dict(zip(("bin", "before", "now"), one.moved, strict=True)), "alarm": alarm}
            for one, alarm in ((one, one.exceeds(self.threshold)) for one in self.shifts)
        ]
        rest = {"shifts": shifts, "new": [one._asdict() for one in self.new], "alarms": len(self.alarms)}
        return {**asdict(self), **rest}

    @property
    def table(self) -> pa.Table:
        """A row for each column and score."""
        names = ("name", "of", "kind", "stability", "chance", "distance")
        return pa.table({name: [getattr(one, name) for one in self.shifts] for name in names})

    def facts(self) -> dict[str, object]:
        """How many columns moved, and the first."""
        first = {"first": self.shifts[0].name, "stability": self.shifts[0].stability} if self.shifts else {}
        return {"": self.tables, "columns": len(self.shifts), "alarms": len(self.alarms), **first}

    def _repr_html_(self) -> str:
        table = self.table
        return page(repr(self), [tuple(row.values()) for row in table.to_pylist()], table.column_names)


# ----------------------------------------------------------------------------------------------------
# The columns of data in the form of a model, in the data's units, and the scores.


def columns_of(tables: Dataset, form: DataForm) -> Iterator[Values]:
    """The columns of nodes and of edges, with the numbers of the tables; of a column of text the categories that
    training had. Columns that other members send are in no table."""
    names = list(form.columns) or list(contents.names(tables))
    yield from _columns("node", [name for name in names if not is_exchanged(name)], tables.x, names)
    attributes = tables.edge_attrs
    if attributes is not None and attributes.features is not None:
        called = attributes.columns or tuple(f"edge feature {at}" for at in range(attributes.width))
        yield from _columns("edge", called, attributes.features, called, attributes.dates)


def _columns(
    of: str, chosen: Sequence[str], x: "np.ndarray | sp.csr_matrix", names: Sequence[str], dates: str = ""
) -> Iterator[Values]:
    held = x if isinstance(x, np.ndarray) else sp.csc_matrix(x)

    def column(at: int) -> np.ndarray:
        content = held[:, at] if isinstance(held, np.ndarray) else held[:, [at]].toarray()[:, 0]
        return np.asarray(content, np.float64)

    groups, place = dict[str, list[int]](), {name: at for at, name in enumerate(names)}
    for name in chosen:
        at = place[name]
        groups.setdefault(contents.column(name).of or name, []).append(at)
    for name, places in groups.items():
        if not contents.column(names[places[0]]).of:
            yield Values(name, of, column(places[0]), dates=name == dates)
            continue
        category = np.full(held.shape[0], -1)
        for number, at in enumerate(places):
            category[column(at) > HALF] = number
        yield Values(name, of, category, tuple(contents.column(names[at]).value for at in places))


def scores_of(table: pa.Table) -> Iterator[Values]:
    """The scores in a table of predictions: of the class that is looked for; of classes the predicted one and its
    probability; of labels each probability; or the numbers."""
    wide = [name for name in table.column_names if name.startswith("p_")]
    if "score" in table.column_names:
        yield Values("score", "score", table["score"].to_numpy().astype(np.float64))
    elif wide and "predicted" in table.column_names:
        p = np.stack([table[name].to_numpy() for name in wide], 1)
        yield Values("predicted class", "score", p.argmax(1), tuple(name.removeprefix("p_") for name in wide))
        yield Values("probability of the predicted class", "score", p.max(1).astype(np.float64))
    else:
        for name in wide or [name for name in table.column_names if name.startswith("predicted")]:
            yield Values(name.removeprefix("p_"), "score", table[name].to_numpy().astype(np.float64))


def reference(
    model: str, columns: Sequence[Values], table: pa.Table, unseen: np.ndarray | None, examples: int
) -> Reference:
    """The histograms of training.

    table: the predictions of its examples. unseen: bool [e], those that were not trained on, whose scores count where
    there are any: a model knows its training examples better than new ones.
    """
    use = unseen if unseen is not None and unseen.any() else np.ones(len(table), bool)
    chosen = table.filter(pa.array(use))
    flagged = int(np.sum(chosen["flagged"].to_numpy(zero_copy_only=False))) if "flagged" in table.column_names else None
    histograms = [one.histogram for one in (*columns, *scores_of(chosen))]
    return Reference(model, examples, len(chosen), use is unseen, tuple(histograms), flagged)


def reference_of_run(run: Trained, model: str | None, client: str | None) -> tuple[Scorer, Reference]:
    """The scorer of a model of a simulation's run, and the histograms of the run's tables, and of their scores by that
    model; of what `client` alone holds, if it is named."""
    choice = choose_model(run, model, client)
    scorer = scorer_of_run(run, choice)
    clients, data = list(run.built.fed.clients), run.built.data
    tables = replace(load_tables(run.config), public=_used(run), scaling="none")
    if client is not None:
        [tables] = shares(tables, [run.seen.parts[clients.index(client)]])
    elif run.config.forget is not None:
        [tables] = shares(tables, pool_clients(run.seen, data).parts)
    if tables.edge_attrs is not None and data.edge_attrs is not None:
        tables = replace(tables, edge_attrs=tables.edge_attrs._replace(split_times=None, ports=data.edge_attrs.ports))
    scaled = with_scaled_nodes(with_scaled_edges(tables, scorer.form.edge_scaling), scorer.form.scaling)
    table = scorer.predicted(replace(scaled, target_scale=scorer.form.target_scale))
    used = np.asarray(tables.public)
    unseen = (used[VAL] | used[TEST]) & ~used[TRAIN]
    return scorer, reference(scorer.name, [*columns_of(tables, scorer.form)], table, unseen, tables.examples)


def _used(run: Trained) -> np.ndarray:
    """bool [3, e]: how the run used its examples; the global test as test examples."""
    used = np.zeros((3, run.built.data.examples), bool)
    test = global_test_part(run.built.data, run.built.partition)
    for part in (*run.seen.parts, *(() if test is None else (test,))):
        used[:, part.examples] |= part.masks
    return used


# ----------------------------------------------------------------------------------------------------
# Comparing new tables.


def drift(
    place: Path,
    tables: Path,
    threshold: float = THRESHOLD,
    model: str | None = None,
    client: str | None = None,
    when: When = "last",
) -> TableDrift:
    """How far the tables moved from what a model was trained on.

    place, model, client, when: see `scorer.scorer_at`.

    Raises:
        UserError: there is no model, or no histograms are kept with it. DataError: the tables are not valid, or differ
            in form from those of training; new categories are no such difference.
    """
    if (place / CONFIG).is_file():
        config = finished(place)
        check_alone(config)
        run = trained(place, config, "Name the site's folder as MODEL, where the data is.", when)
        scorer, before = reference_of_run(run, model, client)
    else:
        scorer = scorer_at(place, model, client, when)
        path = scorer_file(place).with_name(HISTOGRAMS)
        if not path.is_file():
            raise UserError(f"{path} is absent: this model has no histograms of training. {_REMEDY}", code="drift.none")
        before = Reference.load(path)
        if before.model != scorer.name:
            message = f"{path} is of model {before.model}, and the scorer is {scorer.name}. {_REMEDY}"
            raise UserError(message, code="drift.other-model")
    now = datetime.now(UTC)
    data, raw = load_new_data(scorer.before, tables, lenient=True)
    table = scorer.scored(data, now)
    values = [*columns_of(raw, scorer.form), *scores_of(table)]
    flagged = None
    if before.flagged is not None and "flagged" in table.column_names and len(table):
        share = float(np.mean(table["flagged"].to_numpy(zero_copy_only=False)))
        flagged = before.flagged / max(before.scored, 1), share
    return TableDrift(
        scorer.name,
        scorer.client,
        scorer.run,
        tables.name,
        now.isoformat(timespec="seconds"),
        threshold,
        (before.examples, data.examples),
        before.scored,
        before.unseen,
        _shifts(before.histograms, values),
        tuple(new_values(scorer.before, tables)),
        flagged,
    )


def _shifts(histograms: Sequence[Histogram], values: Sequence[Values]) -> tuple[Shift, ...]:
    present, result = {(one.of, one.name): one for one in values}, list[Shift]()
    pairs = [(one, present[one.of, one.name]) for one in histograms if (one.of, one.name) in present]
    for before, column in pairs:
        content = column.content
        if before.kind == "category":  # the places of the new values among the earlier
            place = np.array([before.values.index(one) if one in before.values else -1 for one in column.values] + [-1])
            content = place[content]
        counts = before.count(content)
        shares = [np.array(each) / max(sum(each), 1) for each in (before.counts, counts)]
        at = int(np.abs(shares[1] - shares[0]).argmax())
        moved = before.bin_name(at), float(shares[0][at]), float(shares[1][at])
        index = stability_index(before.counts, counts)
        distance = kolmogorov_smirnov(before.counts, counts) if before.kind != "category" else None
        chance = by_chance(before.counts, counts, len(pairs))
        if not math.isnan(index):
            result.append(Shift(before.name, before.of, before.kind, index, chance, distance, moved))
    return tuple(sorted(result, key=lambda one: -one.stability))


def new_values(before: InputFormat, tables: Path) -> Iterator[NewValues]:
    """Values in columns of text of the tables that are none of the model's categories."""
    edges = () if before.edge_attrs is None else before.edge_attrs.columns
    for of, names in (("node", before.columns), ("edge", edges)):
        known = dict[str, set[str]]()
        for one in map(contents.column, names):
            if one.kind == "category":
                known.setdefault(one.of, set()).add(one.value)
        if not known or not any(tables.glob(f"{of}s.*")):
            continue
        rows = read_rows(find(tables, f"{of}s"))
        for column in known.keys() & {*rows.columns}:
            cells = [text for text in rows.texts(column).to_pylist() if text is not None and not is_gap(text)]
            if odd := [text for text in cells if text not in known[column]]:
                values = tuple(sorted({*odd})[:MOST_NEW])
                yield NewValues(column, of, values, len(odd), len(cells))
