"""The contract where the examples are small graphs of which each client holds several."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedweave.algorithms import FedAvg, Local
from fedweave.algorithms.parts import BatchCrossEntropy, GraphCrossEntropy, Part
from fedweave.contract.laws import LAWS
from fedweave.contract.subject import Subject
from fedweave.core.algorithm import Capabilities, capabilities
from fedweave.core.graph import TRAIN, make_graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree, leaves
from fedweave.engines.simulation import Simulation
from fedweave.models import MODELS
from tests.contract.federations import distance
from tests.contract.small_graphs import CLASSES, COUNTS, FEATURES, arrays, global_test, graphs
from tests.contract.test_contract import run

SLOW = pytest.mark.slow


def federation(engine: type[Simulation] = Simulation, dtype: torch.dtype = torch.float64, **options: Any) -> Simulation:
    """The five clients on an engine, and a global test set of graphs that none of them holds."""
    clients = options.pop("clients", None) or graphs(dtype)
    return engine(clients, classes=CLASSES, test=global_test(dtype), **options)


def net(dropout: float = 0.5) -> Model:
    return MODELS["gin"](hidden=8, layers=2, dropout=dropout, pool="sum").build(FEATURES, CLASSES)


@dataclass(frozen=True)
class OnGraphs(FedAvg):
    """FedAvg, said to need small graphs."""

    capabilities: ClassVar[Capabilities] = replace(capabilities(FedAvg), graph_level=True)
    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "it trains a model of small graphs"}
    test_settings: ClassVar[dict[str, Any]] = {"local_steps": 2, "lr": 0.003}


@dataclass(frozen=True)
class OnMiniBatches(OnGraphs):
    """The same on mini-batches of them."""

    parts: tuple[Part, ...] = (GraphCrossEntropy(batch=4),)
    test_settings: ClassVar[dict[str, Any]] = {"local_steps": 1, "lr": 0.003}


class LocalOnGraphs(Local):
    """Local training, said to need small graphs."""

    capabilities: ClassVar[Capabilities] = replace(capabilities(Local), graph_level=True)
    exempt_laws: ClassVar[dict[str, str]] = OnGraphs.exempt_laws
    test_settings: ClassVar[dict[str, Any]] = OnGraphs.test_settings


@pytest.fixture(
    scope="module", params=[OnMiniBatches, pytest.param(OnGraphs, marks=SLOW), pytest.param(LocalOnGraphs, marks=SLOW)]
)
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(request.param)


@pytest.mark.often(
    "OnMiniBatches-clients_in_batches_give_the_loops_numbers",
    "OnMiniBatches-recorded_steps_give_the_same_bits",
    "OnMiniBatches-a_resumed_run_gives_the_same",
)
@pytest.mark.parametrize("law", LAWS)
def test_law(subject: Subject, law: str) -> None:
    """FedStar and FairGraphFL are tried in `test_contract`."""
    if law in subject.exemptions:
        pytest.skip(subject.exemptions[law])
    LAWS[law](subject)


def test_clients_of_different_sizes_run_together() -> None:
    made = graphs()
    assert len({(graph.real.sum().item(), (graph.y >= 0).sum().item()) for graph in made.values()}) == len(COUNTS)
    assert 1 < len({(graph.nodes, len(graph.y)) for graph in made.values()}) < len(COUNTS)


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
    assert distance(run(made, several, 3).state["w"], run(made, one, 3).state["w"]) <= 1e-12


@pytest.mark.often("loop")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_a_mini_batch_of_all_training_graphs_is_the_full_batch(mode: str) -> None:
    most = max(int(graph.masks[TRAIN].sum()) for graph in graphs().values())
    drawn = FedAvg(net(dropout=0.0), optimizer="sgd", lr=0.05, parts=(GraphCrossEntropy(batch=most),))
    full = FedAvg(net(dropout=0.0), optimizer="sgd", lr=0.05)
    ours, theirs = (run(made, federation(mode=mode), 2).state["w"] for made in (drawn, full))
    assert distance(ours, theirs) <= 1e-12
    few = FedAvg(net(dropout=0.0), optimizer="sgd", lr=0.05, parts=(GraphCrossEntropy(batch=most - 1),))
    assert distance(run(few, federation(mode=mode), 2).state["w"], theirs) > 1e-6


def test_a_batch_size_reads_the_graphs_of_a_batch_alone() -> None:
    """Features of other graphs may be anything; with all graphs in each step they may not."""
    made = {}
    for number, count in enumerate(COUNTS):
        held = arrays(count, number)
        others = ~held["masks"][TRAIN][held["graph_of"]] & (held["graph_of"] > 0)  # rows of padding read the first
        x = np.where(others[:, None], np.nan, held["x"].toarray())
        made[f"client-{number}"] = make_graph(**held | {"x": x}, dtype=torch.float64)

    def after(**more: Any) -> Tree:
        algorithm, fed = FedAvg(net(), optimizer="sgd", lr=0.05, **more), federation(clients=made, mode="loop")
        fed.begin(0)
        state = algorithm.init(fed)
        fed.begin(1)
        w: Tree = algorithm.round(state, fed)["w"]
        return w

    sized = after(batch_size=4)
    assert distance(sized, after(parts=(GraphCrossEntropy(batch=4),))) == 0
    assert all(leaf.isfinite().all() for _, leaf in leaves(sized))
    whole = after(parts=(BatchCrossEntropy(batch=4),))
    assert not all(leaf.isfinite().all() for _, leaf in leaves(whole))


def test_epochs_of_mini_batches_of_graphs_agree() -> None:
    made = FedAvg(net(), optimizer="sgd", lr=0.05, local_epochs=2, batch_size=4)
    loop, batch = (run(made, federation(mode=mode), 2).state["w"] for mode in ("loop", "vmap"))
    assert distance(loop, batch) <= 1e-9


def test_models_that_read_single_edges_keep_all_graphs_in_a_step() -> None:
    whole = MODELS["pna"](hidden=8, pool="sum", edge_features=0).build(FEATURES, CLASSES)
    kinds = [next(iter(FedAvg(one, batch_size=4).composed)) for one in (net(), whole)]
    assert kinds == ["GraphCrossEntropy", "BatchCrossEntropy"]


def test_mini_batches_of_graphs_need_a_model_that_pools() -> None:
    with pytest.raises(ValueError, match=r"set model\.pool = 'sum' or 'mean'"):
        FedAvg(MODELS["gin"](hidden=8).build(FEATURES, CLASSES), parts=(GraphCrossEntropy(),))
