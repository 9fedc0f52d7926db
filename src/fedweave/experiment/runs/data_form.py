"""The names of a run's columns and classes, and how its data is scaled: one record for all forms of data.

The run's directory has it, and `predict` and `export` read it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from fedweave import datasets
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.target import CLASS, LABELS, NUMBER
from fedweave.core.types import Record
from fedweave.datasets import contents
from fedweave.datasets.base import Dataset
from fedweave.datasets.edges import scaling_numbers, scaling_rows
from fedweave.datasets.external import WIDENING
from fedweave.datasets.features import BY_NODES, NORMALIZE, ScalingNumbers, feature_scaling_numbers
from fedweave.experiment.config import Config
from fedweave.experiment.loading import client_partition, load_data, read_and_cut
from fedweave.experiment.runs.files import COLUMNS, damage_error, read_table, write_table
from fedweave.partition.base import Part, Partition
from fedweave.partition.client_data import shares
from fedweave.partition.preparation import edge_scaling_record, scaling_record
from fedweave.partition.scaling import of_typical, typical

_ABOUT = b"form"  # metadata of the table: JSON of what is not of a single column


@dataclass(frozen=True)
class DataForm:
    """The form of the data that a model takes.

    columns, labels: names of the features and of the classes in order; () where they have none, or where only sites
    know them. example: "node", "graph" or "edge". scaling: of the features, "how", and where that depends on the run's
    nodes "shift", "divisor" and, if any takes it, "asinh" of every column (`datasets.features.ScalingNumbers`); the
    divisor is None for columns that become 0. edges: their attributes, `Dataset.edge_form` and, where they are known,
    their features' "columns" and "scaling"; None without edge attributes. targets: of numbers or several labels their
    "kind", "names" and, of numbers, the "scale" of a model's outputs, three rows (`Dataset.target_scale`); None of
    classes, and where only sites know it. numbered: the data named no column, so that `columns` follow from what they
    hold. kinds: nodes have kinds. structure: the fields of
    `Dataset.structure`; None without. graph_columns: likewise.
    """

    features: int
    classes: int
    columns: Sequence[str]
    labels: Sequence[str]
    example: str
    scaling: Record
    edges: Record | None = None
    targets: Record | None = None
    numbered: bool = False
    kinds: bool = False
    structure: Record | None = None
    graph_columns: Record | None = None

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for each example."""
        return self.classes if self.targets is None else int(self.targets["outputs"])

    @property
    def target_scale(self) -> np.ndarray | None:
        """float64 [3, t], the units of a model's outputs where these are numbers."""
        return None if self.targets is None or "scale" not in self.targets else np.array(self.targets["scale"])

    @property
    def edge_scaling(self) -> Record:
        """How features of edges are scaled, by the numbers of training."""
        scaling: Record = {"how": "none"} | ({} if self.edges is None else self.edges.get("scaling", {}))
        how = scaling.get("how", "none")
        if how not in NORMALIZE or (how in BY_NODES and "shift" not in scaling):
            return {**scaling, "how": "none"}  # as they are handed to a site; or training had no edges
        return scaling


def targets_form(data: Dataset) -> Record | None:
    """`DataForm.targets` of `data`."""
    if data.target == CLASS:
        return None
    about: Record = {"kind": data.target, "outputs": data.outputs, "names": list(data.targets)}
    if data.target_scale is not None:
        about["scale"] = data.target_scale.tolist()
    return about


def form_of(data: Dataset, how: str, raw: object = None, edges: str = "none") -> DataForm:
    """The form of `data`, which is scaled as `how` says, and features of its edges as `edges`; raw: its features [n, d]
    as they were before, where that depends on the nodes."""
    names = contents.names(data)
    edge_form = None
    if data.edge_attrs is not None:
        columns, edge_scaling = list(data.edge_attrs.columns), edge_scaling_record(data.edge_attrs, edges)
        edge_form = {**data.edge_form, "columns": columns, "scaling": edge_scaling}
    return DataForm(
        features=data.features,
        classes=data.classes,
        columns=() if all(map(contents.is_default_name, names)) else names,
        labels=data.labels,
        example=data.example,
        scaling=scaling_record(how, feature_scaling_numbers(replace(data, x=raw), how))
        if how in BY_NODES
        else {"how": how},
        edges=edge_form,
        targets=targets_form(data),
        numbered=not data.columns,
        kinds=data.node_labels is not None,
        graph_columns=None if data.graph_columns is None else data.graph_columns._asdict(),
        structure=None if data.structure is None else {**data.structure._asdict(), "kinds": list(data.structure.kinds)},
    )


def form_of_config(config: Config, data: Dataset, partition: Partition) -> DataForm:
    """The form of the `data` that a configuration names. Where every client of the `partition` scales by its own nodes,
    the numbers are a typical client's (`of_typical`)."""
    return form_of_clients(config, data, partition, client_partition(config.algorithm, partition, data))


