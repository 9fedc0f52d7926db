"""Between sites, edges carry what they do in the simulation; what a server cannot know of them is said in [model]."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.datasets import load
from fedweave.deploy.flare.site.holdings import own_graph
from fedweave.deploy.flare.site.sitefile import SITE_FILE, read_site_file
from fedweave.deploy.sites.splitting import hand_out, split
from fedweave.errors import ClientsMissing
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from tests.contract.federations import distance
from tests.deploy.projects import SITES, experiment
from tests.deploy.test_in_process import joined, project, simulated

__all__ = ["project"]
TABLES = {
    "directed": True,
    "edge_features": "amount",
    "edge_weight": "amount",
    "edge_normalise": "standard",
    "loops": "keep",
}


def bank(root: Path, nodes: int = 240, split_column: bool = False) -> Path:
    """Accounts, and transfers with amounts between them."""
    root.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    accounts = {"id": [f"a{at}" for at in range(nodes)], "label": np.arange(nodes) % 2, "age": draw.normal(size=nodes)}
    accounts |= {"split": [("train", "val", "test")[at % 3] for at in range(nodes)]} if split_column else {}
    ends = draw.integers(0, nodes, (2, 5 * nodes))
    transfers = {"source": [f"a{at}" for at in ends[0]], "target": [f"a{at}" for at in ends[1]]}
    pd.DataFrame(accounts).to_csv(root / "nodes.csv", index=False)
    pd.DataFrame(transfers | {"amount": draw.uniform(1, 5, 5 * nodes)}).to_csv(root / "edges.csv", index=False)
    return root


def experiment_with(path: Path, **model: object) -> object:
    document = experiment(rounds=2).plain()
    own = {"name": "folder", "path": str(path), **TABLES}
    return resolve({**document, "data": own, "model": {"hidden": 8, **model}})


@pytest.mark.parametrize(
    "model",
    [
        {"name": "gine", "edge_features": 1, "directed": "both"},
        {"name": "gcn", "weighted": True, "directed": "forward"},
    ],
)
def test_sites_give_the_numbers_of_the_simulation(project: Path, tmp_path: Path, model: dict[str, object]) -> None:
    config = experiment_with(bank(tmp_path / "data"), **model)
    hand_out(*split(config, SITES), project, SITES)
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    expected, _ = simulated(config)
    assert distance(last.state, expected.state) <= 1e-5
    assert last.summary == pytest.approx(expected.summary, abs=1e-5)


@pytest.mark.parametrize(("name", "said"), [("gine", "say edge_features = 1"), ("gcn", "say weighted = true")])
def test_what_the_server_does_not_know_is_asked_for(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, said: str
) -> None:
    config = experiment_with(bank(tmp_path / "data"), name=name)
    hand_out(*split(config, SITES), project, SITES)
    with pytest.raises(ClientsMissing):
        joined(project, config)
    assert said in caplog.text


def test_a_site_s_own_tables_are_read_as_in_a_simulation(project: Path) -> None:
    site = project / SITES[0]
    bank(site / "data", split_column=True)
    lines = ['path = "data"', "classes = 2", "directed = true", 'edge_features = ["amount"]', 'edge_weight = "amount"']
    (site / SITE_FILE).write_text("\n".join(["[data]", *lines, 'edge_normalise = "standard"', 'loops = "keep"']) + "\n")
    here = own_graph(read_site_file(site / SITE_FILE)[0], site)
    there = load("folder", str(site / "data"), classes=2, **TABLES)
    assert all(map(np.array_equal, here.carried.arrays().values(), there.carried.arrays().values()))
    assert here.carried.columns == ("amount",)
