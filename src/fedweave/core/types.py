"""Types of values that no other type describes further, and words of a run's files; without heavy dependencies."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

Record: TypeAlias = dict[str, Any]  # a row of a table, or an object of a file
Values: TypeAlias = Mapping[str, Any]  # a record that is only read: settings, measurements

Kind = Literal["class", "number", "labels"]  # what is predicted of an example (`core.target`)
CLASS: Kind = "class"
NUMBER: Kind = "number"
LABELS: Kind = "labels"
NOUNS: dict[Kind, str] = {CLASS: "classes", NUMBER: "numbers", LABELS: "several labels"}

# Whether scores include the metrics that order examples; "sample": those of links by a drawn sample of them.
Ordering = Literal["all", "sample", "none"]

RESERVED_CLIENTS = frozenset({"global", "server"})  # in a run's files: all examples, and the server

SETUP, TRAINING, EVALUATION, PREDICTION = PURPOSES = ("set-up", "training", "evaluation", "prediction")
FRAMING = "(names and framing)"
KEPT_BACK = "nothing: "  # begins what a part of a message reveals if a site's policy keeps its content at home
HELD = "(held)"  # the key of a message that names the parts that its receiver has from the last one
PREDICT = "predict"  # the value of [data] external by which links between members are predicted
SHARDS = "shards"  # the data set that `fedweave shard` writes, and its partition
