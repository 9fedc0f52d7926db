"""The page that lists the tests of each promise: `promises.toml` names them, tests/ has them."""

import re
import tomllib
from functools import cache
from pathlib import Path

from markdown.extensions.toc import slugify

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_TEST = re.compile(r"^def (test_\w+)", re.MULTILINE)


def promises() -> dict[str, dict[str, list[str]]]:
    """{page: {heading on it: names of the tests}}."""
    return tomllib.loads((Path(__file__).parent / "promises.toml").read_text(encoding="utf-8"))


@cache
def places() -> dict[str, str]:
    """{name of a test: its file}."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in _TEST.findall(path.read_text(encoding="utf-8")):
            found.setdefault(name, str(path.relative_to(ROOT)))
    return found


def pages() -> dict[str, str]:
    """{path in the site: Markdown} of the page.

    Raises:
        KeyError: a test that is listed does not exist.
    """
    lines = [
        "# Tests of the promises",
        "In each test a program plays the adversary, and the test fails if the program succeeds. "
        "[Security](../security.md) has the adversaries and what is not promised. Run a test with "
        "`python -m pytest FILE -k NAME`.",
    ]
    for page, headings in promises().items():
        title = (DOCS / page).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"## {title}")
        for heading, tests in headings.items():
            lines.append(f"### [{heading}](../{page}#{slugify(heading.replace('`', ''), '-')})")
            by_file: dict[str, list[str]] = {}
            for test in tests:
                by_file.setdefault(places()[test], []).append(f"`{test}`")
            lines.append("\n".join(f"- `{file}`: {', '.join(names)}" for file, names in by_file.items()))
    return {"reference/promises.md": "\n\n".join(lines) + "\n"}
