"""Between sites, edges carry what they do in the simulation, and may be the examples."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.datasets import load
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.outputs import probabilities
from fedweave.sites.flare.predicted import before_of
from fedweave.sites.flare.site_data import training_graph
from fedweave.sites.flare.sitefile import FINE, SITE_FILE, read_site_file, write_site_file
from fedweave.sites.operation.comparison import compare
from fedweave.sites.operation.experiments import hand_out, split
from fedweave.sites.operation.findings import Findings
from fedweave.sites.operation.running import number_of, run
from fedweave.sites.operation.site_check import check_site
from tests import commands
from tests.contract.federations import distance
from tests.sites.projects import SITES, check_equal, experiment, joined, simulated
from tests.sites.test_prediction_at_home import predict

TABLES = {
    "directed": True,
    "edge_features": "amount",
    "edge_weight": "amount",
    "edge_normalize": "standard",
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


@pytest.mark.often("model0")
@pytest.mark.parametrize(
    "model", [{"name": "gine", "directed": "both", "ports": True}, {"name": "gcn", "directed": "forward"}]
)
def test_sites_give_the_numbers_of_the_simulation(project: Path, tmp_path: Path, model: dict[str, object]) -> None:
    config = experiment_with(bank(tmp_path / "data"), **model)
    hand_out(*split(config, SITES), project, SITES)
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    check_equal(last, config)


def test_a_site_s_own_tables_are_read_as_in_a_simulation(project: Path) -> None:
    site = project / SITES[0]
    bank(site / "data", split_column=True)
    lines = ['path = "data"', "classes = 2", "directed = true", 'edge_features = ["amount"]', 'edge_weight = "amount"']
    (site / SITE_FILE).write_text("\n".join(["[data]", *lines, 'edge_normalize = "standard"', 'loops = "keep"']) + "\n")
    here = training_graph(read_site_file(site / SITE_FILE)[0], site)
    there = load("folder", str(site / "data"), classes=2, **TABLES)
    assert all(map(np.array_equal, here.edge_attrs.arrays().values(), there.edge_attrs.arrays().values()))
    assert here.edge_attrs.columns == ("amount",)


TRANSFERS = {
    "task": "edges",
    "directed": True,
    "edge_features": "amount",
    "edge_time": "day",
    "edge_normalize": "standard",
    "loops": "keep",
    "unlabeled": "unknown",
}
UNTIL = {"train_until": "1970-01-31", "val_until": 45.0}


def transfers(root: Path) -> Path:
    """Accounts of three banks, and transfers of which the large ones are fraud, over sixty days."""
    root.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    source, day = draw.integers(0, 60, 900), draw.integers(0, 60, 900)
    target = draw.integers(0, 20, 900) * 3 + np.where(draw.random(900) < 0.8, source, source + 1) % 3
    amount = draw.normal(size=900)
    label = np.where(amount > 1.0, "fraud", np.where(draw.random(900) < 0.05, "unknown", "fine"))
    nodes = {
        "id": [f"a{at}" for at in range(60)],
        "age": draw.normal(size=60),
        "bank": [SITES[at % 3] for at in range(60)],
    }
    edges = {"id": [f"t{at}" for at in range(900)], "source": [f"a{at}" for at in source]}
    edges |= {"target": [f"a{at}" for at in target], "amount": amount, "day": day, "label": label}
    pd.DataFrame(nodes).to_csv(root / "nodes.csv", index=False)
    pd.DataFrame(edges).to_csv(root / "edges.csv", index=False)
    return root


def on_transfers(
    path: Path, model: str = "gine", scaled: str = "standard", external: str = "refuse", **more: object
) -> object:
    document = experiment(rounds=2).plain()
    data = {"name": "folder", "path": str(path), **TRANSFERS, "owner": "bank", "edge_normalize": scaled}
    data |= {} if external == "refuse" else {"external": external}
    own = {"name": model, "hidden": 8} | ({"directed": "both", "ports": True} if model == "gine" else {})
    cut = {"name": "column", "split": "time", **UNTIL}
    return resolve({**document, "data": data, "model": own, "partition": cut, **more})


def own_tables(whole: Path, project: Path) -> None:
    """Give each site its bank's accounts and the transfers between them as tables of its own."""
    nodes, edges = (pd.read_csv(whole / f"{name}.csv") for name in ("nodes", "edges"))
    (project / "server/test.npz").unlink(missing_ok=True)
    for site in SITES:
        folder = project / site / "data"
        folder.mkdir(exist_ok=True)
        held = nodes[nodes["bank"] == site]
        inside = edges["source"].isin(held["id"]) & edges["target"].isin(held["id"])
        held.drop(columns="bank").to_csv(folder / "nodes.csv", index=False)
        edges[inside].to_csv(folder / "edges.csv", index=False)
        about = {"path": "data", "labels": ["fine", "fraud"], "random_id": site, **TRANSFERS, **UNTIL}
        write_site_file(project / site / SITE_FILE, about | {"edge_normalize": "none"}, measures=list(FINE))


