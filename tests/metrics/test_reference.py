"""The references by hand: what always predicting the most frequent class of training reaches."""

import math
import re

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyClassifier

from fedweave.algorithms import FedAvg
from fedweave.core.algorithm import Evaluation
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.experiment.rounds import train
from fedweave.metrics.classification import counts, majority_classes, references
from fedweave.metrics.measured import measure
from fedweave.reports.notes import RunFacts, notes
from tests.contract.federations import federation, model

nan = math.nan


def test_the_majority_is_of_training_and_judged_on_each_split() -> None:
    """Training labels 1, 1, 0; test labels 1, 0, 0, 2; class 1 is right for one of four. The model says 0 and 2."""
    y = torch.tensor([1, 1, 0, 1, 0, 0, 2])
    logits = torch.zeros(7, 3).index_put((torch.arange(7), torch.tensor([0, 0, 0, 0, 0, 2, 2])), torch.tensor(1.0))
    masks = torch.tensor([[True] * 3 + [False] * 4, [False] * 7, [False] * 3 + [True] * 4])
    classes = counts(logits, y, masks)["classes"].numpy()
    assert classes.tolist() == [[[3, 0, 0], [1, 2, 0]], [[0] * 3, [0] * 3], [[2, 0, 2], [2, 1, 1]]]
    assert majority_classes(classes) == 1
    found = references(classes, majority_classes(classes))
    np.testing.assert_equal(found["majority"], [2 / 3, nan, 0.25])
    np.testing.assert_equal(found["classes_predicted"], [1, nan, 2])


def test_without_training_examples_there_is_no_majority() -> None:
    classes = np.zeros((2, 3, 2, 2))
    classes[:, 2] = 1
    classes[1, 0, 1, 1] = 1
    assert majority_classes(classes).tolist() == [-1, 1]
    np.testing.assert_equal(references(classes, majority_classes(classes))["majority"][:, 2], [nan, 0.5])


def test_a_run_says_what_the_constant_reaches() -> None:
    """Against scikit-learn's DummyClassifier on the same examples."""
    fed = federation()
    *_, last = train(FedAvg(model()), fed, 1)
    labels = [[graph.y[mask].numpy() for mask in graph.masks] for graph in fed.graphs.values()]
    own = [constant(fitted, test) for fitted, _, test in labels if len(fitted) and len(test)]
    assert last.summary["local/majority"] == pytest.approx(np.mean(own))
    fitted, _, test = (np.concatenate(each) for each in zip(*labels, strict=True))
    if fed.test is not None:
        test = fed.test.y[fed.test.masks[2]].numpy()
    assert last.summary["global/majority"] == pytest.approx(constant(fitted, test))
    assert 1 <= last.summary["global/classes_predicted"] <= 3


def constant(fitted: np.ndarray, test: np.ndarray) -> float:
    """Accuracy on labels `test` of the most frequent of `fitted`."""
    dummy = DummyClassifier(strategy="most_frequent").fit(np.zeros((len(fitted), 1)), fitted)
    return float(dummy.score(np.zeros((len(test), 1)), test))


def test_notes_say_what_is_no_better_than_a_constant() -> None:
    fine = {"global/accuracy": 0.8, "global/majority": 0.4, "global/classes_predicted": 3.0, "local/accuracy": 0.8}
    assert notes(fine) == {}
    assert notes({"global/accuracy": None, "global/majority": None}) == {}
    assert notes(fine | {"global/accuracy": 1.0, "global/classes_predicted": 1.0}) == {}
    rare = {"judged/average_precision": 1.0, "global/recall": 0.0, "pooled/threshold": 0.1, "pooled/recall": 0.6}
    rare |= {"global/classes_predicted": 1.0, "scores/rarest": 0.03}
    for more, numbers in (
        ({"global/classes_predicted": 1.0}, ("80.0%",)),
        ({"global/accuracy": 0.26}, ("0.260", "0.400")),
        ({"local/majority": 0.9}, ("0.800", "0.900")),
        (rare, ("0.1", "60.0%")),
    ):
        said = " ".join(notes(fine | more).values())
        assert [number for number in numbers if number not in said] == []
    assert said.count("one class") == 0  # whose remedy does not suit a model that ranks the rare class well


BELOW = {"local/accuracy": 0.7, "shelf/local/accuracy": 0.8}
LINKS = {"judged/mrr": -1.0, "global/mrr": 0.2, "reference/common_neighbors/mrr": 0.4}


@pytest.mark.parametrize("scores", [BELOW, LINKS])
@pytest.mark.parametrize(("best", "longer"), [(None, True), (50.0, True), (46.0, True), (10.0, False), (1.0, False)])
def test_training_longer_is_advised_where_it_may_help(
    scores: dict[str, float], best: float | None, longer: bool
) -> None:
    """Of 50 rounds, the best on validation examples; of equal ones it is the first."""
    metrics = scores | ({} if best is None else {"best_val/round": best})
    note = notes(metrics, RunFacts(rounds=50))["shelf"]
    assert ("train longer" in note.lower()) == longer
    assert longer or f"round {best:g} of 50" in note


