"""Which configurations a site accepts from a server. The site checks all names before it looks any of them up.

If the owner tightens a rule of the policy during a run, it holds from the next request on. If the owner loosens a rule,
it holds from the next job on.
"""

import ast
import inspect
import operator
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from fedweave.algorithms.declarations import BELOW_SCORES, all_fields, all_steps
from fedweave.algorithms.fedavg import FedAvg
from fedweave.core import plugins
from fedweave.core.algorithm import Algorithm, Calls, capabilities
from fedweave.core.federation import Step, StepInfo, step_info, step_name
from fedweave.core.mechanism import LDP, Applied, Gaussian, Mechanism, PrivacyAccount, release_of
from fedweave.core.plugins import is_file
from fedweave.core.tree import nest
from fedweave.datasets.base import Dataset
from fedweave.datasets.external import EXCHANGE
from fedweave.datasets.links import TASK as LINKS
from fedweave.deploy.flare.accounts import LeftOut
from fedweave.deploy.flare.alignment import CLAIMING, MEETING
from fedweave.deploy.flare.alignment import INFO as SHARING
from fedweave.deploy.flare.entities import COUNTING, UNITING
from fedweave.deploy.flare.holdings import JOINING
from fedweave.deploy.flare.policy import (
    SCORES,
    PolicyViolation,
    Spent,
    check_evaluations,
    check_reply,
    check_summed,
    covers,
    least_told,
)
from fedweave.deploy.flare.requests import RESERVED
from fedweave.deploy.flare.scores import COUNTED, scoring_of, scoring_steps
from fedweave.deploy.flare.sitefile import LEARNED, SITE_FILE, Rules, SiteData, read_site_file
from fedweave.errors import CallRefused, ConfigError
from fedweave.experiment.config import Choice, Config, Document, General, own_parameters, registry, resolve
from fedweave.experiment.config.toml import check_name, nearest
from fedweave.experiment.requirements import Configured, Scheduled, check_stage
from fedweave.experiment.rounds import evaluated
from fedweave.models.edges import model_for
from fedweave.partition.external import ADDING

# ----------------------------------------------------------------------------------------------------
# Which message fields the algorithms that are installed here may send, so that a site can check its policy's keys.


def spelled(files: Iterable[Path]) -> frozenset[str]:
    """All texts and the names of functions, keywords and classes in these Python files, and "Class.function" for every
    class with every function of the same file, because a class may inherit a step.

    Raises:
        ConfigError: a file cannot be read as Python.
    """
    names: set[str] = set()
    for file in files:
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read as Python: {error}; correct or remove it") from error
        names |= _names(tree)
    return frozenset(names)


def of_packages() -> tuple[Path, ...]:
    """The files of all algorithms and parts that installed packages announce."""
    kinds = [kind for section in ("algorithm", "part") for kind in plugins.announced(section).values()]
    return tuple(Path(inspect.getfile(kind)) for kind in kinds)


def _names(tree: ast.Module) -> set[str]:
    texts, functions, classes = set[str](), set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                texts.add(text)
            case ast.keyword(arg=str(name)):
                texts.add(name)
            case ast.FunctionDef(name=name):
                functions.add(name)
            case ast.ClassDef(name=name):
                classes.add(name)
    return texts | functions | classes | {f"{kind}.{name}" for kind in classes for name in functions}


def read_checked(path: Path) -> tuple[SiteData, Rules]:
    """A site's file (`sitefile.read_site_file`). Its policy may name only existing algorithms and message fields,
    because a rule for another name would protect nothing.

    Raises:
        ConfigError: the file cannot be read, or a key is not valid; names the key and the valid ones.
    """
    data, rules = read_site_file(path)
    _check_listed(path, rules)
    others = _spelled_outside(path, rules)
    for step in rules.calls:
        if not _of_outside(step, others):
            check_name(f"{path}: policy.calls", step, known_steps())
    named = {"deny": rules.deny, "mixup": rules.mixup, "noise": rules.noise, "secure_sum": rules.secure_sum}
    for rule, keys in (named | {"unbounded": rules.unbounded}).items():
        for key in keys:
            if key.split("/")[0] not in others and (wrong := _unknown(key)):
                raise ConfigError(f"{path}: policy.{rule}: {wrong}", code="config.policy")
    return data, rules


