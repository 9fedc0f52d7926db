"""How a model adapts to the edge attributes of the data, by its settings `edge_features`, `weighted` and `ports`."""

import dataclasses
from typing import Any

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.model import Architecture
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.models.module import OwnModule

# What None, "as the data has it", means in these settings for edges without attributes.
WITHOUT_ATTRIBUTES = {"edge_features": 0, "weighted": False}
_REMEDIES = {
    "directions": 'gcn, gat, gine and pna take them, with model.directed = "both"; rgcn always does',
    "weights": "gcn takes them; others take them as features (data.edge_features)",
    "features": "gine, pna and gat take them",
}


def edge_width(model: Architecture) -> int:
    """Number of edge features that the plug-in's model reads, ports included."""
    return (getattr(model, "edge_features", None) or 0) + 2 * has_ports(model)


def has_ports(model: Architecture) -> bool:
    """Whether the plug-in's model reads ports of edges. model: a plug-in, not its layers."""
    return bool(getattr(model, "ports", False))


def add_ports(data: Dataset, model: Architecture) -> Dataset:
    """The data with ports as two further features of its edges, if the plug-in's model reads ports.

    model: a plug-in after `fit_to_edges`.

    Raises:
        ConfigError: the edges have no direction; or they have features that the model leaves out, when it cannot read
            the ports beside them.
    """
    if not has_ports(model):
        return data
    if data.edge_attrs is None or not data.edge_attrs.directed:
        raise ConfigError(f"model.ports = true: the edges of {data.name!r} have no direction. Set data.directed.")
    if data.edge_attrs.width and not getattr(model, "edge_features", 0):
        raise ConfigError("model.ports = true: edge_features = 0 leaves out the ports. Remove model.edge_features.")
    return dataclasses.replace(data, edge_attrs=data.edge_attrs._replace(ports=True))


def fit_to_edges(model: Any, edge_attrs: EdgeAttributes | None) -> Any:
    """The plug-in with `edge_features` and `weighted` set from the edge attributes where these settings are None."""
    if isinstance(model, OwnModule):
        return model.fit_to_edges(edge_attrs)
    changes: dict[str, int | bool] = {}
    if getattr(model, "edge_features", 0) is None:
        changes["edge_features"] = 0 if edge_attrs is None else edge_attrs.width
    if getattr(model, "weighted", False) is None:
        changes["weighted"] = edge_attrs is not None and edge_attrs.weight is not None
    return dataclasses.replace(model, **changes) if changes else model


def unused_attribute_warnings(model: object, edge_attrs: EdgeAttributes | None) -> list[str]:
    """A warning for each kind of edge attributes that the data has and the plug-in's model does not use. model: after
    `fit_to_edges`."""
    if edge_attrs is None:
        return []
    inputs = model.inputs if isinstance(model, OwnModule) else ()
    unused = []
    if edge_attrs.directed and getattr(model, "directed", "none") == "none":
        unused.append("directions")
    if edge_attrs.weight is not None and not getattr(model, "weighted", False) and "edge_weight" not in inputs:
        unused.append("weights")
    if edge_attrs.width and not getattr(model, "edge_features", 0) and "edge_attr" not in inputs:
        unused.append("features")
    return [f"this model does not use the edges' {what}; {_REMEDIES[what]}" for what in unused]


def check_edge_features(model: object, edge_attrs: EdgeAttributes | None) -> None:
    """Check that the model reads all features of the edges, or none; ports do not count.

    Raises:
        ConfigError: it reads another number; the message names both.
    """
    width, available = getattr(model, "edge_features", None), 0 if edge_attrs is None else edge_attrs.width
    if width is not None and width not in (0, available):
        raise ConfigError(
            f"model.edge_features = {width}: the data's edges have {available} features. Set {available}."
        )
