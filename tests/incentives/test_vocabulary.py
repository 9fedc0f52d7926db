"""Which motifs an agent keeps, worked by hand; and motifs kept on disk."""

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedweave.algorithms.fairgraphfl import motifs as motif_cache
from fedweave.algorithms.fairgraphfl.motifs import Motif, Motifs, extract, extract_once
from fedweave.algorithms.fairgraphfl.vocabulary import tf_idf, top_motifs
from fedweave.incentives.agent_values import diversity
from tests.refusals import refusal


def counts(*rows: list[int]) -> sp.csr_array:
    return sp.csr_array(np.array(rows, np.int64))


def test_tf_idf_by_hand() -> None:
    scores = tf_idf(counts([2, 0, 1, 0], [4, 0, 0, 0], [0, 5, 1, 0]))
    expected = [3 * (math.log(4 / 3) + 1), 5 * (math.log(4 / 2) + 1), 1 * (math.log(4 / 3) + 1), 0]
    np.testing.assert_allclose(scores, expected, rtol=1e-15)


def test_a_motif_in_every_graph_scores_its_mean_count() -> None:
    np.testing.assert_allclose(tf_idf(counts([1, 3], [2, 3])), [1.5, 3])


def test_the_vocabulary_drops_the_lowest_tenth_of_what_is_there() -> None:
    row = np.array([3, 0, 1, 5, 4, 2, 9, 8, 7, 6, 11, 10])  # 11 motifs: floor(9.9) = 9 stay
    assert top_motifs(counts(row.tolist())).tolist() == [0, 3, 4, 6, 7, 8, 9, 10, 11]
    assert top_motifs(counts(row.tolist()), keep=1).tolist() == [0, *range(2, 12)]


def test_of_equal_scores_the_lower_column_stays() -> None:
    assert top_motifs(counts([1] * 10)).tolist() == list(range(9))


@pytest.mark.parametrize(
    ("values", "keep", "size"),
    [
        (counts([1] * 100), 0.29, 29),  # as written: 0.29 * 100 is 28.999…96 in floating point
        (sp.csr_array((np.array([1, 0]), np.array([0, 1]), np.array([0, 2])), shape=(1, 2)), 1, 1),  # a stored zero
        (sp.csr_array((0, 3), dtype=np.int64), 0.9, 0),  # no graphs
        (counts([0, 0]), 0.9, 0),
    ],
)
def test_how_many_motifs_stay(values: sp.csr_array, keep: float, size: int) -> None:
    assert top_motifs(values, keep).tolist() == list(range(size))


def test_diversity_by_hand() -> None:
    assert diversity(torch.tensor([[0, 1, 4], [1, -1, -1], [-1, -1, -1]])).tolist() == [1.0, 1 / 3, 0.0]
    assert diversity(torch.full((1, 0), -1)).tolist() == [0.0]


def test_wrong_arguments_are_refused() -> None:
    for keep in (0, -0.1, 1.1, float("nan")):
        with refusal("user.keep"):
            top_motifs(counts([1]), keep=keep)


EDGES, GRAPH_OF = np.array([[0, 1, 2, 2], [1, 2, 0, 3]]), np.zeros(4, np.int64)
LABELS, EDGE_LABELS = np.array([5, 5, 5, -3]), np.array([0, 0, 0, 9])


def same(one: Motifs, other: Motifs) -> bool:
    return one.keys == other.keys and np.array_equal(one.counts.toarray(), other.counts.toarray())


def test_motifs_are_extracted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new" / "motifs"
    first = extract_once(EDGES, GRAPH_OF, LABELS, EDGE_LABELS, folder=folder)
    assert same(first, extract(EDGES, GRAPH_OF, LABELS, EDGE_LABELS))
    assert first.keys == (Motif((-3, 5), 9), Motif((5, 5, 5)))
    monkeypatch.delattr(motif_cache, "extract")
    again = extract_once(EDGES, GRAPH_OF, LABELS, EDGE_LABELS, folder=folder)
    assert same(first, again)
    assert again.counts.dtype == np.int64
    assert [path.suffix for path in folder.iterdir()] == [".npz"]  # nothing half-written stays


def test_without_a_folder_it_is_beside_the_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path))
    extract_once(EDGES, GRAPH_OF)
    assert len(list((tmp_path / "motifs").iterdir())) == 1


def test_other_graphs_labels_or_limits_are_other_motifs(tmp_path: Path) -> None:
    variants = [
        (EDGES, GRAPH_OF, LABELS, EDGE_LABELS, 7),
        (EDGES, GRAPH_OF, LABELS, None, 7),
        (EDGES, GRAPH_OF, None, LABELS, 7),
        (EDGES, GRAPH_OF, LABELS, EDGE_LABELS, 6),
        (EDGES[:, :3], GRAPH_OF, LABELS, EDGE_LABELS[:3], 7),
        (EDGES, GRAPH_OF, LABELS + 1, EDGE_LABELS, 7),
    ]
    for variant in variants:
        extract_once(*variant, folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == len(variants)
    extract_once(np.asfortranarray(EDGES), GRAPH_OF.astype(np.int32), LABELS, EDGE_LABELS, 7, folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == len(variants)


def test_no_motifs_at_all_are_kept_too(tmp_path: Path) -> None:
    for _ in range(2):
        nothing = extract_once(np.empty((2, 0), np.int64), np.zeros(2, np.int64), folder=tmp_path)
        assert (nothing.keys, nothing.counts.shape) == ((), (1, 0))


@pytest.mark.parametrize("size", [0, 100, 400])
def test_a_damaged_file_is_named(tmp_path: Path, size: int) -> None:
    extract_once(EDGES, GRAPH_OF, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:size])
    with refusal("data.damaged", path.name):
        extract_once(EDGES, GRAPH_OF, folder=tmp_path)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refusal("data.unwritable", "FEDWEAVE_CACHE"):
        extract_once(EDGES, GRAPH_OF, folder=tmp_path / "file" / "motifs")
