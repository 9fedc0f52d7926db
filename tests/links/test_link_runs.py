"""Runs on links: from a user's tables to metrics, reference points and predictions."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from fedweave import datasets
from fedweave.apply.run_predictions import PairQuery, predictions
from fedweave.core.graph import TARGET
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.run import run as run_experiment
from fedweave.experiment.shelf.pair_scores import REFERENCES
from fedweave.metrics.selection import of_result
from fedweave.python.training import Silent
from tests.refusals import refusal


def tables(folder: Path, split: bool = False, label: bool = False) -> set[tuple[str, str]]:
    """A graph of 40 nodes without labels, and its edges."""
    rng = np.random.default_rng(1)
    names = [f"n{number}" for number in range(40)]
    nodes = pa.table({"id": names, "a": rng.normal(size=40), "b": rng.normal(size=40)})
    pairs = sorted({(int(u), int(v)) for u, v in np.sort(rng.integers(0, 40, (160, 2)), 1) if u != v})
    columns = {"source": [names[u] for u, _ in pairs], "target": [names[v] for _, v in pairs]}
    if split:
        columns["split"] = [("train", "train", "val", "test")[at % 4] for at in range(len(pairs))]
    if label:
        columns["label"] = [("likes", "knows")[at % 2] for at in range(len(pairs))]
    folder.mkdir()
    csv.write_csv(nodes, folder / "nodes.csv")
    csv.write_csv(pa.table(columns), folder / "edges.csv")
    return set(zip(columns["source"], columns["target"], strict=True))


def document(folder: Path, **data: object) -> Record:
    return {
        "rounds": 2,
        "data": {"path": str(folder), "task": "links", "rank_negatives": 10, **data},
        "partition": {"name": "random", "clients": 2},
        "model": {"name": "gcn", "hidden": 8, "decoder": "mlp"},
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[tuple[str, str]]]:
    folder = tmp_path_factory.mktemp("links")
    known = tables(folder / "data")
    run_experiment(resolve(document(folder / "data")), folder / "run", Silent())
    return folder / "run", known


def metrics_of(directory: Path) -> dict[str, float]:
    metrics: dict[str, float] = of_result(json.loads((directory / "summary.json").read_text()))
    return metrics


def test_a_run_measures_ranks_and_is_judged_by_them(run: tuple[Path, set[tuple[str, str]]]) -> None:
    metrics = metrics_of(run[0])
    assert 0 < metrics["global/hits_at_1"] <= metrics["global/mrr"] <= metrics["global/hits_at_10"] <= 1
    assert "judged/mrr" in metrics
    assert "best_val/val/mrr" in metrics


def test_auc_and_average_precision_are_those_of_the_predicted_pairs(run: tuple[Path, set[tuple[str, str]]]) -> None:
    table, metrics = predictions(run[0]), metrics_of(run[0])
    test = table.filter(pa.compute.equal(table["split"], "test"))
    areas, precisions = [], []
    for client in set(test["client"].to_pylist()):
        own = test.filter(pa.compute.equal(test["client"], client))
        truth, score = np.array(own["true"].to_pylist()) == "link", own["p_link"].to_numpy()
        areas.append(roc_auc_score(truth, score))
        precisions.append(average_precision_score(truth, score))
    assert np.mean(areas) == pytest.approx(metrics["local/auc"], abs=1e-6)
    assert np.mean(precisions) == pytest.approx(metrics["local/average_precision"], abs=1e-6)


def test_predictions_of_pairs_and_of_a_node(run: tuple[Path, set[tuple[str, str]]], tmp_path: Path) -> None:
    directory, known = run
    own = predictions(directory)
    assert set(own["true"].to_pylist()) == {"link", "no link"}
    rows = own.slice(0, 3)
    csv.write_csv(rows.select(["source", "target"]), tmp_path / "pairs.csv")
    again = predictions(directory, query=PairQuery(tmp_path / "pairs.csv"), client=rows["client"][0].as_py())
    assert again["score"].to_numpy() == pytest.approx(rows["p_link"].to_numpy(), abs=1e-6)
    (tmp_path / "named.csv").write_text(
        f"head,tail\n{rows['source'][0]},{rows['target'][0]}\nnobody,{rows['target'][0]}\n"
    )
    some = predictions(directory, query=PairQuery(tmp_path / "named.csv")).to_pylist()
    assert [row["score"] is None for row in some] == [row["client"] == "" for row in some]
    assert [row["source"] for row in some if row["score"] is None] == ["nobody"]
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    with refusal("user.pairs", "source, target"):
        predictions(directory, query=PairQuery(tmp_path / "odd.csv"))
    node = rows["source"][0].as_py()
    top = predictions(directory, query=PairQuery(node=node, top=4))
    assert top.num_rows == 4
    assert list(top["score"].to_numpy()) == sorted(top["score"].to_numpy(), reverse=True)
    others = top["target"].to_pylist()
    assert not {(node, other) for other in others} & known
    assert not {(other, node) for other in others} & known


def test_the_reference_points_by_hand() -> None:
    import networkx as nx
    import scipy.sparse as sp

    graph = nx.gnp_random_graph(30, 0.2, seed=0)
    a = sp.csr_matrix(nx.to_scipy_sparse_array(graph, dtype=float))
    pairs = [(u, v) for u in range(30) for v in range(u)]
    u, v = np.array(pairs).T
    theirs = {
        "common_neighbors": [len(list(nx.common_neighbors(graph, *pair))) for pair in pairs],
        "adamic_adar": [score for _, _, score in nx.adamic_adar_index(graph, pairs)],
        "resource_allocation": [score for _, _, score in nx.resource_allocation_index(graph, pairs)],
        "preferential_attachment": [score for _, _, score in nx.preferential_attachment(graph, pairs)],
    }
    for name, reference in REFERENCES.items():
        products = reference(a)
        assert products.of_pairs(u, v, 0 * u) == pytest.approx(theirs[name], abs=1e-9)
        each = np.arange(30)
        assert products.of_all(each, each, 0 * each, TARGET)[u, v] == pytest.approx(theirs[name], abs=1e-9)


def test_references_stand_in_the_summary(run: tuple[Path, set[tuple[str, str]]]) -> None:
    metrics = metrics_of(run[0])
    for name in REFERENCES:
        assert {f"reference/{name}/{metric}" for metric in ("auc", "average_precision", "mrr")} <= metrics.keys()
    assert not [name for name in metrics if name.startswith("shelf/")]  # tests have it where they ask for it


def test_a_page_shows_the_references(run: tuple[Path, set[tuple[str, str]]]) -> None:
    from fedweave.experiment.runs.reading import read_runs
    from fedweave.reports.html import render

    page = render(read_runs([run[0]]))
    assert page.count("common neighbors") >= 2  # the table of the first screen, and all metrics


def test_an_attack_infers_what_was_trained_on(run: tuple[Path, set[tuple[str, str]]]) -> None:
    """The attack with all messages goes by the probabilities that predictions have."""
    from fedweave.apply.link_attack import infer_membership
    from fedweave.experiment.runs.trained import finished_config, load_trained

    scores, model = infer_membership(load_trained(run[0], finished_config(run[0]), ""))
    assert 0 <= model.advantage <= 1
    table = predictions(run[0])
    table = table.filter(pa.compute.equal(table["true"], "link"))
    table = table.filter(pa.compute.is_in(table["split"], pa.array(["train", "test"])))
    truth, p = np.array(table["split"].to_pylist()) == "train", table["p_link"].to_numpy()
    assert scores.auc == pytest.approx(roc_auc_score(truth, p), abs=1e-9)
    best = max((p[truth] >= at).mean() - (p[~truth] >= at).mean() for at in p)
    assert scores.advantage == pytest.approx(max(best, 0), abs=1e-9)


def test_a_run_that_was_interrupted_ends_with_the_same_numbers(tmp_path: Path) -> None:
    tables(tmp_path / "data")
    whole = document(tmp_path / "data")
    run_experiment(resolve(whole), tmp_path / "whole", Silent())
    run_experiment(resolve(whole | {"rounds": 1}), tmp_path / "two", Silent())
    run_experiment(resolve(whole), tmp_path / "two", Silent(), resume=True)
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "two")
    assert resolve(resolve(whole).plain()) == resolve(whole)


def test_a_column_says_the_split(tmp_path: Path) -> None:
    known = tables(tmp_path / "data", split=True)
    config = resolve(document(tmp_path / "data"))
    from fedweave.experiment.loading import load_data

    data, cut, _ = load_data(config)
    assert data.public[2].sum() == len(known) // 4
    assert data.public.sum() == len(known)
    for part in cut.parts:
        assert np.array_equal(part.masks, data.public[:, part.examples])


def test_a_split_by_time_sends_no_later_message(tmp_path: Path) -> None:
    from fedweave.experiment.build import ingredients
    from fedweave.experiment.graphs import links_of
    from fedweave.partition.client_data import shares

    tables(tmp_path / "data")
    edges = csv.read_csv(tmp_path / "data" / "edges.csv")
    csv.write_csv(edges.append_column("when", pa.array(range(edges.num_rows))), tmp_path / "data" / "edges.csv")
    given = document(tmp_path / "data", edge_time="when") | {
        "partition": {"name": "random", "clients": 1, "split": "time"}
    }
    inputs = ingredients(resolve(given))
    [share] = shares(inputs.data, inputs.visible_partition.parts)
    made, attributes = links_of(share), share.edge_attrs
    until = np.sort(attributes.time)[int(np.ceil(0.6 * edges.num_rows)) - 1]
    assert made.edges.shape[1] == 2 * int((attributes.time <= until).sum())
    assert attributes.time[made.trained].max() == until
    assert attributes.time[np.flatnonzero(made.masks[2] & (made.y == 1))].min() > until
    run_experiment(resolve(given), tmp_path / "run", Silent())
    assert metrics_of(tmp_path / "run")["global/mrr"] > 0


def test_labels_of_edges_are_relations(tmp_path: Path) -> None:
    tables(tmp_path / "data", label=True)
    run_experiment(resolve(document(tmp_path / "data", directed=True)), tmp_path / "run", Silent())
    metrics = metrics_of(tmp_path / "run")
    assert metrics["global/mrr"] > 0
    top = predictions(tmp_path / "run", query=PairQuery(node="n1", top=5))
    assert set(top["relation"].to_pylist()) <= {"likes", "knows"}
    columns, own = ("source", "target", "relation"), predictions(tmp_path / "run")
    edges = csv.read_csv(tmp_path / "data/edges.csv").rename_columns({"label": "relation"}).select(columns).to_pylist()
    links = own.filter(pa.compute.equal(own["true"], "link")).select(columns).to_pylist()
    assert links
    assert all(link in edges for link in links)
    whole = predictions(tmp_path / "run", query=PairQuery(node="n1", top=10_000))
    liked = whole.filter(pa.compute.equal(whole["relation"], "likes")).to_pylist()
    assert 0 < len(liked) < whole.num_rows
    asked = PairQuery(node="n1", top=10_000, relation="likes")
    assert predictions(tmp_path / "run", query=asked).to_pylist() == liked
    with refusal("user.pairs", "hates"):
        predictions(tmp_path / "run", query=PairQuery(node="n1", relation="hates"))


def test_sums_of_scores_are_those_of_each(tmp_path: Path) -> None:
    tables(tmp_path / "data")
    for scores in ("each", "sum"):
        algorithm = {"name": "fedavg", "scores": scores}
        run_experiment(resolve(document(tmp_path / "data") | {"algorithm": algorithm}), tmp_path / scores, Silent())
    each, total = metrics_of(tmp_path / "each"), metrics_of(tmp_path / "sum")
    for name in ("global/auc", "global/mrr", "global/hits_at_3", "local/mrr", "local/auc"):
        assert total[name] == pytest.approx(each[name], abs=1e-6)


@pytest.mark.parametrize("relation", [True, False])
def test_nodes_of_kinds_may_have_links_of_relations(tmp_path: Path, relation: bool) -> None:
    """Kinds of nodes are not features, and labels of edges say relations or, with `relation = false`, nothing."""
    tables(tmp_path / "data", label=True)
    nodes = csv.read_csv(tmp_path / "data" / "nodes.csv")
    kinds = pa.array(["person" if at % 2 else "film" for at in range(nodes.num_rows)])
    edges = csv.read_csv(tmp_path / "data" / "edges.csv")
    ends = (edges[name].to_pylist() for name in ("source", "target"))
    film = dict(zip(nodes["id"].to_pylist(), (kind == "film" for kind in kinds.to_pylist()), strict=True))
    edges = edges.filter(pa.array([film[one] != film[other] for one, other in zip(*ends, strict=True)]))
    csv.write_csv(edges, tmp_path / "data" / "edges.csv")
    plain = build(resolve(document(tmp_path / "data", relation=relation))).data
    csv.write_csv(nodes.append_column("kind", kinds), tmp_path / "data" / "nodes.csv")
    made = build(resolve(document(tmp_path / "data", users="person", items="film", relation=relation))).data
    assert made.columns == plain.columns
    assert set(made.links.relations) == ({"likes", "knows"} if relation else set())
    assert {film[made.node_ids[at]] for at in made.edge_attrs.ends[1].tolist()} == {True}


def test_users_and_items_are_kinds_of_nodes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [f"u{number}" for number in range(15)] + [f"i{number}" for number in range(30)]
    kinds = ["person"] * 15 + ["film"] * 30
    (tmp_path / "data").mkdir()
    csv.write_csv(pa.table({"id": names, "kind": kinds, "a": rng.normal(size=45)}), tmp_path / "data" / "nodes.csv")
    pairs = sorted({(int(u), int(v)) for u, v in zip(*rng.integers(0, (15, 30), (200, 2)).T, strict=True)})
    edges = {"source": [f"i{v}" for _, v in pairs], "target": [f"u{u}" for u, _ in pairs]}
    csv.write_csv(pa.table(edges), tmp_path / "data" / "edges.csv")
    given = document(tmp_path / "data", users="person", items="film")
    del given["data"]["rank_negatives"]
    run_experiment(resolve(given | {"evaluation": {"metric": "ndcg_at_20"}}), tmp_path / "run", Silent())
    metrics = metrics_of(tmp_path / "run")
    assert 0 < metrics["global/ndcg_at_20"] <= 1
    assert "best_val/val/ndcg_at_20" in metrics
    with refusal("user.pairs", "--relation"):
        predictions(tmp_path / "run", query=PairQuery(node="u1", relation="likes"))
    top = predictions(tmp_path / "run", query=PairQuery(node="u1", top=3))
    assert all(name.startswith("i") for name in top["target"].to_pylist())


def test_pytorch_geometrics_splits_are_read() -> None:
    torch = pytest.importorskip("torch")
    geometric = pytest.importorskip("torch_geometric")
    ends = torch.from_numpy(np.random.default_rng(0).integers(0, 50, (2, 150)))
    ends = geometric.utils.to_undirected(ends[:, ends[0] != ends[1]])
    whole = geometric.data.Data(x=torch.ones(50, 3), edge_index=ends, num_nodes=50)
    split = geometric.transforms.RandomLinkSplit(num_val=0.1, num_test=0.2, is_undirected=True)(whole)
    data = datasets.from_pyg(split, task="links")
    for at, one in enumerate(split):
        positive = one.edge_label_index[:, one.edge_label > 0].numpy()
        assert links_in(data, at) == {(int(min(pair)), int(max(pair))) for pair in positive.T}
    train, test = split[0], split[2]
    alone = datasets.from_pyg(test, task="links")
    positive = test.edge_label_index[:, test.edge_label > 0].numpy()
    assert links_in(alone, 2) == {(int(min(pair)), int(max(pair))) for pair in positive.T}
    assert datasets.from_pyg(whole, task="links").examples == ends.shape[1] // 2
    for wrong in ([train, test], geometric.data.HeteroData()):
        with refusal("data.links"):
            datasets.from_pyg(wrong, task="links")


def links_in(data: Dataset, split: int) -> set[tuple[int, int]]:
    ends = data.edge_attrs.ends[:, data.public[split]]
    return {(int(min(pair)), int(max(pair))) for pair in ends.T}


def test_the_default_decoder_compares_what_models_make_of_features(tmp_path: Path) -> None:
    """Products of vectors are usual where these are learned, or recommend items; a document may name any."""
    tables(tmp_path / "data")

    def decoder(model: Record | None = None, **data: object) -> str:
        given = document(tmp_path / "data", **data) | {"model": {"name": "gcn"} | (model or {})}
        return resolve(given).plain()["model"]["decoder"]

    assert decoder() == "cosine"
    assert decoder(features="learned") == decoder(users="user", items="item") == "dot"
    assert decoder({"decoder": "mlp"}) == "mlp"
    assert decoder({"decoder": "dot"}) == "dot"
    assert resolve({"data": {"name": "cora"}}).decoder == "dot"  # nodes are the examples, and nothing reads it


@pytest.mark.parametrize(("decoder", "algorithm", "expected"), [
    ("cosine", {}, 0.003), ("dot", {}, 0.01), ("mlp", {}, 0.01), ("cosine", {"lr": 0.01}, 0.01),
    ("common_neighbors", {}, 0.003),
    ("cosine", {"optimizer": "sgd"}, 0.01), ("cosine", {"optimizer": "adamw"}, 0.003),
])  # fmt: skip
def test_cosines_are_learned_in_smaller_steps(decoder: str, algorithm: Record, expected: float, tmp_path: Path) -> None:
    """Unless the document names a rate; what a run writes resolves to itself."""
    tables(tmp_path / "data")
    given = document(tmp_path / "data") | {
        "model": {"name": "gcn", "decoder": decoder}, "algorithm": {"name": "fedavg", **algorithm}
    }  # fmt: skip
    made = resolve(given)
    assert made.algorithm.values["lr"] == expected
    assert resolve(made.plain()) == made


REFUSED: dict[str, tuple[Callable[[Record], Record], str]] = {
    "ratios": (lambda given: given | {"data": given["data"] | {"ratios": [0.9, 0.9, 0.1]}}, "config.value"),
    "decoder": (lambda given: given | {"model": {"name": "gcn", "decoder": "euclid"}}, "config.value"),
    "decoder of nodes": (
        lambda given: given | {"data": {"name": "cora"}, "model": {"name": "gcn", "decoder": "dot"}},
        "config.unknown-key",
    ),
    "metric": (lambda given: given | {"evaluation": {"metric": "hits_at_7"}}, "config.value"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_settings(case: str, tmp_path: Path) -> None:
    change, code = REFUSED[case]
    tables(tmp_path / "data")
    with refusal(code):
        resolve(change(document(tmp_path / "data")))
