"""The page about one score and its reasons, and a drawing of a small graph with what moves its score."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from scipy.sparse.csgraph import shortest_path

from fedweave.accounts.document import unmarked
from fedweave.apply.reasons import Explanation, Reason, SmallGraph
from fedweave.core.types import Record
from fedweave.datasets.molecules import coordinates
from fedweave.reports.colors import tone
from fedweave.reports.pages import rendered
from fedweave.reports.terminal import screen

MOST = 200  # reasons on a page
RAISES, LOWERS = tone("#D55E00"), tone("#0072B2")
WIDE, HIGH, MARGIN, RADIUS = 360, 260, 18, 9  # of a drawing, in pixels
LONGEST = 60.0  # pixels of a drawing's edge
BAR = 100  # pixels of a bar's cell


def title(explanation: Explanation) -> str:
    """What the page is about."""
    return f"Reasons for {explanation.example} {explanation.name}"


def written(explanation: Explanation) -> str:
    """The explanation as a page that holds all it needs."""
    graph, most = explanation.graph, max((abs(one.effect) for one in explanation.reasons), default=1.0)
    return rendered(
        "explanation.html",
        title=title(explanation),
        explanation=explanation,
        rows=[_row(explanation, one, most) for one in explanation.reasons[:MOST]],
        rest=max(0, len(explanation.reasons) - MOST),
        drawn="" if graph is None else drawing(graph, explanation.reasons),
        left_out=explanation.method == "leave-out",
    )


def show(explanation: Explanation, top: int) -> None:
    """Print the score and its `top` reasons with the largest effects."""
    console = screen()
    console.print(unmarked(explanation.headline), highlight=False, soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
    left_out = explanation.method == "leave-out"
    for head in ("", "reason", "value", "typical", *["without it"] * left_out, "effect"):
        table.add_column(head, justify="right" if head in ("without it", "effect") else "left")
    for one in explanation.reasons[:top]:
        change = (
            []
            if one.without is None
            else [f"{explanation.written(explanation.score)} → {explanation.written(one.without)}"]
        )
        cells = (one.kind, one.name, one.value, one.typical, *change, signed(explanation, one.effect))
        table.add_row(*map(unmarked, cells))
    if explanation.reasons:
        console.print(table)
    rest = len(explanation.reasons) - top
    lines = [*explanation.notes, f"Typical: {explanation.usual}."]
    lines = [f"… and {rest:,} more with smaller effects", *lines] if rest > 0 else lines
    console.print("\n".join(map(unmarked, lines)), highlight=False, soft_wrap=True)


def signed(explanation: Explanation, effect: float) -> str:
    """An effect with its sign."""
    return f"{'+' if effect >= 0 else '−'}{explanation.written(abs(effect))}"  # noqa: RUF001


def _row(explanation: Explanation, reason: Reason, most: float) -> Record:
    without = "" if reason.without is None else explanation.written(reason.without)
    half = BAR / 2
    length = half * abs(reason.effect) / most
    begin, color = half if reason.effect >= 0 else half - length, _tone(reason.effect)
    bar = (
        f'<svg width="{BAR}" height="12" viewBox="0 0 {BAR} 12" aria-hidden="true"><path class="axis" d="M{half} 0V12"'
        f'/><rect class="bar" style="--c:{color}" x="{begin:.1f}" y="2" width="{length:.1f}" height="8"/>'
        "</svg>"
    )
    return {"reason": reason, "without": without, "effect": signed(explanation, reason.effect), "bar": bar}


def _tone(effect: float) -> str:
    return RAISES if effect >= 0 else LOWERS


def drawing(graph: SmallGraph, reasons: Sequence[Reason]) -> str:
    """The SVG of a small graph: the stronger a node or an edge moves the score, the wider its line."""
    effects = {one.places: one.effect for one in reasons if one.places}
    most = max(map(abs, effects.values()), default=1.0)
    places, high = _fitted(_places(graph))
    parts = [_edge(places, pair, effects, most) for pair in graph.pairs]
    parts += [
        _node(place, name, effects.get((at,), 0.0), most)
        for at, (place, name) in enumerate(zip(places, graph.names, strict=True))
    ]
    return (
        f'<svg class="plot" viewBox="0 0 {WIDE} {high:.0f}" role="img" aria-label="{len(graph.names)} nodes, '
        f'{len(graph.pairs)} edges">{"".join(parts)}</svg>'
    )


def _places(graph: SmallGraph) -> np.ndarray:
    """float64 [n, 2]: as chemists draw it, or such that distances are those along edges, as far as two dimensions allow
    (classical scaling, Torgerson 1952)."""
    n = len(graph.names)
    drawn = coordinates(graph.smiles) if graph.smiles else None
    if drawn is not None and len(drawn) == n:
        return drawn * [1, -1]
    joined = np.zeros((n, n))
    for a, b in graph.pairs:
        joined[a, b] = joined[b, a] = 1
    steps = shortest_path(joined, unweighted=True)
    steps[~np.isfinite(steps)] = 1 + steps[np.isfinite(steps)].max()
    middle = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-middle @ steps**2 @ middle / 2)
    placed: np.ndarray = np.zeros((n, 2))
    placed[:, : min(n, 2)] = (vectors * np.sqrt(values.clip(min=0)))[:, ::-1][:, :2]
    return placed


def _fitted(places: np.ndarray) -> tuple[np.ndarray, float]:
    """The places within the drawing, and its height."""
    low, span = places.min(0), np.ptp(places, 0)
    room = np.array([WIDE, HIGH]) - 2 * MARGIN
    scale = min((room[at] / span[at] for at in range(2) if span[at] > 1e-9), default=1.0)
    scale = min(scale, LONGEST)
    high = float(span[1]) * scale + 2 * MARGIN
    fitted: np.ndarray = (places - low - span / 2) * scale + np.array([WIDE, high]) / 2
    return fitted, high


def _edge(places: np.ndarray, pair: tuple[int, int], effects: Mapping[tuple[int, ...], float], most: float) -> str:
    effect = effects.get(pair, effects.get(pair[::-1], 0.0))
    (x, y), (u, v) = places[list(pair)]
    wide = 1.5 + 6 * abs(effect) / most
    color = _tone(effect) if effect else "var(--grey)"
    return f'<path d="M{x:.1f} {y:.1f}L{u:.1f} {v:.1f}" style="stroke:{color};stroke-width:{wide:.1f}"/>'


def _node(place: np.ndarray, name: str, effect: float, most: float) -> str:
    x, y = place
    color, wide = _tone(effect) if effect else "var(--grey)", 1 + 4 * abs(effect) / most
    line = f"fill:var(--paper);stroke:{color};stroke-width:{wide:.1f}"
    word = name.partition(" ")[2] or name
    font = f"fill:var(--ink);font-size:{10 if len(word) < 3 else 7}px"
    return (
        f'<g><circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" style="{line}"/>'
        f'<text x="{x:.1f}" y="{y + 3.5:.1f}" text-anchor="middle" style="{font}">{escape(word[:4])}</text>'
        f"<title>{escape(name)}</title></g>"
    )
