"""Edges to other sites' nodes: what sites make of them, tell each other over them, and keep from the server."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.deploy.sites.splitting import hand_out, split
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.rounds import train
from tests.contract.federations import distance
from tests.deploy.projects import SITES, experiment
from tests.deploy.test_carrying_at_sites import bank
from tests.deploy.test_in_process import joined, project, simulated

__all__ = ["project"]
EDGES = {"directed": True, "edge_features": "amount", "edge_weight": "amount", "loops": "keep"}


def across(path: Path, external: str, least: int = 1, **data: Any) -> Config:
    """Three banks and the transfers between them."""
    own = {"name": "folder", "path": str(path), "external": external, "external_least": least, **EDGES, **data}
    cut = {"name": "random", "clients": 3}
    document = experiment(rounds=2).plain()
    return resolve({**document, "data": own, "partition": cut, "model": {"name": "sage", "hidden": 8}})


def handed(project: Path, config: Config) -> Path:
    (project / "server/test.npz").unlink(missing_ok=True)
    hand_out(*split(config, SITES), project, SITES, config)
    return project


@pytest.mark.parametrize(
    ("external", "least", "normalise"), [("features", 1, "none"), ("exchange", 1, "row"), ("exchange", 2, "none")]
)
def test_sites_give_the_numbers_of_the_simulation(
    project: Path, tmp_path: Path, external: str, least: int, normalise: str
) -> None:
    config = across(bank(tmp_path / "data"), external, least, normalise=normalise)
    fed, algorithm, _ = joined(handed(project, config), config)
    *_, last = train(algorithm, fed, 2)
    expected, _ = simulated(config)
    assert distance(last.state, expected.state) <= 1e-5
    assert last.summary == pytest.approx(expected.summary, abs=1e-5)