def form_of_clients(config: Config, data: Dataset, partition: Partition, clients: Partition) -> DataForm:
    """`form_of_config` where `clients` is the partition that clients see."""
    how = config.data.values.get("normalize", "none")
    edges_how = config.data.values.get("edge_normalize", "none")
    if data.edge_attrs is not None and data.edge_attrs.auto:
        data = replace(data, edge_attrs=with_typical_scaling(data, clients.parts))
    if data.scaling == "none":  # scaled by the same numbers at all clients
        raw = _unscaled_features(config) if how in BY_NODES else None
        return form_of(data, how, raw, edges_how)
    form = form_of(data, "none", None, edges_how)
    if any(part.columns is not None for part in partition.parts):  # parties with columns of their own
        return form
    return replace(form, scaling=scaling_record(data.scaling, of_typical(data, clients)))


def with_typical_scaling(data: Dataset, parts: Sequence[Part]) -> EdgeAttributes | None:
    """The attributes of the edges of `data`, whose `scaling` are the numbers of a typical one of the clients that hold
    these parts, by which a model of all clients scales features of new edges."""
    if data.edge_attrs is None:
        return None
    numbers, sizes = list[ScalingNumbers](), list[int]()
    for share in shares(data, parts):
        attributes = share.edge_attrs
        if attributes is not None and attributes.total:
            numbers.append(scaling_numbers(attributes))
            sizes.append(attributes.total)
    if not numbers:
        return data.edge_attrs
    return data.edge_attrs._replace(scaling=scaling_rows(*typical(numbers, sizes)))


def _unscaled_features(config: Config) -> np.ndarray | sp.csr_matrix:
    """The features [n, d] of the run's data as they are, without rows of what the run forgets."""
    if config.external in WIDENING:
        return load_data(config, with_scaling=False)[0].x
    raw = {**config.data.values, "normalize": "none"}
    if config.forget is not None:
        rest = config.forget.apply(*read_and_cut(replace(config, forget=None), raw))
        return rest.data.x[rest.nodes]
    return datasets.read(config.data.name, path=config.folder, seed=config.general.seed, **raw).x


def write_form(directory: Path, form: DataForm) -> None:
    """Write columns.parquet: a row for each column, its name, kind and value (`datasets.contents`), shift, divisor and
    asinh."""
    columns = [contents.column(name) for name in form.columns or contents.default_names(0, form.features)]
    empty = [None] * form.features
    table = pa.table(
        {
            "column": pa.array([column.name for column in columns], pa.string()),
            "kind": pa.array([column.kind for column in columns], pa.string()),
            "value": pa.array([None if column.kind == "number" else column.value for column in columns], pa.string()),
            "shift": pa.array(form.scaling.get("shift", empty), pa.float64()),
            "divisor": pa.array(form.scaling.get("divisor", empty), pa.float64()),
            "asinh": pa.array(form.scaling.get("asinh", [False] * form.features), pa.bool_()),
        }
    )
    about = {"classes": form.classes, "labels": list(form.labels), "example": form.example, "how": form.scaling["how"]}
    optional = {"edges": form.edges, "targets": form.targets, "numbered": form.numbered, "kinds": form.kinds}
    optional |= {"structure": form.structure, "graph_columns": form.graph_columns}
    about |= {key: value for key, value in optional.items() if value not in (None, False)}
    write_table(directory / COLUMNS, table.replace_schema_metadata({_ABOUT: json.dumps(about)}))


def read_form(directory: Path) -> DataForm | None:
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
        names, classes, example = table["column"].to_pylist(), about["classes"], about["example"]
        labels = tuple(map(str, about["labels"]))
        if example not in ("node", "graph", "edge") or len(labels) not in (0, classes):
            raise ValueError(f"it is of {example}s of {classes} classes, and has {len(labels)} names of classes")
        scaling: Record = {"how": about["how"]}
        if scaling["how"] in BY_NODES:
            scaling |= {name: table[name].to_pylist() for name in ("shift", "divisor")}
            if "asinh" in table.column_names and any(table["asinh"].to_pylist()):
                scaling["asinh"] = table["asinh"].to_pylist()
        return DataForm(
            features=len(names),
            classes=classes,
            columns=() if all(map(contents.is_default_name, names)) else tuple(names),
            labels=labels,
            example=example,
            scaling=scaling,
            edges=about.get("edges"),
            targets=check_targets(about.get("targets")),
            numbered=about.get("numbered") is True,
            kinds=about.get("kinds") is True,
            structure=about.get("structure"),
            graph_columns=about.get("graph_columns"),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise damage_error(path, f"{type(error).__name__} {error}") from error


def check_targets(record: Record | None) -> Record | None:
    """`DataForm.targets` as a file has it.

    Raises:
        ValueError, KeyError, TypeError: it is not valid.
    """
    if record is None:
        return None
    names, outputs, scale = record["names"], record["outputs"], np.array(record.get("scale", []), np.float64)
    if record["kind"] == NUMBER:
        is_valid = scale.shape == (3, outputs) and bool(np.isfinite(scale).all())
    else:
        is_valid = record["kind"] == LABELS and "scale" not in record
    if not is_valid or len(names) not in (0, outputs):
        raise ValueError(f"its targets are {record}")
    return record
