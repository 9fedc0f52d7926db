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

`client.state` holds "w", "share", "at" for concatenation (see `vertical.aggregation`), "optimizer", the state of the
party's optimizer if it has any, and the draw of `LabelRelease`. Within a round its "round" holds:

    "key", "batch"       the key of the client's randomness and the common one of the mini-batch
    "minibatch", "real"  the mini-batch
    "nodes"              the exchanged lists of nodes, by cut
    "below"              the samples of `Split.sample` below the list above a segment
    "sent"               the client's last message
    "others"             the other clients' contributions, by cut
    "received"           the whole aggregates, by cut (where gradients are exchanged)
    "kept"               the first segment's further outputs for the lowest list
    "grads", "pulled"    gradients with respect to weights and "kept"
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad, vjp

from fedweave.algorithms.parts.training import ClassWeights, OptimizerName, criterion_of
from fedweave.algorithms.scoring import SCORES, pairs_of
from fedweave.algorithms.vertical.aggregation import (
    AGGREGATIONS,
    PREDICTIONS,
    ROWS,
    WORDS,
    Concat,
    Mean,
    RowRelease,
    SecureMean,
    check_finite,
    in_words,
    tally_cut,
    union,
)
from fedweave.algorithms.vertical.declared import BACK, ENDS_THERE, EVERY_ROW, FACTS, HEARS, LISTED_ROWS, LOGITS, SLOPE
from fedweave.algorithms.vertical.labels import SLOPES, LabelRelease
from fedweave.algorithms.vertical.split import Split, cuts, draw, error, exchanged_nodes, labeled_nodes, sample_below
from fedweave.core import random
from fedweave.core.algorithm import Algorithm, Calls, Capabilities, Evaluation
from fedweave.core.bounds import Between, ClipNorm, Count, CountOrNone, NonNegative, Positive, Share, Steps
from fedweave.core.federation import Client, Declaration, Federation, Sends, on_client
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.ranges import Whole
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, leaves, map_leaves
from fedweave.core.types import Record
from fedweave.errors import CallRefused, UserError
from fedweave.learn import OPTIMIZERS, Fit, Optimizer, fit
from fedweave.learn.recording import record_part
from fedweave.ops.rows import gather_rows
from fedweave.privacy.gaussian import GaussianRows
from fedweave.privacy.secure_sum import cut_counts
from fedweave.sampling.neighborhoods import find_places, sort_distinct

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
    edges:       "own" for each client's edges, or "none" for none (A = I).
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
        aggregated = self.split.cuts
        if self.backward == "exchanged" and (self.steps > 1 or self.sigma > 0 or not aggregated):
            raise ValueError(
                f"backward = 'exchanged' sends gradients back through the exchanges: it needs steps = 1 (here "
                f"{self.steps}), sigma = 0 (here {self.sigma:g}) and an aggregated layer; or take 'frozen'"
            )
        if self.aggregation == "concat" and self.ends_in_exchange:
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
    def how(self) -> Mean | Concat:
        """How the server aggregates."""
        return SecureMean() if self.secure_sum else AGGREGATIONS[self.aggregation]

    @cached_property
    def split(self) -> Split:
        """The model's segments between exchanges."""
        return Split(self.model, self.cuts, self.how.wider, self.fan_out, self.edges == "own")

    @cached_property
    def release(self) -> RowRelease:
        """How representations leave a client."""
        key = PREDICTIONS if self.ends_in_exchange else ROWS
        return RowRelease(GaussianRows(self.clip, self.sigma, self.delta), self.secure_sum, key)

    @cached_property
    def labels(self) -> LabelRelease:
        """The labels that a client trains on."""
        return LabelRelease(self.label_epsilon)

    criterion = cached_property(criterion_of)

    @property
    def sampling(self) -> list[int]:
        """The segments above an aggregated layer that sample neighbors, from the last."""
        return [s for s in range(self.split.last, 0, -1) if self.batch and self.split.hops(s)]

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
    def ends_in_exchange(self) -> bool:
        """Whether the last aggregate is the logits, because no layer follows it. Then every receiver, including the
        server, reads the joint prediction of each node."""
        return self.cuts[-1:] == (len(self.model) - 1,)

    @property
    def notes(self) -> list[str]:
        return [ENDS_THERE] if self.ends_in_exchange else []

    def _sends(self, what: str) -> Declaration:
        return self.release.sends(what + (LOGITS if self.ends_in_exchange else ""))

    def _hears(self) -> dict[str, str]:
        """What a party learns where the last aggregate may be in the message. With secure aggregation all parties get
        it, else only those with labels."""
        if self.ends_in_exchange:
            what = "the class scores of the nodes, whose softmax is the joint prediction of each"
        else:
            what = "the joint representation after the last exchange, made of all parties' representations"
        return HEARS | {"h": what if self.secure_sum else f"where the party has labels, {what}; else nothing"}

    def min_examples(self, graph: Graph, message: Tree) -> dict[str, int]:
        """{settings: fewest train nodes of a mini-batch} at a client. Waits for the graph's device."""
        count, labeled = int(graph.masks[TRAIN].sum()), int(labeled_nodes(graph).sum())
        fewest = min(self.batch or count, count)
        if 0 < labeled < count:  # a mini-batch may have any number of nodes without labels in it
            fewest = max(1, fewest - (count - labeled)) if self.batch else labeled
        return {f"{type(self).__name__} (batch)": fewest}

    def init(self, fed: Federation) -> Tree:
        """{"holders": {client: 1 if it has labels, else 0}, "nodes": number} and, if the rate decays, "rounds"."""
        share = torch.tensor(1 / len(fed.clients), dtype=fed.dtype, device=fed.device)
        each = {client: {"at": i} for i, client in enumerate(fed.clients)} if self.how.wider else None
        replies = fed.map(self.begin, {"clients": len(fed.clients), "share": share, "tail": fed.key("tail")}, each)
        facts = dict(zip(fed.clients, replies, strict=True))
        if len(replies.stack("nodes").unique()) > 1:
            sizes = ", ".join(f"{client} {int(reply['nodes'])}" for client, reply in facts.items())
            raise UserError(
                f"{type(self).__name__} needs clients with the same nodes, but they hold {sizes}; set partition.name = "
                "'vertical' or 'parties'.",
                code="user.nodes-differ",
            )
        first = fed.clients[0]
        different = [client for client, reply in facts.items() if reply["masks"] != facts[first]["masks"]]
        if different:
            raise UserError(
                f"{type(self).__name__} needs clients that use their nodes alike, but {', '.join(different)} train, "
                f"validate or test on others than {first}; give every party's nodes the same split.",
                code="user.splits-differ",
            )
        holders = [client for client, reply in facts.items() if reply["labels"]]
        # A client without labels cannot train on its own; with others it follows their gradient.
        if not holders or (len(holders) < len(fed.clients) and self.cuts and not self.split.predicts_per_node):
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
        state: Tree = {"holders": {client: int(client in holders) for client in fed.clients}, "nodes": nodes}
        return state | {"rounds": 0} if self.decay_every else state

    @on_client(sends=FACTS, hears=HEARS)
    def begin(self, client: Client, message: Tree) -> Tree:
        """Line 3 of algorithm 1 at t = 0; the reply shows whether the clients hold the same nodes."""
        graph, state = client.graph, client.state
        state |= {"share": message["share"]}
        if self.how.wider:
            state["at"] = message["at"]
        key, tail = random.fold(client.key, "init"), random.fold(message["tail"], "init")
        state["w"] = self.split.init(key, tail, message["clients"], graph.x.dtype)
        use = (graph.masks * torch.arange(1, 4, device=graph.device)[:, None]).sum(0)  # [n], 1 train, 2 val, 3 test
        public = torch.zeros((), dtype=torch.int64, device=graph.device)
        fingerprint = (random.bits(public, len(use)) * use).sum()
        return {"nodes": graph.real.sum(), "masks": fingerprint, "labels": labeled_nodes(graph).any().long()}

    @on_client(sends=lambda glasu: glasu.labels.draw_sends())
    def draw(self, client: Client, message: Tree) -> Tree:
        return self.labels.draw(client)

    def calls(self, clients: int) -> Calls:
        """The steps for one segment of the model after the other."""
        last = self.split.last
        forward = (self.sample,) * len(self.sampling) + (self.infer,) * last
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
        split, sums = self.split, list[Tensor]()
        message: Tree = {"batch": fed.key("batch")}
        # 1. Forward: the mini-batch's nodes from the last segment to the first, then representations back up.
        for segment in self.sampling:  # algorithm 2
            lists = fed.map(self.sample, message | {"segment": segment})
            message = {"nodes": union(lists, state["nodes"]), "cut": segment}
        for segment in range(split.last):  # algorithm 3
            replies = fed.map(self.infer, message | {"segment": segment})
            message = {"h": self._aggregate(fed, replies, sums)}
            if self.secure_sum:
                state = tally_cut(state, replies, message["h"], WORDS)
        rate: Tree = {}
        if self.decay_every:
            rate = {"lr": self.lr * self.decay ** (state["rounds"] // self.decay_every)}
            state = state | {"rounds": state["rounds"] + 1}
        # 2. Algorithm 6: the mean gradient of the label holders with respect to H[L], by secure aggregation if several.
        holders = [client for client in fed.clients if state["holders"][client]]
        if self.backward == "exchanged" or (self.cuts and len(holders) < len(fed.clients)):
            if self.secure_sum and len(holders) > 1:
                pulls = fed.map(self.pull_sum, message)
                message["gradient"] = SLOPES.decode(pulls.total("gradient"), fed.dtype) / len(holders)
                state = tally_cut(state, pulls, message["gradient"], SLOPES)
            else:
                pulls = fed.map(self.pull, message, clients=holders)
                equal = torch.full((len(pulls),), 1 / len(pulls), dtype=torch.float64, device=fed.device)
                message["gradient"] = pulls.weighted_sum("gradient", equal)
        # 3. Local steps.
        if self.backward == "frozen":
            fed.map(self.update, *self._address(message | rate, state))  # algorithms 4 and 7
            check_finite(sums)
            return state
        # 4. Or backward through every aggregation (section 3.1), to a step at the first segment, which gets the rate.
        for segment in reversed(range(split.last)):
            down = message | {"segment": segment} | ({} if segment else rate)
            replies = fed.map(self.back, *self._address(down, state))
            if segment:
                message = {"gradient": replies.weighted_sum("gradient", torch.ones(len(replies), device=fed.device))}
        check_finite(sums)
        return state

    def _address(self, message: Tree, state: Tree) -> tuple[Tree, dict[str, Tree] | None]:
        """The message for all clients, and the parts for each. Clients without labels get no row of the last aggregate,
        because they train only by the gradient with respect to it and predict nothing. With secure aggregation all get
        the same message, otherwise a sum does not open."""
        if self.secure_sum or "h" not in message or all(state["holders"].values()):
            return message, None
        h, rest = message["h"], {key: value for key, value in message.items() if key != "h"}
        return rest, {client: {"h": h if holds else h[:0]} for client, holds in state["holders"].items()}

    def counts(self, state: Tree) -> dict[str, float]:
        return cut_counts(state.get("cut"))

    @on_client(
        sends={
            "nodes": Sends("the mini-batch's nodes and their sampled neighbors in the client's graph", within=Whole())
        },
        hears=HEARS,
    )
    def sample(self, client: Client, message: Tree) -> Tree:
        """Algorithm 2 down to the next aggregated layer: S_m, int32, rising, padded with its first node to the largest
        possible length."""
        now, segment, graph = self._receive(client, message), message["segment"], client.graph
        below = sample_below(self.split, graph, now, segment)
        now["below"] = now.get("below", {}) | {str(segment): below}
        targets = len(exchanged_nodes(now, segment + 1))
        max_nodes = min(len(graph.y), targets * (1 + self.split.fan_out) ** len(self.split.hops(segment)))
        return {"nodes": sort_distinct(below["nodes"], len(graph.y), max_nodes).to(torch.int32)}

    @on_client(sends=lambda glasu: glasu._sends(LISTED_ROWS), hears=HEARS)
    def infer(self, client: Client, message: Tree) -> Tree:
        """Algorithm 3 up to the next aggregated layer: H+_m for all nodes of the list."""
        now, segment = self._receive(client, message), message["segment"]
        inputs = self._segment_inputs(client.graph, now, segment, client.state["w"], message.get("h"))
        outputs = record_part(self._segment, client.graph, _in_local_order(inputs))
        nodes = exchanged_nodes(now, segment + 1) if self.batch else None
        result = map_leaves(lambda out: out if nodes is None else out[: len(nodes)], outputs)
        if segment == 0:
            now["kept"] = result["kept"]
        now["sent"] = self.release.add_noise(client, result["h"], nodes)
        return self.release.encode(client, now["sent"])

    @on_client(sends=lambda glasu: glasu.labels.sends(SLOPE), hears=lambda glasu: glasu._hears())
    def pull(self, client: Client, message: Tree) -> Tree:
        """Algorithm 6, lines 15 and 16: the gradient of the client's loss with respect to H[L]."""
        loss, w = self._prediction_loss(client), client.state["w"]
        h = _zeros_if_empty(message["h"], len(client.state["round"]["sent"]))  # H[L]
        return {"gradient": grad(lambda h: loss(w, h))(h)}

    @on_client(sends=lambda glasu: glasu.labels.sends_in_sum(SLOPE), hears=lambda glasu: glasu._hears())
    def pull_sum(self, client: Client, message: Tree) -> Tree:
        """`pull` as a term of secure aggregation over all clients, 0 without labels."""
        gradient = self.pull(client, message)["gradient"] * labeled_nodes(client.graph).any()
        return in_words(SLOPES, "gradient", gradient, client.state["share"])

    @on_client(hears=lambda glasu: glasu._hears())
    def update(self, client: Client, message: Tree) -> Tree:
        """Q times algorithm 4, or 7, with the others' unchanged representations; sends nothing."""
        now, graph, state = self._receive(client, message), client.graph, client.state
        args: Tree = {name: now[name] for name in ("minibatch", "real", "others") if name in now}
        args |= {name: state[name] for name in ("at", "share") if name in state} | self.labels.random_words(client)
        # 1. The sample for only the client's mini-batch; from segment `top` on it was already drawn.
        if self.batch:
            top = next(iter(self.sampling), self.split.last + 1)
            above = now["below"][str(top)] if top <= self.split.last else {"nodes": now["minibatch"], "hops": {}}
            below = self.split.sample(graph, range(top - 1, -1, -1), above["nodes"], now["key"], above.get("filled"))
            below["hops"] = above["hops"] | below["hops"]
            args["below"] = {"nodes": below["nodes"], "hops": below["hops"]}
            args["others"] = {}
            for cut, rows in now.get("others", {}).items():
                nodes = self.split.outputs(int(cut) - 1, below)
                place = find_places(nodes, exchanged_nodes(now, int(cut)), len(graph.y))
                args["others"][cut] = gather_rows(rows, place)
        # 2. Clients without labels train by the gradient of J with respect to H[L].
        if "gradient" in message:
            args["gradient"] = message["gradient"] * ~labeled_nodes(graph).any()
        # 3. Q steps.
        keys = self._tail_keys(now, torch.arange(self.steps, device=graph.device))
        fitted = fit(
            self._loss, state["w"], graph, client.key, self._optimizer(message), self.steps,
            state=state.get("optimizer"), args=args, batches={"tail": keys},
        )  # fmt: skip
        _store_fit(state, fitted)
        del state["round"]
        return {}

    @on_client(sends={"gradient": BACK}, hears=lambda glasu: glasu._hears())
    def back(self, client: Client, message: Tree) -> Tree:
        """The backward pass of section 3.1 down to the next aggregated layer; a step at the end of it."""
        now, segment, w = client.state["round"], message["segment"], client.state["w"]
        # 1. At the last aggregate, the gradient of the client's loss with respect to the prediction's weights.
        if "h" in message:
            loss, tail = self._prediction_loss(client), self.split.segment_weights(w, self.split.last)
            h = _zeros_if_empty(message["h"], len(now["sent"]))
            now["grads"] = grad(lambda tail: loss(tail, h))(tail) if tail else {}
        # 2. Back through the segment: from H above it to its weights, input and the first segment's further outputs.
        inputs = self._segment_inputs(client.graph, now, segment, w, now["received"][str(segment)] if segment else None)
        free: Tree = {name: inputs[name] for name in ("w", "h", "kept") if inputs[name] is not None}
        count = len(exchanged_nodes(now, segment + 1)) if self.batch else None

        def outputs(free: Tree) -> Tree:
            return map_leaves(lambda out: out[:count], self._segment(client.graph, _in_local_order(inputs | free)))

        out, pull, *_ = vjp(outputs, free)
        above = self.how.back(message["gradient"], client.state.get("at"), client.state["share"], out["h"].shape[1])
        above_kept = {} if segment else now.get("pulled") or map_leaves(torch.zeros_like, out["kept"])
        grads = pull({"h": above, "kept": above_kept})[0]
        now["grads"] |= grads["w"]
        if segment:
            more = grads["kept"]
            now["pulled"] = map_leaves(torch.add, now["pulled"], more) if "pulled" in now else more
            return {"gradient": grads["h"]}
        # 3. At the first segment, a step along the whole gradient.
        lr, optimizer, state = self._rate(message), self._optimizer(message), client.state.get("optimizer")
        if optimizer.moments:
            slopes = {"slopes": now["grads"]}
            _store_fit(client.state, fit(_linear, w, client.graph, client.key, optimizer, 1, state=state, args=slopes))
        else:  # keeps earlier results bit for bit
            client.state["w"] = map_leaves(lambda w, s: w - lr * (s + self.weight_decay * w), w, now["grads"])
        del client.state["round"]
        return {}

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        message, sums = self._predictions_message(fed)
        scores = fed.map(self.score, *self._address(message, state))
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
        for segment in range(self.split.last):
            replies = fed.map(self.infer_full, message | {"segment": segment})
            message = {"h": self._aggregate(fed, replies, sums)}
            counts = self.counts(tally_cut({}, replies, message["h"], WORDS)) if self.secure_sum else {}
            if counts:
                _log.warning("note: secure aggregation cut %(secure_sum/cut)d values for predictions", counts)
        return message, sums

    def _aggregate(self, fed: Federation, replies: Replies, sums: list[Tensor]) -> Tensor:
        """The aggregate H of the clients' representations; adds its sum to `sums`."""
        h = self.how.aggregate(replies, self.release.key, fed.dtype)
        sums.append(h.sum(dtype=torch.float64))
        return h

    @on_client(sends=lambda glasu: glasu._sends(EVERY_ROW), hears=HEARS)
    def infer_full(self, client: Client, message: Tree) -> Tree:
        """Joint inference on the full graph up to the next aggregated layer."""
        segment, state = message["segment"], client.state
        # At the first segment, "kept" is from an earlier evaluation.
        h, side_outputs = (message["h"], state.get("kept")) if segment else (client.graph.x, None)
        out, side_outputs = self.split.run(segment, state["w"], client.graph, h, first_outputs=side_outputs)
        if segment == 0:
            state["kept"] = side_outputs
        return self.release.encode(client, self.release.add_noise(client, out))

    @on_client(
        sends={name: SCORES[name] for name in ("own", "own/classes", "own/groups", "own/group_auc")},
        hears=lambda glasu: glasu._hears(),
    )
    def score(self, client: Client, message: Tree) -> Tree:
        graph = client.graph
        logits = self._logits(client, message)
        sorts = client.ranks != "none"
        return {"own": pairs_of(logits, graph.y, graph.masks & (graph.y >= 0), graph.sensitive, ranks=sorts)}

    @on_client(hears=lambda glasu: glasu._hears())
    def predict_proba(self, client: Client, message: Tree) -> Tree:
        """Keep the client's prediction in its state, for its owner only."""
        client.state["prediction"] = torch.softmax(self._logits(client, message), -1)
        return {}

    def _logits(self, client: Client, message: Tree) -> Tensor:
        """The client's prediction for all nodes [n, c], after `infer_full`."""
        h = _zeros_if_empty(message["h"], len(client.graph.y)) if self.split.cuts else client.graph.x
        side_outputs = client.state.pop("kept", None)
        return self.split.run(self.split.last, client.state["w"], client.graph, h, first_outputs=side_outputs)[0]

    def _optimizer(self, message: Tree) -> Optimizer:
        """The optimizer with the learning rate of the message."""
        return OPTIMIZERS[self.optimizer](self._rate(message), self.weight_decay)

    def _rate(self, message: Tree) -> float:
        """The learning rate, which the server may only lower, and only if it decays. With any other length, or a
        negative one, the server could write chosen values into the weights."""
        rate = float(message.get("lr", self.lr))
        lowest = 0.0 if self.decay_every else self.lr
        if not lowest <= rate <= self.lr:
            allowed = f"from 0 to {self.lr:g}" if self.decay_every else f"{self.lr:g}, as algorithm.decay_every is 0"
            raise CallRefused(f"lr is {rate:g} in the message, and may be {allowed}; send the value of algorithm.lr")
        return rate

    def _receive(self, client: Client, message: Tree) -> Tree:
        """The round's state with the message's contents; H_{-m} = Extract(H, H+_m)."""
        state = client.state
        if "batch" in message:
            minibatch = draw(client.graph, message["batch"], self.batch)
            state["round"] = {"key": client.key, "batch": message["batch"]} | minibatch
        now: Tree = state["round"]
        if "nodes" in message:
            now["nodes"] = now.get("nodes", {}) | {str(message["cut"]): message["nodes"]}
        if "h" in message:
            cut = str(message.get("segment", self.split.last))
            h = _zeros_if_empty(message["h"], len(now["sent"]))
            if self.backward == "exchanged":
                now["received"] = now.get("received", {}) | {cut: h}
            else:
                rest = self.how.extract(h, now["sent"], state.get("at"), state["share"])
                now["others"] = now.get("others", {}) | {cut: rest}
        return now

    def _segment_inputs(self, graph: Graph, now: Tree, segment: int, w: Tree, h: Tensor | None) -> Tree:
        """The inputs of `_segment`, before `_in_local_order`, for the nodes of the list above a segment (the first of
        its outputs) from the received h."""
        tail = segment == self.split.last and self.split.cuts
        inputs: Tree = {
            "segment": segment,
            "w": self.split.segment_weights(w, segment),
            "h": h,
            "kept": now.get("kept", {}) if segment else {},
            "drop": self._tail_keys(now, torch.zeros_like(now["batch"])) if tail else random.fold(now["key"], "joint"),
        }
        if self.batch:
            below = now.get("below", {}).get(str(segment)) or sample_below(self.split, graph, now, segment)
            inputs["below"] = below
            if segment:
                inputs["places"] = {
                    "h": find_places(below["nodes"], exchanged_nodes(now, segment), len(graph.y)),
                    "kept": find_places(below["nodes"], exchanged_nodes(now, 1), len(graph.y)),
                }
        return inputs

    def _segment(self, graph: Graph, inputs: Tree) -> Tree:
        """{"h": a segment's output, "kept": further outputs of the first segment}."""
        segment, below = inputs["segment"], inputs.get("below", {})
        h = inputs["h"] if segment else self.split.first(graph, below.get("nodes"))
        out, side_outputs = self.split.run(
            segment, inputs["w"], graph, h, below.get("hops"), inputs["kept"], inputs["drop"]
        )
        return {"h": out, "kept": {} if segment else map_leaves(lambda rows: rows[: len(out)], side_outputs)}

    def _tail_keys(self, now: Tree, step: Tensor) -> Tensor:
        """The RNG key of the prediction's dropout in a step, the same at all clients."""
        return random.fold(now["batch"], "tail", step)

    def _prediction_loss(self, client: Client) -> Callable[[Tree, Tensor], Tensor]:
        """(w, H[L]) -> the client's loss; 0 without labels."""
        graph, now = client.graph, client.state["round"] | self.labels.random_words(client)
        inputs = self._segment_inputs(graph, now, self.split.last, {}, None)

        def loss(w: Tree, h: Tensor) -> Tensor:
            outputs = self._segment(graph, _in_local_order(inputs | {"w": w, "h": h}))
            return self._error(outputs["h"], graph, now)

        return loss

    def _error(self, logits: Tensor, graph: Graph, args: Tree) -> Tensor:
        """The loss; args: the mini-batch, and the draw of labels."""
        labels = self.labels.training_labels(graph.y, logits.shape[-1], args)
        return error(logits, labels, graph, args, self.criterion)

    def _loss(self, w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        """Algorithm 4, lines 2-11; algorithm 7, line 14, if the client has no labels.

        args: entries of the round's state by the same names, with "below" and "others" for only its mini-batch;
        "tail", the keys of the prediction; "at" and "share"; the draw of `labels`; and "gradient" with respect to H[L],
        for clients without labels.
        """
        split, below, side_outputs = self.split, args.get("below", {}), None
        h, hops = split.first(graph, below.get("nodes")), below.get("hops")
        for segment in range(split.last):
            output, side_outputs = split.run(segment, w, graph, h, hops, side_outputs, key)
            h = self.how.join(args["others"][str(segment + 1)], output, args.get("at"), args["share"])
        logits, _ = split.run(split.last, w, graph, h, hops, side_outputs, args["tail"] if split.cuts else key)
        loss = self._error(logits, graph, args)
        return loss + (args["gradient"] * h).sum() if "gradient" in args else loss


def _store_fit(state: Tree, fitted: Fit) -> None:
    """Put the trained weights into a client's state and, if the optimizer has any, its own state."""
    state["w"] = fitted.w
    if fitted.state:
        state["optimizer"] = fitted.state


def _zeros_if_empty(h: Tensor, rows: int) -> Tensor:
    """An aggregate as input of a client: zeros if the client got no row of it; results from these are multiplied by
    0."""
    return h if len(h) else h.new_zeros(rows, h.shape[1])


def _linear(w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
    """A loss with the gradient `args["slopes"]`, so that `fit` takes a step along a known gradient."""
    slopes = dict(leaves(args["slopes"]))
    return torch.stack([(slopes[path] * leaf).sum() for path, leaf in leaves(w)]).sum()


def _in_local_order(inputs: Tree) -> Tree:
    """Inputs in the order of a segment's own nodes, from the order of the exchanged lists."""
    result = {name: value for name, value in inputs.items() if name != "places"}
    for name, place in inputs.get("places", {}).items():
        rows = partial(gather_rows, index=place)
        result[name] = map_leaves(rows, inputs[name]) if isinstance(inputs[name], dict) else rows(inputs[name])
    return result
