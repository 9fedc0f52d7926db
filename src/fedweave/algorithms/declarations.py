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
_COUNTED = (*classification.COUNTED, *groups.COUNTED, *numbers.COUNTED, *labels.ALWAYS, *OF_RANKS, MEAN, HISTOGRAM)
BELOW_SCORES = tuple(dict.fromkeys(_COUNTED))


@cache
def all_steps() -> tuple[Step, ...]:
    """The steps of all algorithms with default settings, and of the set-up of all parts.

    Raises:
        ConfigError: an algorithm takes no model with its default settings.
    """
    algorithms = [_with_defaults(name, kind) for name, kind in ALGORITHMS.items()]
    owners = [owner for algorithm in algorithms for owner in (algorithm, *algorithm.composed.values())]
    steps = [MethodType(method, owner) for owner in owners for method in _members(owner) if is_step(method)]
    return (*steps, *(step for kind in PARTS.values() for step in kind().setup))


@cache
def all_fields() -> frozenset[str]:
    """All fields of replies that algorithms and parts with default settings declare."""
    declared = [step_info(step) for step in all_steps()] + [StepInfo.of(kind().sends) for kind in PARTS.values()]
    return frozenset(key for info in declared for key in info.sends)


def _with_defaults(name: str, kind: Callable[[object], Algorithm]) -> Algorithm:
    """The algorithm `name` with its defaults and the first model that it accepts."""
    for plugin in (*(model() for model in MODELS.values()), GCN(norm="batch")):
        try:
            return kind(plugin.build(4, 2))
        except (ValueError, TypeError):
            continue
    raise ConfigError(f"{name} takes no model with its default settings, so that what it sends is not known")


def _members(owner: object) -> list[Callable[..., object]]:
    """All functions of an object's class, including inherited ones."""
    members = {name: member for kind in reversed(type(owner).__mro__) for name, member in vars(kind).items()}
    return [member for member in members.values() if callable(member)]
