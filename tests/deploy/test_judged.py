"""The graph on which a global model is judged is the same at a site as in the simulation."""

from pathlib import Path

import numpy as np
import torch

from fedweave.build import global_test_graph
from fedweave.config import resolve
from fedweave.core.graph import SPLITS
from fedweave.datasets import load
from fedweave.deploy.flare.holdings import hold
from fedweave.deploy.flare.provision import SERVER
from fedweave.deploy.flare.sitefile import SITE_FILE, read_site_file
from fedweave.deploy.sites.splitting import hand_out
from fedweave.partition import EgoNetworks, Louvain


def test_a_site_holds_the_graph_that_the_simulation_judges_on(tmp_path: Path) -> None:
    data = load("synthetic", nodes=200, classes=2, sensitive=True)
    config = resolve({"data": {"name": "synthetic"}})
    for name, how in (("egos", EgoNetworks(hops=1, clients=2)), ("holdout", Louvain(clients=2, holdout=True))):
        project, sites = tmp_path / name, ("bank", "shop")
        for folder in (SERVER, *sites):
            (project / folder).mkdir(parents=True)
        cut = how.cut(data, 0)
        hand_out(data, cut, project, sites)
        there = hold(read_site_file(project / "bank" / SITE_FILE)[0], project / "bank", config).test
        here = global_test_graph(data, cut)
        assert there is not None
        assert here is not None
        assert torch.equal(there.masks, here.masks)
        assert there.masks.any(1).tolist() == ([True] * len(SPLITS) if name == "egos" else [False, False, True])
        assert np.array_equal(there.edges.members[0].index, here.edges.members[0].index)
        assert torch.equal(torch.as_tensor(there.y), here.y)
