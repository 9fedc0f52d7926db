"""Tutorials: Python files in cells ("# %%" code, "# %% [markdown]" text). They are run, and become pages and
notebooks."""

import ast
import contextlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = dict[str, Any]
FOLDER = Path(__file__).parents[1] / "tutorials"
_MARK = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """One cell: its text, or its code with what it printed and the value of its last line.

    line: where it begins. picture: the value as HTML, if it is a picture.
    """

    code: bool
    source: str
    line: int = 1
    output: str = ""
    picture: str = ""


def cells(text: str) -> list[Cell]:
    """The cells of a file.

    Raises:
        ValueError: there is text before the first cell.
    """
    marks = list(_MARK.finditer(text))
    if not marks or text[: marks[0].start()].strip():
        raise ValueError('a tutorial begins with "# %%" or "# %% [markdown]"')
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    result = []
    for mark, end in zip(marks, ends, strict=True):
        raw = text[mark.end() : end]
        source, first = raw.strip("\n"), end - len(raw.lstrip("\n"))
        line = text[:first].count("\n") + 1
        is_code = mark[1] is None
        if not is_code:
            source = re.sub(r"^# ?", "", source, flags=re.MULTILINE)
        result.append(Cell(is_code, source, line))
    return result


def execute(path: Path) -> Iterator[Cell]:
    """The cells of a file one after the other, run as in a notebook, but in this process.

    Raises:
        Exception: what a cell raises; its traceback has the file and line.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells(path.read_text(encoding="utf-8")):
        yield Cell(True, cell.source, cell.line, *_run(cell, path, namespace)) if cell.code else cell


def _run(cell: Cell, path: Path, namespace: dict[str, Any]) -> tuple[str, str]:
    """What a cell prints, and its picture."""
    body = ast.parse("\n" * (cell.line - 1) + cell.source, str(path)).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(ast.Module(body, []), str(path), "exec"), namespace)
        value = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), str(path), "eval"), namespace)
        picture = _picture(value)
        if value is not None and not picture:
            print(repr(value))
    return output.getvalue(), picture


def _picture(value: object) -> str:
    """A value that can be drawn as SVG, as one block of HTML; "" for any other value."""
    html = value if isinstance(value, str) else getattr(value, "_repr_html_", getattr(value, "_repr_svg_", str))()
    if "<svg" not in str(html):
        return ""
    lines = re.sub(r"<\?xml.*?\?>|<!--.*?-->", "", html, flags=re.DOTALL).splitlines()
    inside = "\n".join(line.strip() for line in lines if line.strip())
    return f'<div class="picture">\n{inside}\n</div>'


def markdown(cells: list[Cell], notebook: str) -> str:
    """The page of cells, with a link to the notebook of this name."""
    blocks = []
    for cell in cells:
        blocks.append(f"```python\n{cell.source}\n```" if cell.code else cell.source)
        if cell.output:
            blocks.append(f'```{{ .text .output title="prints" }}\n{cell.output.rstrip()}\n```')
        if cell.picture:
            blocks.append(cell.picture)
    title, _, rest = "\n\n".join(blocks).partition("\n")
    return f"{title}\n\n[This page as a notebook]({notebook}){{ download }}\n{rest}\n"


def notebook(cells: list[Cell]) -> str:
    """The same as a Jupyter notebook (format 4.5)."""
    document = {
        "cells": [_notebook_cell(number, cell) for number, cell in enumerate(cells)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def read(document: str) -> list[Cell]:
    """The cells of such a notebook."""
    result = []
    for cell in json.loads(document)["cells"]:
        text, picture = "", ""
        for output in cell.get("outputs", ()):
            text += "".join(output.get("text", ()))
            picture += "".join(output.get("data", {}).get("text/html", ()))
        result.append(Cell(cell["cell_type"] == "code", "".join(cell["source"]), output=text, picture=picture))
    return result


def _notebook_cell(number: int, cell: Cell) -> Mapping[str, Any]:
    fields = {"id": f"cell-{number}", "metadata": {}, "source": cell.source.splitlines(keepends=True)}
    if not cell.code:
        return {"cell_type": "markdown", **fields}
    lines = cell.output.splitlines(keepends=True)
    outputs: list[Record] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    if cell.picture:
        html = cell.picture.splitlines(keepends=True)
        outputs.append({"data": {"text/html": html}, "metadata": {}, "output_type": "display_data"})
    return {"cell_type": "code", "execution_count": None, "outputs": outputs, **fields}
