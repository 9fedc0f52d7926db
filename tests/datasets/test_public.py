"""Published graphs: counts of the real files, where files are looked for, and what absence says."""

import inspect
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedweave.datasets import DATASETS, Dataset, describe, download, features, load, npz
from fedweave.datasets.check import check
from fedweave.datasets.lookup import Facts
from fedweave.datasets.public import PUBLIC
from fedweave.errors import DataError
from tests.random_graphs import replace_fields
from tests.refusals import refusal

ROOT = Path(__file__).parents[2]
DATA = (ROOT / os.environ.get("FEDWEAVE_DATA", "../shared/data")).resolve()

# name: nodes, edges, features of the file, classes, labeled, sensitive counts, split sizes; from the data's own README
COUNTS: dict[str, tuple[Any, ...]] = {
    "cora": (2708, 5278, 1433, [351, 217, 418, 818, 426, 298, 180], None, [140, 500, 1000]),
    "citeseer": (3327, 4552, 3703, [264, 590, 668, 701, 596, 508], None, [120, 500, 1000]),
    "corafull": (19793, 63421, 8710, 70, None, None),
    "pubmed": (19717, 44324, 500, [4103, 7739, 7875], None, [60, 500, 1000]),
    "amazon-computers": (13752, 245861, 767, 10, None, None),
    "coauthor-cs": (18333, 81894, 6805, 15, None, None),
    "dblp": (17716, 52867, 1639, 4, None, None),
    "flickr-attributed": (7575, 239738, 12047, 9, None, None),
    "nba": (403, 10621, 95, [154, 159], [296, 107], None),
    "german": (1000, 21742, 27, [300, 700], [690, 310], None),
    "bail": (18876, 311870, 18, [11772, 7104], [9317, 9559], None),
    "credit": (30000, 137377, 13, [6636, 23364], [27315, 2685], None),
    "amazon-photo": (7650, 119081, 745, [369, 1686, 703, 915, 882, 823, 1941, 331], None, None),
    "coauthor-physics": (34493, 247962, 8415, [5750, 5045, 17426, 2753, 3519], None, None),
    "actor": (7600, 26659, 932, [853, 1337, 1630, 1815, 1965], None, [3648, 2432, 1520]),
    "chameleon-filtered": (890, 8854, 2325, [242, 134, 209, 164, 141], None, [409, 287, 194]),
    "minesweeper": (10000, 39402, 7, [8000, 2000], None, [5000, 2500, 2500]),
    "income": (14821, 42831, 14, [11611, 3210], [10136, 4685], None),
    "squirrel-filtered": (2223, 46998, 2089, 5, None, None),
    "roman-empire": (22662, 32927, 300, 18, None, None),
    "amazon-ratings": (24492, 93050, 300, 5, None, None),
    "tolokers": (11758, 519000, 10, 2, None, None),
    "questions": (48921, 153540, 301, 2, None, None),
    "reddit": (232965, 57307946, 602, 41, None, [153431, 23831, 55703]),
}
REPEATS_SENS = {"german": 0, "bail": 0, "credit": 1, "income": 8}


def real(name: str) -> str:
    if not (DATA / name / f"{name}.npz").is_file():
        pytest.skip(f"{name}.npz is not in {DATA}; set FEDWEAVE_DATA to the folder of data sets")
    return str(DATA)


