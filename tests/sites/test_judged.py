"""The graph on which a global model is judged is the same at a site as in the simulation."""

from pathlib import Path

import numpy as np
import torch

from fedweave.core.graph import SPLITS
from fedweave.datasets import load
from fedweave.experiment.config import resolve
from fedweave.experiment.graphs import global_test_graph
from fedweave.partition import Column, EgoNetworks, Louvain
from fedweave.sites.flare.holdings import hold
from fedweave.sites.flare.requests import SERVER
from fedweave.sites.flare.sitefile import SITE_FILE, read_site_file
from fedweave.sites.operation.experiments import hand_out


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
        assert torch.equal(there.masks, here.masks)
        assert there.masks.any(1).tolist() == ([True] * len(SPLITS) if name == "egos" else [False, False, True])
        assert np.array_equal(there.edges.members[0].index, here.edges.members[0].index)
        assert torch.equal(torch.as_tensor(there.y), here.y)


def test_a_split_keeps_the_names_of_classes(tmp_path: Path) -> None:
    """Also at a site that lacks the first class, whose labels would begin with another number by themselves."""
    rows = "".join(f"{i},{'default' if i < 8 else 'repaid'},{'north' if i < 10 else 'south'},{i}\n" for i in range(30))
    (tmp_path / "nodes.csv").write_text(f"id,label,branch,f\n{rows}")
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"{i},{i + 1}\n" for i in range(29)))
    data, config = load("folder", str(tmp_path), owner="branch"), resolve({"data": {"name": "synthetic"}})
    for site in ("a", "b"):
        (tmp_path / "project" / site).mkdir(parents=True)
    hand_out(data, Column().cut(data, 0), tmp_path / "project", ("a", "b"))
    for site, held in (("a", [8, 2]), ("b", [0, 20])):
        given = read_site_file(tmp_path / "project" / site / SITE_FILE)[0]
        assert given.labels == ("default", "repaid")
        found = hold(given, tmp_path / "project" / site, config)
        assert (found.data.classes, found.data.labels) == (2, ("default", "repaid"))
        assert np.bincount(found.data.y, minlength=2).tolist() == held
