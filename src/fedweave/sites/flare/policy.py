"""A site's policy, enforced on the site before anything is sent."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fedweave.algorithms.parts.client_data import COUNTS
from fedweave.algorithms.trials import TRIED
from fedweave.core.algorithm import Algorithm
from fedweave.core.federation import StepInfo
from fedweave.core.graph import SPLITS, Graph
from fedweave.core.ledger_columns import Entry
from fedweave.core.mechanism import Applied, Cost, Gaussian, Mechanism, Mixup, PrivacyAccount, SecureSum, read_applied
from fedweave.core.text import counted
from fedweave.core.tree import Tree, leaves
from fedweave.core.types import KEPT_BACK, NUMBER
from fedweave.errors import CallRefused
from fedweave.privacy.gaussian import total_epsilon
from fedweave.sites.flare.scores import LABELS
from fedweave.sites.flare.sitefile import Rules

_COUNT = re.compile(r"\d+")
SCORES = "own"  # the key of evaluations' replies that every algorithm needs
# Remedies that turn messages of training, and scores, into sums.
_AS_SUM = (
    'Run it with the part secure_sum (algorithm.parts = ["secure_sum"]; GLASU: secure_sum = true)',
    'Have scores added up (algorithm.scores = "sum")',
)


class PolicyViolation(CallRefused):
    """The site's policy forbids a message. The error names the rule, never a value of the message."""


@dataclass(frozen=True)
class Spent:
    """What has left the site over all runs: bytes, the privacy account, {step: number of replies}, and the number of
    evaluations of which some score left."""

    bytes: int = 0
    account: PrivacyAccount = field(default_factory=PrivacyAccount)
    calls: Mapping[str, int] = field(default_factory=dict)
    evaluations: int = 0

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "Spent":
        """The total of the entries of the site's journals."""
        spent = cls()
        for entry in entries:
            spent = spent.after_entry(entry)
        return spent

    def epsilon(self, delta: float) -> float:
        """The ε at that δ of everything that has a bound; messages without a bound are not in it."""
        return total_epsilon(self.account.cost, delta)

    def after_entry(self, entry: Entry) -> "Spent":
        """The total after one more entry."""
        stated = dict.fromkeys(line.applied for line in entry.keys if line.applied is not None)
        bare = dict.fromkeys(line.key.split("/")[0] for line in entry.keys if line.applied is None)
        applied = [*map(read_applied, stated), *(Applied(key, ()) for key in bare)]
        spent = self.after(entry.size * len(entry.clients), applied)
        if entry.direction != "up":
            return spent
        scored = any(line.key.split("/")[0] == SCORES for line in entry.keys)
        scored = scored and not all(line.reveals.startswith(KEPT_BACK) for line in entry.keys)
        tried = sum(int((*_COUNT.findall(line.shape), 1)[0]) for line in entry.keys if line.key == f"{TRIED}/accuracy")
        calls = {**self.calls, entry.step: self.calls.get(entry.step, 0) + 1}
        return replace(spent, calls=calls, evaluations=self.evaluations + scored + tried)

    def after(self, size: int, applied: Iterable[Applied]) -> "Spent":
        """The total after one more message of `size` bytes with the `applied` mechanisms."""
        account = self.account
        for release in applied:
            account = account.after(release)
        return replace(self, bytes=self.bytes + size, account=account)


def is_of(step: str, name: str) -> bool:
    """Whether `name` names a step, with or without the name of its algorithm."""
    return name in (step, step.rpartition(".")[2].strip("()"))


def replies_of(spent: Spent, name: str) -> int:
    """The number of replies of all steps called `name`."""
    return sum(times for step, times in spent.calls.items() if is_of(step, name))


def check_calls(rules: Rules, spent: Spent, step: str, scores: int = 0) -> None:
    """Refuse a call of a step that has used up its replies, under its name with or without the algorithm, or its
    evaluations. scores: number of models whose scores the reply has."""
    check_evaluations(rules, spent, scores)
    for name, limit in rules.calls.items():
        done = replies_of(spent, name)
        if is_of(step, name) and done >= limit:
            raise PolicyViolation(
                f"policy.calls: {name} has replied {counted(done, 'time')}, and may {counted(limit, 'time')}"
            )


