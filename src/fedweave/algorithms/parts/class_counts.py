"""How many training examples of each class all clients have together, for losses that weigh classes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedweave.algorithms.parts.part import Part
from fedweave.core import mechanism
from fedweave.core.federation import Client, Federation, Sends, Step, on_client
from fedweave.core.graph import TRAIN
from fedweave.core.tree import Tree
from fedweave.learn import class_counts

COUNTS = "class_counts"  # tells labels
_MOST = 1 << 40  # examples of a client; the sum of 2^23 clients fits
_TELLS = "how many training examples of each class all members have together"


@dataclass(frozen=True)
class ClassCounts(Part):
    """Weighs classes (`class_weight = "balanced"`, `logit_adjustment`) by how many training examples of each all
    clients have together, instead of by each one's own. They are counted once, before the first round, in a secure sum
    that tells nobody how many a single client has; the sum is told to all.

    everyone:    the sum covers all clients.
    least:       without `everyone`: it covers at least that many.
    accomplices: without `everyone`: c of P clients may work with the server; it covers more than (P + c) / 2.
    """

    everyone: bool = True
    least: int = 2
    accomplices: int = 1

    client_learns: ClassVar[Mapping[str, str]] = {"classes": _TELLS}

    def __post_init__(self) -> None:
        self._summed  # noqa: B018  refuse what is no sum

    @property
    def _summed(self) -> mechanism.SecureSum:
        against = 0 if self.everyone else self.accomplices
        return mechanism.SecureSum(self.least, self.everyone, 64, 0, against)

    @property
    def setup(self) -> tuple[Step, ...]:
        """They are added up once."""
        return (self.count_classes,)

    def init(self, fed: Federation, w: Tree) -> Tree:
        """{"classes": int64 [c]}."""
        none = torch.zeros(fed.classes, dtype=torch.int64, device=fed.device)
        return {"classes": fed.map(self.count_classes, {"classes": none}).total(COUNTS)}

    @on_client(
        sends=lambda self: {COUNTS: Sends(f"nothing by itself; with the others' {_TELLS}", self._summed)},
        hears={"classes": "how many classes there are"},
        apart=True,
    )
    def count_classes(self, client: Client, message: Tree) -> Tree:
        """{"class_counts": training examples of each class}."""
        graph = client.graph
        found = class_counts(graph.y, graph.masks[TRAIN], len(message["classes"]))
        return {COUNTS: found.clamp(max=_MOST).to(torch.int64)}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        """All clients' counts."""
        return {"classes": state["classes"]}, {}
