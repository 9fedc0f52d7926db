"""Training and reading runs from Python."""
