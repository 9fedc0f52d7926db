"""GLASU: Zhang et al. 2023, "GLASU: a communication-efficient algorithm for federated learning with vertically
distributed graph data", algorithms 1 to 7.

The clients hold the same nodes, but different features and edges. Each client has its own model. After K of the L
layers that pass messages the server aggregates the clients' representations (lazy aggregation). For Q steps a client
combines its own changing representations with the others' unchanged ones (stale updates).

The gradient (`backward`), without dropout and noise and with Q = 1; J is the mean of the clients' losses:
- "frozen" is algorithm 4: a client differentiates its own loss with the others' representations as constants. For K = 1
  this is J's gradient. For K > 1 it is not: the effect of a client's early layers on the others' later layers is
  missing.
- "exchanged" sends gradients back through every aggregation (section 3.1), K further exchanges, and is J's gradient for
  any K.

The prediction f_m is one function kept in M copies ("the same among clients"): its copies begin equal, get the gradient
of the loss with respect to f, and stay equal. With Q > 1, or "frozen" with dropout, each copy follows its client's own
view of the last aggregate.
If only some clients have labels (appendix B.2), J is the mean of their losses, and the others train by the gradient of
J with respect to the last aggregate.

Choices where the paper is open, and deviations:
- Every client draws the same mini-batch from the train nodes, with a key that the server sends: the server need not
  know which nodes train. In the modified algorithm 5 client 1 would send it.
- A client samples up to `fan_out` neighbors per node and layer (see `sampling.neighborhoods`), drawn every round, and
  keeps the node itself. A node in several clients' lists has one sample.
- Local steps compute only what the client's own batch needs; the union of all clients' nodes is computed once, for the
  exchange. Every step draws a new dropout mask.
- Models that end in a convolution (`gcn`, `gat`) aggregate their logits there and have no further prediction: every
  receiver of the last aggregate reads the joint prediction of each node in it. The server sends it only to clients with
  labels, because the others need only the gradient with respect to it. With secure aggregation the server sends it to
  all clients, because a sum opens only if all got the same message.
- Each client predicts with its own f_m on the full graph; the accuracy reported is the mean over the clients.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.algorithms.parts.training import ClassWeights, OptimizerName, criterion_of
from fedweave.algorithms.scoring import SCORES, pairs_of
from fedweave.algorithms.vertical.aggregation import (
    AGGREGATIONS,
    PREDICTIONS,
    ROWS,
    WORDS,
    RowRelease,
    SecureMean,
    check_finite,
    union,
)
from fedweave.algorithms.vertical.declared import (
    BACK,
    ENDS_THERE,
    EVERY_ROW,
    FACTS,
    HEARS,
    LISTED_ROWS,
    LOGITS,
    SLOPE,
    check_same_message,
    last_heard,
)
from fedweave.algorithms.vertical.party import SLOPES, LabelRelease, PartySteps
from fedweave.algorithms.vertical.split import Split, cuts
from fedweave.core.algorithm import Algorithm, Calls, Capabilities, Evaluation
from fedweave.core.bounds import Between, ClipNorm, Count, CountOrNone, NonNegative, Positive, Share, Steps
from fedweave.core.federation import Client, Declaration, Federation, Sends, on_client
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.ranges import Whole
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree
from fedweave.core.types import Record
from fedweave.errors import UserError
from fedweave.learn import OPTIMIZERS
from fedweave.privacy.mechanisms import GaussianRows
from fedweave.privacy.secure_sum import cut_counts

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GLASU(Algorithm):
    """A graph neural network over clients with the same nodes but different features and edges.

    Source: Zhang et al. 2023, algorithms 1 to 7.

    exchanges:   K, spread evenly over the L layers that pass messages and including the last one; 0 for none.
    at:          the numbers from 1, …, L of the layers after which the server aggregates, instead of K.
    aggregation: "mean" or "concat" of the clients' representations.
    steps:       Q, local steps per round, all on the same mini-batch.
    batch:       train nodes per mini-batch; 0 trains on all of them with the full graph.
    fan_out:     neighbors sampled per node and layer.
    edges:       "own" for each client's edges, or "none" for every node by itself (A = I).
    backward:    "frozen" or "exchanged" (needs Q = 1), see above.
    optimizer:   optimizer of every party's own weights; with "adam" each party keeps the optimizer state from round to
                 round.
    lr:          learning rate; plain "sgd" needs 0.1 to 0.8.
    weight_decay: weight decay of the optimizer.
    decay:       factor of the learning rate, applied every decay_every rounds.
    decay_every: rounds from one such step to the next; 0 for never.
    sigma:       standard deviation of Gaussian noise on every row of a representation, in units of `clip`; 0 for none.
                 Lists of nodes and gradients are not protected, and labels can be reconstructed from gradients.
    clip:        largest norm of a row, where sigma is above 0.
    delta:       δ for which `fedweave ledger` adds up the ε of a row.
    label_epsilon: ε of randomized response on the labels, drawn once at the only client with labels, so that gradients
                 reveal no more of a label. None trains on the labels as they are.
    secure_sum:  whether clients send representations by secure aggregation, so that the server learns only their mean
                 (`privacy.aggregation`), and gradients too if several clients have labels. Needs aggregation = "mean"
                 and backward = "frozen".
    class_weight: weight of classes in the loss: "none", "balanced" (n / (C n_c) from the training labels at a client;
                 the counts stay there), a number for each class, or a table by name such as {fraud = 30.0}, 1 for the
                 others.
    focal:       gamma of the focal loss; 0 for none.
    logit_adjustment: tau of the logit adjustment by the shares of the classes; 0 for none.

    Raises:
        ValueError: a value is out of range, or the model's layers do not support it.

    Example:
        model = fedweave.models.GCNII(hidden=64).build(fedweave.width(data, cut), data.classes)
        algorithm = fedweave.algorithms.GLASU(model, exchanges=2)
        fed = fedweave.federation(data, cut, algorithm, seed=0)
    """

    model: Model
    exchanges: CountOrNone = 2
    at: tuple[int, ...] = ()
    aggregation: Literal["mean", "concat"] = "mean"
    steps: Steps = 1
    batch: CountOrNone = 16
    fan_out: Count = 3
    edges: Literal["own", "none"] = "own"
    backward: Literal["frozen", "exchanged"] = "frozen"
    optimizer: OptimizerName = "adam"
    lr: Positive = 0.01
    weight_decay: NonNegative = 0.0
    decay: Share = 1.0
    decay_every: CountOrNone = 0
    sigma: NonNegative = 0.0
    clip: ClipNorm = 1.0
    delta: Between = 1e-5
    label_epsilon: Positive | None = None
    secure_sum: bool = False
    class_weight: ClassWeights = "none"
    focal: NonNegative = 0.0
    logit_adjustment: NonNegative = 0.0

    capabilities: ClassVar[Capabilities] = Capabilities(
        vertical=True, nodes=True, classes=True, predicts=True, evaluation=("infer_full", "score")
    )
    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "clients train parts of one model on mini-batches",
        "a_quorum_carries_the_round": "each client holds a part of every node",
    }
    test_settings: ClassVar[Record] = {"fan_out": 2}

    def __post_init__(self) -> None:
        aggregated = self.party.split.cuts
        if self.backward == "exchanged" and (self.steps > 1 or self.sigma > 0 or not aggregated):
            raise ValueError(
                f"backward = 'exchanged' sends gradients back through the exchanges: it needs steps = 1 (here "
                f"{self.steps}), sigma = 0 (here {self.sigma:g}) and an aggregated layer; or take 'frozen'"
            )
        if self.aggregation == "concat" and self.tells_predictions:
            raise ValueError(
                "aggregation = 'concat' after the model's last layer would give M columns per class; "
                "take 'mean', a model with a classifier after its convolutions (gcnii), or `at` without the last layer"
            )
        if self.secure_sum and (self.aggregation != "mean" or self.backward != "frozen" or not aggregated):
            raise ValueError(
                f"secure_sum hides the terms of a mean of representations: it needs aggregation = 'mean' (here "
                f"{self.aggregation!r}), backward = 'frozen' (here {self.backward!r}) and an aggregated layer"
            )

    @cached_property
    def party(self) -> PartySteps:
        """The steps of a client."""
        how = SecureMean() if self.secure_sum else AGGREGATIONS[self.aggregation]
        split = Split(self.model, self.cuts, how.wider, self.fan_out, self.edges == "own")
        key = PREDICTIONS if self.tells_predictions else ROWS
        release = RowRelease(GaussianRows(self.clip, self.sigma, self.delta), self.secure_sum, key)
        labels, returned = LabelRelease(self.label_epsilon), self.backward == "exchanged"
        training = self.batch, self.steps, OPTIMIZERS[self.optimizer], self.lr, self.weight_decay
        return PartySteps(split, how, release, labels, *training, returned, self.decay_every > 0, criterion_of(self))

    @property
    def recorded(self) -> bool:
        """Not where sums are secure, which Python opens, or where the rate decays, by a count of rounds in Python."""
        return not (self.secure_sum or self.decay_every)

    @property
    def rounds_vary(self) -> bool:
        """Whether neighbors are sampled: the sizes of their lists depend on draws."""
        return self.batch > 0 and self.edges == "own"

    @property
    def cuts(self) -> tuple[int, ...]:
        """I: the numbers of the model's layers after which the server aggregates."""
        return cuts(self.model, self.exchanges, self.at)

    @property
    def tells_predictions(self) -> bool:
        """Whether the last aggregate is the logits, because no layer follows it. Then every receiver, including the
        server, reads the joint prediction of each node."""
        return self.cuts[-1:] == (len(self.model) - 1,)

    @property
    def notes(self) -> list[str]:
        """Notes for the parties before they run it."""
        return [ENDS_THERE] if self.tells_predictions else []

    def _sends(self, what: str) -> Declaration:
        return self.party.release.sends(what + (LOGITS if self.tells_predictions else ""))

    def _hears_last(self) -> dict[str, str]:
        return HEARS | last_heard(self.tells_predictions, self.secure_sum)

    def least_examples(self, graph: Graph, message: Tree) -> dict[str, int]:
        """{settings: fewest train nodes of a mini-batch} at a client. Waits for the graph's device."""
        return {f"{type(self).__name__} (batch)": self.party.fewest(graph)}

    def init(self, fed: Federation) -> Tree:
        """{"holders": {client: 1 if it has labels, else 0}, "nodes": their number} and, if the rate decays, "rounds".

        Raises:
            UserError: the clients do not hold the same nodes, or no client that could train has labels.
        """
        share = torch.tensor(1 / len(fed.clients), dtype=fed.dtype, device=fed.device)
        each = {client: {"at": i} for i, client in enumerate(fed.clients)} if self.party.how.wider else None
        replies = fed.map(self.begin, {"clients": len(fed.clients), "share": share, "tail": fed.key("tail")}, each)
        check_same_message(type(self).__name__, fed.clients, replies)
        holders = [client for client, reply in zip(fed.clients, replies, strict=True) if reply["labels"]]
        # A client without labels cannot train on its own; with others it follows their gradient.
        if not holders or (len(holders) < len(fed.clients) and self.cuts and not self.party.split.followed):
            raise UserError(
                f"labels are at {', '.join(holders) or 'no client'}: every client needs them, or one "
                "and an exchange after the model's last layer that passes messages, or none; set partition.labels = "
                "'all', or algorithm.exchanges.",
                code="user.label-holders",
            )
        if self.label_epsilon is not None and len(holders) > 1:
            raise UserError(
                f"label_epsilon bounds what one client reveals of its labels, but {', '.join(holders)} all have them, "
                "and their draws together reveal more; set partition.labels = 'first', or leave label_epsilon out.",
                code="user.labels-alike",
            )
        if self.label_epsilon is not None:
            fed.map(self.draw, clients=holders)
        nodes = int(replies.stack("nodes")[0])
        counted = {"rounds": 0} if self.decay_every else {}
        return {"holders": {client: int(client in holders) for client in fed.clients}, "nodes": nodes} | counted

    @on_client(sends=FACTS, hears=HEARS)
    def begin(self, client: Client, message: Tree) -> Tree:
        """Line 3 of algorithm 1 at t = 0."""
        return self.party.begin(client, message)

    @on_client(sends=lambda glasu: glasu.party.labels.draws())
    def draw(self, client: Client, message: Tree) -> Tree:
        """Randomized response on the labels if `label_epsilon` is set, before any training."""
        return self.party.labels.draw(client)

    def calls(self, clients: int) -> Calls:
        """The steps for one segment of the model after the other."""
        last = self.party.split.last
        forward = (self.sample,) * len(self.party.sampling) + (self.infer,) * last
        backward = (self.back,) * last if self.backward == "exchanged" else (self.update,)
        # With drawn labels only one client has them: a sum of its gradient and the others' zeros hides nothing.
        pull = (self.pull, self.pull_sum) if self.secure_sum and self.label_epsilon is None else (self.pull,)
        inference = (self.infer_full,) * last
        score_steps, prediction_steps = (*inference, self.score), (*inference, self.predict_proba)
        setup = (self.begin,) if self.label_epsilon is None else (self.begin, self.draw)
        labelled = (self.draw, self.pull)
        return Calls(setup, (*forward, *pull, *backward), score_steps, prediction_steps, labelled=labelled)

    def round(self, state: Tree, fed: Federation) -> Tree:
        """Algorithm 1, lines 2-7."""
        split, sums = self.party.split, list[Tensor]()
        message: Tree = {"batch": fed.key("batch")}
        # Forward: the mini-batch's nodes from the last segment to the first, then representations back up.
        for segment in self.party.sampling:  # algorithm 2
            lists = fed.map(self.sample, message | {"segment": segment})
            message = {"nodes": union(lists, state["nodes"]), "cut": segment}
        for segment in range(split.last):  # algorithm 3
            replies = fed.map(self.infer, message | {"segment": segment})
            message = {"h": self._aggregate(fed, replies, sums)}
            state = self.party.how.tallied(state, replies, message["h"], WORDS)
        holders = [client for client in fed.clients if state["holders"][client]]
        exchanged, (rate, state) = self.backward == "exchanged", self._rate(state)
        if exchanged or (self.cuts and len(holders) < len(fed.clients)):  # algorithm 6
            message["gradient"], state = self._mean_gradient(fed, message, holders, state)
        if not exchanged:
            fed.map(self.update, *self._addressed(message | rate, state))  # algorithms 4 and 7
            check_finite(sums)
            return state
        # Backward through every aggregation (section 3.1); clients step at the first segment, which gets the rate.
        for segment in reversed(range(split.last)):
            down = message | {"segment": segment} | ({} if segment else rate)
            replies = fed.map(self.back, *self._addressed(down, state))
            if segment:
                message = {"gradient": replies.weighted_sum("gradient", torch.ones(len(replies), device=fed.device))}
        check_finite(sums)
        return state

    def _addressed(self, message: Tree, state: Tree) -> tuple[Tree, dict[str, Tree] | None]:
        """The message for all clients, and the parts for each. Clients without labels get no row of the last aggregate,
        because they train only by the gradient with respect to it and predict nothing. With secure aggregation all get
        the same message, otherwise a sum does not open."""
        if self.secure_sum or "h" not in message or all(state["holders"].values()):
            return message, None
        h, rest = message["h"], {key: value for key, value in message.items() if key != "h"}
        return rest, {client: {"h": h if holds else h[:0]} for client, holds in state["holders"].items()}

    def _mean_gradient(
        self, fed: Federation, message: Tree, holders: Sequence[str], state: Tree
    ) -> tuple[Tensor, Tree]:
        """The mean gradient of the label holders with respect to H[L], by secure aggregation if several hold labels;
        and the server's state after it."""
        if self.secure_sum and len(holders) > 1:
            pulls = fed.map(self.pull_sum, message)
            gradient = SLOPES.decode(pulls.total("gradient"), fed.dtype) / len(holders)
            return gradient, self.party.how.tallied(state, pulls, gradient, SLOPES)
        pulls = fed.map(self.pull, message, clients=holders)
        alike = torch.full((len(pulls),), 1 / len(pulls), dtype=torch.float64, device=fed.device)
        return pulls.weighted_sum("gradient", alike), state

    def counts(self, state: Tree) -> dict[str, float]:
        """{"secure_sum/cut": how many numbers were cut to the bound} and related counts; {} if none was."""
        return cut_counts(state.get("cut"))

    def _rate(self, state: Tree) -> tuple[Tree, Tree]:
        """The learning rate for the clients if it is not always `lr`, and the server's state after the round."""
        if not self.decay_every:
            return {}, state
        rate = self.lr * self.decay ** (state["rounds"] // self.decay_every)
        return {"lr": rate}, state | {"rounds": state["rounds"] + 1}

    @on_client(
        sends={
            "nodes": Sends("the mini-batch's nodes and their sampled neighbors in the client's graph", within=Whole())
        },
        hears=HEARS,
    )
    def sample(self, client: Client, message: Tree) -> Tree:
        """Algorithm 2 down to the next aggregated layer."""
        return self.party.sample(client, message)

    @on_client(sends=lambda glasu: glasu._sends(LISTED_ROWS), hears=HEARS)
    def infer(self, client: Client, message: Tree) -> Tree:
        """Algorithm 3 up to the next aggregated layer."""
        return self.party.infer(client, message)

    @on_client(sends=lambda glasu: glasu.party.labels.sends(SLOPE), hears=lambda glasu: glasu._hears_last())
    def pull(self, client: Client, message: Tree) -> Tree:
        """Algorithm 6, lines 15 and 16."""
        return self.party.pull(client, message)

    @on_client(sends=lambda glasu: glasu.party.labels.sends_sum(SLOPE), hears=lambda glasu: glasu._hears_last())
    def pull_sum(self, client: Client, message: Tree) -> Tree:
        """`pull` as a term of secure aggregation over all clients, 0 without labels."""
        return self.party.pull_sum(client, message)

    @on_client(hears=lambda glasu: glasu._hears_last())
    def update(self, client: Client, message: Tree) -> Tree:
        """Q times algorithm 4, or 7; sends nothing."""
        return self.party.update(client, message)

    @on_client(sends={"gradient": BACK}, hears=lambda glasu: glasu._hears_last())
    def back(self, client: Client, message: Tree) -> Tree:
        """The backward pass of section 3.1 down to the next aggregated layer; a step at the end of it."""
        return self.party.back(client, message)

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        """Each client's prediction on the full graph, after K exchanges."""
        message, sums = self._predictions_message(fed)
        scores = fed.map(self.score, *self._addressed(message, state))
        check_finite(sums)
        return Evaluation(scores)

    def predict(self, state: Tree, fed: Federation) -> None:
        """Store class probabilities [n, c] of all nodes as "prediction" in the state of each client that has labels,
        after K exchanges: the others have no trained prediction (appendix B.2)."""
        holders = [client for client in fed.clients if state["holders"][client]]
        message, sums = self._predictions_message(fed)
        check_finite(sums)
        fed.map(self.predict_proba, message, clients=holders)

    def _predictions_message(self, fed: Federation) -> tuple[Tree, list[Tensor]]:
        """The message for the clients' predictions on the full graph, and the sums for `check_finite`."""
        message: Tree = {}
        sums = list[Tensor]()
        for segment in range(self.party.split.last):
            replies = fed.map(self.infer_full, message | {"segment": segment})
            message = {"h": self._aggregate(fed, replies, sums)}
            if counts := self.counts(self.party.how.tallied({}, replies, message["h"], WORDS)):
                _log.warning("note: secure aggregation cut %(secure_sum/cut)d values for predictions", counts)
        return message, sums

    def _aggregate(self, fed: Federation, replies: Replies, sums: list[Tensor]) -> Tensor:
        """The aggregate H of the clients' representations; adds its sum to `sums`."""
        h = self.party.how.aggregate(replies, self.party.release.key, fed.dtype)
        sums.append(h.sum(dtype=torch.float64))
        return h

    @on_client(sends=lambda glasu: glasu._sends(EVERY_ROW), hears=HEARS)
    def infer_full(self, client: Client, message: Tree) -> Tree:
        """Joint inference on the full graph up to the next aggregated layer."""
        return self.party.infer_full(client, message)

    @on_client(
        sends={name: SCORES[name] for name in ("own", "own/classes", "own/groups", "own/group_auc")},
        hears=lambda glasu: glasu._hears_last(),
    )
    def score(self, client: Client, message: Tree) -> Tree:
        """Scores of the client's prediction on nodes whose labels it has."""
        graph = client.graph
        return {
            "own": pairs_of(self.party.logits(client, message), graph.y, graph.masks & (graph.y >= 0), graph.sensitive)
        }

    @on_client(hears=lambda glasu: glasu._hears_last())
    def predict_proba(self, client: Client, message: Tree) -> Tree:
        """Keep the client's prediction in its state, for its owner only."""
        client.state["prediction"] = torch.softmax(self.party.logits(client, message), -1)
        return {}
