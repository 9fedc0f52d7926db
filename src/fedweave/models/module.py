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
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.edge_list import EdgeList
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Hidden, Layer, Model, TrialForm
from fedweave.core.plugins import Maker, note, remember_maker
from fedweave.core.tree import Tree, is_statistic
from fedweave.core.types import Values
from fedweave.errors import ConfigError, error_place, listed
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
        return {
            one.name: dataclasses.field() if one.default is missing else dataclasses.field(default=one.default)
            for one in parameters[2:]
        }

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


INPUTS = ("edge_attr", "edge_weight", "batch")  # optional arguments of a forward, by these names


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
    def asks(self) -> tuple[str, ...]:
        """The names of `INPUTS` that its forward takes.

        Raises:
            ConfigError: the forward requires an argument that clients do not have.
        """
        return tuple(_inputs_of(self.module))

    def fitted(self, edges: EdgeAttributes | None) -> "OwnModule":
        """The plug-in for data with these edge attributes; sets `edge_features` if the user did not.

        Raises:
            ConfigError: the forward requires an attribute that the edges do not have.
        """
        width = 0 if edges is None else edges.width
        weighted = edges is not None and edges.weight is not None
        _check_given(self.module, [*["edge_attr"] * bool(width), *["edge_weight"] * weighted])
        known = {"edge_features": width} if "edge_features" in self.kind.fields else {}
        inputs = {name: value for name, value in self.values.items() if value is not None}
        return dataclasses.replace(self, values={**self.values, **known, **inputs}, edges=edges)

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        """Build the model.

        Raises:
            ConfigError: the module rejects its settings, its weights fail `_check_weights`, its forward requires an
                argument that clients do not have, it fails on a small graph or gives no logits [n, classes], or its
                output depends on the graph that it saw before.
        """
        try:
            with _seed_generators(0):
                module = self.module(features, classes, **self.values)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"model {self.module.__name__}: {error}{error_place(error)}") from error
        _check_weights(module)
        width = int(self.values.get("edge_features") or (0 if self.edges is None else self.edges.width))
        weighted = self.edges is not None and self.edges.weight is not None
        dtype = next(module.parameters()).dtype
        pooled = _try_out(module, TrialForm(features, classes, width, weighted, dtype))

        def trial(form: TrialForm) -> list[str]:  # of its own sizes: a head may follow, with the outputs of the data
            _try_out(module, TrialForm(features, classes, width, weighted, form.dtype))
            return _precision(module, form.dtype)

        def init(key: Tensor) -> Tree:
            with _seed_generators(int(key)):
                fresh = self.module(features, classes, **self.values)
            return {name: value.to(key.device) for name, value in _leaves(fresh).items()}

        return _layers(module, init, pooled, trial)


def as_model(model: Model | nn.Module) -> Model:
    """The model of an algorithm: layers as they are, and for a `torch.nn.Module` a model that starts from the module's
    own weights with every key. The module itself is not trained. If its forward requires `batch`, its examples are
    small graphs; a class may set `pools` to True or False instead. `federation` tries it on the form of the data.

    Raises:
        ConfigError: the module's weights fail `_check_weights`, or `model` is a class or a plug-in that is not built.
    """
    if isinstance(model, tuple):
        return model
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"the model is {model!r}; give layers, such as models.GCN(hidden=64).build(data.features, data.classes), "
            "or a torch.nn.Module."
        )
    _check_weights(model)
    module = copy.deepcopy(model)
    start = _leaves(module)

    def init(key: Tensor) -> Tree:
        return {name: value.clone() for name, value in start.items()}

    pooled = bool(getattr(model, "pools", _inputs_of(type(module)).get("batch", False)))

    def trial(form: TrialForm) -> list[str]:
        _check_given(type(module), [*["edge_attr"] * bool(form.edge_features), *["edge_weight"] * form.weighted])
        pools = _try_out(module, form)
        if pools != pooled:
            raise ConfigError(
                f"model {type(module).__name__} takes batch, and has a row of logits for each "
                f"{'small graph' if pools else 'node'}. Set it in its class: pools = {pools}.",
                code="config.module-pools",
            )
        return _precision(module, form.dtype)

    return note(_layers(module, init, pooled, trial), Maker(model, ()))