def dense(x: "np.ndarray | sp.csr_matrix") -> np.ndarray:
    return x if isinstance(x, np.ndarray) else x.toarray()


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data folder, an empty cache, no network; returns the cache."""

    def refuse(*_: Any, **__: Any) -> None:
        raise socket.gaierror("no network in this test")

    monkeypatch.delenv("FEDWEAVE_DATA", raising=False)
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tmp_path / "cache"


TINY = Facts(2, 1, 6, 2)


def tiny(name: str = "cora") -> Dataset:
    x = sp.csr_matrix(np.array([[1, 0, 0, 0, 0, 0], [0, 2, 2, 0, 0, 0]], np.float32))
    return Dataset(name=name, x=x, edges=np.array([[0, 1], [1, 0]]), y=np.array([0, 1]), classes=2)


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_the_real_files(name: str) -> None:
    nodes, edges, features, classes, sensitive, split = COUNTS[name]
    data = check(load(name, real(name)), name)
    assert (data.name, data.nodes, data.edges.shape) == (name, nodes, (2, 2 * edges))
    assert data.features == features - (name in REPEATS_SENS)
    counts = np.bincount(data.y[data.y >= 0])
    assert data.classes == len(counts) == (classes if isinstance(classes, int) else len(classes))
    assert isinstance(classes, int) or counts.tolist() == classes
    assert (None if data.sensitive is None else np.bincount(data.sensitive).tolist()) == sensitive
    assert (None if data.public is None else data.public.sum(1).tolist()) == split
    counts_of_page = f"{nodes:,} nodes, {edges:,} edges, {data.features:,} features, {data.classes} classes"
    assert describe(name).count(counts_of_page) == 1


@pytest.mark.parametrize("name", ["cora", "german", "nba"])
def test_same_file_same_bytes(name: str) -> None:
    first, again = (load(name, real(name), seed=seed) for seed in (0, 1))
    assert dense(first.x).tobytes() == dense(again.x).tobytes()
    assert (first.edges.tobytes(), first.y.tobytes()) == (again.edges.tobytes(), again.y.tobytes())


@pytest.mark.parametrize("name", ["nba", "german", "bail", "credit"])
def test_the_sensitive_attribute_is_no_feature_and_the_others_are_unchanged(name: str) -> None:
    data = load(name, real(name), normalize="none")
    x = dense(data.x)
    assert data.sensitive is not None
    assert not any(
        np.array_equal(column, data.sensitive) or np.array_equal(column, 1 - data.sensitive) for column in x.T
    )
    whole = npz.read(DATA / name / f"{name}.npz", name).x
    if name in REPEATS_SENS:
        np.testing.assert_array_equal(dense(whole)[:, REPEATS_SENS[name]], data.sensitive)
        np.testing.assert_array_equal(np.insert(x, REPEATS_SENS[name], data.sensitive, 1), dense(whole))
    else:
        np.testing.assert_array_equal(x, dense(whole))


def test_the_dropped_column_takes_its_name_along(tmp_path: Path) -> None:
    whole = npz.read(Path(real("german")) / "german/german.npz", "german")
    names = tuple(f"f{at}" for at in range(whole.features))
    npz.write(replace(whole, columns=names), tmp_path / "german.npz")
    assert load("german", str(tmp_path)).columns == names[1:]


def test_normalizations() -> None:
    x = dense(load("german", real("german"), normalize="none").x)
    scaled = dense(load("german", real("german")).x)  # "minmax" is the default
    assert (scaled.min(0) == -1).all()
    assert (scaled.max(0) == 1).all()
    np.testing.assert_allclose(scaled[:, 2], 2 * (x[:, 2] - 19) / (75 - 19) - 1, atol=1e-6)  # age, 19 to 75
    standard = dense(load("german", real("german"), normalize="standard").x)
    np.testing.assert_allclose(standard.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(standard.std(0), 1, atol=1e-5)
    for name in ("german", "citeseer"):
        plain, scaled = (load(name, real(name), normalize=how).x for how in ("none", "scale"))
        deviation = dense(plain).std(0)
        np.testing.assert_allclose(dense(scaled), dense(plain) / np.where(deviation > 0, deviation, 1), rtol=1e-4)
        assert sp.issparse(scaled) == sp.issparse(plain)
        data = load(name, real(name), normalize="row")
        sums = np.abs(dense(data.x)).sum(1)
        plain = np.abs(dense(load(name, real(name), normalize="none").x)).sum(1)
        np.testing.assert_allclose(sums, plain > 0, atol=1e-5)  # citeseer has 15 rows of zeros
        assert data.x.dtype == np.float32
        present = load(name, real(name), normalize="binary").x
        np.testing.assert_array_equal(dense(present), dense(load(name, real(name), normalize="none").x) != 0)
        assert present.dtype == np.float32
        assert sp.issparse(present) == (name == "citeseer")


def test_constant_columns_become_zero(tmp_path: Path) -> None:
    rows = "id,label,a,b\n1,0,5,0\n2,1,5,4\n"
    (tmp_path / "nodes.csv").write_text(rows)
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n")
    for how in ("minmax", "standard"):
        data = load("folder", str(tmp_path), normalize=how)
        np.testing.assert_array_equal(data.x, [[0, -1], [0, 1]])


def test_columns_of_sparse_features_are_scaled_unless_they_would_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npz.write(replace(tiny(), x=sp.csr_matrix(np.eye(2, 11, dtype=np.float32))), tmp_path / "cora.npz")
    monkeypatch.setattr(DATASETS["cora"], "facts", Facts(2, 1, 11, 2))
    for how in ("standard", "minmax"):
        expected = np.pad([[1.0, -1], [-1, 1]], ((0, 0), (0, 9)))
        np.testing.assert_array_equal(load("cora", str(tmp_path), normalize=how).x, expected)
        shift, divisor, _ = features.scaling(np.eye(2, 3, dtype=np.float32), how)
        sparse = features.scaling(sp.csr_matrix(np.eye(2, 3, dtype=np.float32)), how)
        np.testing.assert_array_equal(sparse[:2], (shift, divisor))
    monkeypatch.setattr(features, "FILLED", 21)
    with refusal("config", "2", "11"):
        load("cora", str(tmp_path), normalize="standard")
    with refusal("config.value", "'unit'"):
        load("cora", str(tmp_path), normalize="unit")


def test_lookup_order(nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(path: Path, mark: float) -> Path:
        data = tiny()
        path.parent.mkdir(parents=True, exist_ok=True)
        npz.write(Dataset("cora", data.x * np.float32(mark), data.edges, data.y, 2), path)
        return path

    given, env = tmp_path / "given", tmp_path / "env"
    monkeypatch.setenv("FEDWEAVE_DATA", str(env))
    monkeypatch.setattr(DATASETS["cora"], "facts", TINY)
    given.mkdir()
    later_first = [
        put(nowhere / "cora" / "cora.npz", 1),
        put(env / "cora.npz", 2),
        put(env / "cora" / "cora.npz", 3),
        put(given / "cora.npz", 4),
        put(given / "cora" / "cora.npz", 5),
    ]
    for mark, path in reversed(list(enumerate(later_first, 1))):
        assert dense(load("cora", str(given) if given in path.parents else None).x)[0, 0] == mark
        path.unlink()
    single = put(tmp_path / "mine.npz", 6)
    assert dense(load("cora", str(single)).x)[0, 0] == 6
    with refusal("data.no-path", "[data] path"):
        load("cora", str(tmp_path / "typo"))


@pytest.mark.parametrize("name", [kind.name for kind in PUBLIC])
def test_absent_and_offline_names_every_place_quickly(
    name: str, nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = tmp_path / "env"
    monkeypatch.setenv("FEDWEAVE_DATA", str(env))
    start = time.monotonic()
    places = (f"{env / name / name}.npz", f"{env / name}.npz", f"{nowhere / name / name}.npz")
    with refusal("data.nowhere", *places, f"{name}.npz", "FEDWEAVE_DATA") as error:
        load(name)
    assert time.monotonic() - start < 5
    message = str(error.value)
    assert ("could not be reached" in message) == (name in download.SOURCES)
    assert ("no public download" in message) == (name not in download.SOURCES)
    assert not list(nowhere.rglob("*.npz"))


def fake_source(data: Dataset, raw: Path) -> Any:
    """What PyG's in-memory dataset would hold for `data`: one direction of each edge plus a loop, features set to 1."""
    upper = data.edges[:, data.edges[0] < data.edges[1]]
    index = np.concatenate([upper[:, ::-1], [[0], [0]]], 1)
    x = sp.csr_matrix(data.x)
    values = np.minimum(x.data, 1) if raw.suffix == ".npz" else x.data
    held: dict[str, torch.Tensor] = {
        "x": torch.sparse_csr_tensor(x.indptr, x.indices, values, x.shape),
        "edge_index": torch.tensor(index.copy()),
        "y": torch.tensor(data.y),
    }
    if data.name == "cora":
        held["x"] = held["x"].to_dense()
    if data.public is not None:
        held |= {f"{k}_mask": torch.tensor(m) for k, m in zip(("train", "val", "test"), data.public, strict=True)}

    class Data(SimpleNamespace):
        num_nodes = data.nodes
        __contains__ = held.__contains__
        __getitem__ = staticmethod(held.__getitem__)  # type: ignore[assignment]

    class Source(list):
        raw_paths = (str(raw),)

    return Source([Data(**held)])


