"""Tutorials: Python files in cells ("# %%" code, "# %% [markdown]" text), run here, as pages and notebooks."""

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
    """One cell: its text, or its code with what it printed and the value of its last line; line: where it begins;
    picture: the value as HTML, where it is a picture."""

    code: bool
    source: str
    line: int = 1
    output: str = ""
    picture: str = ""


def cells(text: str) -> list[Cell]:
    """The cells of a file.

    Raises:
        ValueError: something stands before the first cell.
    """
    marks = [*_MARK.finditer(text)]
    if not marks or text[: marks[0].start()].strip():
        raise ValueError('a tutorial begins with "# %%" or "# %% [markdown]"')
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    found = []
    for mark, end in zip(marks, ends, strict=True):
        raw = text[mark.end() : end]
        body, first = raw.strip("\n"), end - len(raw.lstrip("\n"))
        line = text[:first].count("\n") + 1
        written = mark[1] is None
        found.append(Cell(written, body if written else re.sub(r"^# ?", "", body, flags=re.MULTILINE), line))
    return found


def executed(path: Path) -> Iterator[Cell]:
    """The cells of a file one after the other, run as a notebook would, without leaving this process.

    Raises:
        Exception: what a cell raises; its traceback names the file and line.
    """
    space: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells(path.read_text(encoding="utf-8")):
        yield Cell(True, cell.source, cell.line, *_run(cell, path, space)) if cell.code else cell


def _run(cell: Cell, path: Path, space: dict[str, Any]) -> tuple[str, str]:
    """What a cell prints, and its picture."""
    body = ast.parse("\n" * (cell.line - 1) + cell.source, str(path)).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.Module(body, []), str(path), "exec"), space)
        value = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), str(path), "eval"), space)
        picture = _picture(value)
        if value is not None and not picture:
            print(repr(value))
    return printed.getvalue(), picture


def _picture(value: object) -> str:
    """A value that is drawn as SVG, as one block of HTML; "" of any other."""
    html = value if isinstance(value, str) else getattr(value, "_repr_html_", getattr(value, "_repr_svg_", str))()
    if "<svg" not in str(html):
        return ""
    lines = re.sub(r"<\?xml.*?\?>|<!--.*?-->", "", html, flags=re.DOTALL).splitlines()
    inside = "\n".join(line.strip() for line in lines if line.strip())
    return f'<div class="picture">\n{inside}\n</div>'


def markdown(found: list[Cell], notebook: str) -> str:
    """A page of them, which offers the notebook of this name."""
    blocks = []
    for cell in found:
        blocks.append(f"```python\n{cell.source}\n```" if cell.code else cell.source)
        if cell.output:
            blocks.append(f'```{{ .text .output title="prints" }}\n{cell.output.rstrip()}\n```')
        if cell.picture:
            blocks.append(cell.picture)
    title, _, rest = "\n\n".join(blocks).partition("\n")
    return f"{title}\n\n[This page as a notebook]({notebook}){{ download }}\n{rest}\n"


def notebook(found: list[Cell]) -> str:
    """The same as a Jupyter notebook (format 4.5)."""
    document = {
        "cells": [_cell(number, cell) for number, cell in enumerate(found)],
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
    found = []
    for cell in json.loads(document)["cells"]:
        outputs = cell.get("outputs", ())
        printed = "".join(line for one in outputs for line in one.get("text", ()))
        picture = "".join(line for one in outputs for line in one.get("data", {}).get("text/html", ()))
        found.append(Cell(cell["cell_type"] == "code", "".join(cell["source"]), output=printed, picture=picture))
    return found


def _cell(number: int, cell: Cell) -> Mapping[str, Any]:
    same = {"id": f"cell-{number}", "metadata": {}, "source": cell.source.splitlines(keepends=True)}
    if not cell.code:
        return {"cell_type": "markdown", **same}
    lines = cell.output.splitlines(keepends=True)
    outputs: list[Record] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    if cell.picture:
        html = cell.picture.splitlines(keepends=True)
        outputs.append({"data": {"text/html": html}, "metadata": {}, "output_type": "display_data"})
    return {"cell_type": "code", "execution_count": None, "outputs": outputs, **same}
