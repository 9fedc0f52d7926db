"""FairGraphFL's rounds against arithmetic that was written apart from it, and what its parts promise."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fairgraphfl import AgentValue, MotifPrototypes, Payoff, ValueReward, pooling_depth
from fedweave.algorithms.fairgraphfl.vocabulary import INCIDENCE, MOTIFS
from fedweave.algorithms.parts import Composition, Normalised, Round
from fedweave.core import model as models
from fedweave.core.algorithm import is_recorded
from fedweave.core.graph import Graph
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.core.tree import Tree, leaves, ravel, unravel
from fedweave.engines.simulation import Simulation
from fedweave.experiment.rounds import SERVER, train
from fedweave.incentives.agent_values import NONE
from tests.contract.federations import algorithm, cross_entropy, federation, gin, graphs

ROUNDS = 4
NAME = "fairgraphfl"
SOLVERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "lr": 0.005, "weight_decay": 0.0, "local_steps": 3},
    "adam": {"optimizer": "adam", "lr": 0.01, "weight_decay": 5e-4, "local_steps": 2},
}


class Agent:
    """One client as functions of a flat vector: its gradient with the pull to `whole` {motif: prototype}, and its own
    prototypes, all with dense matrices."""

    def __init__(self, graph: Graph, net: Any, like: Tree, lam: float, distance: str) -> None:
        self.graph, self.net, self.like, self.lam, self.distance = graph, net, like, lam, distance
        numbers = graph.precomputed(MOTIFS).numpy()
        having = graph.whole_edges.members[0].extra.matrices[INCIDENCE].copy()
        having.resize(len(numbers), len(graph.y))
        real = numbers >= 0
        self.motifs: list[int] = numbers[real].tolist()
        having = torch.from_numpy(having.toarray()[real]).to(graph.x.dtype)
        self.mean = having / having.sum(1, keepdim=True)

    def prototypes(self, w: torch.Tensor) -> torch.Tensor:
        return self.mean @ models.apply(self.net[: pooling_depth(self.net)], unravel(w, self.like), self.graph)

    def own(self, w: np.ndarray) -> dict[int, np.ndarray]:
        return dict(zip(self.motifs, self.prototypes(torch.from_numpy(w)).numpy(), strict=True))

    def gradient(self, w: np.ndarray, whole: dict[int, np.ndarray]) -> np.ndarray:
        flat = torch.from_numpy(w).requires_grad_()
        tree = unravel(flat, self.like)
        loss = cross_entropy(tree, self.net, self.graph)
        known = [k for k, motif in enumerate(self.motifs) if motif in whole]
        if known:
            goal = torch.from_numpy(np.stack([whole[self.motifs[k]] for k in known]))
            apart = self.prototypes(flat)[known] - goal
            away = {
                "relative": (apart**2).sum() / (goal**2).sum(),
                "mean_square": (apart**2).mean(),
                "as_printed": apart.norm(dim=1).sum(),
            }
            loss = loss + self.lam * away[self.distance]
        return torch.autograd.grad(loss, flat)[0].numpy()


@dataclass
class Outcome:
    r: np.ndarray
    pay: np.ndarray
    phi: np.ndarray
    w: np.ndarray
    base: list[np.ndarray]
    rewards: list[np.ndarray]
    prototypes: dict[int, np.ndarray]


def expected(
    oracles: Any, agents: list[Agent], start: np.ndarray, solver: str, options: dict[str, Any]
) -> tuple[Outcome, np.ndarray]:
    """The rounds written out; and the agents' diversities."""
    given, count = SOLVERS[solver], len(agents)
    all_motifs = {motif for agent in agents for motif in agent.motifs}
    d = np.array([len(agent.motifs) for agent in agents]) / len(all_motifs)
    adams = [oracles.Adam(given["lr"], given["weight_decay"]) for _ in agents]
    r, w, starts, goal, history = np.full(count, 1 / count), start, [start] * count, {}, []
    for _ in range(ROUNDS):
        trained = []
        for agent, adam, begin in zip(agents, adams, starts, strict=True):

            def grad(v: np.ndarray, agent: Agent = agent, goal: dict[int, np.ndarray] = goal) -> np.ndarray:
                return agent.gradient(v, goal)

            steps = given["local_steps"]
            trained.append(
                oracles.sgd(begin, grad, steps, given["lr"]) if solver == "sgd" else adam(begin, grad, steps)
            )
        updates = [after - before for after, before in zip(trained, starts, strict=True)]
        whole, phi, r = oracles.agent_values(r, updates, d, options["alpha1"], options["alpha2"])
        history.append(r)
        mine = [agent.own(v) for agent, v in zip(agents, trained, strict=True)]
        weights = np.maximum(r, 0)
        goal = {
            motif: np.average(
                [own[motif] for own in mine if motif in own],
                axis=0,
                weights=[weight for own, weight in zip(mine, weights, strict=True) if motif in own],
            )
            for motif in all_motifs
        }
        base = starts if options["base"] == "before" else trained
        rewards = list(oracles.reward(whole, r, options["beta"]))
        rewards[int(r.argmax())] = whole  # all of it, where the floor of D t / t may be one less than D
        starts, w = [v + got for v, got in zip(base, rewards, strict=True)], w + whole
    pay = oracles.payoffs(history, options["budget"])
    return Outcome(r, pay, phi, w, base, rewards, goal), d