def check_evaluations(rules: Rules, spent: Spent, more: int = 1) -> None:
    """Refuse this number of `more` evaluations if fewer are left."""
    limit = rules.evaluations
    if limit is not None and more and spent.evaluations + more > limit:
        raise PolicyViolation(
            f"policy.evaluations: scores have left {counted(spent.evaluations, 'time')} and may "
            f"{counted(limit, 'time')}; {more} more do not fit. Evaluate more rarely: eval_every = 0 does so once, "
            "after the last round"
        )


def check_aligned(rules: Rules, nodes: int) -> None:
    """Refuse an alignment to fewer `nodes` than the policy allows."""
    if nodes < rules.min_nodes:
        raise PolicyViolation(f"policy.min_nodes: fewer than {rules.min_nodes} nodes are named as common to all")


def check_lists(rules: Rules, counts: Mapping[str, int]) -> None:
    """Refuse to blind lists of more ids than the policy allows: a party with a long list can try out many ids.

    counts: {party: ids on its list}.
    """
    for site, count in counts.items():
        if rules.max_ids is not None and count > rules.max_ids:
            raise PolicyViolation(
                f"policy.max_ids: the list of {site} has {count} ids, and {rules.max_ids} are allowed"
            )


def min_exchange_nodes(rules: Rules) -> int:
    """The minimum number of the site's nodes in a sum of features that it sends over edges to other sites' nodes."""
    if not rules.exchange:
        raise PolicyViolation(
            "policy.exchange: no features may leave over edges to nodes of other sites; the site's owner can allow it "
            "(exchange = true, or a minimum number of nodes in each sum)"
        )
    return int(rules.exchange)


def check_crowd(rules: Rules, graph: Graph) -> None:
    """Refuse data with so few examples that replies reveal single ones. A split without any example reveals nothing."""
    attributes = graph.whole_edges.members[0].edge_attrs
    if attributes is not None and attributes.examples:
        everyone = attributes.total
    else:
        everyone = int(graph.real.sum()) if graph.graph_of is None else int(graph.graph_of.max()) + 1
    # a split by a hash contains examples without a label; a site without any label cannot reveal one
    known = ~graph.y.isnan() if graph.target == NUMBER else graph.y >= 0
    if graph.pairs is not None:  # only links count: all other pairs are drawn at random
        known = graph.y == 1
        everyone = int(known.sum())
    relevant = known if known.dim() == 1 else known.any(1)
    masks = graph.masks & relevant if bool(relevant.any()) else graph.masks
    counts = dict(zip(SPLITS, masks.sum(1).tolist(), strict=True)) | {"all": everyone}
    low = [name for name, count in counts.items() if 0 < count < rules.min_nodes]
    if low:
        raise PolicyViolation(
            f"policy.min_nodes: the site has fewer than {rules.min_nodes} {graph.example}s ({low[0]}), on which "
            "nothing is trained or scored"
        )


def check_batches(rules: Rules, algorithm: Algorithm, graph: Graph, message: Tree) -> None:
    """Refuse an algorithm that, with this `message`, trains on fewer of the site's examples at once than the policy
    allows. A step on no example reveals nothing."""
    for what, minimum in algorithm.min_examples(graph, message).items():
        if 0 < minimum < rules.min_nodes:
            raise PolicyViolation(
                f"policy.min_nodes: {what} would train on fewer than {rules.min_nodes} of the site's examples in some "
                "step; choose other settings, or have the owner lower the bound"
            )