@pytest.mark.often("gine-refuse", "gcn-exchange")
@pytest.mark.parametrize(("model", "external"), [("gine", "refuse"), ("gcn", "features"), ("gcn", "exchange")])
def test_edges_are_examples_as_in_the_simulation(project: Path, tmp_path: Path, model: str, external: str) -> None:
    """Split by time and with ports, whose models the server makes of what sites tell; those between sites make columns
    of nodes, up to the end of training."""
    config = on_transfers(transfers(tmp_path / "data"), model, external=external)
    (project / "server/test.npz").unlink(missing_ok=True)
    hand_out(*split(config, SITES), project, SITES, config)
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    _, sim = check_equal(last, config)
    assert all(graph.depends_on_split for graph in sim.graphs.values())
    assert {graph.x.shape[1] for graph in sim.graphs.values()} == {
        {"refuse": 1, "features": 9, "exchange": 13}[external]
    }


def test_new_nodes_beside_exchanged_columns_are_scaled_as_in_training(project: Path, tmp_path: Path) -> None:
    """`normalize = "auto"`: one new account of a wild age, without transfers, moves no score."""
    whole = transfers(tmp_path / "data")
    nodes = pd.read_csv(whole / "nodes.csv")
    nodes.assign(age=1000 * nodes["age"]).to_csv(whole / "nodes.csv", index=False)
    config = on_transfers(whole, "gcn", external="exchange", evaluation={"positive": 1})
    document = config.plain()
    config = resolve({**document, "data": {**document["data"], "normalize": "auto"}})
    (project / "server/test.npz").unlink(missing_ok=True)
    hand_out(*split(config, SITES), project, SITES, config)
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    fed.snapshot()
    expected, sim = simulated(config)
    assert distance(last.state, expected.state) <= 1e-5
    path = project / "bank-b/data.npz"
    arrays, held = dict(np.load(path)), 20
    new = {"x_data": np.float32(1e6), "x_indices": np.int32(0), "x_indptr": arrays["x_indptr"][-1] + 1}
    new |= {"owner": arrays["owner"][0], "node_ids": "new"}
    arrays |= {name: np.append(arrays[name], value).astype(arrays[name].dtype) for name, value in new.items()}
    arrays["x_shape"] = arrays["x_shape"] + [1, 0]
    arrays["outside_index"] = arrays["outside_index"] + (arrays["outside_index"] >= held)
    np.savez(path, **arrays)
    predict(project, config, algorithm, last.state, "global")
    for site in SITES:
        found = pd.read_parquet(project / site / "runs/r1/predictions.parquet")["score"].to_numpy()
        graph = sim.graphs[site]
        p = probabilities(algorithm.net, last.state["w"], graph)[:, 1].numpy()
        np.testing.assert_allclose(found, p[: len(found)], atol=1e-5)
        scaling = before_of(project / site, "r1").form.scaling
        assert [scaling["how"], len(scaling["shift"])] == ["auto", graph.x.shape[1]]
        assert any(scaling["shift"][9:])  # of exchanged columns, too


