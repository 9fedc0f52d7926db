"""Robust aggregation: by hand, against NumPy, SciPy and the definition of Krum, and how it goes with other parts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.parts import (
    Bulyan,
    BySize,
    CenteredClip,
    Clip,
    Composition,
    GeometricMedian,
    Krum,
    Median,
    NormBound,
    Part,
    Protection,
    Round,
    TrimmedMean,
    Uniform,
    has,
)
from fedweave.algorithms.parts.robust import krum_scores
from fedweave.algorithms.parts.weights import by_size
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.core.tree import Tree, leaves, map_leaves, ravel
from fedweave.experiment.rounds import train
from tests.contract.federations import distance, federation, model
from tests.refusals import refusal

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0}


def of(updates: Any, dtype: torch.dtype = torch.float64, **known: Any) -> Round:
    """A round of clients with these updates [P, D], in two leaves."""
    rows = torch.as_tensor(updates, dtype=dtype)
    tree = {"update": {"a": rows[:, :1], "b": rows[:, 1:].unsqueeze(2)}}
    names = [f"site-{i}" for i in range(len(rows))]
    w = {"a": rows.new_zeros(1), "b": rows.new_zeros(rows.shape[1] - 1, 1)}
    replies = Replies(names, [ReplyBatch(tuple(range(len(rows))), tree)], {})
    return Round(replies, torch.arange(len(rows)), w, model(), **known)


def flat(tree: Tree) -> np.ndarray:
    return ravel(tree).numpy()


def test_medians_by_hand() -> None:
    rows = [[1, 10, 0], [2, -90, 0], [1e9, 30, 5]]
    assert flat(Median().aggregate({}, of(rows))).tolist() == [2, 10, 0]
    assert flat(Median().aggregate({}, of([*rows, [4, 50, 1]]))).tolist() == [3, 20, 0.5]


def test_trimmed_means_by_hand() -> None:
    rows = [[1, 0], [2, -1e9], [3, 4], [1e9, 8], [7, 3]]
    assert flat(TrimmedMean(0.2).aggregate({}, of(rows))).tolist() == [4, 7 / 3]
    squares = [[i * i, -i * i] for i in range(1, 101)]  # 0.29 · 100 is a little less than 29 in binary
    middle = sum(i * i for i in range(30, 72)) / 42
    assert flat(TrimmedMean(0.29).aggregate({}, of(squares))).tolist() == pytest.approx([middle, -middle], rel=1e-12)


def test_krum_by_hand() -> None:
    """n = 5, f = 1: each update's two nearest others count."""
    rows = [[0.0, 0], [1, 0], [0, 2], [2, 0], [100, 100]]
    scores = krum_scores(torch.tensor(rows, dtype=torch.float64), 1)
    assert scores.tolist() == [1 + 4, 1 + 1, 4 + 5, 1 + 4, 19604 + 19604]
    assert Krum(1).weigh({}, of(rows)).tolist() == [0, 1, 0, 0, 0]
    assert Krum(1, keep=2).weigh({}, of(rows)).tolist() == [0.5, 0.5, 0, 0, 0]


def weiszfeld(rows: np.ndarray, nu: float, steps: int) -> np.ndarray:
    """RFA's algorithm 2 as it is printed, in NumPy."""
    v = rows.mean(0)
    for _ in range(steps):
        beta = 1 / np.maximum(nu, np.linalg.norm(rows - v, axis=1))
        v = (beta[:, None] * rows).sum(0) / beta.sum()
    return v


def test_geometric_medians_are_weiszfelds_steps_and_lead_to_the_least_sum_of_distances() -> None:
    rows = np.random.default_rng(3).normal(size=(7, 4)) * [1, 1, 5, 1]
    rows[0] = 1e4
    for steps in (1, 8):
        got = GeometricMedian(iterations=steps).weigh({}, of(rows)).numpy() @ rows
        np.testing.assert_allclose(got, weiszfeld(rows, 1e-6, steps), rtol=1e-12)
    v = GeometricMedian(iterations=500).weigh({}, of(rows)).numpy() @ rows
    best = optimize.minimize(lambda v: np.linalg.norm(rows - v, axis=1).sum(), np.median(rows, 0), tol=1e-12)
    assert np.linalg.norm(rows - v, axis=1).sum() == pytest.approx(best.fun, rel=1e-6)
    still = np.concatenate([rows, np.zeros((4, 4))])  # of clients without examples
    weights = GeometricMedian().weigh({}, of(still)).numpy()
    assert weights[7:].tolist() == [0] * 4
    np.testing.assert_allclose(weights @ still, weiszfeld(rows, 1e-6, 8), rtol=1e-12)
    same = np.ones((3, 4))  # ν holds where an update is the median
    np.testing.assert_allclose(GeometricMedian().weigh({}, of(same)).numpy() @ same, same[0], rtol=1e-12)


