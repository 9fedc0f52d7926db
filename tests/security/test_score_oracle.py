"""A server that reads labels off scores, by choosing what is scored (docs/security.md)."""

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.algorithms import ALGORITHMS
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.federation import StepInfo
from fedweave.core.tree import Tree, map_leaves
from fedweave.experiment.config import resolve
from fedweave.metrics import classification, groups
from fedweave.metrics.score_histograms import MARGINS, histograms
from fedweave.models import MODELS
from fedweave.privacy.mechanisms import keep_probability
from fedweave.sites.flare.policy_names import read_checked
from fedweave.sites.flare.requests import Answer
from fedweave.sites.flare.scores import Scoring, scoring_of
from fedweave.sites.flare.sitefile import FINE, SITE_FILE, Rules
from tests.refusals import check_facts, refusal
from tests.security.cheating import SITE, Cheat, agreed, make_sites, reply, set_policy
from tests.security.test_labels_without_gradients import Server
from tests.sites.projects import job_of

CLASSES, EPSILON, DIGITS = 3, 0.5, 8  # nodes whose labels one sum of losses tells


def bound(epsilon: float, labels: int) -> float:
    """The share of labels that randomized response leaves, and four standard deviations more."""
    kept = keep_probability(epsilon, CLASSES)
    return kept + 4 * math.sqrt(kept * (1 - kept) / labels)


def from_losses(score: Callable[[Tensor], Tree], nodes: Tensor, of: int) -> Tensor:
    """Labels of `nodes`, eight with one call of `score`, which is told all nodes' logits [of, c]: a node's losses by
    label are digits of the sum, and all other nodes have that of uniform logits, whatever their labels."""
    found, levels = [], torch.arange(CLASSES, dtype=torch.float32)
    for some in nodes.split(DIGITS):
        logits = torch.zeros(of, CLASSES)
        places = 1e-3 * float(CLASSES) ** torch.arange(len(some))
        logits[some] = -places[:, None] * levels
        pair = score(logits)["loss"].sum(0)
        known = torch.logsumexp(logits[some].double(), 1).sum() + (pair[1] - len(some)) * math.log(CLASSES)
        rest = int(((pair[0] - known) / 1e-3).round()) if pair[1] else 0
        found += [rest // CLASSES**at % CLASSES for at in range(len(some))]
    return torch.tensor(found)


def from_hits(asked: list[Tensor], told: list[float]) -> Tensor:
    """Labels [n] of the nodes of which each call was `asked` to predict these classes [n], and was `told` the hits."""
    designs = torch.stack([torch.nn.functional.one_hot(guess, CLASSES).flatten().double() for guess in asked])
    found = torch.linalg.lstsq(designs, torch.tensor(told).double()[:, None], driver="gelsd").solution
    return found.view(-1, CLASSES).argmax(1)


class Party(Server):
    """The party with labels, of labels with ε = 0.5, which is told every node's representation for each score."""

    def __init__(self, project: Path, policy: str) -> None:
        super().__init__(project, EPSILON, cap=1e9, rounds=500, more=policy)
        member, self._step = self.joined("r1")
        self._step("draw", 0, {})
        self.graph, self.calls, w = job_of(member).graph, 0, job_of(member).memory._state.tree["w"]
        self._last = w[max(w, key=int)]  # as the server drew it
        self.nodes = self.graph.masks.any(0).nonzero().flatten()

    def score(self, logits: Tensor) -> Tree:
        h = (logits - self._last["bias"]) @ torch.linalg.pinv(self._last["weight"])
        self.calls += 1
        self._step("infer_full", self.calls, {"segment": 0})
        own: Tree = self._step("score", self.calls, {"h": h.float()})["own"]
        return own

    def share(self, found: Tensor) -> float:
        """How many of the labels found are right."""
        return float((found == self.graph.y[self.nodes[: len(found)]]).double().mean())


class Holder(Cheat):
    """A site of FedAvg, whose features the server knows, and which is told weights for each score."""

    def __init__(self, project: Path, every: int) -> None:
        more = {"model": {"name": "gcn", "hidden": 256}, "eval_every": every}
        self.project = project
        super().__init__(project, resolve(agreed(rounds=500).plain() | more))
        assert not self.join().refusal
        self.graph, self.calls, self.every = job_of(self.member).graph, 0, every
        self.nodes = self.graph.masks.any(0).nonzero().flatten()
        self.draws = torch.Generator().manual_seed(0)
        self.model = self.config.model.make().build(8, CLASSES)

    def hits(self) -> tuple[Tensor, float]:
        """What weights drawn at random predict of the nodes, and how many hits that is."""
        self.calls += self.every
        w = map_leaves(lambda leaf: 3 * leaf, models.init(self.model, random.key(self.calls), torch.float32))
        w["1"]["bias"] = torch.randn(CLASSES, generator=self.draws)
        told = reply(self.call("FedAvg.score", self.calls, {"w": w}))["own"]["accuracy"]
        return models.apply(self.model, w, self.graph)[self.nodes].argmax(1), float(told[:, 0].sum())

    def again(self) -> Answer:
        """The same in another run."""
        return Cheat(self.project, self.config, run="r2").join()

    def share(self, calls: int) -> float:
        """How many labels are right that hits of so many calls tell."""
        asked, told = zip(*(self.hits() for _ in range(calls)), strict=True)
        found = from_hits(list(asked), list(told))
        return float((found == self.graph.y[self.nodes]).double().mean())


@pytest.fixture
def parties(tmp_path: Path) -> Path:
    return make_sites(tmp_path / "parties", "glasu")


def test_one_sum_of_histograms_tells_most_labels_to_who_knows_all_features() -> None:
    """A server that chose the weights knows in which bin each node is, of three sites; a node that is there by itself
    has the label that is counted. Sums of five weights tell nearly all. So owners must name histograms for them to
    leave (`test_nobody_tells_how_many_of_each_class_it_has_unless_its_policy_says_so`)."""
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 54, 8, generator=draws), torch.randint(2, (3, 54), generator=draws)
    labels, votes, shares = y.flatten(), torch.zeros(162, 2), list[float]()
    for _ in range(5):
        logits = x @ torch.randn(8, 2, generator=draws)
        masks = torch.ones(3, 54, dtype=torch.bool)
        total = sum(histograms(logits[at], y[at], masks)[MARGINS][0, 0] for at in range(3))
        alone = torch.ones(1, dtype=torch.bool)
        for node, one in enumerate(logits.view(-1, 2)):
            bins = histograms(one[None], torch.zeros(1).long(), alone.expand(3, 1))[MARGINS][0, 0, 0]
            counted = total[:, int(bins.argmax())]
            votes[node] += counted / counted.sum()
        shares.append(float((votes.argmax(1) == labels).double().mean()))
    assert shares[0] > 0.75
    assert shares[-1] > 0.95


