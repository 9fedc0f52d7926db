"""The index of benchmarks."""

import re
from pathlib import Path

from benchmarks.__main__ import BEGIN, END, PAGE


def test_the_index_lists_every_benchmark_once_and_has_a_place_for_results() -> None:
    text = PAGE.read_text()
    listed = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted({path.stem for path in Path(PAGE).parent.glob("[a-z]*.py")})
    assert [text.count(mark) for mark in (BEGIN, END)] == [1, 1]
    assert text.index(BEGIN) < text.index(END)
