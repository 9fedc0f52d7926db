"""FairGFL's step against arithmetic written apart from it, its estimates against counting, and what leaves a client."""

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fairgfl import OverlapWeights, overlaps
from fedweave.algorithms.fairgfl.encoder import Encoder, node_codes, sample_features
from fedweave.algorithms.parts import Context, Uniform
from fedweave.core import random
from fedweave.core.federation import Client
from fedweave.core.mechanism import LDP, read_applied
from fedweave.core.tree import Tree, ravel
from fedweave.engines.simulation import Simulation
from fedweave.experiment.rounds import train
from fedweave.privacy.accountant import bounds
from fedweave.privacy.mechanisms import unpack_bits
from tests.algorithms.test_family_oracles import LR, STEPS, Problem, same
from tests.contract.federations import federation, graphs, model, public
from tests.refusals import refusal

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": LR, "weight_decay": 0.0, "local_steps": STEPS}
SMALL: dict[str, Any] = {"code_size": 24, "encoder_rounds": 2, "sample": 16, "epsilon_a": 6.0}
PART = "OverlapWeights"


def truth(clients: int = 5, seed: int = 0) -> Tree:
    """Made-up overlaps of every two clients."""
    rng = np.random.default_rng(seed)
    matrices = {name: torch.from_numpy(rng.random((clients, clients))) for name in ("nodes", "links")}
    return {name: matrix.fill_diagonal_(0) for name, matrix in matrices.items()}


def ended(name: str = "fairgfl", rounds: int = 3, fed: Simulation | None = None, **options: Any) -> tuple[Tree, Any]:
    """The server's state, and the federation."""
    fed = fed or federation(dtype=torch.float64, pairs=truth())
    *_, last = train(ALGORITHMS[name](model(0.0), **options), fed, rounds, eval_every=0)
    return last.state, fed


# --- the step


@pytest.mark.often("ldp-0.2-False")
@pytest.mark.parametrize(
    ("estimator", "lam", "normalize"),
    [("oracle", 0.1, False), ("oracle", 0.7, True), ("oracle", 0.0, False), ("none", 0.3, False), ("ldp", 0.2, False)],
)
def test_three_rounds_equal_the_reference(
    oracles: ModuleType, problem: Problem, estimator: str, lam: float, normalize: bool
) -> None:
    options = {**SGD, **SMALL, "estimator": estimator, "lam": lam, "normalize": normalize}
    state, _ = ended(**options)
    w, overlap = problem.start, np.zeros(5)
    for done in range(1, 4):
        if estimator == "ldp":  # the overlaps are estimated, the step from them is compared
            part = ended(rounds=done, **options)[0]["parts"][PART]
            overlap = (0.8 * part["nodes"] + 0.2 * part["links"]).sum(1).numpy()
        elif estimator == "oracle":
            overlap = (0.8 * truth()["nodes"] + 0.2 * truth()["links"]).sum(1).numpy()
        updates = [oracles.sgd(w, gradient, STEPS, LR) - w for _, _, gradient in problem.clients]
        losses = [loss(w) for _, loss, _ in problem.clients]
        w = oracles.fairgfl_step(w, updates, losses, overlap, lam, normalize)
    same(state["w"], w)


def test_without_overlap_and_regularizer_it_is_the_plain_mean() -> None:
    plain, _ = ended("fedavg", parts=(Uniform(),), **SGD)
    none, _ = ended(estimator="none", lam=0.0, **SGD)
    same(none["w"], ravel(plain["w"]).numpy())


@pytest.mark.parametrize("scale", [0.46, 1.7])
def test_fedavg_with_a_scaled_learning_rate_is_there_to_compare_with(scale: float) -> None:
    """FedAvg's server step without momentum is the mean step, scaled."""
    once, _ = ended("fedavg", rounds=1, **SGD)
    scaled, _ = ended("fedavgm", rounds=1, server_lr=scale, momentum=0.0, **SGD)
    fed = federation(dtype=torch.float64)
    fed.begin(0)
    start = ravel(ALGORITHMS["fedavg"](model(0.0)).init(fed)["w"])
    assert float((ravel(scaled["w"]) - start - scale * (ravel(once["w"]) - start)).abs().max()) < 1e-12


