"""What must not be overlooked in a result: a model that is no better than a constant prediction, metrics of unlike
clients, and a fairest round that is not one."""

from collections.abc import Mapping, Sequence

from fedweave.core.text import counted

_REFERENCES = {
    "global": "the accuracy on all test examples, {:.3f}, is below {:.3f}, that of always predicting the most frequent "
    "class of the training examples.",
    "local": "the mean over clients{trained} of their test accuracies, {:.3f}, is below {:.3f}, that of each client "
    "always predicting the most frequent class of its own training examples.",
}


def compared_people(names: Sequence[str]) -> str:
    """A sentence on which group of people is 0 and which 1, and on whom no gap compares; "" without names."""
    told = ", ".join(f"group {at} is “{name}”" for at, name in enumerate(names[:2]))
    left = f" Gaps compare these two: people of {', '.join(f'“{name}”' for name in names[2:])} are in none."
    return f"{told[0].upper()}{told[1:]}.{left if names[2:] else ''}" if told else ""


def notes(metrics: Mapping[str, float | None]) -> dict[str, str]:
    """{what: a sentence} on a summary's metrics (`rounds.RoundResult`); empty where there is nothing to note."""
    found = {}
    accuracy = metrics.get("global/accuracy")
    if metrics.get("global/classes_predicted") == 1 and accuracy is not None and accuracy < 1:
        found["one class"] = f"the model predicts one class for all test examples; it is right for {accuracy:.1%}."
    alike = not metrics.get("scores/coarse")  # else the constant prediction is of other members than the accuracy
    for kind, words in _REFERENCES.items():
        matched, constant = metrics.get(f"{kind}/matched_accuracy"), metrics.get(f"{kind}/majority")
        reached = metrics.get(f"{kind}/accuracy") if matched is None else matched
        if alike and reached is not None and constant is not None and reached < constant:
            trained = "" if matched is None else " with training examples"
            found[kind] = words.format(reached, constant, trained=trained)
    if missing := metrics.get("scores/missing"):
        found["missing"] = (
            f"scores of {missing:g} {'client' if missing == 1 else 'clients'} are missing in the last evaluation: all "
            "metrics are of the others. metrics.parquet names them (missing, refused, late)."
        )
    if cut := metrics.get("secure_sum/cut"):
        values, sums, bound = (metrics.get(f"secure_sum/{name}") or 0.0 for name in ("values", "sums", "bound"))
        found["cut"] = (
            f"{cut:,.0f} of {values:,.0f} values were cut to ±{bound:g}, the bound of the secure sum, in "
            f"{counted(round(sums), 'sum')}: what was added up is less than what members computed. Raise the "
            "part's `bound`, with fewer digits in `fraction` or `bits = 64`; in GLASU, where the number of parties "
            "decides it, lower lr."
        )
    found |= _lacking("best_val", "best validation accuracy", metrics)
    if coarse := metrics.get("scores/coarse"):
        found["coarse"] = (
            f"scores of {coarse:g} {'site' if coarse == 1 else 'sites'} left rounded and without counts by class "
            "(policy.round_scores): accuracies include them, rounded, and may be far off for a site with few examples, "
            "the best and the worst client's among them; losses, F1, AUC, the constant prediction and all else that is "
            "counted by class or group of members' own examples are of the others alone, if there are "
            "any. metrics.parquet names the sites (scores/coarse)."
        )
    return found


def _lacking(kind: str, what: str, metrics: Mapping[str, float | None]) -> dict[str, str]:
    """The sentence on a chosen round that some clients had no part in."""
    round, missing = metrics.get(f"{kind}/round"), metrics.get(f"{kind}/missing")
    if not missing:
        return {}
    whose = f"{missing:g} {'client' if missing == 1 else 'clients'}"
    said = f"the round of {what}, {round:g}, lacks the scores of {whose}; no evaluated round lacks fewer."
    return {f"{kind} missing": said}


def fallen_back(metrics: Mapping[str, float | None]) -> str:
    """Why "best_fair/…" is of the round with the best validation accuracy and not of the one with the lowest gaps
    (`metrics.best_rounds.fairest`); "" where it is of that."""
    accuracy, constant, margin = (metrics.get(f"best_fair/val/{name}") for name in ("accuracy", "constant", "margin"))
    if accuracy is None or constant is None or margin is None:
        return ""
    shown = "shown is the round of best validation accuracy"
    if not accuracy > constant + margin:
        far = f"more than {margin:g} above" if margin else "above"
        why = f"no round's accuracy on validation is {far} that of the better constant prediction, {constant:.3f}"
        return f"{why}; {shown}"
    return "" if "best_fair/val/gaps" in metrics else f"the gaps are not defined on the validation examples; {shown}"


def of_fairest(metrics: Mapping[str, float | None]) -> dict[str, str]:
    """{what: a sentence} on the fairest round: that none was fair, and that its model predicts one class."""
    found = _lacking("best_fair", "lowest gaps on validation examples", metrics)
    if why := fallen_back(metrics):
        found["fallen back"] = f"there is no fairest round: {why}."
    if metrics.get("best_fair/global/classes_predicted") == 1:
        found["one class"] = (
            f"the model of round {metrics['best_fair/round']} predicts one class for all test examples, so that its "
            "gaps are 0 and say nothing."
        )
    return found