def test_a_site_s_own_transfers_are_predicted_by_their_ids(project: Path, tmp_path: Path) -> None:
    """Divided by the times in the site's file, with the simulation's scores; new ones, too."""
    whole = transfers(tmp_path / "data")
    own_tables(whole, project)
    config = on_transfers(whole, scaled="none", evaluation={"positive": 1})
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    fed.snapshot()
    expected, sim = simulated(config)
    assert distance(last.state, expected.state) <= 1e-5
    with open(project / "bank-b/data/edges.csv", "a") as file:
        file.write("new,a1,a4,0.3,59,\n")
    predict(project, config, algorithm, last.state, "global")
    for site in SITES:
        found = pd.read_parquet(project / site / "runs/r1/predictions.parquet")
        read = pd.read_csv(project / site / "data/edges.csv")
        for name in ("id", "source", "target"):
            assert found[name].tolist() == read[name].tolist()
        assert found["flagged"].tolist() == (found["score"] >= found["threshold"]).tolist()
        until = np.searchsorted((30.0, 45.0), read["day"])
        known = read["label"].isin(["fine", "fraud"])
        assert found["split"].tolist() == np.where(known, np.array(["train", "val", "test"])[until], "").tolist()
        graph = sim.graphs[site]
        p = probabilities(algorithm.net, last.state["w"], graph)[
            : graph.whole_edges.members[0].edge_attrs.total, 1
        ].numpy()
        scored = np.abs(found["score"].to_numpy()[: len(p)] - p)
        before = (known & (until < 2)).to_numpy()[: len(p)]
        assert scored[before].max() <= 1e-4  # what came later changes nothing before
        assert site == "bank-b" or scored.max() <= 1e-4


@pytest.mark.slow
def test_real_sites_train_on_transfers_predict_and_export(owned: Path, tmp_path: Path) -> None:
    """Processes: scores in sums, the threshold of all sites' validation examples, and a module of the joint model."""
    whole, out = transfers(tmp_path / "data"), tmp_path / "out"
    own_tables(whole, owned)
    sums = {"name": "fedavg", "scores": "sum", "lr": 0.1}
    config = on_transfers(whole, "gcn", "none", algorithm=sums, evaluation={"positive": 1, "threshold": "f1"})
    found = run(config, owned, out, False, lambda now: None)
    expected, _ = simulated(config)
    for name in ("global/accuracy", "global/loss"):
        assert found["metrics"][name] == pytest.approx(expected.summary[name], abs=1e-5)
    assert found["edges"] == {"features": 1, "weighted": False, "examples": True, "directed": True}
    commands.run("sites", "predict", out, "--sites", owned)
    for site in SITES:
        table = pd.read_parquet(owned / site / "runs" / number_of(out) / "predictions.parquet")
        assert table["id"].tolist() == pd.read_csv(owned / site / "data/edges.csv")["id"].tolist()
        assert (table["threshold"] == found["metrics"]["pooled/threshold"]).all()
    commands.run("sites", "export", out, "--site", owned / SITES[0])
    about = json.loads((out / "export/model.json").read_text())
    assert about["edges"]["columns"] == ["amount"]
    assert about["threshold"] == found["metrics"]["pooled/threshold"]


def test_a_check_finds_sites_whose_edges_carry_other_things(project: Path, tmp_path: Path) -> None:
    """Another number of features, or another feature in their place."""
    whole = transfers(tmp_path / "data")
    own_tables(whole, project)
    path, config = project / SITES[1] / SITE_FILE, on_transfers(whole, scaled="none")
    edges, as_made = project / SITES[1] / "data/edges.csv", path.read_text()
    for says, said in (("", ""), ('ignore = ["amount"]', "edges carry"), ('edge_features = "fee"', "columns: column ")):
        if says:
            path.write_text(as_made.replace('edge_features = "amount"', says))
        if "fee" in says:
            edges.write_text(edges.read_text().replace("amount", "fee", 1))
        told = Findings(forms={site: {} for site in SITES})
        for site in SITES:
            check_site(project / site, None if says else config, SITES, told)
        compare(told, False)
        odd = [site for site, what in told.faults if what.startswith(("edges carry", "columns"))]
        assert odd == [SITES[1]] * bool(says)
        assert not says or said in told.faults[-1][1]
        assert all("examples that are edges" in what for whose, what in told.facts if whose in SITES)
