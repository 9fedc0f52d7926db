"""EU, RFFL and CFFL: values, rewards and who is dropped, against NumPy on three clients."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.cffl import Credibility, CredibilityReward
from fedweave.algorithms.cgsv import CosineValue, EuclideanValue, SparseReward
from fedweave.algorithms.fairgraphfl import AgentValue, ValueReward
from fedweave.algorithms.parts import Round
from fedweave.algorithms.qfedavg import FairByLoss
from fedweave.algorithms.rffl import Reputation, ReputationReward
from fedweave.core.federation import Client
from fedweave.core.graph import make_graph
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.datasets.base import Dataset
from fedweave.experiment.rounds import train
from fedweave.models import MODELS
from fedweave.partition.graphs import GraphsIID
from tests.contract.federations import federation, model
from tests.refusals import refusal

UPDATES = np.array([[0.3, -0.1, 0.2, 0.0], [0.25, 0.1, 0.1, 0.1], [-0.3, 0.1, -0.1, 0.05]])
SIZES = np.array([2.0, 6.0, 4.0])


def after(**options: Any) -> Round:
    """A round in which clients sent `UPDATES`."""
    tree = {"update": {"0": {"weight": torch.tensor(UPDATES).view(3, 2, 2)}}, "n": torch.tensor(SIZES).long()}
    return Round(Replies("abc", [ReplyBatch((0, 1, 2), tree)], {}), torch.arange(3), {}, (), **options)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.sqrt(a @ a * (b @ b)))


def test_eu_values_closeness() -> None:
    part, shares = EuclideanValue(alpha=0.9), SIZES / SIZES.sum()
    state = {"r": torch.tensor([0.5, 0.3, 0.2]).double()}
    phi = 1 / (1 + np.linalg.norm(UPDATES - shares @ UPDATES, axis=1))
    r = 0.9 * state["r"].numpy() + 0.1 * phi
    assert np.allclose(part.value(state, after(weights=torch.tensor(shares))), r / r.sum())


@pytest.mark.parametrize("rounds_before", [0, 10])
def test_rffl_drops_the_disreputable_after_ten_rounds(rounds_before: int) -> None:
    part, last = Reputation(), np.array([0.5, 0.42, 0.08])
    state = {"r": torch.tensor(last), "inside": torch.ones(3, dtype=torch.bool), "round": rounds_before}
    round = after()
    weights = part.weigh(state, round)
    assert np.allclose(weights, last)
    round = after(weights=weights)
    phi = np.array([cosine(u, last @ UPDATES) for u in UPDATES])
    r = np.maximum(0.95 * last + 0.05 * phi, 0)
    r /= r.sum()
    assert phi[2] < 0 < r[2] < 1 / 9  # below 1 / (3 |R|)
    if rounds_before:
        r[2] = 0
    value = part.value(state, round)
    assert np.allclose(value, r / r.sum())
    state = part.update(state, after(weights=weights, value=value))
    assert state["inside"].tolist() == [True, True, not rounds_before]
    if rounds_before:
        weights = part.weigh(state, round)
        assert weights[2] == part.value(state, after(weights=weights))[2] == 0


def test_rffl_counts_those_that_remain_in_its_bound() -> None:
    """Of three clients one is out: .142 is below 1 / (3 · 2), and above 1 / (3 · 3)."""
    part, last = Reputation(), np.array([0.81, 0.0, 0.19])
    state = {"r": torch.tensor(last), "inside": torch.tensor([True, False, True]), "round": 10}
    r = 0.95 * last + 0.05 * np.array([cosine(u, last @ UPDATES) for u in UPDATES])
    assert 1 / 9 < r[2] / (r[0] + r[2]) < 1 / 6
    value = part.value(state, after(weights=torch.tensor(last)))
    assert value.tolist() == [1.0, 0.0, 0.0]
    assert part.update(state, after(value=value))["inside"].tolist() == [True, False, False]


def test_rffl_keeps_the_own_update() -> None:
    """A client begins with what it trained and the ⌈q n⌉ largest entries of the joint update."""
    fed = federation(dtype=torch.float64, mode="loop")
    made = ALGORITHMS["rffl"](model(0.0))
    *_, last = train(made, fed, 2, eval_every=2)
    shared, each = made.evaluation_message(last.state, fed)
    r = last.state["parts"]["Reputation"]["r"]
    for at, client in enumerate(fed.clients):
        trained = fed.snapshot()[client]["w"]["0"]["weight"]
        message = shared | each.one(client)
        view = Client(fed.graphs[client], fed.snapshot()[client], torch.tensor(0), torch.tensor(0))
        begun = made.used(view, message)["0"]["weight"]
        reward = begun - trained
        n = reward.numel()
        assert int((reward != 0).sum()) == min(int(np.ceil(float(r[at] / r.max()) * n)), n - 1)
        whole = last.state["parts"]["ReputationReward"]["owed"]["0"]["weight"][r.argmax()]
        assert torch.allclose(reward[reward != 0], whole[reward != 0], atol=1e-15)


PARTS = {
    "values and rewards of FairGraphFL": (AgentValue(alpha2=0.0), ValueReward()),
    "cgsv": (CosineValue(), SparseReward()),
    "rffl": (Reputation(wait=100), ReputationReward()),
}


@pytest.mark.often("rffl")
@pytest.mark.parametrize("name", PARTS)
def test_a_reward_waits_for_whoever_has_earned_it(name: str) -> None:
    """Two of five clients are called in a round: the others' models stay as they are, and what they are owed."""
    fed = federation(dtype=torch.float64)
    made = ALGORITHMS["fedavg"](model(0.0), parts=PARTS[name], participation=0.4)
    before: dict[str, Any] = {}
    waited = 0
    for step in train(made, fed, 12, eval_every=1):
        owed = step.state["parts"][type(PARTS[name][1]).__name__]["owed"]["0"]["weight"]
        judged = step.of_clients("loss")
        rows = fed.ledger.table().to_pylist()
        called = {row["client"] for row in rows if row["round"] == step.round and row["step"] == "FedAvg.train"}
        assert len(called) == 2
        for at, client in enumerate(fed.clients):
            if client not in called and step.round > 1:
                assert torch.equal(owed[at], before["owed"][at])
                assert judged[client] == before["judged"][client]
                waited += bool(owed[at].any())
        before = {"owed": owed, "judged": judged}
    assert waited > 10


