"""What a part needs of data, training and other parts (`Needs`), and how it protects an update (`Protection`)."""

from dataclasses import dataclass
from typing import Literal

from fedweave.algorithms.parts.training import OptimizerName
from fedweave.core.mechanism import Mechanism
from fedweave.core.settings import Settings
from fedweave.partition.precompute import Precompute

# The code and the reason of an error if clients' models have different widths, see `Needs.models`.
WIDTHS = "model.width"
ONE_WIDTH = "the exchanged values are compared, so the input of the last layer must have one width for all clients"


@dataclass(frozen=True)
class LocalSteps(Settings):
    """What a part needs of the steps of local training.

    optimizer: the only local optimizer with which an update is a sum of gradients; None if any.
    excludes:  settings of the training ("schedule", "local_epochs", "local_momentum") that the part does not support.
    suits:     the local optimizer of its paper; others give a note; None if any.
    pull:      strength s of its term s/2 ‖w − …‖², for a note if plain steps are too long for it; 0 if none.
    several:   what happens only from the second local step on, for a note where training is one step from the received
               weights ("training ends before …"); "" if nothing does.
    bounds:    settings that bound the number of examples in a training step; sites may require a minimum.
    """

    optimizer: OptimizerName | None = None
    excludes: tuple[str, ...] = ()
    suits: OptimizerName | None = None
    pull: float = 0.0
    several: str = ""
    bounds: tuple[str, ...] = ("batch",)


@dataclass(frozen=True)
class Needs(Settings):
    """What a part needs of data, training and other parts. Most parts set one or two of these.

    data:           the data of clients has "sensitive", a sensitive attribute; "ids", their nodes' places in the
                    undivided graph; "items", links that lead from users to items; "classes", one class per example, not
                    numbers or several labels; "nodes", nodes with neighbors: the part is about them, so that edges
                    cannot be examples, and messages cannot depend on time.
    finder:         precomputes client features before any step runs (`core.operators.Precomputed`); None if nothing.
    reads:          "features": `objective` reads all columns of the features, even columns that are 0 at a client, or
                    `penalty` is not a sum over the elements of the weights. "graph": a model's outputs for a client's
                    whole graph; a model that marks the seeds of sampled neighborhoods has none. "received":
                    `objective` or `penalty` compares with weights that the server sends.
    supervised:     its objective is the loss on the examples' classes; only one part may have such an objective.
    links:          its objective supports links as examples; other objectives need classes.
    steps:          what it needs of the steps of local training.
    models:         "global": the joint update moves one global model. "personal": every client gets different weights,
                    so that there is no global model. "whole": the server evaluates clients' models, so it needs all
                    their weights. "any": the exchanged values do not have the weights' shapes, so clients' models may
                    differ if their embeddings have one width.
    personalizes:   what `personalize` gives: "received", the received weights; "tuned", the received weights after
                    further training, for which clients are sent what all parts' terms of the objective need;
                    "trained", the client's model; or "personal", a model beside the global one. The global test
                    evaluates the models of clients if they are "tuned" or "trained", and otherwise the global model.
    private:        patterns of weights that never leave their client, such as "*_mask".
    statistics:     supported running statistics of batch norm: "any"; "home", only statistics that stay at their
                    client, because the part does not average updates; or "none", because the part computes with weights
                    at clients.
    alike:          all clients count equally, also if they report sizes, unless another part weights updates.
    all_clients:    every client takes part in each round.
    decided:        hooks that another part must define.
    sends_gradients:
                    `report` sends gradients, which reveal what the protection of an update hides.
    measures:       what it measures of each client that pay may follow from (`incentives.rules.RULES`).
    """

    data: tuple[Literal["sensitive", "ids", "items", "classes", "nodes"], ...] = ()
    finder: Precompute | None = None
    reads: tuple[Literal["features", "graph", "received"], ...] = ()
    supervised: bool = False
    links: bool = False
    steps: LocalSteps = LocalSteps()
    models: tuple[Literal["global", "personal", "whole", "any"], ...] = ()
    personalizes: Literal["received", "tuned", "trained", "personal"] = "personal"
    private: tuple[str, ...] = ()
    statistics: Literal["any", "home", "none"] = "any"
    alike: bool = False
    all_clients: bool = False
    decided: tuple[str, ...] = ()
    sends_gradients: bool = False
    measures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Protection:
    """How a part's `release` protects an update.

    mechanism:   the mechanism (`core.mechanism`), several as a tuple; () if none.
    becomes:     what leaves instead of a change of the model weights; "" if it is still a change of weights.
    hides:       the server learns no single client's update or report, so that no other part may read them.
    stateless:   the update must not depend on anything that a client remembers (`core.federation.StepInfo.stateless`).
    plain_loss:  the update follows only the cross-entropy, even if other parts add to the objective.
    max_rounds:  the number of rounds for which the target holds; None if there is no limit.
    """

    mechanism: Mechanism | tuple[Mechanism, ...] = ()
    becomes: str = ""
    hides: bool = False
    stateless: bool = False
    plain_loss: bool = False
    max_rounds: int | None = None
