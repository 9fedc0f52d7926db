"""The results of papers: a page for each, put together from what `fedweave reproduce` wrote of its tables, and a list
of all tables."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "results"
FINDINGS = {"glasu": "vertical"}  # a paper's page in docs/findings, where it has another name
_COMMAND = "`fedweave reproduce"  # with the commit: a note that only the repository's files have
_FEW = 4  # tables that a note lists by name
_MAX_ROWS = 30  # of a table on a page; longer ones are to be downloaded
_ONLY_IN_CSV = ("difference", "best round, chosen on test")  # columns that pages leave out


class Table(NamedTuple):
    """What one file says: "table 2, cora", its caption, its notes, and the rest (numbers, links, pictures)."""

    stem: str
    paper: str
    label: str
    caption: str
    notes: list[str]
    rest: list[str]

    @property
    def heading(self) -> str:
        """The label and the caption as a heading."""
        return f"{self.label[:1].upper()}{self.label[1:]}: {self.caption}"


def read(path: Path) -> Table:
    """The file of one table; its notes end at the first table, link or count of its numbers."""
    first, *blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    paper, _, title = first.removeprefix("# ").partition("), ")
    if not title:  # a table with a title of its own
        paper, _, title = first.removeprefix("# ").partition("): ")
    label, _, caption = title.partition(": ")
    start = 0
    while not re.match(r"\||\[|!\[|In all rows: |\d+ numbers? of the paper: ", blocks[start]):
        start += 1
    notes = [" ".join(block.split()) for block in blocks[:start] if not block.startswith(f'"{_ONLY_IN_CSV[-1]}"')]
    return Table(path.stem, f"{paper})", label, caption, notes, blocks[start:])


def tables() -> dict[str, list[Table]]:
    """{name of the paper: its tables and figures}."""
    papers: dict[str, list[Table]] = {}
    for path in sorted(FOLDER.glob("*-*.md"), key=_sort_key):
        papers.setdefault(path.stem.partition("-")[0], []).append(read(path))
    return papers


def pages() -> dict[str, str]:
    """{path in the site: Markdown}: the list of all tables, and each paper's page."""
    papers = tables()
    return {"results/all.md": index(papers)} | {f"results/{name}.md": page(name, of) for name, of in papers.items()}


def index(papers: dict[str, list[Table]]) -> str:
    """The list of the tables and figures of all papers, and of what else was measured."""
    lines = ["# All tables and figures"]
    for name, of_paper in papers.items():
        links = [f"[{table.label}]({name}.md#{table.stem})" for table in of_paper]
        lines += [f"## [{of_paper[0].paper}]({name}.md)", ", ".join(links)]
    lines += ["## Baselines", "[Baselines, all settings](baselines.md)."]
    return "\n\n".join(lines) + "\n"


def page(name: str, of_paper: Sequence[Table]) -> str:
    """The page of one paper. A note of several tables stands once, above them."""
    tables_of: dict[str, list[str]] = {}
    for table in of_paper:
        for note in table.notes:
            tables_of.setdefault(note, []).append(table.label)
    shared = {note: labels for note, labels in tables_of.items() if len(labels) > 1}
    blocks = [
        f"# {of_paper[0].paper}: results",
        "Numbers that the paper prints, next to ours. The CSV files have all rows and columns; the files in "
        "`docs/results` of the repository name command and commit, too. What follows from them: "
        f"[findings](../findings/{FINDINGS.get(name, name)}.md).",
    ]
    if shared:
        items = []
        for note, labels in shared.items():
            items.append(f"- {note} ({'; '.join(labels)})" if len(labels) <= _FEW else f"- {note}")
        blocks += ["## Notes on several tables", "\n".join(items)]
    for table in of_paper:
        own = [note for note in table.notes if note not in shared and not note.startswith(_COMMAND)]
        blocks += [f"## {table.heading} {{#{table.stem}}}", *own, *map(_narrow, table.rest)]
    return "\n\n".join(blocks) + "\n"


def _narrow(block: str) -> str:
    """A table without the columns that follow from others, or how many rows it has; any other block as it is."""
    if not block.startswith("| "):
        return block
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
    if len(rows) > _MAX_ROWS:
        return f"{len(rows) - 2} rows with the paper's numbers and ours:"
    kept = [at for at, title in enumerate(rows[0]) if title.strip() not in _ONLY_IN_CSV]
    lines = [f"|{'|'.join(row[at] for at in kept)}|" for row in rows]
    return "\n".join(lines)


def _sort_key(path: Path) -> tuple[str | int, ...]:
    """Sorts tables before figures, and table 10 after table 9."""
    kind = 1 + ("-figure" in path.stem) - ("-table" in path.stem)
    numbered = [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem)]
    return path.stem.partition("-")[0], kind, *numbered