def test_what_is_known_of_each_client_is_measured() -> None:
    state, fed = ended(**SGD, **SMALL)
    made = ALGORITHMS["fairgfl"](model(0.0), **SMALL)
    found = made.measures(state, fed)
    assert set(found) == {"overlap_true", "overlap_estimated", "weight", "loss"}
    known = (0.8 * truth()["nodes"] + 0.2 * truth()["links"]).sum(1)
    assert found["overlap_true"].numpy() == pytest.approx(known.numpy(), abs=1e-12)
    q = 1 / (1 + found["overlap_estimated"]) / 5
    assert float((found["weight"] - q).sum()) == pytest.approx(0.1)  # λ, at one client
    assert int((found["weight"] - q > 1e-9).sum()) == 1
    assert set(made.pairs(state)) == {"nodes_estimated", "links_estimated"}


def test_clients_that_were_never_called_are_unknown() -> None:
    state, fed = ended(rounds=1, participation=0.4, **SGD, **SMALL)
    found = ALGORITHMS["fairgfl"](model(0.0), **SMALL).measures(state, fed)
    assert int(found["weight"].isnan().sum()) == 3
    assert torch.equal(found["loss"].isnan(), found["overlap_estimated"].isnan())


def test_what_it_needs_is_named() -> None:
    with refusal("user.no-sample", "public.npz"):
        ended(fed=federation(held={}), **SMALL)
    with refusal("user.oracle", "'overlap'"):
        ended(fed=federation(), estimator="oracle")
    with refusal("user.components", "29", "code_size is 64"):
        ended(fed=federation(), encoder="pca", code_size=64)


# --- estimation


