"""Motifs drawn: bonds and rings of labelled vertices as inline SVG."""

import json
import math
import re
from typing import NamedTuple

import pyarrow as pa
from markupsafe import escape

from fedweave.errors import FedweaveError
from fedweave.experiment.runs.files import KINDS
from fedweave.report.colours import CLASSES, ink

_MOTIF = re.compile(r"(?:bond (?P<bond>-?\d+ -?\d+)|ring (?P<ring>-?\d+(?: -?\d+){2,}))(?: edge (?P<edge>-?\d+))?")
SIZE, RADIUS = 64, 8  # of a drawing and of a vertex
MOST = 2  # letters of a name that a vertex has room for


class Kinds(NamedTuple):
    """What the kinds of nodes and edges are called, in order; () where they are numbers."""

    nodes: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()

    def legend(self) -> str:
        """The names beside their numbers, where drawings have these."""
        lists = (("nodes", self.nodes), ("edges", self.edges))
        told = {what: ", ".join(f"{at} {name}" for at, name in enumerate(names)) for what, names in lists if names}
        return "; ".join(f"kinds of {what}: {names}" for what, names in told.items())


NUMBERS = Kinds()


def kinds_of(motifs: pa.Table) -> Kinds:
    """The names in a table motifs.parquet; none where it has no such metadata.

    Raises:
        FedweaveError: they are no lists of text.
    """
    held = motifs.schema.metadata or {}
    try:
        found = [json.loads(held.get(key, b"[]")) for key in KINDS]
    except ValueError:
        found = [None]
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in found):
        raise FedweaveError(
            "motifs.parquet says wrongly what kinds of nodes and edges are called; run it again.", code="motif.kinds"
        )
    return Kinds(*map(tuple, found))


def drawing(name: str, kinds: Kinds = NUMBERS) -> str:
    """The SVG of a motif "bond 0 1", "bond 0 1 edge 2" or "ring 0 0 1"; names of `kinds` that are short enough stand
    for their numbers.

    Raises:
        FedweaveError: it is not written so.
    """
    found = _MOTIF.fullmatch(name)
    if found is None:
        raise FedweaveError(
            f"motifs.parquet names a motif {name!r}, which is neither a bond nor a ring; run it again.",
            code="motif.drawing",
        )
    kind, edge = "bond" if found["bond"] else "ring", found["edge"]
    labels = [int(word) for word in (found["bond"] or found["ring"]).split()]
    at = _places(len(labels))
    pairs = [(at[i], at[(i + 1) % len(at)]) for i in range(1 if kind == "bond" else len(at))]
    parts = [f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" class="axis"/>' for a, b in pairs]
    if edge:
        style = 'text-anchor="middle" font-size="9" fill="currentColor"'
        parts.append(f'<text x="{SIZE / 2}" y="{SIZE / 2 - 4}" {style}>{_called(int(edge), kinds.edges)}</text>')
    parts += [_vertex(place, label, _called(label, kinds.nodes)) for place, label in zip(at, labels, strict=True)]
    box = f'width="{SIZE}" height="{SIZE}" viewBox="0 0 {SIZE} {SIZE}"'
    return f'<svg {box} role="img" aria-label="{kind} {" ".join(map(str, labels))}">{"".join(parts)}</svg>'


def _places(count: int) -> list[tuple[float, float]]:
    """Where the vertices stand: side by side, or on a circle from the top."""
    middle, reach = SIZE / 2, SIZE / 2 - RADIUS - 1
    if count == 2:
        return [(middle - reach, middle), (middle + reach, middle)]
    turns = [2 * math.pi * i / count - math.pi / 2 for i in range(count)]
    return [(middle + reach * math.cos(turn), middle + reach * math.sin(turn)) for turn in turns]


def _called(kind: int, names: tuple[str, ...]) -> str:
    named = 0 <= kind < len(names) and len(names[kind]) <= MOST
    return str(escape(names[kind])) if named else str(kind)


def _vertex(place: tuple[float, float], label: int, name: str) -> str:
    x, y = place
    colour = CLASSES[label % len(CLASSES)]
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" fill="{colour}" stroke="#fff"/>'
    style = f'text-anchor="middle" font-size="10" fill="{ink(colour)}"'
    return f'{circle}<text x="{x:.1f}" y="{y + 3:.1f}" {style}>{name}</text>'
