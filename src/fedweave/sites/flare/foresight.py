"""What a site's policy will certainly refuse in a run: the site finds this out before the run's first step."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.scoring import score_paths
from fedweave.core.algorithm import Algorithm, Calls, capabilities
from fedweave.core.federation import Step, StepInfo, step_info, step_name
from fedweave.core.graph import Graph
from fedweave.core.mechanism import LDP, Applied, Gaussian, Mechanism, release_of
from fedweave.core.tree import nest
from fedweave.experiment.config import Config, General
from fedweave.experiment.rounds import is_evaluated
from fedweave.sites.flare.policy import (
    SCORES,
    PolicyViolation,
    Spent,
    check_evaluations,
    check_reply,
    check_summed,
    covers,
)
from fedweave.sites.flare.scores import COUNTED, measure_of, scoring_of, scoring_steps
from fedweave.sites.flare.sitefile import FINE, Rules

_ROUNDED = 'round it (policy.round_scores) or have it added up over sites (algorithm.scores = "sum")'


def check_declared(rules: Rules, calls: Calls, labels: bool, sites: int, scored: Sequence[str] = ()) -> None:
    """Refuse a run that the policy would stop before its end, before any data of it leaves.

    labels: whether the site has labels. sites: number of sites in the run. scored: see `refusals`.
    """
    violations = refusals(rules, calls, labels, sites, scored)
    reasons = [f"{why}. {sender} sends it" for why, sender, certain in violations if certain]
    if reasons:
        raise PolicyViolation(". ".join(reasons))


def scored_paths(rules: Rules, config: Config, graph: Graph, outputs: int) -> tuple[str, ...]:
    """The paths of a site's scores (`scoring.score_paths`) where the policy denies parts of scores, else (); also () of
    parties, which score by other steps."""
    denies = any(key.startswith(f"{head}/") for key in rules.deny for head in COUNTED)
    return score_paths(graph, outputs) if denies and not capabilities(config.algorithm.kind).vertical else ()


def refusals(
    rules: Rules, calls: Calls, labels: bool, sites: int, scored: Sequence[str] = ()
) -> Iterator[tuple[str, str, bool]]:
    """For every field that a rule refuses: the reason, the step that declares the field, and whether the step sends the
    field on the site's data. An evaluation sends "own" and the `scored` paths below it (`scoring.score_paths`)."""
    info_of = _declarations(rules, calls, labels)
    for step in dict.fromkeys(calls.setup + calls.round + calls.evaluation):
        if step in calls.labelled and not labels:
            continue
        info = info_of(step)
        reasons = denials(rules, info, sites)
        for path in scored if step in calls.evaluation and not info.sums else ():
            head, denied = path.partition("/")[0], next((key for key in rules.deny if covers(key, path)), "")
            if denied not in ("", head) and head in info.sends and head not in reasons:
                measure = measure_of(denied)
                without = f"it leaves only if policy.measures has {measure!r}" if measure in FINE else _ROUNDED
                reasons[denied] = f"policy.deny: {denied} may not leave. Take the rule out: {without}"
        for key, why in reasons.items():
            certain = step not in calls.evaluation or key == SCORES or any(covers(key, path) for path in scored)
            yield why, step_name(step), certain


def check_fields(rules: Rules, info: StepInfo, sites: int) -> None:
    """Refuse a job whose sites would send a denied field before the first step. sites: number of sites in the job."""
    reasons = denials(rules, info, sites)
    if reasons:
        raise PolicyViolation(". ".join(reasons.values()))


def denials(rules: Rules, info: StepInfo, sites: int) -> dict[str, str]:
    """{field: why} for the declared fields of a step that the policy refuses, without fields below another one."""
    reasons: dict[str, str] = {}
    for key in sorted(info.sends):
        if any(key.startswith(f"{above}/") for above in reasons):
            continue
        try:
            check_reply(rules, Spent(), nest({key: 0.0}), 0, info)
            check_summed(rules, key, info, sites)
        except PolicyViolation as error:
            reasons[key] = str(error)
    return reasons


def needs_all(config: Config, algorithm: Algorithm) -> bool:
    """Whether every round needs every site, so that the run ends if one site leaves."""
    everyone = min(algorithm.participation, algorithm.quorum, config.engine.values.get("quorum", 1.0)) >= 1
    return everyone or capabilities(config.algorithm.kind).vertical