@pytest.mark.often("cora")
@pytest.mark.parametrize("name", ["cora", "coauthor-cs", "flickr-attributed"])
def test_a_download_becomes_the_very_same_data(
    name: str, nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = load(name, real(name))
    raw = tmp_path / ("raw.npz" if name == "coauthor-cs" else "raw")
    if name == "coauthor-cs":  # counts, which PyG overwrites
        x = sp.csr_matrix(wanted.x)
        np.savez(raw, attr_data=x.data, attr_indices=x.indices, attr_indptr=x.indptr, attr_shape=x.shape)
    monkeypatch.setattr(download, "check_host", lambda host: None)
    monkeypatch.setattr(download, "pyg_class", lambda kind: lambda root, own_name: fake_source(wanted, raw))
    load(name)
    monkeypatch.setattr(download, "pyg_class", lambda kind: pytest.fail("the cached file was not used"))
    got = load(name)
    for part in ("data", "indices", "indptr"):
        assert getattr(got.x, part).tobytes() == getattr(wanted.x, part).tobytes()
    assert got.edges.tobytes() == wanted.edges.tobytes()
    assert got.y.tobytes() == wanted.y.tobytes()
    assert (got.public is None) == (wanted.public is None)
    assert got.public is None or wanted.public is None or got.public.tobytes() == wanted.public.tobytes()
    assert [path.name for path in (nowhere / name).iterdir()] == [f"{name}.npz"]


@pytest.mark.parametrize("name", download.SOURCES)
def test_sources_name_what_pyg_offers(name: str) -> None:
    kind, own_name, _ = download.SOURCES[name]
    assert list(inspect.signature(download.pyg_class(kind)).parameters)[:2] == ["root", "name"]
    offered = download.pyg_class(kind).__doc__.lower()
    assert own_name.lower() in offered


def test_a_download_of_something_else_is_refused_and_not_kept(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "check_host", lambda host: None)
    monkeypatch.setattr(
        download, "pyg_class", lambda kind: lambda root, own_name: fake_source(tiny(), Path("ind.cora.x"))
    )
    with refusal("data.nowhere", "2", "1", "6", "2", "2708", "5278", "1433", "7"):
        load("cora")
    assert list((nowhere / "cora").iterdir()) == []


def test_reddit_is_read_like_the_others_but_no_thinned_version_of_it(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npz.write(replace(tiny("reddit"), public=np.array([[1, 0], [0, 0], [0, 1]], bool)), tmp_path / "reddit.npz")
    with refusal("data", "reddit.npz", "2", "1", "6", "2", "232965", "57307946", "602", "41"):
        load("reddit", str(tmp_path))
    monkeypatch.setattr(DATASETS["reddit"], "facts", TINY)
    data = load("reddit", str(tmp_path))
    assert (data.name, data.edges.tolist(), data.y.tolist()) == ("reddit", [[0, 1], [1, 0]], [0, 1])
    assert data.public is not None
    assert data.public.sum(1).tolist() == [1, 0, 1]
    np.testing.assert_array_equal(dense(data.x), [[1, 0, 0, 0, 0, 0], [0, 2, 2, 0, 0, 0]])
    (tmp_path / "reddit.npz").unlink()
    with refusal("data.nowhere", "data-public.md", "reddit.npz"):
        load("reddit")


def test_another_column_order_of_the_sensitive_attribute_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DATASETS["german"], "facts", replace_fields(TINY, sens_column=0))
    data = tiny("german")
    npz.write(Dataset("german", data.x, data.edges, data.y, 2, sensitive=np.array([1, 1])), tmp_path / "german.npz")
    with refusal("data.sens-repeated", "german.npz", "column 0"):
        load("german", str(tmp_path))
    npz.write(data, tmp_path / "german.npz")
    with refusal("data", "german.npz"):
        load("german", str(tmp_path))


GRAPH = {"nodes.csv": "id,label,f\na,0,1\nb,1,2\n", "edges.csv": "source,target\na,b\n"}


def lay(root: Path, what: str) -> Path:
    """A path that does not hold Cora."""
    root.mkdir()
    if what == "tables":
        for name, text in GRAPH.items():
            (root / name).write_text(text)
    elif what == "parties":
        for party in ("bank", "clinic"):
            lay(root / party, "tables")
    elif what == "another set":
        (root / "german").mkdir()
        npz.write(tiny(), root / "german" / "german.npz")
    elif what == "archive":
        npz.write(tiny(), root / "german.npz")
    elif what == "others":
        for i in range(7):
            (root / f"{i}.txt").touch()
    elif what == "file":
        (root / "mine.csv").write_text("a,b")
        return root / "mine.csv"
    return root


@pytest.mark.parametrize(
    ("what", "found", "names"),
    [
        ("empty", "is an empty folder", ""),
        ("tables", "is a folder with nodes.csv and edges.csv", "'folder'"),
        ("parties", "is a folder of the parties bank, clinic", "'parties'"),
        ("another set", "holds german/", "'german'"),
        ("archive", "holds german.npz", "'german'"),
        ("others", "holds 0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 2 more", ""),
        ("file", "is a file of kind '.csv'", ""),
    ],
)
@pytest.mark.parametrize("name", ["cora", "suzhou", "digits"])
def test_a_path_without_the_named_data_is_refused_though_it_is_elsewhere(
    what: str, found: str, names: str, name: str, nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (nowhere, tmp_path / "env"):
        folder.mkdir()
        npz.write(tiny(), folder / "cora.npz")
    monkeypatch.setenv("FEDWEAVE_DATA", str(tmp_path / "env"))
    root = lay(tmp_path / "mine", what)
    with refusal("data.kind", "[data] path", name, f"{root} {found}") as error:
        load(name, str(root))
    assert (f"name = {names}" if names else "") in str(error.value)
    assert not list(nowhere.rglob("*/*.npz")), "nothing was downloaded"


@pytest.mark.parametrize("place", ["cora/cora.npz", "cora.npz", "mine.npz"])
def test_another_published_graph_under_the_name_is_refused(
    place: str, nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine" / "cora").mkdir(parents=True)
    path = tmp_path / "mine" / place
    npz.write(tiny(), path)
    root = path if place == "mine.npz" else tmp_path / "mine"
    own = r'(cora|mine)\.npz: \(nodes, features, classes\) are \(2, 6, 2\), published are .* with \[data\] name = "npz"'
    with pytest.raises(DataError, match=own):
        load("cora", str(root))
    monkeypatch.setattr(DATASETS["dblp"], "facts", TINY)
    assert load("dblp", str(path)).nodes == 2
    with refusal("data", "2", "1", "'dblp'"):
        load("cora", str(root))


def test_of_several_published_splits_the_first_is_taken(tmp_path: Path) -> None:
    """Platonov et al. publish ten, in the columns of the masks."""
    from torch_geometric.data import Data

    masks = {
        f"{name}_mask": torch.eye(3, dtype=torch.bool)[at].flip(0)[:, None].expand(3, 10).clone()
        for at, name in enumerate(("train", "val", "test"))
    }
    for mask in masks.values():
        mask[:, 1:] = False
    data = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1, 0]), **masks)

    class Source:
        raw_paths = (str(tmp_path / "x.txt"),)

        def __getitem__(self, at: int) -> Data:
            return data

    found = download.convert(Source(), "tolokers").public
    assert found is not None
    assert found.tolist() == np.eye(3, dtype=bool)[:, ::-1].tolist()