# ----------------------------------------------------------------------------------------------------
# The layers, and how they run.


def _layers(
    module: nn.Module, init: Callable[[Tensor], Tree], pooled: bool, trial: Callable[[TrialForm], list[str]]
) -> Model:
    """One layer, or two with `embed`; `pooled`: the examples are small graphs. trial: see `Layer`."""

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
        return _applied(module, w, graph, h, key, pooled)

    def last(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        logits: Tensor = h["logits"]
        return logits

    operator = "pool_mean" if pooled else None  # so that its examples are small graphs (`core.model.pools`)
    norms = tuple(name for name in _leaves(module) if name.rpartition(".")[0] in _norms(module))
    layer = Layer(init, apply, operator=operator, runs_alone=True, reads="graph", norms=norms, trial=trial)
    if not _embeds(module):
        return (layer,)
    return layer, Layer(lambda key: {}, last, runs_alone=True, reads="graph")


def _applied(module: nn.Module, w: Tree, graph: Graph, h: Hidden, key: Tensor | None, pooled: bool) -> Hidden:
    """Logits of the module with weights w for a client's examples, and zeros for padding; with `embed`, a tree of
    embeddings "h" and "logits". A training step leaves out small graphs that are not training examples."""
    training, nodes = key is not None, int(graph.real.sum())
    requested, edge_list = _inputs_of(type(module)), _edge_list(graph)
    index, inputs = _edges(module, edge_list, graph.device, h.dtype)
    x, batch = _dense(h)[:nodes], None if graph.graph_of is None else graph.graph_of[:nodes]
    chosen = None
    if pooled and training and batch is not None:
        chosen = graph.masks[TRAIN].nonzero()[:, 0]
    if chosen is not None and batch is not None and len(chosen):  # without training graphs the step has no loss
        x, index, batch, inputs = _of_graphs(chosen, x, index, batch, inputs)
    else:
        chosen = None
    if "batch" in requested:
        inputs["batch"] = x.new_zeros(len(x), dtype=torch.int64) if batch is None else batch
    leaves = {name: leaf for name, leaf in w.items() if not is_statistic(name)}
    buffers = {name: value.detach().clone().to(graph.device) for name, value in module.named_buffers()}
    for name, value in buffers.items():
        if is_statistic(name):
            copied = w[name].detach().clone()
            buffers[name] = copied if value.is_floating_point() else copied.round().to(value.dtype)
        elif value.is_floating_point():
            buffers[name] = value.to(h.dtype)
    module.train(training)
    state = {**leaves, **buffers}
    with _seed_generators(0 if key is None else int(key), graph.device), _embedding(module) as embedded:
        logits = torch.func.functional_call(module, state, (x, *([index] if _reads_edges(module) else [])), inputs)
    if training and torch.is_grad_enabled():
        for name in (name for name in buffers if is_statistic(name)):
            logits = RunningStatistic.apply(logits, w[name], state[name].detach().to(w[name].dtype))
    rows, padded = len(graph.y) if pooled else graph.nodes, Tree()
    for name, out in {"logits": logits, **({"h": embedded[-1]} if embedded else {})}.items():
        if chosen is None:
            padded[name] = torch.nn.functional.pad(out, (0, 0, 0, rows - len(out)))
        else:
            padded[name] = torch.index_put(out.new_zeros(rows, out.shape[1]), (chosen,), out)
    return padded if _embeds(module) else padded["logits"]


def _of_graphs(
    chosen: Tensor, x: Tensor, index: Tensor, batch: Tensor, inputs: dict[str, Tensor | None]
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor | None]]:
    """Nodes and edges of the `chosen` small graphs int64 [c], with new numbers."""
    place = batch.new_full((int(batch.max()) + 1 if len(batch) else 0,), -1)
    place[chosen] = torch.arange(len(chosen), device=batch.device)
    nodes = place[batch] >= 0
    number, edges = nodes.cumsum(0) - 1, nodes[index[0]]
    some = {name: value if value is None else value[edges] for name, value in inputs.items()}
    return x[nodes], number[index[:, edges]], place[batch[nodes]], some


