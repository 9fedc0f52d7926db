"""Published collections of small graphs: counts of the real files, where they are looked for, and the user's own."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedweave.datasets import DATASETS, describe, download, load
from fedweave.datasets.lookup import Facts, tu_names
from fedweave.datasets.tu import SMALL_GRAPHS
from fedweave.errors import DataError
from tests.datasets.test_public import nowhere  # noqa: F401 (a fixture)
from tests.datasets.test_tu import folder
from tests.refusals import refusal

# graphs, nodes, edges, features, graphs of each class, the largest degree; from the data's own README
COUNTS: dict[str, tuple[Any, ...]] = {
    "proteins": (1113, 43471, 81044, 3, [663, 450], 25),
    "dd": (1178, 334925, 843046, 89, [691, 487], 19),
    "imdb-binary": (1000, 19773, 96531, 136, [500, 500], 135),
    "imdb-multi": (1500, 19502, 98903, 89, [500, 500, 500], 88),
    "nci1": (4110, 122747, 132753, 37, [2053, 2057], 4),
    "mutag": (188, 3371, 3721, 7, [63, 125], 4),
    "bzr": (405, 14479, 15535, 53, [319, 86], 4),
    "aids": (2000, 31385, 32390, 38, [400, 1600], 6),
    "ptc-mr": (344, 4915, 5054, 18, [192, 152], 4),
}


def real(name: str, data_root: Path) -> str:
    if not tu_names(data_root / name):
        pytest.skip(f"{name} is not in {data_root}; set FEDWEAVE_DATA to the folder of data sets")
    return str(data_root)


@pytest.mark.often("proteins", "imdb-binary")
@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_the_real_files(name: str, data_root: Path) -> None:
    graphs, nodes, edges, features, classes, degree = COUNTS[name]
    data = load(name, real(name, data_root))
    assert (data.name, data.examples, data.nodes, data.edges.shape[1]) == (name, graphs, nodes, 2 * edges)
    assert (data.features, np.bincount(data.y).tolist()) == (features, classes)
    assert np.bincount(data.edges[0]).max() == degree
    assert (np.asarray(data.x.sum(1)) == 1).all()  # one-hot
    assert (
        f"{graphs:,} graphs, {nodes:,} nodes, {edges:,} edges, {features} features, {len(classes)} classes"
        in describe(name)
    )
    assert load(name, str(data_root / name)).y.tobytes() == data.y.tobytes()


@pytest.mark.slow
def test_82_of_the_89_labels_of_dd_occur(data_root: Path) -> None:
    data = load("dd", real("dd", data_root))
    assert sp.issparse(data.x)
    assert len(np.unique(data.node_labels)) == np.count_nonzero(np.asarray(data.x.sum(0))) == 82


def test_attributes_come_after_the_labels(data_root: Path) -> None:
    plain, wide = (load("proteins", real("proteins", data_root), attributes=more) for more in (False, True))
    assert wide.features == 4
    np.testing.assert_array_equal(np.asarray(wide.x)[:, :3], plain.x)
    np.testing.assert_array_equal(np.asarray(wide.x)[:3, 3], [23, 10, 25])
    scaled = load("proteins", str(data_root), attributes=True, normalize="standard")
    np.testing.assert_allclose(np.asarray(scaled.x).mean(0), 0, atol=1e-5)


def test_a_users_own_collection(tmp_path: Path) -> None:
    data = load("tu", str(folder(tmp_path)))
    assert (data.name, data.examples) == ("DS", 2)
    with refusal("config.missing", "DS_A.txt", "[data] path"):
        load("tu")
    with refusal("data.other-layout", "DS_A.txt", "[data] name"):
        load("folder", str(tmp_path))
    shutil.copy(tmp_path / "DS_A.txt", tmp_path / "ES_A.txt")
    with refusal("data", "2"):
        load("tu", str(tmp_path))
    (tmp_path / "empty").mkdir()
    with refusal("data", "_A.txt"):
        load("tu", str(tmp_path / "empty"))


def test_labels_and_attributes_are_standardized_though_most_are_0(tmp_path: Path) -> None:
    """As of COX2: 35 kinds of atoms and three coordinates, of which 10 % are not 0."""
    from sklearn.preprocessing import StandardScaler

    rng, n = np.random.default_rng(0), 400
    kinds, places = rng.integers(0, 35, n), rng.normal(size=(n, 3)).round(4)
    rows = {"A": "1, 2\n2, 1\n", "graph_indicator": "".join(f"{1 + node // 4}\n" for node in range(n))}
    rows |= {"graph_labels": "1\n-1\n" * (n // 8), "node_labels": "".join(f"{kind}\n" for kind in kinds)}
    rows["node_attributes"] = "".join(f"{x}, {y}, {z}\n" for x, y, z in places)
    path = str(folder(tmp_path, without=("edge_labels",), **rows))
    plain = load("tu", path, attributes=True)
    assert isinstance(plain.x, sp.csr_matrix)
    wide = np.hstack([np.eye(35)[kinds], places.astype(np.float32)])
    np.testing.assert_array_equal(plain.x.toarray(), wide)
    scaled = load("tu", path, attributes=True, normalize="standard").x
    np.testing.assert_allclose(scaled, StandardScaler().fit_transform(wide), atol=1e-6)


def test_another_collection_is_not_taken_for_the_named_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_root: Path
) -> None:
    """A path that holds other data is refused even where $FEDWEAVE_DATA has the named one."""
    monkeypatch.setenv("FEDWEAVE_DATA", real("proteins", data_root))
    wrong = r"proteins is not at .*; .* is a folder with DS_A\.txt\. Set name = 'tu' to use that"
    with pytest.raises(DataError, match=wrong):
        load("proteins", str(folder(tmp_path)))
    for path in tmp_path.glob("DS_*"):
        path.rename(path.with_name(path.name.replace("DS", "PROTEINS")))
    with refusal("data", "2", "5", "3", "4", "2", "1113", "43471", "81044", "3", "2"):
        load("proteins", str(tmp_path))


def test_a_download_is_kept_as_its_text_files(nowhere: Path, tmp_path: Path, monkeypatch: Any) -> None:  # noqa: F811
    def source(root: str, own_name: str) -> SimpleNamespace:
        raw = Path(root, own_name, "raw")
        raw.mkdir(parents=True)
        for path in folder(tmp_path).glob("DS_*"):
            shutil.copy(path, raw / path.name.replace("DS", own_name))
        return SimpleNamespace(raw_dir=str(raw))

    monkeypatch.setattr(download, "check_host", lambda host: None)
    monkeypatch.setattr(download, "pyg_class", lambda kind: source)
    with refusal("data.nowhere", "2", "5", "3", "4", "2", "1113"):
        load("proteins")
    assert list(nowhere.iterdir()) == []
    monkeypatch.setattr(DATASETS["proteins"], "facts", Facts(5, 3, 4, 2, graphs=2))
    first = load("proteins")
    monkeypatch.setattr(download, "pyg_class", lambda kind: pytest.fail("the cached files were not used"))
    assert load("proteins").edges.tobytes() == first.edges.tobytes()
    assert [path.name for path in nowhere.iterdir()] == ["proteins"]


def test_pyg_offers_the_collections_by_these_names() -> None:
    assert all(DATASETS[kind.name] is kind for kind in SMALL_GRAPHS)
    offered = download.pyg_class("TUDataset")
    assert offered.url.startswith(download.TU_HOST)
