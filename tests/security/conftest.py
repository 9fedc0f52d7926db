"""Sites for all tests here; imported late, so that tests are skipped with a reason where there is no NVFlare."""

import shutil
from pathlib import Path

import pytest

from tests.keys import keys as keys


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
    from tests.security.cheating import make_sites

    return make_sites(tmp_path_factory.mktemp("organisations") / "project")


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Path:
    """Three sites that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "project"))
