"""What goes down to judge models: the weights, or what clients get instead, and what the judged model depends on."""

from collections import defaultdict
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.graphfl import MetaGradient
from fedweave.algorithms.parts import Context, Outputs, Part, Uniform
from fedweave.core.tree import Tree, map_leaves
from fedweave.core.types import EVALUATION, FRAMING
from fedweave.experiment.rounds import train
from tests.contract.federations import algorithm, federation, model

ANSWERS_WITH = {"fggp": {"NearestCentres"}}  # its models answer by the nearest of these centers
FAMILY = sorted(name for name in ALGORITHMS if isinstance(algorithm(name), FedAvg))
SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0, "local_steps": 1}


class Control(Part):
    """What clients get for training: a number for all of them, and one of their own."""

    client_learns: ClassVar = "numbers"

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        return {"all": torch.ones(3, dtype=torch.float64)}, {"own": at.double()}

    def objective(self, outputs: Outputs) -> Tensor:
        return outputs.inputs["own"] * outputs.inputs["all"].sum() * outputs.logits.square().mean()


class Shifted(Control):
    """The same to start from."""

    objective = Part.objective

    def start(self, ctx: Context) -> Tree:
        return map_leaves(lambda leaf: leaf + ctx.downloaded["own"], ctx.received)


class ShiftedModel(Shifted):
    """The same for use."""

    def personalize(self, ctx: Context) -> Tree:
        return self.start(ctx)


def told(made: FedAvg, purpose: str = EVALUATION, **options: Any) -> set[str]:
    """The first names of what went down for a purpose in two rounds."""
    fed, found = federation(**options), defaultdict[str, set[str]](set)
    list(train(made, fed, 2))
    for row in fed.ledger.table().to_pylist():
        if row["direction"] == "down" and row["key"] != FRAMING:
            found[row["purpose"]].add("/".join(row["key"].split("/")[: 2 if row["key"].startswith("each") else 1]))
    return found[purpose]


@pytest.mark.often("fedavg", "ditto", "scaffold", "fairgfl")
@pytest.mark.parametrize("name", FAMILY)
def test_only_weights_go_down_to_be_judged(name: str) -> None:
    """ "init" is the key of the weights that a client without any draws."""
    made = algorithm(name)
    keys = told(made, name=name)
    assert keys - {"w", "init"} == ANSWERS_WITH.get(name, set())
    assert ("w" in keys) == bool(made.share)


@pytest.mark.often("parts0-judged0", "parts3-judged3")
@pytest.mark.parametrize(
    ("parts", "judged"),
    [
        ((Control(),), set()),
        ((Shifted(),), {"Shifted", "each/Shifted"}),
        ((ShiftedModel(),), {"ShiftedModel", "each/ShiftedModel"}),
        ((Control(), MetaGradient(5), Uniform()), {"Control", "each/Control"}),
    ],
)
def test_what_a_part_sends_goes_down_again_only_where_the_judged_model_depends_on_it(
    parts: tuple[Part, ...], judged: set[str]
) -> None:
    made = FedAvg(model(), parts=parts, **SGD)
    sent = {key for part in parts[:1] for key in (type(part).__name__, f"each/{type(part).__name__}")}
    assert told(made, "training", dtype=torch.float64) == {"w", *sent}
    assert told(made, dtype=torch.float64) == {"w", *judged}


def test_what_training_is_told_does_not_count_as_evaluation() -> None:
    """Five clients get a number each and three in common, once in a round."""
    rows = {}
    for parts in ((), (Control(),)):
        fed = federation(dtype=torch.float64)
        list(train(FedAvg(model(), parts=parts, **SGD), fed, 3))
        rows[len(parts)] = fed.ledger
    assert rows[1].bytes_evaluation == rows[0].bytes_evaluation
    listed = [row["bytes"] for row in rows[1].table().to_pylist() if "Control" in row["key"]]
    assert sum(listed) == 3 * 5 * 8 * (1 + 3)
