import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.func import vmap

from fedweave.core import random

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix(seed: int, count: int) -> list[int]:
    """SplitMix64 as published (Steele et al. 2014; Vigna's splitmix64.c), in plain Python."""
    out = []
    for _ in range(count):
        seed = (seed + GOLDEN) & MASK
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        out.append(z ^ (z >> 31))
    return out


def unsigned(words: Tensor) -> list[int]:
    return [word & MASK for word in words.tolist()]


def test_words_are_splitmix64s_published_sequence() -> None:
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert splitmix(1234567, 5) == published
    assert unsigned(random.bits(torch.tensor(1234567), 5)) == published


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 0x0123456789ABCDEF])
def test_words_are_splitmix64_for_any_state(seed: int) -> None:
    assert unsigned(random.bits(torch.tensor(seed), 1000)) == splitmix(seed, 1000)


def test_folding_goes_one_purpose_at_a_time_and_client_by_client() -> None:
    parent = random.key(5)
    assert random.fold(parent, "a", 3) == random.fold(random.fold(parent, "a"), 3)
    ids = torch.tensor([0, 1, 7, -3, 2**62])
    assert torch.equal(random.fold(parent, "client", ids), torch.stack([random.fold(parent, "client", i) for i in ids]))
    assert len(random.fold(parent, ids).unique()) == len(ids)


def test_folding_separates_seeds_purposes_and_numbers() -> None:
    parts = ["init", "train", "secret", *range(40)]
    keys = [random.key(seed) for seed in range(-5, 20)]
    folded = [random.fold(key, part).item() for key in keys for part in parts]
    folded += [random.fold(key, a, b).item() for key in keys for a, b in itertools.permutations(parts[:8], 2)]
    folded += [key.item() for key in keys]
    assert len(set(folded)) == len(folded)


def test_a_folded_key_differs_from_its_parent() -> None:
    for seed in range(5):
        for part in (0, 1, "x"):
            assert random.fold(random.key(seed), part) != random.key(seed)


def test_streams_of_neighboring_keys_are_independent() -> None:
    parent = random.key(11)
    draws = torch.stack([random.uniform(random.fold(parent, "client", i), (4000,)) for i in range(8)]).double()
    off = torch.corrcoef(draws) - torch.eye(8)
    assert off.abs().max() < 4.5 / math.sqrt(4000)
    lagged = torch.corrcoef(torch.stack([draws.flatten()[:-1], draws.flatten()[1:]]))[0, 1]
    assert lagged.abs() < 4.5 / math.sqrt(32000)


def test_every_bit_is_fair() -> None:
    words = np.array(unsigned(random.bits(random.key(3), 20000)), dtype=np.uint64)
    ones = np.array([int((words >> np.uint64(bit) & np.uint64(1)).sum()) for bit in range(64)])
    assert np.abs(ones - 10000).max() < 4.5 * math.sqrt(5000)


def test_uniform_is_uniform_over_the_half_open_interval() -> None:
    u = random.uniform(random.key(1), (200, 500))
    assert u.shape == (200, 500)
    assert u.dtype == torch.float32
    assert u.min() >= 0
    assert u.max() < 1
    assert stats.chisquare(torch.histc(u, 100, 0, 1).numpy()).pvalue > 1e-3
    pairs = torch.histc((u[:, ::2] * 10).floor() * 10 + (u[:, 1::2] * 10).floor(), 100, 0, 100)
    assert stats.chisquare(pairs.numpy()).pvalue > 1e-3
    assert torch.equal(u * 2**24, (u * 2**24).round())


def test_normal_has_the_normals_moments() -> None:
    z = random.normal(random.key(2), (100_000,)).double().numpy()
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert abs(z.mean()) < 4 / math.sqrt(1e5)
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / 1e5)
    assert abs((z**4).mean() - 3) < 4 * math.sqrt(96 / 1e5)
    assert np.isfinite(z).all()


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.75, 0.9, 1.0])
def test_keep_is_true_with_the_rate(rate: float) -> None:
    kept = random.keep(random.key(4), (50_001,), rate).double()
    assert abs(kept.mean() - rate) <= 4 * math.sqrt(rate * (1 - rate) / 50_001)


def test_keep_uses_four_independent_draws_of_a_word() -> None:
    kept = random.keep(random.key(6), (40_000,), 0.5).double().view(-1, 4)
    counts = torch.bincount((kept @ torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)).long(), minlength=16)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5, 0.9])
def test_dropout_keeps_the_mean(rate: float) -> None:
    h = torch.ones(1000, 32, dtype=torch.float64)
    out = random.dropout(random.key(7), h, rate)
    assert abs(out.mean() - 1) <= 4 * math.sqrt(rate / (1 - rate) / h.numel()) + 1e-12
    assert ((out == 0) | ((out - 1 / (1 - rate)).abs() < 1e-3)).all()
    kept = round((1 - rate) * 65536) / 65536
    expected = out.unique()
    assert torch.allclose(expected[expected > 0], torch.tensor(1 / kept, dtype=torch.float64), rtol=1e-12)


