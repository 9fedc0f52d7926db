"""Tutorials as pages and notebooks: what cells print, and their pictures."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
CELLS = """# %% [markdown]
# # A title

# %%
print("words")
1 + 1

# %%
"<?xml version='1.0'?>\\n<svg xmlns='http://www.w3.org/2000/svg'>\\n\\n  <rect/>\\n</svg>"
"""


@pytest.fixture
def tutorials(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs/_site")
    import tutorials

    return sys.modules[tutorials.__name__]


def test_a_picture_is_one_block_of_html_on_the_page_and_in_the_notebook(tutorials: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(CELLS)
    cells = [*tutorials.execute(tmp_path / "one.py")]
    assert [cell.output for cell in cells] == ["", "words\n2\n", ""]
    block = "<div class=\"picture\">\n<svg xmlns='http://www.w3.org/2000/svg'>\n<rect/>\n</svg>\n</div>"
    assert cells[2].picture == block
    again = tutorials.read(tutorials.notebook(cells))
    assert [(cell.output, cell.picture) for cell in again] == [(cell.output, cell.picture) for cell in cells]
    assert f"```\n\n{block}\n" in tutorials.markdown(again, "one.ipynb")
