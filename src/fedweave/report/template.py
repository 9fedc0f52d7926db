"""Pages' templates and their style: files in `templates/`, rendered with everything escaped that is not marked safe."""

import re
from functools import cache
from importlib.metadata import version
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from fedweave.core.text import printable
from fedweave.errors import listed
from fedweave.report import svg

STYLE = files("fedweave.report").joinpath("templates/style.css").read_text("utf-8")


def rendered(template: str, /, **values: object) -> str:
    """The template of that name with these values, the version and the style of all pages."""
    return _environment().get_template(template).render(values, style=STYLE, version=version("fedweave"))


def coded(words: str) -> Markup:
    """A sentence as HTML; what stands in it between backticks is code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(words))))


@cache
def _environment() -> Environment:
    found = Environment(loader=PackageLoader("fedweave.report"), autoescape=True, undefined=StrictUndefined)
    found.filters |= {"coded": coded, "listed": listed, "plain": printable}
    found.filters |= {"panel": lambda it: Markup(svg.panel(it)), "symbol": lambda it: Markup(svg.symbol(it))}
    return found
