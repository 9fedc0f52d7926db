"""Names that no client may have."""

TAKEN = frozenset({"global", "server"})  # in a run's files: of all examples together, and of the server