def _spelled_outside(path: Path, rules: Rules) -> frozenset[str]:
    """The names that plug-ins in the policy's files and in installed packages may give to fields and steps."""
    listed = [Path(file).expanduser() for file in rules.files]
    for file in listed:
        if not file.is_file():
            raise ConfigError(
                f"{path}: policy.files: there is no file {file}; correct its path, or remove the entry",
                code="config.no-file",
            )
    try:
        return spelled([*listed, *of_packages()])
    except ConfigError as error:
        raise ConfigError(f"{path}: policy.files: {error}", code="config.code") from error


def _of_outside(step: str, others: frozenset[str]) -> bool:
    """Whether a plug-in file has the `step`, or the class that inherits it."""
    kind, dot, name = step.rpartition(".")
    return step in others or (bool(dot) and kind in others and name in known_steps())


def _check_listed(path: Path, rules: Rules) -> None:
    """Check the algorithms and parts that the policy lists. A plug-in in a file is not looked up, because that would
    run the file."""
    if rules.parts and not rules.algorithms:
        raise ConfigError(
            f"{path}: policy.parts: without policy.algorithms any part may run; list both, or leave this out"
        )
    for rule, kind, names in (("algorithms", "algorithm", rules.algorithms), ("parts", "part", rules.parts)):
        for name in names:
            if not is_file(name):
                check_name(f"{path}: policy.{rule}", name, registry(kind))


def _unknown(key: str) -> str:
    """Why no message has that field; "" if one has."""
    if not any(_within(key, sent) or _within(sent, key) for sent in known()):
        heads = sorted({sent.split("/")[0] for sent in known()})
        return f"no algorithm sends {key!r}; they send {', '.join(heads)}.{nearest(key, heads)}"
    head, below, name = key.partition("/")
    if below and head in COUNTED and name.split("/")[0] not in BELOW_SCORES:
        known_names = ", ".join(BELOW_SCORES)
        return f"no algorithm sends {key!r}; below {head} there are {known_names}.{nearest(name, BELOW_SCORES)}"
    return ""


@cache
def known_steps() -> tuple[str, ...]:
    """The names that `policy.calls` may have: every step, with and without the name of its algorithm or part, and the
    requests before the first step."""
    steps = set(map(step_name, all_steps()))
    jobs = ("join", "blind", "align", "pad", "match", "exchange", "take", "unite")
    return (*jobs, *sorted({*steps, *(name.rpartition(".")[2] for name in steps)}))


@cache
def known() -> frozenset[str]:
    """All reply fields that algorithms and parts with default settings declare, or that sites send before a run."""
    return all_fields() | {*JOINING, *MEETING, *CLAIMING, *ADDING, *COUNTING, *UNITING}


def _within(path: str, key: str) -> bool:
    return f"{path}/".startswith(f"{key}/")


# ----------------------------------------------------------------------------------------------------
# What a site's policy will certainly refuse in a run. The site finds this out before the run's first step.


def check_declared(rules: Rules, calls: Calls, labels: bool, sites: int) -> None:
    """Refuse a run that the policy would stop before its end, before any data of it leaves.

    labels: whether the site has labels. sites: number of sites in the run.

    Raises:
        PolicyViolation: names every rule, the field, and the step that sends it.
    """
    violations = refusals(rules, calls, labels, sites)
    if reasons := [f"{why}, and {sender} sends it" for why, sender, certain in violations if certain]:
        raise PolicyViolation(". ".join(reasons))


