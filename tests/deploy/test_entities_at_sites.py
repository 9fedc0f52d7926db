"""Entities between sites: numbered alike, averaged over holders as in a simulation, and hidden from the server."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.tree import decode, encode, leaves
from fedweave.datasets import triples
from fedweave.datasets.base import Dataset
from fedweave.deploy.flare.holdings import own_graph
from fedweave.deploy.flare.sitefile import SITE_FILE, read_ids_key, read_site_file, write_site_file
from fedweave.deploy.sites.checking import examine
from fedweave.deploy.sites.experiments import hand_out, split
from fedweave.deploy.sites.project import read_project
from fedweave.errors import ClientsMissing
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.privacy import union
from tests.contract.federations import distance
from tests.deploy.projects import SITES, InProcess
from tests.deploy.test_external import Watched
from tests.deploy.test_in_process import renamed, simulated
from tests.deploy.test_links_at_sites import joined, of_links, project, tables
from tests.links.test_knowledge_graphs import triples as circle
from tests.refusals import refusal

__all__ = ["project"]
FEDE = {"local_steps": 3, "lr": 0.05}


def knowledge(folder: Path, rounds: int = 2, **algorithm: Any) -> Any:
    """Triples dealt by relation to three sites, who share their entities."""
    folder.mkdir()
    config = of_links(
        circle(folder),
        "fede",
        data={"name": "triples", "rank_negatives": "all", "features": "learned"},
        partition={"name": "edges", "by": "relation", "clients": 3},
        model={"name": "embedding", "hidden": 8, "decoder": "distmult"},
        algorithm_settings=FEDE | algorithm,
    )
    return resolve({**config.plain(), "rounds": rounds})


def shop(folder: Path, **algorithm: Any) -> Any:
    """Users dealt to three sites, who share the items."""
    return of_links(
        tables(folder, kinds=("user", "item")),
        "fede",
        data={"users": "user", "items": "item", "rank_negatives": "all", "features": "learned"},
        partition={"name": "edges", "by": "source", "clients": 3},
        model={"name": "lightgcn", "hidden": 8, "layers": 2, "decoder": "dot"},
        algorithm_settings=FEDE | {"users": "home", "parts": [{"name": "link_prediction", "loss": "bpr"}]} | algorithm,
    )


def handed(project: Path, config: Any, least: int = 1) -> None:
    hand_out(*split(config, SITES), project, SITES, config)
    for site in SITES:
        path = project / site / SITE_FILE
        path.write_text(path.read_text().replace("[policy]\n", f"[policy]\nmin_nodes = {least}\n"))


def numbered_as_at_sites(monkeypatch: pytest.MonkeyPatch, key: bytes) -> None:
    """Have a simulation number entities by their keyed hashes, as sites do: rows of vectors begin by their number."""

    def learned(data: Dataset) -> Dataset:
        names = data.called or tuple(map(str, range(data.nodes)))
        own = union.hashes(names, key)
        return triples.learned(data, union.places(own, np.unique(own, axis=0)), data.nodes)

    monkeypatch.setattr("fedweave.experiment.build.learned", learned)


@pytest.mark.parametrize(
    "case",
    [
        ("knowledge", {}),
        ("knowledge", {"secure_sum": True, "share": ["*"]}),
        ("shop", {"secure_sum": True}),
    ],
    ids=["fede", "fede-sum", "lightgcn-sum"],
)
def test_sites_give_the_numbers_of_the_simulation(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[str, dict[str, Any]]
) -> None:
    name, settings = case
    config = (knowledge if name == "knowledge" else shop)(tmp_path / "d", **settings)
    handed(project, config)
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    numbered_as_at_sites(monkeypatch, read_ids_key(project / SITES[0]))
    expected, sim = simulated(config)
    assert distance(last.state, renamed(expected.state, sim)) <= 1e-5
    assert "global/mrr" in last.summary
    assert last.summary == pytest.approx(expected.summary, abs=1e-3)
