"""Recordings as graphs of a GPU: all kernels of a recording are launched at once instead of one by one.

A capture reads and writes fixed addresses, so it belongs to one batch, whose data keep their addresses. Inputs that
change from call to call are copied into the computation's buffers before a launch, and results are copied out of its
buffers. All batches share these buffers, since batches run one after the other. Otherwise each batch would store its
clients' states twice.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedweave.ops.recorded_calls import Recording

Results = tuple[Tensor, ...]


class StableOperands(NamedTuple):
    """Places of the operands that stay the same, unchanged tensors while the roots are the same; `name` identifies
    this set of tensors."""

    name: Hashable
    places: frozenset[int]


class KernelRecorder(Protocol):
    """Captures the kernels that a function launches."""

    def capture(self, function: Callable[[], object]) -> Callable[[], object]:
        """Return a function that launches these kernels again. They read the tensors that the function read, with
        their current values, and write where the function wrote.

        Raises:
            RuntimeError: the function does something that cannot be captured, such as waiting for the device.
        """


class CudaGraphs:
    """CUDA graphs of one device, which share memory since they run one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], object]) -> Callable[[], object]:
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


def recorder_for(device: torch.device) -> KernelRecorder | None:
    """The recorder of a device; None if launching kernels one by one is quick there."""
    return CudaGraphs(device) if device.type == "cuda" else None


class Buffers:
    """The tensors that captures of one computation read and write, except those that last for their batches.

    fixed: places of the stable tensors among `tensors`. results: the results of the first call.
    """

    def __init__(self, tensors: Sequence[Tensor], fixed: Collection[int], results: Results) -> None:
        self._changing = [at for at in range(len(tensors)) if at not in fixed]
        self._inputs = _Copies([tensors[at] for at in self._changing])
        self._results, self._groups = tuple(map(torch.empty_like, results)), _by_dtype(results)

    def among(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of a batch, where buffers replace the tensors that change from call to call."""
        inputs = list(tensors)
        for at, copy in zip(self._changing, self._inputs.tensors, strict=True):
            inputs[at] = copy
        return inputs

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy the tensors that change from call to call into the buffers."""
        self._inputs.fill([tensors[at] for at in self._changing])

    def take(self, results: Results) -> None:
        """Copy the results of a call into the buffers."""
        _copy(self._results, results, self._groups)

    def give(self) -> Results:
        """The results of the last call, in new memory."""
        results = tuple(map(torch.empty_like, self._results))
        _copy(results, self._results, self._groups)
        return results


class Capture:
    """One recording, captured for one batch: for `values` and the stable operands, whose places are `fixed`."""

    def __init__(
        self,
        recording: Recording,
        values: Sequence[object],
        tensors: Sequence[Tensor],
        fixed: Collection[int],
        buffers: Buffers,
        by: KernelRecorder,
    ) -> None:
        self._operands = values, [tensors[at] for at in sorted(fixed)]  # kept alive: the capture has their addresses
        self._buffers, inputs = buffers, buffers.among(tensors)
        self._launch = by.capture(lambda: buffers.take(recording.play(values, inputs)))

    def __call__(self, tensors: Sequence[Tensor]) -> Results:
        """The results for operands whose stable ones are the same."""
        self._buffers.fill(tensors)
        self._launch()
        return self._buffers.give()


class _Copies:
    """Copies of tensors, with their shapes and strides, to be filled with other numbers. All tensors of one dtype are
    copied at once, because a launch takes longer than the copy."""

    def __init__(self, like: Sequence[Tensor]) -> None:
        self._contiguous = [tensor.is_contiguous() for tensor in like]
        self.tensors: list[Tensor] = []
        self._targets: list[Tensor] = []  # what is written: the copy, or its whole memory if it has gaps
        for tensor, contiguous in zip(like, self._contiguous, strict=True):
            memory = _memory(tensor).clone()
            self.tensors.append(memory.as_strided(tensor.shape, tensor.stride()))
            self._targets.append(self.tensors[-1] if contiguous else memory)
        self._groups = _by_dtype(like)

    def fill(self, sources: Sequence[Tensor]) -> None:
        pairs = zip(sources, self._contiguous, strict=True)
        inputs = [source if contiguous else _memory(source) for source, contiguous in pairs]
        _copy(self._targets, inputs, self._groups)


def _memory(tensor: Tensor) -> Tensor:
    """The memory from the first to the last element; an expanded element counts once."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach().as_strided((span * bool(tensor.numel()),), (1,), tensor.storage_offset())


def _copy(into: Sequence[Tensor], sources: Sequence[Tensor], groups: list[list[int]]) -> None:
    """Copy tensors, all of a group at once."""
    for places in groups:
        torch._foreach_copy_([into[at] for at in places], [sources[at] for at in places])


def _by_dtype(tensors: Sequence[Tensor]) -> list[list[int]]:
    """The places of the tensors, grouped by dtype."""
    places: dict[torch.dtype, list[int]] = {}
    for at, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(at)
    return list(places.values())


def is_capturable(recording: Recording, tensors: Sequence[Tensor]) -> bool:
    """Whether a recording may be captured: equal inputs give equal results, and it changes none of its inputs."""
    return recording.pure and not recording.changes_inputs and all(t.layout == torch.strided for t in tensors)
