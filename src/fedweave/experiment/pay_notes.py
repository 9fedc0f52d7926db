"""Notes on pay before a run."""

from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.parts import Uniform
from fedweave.core.algorithm import Algorithm
from fedweave.experiment.config import Config
from fedweave.incentives.rules import SIZE


def equal_size_note(config: Config, algorithm: Algorithm) -> str:
    """A note on pay by size, or with a cap, in a run in which every member has the same size; else ""."""
    pay = config.pay
    if not pay.budget or (pay.by != SIZE and not pay.cap) or not isinstance(algorithm, FedAvg):
        return ""
    if not isinstance(algorithm.composed.get(algorithm.composed.owner("weigh")), Uniform):
        return ""
    which = f'by = "{SIZE}"' if pay.by == SIZE else "cap"
    return f'pay.{which}: every member counts the same here, so size is equal. The part "by_size" counts examples.'
