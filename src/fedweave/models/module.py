"""A user's own `torch.nn.Module` as a model, by `torch.func.functional_call`.

Its constructor takes the numbers of features and classes, then settings with types and defaults. `forward` takes x
float [n, features] and edge_index int64 [2, E], both directions of every edge. It may also take any of `INPUTS` by
name. It returns logits [n, classes], or [e, classes] for small graphs. n counts a client's nodes without padding, so
that layers may compare all nodes. The module runs for one client after the other (`runs_alone`) and reads numbers of
nodes and keys on the host. This takes longer than the models of this package. Dropout and first weights are drawn from
the run's keys.

Buffers that `core.tree.is_statistic` accepts, such as BatchNorm's, are leaves next to the weights; training sets them
to the values after a training step (`norms.RunningStatistic`). Other buffers are constants of the module. If `forward`
calls a method `embed`, the model has two layers: the first gives embeddings, and the second has no weights.
"""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Hidden, Layer, Model, TrialForm
from fedweave.core.plugins import Maker, note, remember_maker
from fedweave.core.tree import Tree, is_statistic
from fedweave.core.types import Values
from fedweave.errors import ConfigError, error_place
from fedweave.models.module_checks import (
    check_edge_inputs,
    check_weights,
    embeds,
    inputs_of,
    leaves_of,
    precision_notes,
    reads_edges,
    record_embeddings,
    seed_generators,
    try_out,
)
from fedweave.models.norms import RunningStatistic
from fedweave.ops.sparse import Sparse


@dataclass(frozen=True)
class ModuleKind:
    """Makes models of one class of modules: called with settings, it gives a plug-in like `models.GCN`."""

    module: type[nn.Module]

    def __call__(self, **values: object) -> "OwnModule":
        """Make the plug-in with these settings."""
        return OwnModule(self.module, values)

    @property
    def fields(self) -> "Mapping[str, dataclasses.Field[object]]":
        """The settings: the constructor's parameters after the first two.

        Raises:
            ConfigError: a setting has neither type nor default, or the constructor has fewer than two parameters.
        """
        parameters = list(inspect.signature(self.module).parameters.values())
        if len(parameters) < 2 or any(one.annotation is one.empty for one in parameters[2:]):
            raise ConfigError(
                f"{self.module.__name__}: its constructor must take (features, classes) and then settings with types."
            )
        missing = inspect.Parameter.empty
        fields = {}
        for one in parameters[2:]:
            fields[one.name] = dataclasses.field() if one.default is missing else dataclasses.field(default=one.default)
        return fields

    @property
    def hints(self) -> Values:
        """The settings' types."""
        return get_type_hints(self.module.__init__, include_extras=True)

    @property
    def documents(self) -> tuple[type, ...]:
        """The class whose docstring describes the settings."""
        return (self.module,)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """The module's own docstring."""
        return self.module.__doc__


