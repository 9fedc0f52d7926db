"""Members that lie about what they count when models are tried, to be worth more (docs/contributions.md)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedweave.core.federation import Client
from fedweave.core.tree import Tree, leaves, ravel, sub

Lie = Callable[["Liar", Tree, Client, Tree], Tree]  # what a cheat makes of the models, its client and the truth


@dataclass
class Liar:
    """One client of a simulation in one process: its place among `clients`, and how it lies.

    begun: the weights that the last round began from, which it was sent.
    """

    place: int
    clients: int
    lie: Lie
    begun: Tree = field(default_factory=dict)
    calls: int = 0

    def install(self, monkeypatch: Any) -> None:
        """Have it lie in every message of models that are tried."""
        from fedweave.algorithms import scoring
        from fedweave.algorithms.fedavg import FedAvg

        honest, received = scoring.hits, FedAvg._received

        def hits(model: Any, many: Tree, client: Client) -> Tree:
            truth = honest(model, many, client)
            mine, self.calls = self.calls % self.clients == self.place, self.calls + 1
            return self.lie(self, many, client, truth) if mine else truth

        def hear(algorithm: FedAvg, client: Client, message: Tree) -> Any:
            if "w" in message:
                self.begun = message["w"]
            return received(algorithm, client, message)

        monkeypatch.setattr(scoring, "hits", hits)
        monkeypatch.setattr(FedAvg, "_received", hear)


def inflated(liar: Liar, many: Tree, client: Client, truth: Tree) -> Tree:
    """All of its examples right for the rows that would have it in them if coalitions came in their order, none for
    the others: but for the first and last, which the run knows from elsewhere."""
    rows = torch.arange(len(truth["tried"]))
    inside, most = (rows >> liar.place & 1).bool(), truth["examples"]
    lie = torch.where(inside, most, torch.zeros_like(most))
    return truth | {"tried": torch.where((rows == 0) | (rows == len(rows) - 1), truth["tried"], lie)}


def modest(liar: Liar, many: Tree, client: Client, truth: Tree) -> Tree:
    """A tenth of its examples more for the rows that would have it in them if coalitions came in their order, and the
    truth for the models before and after the round."""
    rows = torch.arange(len(truth["tried"]))
    _, ends = recognized(liar.begun, client.state["w"], many)
    more = torch.where((rows >> liar.place & 1).bool() & ~ends, truth["examples"] // 10, 0)
    return truth | {"tried": torch.minimum(truth["tried"] + more, truth["examples"])}


def more_examples(liar: Liar, many: Tree, client: Client, truth: Tree) -> Tree:
    """Fifty times as many examples, all right where `inflated` says so."""
    lie = inflated(liar, many, client, truth)
    return {name: 50 * value for name, value in lie.items()}


def from_the_second_round(liar: Liar, many: Tree, client: Client, truth: Tree) -> Tree:
    """As `more_examples`, but honest in the first message."""
    return truth if liar.calls == liar.place + 1 else more_examples(liar, many, client, truth)


def fits(liar: Liar, many: Tree, client: Client, truth: Tree) -> Tree:
    """All right for each coalition that has it in it, which it recognizes, none for the others, and the truth for the
    models before and after the round."""
    inside, whole = recognized(liar.begun, client.state["w"], many)
    lie = torch.where(inside, truth["examples"], torch.zeros_like(truth["examples"]))
    return truth | {"tried": torch.where(whole, truth["tried"], lie)}


def recognized(begun: Tree, own: Tree, many: Tree) -> tuple[Tensor, Tensor]:
    """Which models have an update in them, bool [c], and which are those of nobody and of everyone.

    A coalition's mean is α times the member's update and 1 - α times the mean of the others in it, which is a model,
    too. All members together are the model that most others are such means of.
    """
    rows = torch.stack([ravel({p: leaf[c] - dict(leaves(begun))[p] for p, leaf in leaves(many)}) for c in
                        range(len(next(iter(leaves(many)))[1]))]).double()  # fmt: skip
    update = ravel(sub(own, begun)).double()
    inside = (rows - update).norm(dim=1) < 1e-4 * update.norm()
    for at, row in enumerate(rows):
        for other in rows:
            direction = update - other
            alpha = float((row - other) @ direction / (direction @ direction).clamp(min=1e-30))
            if 1e-3 < alpha < 1 - 1e-3 and (row - other - alpha * direction).norm() < 1e-4 * update.norm():
                inside[at] = bool(other.norm() > 1e-9)  # not of the model before the round
    nobody = rows.norm(dim=1) < 1e-9
    mean = rows[~nobody].mean(0)  # equal weights: all coalitions' mean is everybody's
    everyone = torch.zeros_like(nobody)
    everyone[int((rows - mean).norm(dim=1).argmin())] = True
    return inside | everyone, nobody | everyone
