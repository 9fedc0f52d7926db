"""Tables of nodes and edges, and of small graphs, from any source, checked and read as one `Dataset`."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.types import Record
from fedweave.datasets import columns
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.check import check, refuse
from fedweave.datasets.column_names import EDGES, NODES, OF_EDGES, check_columns, refuse_row_as_names
from fedweave.datasets.edge_tables import ALL, EdgeTables, edge_attributes_of, of_nodes
from fedweave.datasets.features import compact, scale_by_holders, with_constant
from fedweave.datasets.leakage import check_sensitive
from fedweave.datasets.structure import with_places
from fedweave.datasets.table import Table, Tables
from fedweave.errors import ConfigError, DataError, Faults

_LOG = logging.getLogger(__name__)
Parts = dict[str, Callable[[Record], object]]


@dataclass(frozen=True)
class Tabular(EdgeTables):
    """Tables that become one data set.

    owner: the column of the examples, or of nodes where these are edges, with their owners, for the partition "column";
           it is not a feature.
    """

    absent_end: ClassVar[str] = columns.ABSENT_END  # the remedy for an edge to an id that is not a node
    owner: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.owner in NODES:
            message = f"data: owner = {self.owner!r} already means something else; name another column."
            raise ConfigError(message, code="config.column-taken")
        columns.check_gaps(self.missing, self.categories)
        for name in self.targets or ():
            if name in (self.owner, *columns.gap_columns(self.missing, self.of_edges)):
                raise ConfigError(
                    f"data.targets: {name!r} is also in data.missing or data.owner. Name it once; targets may have "
                    "gaps as they are.",
                    code="config.conflict",
                )

    @property
    def special_columns(self) -> tuple[str, ...]:
        """The columns of nodes that are not features."""
        return NODES if self.of_edges else (*NODES, *(self.targets or ()))

    def build(self, tables: Tables, root: Path, labelled: bool = True) -> Dataset:
        """The data set; errors about several tables name `root`, and its last part is the data's name.

        labelled: False for examples to be predicted, which need no labels and whose split does not matter.
        """
        settings = self.with_targets(self.examples(tables))
        if settings is not self:
            return settings.build(tables, root, labelled)
        self.check_form(tables, labelled)
        # 1. Categories "auto" are the values of training rows.
        if columns.AUTO in (self.categories or {}).values():
            categories = dict(self.categories or {})
            for name in [name for name, values in categories.items() if values == columns.AUTO]:
                table = tables.edges if name.startswith(OF_EDGES) else tables.nodes
                rows = self._training_rows(tables, table)
                categories[name] = columns.training_values(table, name.removeprefix(OF_EDGES), rows)
            return replace(self, categories=categories).build(tables, root, labelled)
        # 2. Every part is read, and all faults are refused together.
        nodes = columns.fill_gaps(
            columns.expand_lists(tables.nodes, self.special_columns), columns.gap_columns(self.missing, of_edges=False)
        )
        if nodes.rows == 0:
            refuse(nodes.path, "the table has no rows", "Give one row per node.")
        tables = self.arrange(tables._replace(nodes=nodes))
        faults, record = Faults(DataError), Record()
        for name, part in self.parts(tables, labelled).items():
            with faults:
                record[name] = part(record)
        faults.refuse()
        record["labels"] = self.names_of(self.examples(tables))
        record["y"], record["classes"] = record.pop("labelled")
        # 3. The data set.
        fields, examples = self.dataset_fields(tables, record), self.examples(tables)
        fields |= self.fields(fields["y"], self.targets or ((self.columns or {}).get("label", "label"),))
        data = with_constant(Dataset(name=root.resolve().name, **fields), self.of_links)
        if "label" not in self.target_columns and "label" in examples.columns:
            note = f"{examples.path}: the column label is not used, since data.targets lists the targets"
            data = replace(data, notes=(*data.notes, note))
        check_sensitive(data, (tables.edges if self.of_edges else tables.nodes).path, self.sens_feature)
        data = scale_by_holders(replace(data, x=compact(data.x)), self.normalize, root.name)
        return check(with_places(data, self.structure), root, labelled)

    def check_form(self, tables: Tables, labelled: bool) -> None:
        """Refuse tables without columns that they must have, or with others that they may not."""
        known = (*EDGES, *self.attribute_columns, *self.known_edge_columns)
        required = (*EDGES, *self.attribute_columns, *(self.target_columns if self.of_edges and labelled else []))
        hint = "list others in data.edge_features, or name one in data.edge_weight or data.edge_time"
        if "label" in tables.edges.columns and not self.known_edge_columns:
            hint += "; data.task = 'edges' makes each edge an example"
        ids = (lambda: tables.nodes.texts("id")) if "id" in tables.nodes.columns else None
        if ids is not None:
            refuse_row_as_names(tables.edges, [(self.columns or {}).get(name) for name in EDGES], ids())
        check_columns(tables.edges, required, known, closed=self.edge_features != ALL, hint=hint, ids=ids)

    def _training_rows(self, tables: Tables, table: Table) -> np.ndarray | None:
        """bool [rows] of a table, the rows of training: where the examples have a column split, rows with "train", and
        the nodes of such small graphs; None, for all rows, else."""
        examples = self.examples(tables)
        trains = columns.training_rows(examples)
        if trains is None or table is examples:
            return trains
        if tables.graphs is None or table is not tables.nodes:
            return None
        of_graphs = pc.is_in(table.nonempty_texts("graph"), columns.ids_of(examples).filter(pa.array(trains)))
        rows: np.ndarray = of_graphs.to_numpy(zero_copy_only=False)
        return rows if rows.any() else None

    def arrange(self, tables: Tables) -> Tables:
        """The tables with nodes in the order of the data set's nodes."""
        return tables

    def parts(self, tables: Tables, labelled: bool) -> Parts:
        """{name: the function that reads it} in order; each gets the record of the values before it."""
        nodes, edges, examples = tables.nodes, tables.edges, self.examples(tables)
        whose, known, categories = tables.graphs or nodes, self.special_columns, of_nodes(self.categories)
        example = "edge" if self.of_edges else "node"
        if tables.graphs:
            example = "graph"
        split, owned = labelled and "split" in examples.columns, self.owner in whose.columns
        return {
            "ids": lambda record: columns.ids_of(nodes),
            "labelled": lambda record: self.labels_of(examples, labelled),
            "x": lambda record: columns.features_of(nodes, known, categories, distinct=labelled),
            "columns": lambda record: columns.feature_names(nodes, known, categories),
            "sensitive": lambda record: columns.sens_of(examples, self.groups),
            # where that raised an error, its names would raise the same
            "groups": lambda record: columns.group_names(examples, self.groups) if "sensitive" in record else (),
            "public": lambda record: (
                columns.masks_of(examples, record["labelled"][0], example) if split and "labelled" in record else None
            ),
            "owners": lambda record: columns.owners_of(whose, self.owner or "") if owned else (),
            "owner": lambda record: whose.kinds(self.owner or "", record["owners"]) if record.get("owners") else None,
            "elsewhere": lambda record: pa.array([], "str"),
            "ends": lambda record: (
                columns.ends_of(
                    edges, pa.concat_arrays([record["ids"], record["elsewhere"]]), self.loops, self.absent_end
                )
                if {"ids", "elsewhere"} <= record.keys()
                else None
            ),
            "edge_attrs": lambda record: (
                edge_attributes_of(edges, record["ends"], self, self.edge_categories(record))
                if record.get("ends")
                else None
            ),
        }

    def edge_categories(self, record: Record) -> columns.Categories | None:
        """`categories`, with those of edge columns that the parts before know."""
        return self.categories

    def dataset_fields(self, tables: Tables, record: Record) -> Record:
        """The fields of the data set, from the values that `parts` read."""
        ends, _ = record["ends"]
        record = {name: value for name, value in record.items() if name not in ("ends", "elsewhere")}
        return record | {"ids": tuple(record["ids"].to_pylist()), "edges": to_undirected(ends, tables.nodes.rows)}
