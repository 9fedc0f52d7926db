"""The meaning of every name in metrics.parquet and summary.json: a place, such as "global", and a metric.

`metrics.selection.METRICS` describes the selection metrics; here are the places, and names that only one place has.
"""

import re
from typing import Literal

from fedweave.core.text import capitalized
from fedweave.metrics.selection import BEST, CHOSEN_ROUND, METRICS, WORDS_OF_PLACES, WORST_MEMBER, Metric

# {beginning of a name: what the rest of it is measured on, and the module that does}
PLACES: dict[str, tuple[str, str]] = {
    "global": ("the global test set or, without one, all clients' test examples together", "metrics.measured"),
    "local": ("the mean over clients, each on its own test examples with the model that it uses", "metrics.measured"),
    "trained": ("as `local`, of clients' models right after their own training", "metrics.measured"),
    "within": ("pairs of test examples of the same client", "metrics.kinds"),
    "pooled": ("one model's scores of all clients' test examples, compared with each other", "metrics.pooled"),
    "crossing": ("links between clients, of the test examples", "metrics.measured"),
    "shelf": (
        "a member that learns alone with the tools on its shelf, such as gradient boosting; rows of metrics.parquet",
        "experiment.shelf.runs",
    ),
    "shelf_joint": (
        "as `shelf`, where the tools may also read the joint model's scores and vectors; rows of metrics.parquet",
        "experiment.shelf.joint",
    ),
    "shelf_joint/local": ("the mean over members of the same, each on its own test examples", "experiment.shelf.joint"),
    "shelf/local": ("the mean over members of the same, each on its own test examples", "experiment.shelf.runs"),
    "shelf/pooled": (
        "as `shelf/local`, where the tools learn from all members' examples together",
        "experiment.shelf.runs",
    ),
    "alone": (
        "the same model trained at each member alone; a member's rows are of the round that its validation chose",
        "experiment.runs.alone",
    ),
    "alone/local": (
        "as `local`, of the same model trained at each member alone",
        "experiment.runs.alone",
    ),
    "reference": (
        "scores of links without a model, each by its name",
        "experiment.shelf.pair_scores",
    ),
    "best_val": ("the round that was best on validation examples, evaluated on test examples", "metrics.best_rounds"),
    "best_val/val": ("that round, on validation examples", "metrics.best_rounds"),
    "best_fair": ("the fairest round by validation examples, evaluated on test examples", "metrics.best_rounds"),
    "best_fair/val": ("that round, on validation examples", "metrics.best_rounds"),
    "fairness": ("how evenly the model serves clients", "metrics.client_fairness"),
    "groups": ("two groups of people, at one client or at all; rows of metrics.parquet", "metrics.groups"),
    "groups/global": ("the two groups, on the examples of `global`", "metrics.groups"),
    "groups/median": ("the median over clients of the same; `…_undefined` counts clients without it", "metrics.groups"),
    "groups/selection": ("validation examples: what the fairest round is chosen by", "metrics.groups"),
    "intervals": ("prediction intervals of numbers (`[evaluation] intervals`)", "metrics.intervals"),
    "targets": ("the numbers that are predicted", "experiment.runs.run"),
    "per_class": ("each class on its own, by its number, on the examples of `global`", "metrics.classification"),
    "per_target": ("each number or label on its own, by its place, on the examples of `global`", "metrics.numbers"),
    "global_test": ("a client's own model on the global test set; rows of metrics.parquet", "metrics.classification"),
    "judged": ("the metric that selects; the value is the positive class's number, or -1", "metrics.selection"),
    "positives": ("counts of examples of the positive class", "metrics.kinds"),
    "scores": ("what you have to know before you read the other numbers", "metrics.measured"),
    "stopping": ("early stopping", "metrics.stopping"),
    "fedbuff": ("the algorithm `fedbuff`", "algorithms.fedbuff"),
}


def _result(
    note: str,
    better: Literal["high", "low", ""] = "",
    title: str = "",
    shown: bool = True,
    whole: bool = False,
) -> Metric:
    """A number that selects no round. shown: whether reports show the note. whole: whether it counts something."""
    return Metric(title, (), better, note, judges=False, shown=shown, whole=whole)


