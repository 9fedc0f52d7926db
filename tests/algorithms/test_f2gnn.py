"""F²GNN and FairFed: whole rounds against arithmetic written apart, what they need, and what leaves a client."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.spatial.distance import jensenshannon

from fedweave.algorithms import ALGORITHMS, FedAvg, Local
from fedweave.algorithms.f2gnn import DivergenceStart, FairPenalty, GroupWeights
from fedweave.algorithms.fairfed import FairFedWeights
from fedweave.algorithms.parts import Context, CrossEntropy, Part, Round
from fedweave.core import random
from fedweave.core.federation import Client
from fedweave.core.graph import Graph
from fedweave.core.graph_arrays import GraphArrays
from fedweave.core.model import Layer
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.core.tree import Tree, ravel
from fedweave.experiment.rounds import train
from fedweave.ops.identity import ByObject
from tests.contract.federations import SIZES, Recorder, Simulation, federation, graphs, model, people, state_after
from tests.random_graphs import replace_fields
from tests.refusals import refusal

ROUNDS, STEPS, LR = 3, 8, 1.0
SGD: dict[str, Any] = {"optimizer": "sgd", "lr": LR, "weight_decay": 0.0, "local_steps": STEPS}
NAME = "f2gnn"  # whose data has two groups and two classes


class Person:
    """One of the contract's clients as dense arrays, and a 2-layer GCN written out."""

    def __init__(self, nodes: int, seed: int) -> None:
        x, self.edges, self.y, masks, self.sensitive = people(nodes, seed)
        self.train = masks[0]
        self.known = self.train & (self.sensitive >= 0)
        looped = sp.coo_matrix((np.ones(self.edges.shape[1]), tuple(self.edges)), (nodes, nodes)).toarray() + np.eye(
            nodes
        )
        scale = 1 / np.sqrt(looped.sum(1))
        self.a, self.x = torch.from_numpy(scale[:, None] * looped * scale), torch.from_numpy(x.toarray()).double()

    def logits(self, w: torch.Tensor) -> torch.Tensor:
        w1, b1, w2, b2 = self.shaped(w)
        return self.a @ torch.relu(self.a @ self.x @ w1 + b1) @ w2 + b2

    def shaped(self, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Of the flat vector, whose parts stand in the order of their paths: "0/bias", "0/weight", "1/bias", …"""
        b1, w1, b2, w2 = w.split([8, 60 * 8, 2, 16])
        return w1.view(60, 8), b1, w2.view(8, 2), b2

    def predicted(self, w: np.ndarray) -> np.ndarray:
        z = self.logits(torch.from_numpy(w))
        return (z[:, 1] > z[:, 0]).numpy().astype(int)

    def probabilities(self, w: np.ndarray) -> np.ndarray:
        return torch.softmax(self.logits(torch.from_numpy(w)), -1).numpy()

    def gradient(self, w: np.ndarray, alpha: float) -> np.ndarray:
        flat = torch.from_numpy(w).requires_grad_()
        z, y = self.logits(flat), torch.from_numpy(self.y)
        loss = torch.nn.functional.cross_entropy(z[self.train], y[self.train])
        p = torch.softmax(z, -1)[:, 1]
        for among in (self.known, self.known & (self.y == 1)):
            one, zero = among & (self.sensitive == 1), among & (self.sensitive == 0)
            if one.any() and zero.any():
                loss = loss + alpha * (p[one].mean() - p[zero].mean()).abs()
        return torch.autograd.grad(loss, flat)[0].numpy()


@pytest.fixture(scope="module")
def persons() -> list[Person]:
    return [Person(nodes, seed) for seed, nodes in enumerate(SIZES)]


def start() -> np.ndarray:
    fed = federation(name=NAME, dtype=torch.float64)
    fed.begin(0)
    w = ALGORITHMS["fedavg"](model(0.0, classes=2)).init(fed)["w"]
    return ravel(w).numpy()


def trained(name: str, rounds: int = ROUNDS, **options: Any) -> tuple[Tree, Any, Any]:
    fed = federation(name=NAME, dtype=torch.float64, record="auto")
    made = ALGORITHMS[name](model(0.0, classes=2), **{**SGD, **options})
    *_, last = train(made, fed, rounds, eval_every=0)
    return last.state, fed, made


def divergence(oracles: Any, person: Person, kind: str, w: np.ndarray, own: np.ndarray) -> float:
    p, q = person.probabilities(w), person.probabilities(own)
    if kind == "class":
        return float(oracles.jensen_shannon(p.mean(0), q.mean(0)))
    hard = [oracles.softmax((one[:, 1] > one[:, 0])[person.train] / 0.001) for one in (p, q)]
    return float(jensenshannon(*hard))  # SciPy's distance, in nats


@pytest.mark.often("nodes-fair")
@pytest.mark.parametrize(("js", "prefer"), [("nodes", "fair"), ("class", "as_printed"), ("nodes", "script")])
def test_f2gnn_rounds(oracles: Any, persons: list[Person], js: str, prefer: str) -> None:
    alpha, lam, tau = 0.7, 1.5, 0.2
    w, own, balances = start(), [None] * len(persons), [_balance(oracles, person) for person in persons]
    for _ in range(ROUNDS):
        found, gaps, ended = [], [], []
        for person, last in zip(persons, own, strict=True):
            d = 1.0 if last is None else divergence(oracles, person, js, w, last)
            begun = w if last is None else (1 - d) * last + d * w
            ended.append(oracles.sgd(begun, lambda v, person=person: person.gradient(v, alpha), STEPS, LR))
            p = person.probabilities(ended[-1])[:, 1]
            both = (
                oracles.parity_gap(p[person.known], person.sensitive[person.known]),
                oracles.opportunity_gap(p[person.known], person.y[person.known], person.sensitive[person.known]),
            )
            found.append(d)
            gaps.append(float(np.abs(np.nan_to_num(both)).sum()))
        gamma = oracles.f2gnn_weights(balances, gaps, lam, tau, prefer)
        w, own = sum(g * v for g, v in zip(gamma, ended, strict=True)), ended
    state, fed, made = trained("f2gnn", alpha=alpha, lam=lam, tau=tau, prefer=prefer, js=js)
    assert np.abs(ravel(state["w"]).numpy() - w).max() < 1e-9
    measured = made.measures(state, fed)
    for name, wanted in {"js": found, "gaps": gaps, "balance": balances, "weight": gamma}.items():
        np.testing.assert_allclose(measured[name], wanted, rtol=0, atol=1e-9)
    assert max(found) > 0


def _balance(oracles: Any, person: Person) -> float:
    """Over edges between people of known groups."""
    known = (person.sensitive[person.edges] >= 0).all(0)
    return float(oracles.balance(person.edges[:, known], person.sensitive))


@pytest.mark.often("eo")
@pytest.mark.parametrize("gap", ["eo", "sp"])
def test_fairfed_rounds(oracles: Any, persons: list[Person], gap: str) -> None:
    beta = 0.8
    sizes = np.array([person.train.sum() for person in persons], float)
    w, omega = start(), sizes / sizes.sum()

    def of(among: list[Person], w: np.ndarray) -> tuple[float, float]:
        predicted, y, sensitive = (
            np.concatenate([part[person.known] for person, part in zip(among, parts, strict=True)])
            for parts in ([p.predicted(w) for p in among], [p.y for p in among], [p.sensitive for p in among])
        )
        signed = (
            oracles.parity_gap(predicted, sensitive)
            if gap == "sp"
            else oracles.opportunity_gap(predicted, y, sensitive)
        )
        right = np.concatenate([(p.predicted(w) == p.y)[p.train] for p in among])  # of unknown group, too
        return signed, float(right.mean())

    for _ in range(ROUNDS):
        whole, own = of(persons, w), [of([person], w) for person in persons]
        # where a client's gap is undefined its accuracy takes the place: a gap as far from the global one
        gaps = [whole[0] + abs(acc - whole[1]) if np.isnan(signed) else signed for signed, acc in own]
        omega = oracles.fairfed_weights(omega, gaps, whole[0], beta)
        ended = [oracles.sgd(w, lambda v, p=person: p.gradient(v, 0.0), STEPS, LR) for person in persons]
        w = sum(o * v for o, v in zip(omega, ended, strict=True))
    state, fed, made = trained("fairfed", beta=beta, gap=gap)
    np.testing.assert_allclose(made.measures(state, fed)["omega"], omega, rtol=0, atol=1e-9)
    assert np.abs(ravel(state["w"]).numpy() - w).max() < 1e-9
    assert np.abs(omega - sizes / sizes.sum()).max() > 1e-3


def test_fairfed_counts_a_client_that_knows_no_group_by_its_accuracy() -> None:
    """Δ of eq. 6 is then of accuracies on all its training examples, not of none."""
    held = graphs(name=NAME, dtype=torch.float64)
    silent = held["site-3"]
    assert silent.sensitive is not None
    fed = federation(
        name=NAME,
        dtype=torch.float64,
        clients=held | {"site-3": replace_fields(silent, sensitive=torch.full_like(silent.sensitive, -1))},
    )
    made = ALGORITHMS["fairfed"](model(0.0, classes=2), **SGD)
    *_, last = train(made, fed, 1, eval_every=0)
    w = start()
    people = [Person(nodes, seed) for seed, nodes in enumerate(SIZES)]
    right = [(one.predicted(w) == one.y)[one.train] for one in people]
    wanted = abs(right[3].mean() - np.concatenate(right).mean())
    assert float(last.state["parts"]["FairFedWeights"]["deviation"][3]) == pytest.approx(wanted, abs=1e-12)


def test_fairfed_without_beta_is_fedavg() -> None:
    one, other = (trained(name, **options)[0]["w"] for name, options in (("fairfed", {"beta": 0.0}), ("fedavg", {})))
    assert (ravel(one) - ravel(other)).abs().max() < 1e-12


def test_fairfed_weights_of_a_sample_are_shares_of_its_round() -> None:
    state, _, _ = trained("fairfed", rounds=1, participation=0.4, beta=0.0)
    omega = state["parts"]["FairFedWeights"]["omega"]
    called = omega >= 0
    sizes = torch.tensor([float(graph.masks[0].sum()) for graph in graphs(name=NAME).values()])
    assert called.sum() == 2
    torch.testing.assert_close(omega[called], (sizes[called] / sizes[called].sum()).double())


def test_nothing_speaks_for_a_model_that_was_trained_on_nobody() -> None:
    """Gaps over no nodes are 0, which would be the fairest of all."""
    graph, told = graphs(name=NAME)["site-0"], []
    for trains in (graph.masks[0], torch.zeros_like(graph.masks[0])):
        masks = torch.stack([trains, graph.masks[1], graph.masks[2]])
        w: Tree = {}
        client = Client(replace_fields(graph, masks=masks), {}, random.key(1), random.key(2))
        logits = torch.stack([torch.zeros(len(graph.y)), graph.sensitive.to(graph.x.dtype)], 1)  # type: ignore[union-attr]
        known = ByObject[torch.Tensor]()
        known[w] = logits
        ctx = Context(client, None, {}, "GroupWeights", trained=w, known=known)  # type: ignore[arg-type]
        told.append(GroupWeights().report(ctx))
    assert 0 < float(told[0]["gaps"]) < 2
    assert float(told[1]["gaps"]) == 2
    assert told[0]["balance"] == told[1]["balance"]


def test_fairfed_weights_of_a_sample_are_shares_before_they_change() -> None:
    """Two of five clients with ω = .1 and .3, shares 1/4 and 3/4; gaps 0 and 1, together .6 − .4: Δ = .2 and .8."""
    part = FairFedWeights(beta=0.2, gap="sp")
    tables = torch.zeros(2, 2, 2, 2)
    tables[0, 0, 0], tables[0, 1, 0] = torch.tensor([10.0, 10]), torch.tensor([10.0, 10])  # no gap
    tables[1, 0, 0], tables[1, 1, 0] = torch.tensor([5.0, 0]), torch.tensor([0.0, 5])
    told = {"groups": tables, "n": torch.tensor([40, 40]), "correct": torch.tensor([20, 5])}
    round = Round(Replies("ab", [ReplyBatch((0, 1), told)], {}), torch.tensor([1, 3]), {}, ())
    state = {"omega": torch.tensor([0.2, 0.1, 0.2, 0.3, 0.2]).double()}
    torch.testing.assert_close(part.weigh(state, round), torch.tensor([0.25 + 0.2 * 0.3, 0.75 - 0.2 * 0.3]).double())


@dataclass(frozen=True)
class Parting(Part):
    """From the second round on no edge joins the groups."""

    def changes(self, ctx: Context, data: GraphArrays) -> tuple[GraphArrays, np.ndarray]:
        assert data.sensitive is not None
        began, ends = "began" in ctx.memory, data.sensitive[data.edges]
        ctx.keep({"began": torch.ones(())})
        stays = (ends[0] == ends[1]) | (not began)
        return replace_fields(data, edges=data.edges[:, stays]), np.full(len(data.y), began)


def test_the_balance_is_that_of_the_edges_as_they_are_now() -> None:
    fed = federation(name=NAME)
    made = FedAvg(model(classes=2), parts=(GroupWeights(), Parting()))
    before, after = (made.measures(step.state, fed)["balance"] for step in train(made, fed, 2, eval_every=0))
    assert (before > 0).any()
    assert (after == 0).all()


def test_divergences_compare_two_models_on_the_edges_as_they_are_now() -> None:
    """Nobody learns anything here, so that the two models are the same, and only their data could differ."""
    fed = federation(name=NAME, dtype=torch.float64)
    still = SGD | {"lr": 1e-12}
    made = FedAvg(model(0.0, classes=2), parts=(DivergenceStart("class"), Parting()), **still)
    *_, last = train(made, fed, 2, eval_every=0)
    assert made.measures(last.state, fed)["js"].abs().max() < 1e-9


@pytest.mark.often("False-False")
@pytest.mark.parametrize(("client", "server"), [(True, False), (False, True), (False, False)])
def test_either_part_can_be_switched_off(client: bool, server: bool) -> None:
    state, _, made = trained("f2gnn", client=client, server=server)
    has = {type(part) for part in made.composed.values()}
    assert {FairPenalty, DivergenceStart} <= has or not client
    assert (GroupWeights in has) == server
    plain = trained("fedavg")[0]["w"]
    assert ((ravel(state["w"]) - ravel(plain)).abs().max() > 1e-3) == (client or server)


def test_a_mix_is_where_training_starts_and_the_global_model_is_what_is_judged() -> None:
    plain, mixed = (FedAvg(model(0.0, classes=2), parts=parts) for parts in ((), (DivergenceStart("class"),)))
    for made in (plain, mixed):
        fed = federation(name=NAME, dtype=torch.float64)
        *_, last = train(made, fed, 3)
        scores = made.evaluate(last.state, fed).clients
        expected = plain.evaluate({"w": last.state["w"]}, fed).clients
        assert all(torch.equal(a["own"]["loss"], b["own"]["loss"]) for a, b in zip(scores, expected, strict=True))


def test_divergences_are_measured_from_the_second_call_on() -> None:
    fed = federation(name=NAME)
    made = ALGORITHMS["f2gnn"](model(classes=2), participation=0.6)
    seen: set[str] = set()
    for step in train(made, fed, 5, eval_every=0):
        assert step.metrics is not None
        of: dict[str, set[str]] = {}
        for row in step.metrics.to_pylist():
            of.setdefault(row["metric"], set()).add(row["client"])
        called = of["weight"]
        assert len(called) == 3
        assert of.get("js", set()) == called & seen
        seen |= called


class Counting:
    """A model that counts its forward passes."""

    def __init__(self) -> None:
        self.passes = 0

    def build(self) -> tuple[Layer, ...]:
        first, *rest = model(0.0, classes=2)

        def apply(*args: Any) -> Any:
            self.passes += 1
            return first.apply(*args)

        return replace_fields(first, apply=apply), *rest


def test_terms_of_the_outputs_share_one_forward_pass() -> None:
    passes = []
    for parts in ((), (FairPenalty(),), (CrossEntropy(), FairPenalty(), FairPenalty(2.0))):
        counting = Counting()
        made = FedAvg(counting.build(), local_steps=4, parts=parts)
        state_after(made, federation(name=NAME, mode="loop"), 1)
        passes.append(counting.passes)
    assert passes[0] == 4 * len(SIZES)
    assert passes == [passes[0]] * 3


@pytest.mark.slow
def test_the_penalty_closes_the_gap_that_it_penalizes() -> None:
    """Of each client's own training, a strong penalty leaves smaller gaps on training examples."""
    left = []
    for alpha in (0.0, 5.0):
        fed = federation(name=NAME, record="auto")
        *_, last = train(Local(model(0.0, classes=2), parts=(FairPenalty(alpha),)), fed, 20)
        assert last.metrics is not None
        rows = [row for row in last.metrics.to_pylist() if row["split"] == "train" and row["client"] != "global"]
        left.append([sum(row["value"] for row in rows if row["metric"] == f"groups/{gap}") for gap in ("sp", "eo")])
    assert sum(left[1]) < 0.5 * sum(left[0])


# --- what leaves a client --------------------------------------------------------------------------------------------


def heard(
    made: Any, change: Callable[[Graph], Graph] = lambda graph: graph, evaluate: bool = False
) -> tuple[Mapping[str, Any], Simulation]:
    """site-1's reply in the first round, with other data there."""
    clients = graphs(torch.float64, name=NAME)
    clients["site-1"] = change(clients["site-1"])
    fed = federation(Recorder, torch.float64, name=NAME, clients=clients)
    state = state_after(made, fed, 0 if evaluate else 1)
    replies = made.evaluate(state, fed).clients if evaluate else fed.heard
    return dict(replies["site-1"]), fed


def regrouped(graph: Graph) -> Graph:
    """Everybody whose group is known is of the other one."""
    assert graph.sensitive is not None
    return replace_fields(graph, sensitive=torch.where(graph.sensitive < 0, -1, 1 - graph.sensitive))


def shuffled(graph: Graph) -> Graph:
    """Groups at random."""
    assert graph.sensitive is not None
    draw = torch.from_numpy(np.random.default_rng(0).integers(0, 2, len(graph.sensitive)))
    return replace_fields(graph, sensitive=torch.where(graph.sensitive < 0, -1, draw))


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, dict):
            return all(equal(a[key], b[key]) for key in a)
        return bool(torch.equal(torch.as_tensor(a), torch.as_tensor(b)))

    assert one.keys() == other.keys()
    return {key for key in one if not equal(one[key], other[key])}