@pytest.mark.parametrize("policy", ['true_labels = true\nmeasures = ["loss"]', "true_labels = true", ""])
def test_a_sum_of_losses_tells_labels_only_where_the_owner_lets_it_leave(parties: Path, policy: str) -> None:
    server = Party(parties, policy)
    right = server.share(from_losses(server.score, server.nodes, len(server.graph.y)))
    assert right == 1.0 if "measures" in policy else right < 0.6


@pytest.mark.often("true_labels = true", "")
@pytest.mark.parametrize("policy", ["true_labels = true", "", "round_scores = 10"])
def test_scores_tell_no_more_of_labels_than_their_draw_for_training_did(parties: Path, policy: str) -> None:
    """By the hits of random guesses; and nothing more is counted for that."""
    server, asked, told = Party(parties, policy), list[Tensor](), list[float]()
    draws = torch.Generator().manual_seed(0)
    for _ in range(90):
        asked.append(torch.randint(CLASSES, (40,), generator=draws))
        logits = torch.zeros(len(server.graph.y), CLASSES)
        logits[server.nodes[:40]] = 9 * torch.nn.functional.one_hot(asked[-1], CLASSES).float()
        told.append(float(server.score(logits)["accuracy"][:, 0].sum()))
    right = server.share(from_hits(asked, told))
    if "true" in policy:
        assert right == 1.0  # as exact hits do
    else:
        assert right < bound(EPSILON, 40)
        assert server.spent() == EPSILON


