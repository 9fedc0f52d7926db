"""Notes on a result that a reader needs.

They show a model that is no better than a constant prediction, metrics of different clients, and a fairest round that
is not fair.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from fedweave.accounts.verdict import TIE, short
from fedweave.core.text import counted
from fedweave.core.types import Values
from fedweave.experiment.config.toml import part_tables
from fedweave.metrics.selection import (
    BEST,
    MAX_TIED,
    MEMBER_MEAN,
    OF_POSITIVE,
    OF_RANKS,
    PLAIN,
    POSITIVES,
    RARE_OF_MANY,
    RARE_OF_TWO,
    RAREST,
    REFERENCE,
    RMSE,
    RMSE_OF_MEAN,
    SHELF,
    TARGET_SPREAD,
    TIED,
    TIED_SENTENCE,
    lower,
    near_constant,
    positive_in,
    positive_of,
    rank,
    selection_metric_of,
    title_of,
)
from fedweave.reports.verdict import TRAIN_ALONE, joint_value

Metrics = Mapping[str, float | None]  # of a summary

GLOBAL_TEST = "global_test"  # the number of examples of the global test set, in a summary where there is one
LATE_ROUND = 0.9  # of all rounds: a model whose best round is earlier does not improve with more of them
MIN_POSITIVES = 20  # positive examples; with fewer, one more or less moves a score much
WHOSE = {"pooled": "all members together", "within": "each member by itself"}
_DIVERGED = "scores/diverged"  # `metrics.measured`, which takes long to import

# {(place, metric): (metric of the constant prediction, words where the model is worse)}
_CONSTANTS = {
    ("global", PLAIN): (
        "majority",
        "the accuracy on {test}, {value:.3f}, is below {constant:.3f}, the accuracy of always predicting the most "
        "frequent class of the training examples.",
    ),
    ("local", PLAIN): (
        "majority",
        "the member mean of the accuracy{trained}, {value:.3f}, is below {constant:.3f}, what each member has by "
        "always predicting the most frequent class of its own training examples.",
    ),
    ("global", RMSE): (
        RMSE_OF_MEAN,
        "the RMSE on {test}, {value:.4g}, is above {constant:.4g}, the RMSE of always predicting the mean of the "
        "training examples.",
    ),
    ("local", RMSE): (
        RMSE_OF_MEAN,
        "the member mean of the RMSE, {value:.4g}, is above {constant:.4g}, what each member has by always predicting "
        "the mean of its own training examples.",
    ),
}
_SHELVES = {
    "local": "members reach alone with the tools on their shelf",
    "pooled": "the tools of the shelf reach on all members' examples together",
}
_WEIGH = " class_weight in [algorithm] gives the class more weight in training."
_UNTESTED = (
    "no client was tested: none has a test example whose scores may leave (at sites: policy.measures, and with "
    "policy.score_epsilon none of its own model), and there is no global test set."
)
# Subjects of notes that inform a reader; the others warn of a result that means less than it seems.
INFORMATIVE = ("judged", "rare", "sampled", "few", "shelf")
CHANCE = 0.5  # the AUC of guessing
MAX_MEANS_GAP = 0.25  # of the typical deviation: members' means may differ by this much without a note


class RunFacts(NamedTuple):
    """What remedies depend on.

    rounds: how many were trained; 0 if unknown. edges: whether edges are the examples. test: the examples of "global"
    metrics. alone: whether all members train alone, so that the run is what others are compared with. weighs, scales:
    whether classes are weighed and these features scaled already. classes: their names. chooses: whether each member
    uses the model that is best for it (`own_share`).
    """

    rounds: int = 0
    edges: bool = False
    test: str = "all test examples"
    alone: bool = False
    weighs: bool = False
    scales: bool = False
    classes: tuple[str, ...] = ()
    chooses: bool = False

    @classmethod
    def of_summary(cls, summary: Values, config: Mapping[str, Any] = MappingProxyType({})) -> "RunFacts":
        """Of the run with this summary and configuration. Sites scale by their own settings."""
        test = "the global test set" if summary.get(GLOBAL_TEST) else cls().test
        edges = summary.get("edges") or {}  # of links, which are examples too, models read the features of nodes
        of_edges = bool(edges.get("examples") and edges.get("features"))
        weighs = config.get("algorithm", {}).get("class_weight", "none") != "none"
        scaling = config.get("data", {}).get("edge_normalize" if of_edges else "normalize", "none")
        scales = scaling != "none" and config.get("engine", {}).get("name") != "flare"
        alone = summary.get("algorithm") in TRAIN_ALONE
        names = tuple(map(str, summary.get("classes") or ()))
        chooses = any(part.get("name") == "own_share" for part in part_tables(config.get("algorithm", {})))
        return cls(summary.get("rounds") or 0, of_edges, test, alone, weighs, scales, names, chooses)

    @property
    def scaling(self) -> str:
        """The setting that scales the features of the examples."""
        return "data.edge_normalize" if self.edges else "data.normalize"

    @property
    def scaling_advice(self) -> str:
        """The advice to scale features; "" if they are."""
        return "" if self.scales else f"scale features ({self.scaling})"

    def peak(self, metrics: Metrics) -> str:
        """ "round 10 of 50" if validation examples were predicted best long before the end, so that more rounds would
        not help; "" if they may."""
        best = metrics.get(f"{BEST}/round")
        early = best is not None and self.rounds and best < LATE_ROUND * self.rounds
        return f"round {best:g} of {self.rounds:,}" if early else ""


def people_sentence(names: Sequence[str]) -> str:
    """A sentence on which group of people is 0 and which 1, and on groups that no gap compares; "" without names."""
    if not names:
        return ""
    quoted = [f"“{name}”" for name in names]
    sentence = f"Group 0 is {quoted[0]}"
    if len(names) > 1:
        sentence += f", group 1 is {quoted[1]}"
    if len(names) > 2:
        sentence += f". Gaps compare these two: people of {', '.join(quoted[2:])} are in none"
    return f"{sentence}."


def alerts_clause(metrics: Metrics, classes: Sequence[str] = ()) -> str:
    """ "caught at 1 % of alerts: 7 of 24 “fraud” among 24 alerts (0.292), all members together; …".

    Returns "" unless a metric of the positive class is the selection metric, or if the number is not known.
    """
    if selection_metric_of(metrics) not in OF_POSITIVE:
        return ""
    positive = positive_of(metrics)
    noun = class_name(positive, classes) or "positives"
    clauses = []
    for kind, whose in WHOSE.items():
        value = metrics.get(f"{kind}/recall_at_1")
        count = metrics.get(f"{POSITIVES}/alerts{'_within' * (kind == 'within')}")
        of = hits(value, metrics.get(f"{POSITIVES}/test"))
        alerts = f"{of} {noun} among {count:,.0f} alerts" if of and count is not None else ""
        if value is not None:
            clauses.append(f"{alerts} ({value:.3f}), {whose}" if alerts else f"{value:.3f}, {whose}")
    return f"caught at 1 % of alerts: {'; '.join(clauses)}" if clauses else ""


def class_name(number: int | None, classes: Sequence[str]) -> str:
    """ "“fraud”"; "" for a class without a name."""
    return f"“{classes[number]}”" if number is not None and number < len(classes) else ""


def hits(recall: float | None, positives: float | None) -> str:
    """ "7 of 24"; "" where one is not known. Equal scores at the border count by their chance."""
    if recall is None or not positives:
        return ""
    return " of ".join(f"{count:,.1f}".removesuffix(".0") for count in (recall * positives, positives))


def intervals(metrics: Metrics) -> str:
    """A sentence on prediction intervals; "" where there are none."""
    width, coverage = metrics.get("intervals/width"), metrics.get("intervals/coverage")
    if width is None or coverage is None:
        return ""
    worst, error = metrics.get("intervals/worst_coverage"), metrics.get("intervals/bin_error")
    whose = "members' mean" if worst is not None else "all members together"
    words = f"prediction intervals are {width:.4g} wide and cover {coverage:.1%} of test examples ({whose}"
    words += "" if worst is None else f"; {worst:.1%} at the member with the fewest"
    return words + ("" if error is None else f"; at most {error:.1%} too wide, by the bins of the sum") + ")"


def members_clause(metrics: Metrics, clients: int | None) -> str:
    """A sentence on how many members the mean AUC within members covers; "" if that is not known or all are covered."""
    members, expected = metrics.get("within/members"), metrics.get("scores/sampled") or clients
    if "within/auc" not in metrics or "global/labels" in metrics:
        return ""
    if members is None or expected is None or members >= expected:
        return ""
    why = "the others' test examples are of one class, or their scores stay at home"
    return f"AUC within members is of {members:g} of {expected:g}: {why}."


def notes(metrics: Metrics, training: RunFacts | None = None) -> dict[str, str]:
    """{subject: a sentence} on a summary's metrics (`rounds.RoundResult`); empty where there is nothing to note."""
    sentences, training = {}, training or RunFacts()
    advice = training.scaling_advice
    metric = selection_metric_of(metrics)
    coarse = metrics.get("scores/coarse")

    # 1. Whether the numbers mean anything.
    main_metrics = (f"global/{PLAIN}", f"global/{RMSE}", f"local/{PLAIN}", f"local/{RMSE}")
    if "fairness/undefined_clients" in metrics and all(metrics.get(name) is None for name in main_metrics):
        sentences["untested"] = _UNTESTED
    accuracy = metrics.get("global/accuracy")
    no_recall = metric in OF_POSITIVE and metrics.get("global/recall") == 0  # says more than one class for all
    if metrics.get("global/classes_predicted") == 1 and accuracy is not None and accuracy < 1 and not no_recall:
        more_rounds = "" if training.peak(metrics) or _is_tied(metrics) else " or more rounds"
        sentences["one class"] = (
            f"the model predicts one class for {training.test}; it is right for {accuracy:.1%}. Train with a larger "
            f"algorithm.lr{more_rounds}{'' if training.weighs else ', or weigh the classes (algorithm.class_weight)'}."
        )
    if metrics.get(_DIVERGED):
        sentences["diverged"] = (
            f"training diverged: no model that learns has a mean loss of {metrics[_DIVERGED]:.3g}. Lower "
            f"algorithm.lr, or bound the updates (the part clip){advice and f', or {advice}'}."
        )
    if _is_tied(metrics):
        sentences["tied"] = TIED_SENTENCE.format(f"{metrics[TIED]:g}")
    if metrics.get(RAREST) is not None:
        by_metric = ""
        if metric in (RARE_OF_TWO, RARE_OF_MANY):
            by_metric = f" So the selection metric is {title_of(metric)}: for the best round, gains, comparisons."
        positive, of_class = positive_in(metrics), ""
        if positive is not None:
            name = class_name(positive, training.classes) or f"class {positive}"
            of_class = f" Recall, precision and alerts are of {name}."
        sentences["rare"] = (
            f"the rarest class has {metrics[RAREST]:.1%} of the training examples: a model that never predicts it has "
            f"a high accuracy.{by_metric}{of_class}"
        )
    elif metric != PLAIN and metric not in OF_RANKS and "global/f1" in metrics:
        sentences["judged"] = f"the selection metric is {title_of(metric)} ([evaluation] metric), and not accuracy."
    sampled, clients = metrics.get("scores/sampled"), metrics.get("scores/clients")
    if sampled is not None and clients is not None:
        sentences["sampled"] = (
            f"scores are of {sampled:,.0f} of {clients:,.0f} clients, drawn once for all rounds ([evaluation] "
            "clients); what is trained, sent and counted in bytes is of all."
        )
    if no_recall:
        at, recall = metrics.get("pooled/threshold"), metrics.get("pooled/recall")
        flagged = "" if at is None or recall is None else f" Flagged from {at:.3g} on, {recall:.1%} of them are found."
        sentences["missed"] = (
            "no positive test example is predicted to be positive, as is usual where that class is rare."
            f"{flagged}{'' if training.weighs else _WEIGH}"
        )
    counts = {name: metrics.get(f"{POSITIVES}/{name}") for name in ("test", "test_fewest", "val", "val_fewest")}
    texts = {name: f"{count:,.0f}" for name, count in counts.items() if count is not None}
    fewest_test, fewest_val = counts["test_fewest"], counts["val_fewest"]
    clauses = []
    if fewest_test is not None and fewest_test < MIN_POSITIVES:
        clauses.append(
            f"{texts['test']} test examples of all members are of the positive class, {texts['test_fewest']} at "
            "the member with the fewest: scores move much with each of them; compare over several seeds"
        )
    if fewest_val is not None and fewest_val < MIN_POSITIVES and counts["val"] and f"{BEST}/round" in metrics:
        which = "such validation examples" if clauses else "validation examples of the positive class"
        clauses.append(
            f"the best round is chosen by {texts['val']} {which} ({texts['val_fewest']} at the "
            "member with the fewest), and may be the best by chance"
        )
    if clauses:
        sentences["few"] = f"{'; '.join(clauses)}."
    if not coarse and metrics.get("global/majority") == 1:
        sentences["alike"] = "all test examples are of one class, so that no score means anything."

    # 2. What a simpler prediction reaches.
    for (kind, name), (constant_name, words) in _CONSTANTS.items():
        if name == PLAIN and (metric != PLAIN or coarse):
            continue  # the constant prediction of coarse scores is of other members than their accuracy
        matched, constant = metrics.get(f"{kind}/matched_accuracy"), metrics.get(f"{kind}/{constant_name}")
        value = metrics.get(f"{kind}/{name}") if matched is None else matched
        if value is not None and constant is not None and rank(name, value) < rank(name, constant):
            trained = "" if matched is None else " where there are training examples"
            sentences[kind] = words.format(value=value, constant=constant, trained=trained, test=training.test)
    names = [name for name in ("pooled/auc", "global/auc", "within/auc", "local/auc") if name in metrics]
    area = metrics.get(names[0]) if names else None
    if area is not None and area <= CHANCE:
        title = "mean AUC over labels" if "global/labels" in metrics else "AUC"
        together = "on all members' test examples ranked together"
        places = {"local/auc": "in the mean over clients", "pooled/auc": together}
        where = places.get(names[0], f"on {training.test}")
        reverse = "" if area == CHANCE else " It orders more pairs wrongly than correctly: check the labels."
        sentences["chance"] = f"the {title} {where}, {area:.3f}, is no better than guessing, which has 0.5.{reverse}"
    coverage, nominal = metrics.get("intervals/coverage"), metrics.get("intervals/nominal")
    min_coverage = metrics.get("intervals/least_coverage")  # below it chance does not explain the difference
    if coverage is not None and nominal is not None and min_coverage is not None and coverage < min_coverage:
        sentences["coverage"] = (
            f"prediction intervals cover {coverage:.1%} of test examples, and {nominal:.0%} were asked for. From "
            f"{min_coverage:.1%} on the difference could be chance. Test examples are unlike the validation examples "
            "that set the width, as where whole scaffolds, owners or times are held out: trust the width less there."
        )
    if "global/rmse" in metrics and not training.chooses:  # one model of all members
        sentences |= unit_notes(metrics.get(TARGET_SPREAD))
    if not training.alone:
        sentences |= _worse_than_shelf(metrics, training)

    # 3. What is missing or was changed.
    missing = metrics.get("scores/missing")
    if missing:
        sentences["missing"] = (
            f"scores of {missing:g} {'client' if missing == 1 else 'clients'} are missing in the last evaluation: all "
            "metrics are of the others. metrics.parquet names them (missing, refused, late)."
        )
    clipped = metrics.get("secure_sum/cut")
    if clipped:
        total, sums = metrics.get("secure_sum/values") or 0.0, metrics.get("secure_sum/sums") or 0.0
        bound = metrics.get("secure_sum/bound") or 0.0
        sentences["cut"] = (
            f"{clipped:,.0f} of {total:,.0f} values were clipped to ±{bound:g}, the bound of secure aggregation, in "
            f"{counted(round(sums), 'sum')}: the result is smaller than what members computed. Raise the part's "
            "`bound`, with fewer digits in `fraction` or `bits = 64`; in GLASU, where the number of parties decides "
            "it, lower lr."
        )
    sentences |= _missing_in_round("best_val", f"best validation {title_of(metric)}", metrics)
    if coarse:
        sentences["coarse"] = (
            f"scores of {coarse:g} {'site' if coarse == 1 else 'sites'} left without all measures "
            "(policy.measures, round_scores, score_epsilon): accuracies include them, where rounded or of drawn labels "
            "possibly far off for a site with few examples, the best and the worst client's among them; what they keep "
            "back (losses, AUC, or also F1, the constant prediction and all else that is counted by class or group of "
            "members' own examples) is only of the others, if there are any. "
            "metrics.parquet names the sites (scores/coarse). Only as sums over all members more may leave: scores = "
            '"sum" in [algorithm].'
        )
    uncounted = metrics.get("scores/uncounted")
    if uncounted:
        sentences["uncounted"] = (
            f"{uncounted:.1%} of all members' examples are in no histogram of scores: pooled AUC, average precision "
            'and alerts are of the others, if there are any. Sites allow it with "histogram" in policy.measures.'
        )
    return sentences


