"""Which labels a party trains on, and what the ledger says of what depends on them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedweave.core import random
from fedweave.core.federation import Client, Sends
from fedweave.core.mechanism import LDP, SecureSum
from fedweave.core.ranges import Whole
from fedweave.core.tree import Tree
from fedweave.privacy.ldp import randomised_response
from fedweave.privacy.secure_sum import FixedPoint, tells_beyond

DRAWN = "labels"  # in a client's state: the key of what was drawn once
SUM = SecureSum(everyone=True, fraction=24)  # gradients of a mean over many nodes are small
SLOPES = FixedPoint.of(SUM)


@dataclass(frozen=True)
class LabelRelease:
    """Labels as they are or, with an `epsilon`, after randomised response on each label, drawn once and for all (Warner
    1965; Erlingsson et al. 2014, "RAPPOR", for drawing once).

    All training at the client sees only these labels, so what it sends for training reveals no more about a label than
    ε, however often and under whatever key. So the draw itself is what costs ε. Scores, which say how many labels the
    model hits, are of these labels at sites, unless their policy says otherwise, and of labels as they are in a
    simulation. Where a client's draws outlast a run (`Lasting`), every run with the same ε has the
    same ones; of another ε they are drawn by themselves, for two of the same words would tell more than both ε.
    """

    epsilon: float | None

    def draw(self, client: Client) -> Tree:
        """Draw, once in a run or for good; says no more than that."""
        own = client.lasting
        client.state[DRAWN] = random.fold(client.secret, DRAWN) if own is None else self._lasting(own.key)
        return {"drawn": torch.ones_like(client.key)}

    def _lasting(self, key: Tensor) -> Tensor:
        return random.fold(key, DRAWN, f"ε = {self.epsilon!r}")

    def kept(self, client: Client) -> Tree:
        """The words of the draw, two for each node, which a secret key gives outside of `torch.func` alone; {} before
        it."""
        if DRAWN not in client.state:
            return {}
        drawn, own, words = client.state[DRAWN], client.lasting, 2 * len(client.graph.y)
        if own is None:
            return {DRAWN: random.bits(drawn, words)}
        found = random.bits(drawn, 2 * own.held).view(-1, 2)[own.places].flatten()
        return {DRAWN: pad(found, (0, words - len(found)))}  # padding has no labels

    def seen(self, y: Tensor, classes: int, kept: Tree) -> Tensor:
        """The labels that training sees of y int64 [n], −1 where there is none, and everywhere before the draw."""
        if self.epsilon is None:
            return y
        return randomised_response(y, classes, self.epsilon, kept[DRAWN]) if DRAWN in kept else torch.full_like(y, -1)

    def draws(self) -> Mapping[str, Sends]:
        """The declaration of what `draw` sends."""
        if self.epsilon is None:
            return {}
        told = "that labels were drawn by randomised response: all that is sent from now on depends on these alone"
        return {"drawn": Sends(told, self._mechanism(self.epsilon), within=Whole(1, 1))}

    def sends(self, what: str) -> Mapping[str, Sends]:
        """The declaration of a "gradient" of the loss with respect to what all parties know, from which labels
        follow."""
        if self.epsilon is None:
            return {"gradient": Sends(f"{what}: the labels of the batch can be reconstructed from it")}
        noisy = "the labels of the batch, as randomised response left them, can be reconstructed from it"
        return {"gradient": Sends(f"{what}: {noisy}", self._mechanism(self.epsilon))}

    @staticmethod
    def _mechanism(epsilon: float) -> LDP:
        return LDP(epsilon, "label", release=DRAWN, one_draw=True)

    def sends_sum(self, what: str) -> Mapping[str, Sends]:
        """The declaration of a "gradient" that leaves in a secure sum of all clients."""
        alone = self.sends(what)["gradient"]
        told = f"nothing by itself; with all other clients' the mean of: {alone.reveals}"
        return {"gradient": Sends(told, (*alone.mechanisms, SUM))} | tells_beyond("gradient", SUM)