def test_groups_show_only_in_what_is_declared_to_show_them() -> None:
    net = model(0.0, classes=2)
    for made, allowed in (
        (FedAvg(net), set()),
        (FedAvg(net, parts=(DivergenceStart(),)), set()),
        (FedAvg(net, parts=(GroupWeights(),)), {"gaps", "balance"}),
        (ALGORITHMS["fairfed"](net), {"groups"}),
        (FedAvg(net, parts=(FairPenalty(),)), {"update"}),  # trained with the penalty, as it is meant to be
    ):
        before, fed = heard(made)
        assert differing(before, heard(made, shuffled)[0]) == allowed
        assert allowed - {"update"} <= made.composed.sends.keys()
        sent = [row for row in fed.ledger.table().to_pylist() if row["direction"] == "up"]
        nodes = tuple(f"[{graph.nodes}" for graph in fed.graphs.values())
        assert sent
        assert not [row for row in sent if row["shape"].startswith(nodes)]


def test_gaps_and_balance_are_symmetric_in_the_groups() -> None:
    """Which group is which cannot be told from them."""
    made = FedAvg(model(0.0, classes=2), parts=(GroupWeights(),))
    assert differing(heard(made)[0], heard(made, regrouped)[0]) == set()


def test_scores_show_groups_only_as_counts() -> None:
    made = ALGORITHMS["f2gnn"](model(0.0, classes=2))
    before, after = (heard(made, change, evaluate=True)[0] for change in (lambda graph: graph, shuffled))
    assert differing(before["own"], after["own"]) == {"groups", "group_auc"}
    assert before["own"]["groups"].shape == (3, 2, 2, 2)
    assert before["own"]["group_auc"].shape == (3, 2, 2)


class Smuggler(GroupWeights):
    """A part that a dishonest server would like clients to have."""

    def report(self, ctx: Any) -> Tree:
        return super().report(ctx) | {"people": ctx.client.graph.sensitive}


def test_a_part_that_sends_the_attribute_without_declaring_it_is_refused() -> None:
    made = FedAvg(model(0.0, classes=2), parts=(Smuggler(),))
    with refusal("reply-refused", "people"):
        heard(made)


def test_every_part_that_reads_the_attribute_says_so() -> None:
    for part in (FairPenalty(), GroupWeights(), FairFedWeights()):
        assert FedAvg(model(classes=2), parts=(part,)).needs.sensitive
    assert Local(model(classes=2), parts=(FairPenalty(),)).needs.sensitive
    assert not FedAvg(model(classes=2), parts=(DivergenceStart(),)).needs.sensitive
