"""Names for values that a type cannot describe further: rows of tables, objects of JSON and TOML, settings."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

Record: TypeAlias = dict[str, Any]  # a row of a table, or an object of a file
Values: TypeAlias = Mapping[str, Any]  # a record that is only read: settings, measurements


# ----------------------------------------------------------------------------------------------------
# Words that are importable without heavy dependencies: what calls are for, what is not part of a message, and names
# that no client may have.


Kind = Literal["class", "number", "labels"]  # what is predicted of an example (`core.target`)
CLASS: Kind = "class"
NUMBER: Kind = "number"
LABELS: Kind = "labels"
NOUNS: dict[Kind, str] = {CLASS: "classes", NUMBER: "numbers", LABELS: "several labels"}

TAKEN = frozenset({"global", "server"})  # in a run's files: all examples together, and the server


SETUP, TRAINING, EVALUATION, PREDICTION = PURPOSES = ("set-up", "training", "evaluation", "prediction")
FRAMING = "(names and framing)"
HELD = "(held)"  # the key of a message that names the parts that its receiver has from the last one
PREDICT = "predict"  # the value of [data] external by which links between members are predicted
