"""Reasons for the score of a pair: what is left out is scored as changed tables are; planted reasons come first."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedweave.apply.explanation import Reason
from fedweave.apply.reasons import explain
from fedweave.apply.run_predictions import PairQuery, predictions
from fedweave.core import model as models
from fedweave.core.algorithm import graphs_of
from fedweave.core.graph import TEST
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.trained import finished_config, load_trained
from fedweave.python.training import load_run
from tests import commands
from tests.refusals import refusal
from tests.runs.test_predictions import made

TOWNS, PEOPLE, ALERTS, FIRST = 6, 20, 10, 9
ALONE = {"name": "random", "clients": 1}
FAST = {"name": "fedavg", "lr": 0.05, "local_steps": 5}
QUICK = {"shelf": False}


def people(folder: Path, seed: int, towns: int = TOWNS, count: int = PEOPLE) -> list[tuple[str, str]]:
    """People who know others of their town; the links to test."""
    rng = np.random.default_rng(seed)
    town = np.repeat(np.arange(towns), count)
    pairs = {tuple(sorted((i, int(j)))) for i in range(len(town)) for j in others(rng, town, i)}
    splits = rng.choice(["train", "val", "test"], len(pairs), p=[0.8, 0.1, 0.1])
    folder.mkdir(parents=True)
    age, kind = rng.normal(size=len(town)).round(3), rng.choice(["work", "kin"], len(pairs))
    nodes = {"id": [f"p{i}" for i in range(len(town))], "town": [f"t{t}" for t in town], "age": age}
    pd.DataFrame(nodes).to_csv(folder / "nodes.csv", index=False)
    rows = [(f"p{i}", f"p{j}", split, what) for (i, j), split, what in zip(sorted(pairs), splits, kind, strict=True)]
    edges = pd.DataFrame(rows, columns=["source", "target", "split", "label"])
    edges.to_csv(folder / "edges.csv", index=False)
    return [(row.source, row.target) for row in edges[edges["split"] == "test"].itertuples()]


def others(rng: np.random.Generator, town: np.ndarray, i: int) -> np.ndarray:
    return rng.choice([j for j in np.flatnonzero(town == town[i]) if j != i], 3, replace=False)


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    towns = sorted({*pd.read_csv(folder / "nodes.csv")["town"].fillna("")})
    return {"name": "folder", "path": str(folder), "task": "links", "categories": {"town": towns}} | more


def edited(folder: Path, to: Path, reason: Reason, pair: tuple[str, str], stays: bool = False) -> Path:
    """The tables of `folder` without a reason, by pandas. stays: of a neighbor only the edges go."""
    shutil.copytree(folder, to)
    nodes, edges = pd.read_csv(to / "nodes.csv"), pd.read_csv(to / "edges.csv")
    if reason.kind == "column":
        which, _, column = reason.name.partition(": ")
        usual = nodes["age"].median() if column == "age" else nodes["town"].mode().iloc[0]
        nodes.loc[nodes["id"] == pair[which == "target"], column] = usual
    elif reason.kind == "neighbor":
        nodes = nodes[stays | (nodes["id"] != reason.name)]
        edges = edges[(edges["source"] != reason.name) & (edges["target"] != reason.name)]
    else:
        first, way, second = reason.name.split(" ")
        there = (edges["source"] == first) & (edges["target"] == second) & (edges["split"] == "train")
        if way == "—":
            there |= (edges["source"] == second) & (edges["target"] == first) & (edges["split"] == "train")
        assert there.sum() == 1, reason
        edges = edges[~there]
    nodes.to_csv(to / "nodes.csv", index=False)
    edges.to_csv(to / "edges.csv", index=False)
    return to


def score_of(run: Path, tables: Path, pair: tuple[str, str], relation: int = 0) -> float:
    """What the run's model says of a pair in tables, as if it had been loaded with them."""
    last = load_trained(run, finished_config(run), "")
    document = last.config.plain()
    built = build(resolve({**document, "data": {**document["data"], "path": str(tables)}}))
    [client] = built.fed.clients
    places = {name: at for at, name in enumerate(built.data.node_ids)}
    order = built.partition.parts[0].nodes.tolist()
    ends = [order.index(places[name]) for name in pair]
    graph = graphs_of(built.fed)[client].at(TEST)._replace(pairs=torch.tensor([[ends[0]], [ends[1]], [relation]]))
    outputs = models.infer_split(last.net_of(client), last.model_of("personal", client), graph)
    return float(torch.softmax(outputs, -1)[0, 1])


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ({"name": "gcn", "decoder": "dot"}, {}),
        ({"name": "sage", "decoder": "mlp"}, {}),
        ({"name": "mlp", "decoder": "common_neighbors"}, {}),
        ({"name": "gat", "decoder": "dot"}, {"message": "train+val"}),
        ({"name": "rgcn", "decoder": "distmult"}, {"relation": True, "directed": True}),
        ({"name": "rgcn", "decoder": "distmult"}, {"relation": True, "directed": True, "features": "learned"}),
        ({"name": "lightgcn", "decoder": "dot"}, {"features": "learned"}),
    ],
    ids=lambda one: "-".join(map(str, one.values())) if "decoder" in one else "",
)
def test_what_is_left_out_of_a_pair_is_scored_as_changed_tables_are(
    tmp_path: Path, model: dict[str, Any], more: dict[str, Any]
) -> None:
    pair = people(tmp_path / "data", 0, 3, 8)[0]
    data, run = settings(tmp_path / "data", **{"normalize": "none", "relation": False} | more), "run"
    made(tmp_path / run, FAST, data, 3, partition=ALONE, model={"hidden": 8} | model, evaluation=QUICK)
    relation = ["kin"] if "relation" in more else []
    explanation = explain(tmp_path / run, (*pair, *relation))
    assert explanation.score == pytest.approx(score_of(tmp_path / run, tmp_path / "data", pair), abs=1e-5)
    learned = "features" in more  # a vector for each node, which stays where the node goes
    assert {"neighbor", "edge"} | ({"column"} if not learned else set()) <= {one.kind for one in explanation.reasons}
    picked = [*explanation.reasons[:6], *[one for one in explanation.reasons if one.kind == "column"][:2]]
    for at, reason in enumerate(picked):
        if more.get("message") and reason.kind == "edge":
            continue  # along links to validate, too
        changed = edited(tmp_path / "data", tmp_path / str(at), reason, pair, learned)
        assert reason.without == pytest.approx(score_of(tmp_path / run, changed, pair), abs=2e-5), reason
    assert (explanation.example, explanation.threshold) == ("link", None)
    assert explanation.name.startswith(" → ".join(pair))