@pytest.mark.parametrize("width", [1, 3, 8])
def test_dropout_of_a_row_does_not_depend_on_how_many_rows_follow(width: int) -> None:
    key = random.key(8)
    short = random.dropout(key, torch.ones(33, width), 0.5)
    long = random.dropout(key, torch.ones(96, width), 0.5)
    assert torch.equal(short, long[:33])


def test_dropout_has_the_masks_gradient() -> None:
    h = torch.ones(20, 4, requires_grad=True)
    out = random.dropout(random.key(9), h, 0.3)
    out.sum().backward()
    assert torch.equal(h.grad, out.detach())  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 3), (33, 8)])
def test_vmap_draws_what_a_loop_draws(shape: tuple[int, ...]) -> None:
    keys = random.fold(random.key(10), "client", torch.arange(9))
    draws = {
        "bits": lambda key: random.bits(key, 5),
        "uniform": lambda key: random.uniform(key, shape),
        "normal": lambda key: random.normal(key, shape),
        "keep": lambda key: random.keep(key, shape, 0.4),
        "dropout": lambda key: random.dropout(key, torch.ones(shape), 0.4),
        "fold": lambda key: random.fold(key, "purpose", 3),
    }
    for name, draw in draws.items():
        assert torch.equal(vmap(draw)(keys), torch.stack([draw(key) for key in keys])), name


@pytest.mark.parametrize("shape", [(), (1,), (3,), (7, 5)])
@pytest.mark.parametrize(("few", "many"), [(1, 2), (33, 64), (32, 160)])
def test_a_row_does_not_depend_on_how_many_follow(shape: tuple[int, ...], few: int, many: int) -> None:
    """What pads a client's nodes changes nothing of what they draw."""
    key = random.key(12)
    draws: dict[str, Callable[[int], Tensor]] = {
        "bits": lambda rows: random.bits(key, rows),
        "uniform": lambda rows: random.uniform(key, (rows, *shape)),
        "normal": lambda rows: random.normal(key, (rows, *shape)),
        "keep": lambda rows: random.keep(key, (rows, *shape), 0.4),
        "keep all": lambda rows: random.keep(key, (rows, *shape), 1.0),
        "dropout": lambda rows: random.dropout(key, torch.ones(rows, *shape), 0.4),
        "order": lambda rows: random.order(key, torch.ones(rows, dtype=torch.bool)),
    }
    for name, draw in draws.items():
        assert torch.equal(draw(many)[:few], draw(few)), name


def test_the_order_of_members_does_not_depend_on_padding() -> None:
    member = torch.arange(40) % 3 > 0
    padded = torch.cat([member, torch.zeros(56, dtype=torch.bool)])
    chosen = int(member.sum())
    orders = [random.order(random.key(2), mask).argsort()[:chosen] for mask in (member, padded)]
    assert torch.equal(*orders)


def test_normals_of_one_call_are_independent() -> None:
    z = random.normal(random.key(13), (40_000, 2)).double()
    for first, second in ((z[:, 0], z[:, 1]), (z[:-1, 1], z[1:, 0])):
        assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 4.5 / math.sqrt(40_000)


def test_nothing_touches_the_global_generators() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    random.dropout(random.key(1), random.normal(random.key(2), (50, 3)), 0.5)
    random.generator(3, "x").random(10)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]  # noqa: NPY002


def test_numpy_generators_depend_on_seed_and_purpose_alone() -> None:
    draw = {
        (seed, purpose): random.generator(seed, purpose).integers(0, 2**62)
        for seed in (-1, 0, 1, 2**32, 2**62)  # all bits but the highest count
        for purpose in ("a", "b")
    }
    assert len(set(draw.values())) == 10
    assert random.generator(0, "a").integers(0, 2**62) == draw[0, "a"]


@pytest.mark.parametrize("seed", [0, 1, -5, 2**70 + 3])
def test_keys_known_by_their_bits_are_those_of_tensors(seed: int) -> None:
    purposes = ("step", "FedAvg.train", 3)
    assert random.key_of(random.root(seed), "cpu").equal(random.key(seed))
    assert random.key_of(random.fold_bits(random.root(seed), *purposes), "cpu").equal(
        random.fold(random.key(seed), *purposes)
    )


def test_normal_draws_are_rounded_once() -> None:
    u = random.uniform(random.key(4), (500, 2)).numpy().astype(np.float64)
    exact = np.sqrt(-2 * np.log(u[:, 0] + 2.0**-25)) * np.cos(2 * math.pi * u[:, 1])
    assert random.normal(random.key(4), (500,)).numpy().tolist() == exact.astype(np.float32).tolist()
