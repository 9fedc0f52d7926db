"""Malicious clients of `benchmarks.robust` against robust parts: laws for whatever they send, and small trainings."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from benchmarks.robust import (
    ATTACKS,
    MALICIOUS,
    PARTS,
    TARGET,
    AttackedSimulation,
    add_trigger,
    backdoor,
    fit_to_krum,
    flip_labels,
    train_and_test,
)
from fedweave.algorithms.parts import Krum, Median, NormBound, TrimmedMean
from fedweave.core.graph import TRAIN
from fedweave.core.graph_arrays import GraphArrays, graph_arrays
from fedweave.experiment import config
from fedweave.experiment.build import Built, build
from tests.algorithms.test_robust import flat, of
from tests.random_graphs import replace_fields

CLIENTS, HONEST = 10, 10 - MALICIOUS
SETTINGS = {
    "data": {"name": "digits"},
    "partition": {"name": "random", "clients": CLIENTS},
    "model": {"name": "gcn", "hidden": 16, "layers": 2, "dropout": 0.0},
    "algorithm": {"name": "fedavg", "local_steps": 2, "lr": 0.05},
}


def sent(seed: int) -> np.ndarray:
    """Updates [10, D] of which the first three are far away in every coordinate, together or apart."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(1.0, 0.1, (HONEST, 30))
    far = 10.0 ** rng.uniform(0, 9) * np.sign(rng.normal(size=(1 if seed % 2 else MALICIOUS, 30)))
    return np.concatenate([np.broadcast_to(far, (MALICIOUS, 30)), honest])


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_minority_sends_the_aggregate_lies_among_honest_updates(seed: int) -> None:
    rows = sent(seed)
    least, most = rows[MALICIOUS:].min(0), rows[MALICIOUS:].max(0)
    for part in (Median(), TrimmedMean(0.3)):
        joint = flat(part.aggregate({}, of(rows)))
        assert (joint >= least).all()
        assert (joint <= most).all()
    for part in (Krum(MALICIOUS), Krum(MALICIOUS, keep=4)):
        assert not part.weigh({}, of(rows))[:MALICIOUS].any()
    bounded = NormBound(np.sqrt(30)).limit({}, of(rows)) @ torch.from_numpy(rows) / CLIENTS
    assert bounded.norm() <= np.sqrt(30)
    outside = (rows.mean(0) < least) | (rows.mean(0) > most)
    assert outside.any()


def test_more_than_the_part_is_set_for_break_it() -> None:
    """The promise ends at half of all for the median, at β for the trimmed mean, and at f for Krum where those who are
    more agree with each other."""
    rows = np.concatenate([np.full((5, 2), 1e6), np.ones((5, 2))])
    assert (flat(Median().aggregate({}, of(rows))) > 1e5).all()
    assert (flat(TrimmedMean(0.3).aggregate({}, of(rows))) > 1e5).all()
    rows[5:] += np.random.default_rng(0).normal(size=(5, 2))
    assert Krum(3).weigh({}, of(rows))[:5].sum() == 1


def test_what_the_attackers_do_to_data() -> None:
    graph = graph_arrays(prepared().fed.graphs["client-0"])
    assert (flip_labels(graph, 10).y + graph.y == 9).all()
    bad = backdoor(graph, 10)
    chosen = graph.masks[TRAIN] & (np.arange(len(graph.y)) % 2 == 0)
    assert (bad.y[chosen] == TARGET).all()
    assert (bad.y[~chosen] == graph.y[~chosen]).all()
    x = add_trigger(graph, chosen).x.toarray()
    assert (x[chosen][:, :10] == abs(graph.x).max()).all()
    assert (x[~chosen] == np.asarray(graph.x.todense() if hasattr(graph.x, "todense") else graph.x)[~chosen]).all()


def test_a_trigger_of_small_graphs_is_a_clique_of_their_first_nodes() -> None:
    x = np.array([[0, 1], [0, 1], [1, 0], [0, 1], [0, 1]], dtype=np.float32)
    arrays = GraphArrays(x, np.array([[0, 1, 3, 4], [1, 0, 4, 3]]), np.array([1, 1]), np.ones((3, 2), bool))
    arrays = replace_fields(arrays, graph_of=np.array([0, 0, 0, 1, 1]))
    marked = add_trigger(arrays, np.array([True, False]))
    assert marked.x.toarray().tolist() == [[1, 0], [1, 0], [1, 0], [0, 1], [0, 1]]
    pairs = {(0, 1), (0, 2), (1, 2), (3, 4)}
    assert set(zip(*marked.edges.tolist(), strict=True)) == pairs | {(b, a) for a, b in pairs}


def test_two_that_fit_themselves_into_the_honest_spread_are_who_krum_takes() -> None:
    """They push as far as Krum still prefers them, which is far beyond the honest mean."""
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(np.concatenate([rng.normal(3.0, 0.1, (2, 30)), rng.normal(1.0, 1.0, (8, 30))]))
    bad = torch.arange(CLIENTS) < 2
    sent = fit_to_krum(rows, bad)
    both = torch.cat([sent, rows[2:]])
    assert torch.equal(sent[0], sent[1])
    assert Krum(MALICIOUS).weigh({}, of(both.numpy()))[:2].sum() == 1
    pushed = (sent[0] - rows[2:].mean(0)).norm()
    assert pushed > 2  # as far as an honest one is
    assert (flat(Median().aggregate({}, of(both.numpy()))) - rows[2:].mean(0).numpy() < pushed.numpy()).all()


@lru_cache(maxsize=1)
def prepared() -> Built:
    return build(config.resolve(SETTINGS))


@lru_cache(maxsize=32)
def reached(attack: str, part: str) -> tuple[float, float]:
    """Accuracy, and how often the trigger works, after 10 rounds."""
    built = prepared()
    bad = built.fed.clients[: ATTACKS[attack].members]
    fed = AttackedSimulation(built.fed.graphs, ATTACKS[attack], bad, classes=built.fed.classes, record="never")
    return train_and_test(fed, replace(built.algorithm, parts=PARTS[part]), 10)


@pytest.mark.slow
@pytest.mark.parametrize(("attack", "part"), [("sign flip", "median"), ("scaling", "krum")])
def test_attacks_that_ruin_the_mean(attack: str, part: str) -> None:
    honest, _ = reached("none", "mean")
    assert honest > 0.8
    assert reached(attack, "mean")[0] < honest - 0.4
    assert reached(attack, part)[0] > honest - 0.2


def test_a_bounded_update_counts_as_one_whatever_its_client_says() -> None:
    """By the number of examples that they claim, the malicious alone would decide, with updates of the usual norm."""
    honest, _ = reached("none", "norm_bound")
    assert reached("sign flip, false n", "norm_bound") == reached("sign flip", "norm_bound")
    assert reached("sign flip", "norm_bound")[0] > honest - 0.2


@pytest.mark.slow
def test_a_boosted_backdoor_opens_the_mean_and_not_krum() -> None:
    assert reached("none", "mean")[1] < 0.1
    assert reached("boosted backdoor", "mean")[1] > 0.9
    assert reached("boosted backdoor", "krum")[1] < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("part", ["krum", "median"])
def test_two_that_fit_themselves_in_ruin_krum_and_not_the_median(part: str) -> None:
    accuracy, works = reached("fitted backdoor", part)
    honest, _ = reached("none", part)
    if part == "krum":
        assert works > 0.9
        assert accuracy < honest - 0.15
    else:
        assert works < 0.5
        assert accuracy > honest - 0.1
