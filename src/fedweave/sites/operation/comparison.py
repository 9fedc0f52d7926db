"""Values that must be the same at all sites, and measures that a run will lack because no site's policy allows them."""

from collections.abc import Iterator, Sequence

import numpy as np

from fedweave.core.text import counted
from fedweave.core.types import CLASS, Record
from fedweave.experiment.config import Config
from fedweave.metrics.selection import METRICS, OF_SCORES, RARE_OF_TWO, title_of
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
    """Note the measures, best rounds and thresholds that a run of these `sites` will lack, or have of some sites
    only."""
    forms = {name: form for name, form in findings.forms.items() if "measures" in form}
    if not forms:
        return
    sums = any(form.get("in sums") for form in forms.values())
    two = any(form.get("classes") == 2 for form in forms.values())
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
        note += _missing_choices(config, two, sums, measures) if everywhere else []
        findings.notes.append((", ".join(without), ". ".join(note)))


def _missing_choices(config: Config, two: bool, sums: bool, measures: Sequence[Measure]) -> Iterator[str]:
    """Sentences on the best round and the threshold, if the run cannot choose them without the `measures`."""
    metric, threshold = config.evaluation.metric, config.evaluation.threshold
    by = (RARE_OF_TWO if two else "macro_f1") if metric == "auto" else metric
    if (METRICS[by].measure or by) in measures:
        where = ", the selection metric of a run with a rare class" if metric == "auto" else ", the selection metric"
        yield f"No round will be the best by {title_of(by)}{where}"
    if two and sums and "histogram" in measures and not isinstance(threshold, float | int):
        yield "No threshold will be chosen on all sites' validation examples: each site chooses its own"


MAX_RATIO = 30  # factor between columns at two sites that usual units and samples do not explain


SHOWN = 5  # number of columns in notes


def compare(findings: Findings, vertical: bool) -> None:
    """Add a fault for each value that must be the same at all sites and is not. The reference is the most frequent
    value, or the first of equally frequent ones."""
    remedies = {
        "features": "Give the same columns, and the same lists of categories, in the same order",
        "edges carry": "Write the same settings of edges into every site.toml (task, edge_features, edge_weight)",
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
        values = {name: str(form[key]) for name, form in findings.forms.items() if form.get(key) is not None}
        common = max(values.values(), key=list(values.values()).count, default="")
        same = next((name for name, value in values.items() if value == common), "")
        for name, value in values.items():
            differ_in_number = key == "columns" and _count(findings, name) != _count(findings, same)  # see "features"
            if value != common and not differ_in_number:
                findings.faults.append((name, f"{key}: {_differ(findings.forms, key, name, same)}. {remedy}."))


def compare_scales(findings: Findings) -> None:
    """Note columns whose nonzero values have a root mean square more than `MAX_RATIO` times as large at one site as at
    another: they may have different units."""
    scales = {name: form["scales"] for name, form in findings.forms.items() if form.get("scales") is not None}
    if len({len(values) for values in scales.values()}) != 1 or len(scales) < 2:
        return
    names, table = list(scales), np.stack(list(scales.values()))
    low, high = np.where(table > 0, table, np.inf).min(0), table.max(0)  # [columns]
    unlike = np.flatnonzero((high > 0) & (low < np.inf) & (high > MAX_RATIO * low))
    columns = next((form["columns"] for form in findings.forms.values() if form.get("columns")), None)
    for at in unlike[:SHOWN].tolist():
        what = f"column {columns[at]!r}" if columns else f"column {at + 1}"
        smallest = names[int(np.flatnonzero(table[:, at] == low[at])[0])]
        times = high[at] / low[at]
        remedy = "Give it the same unit at all sites, or scale it"
        note = f"{what} is {times:,.0f} times as large as at {smallest}. {remedy}"
        findings.notes.append((names[int(table[:, at].argmax())], note))
    if len(unlike) > SHOWN:
        findings.notes.append((", ".join(names), f"{len(unlike) - SHOWN:,} more columns are of such unlike scales"))


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


def _differ(forms: dict[str, Record], key: str, name: str, same: str) -> str:
    mine, theirs = forms[name][key], forms[same][key]
    if key == "columns":
        at = next(at for at, (one, other) in enumerate(zip(mine, theirs, strict=True)) if one != other)
        return f"column {at + 1} is {mine[at]!r}, and {theirs[at]!r} at {same}"
    counts = f"{mine}, and {theirs} at {same}"
    mine, theirs = forms[name].get("columns"), forms[same].get("columns")
    if key == "features" and mine and theirs:
        missing = [one for one in theirs if one not in mine][:5]
        additional = [one for one in mine if one not in theirs][:5]
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"also has {', '.join(additional)}"] if additional else []
        return f"{counts}; it {' and '.join(parts)}"
    if key in ("class names", "group names", "key of ids", "authority"):
        return f"not the same as at {same}"
    return counts


def _count(findings: Findings, name: str) -> int:
    return len(findings.forms[name]["columns"])
