"""Recordings as graphs of a GPU: all kernels of a recording are launched at once instead of one by one.

What is captured reads and writes fixed addresses. So a capture belongs to one batch, whose data stay where they are,
and what changes from call to call is copied into tensors of the capture before it runs.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedweave.ops.replay import Recording

Results = tuple[Tensor, ...]


class Lasting(NamedTuple):
    """Which operands of a computation stay the same tensors, unchanged, as long as its roots and they have this name:
    their places among the operands."""

    name: Hashable
    places: frozenset[int]


class Recorder(Protocol):
    """Captures the kernels that a function launches."""

    def capture(self, function: Callable[[], Results]) -> tuple[Results, Callable[[], object]]:
        """(tensors, launch): each `launch` computes the function's results again, into the same tensors, from what the
        tensors that the function read hold then.

        Raises:
            RuntimeError: the function does what cannot be captured, such as waiting for the device.
        """
        ...


class CudaGraphs:
    """CUDA graphs of one device, which share memory since they run one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], Results]) -> tuple[Results, Callable[[], object]]:
        """See `Recorder`."""
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # libraries allocate their workspaces in a first run
                function()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                results = function()
        return results, graph.replay


def recorder_for(device: torch.device) -> Recorder | None:
    """What captures on a device; None where kernels are quickly launched one by one."""
    return CudaGraphs(device) if device.type == "cuda" else None


class Capture:
    """One recording, captured for the batch that `values` and the `lasting` operands belong to."""

    def __init__(
        self, recording: Recording, values: Sequence[object], tensors: Sequence[Tensor], fixed: set[int], by: Recorder
    ) -> None:
        self._values = values, [tensors[at] for at in sorted(fixed)]  # held, for what is captured knows their addresses
        self._changing = [at for at in range(len(tensors)) if at not in fixed]
        self._copies = _Copies([tensors[at] for at in self._changing])
        given = list(tensors)
        for at, copy in zip(self._changing, self._copies.tensors, strict=True):
            given[at] = copy
        self._results, self._launch = by.capture(lambda: recording.play(values, given))
        self._groups = _by_dtype(self._results)

    def __call__(self, tensors: Sequence[Tensor]) -> Results:
        """The results for operands of which those that last are the same."""
        self._copies.fill([tensors[at] for at in self._changing])
        self._launch()
        found = tuple(torch.empty_like(result) for result in self._results)
        _copy(found, self._results, self._groups)
        return found


class _Copies:
    """Tensors of the forms of others, strides included, to be filled with other numbers: those of one type at once,
    for a launch takes longer than the copy."""

    def __init__(self, like: Sequence[Tensor]) -> None:
        self._plain = [tensor.is_contiguous() for tensor in like]
        self._memory = [_memory(tensor).clone() for tensor in like]
        forms = [(tensor.shape, tensor.stride()) for tensor in like]
        self.tensors = [own.as_strided(*form) for own, form in zip(self._memory, forms, strict=True)]
        each = zip(self._plain, self.tensors, self._memory, strict=True)
        self._into = [own if plain else memory for plain, own, memory in each]
        self._groups = _by_dtype(like)

    def fill(self, sources: Sequence[Tensor]) -> None:
        given = [own if plain else _memory(own) for own, plain in zip(sources, self._plain, strict=True)]
        _copy(self._into, given, self._groups)


def _memory(tensor: Tensor) -> Tensor:
    """The memory from the first to the last element; of those that are expanded, each counts once."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach().as_strided((span * bool(tensor.numel()),), (1,), tensor.storage_offset())


def _copy(into: Sequence[Tensor], sources: Sequence[Tensor], groups: list[list[int]]) -> None:
    """Copy tensors, those of one group at once."""
    for those in groups:
        torch._foreach_copy_([into[at] for at in those], [sources[at] for at in those])


def _by_dtype(tensors: Sequence[Tensor]) -> list[list[int]]:
    """The numbers of the tensors, those of one type together."""
    dtypes = [tensor.dtype for tensor in tensors]
    return [[at for at, own in enumerate(dtypes) if own == dtype] for dtype in dict.fromkeys(dtypes)]


def capturable(recording: Recording, tensors: Sequence[Tensor]) -> bool:
    """Whether a recording may be captured: it gives the same for the same and changes nothing that it is given."""
    return recording.pure and not recording.changes_inputs and all(t.layout == torch.strided for t in tensors)


def places_among(tensors: Sequence[Any], lasting: Lasting) -> set[int]:
    """Where those that last are among the operands that are tensors."""
    places = [at for at, operand in enumerate(tensors) if isinstance(operand, Tensor)]
    return {number for number, at in enumerate(places) if at in lasting.places}