@pytest.mark.often("", "score_epsilon = 1.0")
@pytest.mark.parametrize("policy", ["", "score_epsilon = 1.0", "evaluations = 20"])
def test_hits_of_weights_that_the_server_chooses_tell_labels_unless_the_policy_bounds_them(
    project: Path, policy: str
) -> None:
    set_policy(project, policy)
    most = 20 if "evaluations" in policy else 120
    server = Holder(project, 500 // most)
    right = server.share(most)
    if "epsilon" in policy:
        assert right < bound(1.0, len(server.nodes))
    else:
        assert right > 0.8  # data of which features tell the classes needs few hits
    if "evaluations" in policy:
        check_facts(server.again().refusal, "policy.evaluations", "20 times", "20 times")


def test_hits_of_drawn_labels_are_corrected_without_bias_by_hand() -> None:
    """ε = log 2 of two classes leaves 2/3 of labels: of 30 examples with h hits, 10 + h / 3 are hits on average."""
    pairs = torch.tensor([[16.0, 30.0], [8.0, 30.0], [0.0, 0.0]], dtype=torch.float64)
    shown = Scoring(epsilon=math.log(2)).redact({"own": {"accuracy": pairs, "loss": pairs}}, 2)["own"]
    assert shown["accuracy"].tolist() == [[pytest.approx(18.0), 30.0], [0.0, 30.0], [0.0, 0.0]]
    assert not shown["loss"].any()


def test_a_run_with_more_evaluations_than_are_left_is_refused_before_it_begins(project: Path) -> None:
    set_policy(project, "evaluations = 5")
    server = Cheat(project)  # four rounds, each evaluated
    assert not server.join().refusal
    for round in (1, 2):
        reply(server.call("FedAvg.score", round))
    told = Cheat(project, run="r2").join().refusal
    check_facts(told, "policy.evaluations", "2 times", "5 times", "4")
    once = resolve(agreed().plain() | {"eval_every": 0})
    assert not Cheat(project, once, run="r3").join().refusal


def _from_precisions(told: Tensor, logits: Tensor) -> list[list[int]]:
    """All labels of two classes, one of each row of `logits`, of which the sums of precisions [2] are those `told`."""
    everyone = torch.ones(1, len(logits), dtype=torch.bool)
    tried = [list(labels) for labels in product(range(2), repeat=len(logits))]
    sums = {
        tuple(labels): classification.counts(logits, torch.tensor(labels), everyone)["average_precision"][0, 0]
        for labels in tried
    }
    return [labels for labels in tried if torch.equal(sums[tuple(labels)], told)]


@pytest.mark.parametrize("measures", [("average_precision",), (), ("auc", "loss")])
def test_one_sum_of_precisions_tells_all_labels_only_where_the_owner_lets_it_leave(measures: tuple[str, ...]) -> None:
    labels, logits = [0, 1, 1, 0, 1, 0, 0, 1], torch.tensor([[-float(place), float(place)] for place in range(8)])
    pairs = classification.counts(logits, torch.tensor(labels), torch.ones(1, 8, dtype=torch.bool))
    told = Scoring(measures=measures).redact({"own": pairs}, 2)["own"]
    assert told["accuracy"].equal(pairs["accuracy"])
    found = _from_precisions(told["average_precision"][0, 0], logits)
    assert (found == [labels]) == ("average_precision" in measures)
    for name in FINE:
        assert name not in told or bool(told[name].any()) == (name in measures)


def test_what_is_counted_by_a_name_that_no_rule_knows_does_not_leave() -> None:
    pair = torch.ones(3, 2)
    told = {*classification.COUNTED, *groups.COUNTED, "of_tomorrow"}
    for measures, expected in ((), {"accuracy"}), (("classes",), {"accuracy", "f1", "classes", "groups"}):
        left = Scoring(measures=measures).redact({"own": dict.fromkeys(told, pair)}, 2)["own"]
        assert {name for name in told if left[name].any()} == expected


@pytest.mark.parametrize("name", classification.COUNTED + groups.COUNTED)
def test_an_owner_may_deny_each_measure_alone(project: Path, name: str) -> None:
    set_policy(project, f'deny = ["own/{name}"]')
    read_checked(project / SITE / SITE_FILE)
    set_policy(project, f'deny = ["own/{name}s"]')
    with refusal("config.policy", "below own there are"):
        read_checked(project / SITE / SITE_FILE)


def test_scores_of_what_was_trained_on_labels_as_they_are_do_not_leave_with_a_bound(project: Path) -> None:
    set_policy(project, "score_epsilon = 1.0")
    server = Cheat(project)
    assert not server.join().refusal
    reply(server.call("FedAvg.train", 1))
    told = reply(server.call("FedAvg.score", 1))
    assert told["own"]["accuracy"].any()
    assert not told["trained"]["accuracy"].any()


@pytest.mark.parametrize(
    ("name", "settings", "bounded"),
    [
        ("fedavg", {}, ("own", "global_test")),
        ("fedavg_ft", {}, ("own", "global_test")),  # trains on the drawn labels before it is scored
        ("f2gnn", {}, ("own", "global_test")),
        ("fedavg", {"share": ["0.*"]}, ()),
        ("local", {}, ()),
        ("dfedgnn", {}, ()),
        ("adafgl", {}, ()),
        ("glasu", {}, ()),
        ("glasu", {"label_epsilon": 2.0}, ("own", "trained", "global_test", "tried")),
    ],
)
def test_a_bound_of_scores_lets_hits_leave_of_models_that_know_labels_by_a_draw(
    name: str, settings: dict[str, object], bounded: tuple[str, ...]
) -> None:
    network = MODELS["gcnii" if name == "glasu" else "gcn"]().build(4, 2)
    scoring = scoring_of(Rules(score_epsilon=1.0), ALGORITHMS[name](network, **settings).calls(3), True)
    assert scoring.bounded == bounded
    pairs = torch.tensor([[16.0, 30.0]] * 3)
    left = scoring.redact({key: {"accuracy": pairs} for key in ("own", "trained", "global_test", "tried")}, 3)
    assert {key for key, own in left.items() if own["accuracy"].any()} == {*bounded}


def test_hits_on_the_test_graph_are_of_its_labels_as_they_are() -> None:
    pairs, tens = torch.tensor([[16.0, 30.0]] * 3, dtype=torch.float64), Scoring(10, epsilon=math.log(2))
    for scoring, shown in ((Scoring(epsilon=math.log(2)), [16.0, 30.0]), (tens, [20.0, 30.0])):
        reply = scoring.redact({"global_test": {"accuracy": pairs}}, 2)
        assert reply["global_test"]["accuracy"].tolist() == [shown] * 3
    told = tens.declaration(StepInfo.of({"own": "", "global_test": ""}), ["own/accuracy", "global_test/accuracy"]).sends
    assert "by labels of randomized response" in told["own/accuracy"].reveals
    assert "by labels" not in told["global_test/accuracy"].reveals
