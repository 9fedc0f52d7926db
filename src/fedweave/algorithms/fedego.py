"""FedEgo: Zhang et al. 2023, "FedEgo: privacy-preserving personalized federated graph learning with ego-graphs",
algorithm 1.

A client's model is Θ (reduction layers) followed by Φ_i (personalization layers and classifier). The server averages Θ,
and trains its own Φ_g on mashed ego-graphs: averages of ego-graphs that its clients upload instead of data.

Choices where the paper is open, and deviations:
- Every mini-batch samples its ego-graphs (line 1 samples once), and so does every batch to mash, one per `batch` train
  nodes and round, with the reduction embeddings after local training.
- Of the labels in eq. 8 only the centers' are uploaded: the neighbors' labels are not used, and neighbors need not be
  train nodes.
- Every client uploads the same number of mashed ego-graphs, the number that the largest client needs; a smaller client
  leaves the last ones zero. A last batch of fewer than `minimum` nodes is merged with the one before: a batch of one
  would be a raw node.
- The mixing of line 38 is computed when the client is called next (for training or scoring), so that a client that
  missed some rounds mixes with the latest Φ_g. At its first call a client takes Φ_g unmixed.
- With `epoch_share` a smaller client makes its epoch's mini-batches smaller, not fewer, than the largest; the released
  code makes fewer.
- P_i counts train labels only; it is zero, and EMD_i therefore 1, at a client without any. In evaluation a node sees
  all its neighbors, not a sample.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.algorithms.deployment import Deployable
from fedweave.algorithms.participation import sample
from fedweave.algorithms.parts.training import ClassWeights, criterion_of
from fedweave.algorithms.scoring import PERSONAL_SCORES, personal_score
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import Calls, Capabilities, Evaluation
from fedweave.core.bounds import Count, CountOrNone, Fraction, NonNegative, Positive, Share, Steps
from fedweave.core.federation import Client, Federation, Sends, on_client
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.mechanism import Gaussian, Mixup
from fedweave.core.model import Model
from fedweave.core.ranges import Real, Whole
from fedweave.core.replies import Stacked
from fedweave.core.tree import Tree, leaves, map_leaves
from fedweave.core.types import Record
from fedweave.errors import UserError
from fedweave.learn import OPTIMIZERS, compute_on_server, fit, keep_trained
from fedweave.ops.rows import weighted_gather
from fedweave.sampling import ego_graphs
from fedweave.sampling.ego_graphs import Egos

_HEARS = {
    "phi": "the server's layers, trained on all members' mixed ego-graphs",
    "theta": "the mean of all members' reduction layers",
    "labels": "the mean label distribution of all members' mixed ego-graphs",
    "uploads": "how many mixed ego-graphs every client is to send: what the client with most training nodes fills",
}

# Steps of the server: a recording takes all of their kernels, and longer to make than a few rounds save.
_MAX_RECORDED_STEPS = 500


@dataclass(frozen=True)
class FedEgo(Deployable):
    """Personal models from averaged reduction layers and personalization layers mixed with a server's own.

    Source: Zhang et al. 2023, sections 4 and 5.

    batch:           centers per mini-batch, and ego-graphs per mashed one.
    batches:         mini-batches per local epoch, drawn afresh.
    epoch_share:     train nodes that an epoch goes through once, as a share of all the client's nodes. It takes the
                     number of mini-batches that the client with most of them needs, instead of `batches`.
    epochs:          epochs of a client per round.
    server_epochs:   epochs of the server per round.
    server_share:    share of the received mashed ego-graphs that an epoch of the server goes through.
    optimizer:       optimizer of clients and server.
    lr:              learning rate of clients and server.
    weight_decay:    weight decay of clients and server.
    optimizer_state: optimizer state, "kept" from round to round at each client and at the server, or "fresh" in each.
    hops, fan_out:   radius of sampled ego-graphs, and neighbors sampled per node. The model's layers before its last
                     `hops` with edges are Θ.
    gamma:           γ, exponent of a client's mixing weight, λ_i = (EMD_i / 2)^γ (eq. 15).
    mixing:          a fixed λ for all clients instead; 0 is the paper's "w/o PL", 1 its "FedEgo-Server".
    sigma:           standard deviation of the Gaussian noise on mashed embeddings. Embeddings are not clipped, so no ε
                     follows from it.
    minimum:         fewest ego-graphs that are ever mixed into one.
    mixup:           False uploads the first ego-graph of each batch as it is ("w/o Mixup"); refused unless
                     `allow_raw_ego`, because that ego-graph is one member's data.
    allow_raw_ego:   permits `mixup = false`.
    share_reduction: False keeps Θ_i at home ("w/o RL").
    own_reduction:   clients use, and are evaluated by, Θ_i as their training left it with their mixed Φ_i (as in the
                     released code), instead of the server's Θ_g. Training starts from Θ_g either way.
    participation:   share of the clients that a round calls, at least one; all are counted before the first round.
    quorum:          share of the called clients that must reply.
    class_weight:    weight of classes in cross-entropies: "none", "balanced" (n / (C n_c) by a client's own training
                     examples, about which nothing more leaves; at the server by the labels of mixed ego-graphs), a
                     number for each class, or a table by name such as {fraud = 30.0}, 1 for the others.
    focal:           gamma of the focal loss, 0 for none.
    logit_adjustment: tau of logits that are adjusted by the shares of the classes, 0 for none.

    Example:
        model = fedweave.models.Ego().build(data.features, data.classes)
        algorithm = fedweave.algorithms.FedEgo(model, epochs=3)
        fed = fedweave.federation(data, cut, algorithm, seed=0)
    """

    model: Model
    batch: Count = 32
    batches: Count = 5
    epoch_share: Share | None = None
    epochs: Steps = 5
    server_epochs: Count = 5
    server_share: Share = 1.0
    hops: CountOrNone = 2
    fan_out: Count = 6
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: Positive = 3e-4
    weight_decay: NonNegative = 0.0
    optimizer_state: Literal["kept", "fresh"] = "kept"
    gamma: Positive = 0.5
    mixing: Fraction | None = None
    sigma: NonNegative = 0.0
    minimum: Count = 2
    mixup: bool = True
    allow_raw_ego: bool = False
    share_reduction: bool = True
    own_reduction: bool = False
    participation: Share = 1.0
    quorum: Share = 1.0
    class_weight: ClassWeights = "none"
    focal: NonNegative = 0.0
    logit_adjustment: NonNegative = 0.0
    recorded = True
    rounds_vary = True  # the sizes of sampled ego-graphs depend on draws

    capabilities: ClassVar[Capabilities] = Capabilities(nodes=True, classes=True)
    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "clients and the server train on mini-batches of ego-graphs"
    }
    test_settings: ClassVar[Record] = {
        "model": "ego",
        "batch": 4,
        "batches": 2,
        "epochs": 1,
        "server_epochs": 1,
        "fan_out": 2,
        "lr": 0.01,
        "sigma": 0.01,
    }

    def __post_init__(self) -> None:
        self.egos.split(self.model)
        if (min(self.minimum, self.batch) < 2 or not self.mixup) and not self.allow_raw_ego:
            raise ValueError(
                f"mixup = {self.mixup}: with batch {self.batch} and minimum {self.minimum}, embeddings of single "
                "nodes and their neighbors would leave the clients. Mix at least 2, or set allow_raw_ego = true where "
                "nothing needs protection"
            )
        if self.minimum > self.batch:
            raise ValueError(f"minimum = {self.minimum}: must be at most the batch, which is {self.batch}")

    loss = cached_property(criterion_of)

    @property
    def egos(self) -> Egos:
        if self.epoch_share is None:
            return Egos(self.batch, self.hops, self.fan_out)
        return Egos(self.batch, self.hops, self.fan_out, self.epochs, self.epoch_share)

    def min_examples(self, graph: Graph, message: Tree) -> dict[str, int]:
        """{settings: fewest train nodes of a mini-batch} at a client. `message` may contain the number of mini-batches
        of an epoch; otherwise the number that the client needs."""
        if self.epoch_share is None:
            return {"FedEgo (batch)": self.egos.min_examples(graph, self.epochs * self.batches)}
        message_epoch = message.get("epoch")
        epoch = int(self.egos.batches_per_epoch(graph)) if message_epoch is None else int(message_epoch)
        return {"FedEgo (batch, epoch_share)": self.egos.min_examples(graph, self.epochs * epoch)}

    def init(self, fed: Federation) -> Tree:
        """Θ_g, Φ_g, P_g (uniform at first), how many mashed ego-graphs a client uploads and, if sizes decide it, how
        many mini-batches an epoch has."""
        theta, phi = self.split_weights(models.init(self.model, fed.key("init"), fed.dtype))
        counts = fed.map(self.count, quorum=self.quorum)
        uploads = int(counts.stack("batches").max())
        epoch = {} if self.epoch_share is None else {"epoch": max(1, int(counts.stack("epoch").max()))}
        if uploads < 1:
            raise UserError(
                "no client has two training nodes to mix; give [partition] a larger share of train nodes.",
                code="user.two-nodes",
            )
        labels = torch.full((fed.classes,), 1 / fed.classes, dtype=fed.dtype, device=fed.device)
        return {"theta": theta, "phi": phi, "labels": labels, "uploads": uploads} | epoch

    def calls(self, clients: int) -> Calls:
        return replace(super().calls(clients), setup=(self.count,))

    def _counts(self) -> dict[str, Sends]:
        sends = {"batches": Sends("the number of the client's train nodes, up to one batch", within=Whole())}
        if self.epoch_share is not None:
            needed = "the number of the client's nodes that an epoch takes, up to one batch"
            sends["epoch"] = Sends(needed, within=Whole())
        return sends

    @on_client(sends=_counts)
    def count(self, client: Client, message: Tree) -> Tree:
        counts = {"batches": self.egos.full_batches(client.graph.masks[TRAIN].sum(), self.minimum)}
        return counts if self.epoch_share is None else counts | {"epoch": self.egos.batches_per_epoch(client.graph)}

    def round(self, state: Tree, fed: Federation) -> Tree:
        """Algorithm 1, lines 3-35, over the sampled clients that replied."""
        sizes = {key: state[key] for key in ("uploads", "epoch") if key in state}
        message = self._shared(state) | sizes
        replies = fed.map(self.train, message, clients=sample(fed, self.participation), quorum=self.quorum)
        equal = torch.full((len(replies),), 1 / len(replies), dtype=torch.float64, device=fed.device)
        theta = replies.weighted_sum("theta", equal) if self.share_reduction else state["theta"]
        embedding, label = replies.stack("egos/embedding"), replies.stack("egos/label")
        order = sorted(range(len(replies)), key=lambda at: replies.clients[at])  # the order of clients must not matter
        if order != [*range(len(order))]:
            by_id = torch.tensor(order, device=replies.device)
            embedding, label = embedding[by_id], label[by_id]
        embedding, label = embedding.flatten(0, 1), label.flatten(0, 1)  # [E, positions, hidden], [E, classes]
        filled = (label.sum(-1) > 0).nonzero()[:, 0]
        if not len(filled):  # only clients with too few train nodes replied
            return state | {"theta": theta}
        embedding, label = embedding[filled], label[filled]

        # Lines 24-33: `server_epochs` over the mashed ego-graphs.
        inputs = {"phi": state["phi"], "key": fed.key("server"), "embedding": embedding, "label": label}
        if self._keeps_state and "optimizer" in state:
            inputs["optimizer"] = state["optimizer"]
        with fed.recording() if self._server_steps(len(label)) <= _MAX_RECORDED_STEPS else nullcontext():
            trained: Tree = compute_on_server(self._fit_server, inputs)
        return state | {"theta": theta, "labels": label.mean(0)} | trained

    def _shared(self, state: Tree) -> Tree:
        names = ("phi", "labels", "theta") if self.share_reduction else ("phi", "labels")
        return {name: state[name] for name in names}

    def _sends(self) -> dict[str, Sends]:
        if self.mixup:
            egos = f"per {self.batch} train nodes, or fewer, the position-wise mean of their ego-graphs' embeddings"
            labels = "the label distribution of the same train nodes"
        else:
            egos, labels = "per batch of train nodes, one node's raw ego-graph of embeddings", "the same node's label"
        mixup = (Mixup(self.minimum),) if self.mixup else ()
        noise = (Gaussian(self.sigma),) if self.sigma else ()
        sends = {"egos/embedding": Sends(egos, (*mixup, *noise)), "egos/label": Sends(labels, mixup, Real())}
        if self.share_reduction:
            sends["theta"] = Sends("weights of the reduction layers after local training", like="theta")
        return sends

    @on_client(sends=_sends, hears=_HEARS)
    def train(self, client: Client, message: Tree) -> Tree:
        """The local stage (lines 5-18), after the mixing of line 38."""
        w, _ = self.mix(client, message)
        steps = self.epochs * message.get("epoch", self.batches)
        update_rule = OPTIMIZERS[self.optimizer](self.lr, self.weight_decay)
        trained, _, optimizer = fit(
            self._local_loss, w, client.graph, client.key, update_rule, steps,
            state=client.state.get("optimizer") if self._keeps_state else None,
            batches=self.egos.batches(self.model, client.graph, client.key, steps),
            rows=models.feature_rows(self.model),
        )  # fmt: skip
        w = keep_trained(client.graph.masks[TRAIN].any(), trained, w) if self.weight_decay else trained
        client.state |= {"w": w} | ({"optimizer": optimizer} if self._keeps_state else {})
        theta, _ = self.split_weights(w)
        reply = {"egos": self.mash(client, theta, message["uploads"], len(message["labels"]))}
        return reply | {"theta": theta} if self.share_reduction else reply

    def _local_loss(self, w: Tree, graph: Graph, key: Tensor, minibatch: Tree) -> Tensor:
        return self.egos.loss(w, self.model, graph, key, minibatch, self.loss)

    def mash(self, client: Client, theta: Tree, uploads: int, classes: int) -> Tree:
        """Eq. 8: "embedding" [uploads, positions, hidden] and the centers' "label" [uploads, classes]."""
        graph, egos = client.graph, self.egos
        centers, weight = egos.mixtures(graph, random.fold(client.key, "mash"), uploads, self.minimum, self.mixup)
        nodes = egos.around(graph, random.fold(client.key, "mashed egos"), centers.reshape(-1))
        nodes = nodes.unflatten(1, centers.shape).transpose(0, 1)  # [uploads, positions, batch + minimum - 1]
        reduced = models.apply(self.model[: egos.split(self.model)], theta, graph)
        spread = weight[:, None].expand(nodes.shape)
        embedding = weighted_gather(reduced, nodes.flatten(0, 1), spread.flatten(0, 1)).unflatten(0, nodes.shape[:2])
        if self.sigma:
            noise = random.normal(random.fold(client.secret, "egos"), tuple(embedding.shape))
            filled = (weight.sum(-1) > 0).to(embedding.dtype)
            embedding = embedding + self.sigma * noise.to(embedding.dtype) * filled[:, None, None]
        truth = graph.y.gather(0, centers.reshape(-1)).view(centers.shape)
        label = weight[..., None] * (truth[..., None] == torch.arange(classes, device=truth.device))
        return {"embedding": embedding, "label": label.sum(1).to(embedding.dtype)}

    def _fit_server(self, inputs: Tree) -> Tree:
        """{"phi": Φ_g after the server's steps}, and the state of its optimizer."""
        label, update_rule = inputs["label"], OPTIMIZERS[self.optimizer](self.lr, self.weight_decay)
        data = ego_graphs.ego_graph(inputs["embedding"], len(label), self.fan_out)
        phi, _, optimizer = fit(
            self._server_loss, inputs["phi"], data, inputs["key"], update_rule, self._server_steps(len(label)),
            state=inputs.get("optimizer"), args={"label": label},
        )  # fmt: skip
        return {"phi": phi} | ({"optimizer": optimizer} if self._keeps_state else {})

    def _server_steps(self, mashed: int) -> int:
        return self.server_epochs * -(-self.server_epoch_size(mashed) // self.batch)

    def server_epoch_size(self, mashed: int) -> int:
        """The number of ego-graphs in an epoch of the server, of `mashed`."""
        return max(1, int(self.server_share * mashed))

    @property
    def _keeps_state(self) -> bool:
        return self.optimizer_state == "kept"

    def _server_loss(self, phi: Tree, data: Graph, key: Tensor, args: Tree) -> Tensor:
        """Eq. 2 with the centers' soft labels, over a random mini-batch of mashed ego-graphs."""
        size = min(self.batch, self.server_epoch_size(len(args["label"])))
        order = random.bits(random.fold(key, "batch"), len(args["label"])).argsort()[:size]
        h = data.x[order].transpose(0, 1).flatten(0, 1)  # type: ignore[index]
        egos, split = ego_graphs.ego_graph(h, len(order), self.fan_out), self.egos.split(self.model)
        logits = models.apply(self.model[split:], phi, egos, key, first=split)
        return self.loss.soft(logits, args["label"][order], args["label"].sum(0))

    def mix(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        """Line 38: Θ_g and λ_i Φ_g + (1 − λ_i) Φ_i, and {"emd", "lambda", "divergence": ‖Φ_i − Φ_g‖ / ‖Φ_g‖ after it}.

        The last is Definition 4.2 read as one norm over another, not as the norm of a quotient.
        """
        general, labels = message["phi"], message["labels"]
        train = client.graph.masks[TRAIN].to(labels.dtype)
        classes = torch.arange(len(labels), device=labels.device)
        counts = train @ (client.graph.y[:, None] == classes).to(labels.dtype)  # [classes]
        emd = (counts / train.sum().clamp(min=1) - labels).abs().sum()
        if "w" in client.state:
            theta, phi_i = self.split_weights(client.state["w"])
            share = (emd / 2).clamp(max=1) ** self.gamma if self.mixing is None else torch.full_like(emd, self.mixing)
        else:
            theta = self.split_weights(models.init(self.model, random.fold(client.key, "init"), labels.dtype))[0]
            phi_i, share = general, torch.ones_like(emd)
        phi = map_leaves(lambda w, mine: share * w + (1 - share) * mine, general, phi_i)
        away = _norm(map_leaves(torch.sub, phi, general)) / _norm(general)
        return message.get("theta", theta) | phi, {"emd": emd, "lambda": share, "divergence": away}

    def split_weights(self, w: Tree) -> tuple[Tree, Tree]:
        """Θ and Φ of the whole model's weights."""
        split = self.egos.split(self.model)
        first = {key: layer for key, layer in w.items() if int(key) < split}
        return first, {key: layer for key, layer in w.items() if key not in first}

    def evaluate(self, state: Tree, fed: Federation) -> Evaluation:
        return Evaluation(fed.map(self.score, self._shared(state), quorum=self.quorum))

    @on_client(
        sends={**PERSONAL_SCORES, "measures": "how far its label distribution and model are from the global ones"},
        hears=_HEARS,
    )
    def score(self, client: Client, message: Tree) -> Tree:
        w, measures = self.mix(client, message)
        w |= self._local_reduction(client)
        return self.score_or_store(
            client, message, w, lambda: personal_score(self.model, w, client) | {"measures": measures}
        )

    def global_model(self, state: Tree) -> Tree | None:
        """Θ_g and Φ_g, the paper's "FedEgo-Server"; None where Θ stays at the clients."""
        return state["theta"] | state["phi"] if self.share_reduction else None

    def evaluation_message(self, state: Tree, fed: Federation) -> tuple[Tree, Stacked | None]:
        return self._shared(state), None

    def used(self, client: Client, message: Tree) -> Tree:
        """The personal model after the mixing of line 38, with the client's reduction layers if `own_reduction`."""
        return self.mix(client, message)[0] | self._local_reduction(client)

    def _local_reduction(self, client: Client) -> Tree:
        return self.split_weights(client.state["w"])[0] if self.own_reduction and "w" in client.state else {}


def _norm(tree: Tree) -> Tensor:
    return torch.sqrt(sum((leaf**2).sum() for _, leaf in leaves(tree)))