def test_a_pair_is_scored_as_predict_scores_it(tmp_path: Path) -> None:
    """Among several clients, each by its own model; also pairs that are not links."""
    people(tmp_path / "data", 1)
    data = settings(tmp_path / "data", relation=False)
    run = tmp_path / "run"
    made(run, FAST | {"name": "ditto"}, data, 2, partition={"name": "random", "clients": 2}, evaluation=QUICK)
    nodes = {name: [] for name in ("client-0", "client-1")}
    last = load_trained(run, finished_config(run), "")
    for name, part in zip(last.built.fed.clients, last.built.partition.parts, strict=True):
        nodes[name] = [last.built.data.node_ids[at] for at in part.nodes[:4]]
    pairs = [(name, first, second) for name, (first, second, *_) in nodes.items()]
    table = pd.DataFrame([pair[1:] for pair in pairs], columns=["source", "target"])
    table.to_csv(tmp_path / "pairs.csv", index=False)
    expected = predictions(run, None, None, None, query=PairQuery(tmp_path / "pairs.csv")).to_pylist()
    for client, source, target in pairs:
        [row] = [row for row in expected if (row["client"], row["source"], row["target"]) == (client, source, target)]
        assert load_run(run).explain(client, (source, target)).score == pytest.approx(row["score"], abs=1e-6)


def test_a_planted_town_comes_first(tmp_path: Path) -> None:
    """Who knows whom depends on the towns of both alone. Most often no town is known, which is what is typical."""
    pairs = people(tmp_path / "data", 0)[:ALERTS]
    nodes, edges = pd.read_csv(tmp_path / "data/nodes.csv"), pd.read_csv(tmp_path / "data/edges.csv")
    more = [(f"s{at}", "none", round(float(age), 3)) for at, age in enumerate(np.random.default_rng(1).normal(size=40))]
    links = [(f"s{at}", f"s{(at + 7) % 40}", "train", "kin") for at in range(40)]
    pd.concat([nodes, pd.DataFrame(more, columns=nodes.columns)]).to_csv(tmp_path / "data/nodes.csv", index=False)
    pd.concat([edges, pd.DataFrame(links, columns=edges.columns)]).to_csv(tmp_path / "data/edges.csv", index=False)
    data = settings(tmp_path / "data", relation=False)
    made(tmp_path / "run", FAST, data, 20, partition=ALONE, evaluation=QUICK, model={"decoder": "dot", "name": "gcn"})
    first = [explain(tmp_path / "run", pair).reasons[0].name for pair in pairs]
    assert sum(name in ("source: town", "target: town") for name in first) >= FIRST


