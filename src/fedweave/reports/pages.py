"""Documents as HTML pages without outside references.

Templates and their style are files in `templates/`; everything is escaped that is not marked safe.
"""

import re
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from fedweave.accounts.document import Document
from fedweave.core.text import printable
from fedweave.errors import UserError, listed
from fedweave.experiment.runs.files import write_page
from fedweave.reports import drawing

PAGES = (".html", ".pdf")
STYLE = files("fedweave.reports").joinpath("templates/style.css").read_text("utf-8")


def render_template(template: str, /, **values: object) -> str:
    """The template of that name with these values, the version and the style of all pages. Control characters, marks of
    writing direction and lone surrogates are escaped, so that no text of a user changes how the rest reads."""
    text = _environment().get_template(template).render(values, style=STYLE, version=version("fedweave"))
    return "\n".join(map(printable, text.split("\n")))


@cache
def _environment() -> Environment:
    def with_code(words: str) -> Markup:
        """A sentence as HTML; text in backticks becomes code."""
        return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(words))))

    environment = Environment(loader=PackageLoader("fedweave.reports"), autoescape=True, undefined=StrictUndefined)
    environment.filters["coded"] = with_code
    environment.filters["listed"] = listed
    environment.filters["panel"] = lambda panel: Markup(drawing.panel_svg(panel))
    environment.filters["symbol"] = lambda key: Markup(drawing.symbol_svg(key))
    return environment


def check_page(path: Path) -> None:
    """Reject a file name that is not a page, or a PDF if the packages that write one are missing."""
    if path.suffix.lower() not in PAGES:
        raise UserError(f"{path}: a page is written as {' or '.join(PAGES)}; give a name that ends so.")
    if path.suffix.lower() == ".pdf" and (find_spec("reportlab") is None or find_spec("matplotlib") is None):
        raise UserError("a PDF needs ReportLab and the fonts of matplotlib: pip install 'fedweave[pdf]'.")


def write_document(path: Path, document: Document) -> None:
    """Write a document in the format of the file name's ending."""
    check_page(path)
    if path.suffix.lower() == ".pdf":
        from fedweave.reports.pdf import pdf  # needs an extra

        write_page(path, pdf(document))
    else:
        write_page(path, html(document))


def html(document: Document, figure: str = "") -> str:
    """The document as a page that holds all it needs; figure: HTML to show above its sections."""
    return render_template("document.html", document=document, figure=Markup(figure))
