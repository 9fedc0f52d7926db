"""normalize = "auto": columns that measure something are standardized, each client's by its own nodes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.preprocessing import StandardScaler
from sklearn.preprocessing import normalize as l1_normalized

import fedweave
from fedweave import datasets
from fedweave.apply.run_predictions import predictions
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph_arrays import dense
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.edges import scale_features
from fedweave.datasets.features import (
    ScalingNumbers,
    amounts,
    apply_scaling,
    by_holder,
    heavy_tailed,
    measurements,
    normalize,
    scaling,
)
from fedweave.datasets.notes import feature_notes
from fedweave.experiment.runs.data_form import with_typical_scaling
from fedweave.experiment.runs.files import COLUMNS as FILE
from fedweave.experiment.runs.files import read_table
from fedweave.partition import Random
from fedweave.partition.base import Part, Partition
from fedweave.partition.client_data import shares
from fedweave.partition.scaling import of_typical, typical
from tests.runs.test_forms_of_data import LEARNT, probabilities
from tests.runs.test_predictions import made

ROWS = 40


def table(rng: np.random.Generator) -> np.ndarray:
    """Columns: an indicator, a count up to 10, years, small rates, prices that are mostly 0, weights of a word."""
    seldom = rng.random(ROWS) < 0.3
    return np.stack(
        [
            rng.integers(0, 2, ROWS),
            rng.integers(0, 11, ROWS),
            rng.integers(18, 80, ROWS),
            rng.normal(0, 0.001, ROWS),
            np.where(seldom, 5e4, 0),
            np.where(seldom, rng.random(ROWS), 0),
        ],
        1,
    ).astype(np.float32)


SCALED = [2, 3, 4]


def graph(x: "np.ndarray | sp.csr_matrix") -> Dataset:
    nodes = x.shape[0]
    ends = np.stack([np.arange(nodes - 1), np.arange(1, nodes)])
    both = np.concatenate([ends, ends[::-1]], 1)
    return Dataset("path", x, both[:, np.lexsort(both[::-1])], np.arange(nodes) % 2, 2, scaling="auto")


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_columns_that_measure_are_standardized_and_others_stay(form: Any) -> None:
    x = table(np.random.default_rng(0))
    assert measurements(form(x)).tolist() == SCALED
    assert amounts(form(x)).tolist() == [*SCALED, 5]
    found = normalize(form(x), "auto", "x")
    assert sp.issparse(found) == (form is sp.csr_matrix)
    found = found.toarray() if sp.issparse(found) else found
    others = [0, 1, 5]
    np.testing.assert_array_equal(found[:, others], x[:, others])
    wide = x[:, SCALED].astype(np.float64)
    np.testing.assert_allclose(found[:, SCALED], (wide - wide.mean(0)) / wide.std(0), atol=1e-6)
    np.testing.assert_array_equal(apply_scaling(x, "auto", *scaling(x, "auto")), normalize(x, "auto", "x"))


def test_asinh_comes_before_the_scaling_of_a_heavy_tail() -> None:
    """Of amounts to 800,000 and of transfers of either sign, and not of a normal column or of small rates with a tail,
    to which asinh does nothing. Without it, half of the amounts would lie within a twentieth of a deviation."""
    draw = np.random.default_rng(0)
    amounts_of = np.append(draw.lognormal(5, 2, ROWS - 1), 8e5)
    columns = [amounts_of, amounts_of * draw.choice([-1, 1], ROWS), draw.normal(50, 9, ROWS), amounts_of * 1e-8]
    x = np.stack(columns, 1).astype(np.float32)
    assert heavy_tailed(x.astype(np.float64)).tolist() == [True, True, False, False]
    numbers, wide = scaling(x, "auto"), x.astype(np.float64)
    assert numbers.asinh.tolist() == [True, True, False, False]
    expected = np.concatenate([np.arcsinh(wide[:, :2]), wide[:, 2:]], 1)
    np.testing.assert_allclose(normalize(x, "auto", "x"), (expected - expected.mean(0)) / expected.std(0), atol=1e-5)
    np.testing.assert_array_equal(apply_scaling(x, "auto", *numbers), normalize(x, "auto", "x"))
    for how, smallest, largest in (("auto", 0.9, 1.5), ("standard", 0, 0.05)):
        lower, upper = np.quantile(normalize(x[:, :1], how, "x"), [0.25, 0.75])
        assert smallest < upper - lower < largest


def test_every_client_scales_by_its_own_edges() -> None:
    """Two clients whose amounts differ in their unit read the same; in one unit they would not. By hand: 10 and 30."""
    ends = np.array([[0, 1, 3, 4, 3], [1, 2, 4, 5, 5]])
    amounts_of = np.array([[10.5], [30.5], [1050], [3050], [3050]], np.float32)
    edges = EdgeAttributes(ends, True, features=amounts_of, columns=("amount",), time=np.array([1.0, 1, 1, 1, 9]))
    whole = replace(graph(np.ones((6, 1), np.float32)), edges=to_undirected(ends, 6), edge_attrs=edges)
    masks = np.zeros((3, 3), bool)
    parts = [Part(np.arange(3), masks), Part(np.arange(3, 6), masks)]
    auto = replace(whole, edge_attrs=scale_features(edges, "auto", "x"))
    assert np.array_equal(auto.edge_attrs.features, amounts_of)  # each client scales later
    first, second = (share.edge_attrs for share in shares(auto, [parts[0], replace(parts[1], split_times=(1.0, 2.0))]))
    assert first.features.ravel().tolist() == [-1, 1]
    assert first.scaling == ((20.5, 10.0, 0.0),)
    assert second.features.ravel().tolist() == [-1, 1, 1]  # the last, after training, counts in no scaling
    assert not first.auto
    raw = [share.edge_attrs.features for share in shares(whole, parts)]
    assert np.array_equal(raw[0], amounts_of[:2])
    typical = with_typical_scaling(auto, parts).scaling  # of 2 and 3 edges: shifts 20.5 and 2383.33
    assert typical[0][0] == pytest.approx((2 * 20.5 + 3 * 7150 / 3) / 5)


def test_edges_that_an_archive_has_scaled_stay(tmp_path: Path) -> None:
    ends = np.array([[0, 1, 3, 4, 3], [1, 2, 4, 5, 5]])
    edges = EdgeAttributes(ends, True, features=np.array([[10.5], [30.5], [1050], [3050], [3050]], np.float32))
    scaled = scale_features(edges, "standard", "x")
    assert scale_features(scaled, "auto", "x") == scaled
    data = replace(graph(np.ones((6, 1), np.float32)), edges=to_undirected(ends, 6), edge_attrs=scaled)
    again = datasets.load("npz", str(data.save(tmp_path / "a.npz")), loops="keep").edge_attrs
    assert not again.auto
    assert again.scaling == scaled.scaling
    raw = datasets.load("npz", str(replace(data, edge_attrs=edges).save(tmp_path / "b.npz")), loops="keep")
    assert raw.edge_attrs.auto


def test_a_typical_client_takes_asinh_where_most_rows_do() -> None:
    """By hand: of 5 rows, 3 with asinh; only these count. In the second column 2 of 5 do, which do not."""
    one = ScalingNumbers(np.array([4.0, 10.0]), np.array([1.0, 3.0]), np.array([True, False]))
    other = ScalingNumbers(np.array([90.0, 2.0]), np.array([50.0, 1.0]), np.array([False, True]))
    both = typical([one, other], [3, 2])
    assert both.asinh.tolist() == [True, False]
    assert both.shift.tolist() == [4, 10]
    assert both.divisor.tolist() == [1, 3]


@pytest.mark.parametrize(("how", "noted"), [("auto", False), ("none", True)])
def test_a_note_on_edges_names_their_setting(how: str, noted: bool) -> None:
    edges = EdgeAttributes(
        np.array([[0, 1], [1, 2]]),
        True,
        features=np.array([[5.5, 1], [8e5, 0]], np.float32),
        columns=("amount", "kind"),
    )
    data = replace(graph(np.ones((3, 1), np.float32)), edge_attrs=scale_features(edges, how, "x"))
    notes = [note for note in feature_notes(data) if "data.edge_normalize" in note]
    assert bool(notes) == noted
    assert not noted or "edge feature amount has numbers up to 800,000" in notes[0]


def test_a_constant_column_becomes_zero_and_an_empty_one_does_no_harm() -> None:
    x = np.full((3, 2), 70.5, np.float32)
    assert (normalize(x, "auto", "x") == 0).all()
    assert normalize(x[:0], "auto", "x").shape == (0, 2)


def test_of_some_rows_no_further_column_is_an_amount() -> None:
    x = table(np.random.default_rng(1))
    for seed in range(20):
        some = np.random.default_rng(seed).random(ROWS) < 0.2
        assert set(amounts(x[some]).tolist()) <= set(amounts(x).tolist())


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_every_client_scales_by_its_own_nodes(form: Any) -> None:
    """What another client holds changes nothing of one's own."""
    x = table(np.random.default_rng(0))
    cut = Random(clients=2).cut(graph(form(x)), 0)
    other = x.copy()
    other[cut.parts[1].nodes] *= 3
    for part, *own in zip(cut.parts, *(shares(graph(form(given)), cut.parts) for given in (x, other)), strict=True):
        expected = normalize(x[part.nodes], "auto", "x")
        held = [sp.csr_matrix(one.x).toarray() for one in own]
        np.testing.assert_array_equal(held[0], expected)
        assert np.array_equal(held[1], expected) == (part is cut.parts[0])


