"""The page about how far new tables moved from what a model was trained on."""

import math

from fedweave.accounts.document import Document, Section, Tile, grid
from fedweave.apply.drift import Shift, TableDrift
from fedweave.core.text import capitalized, counted
from fedweave.metrics.measured import GLOBAL
from fedweave.reports.cells import NONE

FIRST = 10  # columns in the table that comes first
MAX_COLUMNS = 200  # on a page
MAX_NAMED = 3  # columns that a tile names
SIGNIFICANT = 2.58  # standard errors, beyond which chance explains a difference of shares in 1 of 100 checks
OF = {"node": "column of nodes", "edge": "column of edges", "score": "score"}
_HOW = (
    "PSI is the population stability index: by convention a shift is small below .1 and large above .25. A column is "
    "marked if its PSI exceeds the threshold and also what chance gives without drift: in 5 % of checks any of the "
    "columns exceeds that bound.",
    "KS is the largest distance between the two distribution functions, at the edges of the bins (Kolmogorov-Smirnov). "
    "Columns of text have no order and no KS.",
    "Each column may stay while its relation to the label changes. Measure new labels, when you have them, with "
    "`fedweave predict RUN --data DIR`.",
)


def headline(drift: TableDrift) -> str:
    """The result in a sentence, for a terminal."""
    return f"{drift.tables}: {_verdict(drift)}"


def _verdict(drift: TableDrift) -> str:
    columns, scores = _parts(drift)
    moved, moved_scores = ([one for one in part if one.exceeds(drift.threshold)] for part in (columns, scores))
    beyond = f"beyond a PSI of {drift.threshold:g}"
    flagged = flagged_change(drift)
    if not moved and not moved_scores:
        but = f", but flagged examples went from {flagged}" if flagged else ""
        return f"no drift: neither the score nor any of {counted(len(columns), 'column')} moved {beyond}{but}."
    data = "no column moved"
    if moved:
        largest = f"{moved[0].name} most (PSI {moved[0].stability:.2f})"
        data = f"{len(moved)} of {counted(len(columns), 'column')} moved {beyond}, {largest}"
    score = "the score moved" + (" too" if moved else "") if moved_scores else "the score did not move"
    return f"the data has moved: {data}; {score}."


def _parts(drift: TableDrift) -> tuple[list[Shift], list[Shift]]:
    """The columns, and the scores."""
    scores = [one for one in drift.shifts if one.of == "score"]
    return [one for one in drift.shifts if one.of != "score"], scores


def flagged_change(drift: TableDrift) -> str:
    """ "12.5 % to 23.3 %", the shares of flagged examples before and now; "" where chance may explain their difference,
    or where the model knew the examples before."""
    if drift.flagged is None or not drift.unseen or not drift.scored or not drift.examples[1]:
        return ""
    before, now = drift.flagged
    count, new = drift.scored, drift.examples[1]
    share = (before * count + now * new) / (count + new)
    error = math.sqrt(share * (1 - share) * (1 / count + 1 / new))
    return f"{_percent(before)} to {_percent(now)}" if abs(now - before) > SIGNIFICANT * error else ""


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


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
    rows, words = [_page_row(drift, one) for one in drift.shifts], ("column", "moved", "largest change")
    sections = [Section("Columns and scores, the largest shift first", grid=grid(rows[:FIRST], words))]
    further = rows[FIRST:MAX_COLUMNS]
    if further:
        rest = len(rows) - MAX_COLUMNS
        text = (f"{rest:,} more columns have smaller values.",) if rest > 0 else ()
        hint = f"{len(further):,} with smaller shifts"
        sections.append(Section("Further columns", text, grid=grid(further, words), hint=hint))
    measured = (notes(drift)[0], *_HOW)
    sections.append(Section("How this is measured", measured, hint="PSI, KS, chance, and what this cannot see"))
    known = () if drift.unseen else (notes(drift)[0],)
    before, now = drift.examples
    model = "global model" if drift.client == GLOBAL else f"model of {drift.client}"
    return Document(
        title=f"Drift of {drift.tables}",
        facts=facts,
        warnings=(*_new_values(drift), *known),
        sections=tuple(sections),
        subtitle=f"{now:,} new examples against {before:,} of training · {model} · {drift.at[:10]}",
        verdict=capitalized(_verdict(drift)),
        sign=-1 if drift.alarms else 0 if flagged_change(drift) else 1,
        tiles=_tiles(drift),
    )


def _tiles(drift: TableDrift) -> tuple[Tile, ...]:
    """Which columns, how far, the score, what to do, and since when."""
    columns, scores = _parts(drift)
    moved, moved_scores = ([one for one in part if one.exceeds(drift.threshold)] for part in (columns, scores))
    names = [f"{one.name}: PSI {one.stability:.2f}" for one in moved[:MAX_NAMED]]
    names += [f"and {len(moved) - MAX_NAMED:,} more"] if len(moved) > MAX_NAMED else []
    tiles = [Tile("Columns that moved", f"{len(moved):,} of {len(columns):,}", tuple(names))]
    if drift.shifts:
        top = drift.shifts[0]
        bin_name, before, now = top.moved
        change = f"{bin_name}: {_percent(before)} before, {_percent(now)} now"
        chance = f"large above {drift.threshold:g}; up to {top.chance:.2f} by chance"
        tiles.append(Tile("Largest shift", f"PSI {top.stability:.2f}", (top.name, change, chance)))
    if scores:
        score = scores[0]
        lines = [f"PSI {score.stability:.2f}; up to {score.chance:.2f} by chance"]
        if drift.flagged is not None:
            was, share = map(_percent, drift.flagged)
            beyond = ", beyond chance" if flagged_change(drift) else ""
            lines.append(f"flagged: {was} before, {share} now{beyond}")
        tiles.append(Tile("Score", "moved" if moved_scores else "not moved", tuple(lines)))
    tiles.append(_advice(drift, moved, moved_scores))
    when = "this compares one set of tables with training: run it on the tables of each month"
    return (*tiles, Tile("Since when", "not known", (when,)))


def _advice(drift: TableDrift, moved: list[Shift], moved_scores: list[Shift]) -> Tile:
    title, labels = "What to do", "measure new labels: `fedweave predict RUN --data DIR`"
    if moved_scores:
        return Tile(title, "retrain", ("with new data, once you have excluded an error in it", labels))
    if moved or drift.new:
        name = moved[0].name if moved else drift.new[0].column
        return Tile(title, "look at it", (f"is {name} right? Scores have not moved yet", labels))
    if flagged_change(drift):
        return Tile(title, "look at it", ("more or fewer examples are flagged", labels))
    return Tile(title, "nothing", ("check the next tables, too",))
