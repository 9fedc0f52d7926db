"""Every guarantee of the documentation has tests, and they exist; every setting of `site.toml` is on its page."""

import re
from dataclasses import fields
from types import ModuleType

import pytest

from fedweave.datasets.settings import DataSettings
from fedweave.sites.flare.machine import About
from fedweave.sites.flare.sitefile import Rules, SiteData
from tests.site.test_site import ROOT, module

WITHOUT_TESTS = {"The network"}  # TLS is NVFlare's


@pytest.fixture(scope="module")
def promises() -> ModuleType:
    return module("promises")


def test_every_guarantee_has_tests_that_exist(promises: ModuleType) -> None:
    pages, places = promises.promises(), promises.places()
    assert {path.name for path in (ROOT / "docs").glob("guarantees-*.md")} <= pages.keys()
    for page, headings in pages.items():
        there = re.findall(r"^## (.+)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
        listed = [heading for heading in there if heading in headings]
        assert listed == [*headings], page
        if page.startswith("guarantees-"):
            assert set(there) - set(listed) <= WITHOUT_TESTS, page
    named = [test for headings in pages.values() for tests in headings.values() for test in tests]
    assert [test for test in named if test not in places] == []
    assert all(tests for headings in pages.values() for tests in headings.values())


def test_the_page_of_site_toml_has_every_setting_with_a_meaning() -> None:
    page = module("site_settings").pages()["reference/site.md"]
    for kind in (SiteData, Rules, About):
        shared = {one.name for one in fields(DataSettings)} if kind is SiteData else set()
        assert [name for name in shared if f"`{name}`" not in page] == []
        own = [one.name for one in fields(kind) if one.name not in shared]
        rows = {name: re.search(rf"^\| `{name}` \|.*\| (.*) \|$", page, re.MULTILINE) for name in own}
        assert [name for name, row in rows.items() if row is None or not row[1].strip()] == []
