"""Cuts and splits by scaffold: worked by hand, laws, and the scaffolds of real molecules."""

import functools
import operator
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedweave.core.graph import SPLITS, TEST, TRAIN, VAL
from fedweave.datasets import load
from fedweave.datasets.base import Dataset
from fedweave.datasets.molecules import scaffolds_of
from fedweave.errors import ConfigError
from fedweave.partition import Dirichlet, Partition, Random, ScaffoldDirichlet, Scaffolds, cut
from tests.refusals import refusal

NUMBERS = st.lists(st.integers(0, 12), min_size=8, max_size=120)


def molecules(scaffolds: Any, unlabeled: int = 0) -> Dataset:
    """A graph of one node for each scaffold that is named; the first so many have no label."""
    count = len(scaffolds)
    y = np.arange(count) % 2
    y[:unlabeled] = -1
    return Dataset(
        "molecules",
        np.ones((count, 1), np.float32),
        np.zeros((2, 0), np.int64),
        y,
        2,
        graph_of=np.arange(count),
        scaffold=np.array(scaffolds, np.int64),
    )


def held(found: Partition) -> list[list[int]]:
    return [part.examples.tolist() for part in found.parts]


def whole(found: Partition, data: Dataset) -> bool:
    """Whether each molecule is at one client."""
    return sorted(functools.reduce(operator.iadd, held(found), [])) == list(range(data.examples))


def test_scaffolds_are_dealt_as_worked_by_hand() -> None:
    """Of 5, 4, 3, 2 and 1 molecules: 5 to the first client and 4 to the second, which has the fewest, 3 to the third,
    2 to the third, 1 to the second."""
    data = molecules([4] * 1 + [0] * 5 + [3] * 2 + [1] * 4 + [2] * 3)
    found = Scaffolds(clients=3).cut(data, 0)
    assert held(found) == [[1, 2, 3, 4, 5], [0, 8, 9, 10, 11], [6, 7, 12, 13, 14]]