def bulyan(rows: np.ndarray, f: int) -> np.ndarray:
    """The definition, with loops."""
    left, chosen = [*rows], list[np.ndarray]()
    for _ in range(len(rows) - 2 * f):
        q = len(left)
        near = max(q - f - 2, 1) if q > 1 else 0
        scores = [
            sum(sorted(((a - b) ** 2).sum() for j, b in enumerate(left) if j != i)[:near]) for i, a in enumerate(left)
        ]
        chosen.append(left.pop(int(np.argmin(scores))))
    selected = np.array(chosen)
    middle = np.median(selected, 0)
    keep = len(selected) - 2 * f
    columns = zip(selected.T, middle, strict=True)
    return np.array([sorted(column, key=lambda value, m=m: abs(value - m))[:keep] for column, m in columns]).mean(1)


@pytest.mark.parametrize(("clients", "f"), [(7, 1), (12, 2), (5, 0)])
def test_bulyan_is_its_definition(clients: int, f: int) -> None:
    rows = np.random.default_rng(clients).normal(size=(clients, 6))
    rows[:f] = 1e6
    got = flat(Bulyan(f).aggregate({}, of(rows)))
    np.testing.assert_allclose(got, bulyan(rows, f), rtol=1e-12)
    assert np.abs(got).max() < 5


def test_centered_clips_by_hand_and_over_rounds() -> None:
    rows = np.array([[3.0, 4, 0], [0, 1, 0], [0, 0, 50]])
    part, center = CenteredClip(tau=1.0), np.zeros(3)
    state: Tree = part.init(federation(), of(rows).w)
    for number in range(3):
        apart = rows - center
        scale = np.minimum(1, 1.0 / np.maximum(np.linalg.norm(apart, axis=1), 1e-30))
        center = center + (apart * scale[:, None]).mean(0)
        delta = part.aggregate(state, of(rows))
        np.testing.assert_allclose(flat(delta), center, rtol=1e-12)
        state = part.update(state, replace(of(rows), delta=delta))
        if not number:
            np.testing.assert_allclose(center, [0.2, (0.8 + 1) / 3, 1 / 3], rtol=1e-12)
    wide = CenteredClip(tau=1e9).aggregate(part.init(federation(), of(rows).w), of(rows))
    np.testing.assert_allclose(flat(wide), rows.mean(0), rtol=1e-12)
    median = CenteredClip().aggregate(part.init(federation(), of(rows).w), of(rows))  # τ = 5, of 1, 5 and 50
    np.testing.assert_allclose(flat(median), [1, 5 / 3, 5 / 3], rtol=1e-12)


ROBUST = [Median(), TrimmedMean(0.3), Krum(2), GeometricMedian(), Bulyan(1), CenteredClip()]


@pytest.mark.parametrize("part", ROBUST, ids=lambda part: type(part).__name__)
def test_no_minority_moves_the_model_far(part: Part) -> None:
    """Of ten clients one, which the mean follows wherever it wants, and with it a cheating mean."""
    rows = np.random.default_rng(0).normal(size=(10, 5))
    for size in (1e3, 1e9):
        attacked = np.concatenate([rows[:9], np.full((1, 5), size)])
        round = of(attacked)
        state = {"center": map_leaves(torch.zeros_like, round.w)} if isinstance(part, CenteredClip) else {}
        round = replace(round, weights=part.weigh(state, round))
        joint = flat(part.aggregate(state, round) if has(part, "aggregate") else round.weighted())
        assert np.abs(joint).max() < 4
        assert np.abs(attacked.mean(0)).max() > 90


@pytest.mark.often("krum", "geometric_median", "norm_bound")
@pytest.mark.parametrize("name", ["median", "krum", "geometric_median", "bulyan", "centered_clip", "norm_bound"])
def test_robust_means_train_alike_in_loop_and_batch(name: str) -> None:
    how = {"name": name} | ({"malicious": 0} if name == "bulyan" else {})
    states = []
    for options in ({"mode": "loop"}, {"mode": "vmap", "record": "never"}, {"mode": "vmap", "record": "always"}):
        fed = federation(**options, dtype=torch.float64)
        *_, last = train(FedAvg(model(), parts=(how,)), fed, 2)  # type: ignore[arg-type]
        states.append(last.state)
    assert distance(states[0], states[1]) <= 1e-9
    assert distance(states[1], states[2]) == 0


