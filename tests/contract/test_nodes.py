"""States, replies, messages and noise with one row per node, which no batch may pad to its largest client."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedweave.algorithms.scoring import SCORES, score
from fedweave.contract.laws import LAWS
from fedweave.contract.subject import Subject
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import Calls, Evaluation
from fedweave.core.federation import Client, Federation, on_client
from fedweave.core.graph import TRAIN, Graph, make_graph
from fedweave.core.model import Model
from fedweave.core.sizes import size_classes
from fedweave.core.tree import Tree
from fedweave.engines.simulation import Simulation
from fedweave.experiment.rounds import train
from fedweave.learn import Adam, cross_entropy, fit
from tests.contract.federations import CLASSES, arrays, distance, federation, model

SIZES = (21, 40, 33, 70, 12, 101, 64, 27, 99, 45)
CLIENTS, ROUNDS = 20, 4
SLOW = pytest.mark.slow


@dataclass(frozen=True)
class NodeCodes:
    """Federated averaging whose clients train with a noisy code for every node that they keep, send and get back."""

    model: Model

    def init(self, fed: Federation) -> Tree:
        return {
            "w": models.init(self.model, fed.key("init"), fed.dtype),
            "sum": torch.zeros(fed.classes, dtype=fed.dtype),
        }

    def round(self, state: Tree, fed: Federation) -> Tree:
        order = torch.argsort(random.bits(fed.key("participation"), len(fed.clients)))
        chosen = [fed.clients[at] for at in order[: (len(fed.clients) + 1) // 2]]
        replies = fed.map(self.train, {"w": state["w"], "classes": fed.classes}, clients=chosen)
        own = {client: {"codes": replies[client]["codes"]} for client in replies.clients}
        fed.map(self.keep, each=own, clients=chosen)
        codes = [reply["codes"][reply["real"]].sum(0) for reply in replies]
        share = torch.full((len(replies),), 1 / len(replies))
        return {"w": replies.weighted_sum("w", share), "sum": state["sum"] + torch.stack(codes).sum(0)}

    def calls(self, clients: int) -> Calls:
        return Calls(round=(self.train, self.keep), evaluation=(self.score,))

    @on_client(
        sends={"w": "trained weights", "codes": "a noisy code of every node", "real": "how many nodes there are"},
        per_node=("codes", "real"),
    )
    def train(self, client: Client, message: Tree) -> Tree:
        graph, dtype = client.graph, client.graph.x.dtype
        shape = (len(graph.y), message["classes"])
        before = client.state.get("codes", torch.zeros(shape, dtype=dtype))
        noise = random.normal(random.fold(client.key, "shift"), shape).to(dtype)
        w = fit(self.loss, message["w"], graph, client.key, Adam(0.01), 2, args={"shift": 0.1 * noise + before}).w
        secret = random.normal(client.secret, shape).to(dtype)
        codes = (before + 0.5 * models.apply(self.model, w, graph) + 0.1 * secret) * graph.real[:, None]
        client.state["codes"] = codes
        return {"w": w, "codes": codes, "real": graph.real}

    def loss(self, w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        logits = models.apply(self.model, w, graph, key) + args["shift"]
        return cross_entropy(logits, graph.y.clamp(min=0), graph.masks[TRAIN].to(logits.dtype))

    @on_client()
    def keep(self, client: Client, message: Tree) -> Tree:
        flip = random.keep(random.fold(client.key, "flip"), tuple(message["codes"].shape), 0.7)
        client.state["codes"] = torch.where(flip, 0.5 * message["codes"], client.state["codes"])
        client.state["flipped"] = (~flip & client.graph.real[:, None]).long()
        return {}

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        return Evaluation(fed.map(self.score, {"w": state["w"]}))

    @on_client(sends=SCORES)
    def score(self, client: Client, message: Tree) -> Tree:
        return score(self.model, message["w"], client)


NET = model()


def clients(dtype: torch.dtype = torch.float32, rows: Sequence[int] | None = None) -> dict[str, Graph]:
    """20 clients of ten sizes, padded to few classes, or to `rows`."""
    nodes = [SIZES[i % len(SIZES)] + i // len(SIZES) for i in range(CLIENTS)]
    sizes = size_classes(nodes) if rows is None else rows
    given = zip(nodes, sizes, strict=True)
    return {f"c{i:02}": make_graph(*arrays(n, i), dtype=dtype, rows=r) for i, (n, r) in enumerate(given)}


def outcome(rounds: int = ROUNDS, **options: Any) -> Tree:
    fed = federation(clients=options.pop("clients", None) or clients(options.get("dtype", torch.float32)), **options)
    *_, last = train(NodeCodes(NET), fed, rounds, eval_every=2)
    return {"server": last.state, "clients": fed.snapshot(), "summary": last.summary}


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject(NodeCodes)


@pytest.fixture(scope="module")
def specified() -> Tree:
    return outcome(mode="loop")


@pytest.mark.often("3")
@pytest.mark.parametrize("chunk", [0, pytest.param(1, marks=SLOW), pytest.param(2, marks=SLOW), 3])
def test_vectorized_equals_loop_bit_for_bit(chunk: int, specified: Tree) -> None:
    assert distance(outcome(mode="vmap", chunk=chunk), specified) == 0


@pytest.mark.parametrize(
    "law",
    [
        pytest.param("all_clients_at_once_do_in_double_precision", marks=SLOW),
        "nothing_but_bytes_passes",
        "a_resumed_run_gives_the_same",
    ],
)
def test_laws_hold(subject: Subject, law: str) -> None:
    LAWS[law](subject)


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_results_do_not_depend_on_the_padding(mode: str, specified: Tree) -> None:
    empty_rows = outcome(mode=mode, clients=clients(rows=[len(graph.y) + 32 for graph in clients().values()]))
    assert distance(empty_rows["server"], specified["server"]) == 0
    for client, state in specified["clients"].items():
        rows = len(state["codes"])
        for name, kept in state.items():
            assert torch.equal(empty_rows["clients"][client][name][:rows], kept)
            assert not empty_rows["clients"][client][name][rows:].any()


def test_noise_is_drawn_for_every_node() -> None:
    """Another secret changes every real node's code and no padded one's."""
    drawn = np.stack([_codes(seed) for seed in (0, 1)])
    real = clients()["c03"].real.numpy()
    assert (drawn[0][real] != drawn[1][real]).all()
    assert (drawn[:, ~real] == 0).all()


def _codes(seed: int) -> np.ndarray:
    fed: Simulation = federation(clients={"c03": clients()["c03"]}, seed=seed)
    weights = models.init(NET, random.key(0))
    return fed.map(NodeCodes(NET).train, {"w": weights, "classes": CLASSES})["c03"]["codes"].numpy()