def test_what_is_scaled_is_not_scaled_again() -> None:
    data = by_holder(graph(table(np.random.default_rng(0))))
    assert data.scaling == "own"
    assert by_holder(data) is data
    counts = by_holder(graph(np.ones((ROWS, 2), np.float32)))
    assert counts.scaling == "none"


def test_a_typical_client_by_hand() -> None:
    """Two clients, one of twice as many nodes: the mean of shifts, and the root of the mean square."""
    x = np.array([[10.5], [12.5], [10.5], [12.5], [20.5], [28.5]], np.float32)
    masks = np.zeros((3, 4), bool)
    parts = (Part(np.arange(4), masks), Part(np.arange(4, 6), masks[:, :2]))
    shift, divisor, asinh = of_typical(graph(x), Partition(parts))
    assert not asinh.any()
    assert shift.tolist() == [(4 * 11.5 + 2 * 24.5) / 6]
    assert divisor.tolist() == [pytest.approx(np.sqrt((4 * 1 + 2 * 16) / 6))]


def folder(root: Path) -> Path:
    root.mkdir()
    x = table(np.random.default_rng(0))
    rows = [f"n{i},{i % 2},{','.join(repr(float(value)) for value in own)}" for i, own in enumerate(x)]
    (root / "nodes.csv").write_text("\n".join(["id,label,a,b,c,d,e,f", *rows]))
    (root / "edges.csv").write_text("\n".join(["source,target", *(f"n{i},n{i + 1}" for i in range(ROWS - 1))]))
    return root


