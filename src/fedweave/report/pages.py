"""Documents as files: HTML pages that hold all they need, and PDF."""

from pathlib import Path

from fedweave.errors import UserError
from fedweave.experiment.runs.files import write_page
from fedweave.report.document import Document
from fedweave.report.pdf import pdf, require_reportlab
from fedweave.report.template import rendered

PAGES = (".html", ".pdf")


def check_page(path: Path) -> None:
    """Refuse a name that is of no page, or a PDF where nothing writes one.

    Raises:
        UserError: says which endings there are, or what to install.
    """
    if path.suffix.lower() not in PAGES:
        raise UserError(f"{path}: a page is written as {' or '.join(PAGES)}; give --out a name that ends so.")
    if path.suffix.lower() == ".pdf":
        require_reportlab()


def write_document(path: Path, document: Document) -> None:
    """Write a document as what the name ends in says.

    Raises:
        UserError: see `check_page`; or the file cannot be written.
    """
    check_page(path)
    if path.suffix.lower() == ".pdf":
        write_page(path, pdf(document))
    else:
        write_page(path, html(document))


def html(document: Document) -> str:
    """The document as a page that holds all it needs."""
    return rendered("document.html", document=document)
