"""The same numbers on a GPU, where there is one: `make test-gpu`. Everything here but the device is tested without one,
on a stand-in (`tests/stand_in.py`)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.apply.run_predictions import predictions
from fedweave.contract.subject import Subject, distance, everything
from fedweave.engines.simulation import Simulation
from fedweave.experiment.rounds import train
from fedweave.learn.optimizers import Adam, Sgd
from fedweave.ops.captures import CudaGraphs
from fedweave.ops.csr import weighted_scatter
from fedweave.ops.hashing import bits
from fedweave.ops.linear import gram, product
from tests.contract.federations import on_device
from tests.runs.test_on_a_device import PARTS, document, on

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch can use no GPU here (docs/scale.md)")
GPU, ROUNDS = torch.device("cuda", 0), 8  # as written, recorded, captured, and captured as a whole
NEAR = 1e-9  # of double precision; orders of summation differ


@pytest.fixture
def draw() -> Any:
    return lambda *shape: torch.from_numpy(np.random.default_rng(0).normal(size=shape))


def test_random_words_are_the_hosts() -> None:
    key = torch.tensor(7)
    assert bits(key.to(GPU), 1000).cpu().equal(bits(key, 1000))


@pytest.mark.parametrize("kernel", [product, gram])
def test_products_are_the_hosts(kernel: Any, draw: Any) -> None:
    a, b = draw(3, 40, 8), draw(3, 8, 5) if kernel is product else draw(3, 40, 5)
    assert kernel(a.to(GPU), b.to(GPU)).cpu().allclose(kernel(a, b), atol=NEAR)


def test_sums_of_picked_rows_are_the_hosts(draw: Any) -> None:
    dense, columns, values = draw(6, 4), torch.arange(12).reshape(6, 2) % 5, draw(6, 2)
    expected = weighted_scatter(dense, columns, values, 5)
    assert weighted_scatter(dense.to(GPU), columns.to(GPU), values.to(GPU), 5).cpu().allclose(expected, atol=NEAR)


@pytest.mark.parametrize("optimizer", [Adam(), Sgd(), Sgd(momentum=0.9)])
def test_optimizers_take_the_hosts_steps(optimizer: Any, draw: Any) -> None:
    w, slope = {"a": draw(4, 3)}, {"a": draw(4, 3)}
    expected, _ = optimizer.update(w, slope, optimizer.init(w))
    there, slope = ({"a": tree["a"].to(GPU)} for tree in (w, slope))
    found, state = optimizer.update(there, slope, optimizer.init(there))
    assert found["a"].cpu().allclose(expected["a"], atol=NEAR)
    assert all(leaf.device == GPU for leaf in state.values() if isinstance(leaf, torch.Tensor))


def test_captured_kernels_run_again_on_what_their_inputs_hold() -> None:
    x = torch.ones(3, device=GPU)
    found = torch.zeros(3, device=GPU)
    launch = CudaGraphs(GPU).capture(lambda: found.copy_((2 * x).cumsum(0)))
    for number in (1.0, 5.0):
        x.fill_(number)
        launch()
        assert found.tolist() == [2 * number, 4 * number, 6 * number]


@pytest.mark.parametrize("record", ["never", "always"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_gives_the_hosts_numbers(name: str, record: str) -> None:
    subject = Subject(ALGORITHMS[name])
    there = on_device(subject, GPU, mode="vmap", record=record)
    here = subject.federation(Simulation, torch.float64, mode="loop")
    (*_, last), (*_, specified) = (train(subject.build(), own, ROUNDS, 1) for own in (there, here))
    assert distance(everything(last, there), everything(specified, here)) < NEAR


@pytest.mark.parametrize("name", ["fedavg", "f2gnn", "fairgfl", "fedego", "glasu", "fairgraphfl"])
def test_runs_are_saved_resumed_and_used(name: str, tmp_path: Path) -> None:
    wanted = document(tmp_path, name)
    expected = on("cpu", tmp_path, wanted)
    on("cuda", tmp_path, wanted | {"rounds": 1})
    found = on("cuda", tmp_path, wanted, resume=True)
    assert found["devices"][0].startswith("cuda:0")
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=NEAR)
    assert predictions(tmp_path / "run-cuda").num_rows == predictions(tmp_path / "run-cpu").num_rows


@pytest.mark.parametrize("settings", PARTS.values(), ids=PARTS)
def test_parts_give_the_hosts_numbers(settings: dict[str, Any], tmp_path: Path) -> None:
    here, there = (on(device, tmp_path, document(tmp_path, "fedavg", **settings)) for device in ("cpu", "cuda"))
    assert there["metrics"] == pytest.approx(here["metrics"], abs=NEAR)
    assert there["bytes_up"] == here["bytes_up"]