@pytest.mark.slow
def test_values_of_those_who_are_called_in_turn_can_be_compared() -> None:
    """As many values as clients are worth 1 together, whoever was called."""
    for value, reward in ((CosineValue(), SparseReward()), (Reputation(wait=100), ReputationReward())):
        fed = federation(dtype=torch.float64)
        made = ALGORITHMS["fedavg"](model(0.0), parts=(value, reward), participation=0.4)
        for step in train(made, fed, 30, eval_every=0):
            r = step.state["parts"][type(value).__name__]["r"]
            assert float(torch.where(r > 0, r, 1 / 5).sum()) == pytest.approx(1)
        assert bool((r > 0).all())  # all have been called


def test_a_round_of_dropped_clients_alone_changes_nothing() -> None:
    part = Reputation()
    state = {"r": torch.zeros(3).double(), "inside": torch.zeros(3, dtype=torch.bool), "round": 20}
    weights = part.weigh(state, after())
    assert weights.tolist() == [0, 0, 0]
    value = part.value(state, after(weights=weights))
    assert value.tolist() == [0, 0, 0]
    for reward in (ReputationReward(), SparseReward(), CredibilityReward()):
        assert reward.quota(after(weights=weights, value=value)).tolist() == [0, 0, 0]


def test_a_client_without_a_training_example_weighs_nothing_by_its_loss() -> None:
    """Of its loss of 0 to the power of q − 1 there would be a step a hundred times too short."""
    for q in (0.1, 1.0, 2.0):
        part = FairByLoss(q, 10.0)
        told = {"update": {"0": {"weight": torch.tensor(UPDATES).view(3, 2, 2)}}}
        update = {"0": {"weight": torch.tensor(UPDATES[:2]).view(2, 2, 2)}}
        both = [ReplyBatch((0, 1), {"update": update, "loss": torch.tensor([0.7, 0.3])})]
        three = [ReplyBatch((0, 1, 2), told | {"loss": torch.tensor([0.7, 0.3, 0.0])})]
        alone, joined = (
            part.weigh({}, Round(Replies(names, batches, {}), torch.arange(len(names)), {}, ()))
            for names, batches in (("ab", both), ("abc", three))
        )
        assert joined[2] == 0
        assert torch.allclose(joined[:2], alone)


def validation(hits: list[int]) -> Any:
    """Four isolated nodes with features 1, …, 4 as unit vectors and these classes."""
    none = np.zeros((3, 4), bool)
    return make_graph(np.eye(4), np.zeros((2, 0), int), np.array(hits), none, dtype=torch.float64)


