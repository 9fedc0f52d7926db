import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits

from fedweave.datasets import load
from fedweave.datasets.check import check
from fedweave.errors import ConfigError


def test_digits_are_scikit_learns_images_and_labels() -> None:
    data = check(load("digits"), "digits")
    pixels, y = load_digits(return_X_y=True)
    assert (data.nodes, data.features, data.classes) == (1797, 64, 10)
    np.testing.assert_array_equal(data.x * np.float32(16), pixels)
    np.testing.assert_array_equal(data.y, y)


@pytest.mark.parametrize("neighbours", [1, 8])
def test_an_edge_is_a_nearest_neighbour_in_one_direction(neighbours: int) -> None:
    edges = load("digits", neighbours=neighbours).edges
    pixels = load_digits().data
    distance = cdist(pixels, pixels)
    np.fill_diagonal(distance, np.inf)
    reach = np.sort(distance, 1)[:, neighbours - 1]  # distance to the k-th nearest; ties may take either
    source, target = edges
    assert (distance[source, target] <= np.maximum(reach[source], reach[target])).all()
    assert (np.bincount(source, minlength=1797) >= neighbours).all()
    closer = np.argwhere(distance < reach[:, None])  # strictly nearer than the k-th: joined whatever the ties
    assert {tuple(pair) for pair in closer.tolist()} <= {tuple(pair) for pair in edges.T.tolist()}


def test_same_bytes_whatever_the_seed() -> None:
    first, again = load("digits", seed=0), load("digits", seed=1)
    assert np.asarray(first.x).tobytes() == np.asarray(again.x).tobytes()
    assert first.edges.tobytes() == again.edges.tobytes()


@pytest.mark.parametrize("neighbours", [0, 1797])
def test_impossible_neighbours_are_refused(neighbours: int) -> None:
    with pytest.raises(ConfigError, match=rf"neighbours = {neighbours} is not in 1\.\.1796"):
        load("digits", neighbours=neighbours)
