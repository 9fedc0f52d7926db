"""What every name in metrics.parquet and summary.json means: a place, such as "global", and a metric.

What a metric is stands in `report.cells.NOTES`, its title in `metrics.selection.METRICS`; here are the places, and
names that only one place has.
"""

import re

from fedweave.metrics.selection import METRICS
from fedweave.report.cells import HIGHER, LOWER, NOTES
from fedweave.report.tables import GAPS, GROUP_NOTES, OTHERS

# {beginning of a name: what the rest of it is measured on, and the module that does}
PLACES: dict[str, tuple[str, str]] = {
    "global": ("the global test set or, without one, all clients' test examples together", "metrics.measured"),
    "local": ("the mean over clients, each on its own test examples with the model that it uses", "metrics.measured"),
    "trained": ("as `local`, of clients' models right after their own training", "metrics.measured"),
    "within": ("pairs of test examples of the same client", "metrics.kinds"),
    "pooled": ("one model's scores of all clients' test examples, compared with each other", "metrics.ranking"),
    "crossing": ("links between clients, of the test examples", "metrics.measured"),
    "features": (
        "a regression on features only, as `global` or `local`",
        "experiment.runs.without_graph",
    ),
    "reference": (
        "scores of links without a model, each by its name",
        "experiment.runs.link_references",
    ),
    "best_val": ("the round that was best on validation examples, evaluated on test examples", "metrics.measured"),
    "best_val/val": ("that round, on validation examples", "metrics.measured"),
    "best_fair": ("the fairest round by validation examples, evaluated on test examples", "metrics.measured"),
    "best_fair/val": ("that round, on validation examples", "metrics.measured"),
    "fairness": ("how evenly the model serves clients", "metrics.client_fairness"),
    "groups": ("two groups of people (`sens`), at one client or at all; rows of metrics.parquet", "metrics.groups"),
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
# Names that are of one place only, and what other metrics are where reports show no note.
MEANINGS: dict[str, str] = {
    "accuracy": "share of examples whose prediction is right",
    "divergence": "distance of a client's weights from the global ones (`fedego`)",
    "emd": "distance of a client's label distribution from that of all (`fedego`)",
    "lambda": "share of the global model in a client's own (`fedego`)",
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
    "accuracy_group0": "accuracy among people of group 0",
    "accuracy_group1": "accuracy among people of group 1",
    "auc_group0": "AUC among people of group 0",
    "auc_group1": "AUC among people of group 1",
    "tradeoff_accuracy": "accuracy / (SP + EO)",
    "tradeoff_auc": "AUC / (SP + EO)",
    "mae_group0": "mean absolute error in group 0",
    "mae_group1": "mean absolute error in group 1",
    "mae_signed": "difference of the mean absolute errors, group 1 minus group 0",
    "bias_group0": "mean error of predictions in group 0",
    "bias_group1": "mean error of predictions in group 1",
    "bias_signed": "difference of the mean errors, group 1 minus group 0",
    "half_width": "half the width of the interval of each number",
    "auc_error": "how far the AUC may be off, where it comes from a sum of histograms",
    "average_precision_error": "how far the average precision may be off, where it comes from a sum of histograms",
    "predicted": "share of predictions that are this class",
    "true": "share of examples that are of this class",
    "positives/test": "test examples of the positive class",
    "positives/val": "validation examples of the positive class",
    "positives/test_fewest": "test examples of the positive class at the client with the fewest",
    "positives/val_fewest": "validation examples of the positive class at the client with the fewest",
    "positives/alerts": "a hundredth of all test examples, which `recall_at_1` flags in `pooled`",
    "positives/alerts_within": "the sum over clients of a hundredth of each one's test examples",
    "scores/rarest": "share of the rarest class of the training examples, where it is small",
    "scores/diverged": "a mean loss that no model has that learns",
    "scores/coarse": "clients that send only hits, or no losses, and are not in metrics by class",
    "scores/missing": "clients that were asked for scores and sent none",
    "scores/uncounted": "share of examples that are in no histogram",
    "scores/sampled": "clients that were asked for scores, where not all were",
    "scores/clients": "all clients, where not all were asked",
    "stopping/round": "round of the last improvement on validation examples",
    "stopping/score": "value on validation examples at that round",
    "fedbuff/time": "time of the simulated clock",
}
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
    "members": "number of members that the one client stands for",
    "devices": "devices that computed",
    "rounds": "rounds done",
    "stopped": "why training stopped before the last round",
    "missed": "rounds that each client missed",
    "seed": "seed of the run",
    "seconds": "duration in seconds",
    "seconds_per_round": "duration of a round in seconds",
    "peak_rss_mb": "most memory that the process used, in MB",
    "bytes_up": "bytes from clients to the server",
    "bytes_down": "bytes from the server to clients",
    "bytes_peer": "bytes from client to client",
    "bytes_evaluation": "bytes of evaluations, which are in none of the others",
    "init_from": "the run whose weights training began from",
    "privacy": "ε and δ that were spent",
    "privacy_total": "ε and δ with those of the runs that training began from",
    "metrics": "the metrics of the last evaluation, by the names on this page",
}
FAULTS: dict[str, str] = {
    "missing": "calls that the client did not answer in the round",
    "refused": "calls that the client rejected in the round",
    "late": "answers of the client that came too late in the round",
}


def place(name: str) -> str:
    """The place that a name begins with, the longest that fits; "" of a name that is of no place."""
    fits = [one for one in PLACES if name.startswith(f"{one}/")]
    return max(fits, key=len, default="")


def meaning(name: str) -> str:
    """What the number of this name is, whatever its place; "" if nothing says it."""
    name = re.sub(r"/\d+$", "", name)
    last = name.rpartition("/")[2]
    if place(name) == "judged":
        return f"{METRICS[last].title} selects" if last in METRICS else ""
    base = re.sub(r"^(undefined|worst|best)_|(_floor)?(_undefined)?$", "", last)
    for one in (name, last):
        if text := NOTES.get(one) or MEANINGS.get(one):
            return text
    if text := GROUP_NOTES.get(base) or MEANINGS.get(base):
        return text + (", by chance (noise floor)" if last.endswith("_floor") else "")
    if last.startswith("undefined_"):
        return "clients without a value of this metric" if base in METRICS or base in NOTES else ""
    if last.startswith(("worst_", "best_")):
        return f"value of the client served {last.partition('_')[0]}" if base in METRICS else ""
    return ""


def title(metric: str) -> str:
    """What a metric, without its place, is called."""
    return METRICS[metric].title if metric in METRICS else (GAPS | OTHERS).get(metric, metric.replace("_", " "))


def better(metric: str) -> str:
    """ "higher", "lower", or "" where neither is better."""
    if metric in METRICS:
        return {"high": "higher", "low": "lower"}[METRICS[metric].better]
    return "higher" if metric in HIGHER else "lower" if metric in LOWER else ""
