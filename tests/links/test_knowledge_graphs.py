"""Knowledge graphs: from triples to ranks, by members who share entities."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedweave.algorithms.parts.links import LinkPrediction
from fedweave.core import random
from fedweave.core.federation import Client
from fedweave.core.link_examples import Codes
from fedweave.core.tree import leaves
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.models import MODELS
from fedweave.models.relations import DECODERS
from tests.contract.federations import state_after
from tests.refusals import check_facts, refusal

ENTITIES, WIDTH = 18, 8
KINDS = ("after", "below", "near")


def triples(folder: Path, seed: int = 0, loops: int = 0) -> Path:
    """Entities on a circle: the next one, the fifth, and whoever is beside; one triple of ten validates, two test.
    loops: how many of them are also near to themselves."""
    rows = [(f"e{i:02}", "after", f"e{(i + 1) % ENTITIES:02}") for i in range(ENTITIES)]
    rows += [(f"e{i:02}", "below", f"e{(i + 5) % ENTITIES:02}") for i in range(ENTITIES)]
    rows += [(f"e{i:02}", "near", f"e{(i + d) % ENTITIES:02}") for i in range(ENTITIES - 2) for d in (-1, 1)]
    rows += [(f"e{i:02}", "near", f"e{i:02}") for i in range(loops)]
    table = pd.DataFrame(rows, columns=["head", "relation", "tail"])
    at = np.random.default_rng(seed).permutation(len(table))
    table["split"] = np.where(at % 10 == 0, "val", np.where(at % 10 < 3, "test", "train"))
    table.to_csv(folder / "triples.csv", index=False)
    return folder


def document(folder: Path, algorithm: dict, decoder: str = "distmult", mode: str = "vmap", **data: object) -> dict:
    return {
        "rounds": 3,
        "data": {"name": "triples", "path": str(folder), "task": "links", "rank_negatives": "all", **data},
        "partition": {"name": "edges", "by": "relation", "clients": 3},
        "model": {"name": "embedding", "hidden": WIDTH, "decoder": decoder},
        "algorithm": {"local_steps": 4, "lr": 0.05, **algorithm},
        "engine": {"threads": 1, "mode": mode},
    }


def trained(made: dict, rounds: int = 3):
    built = build(resolve(made))
    state = state_after(built.algorithm, built.fed, rounds)
    return built, state, built.algorithm.evaluate(state, built.fed)


def shared(state: dict) -> dict:
    return {path: leaf.materialize() if hasattr(leaf, "materialize") else leaf for path, leaf in leaves(state["w"])}


@pytest.mark.parametrize(("decoder", "loops"), [*((name, 0) for name in DECODERS), ("distmult", 9), ("transe", 9)])
def test_ranks_replace_heads_and_tails_by_hand(tmp_path, decoder, loops):
    """The mean reciprocal rank of a member's test triples, by the formula for each query, one candidate at a time.
    Where triples join entities with themselves, such a triple is a candidate like any other."""
    made = document(triples(tmp_path, loops=loops), {"name": "fedavg"}, decoder)
    built, state, scores = trained(made)
    w = {path: leaf.double() for path, leaf in shared(state).items()}
    vectors, relations = w["0/weight"], w["1/relation"]
    data = built.data
    for client, part in zip(scores.clients.clients, built.partition.parts, strict=True):
        ends, kind = data.edge_attrs.ends[:, part.examples], data.edge_attrs.y[part.examples]
        known = set(zip(ends[0].tolist(), kind.tolist(), ends[1].tolist(), strict=True))
        found = []
        for (h, t), r in zip(ends[:, part.masks[2]].T.tolist(), kind[part.masks[2]].tolist(), strict=True):
            score = lambda a, b, r=r: float(DECODERS[decoder].score(vectors[a], relations[r], vectors[b]))  # noqa: E731
            for changed in ([(h, n) for n in part.nodes.tolist()], [(n, t) for n in part.nodes.tolist()]):
                others = [score(a, b) for a, b in changed if (a, r, b) not in known and (loops or a != b)]
                own = score(h, t)
                found.append(
                    1 / (1 + sum(s > own + 1e-6 for s in others) + sum(abs(s - own) <= 1e-6 for s in others) / 2)
                )
        total, count = dict(leaves(scores.clients[client]))["own/mrr"][2].tolist()
        assert count == len(found)
        assert total / count == pytest.approx(np.mean(found), abs=1e-6)


@pytest.mark.parametrize("share", [["0/*"], ["*"]])
def test_a_secure_sum_gives_fede_the_same_numbers(tmp_path, share):
    triples(tmp_path)
    plain, summed = (
        trained(document(tmp_path, {"name": "fede", "share": share, "secure_sum": secret}))[1]
        for secret in (False, True)
    )
    for path, leaf in shared(plain).items():
        torch.testing.assert_close(shared(summed)[path], leaf, atol=1e-5, rtol=0)


def test_executors_agree_and_what_nobody_holds_stays(tmp_path):
    """By time of training, rows of entities without a triple at any member are as they began."""
    folder = triples(tmp_path)
    table = pd.read_csv(folder / "triples.csv")
    batched, one = (trained(document(folder, {"name": "fede"}, mode=mode)) for mode in ("vmap", "loop"))
    for path, leaf in shared(batched[1]).items():
        torch.testing.assert_close(shared(one[1])[path], leaf, atol=1e-5, rtol=0)
    assert list(shared(batched[1])) == ["0/weight"]  # the relations' vectors stay home
    assert batched[0].data.nodes == len(set(table["head"]) | set(table["tail"]))


def test_relations_that_are_shared_are_averaged_over_those_who_have_them(tmp_path):
    """Each relation is at one member: shared, its vector moves as if it had stayed there, not by a third of that."""
    folder = triples(tmp_path)
    algorithm = {"optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0, "share": ["*"]}
    before = build(resolve(document(folder, {"name": "fedavg", **algorithm})))
    before.fed.begin(0)
    start = shared(before.algorithm.init(before.fed))["1/relation"]
    moved = {}
    for name in ("fedavg", "fede"):
        _, state, _ = trained(document(folder, {"name": name, **algorithm}), rounds=1)
        moved[name] = (shared(state)["1/relation"] - start).norm(dim=1)
    assert (moved["fede"] > 1.5 * moved["fedavg"]).all()


def test_learned_features_of_any_data_are_a_vector_for_each_node(tmp_path):
    nodes = pd.DataFrame({"id": range(12), "label": np.arange(12) % 2, "age": np.arange(12.0)})
    edges = pd.DataFrame({"source": range(12), "target": np.roll(range(12), 1)})
    nodes.to_csv(tmp_path / "nodes.csv", index=False)
    edges.to_csv(tmp_path / "edges.csv", index=False)
    made = {
        "rounds": 1,
        "data": {"name": "folder", "path": str(tmp_path), "features": "learned"},
        "partition": {"name": "random", "clients": 2},
        "model": {"name": "gcn", "hidden": 4},
        "algorithm": {"name": "fedavg"},
    }
    config = resolve(made)
    built = build(config)
    assert built.data.features == 12
    assert {graph.x.shape[1] for graph in built.fed.graphs.values()} == {12}
    assert resolve(config.plain()) == config
    given = resolve({**made, "data": {**made["data"], "features": "given"}})
    assert build(given).data.features == 1
    with refusal("config.value"):
        resolve({**made, "data": {**made["data"], "features": "made up"}})


def test_a_complex_decoder_wants_an_even_width(tmp_path):
    made = document(triples(tmp_path), {"name": "fede"}, "rotate")
    made["model"]["hidden"] = 7
    with refusal("config.value"):
        build(resolve(made))


def test_a_member_trains_the_rows_of_its_own_entities_alone(tmp_path):
    """On real triples of which a member has few entities; what it sends of others is what all have in common."""
    folder = triples(tmp_path)
    built = build(resolve(document(folder, {"name": "fede", "weight_decay": 0.0})))
    built.fed.begin(0)
    state = built.algorithm.init(built.fed)
    built.fed.begin(1)
    replies = built.fed.map(built.algorithm.train, {"w": state["w"], "init": state["init"]})
    for client, part in zip(replies.clients, built.partition.parts, strict=True):
        update = dict(leaves(replies[client]))["update/0/weight"]
        others = np.setdiff1d(np.arange(built.data.nodes), part.nodes)
        assert not update[others].any()


def test_a_batch_is_of_training_triples_and_replaces_heads_and_tails_alike(tmp_path):
    built = build(resolve(document(triples(tmp_path), {"name": "fedavg"})))
    part = LinkPrediction(negatives=3, batch=40)
    for graph in built.fed.graphs.values():
        drawn = part.draw(built.algorithm.model, graph, random.key(1), 5)
        links, real = LinkPrediction().links(graph)
        assert drawn["links"].shape == (5, 40)
        assert int(drawn["links"].max()) < int(real.sum())
        assert len(drawn["links"].unique()) > 0.9 * int(real.sum())  # 200 draws of about 15 miss none, nearly
        own = links[:, drawn["links"]].repeat_interleave(3, 2).movedim(1, 0)
        changed = (drawn["pairs"] != own)[:, :2].flatten(2).transpose(0, 1).flatten(1)
        assert not (changed[0] & changed[1]).any()
        assert 0.4 < float(changed[0].double().mean() / changed.any(0).double().mean()) < 0.6
        assert (drawn["pairs"][:, 2] == own[:, 2]).all()
    made = document(tmp_path, {"name": "fede", "parts": [{"name": "link_prediction", "batch": 8, "negatives": 2}]})
    batched, one = (trained({**made, "engine": {"threads": 1, "mode": mode}})[1] for mode in ("vmap", "loop"))
    for path, leaf in shared(batched).items():
        torch.testing.assert_close(shared(one)[path], leaf, atol=1e-5, rtol=0)


def test_candidates_are_no_known_triples():
    """Codes tell relations apart."""
    from fedweave.core.edge_attributes import EdgeAttributes

    codes = Codes(EdgeAttributes(np.array([[0, 1], [1, 2]]), True, y=np.array([0, 1])), 3)
    assert codes.holds(np.array([0, 0, 1]), np.array([1, 1, 2]), np.array([0, 1, 1])).tolist() == [True, False, True]


def shop(folder: Path) -> dict:
    """Twelve users in two groups and ten items; each group buys one half of them."""
    draw = np.random.default_rng(0)
    users, items = [f"u{i}" for i in range(12)], [f"i{i}" for i in range(10)]
    nodes = pd.DataFrame({"id": users + items, "kind": ["user"] * 12 + ["item"] * 10, "age": 1.0})
    edges = [
        (u, i)
        for a, u in enumerate(users)
        for b, i in enumerate(items)
        if draw.random() < (0.8 if a % 2 == b % 2 else 0.1)
    ]
    nodes.to_csv(folder / "nodes.csv", index=False)
    pd.DataFrame(edges, columns=["source", "target"]).to_csv(folder / "edges.csv", index=False)
    return {
        "rounds": 3,
        "data": {"name": "folder", "path": str(folder), "task": "links", "users": "user", "items": "item"},
        "partition": {"name": "edges", "by": "source", "clients": 3},
        "model": {"name": "lightgcn", "hidden": 4, "layers": 2},
        "algorithm": {"name": "fede", "users": "home", "parts": [{"name": "link_prediction", "loss": "bpr"}]},
        "engine": {"threads": 1},
    }


@pytest.mark.parametrize("secret", [False, True])
def test_rows_of_users_stay_home(tmp_path, secret):
    """The server's rows of users are as they began, it does not hear who holds them, and a member goes on from its own;
    rows of items are the means over members."""
    made = shop(tmp_path)
    made["data"]["features"] = "learned"
    made["algorithm"]["secure_sum"] = secret
    built = build(resolve(made))
    built.fed.begin(0)
    state = built.algorithm.init(built.fed)
    first = shared(state)["0/weight"].clone()
    users = np.array([name.startswith("u") for name in built.data.node_ids])
    for round in (1, 2):
        built.fed.begin(round)
        state = built.algorithm.round(state, built.fed)
    after = shared(state)["0/weight"]
    assert torch.equal(after[users], first[users])
    assert (after[~users] != first[~users]).any(1).all()
    scores = built.algorithm.evaluate(state, built.fed)
    for client, part in zip(built.fed.clients, built.partition.parts, strict=True):
        graph = built.fed.graphs[client]
        own = built.fed.snapshot()[client]["w"]["0"]["weight"]
        own = own.materialize() if hasattr(own, "materialize") else own
        message = {"w": state["w"], "init": state["init"]}
        used = built.algorithm.used(Client(graph, {"w": {"0": {"weight": own}}}, random.key(0), random.key(1)), message)
        mine = part.nodes[users[part.nodes]]
        assert torch.equal(used["0"]["weight"][mine], own[mine])
        assert torch.equal(used["0"]["weight"][~users], after[~users])
        if not secret:
            sent = built.algorithm.train(Client(graph, {}, random.key(0), random.key(1)), message)
            assert not sent["held"]["features"][users].any()
            assert not sent["update"]["0"]["weight"][users].any()
    assert "own/recall_at_20" in dict(leaves(scores.clients[built.fed.clients[0]]))


def test_douban_validates_and_has_ratings_as_numbers(data_root, monkeypatch):
    from fedweave import datasets

    monkeypatch.setenv("FEDWEAVE_DATA", str(data_root))
    if not (data_root / "douban").exists():
        pytest.skip("douban is not there")
    classes, numbers = datasets.load("douban"), datasets.load("douban", target="number", validation=0.1)
    train, val, test = numbers.public
    assert (classes.public[2] == test).all()
    assert (classes.public[0] == (train | val)).all()
    assert not (train & val).any()
    assert val.sum() / (train | val).sum() == pytest.approx(0.1, abs=0.005)
    assert (numbers.y[:, 0] == classes.y + 1).all()
    assert (numbers.target, numbers.targets, numbers.outputs) == ("number", ("rating",), 1)
    for refused in ({"target": "labels"}, {"target": "number", "targets": ("stars",)}):
        with refusal("config.target", "douban"):
            datasets.load("douban", **refused)
    with refusal("config.value", "douban.validation"):
        datasets.load("douban", validation=1.0)


def test_directions_of_triples_are_used(tmp_path):
    from fedweave.models.edge_settings import unused_attribute_warnings

    data = build(resolve(document(triples(tmp_path), {"name": "fede"}))).data
    assert data.edge_attrs.directed
    for name, several in (("embedding", 0), ("rgcn", 0), ("lightgcn", 1)):
        assert len(unused_attribute_warnings(MODELS[name](), data.edge_attrs)) == several


def test_triples_of_an_entity_with_itself_stay(tmp_path):
    """Also in the test, drawn as pairs that are not links, and asked for; an entity may have no other."""
    folder = triples(tmp_path, loops=9)
    with (folder / "triples.csv").open("a") as file:
        file.write("lone,near,lone,train\nlone,near,lone,test\n")
    table = pd.read_csv(folder / "triples.csv")
    data = build(resolve(document(folder, {"name": "fede"}))).data
    loop = data.edge_attrs.ends[0] == data.edge_attrs.ends[1]
    assert loop.sum() == 11
    assert data.public[2][loop].sum() == ((table["head"] == table["tail"]) & (table["split"] == "test")).sum() > 1
    assert data.links.loops
    for decoder in ("distmult", "rotate"):
        batched, one = (trained(document(folder, {"name": "fede"}, decoder, mode))[1] for mode in ("vmap", "loop"))
        for path, leaf in shared(batched).items():
            torch.testing.assert_close(shared(one)[path], leaf, atol=1e-5, rtol=0)
    near = build(resolve(document(folder, {"name": "fedavg"})))
    found = 0
    for graph in near.fed.graphs.values():
        pairs = LinkPrediction(negatives=50).draw(near.algorithm.model, graph, random.key(1), 3)["pairs"]
        found += int((pairs[:, 0] == pairs[:, 1]).sum())
    assert found > 0
    triples(tmp_path)
    for graph in build(resolve(document(folder, {"name": "fedavg"}))).fed.graphs.values():
        pairs = LinkPrediction(negatives=50).draw(near.algorithm.model, graph, random.key(1), 3)["pairs"]
        assert not (pairs[:, 0] == pairs[:, 1]).any()


def test_a_message_passes_along_a_triple_of_an_entity_with_itself(tmp_path):
    made = document(triples(tmp_path, loops=9), {"name": "fedavg"}, mode="vmap")
    made["model"] = {"name": "rgcn", "hidden": 4, "layers": 1, "bases": 2, "decoder": "distmult"}
    for partition in ({"name": "edges", "by": "random"}, {"name": "random"}):
        made["partition"] = {**partition, "clients": 2}
        batched, one = (trained({**made, "engine": {"threads": 1, "mode": mode}}, 2)[1] for mode in ("vmap", "loop"))
        for path, leaf in shared(batched).items():
            torch.testing.assert_close(shared(one)[path], leaf, atol=1e-5, rtol=0)


def links_of(folder: Path, rows: list[tuple[str, ...]], **data: object):
    """The links of a folder of nodes a, b, c and edges, and what is noted of them."""
    (folder / "nodes.csv").write_text("id,label,f\na,0,1\nb,1,2\nc,0,3\nd,0,4\n")
    (folder / "edges.csv").write_text("\n".join(",".join(row) for row in [("source", "target", "split"), *rows]) + "\n")
    made = document(folder, {"name": "fedavg"})
    made["data"] = {"name": "folder", "path": str(folder), "task": "links", **data}
    made["partition"], made["model"] = {"name": "edges", "by": "random", "clients": 1}, {"name": "gcn", "hidden": 4}
    return build(resolve(made)).data


ROWS = [("a", "b", "train"), ("b", "c", "train"), ("c", "a", "val"), ("a", "d", "test")]


def test_a_link_in_two_splits_stays_in_both_and_is_noted(tmp_path):
    data = links_of(tmp_path, [*ROWS, ("b", "a", "test")])
    assert data.public.sum(1).tolist() == [2, 1, 2]
    [note] = [note for note in data.notes if "train" in note]
    check_facts(note, "1 of 2")
    data = links_of(tmp_path, [*ROWS, ("b", "a", "test")], directed=True)
    assert data.public.sum(1).tolist() == [2, 1, 2]
    [note] = data.notes
    check_facts(note, "1 of 2")
    data = links_of(tmp_path, [*ROWS, ("b", "a", "train")])
    assert data.public.sum(1).tolist() == [2, 1, 1]
    assert len(data.notes) == 1


def test_loops_of_edges_without_a_direction_are_noted_with_those_to_test(tmp_path):
    rows = [*ROWS, ("a", "a", "test"), ("b", "b", "train")]
    data = links_of(tmp_path, rows, loops="keep", edge_weight=None, parallel="count")
    assert data.public.sum(1).tolist() == [2, 1, 1]
    assert [note for note in data.notes if "2 edges that join a node with itself (1 of them to test)" in note]
    data = links_of(tmp_path, rows, loops="keep", directed=True)
    assert data.public.sum(1).tolist() == [3, 1, 2]


def test_what_no_training_triple_has_is_noted(tmp_path):
    folder = triples(tmp_path)
    with (folder / "triples.csv").open("a") as file:
        file.write("new,near,newer,test\ne00,unheard,e01,test\ne00,unheard,e02,val\n")
    data = build(resolve(document(folder, {"name": "fedavg"}))).data
    notes = [note for note in data.notes if "direction" not in note]
    facts = ("validation links that have a relation", "test links that have an end", "test links that have a relation")
    assert [sum(fact in note for note in notes) for fact in facts] == [1, 1, 1]
    assert len(notes) == 3


@pytest.mark.parametrize("form", ["triples", "npz", "edges"])
def test_one_relation_cannot_be_dealt(tmp_path, form):
    folder = triples(tmp_path)
    table = pd.read_csv(folder / "triples.csv").assign(relation="near").drop_duplicates(["head", "tail"])
    table.to_csv(folder / "triples.csv", index=False)
    made = document(folder, {"name": "fedavg"})
    if form == "npz":
        from fedweave import datasets

        datasets.load("triples", str(folder)).save(tmp_path / "one.npz")
        made["data"] |= {"name": "npz", "path": str(tmp_path / "one.npz"), "loops": "keep"}
    if form == "edges":
        links_of(tmp_path, ROWS)
        made["data"] |= {"name": "folder", "features": "learned"}
    with refusal("config.one-relation", "random", "source"):
        build(resolve(made))
    made["partition"]["by"] = "source"
    build(resolve(made))
