"""The tables of a paper: each cell has the paper's number and the experiment that measures it here.

A protocol is another way to run these experiments: a set of named settings, all of them on, or all but one. The tables'
own experiments are the protocol "clean": models of the last round, and splits as little mixed as the paper allows.
`papers.selection.PROTOCOLS` names others, such as "script" for what a paper's released code does.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from fedweave.errors import FedweaveError
from fedweave.experiment.config import Document


@dataclass(frozen=True)
class Quantity:
    """A number that a finished run yields.

    unit:     the unit for the reader ("F1", "MB").
    read:     (directory of the run, directory of the baseline if the cell has one) -> the number, or None where the run
              did not measure it.
    expected: (the run's document) -> the number by arithmetic, where arithmetic gives it.
    digits:   decimals shown.
    absent:   why a sound run may lack the number ("not reached"); "" if it may not.
    best:     called as `read`: the number of the round in which it is highest on the test set. Some papers print such
              numbers; never choose by them.
    curve:    (run directory) -> {round: value}, the number over the rounds; None where it is not known.
    per:      called as `read`: a divisor. A cell is then the ratio of the two means over the runs. A run with a divisor
              near 0 would dominate a mean of ratios.
    """

    unit: str
    read: Callable[..., float | None]
    expected: Callable[[Document], float] | None = None
    digits: int = 4
    absent: str = ""
    best: Callable[..., float | None] | None = None
    per: Callable[..., float | None] | None = None
    curve: Callable[[Path], dict[int, float]] | None = None


class Printed(NamedTuple):
    """A number as a paper prints it, with its deviation; None where there is none ("Out Of Memory")."""

    value: float | None = None
    spread: float | None = None


NOTHING = Printed()


@dataclass(frozen=True)
class PaperCell:
    """One number of a table.

    row, column: the paper's headings.
    split:    "local" or "global" test, "" where neither applies.
    document: the experiment without its seed; `rounds` and the name of its data are set.
    quantity: the number read from its runs.
    paper:    the number that the paper prints.
    baseline: another experiment to compare with; its run has the same seed.
    seeds:    the number of runs; 0 takes the table's.
    """

    row: str
    column: str
    split: str
    document: Document
    quantity: Quantity
    paper: Printed = NOTHING
    baseline: Document | None = None
    seeds: int = 0


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of a paper.

    title:   its caption.
    cells:   in reading order (smaller datasets first).
    seeds:   the number of seeds for a cell.
    notes:   what its reader must know.
    quick:   how many times fewer rounds a quick look has.
    over:    the drawing of curves over the "round", or over a number in the columns' names (`table.draw_curves`).
    against: the rows that the others are compared with (`session.differences`).
    plane:   two columns that are drawn against each other (`table.draw_planes`).
    stacked: whether rows are drawn as bars of their columns' shares (`table.draw_stacks`).
    """

    title: str
    cells: tuple[PaperCell, ...]
    seeds: int
    notes: tuple[str, ...] = ()
    quick: int = 10
    over: str = ""
    against: tuple[str, ...] = ()
    plane: tuple[str, str] | None = None
    stacked: bool = False


@dataclass(frozen=True)
class Paper:
    """A paper's tables and figures by their numbers."""

    title: str
    tables: Mapping[int, PaperTable]
    figures: Mapping[int, PaperTable]


def parse_numbers(text: str) -> dict[tuple[str, str], Printed]:
    """{(row, column): number} of a table written with "|" between cells, its headings first; "±" precedes a deviation.

    Raises:
        FedweaveError: a line has more or fewer cells than the headings.
    """
    first, *lines = text.strip().splitlines()
    headings = [heading.strip() for heading in first.split("|")][1:]
    numbers: dict[tuple[str, str], Printed] = {}
    for line in lines:
        row, *cells = (cell.strip() for cell in line.split("|"))
        if len(cells) != len(headings):
            raise FedweaveError(
                f"the line of {row!r} has {len(cells)} cells under {len(headings)} headings", code="paper.cells"
            )
        for column, cell in zip(headings, cells, strict=True):
            match = re.fullmatch(r"([\d,.]+)(?: ?± ?([\d.]+))?", cell)
            numbers[row, column] = NOTHING
            if match is not None:
                spread = float(match[2]) if match[2] else None
                numbers[row, column] = Printed(float(match[1].replace(",", "")), spread)
    return numbers


def printed_tables(paper: str) -> dict[int, Any]:
    """The tables of a paper in `printed.toml` by number: text for `parse_numbers`, or a text for each data set."""
    text = files("fedweave.papers").joinpath("printed.toml").read_text(encoding="utf-8")
    return {int(number): table for number, table in tomllib.loads(text)[paper].items()}


CLEAN = "clean"
ALL = "everything on"
Change = Callable[[PaperCell], PaperCell]


def keep(cell: PaperCell) -> PaperCell:
    """The cell as it is."""
    return cell


@dataclass(frozen=True)
class Setting:
    """One difference between protocols: `on` turns a cell of the paper's tables into one with it, and `off` into one
    without.

    They return a cell unchanged if the setting does not concern it.
    """

    on: Change
    off: Change = keep


@dataclass(frozen=True)
class Protocol:
    """A bundle of settings.

    settings: by name, in the order of application.
    every:    a further change of every cell, such as how often it is evaluated.
    worth:    the cells for which `one_off` measures each setting.
    beside:   further cells of `one_off`, which get no row without a single setting.
    seeds:    the number of seeds of `one_off`.
    notes:    what the reader of its tables must know.
    """

    settings: Mapping[str, Setting]
    every: Change
    worth: tuple[PaperCell, ...]
    beside: tuple[PaperCell, ...]
    seeds: int
    notes: tuple[str, ...] = ()

    def cell(self, cell: PaperCell, without: str = "") -> PaperCell:
        """The cell and its baseline, with all settings on except `without`."""
        results = []
        for document in [cell.document] if cell.baseline is None else [cell.document, cell.baseline]:
            result = replace(cell, document=document)
            for name, setting in self.settings.items():
                result = setting.off(result) if name == without else setting.on(result)
            results.append(self.every(result))
        return results[0] if cell.baseline is None else replace(results[0], baseline=results[1].document)

    def table(self, table: PaperTable) -> PaperTable:
        """The paper's table under this protocol."""
        return replace(table, cells=tuple(map(self.cell, table.cells)), notes=(*self.notes, *table.notes))

    def one_off(self) -> PaperTable:
        """The effect of each setting: a row with everything on, one without each setting, and the clean one.

        A setting that does not concern a cell has no row for it.
        """
        both = (*self.worth, *self.beside)
        cells = [replace(self.cell(cell), row=_row_name(cell, ALL)) for cell in both]
        for name in self.settings:
            for cell in self.worth:
                variant = self.cell(cell, without=name)
                if variant != self.cell(cell):
                    cells.append(replace(variant, row=_row_name(cell, f"without: {name}"), paper=NOTHING))
        cells += [replace(cell, row=_row_name(cell, CLEAN), paper=NOTHING) for cell in both]
        against = tuple(dict.fromkeys(_row_name(cell, ALL) for cell in self.worth))
        return PaperTable("What each setting is worth", tuple(cells), self.seeds, self.notes, against=against)


def _row_name(cell: PaperCell, how: str) -> str:
    return f"{cell.row}, {how}"


def change(cell: PaperCell, **changes: object) -> PaperCell:
    """The cell with keys of its document's sections changed, or with other values outside of sections."""
    document: Document = dict(cell.document)
    for key, change in changes.items():
        document[key] = document[key] | change if isinstance(change, dict) else change
    return replace(cell, document=document)


def change_if(applies: Callable[[PaperCell], bool], **changes: object) -> Change:
    """`change` for the cells that the condition applies to; the others stay."""
    return lambda cell: change(cell, **changes) if applies(cell) else cell


def has_algorithm(*names: str) -> Callable[[PaperCell], bool]:
    """The condition that a cell's algorithm is one of these."""
    return lambda cell: cell.document["algorithm"]["name"] in names


def has_data(*names: str) -> Callable[[PaperCell], bool]:
    """The condition that a cell's data set is one of these."""
    return lambda cell: cell.document["data"]["name"] in names
