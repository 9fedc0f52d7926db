"""The form in which a site lets scores leave: which measures, how much they are rounded, and from which labels."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from types import MethodType

import torch
from torch import Tensor

from fedweave.algorithms.score_sums import HIGH, LOW, MEAN, SUMMED
from fedweave.algorithms.trials import TRIED
from fedweave.algorithms.vertical.labels import DRAWN, LabelRelease
from fedweave.core.algorithm import Algorithm, Calls
from fedweave.core.federation import Client, Sends, Step, StepInfo, step_info
from fedweave.core.mechanism import LDP, Derived, SecureSum
from fedweave.core.tree import Tree, leaves, nest
from fedweave.core.types import KEPT_BACK, Record
from fedweave.metrics.selection import METRICS, title_of
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
NOTHING = f"{KEPT_BACK}zeros instead of"  # begins what zeros reveal; the measures that they stand for follow
_WORDS = {  # of measures, in a ledger; others have their title in `METRICS`
    _PLAIN: "how many hits and examples",
    "loss": "losses",
    _CLASSES: "counts by class or group",
    "group_auc": "AUC within groups",
    "histogram": "histograms of scores",
    "ranks": "ranks of links",
}
_ORDER = {measure: place for place, measure in enumerate((_PLAIN, *FINE))}
_BY_CLASS = {"auc", "group_auc", "average_precision", "recall_at_1"}  # their pairs also count each class's examples
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
        if not scoring.coarse and {*scoring.measures} == {*FINE}:  # all leaves as it is
            return reply, info, {}
        redacted = scoring.redact(reply, classes, info)
        paths = [path for path, _ in leaves(redacted)]
        return redacted, scoring.declaration(info, paths), {SCORED: asdict(scoring)}

    def redact(self, reply: Tree, classes: int, info: StepInfo | None = None) -> Tree:
        """A scoring step's reply with zeros instead of the measures that do not leave; a pair of zeros stands for no
        examples. info: the step's declaration, if its reply may be masked integers of a secure aggregation."""
        redacted = dict[str, Tensor]()
        for path, leaf in leaves(reply):  # a leaf of pairs is [S, 2], hits and examples
            if not self._is_sent(path):
                redacted[path] = torch.zeros_like(leaf)
                continue
            if self.epsilon is not None and not path.startswith(_PUBLIC):  # the global test has public labels
                # An unbiased estimate of hits on true labels from hits on drawn ones: a draw keeps a label with
                # probability p, and changes it into each other one with probability q.
                p, (hits, examples) = keep_probability(self.epsilon, classes), leaf.unbind(1)
                q = (1 - p) / (classes - 1) if classes > 1 else 0.0
                true_hits = hits if p <= q else (hits - q * examples) / (p - q)
                estimates = torch.stack([true_hits.clamp(min=0).minimum(examples), examples], 1)
                leaf = estimates if leaf.is_floating_point() else estimates.round().to(leaf.dtype)
            if self.step > 1:
                one = 1  # the integer that stands for 1: terms of a sum are fixed-point numbers
                if info is not None:
                    spec = info.sends[info.covering(path) or path.split("/")[0]]
                    one = max((1 << m.fraction for m in spec.mechanisms if isinstance(m, SecureSum)), default=1)
                step = self.step * one
                rounded = (leaf.double() / step).round() * step
                leaf = (rounded * (rounded[:, 1:] > 0)).to(leaf.dtype)  # no examples have no hits
            redacted[path] = leaf
        return nest(redacted)

    def declaration(self, info: StepInfo, paths: list[str]) -> StepInfo:
        """`info` with what the `paths` of a reply after `redact` reveal, and the mechanisms that protect them. If some
        paths that one description covers do not leave, that of the others names only what leaves."""
        sends, first = dict(info.sends), next((path for path in paths if self._is_sent(path)), "")
        drawn = () if self.epsilon is None else (LDP(self.epsilon, "label", DRAWN, one_draw=True),)
        sent, withheld = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)  # paths by declared key
        for path in paths:
            by_key = sent if self._is_sent(path) else withheld
            by_key[info.covering(path) or path.split("/")[0]].append(path)
        for key in sent | withheld:
            spec = info.sends[key]
            hides = tuple(one for one in spec.mechanisms if isinstance(one, SecureSum))
            mechanism = (*((Derived(first),) if first else drawn), *hides) if drawn else spec.mechanism
            nothing = replace(spec, reveals=f"{NOTHING} {_words(withheld[key])}", mechanism=mechanism)
            sends |= dict.fromkeys(withheld[key], nothing)
            if self.coarse or withheld[key]:
                text = (SUMMED if hides else "") + _words(sent[key])
                text += ", how many examples each class has" if {*map(_name_of, sent[key])} & _BY_CLASS else ""
                text += f", as multiples of {self.step}" if self.step > 1 else ""
                text += f", by {_OF_DRAWN[key.startswith(_PUBLIC)]} ε = {self.epsilon:g}" if self.epsilon else ""
                mechanism = (*drawn, *hides) if drawn else spec.mechanism
                sends |= dict.fromkeys(sent[key], replace(spec, reveals=text, mechanism=mechanism))
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
        if self.coarse:
            return ()
        return self.in_sum if sums else self.measures

    def _is_sent(self, path: str) -> bool:
        key = path.partition("/")[0]
        if self.coarse:
            return _is_hits(path) and (self.epsilon is None or key in self.bounded)
        return key not in COUNTED or measure_of(path) in {_PLAIN, *self.measures}