@dataclass(frozen=True)
class OwnModule:
    """A module and its settings.

    edges: the data's edge attributes, once they are known.
    """

    module: type[nn.Module]
    values: Values
    edges: EdgeAttributes | None = None

    @property
    def kind(self) -> ModuleKind:
        """The kind that this module belongs to."""
        return ModuleKind(self.module)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of `INPUTS` that its forward takes.

        Raises:
            ConfigError: the forward requires an argument that clients do not have.
        """
        return tuple(inputs_of(self.module))

    def fit_to_edges(self, edges: EdgeAttributes | None) -> "OwnModule":
        """The plug-in for data with these edge attributes; sets `edge_features` if the user did not.

        Raises:
            ConfigError: the forward requires an attribute that the edges do not have.
        """
        width = 0 if edges is None else edges.width
        check_edge_inputs(self.module, bool(width), edges is not None and edges.weight is not None)
        values = dict(self.values)
        if "edge_features" in self.kind.fields and values.get("edge_features") is None:
            values["edge_features"] = width
        return dataclasses.replace(self, values=values, edges=edges)

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        """Build the model.

        Raises:
            ConfigError: the module rejects its settings, its weights fail `check_weights`, its forward requires an
                argument that clients do not have, it fails on a small graph or gives no logits [n, classes], or its
                output depends on the graph that it saw before.
        """
        try:
            with seed_generators(0):
                module = self.module(features, classes, **self.values)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"model {self.module.__name__}: {error}{error_place(error)}") from error
        check_weights(module)
        width = int(self.values.get("edge_features") or (0 if self.edges is None else self.edges.width))
        weighted = self.edges is not None and self.edges.weight is not None
        dtype = next(module.parameters()).dtype
        pooled = try_out(module, TrialForm(features, classes, width, weighted, dtype))

        def trial(form: TrialForm) -> list[str]:  # of its own sizes: a head may follow, with the outputs of the data
            try_out(module, TrialForm(features, classes, width, weighted, form.dtype))
            return precision_notes(module, form.dtype)

        def init(key: Tensor) -> Tree:
            with seed_generators(int(key)):
                fresh = self.module(features, classes, **self.values)
            return {name: value.to(key.device) for name, value in leaves_of(fresh).items()}

        return _layers(module, init, pooled, trial)


def as_model(model: Model | nn.Module) -> Model:
    """The model of an algorithm: layers as they are, and for a `torch.nn.Module` a model that starts from the module's
    own weights with every key. The module itself is not trained. If its forward requires `batch`, its examples are
    small graphs; a class may set `pools` to True or False instead. `federation` tries it on the form of the data.

    Raises:
        ConfigError: the module's weights fail `check_weights`, or `model` is a class or a plug-in that is not built.
    """
    if isinstance(model, tuple):
        return model
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"the model is {model!r}; give layers, such as models.GCN(hidden=64).build(data.features, data.classes), "
            "or a torch.nn.Module."
        )
    check_weights(model)
    module = copy.deepcopy(model)
    start = leaves_of(module)

    def init(key: Tensor) -> Tree:
        return {name: value.clone() for name, value in start.items()}

    pooled = bool(getattr(model, "pools", inputs_of(type(module)).get("batch", False)))

    def trial(form: TrialForm) -> list[str]:
        check_edge_inputs(type(module), bool(form.edge_features), form.weighted)
        pools = try_out(module, form)
        if pools != pooled:
            raise ConfigError(
                f"model {type(module).__name__} takes batch, and has a row of logits for each "
                f"{'small graph' if pools else 'node'}. Set it in its class: pools = {pools}.",
                code="config.module-pools",
            )
        return precision_notes(module, form.dtype)

    return note(_layers(module, init, pooled, trial), Maker(model, ()))


def _layers(
    module: nn.Module, init: Callable[[Tensor], Tree], pooled: bool, trial: Callable[[TrialForm], list[str]]
) -> Model:
    """One layer, or two with `embed`; `pooled`: the examples are small graphs. trial: see `Layer`."""

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
        return _run(module, w, graph, h, key, pooled)

    def last(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        logits: Tensor = h["logits"]
        return logits

    # layers that normalize have "Norm" in the name of their class, in PyTorch, PyG and other libraries
    norms = []
    for path in leaves_of(module):
        layer: nn.Module = module
        for name in path.split(".")[:-1]:
            layer = layer.get_submodule(name)
            if any("Norm" in kind.__name__ for kind in type(layer).__mro__):
                norms.append(path)
                break
    operator = "pool_mean" if pooled else None  # so that its examples are small graphs (`core.model.pools`)
    first = Layer(init, apply, operator=operator, runs_alone=True, reads="graph", norms=tuple(norms), trial=trial)
    if not embeds(module):
        return (first,)
    return first, Layer(lambda key: {}, last, runs_alone=True, reads="graph")


def _run(module: nn.Module, w: Tree, graph: Graph, h: Hidden, key: Tensor | None, pooled: bool) -> Hidden:
    """Logits of the module with weights w for a client's examples, and zeros for padding; with `embed`, a tree of
    embeddings "h" and "logits". A training step leaves out small graphs that are not training examples."""
    # 1. the module's arguments
    training, nodes = key is not None, int(graph.real.sum())
    index, inputs = _edges(module, graph, h.dtype)
    if isinstance(h, Sparse):
        h = torch.from_numpy(h.blocks.members[0].scipy().toarray()).to(h.device, h.dtype)
    x, batch = h[:nodes], None if graph.graph_of is None else graph.graph_of[:nodes]
    chosen = None
    if pooled and training and batch is not None:
        chosen = graph.masks[TRAIN].nonzero()[:, 0]  # [c]
        if not len(chosen):  # without training graphs the step has no loss
            chosen = None
    if chosen is not None and batch is not None:  # nodes and edges of these graphs, with new numbers
        place = batch.new_full((int(batch.max()) + 1 if len(batch) else 0,), -1)
        place[chosen] = torch.arange(len(chosen), device=batch.device)
        taken = place[batch] >= 0  # [n]
        number, edges = taken.cumsum(0) - 1, taken[index[0]]
        inputs = {name: None if value is None else value[edges] for name, value in inputs.items()}
        x, index, batch = x[taken], number[index[:, edges]], place[batch[taken]]
    if "batch" in inputs_of(type(module)):
        inputs["batch"] = x.new_zeros(len(x), dtype=torch.int64) if batch is None else batch
    # 2. its weights and buffers
    weights = {name: leaf for name, leaf in w.items() if not is_statistic(name)}
    buffers = {name: value.detach().clone().to(graph.device) for name, value in module.named_buffers()}
    for name, value in buffers.items():
        if is_statistic(name):
            statistic = w[name].detach().clone()
            buffers[name] = statistic if value.is_floating_point() else statistic.round().to(value.dtype)
        elif value.is_floating_point():
            buffers[name] = value.to(h.dtype)
    state = {**weights, **buffers}
    # 3. the module itself
    module.train(training)
    with seed_generators(0 if key is None else int(key), graph.device), record_embeddings(module) as embedded:
        logits = torch.func.functional_call(module, state, (x, *([index] if reads_edges(module) else [])), inputs)
    if training and torch.is_grad_enabled():
        for name in buffers:
            if is_statistic(name):
                logits = RunningStatistic.apply(logits, w[name], state[name].detach().to(w[name].dtype))
    # 4. rows for padding
    rows, padded = len(graph.y) if pooled else graph.nodes, Tree()
    for name, out in {"logits": logits, **({"h": embedded[-1]} if embedded else {})}.items():
        if chosen is None:
            padded[name] = torch.nn.functional.pad(out, (0, 0, 0, rows - len(out)))
        else:
            padded[name] = torch.index_put(out.new_zeros(rows, out.shape[1]), (chosen,), out)
    return padded if embeds(module) else padded["logits"]


def _edges(module: nn.Module, graph: Graph, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor | None]]:
    """int64 [2, E], both directions of every edge, and the arguments "edge_attr" [E, k] and "edge_weight" [E] that the
    module takes; None where the edges do not have them.

    Raises:
        ConfigError: the module requires an attribute that the edges do not have.
    """
    edges, device = graph.whole_edges, graph.device
    edge_list = edges.members[0].at(edges.split)
    requested, edge_attrs = inputs_of(type(module)), edge_list.edge_attrs
    index, inputs = torch.tensor(edge_list.index, device=device), dict[str, Tensor | None]()  # others may write into it
    if not {"edge_attr", "edge_weight"} & requested.keys():
        return index, inputs
    attributes: dict[str, np.ndarray | None] = dict.fromkeys(("edge_attr", "edge_weight"))
    if edge_attrs is not None:
        ends, edge = edge_list.messages.messages_of("undirected")
        index = torch.tensor(ends, dtype=torch.int64, device=device)
        attributes["edge_attr"] = edge_attrs.read[edge] if edge_attrs.width or edge_attrs.ports else None
        attributes["edge_weight"] = None if edge_attrs.weight is None else edge_attrs.weight[edge]
    for name, values in attributes.items():
        if name in requested:
            inputs[name] = None if values is None else torch.from_numpy(values).to(device, dtype)
    check_edge_inputs(type(module), attributes["edge_attr"] is not None, attributes["edge_weight"] is not None)
    return index, inputs
