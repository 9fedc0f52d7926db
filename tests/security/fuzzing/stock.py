"""Whole files for a fuzz test, made once: data in every format, a finished run, sites and what they reply."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from fedweave.core.tree import Tree, encode
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.run import run
from fedweave.python.training import Silent
from tests.security.cheating import SITE, agreed, make_sites
from tests.sites.projects import SITES, InProcess, call_request, join_request, tables


@dataclass(frozen=True)
class Stock:
    """Whole files, once for all cases. root: of a folder of each kind. sites: as `make_sites` makes them."""

    root: Path
    sites: Path
    replies: dict[str, bytes]


def make_stock(root: Path) -> Stock:
    """Data in every format, a finished run, sites, and a reply of each site."""
    tables(root / "parties")
    graphs = root / "graphs"
    graphs.mkdir()
    (graphs / "graphs.csv").write_text("id,label,split\n" + "".join(f"g{i},c{i % 2},train\n" for i in range(4)))
    (graphs / "nodes.csv").write_text("graph,id,f0\n" + "".join(f"g{i % 4},n{i},{i}\n" for i in range(12)))
    (graphs / "edges.csv").write_text("graph,source,target\n" + "".join(f"g{i},n{i},n{i + 4}\n" for i in range(4)))
    sites = make_sites(root / "sites")
    document = agreed(rounds=2).plain() | {"engine": {"name": "simulation", "mode": "loop"}}
    config = resolve(document)
    run(config, root / "run", Silent())
    replies = {}
    link = InProcess(sites)
    for site in SITES:
        link.members[site].answer(join_request(agreed(), "r1"), b"")
        answer = link.members[site].answer(call_request(agreed(), "FedAvg.train"), encode(weights()))
        replies[site] = answer.blob
    shutil.copytree(sites / SITE, root / "journal")
    for site in SITES:
        for kept in ("ledgers", "runs"):
            shutil.rmtree(sites / site / kept)
    return Stock(root, sites, replies)


def weights() -> Tree:
    from fedweave.core import model as models
    from fedweave.core import random

    return {"w": models.init(agreed().model.make().build(8, 3), random.key(1), torch.float32)}
