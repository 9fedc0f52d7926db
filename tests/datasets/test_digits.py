import hashlib

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

from fedweave.datasets import load
from fedweave.datasets.check import check
from fedweave.datasets.synthetic import nearest_neighbors

EDGES = "6ee48920e7ec45ace976950197fe95b4f3258c03896f33e91e5ff58c61c31849"


def test_digits_are_scikit_learns_images_and_labels() -> None:
    data = check(load("digits"), "digits")
    pixels, y = load_digits(return_X_y=True)
    assert (data.nodes, data.features, data.classes) == (1797, 64, 10)
    np.testing.assert_array_equal(data.x * np.float32(16), pixels)
    np.testing.assert_array_equal(data.y, y)


@pytest.mark.parametrize("neighbors", [1, 8])
def test_an_edge_is_a_nearest_neighbor_in_one_direction(neighbors: int) -> None:
    edges = load("digits", neighbors=neighbors).edges
    pixels = load_digits().data
    distance = cdist(pixels, pixels)
    np.fill_diagonal(distance, np.inf)
    reach = np.sort(distance, 1)[:, neighbors - 1]  # distance to the k-th nearest; ties may take either
    source, target = edges
    assert (distance[source, target] <= np.maximum(reach[source], reach[target])).all()
    assert (np.bincount(source, minlength=1797) >= neighbors).all()
    closer = np.argwhere(distance < reach[:, None])  # strictly nearer than the k-th: joined whatever the ties
    assert {tuple(pair) for pair in closer.tolist()} <= {tuple(pair) for pair in edges.T.tolist()}


def test_equally_distant_images_are_taken_in_order() -> None:
    """Image 0 is as far from 1 as from 2, image 3 as far from 1 as from 2; so no order of summation decides."""
    pixels = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], float)
    source, target = nearest_neighbors(pixels, 1)
    assert (source.tolist(), target.tolist()) == ([0, 1, 2, 3], [1, 0, 0, 1])
    source, target = nearest_neighbors(pixels, 2)
    assert sorted(zip(source.tolist(), target.tolist(), strict=True))[2:6] == [(1, 0), (1, 3), (2, 0), (2, 3)]
    assert load("digits").edges.shape[1] // 2 == 9929


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_graph_does_not_depend_on_threads(threads: int) -> None:
    """Rounding in a product of floats differs with the number of threads; digits ties at such differences."""
    with threadpool_limits(threads):
        found = load("digits")
    assert hashlib.sha256(found.edges.tobytes()).hexdigest() == EDGES


def test_same_bytes_whatever_the_seed() -> None:
    first, again = load("digits", seed=0), load("digits", seed=1)
    assert np.asarray(first.x).tobytes() == np.asarray(again.x).tobytes()
    assert first.edges.tobytes() == again.edges.tobytes()
