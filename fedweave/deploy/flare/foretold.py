"""What a site's policy refuses of a run for certain, known before any of it is done."""

from collections.abc import Iterator

from fedweave.core.algorithm import Calls
from fedweave.core.federation import StepInfo, step_info, step_name
from fedweave.core.tree import nest
from fedweave.deploy.flare.policy import PolicyViolation, Spent, check_reply, check_summed
from fedweave.deploy.flare.sitefile import Rules

SCORES = "own"  # the key of evaluations' replies that every algorithm needs


def check_declared(rules: Rules, calls: Calls, labels: bool, sites: int) -> None:
    """Refuse a run of that many sites that could not end, before anything of it leaves.

    labels: whether the site has any.

    Raises:
        PolicyViolation: names every rule, key and step that sends it.
    """
    found = refusals(rules, calls, labels, sites)
    if reasons := [f"{why}, and {sender} sends it" for why, sender, certain in found if certain]:
        raise PolicyViolation(". ".join(reasons))


def refusals(rules: Rules, calls: Calls, labels: bool, sites: int) -> Iterator[tuple[str, str, bool]]:
    """Why a rule refuses a key, the step that declares to send it, and whether it sends it on all data: of evaluations
    only "own" is."""
    for step in dict.fromkeys(calls.setup + calls.round + calls.evaluation):
        if step in calls.labelled and not labels:
            continue
        for key, why in _of_step(rules, step_info(step), sites).items():
            yield why, step_name(step), step not in calls.evaluation or key == SCORES


def _of_step(rules: Rules, info: StepInfo, sites: int) -> dict[str, str]:
    """{key: why} of what a step declares to send and a policy refuses, without what is below such a key."""
    found: dict[str, str] = {}
    for key in sorted(info.sends):
        if any(key.startswith(f"{above}/") for above in found):
            continue
        try:
            check_reply(rules, Spent(), nest({key: 0.0}), 0, info)
            check_summed(rules, key, info, sites)
        except PolicyViolation as error:
            found[key] = str(error)
    return found
