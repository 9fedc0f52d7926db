"""What a model was trained on, as histograms of columns and scores.

A run's folder has the data of training. A model alone needs the histograms, which a site keeps next to its scorer in a
file of their own (`HISTOGRAMS`). The scorer has nothing of them.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from pydantic import TypeAdapter, ValidationError

from fedweave.apply.predictions import part_of
from fedweave.apply.scorer import Scorer, choose_model, scorer_of_run
from fedweave.core.graph import TEST, TRAIN, VAL
from fedweave.datasets import contents
from fedweave.datasets.base import Dataset
from fedweave.datasets.structure import filled
from fedweave.errors import UserError
from fedweave.experiment.loading import load_tables
from fedweave.experiment.runs.data_form import DataForm
from fedweave.experiment.runs.files import read, write
from fedweave.experiment.runs.trained import Trained
from fedweave.metrics.drift import Histogram, of_categories, of_numbers
from fedweave.metrics.selection import HALF
from fedweave.partition.client_data import global_test_part, pool_clients, shares
from fedweave.partition.external import is_exchanged
from fedweave.partition.preparation import with_scaled_edges, with_scaled_nodes

FORMAT = 1
REMEDY = (
    "Sites keep it after `fedweave sites run`, not after `sites predict`. With a run's folder as MODEL none is needed, "
    "and `fedweave export RUN --histograms` writes it."
)


class Values(NamedTuple):
    """The values of one column. of: "node", "edge" or "score". content: float64 [n]; of a category int64 [n], places in
    `values`, -1 for none. dates: whether they are days since 1970."""

    name: str
    of: str
    content: np.ndarray
    values: tuple[str, ...] = ()
    dates: bool = False


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
            for histogram in result.histograms:
                bins = len(histogram.values if histogram.kind == "category" else histogram.edges) + 1
                is_sorted = sorted(histogram.edges) == list(histogram.edges)
                if len(histogram.counts) != bins or min(histogram.counts) < 0 or not is_sorted:
                    raise ValueError(f"column {histogram.name!r} has {len(histogram.counts)} counts for {bins} bins")
        except (ValidationError, ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged: {error}. {REMEDY}", code="drift.damaged") from error
        return result


def columns_of(tables: Dataset, form: DataForm) -> list[Values]:
    """The columns of nodes and of edges, with the numbers of the tables; of a column of text the categories that
    training had. Columns that other members send are in no table."""
    names = list(form.columns) or list(contents.names(tables))
    columns = [column for column in _columns("node", names, tables.x) if not is_exchanged(column.name)]
    attributes = tables.edge_attrs
    if attributes is not None and attributes.features is not None:
        names = list(attributes.columns) or [f"edge feature {at}" for at in range(attributes.width)]
        columns += _columns("edge", names, attributes.features, attributes.dates)
    return columns


def _columns(of: str, names: Sequence[str], x: "np.ndarray | sp.csr_matrix", dates: str = "") -> Iterator[Values]:
    """The columns of x [n, d], of which several are one column of categories. dates: the one of dates, or ""."""
    groups = dict[str, list[int]]()
    for at, name in enumerate(names):
        groups.setdefault(contents.column(name).of or name, []).append(at)
    if not isinstance(x, np.ndarray):
        x = sp.csc_matrix(x)
    for name, places in groups.items():
        columns = []
        for at in places:
            column = x[:, at] if isinstance(x, np.ndarray) else x[:, [at]].toarray()[:, 0]
            columns.append(np.asarray(column, np.float64))
        if contents.column(names[places[0]]).of:
            category = np.full(x.shape[0], -1)
            for number, column in enumerate(columns):
                category[column > HALF] = number
            yield Values(name, of, category, tuple(contents.column(names[at]).value for at in places))
        else:
            yield Values(name, of, columns[0], dates=name == dates)


def scores_of(table: pa.Table) -> list[Values]:
    """The scores in a table of predictions: of the class that is looked for; of classes the predicted one and its
    probability; of labels each probability; or the numbers."""
    if "score" in table.column_names:
        return [Values("score", "score", table["score"].to_numpy().astype(np.float64))]
    outputs = [name for name in table.column_names if name.startswith("p_")]
    if outputs and "predicted" in table.column_names:
        p = np.stack([table[name].to_numpy() for name in outputs], 1)  # [examples, classes]
        classes = tuple(name.removeprefix("p_") for name in outputs)
        top = Values("probability of the predicted class", "score", p.max(1).astype(np.float64))
        return [Values("predicted class", "score", p.argmax(1), classes), top]
    names = outputs or [name for name in table.column_names if name.startswith("predicted")]
    return [Values(name.removeprefix("p_"), "score", table[name].to_numpy().astype(np.float64)) for name in names]


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
    histograms = []
    for column in [*columns, *scores_of(chosen)]:
        if column.values:
            histograms.append(of_categories(column.name, column.of, column.values, column.content))
        else:
            histogram = of_numbers(column.name, column.of, column.content, "date" if column.dates else "number")
            histograms.append(histogram)
    return Reference(model, examples, len(chosen), use is unseen, tuple(histograms), flagged)


def reference_of_run(run: Trained, model: str | None, client: str | None) -> tuple[Scorer, Reference]:
    """The scorer of a model of a simulation's run, and the histograms of the run's tables, and of their scores by that
    model; of what `client` alone holds, if it is named."""
    scorer, data = scorer_of_run(run, choose_model(run, model, client)), run.built.data

    # 1. How the run used its examples; the global test as test examples.
    used = np.zeros((3, data.examples), bool)
    test = global_test_part(data, run.built.partition)
    for part in (*run.visible_partition.parts, *(() if test is None else (test,))):
        used[:, part.examples] |= part.masks

    # 2. The tables: without scaling for their columns, scaled as the model reads them for its scores.
    tables = replace(load_tables(run.config), public=used, scaling="none")
    if client is not None:
        [tables] = shares(tables, [part_of(run, client)])
    elif run.config.forget is not None:
        [tables] = shares(tables, pool_clients(run.visible_partition, data).parts)
    if tables.edge_attrs is not None and data.edge_attrs is not None:
        tables = replace(tables, edge_attrs=tables.edge_attrs._replace(split_times=None, ports=data.edge_attrs.ports))
    tables = filled(tables)
    scaled = with_scaled_nodes(with_scaled_edges(tables, scorer.form.edge_scaling), scorer.form.scaling)
    table = scorer.predict(replace(scaled, target_scale=scorer.form.target_scale))
    used = np.asarray(tables.public)
    unseen = (used[VAL] | used[TEST]) & ~used[TRAIN]
    return scorer, reference(scorer.name, columns_of(tables, scorer.form), table, unseen, tables.examples)
