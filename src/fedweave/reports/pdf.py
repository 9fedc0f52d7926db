"""A document as PDF, by ReportLab (extra `pdf`): A4, with embedded fonts; equal documents give equal bytes."""

import io
from importlib.metadata import version
from pathlib import Path
from xml.sax.saxutils import escape as escape_xml

import matplotlib
import numpy as np
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import CondPageBreak, Flowable, Paragraph, SimpleDocTemplate, Table

from fedweave.accounts.document import Document, Grid
from fedweave.core.text import printable
from fedweave.core.types import Record

_PLAIN, _BOLD, _FIXED = "DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono"
_MARGIN, _PAD = 45.0, 3.5  # points
_MIN_COLUMN, _MAX_WORD = 42.0, 80.0  # points; of a column of words, and of a word that is not broken


def pdf(document: Document) -> bytes:
    """The document's bytes; call `pages.check_page` before.

    The file embeds the DejaVu fonts.
    """
    folder = Path(matplotlib.get_data_path()) / "fonts/ttf"
    for name in {_PLAIN, _BOLD, _FIXED} - {*pdfmetrics.getRegisteredFontNames()}:
        pdfmetrics.registerFont(TTFont(name, folder / f"{name}.ttf"))
    file = io.BytesIO()
    layout = SimpleDocTemplate(
        file,
        pagesize=A4,
        invariant=1,
        title=document.title,
        author=f"fedweave {version('fedweave')}",
        leftMargin=_MARGIN,
        rightMargin=_MARGIN,
        topMargin=_MARGIN,
        bottomMargin=_MARGIN + 8,
    )
    width = A4[0] - 2 * _MARGIN
    story: list[Flowable] = [_paragraph(document.title, _style(15, _BOLD, 6))]
    story += [_paragraph(document.subtitle, _style(8, color="#444444"))] if document.subtitle else []
    story += [_paragraph(document.verdict, _style(9.5, _BOLD))] if document.verdict else []
    story += [_paragraph(line, _style(9.5)) for line in document.lead]
    story += [_warning(line, width) for line in document.warnings]
    if document.tiles:
        tiles = [(one.title, ". ".join(filter(None, (one.value, *one.notes)))) for one in document.tiles]
        story.append(_table(Grid((), tuple(tiles), ()), width, facts=True))
    if document.facts:
        story.append(_table(Grid((), document.facts, ()), width, facts=True))
    for section in document.sections:
        story += [CondPageBreak(90), _paragraph(section.heading, _style(11, _BOLD, 4, before=10))]
        story += [_paragraph(line, _style(8, color="#444444")) for line in section.text]
        story += [_warning(line, width) for line in section.warnings]
        if section.grid is not None:
            story.append(_table(section.grid, width))
        story += [_paragraph(line, _style(7, _FIXED)) for line in section.code]
    foot = f"{document.foot} Written by fedweave {version('fedweave')}.".strip()
    story.append(_paragraph(foot, _style(7, after=0, color="#555555")))
    title = ". ".join(filter(None, (document.number, document.title)))
    layout.build(story, canvasmaker=_canvas_with_numbers(title))
    return file.getvalue()


def _warning(line: str, width: float) -> Table:
    framed = Table([[_paragraph(line, _style(8.5, after=0))]], colWidths=[width], spaceAfter=5)
    framed.setStyle([("LINEBEFORE", (0, 0), (0, -1), 3, "#D55E00"), ("BACKGROUND", (0, 0), (-1, -1), "#fdf3ec")])
    return framed


