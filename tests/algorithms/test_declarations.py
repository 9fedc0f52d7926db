"""What the installed algorithms declare: a policy may name all of it, and nothing else."""

import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.declarations import BELOW_SCORES, all_fields, all_steps
from fedweave.algorithms.scoring import PERSONAL_SCORES
from fedweave.core.federation import step_info, step_name
from fedweave.metrics import numbers
from fedweave.models import MODELS


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedpub", "fedgcn", "dfedgnn", "local"])
def test_every_step_that_an_algorithm_calls_is_among_them_with_its_fields(name: str) -> None:
    calls = ALGORITHMS[name](MODELS["gcn"]().build(4, 2)).calls(3)
    assert calls is not None
    names, fields = {step_name(step) for step in all_steps()}, all_fields()
    for step in calls.all:
        assert step_name(step) in names
        assert step_info(step).sends.keys() <= fields


def test_a_name_that_no_algorithm_has_is_not_among_them() -> None:
    assert {"FedAvg.steal"}.isdisjoint(step_name(step) for step in all_steps())
    assert {"graph"}.isdisjoint(all_fields())  # data that a step hands over never leaves


def test_every_declared_field_below_scores_is_a_name_below_scores() -> None:
    """Also of numbers, which an owner could not deny by name."""
    below = {key.partition("/")[2].split("/")[0] for key in PERSONAL_SCORES if "/" in key}
    assert {"moments", "group_errors", "classes"} <= below
    assert below <= {*BELOW_SCORES}


def test_what_counts_of_numbers_have_is_a_name_below_scores() -> None:
    y, masks = torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    pairs = numbers.counts(y.float(), y, masks, None, torch.tensor([0, 1]))
    assert {*pairs} == {*numbers.COUNTED} <= {*BELOW_SCORES}
