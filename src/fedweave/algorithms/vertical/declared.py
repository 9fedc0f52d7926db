"""Declarations of what GLASU's messages reveal, and a check that its clients fit together."""

from collections.abc import Sequence

from fedweave.algorithms.vertical.aggregation import PREDICTIONS
from fedweave.core.federation import Declaration, Sends
from fedweave.core.ranges import Whole
from fedweave.core.replies import Replies
from fedweave.errors import UserError

LISTED_ROWS = (
    "a representation of every node of the exchanged list, from the client's features and edges, and whose row it is"
)
EVERY_ROW = "a representation of every node, from the client's features and edges"
# For models that end at the last exchange.
LOGITS = "; in the last exchange the client's part of the class scores: their mean is the joint prediction of each node"
BACK = (
    "gradient of the loss with respect to the last message that the client received: the labels of the batch can be "
    "reconstructed from such gradients"
)
SLOPE = "gradient of the loss with respect to the last aggregate"
HEARS = {
    "h": "the joint representation of the exchanged nodes, from all parties' representations",
    "gradient": "the gradient of the loss with respect to the joint representation, which depends on the batch's "
    "labels",
    "nodes": "the mini-batch's nodes and the neighbors that any party has sampled",
    "batch": "a random number, from which all parties draw the same mini-batch",
    "tail": "a random number, from which all parties draw the same first weights of the last layers",
    "clients": "how many parties there are",
    "share": "how much a party's representation counts",
    "at": "which of the parties it is",
    "segment": "which layers are due",
    "cut": "which layers are due",
}


def last_heard(predictions: bool, all_parties: bool) -> dict[str, str]:
    """What a party learns from the last aggregate.

    predictions: whether the model ends there. all_parties: whether all parties get it, or only parties with labels.
    """
    if predictions:
        what = "the class scores of the nodes, whose softmax is the joint prediction of each"
    else:
        what = "the joint representation after the last exchange, made of all parties' representations"
    return {"h": what if all_parties else f"where the party has labels, {what}; else nothing"}


ENDS_THERE = (
    "the model ends at the last exchange: the server, and any party that gets it, reads there the joint prediction of "
    f"each node. Choose a model with a layer after it (gcnii); a site's policy forbids it by deny = ['{PREDICTIONS}']"
)
FACTS: Declaration = {
    "nodes": Sends("how many nodes the client holds, which all parties have in common", within=Whole(1)),
    "masks": "a fingerprint of the splits into nodes that train, validate and test",
    "labels": Sends("whether the client sees labels", within=Whole(0, 1)),
}


def check_same_message(name: str, clients: Sequence[str], replies: Replies) -> None:
    """Raise a UserError unless the clients hold the same number of nodes with the same splits; `replies`: answers to
    `begin`."""
    facts = dict(zip(clients, replies, strict=True))
    if len(replies.stack("nodes").unique()) > 1:
        sizes = ", ".join(f"{client} {int(reply['nodes'])}" for client, reply in facts.items())
        message = f"{name} needs clients with the same nodes, but they hold {sizes}"
        raise UserError(f"{message}; set partition.name = 'vertical' or 'parties'.", code="user.nodes-differ")
    first = clients[0]
    if odd := [client for client in clients if facts[client]["masks"] != facts[first]["masks"]]:
        message = (
            f"{name} needs clients that use their nodes alike, but {', '.join(odd)} train, validate or test on others"
        )
        raise UserError(f"{message} than {first}; give every party's nodes the same split.", code="user.splits-differ")
