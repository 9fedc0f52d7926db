"""What a user's module takes, holds and may not do: checked before any client runs it."""

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedweave.core.model import TrialForm
from fedweave.core.tree import Tree, is_statistic
from fedweave.errors import ConfigError, error_place, listed

INPUTS = ("edge_attr", "edge_weight", "batch")  # optional arguments of a forward, by these names


def inputs_of(module: type[nn.Module]) -> dict[str, bool]:
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


def reads_edges(module: nn.Module) -> bool:
    """Whether its forward takes edge_index, by any name of the second parameter."""
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return True
    if len(parameters) < 2:
        return False
    second = parameters[1]
    return second.kind is second.POSITIONAL_OR_KEYWORD and second.name not in INPUTS


def embeds(module: nn.Module) -> bool:
    """Whether the module has a method `embed`."""
    return callable(getattr(type(module), "embed", None))


def leaves_of(module: nn.Module) -> Tree:
    """The module's weights, and its running statistics in the same dtype, by the module's names."""
    weights = {name: value.detach() for name, value in module.named_parameters()}
    dtype = next(iter(weights.values())).dtype
    return weights | {name: value.detach().to(dtype) for name, value in module.named_buffers() if is_statistic(name)}


@contextmanager
def seed_generators(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed PyTorch's generators of the host and of a GPU, and restore their states afterwards."""
    gpus = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        for generator in (torch.default_generator, *(torch.cuda.default_generators[gpu.index or 0] for gpu in gpus)):
            generator.manual_seed(seed)
        yield


@contextmanager
def record_embeddings(module: nn.Module) -> Iterator[list[Tensor]]:
    """The outputs of the module's `embed` while it runs."""
    rows = list[Tensor]()
    if not embeds(module):
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


def check_edge_inputs(module: type[nn.Module], has_features: bool, has_weights: bool) -> None:
    """Reject a module that requires edge attributes that the data's edges do not have.

    Raises:
        ConfigError: names the missing argument.
    """
    required = inputs_of(module)
    for name, present, words in (
        ("edge_attr", has_features, "features (data.edge_features)"),
        ("edge_weight", has_weights, "weight"),
    ):
        if required.get(name) and not present:
            raise ConfigError(
                f"model {module.__name__}: its forward takes {name}, and the data's edges have no {words}. Write "
                f"{name}=None and do without, or take other data.",
                code="config.module-inputs",
            )


def check_weights(module: nn.Module) -> None:
    """Reject a module without weights, with weights that cannot be averaged, or with inputs that clients do not have.

    Raises:
        ConfigError: names the weights and the remedy.
    """
    inputs_of(type(module))
    weights = dict(module.named_parameters())
    tensors = weights | dict(module.named_buffers())
    lazy = [path for path, weight in tensors.items() if nn.parameter.is_lazy(weight)]
    statistics = [path for path in weights if is_statistic(path)]
    frozen = [path for path, weight in weights.items() if not weight.requires_grad]
    unreal = [path for path, weight in weights.items() if not weight.is_floating_point()]
    kinds = ", ".join(sorted({str(weights[path].dtype) for path in unreal}))
    problems = {  # a sentence without its subject, with the names of weights at {}: these weights
        "has lazy layers ({}), whose sizes only data would settle; give them their sizes; the constructor's first two "
        "parameters are features and classes.": lazy,
        f"has weights of {kinds} ({{}}), which cannot be averaged here. Hold a complex weight as its real and its "
        "imaginary part (torch.view_as_real), and join them in forward.": unreal,
        "has weights ({}) whose names mark running statistics, which no gradient moves. Rename them.": statistics,
        "has frozen weights ({}), which would be trained and sent like all others; let them train, or give what the "
        "frozen layers make of features as features.": frozen,
    }
    name = type(module).__name__
    if not weights:
        raise ConfigError(
            f"model {name} has no weights, so that there is nothing to train.", code="config.module-weights"
        )
    for problem, paths in problems.items():
        if paths:
            raise ConfigError(f"model {name} {problem.format(', '.join(paths))}", code="config.module-weights")


def try_out(module: nn.Module, form: TrialForm) -> bool:
    """Run copies of a module on small path graphs, and return whether it gives a row for each small graph.

    The output for the second graph must not depend on the first graph, or on chance in evaluation. Training must move
    weights, and may change only running statistics among the buffers.
    """
    name = type(module).__name__
    used, fresh, another = (_cast(module, form.dtype).eval() for _ in range(3))
    with torch.no_grad():
        pooled = len(_trial_logits(used, form, 3)) == 1
        after = _trial_logits(used, form, 4)
        reference = _trial_logits(fresh, form, 4)
        drawn = _trial_logits(another, form, 4, seed=1)
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


def precision_notes(module: nn.Module, dtype: torch.dtype) -> list[str]:
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
    requested, count = inputs_of(type(module)), edges.shape[1]
    arguments = {"batch": torch.zeros(nodes, dtype=torch.int64, device="cpu")}
    if form.edge_features or requested.get("edge_attr"):
        arguments["edge_attr"] = torch.ones(count, max(form.edge_features, 1), dtype=form.dtype, device="cpu")
    if form.weighted or requested.get("edge_weight"):
        arguments["edge_weight"] = torch.ones(count, dtype=form.dtype, device="cpu")
    inputs = {argument: arguments.get(argument) for argument in requested}
    try:
        with seed_generators(seed), record_embeddings(module) as embedded:
            out = module(x, *([edges] if reads_edges(module) else []), **inputs)
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
    if embeds(module) and not (
        embedded and isinstance(embedded[-1], Tensor) and embedded[-1].dim() == 2 and len(embedded[-1]) == len(out)
    ):
        got = list(embedded[-1].shape) if embedded and isinstance(embedded[-1], Tensor) else "nothing"
        raise ConfigError(
            f"model {name}: its embed gave {got} for a graph of {nodes} nodes. forward must call self.embed, which "
            f"must return embeddings [n, width], a row for each row of logits, here {len(out)}.",
            code="config.module-outputs",
        )
    return out
