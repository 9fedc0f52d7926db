"""The page about one score and its reasons, and a drawing of a small graph with what moves its score."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from itertools import islice

import numpy as np
from scipy.sparse.csgraph import shortest_path

from fedweave.accounts.document import Tile, print_line
from fedweave.apply.explanation import WAYS, Explanation, Reason, SmallGraph
from fedweave.core.text import capitalized
from fedweave.core.types import Record
from fedweave.datasets.molecules import coordinates
from fedweave.reports.colors import tone
from fedweave.reports.pages import render_template
from fedweave.reports.terminal import screen, show_rows

MAX_REASONS = 200  # on a page
FIRST = 10  # reasons in the table that comes first
STRONGEST = 3  # reasons with a tile
DIGITS = 6  # to which two effects are the same
RAISES, LOWERS = tone("#D55E00"), tone("#0072B2")
WIDE, HIGH, MARGIN, RADIUS = 360, 260, 18, 9  # of a drawing, in pixels
MAX_EDGE = 60.0  # pixels, of an edge in a drawing
BAR = 100  # pixels of a bar's cell


def title(explanation: Explanation) -> str:
    """What the page is about."""
    return f"Reasons for {explanation.example} {explanation.name}"


def page(explanation: Explanation) -> str:
    """The explanation as a page that holds all it needs."""
    max_effect = max((abs(reason.effect) for reason in explanation.reasons), default=1.0)
    main = [*islice(_distinct(explanation.reasons), FIRST)]
    further = [reason for reason in explanation.reasons if reason not in main]
    shown = further[: MAX_REASONS - len(main)]
    return render_template(
        "explanation.html",
        title=title(explanation),
        subtitle=f"model and data of {explanation.client} · {explanation.quantity}",
        sentence=_verdict(explanation),
        first=_tiles(explanation, main[:STRONGEST]),
        explanation=explanation,
        rows=[_row(explanation, reason, max_effect) for reason in main],
        further=[_row(explanation, reason, max_effect) for reason in shown],
        rest=len(further) - len(shown),
        drawn="" if explanation.graph is None else drawing(explanation.graph, explanation.reasons),
        left_out=explanation.method == "leave-out",
    )


def _distinct(reasons: Sequence[Reason]) -> Iterator[Reason]:
    """The reasons without the single edges of neighbors that have the same effect."""
    neighbors = defaultdict[float, list[str]](list)
    for reason in reasons:
        if reason.kind == "neighbor":
            neighbors[round(reason.effect, DIGITS)].append(reason.name)
    for reason in reasons:
        same = neighbors[round(reason.effect, DIGITS)] if reason.kind == "edge" else []
        if not any(_is_end(name, reason.name) for name in same):
            yield reason


def _is_end(node: str, edge: str) -> bool:
    """Whether a node is an end of an edge, by their names."""
    return any(edge.startswith(f"{node} {way} ") or edge.endswith(f" {way} {node}") for way in WAYS)


def _verdict(explanation: Explanation) -> str:
    """The score, what it means, and the strongest reason."""
    score, what = explanation.written(explanation.score), f"{explanation.example} {explanation.name}"
    sentence = f"{capitalized(what)}: the {explanation.quantity} is {score}."
    if explanation.threshold is not None:
        side, flagged = ("at or above", "is") if explanation.flagged else ("below", "is not")
        at = f"{side} the threshold {explanation.written(explanation.threshold)}"
        sentence = f"{capitalized(what)} {flagged} flagged: the {explanation.quantity} is {score}, {at}."
    if not explanation.reasons:
        return f"{sentence} Nothing that can be left out moves it."
    first = explanation.reasons[0]
    if first.without is None:
        way = "raises" if first.effect >= 0 else "lowers"
        return f"{sentence} {capitalized(_named(first))} {way} it most ({effect_text(explanation, first.effect)})."
    if first.kind == "column":
        return f"{sentence} With a typical {first.name} it would be {explanation.written(first.without)}."
    return f"{sentence} Without {_named(first)} it would be {explanation.written(first.without)}."


def _named(reason: Reason) -> str:
    return f"{reason.kind} {reason.name}"


def _tiles(explanation: Explanation, strongest: Sequence[Reason]) -> tuple[Tile, ...]:
    """The score, the strongest reasons, and what neighbors do."""
    notes = [explanation.quantity]
    if explanation.threshold is not None:
        flagged = "flagged" if explanation.flagged else "not flagged"
        notes.append(f"{flagged}: threshold {explanation.written(explanation.threshold)}")
    tiles = [Tile("Score", explanation.written(explanation.score), tuple(notes))]
    for reason in strongest:
        value = f"{_named(reason)}{f': {reason.value}' if reason.value else ''}"
        typical = f"typical: {reason.typical}" if reason.typical else ""
        way = "Raises it" if reason.effect >= 0 else "Lowers it"
        tiles.append(Tile(way, effect_text(explanation, reason.effect), (value, typical)))
    around = [reason for reason in explanation.reasons if reason.kind != "column" and reason.effect]
    noun = "Neighbors and edges"
    if explanation.graph is not None:
        noun = "Atoms and bonds" if explanation.graph.smiles else "Nodes and edges"
    if around:
        up = sum(reason.effect > 0 for reason in around)
        largest = f"strongest: {around[0].name}, {effect_text(explanation, around[0].effect)}"
        directions = f"{up:,} raise it, {len(around) - up:,} lower it"
        return (*tiles, Tile(noun, f"{len(around):,} move it", (directions, largest)))
    return (*tiles, Tile(noun, "none", ("no neighbor and no edge moves this score",)))


def show(explanation: Explanation, top: int) -> None:
    """Print the score and its `top` reasons with the largest effects."""
    console = screen()
    print_line(console, explanation.headline)
    rows = []
    for reason in explanation.reasons[:top]:
        row = {"": reason.kind, "reason": reason.name, "value": reason.value, "typical": reason.typical}
        if reason.without is not None:
            row["without it"] = f"{explanation.written(explanation.score)} → {explanation.written(reason.without)}"
        rows.append(row | {"effect": effect_text(explanation, reason.effect)})
    if rows:
        show_rows(console, rows, ("", "reason", "value", "typical"))
    rest = len(explanation.reasons) - top
    if rest > 0:
        print_line(console, f"… and {rest:,} more with smaller effects")
    for line in (*explanation.notes, f"Typical: {explanation.usual}."):
        print_line(console, line)


def effect_text(explanation: Explanation, effect: float) -> str:
    """An effect with its sign."""
    return f"{'+' if effect >= 0 else '−'}{explanation.written(abs(effect))}"  # noqa: RUF001


def _row(explanation: Explanation, reason: Reason, max_effect: float) -> Record:
    """A reason on the page; its bar begins in the middle, to the right where it raises the score."""
    half = BAR / 2
    length = half * abs(reason.effect) / max_effect
    begin, color = (half, RAISES) if reason.effect >= 0 else (half - length, LOWERS)
    bar = (
        f'<svg width="{BAR}" height="12" viewBox="0 0 {BAR} 12" aria-hidden="true"><path class="axis" d="M{half} 0V12"'
        f'/><rect class="bar" style="--c:{color}" x="{begin:.1f}" y="2" width="{length:.1f}" '
        'height="8"/></svg>'
    )
    without = "" if reason.without is None else explanation.written(reason.without)
    return {"reason": reason, "without": without, "effect": effect_text(explanation, reason.effect), "bar": bar}


def _tone(effect: float) -> str:
    if effect == 0:
        return "var(--grey)"
    return RAISES if effect > 0 else LOWERS


def drawing(graph: SmallGraph, reasons: Sequence[Reason]) -> str:
    """The SVG of a small graph: the stronger a node or an edge moves the score, the wider its line."""
    effects = {reason.places: reason.effect for reason in reasons if reason.places}
    max_effect = max(map(abs, effects.values()), default=1.0)

    # 1. Places within the drawing, and its height.
    places = _places(graph)  # [nodes, 2]
    span = np.ptp(places, 0)
    room = np.array([WIDE, HIGH]) - 2 * MARGIN
    scales = room[span > 1e-9] / span[span > 1e-9]
    scale = min(*scales, MAX_EDGE) if len(scales) else 1.0
    height = float(span[1]) * scale + 2 * MARGIN
    places = (places - places.min(0) - span / 2) * scale + np.array([WIDE, height]) / 2

    # 2. Edges, and nodes over them.
    parts = []
    for pair in graph.pairs:
        effect = effects.get(pair, effects.get(pair[::-1], 0.0))
        (x, y), (u, v) = places[list(pair)]
        width = 1.5 + 6 * abs(effect) / max_effect
        style = f"stroke:{_tone(effect)};stroke-width:{width:.1f}"
        parts.append(f'<path d="M{x:.1f} {y:.1f}L{u:.1f} {v:.1f}" style="{style}"/>')
    for node, ((x, y), name) in enumerate(zip(places, graph.names, strict=True)):
        effect = effects.get((node,), 0.0)
        style = f"fill:var(--paper);stroke:{_tone(effect)};stroke-width:{1 + 4 * abs(effect) / max_effect:.1f}"
        word = name.partition(" ")[2] or name
        font = f"fill:var(--ink);font-size:{10 if len(word) < 3 else 7}px"
        parts.append(
            f'<g><circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" style="{style}"/>'
            f'<text x="{x:.1f}" y="{y + 3.5:.1f}" text-anchor="middle" style="{font}">{escape(word[:4])}</text>'
            f"<title>{escape(name)}</title></g>"
        )
    return (
        f'<svg class="plot" viewBox="0 0 {WIDE} {height:.0f}" role="img" aria-label="{len(graph.names)} nodes, '
        f'{len(graph.pairs)} edges">{"".join(parts)}</svg>'
    )


def _places(graph: SmallGraph) -> np.ndarray:
    """float64 [n, 2]: as chemists draw it, or such that distances are those along edges, as far as two dimensions allow
    (classical scaling, Torgerson 1952)."""
    n = len(graph.names)
    places = coordinates(graph.smiles) if graph.smiles else None
    if places is not None and len(places) == n:
        return places * [1, -1]
    adjacency = np.zeros((n, n))
    for a, b in graph.pairs:
        adjacency[a, b] = adjacency[b, a] = 1
    steps = shortest_path(adjacency, unweighted=True)  # [n, n]
    steps[~np.isfinite(steps)] = 1 + steps[np.isfinite(steps)].max()
    centering = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-centering @ steps**2 @ centering / 2)
    places = np.zeros((n, 2))
    places[:, : min(n, 2)] = (vectors * np.sqrt(values.clip(min=0)))[:, ::-1][:, :2]
    return places
