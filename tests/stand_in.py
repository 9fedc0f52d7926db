"""A device that every machine has, to test placement without an accelerator.

Its tensors have values, computed on the host, but say that they lie on PyTorch's device "meta", and no operation takes
them together with tensors of the host, as none takes those of a GPU. It works under `torch.func` and autograd, because
what it sees are the kernels below them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

DEVICE, HOST = torch.device("meta"), torch.device("cpu")
_ATEN = torch.ops.aten
_MOVES = (_ATEN._to_copy.default, _ATEN.copy_.default)
_FROM_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray)
_BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Placed(Tensor):
    """A tensor on the stand-in; `host` has its values."""

    host: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host: Tensor) -> "Placed":
        strided = host.layout == torch.strided
        place = {"strides": host.stride(), "storage_offset": host.storage_offset()} if strided else {}
        made = Tensor._make_wrapper_subclass(cls, host.shape, dtype=host.dtype, device=DEVICE, **place)
        made.host = host
        return made  # type: ignore[no-any-return]

    def untyped_storage(self) -> torch.UntypedStorage:
        """The same for all views of one tensor."""
        return self.host.untyped_storage()

    def __repr__(self, **_: Any) -> str:
        return f"Placed({self.host!r})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{function} runs outside of the stand-in's `present`")


class Mixed(Exception):
    """An operation took tensors of the stand-in together with tensors of the host."""


class Kernels(TorchDispatchMode):
    """Runs the kernels of the stand-in's tensors on the host.

    waits: (what is `inside`, kernel) of those that a real device would be waited for, since numbers, or sizes that
    depend on numbers, come back, or that copy between host and device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: set[tuple[str, str]] = set()
        self.inside = ""
        self._of_host: Any = WeakTensorKeyDictionary()  # tensors of the host that were made while this was entered

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one kernel."""
        kwargs = kwargs or {}
        flat, spec = pytree.tree_flatten((args, kwargs))
        placed = [value for value in flat if isinstance(value, Placed)]
        others = [value for value in flat if isinstance(value, Tensor) and not isinstance(value, Placed)]
        odd = [tuple(own.shape) for own in others if own.dim() or own in self._of_host]
        if placed and odd and function not in _MOVES:
            raise Mixed(f"{function} takes tensors of shapes {odd} from the host")
        wanted = kwargs.get("device")
        onto = bool(placed) if wanted is None else torch.device(wanted) == DEVICE
        self._note(function, args, bool(placed), onto)
        on_host = [value.host if isinstance(value, Placed) else HOST if value == DEVICE else value for value in flat]
        own_args, own_kwargs = pytree.tree_unflatten(on_host, spec)
        out = function(*own_args, **own_kwargs)
        if onto and torch.Tag.inplace_view in function.tags:
            with no_dispatch():  # changes the wrapper's shape
                function(*args, **kwargs)
            return args[0]
        if onto:
            known = {id(value.host): value for value in placed}
            return pytree.tree_map(lambda own: _wrapped(own, known), out)
        made = function is _ATEN.lift_fresh.default or not (others or function is _ATEN._to_copy.default)
        if made or any(own in self._of_host for own in others):  # else it is of a Python number, which is of no device
            self._of_host.update({own: True for own in pytree.tree_leaves(out) if isinstance(own, Tensor)})
        return out

    def _note(self, function: Any, args: Any, placed: bool, onto: bool) -> None:
        waits = placed and not _BY_VALUE.isdisjoint(function.tags)
        if function is _ATEN.index.Tensor:  # of numbers it has a size that is known
            waits = any(own is not None and own.dtype in (torch.bool, torch.uint8) for own in args[1])
        if self.inside and (waits or (function in _MOVES and placed != onto)):
            self.waits.add((self.inside, str(function)))


def _wrapped(value: Any, known: dict[int, Placed]) -> Any:
    if not isinstance(value, Tensor):
        return value
    return known[id(value)] if id(value) in known else Placed(value)


class Factories(TorchFunctionMode):
    """Makes tensors of the stand-in from Python's numbers, which PyTorch takes to have no values there."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call one function of torch."""
        kwargs = kwargs or {}
        if function is Tensor.tolist and isinstance(args[0], Placed):
            return function(args[0].cpu())
        if function in _FROM_NUMBERS and not isinstance(args[0], Tensor) and kwargs.get("device") == DEVICE:
            return function(*args, **{**kwargs, "device": HOST}).to(DEVICE)
        return function(*args, **kwargs)


@contextmanager
def present() -> Iterator[Kernels]:
    """The stand-in can be used inside."""
    with Factories(), Kernels() as kernels:
        yield kernels


class Watched:
    """A step as engines take it, inside of which `kernels` note what waits."""

    def __init__(self, step: Callable[..., Any], kernels: Kernels) -> None:
        self._step, self._kernels = step, kernels
        self.__name__, self.on_client = step.__name__, step.on_client  # type: ignore[attr-defined]
        if hasattr(step, "__self__"):
            self.__self__ = step.__self__

    def __call__(self, *args: Any) -> Any:
        self._kernels.inside = self.__name__
        try:
            return self._step(*args)
        finally:
            self._kernels.inside = ""


class Replays(TorchDispatchMode):
    """Captures as a GPU does: what it launches again are kernels alone, on the same memory, and no code of Python runs.

    captured: how often something was. refused: why something was not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.captured, self.refused = 0, list[str]()
        self._kernels: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note one kernel."""
        kwargs = kwargs or {}
        taken = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        out = function(*args, **kwargs)
        both = [*(value for value in taken if value.dim()), *pytree.tree_leaves(out)]  # without Python's numbers
        crosses = {value.device for value in both if isinstance(value, Tensor)}
        if len(crosses) > 1 or (taken and not _BY_VALUE.isdisjoint(function.tags) and not isinstance(out, Tensor)):
            raise RuntimeError(f"{function} is not permitted when a stream is capturing")
        self._kernels.append((function, args, kwargs, out))
        return out

    def capture(self, function: Callable[[], object]) -> Callable[[], object]:
        """See `fedweave.ops.captures.KernelRecorder`."""
        self._kernels = kernels = []
        try:
            with self:
                function()
        except RuntimeError as error:
            self.refused.append(str(error))
            raise
        self.captured += 1
        for kernel in kernels:  # they were noted, and none has run yet
            for value in _made(*kernel):
                value.fill_(1)
        return lambda: _launch(kernels)


def _made(function: Any, args: Any, kwargs: Any, out: Any) -> list[Tensor]:
    """The tensors with memory of their own that a kernel has made."""
    memory = {_memory(value) for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)}
    return [v for v in pytree.tree_leaves(out) if isinstance(v, Tensor) and _memory(v) not in {None, *memory}]


def _memory(value: Tensor) -> Any:
    """None of a sparse tensor, whose parts are others."""
    own = value.host if isinstance(value, Placed) else value
    return own.untyped_storage()._cdata if own.layout == torch.strided else None


def _launch(kernels: list[tuple[Any, Any, Any, Any]]) -> None:
    for function, args, kwargs, out in kernels:
        if made := _made(function, args, kwargs, out):
            again = _made(function, args, kwargs, function(*args, **kwargs))
            for value, new in zip(made, again, strict=True):
                value.copy_(new.reshape(value.shape))  # `squeeze_` may have given it another shape since
        elif function._schema.is_mutable:
            function(*args, **kwargs)
