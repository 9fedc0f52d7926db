"""The same numbers on a GPU, where there is one: `make test-gpu`."""

from typing import Any

import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.contract import federations
from fedweave.contract.subject import Subject, distance, everything
from fedweave.core.federation import Placement
from fedweave.engines.simulation import Simulation
from fedweave.ops.attention import attend
from fedweave.ops.capture import CudaGraphs
from fedweave.ops.csr import gathered
from fedweave.ops.linear import gram, product
from fedweave.rounds import train
from fedweave.runs.run import run
from fedweave.training import Silent
from tests.runs.test_on_a_device import document, on

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU that PyTorch can use here; see docs/scale.md"
)
GPU = torch.device("cuda", 0)
ROUNDS = 3
assert attend and run and Silent and document and on
