"""A site's policy, enforced on the site before anything is sent."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fedweave.algorithms.parts.start import COUNTS
from fedweave.algorithms.scoring import TRIED
from fedweave.core.algorithm import Algorithm
from fedweave.core.federation import StepInfo
from fedweave.core.graph import SPLITS, Graph
from fedweave.core.ledger import Entry
from fedweave.core.mechanism import Applied, Cost, Gaussian, Mechanism, Mixup, PrivacyAccount, SecureSum, read_applied
from fedweave.core.target import NUMBER
from fedweave.core.text import counted
from fedweave.core.tree import Tree, leaves
from fedweave.deploy.flare.scores import LABELS
from fedweave.deploy.flare.sitefile import Rules
from fedweave.errors import CallRefused
from fedweave.privacy.mechanisms import total_epsilon

_COUNT = re.compile(r"\d+")
SCORES = "own"  # the key of evaluations' replies that every algorithm needs
# What makes sums of what is sent for training, and of scores.
_AS_SUM = (
    'Run it with the part secure_sum (algorithm.parts = ["secure_sum"]; GLASU: secure_sum = true)',
    'Have scores added up (algorithm.scores = "sum")',
)


class PolicyViolation(CallRefused):
    """The site's policy forbids a message; names the rule, never a value of the message."""


@dataclass(frozen=True)
class Spent:
    """What has left the site over all runs: bytes, what it costs in privacy, how often each step replied, and how often
    with scores."""

    bytes: int = 0
    account: PrivacyAccount = field(default_factory=PrivacyAccount)
    calls: Mapping[str, int] = field(default_factory=dict)
    evaluations: int = 0

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "Spent":
        """What the entries of the site's journals come to."""
        spent = cls()
        for entry in entries:
            spent = spent.after_entry(entry)
        return spent

    def epsilon(self, delta: float) -> float:
        """ε, at that δ, of everything that has one; what has none is not in it."""
        return total_epsilon(self.account.cost, delta)

    def after_entry(self, entry: Entry) -> "Spent":
        """What will have left after what an entry notes."""
        stated = dict.fromkeys(line.applied for line in entry.keys if line.applied is not None)
        bare = dict.fromkeys(line.key.split("/")[0] for line in entry.keys if line.applied is None)
        applied = [*map(read_applied, stated), *(Applied(key, ()) for key in bare)]
        spent = self.after(entry.size * len(entry.clients), applied)
        if entry.direction != "up":
            return spent
        scored = any(line.key.split("/")[0] == SCORES for line in entry.keys)
        tried = sum(int((*_COUNT.findall(line.shape), 1)[0]) for line in entry.keys if line.key == TRIED)
        calls = {**self.calls, entry.step: self.calls.get(entry.step, 0) + 1}
        return replace(spent, calls=calls, evaluations=self.evaluations + scored + tried)

    def after(self, size: int, applied: Iterable[Applied]) -> "Spent":
        """What will have left after one more message of `size` bytes to which that was `applied`."""
        account = self.account
        for release in applied:
            account = account.after(release)
        return replace(self, bytes=self.bytes + size, account=account)


def is_of(step: str, name: str) -> bool:
    """Whether `name` is that of a step, alone or with its algorithm's."""
    return name in (step, step.rpartition(".")[2].strip("()"))


def replies_of(spent: Spent, name: str) -> int:
    """How often the steps called `name` have replied."""
    return sum(times for step, times in spent.calls.items() if is_of(step, name))


def check_calls(rules: Rules, spent: Spent, step: str, scores: int = 0) -> None:
    """Refuse a call of a step that has replied as often as it may, by its own name or with that of its algorithm, or
    as often as `scores` may leave, if it sends these: of so many models.

    Raises:
        PolicyViolation: names the step and how often.
    """
    check_evaluations(rules, spent, scores)
    for name, most in rules.calls.items():
        if is_of(step, name) and (done := replies_of(spent, name)) >= most:
            raise PolicyViolation(
                f"policy.calls: {name} has replied {counted(done, 'time')}, and may {counted(most, 'time')}"
            )


