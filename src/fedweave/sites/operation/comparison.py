"""Values that must be the same at all sites, and measures that a run will lack because no site's policy allows them."""

from collections.abc import Sequence

import numpy as np

from fedweave.core.text import counted
from fedweave.core.types import CLASS, Kind
from fedweave.experiment.config import Config
from fedweave.metrics.selection import AUTO, METRICS, OF_SCORES, RARE_OF_TWO, title_of
from fedweave.sites.flare.sitefile import FINE, Measure
from fedweave.sites.operation.findings import Findings

_BY_CLASS = ", ".join(one.title for one in METRICS.values() if one.measure == "classes" and CLASS in one.of)
_WORDS: dict[Measure, str] = {
    "classes": f"whether a class is rare, {_BY_CLASS} and gaps between groups",
    "group_auc": "AUC of each group",
    "histogram": "AUC, average precision and calibration of all sites' examples together",
    "ranks": "MRR, hits and lists of items",
}
# The measures that each entry of `FINE` lets leave, as text.
NUMBERS: dict[Measure, str] = {name: _WORDS[name] if name in _WORDS else METRICS[name].title for name in FINE}


def compare_measures(findings: Findings, config: Config, sites: Sequence[str]) -> None:
    """Note the measures, best rounds and thresholds that a run of these `sites` will lack, or have of some sites only.
    That early stopping will lack its metric is a fault."""
    forms = {name: form for name, form in findings.forms.items() if "measures" in form}
    if not forms:
        return
    sums = any(form.get("in sums") for form in forms.values())
    two = any(form.get("classes") == 2 for form in forms.values())
    target: Kind = next((form["target"] for form in forms.values() if "target" in form), CLASS)
    groups = any(form["groups"] for form in forms.values())
    ranks = config.links is not None and bool(config.links.candidates)
    due = [measure for measure in FINE if two or measure not in OF_SCORES]
    for measure, is_due in {"group_auc": groups, "histogram": sums, "ranks": ranks}.items():
        if measure in due and not is_due:
            due.remove(measure)
    lacking: dict[tuple[str, ...], list[Measure]] = {}
    for measure in due:
        without = tuple(name for name, form in forms.items() if measure not in form["measures"])
        lacking.setdefault(without, []).append(measure)
    for without, measures in lacking.items():
        if not without:
            continue
        everywhere = len(without) == len(forms) and len(findings.forms) == len(sites)
        what = "; ".join(NUMBERS[one] for one in measures)
        ends = "will be missing" if everywhere else "will be of other sites only, if these measure them"
        note = [f"policy.measures lets no {', '.join(measures)} leave, so that these numbers {ends}: {what}"]
        if everywhere:  # the best round and the threshold, which the run cannot choose without them
            metric, threshold = config.evaluation.metric, config.evaluation.threshold
            depends = metric == "auto" and target == CLASS  # on whether a class is rare
            by = metric
            if metric == "auto":
                by = (RARE_OF_TWO if two else "macro_f1") if depends else AUTO[target]
            needed = METRICS[by].measure or by
            if needed in measures:
                where = "the selection metric of a run with a rare class" if depends else "the selection metric"
                patience = config.evaluation.patience
                if patience and not depends:
                    what = f"policy.measures lets no {needed} leave, without which the server knows no {title_of(by)}"
                    ends = f"so that evaluation.patience = {patience} would end the run at its first evaluation"
                    remedy = f'Put "{needed}" into policy.measures, or leave patience out.'
                    findings.faults.append((", ".join(without), f"{what}, {ends}. {remedy}"))
                note.append(f"No round will be the best by {title_of(by)}, {where}")
            if two and sums and "histogram" in measures and not isinstance(threshold, float | int):
                note.append("No threshold will be chosen on all sites' validation examples: each site chooses its own")
        findings.notes.append((", ".join(without), ". ".join(note)))


MAX_RATIO = 30  # factor between columns at two sites that usual units and samples do not explain
SHOWN = 5  # number of columns in notes