@pytest.mark.often("sgd-before-relative")
@pytest.mark.parametrize(
    ("solver", "base", "distance"),
    [
        ("sgd", "before", "relative"),
        ("sgd", "before", "mean_square"),
        ("sgd", "after", "as_printed"),
        ("adam", "after", "relative"),
    ],
)
def test_rounds_are_those_of_the_paper(oracles: Any, solver: str, base: str, distance: str) -> None:
    options = {"alpha1": 0.3, "alpha2": 0.7, "beta": 1.5, "base": base, "budget": 5.0}
    net, fed = gin(0.0), federation(name=NAME, dtype=torch.float64)
    made = ALGORITHMS[NAME](net, lam=0.2, distance=distance, **SOLVERS[solver], **options, one_norm="never")
    fed.begin(0)
    like = made.init(fed)["w"]
    agents = [Agent(graph, net, like, 0.2, distance) for graph in graphs(torch.float64, name=NAME).values()]
    theirs, d = expected(oracles, agents, ravel(like).numpy(), solver, options)
    *_, last = train(made, federation(name=NAME, dtype=torch.float64), ROUNDS, eval_every=0)
    parts, known = last.state["parts"], last.state["parts"]["MotifPrototypes"]
    assert np.abs(parts["AgentValue"]["r"].numpy() - theirs.r).max() < 1e-9
    assert np.abs(parts["AgentValue"]["phi"].numpy() - theirs.phi).max() < 1e-9
    assert np.abs(parts["AgentValue"]["d"].numpy() - d).max() < 1e-12
    assert np.abs(parts["Payoff"]["pay"].numpy() - theirs.pay).max() < 1e-9
    assert np.abs(ravel(last.state["w"]).numpy() - theirs.w).max() < 1e-9
    rewards = dict(leaves(made.composed["ValueReward"].download(parts["ValueReward"], torch.arange(len(agents)))[2]))
    for at, got in enumerate(theirs.rewards):
        ours = torch.cat([rewards[path].dense[at].flatten() for path in sorted(rewards)]).numpy()
        assert np.abs(ours - got).max() < 1e-9
    listed = dict(zip(known["number"].tolist(), known["mean"].numpy(), strict=True))
    listed.pop(NONE, None)
    assert listed.keys() == theirs.prototypes.keys()
    assert max(np.abs(mean - theirs.prototypes[motif]).max() for motif, mean in listed.items()) < 1e-9


def states(rounds: int = 3, engine: Callable[..., Any] = Simulation, **options: Any) -> list[Any]:
    """What each round of the small federation leaves."""
    absent = options.pop("absent", None)
    fed = federation(engine=engine, name=NAME, dtype=torch.float64, absent=absent)  # type: ignore[arg-type]
    return list(train(algorithm(NAME, dropout=0.0, **options), fed, rounds, eval_every=0))