def check_evaluations(rules: Rules, spent: Spent, more: int = 1) -> None:
    """Refuse that many `more` evaluations where fewer are left.

    Raises:
        PolicyViolation: says how many, and what to set.
    """
    most = rules.evaluations
    if most is not None and more and spent.evaluations + more > most:
        raise PolicyViolation(
            f"policy.evaluations: scores have left {counted(spent.evaluations, 'time')} and may "
            f"{counted(most, 'time')}; {more} more do not fit. Evaluate more rarely: eval_every = 0 does so once, "
            "after the last round"
        )


def check_aligned(rules: Rules, nodes: int) -> None:
    """Refuse an alignment to fewer `nodes` than the policy allows.

    Raises:
        PolicyViolation: names how many it allows.
    """
    if nodes < rules.min_nodes:
        raise PolicyViolation(f"policy.min_nodes: fewer than {rules.min_nodes} nodes are named as common to all")


def check_lists(rules: Rules, counts: Mapping[str, int]) -> None:
    """Refuse to blind lists of more ids than the policy allows: who lists many can try out many.

    counts: {party: ids on its list}.

    Raises:
        PolicyViolation: names the party.
    """
    for site, count in counts.items():
        if rules.max_ids is not None and count > rules.max_ids:
            raise PolicyViolation(
                f"policy.max_ids: the list of {site} has {count} ids, and {rules.max_ids} are allowed"
            )


def least_told(rules: Rules) -> int:
    """The fewest of the site's nodes of which it tells the sum of their features over edges to others' nodes.

    Raises:
        PolicyViolation: the policy lets it tell none.
    """
    if not rules.exchange:
        raise PolicyViolation(
            "policy.exchange: nothing may be told over edges to nodes of other sites; the site's owner can allow it "
            "(exchange = true, or the fewest nodes of which a sum is told)"
        )
    return int(rules.exchange)


def check_crowd(rules: Rules, graph: Graph) -> None:
    """Refuse data of so few examples that numbers on them tell of single ones; none at all tell nothing.

    Raises:
        PolicyViolation: names what there are too few of, not how many.
    """
    everyone = int(graph.real.sum()) if graph.graph_of is None else int(graph.graph_of.max()) + 1
    attributes = graph.own_edges.members[0].edge_attrs
    everyone = attributes.total if attributes is not None and attributes.examples else everyone
    # a split by a hash has examples without a label in it; who has no labels at all has none to tell
    known = ~graph.y.isnan() if graph.target == NUMBER else graph.y >= 0
    if graph.pairs is not None:  # of which those that are no links are drawn beside
        known = graph.y == 1
        everyone = int(known.sum())
    seen = known if known.dim() == 1 else known.any(1)
    masks = graph.masks & seen if bool(seen.any()) else graph.masks
    counts = dict(zip(SPLITS, masks.sum(1).tolist(), strict=True)) | {"all": everyone}
    if few := [name for name, count in counts.items() if 0 < count < rules.min_nodes]:
        raise PolicyViolation(
            f"policy.min_nodes: the site has fewer than {rules.min_nodes} {graph.example}s ({few[0]}), on which "
            "nothing is trained or scored"
        )


def check_batches(rules: Rules, algorithm: Algorithm, graph: Graph, message: Tree) -> None:
    """Refuse an algorithm that at this site, once it is sent `message`, trains on fewer examples at once than the
    policy allows; steps on none tell nothing.

    Raises:
        PolicyViolation: names the settings, not how many examples these are.
    """
    for what, least in algorithm.least_examples(graph, message).items():
        if 0 < least < rules.min_nodes:
            raise PolicyViolation(
                f"policy.min_nodes: {what} would train on fewer than {rules.min_nodes} of the site's examples in some "
                "step; choose other settings, or have the owner lower the bound"
            )


