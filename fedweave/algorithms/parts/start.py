"""Where local training starts."""

from dataclasses import dataclass
from typing import Protocol

from fedweave.core.federation import Client
from fedweave.core.tree import Tree, map_leaves


class Start(Protocol):
    """Where local training starts, and which model a client is judged by."""

    def begin(self, client: Client, received: Tree) -> Tree:
        """The weights that training starts from."""
        ...

    def keep(self, client: Client, trained: Tree) -> None:
        """Note in the client's state what the next start needs."""
        ...


@dataclass(frozen=True)
class GlobalStart:
    """Every client starts from the global weights (McMahan et al. 2017, algorithm 1)."""

    def begin(self, client: Client, received: Tree) -> Tree:
        """The received weights."""
        return received

    def keep(self, client: Client, trained: Tree) -> None:
        """Nothing."""


@dataclass(frozen=True)
class MixedStart:
    """Every client starts from α w + (1 − α) w_i, its own last weights w_i mixed with the global ones (a fixed personal
    mix, as FedEgo's fixed λ); at its first call from the global weights.

    alpha: share of the global weights.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha is {self.alpha}; it must be between 0 and 1")

    def begin(self, client: Client, received: Tree) -> Tree:
        """The mix."""
        if "w" not in client.state:
            return received
        return map_leaves(lambda w, own: self.alpha * w + (1 - self.alpha) * own, received, client.state["w"])

    def keep(self, client: Client, trained: Tree) -> None:
        """The trained weights."""
        client.state["w"] = trained
