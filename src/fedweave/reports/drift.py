"""The page about how far new tables moved from what a model was trained on."""

from fedweave.accounts.document import Document, Section, grid
from fedweave.apply.drift import Shift, TableDrift
from fedweave.core.text import counted
from fedweave.reports.cells import NONE

MAX_COLUMNS = 200  # on a page
OF = {"node": "column of nodes", "edge": "column of edges", "score": "score"}
_HOW = (
    "PSI is the population stability index: by convention a shift is small below .1 and large above .25. A column is "
    "marked if its PSI exceeds the threshold and also what chance gives without drift: in 5 % of checks any of the "
    "columns exceeds that bound.",
    "KS is the largest distance between the two distribution functions, at the edges of the bins (Kolmogorov-Smirnov). "
    "Columns of text have no order and no KS.",
)


def headline(drift: TableDrift) -> str:
    """The result in a sentence."""
    what = counted(len(drift.shifts), "column and score").replace("column and scores", "columns and scores")
    if not drift.alarms:
        return f"{drift.tables}: none of {what} moved beyond a PSI of {drift.threshold:g}."
    names = ", ".join(one.name for one in drift.alarms[:5])
    more = f" and {len(drift.alarms) - 5} more" if len(drift.alarms) > 5 else ""
    return f"{drift.tables}: {len(drift.alarms)} of {what} moved beyond a PSI of {drift.threshold:g}: {names}{more}."


def notes(drift: TableDrift) -> list[str]:
    """What to know about the comparison, a sentence each."""
    before, now = drift.examples
    scored = (
        f"the {drift.scored:,} validation and test examples of training"
        if drift.unseen
        else f"all {drift.scored:,} training examples, which the model knows: their scores differ from those of new "
        "data without any drift"
    )
    lines = [f"{now:,} new examples are compared with {before:,}; their scores with those of {scored}."]
    if drift.flagged is not None:
        lines.append(f"Flagged: {drift.flagged[1]:.2%} of the new examples, and {drift.flagged[0]:.2%} before.")
    for one in drift.new:
        some = ", ".join(map(repr, one.values[:5])) + " and more" * (len(one.values) > 5)
        lines.append(
            f"New values in {one.column}: {some}, in {one.rows:,} of {one.total:,} rows. To the model such a row has "
            "none of the categories."
        )
    return lines


def row(drift: TableDrift, shift: Shift) -> dict[str, str]:
    """The cells of one column."""
    name, before, now = shift.moved
    return {
        "": "moved" if shift.exceeds(drift.threshold) else "",
        "name": shift.name,
        "what": OF[shift.of],
        "PSI": f"{shift.stability:.3f}",
        "by chance": f"{shift.chance:.3f}",
        "KS": NONE if shift.distance is None else f"{shift.distance:.3f}",
        "largest change": f"{name}: {before:.1%} → {now:.1%}",
    }


def document(drift: TableDrift) -> Document:
    """The page."""
    facts = (
        ("model", f"{drift.model} of {drift.client}"),
        ("run", f"SHA-256 {drift.run}"),
        ("tables", drift.tables),
        ("written", drift.at.replace("T", " ").replace("+00:00", " UTC")),
    )
    rows = [row(drift, one) for one in drift.shifts[:MAX_COLUMNS]]
    rest = len(drift.shifts) - MAX_COLUMNS
    more = (f"{rest:,} more columns have smaller values.",) if rest > 0 else ()
    table = grid(rows, ("", "name", "what", "largest change"))
    section = Section("Columns and scores", (*_HOW, *more), grid=table)
    return Document("Drift", facts, (headline(drift), *notes(drift)), (), (section,))
