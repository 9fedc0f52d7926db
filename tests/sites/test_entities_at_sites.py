"""Entities between sites: numbered alike, averaged over holders as in a simulation, and hidden from the server."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.ledger import Ledger
from fedweave.core.tree import decode, leaves
from fedweave.core.types import FRAMING
from fedweave.datasets import triples
from fedweave.datasets.base import Dataset
from fedweave.errors import ClientsMissing
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.outputs import probabilities
from fedweave.privacy import union
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.site_data import training_graph
from fedweave.sites.flare.sitefile import SITE_FILE, read_ids_key, read_site_file, write_site_file
from fedweave.sites.operation.checking import examine
from fedweave.sites.operation.experiments import hand_out, split
from fedweave.sites.operation.project import read_project
from tests.contract.federations import distance
from tests.links.test_knowledge_graphs import triples as circle
from tests.refusals import refusal
from tests.sites.projects import SITES, InProcess, job_of, renamed, simulated
from tests.sites.test_external import Watched
from tests.sites.test_links_at_sites import joined, of_links, project, tables
from tests.sites.test_prediction_at_home import predict

__all__ = ["project"]
FEDE = {"local_steps": 3, "lr": 0.05}


def knowledge(folder: Path, rounds: int = 2, **algorithm: Any) -> Any:
    """Triples dealt by relation to three sites, who share their entities."""
    folder.mkdir()
    path = circle(folder) / "triples.csv"
    path.write_text(re.sub(r"\be(\d\d)\b", r"entity \1", path.read_text()))
    config = of_links(
        folder,
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

    def numbered(data: Dataset) -> Dataset:
        names = data.node_names or tuple(map(str, range(data.nodes)))
        own = union.hashes(names, key)
        return triples.with_node_columns(data, union.places(own, np.unique(own, axis=0)), data.nodes)

    monkeypatch.setattr("fedweave.experiment.loading.with_node_columns", numbered)


@pytest.mark.parametrize(
    "case",
    [("knowledge", {}), ("knowledge", {"secure_sum": True, "share": ["*"]}), ("shop", {"secure_sum": True})],
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


@pytest.mark.parametrize("case", [knowledge, shop])
def test_sites_predict_with_learned_vectors_what_the_simulation_predicts(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Callable[..., Any]
) -> None:
    """In processes that have just begun, and that number the entities as the run did."""
    config = case(tmp_path / "d")
    handed(project, config)
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    fed.snapshot()
    ledger = predict(project, config, algorithm, last.state)
    numbered_as_at_sites(monkeypatch, read_ids_key(project / SITES[0]))
    expected, sim = simulated(config)
    sim.begin(2)
    algorithm.deploy(expected.state, sim, "personal")
    for site, client in zip(SITES, sim.clients, strict=True):
        table, graph = pq.read_table(project / site / "runs/r1/predictions.parquet"), sim.graphs[client]
        chances = probabilities(algorithm.net, sim.snapshot()[client]["model"], graph)[graph.y >= 0][:, 1]
        assert len(table) == len(chances)
        assert np.sort(table["p_link"].to_numpy()) == pytest.approx(np.sort(chances.numpy()), abs=1e-4)
        assert np.std(chances.numpy()) > 1e-3
    up = [row for row in ledger.table().to_pylist() if row["direction"] == "up" and row["step"] != "(join)"]
    assert {row["key"] for row in up} == {FRAMING}


def test_the_server_hears_how_many_hold_an_entity_and_not_who(project: Path, tmp_path: Path) -> None:
    """What passes through it: no name, no row in the clear, and words of which each by itself is noise."""
    config = knowledge(tmp_path / "d", secure_sum=True, share=["*"])
    handed(project, config)
    link = Watched(project)
    fed, algorithm, _ = joined(project, config, link)
    *_, last = train(algorithm, fed, 2)
    passed = b"".join(link.seen)
    names = {name for site in SITES for name in held(project, site).node_ids}
    assert len(names) == 18
    assert not [name for name in names if name.encode() in passed]
    rows = [row for row in fed.ledger.table().to_pylist() if row["direction"] == "up"]
    sent = {row["key"]: row["mechanism"] for row in rows}
    assert {"cells", "entities"} <= sent.keys()
    for key in ("cells", "held/features", "held/relations", "update/0/weight", "update/1/relation"):
        assert "secure sum of all clients" in sent[key], key
    tables = [decode(blob, 1 << 24)["cells"] for blob in link.seen if b"cells" in blob and not blob.startswith(b"{")]
    own = {site: union.hashes(held(project, site).node_ids, read_ids_key(project / site)) for site in SITES}
    assert len(tables) == 3
    for site, masked in zip(SITES, tables, strict=True):
        plain = torch.from_numpy(union.table(own[site], len(masked)))
        assert (masked == plain).float().mean() < 0.01
    total = sum(union.table(one, len(tables[0])) for one in own.values())
    listed = union.union(total, 3)
    counts = np.bincount(np.concatenate([union.places(one, listed) for one in own.values()]))
    assert (counts >= 1).all()
    assert dict(leaves(last.state["w"]))["0/weight"].shape[0] == len(listed) == 18


def held(project: Path, site: str) -> Dataset:
    return training_graph(read_site_file(project / site / SITE_FILE)[0], project / site)


class Cheating(Watched):
    """A server that changes the list of entities before it goes to the sites."""

    def __init__(self, project: Path, edit: Any) -> None:
        super().__init__(project, lambda message: edit(message) if "listed" in message else message)


def test_an_entity_that_the_server_leaves_out_makes_no_site_refuse(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever refused would tell that the entity is its own; the owner finds it in the log."""
    config = knowledge(tmp_path / "d", secure_sum=True)
    handed(project, config)
    link = Cheating(project, lambda message: {"listed": message["listed"][1:]})
    fed, algorithm, _ = joined(project, config, link)
    *_, last = train(algorithm, fed, 1)
    assert dict(leaves(last.state["w"]))["0/weight"].shape[0] == 17
    assert "not on the server's list" in caplog.text


