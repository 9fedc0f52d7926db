"""Whether a machine's memory can hold what a run is about to draw."""

import os
from collections.abc import Sequence

from fedweave.algorithms.parts import SampledCrossEntropy
from fedweave.algorithms.parts.composition import MadeOfParts
from fedweave.core.model import Model
from fedweave.core.records import Values
from fedweave.core.text import counted
from fedweave.errors import ConfigError
from fedweave.sampling.minibatches import bytes_of


def check_memory(algorithm: object, model: Model, nodes: Sequence[int], engine: Values) -> None:
    """Refuse sampled neighbourhoods that memory cannot hold.

    nodes: how many each client has. engine: the settings of [engine], which say how many clients run at once.

    Raises:
        ConfigError: says about how much they take, and what to lower.
    """
    parts = algorithm.composed.values() if isinstance(algorithm, MadeOfParts) else ()
    together = 1 if engine.get("mode") == "loop" else int(engine.get("chunk", 0))
    largest = sorted(nodes, reverse=True)[: together or None]
    for sampler in (part.sampler for part in parts if isinstance(part, SampledCrossEntropy)):
        need = sum(bytes_of(model, sampler, count, getattr(algorithm, "local_steps", 1)) for count in largest)
        if need > (there := _memory()):
            raise ConfigError(
                f"algorithm.parts: sampled_cross_entropy with batch = {sampler.batch} and fan_out = {sampler.fan_out} "
                f"draws about {need / 1e9:,.0f} GB for {counted(len(largest), 'client')} at once, and this machine has "
                f"{there / 1e9:,.0f} GB. Lower fan_out, batch, local_steps or model.layers, or set engine.chunk.",
                code="config.memory",
            )


def _memory() -> float:
    """Bytes that this machine has; inf where it does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return float("inf")
