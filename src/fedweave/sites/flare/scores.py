"""The form in which a site lets scores leave: which measures, how much they are rounded, and from which labels."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import chain
from types import MethodType

import torch
from torch import Tensor

from fedweave.algorithms.scoring import HIGH, LOW, MEAN, TRIED
from fedweave.algorithms.vertical.labels import DRAWN, LabelRelease
from fedweave.core.algorithm import Algorithm, Calls
from fedweave.core.federation import Client, Sends, Step, StepInfo, step_info
from fedweave.core.mechanism import LDP, Derived, SecureSum
from fedweave.core.tree import Tree, leaves, nest
from fedweave.core.types import Record
from fedweave.metrics.selection import METRICS
from fedweave.privacy.mechanisms import keep_probability
from fedweave.sites.flare.peers import SCORED, read_note
from fedweave.sites.flare.sitefile import FINE, Rules

LABELS = "labels"  # the field with the number of labels that a site reports when it joins
COUNTED = ("own", "trained", "global_test", TRIED)  # the fields with pairs of `metrics.classification`
_OF_CLIENT, _, _PUBLIC, _ = COUNTED
_PLAIN = "accuracy"  # counts that are not by class or group
# The entry of `measures` for all counts by class or group; every other measure has its own entry.
_CLASSES = "classes"
# Pairs, and the means over sites of a sum: {name: the entry of policy.measures that lets it leave}.
_LIKE = {name: metric.measure for name, metric in METRICS.items() if metric.measure}
_LIKE |= dict.fromkeys(("squared", "absolute"), "loss")  # a sum of squares is the loss of numbers in other units
_LIKE |= dict.fromkeys(("labels", "moments", "group_errors", "f1", "groups"), _CLASSES)
NOTHING = "nothing: zeros instead of losses, counts by class or group, and all other measures"
_OF_DRAWN = ("labels of randomized response with", "a model that knows labels by randomized response alone, with")


@dataclass(frozen=True)
class Scoring:
    """How a site lets scores leave.

    step:     the numbers of hits and examples leave as multiples of it; above 1 no other measure leaves.
    measures: the measures of `FINE` that leave. A server that chooses the models can read dozens of labels off one.
    epsilon:  scores use labels drawn by randomized response with this ε. Only hits leave, corrected for the bias of the
              draw. None: scores use the true labels.
    bounded:  the fields of `COUNTED` whose hits leave with an `epsilon`: scores of models that depend on labels only
              through that draw, or through messages that left before.
    in_sum:   the measures that leave if scores are in a secure aggregation.
    """

    step: int = 1
    measures: tuple[str, ...] = ()
    epsilon: float | None = None
    bounded: tuple[str, ...] = COUNTED
    in_sum: tuple[str, ...] = ()

    def show(self, client: Client, classes: int) -> Tree:
        """Replace the client's labels by drawn ones, drawn once for good; returns the state's entry that identifies the
        draw (`steps.with_fingerprints`), or {} if the labels stay as they are.

        A party that trains on drawn labels with the same ε sees the same labels.
        """
        if self.epsilon is None:
            return {}
        release, fresh_client = LabelRelease(self.epsilon), replace(client, state={})
        release.draw(fresh_client)
        labels = release.training_labels(client.graph.y, classes, release.random_words(fresh_client))
        client.graph = client.graph._replace(y=labels)
        return {DRAWN: fresh_client.state[DRAWN]}

    def prepare(self, reply: Tree, info: StepInfo, classes: int) -> tuple[Tree, StepInfo, Record]:
        """A scoring step's reply in the form in which it may leave, the declaration of this form, and the site's
        note."""
        scoring = replace(self, measures=self.in_sum) if info.sums else self
        if not scoring.changes:
            return reply, info, {}
        shown = scoring.redact(reply, classes, info)
        return shown, scoring.declaration(info, [path for path, _ in leaves(shown)]), {SCORED: asdict(scoring)}

    def redact(self, reply: Tree, classes: int, info: StepInfo | None = None) -> Tree:
        """A scoring step's reply with zeros instead of the measures that do not leave; a pair of zeros stands for no
        examples. info: the step's declaration, if its reply may be masked integers of a secure aggregation."""
        ones = {path: 1 if info is None else _one(info, path) for path, _ in leaves(reply)}
        return nest({path: self._redact_leaf(path, leaf, classes, ones[path]) for path, leaf in leaves(reply)})

    def declaration(self, info: StepInfo, paths: list[str]) -> StepInfo:
        """`info` with what the `paths` of a reply after `redact` reveal, and the mechanisms that protect them."""
        sends, first = dict(info.sends), next((path for path in paths if self._is_sent(path)), "")
        drawn = () if self.epsilon is None else (LDP(self.epsilon, "label", DRAWN, one_draw=True),)
        for path in paths:
            spec = info.sends[info.covering(path) or path.split("/")[0]]
            hides = tuple(one for one in spec.mechanisms if isinstance(one, SecureSum))
            if not self._is_sent(path):
                mechanism = (*((Derived(first),) if first else drawn), *hides) if drawn else spec.mechanism
                sends[path] = replace(spec, reveals=NOTHING, mechanism=mechanism)
            elif self.coarse:
                text = "how many hits and examples" + (f", as multiples of {self.step}" if self.step > 1 else "")
                text += f", by {_OF_DRAWN[path.startswith(_PUBLIC)]} ε = {self.epsilon:g}" if self.epsilon else ""
                sends[path] = replace(spec, reveals=text, mechanism=(*drawn, *hides) if drawn else spec.mechanism)
        return replace(info, sends=sends)

    def declaration_before(self, info: StepInfo) -> StepInfo:
        """`info` of a scoring step with the mechanisms of `declaration`, before the step has replied and its leaves are
        known."""
        keys = [key for key in info.sends if key in COUNTED]
        if self.epsilon is None or not keys:
            return info
        specs = self.declaration(info, [f"{key}/{_PLAIN}" for key in keys]).sends
        zeros = (Derived(f"{keys[0]}/{_PLAIN}"),)
        sends = dict[str, Sends]()
        for key, spec in info.sends.items():
            sends[key] = specs[f"{key}/{_PLAIN}"] if key in COUNTED else replace(spec, mechanism=zeros)
        return replace(info, sends=sends)

    @property
    def coarse(self) -> bool:
        """Whether only hits leave."""
        return self.step > 1 or self.epsilon is not None

    def measures_for(self, sums: bool) -> tuple[str, ...]:
        """The measures of `FINE` that leave, in `sums` or not; () if only hits leave."""
        return () if self.coarse else self.in_sum if sums else self.measures

    @property
    def changes(self) -> bool:
        """Whether it changes an algorithm's replies."""
        return self.coarse or {*self.measures} != {*FINE}

    def _is_sent(self, path: str) -> bool:
        key = path.partition("/")[0]
        if self.coarse:
            return _is_hits(path) and (self.epsilon is None or key in self.bounded)
        first, _, rest = path.partition("/")[2].partition("/")
        if first in (HIGH, LOW):  # the two integers of a term in a sum
            first, _, rest = rest.partition("/")
        name = rest if first == MEAN else first
        return key not in COUNTED or _LIKE.get(name, name) in {_PLAIN, *self.measures}

    def _redact_leaf(self, path: str, leaf: Tensor, classes: int, one: int) -> Tensor:
        if not self._is_sent(path):
            return torch.zeros_like(leaf)
        if self.epsilon is not None and not path.startswith(_PUBLIC):  # the global test has public labels
            leaf = _debias(leaf, keep_probability(self.epsilon, classes), classes)
        if self.step == 1:
            return leaf
        step = self.step * one
        coarse = (leaf.double() / step).round() * step
        return (coarse * (coarse[:, 1:] > 0)).to(leaf.dtype)  # no examples have no hits


