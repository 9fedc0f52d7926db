"""A server that never asks for the gradient, and reads what it wants to know of labels off trained representations."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core import random
from fedweave.core.graph import TRAIN
from fedweave.core.tree import Tree, encode
from fedweave.privacy.attacks import labels_from_gradient
from fedweave.privacy.mechanisms import keep_probability
from fedweave.sites.flare.journal import entries, journals
from fedweave.sites.flare.policy import Spent
from tests.security.cheating import make_sites
from tests.security.cheating import reply as told
from tests.sites.projects import SITES, InProcess, call_request, cut_again, experiment, job_of, join_request

HOLDER = SITES[0]
ALLOWED = ["ids", "own", "h", "nodes", "masks", "labels"]


class Server:
    """One job after another at the party with labels, in each of which it trains on what the server likes."""

    def __init__(self, project: Path, epsilon: float = 1.0, cap: float = 1.0, rounds: int = 9, more: str = "") -> None:
        settings = {"exchanges": 1, "batch": 0, "optimizer": "sgd", "lr": 0.5, "label_epsilon": epsilon}
        self.config = experiment(
            "glasu",
            data={"name": "synthetic", "nodes": 120, "classes": 3},
            rounds=rounds,
            partition={"labels": "first"},
            algorithm_settings=settings,
        )
        self.project, self.folder = cut_again(project, self.config), project / HOLDER
        path = self.folder / "site.toml"
        kept = ", ".join(f'"{key}"' for key in ALLOWED)
        policy = f"[policy]\nepsilon = {cap}\nunbounded = [{kept}]\n{more}\n"
        path.write_text(path.read_text().partition("[policy]")[0] + policy)

    def joined(self, run: str) -> tuple[Any, Any]:
        """The member, and what calls steps of it once it has begun."""
        member = InProcess(self.project).members[HOLDER]

        def ask(request: str, message: Tree) -> Tree:
            return told(member.answer(request, encode(message)))

        def step(name: str, round: int, message: Tree) -> Tree:
            return ask(call_request(self.config, f"GLASU.{name}", round), message)

        ask(join_request(self.config, run), {})
        data = job_of(member).holdings.data
        align = {"kind": "align", "pin": json.loads(call_request(self.config, "x"))["pin"], "round": -1}
        ask(json.dumps(align), {"width": data.features, "common": torch.arange(data.nodes)})
        step("begin", 0, {"clients": 3, "share": torch.tensor(1 / 3), "tail": random.key(7)})
        return member, step

    def representations(self, run: str, draw: bool) -> tuple[Tensor, Tensor]:
        """Before and after a round of training, without a call of `pull`."""
        _, step = self.joined(run)
        if draw:
            step("draw", 0, {})
        found = []
        for round in (1, 2):
            found.append(step("infer", round, {"batch": random.key(10 + round), "segment": 0})["h"])
            if round == 1:
                step("update", 1, {"h": found[0].clone()})
        return found[0], found[1]

    def labels(self, run: str) -> Tensor:
        """What the gradient of a run's first round says that the training labels are."""
        member, step = self.joined(run)
        step("draw", 0, {})
        h = step("infer", 1, {"batch": random.key(11), "segment": 0})["h"]
        gradient = step("pull", 1, {"h": h})["gradient"]
        w = job_of(member).memory._state.tree["w"]  # which the server knows the first of
        training = job_of(member).graph.masks[TRAIN]
        self.truth = job_of(member).graph.y[training]
        return labels_from_gradient(gradient, w[max(w, key=int)]["weight"])[training]

    def spent(self) -> float:
        return Spent.of(entry for path in journals(self.folder) for entry in entries(path)).epsilon(1e-5)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_sites(tmp_path / "project", "glasu")


def relabeled(project: Path) -> None:
    """The party's labels, each the next class."""
    path = project / HOLDER / "data.npz"
    held: dict[str, Any] = dict(np.load(path))
    name = "labels" if "labels" in held else "y"
    held[name] = np.where(held[name] >= 0, (held[name] + 1) % 3, held[name])
    np.savez(path, **held)


def test_the_draw_itself_costs_what_labels_cost(project: Path) -> None:
    """Once for labels as they are, in however many runs; labels that have changed are drawn anew, and cost it again."""
    server = Server(project)
    for run in ("r1", "r2", "r3"):
        server.representations(run, draw=True)
        assert server.spent() == 1.0
    relabeled(project)
    with pytest.raises(AssertionError, match=r"policy\.epsilon: ε = 1 is spent"):
        server.representations("r4", draw=True)


def test_votes_over_runs_find_no_more_labels_than_one(project: Path) -> None:
    """Nine draws of ε = 2 would keep the right label of nearly all."""
    server = Server(project, 2.0, cap=1e9)
    guesses = torch.stack([server.labels(f"r{run}") for run in range(9)])
    voted = torch.nn.functional.one_hot(guesses, 3).sum(0).argmax(-1)
    assert torch.equal(voted, guesses[0])
    allowed = keep_probability(2.0, 3)
    right = float((voted == server.truth).double().mean())
    assert right < allowed + 4 * math.sqrt(allowed * (1 - allowed) / len(voted)), right
    other = Server(project, 3.0, cap=1e9).labels("other")
    assert not torch.equal(other, guesses[0])  # nor is it the same draw, of which both together would tell more


@pytest.mark.parametrize("draw", [False, True])
def test_what_leaves_before_the_draw_tells_nothing_of_labels(project: Path, draw: bool) -> None:
    """With other labels it is the same to the last bit; after a draw, which leaves nearly all at this ε, it is not."""
    server = Server(project, 20.0, cap=40.0)
    [before, after] = server.representations("r1", draw)
    relabeled(project)
    [same, other] = server.representations("r2", draw)
    assert torch.equal(before, same)
    assert torch.equal(after, other) != draw
    assert server.spent() == (40.0 if draw else 0.0)
