"""AdaFGL: Li et al. 2024, "AdaFGL: a new paradigm for federated node classification with topology heterogeneity".

FedAvg for some rounds; then every client trains modules for like and for unlike neighbors on its own. Their graph also
joins nodes with similar predictions of the global model (`models.propagation`). Deviations: α, β and threshold come
from the authors' script (OpenFGL's α is .5, β 0); the global model is the last round's, not the best validated; clients
train in rounds of local_steps; both branches are trained (in the script one, by whether s ≥ .9); R below its mean is (R
− mean) / mean, from 0 down to −1 (in the script −R / mean, from −1 up to 0); each layer and R have a separate slope of
PReLU (in the script modules share them). On other graphs than its own a client predicts with the global model.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.participation import places
from fedweave.algorithms.parts.training import criterion_of
from fedweave.algorithms.scoring import SCORES, score
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import Calls, Capabilities
from fedweave.core.bounds import Count, Fraction
from fedweave.core.federation import Client, Federation, on_client
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Layer, Model
from fedweave.core.replies import Stacked
from fedweave.core.tree import Tree, leaves, nest
from fedweave.core.types import Record
from fedweave.learn import fit, keep_trained
from fedweave.models import propagation
from fedweave.models.propagation import Propagation

HEARS = {
    "w": "the global model's weights, computed from all members' updates",
    "key": "a random number, from which all clients draw the same first weights of their own modules",
}


@dataclass(frozen=True)
class AdaFGL(FedAvg):
    """FedAvg, and then every client's own propagation, trained without any exchange.

    joint:     rounds of FedAvg; in all later rounds each client trains on its own.
    alpha:     α, weight of the client's own edges in Ã.
    beta:      β, share of the global model's similarity in R; the rest is the similarity of the client's own messages.
    threshold: smallest cosine of the global model's predictions that joins a pair.
    hidden:    width of the client's own modules.
    drop:      dropout of the client's own modules.
    """

    joint: Count = 50
    alpha: Fraction = 0.05
    beta: Fraction = 0.2
    threshold: float = 0.999
    hidden: int = 64
    drop: float = 0.5

    capabilities: ClassVar[Capabilities] = replace(FedAvg.capabilities, nodes=True, classes=True)
    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "clients go on with other models"}
    test_settings: ClassVar[Record] = {"joint": 1, "hidden": 8, "lr": 0.02}

    def __post_init__(self) -> None:
        super().__post_init__()
        if models.example(self.model) != "node":
            raise ValueError("AdaFGL joins nodes; the examples must be nodes, not small graphs")
        hook_name = next((hook for hook in ("receive", "start", "personalize") if self.composed.owner(hook)), "")
        if hook_name or not self._one_model:
            raise ValueError(
                f"parts, share: clients go on from one global model, without {hook_name or 'weights of their own'}"
            )

    @cached_property
    def propagation(self) -> Propagation:
        """The client's own modules."""
        return Propagation(self.alpha, self.beta, self.threshold, self.hidden, self.drop, criterion_of(self))

    @cached_property
    def net(self) -> Model:
        """The global model; at a client with its own modules, the prediction of these modules."""
        runs_alone = any(layer.runs_alone for layer in self.trained)

        def init(key: Tensor) -> Tree:
            return _flat({"joint": models.init(self.trained, key)})

        def apply(w: Tree, graph: Graph, h: object, key: Tensor | None) -> Tensor:
            weights = nest({name.replace(":", "/"): leaf for name, leaf in w.items()})  # undoes `_flat`
            logits: Tensor = models.apply(self.trained, weights["joint"], graph, key)
            if "own" not in weights:
                return logits
            inputs = self.propagation.constants(graph, torch.softmax(logits, 1))
            return self.propagation.predict(weights["own"], graph, inputs, weights["share"]["s"])

        return (Layer(init, apply, reads="graph", runs_alone=runs_alone),)

    def init(self, fed: Federation) -> Tree:
        """FedAvg's state, the RNG key of the clients' own modules, and the clients that already have the global
        model."""
        begun = torch.zeros(len(fed.clients), dtype=torch.bool, device=fed.device)
        return super().init(fed) | {"round": 0, "key": fed.key("own"), "begun": begun}

    def round(self, state: Tree, fed: Federation) -> Tree:
        """A round of FedAvg, or of local steps on all clients' own modules."""
        after = {"round": state["round"] + 1}
        if state["round"] < self.joint:
            return super().round(state, fed) | after
        message = {} if state["begun"].all() else {"w": state["w"], "key": state["key"]}
        replies = fed.map(self.personalise, message, quorum=self.quorum)
        at = places(fed, replies.clients)
        return state | after | {"begun": state["begun"].index_fill(0, at, True)}

    def calls(self, clients: int) -> Calls:
        family = super().calls(clients)
        return Calls(family.setup, (*family.round, self.personalise), family.evaluation, family.prediction)

    def evaluated_model(self, state: Tree) -> Tree | None:
        return None

    def evaluation_message(self, state: Tree, fed: Federation) -> tuple[Tree, Stacked | None]:
        """The global weights, until all clients have them."""
        return ({}, None) if state["begun"].all() else super().evaluation_message(state, fed)

    def trained_model_message(self, state: Tree, fed: Federation) -> tuple[Tree, Stacked | None]:
        return self.evaluation_message(state, fed)

    @on_client(hears=HEARS)
    def personalise(self, client: Client, message: Tree) -> Tree:
        """`local_steps` steps of the client's own modules; sends nothing."""
        graph, memory = client.graph, client.state.get("own")
        if not memory:
            classes = models.apply(self.trained, message["w"], graph).shape[1]
            w = self.propagation.init(message["key"], graph.x.shape[1], classes, graph.x.dtype)
            s = propagation.homophily(graph, random.fold(client.key, "shown"), classes)
            memory = {"joint": message["w"], "w": w, "s": s.to(graph.x.dtype)}
        inputs = self.propagation.constants(graph, torch.softmax(models.apply(self.trained, memory["joint"], graph), 1))
        training = self.objective.training
        w, _, state = fit(
            self.propagation.loss, memory["w"], graph, client.key, training.update_rule, self.local_steps,
            state=memory.get("optimizer"), args=inputs, rows=propagation.FEATURE_ROWS,
        )  # fmt: skip
        w = keep_trained(graph.masks[TRAIN].any(), w, memory["w"]) if training.weight_decay else w
        client.state["own"] = memory | {"w": w} | ({"optimizer": state} if training.keeps_state else {})
        return {}

    def used(self, client: Client, message: Tree) -> Tree:
        if "own" not in client.state:
            return {"0": _flat({"joint": super().used(client, message)})}
        state = client.state["own"]
        return {"0": _flat({"joint": state["joint"], "own": state["w"], "share": {"s": state["s"]}})}

    def last_trained(self, client: Client, message: Tree) -> Tree | None:
        used = self.used(client, message)
        trained = self._last_weights(client, used)
        return None if trained is None else keep_trained(client.graph.masks[TRAIN].any(), trained, used)

    @on_client(sends=SCORES, hears=lambda self: self.composed.client_learns)
    def score(self, client: Client, message: Tree) -> Tree:
        w = self.used(client, message)
        trained = self._last_weights(client, w)
        return self.score_or_store(
            client, message, w, lambda: score(self.net, w, client, trained, self._reads_last_weights)
        )

    def _last_weights(self, client: Client, used: Tree) -> Tree | None:
        if "own" in client.state:
            return used
        return {"0": _flat({"joint": client.state["w"]})} if "w" in client.state else None


def _flat(tree: Tree) -> Tree:
    """A tree as one layer's weights, with colons in the names instead of levels."""
    return {path.replace("/", ":"): leaf for path, leaf in leaves(tree)}