# Gaps between groups of people, each with the gap that chance would show.
GAPS: dict[str, Metric] = {
    "sp": _result("difference of the shares predicted 1", "low", "SP, statistical parity"),
    "eo": _result("difference of the shares predicted 1 among people of label 1", "low", "EO, equal opportunity"),
    "equalised_odds": _result("the larger of the differences at either label", "low", "Equalized odds"),
}
# All that the table of groups of people shows, in its order.
GROUPS: dict[str, Metric] = GAPS | {
    "sp_signed": _result("group 1 minus group 0", title="SP, signed"),
    "eo_signed": _result("group 1 minus group 0", title="EO, signed"),
    "accuracy_group0": _result("accuracy among people of group 0", title="Accuracy of group 0", shown=False),
    "accuracy_group1": _result("accuracy among people of group 1", title="Accuracy of group 1", shown=False),
    "auc_group0": _result("AUC among people of group 0", title="AUC of group 0", shown=False),
    "auc_group1": _result("AUC among people of group 1", title="AUC of group 1", shown=False),
    "tradeoff_accuracy": _result("accuracy / (SP + EO)", "high", "Accuracy / (SP + EO)", shown=False),
    "tradeoff_auc": _result("AUC / (SP + EO)", "high", "AUC / (SP + EO)", shown=False),
    "tradeoff_skill": _result("0 for every constant prediction", "high", "(TPR - FPR) (1 - (SP + EO) / 2)"),
    "predicted": _result("share of people who are predicted 1", title="Predicted favorable"),
    "favorable": _result("share of people of label 1", title="Favorable"),
}
# What else a result has, by its whole name where another place means something else by the last part.
RESULTS: dict[str, Metric] = GROUPS | {
    "pooled/spearman": _result("correlation of ranks, all members' examples together"),
    "labels": _result("how many labels have examples of both kinds; means are over these", whole=True),
    "nrmse_deviation": _result(
        "standard deviation over clients of RMSE / standard deviation", "low", "deviation of RMSE / standard deviation"
    ),
    "worst_nrmse": _result("of the client served worst, by its own spread"),
    "best_nrmse": _result("of the client served best, by its own spread"),
    "coverage": _result("share of test examples inside their interval, mean over members"),
    "worst_coverage": _result("coverage at the member with the lowest"),
    "width": _result("mean width of the intervals"),
    "nominal": _result("share that the intervals are to cover"),
    "least_coverage": _result("coverage below which chance does not explain the difference from that share"),
    "apart": _result("of members' means of the target, in its typical deviations, where each member scales by its own"),
    "bin_error": _result("how much too wide intervals may be, by the bins of the sum"),
    "f1": _result("micro average", "high"),
    "pooled/auc": _result("one model's, all members' examples compared with each other"),
    "auc_low": _result("lower end of its 95 % interval over test examples (DeLong 1988)", title="AUC, lower end"),
    "auc_high": _result("upper end of its 95 % interval over test examples (DeLong 1988)", title="AUC, upper end"),
    "average_precision_low": _result(
        "lower end of its 95 % bootstrap interval over test examples", title="average precision, lower end"
    ),
    "average_precision_high": _result(
        "upper end of its 95 % bootstrap interval over test examples", title="average precision, upper end"
    ),
    "within/auc": _result("over pairs of examples of the same member"),
    "within/members": _result(
        "that AUC, or order, within members is of: those with examples of two classes, or numbers", whole=True
    ),
    "recall_at_5": _result(
        "positives among the twentieth of examples with the highest scores", "high", "recall at 5 % of alerts"
    ),
    "pooled/recall": _result("positives that are flagged: from the threshold on"),
    "pooled/precision": _result("positives among the flagged"),
    "pooled/f1_positive": _result("harmonic mean of recall and precision of the flagged"),
    "brier": _result("mean squared error of probabilities", "low"),
    "calibration_error": _result("probabilities less shares, 15 bins", "low"),
    "flagged": _result("share of examples from the threshold on"),
    "threshold": _result("probability from which on an example is flagged, by all members' validation examples"),
    "within/average_precision": _result("mean over positives, each at its own member"),
    "majority": _result("accuracy of always predicting the most frequent class of training"),
    "matched_accuracy": _result("of the clients with training examples, whom majority is of"),
    "classes_predicted": _result("how many classes the model predicts", whole=True),
    "test_loss_variance": _result("0 if every client has the same test loss", "low"),
    "test_loss_entropy": _result("nats; highest if all test losses are equal", "high"),
    "accuracy_deviation": _result("standard deviation over clients of the test accuracy", "low"),
    "train_loss_variance": _result("of training losses, FairGFL's definition; small wherever models memorize"),
    "train_loss_entropy": _result("of training losses, nats; highest if all are equal"),
    "worst_accuracy": _result("of the client served worst"),
    "best_accuracy": _result("of the client served best"),
    "round": _result("with the best mean over clients on validation examples", whole=True),
    "undefined_clients": _result("without a loss or a test accuracy", whole=True),
}
# Reports show no note with these.
_WITHOUT_NOTE = {
    "divergence": "distance of a client's weights from the global ones (`fedego`)",
    "emd": "distance of a client's label distribution from the distribution over all clients (`fedego`)",
    "lambda": "share of the global model in a client's own (`fedego`)",
    "alone/round": "of training alone: the round that the member's validation examples chose",
    "alone/diverged": "of training alone: the round in which the member's model diverged; it then has no result",
    "best_val/missing": "clients without a score in that round",
    "best_fair/missing": "clients without a score in that round",
    "best_fair/round": "the fairest round",
    "gaps": "SP + EO",
    "constant": "accuracy of the better constant prediction",
    "alike": "1 if one class is predicted for nearly all examples, else 0",
    "score": "value of the metric that selects",
    "chance": "what a constant prediction reaches by that metric",
    "margin": "how much above the constant prediction a fair round has to be (`fair_margin`)",
    "fpr_signed": "difference of the false positive rates, group 1 minus group 0",
    "mae_group0": "mean absolute error in group 0",
    "mae_group1": "mean absolute error in group 1",
    "mae_signed": "difference of the mean absolute errors, group 1 minus group 0",
    "bias_group0": "mean error of predictions in group 0",
    "bias_group1": "mean error of predictions in group 1",
    "bias_signed": "difference of the mean errors, group 1 minus group 0",
    "half_width": "half the width of the interval of each number",
    "auc_error": "how far the AUC may be off, where it comes from a sum of histograms",
    "average_precision_error": "how far the average precision may be off, where it comes from a sum of histograms",
    "global_test/predicted": "share of predictions that are this class",
    "true": "share of examples that are of this class",
    "positives/test": "test examples of the positive class",
    "positives/val": "validation examples of the positive class",
    "positives/test_fewest": "test examples of the positive class at the client with the fewest",
    "positives/val_fewest": "validation examples of the positive class at the client with the fewest",
    "positives/alerts": "a hundredth of all test examples, which `recall_at_1` flags in `pooled`",
    "positives/alerts_within": "the sum over clients of a hundredth of each one's test examples",
    "scores/positive": "number of the rare one of two classes, which metrics of one class describe though none selects",
    "scores/rarest": "share of the rarest class of the training examples, where it is small",
    "scores/diverged": "a mean loss that no model has that learns",
    "scores/tied": "evaluations in a row, up to the last, in which all test examples had the same score",
    "scores/coarse": "clients that send only hits, or no losses, and are not in metrics by class",
    "scores/missing": "clients that were asked for scores and sent none",
    "scores/uncounted": "share of examples that are in no histogram",
    "scores/sampled": "clients that were asked for scores, where not all were",
    "scores/ranks_sampled": "1 if the last evaluation's ranks of links are those of a sample, 0 if all links are "
    "ranked, as those of the chosen round always are",
    "scores/clients": "all clients, where not all were asked",
    "stopping/round": "round of the last improvement on validation examples",
    "stopping/score": "value on validation examples at that round",
    "fedbuff/time": "time of the simulated clock",
}
RESULTS |= {name: _result(note, shown=False) for name, note in _WITHOUT_NOTE.items()}
# The other keys of summary.json.
KEYS: dict[str, str] = {
    "algorithm": "name of the algorithm",
    "dataset": "name of the data set",
    "classes": "names of the classes or labels",
    "targets": "names of the numbers that are predicted",
    "groups": "names of the two groups of people",
    "note": "what you have to know about the data or the start of training",
    "features": "number of features",
    "class_count": "number of classes, 0 where numbers or labels are predicted",
    "target": "`number` or `labels`; absent where a class is predicted",
    "outputs": "width of the model's output, where no class is predicted",
    "edges": "what edges have: direction, weight, features, times",
    "clients": "number of clients",
    "global_test": "number of examples of the global test set, which `global` is then of; absent without one",
    "members": "number of members that the one client stands for",
    "devices": "devices that computed",
    "rounds": "rounds done",
    "eval_every": "rounds between evaluations, also where `auto` chose them; 0 for none before the last",
    "chosen_round": "the round that validation chose, whose models and numbers are the result; else that is the last",
    "stopped": "why training stopped before the last round",
    "missed": "rounds that each client missed",
    "seed": "seed of the run",
    "seconds": "duration in seconds",
    "seconds_per_round": "duration of a round in seconds",
    "alone_seconds": "duration of training the same model at each member alone, not included in `seconds`",
    "peak_rss_mb": "most memory that the process used, in MB",
    "bytes_up": "bytes from clients to the server",
    "bytes_down": "bytes from the server to clients",
    "bytes_peer": "bytes from client to client",
    "bytes_evaluation": "bytes of evaluations in all directions, which the other counts include",
    "init_from": "the run whose weights training began from",
    "privacy": "ε and δ that were spent",
    "privacy_total": "ε and δ together with the runs that training began from",
    "shelf_joint": "the same of the shelf with joint columns (`evaluation.joint_columns`)",
    "shelf": "tools that validation chose, `local` and `pooled`; what is `drawn` to save time; the `seconds` it took",
    "metrics": "the metrics of the last evaluation, by the names on this page",
}
FAULTS: dict[str, str] = {
    "missing": "calls that the client did not answer in the round",
    "refused": "calls that the client rejected in the round",
    "late": "answers of the client that came too late in the round",
}


