"""FedE: rows of embeddings are averaged over those who hold them, in the clear and in a secure sum."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedweave.algorithms import FedAvg
from fedweave.algorithms.fede import Holders, HoldersSum
from fedweave.core import random
from fedweave.core.federation import Client, step_info
from fedweave.core.tree import leaves
from fedweave.datasets.base import Dataset
from fedweave.experiment.build import federation
from fedweave.models import MLP, Embedding
from fedweave.partition.base import Part, Partition
from tests.contract.federations import state_after

ENTITIES, CLASSES = 7, 3
HELD = ([0, 1, 2, 3], [2, 3, 4], [3, 5])  # of three members; nobody holds entity 6
SETTINGS = {"local_steps": 2, "lr": 0.1, "optimizer": "sgd", "weight_decay": 0.1}


def data() -> tuple[Dataset, Partition]:
    """Seven entities without features, of three members, who share some; all but the first of each train."""
    edges = np.array([[0, 1, 2, 3], [1, 0, 3, 2]])
    y = np.arange(ENTITIES) % CLASSES
    whole = Dataset("entities", sp.eye(ENTITIES, format="csr", dtype=np.float32), edges, y, CLASSES)
    parts = [Part(np.array(nodes), _masks(len(nodes))) for nodes in HELD]
    return whole, Partition(tuple(parts))


def _masks(nodes: int) -> np.ndarray:
    masks = np.zeros((3, nodes), bool)
    masks[0, 1:], masks[2, 0] = True, True
    return masks


def trained(part: object, rounds: int = 1, model: object = None, mode: str = "vmap") -> tuple[dict, dict, object]:
    """The global weights before and after some rounds, {path: tensor}, and the federation."""
    whole, cut = data()
    model = (model or Embedding()).build(ENTITIES, CLASSES)
    algorithm = FedAvg(model, parts=(part,) if part else (), **SETTINGS)
    fed = federation(whole, cut, algorithm, seed=0, mode=mode)
    first = dict(leaves(state_after(algorithm, fed, 0)["w"]))
    return first, dict(leaves(state_after(algorithm, fed, rounds)["w"])), fed


def alone(client: int, model: object = None) -> dict:
    """What a member trains from the same weights by itself."""
    whole, cut = data()
    model = (model or Embedding()).build(ENTITIES, CLASSES)
    algorithm = FedAvg(model, **SETTINGS)
    fed = federation(whole, Partition((cut.parts[client],)), algorithm, seed=0)
    return dict(leaves(state_after(algorithm, fed, 1)["w"]))


@pytest.mark.parametrize("count", ["uniform", "examples"])
@pytest.mark.parametrize("mode", ["vmap", "loop"])
def test_a_row_is_the_mean_over_those_who_hold_it_by_hand(count, mode):
    """E_e ← Σ n_ie E_ie / Σ n_ie, with weight decay that moves all rows at every client; a row that nobody holds, or
    that nobody counts, stays."""
    first, after, _ = trained(Holders(count), mode=mode)
    each = [alone(client)["0/weight"].double() for client in range(3)]
    n = np.zeros((3, ENTITIES))
    for client, nodes in enumerate(HELD):
        n[client, nodes[0 if count == "uniform" else 1 :]] = 1
    for entity in range(ENTITIES):
        held = [client for client in range(3) if n[client, entity]]
        wanted = torch.stack([each[i][entity] for i in held]).mean(0) if held else first["0/weight"][entity].double()
        torch.testing.assert_close(after["0/weight"][entity].double(), wanted, atol=1e-6, rtol=0)
    assert not torch.equal(after["0/weight"][0], first["0/weight"][0]) or count == "examples"


def test_other_weights_are_averaged_by_size():
    """And with every entity at all members, rows are as by plain averaging of members of one size."""
    model = MLP(hidden=4, dropout=0.0)
    first, after, _ = trained(Holders(), model=model)
    each = [alone(client, model) for client in range(3)]
    sizes = np.array([len(nodes) - 1 for nodes in HELD])
    for path in (path for path in after if path != "0/weight"):
        wanted = sum(share * w[path].double() for share, w in zip(sizes / sizes.sum(), each, strict=True))
        torch.testing.assert_close(after[path].double(), wanted, atol=1e-6, rtol=0)
    assert {path for path in after if not torch.equal(after[path], first[path])} == set(after)


@pytest.mark.parametrize("count", ["uniform", "examples"])
def test_a_secure_sum_gives_the_same_to_the_quantization(count):
    model = MLP(hidden=4, dropout=0.0)
    _, plain, _ = trained(Holders(count), rounds=3, model=model)
    _, summed, _ = trained(HoldersSum(count=count), rounds=3, model=model)
    for path, leaf in plain.items():
        torch.testing.assert_close(summed[path], leaf, atol=1e-6, rtol=0)


def test_in_the_sum_a_member_sends_zeros_for_what_it_does_not_hold_and_nothing_in_the_clear():
    """Every key of a reply is in the sum, whose words alone could be opened; a cheating member that sends the rows that
    weight decay moved would shift rows that it does not hold."""
    whole, cut = data()
    model = Embedding().build(ENTITIES, CLASSES)
    algorithm = FedAvg(model, parts=(HoldersSum(),), **SETTINGS)
    fed = federation(whole, cut, algorithm, seed=0)
    sends = step_info(algorithm.train).sends
    assert set(sends) == {"update", "n", "held", "beyond"}
    assert all(any(type(one).__name__ == "SecureSum" for one in spec.mechanisms) for spec in sends.values())
    fed.begin(0)
    state = algorithm.init(fed)
    fed.begin(1)
    replies = fed.map(algorithm.train, {"w": state["w"]})
    assert all(not replies[client] for client in replies.clients)  # what one member sends is not there to be read
    for graph, nodes in zip(fed.graphs.values(), HELD, strict=True):
        sent = algorithm.train(Client(graph, {}, random.key(1), random.key(2)), {"w": state["w"]})
        others = np.setdiff1d(np.arange(ENTITIES), nodes)
        assert sent["update"]["0"]["weight"].shape == (ENTITIES, CLASSES)
        assert not sent["update"]["0"]["weight"][others].any()
        assert sent["held"]["features"].tolist() == np.isin(np.arange(ENTITIES), nodes).astype(int).tolist()
    told = fed.ledger.table().to_pylist()
    of_train = {client: [] for client in fed.clients}
    for row in told:
        if row["direction"] == "up" and row["step"] == "FedAvg.train":
            of_train[row["client"]].append((row["key"], row["shape"], row["bytes"], row["mechanism"]))
    first, *others = of_train.values()
    assert {key for key, *_ in first} >= {"update/0/weight", "held/features", "n"}
    assert all(rows == first for rows in others)  # not even sizes tell who holds what


def test_plain_averaging_pulls_rows_back_and_holders_do_not():
    """The counterpart: of a row that one of three members holds, a third of the change is left by plain averaging."""
    first, plain, _ = trained(None)
    _, held, _ = trained(Holders())
    moved = lambda after: (after["0/weight"][4] - first["0/weight"][4]).norm()  # noqa: E731
    assert moved(plain) < 0.8 * moved(held)


def test_no_examples_no_say():
    """A member without training examples does not hold a row down."""
    whole, cut = data()
    idle = replace(cut.parts[1], masks=np.zeros((3, 3), bool))
    cut = Partition((cut.parts[0], idle, cut.parts[2]))
    model = Embedding().build(ENTITIES, CLASSES)
    algorithm = FedAvg(model, parts=(Holders(),), **SETTINGS)
    fed = federation(whole, cut, algorithm, seed=0)
    first = state_after(algorithm, fed, 0)["w"]["0"]["weight"].clone()
    state = state_after(algorithm, fed, 1)
    wanted = (alone(0)["0/weight"][2]).double()
    torch.testing.assert_close(state["w"]["0"]["weight"][2].double(), wanted, atol=1e-6, rtol=0)
    assert torch.equal(state["w"]["0"]["weight"][4], first[4])
