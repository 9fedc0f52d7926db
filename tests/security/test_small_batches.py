"""Steps of training on a few of a site's examples, where its policy asks for more: what is left of an epoch, a small
share of the nodes, or an epoch of many steps (docs/security.md)."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN
from fedweave.experiment.config import resolve
from fedweave.sites.flare.policy import check_batches
from fedweave.sites.flare.sitefile import Rules
from tests.contract.federations import algorithm
from tests.models.test_gin import small_graphs
from tests.refusals import check_facts, refusal
from tests.security.cheating import Cheat, agreed, reply, set_policy
from tests.sites.projects import job_of

EGO = {"name": "ego", "hidden": 8, "dropout": 0.0}


def on_egos(steps: int, **settings: Any) -> Any:
    part = {"name": "ego_cross_entropy", "batch": 32, "epochs": 1, **settings}
    return resolve({**agreed(algorithm_settings={"local_steps": steps, "parts": [part]}).plain(), "model": EGO})


@pytest.mark.parametrize(
    ("steps", "settings", "few"),
    [
        (1, {}, False),
        (1, {"share": 0.02}, True),  # one node
        (1, {"share": 0.05}, True),
        (30, {}, True),  # an epoch of many steps
        (30, {"epochs": 30}, False),  # thirty epochs of one
        (30, {"epochs": 0}, False),
        (30, {"epochs": 0, "batch": 9}, True),
    ],
)
def test_no_step_is_on_fewer_examples_than_the_policy_allows(
    project: Path, steps: int, settings: dict[str, Any], few: bool
) -> None:
    set_policy(project, "min_nodes = 10")
    server = Cheat(project, on_egos(steps, **settings))
    answer = server.join()
    assert bool(answer.blob) == (not few)
    if few:
        check_facts(answer.refusal, "policy.min_nodes: EgoCrossEntropy (batch, epochs, share)", "10")
        assert server.refusals()


def test_a_message_makes_no_epoch_of_steps_on_a_few_nodes(project: Path) -> None:
    """FedEgo's server tells how many mini-batches an epoch has: as many as the site with most nodes needs."""
    set_policy(project, "min_nodes = 10")
    config = agreed("fedego", algorithm_settings={"epoch_share": 1.0, "epochs": 1})
    for run, (epoch, few) in enumerate([(1, False), (30, True), (torch.tensor(30), True), (30.0, True)]):
        server = Cheat(project, config, run=f"r{run}")
        reply(server.join())
        own = job_of(server.member).algorithm
        theta, phi = own.split_weights(models.init(own.model, random.key(1), torch.float32))
        labels = torch.full((3,), 1 / 3)
        message = {"theta": theta, "phi": phi, "labels": labels, "uploads": 1, "epoch": epoch}
        answer = server.call("FedEgo.train", 1, message)
        assert bool(answer.blob) == (not few)
        if few:
            check_facts(answer.refusal, "policy.min_nodes: FedEgo (batch, epoch_share)", "10")


@pytest.mark.parametrize(("left", "steps", "few"), [(1, 1, False), (1, 2, True), (9, 9, True), (0, 9, False)])
def test_what_is_left_of_small_graphs_is_no_batch_of_a_few(left: int, steps: int, few: bool) -> None:
    graph = small_graphs(60, 2)[0]
    count = int(graph.masks[TRAIN].sum())
    part = {"name": "graph_cross_entropy", "batch": count - left}
    config = agreed(algorithm_settings={"local_steps": steps, "parts": [part]}).plain()
    gin = resolve({**config, "model": {"name": "gin", "pool": "sum", "hidden": 8}})
    own = gin.algorithm.make(gin.model.make().build(4, 2))
    rules = Rules(min_nodes=10)
    assert count - left >= rules.min_nodes
    if few:
        with refusal("call-refused", "GraphCrossEntropy", "10"):
            check_batches(rules, own, graph, {})
    else:
        check_batches(rules, own, graph, {})


def test_a_query_set_has_as_many_examples_as_the_policy_allows() -> None:
    """GraphFL sends the gradient of half of the training examples, if these are few."""
    graph = small_graphs(60, 2)[0]
    count = int(graph.masks[TRAIN].sum())
    check_batches(Rules(min_nodes=count // 2), algorithm("graphfl"), graph, {})
    with refusal("call-refused", "MetaGradient"):
        check_batches(Rules(min_nodes=count // 2 + 1), algorithm("graphfl"), graph, {})