def test_bounded_norms_by_hand() -> None:
    rows = [[3, 4], [0, 0], [0.6, 0.8], [30, 40]]
    assert NormBound(1.0).limit({}, of(rows)).tolist() == pytest.approx([0.2, 1, 1, 0.02])
    assert NormBound().limit({}, of(rows)).tolist() == pytest.approx([1, 1, 1, 0.1])  # the median of 1, 5 and 50
    still = [[0, 0]] * 5  # of clients without examples, who would else be most
    assert NormBound().limit({}, of([*rows, *still])).tolist() == pytest.approx([1, 1, 1, 0.1, *[1] * 5])
    assert NormBound().limit({}, of(still)).tolist() == [1] * 5


def test_updates_of_zero_are_no_votes() -> None:
    """Clients without training examples send them; half of all clients would keep the model where it is."""
    rows, still = [[1, 10], [2, -90], [6, 30]], [[0, 0]] * 4
    assert flat(Median().aggregate({}, of([*rows, *still]))).tolist() == [2, 10]
    assert flat(TrimmedMean(0.3).aggregate({}, of([*rows, *still]))).tolist() == [2, 10]  # of 7 clients 2, of 3 only 1
    assert flat(TrimmedMean(0.3).aggregate({}, of([*rows[:2], *still]))).tolist() == [1.5, -40]
    for part in (Median(), TrimmedMean(0.3)):
        assert flat(part.aggregate({}, of(still))).tolist() == [0, 0]
        half = flat(part.aggregate({}, of([[0, 4], [0, 6], *still]))).tolist()  # a leaf of zeros is a vote
        assert half == [0, 5]
    near = [[0.1, 0.0], [0.2, 0.0], [5.0, 5.0], [5.1, 5.0], [5.0, 5.1]]
    assert Krum(1).weigh({}, of([*near, *still])).tolist() == [0, 0, 1, *[0] * 6]
    apart = [[9, 0], [0, 9], [-9, 0], [0, -9]]  # four are too few to tell one malicious update
    assert Krum(1).weigh({}, of([*apart, *still])).argmax() == 4


def drawn(clients: int) -> np.ndarray:
    return np.random.default_rng(clients).standard_t(2, (clients, 40))


@pytest.mark.parametrize("clients", [5, 8, 31])
def test_medians_and_trimmed_means_are_numpys_and_scipys(clients: int) -> None:
    rows = drawn(clients)
    np.testing.assert_allclose(flat(Median().aggregate({}, of(rows))), np.median(rows, 0), rtol=1e-15)
    for beta in (0.21, 0.4):
        expected = stats.trim_mean(rows, beta, axis=0)
        np.testing.assert_allclose(flat(TrimmedMean(beta).aggregate({}, of(rows))), expected, rtol=1e-12)


def blanchard(rows: np.ndarray, f: int) -> int:
    """Krum as its paper defines it: i* = argmin Σ_{i → j} ‖V_i − V_j‖² over the n − f − 2 closest V_j."""
    scores = []
    for i, own in enumerate(rows):
        others = [float(((own - other) ** 2).sum()) for j, other in enumerate(rows) if j != i]
        scores.append(sum(sorted(others)[: len(rows) - f - 2]))
    return int(np.argmin(scores))


@pytest.mark.parametrize(("clients", "malicious"), [(5, 1), (9, 3), (31, 5)])
def test_krum_is_its_papers(clients: int, malicious: int) -> None:
    rows = drawn(clients)
    weights = Krum(malicious).weigh({}, of(rows))
    assert weights.argmax() == blanchard(rows, malicious)
    assert weights.sum() == weights.max() == 1


def test_bounds_reach_every_way_to_join_updates() -> None:
    """The factors that `limit` gives are in the updates that others see."""
    rows = drawn(7)
    factors = NormBound(1.0).limit({}, of(rows))
    short = factors[:, None].numpy() * rows
    assert np.linalg.norm(short, axis=1).max() <= 1 + 1e-12
    round = of(rows, factors=factors, weights=torch.full((7,), 1 / 7, dtype=torch.float64))
    np.testing.assert_allclose(flat(round.weighted()), short.mean(0), atol=1e-15)
    np.testing.assert_allclose(flat(Median().aggregate({}, round)), np.median(short, 0), atol=1e-15)
    np.testing.assert_allclose(round.updates.numpy(), short, atol=1e-15)


def after(parts: tuple[Part, ...], rounds: int = 2, **options: Any) -> Any:
    fed = federation(dtype=torch.float64, record="never", **{"mode": "loop"} | options)
    *_, last = train(FedAvg(model(), local_steps=1, parts=parts, **SGD), fed, rounds, eval_every=0)
    return last.state, fed


def test_without_outliers_to_cut_it_is_the_mean() -> None:
    mean, _ = after((Uniform(),))
    for parts in ((Krum(0, keep=5),), (NormBound(1e6), Uniform())):
        assert distance(mean["w"], after(parts)[0]["w"]) <= 1e-12