def overspending(
    rules: Rules, spent: Spent, calls: Calls, general: General, done: int = -1, labels: bool = True
) -> str:
    """A sentence that names the first round in which a run would exceed the cap on ε; "" if no round does.

    The estimate uses what the steps declare. Another check refuses fields without a bound. Noise that a step draws once
    for good costs nothing if it may have been drawn before.
    done: the round after which the run continues, -1 if it begins. labels: whether the site has labels.
    """
    rounds = range(max(done, 0) + 1, general.rounds + 1)
    if rules.epsilon is None or not rounds:
        return ""
    info_of = _declarations(rules, calls, labels)
    now, reached = spent, list[Spent]()  # after each round
    for round in rounds:
        steps = [*calls.setup, *calls.round] if not reached and done < 0 else [*calls.round]
        if is_evaluated(round, general.rounds, general.eval_every):
            steps += calls.evaluation
        for step in steps:
            if labels or step not in calls.labelled:
                now = _after(now, info_of(step))
        reached.append(now)

    def cost(one: Spent) -> float:
        return one.epsilon(rules.delta)

    if cost(reached[-1]) <= rules.epsilon:
        return ""
    round = rounds[bisect_right(reached, rules.epsilon, key=cost)]
    exemption = ", apart from what left without a bound" if spent.account.cost.unbounded else ""
    return (
        f"policy.epsilon: ε = {cost(spent):.4g} of {rules.epsilon:g} is spent at δ = {rules.delta:g}{exemption}, so "
        f"that a run that begins now would lose the site in round {round:,} of {general.rounds:,}"
    )


def check_planned_evaluations(
    rules: Rules, spent: Spent, algorithm: Algorithm, calls: Calls, general: General, sites: int, done: int = -1
) -> None:
    """Refuse a run with more evaluations than the policy still allows. Each model that is scored or tried counts as
    one.

    sites: number of sites in the run. done: the round after which the run continues, -1 if it begins.
    """
    rounds = range(max(done, 0) + 1, general.rounds + 1)
    planned = sum(is_evaluated(round, general.rounds, general.eval_every) for round in rounds)
    tried = models_tried(algorithm, sites, rounds)
    check_evaluations(rules, spent, planned * len(scoring_steps(calls)) + tried)


def models_tried(algorithm: Algorithm, sites: int, rounds: Sequence[int]) -> int:
    """The largest number of models that the sites try in these rounds (`algorithms.trials`). sites: their number."""
    return algorithm.composed.queries(sites, rounds) if isinstance(algorithm, FedAvg) else 0


def conditions(
    rules: Rules,
    config: Config,
    algorithm: Algorithm,
    calls: Calls,
    sites: int,
    spent: Spent,
    replied: Mapping[str, int],
    done: int = -1,
    answered: int = -1,
) -> tuple[Callable[[], None], ...]:
    """Checks of the rest of a run that continues after round `done`, -1 if it begins. Each raises PolicyViolation if
    the policy would stop the run.

    replied: {step: number of its noised replies in runs of the same configuration}. answered: the last round with such
    a reply, which is sent again as it was.
    """
    more = config.general.rounds - max(done, answered, 0)
    return (
        partial(check_planned_evaluations, rules, spent, algorithm, calls, config.general, sites, done),
        partial(check_target, rules, target_replies(algorithm, calls), replied, more),
    )


def _declarations(rules: Rules, calls: Calls, labels: bool) -> Callable[[Step], StepInfo]:
    """A function that returns a step's declaration, with scores in the form in which the policy lets them leave."""
    scoring = scoring_of(rules, calls, labels)

    def info_of(step: Step) -> StepInfo:
        info = step_info(step)
        return scoring.declaration_before(info) if step in calls.evaluation else info

    return info_of


def _after(spent: Spent, info: StepInfo) -> Spent:
    """What is spent after one more reply of a step. A mechanism costs nothing if it draws once and may have done so."""
    drawn = {_without_fingerprint(mechanism) for _, mechanism in spent.account.released}
    applied = list[Applied]()
    for key, spec in info.sends.items():
        fresh = tuple(one for one in spec.mechanisms if not release_of(one) or one not in drawn)
        if fresh:
            applied.append(Applied(key, fresh))
    return spent.after(0, applied)


def _without_fingerprint(mechanism: Mechanism) -> Mechanism:
    """A mechanism as its step declares it (`steps.with_fingerprints`)."""
    if isinstance(mechanism, LDP | Gaussian):
        return replace(mechanism, release=mechanism.release.partition(":")[0])
    return mechanism


def target_replies(algorithm: Algorithm, calls: Calls) -> dict[str, int]:
    """{step that sends noisy fields: how often it may reply} for an algorithm with a target ε; {} for all others."""
    max_rounds = algorithm.max_rounds
    if max_rounds is None:
        return {}
    replies = dict[str, int]()
    for step in calls.round:
        for spec in step_info(step).sends.values():
            if any(isinstance(one, Gaussian) for one in spec.mechanisms):
                replies[step_name(step)] = max_rounds
    return replies


def check_target(rules: Rules, target: Mapping[str, int], done: Mapping[str, int], more: int) -> None:
    """Refuse this number of `more` replies of each step if they would exceed its target.

    target: see `target_replies`. done: {step: number of its replies in runs of the same configuration}.
    """
    for step, allowed in target.items():
        replied = done.get(step, 0)
        if not rules.repeats and replied + more > allowed:
            raise PolicyViolation(
                f"policy.repeats: the target ε is for {allowed} replies of {step}; {replied} have left in runs of this "
                f"configuration, rounds that were done again among them, and {more} more do not fit. Lower rounds by "
                f"{replied + more - allowed} or more, or let the target be exceeded: policy.repeats = true"
            )