def place(name: str) -> str:
    """The place that a name begins with, the longest that fits; "" if it begins with none."""
    matches = [begin for begin in PLACES if name.startswith(f"{begin}/")]
    return max(matches, key=len, default="")


def entry(name: str) -> Metric | None:
    """The description of a number, found by its name in its round or else by the last component; None of an unknown
    one."""
    for key in (name, name.removeprefix(f"{BEST}/"), name.rpartition("/")[2]):
        known = RESULTS.get(key) or METRICS.get(key)
        if known is not None:
            return known
    return None


def note(name: str) -> str:
    """The note that reports show with a number; "" for none."""
    known = entry(name)
    return known.note if known is not None and known.shown else ""


def meaning(name: str) -> str:
    """The meaning of the number with this name, in any place; "" if it is not known."""
    name = re.sub(r"/\d+$", "", name)
    last = name.rpartition("/")[2]
    if place(name) == "judged":
        return f"{METRICS[last].title} selects" if last in METRICS else ""
    known = entry(name)
    if known is not None:
        return known.note
    end, base = _end_and_base(last)
    if end and (base in METRICS or base in RESULTS):
        if end == "undefined_":
            return "clients without a value of this metric"
        return f"value of the client served {end[:-1]}"
    gap = RESULTS.get(re.sub(r"(_floor)?(_undefined)?$", "", last))
    if gap is None:
        return ""
    return f"{gap.note}, by chance (noise floor)" if last.endswith("_floor") else gap.note