@pytest.mark.parametrize(
    "edit",
    [
        lambda message: {"listed": message["listed"].flip(0)},
        lambda message: {"listed": torch.cat([message["listed"], message["listed"][-1:]])},
        lambda message: {"listed": message["listed"][:0]},
        lambda message: {"listed": message["listed"].float()},
    ],
)
def test_a_list_that_is_none_is_refused_by_all(project: Path, tmp_path: Path, edit: Any) -> None:
    config = knowledge(tmp_path / "d", secure_sum=True)
    handed(project, config)
    with pytest.raises(ClientsMissing, match=r"bank-a.*bank-b.*bank-c"):
        joined(project, config, Cheating(project, edit))


def test_a_run_goes_on_with_the_numbers_that_it_began_with(project: Path, tmp_path: Path) -> None:
    config = knowledge(tmp_path / "d", rounds=3)
    handed(project, config)
    again = Path(shutil.copytree(project, tmp_path / "again"))
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 3)
    expected = last.state
    fed, algorithm, _ = joined(again, config)
    *_, half = train(algorithm, fed, 2)
    fed.snapshot()
    link = InProcess(again)
    resumed = Flare(link, SITES, ledger=Ledger(), seed=config.general.seed)
    replies = resumed.join(config.plain(), "r1", 2)
    assert {int(replies[site]["features"]) for site in SITES} == {18}
    resumed.restore({"round": 2})
    *_, end = train(algorithm, resumed, 3, resume=(2, half.state))
    assert distance(end.state, expected) <= 1e-6


def test_sites_with_triples_of_their_own_say_which_relations_there_are(project: Path, tmp_path: Path) -> None:
    config = knowledge(tmp_path / "d")
    lines = (tmp_path / "d/triples.csv").read_text().splitlines()
    names = ["after", "below", "near"]
    for at, site in enumerate(SITES):
        (project / site / "own").mkdir()
        rows = [line for line in lines[1:] if f",{names[at]}," in line]
        (project / site / "own/triples.csv").write_text("\n".join([lines[0], *rows]) + "\n")
        about = {"path": "own", "task": "links", "features": "learned", "labels": names}
        write_site_file(project / site / SITE_FILE, about, min_nodes=1, measures=["ranks"])
    assert not examine(project, read_project(project), config).faults
    fed, algorithm, link = joined(project, config)
    *_, last = train(algorithm, fed, 1)
    assert 0 < last.summary["global/mrr"] <= 1
    assert "global/auc" not in last.summary
    assert {job_of(link.members[site]).graph.x.shape[1] for site in SITES} == {18}
    write_site_file(project / SITES[0] / SITE_FILE, about | {"labels": names[1:]}, min_nodes=1)
    with refusal("data.row", "'after'"):
        held(project, SITES[0])


@pytest.mark.parametrize(
    ("policy", "why"), [({"deny": ["cells"]}, "policy.deny"), ({"epsilon": 1.0}, "policy.epsilon")]
)
def test_a_policy_may_forbid_it(
    project: Path, tmp_path: Path, policy: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = knowledge(tmp_path / "d", secure_sum=True)
    handed(project, config)
    path = project / SITES[1] / SITE_FILE
    path.write_text(
        path.read_text().replace("deny = []\n", "") + "".join(f"{key} = {value}\n" for key, value in policy.items())
    )
    assert any(
        whose == SITES[1] and why in text for whose, text in examine(project, read_project(project), config).faults
    )
    with pytest.raises(ClientsMissing):
        joined(project, config)
    assert why in caplog.text


def test_features_that_a_site_file_gives_are_not_replaced(project: Path, tmp_path: Path) -> None:
    """The owner says that nodes have no features of their own, not the server."""
    config = knowledge(tmp_path / "d")
    handed(project, config)
    path = project / SITES[0] / SITE_FILE
    path.write_text(path.read_text().replace('features = "learned"\n', ""))
    assert any("features" in why for _, why in examine(project, read_project(project), config).faults)
    with pytest.raises(ClientsMissing, match="bank-a"):
        joined(project, config)