def _edges(
    module: nn.Module, edge_list: EdgeList, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, dict[str, Tensor | None]]:
    """int64 [2, E], both directions of every edge, and the arguments "edge_attr" [E, k] and "edge_weight" [E] that the
    module takes; None where the edges do not have them.

    Raises:
        ConfigError: the module requires an attribute that the edges do not have.
    """
    requested, edge_attrs = _inputs_of(type(module)), edge_list.edge_attrs
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
    _check_given(type(module), [name for name, values in inputs.items() if values is not None])
    return index, inputs


# ----------------------------------------------------------------------------------------------------
# A module's arguments and weights.


def _inputs_of(module: type[nn.Module]) -> dict[str, bool]:
    """{name of `INPUTS` that its forward takes: whether it is required}.

    Raises:
        ConfigError: the forward requires another argument.
    """
    parameters = list(inspect.signature(module.forward).parameters.values())[1:]
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    first = 2 if len(named) > 1 and named[1].name not in INPUTS else 1
    rest = {one.name: one.default is one.empty for one in named[first:]}
    unknown = [name for name, required in rest.items() if required and name not in INPUTS]
    if unknown:
        raise ConfigError(
            f"model {module.__name__}: its forward takes {', '.join(unknown)}, which clients do not have. It may take "
            f"x, edge_index, {', '.join(INPUTS)}, and others that have defaults.",
            code="config.module-inputs",
        )
    return {name: required for name, required in rest.items() if name in INPUTS}


def _reads_edges(module: nn.Module) -> bool:
    """Whether its forward takes edge_index, by any name of the second parameter."""
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return True
    return (
        len(parameters) > 1
        and parameters[1].kind is parameters[1].POSITIONAL_OR_KEYWORD
        and parameters[1].name not in INPUTS
    )


def _check_given(module: type[nn.Module], there: Collection[str]) -> None:
    """Raise an error if a module requires edge attributes that the data's edges do not have.

    Raises:
        ConfigError: names the missing argument.
    """
    words = {"edge_attr": "features (data.edge_features)", "edge_weight": "weight"}
    required = [name for name, is_required in _inputs_of(module).items() if is_required and name in words]
    missing = [name for name in required if name not in there]
    if missing:
        raise ConfigError(
            f"model {module.__name__}: its forward takes {missing[0]}, and the data's edges have no "
            f"{words[missing[0]]}. Write {missing[0]}=None and do without, or take other data.",
            code="config.module-inputs",
        )


def _leaves(module: nn.Module) -> dict[str, Tensor]:
    """The module's weights, and its running statistics in the same dtype, by the module's names."""
    weights = {name: value.detach() for name, value in module.named_parameters()}
    dtype = next(iter(weights.values())).dtype
    return weights | {name: value.detach().to(dtype) for name, value in module.named_buffers() if is_statistic(name)}


def _norms(module: nn.Module) -> set[str]:
    """Names of the layers in a module that normalize, which the name of their class shows, in PyTorch, PyG and other
    libraries."""
    norms = {
        name for name, part in module.named_modules() if any("Norm" in kind.__name__ for kind in type(part).__mro__)
    }
    return {
        name for name, _ in module.named_modules() if any(f"{name}.".startswith(f"{norm}.") for norm in norms if norm)
    }


def _embeds(module: nn.Module) -> bool:
    return callable(getattr(type(module), "embed", None))


@contextmanager
def _embedding(module: nn.Module) -> Iterator[list[Tensor]]:
    """The outputs of the module's `embed` while it runs."""
    rows = list[Tensor]()
    if not _embeds(module):
        yield rows
        return

    def embed(*inputs: object, **named: object) -> Tensor:
        rows.append(type(module).embed(module, *inputs, **named))  # type: ignore[attr-defined]
        return rows[-1]

    module.embed = embed  # type: ignore[assignment]
    try:
        yield rows
    finally:
        del module.embed


