"""Numbers and labels between sites whose scores leave in a secure sum alone."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.metrics.selection import Judging
from fedweave.sites.operation.experiments import hand_out, split
from tests.sites.projects import SITES, simulated
from tests.sites.test_target_sites import joined, of_numbers


@pytest.mark.parametrize("data", [{}, {"target": "labels"}], ids=["numbers", "labels"])
def test_a_sum_between_sites_has_the_simulations_scores(project: Path, tmp_path: Path, data: dict[str, Any]) -> None:
    document = of_numbers(tmp_path, **data).plain()
    document["algorithm"] |= {"scores": "sum"}
    config = resolve(document)
    hand_out(*split(config, SITES), project, SITES, config)
    fed, algorithm, _ = joined(project, config)
    judging = Judging() if data else Judging(intervals=0.8)
    *_, last = train(algorithm, fed, 2, judging=judging)
    expected, _ = simulated(config)
    names = ("auc", "average_precision") if data else ("rmse", "mae", "r2", "pearson")
    for name in (f"{kind}/{name}" for kind in ("global", "local") for name in names):
        assert last.summary[name] == pytest.approx(expected.summary[name], rel=1e-4), name
    if not data:
        assert last.summary["intervals/half_width/1"] > 0
