"""Sites whose data a run changes: it stays with them, goes back when the server does, and is missed when it is lost."""

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.core.federation import StepInfo
from fedweave.core.graph_arrays import graph_arrays, tree_graph
from fedweave.core.ledger import Ledger
from fedweave.core.tree import decode, encode, leaves
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.graphs import graphs_at_server
from fedweave.experiment.rounds import train
from fedweave.sites.flare.agreement import server_graphs
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.inspection import Inspector
from fedweave.sites.flare.peers import read_version
from fedweave.sites.flare.server import Server
from fedweave.sites.operation.experiments import hand_out, split
from tests.contract.changing import KINDS
from tests.contract.federations import distance
from tests.contract.test_crossing import NeighborSums
from tests.contract.test_nodes import NodeCodes
from tests.refusals import refusal
from tests.sites.projects import SITES, InProcess, experiment, job_of, join_request

CLIENTS = dict(zip(SITES, ("client-0", "client-1", "client-2"), strict=True))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The algorithms can be named in a configuration."""
    for name, kind in {**KINDS, "codes": NodeCodes}.items():
        monkeypatch.setitem(ALGORITHMS, name, kind)


def joined(project: Path, config: Any, after: int = -1, **options: Any) -> tuple[Flare, Any]:
    """A federation that all sites have joined, and its algorithm."""
    data, link = options.pop("data", None), InProcess(project)
    fed = Flare(link, SITES, ledger=Ledger(), seed=config.general.seed, **options)
    replies = fed.join(config.plain(), "r1", after, data=data)
    fed.classes = replies[replies.clients[0]]["classes"]
    return fed, config.algorithm.make(config.model.make().build(64, fed.classes))


def simulated(config: Any, rounds: int) -> tuple[Any, Any]:
    """The last step and the simulation, by the loop."""
    document = {**config.plain(), "engine": {"name": "simulation", "mode": "loop"}, "rounds": rounds}
    built = build(resolve(document))
    *_, last = train(built.algorithm, built.fed, rounds)
    return last, built.fed


def check_data(project: Path, sim: Any) -> None:
    """The sites hold the data that the simulation's clients have."""
    for site, client in CLIENTS.items():
        kept = decode((project / site / "runs/r1/data.safetensors").read_bytes())
        expected = sim.snapshot_data()[client]
        assert kept["version"] == expected["version"]
        assert ("graph" in kept) == ("graph" in expected)
        if "graph" in kept:
            own = graph_arrays(tree_graph(kept["graph"]))
            for mine, theirs in zip(own, graph_arrays(sim.graphs[client]), strict=True):
                assert mine is theirs is None or (mine == theirs).all()


@pytest.mark.often("drifting")
@pytest.mark.parametrize("name", KINDS)
def test_sites_change_their_data_as_the_simulation_does(project: Path, name: str) -> None:
    config = experiment(name, rounds=3)
    fed, algorithm = joined(project, config)
    *_, last = train(algorithm, fed, 3)
    expected, sim = simulated(config, 3)
    assert distance({"w": last.state["w"]}, {"w": expected.state["w"]}) <= 1e-5
    assert {k: v for k, v in last.summary.items() if k.startswith("local")} == pytest.approx(
        {k: v for k, v in expected.summary.items() if k.startswith("local")}, abs=1e-5
    )
    check_data(project, sim)
    assert fed.snapshot_data() == {site: {"version": 3} for site in SITES}
    told = {
        row["key"] for row in fed.ledger.table().to_pylist() if "change" in row["step"] and row["direction"] == "up"
    }
    assert told - {"(names and framing)"} == ({"changed"} if name == "drifting" else set())


@pytest.mark.slow
def test_data_goes_back_to_the_checkpoint_with_the_server(project: Path) -> None:
    config = experiment("mending", rounds=5)
    fed, algorithm = joined(project, config)
    for step in train(algorithm, fed, 4):
        if step.round == 2:
            saved, data, state = fed.snapshot(), fed.snapshot_data(), step.state  # rounds 3 and 4 are lost
    again, algorithm = joined(project, config, after=2, data=data)
    again.restore(saved, data)
    assert again.snapshot_data() == {site: {"version": 2} for site in SITES}
    *_, last = train(algorithm, again, 5, resume=(2, state))
    expected, sim = simulated(config, 5)
    assert distance({"w": last.state["w"]}, {"w": expected.state["w"]}) <= 1e-5
    check_data(project, sim)


def test_data_survives_the_site(project: Path) -> None:
    config = experiment("drifting", rounds=4)
    fed, algorithm = joined(project, config)
    steps = train(algorithm, fed, 4)
    next(steps), next(steps)
    fresh = InProcess(project).members["bank-b"]
    fresh.answer(join_request(config, after=2), b"")
    fed._link.members["bank-b"] = fresh
    *_, last = steps
    expected, sim = simulated(config, 4)
    assert distance({"w": last.state["w"]}, {"w": expected.state["w"]}) <= 1e-5
    check_data(project, sim)


