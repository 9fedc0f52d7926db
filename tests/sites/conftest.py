"""One project for all tests here; imported late, so that tests are skipped with a reason where there is no NVFlare."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.keys import keys as keys

if TYPE_CHECKING:
    from tests.sites.projects import Ran, Refused


@pytest.fixture(scope="session")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with digits split over three sites; not started."""
    from tests.sites.projects import make_project

    return make_project(tmp_path_factory.mktemp("sites") / "project")


@pytest.fixture
def project(provisioned: Path, tmp_path: Path) -> Path:
    """A copy of the project that the test may change."""
    from tests.sites.projects import copied

    return copied(provisioned, tmp_path / "project")


@pytest.fixture(scope="session")
def running(provisioned: Path) -> Iterator[Path]:
    """The same project with its four processes running; `mischief` in a site's folder makes that site misbehave."""
    from tests.sites.projects import processes

    with processes(provisioned) as project:
        yield project


@pytest.fixture(scope="session")
def refused(running: Path, tmp_path_factory: pytest.TempPathFactory) -> "Refused":
    """Two jobs with code that were submitted to the running project."""
    from tests.sites.projects import refuse

    return refuse(running, tmp_path_factory.mktemp("refused"))


@pytest.fixture(scope="session")
def ran(refused: "Refused", running: Path, tmp_path_factory: pytest.TempPathFactory) -> "Ran":
    """A run of FedAvg on the running project after these jobs."""
    from tests.sites.projects import ran

    return ran(running, tmp_path_factory.mktemp("ran") / "out")


@pytest.fixture
def owned(running: Path) -> Iterator[Path]:
    """The running project, whose data and site files a test may change, and to which it may add some."""

    def there() -> set[Path]:
        return {path for path in running.glob("*/*") if path.suffix in (".npz", ".toml")}

    before = {path: path.read_bytes() for path in there()}
    yield running
    for path in there() - before.keys():
        path.unlink()
    for path, content in before.items():
        path.write_bytes(content)