@pytest.mark.often("False")
@pytest.mark.parametrize("learned", [False, True])
def test_a_planted_neighbor_comes_first(tmp_path: Path, learned: bool) -> None:
    """Of somebody without a town, one of five neighbors tells it."""
    people(tmp_path / "data", 0)
    rng = np.random.default_rng(1)
    nodes, edges = pd.read_csv(tmp_path / "data/nodes.csv"), pd.read_csv(tmp_path / "data/edges.csv")
    more, links, planted = [], [], []
    for at in range(ALERTS):
        near, asked = rng.choice(PEOPLE, 2, replace=False) + PEOPLE * int(rng.integers(TOWNS))
        more += [(f"{name}{at}", "none", round(float(rng.normal()), 3)) for name in ("q", "a", "b", "c", "d")]
        links += [(f"q{at}", f"{name}{at}", "train", "kin") for name in "abcd"]
        links += [(f"q{at}", f"p{near}", "train", "kin"), (f"q{at}", f"p{asked}", "test", "kin")]
        planted.append((f"q{at}", f"p{asked}", f"p{near}"))
    pd.concat([nodes, pd.DataFrame(more, columns=nodes.columns)]).to_csv(tmp_path / "data/nodes.csv", index=False)
    pd.concat([edges, pd.DataFrame(links, columns=edges.columns)]).to_csv(tmp_path / "data/edges.csv", index=False)
    data = settings(tmp_path / "data", relation=False, **({"features": "learned"} if learned else {}))
    model = {"name": "lightgcn" if learned else "gcn", "decoder": "dot"}
    made(tmp_path / "run", FAST, data, 20, partition=ALONE, evaluation=QUICK, model=model)
    first = [explain(tmp_path / "run", pair[:2]).reasons[0] for pair in planted]
    hits = [
        one.kind in ("neighbor", "edge") and near in one.name.split(" ")
        for one, (*_, near) in zip(first, planted, strict=True)
    ]
    assert sum(hits) >= FIRST
    commands.run("explain", tmp_path / "run", "--pair", *planted[0][:2], "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert planted[0][2] in page
    out = str(tmp_path / "reasons.json")
    commands.run("explain", tmp_path / "run", "--pair", *planted[0][:2], "-o", out)
    assert json.loads(Path(out).read_text())["name"] == " → ".join(planted[0][:2])
    if learned:
        with refusal("explain.method"):
            explain(tmp_path / "run", planted[0][:2], method="gradients")
        return
    gradients = explain(tmp_path / "run", planted[0][:2], method="gradients")
    assert gradients.base is not None
    parts = sum(one.effect for one in gradients.reasons)
    assert parts == pytest.approx(gradients.score - gradients.base, abs=0.02)
    check_refusals(tmp_path / "run", planted[0][:2])


def check_refusals(run: Path, pair: tuple[str, str]) -> None:
    """What is not a pair of the run."""
    for name, more, code in (
        ("q0", {}, "explain.pair"),
        (("q0",), {}, "explain.pair"),
        ((*pair, "kin"), {}, "explain.pair"),
        (("q0", "nobody"), {}, "explain.no-id"),
        (pair, {"target": "link"}, "explain.pair"),
        (pair, {"data": run}, "explain.pair"),
        (pair, {"client": "client-9"}, "user.no-client"),
    ):
        with refusal(code):
            explain(run, name, **more)
    for words in ([], ["--id", "q0", "--pair", *pair], ["--id", "q0", "--relation", "kin"]):
        commands.run("explain", run, *words, code=2)


def test_where_no_messages_pass_nothing_is_left_out(tmp_path: Path) -> None:
    pair = people(tmp_path / "data", 0, 3, 8)[0]
    data = settings(tmp_path / "data", relation=False, features="learned")
    made(
        tmp_path / "run",
        FAST,
        data,
        1,
        partition=ALONE,
        evaluation=QUICK,
        model={"name": "embedding", "decoder": "dot"},
    )
    explanation = explain(tmp_path / "run", pair)
    assert (explanation.reasons, len(explanation.notes)) == ((), 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nations", "kinships"])
def test_triples_of_knowledge_graphs_are_explained(tmp_path: Path, data_root: Path, name: str) -> None:
    """A public set with learned vectors: the score of `predict`, and reasons among the triples around."""
    data = {"name": name, "path": str(data_root), "task": "links", "features": "learned"}
    model = {"name": "rgcn", "decoder": "distmult", "hidden": 16}
    run = tmp_path / "run"
    made(run, FAST, data, 3, partition=ALONE, evaluation=QUICK, model=model)
    built = load_trained(run, finished_config(run), "").built
    links, attributes = built.data.links, built.data.edge_attrs
    at = int(np.flatnonzero(np.asarray(built.data.public)[TEST])[0])
    source, target = (built.data.node_ids[end] for end in attributes.ends[:, at])
    relation = links.relations[attributes.y[at]]
    pd.DataFrame([(source, target, relation)], columns=["source", "target", "relation"]).to_csv(
        tmp_path / "pairs.csv", index=False
    )
    [row] = predictions(run, None, None, None, query=PairQuery(tmp_path / "pairs.csv")).to_pylist()
    explanation = explain(run, (source, target, relation))
    assert explanation.score == pytest.approx(row["score"], abs=1e-6)
    assert {one.kind for one in explanation.reasons} >= {"neighbor", "edge"}
