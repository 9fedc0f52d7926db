"""What a part asks of the data, the training and the other parts, and how it protects what leaves a client: one value
each."""

from dataclasses import dataclass

from fedweave.algorithms.parts.training import OptimizerName
from fedweave.core.mechanism import Mechanism
from fedweave.partition.extra import Finder

WIDTHS = "model.width"  # the code of what is refused because of `Needs.any_models`:
ONE_WIDTH = (
    "what is exchanged is compared, so that all members' embeddings, what the last layer reads, must be of one width"
)


@dataclass(frozen=True)
class Needs:
    """What a part needs.

    sens:           clients have a sensitive attribute.
    ids:            clients have their nodes' places in the undivided graph.
    finder:         what looks for something in clients' data before any step runs (`core.extra`); None if nothing.
    everyone:       every client takes part in each round.
    optimizer:      the only one that the local training may have, for an update to be a sum of gradients; None if any.
    suits:          the one that it is made for, where others are noted; None if any.
    pull:           s of its term s/2 ‖w − …‖², for a note where plain steps are too long for it; 0 if none.
    several_steps:  what has no effect where training is one step from the received weights, as a note; "" if nothing.
    tells_gradients: what `report` sends tells what protects an update would hide.
    received:       the server sends weights, with which `objective` or `penalty` compares.
    whole_features: `objective` reads all columns of the features, even those that are 0 at a client, or `penalty` is no
                    sum over the elements of the weights.
    decided:        hooks that some other part decides.
    supervised:     its objective is that of the examples' classes, which one part alone may have.
    whole_models:   the server judges clients' models, of which it has all weights.
    one_model:      the joint update moves one global model.
    personal:       every client gets weights of its own, so that there is no one global model.
    private:        patterns of weights that never leave their client, such as "*_mask".
    alike:          clients count alike, whatever they say of themselves, unless another part weights updates.
    any_models:     what it exchanges has none of the weights' shapes, so that clients' models may be of different forms
                    whose embeddings are of one width.
    judged_apart:   the global test judges the models that the clients use (`judged`), not the global one.
    judged_global:  `judged` gives the received weights, so that clients use the global model.
    tunes:          `judged` trains the received weights, so that clients are sent what all parts' terms of the
                    objective need.
    nodes:          it is about nodes and who their neighbours are, so that edges are no examples for it, and messages
                    cannot depend on time.
    whole_graphs:   it reads what models make of a client's whole graph, which one that marks the seeds of sampled
                    neighbourhoods cannot give.
    bounds:         settings that bound the number of examples in a training step; sites may require more than a few.
    """

    sens: bool = False
    ids: bool = False
    finder: Finder | None = None
    everyone: bool = False
    optimizer: OptimizerName | None = None
    suits: OptimizerName | None = None
    pull: float = 0.0
    several_steps: str = ""
    tells_gradients: bool = False
    received: bool = False
    whole_features: bool = False
    decided: tuple[str, ...] = ()
    supervised: bool = False
    whole_models: bool = False
    one_model: bool = False
    personal: bool = False
    private: tuple[str, ...] = ()
    alike: bool = False
    any_models: bool = False
    judged_apart: bool = False
    judged_global: bool = False
    tunes: bool = False
    nodes: bool = False
    whole_graphs: bool = False
    bounds: tuple[str, ...] = ("batch",)


@dataclass(frozen=True)
class Protection:
    """What a part's `release` makes of an update.

    mechanism:   how that protects it (`core.mechanism`), several as a tuple; () if it does not.
    becomes:     what leaves in the place of a change of the model weights; "" if it is one still.
    hides:       the server learns no single client's update or report, so that no other part may look at them.
    stateless:   the update must not depend on anything that a client remembers (`core.federation.StepInfo.stateless`).
    plain_loss:  the update is of the cross-entropy alone, whatever other parts add to the objective.
    most_rounds: for how many rounds that protects enough; None if it does not matter.
    """

    mechanism: Mechanism | tuple[Mechanism, ...] = ()
    becomes: str = ""
    hides: bool = False
    stateless: bool = False
    plain_loss: bool = False
    most_rounds: int | None = None