def refusals(rules: Rules, calls: Calls, labels: bool, sites: int) -> Iterator[tuple[str, str, bool]]:
    """For every field that a rule refuses: the reason, the step that declares the field, and whether the step sends the
    field on all data. An evaluation sends only "own" on all data."""
    info_of = _declared(rules, calls, labels)
    for step in dict.fromkeys(calls.setup + calls.round + calls.evaluation):
        if step in calls.labelled and not labels:
            continue
        for key, why in refused(rules, info_of(step), sites).items():
            yield why, step_name(step), step not in calls.evaluation or key == SCORES


def check_told(rules: Rules, info: StepInfo, sites: int) -> None:
    """Refuse a job whose sites would send a denied field before the first step. sites: number of sites in the job.

    Raises:
        PolicyViolation: names every rule and field.
    """
    if reasons := refused(rules, info, sites):
        raise PolicyViolation(". ".join(reasons.values()))


def refused(rules: Rules, info: StepInfo, sites: int) -> dict[str, str]:
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


def overspent(rules: Rules, spent: Spent, calls: Calls, general: General, done: int = -1, labels: bool = True) -> str:
    """A sentence that names the first round in which a run would exceed the cap on ε; "" if no round does.

    The estimate uses what the steps declare. Another check refuses fields without a bound. Noise that a step draws once
    for good costs nothing if it may have been drawn before.
    done: the round after which the run goes on, -1 if it begins. labels: whether the site has labels.
    """
    rounds = range(max(done, 0) + 1, general.rounds + 1)
    if rules.epsilon is None or not rounds:
        return ""
    flags = [evaluated(round, general.rounds, general.eval_every) for round in rounds]
    steps = [(*calls.round, *(calls.evaluation if due else ())) for due in flags]
    steps[0] = (*(calls.setup if done < 0 else ()), *steps[0])
    steps_by_round = [tuple(step for step in some if labels or step not in calls.labelled) for some in steps]
    info_of = _declared(rules, calls, labels)
    reached = list(accumulate(steps_by_round, partial(_after, info_of), initial=spent))[1:]

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


def check_planned_evaluations(
    rules: Rules, spent: Spent, algorithm: Algorithm, calls: Calls, general: General, sites: int, done: int = -1
) -> None:
    """Refuse a run with more evaluations than the policy still allows. Each model that is scored or tried counts as
    one.

    sites: number of sites in the run. done: the round after which the run goes on, -1 if it begins.

    Raises:
        PolicyViolation: states how many are left and how many the run needs.
    """
    rounds = range(max(done, 0) + 1, general.rounds + 1)
    planned = sum(evaluated(round, general.rounds, general.eval_every) for round in rounds)
    tried = models_tried(algorithm, sites, rounds)
    check_evaluations(rules, spent, planned * len(scoring_steps(calls)) + tried)


def models_tried(algorithm: Algorithm, sites: int, rounds: Sequence[int]) -> int:
    """The largest number of models that the sites try in these rounds (`algorithms.scoring`). sites: their number."""
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
    """Checks of the rest of a run that goes on after round `done`, -1 if it begins. Each raises PolicyViolation if the
    policy would stop the run.

    replied: {step: number of its noised replies in runs of the same configuration}. answered: the last round with such
    a reply, which is sent again as it was.
    """
    most, left = targeted(algorithm, calls), config.general.rounds - max(done, answered, 0)
    return (
        partial(check_planned_evaluations, rules, spent, algorithm, calls, config.general, sites, done),
        partial(check_target, rules, most, replied, left),
    )


def _declared(rules: Rules, calls: Calls, labels: bool) -> Callable[[Step], StepInfo]:
    """A function that returns a step's declaration, with scores in the form in which the policy lets them leave."""
    scoring = scoring_of(rules, calls, labels)

    def info_of(step: Step) -> StepInfo:
        info = step_info(step)
        return scoring.foretold(info) if step in calls.evaluation else info

    return info_of


def _after(info_of: Callable[[Step], StepInfo], before: Spent, steps: tuple[Step, ...]) -> Spent:
    for step in steps:
        declared = info_of(step).sends.items()
        applied = (Applied(key, _unreleased(before.account, declaration.mechanisms)) for key, declaration in declared)
        before = before.after(0, [one for one in applied if one.mechanisms])
    return before


