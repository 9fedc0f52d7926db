"""Models of a finished run for the owners of the data, for prediction and export."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, TypeVar

from fedweave.algorithms.parts.part import KEEP
from fedweave.core.algorithm import Algorithm, Calls
from fedweave.core.federation import Client, Federation, Step, on_client
from fedweave.core.model import Model
from fedweave.core.replies import Stacked
from fedweave.core.tree import Tree
from fedweave.errors import UserError
from fedweave.models.module import as_model
from fedweave.ops.identity import once

A = TypeVar("A", bound=Algorithm)
Which = Literal["global", "personal", "trained"]


class Deployable(Algorithm):
    """An algorithm whose clients can each hold a whole model, which can be used after training.

    There are up to three models: the server's "global" model; the "personal" model that a client uses and the
    evaluation on its data uses (the global one if the algorithm does not personalize); and the model that a client's
    own training last "trained".
    """

    def take_model(self) -> None:
        """Turn a `torch.nn.Module` as the model into layers (`models.module.as_model`)."""
        object.__setattr__(self, "model", as_model(self.model))

    @property
    def learns_again(self) -> Mapping[str, str]:
        """{key of the message of `trained_model_message`: what clients learn from it}."""
        return {}

    @property
    def test_net(self) -> Model:
        """`net` on other graphs."""
        return self.model

    def global_model(self, state: Tree) -> Tree | None:
        """The server's model; None if there is no global model."""
        return None

    def one_model(self, state: Tree) -> Tree:
        """`global_model`, which must exist.

        Raises:
            UserError: it does not exist.
        """
        w = self.global_model(state)
        if w is None:
            raise UserError(
                "the run has no global model: some weights, or all, are each client's own. Take personal.",
                code="user.no-global-model",
            )
        return w

    def evaluation_message(self, state: Tree, fed: Federation) -> tuple[Tree, Stacked | None]:
        """The messages that give clients the models that they use: one for all, and one for each."""
        return state, None

    def used(self, client: Client, message: Tree) -> Tree:
        """The weights that a client uses, from the message of `evaluation_message`."""
        raise NotImplementedError

    def evaluation_step(self, state: Tree) -> Step:
        """The client step that evaluates these weights, through `score_or_store`."""
        score: Step = self.score  # type: ignore[attr-defined]
        return score

    def score_or_store(self, client: Client, message: Tree, w: Tree, score: Callable[[], Tree]) -> Tree:
        """The `score` of the weights `w` that the client uses; nothing if the message asks the client to store them for
        its owner.

        One client step does both, because the weights may depend on the task's randomness, which follows from the
        step's name.
        """
        return _store_model(client, w) if KEEP in message else score()

    def calls(self, clients: int) -> Calls:
        """One training step in each round, one score after it."""
        train, score = self.train, self.score  # type: ignore[attr-defined]
        return Calls((), (train,), (score,), (score, self.keep_given, self.keep_trained))

    def trained_model_message(self, state: Tree, fed: Federation) -> tuple[Tree, Stacked | None]:
        """The messages for clients to store the models of their own training: empty if clients have them already."""
        return {}, None

    def last_trained(self, client: Client, message: Tree) -> Tree | None:
        """The weights after the client's own training, None before any; at a client without training examples, the
        received weights. message: from `trained_model_message`."""
        return client.state.get("w")

    def deploy(self, state: Tree, fed: Federation, which: Which = "personal") -> None:
        """Store at each client the weights of a model as "model" in its private state, for its owner; clients send
        nothing.

        A client that never trained has no "trained" model, and then gets none.

        Raises:
            UserError: there is no global model.
        """
        if which == "trained":
            fed.map(self.keep_trained, *self.trained_model_message(state, fed), quorum=self.quorum)
        elif which == "personal":
            shared, each = self.evaluation_message(state, fed)
            fed.map(self.evaluation_step(state), shared | {KEEP: 1}, each, quorum=self.quorum)
        else:
            fed.map(self.keep_given, {"w": self.one_model(state)}, quorum=self.quorum)

    @on_client(hears={"w": "the global model's weights, computed from all members' updates"})
    def keep_given(self, client: Client, message: Tree) -> Tree:
        """Keep the model that the server sends."""
        return _store_model(client, message["w"])

    @on_client(hears=lambda algorithm: algorithm.learns_again)
    def keep_trained(self, client: Client, message: Tree) -> Tree:
        """Keep the model that the client trained, if it ever did."""
        return _store_model(client, self.last_trained(client, message))


def with_models(algorithm: A, members: Mapping[str, Model]) -> dict[str, A]:
    """{client: the algorithm with the client's model} for `members` whose model differs from the algorithm's; members
    with the same model share one algorithm."""
    variants = once(lambda net: replace(algorithm, model=net), members)
    return {client: variants[client] for client, net in members.items() if net is not algorithm.model}


def deployable(algorithm: object) -> Deployable:
    """The algorithm, checked to be able to keep a whole model at each client.

    Raises:
        UserError: it cannot.
    """
    if not isinstance(algorithm, Deployable):
        raise UserError(
            f"{type(algorithm).__name__} keeps no models that could be used after training; derive it from "
            "fedweave.algorithms.deployment.Deployable, and define which they are.",
            code="user.no-models",
        )
    return algorithm


def _store_model(client: Client, w: object) -> Tree:
    if w is not None:
        client.state["model"] = w
    return {}
