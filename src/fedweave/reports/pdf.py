"""A document as PDF, by ReportLab (extra `pdf`): A4, with embedded fonts; equal documents give equal bytes."""

import io
from importlib.metadata import version
from pathlib import Path
from xml.sax.saxutils import escape as escape_xml

import matplotlib
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import CondPageBreak, Flowable, Paragraph, SimpleDocTemplate, Table

from fedweave.accounts.document import Document, Grid, Section
from fedweave.core.text import printable
from fedweave.core.types import Record

_PLAIN, _BOLD, _FIXED = "DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono"
_MARGIN, _PAD = 45.0, 3.5  # points
_NARROWEST, _LONGEST = 42.0, 80.0  # points; of a column of words, and of a word that is not broken


def pdf(document: Document) -> bytes:
    """The document's bytes; call `pages.check_page` before.

    The file embeds the DejaVu fonts.
    """
    _fonts()
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
    title = ". ".join(filter(None, (document.number, document.title)))
    layout.build(_story(document, A4[0] - 2 * _MARGIN), canvasmaker=_numbered(title))
    return file.getvalue()


def _fonts() -> None:
    folder = Path(matplotlib.get_data_path()) / "fonts/ttf"
    for name in {_PLAIN, _BOLD, _FIXED} - {*pdfmetrics.getRegisteredFontNames()}:
        pdfmetrics.registerFont(TTFont(name, folder / f"{name}.ttf"))


def _story(document: Document, width: float) -> list[Flowable]:
    title, foot = _style(15, _BOLD, 6), _style(7, after=0, color="#555555")
    story = [_paragraph(document.title, title), *(_paragraph(line, _style(9.5)) for line in document.lead)]
    story += [_warned(line, width) for line in document.warnings]
    if document.facts:
        story.append(_table(Grid((), document.facts, ()), width, facts=True))
    for section in document.sections:
        story += _section(section, width)
    return [*story, _paragraph(f"{document.foot} Written by fedweave {version('fedweave')}.".strip(), foot)]


def _section(section: Section, width: float) -> list[Flowable]:
    story: list[Flowable] = [CondPageBreak(90), _paragraph(section.heading, _style(11, _BOLD, 4, before=10))]
    story += [_paragraph(line, _style(8, color="#444444")) for line in section.text]
    story += [_warned(line, width) for line in section.warnings]
    if section.grid is not None:
        story.append(_table(section.grid, width))
    return [*story, *(_paragraph(line, _style(7, _FIXED)) for line in section.code)]


def _warned(line: str, width: float) -> Table:
    framed = Table([[_paragraph(line, _style(8.5, after=0))]], colWidths=[width], spaceAfter=5)
    framed.setStyle([("LINEBEFORE", (0, 0), (0, -1), 3, "#D55E00"), ("BACKGROUND", (0, 0), (-1, -1), "#fdf3ec")])
    return framed


def _table(grid: Grid, width: float, facts: bool = False) -> Table:
    """A table as wide as the page, with its head on every page; facts: a pair in each row, and no head."""
    size = 8.0 if facts or len(grid.head) < 6 else 7.0
    words = [facts or name in grid.words for name in grid.head or ("", "")]
    rows = [*([grid.head] if grid.head else []), *grid.rows]
    bold = {*range(bool(grid.head)), *range(len(rows) - grid.sums, len(rows))}
    cells = [
        [
            _paragraph(text, _style(size, _BOLD if at in bold else _PLAIN, 0, right=not word))
            for text, word in zip(row, words, strict=True)
        ]
        for at, row in enumerate(rows)
    ]
    widths = [110.0, width - 110.0] if facts else _widths(rows, words, width, size)
    table = Table(cells, colWidths=widths, repeatRows=1 if grid.head else 0, hAlign="LEFT", spaceAfter=6)
    style: list[tuple[object, ...]] = [("VALIGN", (0, 0), (-1, -1), "TOP")]
    style += [("LINEBELOW", (0, 0), (-1, -1), 0.3, "#bbbbbb")]
    style += [(f"{side}PADDING", (0, 0), (-1, -1), _PAD) for side in ("LEFT", "RIGHT")]
    style += [(f"{side}PADDING", (0, 0), (-1, -1), 2) for side in ("TOP", "BOTTOM")]
    style += [("LINEBELOW", (0, 0), (-1, 0), 0.8, "#111111")] if grid.head else []
    style += [("LINEABOVE", (0, -grid.sums), (-1, -grid.sums), 0.8, "#111111")] if grid.sums else []
    table.setStyle(style)
    return table


def _widths(rows: list[tuple[str, ...]], words: list[bool], width: float, size: float) -> list[float]:
    """Widths of columns: each holds its longest unbreakable word; the rest goes to columns with longer text.

    The rest is divided in proportion to the root of the missing width.
    """

    def long(text: str) -> float:
        return float(stringWidth(text, _BOLD, size)) + 2 * _PAD + 1

    columns = list(zip(*rows, strict=True))
    whole = [max(map(long, column)) for column in columns]
    least = [
        min(_LONGEST, max(long(part) for text in column for part in (text.split() or [""]))) if word else width_of_word
        for column, word, width_of_word in zip(columns, words, whole, strict=True)
    ]
    scale = min(1.0, width / sum(least))
    least = [
        scale * max(width_of_word, min(_NARROWEST, full)) for width_of_word, full in zip(least, whole, strict=True)
    ]
    more = [max(0.0, full - width_of_word) ** 0.5 for width_of_word, full in zip(least, whole, strict=True)]
    left = max(0.0, min(width, sum(whole)) - sum(least))
    return [width_of_word + left * part / (sum(more) or 1.0) for width_of_word, part in zip(least, more, strict=True)]


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


def _numbered(title: str) -> type[Canvas]:
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
