"""The share of its own model that a client uses (`own_share`), by hand and against what evaluations count."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import fedweave
from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.parts.own_share import OwnShare
from fedweave.algorithms.scoring import measure, on_validation
from fedweave.apply.scorer import choose_model
from fedweave.core import model as models
from fedweave.core.federation import Client
from fedweave.core.graph import TRAIN, VAL
from fedweave.core.tree import map_leaves
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.trained import finished_config, load_trained
from fedweave.models.gcn import GCN
from fedweave.models.gin import GIN
from tests.algorithms.test_family_oracles import LR, Problem
from tests.algorithms.test_personal_baselines import stepped
from tests.contract.federations import distance, federation, graphs, model
from tests.targets import numbers, several_labels, split

SGD = {"optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0}


def mixes(own, joint):
    return [map_leaves(lambda a, b, share=share: share * a + (1 - share) * b, own, joint) for share in (0, 0.5, 1)]


def used_by(made, fed, state, name, graph=None):
    shared, _ = made.evaluation_message(state, fed)
    client = Client(graph or fed.graphs[name], fed.snapshot()[name], torch.tensor(0), torch.tensor(0), None)
    return made.used(client, shared)


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_each_client_uses_the_mix_with_the_lowest_validation_loss(mode):
    made = FedAvg(model(0.0), parts=(OwnShare(),), local_steps=8, **SGD)
    fed = federation(dtype=torch.float64, mode=mode)
    *_, last = train(made, fed, 3)
    chosen = []
    for name, graph in graphs(torch.float64).items():
        own = fed.snapshot()[name]["w"]
        assert distance(own, last.state["w"]) > 1e-3
        candidates, losses, val = mixes(own, last.state["w"]), [], graph.masks[VAL]
        for w in candidates:
            p = torch.softmax(models.infer(made.model, w, graph), -1)[val]
            losses.append(-float(p[torch.arange(len(p)), graph.y[val]].log().mean()))
        chosen.append(int(np.argmin(losses)))
        assert distance(used_by(made, fed, last.state, name), candidates[chosen[-1]]) < 1e-12
    assert len(set(chosen)) > 1


def test_without_validation_examples_or_training_it_is_the_joint_model():
    made = FedAvg(model(0.0), parts=(OwnShare(),), local_steps=8, **SGD)
    fed = federation(dtype=torch.float64)
    state, name = made.init(fed), fed.clients[0]
    client = Client(fed.graphs[name], {}, torch.tensor(0), torch.tensor(0), None)
    assert distance(made.used(client, made.evaluation_message(state, fed)[0]), state["w"]) == 0
    *_, last = train(made, fed, 1)
    for name, graph in graphs(torch.float64).items():
        masks = graph.masks.clone()
        masks[VAL] = False
        assert distance(used_by(made, fed, last.state, name, graph._replace(masks=masks)), last.state["w"]) == 0


def test_a_client_that_cannot_train_uses_the_joint_model_of_this_round():
    fed = federation(dtype=torch.float64)
    name = fed.clients[1]
    graph = fed.graphs[name]
    masks = graph.masks.clone()
    masks[TRAIN] = False
    clients = {**fed.graphs, name: graph._replace(masks=masks)}
    fed = federation(dtype=torch.float64, clients=clients)
    made = FedAvg(model(0.0), parts=(OwnShare(),), local_steps=8, **SGD)
    *_, last = train(made, fed, 3)
    assert int(clients[name].masks[VAL].sum())
    assert distance(used_by(made, fed, last.state, name), last.state["w"]) == 0


def test_a_model_that_is_not_finite_is_not_chosen():
    made = FedAvg(model(0.0), parts=(OwnShare(),), **SGD)
    fed = federation(dtype=torch.float64)
    *_, last = train(made, fed, 1)
    name = fed.clients[0]
    state = fed.snapshot()[name] | {"w": map_leaves(lambda leaf: leaf * torch.nan, last.state["w"])}
    client = Client(fed.graphs[name], state, torch.tensor(0), torch.tensor(0), None)
    assert distance(made.used(client, made.evaluation_message(last.state, fed)[0]), last.state["w"]) == 0


def test_with_alone_each_client_may_use_a_model_that_only_its_own_steps_move():
    fed = federation(dtype=torch.float64)
    made = FedAvg(model(0.0), parts=(OwnShare(alone=True),), local_steps=2, **{**SGD, "lr": LR})
    *_, last = train(made, fed, 3)
    used = 0
    for name, graph in graphs(torch.float64).items():
        v = fed.snapshot()[name]["OwnShare"]["v"]
        assert distance(v, stepped(Problem().like, graph, 3 * 2)) < 1e-12
        candidates = [*mixes(fed.snapshot()[name]["w"], last.state["w"]), v]
        worth = torch.stack([on_validation(made.model, w, graph) for w in candidates])
        used += int(worth.argmax()) == 3
        assert distance(used_by(made, fed, last.state, name), candidates[int(worth.argmax())]) < 1e-12
    assert used


@pytest.mark.parametrize("make", [numbers, several_labels])
@pytest.mark.parametrize("example", ["node", "graph"])
def test_models_are_ranked_as_evaluations_count_them(make, example):
    data = make(example, count=60)
    kind = GIN(hidden=8, layers=2, pool="sum") if example == "graph" else GCN(hidden=8)
    net = kind.build(data.features, data.outputs)
    fed = fedweave.federation(data, split(data), FedAvg(net), seed=0)
    for graph in fed.graphs.values():
        w = models.init(net, torch.tensor(1), graph.x.dtype)
        pairs = measure(net, w, graph)
        if make is numbers:
            expected = -pairs["loss"][VAL, 0]
        else:
            right, of_all = pairs["auc"][VAL]
            expected = (right / of_all.clamp(min=1)).sum()
        assert torch.equal(on_validation(net, w, graph), expected)


@pytest.mark.parametrize("task", ["nodes", "links"])
def test_two_classes_and_links_are_ranked_by_auc(task):
    data = {"name": "synthetic", "nodes": 120, "classes": 2} | ({"task": "links"} if task == "links" else {})
    partition, model = {"name": "random", "clients": 2}, {"name": "gcn", "hidden": 8}
    built = build(resolve({"data": data, "partition": partition, "model": model, "algorithm": {"name": "fedavg"}}))
    net = built.algorithm.model
    for graph in built.fed.graphs.values():
        w = models.init(net, torch.tensor(1), graph.x.dtype)
        right, of_all = measure(net, w, graph)["auc"][VAL]
        assert on_validation(net, w, graph).item() == pytest.approx(float(right[1] / of_all[1]), abs=1e-12)
        if task == "nodes":
            logits, y = models.infer(net, w, graph)[graph.masks[VAL]], graph.y[graph.masks[VAL]]
            auc = roc_auc_score(y, (logits[:, 1] - logits[:, 0]).detach())
            assert on_validation(net, w, graph).item() == pytest.approx(auc, abs=1e-6)


@pytest.mark.parametrize(("parts", "notes"), [([], 0), (["own_share"], 1)])
def test_the_joint_model_of_a_run_with_own_models_is_noted_where_it_is_used(tmp_path, caplog, parts, notes):
    data, partition = {"name": "synthetic", "nodes": 60}, {"name": "random", "clients": 2}
    algorithm = {"name": "fedavg", "parts": parts}
    document = {"rounds": 1, "data": data, "partition": partition, "model": {"name": "gcn", "hidden": 4}}
    fedweave.run(document | {"algorithm": algorithm}, out=str(tmp_path / "run"), progress=False)
    run = load_trained(tmp_path / "run", finished_config(tmp_path / "run"), "")
    caplog.clear()
    choose_model(run, None, run.built.fed.clients[0])
    assert not caplog.records
    choose_model(run, None, None)
    assert len(caplog.records) == notes