AS_THEY_ARE = Scoring(measures=FINE, in_sum=FINE)


def is_scoring(info: StepInfo) -> bool:
    """Whether a step declares scores, and does not only prepare them."""
    return any(key in COUNTED for key in info.sends)


def models_scored(info: StepInfo, reply: Tree) -> int:
    """The number of models whose scores a reply has. Each counts as one evaluation."""
    if TRIED in reply:
        return models_tried(reply)
    return int(is_scoring(info) and bool(reply))


def models_tried(reply: Tree) -> int:
    """The number of models whose hits a reply has."""
    return len(reply[TRIED][_PLAIN])


def scoring_steps(calls: Calls) -> tuple[Step, ...]:
    """The steps of an evaluation that declare scores."""
    return tuple(step for step in calls.evaluation if is_scoring(step_info(step)))


def trying_steps(calls: Calls) -> tuple[Step, ...]:
    """The steps of a round in which clients try models."""
    return tuple(step for step in calls.round if TRIED in step_info(step).sends)


def as_arrived(info: StepInfo, reply: Tree, scoring: Scoring | None) -> StepInfo:
    """`info` with what a reply reveals under the `scoring` that its site noted; `info` itself if the reply does not
    have that form."""
    if scoring is None or not is_scoring(info):
        return info
    paths = [path for path, _ in leaves(reply)]
    if info.sums:  # masked integers look like noise, even if they stand for zeros
        return scoring.declaration(info, paths)
    if any(leaf.any() for path, leaf in leaves(reply) if not scoring._is_sent(path)):
        return info
    hits = [leaf for path, leaf in leaves(reply) if _is_hits(path)]
    if scoring.step > 1 and any(not torch.equal(leaf, (leaf / scoring.step).round() * scoring.step) for leaf in hits):
        return info
    return scoring.declaration(info, paths)