def test_it_is_the_default_of_all_data_of_ones_own(tmp_path: Path) -> None:
    where = folder(tmp_path / "data")
    data = datasets.load("folder", str(where))
    saved = replace(data).save(tmp_path / "d.npz")
    assert data.scaling == datasets.load("npz", str(saved)).scaling == "auto"
    assert datasets.load("folder", str(where), normalize="none").scaling == "none"
    standard = datasets.load("folder", str(where), normalize="standard")
    assert standard.scaling == "none"
    assert datasets.load("digits").scaling == "none"


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("name", ["fedavg", "local", "centralized"])
def test_predictions_have_the_scaling_of_training(tmp_path: Path, name: str, clients: int) -> None:
    """New nodes that are the old ones get what the client's own model gave them, by its own numbers."""
    where, out = folder(tmp_path / "data"), tmp_path / "run"
    cut = {"name": "random", "clients": clients, "train": 0.5, "val": 0.0, "test": 0.5}
    settings = {"model": {"name": "mlp"}, "partition": cut}
    made(out, LEARNT if name == "fedavg" else {"name": name}, {"name": "folder", "path": str(where)}, 2, **settings)
    noted = read_table(out, FILE)
    assert [value != 1 for value in noted["divisor"].to_pylist()] == [False, False, True, True, True, False]
    old = predictions(out).to_pylist()
    for client in dict.fromkeys(row["client"] for row in old):
        new = {row["id"]: row for row in predictions(out, where, client=client).to_pylist()}
        for row in (row for row in old if row["client"] == client):
            assert new[row["id"]]["p_1"] == pytest.approx(row["p_1"], abs=1e-6)
    if clients == 1 and name != "local":
        np.testing.assert_allclose(probabilities(out, where), probabilities(out), atol=1e-6)


def test_a_run_in_python_is_that_of_the_file(tmp_path: Path) -> None:
    data = datasets.load("folder", str(folder(tmp_path / "data")))
    cut = Random(clients=2).cut(data, 0)
    algorithm = fedweave.algorithms.FedAvg(fedweave.models.GCN(hidden=4).build(data.features, 2))
    fed = fedweave.federation(data, cut, algorithm)
    *_, last = fedweave.train(algorithm, fed, rounds=2, out=tmp_path / "run")
    again = fedweave.load_run(tmp_path / "run")
    assert again.summary["metrics"]["global/accuracy"] == last.summary["global/accuracy"]
    assert len(predictions(tmp_path / "run")) == ROWS


@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (7, 5), (1000, 33)])
@pytest.mark.parametrize("kind", ["wide", "constant", "zeros"])
def test_scaling_has_the_bits_of_scikit_learn(shape: tuple[int, int], kind: str) -> None:
    rng = np.random.default_rng(0)
    columns = 10.0 ** rng.integers(-6, 7, shape[1])
    x = (rng.normal(size=shape) * columns + 10 * rng.normal(size=shape[1])).astype(np.float32)
    if kind == "constant":
        x[:, 0] = 7.3
    elif kind == "zeros":
        x[rng.random(shape) < 0.7] = 0
    if not (x == x[:1]).all():
        expected = StandardScaler().fit_transform(x.astype(np.float64)).astype(np.float32)
        np.testing.assert_array_equal(normalize(x, "standard", "x"), expected)
    for features in (x, sp.csr_matrix(x)):
        ours, theirs = normalize(features, "row", "x"), l1_normalized(features, norm="l1")
        assert (ours.dtype, type(ours)) == (theirs.dtype, type(theirs))
        np.testing.assert_array_equal(dense(ours), dense(theirs))