def _unreleased(account: PrivacyAccount, mechanisms: tuple[Mechanism, ...]) -> tuple[Mechanism, ...]:
    """The mechanisms without those whose one draw may be in the account already."""
    drawn = {_unmarked(mechanism) for _, mechanism in account.released}
    return tuple(mechanism for mechanism in mechanisms if not release_of(mechanism) or mechanism not in drawn)


def _unmarked(mechanism: Mechanism) -> Mechanism:
    """A mechanism as its step declares it (`member.with_fingerprints`)."""
    return (
        replace(mechanism, release=mechanism.release.partition(":")[0])
        if isinstance(mechanism, LDP | Gaussian)
        else mechanism
    )


def targeted(algorithm: Algorithm, calls: Calls) -> dict[str, int]:
    """{step that sends noisy fields: how often it may reply} for an algorithm with a target ε; {} for all others."""
    most = algorithm.most_rounds
    return {} if most is None else {step_name(step): most for step in calls.round if _noised(step)}


def _noised(step: Step) -> bool:
    return any(
        isinstance(one, Gaussian) for declaration in step_info(step).sends.values() for one in declaration.mechanisms
    )


def check_target(rules: Rules, most: Mapping[str, int], done: Mapping[str, int], left: int) -> None:
    """Refuse `left` more replies of each step if these would exceed its target.

    most: see `targeted`. done: {step: number of its replies in runs of the same configuration}.

    Raises:
        PolicyViolation: states by how many rounds to shorten the run.
    """
    for step, allowed in most.items():
        replied = done.get(step, 0)
        if not rules.repeats and replied + left > allowed:
            raise PolicyViolation(
                f"policy.repeats: the target ε is for {allowed} replies of {step}; {replied} have left in runs of this "
                f"configuration, rounds that were done again among them, and {left} more do not fit. Lower rounds by "
                f"{replied + left - allowed} or more, or let the target be exceeded: policy.repeats = true"
            )


def suited(
    config: Config, name: str, sites: Sequence[str], data: Dataset, width: int, scaling: str, predicts: bool = False
) -> Algorithm:
    """The algorithm that the site `name` of these `sites` runs on its `data`.

    width: number of feature columns. scaling: how the features are scaled. predicts: whether a trained model predicts,
    and no site trains.

    Raises:
        UserError: the data does not meet a requirement of the algorithm or the model.
    """
    site_config = config.of_member(name, sites)
    enrolled = replace(Configured.of(site_config).with_members(sites), member_models=config.member_models)
    loaded = enrolled.with_data(data, scaling, engine=config.engine.values, predicts=predicts).check()
    attributes = None if loaded.declared.vertical else data.edge_attrs  # vertical models do not read edge attributes
    model = model_for(site_config.model.make(), attributes, width, data.outputs, data.links, config.decoder)
    modelled = loaded.with_model(model).check()
    algorithm: Algorithm = config.algorithm.make(model)
    modelled.with_algorithm(algorithm).check()
    check_stage(Scheduled(algorithm=algorithm, rounds=config.general.rounds))
    return algorithm


T = TypeVar("T")
_Bounds: TypeAlias = Mapping[str, float]


def admitted(rules: Rules, document: Document) -> Config:
    """The configuration in a server's `document`, if the site's policy allows it.

    Raises:
        PolicyViolation: it names a Python file, an algorithm or a part that the policy does not list. ConfigError: it
            is not valid.
    """
    check_files(rules, document)
    config = resolve(document)
    check_algorithm(rules, config.algorithm)
    return config


def check_sites(rules: Rules, name: str, sites: Sequence[str]) -> None:
    """Refuse a run if the `sites` that the server names are not acceptable to the site `name`.

    Raises:
        CallRefused: this site is not among them, or a name occurs twice; or one of them is no site but has a
            certificate, with which it could take part in a secure aggregation. PolicyViolation: there are too few
            sites, or the owner's list lacks one of them.
    """
    if name not in sites or len(set(sites)) < len(sites):
        raise CallRefused("the server must name this site and the others once each, and does not")
    if reserved := sorted(RESERVED & set(sites)):
        raise CallRefused(f"the server names {', '.join(reserved)} as a site, and no project has such a site")
    check_members(rules, name, sites)


