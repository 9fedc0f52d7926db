"""One project for all tests here; imported late, so that tests are skipped with a reason where there is no NVFlare."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with digits split over three sites; not started."""
    from tests.deploy.projects import make_project

    return make_project(tmp_path_factory.mktemp("sites") / "project")


@pytest.fixture(scope="session")
def running(provisioned: Path) -> Iterator[Path]:
    """The same project with its four processes running; `mischief` in a site's folder makes that site misbehave."""
    from tests.deploy.projects import processes

    with processes(provisioned) as project:
        yield project


@pytest.fixture
def owned(running: Path) -> Iterator[Path]:
    """The running project, whose data and site files a test may change."""
    before = {path: path.read_bytes() for path in running.glob("*/*") if path.suffix in (".npz", ".toml")}
    yield running
    for path, content in before.items():
        path.write_bytes(content)
