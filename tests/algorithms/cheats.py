"""Members that lie about what they count when models are tried, to be worth more (docs/contributions.md)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedweave.core.federation import Client
from fedweave.core.tree import Tree

Lie = Callable[["Liar", Tree], Tree]  # what a cheat makes of the pairs [c, 2, …] by metric that are true


@dataclass
class Liar:
    """One client of a simulation in one process: its place among `clients`, and how it lies."""

    place: int
    clients: int
    lie: Lie
    calls: int = 0

    def install(self, monkeypatch: Any) -> None:
        """Have it lie in every message of models that are tried."""
        from fedweave.algorithms import trials

        honest = trials.try_models

        def try_models(model: Any, many: Tree, client: Client) -> Tree:
            truth = honest(model, many, client)
            mine, self.calls = self.calls % self.clients == self.place, self.calls + 1
            return {"tried": self.lie(self, truth["tried"])} if mine else truth

        monkeypatch.setattr(trials, "try_models", try_models)


def _but(truth: Tree, rows: Tensor, full: bool) -> Tree:
    """All counts full, or 0, for the models in `rows`."""
    lie = {}
    for name, pair in truth.items():
        lie[name] = pair.clone()
        if name != "labels":
            lie[name][rows, 0] = pair[rows, 1] if full else 0
    return lie


def slander(liar: Liar, truth: Tree) -> Tree:
    """No example right for any model but that with its own update alone, and the model before the round."""
    rows = torch.arange(len(truth["accuracy"]))
    return _but(truth, (rows != liar.place) & (rows != len(rows) - 1), False)


def boast(liar: Liar, truth: Tree) -> Tree:
    """All right for models that have its update in them, by the order in which coalitions come, none for others."""
    rows = torch.arange(len(truth["accuracy"]))
    inside = (rows >> liar.place & 1).bool()
    return _but(_but(truth, inside, True), ~inside, False)


def fifty_times(liar: Liar, truth: Tree) -> Tree:
    """As `boast`, with fifty times as many examples."""
    return {name: 50 * pair for name, pair in boast(liar, truth).items()}


def impossible(liar: Liar, truth: Tree) -> Tree:
    """More right than there are, and numbers that are none."""
    lie = {name: pair.clone() for name, pair in truth.items()}
    lie["accuracy"][:, 0] = torch.tensor([-1e9, 1e9, torch.nan, torch.inf]).repeat(len(lie["accuracy"]))[
        : len(lie["accuracy"])
    ]
    return lie


LIES: dict[str, Lie] = {
    "slander": slander,
    "boast": boast,
    "fifty times": fifty_times,
    "impossible": impossible,
}