def check_reply(rules: Rules, spent: Spent, reply: Tree, size: int, info: StepInfo) -> None:
    """Refuse to send `reply`, of `size` bytes when serialized, unless every rule allows it.

    A rule for a key is one for all that is below it, too.

    info: what the site's own algorithm declares of the step.

    Raises:
        PolicyViolation: names the rule and the key.
    """
    for path, _ in leaves(reply):
        key = info.covering(path)
        _check_leaf(rules, path, info.sends[key].mechanisms if key else ())
    after = spent.after(size, info.applied(reply))
    if rules.bytes is not None and after.bytes > rules.bytes:
        raise PolicyViolation(f"policy.bytes: {spent.bytes} have left and {size} more would exceed {rules.bytes}")
    if rules.epsilon is not None:
        _check_epsilon(rules.epsilon, rules, spent, after, info.applied(reply))


def check_summed(rules: Rules, key: str, info: StepInfo, sites: int) -> None:
    """Refuse a secure sum of `key` that could be of the terms of fewer of all `sites` than the policy allows.

    Raises:
        PolicyViolation: says how many.
    """
    sum_spec = info.sums.get(key)
    if sum_spec is not None and (least := sum_spec.needed(sites)) < rules.min_summed:
        raise PolicyViolation(
            f"policy.min_summed: the secure sum of {key} may be of {least} of {sites} sites, and {rules.min_summed} "
            "are needed"
        )


def _check_epsilon(cap: float, rules: Rules, spent: Spent, after: Spent, sent: Iterable[Applied]) -> None:
    for release in sent:
        if PrivacyAccount().after(release).cost.unbounded and not any(
            covers(key, release.key) for key in rules.unbounded
        ):
            raise PolicyViolation(
                f"policy.epsilon: nothing bounds what {release.key} reveals (mechanism: {release}), so no ε holds; run "
                f'an algorithm that bounds it, or let it leave all the same: policy.unbounded = ["{release.key}"]'
            )
    before, now = spent.epsilon(rules.delta), after.epsilon(rules.delta)
    if now > cap:
        cost = sum((PrivacyAccount().after(release).cost for release in sent), Cost())
        raise PolicyViolation(
            f"policy.epsilon: ε = {before:g} is spent, {now - before:g} more exceed {cap:g} at δ = {rules.delta:g}"
            f"{_fitting(cost, cap, rules.delta)}"
        )


def _fitting(cost: Cost, cap: float, delta: float) -> str:
    """How many messages of that cost together have the ε of a cap at most, as the end of a sentence."""
    if not cost.epsilon and not cost.squared_mu:
        return ""
    few, many = 0, 1
    while total_epsilon(cost * many, delta) <= cap:
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if total_epsilon(cost * middle, delta) <= cap else (few, middle)
    return f"; {few} such messages fit under it in all"


def _check_leaf(rules: Rules, path: str, mechanisms: tuple[Mechanism, ...]) -> None:
    applied = f"the algorithm applies {str(Applied(path, mechanisms))!r} to {path}"
    if path == TRIED and (rules.score_epsilon is not None or rules.round_scores > 1):
        which = "round_scores" if rules.score_epsilon is None else "score_epsilon"
        raise PolicyViolation(
            f"policy.{which}: {TRIED} are hits on labels as they are; leave out the part coalition_value"
        )
    for key in rules.deny:
        if covers(key, path) or (key, path) == (LABELS, COUNTS):
            raise PolicyViolation(f"policy.deny: {path if key == LABELS else key} may not leave")
    mixed = max((mechanism.least for mechanism in mechanisms if isinstance(mechanism, Mixup)), default=0)
    noised = max(
        (
            mechanism.sigma / (mechanism.sensitivity or 1.0)
            for mechanism in mechanisms
            if isinstance(mechanism, Gaussian)
        ),
        default=0.0,
    )
    for rule, demands, got in (("mixup", rules.mixup, mixed), ("noise", rules.noise, noised)):
        for key, least in demands.items():
            if covers(key, path) and got < least:
                raise PolicyViolation(f"policy.{rule}: {key} needs at least {least:g}, {applied}")
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
    """Whether `path` is that of `key`, or below it."""
    return f"{path}/".startswith(f"{key}/")
