"""Other ways to run a paper's experiments than its tables do: named settings, all of them on, or all but one.

The tables' own experiments are the protocol "clean": models of the last round, and splits as little mixed as the paper
allows. `papers.papers.PROTOCOLS` names others, such as "script" for what a paper's released code does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fedweave.experiment.config import Document
from fedweave.papers.paper import NOTHING, PaperCell, PaperTable

CLEAN = "clean"
ALL = "everything on"
Change = Callable[[PaperCell], PaperCell]


def unchanged(cell: PaperCell) -> PaperCell:
    """The cell as it is."""
    return cell


@dataclass(frozen=True)
class Setting:
    """One difference: `on` and `off` make of a cell of the paper's tables that with it, and that without it.

    A cell that it does not concern comes back as it is.
    """

    on: Change
    off: Change = unchanged


@dataclass(frozen=True)
class Protocol:
    """A bundle of settings.

    settings: by name, in the order in which they are made. every: what is done to every cell besides, such as how often
              it is evaluated.
    worth:    the cells of which `one_off` says what each setting is worth. beside: those that it has as they are.
    seeds:    of `one_off`. notes: what the reader of its tables must know.
    """

    settings: Mapping[str, Setting]
    every: Change
    worth: tuple[PaperCell, ...]
    beside: tuple[PaperCell, ...]
    seeds: int
    notes: tuple[str, ...] = ()

    def cell(self, cell: PaperCell, without: str = "") -> PaperCell:
        """The cell, and what it is compared with, with all settings on but one."""
        made = self._document(cell, without)
        if cell.baseline is None:
            return made
        return replace(made, baseline=self._document(replace(cell, document=cell.baseline), without).document)

    def _document(self, cell: PaperCell, without: str) -> PaperCell:
        for name, setting in self.settings.items():
            cell = setting.off(cell) if name == without else setting.on(cell)
        return self.every(cell)

    def table(self, table: PaperTable) -> PaperTable:
        """The paper's table under this protocol."""
        return replace(table, cells=tuple(map(self.cell, table.cells)), notes=(*self.notes, *table.notes))

    def one_off(self) -> PaperTable:
        """What each setting is worth: a row with everything on, one without each setting, and the clean one.

        A setting that does not concern a cell has no row for it.
        """
        cells = [replace(self.cell(it), row=_named(it, ALL)) for it in (*self.worth, *self.beside)]
        for name in self.settings:
            for it in self.worth:
                made = self.cell(it, without=name)
                if made != self.cell(it):
                    cells.append(replace(made, row=_named(it, f"without: {name}"), paper=NOTHING))
        cells += [replace(it, row=_named(it, CLEAN), paper=NOTHING) for it in (*self.worth, *self.beside)]
        against = tuple(dict.fromkeys(_named(it, ALL) for it in self.worth))
        return PaperTable("What each setting is worth", tuple(cells), self.seeds, self.notes, against=against)


def _named(cell: PaperCell, how: str) -> str:
    return f"{cell.row}, {how}"


def changed(cell: PaperCell, **changes: object) -> PaperCell:
    """The cell with keys of its document's sections changed, or with other values outside of sections."""
    document: Document = dict(cell.document)
    for key, change in changes.items():
        document[key] = document[key] | change if isinstance(change, dict) else change
    return replace(cell, document=document)