def test_a_site_that_lost_its_data_cannot_go_on(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = experiment("dropping", rounds=3)
    fed, algorithm = joined(project, config)
    list(train(algorithm, fed, 2))
    for path in (project / "bank-b/runs/r1").glob("data*"):
        path.unlink()
    with refusal("clients-missing", "bank-b:"):
        joined(project, config, after=2, data=fed.snapshot_data())
    assert any(
        "is of version 0, but was of version 2 after round 2" in record.getMessage() for record in caplog.records
    )


def test_a_refused_graph_stops_its_site_alone_and_is_described_to_its_owner(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.contract import changing

    honest = changing.graph_like

    def spoiled(graph: Any, arrays: Any) -> Any:
        made = honest(graph, arrays)
        if len(arrays.y) == size:
            made.y[0] = 77
        return made

    config = experiment("dropping", rounds=1)
    fed, algorithm = joined(project, config, quorum=0.6)
    graph = job_of(fed._link.members["bank-c"]).graph
    size = int(graph.real.sum())
    monkeypatch.setattr(changing, "graph_like", spoiled)
    fed.begin(1)
    replies = fed.replace_data(algorithm.change, {"by": 0.1})
    assert list(replies.missing) == ["bank-c"]
    assert "77" not in replies.missing["bank-c"]
    assert any("row 0: label 77 is not in 0..9" in record.getMessage() for record in caplog.records)
    assert not (project / "bank-c/runs/r1/data.safetensors").exists()
    assert fed.snapshot_data() == {site: {"version": 1} for site in SITES[:2]}


def test_replies_may_have_a_row_for_each_node(project: Path) -> None:
    fed, algorithm = joined(project, experiment("codes", rounds=2))
    *_, last = train(algorithm, fed, 2)
    assert last.state["sum"].abs().sum() > 0
    rows = {row["shape"] for row in fed.ledger.table().to_pylist() if row["key"] == "codes"}
    assert len(rows) > 1


def test_only_the_rows_of_what_is_declared_per_node_may_differ() -> None:
    info = StepInfo.of({"h": "codes", "w": "weights"}, per_node=frozenset(["h"]))

    def blob(*h: int, w: int = 2) -> bytes:
        return encode({"h": {"x": torch.ones(h)}, "w": torch.ones(w)})

    blobs = {"a": blob(32, 3), "b": blob(64, 3), "c": blob(32, 4), "d": blob(32, 3, w=5), "e": blob(96, 3), "f": blob()}
    blobs["g"] = blob(160, 3)
    good, refused = Inspector(10_000).accept("train", info, {}, blobs)
    assert list(good) == ["a", "b", "e", "g"]
    assert refused == {
        "c": "its reply was refused: h/x is [nodes, 4] float32, not [nodes, 3] float32",
        "d": "its reply was refused: w is [5] float32, not [2] float32",
        "f": "its reply was refused: h/x is 0-d float32, not [nodes, 3] float32",
    }


def test_what_the_server_holds_besides_is_handed_out_to_it(project: Path) -> None:
    config = experiment("fedavg")
    data, cut = split(config, SITES)
    first, second, *_ = cut.parts
    held = {"public": first, "validation": dataclasses.replace(second, masks=second.masks[[1, 0, 2]])}
    (project / "server/public.npz").unlink(missing_ok=True)
    before = server_graphs(project / "server", torch.float32)
    hand_out(data, dataclasses.replace(cut, held=held), project, SITES)
    found = server_graphs(project / "server", torch.float32)
    expected = graphs_at_server(data, dataclasses.replace(cut, held=held))
    assert list(expected) == ["public", "validation"]
    assert found.keys() == before.keys() | expected.keys()
    for role, graph in expected.items():
        for name in ("y", "masks", "real"):
            assert torch.equal(getattr(found[role], name), getattr(graph, name))
    assert not list(project.glob("bank-*/public.npz"))


def test_no_site_knows_the_nodes_of_others(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "neighbour_sums", NeighborSums)
    config, folder = experiment("neighbour_sums"), project / "server"
    with refusal("user.neighbours-unknown", "neighbour_sums"):
        Server("r1", SITES, "")._join(config, folder, folder / "runs/r1", cast(Any, InProcess(project)))


@pytest.mark.parametrize(
    ("note", "version"),
    [("", 2), ('{"(data)": 3}', 3), ('{"(data)": 1}', 2), ('{"(data)": "9"}', 2), ("[", 2), ("3", 2)],
)
def test_a_noted_version_can_only_rise(note: str, version: int) -> None:
    assert read_version(note, 2) == version


def test_states_of_sites_have_a_row_for_each_of_their_rows(project: Path) -> None:
    fed, algorithm = joined(project, experiment("mending", rounds=2))
    list(train(algorithm, fed, 2))
    for site in SITES:
        kept = {
            name: decode((project / site / f"runs/r1/{name}.safetensors").read_bytes()) for name in ("state", "data")
        }
        assert len(dict(leaves(kept["state"]))["seen"]) == kept["data"]["graph"]["rows"]