def title(metric: str) -> str:
    """The title of a metric, without its place."""
    known = METRICS.get(metric) or RESULTS.get(metric)
    return (known.title if known else "") or metric.replace("_", " ")


def better(name: str) -> Literal["high", "low", ""]:
    """Which values of a metric are better, in any place, and also for the client served worst or best by it."""
    end, base = _end_and_base(name.rpartition("/")[2])
    known = METRICS.get(base) or RESULTS.get(base)
    return "" if known is None or end == "undefined_" else known.better


def whole(name: str) -> bool:
    """Whether a number counts something."""
    known = entry(name)
    return name.rpartition("/")[2].startswith("undefined_") or (known is not None and known.whole)


def readable(name: str) -> str:
    """A number's name in words, such as "AUC, member mean, chosen round" for "best_val/local/auc"."""
    path, _, last = name.rpartition("/")
    of_round = ""
    for kind, when in _ROUNDS.items():
        if path == kind or path.startswith(f"{kind}/"):
            path, of_round = path.removeprefix(kind).lstrip("/"), when
    end, base = _end_and_base(last)
    known = METRICS.get(base) or RESULTS.get(base)
    title = (known.title if known is not None else "") or " ".join(WORDS.get(word, word) for word in base.split("_"))
    if base == "round":
        title, of_round = of_round or title, ""
    elif last == "undefined_clients":
        title = ""
    begin = max((one for one in WORDS_OF_PLACES if f"{path}/".startswith(f"{one}/")), key=len, default="")
    rest = path.removeprefix(begin).strip("/").replace("/", " ").replace("_", " ")
    words = [title, _ENDS.get(end, ""), WORDS_OF_PLACES.get(begin, ""), rest, of_round]
    text = ", ".join(filter(None, words))
    return capitalized(text)


_ROUNDS = {BEST: CHOSEN_ROUND, "best_fair": "fairest round"}
_ENDS = {"worst_": WORST_MEMBER, "best_": "best member", "undefined_": "members without a value"}
# Words of names that are not written as they stand.
WORDS = {"f1": "F1", "sp": "SP", "eo": "EO"} | {name: one.title for name, one in METRICS.items() if "_" not in name}


def _end_and_base(last: str) -> tuple[str, str]:
    """("worst_", "auc") of "worst_auc"; ("", name) of others."""
    for end in ("worst_", "best_", "undefined_"):
        if last.startswith(end):
            return end, last.removeprefix(end)
    return "", last
