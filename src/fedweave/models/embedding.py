"""A trained vector for each entity and no messages: the usual embedding of knowledge graphs."""

import math
from dataclasses import dataclass
from typing import ClassVar

from fedweave.core.bounds import Width
from fedweave.core.model import Model
from fedweave.core.plugins import remember_maker
from fedweave.core.settings import Settings
from fedweave.models import blocks


@dataclass(frozen=True)
class Embedding(Settings):
    """X W of features X, which are one-hot where [data] features = "learned": each node's own row of W. Rows begin
    uniform in ±sqrt(6 / width), for any number of nodes (as pykeen's `xavier_uniform_`).

    hidden: width of a vector; a decoder that reads complex numbers reads half this number of them.
    """

    hidden: Width = 64
    directed: ClassVar[str] = "both"  # the decoder of links knows source and target

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        blocks.check_shape(features, classes)
        return (blocks.product(lambda key: blocks.uniform(key, (features, classes), math.sqrt(6 / classes))),)
