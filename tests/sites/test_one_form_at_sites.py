"""What a site trains on is what `sites predict` and `score` make of the same tables."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.edge_attributes import ROWS
from fedweave.core.graph import Graph
from fedweave.core.graph_arrays import dense, graph_arrays
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.runs.new_data import load_new_data
from fedweave.sites.flare.holdings import hold
from fedweave.sites.flare.predicted import before_of
from fedweave.sites.flare.sitefile import SITE_FILE, read_site_file, write_site_file
from tests.one_form import SETTINGS, combinations, member, settings
from tests.sites.projects import experiment


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """{whether its transfers lead to nodes elsewhere: a site's folder, with tables of training and others}."""
    root = tmp_path_factory.mktemp("sites")
    for outside in (False, True):
        member(root / str(outside) / "data", "a", 1.0, outside)
        member(root / str(outside) / "new", "a", 2.0, outside, seed=1)
    return {outside: root / str(outside) for outside in (False, True)}


def numbers(graph: Graph) -> dict[str, np.ndarray]:
    """What a model reads of a graph."""
    arrays = graph_arrays(graph)
    held = {"x": dense(arrays.x), "edges": arrays.edges}
    if arrays.edge_attrs is not None:
        held |= {name: array for name, array in arrays.edge_attrs.arrays().items() if name in ROWS}
    return {name: np.asarray(array, np.float64) for name, array in held.items()}


def check_same(graph: Graph, expected: Graph) -> None:
    """A model reads the same numbers of both."""
    ours, theirs = numbers(graph), numbers(expected)
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, atol=1e-6, rtol=1e-6, err_msg=name)


def asked(data: dict[str, Any]) -> Config:
    """The job of the server."""
    model = {"name": "gine" if data.get("edge_features") else "sage", "hidden": 4}
    return resolve({**experiment(rounds=1).plain(), "model": model})


MORE = {
    "exchange": {"external": "exchange", "edge_normalize": "standard", "normalize": "standard"},
    "exchange-row": {"external": "exchange", "edge_normalize": "row"},
    "timed": {
        "task": "edges",
        "edge_time": "day",
        "train_until": 19850,
        "val_until": 19900,
        "edge_normalize": "standard",
    },
}


@pytest.mark.parametrize("given", [pytest.param(given, id=name) for name, given in (*combinations(), *MORE.items())])
def test_a_site_predicts_and_scores_on_the_numbers_that_it_trained_on(
    roots: dict[bool, Path], given: dict[str, Any]
) -> None:
    """And other tables on the same numbers in both ways, scaled as the training tables were."""
    about = settings(given)
    about["categories"] = {column: SETTINGS["categories"][column] for column in about["categories"]}
    if about.get("target_normalize") == "all":  # sites agree on lists, and have units of their own
        about["target_normalize"] = "own"
    folder, config = roots[about["external"] != "refuse"], asked(about)
    write_site_file(folder / SITE_FILE, {"path": "data", **about})
    site, _ = read_site_file(folder / SITE_FILE)
    training, before = hold(site, folder, config), before_of(folder)
    check_same(hold(site, folder, config, training.form).graph, training.graph)
    for path in ("data", "new"):
        alone = load_new_data(before, folder / path).data
        graph = hold(replace(site, path=path), folder, config, training.form).graph
        check_same(graph_of(alone, alone.features), graph)
    assert np.abs(numbers(graph)["x"] - numbers(training.graph)["x"]).max() > 0.01