def check_reply(rules: Rules, spent: Spent, reply: Tree, size: int, info: StepInfo) -> None:
    """Refuse to send `reply`, of `size` bytes when serialized, unless every rule allows it.

    A rule for a key also holds for all keys below it.

    info: the declaration of the step by the site's own algorithm.

    Raises:
        PolicyViolation: names the rule and the key.
    """
    for path, _ in leaves(reply):
        key = info.covering(path)
        _check_leaf(rules, path, info.sends[key].mechanisms if key else ())
    after = spent.after(size, info.mechanisms_of(reply))
    if rules.bytes is not None and after.bytes > rules.bytes:
        raise PolicyViolation(f"policy.bytes: {spent.bytes} have left and {size} more would exceed {rules.bytes}")
    if rules.epsilon is None:
        return
    sent = list(info.mechanisms_of(reply))
    for release in sent:
        allowed = any(covers(key, release.key) for key in rules.unbounded)
        if PrivacyAccount().after(release).cost.unbounded and not allowed:
            raise PolicyViolation(
                f"policy.epsilon: nothing bounds what {release.key} reveals (mechanism: {release}), so no ε holds; run "
                f'an algorithm that bounds it, or let it leave without a bound: policy.unbounded = ["{release.key}"]'
            )
    before, now = spent.epsilon(rules.delta), after.epsilon(rules.delta)
    if now <= rules.epsilon:
        return
    cost, fitting = sum((PrivacyAccount().after(release).cost for release in sent), Cost()), ""
    if cost.epsilon or cost.squared_mu:  # how many messages of that cost fit under the cap together, by bisection
        low, high = 0, 1
        while total_epsilon(cost * high, rules.delta) <= rules.epsilon:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            fits = total_epsilon(cost * middle, rules.delta) <= rules.epsilon
            low, high = (middle, high) if fits else (low, middle)
        fitting = f"; {low} such messages fit under it in all"
    raise PolicyViolation(
        f"policy.epsilon: ε = {before:g} is spent, {now - before:g} more exceed {rules.epsilon:g} at δ = "
        f"{rules.delta:g}{fitting}"
    )


def check_summed(rules: Rules, key: str, info: StepInfo, sites: int) -> None:
    """Refuse a secure aggregation of `key` that could have terms of fewer sites than the policy requires.

    sites: number of sites in the run.
    """
    sum_spec = info.sums.get(key)
    if sum_spec is None:
        return
    minimum = sum_spec.min_terms(sites)
    if minimum < rules.min_summed:
        raise PolicyViolation(
            f"policy.min_summed: the secure sum of {key} may be of {minimum} of {sites} sites, and {rules.min_summed} "
            "are needed"
        )


def _check_leaf(rules: Rules, path: str, mechanisms: tuple[Mechanism, ...]) -> None:
    applied = f"the algorithm applies {str(Applied(path, mechanisms))!r} to {path}"
    if path.partition("/")[0] == TRIED and (rules.score_epsilon is not None or rules.round_scores > 1):
        which = "round_scores" if rules.score_epsilon is None else "score_epsilon"
        raise PolicyViolation(
            f"policy.{which}: {TRIED} are hits on labels as they are; leave out the parts coalition_value and "
            "validated_value"
        )
    for key in rules.deny:
        if covers(key, path) or (key, path) == (LABELS, COUNTS):
            raise PolicyViolation(f"policy.deny: {path if key == LABELS else key} may not leave")
    mixed = max((mechanism.least for mechanism in mechanisms if isinstance(mechanism, Mixup)), default=0)
    gaussian = [mechanism for mechanism in mechanisms if isinstance(mechanism, Gaussian)]
    noise = max((one.sigma / (one.sensitivity or 1.0) for one in gaussian), default=0.0)
    for rule, demands, got in (("mixup", rules.mixup, mixed), ("noise", rules.noise, noise)):
        for key, minimum in demands.items():
            if covers(key, path) and got < minimum:
                raise PolicyViolation(f"policy.{rule}: {key} needs at least {minimum:g}, {applied}")
    sums = [mechanism for mechanism in mechanisms if isinstance(mechanism, SecureSum)]
    for key in rules.secure_sum:
        if covers(key, path) and not any(mechanism.everyone or rules.partial_sums for mechanism in sums):
            of = "" if rules.partial_sums else " of all sites"
            allow = (
                ". Set policy.partial_sums = true if sites may be missing"
                if sums
                else f". {_AS_SUM[key.split('/')[0] == SCORES]}, or have the site's owner take out the rule"
            )
            raise PolicyViolation(f"policy.secure_sum: {key} may only leave in a secure sum{of}, {applied}{allow}")


def covers(key: str, path: str) -> bool:
    """Whether `path` is `key`, or below it."""
    return f"{path}/".startswith(f"{key}/")
