"""The pages in a browser: wide and narrow, light and dark, no text on another, cut off or hard to see, no error."""

import os
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from fedweave.apply.run_predictions import predictions
from tests.browser import WINDOWS, Browser
from tests.commands import run as fedweave

LARGEST = 1_500_000  # bytes of a page
FAULTY = """<!DOCTYPE html><title>faulty</title>
<meta http-equiv="Content-Security-Policy" content="style-src 'unsafe-inline'; script-src 'none'">
<body style="background: #fff">
<p style="color: #999">pale</p><p style="width: 2000px">wide</p>
<div style="position: relative"><span>one</span><span style="position: absolute; left: 9px">two</span></div>
<p style="width: 50px; overflow: hidden; white-space: nowrap">much too long for this</p>
<div style="width: 60px; overflow-x: auto; white-space: nowrap">longer, but one can scroll</div>
<svg width="100" height="50"><rect width="100" height="50" fill="#333"/><text x="84" y="20" fill="#eee">cut</text>
<text x="10" y="40" fill="#fff" transform="rotate(-20 10 40)">up</text><text x="7" y="40" fill="#fff">level</text>
<text x="50" y="42" fill="#444">dark</text></svg><script>1</script>"""
KINDS = {  # what stands on a page depends on these
    "groups": """
        data = {name = "synthetic", nodes = 300, classes = 2, sensitive = true}
        partition = {clients = 12}
        algorithm = {name = "f2gnn"}""",
    "pairs": """
        data = {name = "digits"}
        partition = {name = "overlap", clients = 9}
        algorithm = {name = "fairgfl"}""",
    "vertical": """
        data = {name = "synthetic", nodes = 200, features = 12}
        partition = {name = "vertical", clients = 3}
        model = {name = "gcnii"}
        algorithm = {name = "glasu"}""",
    "graphs": """
        data = {name = "proteins"}
        partition = {name = "graphs_iid"}
        model = {name = "gin", pool = "sum"}
        algorithm = {name = "fairgraphfl"}""",
    "noise": """
        data = {name = "synthetic", nodes = 300}
        partition = {clients = 4}
        algorithm = {name = "dp_fedavg"}""",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `fedavg`, with one of `local` beside it and the page of both; and of these in two conditions."""
    folder = tmp_path_factory.mktemp("browser")
    config = folder / "small.toml"
    config.write_text('rounds = 3\n[data]\nname = "synthetic"\nnodes = 300\n[partition]\nclients = 12\n')
    for algorithm in ("local", "fedavg"):
        fedweave("run", config, "--algorithm", algorithm, "--out", folder / algorithm, "-q")
    fedweave("report", folder / "fedavg", folder / "local", "-o", folder / "page.html")
    for algorithm in ("local", "fedavg"):
        words = ("--out", folder / f"{algorithm}-200", "--set", "data.nodes=200")
        fedweave("run", config, "--algorithm", algorithm, *words)
    four = [folder / f"{name}{size}" for name in ("fedavg", "local") for size in ("", "-200")]
    fedweave("report", *four, "-o", folder / "conditions.html")
    return folder / "fedavg"


def test_what_is_wrong_with_a_page_is_found(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "faulty.html").write_text(FAULTY)
    browser.show((tmp_path / "faulty.html").as_uri(), *WINDOWS[0])
    *found, refused = browser.faults()
    assert sorted(found) == [
        '"cut" is cut off by its picture',
        '"dark" has a contrast of 1.30',
        '"much too long for this" is cut off',
        '"one" lies on "two"',
        '"pale" has a contrast of 2.85',
        '"up" lies on "level"',
        "the page is 2008 pixels wide, its window 1400",
    ]
    assert "Content Security Policy" in refused


@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
def test_a_report_is_whole_and_legible(width: int, scheme: str, browser: Browser, run: Path) -> None:
    for page in (run.parent / "page.html", run.parent / "conditions.html"):
        assert page.stat().st_size < LARGEST
        browser.show(page.as_uri(), width, scheme, tall=60_000)
        assert (page.name, browser.faults() + browser.inaccessible()) == (page.name, [])


@pytest.mark.parametrize(("width", "scheme"), [WINDOWS[0], WINDOWS[-1]])
def test_a_compliance_report_is_whole_and_legible(width: int, scheme: str, browser: Browser, run: Path) -> None:
    page = run.parent / f"left-{width}.html"
    fedweave("compliance", run, "-o", page)
    browser.show(page.as_uri(), width, scheme)
    assert browser.faults() + browser.inaccessible() == []


@pytest.mark.parametrize(("width", "scheme"), [WINDOWS[0], WINDOWS[-1]])
def test_reasons_for_a_score_are_whole_and_legible(width: int, scheme: str, browser: Browser, run: Path) -> None:
    first = predictions(run).select(["client", "node"]).to_pylist()[0]
    page = run.parent / f"reasons-{width}.html"
    fedweave("explain", run, "--client", first["client"], "--id", str(first["node"]), "-o", page)
    browser.show(page.as_uri(), width, scheme)
    assert browser.faults() + browser.inaccessible() == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_page_is_whole_and_legible(
    kind: str, browser: Browser, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "graphs":
        monkeypatch.setitem(os.environ, "FEDWEAVE_DATA", str(request.getfixturevalue("data_root")))
    (tmp_path / "small.toml").write_text(f"rounds = 2\n{dedent(KINDS[kind])}")
    fedweave("run", tmp_path / "small.toml", "--out", tmp_path / "run", "-q")
    fedweave("report", tmp_path / "run", "-o", tmp_path / "page.html")
    pages = [tmp_path / "page.html"]
    if kind == "graphs":
        fedweave("statement", tmp_path / "run")
        pages.append(tmp_path / "run/statement/statement.html")
    for page in pages:
        assert page.stat().st_size < LARGEST
        for width, scheme in WINDOWS:
            browser.show(page.as_uri(), width, scheme)
            assert browser.faults() + browser.inaccessible() == [], (page.name, width, scheme)
