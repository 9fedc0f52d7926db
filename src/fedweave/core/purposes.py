"""Words of the ledger, importable without heavy dependencies: what calls are for, and what is not part of a message."""

SETUP, TRAINING, EVALUATION, PREDICTION = PURPOSES = ("set-up", "training", "evaluation", "prediction")
FRAMING = "(names and framing)"
HELD = "(held)"  # the key of a message that names what its receiver has of the last one
