"""An explanation of one score: its reasons, with the largest effect first, and how they are shown."""

import math
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias, get_args

import pyarrow as pa

from fedweave.core.shown import Shown, page
from fedweave.core.types import Record

Method: TypeAlias = Literal["leave-out", "gradients"]
METHODS: tuple[str, ...] = get_args(Method)
WAYS = ("—", "→")  # between the ends of an edge in its name, without and with a direction


@dataclass(frozen=True)
class Reason:
    """What moves a score.

    kind:    "column", "neighbor", "edge" or, of all edges from one node to another, "edges"; of small graphs "node",
             "atom" or "bond".
    name:    the name of the column, node or edge; a column of a transfer's end begins with which end it is.
    value:   the value of a column or edge, the distance of a node. typical: what a column is set to; "" of others.
    without: the score without it; None of gradients.
    effect:  score − without: positive where it raises the score. Of gradients, its part of the score.
    places:  of small graphs, the numbers of its nodes.
    """

    kind: str
    name: str
    value: str
    typical: str
    without: float | None
    effect: float
    places: tuple[int, ...] = ()


@dataclass(frozen=True)
class SmallGraph:
    """A small graph to draw: the names of its nodes, the pairs that are joined, and its SMILES, if there is one."""

    names: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    smiles: str = ""


@dataclass(frozen=True, repr=False)
class Explanation(Shown):
    """Why a model gives one example its score; reasons with the largest effect first.

    client:    whose model it is. example: "node", "edge", "graph" or "link". name: the example's.
    quantity:  what the score is. threshold: from which score on it is flagged; None where nothing is.
    usual:     what columns are set to. base: with gradients, the score where all columns have these values.
    graph:     a small graph, to be drawn.
    """

    client: str
    example: str
    name: str
    quantity: str
    score: float
    threshold: float | None
    method: str
    usual: str
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...] = ()
    base: float | None = None
    graph: SmallGraph | None = None

    def written(self, score: float) -> str:
        """A score, or a difference of two, as text: a probability with three digits, or with more if the largest
        effect would otherwise have fewer than two."""
        if not self.quantity.startswith("probability"):  # a number in the data's units
            return f"{score:.6g}"
        largest = max((abs(reason.effect) for reason in self.reasons), default=0.0)
        digits = 3
        if 0 < largest < 0.01:
            digits = min(6, 1 - math.floor(math.log10(largest)))
        return f"{score:.{digits}f}"

    @property
    def headline(self) -> str:
        """The score in a sentence."""
        rule = ""
        if self.threshold is not None:
            rule = f", {'at or above' if self.flagged else 'below'} the threshold {self.threshold:.3f}"
        return f"{self.example} {self.name} of {self.client}: the {self.quantity} is {self.written(self.score)}{rule}."

    @property
    def flagged(self) -> bool | None:
        """Whether the example is flagged; None where nothing is."""
        return None if self.threshold is None else self.score >= self.threshold

    @property
    def table(self) -> pa.Table:
        """A row for each reason."""
        columns = {}
        for name in ("kind", "name", "value", "typical", "without", "effect"):
            kind = pa.float64() if name in ("without", "effect") else pa.string()
            columns[name] = pa.array([getattr(reason, name) for reason in self.reasons], kind)
        return pa.table(columns)

    @property
    def record(self) -> Record:
        """All of it, for JSON."""
        return {**asdict(self), "flagged": self.flagged}

    def facts(self) -> dict[str, object]:
        """The score, and the first reason."""
        first = {"first": self.reasons[0].name} if self.reasons else {}
        return {"": self.name, "client": self.client, "score": self.score, "reasons": len(self.reasons), **first}

    def _repr_html_(self) -> str:
        rows = []
        for reason in self.reasons:
            without = "" if reason.without is None else reason.without
            rows.append((reason.kind, reason.name, reason.value, reason.typical, without, reason.effect))
        return page(self.headline, rows, ("", "reason", "value", "typical", "score without", "effect"))
