"""The documentation's theme in a browser: its colours, code, tables and menus, wide and narrow, light and dark."""

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


@pytest.mark.slow
def test_the_theme_is_whole_and_legible(tmp_path: Path) -> None:
    mkdocs = pytest.importorskip("mkdocs.commands.build", reason="needs the extra docs")
    from mkdocs.config import load_config

    (tmp_path / "docs/stylesheets").mkdir(parents=True)
    (tmp_path / "docs/index.md").write_text(PAGE)
    (tmp_path / "docs/stylesheets/site.css").write_text((ROOT / "docs/stylesheets/site.css").read_text())
    own = {"docs_dir": str(tmp_path / "docs"), "site_dir": str(tmp_path / "site")}
    mkdocs.build(
        load_config(str(ROOT / "mkdocs.yml"), **own, nav=[{"A page": "index.md"}], hooks=[], plugins=["search"])
    )
    with Browser() as browser:
        for width, scheme in WINDOWS:
            browser.show((tmp_path / "site/index.html").as_uri(), width, scheme, tall=2000)
            assert (width, scheme, browser.faults()) == (width, scheme, [])
