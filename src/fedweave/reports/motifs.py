"""Motifs drawn: bonds and rings of labeled vertices as inline SVG."""

import json
import math
import re
from typing import NamedTuple

import pyarrow as pa
from markupsafe import escape

from fedweave.errors import FedweaveError
from fedweave.experiment.runs.files import KINDS
from fedweave.reports.colors import CLASSES, ink

_MOTIF = re.compile(r"(?:bond (?P<bond>-?\d+ -?\d+)|ring (?P<ring>-?\d+(?: -?\d+){2,}))(?: edge (?P<edge>-?\d+))?")
_SIZE, _RADIUS = 64, 8  # of a drawing and of a vertex
_MAX_LETTERS = 2  # of a name that a vertex has room for


class Kinds(NamedTuple):
    """The names of the kinds of nodes and edges, in order; () where they are numbers."""

    nodes: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()

    def legend(self) -> str:
        """The names with their numbers, where drawings have these."""
        clauses = []
        for what, names in (("nodes", self.nodes), ("edges", self.edges)):
            if names:
                entries = ", ".join(f"{number} {name}" for number, name in enumerate(names))
                clauses.append(f"kinds of {what}: {entries}")
        return "; ".join(clauses)


NUMBERS = Kinds()


def kinds_of(motifs: pa.Table) -> Kinds:
    """The names in a table motifs.parquet; none where it has no such metadata."""
    metadata = motifs.schema.metadata or {}
    try:
        nodes, edges = (json.loads(metadata.get(key, b"[]")) for key in KINDS)
    except ValueError:
        nodes, edges = None, None
    for names in (nodes, edges):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FedweaveError(
                "motifs.parquet has no valid names of kinds of nodes and edges. Run the experiment again.",
                code="motif.kinds",
            )
    return Kinds(tuple(nodes), tuple(edges))


def motif_drawing(name: str, kinds: Kinds = NUMBERS) -> str:
    """The SVG of a motif "bond 0 1", "bond 0 1 edge 2" or "ring 0 0 1"; short names of `kinds` replace numbers."""
    match = _MOTIF.fullmatch(name)
    if match is None:
        raise FedweaveError(
            f"motifs.parquet names a motif {name!r}, which is neither a bond nor a ring; run it again.",
            code="motif.drawing",
        )
    kind = "bond" if match["bond"] else "ring"
    labels = [int(word) for word in match[kind].split()]
    middle, reach = _SIZE / 2, _SIZE / 2 - _RADIUS - 1
    places = [(middle - reach, middle), (middle + reach, middle)]  # side by side, or on a circle from the top
    if len(labels) > 2:
        angles = [2 * math.pi * index / len(labels) - math.pi / 2 for index in range(len(labels))]
        places = [(middle + reach * math.cos(angle), middle + reach * math.sin(angle)) for angle in angles]
    parts = []
    for index in range(1 if kind == "bond" else len(places)):
        (x1, y1), (x2, y2) = places[index], places[(index + 1) % len(places)]
        parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="axis"/>')
    if match["edge"]:
        style = 'text-anchor="middle" font-size="9" fill="currentColor"'
        edge = _label(int(match["edge"]), kinds.edges)
        parts.append(f'<text x="{middle}" y="{middle - 4}" {style}>{edge}</text>')
    for (x, y), label in zip(places, labels, strict=True):
        color = CLASSES[label % len(CLASSES)]
        style = f'text-anchor="middle" font-size="10" fill="{ink(color)}"'
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}" fill="{color}" stroke="#fff"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 3:.1f}" {style}>{_label(label, kinds.nodes)}</text>')
    box = f'width="{_SIZE}" height="{_SIZE}" viewBox="0 0 {_SIZE} {_SIZE}"'
    return f'<svg {box} role="img" aria-label="{kind} {" ".join(map(str, labels))}">{"".join(parts)}</svg>'


def _label(kind: int, names: tuple[str, ...]) -> str:
    """The name of a kind if a vertex has room for it, else its number."""
    has_room = 0 <= kind < len(names) and len(names[kind]) <= _MAX_LETTERS
    return str(escape(names[kind])) if has_room else str(kind)
