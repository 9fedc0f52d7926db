"""Recordings as graphs of a GPU: all kernels of a recording are launched at once instead of one by one.

What is captured reads and writes fixed addresses. So a capture belongs to one batch, whose data stay where they are,
and what changes from call to call is copied into tensors of the computation before it runs, and its results out of
others. These all batches share, since they run one after the other: else each kept the states of its clients twice.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
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

    def capture(self, function: Callable[[], object]) -> Callable[[], object]:
        """What launches these kernels again, which write to where the function wrote, from what the tensors that it
        read hold then.

        Raises:
            RuntimeError: the function does what cannot be captured, such as waiting for the device.
        """
        ...


class CudaGraphs:
    """CUDA graphs of one device, which share memory since they run one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], object]) -> Callable[[], object]:
        """See `Recorder`."""
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # libraries allocate their workspaces in a first run
                function()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                function()
        return graph.replay


def recorder_for(device: torch.device) -> Recorder | None:
    """What captures on a device; None where kernels are quickly launched one by one."""
    return CudaGraphs(device) if device.type == "cuda" else None


class Buffers:
    """What captures of one computation read and write, besides what lasts for their batches.

    fixed: the places of these among `tensors`. results: of the first call.
    """

    def __init__(self, tensors: Sequence[Tensor], fixed: Collection[int], results: Results) -> None:
        self._changing = [at for at in range(len(tensors)) if at not in fixed]
        self._given = _Copies([tensors[at] for at in self._changing])
        self._results, self._groups = tuple(map(torch.empty_like, results)), _by_dtype(results)

    def among(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of a batch, with those in the place of others that are filled before each call."""
        given = list(tensors)
        for at, copy in zip(self._changing, self._given.tensors, strict=True):
            given[at] = copy
        return given

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy what changes from call to call."""
        self._given.fill([tensors[at] for at in self._changing])

    def take(self, results: Results) -> None:
        """Copy the results of a call."""
        _copy(self._results, results, self._groups)

    def give(self) -> Results:
        """The results of the last call, in memory of their own."""
        found = tuple(map(torch.empty_like, self._results))
        _copy(found, self._results, self._groups)
        return found


class Capture:
    """One recording, captured for the batch that `values` and the operands that last, those `fixed`, belong to."""

    def __init__(
        self,
        recording: Recording,
        values: Sequence[object],
        tensors: Sequence[Tensor],
        fixed: Collection[int],
        buffers: Buffers,
        by: Recorder,
    ) -> None:
        self._held = values, [tensors[at] for at in sorted(fixed)]  # for what is captured knows their addresses
        self._buffers, given = buffers, buffers.among(tensors)
        self._launch = by.capture(lambda: buffers.take(recording.play(values, given)))

    def __call__(self, tensors: Sequence[Tensor]) -> Results:
        """The results for operands of which those that last are the same."""
        self._buffers.fill(tensors)
        self._launch()
        return self._buffers.give()


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


def places_among(tensors: Sequence[Any], lasting: Lasting) -> frozenset[int]:
    """Where those that last are among the operands that are tensors."""
    places = [at for at, operand in enumerate(tensors) if isinstance(operand, Tensor)]
    return frozenset(number for number, at in enumerate(places) if at in lasting.places)