def _is_hits(path: str) -> bool:
    key, *name = path.split("/")
    return key in COUNTED and name == [_PLAIN]


def _one(info: StepInfo, path: str) -> int:
    """The integer that stands for 1 in a leaf of a reply: terms of a sum are fixed-point numbers."""
    declaration = info.sends[info.covering(path) or path.split("/")[0]]
    sums = [mechanism for mechanism in declaration.mechanisms if isinstance(mechanism, SecureSum)]
    return max((1 << mechanism.fraction for mechanism in sums), default=1)


def _label_draws(calls: Calls) -> list[LDP]:
    """The mechanisms that bound what an algorithm's replies reveal about labels."""
    specs = chain.from_iterable(step_info(step).sends.values() for step in calls.all)
    mechanisms = chain.from_iterable(spec.mechanisms for spec in specs)
    return [one for one in mechanisms if isinstance(one, LDP) and one.per == "label"]


def _debias(pairs: Tensor, keep_probability: float, classes: int) -> Tensor:
    """An unbiased estimate of hits on true labels from hits on drawn ones, clipped to 0 and the number of examples.

    pairs: float64 [S, 2], hits and examples. keep_probability: the probability that a draw does not change a label.
    """
    hits, examples = pairs.unbind(1)
    other = (1 - keep_probability) / (classes - 1) if classes > 1 else 0.0
    true = hits if keep_probability <= other else (hits - other * examples) / (keep_probability - other)
    estimates = torch.stack([true.clamp(min=0).minimum(examples), examples], 1)
    return estimates if pairs.is_floating_point() else estimates.round().to(pairs.dtype)


def scoring_of(rules: Rules, calls: Calls, labels: bool) -> Scoring:
    """How a site's policy lets scores of an algorithm with these `calls` leave. labels: whether the site has labels.

    If the algorithm trains on drawn labels, scores of the same labels cost no more privacy.
    """
    drawn = [] if rules.true_labels else [mechanism.epsilon for mechanism in _label_draws(calls)]
    score_epsilons = [] if rules.score_epsilon is None else [rules.score_epsilon]
    epsilon = min((*drawn, *score_epsilons), default=None) if labels else None
    bounded = COUNTED if _label_draws(calls) else (_OF_CLIENT, _PUBLIC) if _of_received(scoring_steps(calls)) else ()
    named, in_sum = {*rules.measures}, {*rules.measures, _CLASSES}
    if LABELS in rules.deny:  # all other measures reveal how many labels there are
        named, in_sum = named & {"loss"}, in_sum & {"loss"}
    return Scoring(rules.round_scores, tuple(sorted(named)), epsilon, bounded, tuple(sorted(in_sum)))


def _of_received(steps: Iterable[Step]) -> bool:
    """Whether these steps score only models that the server sent, by the algorithm's declaration."""
    owners = [step.__self__ if isinstance(step, MethodType) else None for step in steps]
    return all(isinstance(owner, Algorithm) and owner.evaluates_received for owner in owners)


def read_scoring(note: str) -> Scoring | None:
    """The form of scores in a site's note; None if the note has none or it is not valid."""
    record = read_note(note).get(SCORED)
    try:
        if not isinstance(record, dict):
            return None
        step, measures, epsilon = record["step"], record["measures"], record["epsilon"]
        right = isinstance(step, int) and 1 <= step < 1 << 53 and isinstance(measures, list)
        right &= epsilon is None or (isinstance(epsilon, float | int) and 0 < epsilon < math.inf)
        bounded = record.get("bounded", COUNTED)
        right &= isinstance(bounded, list | tuple)
        return Scoring(step, tuple(map(str, measures)), epsilon, tuple(map(str, bounded))) if right else None
    except (KeyError, TypeError):
        return None
