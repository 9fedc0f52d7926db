"""A user's own `torch.nn.Module` as a model of one layer, by `torch.func.functional_call`.

Its constructor takes the numbers of features and classes, then settings with types and defaults. `forward(x,
edge_index)` takes x float [n, features] and edge_index int64 [2, E], both directions of every edge, and returns logits
[n, classes]; n counts a client's nodes without padding, so that layers may compare all nodes. It runs for one client
after the other (`runs_alone`) and reads numbers of nodes and keys on the host, which takes longer than the models here.
Dropout and first weights are drawn from the run's keys.
"""

import copy
import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import get_type_hints

import torch
from torch import Tensor, nn

from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import Maker, note, noted
from fedweave.core.tree import Tree
from fedweave.core.types import Values
from fedweave.errors import ConfigError, raised_at
from fedweave.ops.sparse import Sparse


@dataclass(frozen=True)
class ModuleKind:
    """Makes models of one class of modules: called with values for its settings, it is a plug-in like `models.GCN`."""

    module: type[nn.Module]

    def __call__(self, **values: object) -> "OwnModule":
        """The plug-in with these settings."""
        return OwnModule(self.module, values)

    @property
    def fields(self) -> "Mapping[str, dataclasses.Field[object]]":
        """The settings: the constructor's parameters after the first two.

        Raises:
            ConfigError: one has neither type nor default, or there are no two before it.
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
        """The class whose docstring says what the settings mean."""
        return (self.module,)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """What the module says of itself."""
        return self.module.__doc__


@dataclass(frozen=True)
class OwnModule:
    """A module and its settings."""

    module: type[nn.Module]
    values: Values

    @property
    def kind(self) -> ModuleKind:
        """What made it."""
        return ModuleKind(self.module)

    @noted
    def build(self, features: int, classes: int) -> Model:
        """The model.

        Raises:
            ConfigError: the module refuses its settings, has no weights or unlike ones (`_check_weights`), fails on a
                small graph, gives it no logits [n, classes], or remembers one graph when it sees the next.
        """
        try:
            with _seeded(0):
                module = self.module(features, classes, **self.values)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"model {self.module.__name__}: {error}") from error
        _check_weights(module)
        _try_out(module, features, classes)

        def init(key: Tensor) -> Tree:
            with _seeded(int(key)):
                fresh = self.module(features, classes, **self.values)
            return {name: value.detach().to(key.device) for name, value in fresh.named_parameters()}

        def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
            return _applied(module, w, graph, h, key)

        return (Layer(init, apply, runs_alone=True, reads="graph"),)


def as_model(model: Model | nn.Module) -> Model:
    """The model that an algorithm is given: layers as they are, and of a `torch.nn.Module` the model that starts from
    the module's own weights, whatever the key. The module itself is not trained.

    Raises:
        ConfigError: the module has no weights or unlike ones, it is the class, or what is given has yet to be built.
    """
    if isinstance(model, tuple):
        return model
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"the model is {model!r}; give layers, such as models.GCN(hidden=64).build(data.features, data.classes), "
            "or a torch.nn.Module."
        )
    _check_weights(model)
    module, tried = copy.deepcopy(model), list[bool]()
    start = {name: value.detach() for name, value in module.named_parameters()}

    def init(key: Tensor) -> Tree:
        return {name: value.clone() for name, value in start.items()}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        out = _applied(module, w, graph, h, key)
        if not tried:  # now the numbers of features and classes are known
            _try_out(module, h.shape[1], out.shape[-1])
            tried.append(True)
        return out

    return note((Layer(init, apply, runs_alone=True, reads="graph"),), Maker(model, ()))


def _applied(module: nn.Module, w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
    """Logits of the module with weights w on a client's nodes, and zeros for padding."""
    nodes = int(graph.real.sum())
    x, edges = _dense(h)[:nodes], _edge_index(graph)
    module.train(key is not None)
    with _seeded(0 if key is None else int(key), graph.device):
        out = torch.func.functional_call(module, w, (x, edges))
    return torch.nn.functional.pad(out, (0, 0, 0, graph.nodes - nodes))