def sampled(clients: int, batch: int, size: int, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    """Codes uint8 [P, b, d] without noise, and who each row is, int64 [P, b]."""
    rng = np.random.default_rng(seed)
    people = rng.integers(0, 2, (40, size))
    who = np.stack([rng.choice(40, batch, replace=False) for _ in range(clients)])
    return torch.from_numpy(people[who].astype(np.uint8)), who


@pytest.mark.parametrize("elements", [1, 1 << 19])
def test_matching_in_blocks_counts_the_common_people(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlaps, "_ELEMENTS", elements)
    codes, who = sampled(7, 9, 32)
    taken = torch.tensor([9, 9, 4, 9, 1, 9, 9])
    found = overlaps.counts(overlaps.matches(codes, taken, 1, 0), 9, 7)
    for i in range(7):
        for k in range(7):
            common = len(set(who[i, : taken[i]]) & set(who[k, : taken[k]])) if i != k else 0
            assert found[i, k] == common


@pytest.mark.parametrize(("size", "levels"), [(20, 1), (64, 1), (65, 1), (130, 1), (20, 4)])
def test_matches_are_all_near_pairs_of_two_clients(size: int, levels: int) -> None:
    rng = np.random.default_rng(size)
    codes = rng.integers(0, levels + 1, (12, size))[rng.integers(0, 12, (5, 8))]
    codes = np.where(rng.random(codes.shape) < 0.2, rng.integers(0, levels + 1, codes.shape), codes).astype(np.uint8)
    taken = [8, 3, 8, 1, 7]
    apart = np.abs(codes.reshape(40, 1, size).astype(int) - codes.reshape(40, size)).sum(-1)
    rows = [(client, client * 8 + row) for client in range(5) for row in range(taken[client])]
    pairs = [(r, s) for i, r in rows for k, s in rows if i < k]
    most = sorted(apart[r, s] for r, s in pairs)[40]  # which itself counts
    wanted = [(r, s) for r, s in pairs if apart[r, s] <= most]
    found = overlaps.matches(torch.from_numpy(codes), torch.tensor(taken), levels, int(most))
    assert sorted(map(tuple, found.T.tolist())) == wanted


@pytest.mark.parametrize("levels", [1, 5])
def test_distances_are_those_of_numpy(levels: int) -> None:
    rng = np.random.default_rng(0)
    one, other = (rng.integers(0, levels + 1, (n, 30)).astype(np.uint8) for n in (6, 8))
    ours = overlaps.distances(*(overlaps.comparable(torch.from_numpy(c), levels) for c in (one, other)), levels)
    theirs = np.abs(one[:, None].astype(int) - other).sum(-1)
    assert np.array_equal(ours.numpy(), theirs)


def test_counts_equal_the_reference(oracles: ModuleType) -> None:
    matched = torch.tensor([[0.0, 7.0], [7.0, 0.0]], dtype=torch.float64)
    found = overlaps.overlap_count(matched, torch.tensor([20, 31]), overlaps.Rates(5, 0.9, 0.001))
    assert float(found[0, 1]) == pytest.approx(oracles.overlap_count(7, 20, 31, 0.9, 0.001))
    assert float(found[1, 0]) == pytest.approx(float(found[0, 1]))


def test_estimates_are_unbiased() -> None:
    """Client 0 has 200 nodes, client 1 100, of which 30 are common; minibatches of 40."""
    rng, found = np.random.default_rng(1), []
    rates, taken, nodes = overlaps.Rates(0, 0.8, 0.01), torch.tensor([40, 40]), torch.tensor([200, 100])
    for _ in range(3000):
        one, other = rng.choice(200, 40, replace=False), rng.choice(100, 40, replace=False) + 170
        same = len(set(one) & set(other))
        matched = rng.binomial(same, 0.8) + rng.binomial(1600 - same, 0.01)
        common = overlaps.overlap_count(torch.full((2, 2), float(matched)), taken, rates)
        found.append((common / 40 * (nodes / taken)).numpy())  # as `node_ratios`, before clipping
    mean, error = np.mean(found, 0), np.std(found, 0) / math.sqrt(3000)
    assert mean[0, 1] == pytest.approx(30 / 200, abs=4 * error[0, 1])
    assert mean[1, 0] == pytest.approx(30 / 100, abs=4 * error[1, 0])
    assert error.max() < 0.02
    clipped = overlaps.node_ratios(torch.full((2, 2), 90.0), taken, nodes)
    assert clipped.tolist() == [[0, 1], [1, 0]]


def test_links_between_matching_ends_by_hand() -> None:
    #  client 0: 0-1, 1-2 of people a b c; client 1: 1-2, 0-2 of people x b c; client 2 has no links
    links = torch.zeros(3, 3, 3, dtype=torch.bool)
    for client, one, other in ((0, 0, 1), (0, 1, 2), (1, 1, 2), (1, 0, 2)):
        links[client, one, other] = links[client, other, one] = True
    pairs = np.array([[1, 2, 2], [4, 5, 8]])  # b is b, c is c, c is c at client 2
    found = overlaps.link_ratios(links, pairs, torch.tensor([3, 3, 3]), torch.tensor([3, 3, 3]))
    assert found.tolist() == [[0, 0.5, 0], [0.5, 0, 0], [0, 0, 0]]
    larger = overlaps.link_ratios(links, pairs, torch.tensor([3, 3, 3]), torch.tensor([3, 4, 3]))
    assert float(larger[0, 1]) == pytest.approx(0.5 * (4 / 3) ** 2)


def test_accumulated_by_hand() -> None:
    before, seen = torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.int64)
    at, now = torch.tensor([0, 2]), torch.tensor([[0.0, 0.4], [0.2, 0.0]], dtype=torch.float64)
    first = overlaps.accumulate(before, now, at, seen, 0.5)
    assert first.tolist() == [[0, 0, 0.4], [0, 0, 0], [0.2, 0, 0]]
    seen[at[:, None], at] = 1
    again = overlaps.accumulate(first, 0 * now, at, seen, 0.25)
    assert again.numpy() == pytest.approx(np.array([[0, 0, 0.3], [0, 0, 0], [0.15, 0, 0]]))