def check_exchange(rules: Rules, data: SiteData, config: Config, sites: int) -> None:
    """Refuse a job if it exchanges features over edges between sites and the site's own file does not, or the reverse.

    sites: number of sites in the job.

    Raises:
        ConfigError: the job and the file differ. PolicyViolation: the policy does not allow the exchange.
    """
    if (wanted := config.external == EXCHANGE) != (data.external == EXCHANGE):
        job = "exchanges" if wanted else "does not exchange"
        raise ConfigError(
            f"data.external = {data.external!r}: the job {job} over edges to other sites' nodes. Write [data] external "
            f'= "{EXCHANGE}" into the experiment and every site.toml, or into none of them.'
        )
    if wanted:
        least_told(rules)
        check_told(rules, SHARING, sites)


def check_task(data: SiteData, config: Config) -> None:
    """Refuse a job if it and the site's own file differ about link prediction: whether links are predicted, whether
    entities' vectors are learned, and which kinds of nodes and relations are used. The owner decides how the data is
    used, not the server.

    Raises:
        ConfigError: the job and the file differ.
    """
    of_site = (data.task == LINKS, data.users, data.items, data.relation, data.features == LEARNED)
    links = config.links
    of_job = (False, None, None, True) if links is None else (True, links.users, links.items, links.relation)
    names = (f"task = {LINKS!r}", "users", "items", "relation", f"features = {LEARNED!r}")
    if odd := [
        name for name, here, wanted in zip(names, of_site, (*of_job, config.learned), strict=True) if here != wanted
    ]:
        raise ConfigError(
            f"data.{odd[0]}: the job and site.toml differ. Write the same task, users, items, relation and features "
            "into [data] of the experiment and of every site.toml.",
            code="config.links",
        )


def check_members(rules: Rules, name: str, sites: Sequence[str]) -> None:
    """Refuse a run of fewer sites than the policy of the site `name` requires, or of sites that it does not list.

    Raises:
        PolicyViolation: states the number, or names the sites.
    """
    if len(sites) < rules.min_sites:
        raise PolicyViolation(f"policy.min_sites: the run is of {len(sites)}, and {rules.min_sites} are needed")
    if rules.members and (odd := [site for site in sites if site not in (name, *rules.members)]):
        raise PolicyViolation(
            f"policy.members: {', '.join(odd)} is in the run and not on the owner's list; verify who runs that site, "
            "and then add its certificate's fingerprint to the list"
        )


def check_difference(rules: Rules, sites: Sequence[str], crowds: Iterable[Sequence[str]]) -> None:
    """Refuse secure aggregations over `sites` if an earlier run on the same data had too few other sites: the server
    could subtract one sum from the other.

    crowds: the sites of each earlier run with secure aggregations.

    Raises:
        PolicyViolation: names the sites that only one of the two runs has.
    """
    for crowd in crowds:
        apart = sorted({*sites} ^ {*crowd})
        if 0 < len(apart) < rules.min_difference:
            raise PolicyViolation(
                f"policy.min_difference: an earlier run on the same data had secure sums over other sites, and the "
                f"difference of the two sums reveals the sum of only {', '.join(apart)}. Run with the earlier sites, "
                f"wait for new data, or have the owner accept this: policy.min_difference = {len(apart)}"
            )