def compare(findings: Findings, vertical: bool) -> None:
    """Add a fault for each value that must be the same at all sites and is not. The reference is the most frequent
    value, or the first of equally frequent ones."""
    remedies = {
        "features": "Give the same columns, and the same lists of categories, in the same order",
        "edges carry": "Write the same settings of edges into every site.toml (task, edge_features, edge_labels, "
        "edge_weight)",
        "columns": "Give the same columns, and the same lists of categories, in the same order",
        "classes": "Give the same [data] classes or labels",
        "target": "Give the same [data] target",
        "class names": "Write the same labels = […] into every site.toml",
        "group names": "Write the same groups = […], in the same order, into every site.toml; an .npz has group_names",
        "authority": "Take startup of one project",
    }
    if vertical:
        remedies["key of ids"] = "Copy one ids.key to all sites"
    for key, remedy in remedies.items():
        values = {name: form[key] for name, form in findings.forms.items() if form.get(key) is not None}
        texts = {name: str(value) for name, value in values.items()}
        common = max(texts.values(), key=list(texts.values()).count, default="")
        for name, mine in values.items():
            if texts[name] == common:
                continue
            same = next(other for other in texts if texts[other] == common)
            theirs, what = values[same], f"{mine}, and {values[same]} at {same}"
            if key == "columns":
                if len(mine) != len(theirs):  # "features" differ, too
                    continue
                at = next(at for at, (one, other) in enumerate(zip(mine, theirs, strict=True)) if one != other)
                what = f"column {at + 1} is {mine[at]!r}, and {theirs[at]!r} at {same}"
            elif key in ("class names", "group names", "key of ids", "authority"):
                what = f"not the same as at {same}"
            elif key == "features":
                my_columns, their_columns = (findings.forms[one].get("columns") or () for one in (name, same))
                if my_columns and their_columns:
                    missing = [one for one in their_columns if one not in my_columns][:5]
                    additional = [one for one in my_columns if one not in their_columns][:5]
                    parts = [f"lacks {', '.join(missing)}"] if missing else []
                    parts += [f"also has {', '.join(additional)}"] if additional else []
                    what = f"{what}; it {' and '.join(parts)}"
            findings.faults.append((name, f"{key}: {what}. {remedy}."))


def compare_scales(findings: Findings) -> None:
    """Note columns whose nonzero values have a root mean square more than `MAX_RATIO` times as large at one site as at
    another: they may have different units."""
    scales = {name: form["scales"] for name, form in findings.forms.items() if form.get("scales") is not None}
    if len({len(values) for values in scales.values()}) != 1 or len(scales) < 2:
        return
    names, table = list(scales), np.stack(list(scales.values()))
    low, high = np.where(table > 0, table, np.inf).min(0), table.max(0)  # [columns]
    differing = np.flatnonzero((high > 0) & (low < np.inf) & (high > MAX_RATIO * low))
    columns = next((form["columns"] for form in findings.forms.values() if form.get("columns")), None)
    for at in differing[:SHOWN].tolist():
        what = f"column {columns[at]!r}" if columns else f"column {at + 1}"
        smallest = names[int(np.flatnonzero(table[:, at] == low[at])[0])]
        times = high[at] / low[at]
        remedy = "Give it the same unit at all sites, or scale it"
        note = f"{what} is {times:,.0f} times as large as at {smallest}. {remedy}"
        findings.notes.append((names[int(table[:, at].argmax())], note))
    if len(differing) > SHOWN:
        findings.notes.append((", ".join(names), f"{len(differing) - SHOWN:,} more columns are of such unlike scales"))


def compare_splits(findings: Findings) -> None:
    """Add a fault for each party that has common nodes in another split than most parties."""
    splits = {name: form["splits"] for name, form in findings.forms.items() if form.get("splits")}
    common = sorted(set.intersection(*map(set, splits.values()))) if splits else []
    differing: dict[str, list[str]] = {}
    for node in common:
        labels = [split[node] for split in splits.values()]
        majority = max(labels, key=labels.count)
        for name, split in splits.items():
            if split[node] != majority:
                text = f"{node!r} is in {split[node]}, and elsewhere in {majority}"
                differing.setdefault(name, []).append(text)
    for name, nodes in differing.items():
        shown = "; ".join(nodes[:3]) + (f"; and {len(nodes) - 3:,} more" if len(nodes) > 3 else "")
        what = f"the split of {len(nodes):,} of {counted(len(common), 'common node')} differs from the other parties"
        findings.faults.append((name, f"{what}: {shown}. Give all parties the same split."))
