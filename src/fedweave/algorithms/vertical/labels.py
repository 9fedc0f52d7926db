"""The labels that a party of GLASU trains on: as they are, or after randomized response."""

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
from fedweave.ops import hashing
from fedweave.privacy.mechanisms import randomized_response
from fedweave.privacy.secure_sum import FixedPoint, beyond_declaration

DRAWN = "labels"  # in a client's state: the key of the draw
SUM = SecureSum(everyone=True, fraction=24)  # gradients of a mean over many nodes are small
SLOPES = FixedPoint.of(SUM)


@dataclass(frozen=True)
class LabelRelease:
    """Labels as they are or, with an `epsilon`, after randomized response on each label, drawn only once (Warner 1965;
    Erlingsson et al. 2014, "RAPPOR", for drawing once).

    All training at the client uses only these labels, so its training messages reveal no more about a label than ε, in
    any number and with any key. Only the draw itself costs ε. Scores, which count the labels that the model hits, use
    these labels at sites, unless a site's policy decides otherwise, and the true labels in a simulation. If a client's
    draws outlast a run (`LabelNoise`), every run with the same ε draws the same for an example and its label. The draw
    does not depend on other examples. Another ε has an independent draw, because two draws from the same random words
    would reveal more than both ε; and so has another label of the example.
    """

    epsilon: float | None

    def draw(self, client: Client) -> Tree:
        """Draw, once per run or for all runs; the reply only confirms it."""
        noise = client.label_noise
        key = random.fold(client.secret, DRAWN) if noise is None else self.permanent_key(noise.version)
        client.state[DRAWN] = key
        return {"drawn": torch.ones_like(client.key)}

    def permanent_key(self, key: Tensor) -> Tensor:
        """The key of draws with this ε."""
        return random.fold(key, DRAWN, f"ε = {self.epsilon!r}")

    def random_words(self, client: Client) -> Tree:
        """The random words of the draw, two for each node; {} before it. A secret key gives them only outside of
        `torch.func`."""
        if DRAWN not in client.state:
            return {}
        noise, words = client.label_noise, 2 * len(client.graph.y)
        if noise is None:
            return {DRAWN: random.bits(client.state[DRAWN], words)}
        keys = random.fold(self.permanent_key(noise.key), noise.marks)  # int64 [n]
        bits = torch.stack([random.fold(keys, use) for use in ("stays", "other")], 1).flatten()
        return {DRAWN: pad(hashing.finalize(bits), (0, words - len(bits)))}  # padding has no labels

    def training_labels(self, y: Tensor, classes: int, random_words: Tree) -> Tensor:
        """The labels for training, from y int64 [n]; −1 for a missing label, and for all labels before the draw."""
        if self.epsilon is None:
            return y
        if DRAWN not in random_words:
            return torch.full_like(y, -1)
        return randomized_response(y, classes, self.epsilon, random_words[DRAWN])

    @property
    def mechanisms(self) -> tuple[LDP, ...]:
        """What protects a message that depends on the labels."""
        return () if self.epsilon is None else (LDP(self.epsilon, "label", release=DRAWN, one_draw=True),)

    def draw_sends(self) -> Mapping[str, Sends]:
        """The declaration of the reply of `draw`."""
        if self.epsilon is None:
            return {}
        reveals = "that labels were drawn by randomized response: all later messages depend only on these labels"
        return {"drawn": Sends(reveals, self.mechanisms, within=Whole(1, 1))}

    def sends(self, what: str) -> Mapping[str, Sends]:
        """The declaration of a "gradient" of the loss with respect to values that all parties know, which reveals
        labels."""
        drawn = "" if self.epsilon is None else ", as randomized response left them,"
        return {
            "gradient": Sends(f"{what}: the labels of the batch{drawn} can be reconstructed from it", self.mechanisms)
        }

    def sends_in_sum(self, what: str) -> Mapping[str, Sends]:
        """The declaration of a "gradient" that leaves by secure aggregation over all clients."""
        declared = self.sends(what)["gradient"]
        reveals = f"nothing by itself; with all other clients' the mean of: {declared.reveals}"
        return {"gradient": Sends(reveals, (*declared.mechanisms, SUM))} | beyond_declaration("gradient", SUM)
