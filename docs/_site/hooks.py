"""What the site's build adds to the pages of docs/: the repository's own documents, the reference, the papers' results,
the tutorials."""

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import algorithms
import outside
import papers
import promises
import reference
import search
import site_settings
import tutorials
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "tutorials"
# Documents that are not in docs/, by their place in the site.
ELSEWHERE = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "benchmarks.md": "benchmarks/README.md",
    "benchmarks-findings.md": "benchmarks/findings.md",
    "examples/credit.md": "examples/credit/README.md",
}
_IMAGE = re.compile(r"!\[([^\]]*)\]\(docs/([^)\s]+)\)")  # of the README, as pages see it
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    pages = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in ELSEWHERE.items()}
    pages |= reference.pages() | site_settings.pages() | promises.pages() | algorithms.pages()
    pages |= papers.pages() | _tutorials()
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links between the repository's documents as links between pages; and what the search needs to know."""
    page.meta = search.meta(page.file.src_uri) | page.meta
    return rewrite_links(markdown, page.file.src_uri)


def on_post_build(config: Any) -> None:
    """Reject a site that would fetch anything from another host."""
    external = list(outside.external_addresses(Path(config.site_dir)))
    if external:
        raise PluginError("pages would fetch from other hosts:\n" + "\n".join(external))


def rewrite_links(markdown: str, page: str) -> str:
    """The text of a page with links relative to its place in the site instead of the repository.

    Links to tutorials' files lead to their pages, and to a paper's table to its place on the paper's page. A link to a
    file that the site does not have becomes its words.
    """
    source = ELSEWHERE.get(page, f"docs/{page}")
    page_of = {file: name for name, file in ELSEWHERE.items()}

    def rewrite(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target:
            return match[0]
        file = os.path.normpath(os.path.join(os.path.dirname(source), target))
        table = re.fullmatch(r"docs/(results/\w+)-[^/]+\.md", file)
        if file in page_of:
            target_page = page_of[file]
        elif table:
            target_page, anchor = f"{table[1]}.md", f"#{Path(file).stem}"
        elif file.startswith("docs/"):
            target_page = re.sub(r"^(tutorials/[^/]+)\.py$", r"\1.md", file.removeprefix("docs/"))
        elif (ROOT / file).exists():
            return words
        else:
            return match[0]  # a link to nowhere, which the build reports
        return f"[{words}]({os.path.relpath(target_page, os.path.dirname(page))}{anchor})"

    if source == "README.md":
        markdown = _IMAGE.sub(r"![\1](\2)", markdown)
    return _LINK.sub(rewrite, markdown)


def _tutorials() -> dict[str, str]:
    """{path in the site: text} of every tutorial's page and notebook. A tutorial runs only if it or the package has
    changed since its notebook was saved."""
    package = hashlib.sha256(b"".join(path.read_bytes() for path in sorted((ROOT / "src/fedweave").rglob("*.py"))))
    pages = {}
    for path in sorted(tutorials.FOLDER.glob("*.py")):
        digest = package.copy()
        digest.update(path.read_bytes())
        cached = CACHE / f"{path.stem}-{digest.hexdigest()[:16]}.ipynb"
        if not cached.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            cached.write_text(tutorials.notebook(list(tutorials.execute(path))), encoding="utf-8")
        text = cached.read_text(encoding="utf-8")
        pages[f"tutorials/{path.stem}.ipynb"] = text
        pages[f"tutorials/{path.stem}.md"] = tutorials.markdown(tutorials.read(text), f"{path.stem}.ipynb")
    return pages
