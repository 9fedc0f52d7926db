"""The page about how far new tables moved from what a model was trained on."""

import math
from typing import NamedTuple

from fedweave.accounts.document import MAX_NAMED, Document, Section, Tile, grid
from fedweave.apply.drift import Shift, TableDrift
from fedweave.core.text import capitalized, counted, percent
from fedweave.metrics.measured import GLOBAL
from fedweave.reports.cells import NONE

FIRST = 10  # columns in the table that comes first
MAX_COLUMNS = 200  # on a page
_NO_COLUMN = "no column can be compared"
SIGNIFICANT = 2.58  # standard errors, beyond which chance explains a difference of shares in 1 of 100 checks
OF = {"node": "column of nodes", "edge": "column of edges", "score": "score"}
_HOW = (
    "PSI is the population stability index: by convention a shift is small below .1 and large above .25. A column is "
    "marked if its PSI exceeds the threshold and also what chance gives without drift: in 5 % of checks any of the "
    "columns exceeds that bound.",
    "KS is the largest distance between the two distribution functions, at the edges of the bins (Kolmogorov-Smirnov). "
    "Columns of text have no order and no KS.",
    "Each column may stay while its relation to the label changes. Measure new labels, when you have them, with "
    "`fedweave predict RUN --data PATH`.",
)


def headline(drift: TableDrift) -> str:
    """The result in a sentence, for a terminal."""
    return f"{drift.tables}: {_verdict(drift)}"


def _verdict(drift: TableDrift) -> str:
    columns, scores, moved, moved_scores = _parts(drift)
    beyond = f"beyond a PSI of {drift.threshold:g} and beyond chance"
    if moved:
        which = f"{len(moved)} of {len(columns):,} columns" if len(columns) > 1 else "the one column"
        most = " most" if len(moved) > 1 else ""
        data = f"the data has moved: {which} moved {beyond}, {moved[0].name}{most} (PSI {moved[0].stability:.2f})"
        score = "the score moved too" if moved_scores else "the score did not move"
        return f"{data}; {score}." if scores else f"{data}."
    if moved_scores:
        return "the score has moved, though no column has." if columns else f"the score has moved; {_NO_COLUMN}."
    flagged, but = flagged_change(drift), []
    but += [f"flagged examples went from {flagged}"] if flagged else []
    but += [f"there are new values in {counted(len(drift.new), 'column')}"] if drift.new else []
    if not columns:
        still = f"{_NO_COLUMN}; the score did not move {beyond}" if scores else _NO_COLUMN
    elif scores:
        some = f"any of {len(columns):,} columns" if len(columns) > 1 else "the one column"
        still = f"no drift: neither the score nor {some} moved {beyond}"
    else:
        still = f"no drift: no column moved {beyond}"
    return f"{still}{', but ' * bool(but)}{' and '.join(but)}."


class _Parts(NamedTuple):
    """The columns and the scores, and those of both beyond the threshold."""

    columns: list[Shift]
    scores: list[Shift]
    moved: list[Shift]
    moved_scores: list[Shift]


def _parts(drift: TableDrift) -> _Parts:
    columns = [one for one in drift.shifts if one.of != "score"]
    scores = [one for one in drift.shifts if one.of == "score"]
    moved = [one for one in drift.alarms if one.of != "score"]
    moved_scores = [one for one in drift.alarms if one.of == "score"]
    return _Parts(columns, scores, moved, moved_scores)


def flagged_change(drift: TableDrift) -> str:
    """ "12.5 % to 23.3 %", the shares of flagged examples before and now; "" where chance may explain their difference,
    or where the model knew the examples before."""
    if drift.flagged is None or not drift.unseen or not drift.scored or not drift.examples[1]:
        return ""
    before, now = drift.flagged
    count, new = drift.scored, drift.examples[1]
    share = (before * count + now * new) / (count + new)
    error = math.sqrt(share * (1 - share) * (1 / count + 1 / new))
    return f"{percent(before)} to {percent(now)}" if abs(now - before) > SIGNIFICANT * error else ""


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
    return lines + _new_values(drift)


def _new_values(drift: TableDrift) -> list[str]:
    lines = []
    for one in drift.new:
        some = ", ".join(map(repr, one.values[:5])) + " and more" * (len(one.values) > 5)
        lines.append(
            f"New values in {one.column}: {some}, in {one.rows:,} of {one.total:,} rows. To the model such a row has "
            "none of the categories."
        )
    return lines


def row(drift: TableDrift, shift: Shift) -> dict[str, str]:
    """The cells of one column on a terminal."""
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


