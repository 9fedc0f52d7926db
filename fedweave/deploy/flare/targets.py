"""How often a site may take part in a round of a run whose noise was chosen for so many rounds (a target ε)."""

from collections.abc import Mapping
from typing import Any

from fedweave.core.algorithm import Calls
from fedweave.core.federation import Step, step_info, step_name
from fedweave.core.mechanism import Gaussian
from fedweave.deploy.flare.policy import PolicyViolation
from fedweave.deploy.flare.sitefile import Rules


def targeted(algorithm: Any, calls: Calls) -> dict[str, int]:
    """{step that sends something with noise: how often it may reply} of an algorithm with a target; {} of others."""
    most = getattr(algorithm, "most_rounds", None)
    return {} if most is None else {step_name(step): most for step in calls.round if _noised(step)}


def _noised(step: Step) -> bool:
    return any(isinstance(one, Gaussian) for own in step_info(step).sends.values() for one in own.mechanisms)


def check_target(rules: Rules, most: Mapping[str, int], done: Mapping[str, int], left: int) -> None:
    """Refuse `left` more replies of steps that have replied as often as is `done` in runs of the same configuration.

    Raises:
        PolicyViolation: says how many rounds are left.
    """
    for step, allowed in most.items():
        replied = done.get(step, 0)
        if not rules.repeats and replied + left > allowed:
            raise PolicyViolation(
                f"policy.repeats: the target ε is for {allowed} replies of {step}; {replied} have left in runs of this "
                f"configuration, rounds that were done again among them, and {left} more do not fit. Lower rounds by "
                f"{replied + left - allowed} or more, or let the target be exceeded: policy.repeats = true"
            )
