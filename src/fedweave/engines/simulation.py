"""A federation in one process, which keeps freed memory for its next round."""

import ctypes
import ctypes.util
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fedweave.core.algorithm import Result
from fedweave.core.federation import Federation
from fedweave.core.graph import SPLITS, Graph
from fedweave.core.shown import page
from fedweave.core.tree import Tree
from fedweave.core.types import Record
from fedweave.engines.engine import Absent, LocalEngine, check_names
from fedweave.engines.loop import Loop
from fedweave.engines.vectorized import Vectorized
from fedweave.engines.whole_rounds import WholeRounds
from fedweave.errors import ConfigError
from fedweave.ops.recording import Recordings, When

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # mallopt's parameters in glibc's malloc.h


@cache
def keep_freed_memory() -> bool:
    """Let glibc allocate all tensors from memory freed before; False if there is no glibc.

    Every round allocates and frees the same gradients and activations. By default glibc maps large blocks (at first
    blocks above 128 kB, at most above 32 MiB) again each time, and clears their pages on first touch. Measured, this
    took a third of a training round of 10 clients, and of GLASU's round on PubMed, whose blocks are larger.
    """
    mallopt = _of_glibc("mallopt")
    return bool(mallopt and mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))


def return_freed_memory() -> bool:
    """Return the freed memory that glibc holds to the system; False if there is none, or no glibc."""
    trim = _of_glibc("malloc_trim")
    return bool(trim and trim(0))


def _of_glibc(name: str) -> Any:
    """A function of glibc; None if there is no glibc."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return getattr(ctypes.CDLL(ctypes.util.find_library("c")), name)
    except (OSError, AttributeError):
        return None


MODES = ("vmap", "loop")


class Simulation(LocalEngine):
    """An engine over the clients' graphs, with its own executor.

    graphs: {client id: its graph}, in client order.
    mode:   "vmap" runs clients in batches (`engines.vectorized`), "loop" one after the other (`engines.loop`).
    chunk, record: see `Vectorized`. members, member_algorithms, device: see `Loop`. The rest: see `LocalEngine`.
    origin: the inputs of `experiment.build.federation` (`experiment.build.Origin`), if that function made it.
    """

    origin: object = None

    def _repr_html_(self) -> str:
        rows = ((client, *graph.facts().values()) for client, graph in self.graphs.items())
        return page(repr(self), rows, ("client", "nodes", "rows", "features", *SPLITS))

    def __init__(
        self,
        graphs: Mapping[str, Graph],
        *,
        classes: int,
        test: Graph | None = None,
        held: Mapping[str, Graph] | None = None,
        pairs: Mapping[str, Tensor] | None = None,
        members: Mapping[str, Tensor] | None = None,
        member_algorithms: Mapping[str, object] | None = None,
        seed: int = 0,
        mode: str = "vmap",
        device: torch.device | None = None,
        chunk: int = 0,
        absent: Absent | None = None,
        record: When = "auto",
        resend: bool = True,
        examples: int | None = None,
        samples_ranks: bool = False,
    ) -> None:
        if mode not in MODES:
            raise ConfigError(
                f"engine mode {mode!r} is unknown; choose one of {', '.join(MODES)}.", code="config.unknown-name"
            )
        check_names(tuple(graphs))
        keep_freed_memory()
        self.mode = mode
        options: Record = {"classes": classes, "test": test, "members": members, "member_algorithms": member_algorithms}
        options["device"] = device
        executor: Loop = (
            Vectorized(graphs, **options, chunk=chunk, record=record) if mode == "vmap" else Loop(graphs, **options)
        )
        self._data = executor.data
        self.recordings = executor.recordings if isinstance(executor, Vectorized) else Recordings("never")
        super().__init__(
            executor,
            classes=classes,
            dtype=next(iter(graphs.values())).x.dtype,
            test=executor.test,
            held={role: graph.to(executor.device) for role, graph in (held or {}).items()},
            pairs=pairs,
            members=members,
            seed=seed,
            absent=absent,
            resend=resend,
            examples=examples,
            samples_ranks=samples_ranks,
        )
        self._whole: WholeRounds | None = None
        worth = self.recordings.captures or record == "always"  # else it was measured to save 3 %
        if isinstance(executor, Vectorized) and resend and absent is None and worth:
            self._whole = WholeRounds(self, self._keys, executor)

    def carry_out(self, method: Callable[[Tree, Federation], Result], state: Tree) -> Result:
        if self._whole is None:
            return method(state, self)
        result: Result = self._whole.carry_out(method, state)
        return result

    @property
    def whole_methods(self) -> frozenset[str]:
        """The methods of the algorithm that were played from a recording as a whole: "round", "evaluate"."""
        return frozenset() if self._whole is None else frozenset(self._whole.played)

    def recording(self) -> AbstractContextManager[None]:
        return self.recordings.activate()

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """{client id: its current data}, for the owner of all data; no algorithm may read it."""
        return MappingProxyType(self._data.graphs)