def _page_row(drift: TableDrift, shift: Shift) -> dict[str, str]:
    cells = row(drift, shift)
    name = f"{shift.name} (edges)" if shift.of == "edge" else shift.name
    shown = {"column": name, "PSI": cells["PSI"], "moved": cells[""] and "yes"}
    return shown | {key: cells[key] for key in ("largest change", "by chance", "KS")}


def document(drift: TableDrift) -> Document:
    """The page."""
    facts = (
        ("model", f"{drift.model} of {drift.client}"),
        ("run", f"SHA-256 {drift.run}"),
        ("tables", drift.tables),
        ("written", drift.at.replace("T", " ").replace("+00:00", " UTC")),
    )
    rows = [_page_row(drift, one) for one in drift.shifts[:MAX_COLUMNS]]
    words = ("column", "moved", "largest change")
    sections = [Section("Columns and scores, the largest shift first", grid=grid(rows[:FIRST], words))]
    further = rows[FIRST:]
    if further:
        rest = len(drift.shifts) - MAX_COLUMNS
        text = (f"{rest:,} more columns have smaller values.",) if rest > 0 else ()
        hint = f"{len(further):,} with smaller shifts"
        sections.append(Section("Further columns", text, grid=grid(further, words), hint=hint))
    compared = notes(drift)[0]
    sections.append(
        Section("How this is measured", (compared, *_HOW), hint="PSI, KS, chance, and what this cannot see")
    )
    known = () if drift.unseen else (compared,)
    before, now = drift.examples
    model = "global model" if drift.client == GLOBAL else f"model of {drift.client}"
    return Document(
        title=f"Drift of {drift.tables}",
        facts=facts,
        warnings=(*_new_values(drift), *known),
        sections=tuple(sections),
        subtitle=f"{now:,} new examples against {before:,} of training · {model} · {drift.at[:10]}",
        verdict=capitalized(_verdict(drift)),
        sign=_sign(drift),
        tiles=_tiles(drift),
    )


def _sign(drift: TableDrift) -> int:
    if drift.alarms:
        return -1
    return 0 if drift.new or flagged_change(drift) or not _parts(drift).columns else 1


def _tiles(drift: TableDrift) -> tuple[Tile, ...]:
    """Which columns, how far, the score, what to do, and since when."""
    columns, scores, moved, moved_scores = _parts(drift)
    names = [f"{one.name}: PSI {one.stability:.2f}" for one in moved[:MAX_NAMED]]
    names += [f"and {len(moved) - MAX_NAMED:,} more"] if len(moved) > MAX_NAMED else []
    count = f"{len(moved):,} of {len(columns):,}" if columns else "none to compare"
    tiles = [Tile("Columns that moved", count, tuple(names))]
    if drift.shifts:
        top = drift.shifts[0]
        bin_name, before, now = top.moved
        change = f"{bin_name}: {percent(before)} before, {percent(now)} now"
        chance = f"large above {drift.threshold:g}; up to {top.chance:.2f} by chance"
        tiles.append(Tile("Largest shift", f"PSI {top.stability:.2f}", (top.name, change, chance)))
    if scores:
        score = (moved_scores or scores)[0]
        name = f"{score.name}: " if len(scores) > 1 else ""
        lines = [f"{name}PSI {score.stability:.2f}; up to {score.chance:.2f} by chance"]
        if drift.flagged is not None:
            was, share = map(percent, drift.flagged)
            beyond = ", beyond chance" if flagged_change(drift) else ""
            lines.append(f"flagged: {was} before, {share} now{beyond}")
        tiles.append(Tile("Score", "moved" if moved_scores else "not moved", tuple(lines)))
    tiles.append(_advice(drift))
    when = "this compares one set of tables with training: run it on the tables of each month"
    return (*tiles, Tile("Since when", "not known", (when,)))


def _advice(drift: TableDrift) -> Tile:
    columns, scores, moved, moved_scores = _parts(drift)
    title, labels = "What to do", "measure new labels: `fedweave predict RUN --data PATH`"
    if moved_scores:
        return Tile(title, "retrain", ("with new data, once you have excluded an error in it", labels))
    if moved or drift.new:
        name = moved[0].name if moved else drift.new[0].column
        still = " Scores have not moved yet" if scores else ""
        return Tile(title, "look at it", (f"is {name} right?{still}", labels))
    if flagged_change(drift):
        return Tile(title, "look at it", ("more or fewer examples are flagged", labels))
    if not columns:
        return Tile(title, "look at it", (_NO_COLUMN, labels))
    return Tile(title, "nothing", ("check the next tables, too",))
