"""Numbers with their nouns, in what the commands say of the smallest things."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.core.text import counted

runner = CliRunner()
NOUNS = (
    "sites|clients|rounds|nodes|edges|features|classes|graphs|examples|days|faults|runs|members|messages|lines|columns"
)
WRONG = re.compile(rf"(?<![\d.,])1 ({NOUNS})\b")


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [(1, "site", "1 site"), (0, "class", "0 classes"), (2000, "damaged line", "2,000 damaged lines")],
)
def test_a_number_has_its_noun(number: int, noun: str, said: str) -> None:
    assert counted(number, noun) == said


@pytest.fixture
def smallest(tmp_path: Path) -> Path:
    """An experiment of one client, one round and one feature."""
    (tmp_path / "nodes.csv").write_text(
        "id,label,split,f\n" + "".join(f"{i},{'ab'[i % 2]},{('train', 'val', 'test')[i // 4]},{i}\n" for i in range(12))
    )
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n")
    config = tmp_path / "c.toml"
    data = f'[data]\nname = "folder"\npath = "{tmp_path}"\nlabels = ["a", "b"]\n'
    config.write_text(f'rounds = 1\n{data}[partition]\nname = "random"\nclients = 1\nuse_dataset_split = true\n')
    return config


def test_what_there_is_one_of_is_said_in_the_singular(smallest: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    commands = [
        ["check", str(smallest)],
        ["run", str(smallest), "--out", out],
        ["run", str(smallest), "--out", out, "--resume"],
    ]
    commands += [["report", out, "-o", str(tmp_path / "page.html")], ["ledger", out], ["export", out]]
    for words in commands:
        done = runner.invoke(app, words)
        assert done.exit_code == 0, (words, done.output)
        assert not WRONG.findall(done.output), done.output
    pages = [(tmp_path / "page.html").read_text(), *(path.read_text() for path in tmp_path.rglob("*.md"))]
    assert len(pages) == 2
    for page in pages:
        assert not WRONG.findall(page), WRONG.search(page)
