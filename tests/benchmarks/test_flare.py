"""What the benchmark of exchanges puts in the place of a job is enough for the calls that it times."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from benchmarks.flare import Mirror, join_run, server_of_run
from tests.privacy.authority import write_kits
from tests.security.cheating import make_sites
from tests.sites.projects import SITES, InProcess


def test_what_was_sent_comes_back_plain_and_in_a_secure_sum(tmp_path: Path) -> None:
    project = make_sites(tmp_path / "project")
    write_kits(project, SITES, 2048)
    link = InProcess(project)
    for site, member in link.members.items():
        member._job = join_run(project / site, site, SITES)
    fed, sent = server_of_run(link, SITES), {"w": {"0": torch.tensor([0.5, -2.0])}}
    for _ in range(2):
        plain = fed.map(Mirror().echo, sent)
        assert [plain[site]["w"]["0"].tolist() for site in plain.clients] == [[0.5, -2.0]] * 3
        words = fed.map(Mirror().words, sent)
        assert words.total("w/0").tolist() == [3 * 2**19, -6 * 2**20]