def test_no_counts_leave_the_clients() -> None:
    """A malicious one could say any."""
    assert set(FedAvg(model(), parts=(Median(),)).composed.sends) == set()
    assert set(FedAvg(model(), parts=(NormBound(),)).composed.sends) == set()
    assert set(FedAvg(model(), parts=(NormBound(), BySize())).composed.sends) == {"n"}  # who asks for it gets it


@pytest.mark.parametrize("parts", [(Median(), Krum()), (Median(), TrimmedMean()), (TrimmedMean(), Uniform())])
def test_two_that_decide_the_joint_update_are_refused(parts: tuple[Part, ...]) -> None:
    with pytest.raises(ValueError, match="both decide how updates count"):
        FedAvg(model(), parts=parts)
    assert FedAvg(model(), parts=(Clip(1.0), NormBound(), parts[0]))


@pytest.mark.parametrize("name", ["qfedavg", "cgsv", "fcfl"])
def test_papers_with_weights_of_their_own_refuse_others(name: str) -> None:
    with pytest.raises(ValueError, match=f"both decide how updates count; .* is a part of {name} itself"):
        ALGORITHMS[name](model(), parts=(Median(),))
    assert ALGORITHMS[name](model(), parts=(NormBound(),))


@pytest.mark.parametrize(
    ("part", "present", "fact"),
    [
        (Krum(2), 5, "7 clients"),
        (Krum(1, keep=5), 5, "6 clients"),
        (TrimmedMean(0.1), 5, "5 clients"),
        (Bulyan(1), 5, "7 clients"),
        (Krum(1), 4, "5 clients"),
        (TrimmedMean(0.2), 4, "4 clients"),
    ],
)
def test_too_few_replies_are_refused(part: Part, present: int, fact: str) -> None:
    """At the start or in a round, rather than an aggregate that withstands nobody."""
    fed = federation(absent=lambda round, client: "gone" if client == "site-0" and present == 4 else None)
    with refusal("user.too-few", fact):
        list(train(FedAvg(model(), parts=(part,), quorum=0.5), fed, 1))


def test_limits_of_several_parts_are_multiplied() -> None:
    """Of norms 4, 1 and 2: bounded to 2, and halved besides."""

    class Halved(Part):
        def limit(self, state: Tree, round: Round) -> torch.Tensor:
            return torch.full((len(round.at),), 0.5, dtype=torch.float64)

    both = Composition((Uniform(), NormBound(2.0), Halved()))
    round = of([[4.0, 0], [0, 1], [0, -2]])
    assert both.factors({name: {} for name in both}, round).tolist() == [0.25, 0.5, 0.5]
    assert Composition((Uniform(),)).factors({}, round) is None


def test_a_run_has_as_many_rounds_as_every_part_allows() -> None:
    class Few(Part):
        protection = Protection(max_rounds=3)

    class Many(Few):
        protection = Protection(max_rounds=7)

    assert Composition((Many(), Few(), Uniform())).max_rounds == 3
    assert Composition((Uniform(),)).max_rounds is None


def test_what_clients_report_is_averaged_as_their_updates_are() -> None:
    """Whether weights sum to 1 or, as FairGFL's, to more; without weights, or with some for each client, alike."""
    told = of([[0.0, 0]] * 3)
    told = replace(
        told, replies=Replies(["a", "b", "c"], [ReplyBatch((0, 1, 2), {"loss": torch.tensor([1.0, 2, 6])})], {})
    )
    for weights, mean in (([0.5, 0.5, 0.0], 1.5), ([2.0, 0.0, 2.0], 3.5), (None, 3.0), ([[1.0, 0, 0]] * 3, 3.0)):
        found = replace(told, weights=None if weights is None else torch.tensor(weights, dtype=torch.float64))
        assert found.mean("loss") == pytest.approx(mean)


def test_clients_count_by_size_and_alike_where_nobody_has_an_example() -> None:
    for sizes, shares in (([1, 3, 0], [0.25, 0.75, 0.0]), ([0, 0, 0], [1 / 3] * 3)):
        told = Replies(["a", "b", "c"], [ReplyBatch((0, 1, 2), {"n": torch.tensor(sizes)})], {})
        assert by_size(replace(of([[0.0, 0]] * 3), replies=told)).tolist() == shares


def test_leaves_keep_shape_and_dtype() -> None:
    for part in (Median(), TrimmedMean()):
        round = of(drawn(6), dtype=torch.float32)
        forms = [
            [(path, leaf.shape, leaf.dtype) for path, leaf in leaves(t)] for t in (part.aggregate({}, round), round.w)
        ]
        assert forms[0] == forms[1]