def gap_notes(metrics: Metrics, prefix: str = "") -> dict[str, str]:
    """The note that gaps between groups of people mean nothing, because one class is predicted for almost everyone."""
    predicted, true = metrics.get(f"{prefix}groups/global/predicted"), metrics.get(f"{prefix}groups/global/favorable")
    if predicted is None or true is None or not near_constant(predicted, true):
        return {}
    return {
        "alike": f"the favorable class is predicted for {predicted:.1%} of people, and {true:.1%} are of it: gaps of "
        "a prediction that is the same for almost everyone are small for any model, and are not called fair."
    }


def unit_notes(gap: float | None) -> dict[str, str]:
    """A note where members' own units of a number differ much, so that one model learns another target from each.

    gap: see `partition.scaling.distance_of_targets`.
    """
    if gap is None or gap <= MAX_MEANS_GAP:
        return {}
    return {
        "units": f"members' means of the target differ by {gap:.2f} of its deviation, and each member scales the "
        "target by its own numbers. One model for all then learns another number from each. Compare on validation "
        'with data.target_normalize = "all", one scale for all: members then send their counts, sums and sums of '
        "squares, and the ledger lists them. Or let each use its own model where that is better: algorithm.parts = "
        '["own_share"].'
    }


def _worse_than_shelf(metrics: Metrics, training: RunFacts) -> dict[str, str]:
    """A note where the joint model is worse than what members, or their pool, reach with the tools on the shelf, and
    what to try then."""
    metric, sentences = selection_metric_of(metrics), []
    joint, clauses = joint_value(metrics, metric), []
    for which, words in _SHELVES.items():
        value = metrics.get(f"{SHELF}/{which}/{metric}")
        if joint is None or value is None or rank(metric, joint) >= rank(metric, value):
            continue
        if not math.isclose(joint, value, rel_tol=TIE):
            side = "above" if lower(metric) else "below"
            clauses.append(f"{side} {short(value)}, which {words}")
    if joint is not None and clauses:
        text = f"the joint {title_of(metric)}, {short(joint)} as {MEMBER_MEAN}, is"
        sentences.append(f"{text} {' and '.join(clauses)}")
    references = dict[str, float]()
    for key, score in metrics.items():
        kind, _, name = key.removeprefix(f"{REFERENCE}/").partition("/")
        if key.startswith(f"{REFERENCE}/") and name == metric and score is not None:
            references[kind] = score
    together = metrics.get(f"global/{metric}")
    if together is not None and references and together < max(references.values()) * (1 - TIE):
        best = max(references, key=lambda kind: references[kind])
        name = best.replace("_", " ")
        text = f"the {title_of(metric)} on all test pairs, {short(together)}, is below {short(references[best])}"
        sentences.append(f"{text}, the value of {name} on the training edges")
    if not sentences:
        return {}
    advice = training.scaling_advice
    remedies = f"Try another model (`fedweave list models`){advice and f', or {advice}'}."
    return {"shelf": f"{'; '.join(sentences)}. {remedies}{_more_rounds(metrics, training)}"}