def told(step: Any, name: str) -> dict[str, float]:
    """What the server knows of each client."""
    rows = [row for row in step.metrics.to_pylist() if row["split"] == SERVER and row["metric"] == name]
    return {row["client"]: row["value"] for row in rows}


def test_what_the_server_knows_is_measured_after_every_round() -> None:
    for step in states():
        assert sum(told(step, "value").values()) == pytest.approx(1)
        assert sum(told(step, "payoff").values()) == pytest.approx(1)
        assert max(told(step, "density").values()) == 1
        assert all(0 < d < 1 for d in told(step, "diversity").values())
        assert all(-1 <= phi <= 1 for phi in told(step, "alignment").values())
    assert set(told(states(1)[0], "compensation").values()) == {0.0}


@pytest.fixture(scope="module")
def whole() -> Any:
    """The algorithm with all its parts after three rounds."""
    return states()[-1]


ABLATIONS: dict[str, dict[str, Any]] = {
    "gradient alignment": {"alignment": False},
    "graph diversity": {"alpha2": 0.0},
    "model gradient": {"rewards": False},
    "aggregation": {"weights": "size"},
    "prototypes": {"prototypes": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("left_out", ABLATIONS)
def test_each_of_the_papers_five_components_can_be_left_out(left_out: str, whole: Any) -> None:
    part = states(**ABLATIONS[left_out])[-1]
    assert (ravel(whole.state["w"]) - ravel(part.state["w"])).abs().max() > 1e-6
    names = set(part.state["parts"])
    assert ("ValueReward" in names) == (left_out != "model gradient")
    assert ("MotifPrototypes" in names) == (left_out != "prototypes")
    assert bool(told(part, "diversity")) == (left_out != "graph diversity")


def test_without_alignment_values_follow_diversity_alone() -> None:
    step = states(rounds=1, alignment=False, prototypes=False, alpha1=1e9)[-1]
    value, d = told(step, "value"), told(step, "diversity")
    assert {client: own / sum(d.values()) for client, own in d.items()} == pytest.approx(value)


def test_without_rewards_all_get_the_global_model() -> None:
    fed = federation(name=NAME, dtype=torch.float64)
    list(train(algorithm(NAME, rewards=False), fed, 2))
    assert fed.ledger.bytes_down > 0
    made = algorithm(NAME, rewards=False)
    assert not made.composed.owner("receive")


def test_an_agent_that_missed_a_round_is_not_paid_and_rejoins() -> None:
    def away(number: int, client: str) -> str | None:
        return "cable cut" if number == 1 and client == "site-3" else None

    first, second = states(2, quorum=0.5, absent=away)
    assert {"site-3"}.isdisjoint(told(first, "payoff").keys() | told(first, "alignment").keys())
    assert told(first, "density")["site-3"] == 0
    assert set(told(second, "payoff")) == {f"site-{i}" for i in range(5)}
    assert told(second, "compensation")["site-3"] == 0  # it has no rounds before


def test_where_values_do_not_sum_to_more_than_zero_the_round_changes_nothing() -> None:
    part, paid = AgentValue(alpha1=100.0, alpha2=0.0), Payoff()
    u = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [-1.0, -0.1]], dtype=torch.float64)
    replies = Replies(("a", "b", "c"), [ReplyBatch((0, 1, 2), {"update": {"x": u}})], {})
    r = torch.tensor([0.8, 0.1, 0.1], dtype=torch.float64)
    state = {"r": r, "phi": 0 * r, "d": 0 * r, "heard": r < 0, "motif": torch.zeros(3, 0, dtype=torch.int64)}
    round = Round(replies, torch.arange(3), {}, (), weights=part.weigh(state, Round(replies, torch.arange(3), {}, ())))
    after = part.update(state, round)
    assert after["phi"].tolist() == pytest.approx([1, -0.995, -0.995], abs=1e-3)
    assert torch.equal(after["r"], r)
    nothing = paid.init(SimpleNamespace(clients=replies.clients, device="cpu"), {})  # type: ignore[arg-type]
    for values, said in ((r, []), (-r, ["no agent is paid"])):
        pay = paid.update(nothing, replace(round, value=values))
        assert pay["pay"].sum() == (not said)
        warnings = Composition((part, paid)).warnings({"AgentValue": after, "Payoff": pay})
        assert len(warnings) == 1 + len(said)
        assert all(
            words in sentence for words, sentence in zip(("leaves them unchanged", *said), warnings, strict=True)
        )