def measure_of(path: str) -> str:
    """The entry of policy.measures that lets a path of scores leave; "accuracy" for hits, which need none."""
    name = _name_of(path)
    return _LIKE.get(name, name)


def _name_of(path: str) -> str:
    """The measured number that a path of scores has: "f1" of "own/f1" and of "own/high/mean/f1"."""
    first, _, rest = path.partition("/")[2].partition("/")
    if first in (HIGH, LOW):  # the two integers of a term in a sum
        first, _, rest = rest.partition("/")
    return rest if first == MEAN else first


def _words(paths: Iterable[str]) -> str:
    """The measures at these paths of scores, such as "how many hits and examples, losses"."""
    words, means = dict[str, None](), dict[str, None]()
    for path in sorted(paths, key=lambda path: (_ORDER.get(measure_of(path), len(_ORDER)), path)):
        name = _name_of(path)
        if MEAN in path.split("/"):
            means[title_of(name)] = None
        else:
            words[_WORDS.get(measure_of(path)) or title_of(name or path)] = None
    of_means = f"means over members of {', '.join(means)}" if means else ""
    return ", ".join(filter(None, (*words, of_means)))


AS_THEY_ARE = Scoring(measures=FINE, in_sum=FINE)


def read_scoring(note: str) -> Scoring | None:
    """The form of scores in a site's note; None if the note has none or it is not valid."""
    record = read_note(note).get(SCORED)
    try:
        if not isinstance(record, dict):
            return None
        step, measures, epsilon = record["step"], record["measures"], record["epsilon"]
        bounded = record.get("bounded", COUNTED)
    except (KeyError, TypeError):
        return None
    valid = isinstance(step, int) and 1 <= step < 1 << 53
    valid &= isinstance(measures, list) and isinstance(bounded, list | tuple)
    valid &= epsilon is None or (isinstance(epsilon, float | int) and 0 < epsilon < math.inf)
    return Scoring(step, tuple(map(str, measures)), epsilon, tuple(map(str, bounded))) if valid else None


def is_scoring(info: StepInfo) -> bool:
    """Whether a step declares scores, and does not only prepare them."""
    return any(key in COUNTED for key in info.sends)


def models_scored(info: StepInfo, reply: Tree) -> int:
    """The number of models whose scores a reply has. Each counts as one evaluation."""
    return models_tried(reply) if TRIED in reply else int(is_scoring(info) and bool(reply))


def models_tried(reply: Tree) -> int:
    """The number of models whose hits a reply has."""
    return len(reply[TRIED][_PLAIN])


def scoring_steps(calls: Calls) -> tuple[Step, ...]:
    """The steps of an evaluation that declare scores."""
    return tuple(step for step in calls.evaluation if is_scoring(step_info(step)))


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


def scoring_of(rules: Rules, calls: Calls, labels: bool) -> Scoring:
    """How a site's policy lets scores of an algorithm with these `calls` leave. labels: whether the site has labels."""
    # If the algorithm trains on drawn labels, scores of the same labels cost no more privacy.
    draws = list[float]()
    for step in calls.all:
        for spec in step_info(step).sends.values():
            draws += [one.epsilon for one in spec.mechanisms if isinstance(one, LDP) and one.per == "label"]
    epsilons = [] if rules.true_labels else list(draws)
    if rules.score_epsilon is not None:
        epsilons.append(rules.score_epsilon)
    epsilon = min(epsilons, default=None) if labels else None
    # Whose hits does that draw bound? Of models that the server sent, by the algorithm's declaration, also without
    # draws in training.
    owners = [step.__self__ if isinstance(step, MethodType) else None for step in scoring_steps(calls)]
    of_received = all(isinstance(owner, Algorithm) and owner.evaluates_received for owner in owners)
    bounded: tuple[str, ...] = (_OF_CLIENT, _PUBLIC) if of_received else ()
    if draws:
        bounded = COUNTED
    measures, in_sum = {*rules.measures}, {*rules.measures, _CLASSES}
    if LABELS in rules.deny:  # all other measures reveal how many labels there are
        measures, in_sum = measures & {"loss"}, in_sum & {"loss"}
    return Scoring(rules.round_scores, tuple(sorted(measures)), epsilon, bounded, tuple(sorted(in_sum)))
