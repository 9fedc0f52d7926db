"""Links between sites: the simulation's numbers, a split that no server has a say in, and what evaluations tell."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.ledger import Ledger
from fedweave.deploy.flare.federation import Flare, common_form
from fedweave.deploy.sites.experiments import hand_out, split
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.models.edges import model_told
from tests.contract.federations import distance
from tests.deploy.projects import SITES, InProcess, copied, experiment
from tests.deploy.test_in_process import renamed, simulated


@pytest.fixture
def project(provisioned: Path, tmp_path: Path) -> Path:
    """A copy of the project that the test may change."""
    target = copied(provisioned, tmp_path / "project")
    (target / "server/test.npz").unlink(missing_ok=True)
    return target


def tables(folder: Path, nodes: int = 90, kinds: tuple[str, ...] = (), label: bool = False, split: str = "") -> Path:
    """People in three groups, most of whose edges stay inside; `split` names a column of edges."""
    rng = np.random.default_rng(2)
    x = rng.normal(0, 1, (nodes, 3)) + np.eye(3)[np.arange(nodes) % 3]
    drawn = [(int(u), int(v)) for u, v in rng.integers(0, nodes, (nodes * 20, 2)) if u % 3 == v % 3 or rng.random() < 0.1]
    pairs = sorted({(u, v) if not kinds or u % 2 == 0 else (v, u) for u, v in drawn if u != v})
    pairs = [(u, v) for u, v in pairs if (u % 2 == 0 and v % 2 == 1 if kinds else u < v)]
    header = ["id", *(["kind"] if kinds else []), "a", "b", "c"]
    rows = [[f"n{i}", *([kinds[i % 2]] if kinds else []), *map(str, x[i])] for i in range(nodes)]
    more = [*(["label"] if label else []), *([split] if split else [])]
    edges = [
        [f"n{u}", f"n{v}", *([("likes", "knows", "pays")[(u + v) % 3]] if label else []), *(
            [("train", "train", "val", "test")[at % 4]] if split else []
        )]
        for at, (u, v) in enumerate(pairs)
    ]
    folder.mkdir(parents=True)
    for name, lines in (("nodes", [header, *rows]), ("edges", [["source", "target", *more], *edges])):
        (folder / f"{name}.csv").write_text("".join(",".join(line) + "\n" for line in lines))
    return folder


def of_links(folder: Path, algorithm: str = "fedavg", **changes: Any) -> Any:
    """An experiment on the links of these tables, cut for three sites."""
    data = {"name": "folder", "path": str(folder), "task": "links", "rank_negatives": 10, "ratios": [0.6, 0.2, 0.2]} | changes.pop("data", {})
    model = {"decoder": "dot"} | changes.pop("model", {})
    return experiment(
        algorithm,
        rounds=2,
        data=data,
        partition=changes.pop("partition", {"name": "edges", "by": "random", "clients": 3}),
        model=model,
        algorithm_settings=changes.pop("algorithm_settings", {}),
        **changes,
    )


def joined(project: Path, config: Any, link: InProcess | None = None, **options: Any) -> tuple[Flare, Any, Any]:
    link = link or InProcess(project)
    fed = Flare(link, SITES, ledger=Ledger(), seed=config.general.seed, **options)
    replies = fed.join(config.plain(), "r1", -1, False)
    fed.begin(1)
    fed.classes = 2
    form, features = common_form(replies), replies[SITES[0]]["features"]
    return fed, config.algorithm.make(model_told(config.model.make(), form, features, 2, config.decoder)), link


CASES: dict[str, dict[str, Any]] = {
    "dot": {},
    "relations": {"label": True, "model": {"decoder": "distmult"}},
    "items": {"kinds": ("user", "item"), "data": {"users": "user", "items": "item", "rank_negatives": "all"}},
    "messages": {"data": {"disjoint": 0.3, "message": "train+val"}, "model": {"name": "sage", "decoder": "mlp"}},
    "sums": {"algorithm_settings": {"scores": "sum", "parts": ["secure_sum"]}},
}


@pytest.mark.parametrize("case", CASES)
def test_sites_give_the_numbers_of_the_simulation(project: Path, tmp_path: Path, case: str) -> None:
    settings = dict(CASES[case])
    config = of_links(
        tables(tmp_path / "d", kinds=settings.pop("kinds", ()), label=settings.pop("label", False)), **settings
    )
    hand_out(*split(config, SITES), project, SITES, config)
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    expected, sim = simulated(config)
    assert distance(last.state, renamed(expected.state, sim)) <= 1e-5
    assert {"global/mrr", "global/auc", "global/hits_at_10"} <= last.summary.keys()
    told = {key: value for key, value in last.summary.items() if "pooled/" not in key}
    assert told.keys() == expected.summary.keys()
    assert told == pytest.approx(expected.summary, abs=1e-3)
    assert (case == "sums") == ("pooled/auc" in last.summary)