def _is_tied(metrics: Metrics) -> bool:
    """Whether all scores were equal in so many evaluations that the model does not recover."""
    return (metrics.get(TIED) or 0) >= MAX_TIED


def _more_rounds(metrics: Metrics, training: RunFacts) -> str:
    """Whether more rounds may help, as the end of a note."""
    if _is_tied(metrics):
        return ""
    peak = training.peak(metrics)
    return f" More rounds would not help: validation was best in {peak}." if peak else " Or train longer."


def _missing_in_round(kind: str, what: str, metrics: Metrics) -> dict[str, str]:
    """A note on a chosen round in which scores of some clients are missing."""
    round, missing = metrics.get(f"{kind}/round"), metrics.get(f"{kind}/missing")
    if not missing:
        return {}
    whose = f"{missing:g} {'client' if missing == 1 else 'clients'}"
    sentence = f"the round of {what}, {round:g}, lacks the scores of {whose}; no evaluated round lacks fewer."
    return {f"{kind} missing": sentence}


def fallback_reason(metrics: Metrics) -> str:
    """Why "best_fair/…" is of the round with the best validation score and not of the fairest one.

    Returns "" where it is of the fairest round (`metrics.best_rounds.fairest`).
    """
    metric, margin = selection_metric_of(metrics), metrics.get("best_fair/val/margin")
    value, constant = metrics.get("best_fair/val/score"), metrics.get("best_fair/val/chance")
    if value is None:  # the selection metric is accuracy
        value, constant = metrics.get("best_fair/val/accuracy"), metrics.get("best_fair/val/constant")
    if value is None or constant is None or margin is None:
        return ""
    instead = f"shown is the round of best validation {title_of(metric)}"
    if not value > constant + margin:
        far = f"more than {margin:g} above" if margin else "above"
        why = f"no round's {title_of(metric)} on validation is {far} the better constant prediction's"
        return f"{why}, {constant:.3f}; {instead}"
    if metrics.get("best_fair/val/alike") == 1 and margin >= 0:
        return f"every round predicts one class for almost everyone on validation, or is no better than that; {instead}"
    return "" if "best_fair/val/gaps" in metrics else f"the gaps are not defined on the validation examples; {instead}"


def fairest_notes(metrics: Metrics) -> dict[str, str]:
    """{subject: a sentence} on the fairest round: that no round was fair, or that its model predicts one class."""
    sentences = _missing_in_round("best_fair", "lowest gaps on validation examples", metrics)
    reason = fallback_reason(metrics)
    if reason:
        sentences["fallen back"] = f"there is no fairest round: {reason}."
    if metrics.get("best_fair/global/classes_predicted") == 1:
        sentences["one class"] = (
            f"the model of round {metrics['best_fair/round']} predicts one class for all test examples, so that its "
            "gaps are 0 and mean nothing."
        )
    elif "best_fair/round" in metrics:
        sentences |= gap_notes(metrics, "best_fair/")
    return sentences
