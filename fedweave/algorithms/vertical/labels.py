"""Which labels a party trains on, and what the ledger says of what depends on them."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedweave.core import random
from fedweave.core.federation import Client, Sends
from fedweave.core.mechanism import LDP, SecureSum
from fedweave.core.tree import Tree
from fedweave.privacy.ldp import randomised_response
from fedweave.privacy.secure_sum import FixedPoint

DRAWN = "labels"  # in a client's state: the key of what was drawn once
SUM = SecureSum(everyone=True, fraction=24)  # gradients of a mean over many nodes are small
SLOPES = FixedPoint.of(SUM)


@dataclass(frozen=True)
class LabelRelease:
    """Labels as they are or, with an `epsilon`, after randomised response on each label, drawn once and for all (Warner
    1965; Erlingsson et al. 2014, "RAPPOR", for drawing once).

    All training at the client sees only these labels, so what it sends for training reveals no more about a label than
    ε, however often. Scores, which say how many labels the model hits, are not training.
    """

    epsilon: float | None

    def draw(self, client: Client) -> Tree:
        """What the client keeps of the draw."""
        return {} if self.epsilon is None else {DRAWN: random.fold(client.secret, DRAWN)}

    def kept(self, client: Client) -> Tree:
        """The same later."""
        return {} if self.epsilon is None else {DRAWN: client.state[DRAWN]}

    def seen(self, y: Tensor, classes: int, kept: Tree) -> Tensor:
        """The labels that training sees of y int64 [n], −1 where there is none."""
        return y if self.epsilon is None else randomised_response(y, classes, self.epsilon, kept[DRAWN])

    def sends(self, what: str) -> Mapping[str, Sends]:
        """The declaration of a "gradient" of the loss with respect to what all parties know, from which labels
        follow."""
        if self.epsilon is None:
            return {"gradient": Sends(f"{what}: the labels of the batch can be reconstructed from it")}
        noisy = "the labels of the batch, as randomised response left them, can be reconstructed from it"
        return {"gradient": Sends(f"{what}: {noisy}", LDP(self.epsilon, "label", release=DRAWN))}

    def sends_sum(self, what: str) -> Mapping[str, Sends]:
        """The declaration of a "gradient" that leaves in a secure sum of all clients."""
        alone = self.sends(what)["gradient"]
        told = f"nothing by itself; with all other clients' the mean of: {alone.reveals}"
        return {"gradient": Sends(told, (*alone.mechanisms, SUM))}