def test_cffl_values_what_updates_do_on_the_servers_examples() -> None:
    """A linear model on unit vectors: row v of the weights are node v's logits. Of four nodes, the three clients'
    updates get 3, 2 and 0 right."""
    net = MODELS["mlp"](layers=1, dropout=0.0).build(4, 2)
    right = np.array([[1, 1, 1, -1], [1, 1, -1, -1], [-1, -1, -1, -1]])
    update = torch.tensor(np.stack([right, -right], 2) * 0.1)
    still = torch.zeros(3, 2).double()
    tree = {"update": {"0": {"weight": update, "bias": still}}, "n": torch.tensor([5, 5, 5])}
    w = {"0": {"weight": torch.zeros(4, 2).double(), "bias": still[0]}}
    round = Round(
        Replies("abc", [ReplyBatch((0, 1, 2), tree)], {}), torch.arange(3), w, net, {"validation": validation([0] * 4)}
    )
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    state = {"c": third, "inside": torch.ones(3, dtype=torch.bool)}
    c = np.sinh(5 * (0.2 / 3 + 0.8 * np.array([3, 2, 0]) / 5))
    c /= c.sum()
    assert c[2] < 2 / 9 < c[1]
    c = np.array([c[0], c[1], 0]) / c[:2].sum()
    value = Credibility().value(state, round)
    assert np.allclose(value, c)
    after = Credibility().update(state, Round(round.replies, round.at, w, net, {}, weights=third, value=value))
    assert after["inside"].tolist() == [True, True, False]
    assert Credibility().weigh(after, round).tolist() == [0.5, 0.5, 0.0]
    four = {"c": torch.tensor([0.1, 0.1, 0.1, 0.7]).double(), "inside": torch.ones(4, dtype=torch.bool)}
    assert np.allclose(Credibility().value(four, round), 0.3 * c)  # the one that was not called keeps its .7


def test_cffl_drops_whoever_is_below_two_thirds_of_an_even_share() -> None:
    """Of updates that get 4, 4 and 2 of four nodes right, the last one's value is below 2/9, if above 1/9."""
    net = MODELS["mlp"](layers=1, dropout=0.0).build(4, 2)
    right = torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, 1], [1, 1, -1, -1]]).double()
    still = torch.zeros(3, 2).double()
    tree = {"update": {"0": {"weight": torch.stack([right, -right], 2), "bias": still}}, "n": torch.tensor([5, 5, 5])}
    w = {"0": {"weight": torch.zeros(4, 2).double(), "bias": still[0]}}
    held = {"validation": validation([0] * 4)}
    round = Round(Replies("abc", [ReplyBatch((0, 1, 2), tree)], {}), torch.arange(3), w, net, held)
    state = {"c": torch.full((3,), 1 / 3).double(), "inside": torch.ones(3, dtype=torch.bool)}
    c = np.sinh(5 * (0.2 / 3 + 0.8 * np.array([4, 4, 2]) / 10))
    assert 1 / 9 < c[2] / c.sum() < 2 / 9
    assert Credibility().value(state, round).tolist() == pytest.approx([0.5, 0.5, 0.0])


def test_cffl_rewards_are_what_the_others_gave() -> None:
    part, weights, value = CredibilityReward(), SIZES / SIZES.sum(), np.array([0.5, 0.3, 0.2])
    fed = federation(clients=dict.fromkeys("abc", validation([0] * 4)))
    state = part.init(fed, {"0": {"weight": torch.zeros(2, 2).double()}})
    round = after(weights=torch.tensor(weights), value=torch.tensor(value))
    round = replace(round, delta=round.replies.weighted_sum("update", round.weights))
    got = part.download(part.update(state, round), torch.arange(3))[2]["0"]["weight"].dense.reshape(3, 4).numpy()
    whole = weights @ UPDATES
    for i, quota in enumerate(value / 0.5 * SIZES / 6):
        kept = np.argsort(-np.abs(whole))[: min(int(np.ceil(quota * 4)), 3)]
        expected = np.zeros(4)
        expected[kept] = (whole - weights[i] * UPDATES[i])[kept]
        assert np.allclose(got[i], expected)


def test_reputation_is_the_share_of_the_reward() -> None:
    assert ReputationReward().quota(after(value=torch.tensor([0.2, 0.5, 0.0]))).tolist() == pytest.approx([0.4, 1, 0])


def test_without_validation_examples_at_the_server_cffl_is_refused() -> None:
    fed = federation(held={})
    fed.begin(0)
    with refusal("config.server-val"):
        ALGORITHMS["cffl"](model()).init(fed)


def test_the_server_may_hold_graphs_to_validate_on() -> None:
    n, rng = 60, np.random.default_rng(0)
    data = Dataset(
        "some", np.ones((n, 1), np.float32), np.zeros((2, 0), int), rng.integers(0, 2, n), 2, graph_of=np.arange(n)
    )
    cut = GraphsIID(clients=4, server_val=0.2).cut(data, 0)
    held = cut.held["validation"]
    assert (len(held.examples), len(cut.test)) == (12, 6)
    assert held.masks[1].all()
    everyone = np.concatenate([held.examples, cut.test, *(part.examples for part in cut.parts)])
    assert sorted(everyone) == list(range(n))
    plain, same = (GraphsIID(clients=4, **given).cut(data, 0) for given in ({}, {"server_val": 0.0}))
    assert all(np.array_equal(a.nodes, b.nodes) for a, b in zip(plain.parts, same.parts, strict=True))
    for bad in ({"server_val": 0.95}, {"server_val": 0.1, "protocol": "script"}):
        with refusal("config.server-val", "server_val"):
            GraphsIID(**bad)
    with refusal("config.value", "server_val"):
        GraphsIID(server_val=-0.1)
