"""The contract where the examples are small graphs of which each client holds several."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedweave.algorithms import FedAvg, Local
from fedweave.algorithms.parts import GraphCrossEntropy
from fedweave.core.graph import TRAIN, make_graph
from fedweave.core.model import Model
from fedweave.core.tree import decode, encode
from fedweave.engines.simulation import Simulation
from fedweave.models import MODELS
from fedweave.rounds import train
from tests.contract.federations import BytesEngine, distance
from tests.contract.small_graphs import CLASSES, COUNTS, FEATURES, arrays, global_test, graphs
from tests.contract.test_contract import Recorder, everything, run

ROUNDS = 8
SLOW = pytest.mark.slow


def federation(engine: type[Simulation] = Simulation, dtype: torch.dtype = torch.float64, **options: Any) -> Simulation:
    """The five clients on an engine, and a global test set of graphs that none of them holds."""
    clients = options.pop("clients", None) or graphs(dtype)
    return engine(clients, classes=CLASSES, test=global_test(dtype), **options)


def net(dropout: float = 0.5) -> Model:
    return MODELS["gin"](hidden=8, layers=2, dropout=dropout, pool="sum").build(FEATURES, CLASSES)


KINDS: dict[str, Callable[..., Any]] = {
    "fedavg": FedAvg,
    "local": Local,
    "fedavg on mini-batches": lambda model, **o: FedAvg(model, parts=(GraphCrossEntropy(batch=4),), **o),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def outcome(kind: str, rounds: int = ROUNDS, **options: Any) -> dict[str, Any]:
    fed = federation(**options)
    return everything(run(KINDS[kind](net()), fed, rounds), fed)


@pytest.fixture(scope="module")
def specified() -> dict[str, Any]:
    """What the loop engine, the specification, gives for each kind."""
    return {kind: outcome(kind, mode="loop") for kind in KINDS}


def test_clients_of_different_sizes_run_together() -> None:
    made = graphs()
    assert len({(graph.real.sum().item(), (graph.y >= 0).sum().item()) for graph in made.values()}) == len(COUNTS)
    assert 1 < len({(graph.nodes, len(graph.y)) for graph in made.values()}) < len(COUNTS)


@every_kind
@pytest.mark.parametrize(
    ("chunk", "record"),
    [
        (0, "always"),
        pytest.param(0, "never", marks=SLOW),
        pytest.param(1, "always", marks=SLOW),
    ],
)
def test_vectorised_equals_loop(
    kind: str, chunk: int, record: str, specified: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(mode="vmap", chunk=chunk, record=record)
    assert distance(everything(run(KINDS[kind](net()), fed, ROUNDS), fed), specified[kind]) <= 1e-9
    assert bool(fed.recordings.played) == (record == "always")
    assert not caplog.messages  # of steps that could not be recorded


@every_kind
def test_single_precision_gives_nearly_the_same(kind: str) -> None:
    loop, fast = (outcome(kind, 6, dtype=torch.float32, mode=mode) for mode in ("loop", "vmap"))
    assert distance(loop, fast) <= 1e-5


@every_kind
def test_only_bytes_pass(kind: str, specified: dict[str, Any]) -> None:
    assert distance(outcome(kind, engine=BytesEngine), specified[kind]) == 0


@every_kind
@pytest.mark.parametrize("mode", [pytest.param("loop", marks=SLOW), "vmap"])
def test_resumed_equals_uninterrupted(kind: str, mode: str) -> None:
    made = KINDS[kind](net())
    whole, first, second = (federation(mode=mode) for _ in range(3))
    expected = everything(run(made, whole, 6), whole)
    half = run(made, first, 3)
    saved = decode(encode({"state": half.state, "clients": first.snapshot()}))
    second.restore(saved.get("clients", {}))
    resumed = run(made, second, 6, (3, saved.get("state", {})), half.summary)
    assert distance(everything(resumed, second), expected) == 0


@every_kind
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_clients_are_isolated(kind: str, mode: str) -> None:
    """Other small graphs at client 3 change no other client's first replies, nor what it keeps."""
    heard, kept = [], []
    for changed in (None, 3):
        fed = federation(engine=Recorder, clients=graphs(changed=changed), mode=mode)
        made = KINDS[kind](net())
        fed.begin(0)
        state = made.init(fed)
        fed.begin(1)
        made.round(state, fed)
        heard.append(fed.heard[-1])
        kept.append(fed.snapshot())
    before, after = (
        {client: (reply[client], own[client]) for client in own} for reply, own in zip(heard, kept, strict=True)
    )
    for client in before:
        apart = [distance(*pair) for pair in zip(before[client], after[client], strict=True)]
        assert any(apart) == (client == "site-3")


@every_kind
def test_more_rounds_lower_the_training_loss(kind: str) -> None:
    losses = []
    for step in train(KINDS[kind](net(dropout=0.0), lr=0.003), federation(), 30, eval_every=10):
        if step.metrics is not None:
            rows = [row for row in step.metrics.to_pylist() if row["client"] != "global" and row["split"] == "train"]
            losses.append(sum(row["value"] for row in rows if row["metric"] == "loss"))
    assert all(later < earlier for earlier, later in pairwise(losses))
    assert losses[-1] < 0.9 * losses[0]


def test_updates_count_by_training_graphs_not_nodes() -> None:
    """One step of plain SGD from the weights that all share: the sum over all training graphs is that of one client
    which holds them all."""
    held = [arrays(count, i) for i, count in enumerate(COUNTS)]
    starts = np.cumsum([0, *(len(own["graph_of"]) for own in held)])
    firsts = np.cumsum([0, *COUNTS])
    union = make_graph(
        sp.csr_matrix(sp.vstack([own["x"] for own in held])),
        np.concatenate([own["edges"] + start for own, start in zip(held, starts, strict=False)], 1),
        np.concatenate([own["y"] for own in held]),
        np.concatenate([own["masks"] for own in held], 1),
        dtype=torch.float64,
        graph_of=np.concatenate([own["graph_of"] + first for own, first in zip(held, firsts, strict=False)]),
    )
    made = FedAvg(net(dropout=0.0), local_steps=1, optimizer="sgd", lr=0.05, weight_decay=0.0)
    several, one = federation(), federation(clients={"all": union})
    assert union.masks[TRAIN].sum() == sum(graph.masks[TRAIN].sum() for graph in graphs().values())
    assert distance(run(made, several, 5).state["w"], run(made, one, 5).state["w"]) <= 1e-12


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_a_mini_batch_of_all_training_graphs_is_the_full_batch(mode: str) -> None:
    most = max(int(graph.masks[TRAIN].sum()) for graph in graphs().values())
    drawn = FedAvg(net(dropout=0.0), optimizer="sgd", lr=0.05, parts=(GraphCrossEntropy(batch=most),))
    full = FedAvg(net(dropout=0.0), optimizer="sgd", lr=0.05)
    ours, theirs = (run(made, federation(mode=mode), 5).state["w"] for made in (drawn, full))
    assert distance(ours, theirs) <= 1e-12
    few = FedAvg(net(dropout=0.0), optimizer="sgd", lr=0.05, parts=(GraphCrossEntropy(batch=most - 1),))
    assert distance(run(few, federation(mode=mode), 5).state["w"], theirs) > 1e-6


def test_mini_batches_of_graphs_need_a_model_that_pools() -> None:
    with pytest.raises(ValueError, match=r"set model\.pool = 'sum' or 'mean'"):
        FedAvg(MODELS["gin"](hidden=8).build(FEATURES, CLASSES), parts=(GraphCrossEntropy(),))
