"""Words that are importable without heavy dependencies: what calls are for, what is not part of a message, and names
that no client may have.
"""

TAKEN = frozenset({"global", "server"})  # in a run's files: of all examples together, and of the server


SETUP, TRAINING, EVALUATION, PREDICTION = PURPOSES = ("set-up", "training", "evaluation", "prediction")
FRAMING = "(names and framing)"
HELD = "(held)"  # the key of a message that names what its receiver has of the last one