def check_left_out(rules: Rules, now: LeftOut, earlier: Sequence[LeftOut]) -> None:
    """Refuse a run that would tell few examples, or few training examples, from all others: sums and differences of
    what it and earlier runs on the same data send would show what these few change.

    Raises:
        ConfigError: names the rule. The server hears only that the site's data or settings were refused: a reason would
            tell it that someone asked to be forgotten.
    """
    if rules.min_nodes > 1 and any(now.examples and one.examples and one.key != now.key for one in earlier):
        raise ConfigError(
            "ledgers/marks.key is not the key with which earlier runs on the same data marked what they left out, so "
            "that no list can be compared with theirs. Restore it from a backup of the site's folder, or accept this: "
            "policy.min_nodes = 1",
            code="forget.key",
        )
    told_apart = (
        *_told_apart(now.examples, {one.examples for one in earlier}),
        *_told_apart(now.training, {one.training for one in earlier}),
    )
    if any(0 < count < rules.min_nodes for count in told_apart):
        raise ConfigError(
            f"policy.min_nodes: earlier runs on the same data left out others than this run, and fewer than "
            f"{rules.min_nodes} examples, or training examples, make a difference that what the runs send shows. Wait "
            "until data.forget lists more, or, for a vertical run, until the parties share more or the same nodes. Or "
            "accept this: policy.min_nodes = 1",
            code="forget.few",
        )


def _told_apart(marks: frozenset[str], earlier: Iterable[frozenset[str]]) -> Iterator[int]:
    """Numbers of examples that a run without `marks` tells from all others: those in which it differs from one earlier
    run, and those that all `earlier` runs used, or left out, alike, and that it divides.

    Any two runs may differ in many, and several still show one example x. With sets A and B of ten each, runs on all,
    without A ∪ B ∪ {x} and without A show what A changes, and what B ∪ {x} does; a run without B would divide B from x.
    Examples that all runs treat alike are no part of any difference. So if each other set of examples that the runs
    treat alike is large, every difference of what they send is of many.
    """
    before, alike = tuple(earlier), defaultdict[tuple[bool, ...], Counter[bool]](Counter)
    yield from (len(marks ^ other) for other in before)
    for one in marks.union(*before):
        alike[tuple(one in other for other in before)][one in marks] += 1
    for out_before, count in alike.items():
        if all(out_before):
            yield count[False]
        elif not any(out_before):
            yield count[True]
        elif count[False] and count[True]:
            yield from count.values()


def check_forget(data: SiteData, config: Config) -> None:
    """Refuse a vertical job at a site that leaves examples out: its parties hold the same examples.

    Raises:
        ConfigError: the site lists examples to forget.
    """
    if data.forget is not None and capabilities(config.algorithm.kind).vertical:
        raise ConfigError(
            f"data.forget = {data.forget!r}: parties of a vertical run hold the same examples, so that none can leave "
            "alone. Remove the rows from every party's tables, at least ten at once. The next alignment shows the "
            "other parties who has left (docs/after-deployment.md).",
            code="forget.vertical",
        )


def check_files(rules: Rules, document: Document) -> None:
    """Refuse a document that names a plug-in by a file, "file.py:Name", that `policy.files` does not list. Looking up
    the plug-in would run the file.

    Raises:
        PolicyViolation: names the file and the remedy.
    """
    allowed = {Path(file).expanduser().resolve() for file in rules.files}
    for file in plugins.files_in(document):
        if file not in allowed:
            raise PolicyViolation(
                f"policy.files: the job names {file}, which this site would run; its owner can list it there, or "
                "install a package that announces the plug-in (docs/extending.md)"
            )


def check_algorithm(rules: Rules, algorithm: Choice) -> None:
    """Refuse a job whose algorithm the policy does not list. A listed algorithm is allowed without further parts,
    because parts could turn it into any other algorithm. The policy can list parts, too.

    Raises:
        PolicyViolation: names the algorithm, or the part and the remedy.
    """
    if not rules.algorithms:
        return
    if algorithm.name not in _named(rules.algorithms):
        listed = ", ".join(rules.algorithms)
        raise PolicyViolation(
            f"policy.algorithms: {algorithm.name} is not among {listed}. Run one of these, or have the site's owner "
            "review it and add it."
        )
    allowed = _named(rules.parts)
    for part in _added(algorithm):
        if part not in allowed:
            raise PolicyViolation(
                f"policy.parts: the job has {algorithm.name} with the part {part}, and may have it by itself alone "
                f'(policy.algorithms). If you have reviewed the part: policy.parts = ["{part}"]'
            )