class Ours(AgentValue):
    """What follows a part that is recorded."""

    def weigh(self, state: Tree, round: Round) -> Tensor:
        return super().weigh(state, round)


def test_hooks_are_recorded_of_classes_that_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {type(part).__name__: is_recorded(part) for part in (AgentValue(), Ours(), Payoff(), ValueReward())}
    assert found == {"AgentValue": True, "Ours": False, "Payoff": True, "ValueReward": True}
    calls, own = list[int](), AgentValue.update

    def update(part: AgentValue, state: Tree, round: Round) -> Tree:
        calls.append(1)
        return own(part, state, round)

    monkeypatch.setattr(AgentValue, "update", update)
    seen = [len(calls) for _ in train(algorithm(NAME), federation(name=NAME, record="always"), 3, eval_every=0)]
    assert seen[0] < seen[1] == seen[2]  # of states as they begin, and as they are from the second round on


def test_prototypes_and_motifs_are_metered() -> None:
    fed = federation(name=NAME)
    list(train(algorithm(NAME), fed, 2))
    sent = {row["key"]: row for row in fed.ledger.table().to_pylist() if row["direction"] == "up"}
    assert {"prototype", "motif"} <= {key[: len(kind)] for key in sent for kind in ("prototype", "motif")}


def test_without_prototypes_and_diversity_nothing_is_told_of_motifs() -> None:
    fed = federation(name=NAME)
    made = algorithm(NAME, prototypes=False, alpha2=0.0)
    list(train(made, fed, 2))
    assert not made.finders
    assert not [row for row in fed.ledger.table().to_pylist() if "motif" in row["key"]]


def test_a_distance_by_hand() -> None:
    own, whole = torch.tensor([[3.0, 4.0], [1.0, 1.0], [7.0, 7.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    known = torch.tensor([True, True, False])
    assert MotifPrototypes(distance="mean_square").prototype_distance(own, whole, known) == 25 / 4
    relative = MotifPrototypes()
    assert relative.prototype_distance(own, whole, known) == 25 / 2
    assert relative.prototype_distance(10 * own, 10 * whole, known) == 25 / 2  # however large embeddings are
    assert relative.prototype_distance(own, torch.zeros(3, 2), known) == 27  # nothing to be relative to
    printed = MotifPrototypes(distance="as_printed")
    assert printed.prototype_distance(own, whole, known) == 5
    own.requires_grad_()
    (grad,) = torch.autograd.grad(printed.prototype_distance(own, whole, known), own)
    torch.testing.assert_close(grad, torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.0, 0.0]]))
    assert printed.prototype_distance(own, whole, torch.zeros(3, dtype=torch.bool)) == 0


def test_parts_suit_other_algorithms_and_nodes() -> None:
    """Values by alignment and payoffs for FedProx on nodes, with normalized updates."""
    fed = federation()
    parts = (Normalised(0.1), AgentValue(alpha2=0.0), Payoff(10.0))
    *_, last = train(algorithm("fedprox", parts=parts), fed, 2)
    assert sum(told(last, "payoff").values()) == pytest.approx(10)


def test_agents_that_keep_no_motif_get_no_prototypes() -> None:
    """⌊.9 · 1⌋ = 0: of stars without labels nobody keeps any, and lists are padding alone."""
    state = {"motif": torch.full((2, 32), -1), "number": torch.zeros(0, dtype=torch.int64)}
    state |= {"mean": torch.zeros(0, 4), "known": torch.zeros(0, dtype=torch.bool)}
    assert MotifPrototypes().download(state, torch.arange(2)) == ({}, {})