def _check_weights(module: nn.Module) -> None:
    """Refuse a module that has nothing to train, or what cannot be averaged like a weight."""
    name = type(module).__name__
    weights = dict(module.named_parameters())
    if not weights:
        raise ConfigError(f"model {name} has no weights, so that there is nothing to train.", code="config.module")
    if lazy := [path for path, weight in weights.items() if isinstance(weight, nn.parameter.UninitializedParameter)]:
        raise ConfigError(
            f"model {name} has lazy layers ({', '.join(lazy)}), whose sizes only data would settle; give them their "
            "sizes, of which features and classes are the constructor's first two parameters.",
            code="config.module",
        )
    if buffers := [path for path, _ in module.named_buffers()]:
        raise ConfigError(
            f"model {name} has buffers ({', '.join(buffers)}), which are no weights and would stay as they began; take "
            "layers without any, such as LayerNorm for BatchNorm.",
            code="config.module",
        )
    if frozen := [path for path, weight in weights.items() if not weight.requires_grad]:
        raise ConfigError(
            f"model {name} has frozen weights ({', '.join(frozen)}), which would be trained and sent like all others; "
            "let them train, or give what the frozen layers make of features as features.",
            code="config.module",
        )


def _try_out(module: nn.Module, features: int, classes: int) -> None:
    """Run copies of it on a path of three nodes and on one of four: the second must depend neither on the first nor, in
    evaluation, on chance."""
    used, fresh, another = (copy.deepcopy(module).eval() for _ in range(3))
    _tried(used, features, classes, 3)
    after, reference, drawn = (
        _tried(instance, features, classes, 4, seed) for instance, seed in ((used, 0), (fresh, 0), (another, 1))
    )
    if not torch.equal(after.nan_to_num(), reference.nan_to_num()):
        raise ConfigError(
            f"model {type(module).__name__} gives other logits for a graph after it has seen another: it keeps some of "
            "it, and one module serves all clients. Set cached = False in its layers.",
            code="config.module",
        )
    if not torch.equal(drawn.nan_to_num(), reference.nan_to_num()):
        raise ConfigError(
            f"model {type(module).__name__} draws at random in evaluation, too; call functional dropout with "
            "training=self.training, or take a dropout module, which evaluation switches off.",
            code="config.module",
        )


def _tried(module: nn.Module, features: int, classes: int, nodes: int, seed: int = 0) -> Tensor:
    """Its logits for a path of some nodes; what it draws comes from `seed`."""
    name, ends = type(module).__name__, torch.arange(nodes - 1, device="cpu")
    edges = torch.stack([torch.cat([ends, ends + 1]), torch.cat([ends + 1, ends])])
    dtype = next(module.parameters()).dtype
    x = torch.linspace(-1, 1, nodes * features, dtype=dtype, device="cpu").view(nodes, features)
    try:
        with torch.no_grad(), _seeded(seed):
            out = module(x, edges)
    except Exception as error:
        raise ConfigError(
            f"model {name} failed on a graph of {nodes} nodes{raised_at(error)}: {type(error).__name__}: {error}. Its "
            "forward takes x [n, features] and edge_index [2, E].",
            code="config.module",
        ) from error
    if not isinstance(out, Tensor) or out.shape != (nodes, classes):
        got = list(out.shape) if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise ConfigError(
            f"model {name} gave {got} for a graph of {nodes} nodes and {classes} classes; its forward must return "
            f"logits [n, classes], here [{nodes}, {classes}].",
            code="config.module",
        )
    return out


def _dense(h: "Tensor | Sparse") -> Tensor:
    return torch.from_numpy(h.blocks.members[0].scipy().toarray()).to(h.device, h.dtype) if isinstance(h, Sparse) else h


def _edge_index(graph: Graph) -> Tensor:
    edges = graph.own_edges
    edge_list = edges.members[0].seen(edges.split)
    return torch.tensor(edge_list.index, device=graph.device)  # a copy, as others' layers may write into it


@contextmanager
def _seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """PyTorch's own generators, of the host and of a GPU, at `seed`, and afterwards where they were."""
    gpus = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        for generator in (torch.default_generator, *(torch.cuda.default_generators[gpu.index or 0] for gpu in gpus)):
            generator.manual_seed(seed)
        yield