@given(NUMBERS, st.integers(1, 4), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_a_scaffold_is_at_one_client_and_sizes_are_balanced(numbers: list[int], clients: int, seed: int) -> None:
    data = molecules(numbers)
    if len(set(numbers)) < clients:
        with refusal("config.too-few"):
            Scaffolds(clients=clients).cut(data, seed)
        return
    found = Scaffolds(clients=clients).cut(data, seed)
    assert whole(found, data)
    owners = [{numbers[at] for at in own} for own in held(found)]
    assert sum(map(len, owners)) == len(set(numbers))
    sizes = [len(own) for own in held(found)]
    assert max(sizes) - min(sizes) <= max(Counter(numbers).values())


@given(NUMBERS, st.integers(1, 4), st.integers(0, 3), st.floats(0.01, 100))
@settings(max_examples=60, deadline=None)
def test_dealt_by_dirichlet_a_molecule_is_at_one_client(
    numbers: list[int], clients: int, seed: int, alpha: float
) -> None:
    """None has more than its share and the scaffold that took it there."""
    data = molecules(numbers)
    how = ScaffoldDirichlet(clients=clients, alpha=alpha, min_nodes=1)
    try:
        found = how.cut(data, seed)
    except ConfigError as error:
        if error.code != "config.draws":
            raise
        return
    assert whole(found, data)
    assert max(map(len, held(found))) < len(numbers) / clients + max(Counter(numbers).values())


def test_a_small_alpha_keeps_scaffolds_together_and_a_large_one_spreads_them() -> None:
    """By the share of a client that its largest scaffold has; single molecules do not all go to one client."""
    data, skewed = molecules(np.repeat(np.arange(20), 20)), list[float]()
    for alpha in (0.05, 1e6):
        found = ScaffoldDirichlet(clients=4, alpha=alpha).cut(data, 0)
        counts = [np.bincount(np.asarray(data.scaffold)[own], minlength=20) for own in held(found)]
        skewed.append(float(np.mean([one.max() / one.sum() for one in counts])))
    assert skewed[0] > 0.15
    assert skewed[1] < 0.1
    singles = ScaffoldDirichlet(clients=4, alpha=1e6).cut(molecules(range(100)), 0)
    assert held(singles) != held(Random(clients=4).cut(molecules(range(100)), 0))
    assert {len(own) for own in held(singles)} == {25}
    assert issubclass(ScaffoldDirichlet, Dirichlet)


@pytest.mark.parametrize("how", [Scaffolds(clients=2), ScaffoldDirichlet(clients=2, alpha=1.0)])
def test_a_seed_gives_one_cut_and_another_seed_another(how: Any) -> None:
    data = molecules(range(40))
    assert held(how.cut(data, 1)) == held(how.cut(data, 1))
    assert held(how.cut(data, 1)) != held(how.cut(data, 2))


# Splits.


def roles(found: Partition, data: Dataset) -> list[list[set[int]]]:
    """The scaffolds in train, val and test of each client."""
    numbers = np.asarray(data.scaffold)
    return [[set(numbers[part.examples[mask]].tolist()) for mask in part.masks] for part in found.parts]


def test_a_split_by_scaffold_as_worked_by_hand() -> None:
    """Ten molecules: 5 and 2 of a scaffold train, 8 at most; 2 more do not fit, nor the validation's 1, so they test;
    the single one trains."""
    how = Random(clients=1, train=0.8, val=0.1, test=0.1, split="scaffold")
    data = molecules([0] * 5 + [1] * 2 + [2] * 2 + [3])
    [train, val, test] = roles(how.cut(data, 0), data)[0]
    assert ({0, 3} < train, val, test in ({1}, {2}), len(train)) == (True, set(), True, 3)
    [part] = how.cut(data, 0).parts
    assert part.masks.sum(1).tolist() == [8, 0, 2]


@given(NUMBERS, st.integers(0, 8), st.integers(0, 3), st.sampled_from([(0.8, 0.1, 0.1), (0.3, 0.3, 0.2), (1, 0, 0)]))
@settings(max_examples=80, deadline=None)
def test_splits_of_a_client_share_no_scaffold(
    numbers: list[int], unlabeled: int, seed: int, ratios: tuple[float, float, float]
) -> None:
    """No unlabeled molecule is in one; who has a labeled molecule trains on one; validation keeps its ratio and, where
    the ratios leave some over, so do the others."""
    data = molecules(numbers, unlabeled)
    how = Random(clients=2, train=ratios[0], val=ratios[1], test=ratios[2], split="scaffold")
    found = how.cut(data, seed)
    for part, scaffolds in zip(found.parts, roles(found, data), strict=True):
        assert sum(map(len, scaffolds)) == len(set.union(*scaffolds))
        labeled = data.has_label[part.examples]
        assert not part.masks[:, ~labeled].any()
        assert part.masks[TRAIN].any() == labeled.any()
        assert part.masks[VAL].sum() <= round(ratios[1] * labeled.sum()) + 1
        if sum(ratios) == 1:
            assert part.masks.any(0).sum() == labeled.sum()
        else:
            assert part.masks[TEST].sum() <= round(ratios[2] * labeled.sum()) + 1


def test_a_client_of_one_scaffold_trains_on_it() -> None:
    [part] = Random(clients=1, split="scaffold").cut(molecules([0] * 9), 0).parts
    assert part.masks.sum(1).tolist() == [9, 0, 0]


BARE = replace(molecules([0, 1]), scaffold=None)


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (lambda: Random(split="scaffold", use_dataset_split=True), "config.public-split"),
        (lambda: Random(split="scaffold", train_until=0.5), "config.idle"),
        (lambda: ScaffoldDirichlet(clients=4, min_nodes=30).cut(molecules([0] * 40), 0), "config.too-few"),
        (lambda: ScaffoldDirichlet(clients=4, min_nodes=10, alpha=0.01).cut(molecules([0] * 40), 0), "config.draws"),
        (lambda: Scaffolds(clients=2).cut(BARE, 0), "config.no-scaffolds"),
        (lambda: Random(split="scaffold", clients=1).cut(BARE, 0), "config.no-scaffolds"),
        (lambda: cut(Scaffolds(clients=1), replace(molecules([0]), graph_of=None), 0), "config.examples"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused(how: Any, code: str) -> None:
    with refusal(code):
        how()


# Real molecules.


@pytest.mark.parametrize("name", ["bace", "bbbp"])
def test_scaffolds_of_real_molecules_are_those_of_the_data(name: str, data_root: Path) -> None:
    """The column of the data groups molecules as scaffolds made from their SMILES do."""
    pytest.importorskip("rdkit", reason="needs RDKit: pip install 'fedweave[molecules]'")
    data = load("graphs", str(data_root / name))
    made, given_ones = scaffolds_of(replace(data, scaffold=None)), scaffolds_of(data)
    pairs = np.unique(np.stack([made, given_ones]), axis=1).shape[1]
    assert pairs == made.max() + 1 == given_ones.max() + 1


def test_real_molecules_are_cut_without_a_setting(data_root: Path) -> None:
    """Columns smiles and scaffold next to tables of atoms and bonds need no setting; each client's own data set keeps
    its scaffolds."""
    data = load("graphs", str(data_root / "bace"))
    assert not {"smiles", "scaffold"} & set(data.columns)
    found = Scaffolds(clients=4, split="scaffold").cut(data, 0)
    assert whole(found, data)
    assert [len(own) for own in held(found)] == [379, 378, 378, 378]
    for part in found.parts:
        assert part.masks.sum(1) / len(part.examples) == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
    assert len(SPLITS) == 3
