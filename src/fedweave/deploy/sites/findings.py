"""What `fedweave sites check` finds: faults, notes and facts of each member, and what must be the same at all sites."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from fedweave.core.records import Record
from fedweave.core.text import counted
from fedweave.errors import FedweaveError

APART = 30  # times as large as at another site: more than units' and samples' usual differences
SHOWN = 5  # columns
T = TypeVar("T")


@dataclass
class Found:
    """What was looked at. faults: (whose, what with where and remedy). notes: what is allowed and may be meant
    otherwise. facts: (whose, what there is). forms: {site: what must be the same at all}."""

    faults: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    forms: dict[str, Record] = field(default_factory=dict)

    def attempt(self, whose: str, look: Callable[[], T], file: Path | None = None) -> T | None:
        """What `look` returns; None where it finds faults, which are noted each, with the `file` that they are in."""
        try:
            return look()
        except FedweaveError as error:
            lines = str(error).splitlines() if len(error.args) > 1 else [str(error)]
            self.faults += [(whose, f"{file}: {line}" if file else line) for line in lines]
        except OSError as error:
            reason = f"{error.filename or ''} cannot be read ({error.strerror or error})".strip()
            self.faults.append((whose, f"{reason}. Give it to the user who runs this process (chown, chmod u+rw)."))
        return None

    def noted(self, whose: str, look: Callable[[], object], before: str) -> None:
        """Note what `look` refuses, with the words `before`."""
        try:
            look()
        except FedweaveError as error:
            self.notes.append((whose, f"{before}{error}"))


def compare(told: Found, vertical: bool) -> None:
    """Note what must be the same at all and is not: against what most have, of equally many the first."""
    keys = {
        "features": "Give the same columns, and the same lists of categories, in the same order",
        "edges carry": "Say the same of edges in every site.toml (task, edge_features, edge_weight)",
        "columns": "Give the same columns, and the same lists of categories, in the same order",
        "classes": "Give the same [data] classes or labels",
    }
    keys |= {
        "class names": "Write the same labels = […] into every site.toml",
        "group names": "Write the same groups = […], in the same order, into every site.toml; an .npz has group_names",
        "authority": "Take startup of one project",
    }
    keys |= {"key of ids": "Copy one ids.key to all sites"} if vertical else {}
    for key, remedy in keys.items():
        values = {name: str(form[key]) for name, form in told.forms.items() if form.get(key) is not None}
        most = max(values.values(), key=list(values.values()).count, default="")
        same = next((name for name, value in values.items() if value == most), "")
        for name, value in values.items():
            if value != most and not (key == "columns" and _count(told, name) != _count(told, same)):  # said above
                told.faults.append((name, f"{key}: {_differ(told.forms, key, name, same)}. {remedy}."))


def compare_scales(told: Found) -> None:
    """Note columns whose values that are not 0 are, by their root mean square, more than `APART` times as large at one
    site as at another: they may be in other units."""
    scales = {name: form["scales"] for name, form in told.forms.items() if form.get("scales") is not None}
    if len({len(own) for own in scales.values()}) != 1 or len(scales) < 2:
        return
    names, table = list(scales), np.stack(list(scales.values()))
    least, most = np.where(table > 0, table, np.inf).min(0), table.max(0)
    apart = np.flatnonzero((most > 0) & (least < np.inf) & (most > APART * least))
    columns = next((form["columns"] for form in told.forms.values() if form.get("columns")), None)
    for at in apart[:SHOWN].tolist():
        what = f"column {columns[at]!r}" if columns else f"column {at + 1}"
        times, low = most[at] / least[at], names[int(np.flatnonzero(table[:, at] == least[at])[0])]
        said = f"{what} is {times:,.0f} times as large as at {low}. Give it the same unit at all sites, or scale it"
        told.notes.append((names[int(table[:, at].argmax())], said))
    if len(apart) > SHOWN:
        told.notes.append((", ".join(names), f"{len(apart) - SHOWN:,} more columns are of such unlike scales"))


def compare_splits(told: Found) -> None:
    """Note parties that have some of the common nodes in another split than most parties have them."""
    splits = {name: form["splits"] for name, form in told.forms.items() if form.get("splits")}
    common = sorted(set.intersection(*map(set, splits.values()))) if splits else []
    odd: dict[str, list[str]] = {}
    for node in common:
        said = [own[node] for own in splits.values()]
        most = max(said, key=said.count)
        for name, own in splits.items():
            if own[node] != most:
                odd.setdefault(name, []).append(f"{node!r} is in {own[node]}, and elsewhere in {most}")
    for name, nodes in odd.items():
        shown = "; ".join(nodes[:3]) + (f"; and {len(nodes) - 3:,} more" if len(nodes) > 3 else "")
        what = f"the split of {len(nodes):,} of {counted(len(common), 'common node')} is another than at the others"
        told.faults.append((name, f"{what}: {shown}. Give all parties the same split."))


def _differ(forms: dict[str, Record], key: str, name: str, same: str) -> str:
    mine, theirs = forms[name][key], forms[same][key]
    if key == "columns":
        at = next(at for at, (one, other) in enumerate(zip(mine, theirs, strict=True)) if one != other)
        return f"column {at + 1} is {mine[at]!r}, and {theirs[at]!r} at {same}"
    counts = f"{mine}, and {theirs} at {same}"
    mine, theirs = (forms[site].get("columns") for site in (name, same))
    if key == "features" and mine and theirs:
        parts = [f"lacks {', '.join(gone)}" if (gone := [one for one in theirs if one not in mine][:5]) else ""]
        parts += [f"has {', '.join(more)} besides" if (more := [one for one in mine if one not in theirs][:5]) else ""]
        return f"{counts}; it {' and '.join(filter(None, parts))}"
    if key in ("class names", "group names", "key of ids", "authority"):
        return f"not those of {same}"
    return counts


def _count(told: Found, name: str) -> int | None:
    return told.forms[name].get("features")
