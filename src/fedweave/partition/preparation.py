"""From a holder's tables to what a model reads, in three steps: features of edges are scaled, edges to nodes elsewhere
become columns of nodes, and the features of nodes are scaled. With "auto" features of edges are scaled last: each
holder scales them by its own edges, so that columns of edges to nodes elsewhere are made of the tables' numbers.

Training, prediction, scores, drift and reasons take these functions in this order. A scaling is a record: "how"
(`datasets.features.NORMALIZE`), and in a model's form also the "shift" and "divisor" of each column, from its training.
Without these numbers, the data is scaled by its own.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.edges import EdgeScaler, edge_scaler, scaling_numbers
from fedweave.datasets.external import WIDENING
from fedweave.datasets.features import AUTO, ScalingNumbers, by_holder, compact, scale_by_holders, scaled_by
from fedweave.datasets.structure import filled
from fedweave.partition.external import member_data


class ModelData(NamedTuple):
    """data: as a model reads it. tables: in the same columns, with the numbers of the tables."""

    data: Dataset
    tables: Dataset


def model_data(
    raw: Dataset, external: str, edges: Record, nodes: Record, arrange: Callable[[Dataset], Dataset] = lambda data: data
) -> ModelData:
    """The `raw` data of one holder as a model reads it.

    external: see `datasets.external.EXTERNAL`. edges, nodes: the scaling of their features. arrange: brings the
    columns of nodes into a model's order before they are scaled.
    """
    unscaled = arrange(with_edge_columns(raw, edges, external))
    return ModelData(with_scaled_nodes(unscaled, nodes), filled(replace(unscaled, edge_attrs=raw.edge_attrs)))


def with_edge_columns(data: Dataset, scaling: Record, external: str) -> Dataset:
    """The data of one holder with scaled features of edges, and with columns of its edges to nodes elsewhere; see
    `with_scaled_edges`."""
    if scaling["how"] == AUTO:
        return with_scaled_edges(with_external_columns(data, external), scaling)
    return with_external_columns(with_scaled_edges(data, scaling), external)


def with_scaled_edges(
    data: Dataset, scaling: Record, end: float = math.inf, examples: np.ndarray | None = None
) -> Dataset:
    """The data with scaled features of its edges, also of edges to nodes elsewhere.

    Without numbers in the `scaling`, all these edges up to `end`, when training ends, count, and with "auto" those
    among its own nodes; where edges are the examples, only `examples`, bool [e].

    Raises:
        DataError: there is no edge until training ends.
    """
    attributes, outside = data.edge_attrs, data.outside
    if attributes is None or attributes.features is None or scaling == {"how": "none"}:
        return data
    if scaling == {"how": AUTO} and attributes.scaling:  # as an archive of scaled ones says
        return data
    if "shift" in scaling:
        scaler = EdgeScaler.of_numbers(**scaling)
    else:
        counted = attributes if examples is None or data.example != "edge" else attributes.select(examples)
        among = [counted]
        if outside is not None and scaling["how"] != AUTO:
            among.append(outside.edge_attrs)
        scaler = edge_scaler(among, scaling["how"], data.name, end)
    if outside is not None:
        outside = outside._replace(edge_attrs=scaler.apply(outside.edge_attrs))
    return replace(data, edge_attrs=scaler.apply(attributes), outside=outside)


def with_external_columns(data: Dataset, how: str) -> Dataset:
    """The data with the columns that one holder derives from its edges to nodes elsewhere."""
    return member_data(data, how) if how in WIDENING else data


def with_scaled_nodes(data: Dataset, scaling: Record) -> Dataset:
    """The data of one holder with scaled features of nodes, and the columns of its graph's structure."""
    data = replace(data, scaling="none")
    if "shift" in scaling:
        return filled(replace(data, x=compact(scaled_by(data, scaling["how"], numbers_in(scaling)))))
    return filled(by_holder(scale_by_holders(data, scaling["how"], data.name)))


def edge_scaling_record(attributes: EdgeAttributes, how: str) -> Record:
    """How the features of edges were scaled, with the numbers that this took."""
    if not attributes.scaling:
        return {"how": how}
    return scaling_record(how, scaling_numbers(attributes))


def numbers_in(scaling: Record) -> ScalingNumbers:
    """The numbers of a scaling with numbers."""
    divisor = np.array([math.inf if value is None else value for value in scaling["divisor"]])
    shift = np.array(scaling["shift"], np.float64)
    return ScalingNumbers(shift, divisor, np.array(scaling.get("asinh", [False] * len(shift)), bool))


def scaling_record(how: str, numbers: ScalingNumbers) -> Record:
    """A scaling by these numbers, without "asinh" where no column needs it."""
    finite = [value if math.isfinite(value) else None for value in numbers.divisor.tolist()]
    asinh = {"asinh": numbers.asinh.tolist()} if numbers.asinh.any() else {}
    return {"how": how, "shift": numbers.shift.tolist(), "divisor": finite, **asinh}
