"""The FedAvg family: McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data",
algorithm 1, as one ordered list of parts.

Clients send updates Δ_i = w_i − w_t, and the server adds their weighted sum to its weights; with weights n_i / Σ n_k
that is FedAvg. Deviations: optimizers other than SGD are allowed, and their state is kept at the client from round to
round; a local step takes all of a client's training examples unless batch_size is set or a part draws mini-batches.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedweave.algorithms import trials
from fedweave.algorithms.deployment import Deployable
from fedweave.algorithms.participation import places, sample
from fedweave.algorithms.parts import BySize, Composition, Context, Objective, Part, Uniform, has
from fedweave.algorithms.parts.composition import GLOBAL
from fedweave.algorithms.parts.names import by_name, parse_parts
from fedweave.algorithms.parts.pace import Schedule, pace_parts
from fedweave.algorithms.parts.secure_sum import join_secure_sum
from fedweave.algorithms.parts.server import ServerHooks, memory_of
from fedweave.algorithms.parts.settings_rules import (
    TrainingSettings,
    check_exchange,
    check_links,
    check_settings,
    training_notes,
)
from fedweave.algorithms.parts.training import ClassWeights, OptimizerName, OptimizerState, Training
from fedweave.algorithms.score_sums import SumsScores, totals
from fedweave.algorithms.scoring import PERSONAL_SCORES, SCORES, on_global_test, personal_score, score
from fedweave.core import model as models
from fedweave.core.algorithm import Calls, Capabilities, Evaluation
from fedweave.core.bounds import BelowOne, Between, CountOrNone, NonNegative, Positive, Share, Steps
from fedweave.core.federation import DATA, Client, Federation, Step, on_client
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.graph_arrays import graph_like
from fedweave.core.model import Model
from fedweave.core.plugins import maker_of
from fedweave.core.replies import Stacked
from fedweave.core.settings import Beside
from fedweave.core.shown import line
from fedweave.core.tree import Tree, leaves, map_leaves, nest, scale
from fedweave.errors import ConfigError
from fedweave.learn import NumberLoss, keep_trained
from fedweave.partition.precompute import Precompute

_EXCHANGES = ("init", "setup", "download", "report")  # hooks that exchange values between clients and server


@dataclass(frozen=True)
class LocalTraining(Deployable):
    """The settings of an algorithm whose clients train by steps on their own examples.

    A class whose clients share nothing turns the settings for sharing into class variables (`algorithms.local`).

    local_steps:     optimizer steps per round, each on all of a client's training examples.
    optimizer:       optimizer of the local training.
    lr:              learning rate of the local training.
    weight_decay:    weight decay of the local training; by default 5e-4, and 0 if links are the examples.
    optimizer_state: optimizer state, "kept" at the client from round to round, or "fresh" in each round.
    schedule:        schedule of the learning rate over the run's rounds: "constant", "linear" (to 0), "cosine" (to 0),
                     or "step" (a tenth from half of the rounds on, a hundredth from three quarters on).
    warmup:          rounds before the schedule in which the rate grows in equal steps to lr.
    local_epochs:    passes over a client's training examples instead of local_steps; 0 takes local_steps.
    batch_size:      training examples per step; each pass takes every example once; 0 for all. Messages to nodes pass
                     along the whole graph.
    clip_gradient:   largest norm of a step's gradient; 0 for no limit.
    local_momentum:  momentum of sgd and rmsprop.
    nesterov:        whether sgd's momentum is Nesterov's.
    betas:           decay rates of the moments of adam and adamw.
    class_weight:    weights of classes: "none", "balanced" (n / (C n_c) from a client's own training examples; the
        counts stay at the client), a number for each class, or a table by name such as {fraud = 30.0}, 1 for the
        others.
    focal:           gamma of the focal loss; 0 for none.
    logit_adjustment: tau of the logit adjustment by the client's own shares of the classes; 0 for none.
    number_loss:     loss for numbers as targets: "mse", "mae", "huber" or "quantile", in units of training examples.
    quantile:        the quantile for number_loss = "quantile", such as 0.9.
    """

    model: Model
    local_steps: Steps = 3
    optimizer: OptimizerName = "adam"
    lr: Positive = 0.01
    weight_decay: NonNegative | None = None
    optimizer_state: OptimizerState = "kept"
    participation: Share = 1.0
    quorum: Share = 1.0
    share: tuple[str, ...] = ("*",)
    parts: tuple[Part, ...] = ()
    class_weight: ClassWeights = "none"
    focal: NonNegative = 0.0
    logit_adjustment: NonNegative = 0.0
    scores: Literal["each", "sum"] = "each"
    number_loss: NumberLoss = "mse"
    quantile: Annotated[Between, Beside("number_loss", "quantile")] = 0.5
    schedule: Schedule = "constant"
    warmup: CountOrNone = 0
    local_epochs: CountOrNone = 0
    batch_size: CountOrNone = 0
    clip_gradient: NonNegative = 0.0
    local_momentum: BelowOne = 0.0
    nesterov: bool = False
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)

    @property
    @abstractmethod
    def objective(self) -> Objective:
        """The local objective and its training."""

    @property
    def paced(self) -> tuple[Part, ...]:
        """The parts for the pace of the training."""
        return pace_parts(self.schedule, self.warmup, self.local_epochs, self.batch_size)

    def min_examples(self, graph: Graph, message: Tree) -> dict[str, int]:
        """{part and settings: fewest training examples of a step} at a client (`Objective.min_examples`)."""
        return self.objective.min_examples(graph)


@dataclass(frozen=True)
class FedAvg(LocalTraining, SumsScores):
    """Weighted averaging of local updates, made of exchangeable parts (see `algorithms.parts`).

    Source: McMahan et al. 2017, algorithm 1.

    participation:   share of the clients sampled per round, at least one.
    quorum:          share of the sampled clients that must reply.
    share:           patterns of the weights that clients share, such as "0/*" for the first layer or "-1/*" for the
        last one; other weights stay at the client. Empty, (), if parts exchange other values, such as prototypes.
    parts:           terms of the objective, weights of updates, protection and so on; by default cross_entropy and
        by_size, or uniform with a part for robust aggregation. In Python also names, or tables of a name and settings,
        instead of objects.
    scores:          the server learns the global model's scores at "each" client, or only their "sum" over all clients
        by secure aggregation.

    Example:
        model = fedweave.models.GCN(hidden=64).build(data.features, data.classes)
        algorithm = fedweave.algorithms.FedAvg(model, local_steps=3, lr=0.01)
        fed = fedweave.federation(data, cut, algorithm, seed=0)
    """

    recorded = True

    capabilities: ClassVar[Capabilities] = Capabilities(
        links=True, crossing=True, evaluation=("score", "score_personal", "score_sum")
    )

    def __post_init__(self) -> None:
        self.take_model()
        parts = parse_parts(self.parts)
        object.__setattr__(self, "parts", join_secure_sum(parts, parts))
        check_settings(by_name(self.composed), self._settings)
        if not self.share:
            check_exchange(by_name(self.composed))
        check_links(by_name(self.objective.parts), self.model)  # `objective` checks that the model can be trained
        fixed = self.composed.uses_received and not self.composed.changes  # the received model, on data as loaded
        self.check_scores(self._one_model and fixed)
        peer_part = self.composed.peer_part
        if peer_part and (self.scores == "sum" or not (self.evaluates_one_model and fixed)):
            raise ConfigError(
                f"parts: {peer_part} compares the embeddings of one global model at different clients, each with its "
                "own scores. Leave out parts that give clients different models or change data, and scores = 'sum'.",
                code="config.foreign-ends",
            )

    def __repr__(self) -> str:
        maker = maker_of(self)  # a preset shows its own name and values
        if maker is None:
            return super().__repr__()
        name = getattr(getattr(maker.plugin, "paper", None), "__name__", type(self).__name__)
        return line(name, maker.arguments[0], [repr(self.model)])

    @property
    def needs(self) -> Capabilities:
        data, measures = list[str](), list[str]()
        for part in self.composed.values():
            data += part.needs.data
            measures += part.needs.measures
        return replace(self.capabilities.with_data(data), measures=tuple(measures))

    @property
    def rounds_vary(self) -> bool:
        return self.participation < 1  # then clients are sampled

    @property
    def max_rounds(self) -> int | None:
        return self.composed.max_rounds

    @property
    def notes(self) -> list[str]:
        return list(training_notes(by_name(self.composed), self._settings))

    @property
    def _settings(self) -> TrainingSettings:
        # Settings that change the number of steps or the learning rate.
        pace: dict[str, object] = {
            "local_epochs": self.local_epochs,
            "local_momentum": self.local_momentum,
            "schedule": self.schedule,
        }
        if self.schedule == "constant":
            pace["schedule"] = "constant with warmup" if self.warmup else ""
        # The setting with which clients train from values of earlier messages.
        remembers = ""
        if self._has_local_weights:
            remembers = "what clients keep of their own model (share = ['*'] keeps nothing)"
        elif self.optimizer_state == "kept" and self.objective.training.update_rule.moments:
            remembers = "optimizer_state = 'kept' (take 'fresh')"
        # Where running statistics of batch norm are.
        statistics: Literal["any", "home", "none"] = "none"
        for path in models.statistics(self.model):
            shared = models.matches(self.model, path, self.share)
            if shared and not models.matches(self.model, path, self.composed.private):
                statistics = "any"
            elif statistics == "none":
                statistics = "home"
        return TrainingSettings(
            share=self.share != ("*",) or bool(self.composed.private),
            local_weights=self._has_local_weights,
            remembers=remembers,
            participation=self.participation,
            optimizer=self.optimizer,
            lr=self.lr,
            one_step=self.local_steps == 1 and not self.local_epochs and not self.composed.owner("start"),
            pace={name: value for name, value in pace.items() if value},
            statistics=statistics,
        )

    @property
    def _reads_last_weights(self) -> bool:
        """Whether clients train from, or are evaluated with, the weights of their earlier training. Only then clients
        without training examples store the received weights as their own. Otherwise `last_trained` replaces them,
        because every client would have to keep all weights instead of only the rows that its features touch."""
        return self._has_local_weights or any(map(self.composed.owner, ("start", "personalize")))

    @cached_property
    def composed(self) -> Composition:
        """The parts by name, with default parts for hooks that no part decides."""
        weigh = Uniform() if any(part.needs.alike for part in self.parts) else BySize()
        defaults = {"weigh": weigh} if self.share else {}  # of updates
        return Composition.of((*self.parts, *self.paced), defaults, self.model, self.batch_size)

    @property
    def paced(self) -> tuple[Part, ...]:
        return join_secure_sum(self.parts, super().paced)

    @cached_property
    def objective(self) -> Objective:
        return Objective(self.composed, Training.of(self, self.trained))

    @cached_property
    def trained(self) -> Model:
        """The model with the parts' layers, as clients train it."""
        return self.composed.layers(self.model)

    @property
    def net(self) -> Model:
        """The model that clients use on their data: `trained`."""
        return self.trained

    @property
    def finders(self) -> tuple[Precompute, ...]:
        return self.composed.finders

    @cached_property
    def test_net(self) -> Model:
        """The model with the parts' layers on the global test graph."""
        return self.composed.layers(self.model, on_clients=False)

    # Server

    def init(self, fed: Federation) -> Tree:
        """w_0, or a copy of it for every client, or the key that clients draw it from; and the parts' states."""
        whole = models.init(self.trained, fed.key("init"), fed.dtype)
        w, paths = fed.start_weights(self._shared(whole)), [path for path, _ in leaves(whole)]
        missing: list[object] = []
        for pattern in self.share:
            if not any(models.matches(self.net, path, [pattern]) for path in paths):
                missing.append(pattern)
        if self.share and not w:
            missing.append(list(self.share))
        if whole and missing:
            message = f"share: {missing[0]!r} names no weight of the model; it has {', '.join(paths)}."
            raise ConfigError(message, code="config.share")
        state: Tree = {"parts": self.composed.init(fed, w)}
        w = self.composed.first_weights(self.trained, state["parts"], w)
        self._exchange(w, fed)
        if self._has_local_weights:
            state["init"] = fed.key("init")
        if not self.composed.personal:
            state["w"] = w
        elif not self.composed.owner("receive"):
            state["own"] = fed.start_weights(w, fed.clients)
        return state

    def round(self, state: Tree, fed: Federation) -> Tree:
        """w_{t+1} = w_t + Σ_i weight_i · Δ_i over the sampled clients that replied."""
        # 1. Clients' data may change.
        if self.composed.changes:
            fed.replace_data(self.change, quorum=self.quorum)
        # 2. A sample of clients trains.
        clients = sample(fed, self.participation)
        messages = self._download(state, clients, fed, self.composed)
        replies = fed.map(self.train, *messages, clients=clients, quorum=self.quorum)
        packing = self.composed.packing
        if packing is not None:
            like = state["w"] if "w" in state else map_leaves(lambda leaf: leaf[0], state["own"])
            replies = packing.unpack(replies, like)
        # 3. The server takes its step.
        state = state | self._server.after(state, replies, fed, partial(trials.try_out, fed, self.try_out))
        self._exchange(state.get("w", {}), fed)
        return state

    def _exchange(self, w: Tree, fed: Federation) -> None:
        """Let clients send each other a part's values for the global weights, if a part has such."""
        if self.composed.peer_part:
            peers = {}
            for client in fed.clients:
                peers[client] = [peer for peer in fed.clients if peer != client]
            sent = fed.send(self.tell, to=peers, shared={"w": w}, quorum=self.quorum)
            fed.map(self.hear, received=sent, quorum=self.quorum)

    @cached_property
    def _server(self) -> ServerHooks:
        return ServerHooks(self.composed, self.model)

    def calls(self, clients: int) -> Calls:
        """The parts' steps before the first round; steps that change data, and training, in each round."""
        exchanges = (self.tell, self.hear) if self.composed.peer_part else ()
        changes = (self.change,) if self.composed.changes else ()
        tries = (self.try_out,) * trials.messages(self.composed.queries(clients))
        evaluate = self.evaluation_step({})
        score = self.score_sum if self.scores == "sum" else evaluate
        return Calls(
            setup=(*self.composed.setup, *exchanges),
            round=(*changes, self.train, *tries, *exchanges),
            evaluation=(score,),
            prediction=(evaluate, self.keep_given, self.keep_trained),
        )

    def measures(self, state: Tree, fed: Federation) -> dict[str, Tensor]:
        return self.composed.measures(memory_of(self.composed, state), len(fed.clients))

    def warnings(self, state: Tree) -> list[str]:
        return self.composed.warnings(memory_of(self.composed, state))

    def counts(self, state: Tree) -> dict[str, float]:
        return self.composed.counts(memory_of(self.composed, state))

    def pairs(self, state: Tree) -> dict[str, Tensor]:
        return self.composed.pairs(memory_of(self.composed, state))

    def _download(
        self, state: Tree, clients: Sequence[str], fed: Federation, names: Collection[str]
    ) -> tuple[Tree, Stacked | None]:
        """The message for all called clients, and the rows for each; names: the parts whose downloads it includes."""
        at = places(fed, clients)  # [P]
        shared: Tree = {}
        if "w" in state and not self.composed.owner("receive"):  # with a reward clients do not get the global weights
            shared["w"] = state["w"]
        if "init" in state:
            shared["init"] = state["init"]
        to_all, to_each, each = self._server.downloads(state, at, fed, names)
        shared |= to_all
        if "own" in state:
            each["w"] = map_leaves(lambda leaf: leaf[at], state["own"])
        if to_each:
            each["each"] = to_each
        return shared, Stacked(tuple(clients), each) if each else None

    # Client

    @on_client(replaces_data=True)
    def change(self, client: Client, message: Tree) -> Tree:
        """Change the client's data by the parts; sends nothing."""
        data = self.composed.change_data(Context(client, self.objective, message))
        return {DATA: graph_like(client.graph, data)}

    @on_client(
        sends=lambda self: self.composed.released | self.composed.sends,
        hears=lambda self: self.composed.client_learns,
    )
    def train(self, client: Client, message: Tree) -> Tree:
        """`local_steps` steps; replies with the released update and what the parts report."""
        ctx = self._receive(client, message)
        ctx = replace(ctx, start=self._start(ctx))
        fitted = self.composed.train(ctx)
        w = keep_trained(ctx.examples > 0, fitted.w, ctx.received) if self._reads_last_weights else fitted.w
        client.state["w"] = w
        if self.optimizer_state == "kept":
            client.state["optimizer"] = fitted.state
        ctx = replace(ctx, trained=w, last_loss=fitted.loss)
        trains = (ctx.examples > 0).to(torch.float64)  # without examples an optimizer would only apply weight decay
        shared = self._shared(ctx.update)
        update, visible = self.composed.release(ctx, scale(shared, trains))
        ctx = replace(ctx, released=shared if visible is None else visible)
        reply = self.composed.reports(ctx)
        self.composed.check_memory(client.state)
        packing = self.composed.packing
        return {"update": update if packing is None else packing.pack(update)} | reply

    def _receive(self, client: Client, message: Tree) -> Context:
        """The context with the received weights, and the client's own leaves where they are not shared."""
        ctx = Context(client, self.objective, message)
        owner = self.composed.owner("receive")
        received: Tree = message.get("w", {})
        if owner:
            received = self.composed[owner].receive(ctx.at(owner))
        elif self._has_local_weights:
            received = nest(dict(leaves(ctx.local_weights)) | dict(leaves(received)))
        return replace(ctx, received=received)

    def _start(self, ctx: Context) -> Tree:
        owner = self.composed.owner("start")
        return self.composed[owner].start(ctx.at(owner)) if owner else ctx.received

    @on_client(
        sends=lambda self: self.composed[self.composed.peer_part].sends_to_peers if self.composed.peer_part else {},
        hears={"w": GLOBAL},
        peers=True,
        addressed=True,
    )
    def tell(self, client: Client, message: Tree) -> Tree:
        """The client's messages to its peers, computed with the global weights."""
        name = self.composed.peer_part
        return self.composed[name].tell_peers(
            Context(client, self.objective, message, name), self.trained, message["w"]
        )

    @on_client()
    def hear(self, client: Client, message: Tree) -> Tree:
        """Keep the peers' messages."""
        received = [message["received"][str(at)] for at in range(len(message["received"]))]
        name = self.composed.peer_part
        self.composed[name].hear_peers(Context(client, self.objective, message, name), received, message["present"])
        return {}

    # Evaluation

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        """Scores of each client's model on its own nodes. On the global test graph, scores of the global model, or of
        every client's model if there is no global one or a part requires it."""
        w = self.global_model(state) if self.evaluates_one_model else None
        step = self.score_sum if self.scores == "sum" else self.evaluation_step(state)
        replies = fed.map(step, *self.evaluation_message(state, fed), quorum=self.quorum)
        server = None if w is None else on_global_test(self.test_net, w, fed)
        return Evaluation(replies, server, totals(replies) if self.scores == "sum" else None)

    def global_model(self, state: Tree) -> Tree | None:
        """w; None if some weights stay at clients or every client has different weights."""
        return state["w"] if self._one_model else None

    def evaluated_model(self, state: Tree) -> Tree | None:
        """w; None if clients use other weights."""
        return self.global_model(state) if self.composed.uses_received else None

    @property
    def evaluates_received(self) -> bool:
        """Whether clients evaluate the received weights, as they are or after further training, and no weights of
        earlier rounds."""
        received = self.composed.uses_received or self.composed.tunes
        return type(self).used is FedAvg.used and received and not self._has_local_weights

    @property
    def _one_model(self) -> bool:
        return not self.composed.personal and not self.composed.private and self.share == ("*",)

    @property
    def any_models(self) -> bool:
        """Whether clients share no weights, and no values of their shapes."""
        if self.share:
            return False
        for part in self.composed.values():
            exchanges = any(has(part, hook) for hook in _EXCHANGES)
            if exchanges and "any" not in part.needs.models:
                return False
        return True

    @property
    def evaluates_one_model(self) -> bool:
        """Whether the global test evaluates one global model, and not every client's."""
        trained = any(part.needs.personalizes in ("trained", "tuned") for part in self.composed.values())
        return self._one_model and not trained

    def evaluation_message(self, state: Tree, fed: Federation) -> tuple[Tree, Stacked | None]:
        """The message before an evaluation: the weights, and the downloads that the clients' models depend on."""
        return self._download(state, fed.clients, fed, self.composed.evaluation_parts)

    def trained_model_message(self, state: Tree, fed: Federation) -> tuple[Tree, Stacked | None]:
        """The message of `evaluation_message`; empty if clients already store the weights that they evaluate."""
        return ({}, None) if self._reads_last_weights else self.evaluation_message(state, fed)

    @property
    def learns_again(self) -> Mapping[str, str]:
        return self.composed.client_learns

    def last_trained(self, client: Client, message: Tree) -> Tree | None:
        """The weights after the client's own training; without training examples, those that it received."""
        w = client.state.get("w")
        if w is None or self._reads_last_weights:
            return w
        return keep_trained(client.graph.masks[TRAIN].any(), w, self.used(client, message))

    @on_client(
        sends=lambda self: SCORES | self.composed.score_sends,
        hears=lambda self: self.composed.client_learns,
    )
    def score(self, client: Client, message: Tree) -> Tree:
        """The client's model on its own nodes."""
        w, ctx = self.used(client, message), Context(client, self.objective, message)

        def scores() -> Tree:
            scores = score(self.net, w, client, remembered=self._reads_last_weights)
            for name, part in self.composed.items():
                scores |= part.more_scores(ctx.at(name), self.net, w)
            return scores

        return self.score_or_store(client, message, w, scores)

    @on_client(sends=PERSONAL_SCORES, hears=lambda self: self.composed.client_learns)
    def score_personal(self, client: Client, message: Tree) -> Tree:
        """The client's model on its own nodes and on the global test graph."""
        w = self.used(client, message)
        net, test_net, stored = self.net, self.test_net, self._reads_last_weights
        return self.score_or_store(client, message, w, lambda: personal_score(net, w, client, None, test_net, stored))

    @on_client(sends=trials.TRIES, hears=trials.TRIED_MODELS)
    def try_out(self, client: Client, message: Tree) -> Tree:
        """What the client's test examples say of each model in the message."""
        return trials.try_models(self.net, message["models"], client)

    def evaluation_step(self, state: Tree) -> Step:
        """`score` if the global test evaluates a global model, else `score_personal`."""
        step: Step = self.score if self.evaluates_one_model else self.score_personal
        return step

    def used(self, client: Client, message: Tree) -> Tree:
        """The weights that the client uses: from the owner of `personalize`, or the start of its training."""
        ctx, owner = self._receive(client, message), self.composed.owner("personalize")
        return self.composed[owner].personalize(ctx.at(owner)) if owner else self._start(ctx)

    # Shared weights

    @property
    def _has_local_weights(self) -> bool:
        """Whether clients have weights that the server does not send them."""
        return self.share != ("*",) or bool(self.composed.owner("receive") or self.composed.private)

    def _shared(self, w: Tree) -> Tree:
        """The leaves of `w` that are shared."""
        if self.share == ("*",) and not self.composed.private:
            return w
        shared = Tree()
        for path, leaf in leaves(w):
            is_private = models.matches(self.net, path, self.composed.private)
            if models.matches(self.net, path, self.share) and not is_private:
                shared[path] = leaf
        return nest(shared)
