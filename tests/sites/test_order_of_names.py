"""Sites may be named in any order: what crosses arrives in the alphabet's."""

from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.experiment.rounds import train
from tests.contract.federations import distance
from tests.privacy.authority import write_kits
from tests.security.cheating import make_sites
from tests.sites import projects, test_secure_sums

NAMES = ("north", "south", "east")


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (projects, test_secure_sums):
        monkeypatch.setattr(module, "SITES", NAMES)


@pytest.mark.slow
def test_parties_with_tables_of_their_own_meet(tmp_path: Path) -> None:
    sections = projects.tables(tmp_path / "data", labelled=NAMES[:1])
    config = projects.experiment("glasu", rounds=2, **sections)
    project = projects.bring(projects.make_project(tmp_path / "project", "glasu"), tmp_path / "data")
    fed, algorithm, _ = projects.joined(project, config)
    *_, last = train(algorithm, fed, 2)
    assert last.of_clients("accuracy").keys() == {"north"}  # who has labels
    common = {row["shape"] for row in fed.ledger.table().to_pylist() if row["key"] == "common"}
    assert common == {"[60] int64"}


@pytest.mark.slow
def test_a_secure_sum_survives_a_site_that_drops_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of one site's keys reach the site that they are sealed for."""
    from tests.security import cheating

    monkeypatch.setattr(cheating, "SITES", NAMES)
    project = make_sites(tmp_path / "project")
    write_kits(project, NAMES, 2048)
    config = test_secure_sums.secure()
    fed, algorithm, link = projects.joined(project, config, quorum=0.5)
    test_secure_sums.lose(link, ("train", 2, "south"), ("score", 2, "south"))
    *_, last = train(algorithm, fed, 3)
    test_secure_sums.without.cache_clear()
    assert distance(last.state, test_secure_sums.without((2, "south"))) == 0
    test_secure_sums.without.cache_clear()