def _check_weights(module: nn.Module) -> None:
    """Raise an error if a module has no weights, weights that cannot be averaged, or arguments that clients do not
    have."""
    name = type(module).__name__
    _inputs_of(type(module))
    weights = dict(module.named_parameters())
    if not weights:
        raise ConfigError(
            f"model {name} has no weights, so that there is nothing to train.", code="config.module-weights"
        )
    tensors = weights | dict(module.named_buffers())
    lazy = [path for path, weight in tensors.items() if nn.parameter.is_lazy(weight)]
    if lazy:
        raise ConfigError(
            f"model {name} has lazy layers ({', '.join(lazy)}), whose sizes only data would settle; give them their "
            "sizes; the constructor's first two parameters are features and classes.",
            code="config.module-weights",
        )
    complex_weights = [path for path, weight in weights.items() if not weight.is_floating_point()]
    if complex_weights:
        kinds = ", ".join(sorted({str(weights[path].dtype) for path in complex_weights}))
        raise ConfigError(
            f"model {name} has weights of {kinds} ({', '.join(complex_weights)}), which cannot be averaged here. Hold "
            "a complex weight as its real and its imaginary part (torch.view_as_real), and join them in forward.",
            code="config.module-weights",
        )
    statistics = [path for path in weights if is_statistic(path)]
    if statistics:
        raise ConfigError(
            f"model {name} has weights ({', '.join(statistics)}) whose names mark running statistics, which no "
            "gradient moves. Rename them.",
            code="config.module-weights",
        )
    frozen = [path for path, weight in weights.items() if not weight.requires_grad]
    if frozen:
        raise ConfigError(
            f"model {name} has frozen weights ({', '.join(frozen)}), which would be trained and sent like all others; "
            "let them train, or give what the frozen layers make of features as features.",
            code="config.module-weights",
        )


# ----------------------------------------------------------------------------------------------------
# A trial before any client runs the module.


def _try_out(module: nn.Module, form: TrialForm) -> bool:
    """Run copies of a module on small path graphs, and return whether it gives a row for each small graph.

    The output for the second graph must not depend on the first graph, or on chance in evaluation. Training must move
    weights, and may change only running statistics among the buffers.
    """
    name = type(module).__name__
    used, fresh, another = (_cast(module, form.dtype).eval() for _ in range(3))
    with torch.no_grad():
        pooled = len(_trial_logits(used, form, 3)) == 1
        after, reference, drawn = (
            _trial_logits(instance, form, 4, seed) for instance, seed in ((used, 0), (fresh, 0), (another, 1))
        )
    if not torch.equal(after.nan_to_num(), reference.nan_to_num()):
        raise ConfigError(
            f"model {name} gives other logits for a graph after it has seen another: it keeps some of "
            "it, and one module serves all clients. Set cached = False in its layers.",
            code="config.module-state",
        )
    if not torch.equal(drawn.nan_to_num(), reference.nan_to_num()):
        raise ConfigError(
            f"model {name} draws at random in evaluation, too; call functional dropout with "
            "training=self.training, or take a dropout module, which evaluation switches off.",
            code="config.module-state",
        )
    trained = _cast(module, form.dtype).train()
    before = {path: _to_strided(value).clone() for path, value in trained.named_buffers() if not is_statistic(path)}
    if not _trial_logits(trained, form, 4).requires_grad:
        raise ConfigError(
            f"model {name}: no gradient leads from its logits to its weights, so that training would not move them. "
            "Leave out detach(), no_grad() and NumPy in its forward.",
            code="config.module-gradient",
        )
    buffers = dict(trained.named_buffers())
    changed = [path for path, value in before.items() if not torch.equal(value, _to_strided(buffers[path]))]
    if changed:
        raise ConfigError(
            f"model {name} changes its buffers ({', '.join(changed)}) as it trains. Call them "
            "running_…, as BatchNorm does, so that they travel with the weights.",
            code="config.module-state",
        )
    return pooled