@pytest.mark.parametrize("difference", [0.0, 1e-9, -1e-5])
def test_scores_that_tie_need_no_advice(difference: float) -> None:
    assert notes(BELOW | {"local/accuracy": 0.8 + difference}) == {}
    assert "shelf" not in notes(LINKS | {"global/mrr": 0.4 + difference})


def test_advice_that_is_followed_is_left_out() -> None:
    poor = {"scores/diverged": 1e6, "global/classes_predicted": 1, "global/accuracy": 0.5} | BELOW
    for algorithm, data in ({}, {}), ({"class_weight": "balanced"}, {"normalize": "auto"}):
        config = {"algorithm": algorithm, "data": data}
        said = " ".join(notes(poor, RunFacts.of_summary({"rounds": 5}, config)).values())
        assert ("class_weight" in said, "data.normalize" in said) == (not algorithm, not data)
    at_sites = RunFacts.of_summary({"rounds": 5}, {"data": {"normalize": "auto"}, "engine": {"name": "flare"}})
    assert "data.normalize" in notes(BELOW, at_sites)["shelf"]


def test_advice_names_the_setting_of_the_examples() -> None:
    """Links are examples, too, and have no features: their models read those of nodes."""
    forms = ({"examples": False, "features": 2}, {"examples": True, "features": 2}, {"examples": True, "features": 0})
    of_nodes, of_edges, of_links = (RunFacts.of_summary({"rounds": 5, "edges": form}) for form in forms)
    advice = (notes(BELOW, of_nodes)["shelf"], notes(BELOW, of_edges)["shelf"], notes(BELOW, of_links)["shelf"],
              notes({"scores/diverged": 1e6}, of_edges)["diverged"])  # fmt: skip
    assert [re.findall(r"data\.\w*normalize", said)[0] for said in advice] == [
        "data.normalize", "data.edge_normalize", "data.normalize", "data.edge_normalize"]  # fmt: skip


@pytest.mark.parametrize(
    ("metrics", "flagged"),
    [
        ({"global/auc": 0.43}, True),
        ({"global/auc": 0.5}, True),
        ({"pooled/auc": 0.49, "global/auc": 0.6}, True),
        ({"local/auc": 0.2}, True),
        ({"global/auc": 0.51}, False),
        ({"global/labels": 3.0, "global/auc": 0.5}, True),
        ({}, False),
    ],
)
def test_an_order_no_better_than_guessing_is_noted(metrics: dict[str, float], flagged: bool) -> None:
    assert ("chance" in notes(metrics)) == flagged


def test_an_accuracy_is_not_held_against_the_constant_prediction_of_other_members() -> None:
    """Sites that round their scores count no classes, so that the constant prediction leaves them out."""
    below = {"local/accuracy": 0.6, "local/majority": 0.64}
    assert set(notes(below)) == {"local"}
    assert set(notes(below | {"scores/coarse": 1.0})) == {"coarse"}


def test_the_local_constant_is_compared_over_the_clients_that_train() -> None:
    """A client that only tests, all wrong, is in local/accuracy; the other reaches 0.9 where its constant has 0.8."""
    classes = torch.zeros(2, 3, 2, 2, dtype=torch.float64)
    classes[0, 0, 1], classes[0, 2, 1], classes[1, 2, 1] = (torch.tensor(n) for n in ([8.0, 2], [8.0, 2], [10.0, 0]))
    examples = classes[:, :, 1].sum(-1)
    hits = torch.tensor([[9.0, 0, 9], [0, 0, 0]], dtype=torch.float64)
    pairs = {"loss": examples, "accuracy": hits}
    own = {name: torch.stack([of, examples], -1) for name, of in pairs.items()} | {"classes": classes}
    own["f1"] = classes[:, :, 1, None].mT.expand(2, 3, 2, 2)
    _, summary, *_ = measure(1, Evaluation(Replies(("a", "b"), [ReplyBatch((0, 1), {"own": own})], {})))
    assert (summary["local/accuracy"], summary["local/majority"]) == (pytest.approx(0.45), pytest.approx(0.8))
    assert summary["local/matched_accuracy"] == pytest.approx(0.9)
    assert not {"local"} & set(notes(summary))
    [said] = notes({"local/accuracy": 0.45, "local/majority": 0.8, "local/matched_accuracy": 0.7}).values()
    assert said.count("0.700") == 1
    everyone = Evaluation(
        Replies(("a",), [ReplyBatch((0,), {"own": {name: pair[:1] for name, pair in own.items()}})], {})
    )
    assert not {"local/matched_accuracy"} & set(measure(1, everyone)[1])
