"""What the site's build adds to the pages of docs/: the repository's own documents, the reference, the tutorials."""

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import algorithms
import outside
import reference
import tutorials
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "tutorials"
# Documents that live elsewhere in the repository, by their place in the site.
ELSEWHERE = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "benchmarks.md": "benchmarks/README.md",
    "examples/credit.md": "examples/credit/README.md",
}
_IMAGE = re.compile(r"!\[([^\]]*)\]\(docs/([^)\s]+)\)")  # of the README, as pages see it
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    made = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in ELSEWHERE.items()}
    for page, text in (
        made | reference.pages() | algorithms.pages() | _tutorials() | {"results/all.md": results()}
    ).items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links between the repository's documents as links between pages."""
    return relinked(markdown, page.file.src_uri)


def on_post_build(config: Any) -> None:
    """Refuse a site that would fetch anything from another host."""
    if found := [*outside.outside(Path(config.site_dir))]:
        raise PluginError("pages would fetch from other hosts:\n" + "\n".join(found))


def relinked(markdown: str, page: str) -> str:
    """The text of a page with its links, which are relative to its place in the repository, relative to its place in
    the site, and to tutorials' files as links to their pages; of files that the site has not, the words alone."""
    source = ELSEWHERE.get(page, f"docs/{page}")
    pages = {there: here for here, there in ELSEWHERE.items()}

    def link(match: re.Match[str]) -> str:
        words, target, part = match[1], match[2], match[3] or ""
        there = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if "://" in target or (there.startswith("docs/") and there not in pages):
            if "://" not in target:
                there = re.sub(r"^docs/(tutorials/[^/]+)\.py$", r"docs/\1.md", there)
                target = os.path.relpath(there.removeprefix("docs/"), os.path.dirname(page))
            return f"[{words}]({target}{part})"
        if there in pages:
            return f"[{words}]({os.path.relpath(pages[there], os.path.dirname(page))}{part})"
        if not (ROOT / there).exists():
            return match[0]  # a link to nowhere, which the build reports
        return words

    markdown = _IMAGE.sub(r"![\1](\2)", markdown) if source == "README.md" else markdown
    return _LINK.sub(link, markdown)


def results() -> str:
    """The page that lists the tables and figures of all papers, by their headings."""
    lines, paper = ["# All tables and figures"], ""
    for path in sorted((ROOT / "docs/results").glob("*.md"), key=_place):
        head = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        own, _, about = head.partition("), ")
        if own != paper:
            lines += ["", f"## {own})", ""]
        lines.append(f"- [{about[:1].upper()}{about[1:]}]({path.name})")
        paper = own
    return "\n".join(lines) + "\n"


def _place(path: Path) -> tuple[str | int, ...]:
    """Where a table stands in the list: table 10 after table 9."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem))


def _tutorials() -> dict[str, str]:
    """{path in the site: text} of every tutorial's page and notebook, run unless neither it nor the package changed."""
    package = hashlib.sha256(b"".join(path.read_bytes() for path in sorted((ROOT / "src/fedweave").rglob("*.py"))))
    found = {}
    for path in sorted(tutorials.FOLDER.glob("*.py")):
        known = package.copy()
        known.update(path.read_bytes())
        kept = CACHE / f"{path.stem}-{known.hexdigest()[:16]}.ipynb"
        if not kept.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            kept.write_text(tutorials.notebook([*tutorials.executed(path)]), encoding="utf-8")
        text = kept.read_text(encoding="utf-8")
        found[f"tutorials/{path.stem}.ipynb"] = text
        found[f"tutorials/{path.stem}.md"] = tutorials.markdown(tutorials.read(text), f"{path.stem}.ipynb")
    return found