def _cast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy whose real weights and buffers have this dtype, as clients run it."""
    module = copy.deepcopy(module)
    for weight in module.parameters():
        weight.data = weight.data.to(dtype)
    for part in module.modules():
        for name, value in list(part.named_buffers(recurse=False)):
            if value.is_floating_point():
                setattr(part, name, value.to(dtype))
    return module


def _to_strided(value: Tensor) -> Tensor:
    """The tensor in the layout that can be compared: a sparse one as a dense one."""
    return value if value.layout == torch.strided else value.to_dense()


def _precision(module: nn.Module, dtype: torch.dtype) -> list[str]:
    """A note on weights of more digits than those that they are trained with."""
    digits = torch.finfo(dtype).eps
    finer = [name for name, value in module.named_parameters() if torch.finfo(value.dtype).eps < digits]
    if not finer:
        return []
    word = str(dtype).removeprefix("torch.")
    return [
        f"model {type(module).__name__}: its weights ({listed(finer)}) have more digits than {word}, as which they are "
        'trained; engine.dtype = "float64", in Python dtype=torch.float64, keeps them'
    ]


def _trial_logits(module: nn.Module, form: TrialForm, nodes: int, seed: int = 0) -> Tensor:
    """The module's logits for a path of `nodes` nodes; its random draws come from `seed`."""
    name, ends = type(module).__name__, torch.arange(nodes - 1, device="cpu")
    edges = torch.stack([torch.cat([ends, ends + 1]), torch.cat([ends + 1, ends])])
    x = torch.linspace(-1, 1, nodes * form.features, dtype=form.dtype, device="cpu").view(nodes, form.features)
    requested, count = _inputs_of(type(module)), edges.shape[1]
    arguments = {"batch": torch.zeros(nodes, dtype=torch.int64, device="cpu")}
    if form.edge_features or requested.get("edge_attr"):
        arguments["edge_attr"] = torch.ones(count, max(form.edge_features, 1), dtype=form.dtype, device="cpu")
    if form.weighted or requested.get("edge_weight"):
        arguments["edge_weight"] = torch.ones(count, dtype=form.dtype, device="cpu")
    inputs = {argument: arguments.get(argument) for argument in requested}
    try:
        with _seed_generators(seed), _embedding(module) as embedded:
            out = module(x, *([edges] if _reads_edges(module) else []), **inputs)
    except Exception as error:
        raise ConfigError(
            f"model {name} failed on a graph of {nodes} nodes{error_place(error)}: {type(error).__name__}: {error}. "
            f"Its forward takes x [n, features], here {form.dtype} [{nodes}, {form.features}], and edge_index [2, E].",
            code="config.module-fails",
        ) from error
    rows = {nodes} | ({1} if "batch" in requested else set())
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) not in rows or out.shape[1] != form.outputs:
        got = list(out.shape) if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise ConfigError(
            f"model {name} gave {got} for a graph of {nodes} nodes and {form.outputs} classes, numbers or labels; its "
            f"forward must return [n, {form.outputs}], here [{nodes}, {form.outputs}].",
            code="config.module-outputs",
        )
    if not out.is_floating_point():
        raise ConfigError(
            f"model {name} gave outputs of {out.dtype}; its forward must return logits, which are real numbers.",
            code="config.module-outputs",
        )
    if _embeds(module) and not (
        embedded and isinstance(embedded[-1], Tensor) and embedded[-1].dim() == 2 and len(embedded[-1]) == len(out)
    ):
        got = list(embedded[-1].shape) if embedded and isinstance(embedded[-1], Tensor) else "nothing"
        raise ConfigError(
            f"model {name}: its embed gave {got} for a graph of {nodes} nodes. forward must call self.embed, which "
            f"must return embeddings [n, width], a row for each row of logits, here {len(out)}.",
            code="config.module-outputs",
        )
    return out


def _dense(h: "Tensor | Sparse") -> Tensor:
    return torch.from_numpy(h.blocks.members[0].scipy().toarray()).to(h.device, h.dtype) if isinstance(h, Sparse) else h


def _edge_list(graph: Graph) -> EdgeList:
    edges = graph.whole_edges
    return edges.members[0].at(edges.split)


@contextmanager
def _seed_generators(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed PyTorch's generators of the host and of a GPU, and restore their states afterwards."""
    gpus = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        for generator in (torch.default_generator, *(torch.cuda.default_generators[gpu.index or 0] for gpu in gpus)):
            generator.manual_seed(seed)
        yield
