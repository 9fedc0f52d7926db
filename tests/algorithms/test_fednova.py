"""FedNova against arithmetic that was written apart from it, and its laws."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fednova import NormalisedSteps, ProximalSteps
from fedweave.algorithms.parts import SecureSum
from fedweave.core import random
from fedweave.core.graph import TRAIN
from fedweave.core.tree import ravel
from fedweave.core.types import FRAMING
from fedweave.experiment.rounds import train
from tests.algorithms.test_family_oracles import LR, Problem
from tests.algorithms.test_scaffold import ended
from tests.contract.federations import distance, federation, graphs, model


class Told:
    """Keeps what `weigh` sees."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reaches: list[np.ndarray] = []
        weigh = NormalisedSteps.weigh

        def kept(part: Any, state: Any, round: Any) -> Any:
            self.reaches.append(round.replies.stack("reach").numpy())
            return weigh(part, state, round)

        patch.setattr(NormalisedSteps, "weigh", kept)


@pytest.mark.often("vmap-options0", "vmap-options2")
@pytest.mark.parametrize("options", [{}, {"momentum": 0.5}, {"mu": 0.5}])
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_rounds_are_those_of_the_reference(
    baselines: Any, problem: Problem, options: dict[str, Any], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full batches, of which clients take 1 to 4 in a round."""
    told, fed = Told(monkeypatch), federation(dtype=torch.float64, mode=mode)
    state, _ = ended("fednova", 3, fed, local_steps=1, max_local_steps=4, batch=0, **options)
    w, norms = problem.start, {}
    for count in range(1, 5):
        norms[count] = baselines.nova_norm(count, options.get("momentum", 0.0), LR * options.get("mu", 0.0))
    for reaches in told.reaches:
        steps = [min(norms, key=lambda count: abs(norms[count] - reach)) for reach in reaches]
        assert len(set(steps)) > 1
        assert [norms[count] for count in steps] == pytest.approx(reaches.tolist())
        w = baselines.fednova(w, problem.clients, 1, steps, LR, **options)
    assert np.abs(ravel(state["w"]).numpy() - w).max() < 1e-9


def test_equal_steps_are_fedavgs() -> None:
    one, _ = ended("fednova", local_steps=4, batch=0)
    other, _ = ended("fedavg", local_steps=4)
    assert distance(one["w"], other["w"]) < 1e-12


@pytest.mark.parametrize("name", ["site-0", "site-1", "site-4"])
def test_every_pass_takes_each_training_example_once(name: str) -> None:
    graph, part = graphs()[name], NormalisedSteps(batch=3)
    count = int(graph.masks[TRAIN].sum())
    each = -(-count // 3)
    chosen = part.draw((), graph, random.key(3), 2 * each)["chosen"]
    assert chosen.shape == (2 * each, len(graph.y))
    for own in (chosen[:each], chosen[each:]):
        assert (own.sum(0) == graph.masks[TRAIN].long()).all()
    sizes = chosen.sum(1)
    assert sizes.max() <= 3
    assert sizes.max() - sizes.min() <= 1
    assert sizes.min() == part.min_examples(graph, 2 * each)
    assert not torch.equal(chosen[:each], chosen[each:])


def test_larger_clients_take_more_steps_and_count_no_more_for_them() -> None:
    """Weights are p_i τ_eff / τ_i."""
    part = NormalisedSteps()
    n, reach = torch.tensor([10, 30, 0]), torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64)
    stacks = {"n": n, "reach": reach}
    round: Any = type("R", (), {"replies": type("S", (), {"stack": staticmethod(stacks.get)})})
    assert part.weigh({}, round).tolist() == pytest.approx([0.25 * 2.5, 0.75 * 2.5 / 3, 0.0])


def test_the_longest_round_is_agreed_upon_and_told() -> None:
    _, fed = ended("fednova", 1, batch=2)
    rows = [row for row in fed.ledger.table().to_pylist() if row["key"] != FRAMING and row["purpose"] != "evaluation"]
    sent = {(row["round"] > 0, row["direction"], row["key"].split("/")[0]) for row in rows}
    assert sent == {
        (False, "up", "steps"), (True, "down", "w"), (True, "down", "NormalisedSteps"),
        (True, "up", "update"), (True, "up", "n"), (True, "up", "reach"),
    }  # fmt: skip


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_only_data_moves_the_rows_that_clients_share(make_graphs: Any, mode: str) -> None:
    """Clients that stop earlier than others have less weight decay."""
    from fedweave.engines.simulation import Simulation
    from fedweave.models import MODELS

    clients = make_graphs([40, 40, 40], 400, sparse=True)
    net = MODELS["gcn"](hidden=8).build(400, 3)
    made = ALGORITHMS["fednova"](net, local_steps=1, max_local_steps=4, batch=0, weight_decay=0.5, lr=0.1)
    ends = []
    for how in (mode, "loop"):
        *_, last = train(made, Simulation(clients, classes=3, mode=how), 3, eval_every=0)
        ends.append(last.state["w"])
    assert distance(*ends) < 1e-6


def test_what_there_is_no_way_for_is_refused() -> None:
    with pytest.raises(ValueError, match="set optimizer = 'sgd'"):
        ALGORITHMS["fednova"](model(), optimizer="adam")
    with pytest.raises(
        ValueError, match=r"both decide how updates count.*normalised_steps is a part of fednova itself"
    ):
        ALGORITHMS["fednova"](model(), parts=(SecureSum(weights="equal"),))
    with pytest.raises(ValueError, match="without momentum"):
        ProximalSteps(momentum=0.5)
