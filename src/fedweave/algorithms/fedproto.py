"""FedProto: Tan et al. 2022, "FedProto: federated prototype learning across heterogeneous clients", algorithm 1.

Clients share no weights; each sends the mean embedding of each of its classes, and pulls its embeddings to the means
over all clients. Deviations: every client starts from the same weights; the mean over clients is by number of examples,
without the further factor 1 / |N_j| that is printed, which would shrink it (the released code has the plain mean, how =
"mean"). The term follows the released code: a mean over examples and columns in which a class without any prototype
counts 0. OpenFGL adds up the means of all classes, and counts a class that a client lacks as a prototype of 0.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.algorithms.parts import Context, Needs, Outputs, Part, Round, Training
from fedweave.algorithms.parts.needs import ONE_WIDTH, WIDTHS
from fedweave.algorithms.preset import part_of, preset_of
from fedweave.core import model as models
from fedweave.core.bounds import Count, NonNegative
from fedweave.core.federation import Sends
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Layer
from fedweave.core.ranges import Whole
from fedweave.core.tree import Tree
from fedweave.errors import ConfigError, FedweaveError

_UNKNOWN = -1e9  # instead of −∞: the logit of a class without a prototype


@dataclass(frozen=True)
class ClassPrototypes(Part):
    """λ times the mean of (h_v − q_(y_v))² over training examples and columns, where q_j is the mean embedding of class
    j's examples over all clients. Clients share nothing else.

    lam:   λ, the strength of the pull.
    how:   weights of clients in q_j: "size", their number of examples of class j, or equal ("mean").
    minimum: fewest training examples of a class whose prototype a client sends; the mean of one example would be its
           embedding.
    """

    lam: NonNegative = 1.0
    how: Literal["size", "mean"] = "size"
    minimum: Count = 2
    recorded = True
    needs = Needs(data=("classes",), models=("any",))
    sends: ClassVar = {
        "prototype": "of each class, the mean embedding of the client's training examples",
        "count": Sends("how many of the client's training examples are of each class", within=Whole()),
    }
    client_learns: ClassVar = {
        "prototype": "of each class, the mean embedding over members",
        "known": "which classes any member has",
    }

    def check(self, training: Training) -> None:
        models.check_embeds(training.model, "a prototype")

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, ...]:
        return state, {}

    def objective(self, outputs: Outputs) -> Tensor:
        h, inputs, graph = outputs.embedding, outputs.inputs, outputs.graph
        if "prototype" not in inputs:
            return h.new_zeros(())
        y, train = graph.y.clamp(min=0), graph.masks[TRAIN]
        distance = (h - inputs["prototype"][y]).square().mean(1)  # [examples]
        return self.lam * torch.where(train & inputs["known"][y], distance, 0.0).sum() / train.sum().clamp(min=1)

    def report(self, ctx: Context) -> Tree:
        """{"prototype": [C, d], "count": int64 [C]} by the trained model, 0 for a class that the client does not
        send."""
        *_, h, logits = models.embeddings(ctx.training.model, ctx.trained, ctx.client.graph)
        mean, count = class_means(models.rows_of(h), ctx.client.graph, logits.shape[1])
        mask = count >= self.minimum
        return {"prototype": torch.where(mask[:, None], mean, 0.0), "count": torch.where(mask, count, 0)}

    def update(self, state: Tree, round: Round) -> Tree:
        """The new q; a class that no client sent keeps its prototype."""
        prototype, counts = stack_prototypes(round)  # [P, C, d], [P, C]
        weight = (counts if self.how == "size" else counts > 0).double()
        mean = torch.einsum("pc,pcd->cd", weight, prototype.double()) / weight.sum(0).clamp(min=1)[:, None]
        new = weight.sum(0) > 0
        known = state.get("known", torch.zeros_like(new))
        last = state.get("prototype", torch.zeros_like(prototype[0]))
        return {"prototype": torch.where(new[:, None], mean.to(prototype.dtype), last), "known": known | new}


@dataclass(frozen=True)
class NearestPrototype(ClassPrototypes):
    """`ClassPrototypes` whose clients predict the class of the nearest prototype, argmin_j ‖h − q_j‖₂: the last layer
    becomes 2 q, with the bias −‖q_j‖². Before there are prototypes they predict with their own last layer."""

    recorded = True

    def check(self, training: Training) -> None:
        super().check(training)
        if not linear(training.model[-1]):
            raise ValueError(
                "prediction by prototypes needs a linear last layer; set model.linear = true with gcn, or head = 'own'"
            )

    def personalize(self, ctx: Context) -> Tree:
        w, inputs = ctx.received, ctx.downloaded
        if "prototype" not in inputs:
            return w
        q = inputs["prototype"]
        bias = torch.where(inputs["known"], -q.square().sum(1), _UNKNOWN)
        return w | {str(len(ctx.training.model) - 1): {"weight": 2 * q.T, "bias": bias}}


def stack_prototypes(round: Round) -> tuple[Tensor, Tensor]:
    """Prototypes [P, C, d], and int64 [P, C], their numbers of examples."""
    try:
        return round.replies.stack("prototype"), round.replies.stack("count")
    except FedweaveError as error:
        raise ConfigError(f"model: {ONE_WIDTH}; {error}", code=WIDTHS) from error


def class_means(h: Tensor, graph: Graph, classes: int) -> tuple[Tensor, Tensor]:
    """([C, d], the mean of h [e, d] over each class's training examples, 0 without any; int64 [C], their number)."""
    member = (graph.y[:, None] == torch.arange(classes, device=h.device)) & graph.masks[TRAIN][:, None]
    count = member.sum(0)
    return member.to(h.dtype).T @ h / count.clamp(min=1)[:, None].to(h.dtype), count


def linear(layer: Layer) -> bool:
    """Whether a layer is h @ weight + bias."""
    weights = layer.init(torch.tensor(0, device="cpu"))
    return layer.operator is None and layer.reads == "product" and set(weights) == {"weight", "bias"}


@preset_of(ClassPrototypes)
class FedProto:
    """Clients share no weights but the mean embeddings of their classes, and pull their own to these.

    head:  prediction by the client's "own" last layer, or by the nearest "prototype" (the paper), which needs a linear
           last layer.
    share: patterns of weights that are shared; none.
    """

    head: Literal["own", "prototype"] = "own"
    share: tuple[str, ...] = ()

    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "a client is pulled to its own prototypes"
    }

    def parts(self) -> tuple[Part, ...]:
        return (part_of(self, NearestPrototype if self.head == "prototype" else ClassPrototypes),)
