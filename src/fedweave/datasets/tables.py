"""Tables of nodes and edges, and of small graphs, wherever they were read: checked in one place, and made a `Dataset`.

Everything that is wrong in them is told at once, with file, row and remedy.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.records import Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.carrying import ALL, Carrying, carried_of, of_nodes, skeleton
from fedweave.datasets.check import check, refuse
from fedweave.datasets.columns import (
    AUTO,
    EDGES,
    NODES,
    OF_EDGES,
    check_columns,
    check_gaps,
    ends_of,
    feature_names,
    features_of,
    gaps_filled,
    gaps_of,
    group_names,
    ids_of,
    owners_of,
    seen,
    sens_of,
    split_of,
    spread,
)
from fedweave.datasets.features import compact, scaled_by_holders, with_constant, without_sens
from fedweave.datasets.table import Table, Tables
from fedweave.errors import ConfigError, DataError, Faults

Parts = dict[str, Callable[[Record], object]]


@dataclass(frozen=True)
class Tabular(Carrying):
    """Tables that become one data set.

    owner: the column of the examples, or of nodes where these are edges, that says whose each is, for the partition
           "column"; it is no feature.
    """

    owner: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.owner in NODES:
            raise ConfigError(
                f"data: owner = {self.owner!r} already means something else; name another column.",
                code="config.column-taken",
            )

        check_gaps(self.missing, self.categories)

    @property
    def known(self) -> tuple[str, ...]:
        """The columns of nodes that are no features."""
        return NODES

    def made(self, tables: Tables, root: Path, labelled: bool = True) -> Dataset:
        """The data set; `root` is what complaints about several tables name, its last part the data's name.

        labelled: False for examples to be predicted, which need no labels and whose split does not matter.

        Raises:
            DataError: the tables are refused; the message names file, row (see `table.Table`) and remedy, of each of
                the first 20 faults.
        """
        self.check_form(tables, labelled)
        if AUTO in (self.categories or {}).values():
            return replace(self, categories=self.seen_in(tables)).made(tables, root, labelled)
        nodes = gaps_filled(spread(tables.nodes, self.known), gaps_of(self.missing, of_edges=False))
        if nodes.rows == 0:
            refuse(nodes.path, "the table has no rows", "Give one row per node.")
        tables = self.arranged(tables._replace(nodes=nodes))
        faults, found = Faults(DataError), Record()
        for name, part in self.parts(tables, labelled).items():
            with faults:
                found[name] = part(found)
        faults.refuse()
        found["labels"] = self.names_of(self.examples(tables))
        found["y"], found["classes"] = found.pop("labelled")
        data = with_constant(Dataset(name=root.resolve().name, **self.finished(tables, found)))
        without_sens(data, (tables.edges if self.of_edges else tables.nodes).path, self.sens_feature)
        data = scaled_by_holders(replace(data, x=compact(data.x)), self.normalise, root.name)
        return check(data, root, labelled)

    def check_form(self, tables: Tables, labelled: bool) -> None:
        """Refuse tables without columns that they must have, or with others that they may not."""
        known = (*EDGES, *self.chosen, *self.said)
        required = (*EDGES, *self.chosen, *(["label"] if self.of_edges and labelled else []))
        hint = "data.edge_features takes them, and data.edge_weight and edge_time one"
        if "label" in tables.edges.columns and not self.said:
            hint += ", and data.task = 'edges' makes each an example"
        check_columns(tables.edges, required, known, closed=self.edge_features != ALL, hint=hint)

    def seen_in(self, tables: Tables) -> dict[str, str | tuple[str, ...]]:
        """The categories, those that are "auto" as the values of training rows: where the examples have a column split,
        those of which it says "train", and the nodes of such small graphs; else all."""
        found = dict(self.categories or {})
        for name in (name for name, values in found.items() if values == AUTO):
            table = tables.edges if name.startswith(OF_EDGES) else tables.nodes
            found[name] = seen(table, name.removeprefix(OF_EDGES), self._trains(tables, table))
        return found

    def _trains(self, tables: Tables, table: Table) -> np.ndarray | None:
        """bool [rows] of a table, those of examples whose split is "train"; None where nothing says so."""
        examples = self.examples(tables)
        if "split" not in examples.columns:
            return None
        trains = pc.fill_null(pc.equal(examples.texts("split"), "train"), False)
        if tables.graphs is not None and table is tables.nodes:
            trains = pc.is_in(table.filled("graph"), ids_of(examples).filter(trains))
        elif table is not examples:
            return None
        rows: np.ndarray = trains.to_numpy(zero_copy_only=False)
        return rows if rows.any() else None

    def arranged(self, tables: Tables) -> Tables:
        """The tables with nodes in the order of the data set's."""
        return tables

    def parts(self, tables: Tables, labelled: bool) -> Parts:
        """What is read of the tables, in order, each from what was read before it."""
        nodes, edges, examples = tables.nodes, tables.edges, self.examples(tables)
        whose, known, categories = tables.graphs or nodes, self.known, of_nodes(self.categories)
        example = "graph" if tables.graphs else "edge" if self.of_edges else "node"
        split, owned = labelled and "split" in examples.columns, self.owner in whose.columns
        return {
            "ids": lambda found: ids_of(nodes),
            "labelled": lambda found: self.labels_of(examples, labelled),
            "x": lambda found: features_of(nodes, known, categories, apart=labelled),
            "columns": lambda found: feature_names(nodes, known, categories),
            "sens": lambda found: sens_of(examples, self.groups),
            # where sens was refused, its names would be refused for the same
            "groups": lambda found: group_names(examples, self.groups) if "sens" in found else (),
            "public": lambda found: (
                split_of(examples, found["labelled"][0], example) if split and "labelled" in found else None
            ),
            "owners": lambda found: owners_of(whose, self.owner or "") if owned else (),
            "owner": lambda found: whose.kinds(self.owner or "", found["owners"]) if found.get("owners") else None,
            "elsewhere": lambda found: pa.array([], "str"),
            "ends": lambda found: (
                ends_of(edges, pa.concat_arrays([found["ids"], found["elsewhere"]]), self.loops)
                if {"ids", "elsewhere"} <= found.keys()
                else None
            ),
            "carried": lambda found: (
                carried_of(edges, found["ends"], self, self.categories) if found.get("ends") else None
            ),
        }

    def finished(self, tables: Tables, found: Record) -> Record:
        """The fields of the data set, of all that was found in the tables."""
        ends, _ = found["ends"]
        found = {name: held for name, held in found.items() if name not in ("ends", "elsewhere")}
        return found | {"ids": tuple(found["ids"].to_pylist()), "edges": skeleton(ends, tables.nodes.rows)}