def test_rates_on_the_public_sample_are_those_of_the_noise() -> None:
    """Of bits that each flip with p, two copies differ in Binomial(d, 2p(1 − p)) places."""
    from scipy.stats import binom

    from fedweave.ops.hashing import bits
    from fedweave.privacy.mechanisms import flip_probability, noisy_levels

    code = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (200, 50))).double().expand(2, 8, -1, -1)
    copies = noisy_levels(code, 1, 1.5, bits(random.key(0), code.numel()).view(code.shape))
    found = overlaps.rates(*copies, 1, 0.36, 1.0)
    p = flip_probability(1.5)
    assert found.most == 18
    assert found.true == pytest.approx(binom.cdf(18, 50, 2 * p * (1 - p)), abs=0.05)
    assert found.false == pytest.approx(binom.cdf(18, 50, 0.5), abs=0.01)
    chosen = overlaps.rates(*copies, 1, None, 100.0)
    assert chosen.true - chosen.false > 0.3
    assert chosen.most < 25


@pytest.mark.parametrize("code", ["binary", "minmax"])
def test_codes_depend_on_the_public_sample_alone(code: Any) -> None:
    sample = public(torch.float64)
    encoder = Encoder("autoencoder", code, 12, 5).build(sample, random.key(0))
    own = node_codes(encoder, sample_features(sample))
    assert float(own.min()) == 0
    assert float(own.max()) == 1
    if code == "binary":
        assert own.mean(0).numpy() == pytest.approx(0.5, abs=0.05)
    beyond = node_codes(encoder, 100 * sample_features(sample))
    assert float(beyond.max()) <= 1
    assert float(beyond.min()) >= 0
    again = node_codes(encoder, sample_features(sample)[:3])
    assert torch.equal(again, own[:3])


# --- what leaves a client


class Listening(Simulation):
    """Keeps every reply of training, and may ask for another minibatch as often as it likes."""

    def map(self, step: Any, *args: Any, **options: Any) -> Any:
        replies = super().map(step, *args, **options)
        self.heard = [*getattr(self, "heard", []), replies]
        return replies


def codes_heard(fed: Listening, size: int) -> list[set[bytes]]:
    """The different noisy codes that the first client sent, round by round."""
    rows = [replies["site-0"] for replies in fed.heard if "codes" in replies["site-0"]]
    real = [row["codes"][: min(int(row["nodes"]), 16)] for row in rows]
    return [{unpack_bits(code, size).numpy().tobytes() for code in own} for own in real]


def test_a_node_sends_the_same_noisy_code_whatever_it_is_asked() -> None:
    fed = federation(engine=Listening, held={"public": public()})
    *_, last = train(ALGORITHMS["fairgfl"](model(), **SMALL), fed, 12, eval_every=0)
    heard = codes_heard(fed, 24)
    assert len(heard) == 12
    assert len(set.union(*heard)) <= 21  # its nodes
    held = fed.snapshot()["site-0"][PART]["codes"]
    fed.begin(13)
    # a server that sends another encoder hears the same codes again: the clients do not take it
    other = {name: -leaf for name, leaf in last.state["parts"][PART]["encoder"].items()}
    message = {"w": last.state["w"], PART: {"encoder": other}}
    fed.map(ALGORITHMS["fairgfl"](model(), **SMALL).train, message)
    assert codes_heard(fed, 24)[-1] <= set.union(*heard) | {row.numpy().tobytes() for row in held.bool()}
    assert torch.equal(fed.snapshot()["site-0"][PART]["codes"], held)


def test_another_secret_draws_other_noise_and_the_same_codes() -> None:
    noisy, clean = [], []
    for seed in (0, 1):
        for epsilon, found in ((1.0, noisy), (math.inf, clean)):
            fed = federation(seed=seed)
            ended(fed=fed, rounds=1, **{**SMALL, "epsilon_a": epsilon, "encoder": "pca"})
            found.append(fed.snapshot()["site-1"][PART]["codes"])
    assert torch.equal(*clean)
    differ = float((noisy[0] != noisy[1]).double().mean())
    p = 1 / (1 + math.e)
    assert differ == pytest.approx(2 * p * (1 - p), abs=0.06)


