"""Parts about clients' data.

The number of training examples of each class over all clients, for losses that weigh classes; and data that change
while clients train (Zhou et al. 2026, "FairGFL: privacy-preserving fairness-aware federated learning with overlapping
subgraphs", appendix F-D).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from pydantic import Field
from torch import Tensor

from fedweave.algorithms.parts.needs import Needs
from fedweave.algorithms.parts.part import Context, Part
from fedweave.algorithms.parts.training import Training
from fedweave.core import mechanism, random
from fedweave.core.bounds import CountOrNone, Fraction
from fedweave.core.federation import Client, Federation, Sends, Step, on_client
from fedweave.core.graph import TRAIN
from fedweave.core.graph_arrays import GraphArrays, dense
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.errors import ConfigError
from fedweave.learn import class_counts

COUNTS = "class_counts"  # reveals labels
BIAS = "bias"  # of a layer
_MAX_EXAMPLES = 1 << 40  # of a client and a class; the sum of 2^23 clients fits
_REVEALS = "how many training examples of each class all members have together"


@dataclass(frozen=True)
class ClassCounts(Part):
    """Weighs classes (`class_weight = "balanced"`, `logit_adjustment`) by the training examples of each class over all
    clients, instead of each client's own. Clients add up these counts once, before the first round, by secure
    aggregation: no one learns a single client's counts. The server sends the sum to all clients.

    start_bias:  whether the last layer's bias starts at the logarithms of the classes' shares of all training examples,
                 so that the first steps need not learn how rare a class is (Lin et al. 2017, section 4.1).
    require_all: the sum covers all clients.
    minimum:     fewest clients of a sum without `require_all`.
    accomplices: without `require_all`: c of P clients may work with the server; it covers more than (P + c) / 2.
    """

    start_bias: bool = False
    require_all: bool = True
    minimum: Annotated[int, Field(ge=2)] = 2
    accomplices: CountOrNone = 1
    recorded = True
    needs = Needs(data=("classes",))
    client_learns: ClassVar[Mapping[str, str]] = {"classes": _REVEALS}

    @property
    def _mechanism(self) -> mechanism.SecureSum:
        against = 0 if self.require_all else self.accomplices
        return mechanism.SecureSum(self.minimum, self.require_all, 64, 0, against)

    @property
    def setup(self) -> tuple[Step, ...]:
        return (self.count_classes,)

    def check(self, training: Training) -> None:
        if self.start_bias and training.loss.counts_classes:
            raise ValueError(
                "start_bias begins with the classes' shares, which class_weight = 'balanced' and logit_adjustment take "
                "out of the loss; leave one of them out"
            )
        if self.start_bias and BIAS not in training.model[-1].init(torch.tensor(0, device="cpu")):
            raise ValueError(
                "start_bias sets the bias of the last layer, and this model has none there; choose a model such as "
                "sage, gcn or gine, or leave start_bias out"
            )

    def init(self, fed: Federation, w: Tree) -> Tree:
        zeros = torch.zeros(fed.classes, dtype=torch.int64, device=fed.device)  # its length is the message
        return {"classes": fed.map(self.count_classes, {"classes": zeros}).total(COUNTS)}

    @on_client(
        sends=lambda self: {COUNTS: Sends(f"nothing by itself; with the others' {_REVEALS}", self._mechanism)},
        hears={"classes": "how many classes there are"},
        apart=True,
    )
    def count_classes(self, client: Client, message: Tree) -> Tree:
        """{"class_counts": training examples of each class}."""
        graph = client.graph
        counts = class_counts(graph.y, graph.masks[TRAIN], len(message["classes"]))
        return {COUNTS: counts.clamp(max=_MAX_EXAMPLES).to(torch.int64)}

    def first_weights(self, model: Model, state: Tree, w: Tree) -> Tree:
        if not self.start_bias:
            return w
        last = str(len(model) - 1)
        if BIAS not in w.get(last, {}):
            raise ConfigError(
                "algorithm.parts: start_bias sets the bias of the last layer, which stays at the clients here. Share "
                "it, or leave start_bias out.",
                code="config.share",
            )
        counts = state["classes"].double().clamp(min=1)  # [c]; a class without an example counts as if it had one
        bias: Tensor = torch.log(counts / counts.sum()).to(w[last][BIAS])
        return w | {last: w[last] | {BIAS: bias}}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        """{"classes": the counts over all clients, int64 [c]}."""
        return {"classes": state["classes"]}, {}


@dataclass(frozen=True)
class Drift(Part):
    """Before each round every node's features change with probability `share`. Each feature is then, with equal odds,
    the node's own or the feature of another node of the client with the same label. Links, labels and masks stay.

    The paper only says that 1 % of each client's data changes. A node that several clients hold changes at one of them,
    so their overlap shrinks; `Federation.pairs` keeps the original overlap.

    share: share of a client's nodes whose features change in a round.
    """

    share: Fraction = 0.01

    def changes(self, ctx: Context, data: GraphArrays) -> tuple[GraphArrays, np.ndarray]:
        if data.graph_of is not None:
            raise ValueError("drift needs nodes as examples, and here the examples are small graphs; leave it out")
        rng = np.random.default_rng(int(random.fold(ctx.client.key, "drift")) & (2**63 - 1))
        is_changed = (rng.random(len(data.y)) < self.share) & (data.y >= 0)  # only nodes with a label
        nodes = np.flatnonzero(is_changed)
        partners = _same_label_nodes(data.y, nodes, rng)
        x, partner_x = dense(data.x[nodes]), dense(data.x[partners])
        mixed = np.where(rng.random(x.shape) < 0.5, x, partner_x)
        return data._replace(x=_replace_rows(data.x, nodes, mixed)), is_changed


def _same_label_nodes(y: np.ndarray, nodes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each of the `nodes` another node with its label; itself if there is none."""
    same = {label: np.flatnonzero(y == label) for label in np.unique(y[nodes]).tolist()}
    result = nodes.copy()
    for place, node in enumerate(nodes.tolist()):
        members = same[int(y[node])]
        if len(members) > 1:
            at = int(rng.integers(0, len(members) - 1))
            result[place] = members[at + (at >= np.searchsorted(members, node))]
    return result


def _replace_rows(x: "np.ndarray | sp.csr_matrix", rows: np.ndarray, new: np.ndarray) -> "np.ndarray | sp.csr_matrix":
    """x with the rows `new` at the places `rows`."""
    at = np.arange(x.shape[0])
    at[rows] = x.shape[0] + np.arange(len(rows))
    if isinstance(x, np.ndarray):
        return np.concatenate([x, new])[at]
    return sp.csr_matrix(sp.vstack([x, sp.csr_matrix(new)], format="csr")[at])
