"""The documentation's theme in a browser: its colors, code, tables and menus, wide and narrow, light and dark."""

import shutil
from pathlib import Path

import pytest

from tests.browser import WINDOWS, Browser

ROOT = Path(__file__).parents[2]
PAGE = """# A page
Words, a [link](#a-table), `code`, and a [`link of code`](#a-table).

```python
def mean(values: list[float]) -> float:  # a comment
    return sum(values) / len(values) or "none"
```

## A table
| name | type | meaning |
| --- | --- | --- |
| `a_name_that_is_rather_long` | `int | None` | what it means, in words that do not fit beside it |
"""


TYPED = """const field = document.querySelector(".md-search__input"); field.focus(); field.value = "legible";
for (const kind of ["input", "keyup"]) field.dispatchEvent(new Event(kind, {bubbles: true}));"""


@pytest.mark.slow
def test_the_theme_is_whole_and_legible_and_a_page_from_a_folder_can_be_searched(tmp_path: Path) -> None:
    mkdocs = pytest.importorskip("mkdocs.commands.build", reason="needs the extra docs")
    from mkdocs.config import load_config

    for folder in ("stylesheets", "javascripts"):
        shutil.copytree(ROOT / "docs" / folder, tmp_path / "docs" / folder)
    (tmp_path / "docs/index.md").write_text(PAGE)
    (tmp_path / "docs/below").mkdir()
    (tmp_path / "docs/below/other.md").write_text("# Another page\n\nIt is legible.\n")
    nav = [{"A page": "index.md"}, {"Another": "below/other.md"}]
    own = {"docs_dir": str(tmp_path / "docs"), "site_dir": str(tmp_path / "site")}
    mkdocs.build(load_config(str(ROOT / "mkdocs.yml"), **own, nav=nav, hooks=[], plugins=["search", "offline"]))
    with Browser() as browser:
        for width, scheme in WINDOWS:
            browser.show((tmp_path / "site/index.html").as_uri(), width, scheme, tall=2000)
            # The theme's search is a dialog without a name.
            ours = [one for one in browser.inaccessible() if "aria-dialog-name" not in one]
            assert (width, scheme, browser.faults() + ours) == (width, scheme, [])
        for page in ("index.html", "below/other.html"):
            browser.show((tmp_path / "site" / page).as_uri(), *WINDOWS[0], tall=1000)
            browser.run(TYPED)
            browser.wait("document.querySelector('.md-search-result__link')?.href.includes('below/other.html')")