def test_noise_and_the_key_of_pairs_come_from_the_secret_alone() -> None:
    """The server may know the key of a client's other randomness."""
    part, graph = OverlapWeights(code_size=24, epsilon_a=0.5), graphs()["site-0"]
    encoder = {"weight": torch.ones(graph.x.shape[1], 24), "low": torch.zeros(24)}

    def drawn(key: int, secret: int) -> Tree:
        client = Client(graph, {}, random.key(key), random.key(secret))
        return part.draw_noise(Context(client, None, {PART: {"encoder": encoder}}, PART))  # type: ignore[arg-type]

    first, again, other = drawn(1, 2), drawn(3, 2), drawn(1, 4)
    for name in ("codes", "links"):
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])


def test_the_ledger_counts_a_node_and_a_pair_once() -> None:
    fed = federation()
    ended(fed=fed, rounds=6, **SMALL, epsilon_b=1.5)
    found = {bound.per: bound for bound in bounds(fed.ledger.table())}
    assert found["node"].epsilon == pytest.approx(24 * 6.0)
    assert found["pair of nodes"].epsilon == pytest.approx(1.5)
    assert found["node"].messages == 6
    told = {row["key"]: row["applied"] for row in fed.ledger.table().to_pylist() if row["applied"]}
    assert read_applied(told["codes"]).mechanisms == (LDP(144.0, "node", PART),)


@pytest.mark.often("options0-keys0", "options4-keys4")
@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"alpha": 1.0}, {"loss", "nodes", "codes"}),
        ({"estimator": "none"}, {"loss"}),
        ({"estimator": "oracle"}, {"loss"}),
        ({}, {"loss", "nodes", "codes", "links"}),
        ({"code": "minmax"}, {"loss", "nodes", "codes", "links"}),
    ],
)
def test_no_more_leaves_than_is_needed(options: dict[str, Any], keys: set[str]) -> None:
    fed = federation(engine=Listening, pairs=truth(), held={"public": public()})
    ended(fed=fed, rounds=2, **{**SMALL, **options})
    sent = [set(replies["site-0"]) for replies in fed.heard if "update" in replies["site-0"]]
    assert sent[0] - {"update"} == keys
    down = [row for row in fed.ledger.table().to_pylist() if row["direction"] == "down" and "encoder" in row["key"]]
    assert {row["round"] for row in down} == ({1} if "codes" in keys else set())


def test_without_noise_overlapping_clients_are_told_from_others() -> None:
    """Two clients with the same nodes, and three with others."""
    held = graphs()
    held["site-1"] = held["site-0"]
    options = {"code_size": 200, "encoder": "random", "sample": 64, "epsilon_a": math.inf, "epsilon_b": math.inf}
    state, _ = ended(fed=federation(clients=held), rounds=1, **options)
    nodes, links = (state["parts"][PART][name] for name in ("nodes", "links"))
    assert float(nodes[0, 1]) == pytest.approx(1, abs=0.02)
    assert float(links[0, 1]) == 1
    assert float(nodes.sum()) == pytest.approx(2, abs=0.05)


@pytest.mark.slow
def test_a_thousand_clients_are_held_against_each_other_in_blocks() -> None:
    """Small blocks whatever the number of clients: the peak is what is kept, not all pairs of rows."""
    assert overlaps._ELEMENTS * 4 < 10e6
    codes = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (200, 64, 16))).to(torch.uint8)
    pairs = overlaps.matches(codes, torch.full((200,), 64), 1, 0)
    by_code: dict[bytes, list[int]] = {}
    for row, code in enumerate(codes.flatten(0, 1).numpy()):
        by_code.setdefault(code.tobytes(), []).append(row)
    expected = sum(1 for rows in by_code.values() for i in rows for k in rows if i // 64 < k // 64)
    assert pairs.shape[1] == expected
