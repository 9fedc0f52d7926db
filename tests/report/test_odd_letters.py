"""Text of users on pages: letters that change how the rest reads, and names that the locale cannot decode."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedweave.accounts.document import Document, Section, Tile, grid
from fedweave.apply.explanation import Explanation, Reason
from fedweave.reports.explanation import page as explanation_page
from fedweave.reports.pages import html
from tests import commands

BIDI = ("\u202e", "\u2066", "\u200f", "\u061c")  # override, isolate, marks
CONTROL = ("\x1b", "\x07", "\x85", "\u2028", "\udcc3")


@pytest.mark.parametrize("letter", [*BIDI, *CONTROL])
def test_no_letter_of_a_page_changes_how_the_rest_reads(letter: str) -> None:
    word = f"a{letter}b"
    section = Section(word, (word,), (word,), grid([{word: word}], (word,)), (word,), word)
    tiles = (Tile(word, word, (word,)),)
    page = html(Document(word, ((word, word),), (word,), (word,), (section,), word, word, word, word, word, 0, tiles))
    assert letter not in page
    page.encode()


@pytest.mark.parametrize("folded", [False, True])
def test_no_markup_of_users_is_markup_of_the_page(folded: bool) -> None:
    word = "`<i>a</i>` & <script>b</script>"
    section = Section(word, (word,), (word,), grid([{word: word}], (word,)), (word,), word if folded else "")
    tiles = (Tile(word, word, (word,)),)
    page = html(Document(word, ((word, word),), (word,), (word,), (section,), word, word, word, word, word, 1, tiles))
    assert "<i>" not in page
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 10


def test_no_name_is_markup_of_the_page_of_an_explanation() -> None:
    word = "<i>a</i>"
    reason = Reason("neighbor", word, word, word, 0.1, 0.2)
    page = explanation_page(Explanation(word, word, word, word, 0.3, 0.2, "leave-out", word, (reason,), (word,)))
    assert "<i>" not in page
    assert page.count("&lt;i&gt;") >= 10


COMMANDS = """
import sys

from fedweave.cli import main

run = sys.argv[1]
for name, *options in (["report"], ["ledger"], ["predict"], ["compliance"]):
    sys.argv = ["fedweave", name, run, *options]
    try:
        main()
    except SystemExit as end:
        assert not end.code, f"{name} exits with {end.code}"
"""


def test_a_run_whose_name_the_locale_cannot_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text(commands.SMALL)
    commands.run("run", "e.toml", "--out", "r é", "-q")
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", COMMANDS, "r é"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    pages = [*tmp_path.rglob("*.html")]
    assert {page.name for page in pages} == {"report.html", "compliance.html"}
    for page in pages:
        assert "<html" in page.read_text(encoding="utf-8")