def _named(listed: tuple[str, ...]) -> set[str]:
    """The plug-ins that a policy lists, under the names that a configuration uses for them."""
    return {plugins.absolute(name) if plugins.is_file(name) else name for name in listed}


def _added(algorithm: Choice) -> list[str]:
    """The names of the parts that an algorithm does not have by default."""
    parameter = own_parameters(algorithm.kind).get("parts")
    kinds = (
        {type(part) for part in parameter.default}
        if parameter is not None and isinstance(parameter.default, tuple)
        else set()
    )
    chosen = [part for part in algorithm.values.get("parts", ()) if isinstance(part, Choice)]
    return [part.name for part in chosen if part.kind not in kinds]


class PolicyFile:
    """The policy in a site's folder, read again whenever its file has changed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SITE_FILE
        self._seen = self._mark()

    def news(self) -> Rules | None:
        """The present rules, if the file has changed since the last call; else None.

        Raises:
            ConfigError: the file is gone, or is not valid any more, so that the owner's rules are unknown.
        """
        mark = self._mark()
        if mark == self._seen:
            return None
        rules = read_checked(self._path)[1]
        self._seen = mark
        return rules

    def _mark(self) -> tuple[int, ...]:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return ()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def stricter(before: Rules, now: Rules) -> Rules:
    """Rules that forbid what `before` or `now` forbids. Rules that a site checks when a job begins (`algorithms`,
    `parts`, `files`, `members`, `lost`, `releases`) are taken from `now`; the caller checks the job against the first
    four again."""
    values = {name: combine(vars(before)[name], vars(now)[name]) for name, combine in _STRICTER.items()}
    return replace(now, **values)


def changed(before: Rules, now: Rules) -> tuple[list[str], list[str]]:
    """The names of the tightened rules, and the names of the rules that are loosened in whole or in part."""
    was, new, both = vars(before), vars(now), vars(stricter(before, now))
    odd = [field.name for field in fields(Rules) if was[field.name] != new[field.name]]
    tightened = [name for name in odd if name not in _STRICTER or both[name] != was[name]]
    return tightened, [name for name in odd if name in _STRICTER and both[name] != new[name]]


def _both(before: Iterable[T], now: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys((*before, *now)))


def _common(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    """The keys that both lists cover."""
    keys = [key for key in now if any(covers(prefix, key) for prefix in before)]
    return _both(keys, [key for key in before if any(covers(prefix, key) for prefix in now)])


def _least(before: float | None, now: float | None) -> float | None:
    return min((value for value in (before, now) if value is not None), default=None)


def _of_each(choose: Callable[[float, float], float]) -> Callable[[_Bounds, _Bounds], _Bounds]:
    def combine(before: _Bounds, now: _Bounds) -> _Bounds:
        return {**before, **now} | {key: choose(before[key], now[key]) for key in before.keys() & now.keys()}

    return combine


def _fewest(before: bool | int, now: bool | int) -> bool | int:
    """The stricter `exchange`: False, or the larger minimum number of nodes in a sum."""
    return max(before, now) if before and now else False


_STRICTER: dict[str, Callable[..., Any]] = (
    dict.fromkeys(("deny", "secure_sum"), _both)
    | dict.fromkeys(("unbounded", "measures"), _common)
    | dict.fromkeys(("mixup", "noise"), _of_each(max))
    | dict.fromkeys(("partial_sums", "repeats", "true_labels"), operator.and_)
    | dict.fromkeys(("epsilon", "delta", "bytes", "max_ids", "max_change", "score_epsilon", "evaluations"), _least)
    | dict.fromkeys(("min_nodes", "min_sites", "min_summed", "min_difference", "round_scores"), max)
    | {"calls": _of_each(min), "exchange": _fewest}
)
