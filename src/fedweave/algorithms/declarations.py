"""What the installed algorithms and parts declare: their steps, and the fields that these send."""

from collections.abc import Callable
from functools import cache
from types import MethodType

from fedweave.algorithms import ALGORITHMS, PARTS
from fedweave.algorithms.score_sums import HISTOGRAM, MEAN
from fedweave.core.algorithm import Algorithm
from fedweave.core.federation import Step, StepInfo, is_step, step_info
from fedweave.errors import ConfigError
from fedweave.metrics import classification, groups, labels, numbers
from fedweave.metrics.selection import OF_RANKS
from fedweave.models import GCN, MODELS

# What is below a model's scores, of classes, numbers, labels and links; some have no declaration of their own.
_BELOW = (*classification.COUNTED, *groups.COUNTED, *numbers.COUNTED, *labels.ALWAYS, *OF_RANKS, MEAN, HISTOGRAM)
BELOW_SCORES = tuple(dict.fromkeys(_BELOW))


@cache
def all_steps() -> tuple[Step, ...]:
    """The steps of all algorithms with default settings, and of the set-up of all parts.

    Raises:
        ConfigError: an algorithm takes no model with its default settings.
    """
    owners = list[object]()
    for name, kind in ALGORITHMS.items():
        algorithm = _with_defaults(name, kind)
        owners += [algorithm, *algorithm.composed.values()]
    steps = list[Step]()
    for owner in owners:
        members = dict[str, object]()  # of the class, inherited ones first
        for base in reversed(type(owner).__mro__):
            members |= vars(base)
        steps += [MethodType(member, owner) for member in members.values() if callable(member) and is_step(member)]
    for part in PARTS.values():
        steps += part().setup
    return tuple(steps)


@cache
def all_fields() -> frozenset[str]:
    """All fields of replies that algorithms and parts with default settings declare."""
    infos = [step_info(step) for step in all_steps()] + [StepInfo.of(part().sends) for part in PARTS.values()]
    return frozenset[str]().union(*(info.sends for info in infos))


def _with_defaults(name: str, kind: Callable[[object], Algorithm]) -> Algorithm:
    """The algorithm `name` with its defaults and the first model that it accepts."""
    for plugin in (*(model() for model in MODELS.values()), GCN(norm="batch")):
        try:
            return kind(plugin.build(4, 2))
        except (ValueError, TypeError):
            continue
    raise ConfigError(f"{name} takes no model with its default settings, so that what it sends is not known")