def _table(grid: Grid, width: float, facts: bool = False) -> Table:
    """A table as wide as the page, with its head on every page; facts: a pair in each row, and no head."""
    size = 8.0 if facts or len(grid.head) < 6 else 7.0
    words = [facts or name in grid.words for name in grid.head or ("", "")]
    rows = [grid.head, *grid.rows] if grid.head else [*grid.rows]
    bold = {*range(bool(grid.head)), *range(len(rows) - grid.sums, len(rows))}
    cells = []
    for number, row in enumerate(rows):
        font = _BOLD if number in bold else _PLAIN
        styles = [_style(size, font, 0, right=not word) for word in words]
        cells.append([*map(_paragraph, row, styles)])
    widths = [110.0, width - 110.0] if facts else _column_widths(rows, words, width, size)
    table = Table(cells, colWidths=widths, repeatRows=1 if grid.head else 0, hAlign="LEFT", spaceAfter=6)
    style: list[tuple[object, ...]] = [("VALIGN", (0, 0), (-1, -1), "TOP")]
    style += [("LINEBELOW", (0, 0), (-1, -1), 0.3, "#bbbbbb")]
    style += [(f"{side}PADDING", (0, 0), (-1, -1), _PAD) for side in ("LEFT", "RIGHT")]
    style += [(f"{side}PADDING", (0, 0), (-1, -1), 2) for side in ("TOP", "BOTTOM")]
    if grid.head:
        style.append(("LINEBELOW", (0, 0), (-1, 0), 0.8, "#111111"))
    if grid.sums:
        style.append(("LINEABOVE", (0, -grid.sums), (-1, -grid.sums), 0.8, "#111111"))
    table.setStyle(style)
    return table


def _column_widths(rows: list[tuple[str, ...]], words: list[bool], width: float, size: float) -> list[float]:
    """Each column is as wide as its longest unbreakable word; the rest goes to columns with longer text.

    The rest is divided in proportion to the root of the missing width.
    """

    def text_width(text: str) -> float:
        return float(stringWidth(text, _BOLD, size)) + 2 * _PAD + 1

    full, minimum = np.zeros(len(words)), np.zeros(len(words))  # of the whole text, and of what is not broken
    for index, column in enumerate(zip(*rows, strict=True)):
        full[index] = minimum[index] = max(map(text_width, column))
        if words[index]:
            parts = [""]
            for text in column:
                parts += text.split()
            minimum[index] = min(_MAX_WORD, max(map(text_width, parts)))
    scale = min(1.0, width / minimum.sum())
    minimum = scale * np.maximum(minimum, np.minimum(_MIN_COLUMN, full))
    missing = np.sqrt(np.maximum(0.0, full - minimum))
    remaining = max(0.0, min(width, full.sum()) - minimum.sum())
    widths: list[float] = (minimum + remaining * missing / (missing.sum() or 1.0)).tolist()
    return widths


def _paragraph(text: str, style: ParagraphStyle) -> Paragraph:
    return Paragraph(escape_xml(printable(text)), style)


def _style(
    size: float,
    font: str = _PLAIN,
    after: float = 4,
    before: float = 0,
    color: str = "#111111",
    right: bool = False,
) -> ParagraphStyle:
    return ParagraphStyle(
        "text",
        fontName=font,
        fontSize=size,
        leading=1.3 * size,
        spaceAfter=after,
        spaceBefore=before,
        textColor=color,
        alignment=2 if right else 0,
        splitLongWords=True,
    )


def _canvas_with_numbers(title: str) -> type[Canvas]:
    """A kind of canvas that writes below each page the document's name, the page's number and the number of pages."""

    class Numbered(Canvas):  # type: ignore[misc]
        """Knows the number of pages once all are drawn."""

        def __init__(self, *args: object, **more: object) -> None:
            super().__init__(*args, **more)
            self._pages: list[Record] = []

        def showPage(self) -> None:
            self._pages.append(dict(self.__dict__))
            self._startPage()

        def save(self) -> None:
            for at, page in enumerate(self._pages, 1):
                self.__dict__.update(page)
                self.setFont(_PLAIN, 7)
                self.drawString(_MARGIN, 28, title[:110])
                self.drawRightString(A4[0] - _MARGIN, 28, f"page {at} of {len(self._pages)}")
                super().showPage()
            super().save()

    return Numbered
