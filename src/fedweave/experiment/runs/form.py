"""What a run's data calls its columns and classes, and how it is scaled: one record, whatever the data came as.

It is kept in the run's directory, and `predict` and `export` go by it.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from fedweave import datasets
from fedweave.core.carried import Carried
from fedweave.core.records import Record
from fedweave.datasets import contents
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import BY_NODES, scaling
from fedweave.experiment.config import Config
from fedweave.experiment.prepared import prepared, seen_by
from fedweave.experiment.runs.files import COLUMNS, damaged, read_table, write_table
from fedweave.partition.base import Partition
from fedweave.partition.scaling import of_typical

_ABOUT = b"form"  # metadata of the table: JSON of what is not of a single column


@dataclass(frozen=True)
class Form:
    """What data a model wants.

    columns, labels: names of the features and of the classes in order; () where they have none, or where sites alone
    know them. example: "node", "graph" or "edge". scaling: of the features, "how", and where that depends on the run's
    nodes "shift" and "divisor" of every column, the latter None for those that become 0. edges: what they carry,
    `Dataset.edge_form` and, where they are known, their features' "columns" and "scaling"; None where they carry
    nothing.
    """

    features: int
    classes: int
    columns: Sequence[str]
    labels: Sequence[str]
    example: str
    scaling: Record
    edges: Record | None = None


def form_of(data: Dataset, how: str, raw: object = None, edges: str = "none") -> Form:
    """The form of `data`, which is scaled as `how` says, and features of its edges as `edges`; raw: its features [n, d]
    as they were before, where that depends on the nodes."""
    names = contents.names(data)
    known = () if all(map(contents.is_unnamed, names)) else names
    own = None if data.carried is None else {**data.edge_form, **_of_edges(data.carried, edges)}
    return Form(data.features, data.classes, known, data.labels, data.example, numbers(raw, how), own)


def _of_edges(carried: Carried, how: str) -> Record:
    shift, divisor = ([pair[at] for pair in carried.scaling] for at in range(2))
    scaling = {"how": how} | ({"shift": shift, "divisor": [one or None for one in divisor]} if shift else {})
    return {"columns": list(carried.columns), "scaling": scaling}


def numbers(x: object, how: str) -> Record:
    """`Form.scaling` of features x [n, d], as they are."""
    if how not in BY_NODES:
        return {"how": how}
    return told(how, *scaling(x, how))


def told(how: str, shift: np.ndarray, divisor: np.ndarray) -> Record:
    """`Form.scaling` by these numbers."""
    finite = [value if math.isfinite(value) else None for value in divisor.tolist()]
    return {"how": how, "shift": shift.tolist(), "divisor": finite}


def form_of_config(config: Config, data: Dataset, partition: Partition) -> Form:
    """The form of the `data` that a configuration names. Where every client of the `partition` scales by its own nodes,
    the numbers are a typical client's (`of_typical`)."""
    how = config.data.values.get("normalise", "none")
    of_edges = config.data.values.get("edge_normalise", "none")
    if data.scaling != "none":
        seen = seen_by(config.algorithm, partition, data)
        return replace(form_of(data, "none", None, of_edges), scaling=told(data.scaling, *of_typical(data, seen)))
    return form_of(data, how, unscaled(config) if how in BY_NODES else None, of_edges)


def unscaled(config: Config) -> np.ndarray | sp.csr_matrix:
    """The features of the run's data as they are."""
    if config.external != "refuse":
        return prepared(config, with_scaling=False)[0].x
    raw = {**config.data.values, "normalise": "none"}
    return datasets.load(config.data.name, path=config.folder, seed=config.general.seed, **raw).x


def write_form(directory: Path, form: Form) -> None:
    """Write columns.parquet: a row for each column, its name, kind and value (`datasets.contents`), shift, divisor."""
    columns = [contents.column(name) for name in form.columns or contents.unnamed(0, form.features)]
    empty = [None] * form.features
    table = pa.table(
        {
            "column": pa.array([own.name for own in columns], pa.string()),
            "kind": pa.array([own.kind for own in columns], pa.string()),
            "value": pa.array([None if own.kind == "number" else own.value for own in columns], pa.string()),
            **{key: pa.array(form.scaling.get(key, empty), pa.float64()) for key in ("shift", "divisor")},
        }
    )
    about = {"classes": form.classes, "labels": list(form.labels), "example": form.example, "how": form.scaling["how"]}
    about |= {} if form.edges is None else {"edges": form.edges}
    write_table(directory / COLUMNS, table.replace_schema_metadata({_ABOUT: json.dumps(about)}))


def read_form(directory: Path) -> Form | None:
    """The form of the data of the run in `directory`; None where an earlier version made it.

    Raises:
        FedweaveError: the file is damaged.
    """
    path = directory / COLUMNS
    if not path.exists():
        return None
    table = read_table(directory, COLUMNS)
    try:
        about = json.loads((table.schema.metadata or {})[_ABOUT])
        names, how = table["column"].to_pylist(), about["how"]
        held = {key: table[key].to_pylist() for key in ("shift", "divisor")} if how in BY_NODES else {}
        known = () if all(map(contents.is_unnamed, names)) else tuple(names)
        labels, example = tuple(map(str, about["labels"])), about["example"]
        if example not in ("node", "graph", "edge") or len(labels) not in (0, about["classes"]):
            raise ValueError(f"it is of {example}s of {about['classes']} classes, of which {len(labels)} have names")
        scaling = {"how": how, **held}
        return Form(len(names), about["classes"], known, labels, example, scaling, about.get("edges"))
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path, f"{type(error).__name__} {error}") from error
