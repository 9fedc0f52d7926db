"""What a site's policy refuses of a run for certain, known before any of it is done."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

from fedweave.algorithms.fedavg import FedAvg
from fedweave.core.algorithm import (
    Algorithm,
    Calls,
    LimitsRounds,
    TakesQuorum,
    TakesSome,
    capabilities,
    check_rounds,
)
from fedweave.core.federation import Step, StepInfo, step_info, step_name
from fedweave.core.mechanism import LDP, Account, Applied, Gaussian, Mechanism, release_of
from fedweave.core.tree import nest
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import AUTO
from fedweave.deploy.flare.policy.policy import (
    SCORES,
    PolicyViolation,
    Spent,
    check_evaluations,
    check_reply,
    check_summed,
)
from fedweave.deploy.flare.site.sitefile import Rules
from fedweave.deploy.flare.wire.scores import scoring_of, scoring_steps
from fedweave.experiment import demands
from fedweave.experiment.config import Config, General
from fedweave.experiment.rounds import evaluated
from fedweave.models.edges import model_for


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
    told = _declared(rules, calls, labels)
    for step in dict.fromkeys(calls.setup + calls.round + calls.evaluation):
        if step in calls.labelled and not labels:
            continue
        for key, why in refused(rules, told(step), sites).items():
            yield why, step_name(step), step not in calls.evaluation or key == SCORES


def check_told(rules: Rules, info: StepInfo, sites: int) -> None:
    """Refuse what a job of that many sites has them send before its first step.

    Raises:
        PolicyViolation: names every rule and key.
    """
    if reasons := refused(rules, info, sites):
        raise PolicyViolation(". ".join(reasons.values()))


def refused(rules: Rules, info: StepInfo, sites: int) -> dict[str, str]:
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


def needs_all(config: Config, algorithm: object) -> bool:
    """Whether every site takes part in every round, so that a run ends without one."""
    called = algorithm.participation if isinstance(algorithm, TakesSome) else 1.0
    replying = algorithm.quorum if isinstance(algorithm, TakesQuorum) else 1.0
    everyone = min(called, replying, config.engine.values.get("quorum", 1.0)) >= 1
    return everyone or capabilities(config.algorithm.kind).vertical


def overspent(rules: Rules, spent: Spent, calls: Calls, general: General, done: int = -1, labels: bool = True) -> str:
    """In which round of a run that goes on after round `done`, -1 if it begins, the cap on ε would be exceeded, in a
    sentence; "" if in none.

    It goes by what the steps declare; a key without a bound is refused apart from this, and what is drawn once for good
    may be what has been drawn before. labels: whether the site has any.
    """
    rounds = range(max(done, 0) + 1, general.rounds + 1)
    if rules.epsilon is None or not rounds:
        return ""
    judged = [evaluated(round, general.rounds, general.eval_every) for round in rounds]
    steps = [(*calls.round, *(calls.evaluation if due else ())) for due in judged]
    steps[0] = (*(calls.setup if done < 0 else ()), *steps[0])
    asked = [tuple(step for step in some if labels or step not in calls.labelled) for some in steps]
    told = _declared(rules, calls, labels)
    reached = list(accumulate(asked, partial(_after, told), initial=spent))[1:]

    def cost(one: Spent) -> float:
        return one.epsilon(rules.delta)

    if cost(reached[-1]) <= rules.epsilon:
        return ""
    round = rounds[bisect_right(reached, rules.epsilon, key=cost)]
    apart = ", apart from what left without a bound" if spent.account.cost.unbounded else ""
    return (
        f"policy.epsilon: ε = {cost(spent):.4g} of {rules.epsilon:g} is spent at δ = {rules.delta:g}{apart}, so that a "
        f"run that begins now would lose the site in round {round:,} of {general.rounds:,}"
    )


def unjudged(
    rules: Rules, spent: Spent, algorithm: object, calls: Calls, general: General, sites: int, done: int = -1
) -> None:
    """Refuse a run between so many `sites` that goes on after round `done`, -1 if it begins, and has more evaluations
    than the policy leaves: each model that is scored, or tried, is one.

    Raises:
        PolicyViolation: says how many.
    """
    rounds = range(max(done, 0) + 1, general.rounds + 1)
    planned = sum(evaluated(round, general.rounds, general.eval_every) for round in rounds)
    tried = models_tried(algorithm, sites, rounds)
    check_evaluations(rules, spent, planned * len(scoring_steps(calls)) + tried)


def models_tried(algorithm: object, sites: int, rounds: Sequence[int]) -> int:
    """How many models an algorithm has that many sites try in these rounds, at most (`algorithms.score_sums`)."""
    return algorithm.composed.queries(sites, rounds) if isinstance(algorithm, FedAvg) else 0


def conditions(
    rules: Rules,
    config: Config,
    algorithm: object,
    calls: Calls,
    sites: int,
    spent: Spent,
    replied: Mapping[str, int],
    done: int = -1,
) -> tuple[Callable[[], None], ...]:
    """What must hold of what a run is yet to ask for that goes on after round `done`, -1 if it begins.

    replied: how often each step has in runs of the same configuration. Each raises PolicyViolation where it does not.
    """
    most, left = targeted(algorithm, calls), config.general.rounds - max(done, 0)
    return (
        partial(unjudged, rules, spent, algorithm, calls, config.general, sites, done),
        partial(check_target, rules, most, replied, left),
    )


def _declared(rules: Rules, calls: Calls, labels: bool) -> Callable[[Step], StepInfo]:
    """What a step declares, scores as the policy lets them leave."""
    scoring = scoring_of(rules, calls, labels)

    def told(step: Step) -> StepInfo:
        info = step_info(step)
        return scoring.foretold(info) if step in calls.evaluation else info

    return told


def _after(told: Callable[[Step], StepInfo], before: Spent, steps: tuple[Step, ...]) -> Spent:
    for step in steps:
        declared = told(step).sends.items()
        applied = (Applied(key, _anew(before.account, own.mechanisms)) for key, own in declared)
        before = before.after(0, [one for one in applied if one.mechanisms])
    return before


def _anew(account: Account, mechanisms: tuple[Mechanism, ...]) -> tuple[Mechanism, ...]:
    """Those that are not of a draw that may be in the account already."""
    drawn = {_unmarked(own) for _, own in account.released}
    return tuple(own for own in mechanisms if not release_of(own) or own not in drawn)


def _unmarked(own: Mechanism) -> Mechanism:
    """A mechanism as its step declares it (`site.steps.with_fingerprints`)."""
    return replace(own, release=own.release.partition(":")[0]) if isinstance(own, LDP | Gaussian) else own


def targeted(algorithm: object, calls: Calls) -> dict[str, int]:
    """{step that sends something with noise: how often it may reply} of an algorithm with a target; {} of others."""
    most = algorithm.most_rounds if isinstance(algorithm, LimitsRounds) else None
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


def suited(config: Config, data: Dataset, width: int, scaling: str) -> Algorithm:
    """The algorithm with a model for a site's `data`, whose features are `width` columns and scaled so.

    Raises:
        ConfigError, UserError: one of them is for other data, for fewer rounds, or for features not scaled.
    """
    carried = None if capabilities(config.algorithm.kind).vertical else data.carried  # nobody there reads it
    model = model_for(config.model.make(), carried, width, data.classes)
    demands.check_examples(config, data)
    demands.check_pooling(config, data, model)
    demands.check_edges(config, model)
    algorithm: Algorithm = config.algorithm.make(model)
    timed = carried is not None and carried.until is not None
    demands.check_sampling(config, data, [data.nodes], timed, model, algorithm)
    check_rounds(algorithm, config.general.rounds)
    scaling = "none" if scaling == AUTO and data.scaling == "none" else scaling  # it found nothing to scale
    demands.check_scaling(scaling, algorithm, ("example", "node"))
    return algorithm
