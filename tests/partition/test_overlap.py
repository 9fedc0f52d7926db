"""The overlap partition: how much clients share, and that nothing else is shared."""

from typing import Any

import numpy as np
import pytest

from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition import Overlap
from fedweave.partition.overlap import HIGH, LOW, NONE, overlaps
from fedweave.partition.statistics import mean_overlap
from tests.partition.test_partition_laws import blocks, both_ways, same
from tests.partition.test_partition_real import real
from tests.refusals import refusal


def group_means(how: Overlap, data: Dataset, seeds: int = 5) -> np.ndarray:
    """Eq. 8's 𝐍_i, the mean over each group and the seeds: [3]."""
    found = [mean_overlap(how.cut(data, seed).pairs["nodes"]) for seed in range(seeds)]
    return np.array([np.mean([own[how.groups == group] for own in found]) for group in (NONE, LOW, HIGH)])


@pytest.mark.often("0.0-cora", "0.1-citeseer", "0.2-cora")
@pytest.mark.parametrize("name", ["cora", "citeseer"])
@pytest.mark.parametrize("overlap", [0.0, 0.05, 0.1, 0.15, 0.2])
def test_the_exact_generator_gives_what_is_asked_for(name: str, overlap: float) -> None:
    none, low, high = group_means(Overlap(overlap=overlap), real(name))
    assert none == 0
    assert low == pytest.approx(overlap, abs=0.005)
    assert high == pytest.approx(2 * overlap, abs=0.008)


def test_the_printed_generator_gives_both_groups_the_same() -> None:
    none, low, high = group_means(Overlap(overlap=0.1, generator="as_printed"), real("cora"))
    assert none == 0
    assert low == pytest.approx(0.2, abs=0.03)
    assert high == pytest.approx(0.21, abs=0.03)


@pytest.mark.often("12")
@pytest.mark.parametrize("clients", [3, 7, 12])
def test_other_numbers_of_clients_too(clients: int) -> None:
    how = Overlap(overlap=0.1, clients=clients)
    none, low, high = group_means(how, blocks(3000, unlabeled=0.0))
    assert none == 0
    assert low == pytest.approx(0.1, abs=0.02)
    assert high == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("generator", ["exact", "as_printed"])
def test_test_and_public_nodes_are_nobodys_and_the_disjoint_ones_one_clients(generator: Any) -> None:
    data, how = blocks(1500), Overlap(overlap=0.1, clients=9, generator=generator)
    cut = how.cut(data, 3)
    assert cut.test is not None
    labelled = int((data.y >= 0).sum())
    assert len(cut.test) == round(0.2 * labelled)
    assert len(cut.held["public"].nodes) == round(0.05 * labelled)
    holders = np.bincount(np.concatenate([part.nodes for part in cut.parts]), minlength=data.nodes)
    assert not holders[cut.test].any()
    assert not holders[cut.held["public"].nodes].any()
    assert not np.isin(cut.test, cut.held["public"].nodes).any()
    for part, group in zip(cut.parts, how.groups, strict=True):
        if group == NONE:
            assert (holders[part.nodes] == 1).all()
    assert (holders > 1).any()
    assert same(cut, how.cut(data, 3))
    assert not same(cut, how.cut(data, 4))


def test_a_node_has_one_role_at_all_its_holders() -> None:
    data = blocks(1500)
    roles: dict[int, set[int]] = {}
    for part in Overlap(overlap=0.2, clients=9).cut(data, 0).parts:
        assert part.masks[0].any()
        assert not part.masks[2].any()
        for node, train in zip(part.nodes, part.masks[0], strict=True):
            roles.setdefault(int(node), set()).add(int(train))
    assert all(len(used) == 1 for used in roles.values())


def test_labels_are_skewed_on_top() -> None:
    data = real("cora")

    def most(alpha: float) -> float:
        """The mean over clients without overlap of their most frequent label's share."""
        cut = Overlap(alpha=alpha).cut(data, 0)
        labels = [np.bincount(data.y[part.nodes]) for part in cut.parts[:13]]
        return float(np.mean([counts.max() / counts.sum() for counts in labels]))

    assert most(0.5) > most(100.0) + 0.07


def test_the_matrices_of_a_tiny_cut_by_hand() -> None:
    #   0 - 1 - 2 - 3 - 4, and 0 - 2
    edges = both_ways(np.array([[0, 1, 2, 3, 0], [1, 2, 3, 4, 2]]))
    data = Dataset("path", np.zeros((6, 1), np.float32), edges, np.zeros(6, np.int64), 1)
    held = [np.array([0, 1, 2]), np.array([0, 2, 3, 4]), np.array([5])]
    nodes, links = overlaps(data, held)
    assert np.array_equal(nodes, [[0, 2 / 3, 0], [2 / 4, 0, 0], [0, 0, 0]])
    assert np.array_equal(links, [[0, 1 / 3, 0], [1 / 3, 0, 0], [0, 0, 0]])
    assert mean_overlap(nodes) == pytest.approx([1 / 3, 1 / 4, 0])


@pytest.mark.parametrize(
    ("values", "named"),
    [({"overlap": 0.4}, r"overlap = 0\.4.*at most 0\.333"), ({"public": 0.9}, "public = 0.9: with global_test = 0.2")],
)
def test_impossible_settings_are_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Overlap(**values)


def test_too_few_nodes_are_refused() -> None:
    with refusal("config.overlap", "clients = 40"):
        Overlap().cut(blocks(60), 0)
