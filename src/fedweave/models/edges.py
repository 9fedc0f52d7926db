"""A head that lets any node model classify edges: an MLP on both ends' embeddings and the edge's own features."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.edge_attributes import EXAMPLE_FEATURES, EXAMPLE_SOURCE, EXAMPLE_TARGET, EdgeAttributes
from fedweave.core.graph import Graph
from fedweave.core.links import Links
from fedweave.core.model import Architecture, Hidden, Layer, Model, rows_of
from fedweave.core.plugins import Maker, note
from fedweave.core.tree import Tree
from fedweave.errors import ConfigError
from fedweave.models import blocks
from fedweave.models.directions import sum_of_products
from fedweave.models.edge_settings import check_edge_features, fit_to_edges, has_ports
from fedweave.models.links import head_settings, on_links
from fedweave.ops.linear import linear


@dataclass(frozen=True)
class OnEdges:
    """A model for edges as examples: `of` gives each node an embedding h, and an edge (u, v) with features e has the
    logits MLP([h_u ‖ h_v ‖ e]) with one hidden layer. The head has the width and dropout of `of`.

    of:            the model, such as models.GINE(), whose `pool` is "none".
    edge_features: how many features edges have.
    """

    of: Architecture
    edge_features: int = 0

    def build(self, features: int, classes: int) -> Model:
        """Build the model from `features` columns to `classes` logits of each edge.

        Raises:
            ConfigError: `of` gives no row to each node.
        """
        blocks.check_shape(features, classes)
        width, dropout = head_settings(self.of)
        nodes = self.of.build(features, width)
        if models.example(nodes) != "node":
            raise ConfigError("the examples are edges, and the model pools small graphs; set model.pool = 'none'.")
        reading = blocks.with_activation(readout(width, width, self.edge_features), dropout)
        return note((*nodes, reading, blocks.affine(width, classes)), Maker(self.of, (features, classes)))


def on_examples(
    model: Architecture, attributes: EdgeAttributes | None, links: Links | None = None, decoder: str = "dot"
) -> Architecture:
    """The plug-in `model` with the head that the examples need: a readout of embeddings if edges are the examples, a
    `decoder` if `links` are the examples."""
    if links is not None:
        return on_links(model, links, decoder)
    if attributes is None or not attributes.examples:
        return model
    return OnEdges(model, attributes.width + 2 * attributes.ports)


def model_for(
    model: Architecture,
    attributes: EdgeAttributes | None,
    features: int,
    classes: int,
    links: Links | None = None,
    decoder: str = "dot",
) -> Model:
    """Build the plug-in's model for these edge attributes, with a head if edges or `links` are the examples.

    Raises:
        ConfigError: the model reads another number of edge features.
    """
    kind = fit_to_edges(model, attributes)
    check_edge_features(kind, attributes)
    return on_examples(kind, attributes, links, decoder).build(features, classes)


def model_of_form(
    model: Architecture, form: Mapping[str, int | bool], features: int, classes: int, decoder: str = "dot"
) -> Model:
    """`model_for` data that only `Dataset.edge_form` describes; {} if models read nothing of edges."""
    attributes = EdgeAttributes.of_form(form, has_ports(model)) if form else None
    links = Links(relations=tuple(map(str, range(form["relations"])))) if form.get("relations") else None
    return model_for(model, attributes, features, classes, links, decoder)


def readout(fan_in: int, fan_out: int, edge_features: int) -> Layer:
    """W [ReLU(h_u) ‖ ReLU(h_v) ‖ e_uv] + b of every edge (u, v) that is an example: [n, in] -> [e, out], initialized
    like `torch.nn.Linear`."""

    def init(key: Tensor) -> Tree:
        sizes = {"_source": fan_in, "_target": fan_in} | ({"_edge": edge_features} if edge_features else {})
        total, weights = sum(sizes.values()), {}
        for name, size in sizes.items():
            weights[f"weight{name}"] = blocks.lecun(random.fold(key, "weight", name), (size, fan_out), total)
        return weights | {"bias": blocks.lecun(random.fold(key, "bias"), (fan_out,), total)}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        h = torch.relu(rows_of(h))
        parts = [
            (EXAMPLE_SOURCE, linear(h, w["weight_source"]) + w["bias"]),
            (EXAMPLE_TARGET, linear(h, w["weight_target"])),
        ]
        if edge_features:
            parts.append((EXAMPLE_FEATURES, w["weight_edge"]))
        return sum_of_products(graph, *parts)

    return Layer(init, apply, operator=EXAMPLE_SOURCE)
