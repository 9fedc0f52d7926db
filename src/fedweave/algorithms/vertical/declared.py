"""Declarations of what GLASU's messages reveal."""

from fedweave.algorithms.vertical.aggregation import PREDICTIONS
from fedweave.core.federation import Declaration, Sends
from fedweave.core.ranges import Whole

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


ENDS_THERE = (
    "the model ends at the last exchange: the server, and any party that gets it, reads there the joint prediction of "
    f"each node. Choose a model with a layer after it (gcnii); a site's policy forbids it by deny = ['{PREDICTIONS}']"
)
FACTS: Declaration = {
    "nodes": Sends("how many nodes the client holds, which all parties have in common", within=Whole(1)),
    "masks": "a fingerprint of the splits into nodes that train, validate and test",
    "labels": Sends("whether the client sees labels", within=Whole(0, 1)),
}
